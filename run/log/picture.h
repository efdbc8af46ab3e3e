/* picture.h - the loss curve of a run in fixed memory, its picture, and the elements that all pictures of runs are
 * drawn with.
 *
 * Steps go into at most CURVE_SLOTS slots of `stride` steps each. When the slots are full, neighbours merge and the
 * stride doubles. A slot keeps mean, least and greatest loss, so a long run still shows its spread and spikes. Nothing
 * is allocated until the drawing.
 *
 * A picture is plain SVG without script or font files, which looks the same in a browser and through rsvg-convert.
 * Colours are classes of one style sheet. A second set of colours is for dark screens (prefers-color-scheme). Equal
 * calls write equal bytes.
 */
#ifndef TRAIN_GPT_RUN_LOG_PICTURE_H
#define TRAIN_GPT_RUN_LOG_PICTURE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { CURVE_SLOTS = 1024, CURVE_EVALS = 256, CURVE_MARKS = 64 };

/* numbers of one step; one that is not known is -1 in tokens, NaN in the others */
typedef struct { int64_t step, tokens; double loss, lr, grad_norm; } CurveStep;

typedef struct {
    double  sum, least, greatest; /* sum and range of the finite losses in a slot of the curve */
    int64_t finite, nonfinite;    /* number of finite losses in the slot, and of others */
    double  norm_sum;             /* sum of the finite gradient norms in the slot */
    int64_t norms;                /* number of finite gradient norms in the slot */
    double  lr;                   /* learning rate of the last step in the slot */
    int64_t tokens;               /* tokens up to the last step in the slot; -1: not known */
} CurveSlot;

typedef struct { int64_t step; double loss; } CurvePoint;

typedef enum { CURVE_RESUMED, CURVE_SKIPPED, CURVE_ROLLED_BACK, CURVE_MARK_KINDS } CurveMarkKind;
typedef struct { int64_t step; CurveMarkKind kind; } CurveMark;

typedef struct {
    int64_t    first_step;        /* slot i covers steps [first_step + i*stride, first_step + (i+1)*stride) */
    int64_t    stride;            /* steps that one slot of the curve covers; 0: no step yet */
    int        slots, evals, marks;
    CurveSlot  slot[CURVE_SLOTS];
    /* finite evaluations; when full, every second is dropped but the first and the newest */
    CurvePoint eval[CURVE_EVALS];
    CurvePoint best;              /* evaluation with the least loss, if evals > 0 */
    CurveMark  mark[CURVE_MARKS]; /* the newest marks of events, such as resumes */
    int64_t    last_step;
} Curve;

/* adds a step to the curve; steps ascend, and a zeroed Curve is an empty one */
void curve_train(Curve *c, CurveStep step);
void curve_eval(Curve *c, int64_t step, double loss);
void curve_mark(Curve *c, int64_t step, CurveMarkKind kind);

/* Computes smoothed losses [c->slots]: means over a centred window of 1/20 of the curve. The window is narrower near
 * the start, where the loss falls fast. NaN if a slot has no finite loss. */
void curve_smooth(const Curve *c, double *smooth);

/* Text above the picture, of any bytes. parameters 0, commit "": not known. */
typedef struct { const char *title, *commit; int64_t parameters; } CurveTitle;

/* Returns the picture as SVG text, malloc'ed, with its length in *bytes. */
char *curve_svg(const Curve *c, CurveTitle title, size_t *bytes);

/* --- elements of a picture ---------------------------------------------------------------------------------------- */

enum { SVG_COLOURS = 8 };  /* number of colour classes, c0 to c7; an element with such a class draws in currentColor */

/* A rectangle of the picture, in pixels, and the values at its edges. */
typedef struct {
    double left, right, top, bottom;
    double x_low, x_high, y_low, y_high;
} SvgPanel;

double svg_x(const SvgPanel *p, double x); /* returns the horizontal position, in pixels, of a value on the axis */

void   svg_begin(FILE *out, int width, int height); /* writes the beginning of a picture: <svg>, styles, background */
int    svg_is_ours(const char *start); /* returns 1 if text begins like a picture of this program */
/* Ends the picture and closes `out`, which memory_file_open has opened. Returns *text. */
char  *svg_end(FILE *out, char **text);
/* writes a clip path for clip-path="url(#id)", slightly larger than the panel */
void   svg_clip(FILE *out, const char *id, const SvgPanel *p);

/* Writes text as XML. Escapes markup, and replaces bytes that XML or UTF-8 does not allow with '?'. */
void   svg_text(FILE *out, const char *text);

/* Sets the range of y so that it holds the losses from low to high, with half a tick to spare and at least a twentieth
 * of high. A positive low gives no range below 0. low is infinite if there is no loss. most: largest number of
 * intervals between ticks. */
void   svg_loss_range(SvgPanel *p, double low, double high, int most);

/* Draws lines across the panel, and their values at a side of it. SVG_RIGHT draws only the values. most: largest number
 * of intervals between lines. */
typedef enum { SVG_LEFT, SVG_RIGHT } SvgSide;
void   svg_values(FILE *out, const SvgPanel *p, int most, SvgSide side);
/* Draws the left and the lower edge of a panel. */
void   svg_frame(FILE *out, const SvgPanel *p);
/* Draws ticks and values below the panel. Below them it writes `name`, which says what is counted. whole: only whole
 * numbers. */
void   svg_below(FILE *out, const SvgPanel *p, int whole, const char *name);
/* Writes `name` upwards, left of the values at the y axis of a panel. */
void   svg_beside(FILE *out, const SvgPanel *p, const char *name);

/* A line of points. svg_pen begins it in a look: the attributes of its <path>. A y that is not finite interrupts it.
 * svg_spread draws from the greatest to the least value at x. svg_pen_end ends it. */
typedef struct { FILE *out; const SvgPanel *panel; int is_down; } SvgPen;
SvgPen svg_pen(FILE *out, const SvgPanel *p, const char *look);
void   svg_to(SvgPen *pen, double x, double y);
void   svg_spread(SvgPen *pen, double x, double least, double greatest);
void   svg_pen_end(const SvgPen *pen);
/* draws a dot; `look` begins with the radius, followed by attributes */
void   svg_dot(FILE *out, const SvgPanel *p, double x, double y, const char *look);

#endif
