/* curve_svg.c - curve_svg() of curve.h: draws the losses, and learning rate and gradient norm below them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/format.h"
#include "core/io.h"
#include "run/log/curve.h"
#include "run/log/svg.h"

enum {
    WIDTH = 960,
    HEIGHT = 640,
    LEFT = 76,
    RIGHT = 872,
    TOP = 112,
    BOTTOM = 424,
    LOWER_TOP = 458,
    LOWER_BOTTOM = 574
};
enum { TICKS = 7, LOWER_TICKS = 4 };

typedef struct {
    double step, mean, smooth, norm; /* middle of a slot and its values; NaN: none */
} Drawn;

typedef struct {
    FILE        *out;
    const Curve *c;
    Drawn       *drawn;  /* [c->slots] values to draw; owned */
    double      *sorted; /* scratch [c->slots] */
    SvgPanel     loss, rate, norm;
} Picture;

/* --- the points and the ranges ------------------------------------------------------------------------------------ */

static double slot_end(const Curve *c, int i) {
    double last = (double)(c->first_step + (int64_t)(i + 1) * c->stride - 1);
    return last < (double)c->last_step ? last : (double)c->last_step;
}

/* Computes the means of the slots and their smoothed losses. */
static void smooth(Picture *p) {
    const Curve *c = p->c;
    double       smoothed[CURVE_SLOTS];
    curve_smooth(c, smoothed);
    for (int i = 0; i < c->slots; i++) {
        const CurveSlot *s = &c->slot[i];
        p->drawn[i] = (Drawn){.step = ((double)(c->first_step + (int64_t)i * c->stride) + slot_end(c, i)) / 2,
                              .mean = s->finite ? s->sum / (double)s->finite : NAN, .smooth = smoothed[i],
                              .norm = s->norms ? s->norm_sum / (double)s->norms : NAN};
    }
}

/* Returns the step from which on values count for a range. In the first twentieth of the steps they fall fast. */
static double settled_step(const Picture *p) { return 0.05 * p->loss.x_high; }

/* Returns the upper end of a range without a few spikes: p98 + (p98 - low), at most high. p98 is the 98th percentile of
 * the n values in p->sorted. */
static double without_spikes(const Picture *p, int n, double low, double high) {
    if (n < 8) return high;
    qsort(p->sorted, (size_t)n, sizeof *p->sorted, ascending_doubles);
    double most = p->sorted[n * 98 / 100];
    return fmin(high, most + fmax(most - low, 1e-9 * fabs(most)));
}

static void choose_loss_range(Picture *p, double settled) {
    const Curve *c = p->c;
    int          n = 0;
    double       low = INFINITY, high = -INFINITY;
    for (int i = 0; i < c->slots; i++) {
        if (!c->slot[i].finite || p->drawn[i].step < settled) continue;
        p->sorted[n++] = p->drawn[i].smooth; /* raw losses may exceed the range */
        low = fmin(low, c->slot[i].least);
        high = fmax(high, p->drawn[i].smooth);
    }
    if (n > 0) high = without_spikes(p, n, low, high);
    for (int i = 0; i < c->evals; i++) {
        if ((double)c->eval[i].step < settled && n > 0) continue;
        low = fmin(low, c->eval[i].loss);
        high = fmax(high, c->eval[i].loss);
    }
    if (!isfinite(low)) low = 0, high = 1;
    double least_span = 0.05 * fmax(1.0, fabs(high));
    if (high - low < least_span) low -= least_span / 2, high += least_span / 2;
    svg_round_range(&low, &high, TICKS);
    p->loss.y_low = low, p->loss.y_high = high;
}

static void choose_lower_ranges(Picture *p, double settled) {
    const Curve *c = p->c;
    double       rate = 0, norm = 0;
    int          n = 0;
    for (int i = 0; i < c->slots; i++) {
        if (isfinite(c->slot[i].lr)) rate = fmax(rate, c->slot[i].lr);
        if (isnan(p->drawn[i].norm) || p->drawn[i].step < settled) continue;
        p->sorted[n++] = p->drawn[i].norm;
        norm = fmax(norm, p->drawn[i].norm);
    }
    if (n > 0) norm = without_spikes(p, n, 0, norm);
    p->rate.y_high = rate > 0 ? 1.08 * rate : 1;
    p->norm.y_high = norm > 0 ? 1.08 * norm : 1;
}

static void lay_out(Picture *p) {
    double end = p->c->last_step > 0 ? (double)p->c->last_step : 1.0;
    p->loss = (SvgPanel){LEFT, RIGHT, TOP, BOTTOM, 0, end, 0, 1};
    p->rate = p->norm = (SvgPanel){LEFT, RIGHT, LOWER_TOP, LOWER_BOTTOM, 0, end, 0, 1};
    smooth(p);
    double settled = settled_step(p);
    if (p->c->slots == 0 || p->drawn[p->c->slots - 1].step < settled) settled = 0;
    choose_loss_range(p, settled);
    choose_lower_ranges(p, settled);
}

/* --- axes --------------------------------------------------------------------------------------------------------- */

static double last_tokens(const Curve *c) { return c->slots > 0 ? (double)c->slot[c->slots - 1].tokens : -1; }

/* Returns the step after which so many tokens were consumed. */
static double step_of_tokens(const Curve *c, double tokens) {
    double before = 0, step = 0;
    for (int i = 0; i < c->slots; i++) {
        double end = slot_end(c, i), after = (double)c->slot[i].tokens;
        if (after >= tokens && after > before) return step + (end - step) * (tokens - before) / (after - before);
        step = end, before = after;
    }
    return step;
}

/* Draws a scale of tokens above the panel, if the log has them and covers the run from its first step on. */
static void draw_tokens(const Picture *p) {
    double tokens = last_tokens(p->c);
    if (tokens <= 0 || p->c->first_step > 1) return;
    double along = svg_tick_step(tokens, 6);
    fprintf(p->out, "<g font-size=\"13\" class=\"quiet\" text-anchor=\"middle\">\n");
    for (double k = 1; k * along <= tokens * (1 + 1e-9); k++) {
        double x = svg_x(&p->loss, step_of_tokens(p->c, k * along));
        fprintf(p->out, "<path d=\"M%.1f %dv-5\" class=\"axis\"/><text x=\"%.1f\" y=\"%d\">", x, TOP, x, TOP - 10);
        svg_count(p->out, k * along);
        fprintf(p->out, "</text>\n");
    }
    fprintf(p->out,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"start\">tokens</text>\n</g>\n<path d=\"M%d %dH%d\" class=\"axis\"/>\n",
            LEFT, TOP - 10, LEFT, TOP, RIGHT);
}

static void draw_axes(const Picture *p) {
    svg_values(p->out, &p->loss, TICKS, SVG_LEFT);
    svg_frame(p->out, &p->loss);
    svg_beside(p->out, &p->loss, SVG_LEFT, "loss, nats per token");
    draw_tokens(p);
    svg_values(p->out, &p->rate, LOWER_TICKS, SVG_LEFT);
    svg_values(p->out, &p->norm, LOWER_TICKS, SVG_RIGHT);
    svg_frame(p->out, &p->rate);
    svg_below(p->out, &p->rate, 1, "step");
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

static double smooth_of(const Drawn *d) { return d->smooth; }
static double norm_of(const Drawn *d) { return d->norm; }

/* Draws a line through one value of each slot. A slot without the value interrupts it. */
static void draw_line(const Picture *p, const SvgPanel *panel, double (*value)(const Drawn *d), const char *look) {
    fprintf(p->out,
            "<path fill=\"none\" stroke=\"currentColor\" stroke-linejoin=\"round\" stroke-linecap=\"round\" %s d=\"",
            look);
    for (int i = 0, pen_down = 0; i < p->c->slots; i++) {
        double v = value(&p->drawn[i]);
        if (isfinite(v))
            fprintf(p->out, "%c%.1f %.1f", pen_down ? 'L' : 'M', svg_x(panel, p->drawn[i].step), svg_y(panel, v));
        pen_down = isfinite(v);
    }
    fprintf(p->out, "\"/>\n");
}

/* Draws the spread of the losses, as a line through least and greatest of each slot. A slot without a finite loss
 * interrupts it. */
static void draw_raw(const Picture *p) {
    const Curve *c = p->c;
    fprintf(p->out,
            "<path fill=\"none\" class=\"c0\" stroke=\"currentColor\" stroke-opacity=\"0.35\" stroke-width=\"1\" stroke-linejoin=\"round\" d=\"");
    for (int i = 0, pen_down = 0; i < c->slots; i++) {
        if (!c->slot[i].finite) {
            pen_down = 0;
            continue;
        }
        fprintf(p->out, "%c%.1f %.1f", pen_down ? 'L' : 'M', svg_x(&p->loss, p->drawn[i].step),
                svg_y(&p->loss, c->slot[i].greatest));
        if (c->slot[i].least < c->slot[i].greatest) fprintf(p->out, "V%.1f", svg_y(&p->loss, c->slot[i].least));
        pen_down = 1;
    }
    fprintf(p->out, "\"/>\n");
}

static void draw_smooth(const Picture *p) {
    draw_line(p, &p->loss, smooth_of, "class=\"c0\" stroke-width=\"2.4\"");
    if (p->c->slots == 1 && p->c->slot[0].finite)
        fprintf(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" class=\"c0\" fill=\"currentColor\"/>\n",
                svg_x(&p->loss, p->drawn[0].step), svg_y(&p->loss, p->drawn[0].mean));
}

static int is_drawn(const Picture *p, double loss) { return loss >= p->loss.y_low && loss <= p->loss.y_high; }

/* Draws the evaluations. One above the picture, as the first often is, gets no line. */
static void draw_evals(const Picture *p) {
    const Curve *c = p->c;
    if (c->evals == 0) return;
    fprintf(p->out,
            "<g class=\"c1\">\n<path fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.6\" stroke-linejoin=\"round\" d=\"");
    for (int i = 0, pen_down = 0; i < c->evals; i++) {
        int shown = is_drawn(p, c->eval[i].loss);
        if (shown)
            fprintf(p->out, "%c%.1f %.1f", pen_down ? 'L' : 'M', svg_x(&p->loss, (double)c->eval[i].step),
                    svg_y(&p->loss, c->eval[i].loss));
        pen_down = shown;
    }
    fprintf(p->out, "\"/>\n<g fill=\"currentColor\" class=\"halo\" stroke-width=\"1.2\">\n");
    for (int i = c->evals > 60 ? c->evals - 1 : 0; i < c->evals; i++) /* many dots would hide the line */
        if (is_drawn(p, c->eval[i].loss))
            fprintf(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>\n", svg_x(&p->loss, (double)c->eval[i].step),
                    svg_y(&p->loss, c->eval[i].loss));
    fprintf(p->out, "</g>\n</g>\n");
}

/* Draws a ring around the best evaluation, and its loss beside it. */
static void draw_best(const Picture *p) {
    if (p->c->evals == 0 || !is_drawn(p, p->c->best.loss)) return;
    double      x = svg_x(&p->loss, (double)p->c->best.step), y = svg_y(&p->loss, p->c->best.loss);
    const char *anchor = x > RIGHT - 90 ? "end" : x < LEFT + 90 ? "start" : "middle";
    fprintf(p->out,
            "<g class=\"c1\"><circle cx=\"%.1f\" cy=\"%.1f\" r=\"7\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.6\"/>"
            "<text x=\"%.1f\" y=\"%.1f\" font-size=\"13\" font-weight=\"600\" text-anchor=\"%s\" fill=\"currentColor\" class=\"halo\" "
            "stroke-width=\"4\" stroke-linejoin=\"round\" paint-order=\"stroke\">best",
            x, y,
            *anchor == 'e'   ? x + 7
            : *anchor == 's' ? x - 7
                             : x,
            y > TOP + 40 ? y - 15 : y + 25, anchor);
    if (p->c->best.step < p->c->eval[p->c->evals - 1].step)
        fprintf(p->out, " %.4f", p->c->best.loss); /* the value of the last evaluation is at the end of its curve */
    fprintf(p->out, "</text></g>\n");
}

/* Draws marks on the axis at slots with a loss that was not finite. */
static void draw_nonfinite(const Picture *p) {
    for (int i = 0; i < p->c->slots; i++)
        if (p->c->slot[i].nonfinite)
            fprintf(p->out,
                    "<path d=\"M%.1f %dv-10\" class=\"bad\" stroke=\"currentColor\" stroke-width=\"2\"><title>loss not finite</title></path>\n",
                    svg_x(&p->loss, p->drawn[i].step), BOTTOM);
}

/* Dashes distinguish the kinds of marks without their colour. */
static const struct {
    const char *name, *look;
} MARKS[CURVE_MARK_KINDS] = {
    [CURVE_RESUMED] = {"resumed", "class=\"c7\" stroke-dasharray=\"2 4\""},
    [CURVE_SKIPPED] = {"step skipped", "class=\"c6\" stroke-dasharray=\"6 3\""},
    [CURVE_ROLLED_BACK] = {"rolled back", "class=\"bad\" stroke-dasharray=\"9 3 2 3\""},
};

static void draw_marks(const Picture *p) {
    for (int i = 0; i < p->c->marks; i++) {
        CurveMark m = p->c->mark[i];
        double    x = svg_x(&p->loss, (double)m.step);
        fprintf(p->out,
                "<path d=\"M%.1f %dV%dM%.1f %dV%d\" %s stroke=\"currentColor\" stroke-width=\"1\"><title>%s, step %lld</title></path>\n",
                x, TOP, BOTTOM, x, LOWER_TOP, LOWER_BOTTOM, MARKS[m.kind].look, MARKS[m.kind].name, (long long)m.step);
    }
}

static void draw_rates(const Picture *p) {
    const Curve *c = p->c;
    draw_line(p, &p->norm, norm_of, "class=\"c3\" stroke-width=\"1\" stroke-opacity=\"0.75\"");
    fprintf(p->out,
            "<path fill=\"none\" class=\"c2\" stroke=\"currentColor\" stroke-width=\"2\" stroke-linejoin=\"round\" d=\"");
    for (int i = 0, pen_down = 0; i < c->slots; i++) {
        if (isfinite(c->slot[i].lr))
            fprintf(p->out, "%c%.1f %.1f", pen_down ? 'L' : 'M', svg_x(&p->rate, slot_end(c, i)),
                    svg_y(&p->rate, c->slot[i].lr));
        pen_down = isfinite(c->slot[i].lr);
    }
    fprintf(p->out, "\"/>\n");
}

/* --- words -------------------------------------------------------------------------------------------------------- */

/* Writes the last values at the right end of their curves, with a gap between them. */
static void draw_last_values(const Picture *p) {
    const Curve *c = p->c;
    int          last = c->slots - 1;
    while (last >= 0 && isnan(p->drawn[last].smooth)) last--;
    double train = last >= 0 ? p->drawn[last].smooth : NAN, eval = c->evals ? c->eval[c->evals - 1].loss : NAN;
    double train_y = fmax(TOP, svg_y(&p->loss, train)) + 4.5, eval_y = fmax(TOP, svg_y(&p->loss, eval)) + 4.5, gap = 17;
    if (fabs(train_y - eval_y) < gap) {
        double middle = fmin((train_y + eval_y) / 2, BOTTOM - gap / 2), sign = train_y > eval_y ? 1 : -1;
        train_y = middle + sign * gap / 2;
        eval_y = middle - sign * gap / 2;
    }
    fprintf(p->out, "<g font-size=\"14\" font-weight=\"600\">\n");
    if (!isnan(train))
        fprintf(p->out, "<text x=\"%d\" y=\"%.1f\" class=\"c0\" fill=\"currentColor\">%.4f</text>\n", RIGHT + 10,
                train_y, train);
    if (!isnan(eval))
        fprintf(p->out, "<text x=\"%d\" y=\"%.1f\" class=\"c1\" fill=\"currentColor\">%.4f</text>\n", RIGHT + 10,
                eval_y, eval);
    fprintf(p->out, "</g>\n");
}

/* Draws an entry of the legend: a short line in its look, and its name. Returns the x of the next entry. */
static int draw_key(const Picture *p, int x, int y, const char *look, const char *name, int room) {
    fprintf(p->out, "<path d=\"M%d %dh22\" stroke=\"currentColor\" %s/><text x=\"%d\" y=\"%d\">%s</text>\n", x, y, look,
            x + 29, y + 4, name);
    return x + room;
}

static void draw_legend(const Picture *p) {
    int x = RIGHT - (p->c->evals ? 379 : 265), y = 34;
    fprintf(p->out, "<g font-size=\"13\" class=\"text\">\n");
    x = draw_key(p, x, y, "class=\"c0\" stroke-opacity=\"0.45\" stroke-width=\"1.5\"", "training", 106);
    x = draw_key(p, x, y, "class=\"c0\" stroke-width=\"2.6\"", "training, smoothed", 172);
    if (p->c->evals) {
        draw_key(p, x, y, "class=\"c1\" stroke-width=\"1.6\"", "validation", 0);
        fprintf(p->out, "<circle cx=\"%d\" cy=\"%d\" r=\"3.5\" class=\"c1\" fill=\"currentColor\"/>\n", x + 11, y);
    }
    x = LEFT, y = LOWER_BOTTOM + 38;
    x = draw_key(p, x, y, "class=\"c2\" stroke-width=\"2\"", "learning rate (left)", 166);
    draw_key(p, x, y, "class=\"c3\" stroke-width=\"1.4\"", "gradient norm (right)", 0);
    x = RIGHT;
    for (int kind = CURVE_MARK_KINDS - 1; kind >= 0; kind--) {
        int is_there = 0;
        for (int i = 0; i < p->c->marks; i++) is_there |= p->c->mark[i].kind == (CurveMarkKind)kind;
        if (!is_there) continue;
        x -= kind == CURVE_SKIPPED ? 122 : 114;
        draw_key(p, x, y, MARKS[kind].look, MARKS[kind].name, 0);
    }
    fprintf(p->out, "</g>\n");
}

static void put_amount(FILE *out, double value, const char *unit) {
    double scale = value >= 1e9 ? 1e9 : value >= 1e6 ? 1e6 : value >= 1e4 ? 1e3 : 1;
    fprintf(out, "%.4g%s %s", value / scale,
            scale == 1e9   ? " B"
            : scale == 1e6 ? " M"
            : scale == 1e3 ? " k"
                           : "",
            unit);
}

static void draw_title(const Picture *p, CurveTitle title) {
    fprintf(p->out, "<text x=\"%d\" y=\"40\" font-size=\"20\" font-weight=\"700\" class=\"title\">", LEFT);
    svg_text(p->out, title.title);
    fprintf(p->out, "</text>\n<text x=\"%d\" y=\"63\" font-size=\"13\" class=\"quiet\">", LEFT);
    if (title.parameters > 0) put_amount(p->out, (double)title.parameters, "parameters · ");
    if (last_tokens(p->c) > 0) put_amount(p->out, last_tokens(p->c), "tokens in ");
    fprintf(p->out, "%lld steps", (long long)p->c->last_step);
    if (title.commit[0]) fprintf(p->out, " · commit "), svg_text(p->out, title.commit);
    fprintf(p->out, "</text>\n");
}

static void draw(const Picture *p, CurveTitle title) {
    svg_begin(p->out, WIDTH, HEIGHT);
    svg_clip(p->out, "upper", &p->loss);
    svg_clip(p->out, "lower", &p->rate);
    draw_title(p, title);
    draw_legend(p);
    draw_axes(p);
    draw_marks(p);
    fprintf(p->out, "<g clip-path=\"url(#upper)\">\n");
    draw_raw(p);
    draw_smooth(p);
    draw_evals(p);
    draw_nonfinite(p);
    fprintf(p->out, "</g>\n<g clip-path=\"url(#lower)\">\n");
    draw_rates(p);
    fprintf(p->out, "</g>\n");
    draw_best(p);
    draw_last_values(p);
    svg_end(p->out);
}

char *curve_svg(const Curve *c, CurveTitle title, size_t *bytes) {
    char   *text = NULL;
    Picture p = {.c = c, .out = memory_file_open(&text, bytes)};
    p.drawn = malloc(sizeof(Drawn) * CURVE_SLOTS);
    p.sorted = malloc(sizeof(double) * CURVE_SLOTS);
    int status = p.drawn && p.sorted && p.out ? 0 : -1;
    if (status == 0) {
        lay_out(&p);
        draw(&p, title);
    }
    if (p.out && fclose(p.out) != 0) status = -1;
    free(p.drawn);
    free(p.sorted);
    if (status == 0) return text;
    free(text);
    return NULL;
}
