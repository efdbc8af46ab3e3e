/* plot.c - `train_gpt plot RUN... [out=plot.svg] [x=tokens|steps|hours] [csv=FILE]`: draws the losses of several runs
 * in one picture, and writes all their points as a table. */
#include "run/verbs/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/format.h"
#include "core/io.h"
#include "core/terminal.h"
#include "run/config/config.h"
#include "run/guard/lock.h"
#include "run/log/picture.h"
#include "run/verbs/verbs.h"

typedef enum { PLOT_TOKENS, PLOT_STEPS, PLOT_HOURS } PlotX;

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

/* Config keys whose values differ between the runs. */
typedef struct { char key[MOST_KEYS][KEY_BYTES]; int keys; } Differing;

/* Adds a key to the list. Leaves out keys that do not change the trained model, such as those of the folder or the
 * machine. */
static void add_key(void *differing, const char *key, const cJSON *a, const cJSON *b) {
    static const char *const LEFT_OUT[] = {"run.", "checkpoint.", "log.", "sample."};
    Differing *d = (Differing *)differing;
    int        is_kept = strcmp(key, "run.steps") == 0 || strcmp(key, "run.seed") == 0;
    (void)a, (void)b;
    for (size_t i = 0; i < sizeof LEFT_OUT / sizeof *LEFT_OUT; i++)
        if (!is_kept && strncmp(key, LEFT_OUT[i], strlen(LEFT_OUT[i])) == 0) return;
    for (int k = 0; k < d->keys; k++)
        if (strcmp(d->key[k], key) == 0) return;
    if (d->keys < MOST_KEYS) snprintf(d->key[d->keys++], KEY_BYTES, "%s", key);
}

/* Returns the name of a key without its section. If another key that differs has the same name, returns the whole
 * key. */
static const char *short_name(const Differing *d, int which) {
    const char *dot = strchr(d->key[which], '.'), *name = dot ? dot + 1 : d->key[which];
    for (int k = 0; k < d->keys; k++) {
        const char *other = strchr(d->key[k], '.');
        if (k != which && strcmp(other ? other + 1 : d->key[k], name) == 0) return d->key[which];
    }
    return name;
}

void plot_label(PlotRun *run, int runs) {
    Differing *d = xcalloc(1, sizeof *d, "the keys of the configs");
    for (int i = 1; i < runs; i++) config_diff(run[0].log.config, run[i].log.config, add_key, d);
    for (int i = 0; i < runs; i++) {
        int is_double = 0; /* 1 if another run's folder has the same name; the path then distinguishes them */
        for (int k = 0; k < runs; k++) is_double |= k != i && strcmp(run[k].log.name, run[i].log.name) == 0;
        snprintf(run[i].name, sizeof run[i].name, "%s", is_double ? run[i].log.dir : run[i].log.name);
        /* appends " · key=value" for each key that differs between the runs */
        for (int k = 0; k < d->keys && run[i].log.config; k++) {
            const cJSON *value = config_value(run[i].log.config, d->key[k]);
            char        *text = value ? cJSON_PrintUnformatted(value) : NULL;
            const char  *shown = cJSON_IsString(value) ? value->valuestring : text ? text : "-";
            size_t       at = strlen(run[i].differs);
            snprintf(run[i].differs + at, sizeof run[i].differs - at, " · %s=%.*s", short_name(d, k),
                     MOST_SHOWN, shown);
            free(text);
        }
    }
    free(d);
}

/* --- the picture: each run in its own colour, smoothed losses over the raw ones, and evaluations as dots ---------- */

enum { WIDTH = 960, LEFT = 76, RIGHT = 884, HEAD = 104, ROW = 22, PANEL = 400, FOOT = 62 };
enum { TICKS = 8, LABEL_BYTES = 100 };

typedef struct {
    PlotRun *run;
    int      runs;
    PlotX    x;
    FILE    *out;   /* stream to which the picture is written */
    SvgPanel panel;
} Plot;

/* Returns the place of a point on the x axis. */
static double x_of(const Plot *p, const LogPoint *at) {
    return p->x == PLOT_TOKENS ? (double)at->tokens : p->x == PLOT_STEPS ? (double)at->step : at->hours;
}

/* --- ranges ------------------------------------------------------------------------------------------------------- */

static double last_x(const Plot *p, const RunLog *log) {
    double end = log->trains ? x_of(p, &log->train[log->trains - 1]) : 0;
    if (log->evals) end = fmax(end, x_of(p, &log->eval[log->evals - 1]));
    return end;
}

/* Widens the range low to high to the losses of a run. Leaves out its first twentieth and a few spikes. */
static void widen(const Plot *p, const PlotRun *run, double *low, double *high) {
    const RunLog *log = &run->log;
    double        settled = 0.05 * last_x(p, log);
    double       *sorted = xmalloc(sizeof *sorted * (size_t)(log->trains + 1), "a picture");
    int64_t       n = 0;
    for (int64_t i = 0; i < log->trains; i++)
        if (isfinite(run->smooth[i]) && x_of(p, &log->train[i]) >= settled) sorted[n++] = run->smooth[i];
    if (n > 0) {
        qsort(sorted, (size_t)n, sizeof *sorted, ascending_doubles);
        *low = fmin(*low, sorted[0]);
        *high = fmax(*high, sorted[n * 99 / 100]);
    }
    free(sorted);
    for (int64_t i = 0; i < log->evals; i++) {
        if (!isfinite(log->eval[i].loss) || (x_of(p, &log->eval[i]) < settled && n > 0)) continue;
        *low = fmin(*low, log->eval[i].loss);
        *high = fmax(*high, log->eval[i].loss);
    }
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

/* Returns the dashes of the line of a run. If there are more runs than colours, runs that reuse a colour are dashed. */
static const char *dashes(int which) {
    return which < SVG_COLOURS       ? ""
           : which < 2 * SVG_COLOURS ? " stroke-dasharray=\"7 3\""
                                     : " stroke-dasharray=\"2 3\"";
}

/* Returns the pixel column of training line i of a log. */
static double column_of(const Plot *p, const RunLog *log, int64_t i) {
    return floor(svg_x(&p->panel, x_of(p, &log->train[i])));
}

/* Draws the raw losses of a run, as a line through the smallest and largest of each pixel column. */
static void draw_raw(const Plot *p, const RunLog *log) {
    SvgPen pen = svg_pen(p->out, &p->panel,
                         "stroke=\"currentColor\" stroke-opacity=\"0.22\" stroke-width=\"1\" "
                         "stroke-linejoin=\"round\"");
    for (int64_t i = 0; i < log->trains;) {
        double  column = column_of(p, log, i), least = INFINITY, greatest = -INFINITY;
        int64_t first = i;
        for (; i < log->trains && column_of(p, log, i) == column; i++) {
            if (!isfinite(log->train[i].loss)) continue;
            least = fmin(least, log->train[i].loss), greatest = fmax(greatest, log->train[i].loss);
        }
        svg_spread(&pen, x_of(p, &log->train[(first + i - 1) / 2]), least, greatest);
    }
    svg_pen_end(&pen);
}

/* Draws the smoothed losses of a run, as a line through the last one of each pixel column. */
static void draw_smooth(const Plot *p, const PlotRun *run, int which) {
    const RunLog *log = &run->log;
    char          look[200];
    snprintf(look, sizeof look,
             "stroke=\"currentColor\" stroke-width=\"2.2\" stroke-linejoin=\"round\" stroke-linecap=\"round\"%s",
             dashes(which));
    SvgPen pen = svg_pen(p->out, &p->panel, look);
    for (int64_t i = 0; i < log->trains; i++)
        if (isfinite(run->smooth[i]) && (i + 1 == log->trains || column_of(p, log, i + 1) != column_of(p, log, i)))
            svg_to(&pen, x_of(p, &log->train[i]), run->smooth[i]);
    svg_pen_end(&pen);
}

static void draw_evals(const Plot *p, const RunLog *log) {
    fprintf(p->out, "<g fill=\"currentColor\" class=\"halo\" stroke-width=\"1.2\">\n");
    int64_t every = log->evals / 128 + 1;
    for (int64_t i = log->evals - 1; i >= 0; i -= every)
        if (isfinite(log->eval[i].loss) && log->eval[i].loss <= p->panel.y_high)
            svg_dot(p->out, &p->panel, x_of(p, &log->eval[i]), log->eval[i].loss, "r=\"3.6\"");
    fprintf(p->out, "</g>\n");
}

/* --- words -------------------------------------------------------------------------------------------------------- */

/* Writes at most `most` bytes of a text, without cutting a character. Returns the number of bytes. */
static int put_cut(FILE *out, const char *text, int most) {
    char cut[LABEL_BYTES + 8];
    int  bytes = (int)strlen(text), end = bytes < most ? bytes : most;
    while (end < bytes && end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80) end--;
    snprintf(cut, sizeof cut, "%.*s%s", end, text, end < bytes ? "…" : "");
    svg_text(out, cut);
    return end;
}

/* Draws the legend, one row for each run: its line, its label, and its last losses at the right. */
static void draw_legend(const Plot *p) {
    fprintf(p->out, "<g font-size=\"13\" class=\"text\">\n");
    for (int i = 0; i < p->runs; i++) {
        const PlotRun  *run = &p->run[i];
        const RunLog   *log = &run->log;
        const LogPoint *last = log->evals ? &log->eval[log->evals - 1] : NULL;
        int64_t         trains = log->trains;
        int             y = HEAD - 18 + ROW * i;
        fprintf(p->out,
                "<path d=\"M%d %dh22\" class=\"c%d\" stroke=\"currentColor\" stroke-width=\"2.6\"%s/>"
                "<text x=\"%d\" y=\"%d\"><tspan class=\"title\" font-weight=\"600\">",
                LEFT, y - 4, i % SVG_COLOURS, dashes(i), LEFT + 31, y);
        int used = put_cut(p->out, run->name, LABEL_BYTES / 2);
        fprintf(p->out, "</tspan>");
        put_cut(p->out, run->differs, LABEL_BYTES - used);
        fprintf(p->out, "</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">", RIGHT, y);
        if (trains && isfinite(run->smooth[trains - 1])) fprintf(p->out, "%.4f", run->smooth[trains - 1]);
        if (last && isfinite(last->loss)) fprintf(p->out, " · %.4f", last->loss);
        if (last && trains && last->step < log->train[trains - 1].step)
            fprintf(p->out, " (step %lld)", (long long)last->step);
        fprintf(p->out, "</text>\n");
    }
    fprintf(p->out, "</g>\n");
}

static void draw(const Plot *p) {
    static const char *const NAMES[] =
        {[PLOT_TOKENS] = "tokens", [PLOT_STEPS] = "steps", [PLOT_HOURS] = "hours of training"};
    svg_begin(p->out, WIDTH, (int)p->panel.bottom + FOOT);
    svg_clip(p->out, "panel", &p->panel);
    fprintf(p->out, "<text x=\"%d\" y=\"36\" font-size=\"20\" font-weight=\"700\" class=\"title\">", LEFT);
    if (p->runs == 1) svg_text(p->out, p->run[0].log.name);
    else fprintf(p->out, "%d runs", p->runs);
    fprintf(p->out,
            "</text>\n<text x=\"%d\" y=\"36\" font-size=\"13\" class=\"quiet\" text-anchor=\"end\">last training "
            "loss, smoothed · last validation loss</text>\n",
            RIGHT);
    fprintf(p->out,
            "<text x=\"%d\" y=\"60\" font-size=\"12\" class=\"quiet\">lines: mean over a twentieth of the run around "
            "each step · pale: every step · dots: validation</text>\n",
            LEFT);
    draw_legend(p);
    svg_values(p->out, &p->panel, TICKS, SVG_LEFT);
    svg_frame(p->out, &p->panel);
    svg_beside(p->out, &p->panel, "loss, nats per token");
    svg_below(p->out, &p->panel, p->x != PLOT_HOURS, NAMES[p->x]);
    fprintf(p->out, "<g clip-path=\"url(#panel)\">\n");
    for (int pass = 0; pass < 3; pass++) /* the lines cover raw losses, and the dots cover the lines */
        for (int i = 0; i < p->runs; i++) {
            fprintf(p->out, "<g class=\"c%d\">\n", i % SVG_COLOURS);
            if (pass == 0) draw_raw(p, &p->run[i].log);
            else if (pass == 1) draw_smooth(p, &p->run[i], i);
            else draw_evals(p, &p->run[i].log);
            fprintf(p->out, "</g>\n");
        }
    fprintf(p->out, "</g>\n");
}

/* Returns the picture, malloc'ed, with its length in *bytes. */
static char *plot_svg(Plot *p, size_t *bytes) {
    char  *text = NULL;
    double low = INFINITY, high = -INFINITY, end = 0, top = HEAD + ROW * p->runs;
    for (int i = 0; i < p->runs; i++) {
        widen(p, &p->run[i], &low, &high);
        end = fmax(end, last_x(p, &p->run[i].log));
    }
    p->panel = (SvgPanel){LEFT, RIGHT, top, top + PANEL, 0, end > 0 ? end : 1, 0, 1};
    svg_loss_range(&p->panel, low, high, TICKS);
    p->out = memory_file_open(&text, bytes);
    draw(p);
    return svg_end(p->out, &text);
}

/* --- points ------------------------------------------------------------------------------------------------------- */

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

static int is_table(const char *start) { return strncmp(start, TABLE_HEAD, strlen(TABLE_HEAD)) == 0; }

/* Returns the absolute path of a file that may be missing, malloc'ed. Returns NULL if its folder is missing. */
static char *absolute(const char *path) {
    const char *name = basename(path);
    char       *whole = realpath(path, NULL), *typed = xstrndup(path, (size_t)(name - path), "a path");
    char       *folder = whole ? NULL : realpath(*typed ? typed : ".", NULL);
    if (folder) whole = xformat("a path", "%s/%s", folder, name);
    free(typed), free(folder);
    return whole;
}

static int verb_plot(int words, char **dir) {
    static PlotRun run[MOST_RUNS];
    size_t         bytes;
    Plot           p = {.run = run, .runs = words, .x = (PlotX)asked.x};
    if (asked.csv) {
        char *out = absolute(asked.out), *csv = absolute(asked.csv);
        if (out && csv && strcmp(out, csv) == 0)
            fail(EXIT_CONFIG, "plot: out=%s and csv=%s are one file: give two names", asked.out, asked.csv);
        free(out), free(csv);
    }
    RunLock *out = verb_take_out("plot", "out", asked.out, svg_is_ours);
    RunLock *csv = verb_take_out("plot", "csv", asked.csv, is_table);
    for (int i = 0; i < p.runs; i++) run[i].log = run_log_read("plot", dir[i]);
    for (int i = 0; i < p.runs && p.x == PLOT_HOURS; i++)
        for (int64_t k = 0; k < run[i].log.trains; k++)
            if (!isfinite(run[i].log.train[k].hours))
                fail(EXIT_DATA,
                     "plot: %s/metrics.jsonl has no hours at step %lld, because an older version of this program wrote "
                     "it: give x=steps or x=tokens",
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
        FILE *f = memory_file_open(&text, &bytes);
        fputs(TABLE_HEAD, f);
        for (int r = 0; r < p.runs; r++) {
            const RunLog *log = &run[r].log;
            for (int64_t i = 0; i < log->trains; i++) put_point(f, log, "train", &log->train[i], run[r].smooth[i]);
            for (int64_t i = 0; i < log->evals; i++) put_point(f, log, "eval", &log->eval[i], NAN);
        }
        fclose(f);
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
    "./train_gpt plot runs/a runs/b out=compare.svg", verb_plot, {1, MOST_RUNS, "the folder of a run"},
};
