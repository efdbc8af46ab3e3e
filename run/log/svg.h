/* svg.h - the parts that pictures of runs are drawn with: a panel with its scales, axes, text, colours.
 *
 * Plain SVG without script or font files: it looks the same in a browser and through rsvg-convert. Colours are classes
 * of one style sheet, which has a second set for readers whose screen is dark (prefers-color-scheme). The same calls
 * write the same bytes.
 */
#ifndef TRAIN_GPT_RUN_LOG_SVG_H
#define TRAIN_GPT_RUN_LOG_SVG_H

#include <stdio.h>

enum { SVG_COLOURS = 8 };  /* classes c0 to c7: an element takes one by class, and draws in currentColor */

/* A rectangle of the picture, in pixels, and the values at its edges. */
typedef struct {
    double left, right, top, bottom;
    double x_low, x_high, y_low, y_high;
} SvgPanel;

double svg_x(const SvgPanel *p, double x);
double svg_y(const SvgPanel *p, double y);         /* points far outside come near: viewers dislike huge numbers */

void   svg_begin(FILE *out, int width, int height); /* <svg>, styles, background */
int  svg_is_ours(const char *start); /* returns 1 if the text begins as a picture that this program writes */
void   svg_end(FILE *out);
void   svg_clip(FILE *out, const char *id, const SvgPanel *p); /* for clip-path="url(#id)": a little more than the panel */

/* Text as XML: markup escaped, and bytes that XML or UTF-8 does not allow become '?'. */
void   svg_text(FILE *out, const char *text);
void   svg_count(FILE *out, double value);          /* 9000, 12k, 1.5M, 2B */

/* The least step of 1, 2 or 5 times a power of ten that divides span into at most `most` parts. */
double svg_tick_step(double span, int most);
/* Widens low and high to half steps of the ticks, with a little room at both ends; never below 0 from above it. */
void   svg_round_range(double *low, double *high, int most);

/* Lines across the panel, their values beside it: SVG_LEFT, SVG_RIGHT (values alone). */
typedef enum { SVG_LEFT, SVG_RIGHT } SvgSide;
void   svg_values(FILE *out, const SvgPanel *p, int most, SvgSide side);
void   svg_frame(FILE *out, const SvgPanel *p);     /* the left and the lower edge */
/* Ticks below the panel, with values; whole: whole numbers alone. name: what is counted, below them. */
void   svg_below(FILE *out, const SvgPanel *p, int whole, const char *name);
void   svg_beside(FILE *out, const SvgPanel *p, SvgSide side, const char *name); /* upwards, beside the values */

#endif
