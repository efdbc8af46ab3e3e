/* guard.c - see guard.h. */
#include "run/guard/guard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/device.h"
#include "core/error.h"

/* --- judging a step ----------------------------------------------------------------------------------------------- */

StepJudgement guard_judge(const Guard *g, const Config *c, int64_t step, double loss, double grad_norm) {
    if (!isfinite(loss) || !isfinite(grad_norm)) return STEP_NOT_FINITE;
    if (step >= c->schedule.warmup_steps && loss > spikes_limit(&g->spikes, c->run.spike_threshold)) return STEP_SPIKE;
    return STEP_FINE;
}

static int policy(const Config *c, StepJudgement judgement) {
    return judgement == STEP_NOT_FINITE ? c->run.on_nonfinite : c->run.on_spike;
}

static GuardAct decide(Guard *g, const Config *c, int64_t step, StepJudgement judgement) {
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

GuardAct guard_act(Guard *g, const Config *c, int64_t step, double loss, StepJudgement judgement) {
    GuardAct act = decide(g, c, step, judgement);
    if (step >= c->schedule.warmup_steps) spikes_add(&g->spikes, loss);
    return act;
}

/* --- the same numbers every time ---------------------------------------------------------------------------------- */

int guard_verify_due(const Config *c, int64_t step) { return c->run.verify_every > 0 && (step + 1) % c->run.verify_every == 0; }

static int same_bits(double a, double b) { return memcmp(&a, &b, sizeof a) == 0; }

int guard_is_repeated(Comm *comm, const StepNumbers *a, const StepNumbers *b, char out[GUARD_TEXT]) {
    int     own = a->suspect != b->suspect || a->own_grads != b->own_grads, sums = a->grads != b->grads;
    int64_t differ[] = {own, sums, !same_bits(a->loss, b->loss) || !same_bits(a->grad_norm, b->grad_norm)};
    comm_all_reduce_i64(comm, differ, 3, COMM_SUM);
    if (!differ[0] && !differ[1] && !differ[2]) return 1;
    guard_name_ranks(comm, differ[0] ? own : sums, out);
    return 0;
}

/* --- the same weights everywhere ---------------------------------------------------------------------------------- */

/* Hashing the weights once takes a rank as long as some fifty tokens. It reads 2 to 4 bytes of each parameter, and a
 * token computes 6 FLOPs with it. A rank with GUARD_HASH_TOKENS tokens in a step spends 0.5 % on it. With zero_stage 0
 * it reads up to 14 bytes. */
int guard_hash_due(const Config *c, int ranks, int64_t step) {
    int64_t enough = c->parallel.zero_stage ? GUARD_HASH_TOKENS : GUARD_HASH_TOKENS_STAGE_0;
    int64_t tokens = c->batch.global_tokens / ranks, every = (enough + tokens - 1) / tokens;
    return ranks > 1 && (step + 1) % (every < GUARD_HASH_EVERY ? every : GUARD_HASH_EVERY) == 0;
}

int guard_is_outvoted(Comm *comm, int64_t value) {
    int     ranks = comm_size(comm), mine = 0, most = 0;
    int64_t ends[2] = {value, ~value}; /* maxima: the greatest value; the complement of the least */
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

char *guard_describe(const Guard *g, const Config *c, StepJudgement judgement, double loss, double grad_norm,
                     char out[GUARD_TEXT]) {
    if (judgement == STEP_SPIKE)
        snprintf(out, GUARD_TEXT, "loss %.4f is a spike: the median of the last %d is %.4f, the limit %.4f", loss, g->spikes.count,
                 spikes_median(&g->spikes), spikes_limit(&g->spikes, c->run.spike_threshold));
    else snprintf(out, GUARD_TEXT, "loss %g, gradient norm %g: not finite", loss, grad_norm);
    return out;
}

char *guard_advise(const Guard *g, const Config *c, StepJudgement judgement, char out[GUARD_TEXT]) {
    const char *key = judgement == STEP_NOT_FINITE ? "run.on_nonfinite" : "run.on_spike";
    switch (policy(c, judgement)) {
        case ON_TROUBLE_SKIP:
            snprintf(out, GUARD_TEXT, "%s = \"skip\" has left out run.max_skips = %lld such steps in a row", key,
                     (long long)c->run.max_skips);
            break;
        case ON_TROUBLE_ROLLBACK:
            snprintf(out, GUARD_TEXT, "after run.max_skips = %lld rollbacks the run has not got past step %lld",
                     (long long)c->run.max_skips, (long long)g->furthest + 1);
            break;
        default:
            snprintf(out, GUARD_TEXT,
                     "%s = \"skip\" leaves up to run.max_skips such steps out, \"rollback\" goes back to the newest checkpoint and "
                     "leaves out the data since",
                     key);
    }
    return out;
}

typedef struct { int marked; char device[76]; } Witness;

char *guard_name_ranks(Comm *comm, int marked, char out[GUARD_TEXT]) {
    Witness mine = {marked, ""};
    size_t *bytes = NULL, used = 0;
    snprintf(mine.device, sizeof mine.device, "%s", device_id()[0] ? device_id() : device_name());
    Witness *all = (Witness *)(void *)comm_gather(comm, &mine, sizeof mine, 0, &bytes);
    memset(out, 0, GUARD_TEXT);
    for (int r = 0; all && r < comm_size(comm); r++) {
        if (!all[r].marked || used >= GUARD_TEXT) continue;
        used += (size_t)snprintf(out + used, GUARD_TEXT - used, "%srank %d (%s, %s)", used ? " and " : "",
                                 comm_member(comm, r), comm_host(comm, r), all[r].device);
    }
    free(all);
    free(bytes);
    comm_broadcast(comm, out, GUARD_TEXT, 0);
    if (!out[0]) snprintf(out, GUARD_TEXT, "which rank it was cannot be told");
    return out;
}
