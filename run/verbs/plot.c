/* plot.c - `train_gpt plot RUN... [out=plot.svg] [x=tokens|steps|hours] [csv=FILE]`: draws the losses of several runs
 * in one picture, and writes all their points as a table. */
#include "run/verbs/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/terminal.h"
#include "run/config/config.h"
#include "run/guard/lock.h"
#include "run/log/picture.h"
#include "run/verbs/verbs.h"

enum { MOST_RUNS = 64 };
static const char TABLE_HEAD[] = "run,kind,step,tokens,hours,loss,smoothed,bpb,lr,grad_norm\n";
static const char *const X_WORDS[] = {[PLOT_TOKENS] = "tokens", [PLOT_STEPS] = "steps", [PLOT_HOURS] = "hours", NULL};

static struct { const char *out, *csv; int x; } asked;
static const VerbKey PLOT_KEYS[] = {
    {"out", "compare.svg", "plot.svg", "the picture", .text = &asked.out},
    {"x", "hours", "tokens", "what the curves run over: tokens, steps or hours", .choice = &asked.x, .words = X_WORDS},
    {"csv", "compare.csv", "", "all points, as a table", .text = &asked.csv},
    {.name = NULL},
};

/* --- smoothing ---------------------------------------------------------------------------------------------------- */

void plot_smooth(const LogPoint *train, int64_t trains, double *smooth) {
    Curve *curve = xcalloc(1, sizeof *curve, "smoothed losses");
    double slot[CURVE_SLOTS];
    for (int64_t i = 0; i < trains; i++) curve_train(curve, (CurveStep){train[i].step, -1, train[i].loss, NAN, NAN});
    curve_smooth(curve, slot);
    for (int64_t i = 0; i < trains; i++) smooth[i] = slot[(train[i].step - curve->first_step) / curve->stride];
    free(curve);
}

/* --- labels ------------------------------------------------------------------------------------------------------- */

enum { MOST_KEYS = 1024, KEY_BYTES = 128, MOST_SHOWN = 40 /* MOST_SHOWN: most bytes of a value in a label */ };

typedef struct { char text[KEY_BYTES]; } Key;

/* Adds a config key to the list if the runs differ in it. A run without a config differs in each key. Leaves out keys
 * that do not change the trained model, such as those of the folder or the machine. Returns the new number of keys. */
static int add_key(Key *key, int keys, const PlotRun *run, int runs, const char *text) {
    static const char *const LEFT_OUT[] = {"$schema", "run.", "checkpoint.", "log.", "sample."};
    int          is_kept = strcmp(text, "run.steps") == 0 || strcmp(text, "run.seed") == 0, is_different = 0;
    const cJSON *first = config_value(run[0].log.config, text);
    for (size_t i = 0; i < sizeof LEFT_OUT / sizeof *LEFT_OUT; i++)
        if (!is_kept && strncmp(text, LEFT_OUT[i], strlen(LEFT_OUT[i])) == 0) return keys;
    for (int i = 1; i < runs; i++) is_different |= !cJSON_Compare(first, config_value(run[i].log.config, text), 1);
    if (keys == MOST_KEYS || !is_different) return keys;
    for (int k = 0; k < keys; k++)
        if (strcmp(key[k].text, text) == 0) return keys;
    snprintf(key[keys].text, KEY_BYTES, "%s", text);
    return keys + 1;
}

static int keys_that_differ(Key *key, const PlotRun *run, int runs) {
    int keys = 0;
    for (int i = 0; i < runs; i++) {
        const cJSON *section, *member;
        cJSON_ArrayForEach(section, run[i].log.config) {
            if (!cJSON_IsObject(section)) {
                keys = add_key(key, keys, run, runs, section->string);
                continue;
            }
            cJSON_ArrayForEach(member, section) {
                char text[KEY_BYTES];
                if ((size_t)snprintf(text, sizeof text, "%s.%s", section->string, member->string) < sizeof text)
                    keys = add_key(key, keys, run, runs, text);
            }
        }
    }
    return keys;
}

/* Returns the name of a key without its section. If another key that differs has the same name, returns the whole
 * key. */
static const char *short_name(const Key *key, int keys, int which) {
    const char *dot = strchr(key[which].text, '.'), *name = dot ? dot + 1 : key[which].text;
    for (int k = 0; k < keys; k++) {
        const char *other = strchr(key[k].text, '.');
        if (k != which && strcmp(other ? other + 1 : key[k].text, name) == 0) return key[which].text;
    }
    return name;
}

void plot_label(PlotRun *run, int runs) {
    Key *key = xmalloc(sizeof *key * MOST_KEYS, "the keys of the configs");
    int keys = runs > 1 ? keys_that_differ(key, run, runs) : 0;
    for (int i = 0; i < runs; i++) {
        int is_double = 0; /* 1 if another run's folder has the same name; the path then distinguishes them */
        for (int k = 0; k < runs; k++) is_double |= k != i && strcmp(run[k].log.name, run[i].log.name) == 0;
        snprintf(run[i].name, sizeof run[i].name, "%s", is_double ? run[i].log.dir : run[i].log.name);
        /* appends " · key=value" for each key that differs between the runs */
        for (int k = 0; k < keys && run[i].log.config; k++) {
            const cJSON *value = config_value(run[i].log.config, key[k].text);
            char        *text = value ? cJSON_PrintUnformatted(value) : NULL;
            const char  *shown = cJSON_IsString(value) ? value->valuestring : text ? text : "-";
            size_t       at = strlen(run[i].differs);
            snprintf(run[i].differs + at, sizeof run[i].differs - at, " · %s=%.*s", short_name(key, keys, k),
                     MOST_SHOWN, shown);
            free(text);
        }
    }
    free(key);
}

/* --- points ------------------------------------------------------------------------------------------------------- */

double plot_x(const Plot *p, const LogPoint *at) {
    return p->x == PLOT_TOKENS ? (double)at->tokens : p->x == PLOT_STEPS ? (double)at->step : at->hours;
}

static void put_point(FILE *f, const RunLog *log, const char *kind, const LogPoint *p, double smoothed) {
    const double values[] = {p->hours, p->loss, smoothed, p->bpb, p->lr, p->grad_norm};
    fputc('"', f);
    for (int i = 0, length; log->name[i]; i += length ? length : 1) {
        length = utf8_bytes(log->name + i, strnlen(log->name + i, 4));
        /* a byte that is not UTF-8 becomes '?', because programs that read tables expect UTF-8 */
        if (length == 0) fputc('?', f);
        else fprintf(f, log->name[i] == '"' ? "\"\"" : "%.*s", length, log->name + i);
    }
    fprintf(f, "\",%s,%lld,%lld", kind, (long long)p->step, (long long)p->tokens);
    for (int i = 0; i < 6; i++) fprintf(f, isfinite(values[i]) ? ",%.9g" : ",", values[i]);
    fputc('\n', f);
}

static char *csv_text(const Plot *p, size_t *bytes) {
    char *text = NULL;
    FILE *f = memory_file_open(&text, bytes);
    fputs(TABLE_HEAD, f);
    for (int r = 0; r < p->runs; r++) {
        const RunLog *log = &p->run[r].log;
        for (int64_t i = 0; i < log->trains; i++) put_point(f, log, "train", &log->train[i], p->run[r].smooth[i]);
        for (int64_t i = 0; i < log->evals; i++) put_point(f, log, "eval", &log->eval[i], NAN);
    }
    fclose(f);
    return text;
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

/* Refuses an output path that is a pipe, a device or a folder, or a link to one. Called before anything is written next
 * to it. If it is a link to a file, the picture replaces the link. */
static void refuse_kind(const char *key, const char *path) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        fail(EXIT_CONFIG, "plot: %s=%s %s: give another name", key, path, io_error_text(io_kind(st.st_mode)));
}

/* Returns the absolute path of a file that may be missing, malloc'ed. Returns NULL if its folder is missing. */
static char *absolute(const char *path) {
    const char *name = basename(path);
    char       *whole = realpath(path, NULL), *typed = xstrndup(path, (size_t)(name - path), "a path");
    char       *folder = whole ? NULL : realpath(*typed ? typed : ".", NULL);
    if (folder) whole = xformat("a path", "%s/%s", folder, name);
    free(typed), free(folder);
    return whole;
}

static int verb_plot(int argc, char **argv) {
    static PlotRun run[MOST_RUNS];
    size_t         bytes;
    int            runs = verb_read("plot", 1, argc, argv, VERB_PATHS) - 1;
    Plot           p = {run, runs, (PlotX)asked.x};
    if (p.runs > MOST_RUNS) fail(EXIT_CONFIG, "plot: more than %d runs", MOST_RUNS);
    if (p.runs == 0) verb_misused("plot", "no run");
    refuse_kind("out", asked.out);
    if (asked.csv) {
        refuse_kind("csv", asked.csv);
        char *out = absolute(asked.out), *csv = absolute(asked.csv);
        if (out && csv && strcmp(out, csv) == 0)
            fail(EXIT_CONFIG, "plot: out=%s and csv=%s are one file: give two names", asked.out, asked.csv);
        free(out), free(csv);
    }
    RunLock *out = lock_output("plot", "out", asked.out, LOCK_WHOLE);
    RunLock *csv = asked.csv ? lock_output("plot", "csv", asked.csv, LOCK_WHOLE) : NULL;
    refuse_other_file("out", asked.out, svg_is_ours);
    if (asked.csv) refuse_other_file("csv", asked.csv, is_table);
    for (int i = 0; i < p.runs; i++) run[i].log = run_log_read("plot", argv[1 + i]);
    for (int i = 0; i < p.runs && p.x == PLOT_HOURS; i++)
        for (int64_t k = 0; k < run[i].log.trains; k++)
            if (!isfinite(run[i].log.train[k].hours))
                fail(EXIT_DATA,
                     "plot: %s/metrics.jsonl has no hours at step %lld (an older program wrote it): x=steps or "
                     "x=tokens shows it",
                     run[i].log.dir, (long long)run[i].log.train[k].step);
    plot_label(run, p.runs);
    for (int i = 0; i < p.runs; i++) {
        run[i].smooth = xmalloc(sizeof(double) * (size_t)(run[i].log.trains + 1), "the losses of a run");
        plot_smooth(run[i].log.train, run[i].log.trains, run[i].smooth);
    }
    char *text = plot_svg(&p, &bytes);
    verb_put("plot", asked.out, out, text, bytes);
    free(text);
    if (asked.csv) {
        text = csv_text(&p, &bytes);
        verb_put("plot", asked.csv, csv, text, bytes);
        free(text);
    }
    print_plain(stdout,
                "plot: %d run%s over %s in %s; smoothed: the mean over a twentieth of the run around each step, as in "
                "loss.svg\n",
                p.runs, plural(p.runs), X_WORDS[p.x], asked.out);
    if (asked.csv) print_plain(stdout, "plot: every point is in %s\n", asked.csv);
    for (int i = 0; i < p.runs; i++) run_log_free(&run[i].log), free(run[i].smooth);
    return EXIT_DONE;
}

const Verb PLOT_VERB = {
    "plot", "RUN... [key=value ...]", "losses of several runs in one picture",
    "Draws the losses of runs, smoothed over raw; the legend has what differs in their configs.", PLOT_KEYS,
    "./train_gpt plot runs/a runs/b out=compare.svg", verb_plot,
};
