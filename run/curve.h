/* curve.h - the loss curve of a run in fixed memory, and its picture.
 *
 * Training losses go into at most CURVE_SLOTS slots of `stride` steps each; when they are full, neighbours merge and
 * the stride doubles. A slot keeps mean, least and greatest loss, so a long run still shows its spread and spikes.
 * Nothing is allocated until the drawing.
 */
#ifndef TRAIN_GPT_RUN_CURVE_H
#define TRAIN_GPT_RUN_CURVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CURVE_SLOTS = 1024, CURVE_EVALS = 256 };

typedef struct {
    double  sum, least, greatest; /* over the finite losses */
    int64_t finite, nonfinite;
} CurveSlot;

typedef struct { int64_t step; double loss; } CurvePoint;

typedef struct {
    int64_t    first_step;        /* slot i covers steps [first_step + i*stride, first_step + (i+1)*stride) */
    int64_t    stride;            /* 0 = no step yet */
    int        slots, evals;
    CurveSlot  slot[CURVE_SLOTS];
    CurvePoint eval[CURVE_EVALS]; /* finite ones; when full, every second goes, the first and the newest stay */
    int64_t    last_step;
} Curve;

void curve_train(Curve *c, int64_t step, double loss); /* steps ascend; a zeroed Curve is an empty one */
void curve_eval(Curve *c, int64_t step, double loss);

/* The picture as SVG text, malloc'ed; *bytes its length. title is any bytes. NULL when there is no memory for it. */
char *curve_svg(const Curve *c, const char *title, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
