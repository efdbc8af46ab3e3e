/* step_numbers.c - the numbers of a step that need all ranks, such as loss and gradient norm: see step_numbers.h. */
#include "run/step_numbers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/thread.h"
#include "core/injection.h"
#include "core/error.h"
#include "run/run.h"

/* --- experts ------------------------------------------------------------------------------------------------------ */

/* How n experts share the assignments (tokens sent to experts). Has the share and index of the busiest expert, the
 * entropy of the shares, and the number of equally busy experts with that entropy. */
typedef struct { double busiest, entropy, effective; int64_t expert; } ExpertShares;

/* Computes the shares of n experts. counts [n]: assignments (tokens sent to each expert), which are divided by their
 * sum. */
static ExpertShares expert_shares(const int64_t *counts, int64_t n) {
    ExpertShares s = {0};
    double       all = 0.0;
    for (int64_t e = 0; e < n; e++) all += (double)counts[e];
    for (int64_t e = 0; e < n && all > 0.0; e++) {
        double share = (double)counts[e] / all;
        if (share > s.busiest) s.busiest = share, s.expert = e;
        if (share > 0.0) s.entropy -= share * log(share);
    }
    s.effective = exp(s.entropy);
    s.entropy = n > 1 ? s.entropy / log((double)n) : 1.0;
    return s;
}

/* Sums the counts of assignments (tokens sent to each expert) over the ranks. Rank 0 warns once a run if few experts do
 * nearly all work. A token has top_k experts. The number is too small if the effective number of experts exceeds top_k
 * by less than an eighth of the remaining n - top_k. */
static void expert_load_take(ExpertLoad *l, Model *m, Comm *all, int64_t step) {
    ModelShape shape = m->spec.shards.shape;
    int64_t    n = shape.n_experts, chosen = shape.top_k, elems = shape.n_layer * n;
    if (tensor_is_none(m->sums.experts)) return;
    if (!l->counts) l->counts = xmalloc(sizeof *l->counts * (size_t)elems, "the counts of the experts");
    device_to_host(&m->stream, l->counts, m->sums.experts);
    comm_all_reduce_i64(all, l->counts, (size_t)elems, COMM_SUM);
    if (m->gpt.experts) {
        l->rounds = m->gpt.experts->rounds, m->gpt.experts->rounds = 0;
        comm_all_reduce_i64(all, &l->rounds, 1, COMM_MAX);
    }
    l->busiest = l->entropy = 0.0;
    for (int64_t b = 0; b < shape.n_layer; b++) {
        ExpertShares s = expert_shares(l->counts + b * n, n);
        l->busiest = fmax(l->busiest, s.busiest);
        l->entropy += s.entropy / (double)shape.n_layer;
        int is_collapse = n > chosen && s.effective < (double)chosen + (double)(n - chosen) / 8.0;
        if (l->has_warned || !is_collapse) continue;
        l->has_warned = 1;
        if (comm_rank(all) == 0)
            warn("step %lld: the experts of block %lld collapse: expert %lld of %lld has %.0f %% of the assignments, "
                 "an even share is %.1f %%; set moe.balance=switch or bias, or raise moe.balance_rate, to even the "
                 "load",
                 (long long)step + 1, (long long)b, (long long)s.expert, (long long)n, 100.0 * s.busiest,
                 100.0 / (double)n);
    }
}

/* --- fp8 ---------------------------------------------------------------------------------------------------------- */

Fp8Steps fp8_steps_create(int64_t n_layer) {
    Fp8Steps f = {.history = fp8_history_create(n_layer)};
    f.amax = xcalloc((size_t)f.history.cells, sizeof *f.amax, "the maxima of tensors");
    f.counts = xcalloc((size_t)(2 * f.history.cells), sizeof *f.counts, "the maxima of tensors");
    return f;
}

void fp8_steps_destroy(Fp8Steps *f) {
    fp8_history_destroy(&f->history);
    free(f->amax);
    free(f->counts);
}

/* Reads the largest absolute value of each fp8 tensor, and its counts of clipped and vanished elements, from the
 * device. Reduces both over the ranks. The maxima have 32 bits on the device and are widened to 64 here. */
static void fp8_steps_take(Fp8Steps *f, Model *m, Comm *all) {
    int64_t cells = f->history.cells;
    if (!f->amax) return;
    device_to_host(&m->stream, f->amax, m->sums.fp8_amax);
    for (int64_t c = cells; c-- > 0;) {
        int32_t bits;
        memcpy(&bits, (const char *)f->amax + (size_t)c * sizeof bits, sizeof bits);
        f->amax[c] = bits;
    }
    device_to_host(&m->stream, f->counts, m->sums.fp8_counts);
    comm_all_reduce_i64(all, f->amax, (int)cells, COMM_MAX);
    comm_all_reduce_i64(all, f->counts, (int)(2 * cells), COMM_SUM);
    f->saturated = f->vanished = 0;
    for (int64_t c = 0; c < cells; c++) f->saturated += f->counts[2 * c], f->vanished += f->counts[2 * c + 1];
}

void fp8_steps_accept(Fp8Steps *f, Model *m) {
    if (!f->amax) return;
    fp8_history_add(&f->history, f->amax);
    fp8_scales_set(&m->gpt.fp8, &m->stream, &f->history);
}

/* --- the reduction ------------------------------------------------------------------------------------------------ */

StepNumbers reduce_numbers(Run *r, int64_t step) {
    Model   *m = r->model;
    Between *b = &r->between;
    int ranks = comm_size(r->comm), verifies = m->shards->hashes_own, compares = guard_hash_due(r->config, ranks, step);
    optimizer_numbers(&m->optimizer, &m->stream, (compares ? NUMBERS_REPLICAS : 0) | (verifies ? NUMBERS_GRADS : 0));
    shards_await(m->shards, &m->stream);
    StepValues v = step_sums_fetch(&m->sums, &m->stream);
    /* Both calls read m->sums, so they come before run_with_parts, which overwrites the sums. */
    expert_load_take(&r->experts, m, r->comm, step);
    fp8_steps_take(&r->fp8, m, r->comm);
    if (compares) v.hash[HASH_REPLICAS] = run_with_parts(r, v.hash[HASH_REPLICAS]);
    /* the numbers that this rank sends to the reduction, which adds each of them over the ranks */
    struct { Exact sum[SUMS]; int64_t hash[GUARD_HASH_WORDS], stop, save, written, fed, lost; } w = {.hash = {0}};
    /* Time of this step, which is also the expected time of the next one. It is doubled below if the next step will be
     * computed twice (run.verify_every). */
    double took_ms = clock_ms() - b->began_ms;
    memcpy(w.sum, v.sum, sizeof w.sum);
    exact_add(&w.sum[SUM_LOSS], inject_loss((double)r->config->batch.global_tokens));
    guard_hash_words(v.hash[HASH_REPLICAS], w.hash);
    w.stop = requests_stop(&r->requests, guard_verify_due(r->config, step + 1) ? 2.0 * took_ms : took_ms);
    w.save = requests_save(&r->requests);
    w.written = saver_ready(r->saver);
    w.fed = loader_is_ready(r->loader, 0.0);
    w.lost = r->island && island_keep(r->island);
    int check = ranks > 1 ? SUM_RANK_CHECK : SUM_GRAD_SQUARES;
    int suspect = !isfinite(exact_value(&w.sum[SUM_LOSS])) || !isfinite(exact_value(&w.sum[check]));
    comm_all_reduce_i64(r->comm, w.sum[0].word, sizeof w / sizeof(int64_t), COMM_SUM);
    b->stop |= w.stop > 0, b->save |= w.save > 0, b->lost |= w.lost > 0;
    b->written = w.written == ranks, b->fed = w.fed == ranks;
    return (StepNumbers){.loss = exact_value(&w.sum[SUM_LOSS]) / (double)r->config->batch.global_tokens,
                         .grad_norm = sqrt(exact_value(&w.sum[SUM_GRAD_SQUARES])) / r->state.loss_scale.scale,
                         .suspect = suspect,
                         .own_grads = v.hash[HASH_OWN_GRADS],
                         .grads = v.hash[HASH_GRADS],
                         .replicas = v.hash[HASH_REPLICAS],
                         .replicas_differ = guard_hashes_differ(w.hash, ranks)};
}
