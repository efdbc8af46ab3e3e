/* expert_load.c - see expert_load.h. */
#include "run/expert_load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

ExpertShares expert_shares(const int64_t *counts, int64_t n) {
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

/* Returns 1 if few experts do the work. n experts exist, and `chosen` of them compute each token. Few means that the
 * effective number exceeds `chosen` by less than an eighth of the others. */
static int is_collapse(ExpertShares s, int64_t n, int64_t chosen) {
    return n > chosen && s.effective < (double)chosen + (double)(n - chosen) / 8.0;
}

void expert_load_take(ExpertLoad *l, Model *m, Comm *all, int64_t step) {
    ModelShape shape = m->spec.shards.shape;
    int64_t    n = shape.n_experts, elems = shape.n_layer * n;
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
        if (l->has_warned || !is_collapse(s, n, shape.top_k)) continue;
        l->has_warned = 1;
        if (comm_rank(all) == 0)
            warn("step %lld: the experts of block %lld collapse: expert %lld of %lld has %.0f %% of the assignments, an even "
                 "share is %.1f %%; moe.balance, or a larger moe.balance_rate, spreads them",
                 (long long)step + 1, (long long)b, (long long)s.expert, (long long)n, 100.0 * s.busiest, 100.0 / (double)n);
    }
}

void expert_load_drop(ExpertLoad *l) {
    free(l->counts);
    l->counts = NULL;
}
