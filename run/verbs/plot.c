/* plot.c - `train_gpt plot RUN... [out=plot.svg] [x=tokens|steps|hours] [csv=FILE]`: draws several runs in one
 * picture, and writes all their points as a table. */
#include "run/verbs/plot.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "run/guard/lock.h"
#include "core/terminal.h"
#include "run/log/picture.h"
#include "run/verbs/arguments.h"
#include "run/verbs/verbs.h"

enum { OUT, X, CSV };
const VerbKey PLOT_KEYS[] = {
    [OUT] = {"out", "compare.svg", "plot.svg", "the picture"},
    [X] = {"x", "hours", "tokens", "what the curves run over: tokens, steps or hours"},
    [CSV] = {"csv", "compare.csv", "", "all points, as a table"},
    {.name = NULL},
};

enum { MOST_RUNS = 64 };
static const char TABLE_HEAD[] = "run,kind,step,tokens,hours,loss,smoothed,bpb,lr,grad_norm\n";
static const char *const X_WORDS[] = {[PLOT_TOKENS] = "tokens", [PLOT_STEPS] = "steps", [PLOT_HOURS] = "hours", NULL};

typedef struct {
    const char *out, *csv;
    PlotX       x;
    char       *dir[MOST_RUNS]; /* borrowed from argv */
    int         dirs;
} Asked;

static void take_argument(Asked *asked, char *word) {
    VerbArgument a = verb_argument("plot", word);
    switch (a.row) {
        case OUT: asked->out = verb_text(&a); break;
        case X: asked->x = (PlotX)verb_choice(&a, X_WORDS); break;
        case CSV: asked->csv = verb_text(&a); break;
        default:
            if (asked->dirs == MOST_RUNS) fail(EXIT_CONFIG, "plot: more than %d runs", MOST_RUNS);
            asked->dir[asked->dirs++] = word;
    }
}

static Asked take_arguments(int argc, char **argv) {
    Asked a = {.out = "plot.svg"};
    for (int i = 1; i < argc; i++) take_argument(&a, argv[i]);
    if (a.dirs == 0) verb_misused("plot", "no run");
    return a;
}

/* --- smoothing ---------------------------------------------------------------------------------------------------- */

void plot_smooth(const LogPoint *train, int64_t trains, double *smooth) {
    Curve *curve = xcalloc(1, sizeof *curve, "smoothed losses");
    double slot[CURVE_SLOTS];
    for (int64_t i = 0; i < trains; i++) curve_train(curve, (CurveStep){train[i].step, -1, train[i].loss, NAN, NAN});
    curve_smooth(curve, slot);
    for (int64_t i = 0; i < trains; i++) smooth[i] = slot[(train[i].step - curve->first_step) / curve->stride];
    free(curve);
}

/* --- points ------------------------------------------------------------------------------------------------------- */

double plot_x(const Plot *p, const LogPoint *at) {
    return p->x == PLOT_TOKENS ? (double)at->tokens : p->x == PLOT_STEPS ? (double)at->step : at->hours;
}

static void refuse_without_hours(const RunLog *log) {
    for (int64_t i = 0; i < log->trains; i++)
        if (!isfinite(log->train[i].hours))
            fail(EXIT_DATA,
                 "plot: %s/metrics.jsonl has no hours at step %lld (an older program wrote it): x=steps or x=tokens shows it",
                 log->dir, (long long)log->train[i].step);
}

static void put_number(FILE *f, double value) {
    if (isfinite(value)) fprintf(f, ",%.9g", value);
    else fputc(',', f);
}

static void put_point(FILE *f, const RunLog *log, const char *kind, const LogPoint *p, double smoothed) {
    fputc('"', f);
    for (int i = 0, length; log->name[i]; i += length ? length : 1) {
        length = utf8_bytes(log->name + i, strnlen(log->name + i, 4));
        if (length == 0) fputc('?', f); /* programs that read tables need UTF-8 */
        else fprintf(f, log->name[i] == '"' ? "\"\"" : "%.*s", length, log->name + i);
    }
    fprintf(f, "\",%s,%lld,%lld", kind, (long long)p->step, (long long)p->tokens);
    put_number(f, p->hours), put_number(f, p->loss), put_number(f, smoothed);
    put_number(f, p->bpb), put_number(f, p->lr), put_number(f, p->grad_norm);
    fputc('\n', f);
}

static char *csv_text(const Plot *p, size_t *bytes) {
    char *text = NULL;
    FILE *f = memory_file_open(&text, bytes);
    if (!f) return NULL;
    fputs(TABLE_HEAD, f);
    for (int r = 0; r < p->runs; r++) {
        const RunLog *log = &p->run[r].log;
        for (int64_t i = 0; i < log->trains; i++) put_point(f, log, "train", &log->train[i], p->run[r].smooth[i]);
        for (int64_t i = 0; i < log->evals; i++) put_point(f, log, "eval", &log->eval[i], NAN);
    }
    if (fclose(f) == 0) return text;
    free(text);
    return NULL;
}

static int is_table(const char *start) { return strncmp(start, TABLE_HEAD, strlen(TABLE_HEAD)) == 0; }

/* Refuses to overwrite a file that is not a picture or a table of this verb. */
static void refuse_other_file(const char *key, const char *path, int (*is_ours)(const char *)) {
    enum { START_BYTES = 4096 };
    char   *text = NULL;
    int64_t bytes = io_read_start(path, START_BYTES, &text);
    int     is_other = bytes > 0 && !is_ours(text);
    free(text);
    if (is_other)
        fail(EXIT_CONFIG, "plot: %s=%s: this file was not written by plot and is not overwritten: give another name",
             key, path);
}

/* Refuses pipes, devices and folders, and links to them, before anything is made beside them. The picture replaces a link to a file. */
static void refuse_kind(const char *key, const char *path) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        fail(EXIT_CONFIG, "plot: %s=%s %s: give another name", key, path, io_error_text(io_kind(st.st_mode)));
}

/* Returns the absolute path of a file that may be missing, malloc'ed. Returns NULL if its folder is missing. */
static char *absolute(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char       *whole = realpath(path, NULL), *typed = strndup(path, (size_t)(name - path));
    char       *folder = whole || !typed ? NULL : realpath(*typed ? typed : ".", NULL);
    if (folder && asprintf(&whole, "%s/%s", folder, name) < 0) whole = NULL;
    free(typed), free(folder);
    return whole;
}

static void refuse_one_file(const Asked *a) {
    char *out = absolute(a->out), *csv = absolute(a->csv);
    if (out && csv && strcmp(out, csv) == 0)
        fail(EXIT_CONFIG, "plot: out=%s and csv=%s are one file: give two names", a->out, a->csv);
    free(out), free(csv);
}

static void refuse_files(const Asked *a) {
    refuse_other_file("out", a->out, svg_is_ours);
    if (a->csv) refuse_other_file("csv", a->csv, is_table);
}

static void write_file(const char *path, RunLock *lock, char *text, size_t bytes) {
    if (!text) fail(EXIT_MEMORY, "plot: no memory for %s", path);
    lock_keep(lock);
    int error = io_replace_file(path, text, bytes);
    free(text);
    if (error) fail(EXIT_IO, "plot: cannot write %s: %s", path, io_error_text(error));
}

int verb_plot(int argc, char **argv) {
    Asked   a = take_arguments(argc, argv);
    PlotRun run[MOST_RUNS] = {0};
    Plot    p = {run, a.dirs, a.x};
    size_t  bytes;
    refuse_kind("out", a.out);
    if (a.csv) refuse_kind("csv", a.csv), refuse_one_file(&a);
    RunLock *out = lock_output("plot", "out", a.out, LOCK_WHOLE);
    RunLock *csv = a.csv ? lock_output("plot", "csv", a.csv, LOCK_WHOLE) : NULL;
    refuse_files(&a);
    for (int i = 0; i < a.dirs; i++) run[i].log = run_log_read("plot", a.dir[i]);
    for (int i = 0; i < a.dirs && p.x == PLOT_HOURS; i++) refuse_without_hours(&run[i].log);
    plot_label(run, p.runs);
    for (int i = 0; i < p.runs; i++) {
        run[i].smooth = xmalloc(sizeof(double) * (size_t)(run[i].log.trains + 1), "the losses of a run");
        plot_smooth(run[i].log.train, run[i].log.trains, run[i].smooth);
    }
    char *text = plot_svg(&p, &bytes);
    write_file(a.out, out, text, bytes);
    if (a.csv) text = csv_text(&p, &bytes), write_file(a.csv, csv, text, bytes);
    lock_release(csv), lock_release(out);
    print_plain(stdout, "plot: %d run%s over %s in %s; smoothed: the mean over a twentieth of the run around each step, as in loss.svg\n",
                p.runs, p.runs == 1 ? "" : "s", X_WORDS[p.x], a.out);
    if (a.csv) print_plain(stdout, "plot: every point is in %s\n", a.csv);
    for (int i = 0; i < p.runs; i++) run_log_free(&run[i].log), free(run[i].smooth);
    return EXIT_DONE;
}
