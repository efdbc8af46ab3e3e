/* curve.c - see curve.h. The picture is plain SVG without script or font files: it looks the same in a browser and
 * through rsvg-convert. */
#include "run/curve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory_file.h"

/* --- collecting --------------------------------------------------------------------------------------------------- */

static void merge_slots(Curve *c) {
    for (int i = 0; i < CURVE_SLOTS / 2; i++) {
        CurveSlot a = c->slot[2 * i], b = c->slot[2 * i + 1];
        c->slot[i].sum = a.sum + b.sum;
        c->slot[i].least = !b.finite || (a.finite && a.least < b.least) ? a.least : b.least;
        c->slot[i].greatest = !b.finite || (a.finite && a.greatest > b.greatest) ? a.greatest : b.greatest;
        c->slot[i].finite = a.finite + b.finite;
        c->slot[i].nonfinite = a.nonfinite + b.nonfinite;
    }
    memset(c->slot + CURVE_SLOTS / 2, 0, sizeof *c->slot * (CURVE_SLOTS / 2));
    c->slots = (c->slots + 1) / 2;
    c->stride *= 2;
}

void curve_train(Curve *c, int64_t step, double loss) {
    if (c->stride == 0) c->first_step = step, c->stride = 1;
    while ((step - c->first_step) / c->stride >= CURVE_SLOTS) merge_slots(c);
    int        i = (int)((step - c->first_step) / c->stride);
    CurveSlot *s = &c->slot[i];
    c->slots = i + 1;
    if (step > c->last_step) c->last_step = step;
    if (!isfinite(loss)) {
        s->nonfinite++;
        return;
    }
    s->least = s->finite && s->least < loss ? s->least : loss;
    s->greatest = s->finite && s->greatest > loss ? s->greatest : loss;
    s->sum += loss;
    s->finite++;
}

void curve_eval(Curve *c, int64_t step, double loss) {
    if (step > c->last_step) c->last_step = step;
    if (!isfinite(loss)) return;
    if (c->evals == CURVE_EVALS) {
        int kept = 0;
        for (int i = 0; i < CURVE_EVALS; i += 2) c->eval[kept++] = c->eval[i];
        c->evals = kept;
    }
    c->eval[c->evals++] = (CurvePoint){step, loss};
}

/* --- the points and the range ------------------------------------------------------------------------------------- */

enum { WIDTH = 960, HEIGHT = 540, LEFT = 76, RIGHT = 872, TOP = 84, BOTTOM = 478 };
#define TRAIN_COLOR "#2563eb"
#define EVAL_COLOR  "#ea580c"
#define FAINT_COLOR "#b3caf9"

typedef struct {
    double step, mean, smooth; /* NaN where a slot has no finite loss */
} Drawn;

typedef struct {
    FILE        *out;
    const Curve *c;
    Drawn       *drawn;        /* [c->slots] */
    double       step_max, low, high;
    int          clipped;      /* the first losses stand above the picture */
} Picture;

static double x_of(const Picture *p, double step) { return LEFT + (RIGHT - LEFT) * step / p->step_max; }
static double y_of(const Picture *p, double loss) {
    double y = BOTTOM - (BOTTOM - TOP) * (loss - p->low) / (p->high - p->low);
    return y < TOP - 2000 ? TOP - 2000 : y > BOTTOM + 2000 ? BOTTOM + 2000 : y; /* clipped points stay near */
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Means of the slots, and over them a centred window of 1/20 of the curve; it is narrower near the start, where the
 * loss falls fast. */
static void smooth(Picture *p) {
    const Curve *c = p->c;
    int          n = c->slots, half = n / 40;
    for (int i = 0; i < n; i++) {
        const CurveSlot *s = &c->slot[i];
        double last = (double)(c->first_step + (int64_t)(i + 1) * c->stride - 1);
        if (last > (double)c->last_step) last = (double)c->last_step;
        p->drawn[i].step = ((double)(c->first_step + (int64_t)i * c->stride) + last) / 2;
        p->drawn[i].mean = s->finite ? s->sum / (double)s->finite : NAN;
    }
    for (int i = 0; i < n; i++) {
        int     reach = i < 2 * half ? i / 2 : half;
        double  sum = 0;
        int64_t count = 0;
        for (int j = i - reach; j <= i + reach && j < n; j++) sum += c->slot[j].sum, count += c->slot[j].finite;
        p->drawn[i].smooth = isnan(p->drawn[i].mean) ? NAN : sum / (double)count;
    }
}

/* The least step of 1, 2 or 5 times a power of ten that divides span into at most `most` parts. */
static double tick_step(double span, int most) {
    double power = pow(10.0, floor(log10(span / most)));
    double mantissa[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (span / (mantissa[i] * power) <= most + 1e-9) return mantissa[i] * power;
    return 20 * power;
}

/* The losses' range. First losses that would press three quarters of the curve into the lowest twelfth are left
 * outside. */
static void choose_range(Picture *p, double *sorted) {
    const Curve *c = p->c;
    int          n = 0;
    double       low = INFINITY, high = -INFINITY;
    for (int i = 0; i < c->slots; i++) {
        if (!c->slot[i].finite) continue;
        sorted[n++] = p->drawn[i].mean;
        low = fmin(low, c->slot[i].least);
        high = fmax(high, c->slot[i].greatest);
    }
    qsort(sorted, (size_t)n, sizeof *sorted, ascending);
    for (int i = 0; i < c->evals; i++) low = fmin(low, c->eval[i].loss);
    for (int i = 0; i < c->evals; i++) high = fmax(high, c->eval[i].loss);
    if (!isfinite(low)) low = 0, high = 1;
    if (n >= 8) {
        double limit = low + 12 * (sorted[n * 3 / 4] - low);
        if (limit > low && high > limit) high = limit, p->clipped = 1;
    }
    double least_span = 0.05 * fmax(1.0, fabs(high));
    if (high - low < least_span) low -= least_span / 2, high += least_span / 2;
    double span = high - low, step = tick_step(span * 1.08, 8);
    p->low = low - 0.04 * span;
    if (low >= 0 && p->low < 0) p->low = 0;
    p->low = floor(p->low / (step / 2)) * (step / 2);
    p->high = p->clipped ? high : ceil((high + 0.02 * span) / (step / 2)) * (step / 2);
    p->step_max = c->last_step > 0 ? (double)c->last_step : 1.0;
}

/* --- drawing ------------------------------------------------------------------------------------------------------ */

/* Text as XML: markup escaped, and bytes that XML or UTF-8 does not allow become '?'. */
static void put_escaped(FILE *out, const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    while (*s) {
        int follow = *s < 0x80 ? 0 : *s >= 0xc2 && *s < 0xe0 ? 1 : *s >= 0xe0 && *s < 0xf0 ? 2 : *s >= 0xf0 && *s < 0xf5 ? 3 : -1;
        int valid = follow >= 0 && *s >= 0x20 && *s != 0x7f;
        for (int i = 1; valid && i <= follow; i++) valid = (s[i] & 0xc0) == 0x80;
        if (!valid) follow = 0;
        if (!valid) fputc('?', out);
        else if (*s == '&') fputs("&amp;", out);
        else if (*s == '<') fputs("&lt;", out);
        else if (*s == '>') fputs("&gt;", out);
        else fwrite(s, 1, (size_t)follow + 1, out);
        s += follow + 1;
    }
}

static void put_count(FILE *out, double value) {
    if (value >= 1e6) fprintf(out, "%.4gM", value / 1e6);
    else if (value >= 1e4) fprintf(out, "%.4gk", value / 1e3);
    else fprintf(out, "%.10g", value);
}

static void draw_axes(const Picture *p) {
    double step = tick_step(p->high - p->low, 8);
    int    decimals = step >= 1 ? 0 : (int)ceil(-log10(step) - 1e-9);
    fprintf(p->out, "<g stroke=\"#e2e8f0\" stroke-width=\"1\">\n");
    for (double k = ceil(p->low / step - 1e-9); k * step <= p->high + 1e-9 * step; k++)
        fprintf(p->out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT, RIGHT, y_of(p, k * step), y_of(p, k * step));
    fprintf(p->out, "</g>\n<g font-size=\"13\" fill=\"#475569\" text-anchor=\"end\">\n");
    for (double k = ceil(p->low / step - 1e-9); k * step <= p->high + 1e-9 * step; k++)
        fprintf(p->out, "<text x=\"%d\" y=\"%.1f\">%.*f</text>\n", LEFT - 10, y_of(p, k * step) + 4.5, decimals,
                k == 0 ? 0.0 : k * step);
    fprintf(p->out, "</g>\n<g font-size=\"13\" fill=\"#475569\" text-anchor=\"middle\" stroke=\"none\">\n");
    double along = fmax(1.0, tick_step(p->step_max, 8));
    for (double s = 0; s <= p->step_max * (1 + 1e-9); s += along) {
        fprintf(p->out, "<path d=\"M%.1f %dv6\" stroke=\"#94a3b8\"/><text x=\"%.1f\" y=\"%d\">", x_of(p, s), BOTTOM,
                x_of(p, s), BOTTOM + 22);
        put_count(p->out, s);
        fprintf(p->out, "</text>\n");
    }
    fprintf(p->out, "<text x=\"%d\" y=\"%d\" font-size=\"14\">step</text>\n", (LEFT + RIGHT) / 2, BOTTOM + 46);
    fprintf(p->out,
            "<text transform=\"translate(19 %d) rotate(-90)\" font-size=\"14\">loss (nats per token)</text>\n</g>\n",
            (TOP + BOTTOM) / 2);
    fprintf(p->out, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"#94a3b8\"/>\n", LEFT, TOP, BOTTOM, RIGHT);
}

/* Every loss: through least and greatest of each slot. A slot without a finite loss interrupts the line. */
static void draw_raw(const Picture *p) {
    const Curve *c = p->c;
    fprintf(p->out, "<path fill=\"none\" stroke=\"" FAINT_COLOR "\" stroke-width=\"1\" stroke-linejoin=\"round\" d=\"");
    for (int i = 0, pen_down = 0; i < c->slots; i++) {
        if (!c->slot[i].finite) {
            pen_down = 0;
            continue;
        }
        fprintf(p->out, "%c%.1f %.1f", pen_down ? 'L' : 'M', x_of(p, p->drawn[i].step), y_of(p, c->slot[i].greatest));
        if (c->slot[i].least < c->slot[i].greatest) fprintf(p->out, "V%.1f", y_of(p, c->slot[i].least));
        pen_down = 1;
    }
    fprintf(p->out, "\"/>\n");
}

static void draw_smooth(const Picture *p) {
    fprintf(p->out, "<path fill=\"none\" stroke=\"" TRAIN_COLOR
                    "\" stroke-width=\"2.4\" stroke-linejoin=\"round\" stroke-linecap=\"round\" d=\"");
    for (int i = 0, pen_down = 0; i < p->c->slots; i++) {
        if (!isnan(p->drawn[i].smooth))
            fprintf(p->out, "%c%.1f %.1f", pen_down ? 'L' : 'M', x_of(p, p->drawn[i].step), y_of(p, p->drawn[i].smooth));
        pen_down = !isnan(p->drawn[i].smooth);
    }
    fprintf(p->out, "\"/>\n");
    if (p->c->slots == 1 && p->c->slot[0].finite)
        fprintf(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"" TRAIN_COLOR "\"/>\n",
                x_of(p, p->drawn[0].step), y_of(p, p->drawn[0].mean));
}

static void draw_evals(const Picture *p) {
    const Curve *c = p->c;
    fprintf(p->out, "<polyline fill=\"none\" stroke=\"" EVAL_COLOR "\" stroke-width=\"1.6\" stroke-linejoin=\"round\" points=\"");
    for (int i = 0; i < c->evals; i++) fprintf(p->out, "%.1f,%.1f ", x_of(p, (double)c->eval[i].step), y_of(p, c->eval[i].loss));
    fprintf(p->out, "\"/>\n<g fill=\"" EVAL_COLOR "\" stroke=\"#fff\" stroke-width=\"1.2\">\n");
    for (int i = c->evals > 60 ? c->evals - 1 : 0; i < c->evals; i++) /* many dots would hide their own line */
        fprintf(p->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", x_of(p, (double)c->eval[i].step), y_of(p, c->eval[i].loss));
    fprintf(p->out, "</g>\n");
}

/* Marks on the axis where the loss was not a number. */
static void draw_nonfinite(const Picture *p) {
    for (int i = 0; i < p->c->slots; i++)
        if (p->c->slot[i].nonfinite)
            fprintf(p->out,
                    "<path d=\"M%.1f %dv-10\" stroke=\"#dc2626\" stroke-width=\"2\"><title>loss not finite</title></path>\n",
                    x_of(p, p->drawn[i].step), BOTTOM);
}

/* The last values at the right end of their curves, kept apart from each other. */
static void draw_last_values(const Picture *p) {
    const Curve *c = p->c;
    int          last = c->slots - 1;
    while (last >= 0 && isnan(p->drawn[last].smooth)) last--;
    double train = last >= 0 ? p->drawn[last].smooth : NAN, eval = c->evals ? c->eval[c->evals - 1].loss : NAN;
    double train_y = y_of(p, train) + 4.5, eval_y = y_of(p, eval) + 4.5, gap = 17;
    if (fabs(train_y - eval_y) < gap) {
        double middle = fmin((train_y + eval_y) / 2, BOTTOM - gap / 2), sign = train_y > eval_y ? 1 : -1;
        train_y = middle + sign * gap / 2;
        eval_y = middle - sign * gap / 2;
    }
    fprintf(p->out, "<g font-size=\"14\" font-weight=\"600\">\n");
    if (!isnan(train))
        fprintf(p->out, "<text x=\"%d\" y=\"%.1f\" fill=\"" TRAIN_COLOR "\">%.4f</text>\n", RIGHT + 10, train_y, train);
    if (!isnan(eval)) fprintf(p->out, "<text x=\"%d\" y=\"%.1f\" fill=\"" EVAL_COLOR "\">%.4f</text>\n", RIGHT + 10, eval_y, eval);
    fprintf(p->out, "</g>\n");
}

static void draw_legend(const Picture *p) {
    int x = RIGHT - (p->c->evals ? 380 : 280), y = 50;
    fprintf(p->out, "<g font-size=\"13\" fill=\"#334155\">\n");
    fprintf(p->out,
            "<path d=\"M%d %dh24\" stroke=\"" FAINT_COLOR
            "\" stroke-width=\"1.5\"/><text x=\"%d\" y=\"%d\">training</text>\n",
            x, y, x + 31, y + 4);
    x += 106;
    fprintf(p->out,
            "<path d=\"M%d %dh24\" stroke=\"" TRAIN_COLOR
            "\" stroke-width=\"2.6\"/><text x=\"%d\" y=\"%d\">training, smoothed</text>\n",
            x, y, x + 31, y + 4);
    x += 174;
    if (p->c->evals)
        fprintf(p->out,
                "<path d=\"M%d %dh24\" stroke=\"" EVAL_COLOR
                "\" stroke-width=\"1.6\"/><circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"" EVAL_COLOR
                "\"/><text x=\"%d\" y=\"%d\">held out</text>\n",
                x, y, x + 12, y, x + 31, y + 4);
    fprintf(p->out, "</g>\n");
}

static void draw(const Picture *p, const char *title) {
    fprintf(p->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"Inter, 'Helvetica "
            "Neue', 'DejaVu Sans', Arial, sans-serif\">\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT);
    fprintf(p->out,
            "<defs><clipPath id=\"plot\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath></defs>\n",
            LEFT - 6, TOP - 5, RIGHT - LEFT + 12, BOTTOM - TOP + 10);
    fprintf(p->out,
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"38\" font-size=\"20\" font-weight=\"700\" "
            "fill=\"#0f172a\">",
            WIDTH, HEIGHT, LEFT);
    put_escaped(p->out, title);
    fprintf(p->out, "</text>\n<text x=\"%d\" y=\"60\" font-size=\"13\" fill=\"#64748b\">after step %lld%s</text>\n", LEFT,
            (long long)p->c->last_step, p->clipped ? " · the first losses stand above the picture" : "");
    draw_legend(p);
    draw_axes(p);
    fprintf(p->out, "<g clip-path=\"url(#plot)\">\n");
    draw_raw(p);
    draw_smooth(p);
    draw_evals(p);
    draw_nonfinite(p);
    fprintf(p->out, "</g>\n");
    draw_last_values(p);
    fprintf(p->out, "</svg>\n");
}

char *curve_svg(const Curve *c, const char *title, size_t *bytes) {
    char   *text = NULL;
    Picture p = {.c = c, .drawn = malloc(sizeof(Drawn) * CURVE_SLOTS), .out = memory_file_open(&text, bytes)};
    double *sorted = malloc(sizeof(double) * CURVE_SLOTS);
    int     status = p.drawn && sorted && p.out ? 0 : -1;
    if (status == 0) {
        smooth(&p);
        choose_range(&p, sorted);
        draw(&p, title);
    }
    if (p.out && fclose(p.out) != 0) status = -1;
    free(p.drawn);
    free(sorted);
    if (status == 0) return text;
    free(text);
    return NULL;
}
