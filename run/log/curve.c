/* curve.c - keeps the losses of a run in fixed memory; curve_svg.c draws them. See curve.h. */
#include "run/log/curve.h"

#include <math.h>
#include <string.h>

static void merge_slots(Curve *c) {
    for (int i = 0; i < CURVE_SLOTS / 2; i++) {
        CurveSlot a = c->slot[2 * i], b = c->slot[2 * i + 1];
        c->slot[i].sum = a.sum + b.sum;
        c->slot[i].least = !b.finite || (a.finite && a.least < b.least) ? a.least : b.least;
        c->slot[i].greatest = !b.finite || (a.finite && a.greatest > b.greatest) ? a.greatest : b.greatest;
        c->slot[i].finite = a.finite + b.finite;
        c->slot[i].nonfinite = a.nonfinite + b.nonfinite;
        c->slot[i].norm_sum = a.norm_sum + b.norm_sum;
        c->slot[i].norms = a.norms + b.norms;
        int is_b = b.finite + b.nonfinite > 0;
        c->slot[i].lr = is_b ? b.lr : a.lr;
        c->slot[i].tokens = is_b ? b.tokens : a.tokens;
    }
    memset(c->slot + CURVE_SLOTS / 2, 0, sizeof *c->slot * (CURVE_SLOTS / 2));
    c->slots = (c->slots + 1) / 2;
    c->stride *= 2;
}

void curve_train(Curve *c, CurveStep step) {
    if (c->stride == 0) c->first_step = step.step, c->stride = 1;
    while ((step.step - c->first_step) / c->stride >= CURVE_SLOTS) merge_slots(c);
    int        i = (int)((step.step - c->first_step) / c->stride);
    CurveSlot *s = &c->slot[i];
    c->slots = i + 1;
    if (step.step > c->last_step) c->last_step = step.step;
    s->lr = step.lr, s->tokens = step.tokens;
    if (isfinite(step.grad_norm)) s->norm_sum += step.grad_norm, s->norms++;
    if (!isfinite(step.loss)) {
        s->nonfinite++;
        return;
    }
    s->least = s->finite && s->least < step.loss ? s->least : step.loss;
    s->greatest = s->finite && s->greatest > step.loss ? s->greatest : step.loss;
    s->sum += step.loss;
    s->finite++;
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
