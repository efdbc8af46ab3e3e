/* svg.h - draws the elements of pictures of runs: a panel with its scales, axes, text, colours.
 *
 * It writes plain SVG without script or font files, which looks the same in a browser and through rsvg-convert. Colours
 * are classes of one style sheet. A second set of colours is for dark screens (prefers-color-scheme). Equal calls write
 * equal bytes.
 */
#ifndef TRAIN_GPT_RUN_LOG_SVG_H
#define TRAIN_GPT_RUN_LOG_SVG_H

#include <stdio.h>

enum { SVG_COLOURS = 8 };  /* classes c0 to c7; an element with such a class draws in currentColor */

/* A rectangle of the picture, in pixels, and the values at its edges. */
typedef struct {
    double left, right, top, bottom;
    double x_low, x_high, y_low, y_high;
} SvgPanel;

double svg_x(const SvgPanel *p, double x);
double svg_y(const SvgPanel *p, double y);         /* far points are moved closer: viewers fail with huge numbers */

void   svg_begin(FILE *out, int width, int height); /* writes <svg>, styles, background */
int  svg_is_ours(const char *start); /* returns 1 if text begins like a picture of this program */
void   svg_end(FILE *out);
void   svg_clip(FILE *out, const char *id, const SvgPanel *p); /* for clip-path="url(#id)": slightly larger than p */

/* Writes text as XML. Escapes markup, and replaces bytes that XML or UTF-8 does not allow with '?'. */
void   svg_text(FILE *out, const char *text);
void   svg_count(FILE *out, double value);          /* writes 9000, 12k, 1.5M, 2B */

/* Returns the smallest step of 1, 2 or 5 times a power of ten that divides span into at most `most` intervals. */
double svg_tick_step(double span, int most);
/* Widens low and high to half steps of the ticks, with a small margin at both ends. A positive low never falls below
 * 0. */
void   svg_round_range(double *low, double *high, int most);

/* Draws lines across the panel and their values at a side. SVG_RIGHT draws only the values. */
typedef enum { SVG_LEFT, SVG_RIGHT } SvgSide;
void   svg_values(FILE *out, const SvgPanel *p, int most, SvgSide side);
void   svg_frame(FILE *out, const SvgPanel *p);     /* draws the left and the lower edge */
/* Draws ticks and values below the panel, and below these name, which says what is counted. whole: only whole
 * numbers. */
void   svg_below(FILE *out, const SvgPanel *p, int whole, const char *name);
void   svg_beside(FILE *out, const SvgPanel *p, SvgSide side, const char *name); /* name upwards, beside values */

#endif
