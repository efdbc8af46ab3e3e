/* guard_step.c - see guard_step.h. */
#include "run/guard/guard_step.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

static GuardAct stop(char said[GUARD_SAID], const char *fmt, ...) PRINTF_LIKE(2, 3);
static GuardAct stop(char said[GUARD_SAID], const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(said, GUARD_SAID, fmt, args);
    va_end(args);
    return GUARD_STOP;
}

/* Computes a step again. If it gives the same bits, the data or the model is the cause of the fault. */
static StepNumbers compute_again(Comm *comm, int64_t step, const StepNumbers *first, Again again) {
    char ranks[GUARD_TEXT];
    again.rewind(again.ctx, step);
    again.compute(again.ctx);
    StepNumbers n = again.numbers(again.ctx, step);
    if (!guard_is_repeated(comm, first, &n, ranks))
        warn("step %lld: loss %.9g, gradient norm %.9g; computed again from the same batches: loss %.9g, gradient norm %.9g%s: silent corruption suspected, %s",
             (long long)step + 1, first->loss, first->grad_norm, n.loss, n.grad_norm,
             first->grads || n.grads ? ", gradients of other bits" : "", ranks);
    return n;
}

/* Computes a step a second time if that is due, and a third time if bits differ. The result that came twice counts.
 * Returns 0 if all three differ. */
static int verify(const Config *c, Comm *comm, int64_t step, StepNumbers *n, Again again, char ranks[GUARD_TEXT]) {
    if (!guard_verify_due(c, step) || !again.has_time(again.ctx)) return 1;
    StepNumbers first = *n, second = compute_again(comm, step, &first, again);
    *n = second;
    if (guard_is_repeated(comm, &first, &second, ranks)) return 1;
    *n = compute_again(comm, step, &second, again);
    return guard_is_repeated(comm, &second, n, ranks) || guard_is_repeated(comm, &first, n, ranks);
}

int guard_compare(Comm *comm, int64_t step, int64_t replicas, int shares_moments, char said[GUARD_SAID]) {
    char ranks[GUARD_TEXT];
    if (guard_is_same(comm, replicas, ranks)) return 1;
    stop(said,
         "the weights%s of step %lld are not the same on all ranks: those of %s differ; nothing more is saved, the same command goes on from "
         "the newest checkpoint",
         shares_moments ? " or moments" : "", (long long)step, ranks);
    return 0;
}

/* Returns 1 if a gradient has overflowed fp16, because the loss scale is too large, and lowers the scale. That happens
 * from time to time. */
static int overflows(LossScale *scale, const StepNumbers *n) {
    return isfinite(n->loss) && !isfinite(n->grad_norm) && loss_scale_lower(scale);
}

GuardAct guard_step(Guard *g, LossScale *scale, DType act_type, const Config *c, Comm *comm, int64_t step,
                    StepNumbers *n, Again again, int shares_moments, char said[GUARD_SAID]) {
    char what[GUARD_TEXT], advice[GUARD_TEXT], ranks[GUARD_TEXT];
    said[0] = 0;
    if (n->replicas_differ && !guard_compare(comm, step, n->replicas, shares_moments, said)) return GUARD_STOP;
    if (!verify(c, comm, step, n, again, ranks))
        return stop(said,
                    "step %lld, computed three times from the same batches, never gave the same gradients: %s; the weights are those of step %lld "
                    "(run.verify_every = 0 does not look)",
                    (long long)step + 1, ranks, (long long)step);
    if (n->replicas_differ && !guard_compare(comm, step, n->replicas, shares_moments, said)) return GUARD_STOP;
    if (overflows(scale, n)) {
        snprintf(said, GUARD_SAID, "step %lld left out: a gradient overflows fp16; the loss scale is now %g",
                 (long long)step + 1, scale->scale);
        return GUARD_SKIP;
    }
    StepJudgement judgement = guard_judge(g, c, step, n->loss, n->grad_norm);
    if (judgement != STEP_FINE) {
        *n = compute_again(comm, step, n, again);
        if (n->replicas_differ && !guard_compare(comm, step, n->replicas, shares_moments, said)) return GUARD_STOP;
        judgement = guard_judge(g, c, step, n->loss, n->grad_norm);
        guard_describe(g, c, judgement, n->loss, n->grad_norm, what);
    }
    GuardAct act = guard_act(g, c, step, n->loss, judgement);
    if (act == GUARD_UPDATE) loss_scale_keep(scale, act_type);
    if (judgement == STEP_FINE) return act;
    if (act == GUARD_STOP) {
        guard_name_ranks(comm, n->suspect, ranks);
        return stop(said, "step %lld: %s, twice from the same batches%s%s; the weights are those of step %lld (%s)",
                    (long long)step + 1, what, judgement == STEP_SPIKE ? "" : "; ",
                    judgement == STEP_SPIKE ? "" : ranks, (long long)step, guard_advise(g, c, judgement, advice));
    }
    snprintf(said, GUARD_SAID, "step %lld%s: %s", (long long)step + 1,
             act == GUARD_UPDATE ? ""
             : act == GUARD_SKIP ? " skipped"
                                 : " given up",
             what);
    return act;
}
