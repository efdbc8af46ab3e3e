/* svg.c - see svg.h. */
#include "run/log/svg.h"

#include <math.h>
#include <string.h>

#include "core/format.h"

/* --- colours ------------------------------------------------------------------------------------------------------ */

/* Each class, the property that it sets, and its colours on light and dark screens. */
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
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" font-family=\"Inter, 'Helvetica "
            "Neue', 'DejaVu Sans', Arial, sans-serif\">\n<style>\n",
            width, height, width, height);
    put_colours(out, 0);
    fprintf(out, "\n@media (prefers-color-scheme: dark) {\n");
    put_colours(out, 1);
    fprintf(out, "\n}\n</style>\n<rect width=\"%d\" height=\"%d\" class=\"paper\"/>\n", width, height);
}

int svg_is_ours(const char *start) {
    return strncmp(start, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", 53) == 0 && strstr(start, "class=\"paper\"");
}

void svg_end(FILE *out) { fprintf(out, "</svg>\n"); }

void svg_clip(FILE *out, const char *id, const SvgPanel *p) {
    fprintf(out,
            "<defs><clipPath id=\"%s\"><rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/></clipPath></defs>\n",
            id, p->left - 6, p->top - 5, p->right - p->left + 12, p->bottom - p->top + 10);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

double svg_x(const SvgPanel *p, double x) {
    return p->left + (p->right - p->left) * (x - p->x_low) / (p->x_high - p->x_low);
}

double svg_y(const SvgPanel *p, double y) {
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

void svg_count(FILE *out, double value) {
    if (value >= 1e9) fprintf(out, "%.4gB", value / 1e9);
    else if (value >= 1e6) fprintf(out, "%.4gM", value / 1e6);
    else if (value >= 1e4) fprintf(out, "%.4gk", value / 1e3);
    else fprintf(out, "%.10g", value);
}

double svg_tick_step(double span, int most) {
    double power = pow(10.0, floor(log10(span / most)));
    double mantissa[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++)
        if (span / (mantissa[i] * power) <= most + 1e-9) return mantissa[i] * power;
    return 20 * power;
}

void svg_round_range(double *low, double *high, int most) {
    double span = *high - *low, half = svg_tick_step(span * 1.08, most) / 2, least = *low;
    *low -= 0.04 * span;
    if (least >= 0 && *low < 0) *low = 0;
    *low = floor(*low / half) * half;
    *high = ceil((*high + 0.02 * span) / half) * half;
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
    double step = svg_tick_step(p->y_high - p->y_low, most), first = ceil(p->y_low / step - 1e-9),
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
    double step = svg_tick_step(p->x_high - p->x_low, 8);
    if (whole && step < 1) step = 1;
    fprintf(out, "<g font-size=\"13\" class=\"text\" text-anchor=\"middle\">\n");
    for (double k = ceil(p->x_low / step - 1e-9); k * step <= p->x_high + 1e-9 * step; k++) {
        double x = svg_x(p, k * step);
        fprintf(out, "<path d=\"M%.1f %.1fv5\" class=\"axis\"/><text x=\"%.1f\" y=\"%.1f\">", x, p->bottom, x,
                p->bottom + 21);
        svg_count(out, k * step + 0.0); /* + 0.0 avoids -0 */
        fprintf(out, "</text>\n");
    }
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n</g>\n", (p->left + p->right) / 2, p->bottom + 42, name);
}

void svg_beside(FILE *out, const SvgPanel *p, SvgSide side, const char *name) {
    fprintf(out,
            "<text transform=\"translate(%.1f %.1f) rotate(-90)\" font-size=\"13\" class=\"text\" text-anchor=\"middle\">%s</text>\n",
            side == SVG_LEFT ? 19.0 : p->right + 72, (p->top + p->bottom) / 2, name);
}
