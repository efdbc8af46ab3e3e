/* picture.c - see picture.h: elements of pictures, the losses of a run in fixed memory, and their picture, with
 * learning rate and gradient norm below them. */
#include "run/log/picture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "core/io.h"

/* --- colours ------------------------------------------------------------------------------------------------------ */

/* Style classes of the pictures: the SVG property that each sets, and its colours on light and dark screens. */
static const struct {
    const char *name, *property, *light, *dark;
} COLOURS[] = {
    {"paper", "fill", "#ffffff", "#0d1117"},  {"title", "fill", "#0f172a", "#f0f6fc"},
    {"text", "fill", "#475569", "#adbac7"},   {"quiet", "fill", "#64748b", "#8b98a8"},
    {"grid", "stroke", "#e2e8f0", "#222b37"}, {"axis", "stroke", "#94a3b8", "#4d5966"},
    {"halo", "stroke", "#ffffff", "#0d1117"}, {"c0", "color", "#2563eb", "#6cb0ff"},
    {"c1", "color", "#ea580c", "#ff9a52"},    {"c2", "color", "#0d9488", "#3fd4c2"},
    {"c3", "color", "#9333ea", "#c79bff"},    {"c4", "color", "#db2777", "#ff83b8"},
    {"c5", "color", "#65a30d", "#a5dc5c"},    {"c6", "color", "#b7791f", "#ecc35a"},
    {"c7", "color", "#52606d", "#b4c0cc"},    {"bad", "color", "#dc2626", "#ff7b72"},
};

static void put_colours(FILE *out, int dark) {
    for (size_t i = 0; i < sizeof COLOURS / sizeof *COLOURS; i++)
        fprintf(out, ".%s{%s:%s}", COLOURS[i].name, COLOURS[i].property, dark ? COLOURS[i].dark : COLOURS[i].light);
}

void svg_begin(FILE *out, int width, int height) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
            "font-family=\"Inter, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif\">\n<style>\n",
            width, height, width, height);
    put_colours(out, 0);
    fprintf(out, "\n@media (prefers-color-scheme: dark) {\n");
    put_colours(out, 1);
    fprintf(out, "\n}\n</style>\n<rect width=\"%d\" height=\"%d\" class=\"paper\"/>\n", width, height);
}

int svg_is_ours(const char *start) {
    return strncmp(start, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", 53) == 0 &&
           strstr(start, "class=\"paper\"");
}

char *svg_end(FILE *out, char **text) {
    fprintf(out, "</svg>\n");
    fclose(out);
    return *text;
}

void svg_clip(FILE *out, const char *id, const SvgPanel *p) {
    fprintf(out,
            "<defs><clipPath id=\"%s\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" "
            "height=\"%.1f\"/></clipPath></defs>\n",
            id, p->left - 6, p->top - 5, p->right - p->left + 12, p->bottom - p->top + 10);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

double svg_x(const SvgPanel *p, double x) {
    return p->left + (p->right - p->left) * (x - p->x_low) / (p->x_high - p->x_low);
}

/* Returns the y of a value in pixels. Far points are moved closer, because viewers fail with huge numbers. */
static double svg_y(const SvgPanel *p, double y) {
    double at = p->bottom - (p->bottom - p->top) * (y - p->y_low) / (p->y_high - p->y_low);
    return at < p->top - 2000 ? p->top - 2000 : at > p->bottom + 2000 ? p->bottom + 2000 : at;
}

void svg_text(FILE *out, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        int follow = utf8_bytes((const char *)s, strnlen((const char *)s, 4)) - 1;
        int valid = follow >= 0 && *s >= 0x20 && *s != 0x7f;
        if (!valid) follow = 0;
        if (!valid) fputc('?', out);
        else if (*s == '&') fputs("&amp;", out);
        else if (*s == '<') fputs("&lt;", out);
        else if (*s == '>') fputs("&gt;", out);
        else fwrite(s, 1, (size_t)follow + 1, out);
        s += follow + 1;
    }
}

/* Writes a count in a short form: 9000, 12k, 1.5M, 2B. gap: text before the letter. */
static void put_count(FILE *out, double value, const char *gap) {
    if (value >= 1e9) fprintf(out, "%.4g%sB", value / 1e9, gap);
    else if (value >= 1e6) fprintf(out, "%.4g%sM", value / 1e6, gap);
    else if (value >= 1e4) fprintf(out, "%.4g%sk", value / 1e3, gap);
    else fprintf(out, "%.10g", value);
}

/* Returns the smallest step of 1, 2 or 5 times a power of ten that divides span into at most `most` intervals. */
static double tick_step(double span, int most) {
    double power = pow(10.0, floor(log10(span / most)));
    double mantissa[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (span / (mantissa[i] * power) <= most + 1e-9) return mantissa[i] * power;
    return 20 * power;
}

void svg_loss_range(SvgPanel *p, double low, double high, int most) {
    if (!isfinite(low)) low = 0, high = 1;
    double least_span = 0.05 * fmax(1.0, fabs(high));
    if (high - low < least_span) low -= least_span / 2, high += least_span / 2;
    double span = high - low, half = tick_step(span * 1.08, most) / 2, least = low;
    low -= 0.04 * span;
    if (least >= 0 && low < 0) low = 0;
    p->y_low = floor(low / half) * half;
    p->y_high = ceil((high + 0.02 * span) / half) * half;
}

/* --- axes --------------------------------------------------------------------------------------------------------- */

/* Writes the value of a tick with as many decimals as its step needs, or with an exponent if these are many. */
static void put_value(FILE *out, double value, double step) {
    int decimals = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
    if (fabs(value) < 1e-9 * step) fputc('0', out);
    else if (decimals <= 3 && fabs(value) < 1e6) fprintf(out, "%.*f", decimals, value);
    else {
        int power = (int)floor(log10(fabs(value)) + 1e-9);
        fprintf(out, "%.4ge%d", value / pow(10.0, power), power);
    }
}

void svg_values(FILE *out, const SvgPanel *p, int most, SvgSide side) {
    double step = tick_step(p->y_high - p->y_low, most), first = ceil(p->y_low / step - 1e-9),
           end = p->y_high + 1e-9 * step;
    double x = side == SVG_LEFT ? p->left - 10 : p->right + 10;
    if (side == SVG_LEFT) {
        fprintf(out, "<g class=\"grid\" stroke-width=\"1\">\n");
        for (double k = first; k * step <= end; k++)
            fprintf(out, "<path d=\"M%.1f %.1fH%.1f\"/>\n", p->left, svg_y(p, k * step), p->right);
        fprintf(out, "</g>\n");
    }
    fprintf(out, "<g font-size=\"13\" class=\"text\" text-anchor=\"%s\">\n", side == SVG_LEFT ? "end" : "start");
    for (double k = first; k * step <= end; k++) {
        fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">", x, svg_y(p, k * step) + 4.5);
        put_value(out, k * step, step);
        fprintf(out, "</text>\n");
    }
    fprintf(out, "</g>\n");
}

void svg_frame(FILE *out, const SvgPanel *p) {
    fprintf(out, "<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" class=\"axis\"/>\n", p->left, p->top, p->bottom,
            p->right);
}

void svg_below(FILE *out, const SvgPanel *p, int whole, const char *name) {
    double step = tick_step(p->x_high - p->x_low, 8);
    if (whole && step < 1) step = 1;
    fprintf(out, "<g font-size=\"13\" class=\"text\" text-anchor=\"middle\">\n");
    for (double k = ceil(p->x_low / step - 1e-9); k * step <= p->x_high + 1e-9 * step; k++) {
        double x = svg_x(p, k * step);
        fprintf(out, "<path d=\"M%.1f %.1fv5\" class=\"axis\"/><text x=\"%.1f\" y=\"%.1f\">", x, p->bottom, x,
                p->bottom + 21);
        put_count(out, k * step + 0.0, ""); /* + 0.0 avoids -0 */
        fprintf(out, "</text>\n");
    }
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n</g>\n", (p->left + p->right) / 2, p->bottom + 42, name);
}

void svg_beside(FILE *out, const SvgPanel *p, const char *name) {
    fprintf(out,
            "<text transform=\"translate(%.1f %.1f) rotate(-90)\" font-size=\"13\" class=\"text\" "
            "text-anchor=\"middle\">%s</text>\n",
            19.0, (p->top + p->bottom) / 2, name);
}

/* --- lines and dots ----------------------------------------------------------------------------------------------- */

SvgPen svg_pen(FILE *out, const SvgPanel *p, const char *look) {
    fprintf(out, "<path fill=\"none\" %s d=\"", look);
    return (SvgPen){out, p, 0};
}

void svg_to(SvgPen *pen, double x, double y) {
    if (isfinite(y))
        fprintf(pen->out, "%c%.1f %.1f", pen->is_down ? 'L' : 'M', svg_x(pen->panel, x), svg_y(pen->panel, y));
    pen->is_down = isfinite(y);
}

void svg_spread(SvgPen *pen, double x, double least, double greatest) {
    svg_to(pen, x, greatest);
    if (least < greatest) fprintf(pen->out, "V%.1f", svg_y(pen->panel, least));
}

void svg_pen_end(const SvgPen *pen) { fprintf(pen->out, "\"/>\n"); }

void svg_dot(FILE *out, const SvgPanel *p, double x, double y, const char *look) {
    fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" %s/>\n", svg_x(p, x), svg_y(p, y), look);
}

/* --- the losses of a run ------------------------------------------------------------------------------------------ */

/* Returns a slot with the steps of two slots, those of `a` before those of `b`. */
static CurveSlot joined(CurveSlot a, CurveSlot b) {
    int has_later = b.finite + b.nonfinite > 0;
    return (CurveSlot){.sum = a.sum + b.sum,
                       .least = !b.finite || (a.finite && a.least < b.least) ? a.least : b.least,
                       .greatest = !b.finite || (a.finite && a.greatest > b.greatest) ? a.greatest : b.greatest,
                       .finite = a.finite + b.finite,
                       .nonfinite = a.nonfinite + b.nonfinite,
                       .norm_sum = a.norm_sum + b.norm_sum,
                       .norms = a.norms + b.norms,
                       .lr = has_later ? b.lr : a.lr,
                       .tokens = has_later ? b.tokens : a.tokens};
}

void curve_train(Curve *c, CurveStep step) {
    CurveSlot one = {.lr = step.lr, .tokens = step.tokens, .nonfinite = !isfinite(step.loss)};
    if (isfinite(step.loss)) one.sum = one.least = one.greatest = step.loss, one.finite = 1;
    if (isfinite(step.grad_norm)) one.norm_sum = step.grad_norm, one.norms = 1;
    if (c->stride == 0) c->first_step = step.step, c->stride = 1;
    while ((step.step - c->first_step) / c->stride >= CURVE_SLOTS) {
        for (int i = 0; i < CURVE_SLOTS / 2; i++) c->slot[i] = joined(c->slot[2 * i], c->slot[2 * i + 1]);
        memset(c->slot + CURVE_SLOTS / 2, 0, sizeof *c->slot * (CURVE_SLOTS / 2));
        c->stride *= 2;
    }
    int64_t i = (step.step - c->first_step) / c->stride;
    c->slot[i] = joined(c->slot[i], one);
    c->slots = (int)i + 1;
    if (step.step > c->last_step) c->last_step = step.step;
}

void curve_eval(Curve *c, int64_t step, double loss) {
    if (step > c->last_step) c->last_step = step;
    if (!isfinite(loss)) return;
    if (c->evals == 0 || loss < c->best.loss) c->best = (CurvePoint){step, loss};
    if (c->evals == CURVE_EVALS) {
        int kept = 0;
        for (int i = 0; i < CURVE_EVALS; i += 2) c->eval[kept++] = c->eval[i];
        c->evals = kept;
    }
    c->eval[c->evals++] = (CurvePoint){step, loss};
}

void curve_mark(Curve *c, int64_t step, CurveMarkKind kind) {
    if (c->marks == CURVE_MARKS) memmove(c->mark, c->mark + 1, sizeof *c->mark * (size_t)--c->marks);
    c->mark[c->marks++] = (CurveMark){step, kind};
}

void curve_smooth(const Curve *c, double *smooth) {
    int half = c->slots / 40;
    for (int i = 0; i < c->slots; i++) {
        int     reach = i < 2 * half ? i / 2 : half;
        double  sum = 0;
        int64_t count = 0;
        for (int j = i - reach; j <= i + reach && j < c->slots; j++) sum += c->slot[j].sum, count += c->slot[j].finite;
        smooth[i] = c->slot[i].finite ? sum / (double)count : NAN;
    }
}

/* --- the picture of a curve: its points and ranges ---------------------------------------------------------------- */

enum { WIDTH = 960, HEIGHT = 640 };
enum { LEFT = 76, RIGHT = 872, TOP = 112, BOTTOM = 424, LOWER_TOP = 458, LOWER_BOTTOM = 574 };
enum { TICKS = 7, LOWER_TICKS = 4 };

typedef struct {
    FILE        *out;
    const Curve *c;
    /* Arrays [c->slots] with a value for each slot: steps at its middle and at its end, smoothed loss, learning rate
     * and mean gradient norm. NaN if a slot has no value. */
    double       middle[CURVE_SLOTS], end[CURVE_SLOTS], smooth[CURVE_SLOTS], rates[CURVE_SLOTS], norms[CURVE_SLOTS];
    double       sorted[CURVE_SLOTS];  /* scratch memory to sort losses */
    SvgPanel     loss, rate, norm;
} Picture;

/* Returns the upper end of a range without a few spikes: p98 + (p98 - low), at most high. p98 is the 98th percentile of
 * the n values in p->sorted. */
static double without_spikes(Picture *p, int n, double low, double high) {
    if (n < 8) return high;
    qsort(p->sorted, (size_t)n, sizeof *p->sorted, ascending_doubles);
    double most = p->sorted[n * 98 / 100];
    return fmin(high, most + fmax(most - low, 1e-9 * fabs(most)));
}

/* Chooses the range of the loss axis. Losses before the step `settled` do not count. */
static void choose_loss_range(Picture *p, double settled) {
    const Curve *c = p->c;
    int          n = 0;
    double       low = INFINITY, high = -INFINITY;
    for (int i = 0; i < c->slots; i++) {
        if (!c->slot[i].finite || p->middle[i] < settled) continue;
        p->sorted[n++] = p->smooth[i]; /* smoothed losses, because raw losses may exceed the range */
        low = fmin(low, c->slot[i].least);
        high = fmax(high, p->smooth[i]);
    }
    if (n > 0) high = without_spikes(p, n, low, high);
    for (int i = 0; i < c->evals; i++) {
        if ((double)c->eval[i].step < settled && n > 0) continue;
        low = fmin(low, c->eval[i].loss);
        high = fmax(high, c->eval[i].loss);
    }
    svg_loss_range(&p->loss, low, high, TICKS);
}

static void choose_lower_ranges(Picture *p, double settled) {
    double rate = 0, norm = 0;
    int    n = 0;
    for (int i = 0; i < p->c->slots; i++) {
        if (isfinite(p->rates[i])) rate = fmax(rate, p->rates[i]);
        if (isnan(p->norms[i]) || p->middle[i] < settled) continue;
        p->sorted[n++] = p->norms[i];
        norm = fmax(norm, p->norms[i]);
    }
    if (n > 0) norm = without_spikes(p, n, 0, norm);
    p->rate.y_high = rate > 0 ? 1.08 * rate : 1;
    p->norm.y_high = norm > 0 ? 1.08 * norm : 1;
}

static void lay_out(Picture *p) {
    const Curve *c = p->c;
    double       end = c->last_step > 0 ? (double)c->last_step : 1.0, settled = 0.05 * end;
    p->loss = (SvgPanel){LEFT, RIGHT, TOP, BOTTOM, 0, end, 0, 1};
    p->rate = p->norm = (SvgPanel){LEFT, RIGHT, LOWER_TOP, LOWER_BOTTOM, 0, end, 0, 1};
    curve_smooth(c, p->smooth);
    for (int i = 0; i < c->slots; i++) {
        const CurveSlot *s = &c->slot[i];
        double           first = (double)(c->first_step + (int64_t)i * c->stride);
        p->end[i] = fmin(first + (double)(c->stride - 1), (double)c->last_step);
        p->middle[i] = (first + p->end[i]) / 2;
        p->rates[i] = s->lr;
        p->norms[i] = s->norms ? s->norm_sum / (double)s->norms : NAN;
    }
    /* Values fall fast in the first twentieth of the steps. So it counts for the ranges only if there are no later
     * steps. */
    if (c->slots == 0 || p->middle[c->slots - 1] < settled) settled = 0;
    choose_loss_range(p, settled);
    choose_lower_ranges(p, settled);
}

/* --- axes --------------------------------------------------------------------------------------------------------- */

static double last_tokens(const Curve *c) { return c->slots > 0 ? (double)c->slot[c->slots - 1].tokens : -1; }

/* Returns the step after which this number of tokens was consumed. */
static double step_of_tokens(const Picture *p, double tokens) {
    double before = 0, step = 0;
    for (int i = 0; i < p->c->slots; i++) {
        double end = p->end[i], after = (double)p->c->slot[i].tokens;
        if (after >= tokens && after > before) return step + (end - step) * (tokens - before) / (after - before);
        step = end, before = after;
    }
    return step;
}

/* Draws a scale of tokens above the panel, if the log has them and covers the run from its first step on. */
static void draw_tokens(const Picture *p) {
    double tokens = last_tokens(p->c);
    if (tokens <= 0 || p->c->first_step > 1) return;
    double along = tick_step(tokens, 6);
    fprintf(p->out, "<g font-size=\"13\" class=\"quiet\" text-anchor=\"middle\">\n");
    for (double k = 1; k * along <= tokens * (1 + 1e-9); k++) {
        double x = svg_x(&p->loss, step_of_tokens(p, k * along));
        fprintf(p->out, "<path d=\"M%.1f %dv-5\" class=\"axis\"/><text x=\"%.1f\" y=\"%d\">", x, TOP, x, TOP - 10);
        put_count(p->out, k * along, "");
        fprintf(p->out, "</text>\n");
    }
    fprintf(p->out,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"start\">tokens</text>\n</g>\n<path d=\"M%d %dH%d\" "
            "class=\"axis\"/>\n",
            LEFT, TOP - 10, LEFT, TOP, RIGHT);
}

/* --- lines -------------------------------------------------------------------------------------------------------- */

/* Draws a line through the values y [c->slots] at the steps x. `look` has the attributes of its <path>. */
static void draw_line(const Picture *p, const SvgPanel *panel, const double *x, const double *y, const char *look) {
    SvgPen pen = svg_pen(p->out, panel, look);
    for (int i = 0; i < p->c->slots; i++) svg_to(&pen, x[i], y[i]);
    svg_pen_end(&pen);
}

/* Draws the losses: their spread in each slot, as a line through least and greatest, and the smoothed line over it. */
static void draw_losses(const Picture *p) {
    const Curve *c = p->c;
    SvgPen raw = svg_pen(p->out, &p->loss,
                         "class=\"c0\" stroke=\"currentColor\" stroke-opacity=\"0.35\" stroke-width=\"1\" "
                         "stroke-linejoin=\"round\"");
    for (int i = 0; i < c->slots; i++) {
        const CurveSlot *s = &c->slot[i];
        svg_spread(&raw, p->middle[i], s->finite ? s->least : NAN, s->finite ? s->greatest : NAN);
    }
    svg_pen_end(&raw);
    draw_line(p, &p->loss, p->middle, p->smooth,
              "stroke=\"currentColor\" stroke-linejoin=\"round\" stroke-linecap=\"round\" class=\"c0\" "
              "stroke-width=\"2.4\"");
    if (c->slots == 1 && c->slot[0].finite)
        svg_dot(p->out, &p->loss, p->middle[0], c->slot[0].sum / (double)c->slot[0].finite,
                "r=\"3\" class=\"c0\" fill=\"currentColor\"");
}

static int is_drawn(const Picture *p, double loss) { return loss >= p->loss.y_low && loss <= p->loss.y_high; }

/* Draws the evaluations. An evaluation above the range of the picture, as the first often is, gets no line. */
static void draw_evals(const Picture *p) {
    const Curve *c = p->c;
    if (c->evals == 0) return;
    fprintf(p->out, "<g class=\"c1\">\n");
    SvgPen line = svg_pen(p->out, &p->loss, "stroke=\"currentColor\" stroke-width=\"1.6\" stroke-linejoin=\"round\"");
    for (int i = 0; i < c->evals; i++)
        svg_to(&line, (double)c->eval[i].step, is_drawn(p, c->eval[i].loss) ? c->eval[i].loss : NAN);
    svg_pen_end(&line);
    fprintf(p->out, "<g fill=\"currentColor\" class=\"halo\" stroke-width=\"1.2\">\n");
    /* over 60 evaluations only the last gets a dot, because many dots would hide the line */
    for (int i = c->evals > 60 ? c->evals - 1 : 0; i < c->evals; i++)
        if (is_drawn(p, c->eval[i].loss))
            svg_dot(p->out, &p->loss, (double)c->eval[i].step, c->eval[i].loss, "r=\"3.5\"");
    fprintf(p->out, "</g>\n</g>\n");
}

/* Draws a ring around the best evaluation, and its loss beside it. */
static void draw_best(const Picture *p) {
    if (p->c->evals == 0 || !is_drawn(p, p->c->best.loss)) return;
    double      x = svg_x(&p->loss, (double)p->c->best.step), y = svg_y(&p->loss, p->c->best.loss);
    const char *anchor = x > RIGHT - 90 ? "end" : x < LEFT + 90 ? "start" : "middle";
    fprintf(p->out,
            "<g class=\"c1\"><circle cx=\"%.1f\" cy=\"%.1f\" r=\"7\" fill=\"none\" stroke=\"currentColor\" "
            "stroke-width=\"1.6\"/><text x=\"%.1f\" y=\"%.1f\" font-size=\"13\" font-weight=\"600\" text-anchor=\"%s\" "
            "fill=\"currentColor\" class=\"halo\" stroke-width=\"4\" stroke-linejoin=\"round\" "
            "paint-order=\"stroke\">best",
            x, y, *anchor == 'e' ? x + 7 : *anchor == 's' ? x - 7 : x, y > TOP + 40 ? y - 15 : y + 25, anchor);
    if (p->c->best.step < p->c->eval[p->c->evals - 1].step)
        /* only the best loss is written here, because the value of the last evaluation is at the end of its curve */
        fprintf(p->out, " %.4f", p->c->best.loss);
    fprintf(p->out, "</text></g>\n");
}

/* Names and styles of the marks for events. Each kind of event has dashes of its own, so that it is known without its
 * colour. */
static const struct { const char *name, *look; } MARKS[CURVE_MARK_KINDS] = {
    [CURVE_RESUMED] = {"resumed", "class=\"c7\" stroke-dasharray=\"2 4\""},
    [CURVE_SKIPPED] = {"step skipped", "class=\"c6\" stroke-dasharray=\"6 3\""},
    [CURVE_ROLLED_BACK] = {"rolled back", "class=\"bad\" stroke-dasharray=\"9 3 2 3\""},
};

static void draw_marks(const Picture *p) {
    for (int i = 0; i < p->c->marks; i++) {
        CurveMark m = p->c->mark[i];
        double    x = svg_x(&p->loss, (double)m.step);
        fprintf(p->out,
                "<path d=\"M%.1f %dV%dM%.1f %dV%d\" %s stroke=\"currentColor\" stroke-width=\"1\"><title>%s, "
                "step %lld</title></path>\n",
                x, TOP, BOTTOM, x, LOWER_TOP, LOWER_BOTTOM, MARKS[m.kind].look, MARKS[m.kind].name, (long long)m.step);
    }
}

/* --- words -------------------------------------------------------------------------------------------------------- */

/* Writes the last training loss and the last evaluation loss at the right ends of their curves, with a gap between the
 * two texts. */
static void draw_last_values(const Picture *p) {
    const Curve *c = p->c;
    int          last = c->slots - 1;
    while (last >= 0 && isnan(p->smooth[last])) last--;
    double train = last >= 0 ? p->smooth[last] : NAN, eval = c->evals ? c->eval[c->evals - 1].loss : NAN;
    double train_y = fmax(TOP, svg_y(&p->loss, train)) + 4.5, eval_y = fmax(TOP, svg_y(&p->loss, eval)) + 4.5, gap = 17;
    if (fabs(train_y - eval_y) < gap) {
        double middle = fmin((train_y + eval_y) / 2, BOTTOM - gap / 2), sign = train_y > eval_y ? 1 : -1;
        train_y = middle + sign * gap / 2;
        eval_y = middle - sign * gap / 2;
    }
    static const char TEXT[] = "<text x=\"%d\" y=\"%.1f\" class=\"c%d\" fill=\"currentColor\">%.4f</text>\n";
    fprintf(p->out, "<g font-size=\"14\" font-weight=\"600\">\n");
    if (!isnan(train)) fprintf(p->out, TEXT, RIGHT + 10, train_y, 0, train);
    if (!isnan(eval)) fprintf(p->out, TEXT, RIGHT + 10, eval_y, 1, eval);
    fprintf(p->out, "</g>\n");
}

/* Draws an entry of the legend: a short line with the attributes `look`, and its name. Returns the horizontal
 * position of the next entry. */
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

static void draw_title(const Picture *p, CurveTitle title) {
    fprintf(p->out, "<text x=\"%d\" y=\"40\" font-size=\"20\" font-weight=\"700\" class=\"title\">", LEFT);
    svg_text(p->out, title.title);
    fprintf(p->out, "</text>\n<text x=\"%d\" y=\"63\" font-size=\"13\" class=\"quiet\">", LEFT);
    if (title.parameters > 0) put_count(p->out, (double)title.parameters, " "), fputs(" parameters · ", p->out);
    if (last_tokens(p->c) > 0) put_count(p->out, last_tokens(p->c), " "), fputs(" tokens in ", p->out);
    fprintf(p->out, "%lld steps", (long long)p->c->last_step);
    if (title.commit[0]) fprintf(p->out, " · commit "), svg_text(p->out, title.commit);
    fprintf(p->out, "</text>\n");
}

char *curve_svg(const Curve *c, CurveTitle title, size_t *bytes) {
    char   *text;
    FILE   *out = memory_file_open(&text, bytes);
    Picture p = {.c = c, .out = out};
    lay_out(&p);
    svg_begin(out, WIDTH, HEIGHT);
    svg_clip(out, "upper", &p.loss);
    svg_clip(out, "lower", &p.rate);
    draw_title(&p, title);
    draw_legend(&p);
    svg_values(out, &p.loss, TICKS, SVG_LEFT);
    svg_frame(out, &p.loss);
    svg_beside(out, &p.loss, "loss, nats per token");
    draw_tokens(&p);
    svg_values(out, &p.rate, LOWER_TICKS, SVG_LEFT);
    svg_values(out, &p.norm, LOWER_TICKS, SVG_RIGHT);
    svg_frame(out, &p.rate);
    svg_below(out, &p.rate, 1, "step");
    draw_marks(&p);
    fprintf(out, "<g clip-path=\"url(#upper)\">\n");
    draw_losses(&p);
    draw_evals(&p);
    for (int i = 0; i < c->slots; i++)
        if (c->slot[i].nonfinite)
            fprintf(out,
                    "<path d=\"M%.1f %dv-10\" class=\"bad\" stroke=\"currentColor\" "
                    "stroke-width=\"2\"><title>loss not finite</title></path>\n",
                    svg_x(&p.loss, p.middle[i]), BOTTOM);
    fprintf(out, "</g>\n<g clip-path=\"url(#lower)\">\n");
    draw_line(&p, &p.norm, p.middle, p.norms,
              "stroke=\"currentColor\" stroke-linejoin=\"round\" stroke-linecap=\"round\" class=\"c3\" "
              "stroke-width=\"1\" stroke-opacity=\"0.75\"");
    draw_line(&p, &p.rate, p.end, p.rates,
              "class=\"c2\" stroke=\"currentColor\" stroke-width=\"2\" stroke-linejoin=\"round\"");
    fprintf(out, "</g>\n");
    draw_best(&p);
    draw_last_values(&p);
    return svg_end(out, &text);
}
