/* curve.h - the loss curve of a run in fixed memory, and its picture.
 *
 * Steps go into at most CURVE_SLOTS slots of `stride` steps each. When the slots are full, neighbours merge and the
 * stride doubles. A slot keeps mean, least and greatest loss, so a long run still shows its spread and spikes. Nothing
 * is allocated until the drawing.
 */
#ifndef TRAIN_GPT_RUN_LOG_CURVE_H
#define TRAIN_GPT_RUN_LOG_CURVE_H

#include <stddef.h>
#include <stdint.h>

enum { CURVE_SLOTS = 1024, CURVE_EVALS = 256, CURVE_MARKS = 64 };

typedef struct { int64_t step, tokens; double loss, lr, grad_norm; } CurveStep; /* not known: tokens -1, others NaN */

typedef struct {
    double  sum, least, greatest; /* sum and range of the finite losses */
    int64_t finite, nonfinite;    /* numbers of losses */
    double  norm_sum;             /* sum of the finite gradient norms */
    int64_t norms;                /* number of these norms */
    double  lr;                   /* learning rate of the last step */
    int64_t tokens;               /* tokens up to the last step; -1: not known */
} CurveSlot;

typedef struct { int64_t step; double loss; } CurvePoint;

typedef enum { CURVE_RESUMED, CURVE_SKIPPED, CURVE_ROLLED_BACK, CURVE_MARK_KINDS } CurveMarkKind;
typedef struct { int64_t step; CurveMarkKind kind; } CurveMark;

typedef struct {
    int64_t    first_step;        /* slot i covers steps [first_step + i*stride, first_step + (i+1)*stride) */
    int64_t    stride;            /* 0: no step yet */
    int        slots, evals, marks;
    CurveSlot  slot[CURVE_SLOTS];
    CurvePoint eval[CURVE_EVALS]; /* finite ones; when full, every second is dropped but the first and the newest */
    CurvePoint best;              /* evaluation with the least loss, if evals > 0 */
    CurveMark  mark[CURVE_MARKS]; /* the newest marks */
    int64_t    last_step;
} Curve;

void curve_train(Curve *c, CurveStep step); /* steps ascend; a zeroed Curve is an empty one */
void curve_eval(Curve *c, int64_t step, double loss);
void curve_mark(Curve *c, int64_t step, CurveMarkKind kind);

/* Computes smoothed losses [c->slots]: means over a centred window of 1/20 of the curve. The window is narrower near
 * the start, where the loss falls fast. NaN if a slot has no finite loss. */
void curve_smooth(const Curve *c, double *smooth);

/* Text above the picture, of any bytes. parameters 0, commit "": not known. */
typedef struct { const char *title, *commit; int64_t parameters; } CurveTitle;

/* Returns the picture as SVG text, malloc'ed, with its length in *bytes. Returns NULL without memory. */
char *curve_svg(const Curve *c, CurveTitle title, size_t *bytes);

#endif
