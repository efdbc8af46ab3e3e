/* plot_svg.c - plot_svg() of plot.h: draws each run in its own colour, with smoothed losses over the raw ones and
 * evaluations as dots. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/format.h"
#include "core/io.h"
#include "run/log/picture.h"
#include "run/verbs/plot.h"

enum { WIDTH = 960, LEFT = 76, RIGHT = 884, HEAD = 104, ROW = 22, PANEL = 400, FOOT = 62 };
enum { TICKS = 8, LABEL_BYTES = 100 };

typedef struct {
    FILE       *out;
    const Plot *p;
    SvgPanel    panel;
    double     *sorted; /* scratch memory for the losses of a run [most training lines of a run] */
} Picture;

/* --- ranges ------------------------------------------------------------------------------------------------------- */

static double last_x(const Plot *p, const RunLog *log) {
    double end = log->trains ? plot_x(p, &log->train[log->trains - 1]) : 0;
    if (log->evals) end = fmax(end, plot_x(p, &log->eval[log->evals - 1]));
    return end;
}

/* Widens the range low to high to the losses of a run. Leaves out its first twentieth and a few spikes. */
static void widen(const Picture *s, const PlotRun *run, double *low, double *high) {
    const RunLog *log = &run->log;
    double        settled = 0.05 * last_x(s->p, log);
    int64_t       n = 0;
    for (int64_t i = 0; i < log->trains; i++)
        if (isfinite(run->smooth[i]) && plot_x(s->p, &log->train[i]) >= settled) s->sorted[n++] = run->smooth[i];
    if (n > 0) {
        qsort(s->sorted, (size_t)n, sizeof *s->sorted, ascending_doubles);
        *low = fmin(*low, s->sorted[0]);
        *high = fmax(*high, s->sorted[n * 99 / 100]);
    }
    for (int64_t i = 0; i < log->evals; i++) {
        if (!isfinite(log->eval[i].loss) || (plot_x(s->p, &log->eval[i]) < settled && n > 0)) continue;
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
static double column_of(const Picture *s, const RunLog *log, int64_t i) {
    return floor(svg_x(&s->panel, plot_x(s->p, &log->train[i])));
}

/* Draws the raw losses of a run, as a line through the smallest and largest of each pixel column. */
static void draw_raw(const Picture *s, const RunLog *log) {
    SvgPen pen = svg_pen(s->out, &s->panel,
                         "stroke=\"currentColor\" stroke-opacity=\"0.22\" stroke-width=\"1\" "
                         "stroke-linejoin=\"round\"");
    for (int64_t i = 0; i < log->trains;) {
        double  column = column_of(s, log, i), least = INFINITY, greatest = -INFINITY;
        int64_t first = i;
        for (; i < log->trains && column_of(s, log, i) == column; i++) {
            if (!isfinite(log->train[i].loss)) continue;
            least = fmin(least, log->train[i].loss), greatest = fmax(greatest, log->train[i].loss);
        }
        svg_spread(&pen, plot_x(s->p, &log->train[(first + i - 1) / 2]), least, greatest);
    }
    svg_pen_end(&pen);
}

/* Draws the smoothed losses of a run, as a line through the last one of each pixel column. */
static void draw_smooth(const Picture *s, const PlotRun *run, int which) {
    const RunLog *log = &run->log;
    char          look[200];
    snprintf(look, sizeof look,
             "stroke=\"currentColor\" stroke-width=\"2.2\" stroke-linejoin=\"round\" stroke-linecap=\"round\"%s",
             dashes(which));
    SvgPen pen = svg_pen(s->out, &s->panel, look);
    for (int64_t i = 0; i < log->trains; i++)
        if (isfinite(run->smooth[i]) && (i + 1 == log->trains || column_of(s, log, i + 1) != column_of(s, log, i)))
            svg_to(&pen, plot_x(s->p, &log->train[i]), run->smooth[i]);
    svg_pen_end(&pen);
}

static void draw_evals(const Picture *s, const RunLog *log) {
    fprintf(s->out, "<g fill=\"currentColor\" class=\"halo\" stroke-width=\"1.2\">\n");
    int64_t every = log->evals / 128 + 1;
    for (int64_t i = log->evals - 1; i >= 0; i -= every)
        if (isfinite(log->eval[i].loss) && log->eval[i].loss <= s->panel.y_high)
            svg_dot(s->out, &s->panel, plot_x(s->p, &log->eval[i]), log->eval[i].loss, "r=\"3.6\"");
    fprintf(s->out, "</g>\n");
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
static void draw_legend(const Picture *s) {
    fprintf(s->out, "<g font-size=\"13\" class=\"text\">\n");
    for (int i = 0; i < s->p->runs; i++) {
        const PlotRun  *run = &s->p->run[i];
        const RunLog   *log = &run->log;
        const LogPoint *last = log->evals ? &log->eval[log->evals - 1] : NULL;
        int64_t         trains = log->trains;
        int             y = HEAD - 18 + ROW * i;
        fprintf(s->out,
                "<path d=\"M%d %dh22\" class=\"c%d\" stroke=\"currentColor\" stroke-width=\"2.6\"%s/>"
                "<text x=\"%d\" y=\"%d\"><tspan class=\"title\" font-weight=\"600\">",
                LEFT, y - 4, i % SVG_COLOURS, dashes(i), LEFT + 31, y);
        int used = put_cut(s->out, run->name, LABEL_BYTES / 2);
        fprintf(s->out, "</tspan>");
        put_cut(s->out, run->differs, LABEL_BYTES - used);
        fprintf(s->out, "</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">", RIGHT, y);
        if (trains && isfinite(run->smooth[trains - 1])) fprintf(s->out, "%.4f", run->smooth[trains - 1]);
        if (last && isfinite(last->loss)) fprintf(s->out, " · %.4f", last->loss);
        if (last && trains && last->step < log->train[trains - 1].step)
            fprintf(s->out, " (step %lld)", (long long)last->step);
        fprintf(s->out, "</text>\n");
    }
    fprintf(s->out, "</g>\n");
}

static void draw(const Picture *s) {
    static const char *const NAMES[] =
        {[PLOT_TOKENS] = "tokens", [PLOT_STEPS] = "steps", [PLOT_HOURS] = "hours of training"};
    svg_begin(s->out, WIDTH, (int)s->panel.bottom + FOOT);
    svg_clip(s->out, "panel", &s->panel);
    fprintf(s->out, "<text x=\"%d\" y=\"36\" font-size=\"20\" font-weight=\"700\" class=\"title\">", LEFT);
    if (s->p->runs == 1) svg_text(s->out, s->p->run[0].log.name);
    else fprintf(s->out, "%d runs", s->p->runs);
    fprintf(s->out,
            "</text>\n<text x=\"%d\" y=\"36\" font-size=\"13\" class=\"quiet\" text-anchor=\"end\">last training "
            "loss, smoothed · last validation loss</text>\n",
            RIGHT);
    fprintf(s->out,
            "<text x=\"%d\" y=\"60\" font-size=\"12\" class=\"quiet\">lines: mean over a twentieth of the run around "
            "each step · pale: every step · dots: validation</text>\n",
            LEFT);
    draw_legend(s);
    svg_values(s->out, &s->panel, TICKS, SVG_LEFT);
    svg_frame(s->out, &s->panel);
    svg_beside(s->out, &s->panel, "loss, nats per token");
    svg_below(s->out, &s->panel, s->p->x != PLOT_HOURS, NAMES[s->p->x]);
    fprintf(s->out, "<g clip-path=\"url(#panel)\">\n");
    for (int pass = 0; pass < 3; pass++) /* the lines cover raw losses, and the dots cover the lines */
        for (int i = 0; i < s->p->runs; i++) {
            fprintf(s->out, "<g class=\"c%d\">\n", i % SVG_COLOURS);
            if (pass == 0) draw_raw(s, &s->p->run[i].log);
            else if (pass == 1) draw_smooth(s, &s->p->run[i], i);
            else draw_evals(s, &s->p->run[i].log);
            fprintf(s->out, "</g>\n");
        }
    fprintf(s->out, "</g>\n");
}

char *plot_svg(const Plot *p, size_t *bytes) {
    char   *text = NULL;
    int64_t most = 1;
    double  low = INFINITY, high = -INFINITY, end = 0, top = HEAD + ROW * p->runs;
    for (int i = 0; i < p->runs; i++)
        if (p->run[i].log.trains > most) most = p->run[i].log.trains;
    Picture s = {.p = p, .sorted = xmalloc(sizeof(double) * (size_t)most, "a picture"),
                 .out = memory_file_open(&text, bytes)};
    for (int i = 0; i < p->runs; i++) {
        widen(&s, &p->run[i], &low, &high);
        end = fmax(end, last_x(p, &p->run[i].log));
    }
    s.panel = (SvgPanel){LEFT, RIGHT, top, top + PANEL, 0, end > 0 ? end : 1, 0, 1};
    svg_loss_range(&s.panel, low, high, TICKS);
    draw(&s);
    free(s.sorted);
    return svg_end(s.out, &text);
}
