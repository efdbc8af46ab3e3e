/* guard.c - judges the numbers of a step, and compares the state of the ranks: see guard.h. */
#include "run/guard/guard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device.h"
#include "core/error.h"
#include "core/format.h"

/* --- spikes ------------------------------------------------------------------------------------------------------- */

/* Smallest rise above the median that counts as a spike, in nats. The loss of a model that has memorized its text has
 * almost no noise, and such a small rise is harmless. */
static const double SPIKES_RISE = 0.2;

/* Returns the median of count values. Sorts them. */
static double median(double *value, int count) {
    qsort(value, (size_t)count, sizeof *value, ascending_doubles);
    return count % 2 ? value[count / 2] : 0.5 * (value[count / 2 - 1] + value[count / 2]);
}

double spikes_median(const Spikes *s) {
    double value[SPIKES_WINDOW];
    memcpy(value, s->loss, sizeof value);
    return s->count ? median(value, s->count) : NAN;
}

double spikes_limit(const Spikes *s, double threshold) {
    double distance[SPIKES_WINDOW], middle = spikes_median(s);
    if (s->count < SPIKES_LEAST || threshold <= 0.0) return INFINITY;
    for (int i = 0; i < s->count; i++) distance[i] = fabs(s->loss[i] - middle);
    return middle + fmax(threshold * 1.4826 * median(distance, s->count), SPIKES_RISE);
}

void spikes_add(Spikes *s, double loss) {
    if (!isfinite(loss)) return;
    if (s->count == SPIKES_WINDOW) memmove(s->loss, s->loss + 1, sizeof *s->loss * (size_t)--s->count);
    s->loss[s->count++] = loss;
}

/* --- judging a step ----------------------------------------------------------------------------------------------- */

StepJudgement guard_judge(const Guard *g, const Config *c, int64_t step, double loss, double grad_norm) {
    if (!isfinite(loss) || !isfinite(grad_norm)) return STEP_NOT_FINITE;
    if (step >= c->schedule.warmup_steps && loss > spikes_limit(&g->spikes, c->run.spike_threshold)) return STEP_SPIKE;
    return STEP_FINE;
}

static int policy(const Config *c, StepJudgement judgement) {
    return judgement == STEP_NOT_FINITE ? c->run.on_nonfinite : c->run.on_spike;
}

GuardAct guard_act(Guard *g, const Config *c, int64_t step, double loss, StepJudgement judgement) {
    if (step >= c->schedule.warmup_steps) spikes_add(&g->spikes, loss);
    if (judgement == STEP_FINE || policy(c, judgement) == ON_TROUBLE_WARN) {
        g->skips = 0;
        if (step > g->furthest) g->rollbacks = 0;
        return GUARD_UPDATE;
    }
    switch (policy(c, judgement)) {
        case ON_TROUBLE_SKIP: return ++g->skips <= c->run.max_skips ? GUARD_SKIP : GUARD_STOP;
        case ON_TROUBLE_ROLLBACK:
            if (step > g->furthest) g->furthest = step;
            return ++g->rollbacks <= c->run.max_skips ? GUARD_ROLLBACK : GUARD_STOP;
        default: return GUARD_STOP;
    }
}

/* --- the same numbers every time ---------------------------------------------------------------------------------- */

int guard_verify_due(const Config *c, int64_t step) {
    return c->run.verify_every > 0 && (step + 1) % c->run.verify_every == 0;
}

int guard_is_repeated(Comm *comm, const StepNumbers *a, const StepNumbers *b, char out[GUARD_TEXT]) {
    int     own = a->suspect != b->suspect || a->own_grads != b->own_grads, sums = a->grads != b->grads;
    int bits = memcmp(&a->loss, &b->loss, sizeof a->loss) || memcmp(&a->grad_norm, &b->grad_norm, sizeof a->grad_norm);
    int64_t differ[] = {own, sums, bits};
    comm_all_reduce_i64(comm, differ, 3, COMM_SUM);
    if (!differ[0] && !differ[1] && !differ[2]) return 1;
    guard_name_ranks(comm, differ[0] ? own : sums, out);
    return 0;
}

/* --- the same weights everywhere ---------------------------------------------------------------------------------- */

/* Returns 1 if this step hashes the weights. A hash reads 2 to 4 bytes of each parameter, with zero_stage 0 up to 14. A
 * rank needs as long for that as for some fifty tokens, at 6 FLOPs per parameter and token. With at least
 * GUARD_HASH_TOKENS tokens of a rank from one hash to the next, hashing takes at most 0.5 % of the time. */
int guard_hash_due(const Config *c, int ranks, int64_t step) {
    int64_t enough = c->parallel.zero_stage ? GUARD_HASH_TOKENS : GUARD_HASH_TOKENS_STAGE_0;
    int64_t tokens = c->batch.global_tokens / ranks, every = (enough + tokens - 1) / tokens;
    return ranks > 1 && (step + 1) % (every < GUARD_HASH_EVERY ? every : GUARD_HASH_EVERY) == 0;
}

int guard_is_outvoted(Comm *comm, int64_t value) {
    int     ranks = comm_size(comm), mine = 0, most = 0;
    /* maxima over the ranks: the greatest value, and the complement of the least value */
    int64_t ends[2] = {value, ~value};
    comm_all_reduce_i64(comm, ends, 2, COMM_MAX);
    if (ends[0] == ~ends[1]) return 0;
    int64_t *all = xcalloc((size_t)ranks, sizeof *all, "the hashes of the ranks");
    all[comm_rank(comm)] = value;
    comm_all_reduce_i64(comm, all, ranks, COMM_SUM);
    for (int r = 0; r < ranks; r++) {
        int equal = 0;
        for (int k = 0; k < ranks; k++) equal += all[k] == all[r];
        if (equal > most) most = equal;
        if (r == comm_rank(comm)) mine = equal;
    }
    free(all);
    return 2 * most <= ranks || mine < most;
}

int guard_is_same(Comm *comm, int64_t value, char out[GUARD_TEXT]) {
    int64_t outvoted = guard_is_outvoted(comm, value), any = outvoted;
    comm_all_reduce_i64(comm, &any, 1, COMM_MAX);
    if (any) guard_name_ranks(comm, (int)outvoted, out);
    return !any;
}

void guard_hash_words(int64_t hash, int64_t words[GUARD_HASH_WORDS]) {
    for (int k = 0; k < 4; k++) {
        int64_t part = (int64_t)((uint64_t)hash >> (16 * k) & 0xffff);
        words[k] = part, words[4 + k] = part * part;
    }
}

int guard_hashes_differ(const int64_t sums[GUARD_HASH_WORDS], int ranks) {
    for (int k = 0; k < 4; k++)
        if ((__int128)ranks * sums[4 + k] != (__int128)sums[k] * sums[k]) return 1;
    return 0;
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

/* Writes why the step stops the run, or the options that would avoid it. Called after guard_act has returned
 * GUARD_STOP. Returns out. */
static char *advise(const Guard *g, const Config *c, StepJudgement judgement, char out[GUARD_TEXT]) {
    const char *key = judgement == STEP_NOT_FINITE ? "run.on_nonfinite" : "run.on_spike";
    switch (policy(c, judgement)) {
        case ON_TROUBLE_SKIP:
            snprintf(out, GUARD_TEXT, "%s = \"skip\" has skipped run.max_skips = %lld such steps in a row", key,
                     (long long)c->run.max_skips);
            break;
        case ON_TROUBLE_ROLLBACK:
            snprintf(out, GUARD_TEXT, "after run.max_skips = %lld rollbacks the run has not got past step %lld",
                     (long long)c->run.max_skips, (long long)g->furthest + 1);
            break;
        default:
            snprintf(out, GUARD_TEXT,
                     "%s = \"skip\" skips up to run.max_skips such steps, \"rollback\" goes back to the newest "
                     "checkpoint and skips the data since",
                     key);
    }
    return out;
}

char *guard_name_ranks(Comm *comm, int marked, char out[GUARD_TEXT]) {
    typedef struct { int marked; char device[76]; } Witness;
    Witness mine = {marked, ""};
    size_t *bytes = NULL, used = 0;
    snprintf(mine.device, sizeof mine.device, "%s", device_id()[0] ? device_id() : device_name());
    Witness *all = (Witness *)(void *)comm_gather(comm, &mine, sizeof mine, 0, &bytes);
    memset(out, 0, GUARD_TEXT);
    for (int r = 0; all && r < comm_size(comm); r++)
        if (all[r].marked && used < GUARD_TEXT)
            used += (size_t)snprintf(out + used, GUARD_TEXT - used, "%srank %d (%s, %s)", used ? " and " : "",
                                     comm_member(comm, r), comm_host(comm, r), all[r].device);
    free(all);
    free(bytes);
    comm_broadcast(comm, out, GUARD_TEXT, 0);
    if (!out[0]) snprintf(out, GUARD_TEXT, "a rank that cannot be named");
    return out;
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

/* Computes a step again and returns the results. If they have the same bits as `first`, the data or the model is the
 * cause of the fault. Otherwise warns that a machine may compute wrongly. */
static StepNumbers compute_again(Comm *comm, int64_t step, const StepNumbers *first, Again again) {
    char ranks[GUARD_TEXT];
    again.rewind(again.run, step);
    again.compute(again.run);
    StepNumbers n = again.numbers(again.run, step);
    if (!guard_is_repeated(comm, first, &n, ranks))
        warn("step %lld: loss %.9g, gradient norm %.9g; computed again from the same batches: loss %.9g, gradient norm "
             "%.9g%s: silent corruption suspected, %s; if this repeats, take the host out of the job and test it",
             (long long)step + 1, first->loss, first->grad_norm, n.loss, n.grad_norm,
             first->grads || n.grads ? ", gradients of other bits" : "", ranks);
    return n;
}

/* Computes a step a second time if run.verify_every makes that due, and a third time if bits differ. The result that
 * came twice counts. Returns 0 if all three results differ. */
static int verify(const Config *c, Comm *comm, int64_t step, StepNumbers *n, Again again, char ranks[GUARD_TEXT]) {
    if (!guard_verify_due(c, step) || !again.has_time(again.run)) return 1;
    StepNumbers first = *n, second = compute_again(comm, step, &first, again);
    *n = second;
    if (guard_is_repeated(comm, &first, &second, ranks)) return 1;
    *n = compute_again(comm, step, &second, again);
    return guard_is_repeated(comm, &second, n, ranks) || guard_is_repeated(comm, &first, n, ranks);
}

int guard_compare(Comm *comm, int64_t step, int64_t replicas, int shares_moments, char said[GUARD_SAID]) {
    char ranks[GUARD_TEXT];
    if (guard_is_same(comm, replicas, ranks)) return 1;
    return fault_text(said, GUARD_SAID, 0,
                      "the weights%s of step %lld are not the same on all ranks: those of %s differ; no further "
                      "checkpoint is saved. Start the same command again: the run continues from the newest checkpoint",
                      shares_moments ? " or moments" : "", (long long)step, ranks);
}

GuardAct guard_step(Guard *g, LossScale *scale, DType act_type, const Config *c, Comm *comm, int64_t step,
                    StepNumbers *n, Again again, int shares_moments, char said[GUARD_SAID]) {
    char what[GUARD_TEXT], advice[GUARD_TEXT], ranks[GUARD_TEXT];
    said[0] = 0;
    if (n->replicas_differ && !guard_compare(comm, step, n->replicas, shares_moments, said)) return GUARD_STOP;
    if (!verify(c, comm, step, n, again, ranks))
        return fault_text(said, GUARD_SAID, GUARD_STOP,
                          "step %lld, computed three times from the same batches, never gave the same gradients: %s; "
                          "the weights are those of step %lld (run.verify_every=0 turns this check off)",
                          (long long)step + 1, ranks, (long long)step);
    if (n->replicas_differ && !guard_compare(comm, step, n->replicas, shares_moments, said)) return GUARD_STOP;
    /* A gradient overflows fp16 from time to time, because the loss scale is too large. */
    if (isfinite(n->loss) && !isfinite(n->grad_norm) && loss_scale_lower(scale)) {
        snprintf(said, GUARD_SAID, "step %lld left out: a gradient overflows fp16; the loss scale is now %g",
                 (long long)step + 1, scale->scale);
        return GUARD_SKIP;
    }
    StepJudgement judgement = guard_judge(g, c, step, n->loss, n->grad_norm);
    if (judgement != STEP_FINE) {
        *n = compute_again(comm, step, n, again);
        if (n->replicas_differ && !guard_compare(comm, step, n->replicas, shares_moments, said)) return GUARD_STOP;
        judgement = guard_judge(g, c, step, n->loss, n->grad_norm);
        /* the text is made before guard_act adds the loss to the window, which would change the median and the limit */
        if (judgement == STEP_SPIKE)
            snprintf(what, sizeof what, "loss %.4f is a spike: the median of the last %d is %.4f, the limit %.4f",
                     n->loss, g->spikes.count, spikes_median(&g->spikes),
                     spikes_limit(&g->spikes, c->run.spike_threshold));
        else snprintf(what, sizeof what, "loss %g, gradient norm %g: not finite", n->loss, n->grad_norm);
    }
    GuardAct act = guard_act(g, c, step, n->loss, judgement);
    if (act == GUARD_UPDATE) loss_scale_keep(scale, act_type);
    if (judgement == STEP_FINE) return act;
    if (act == GUARD_STOP) {
        guard_name_ranks(comm, n->suspect, ranks);
        return fault_text(said, GUARD_SAID, GUARD_STOP,
                          "step %lld: %s, twice from the same batches%s%s; the weights are those of step %lld (%s)",
                          (long long)step + 1, what, judgement == STEP_SPIKE ? "" : "; ",
                          judgement == STEP_SPIKE ? "" : ranks, (long long)step, advise(g, c, judgement, advice));
    }
    snprintf(said, GUARD_SAID, "step %lld%s: %s", (long long)step + 1,
             act == GUARD_UPDATE ? ""
             : act == GUARD_SKIP ? " skipped"
                                 : " given up",
             what);
    return act;
}
