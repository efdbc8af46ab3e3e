/* balance.c - see balance.h. */
#include "run/balance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static double slowest_of(const double *per_micro, const int64_t *micro, int datas) {
    double most = 0.0;
    for (int d = 0; d < datas; d++)
        if (per_micro[d] * (double)micro[d] > most) most = per_micro[d] * (double)micro[d];
    return most;
}

/* Gives each micro-batch to the group that would finish it first. No other shares make the slowest group faster. */
static void share_out(const double *per_micro, int64_t *micro, int datas, int64_t all) {
    for (int d = 0; d < datas; d++) micro[d] = 1;
    for (int64_t left = all - datas; left > 0; left--) {
        int next = 0;
        for (int d = 1; d < datas; d++)
            if (per_micro[d] * (double)(micro[d] + 1) < per_micro[next] * (double)(micro[next] + 1)) next = d;
        micro[next]++;
    }
}

int balance_shares(const double *ms, int64_t *micro, int datas) {
    double  *per_micro = xmalloc(sizeof *per_micro * (size_t)datas, "the shares of the ranks");
    int64_t *shares = xmalloc(sizeof *shares * (size_t)datas, "the shares of the ranks"), all = 0;
    for (int d = 0; d < datas; d++) {
        all += micro[d];
        per_micro[d] = (ms[d] > 1e-3 ? ms[d] : 1e-3) / (double)micro[d];
    }
    share_out(per_micro, shares, datas, all);
    int gains = slowest_of(per_micro, shares, datas) < BALANCE_GAIN * slowest_of(per_micro, micro, datas);
    if (gains) memcpy(micro, shares, sizeof *micro * (size_t)datas);
    free(per_micro);
    free(shares);
    return gains;
}

/* Writes the time of the slowest rank of each group to ms [datas]. The ranks exchange whole microseconds, so that all
 * get equal numbers. */
static void gather_times(const Run *r, double *ms) {
    int      datas = r->groups.datas, ranks = comm_size(r->comm);
    int64_t *us = xcalloc((size_t)ranks, sizeof *us, "the times of the ranks");
    us[comm_rank(r->comm)] = (int64_t)(stragglers_median(&r->stragglers).compute_ms * 1e3);
    comm_all_reduce_i64(r->comm, us, ranks, COMM_SUM);
    memset(ms, 0, sizeof *ms * (size_t)datas);
    for (int rank = 0; rank < ranks; rank++) {
        MeshPlace p = mesh_place(r->groups.mesh, rank);
        int       d = p.at[AXIS_REPLICA] * r->groups.mesh.size[AXIS_SHARD] + p.at[AXIS_SHARD];
        if ((double)us[rank] * 1e-3 > ms[d]) ms[d] = (double)us[rank] * 1e-3;
    }
    free(us);
}

static void say(Run *r) {
    char text[200];
    int  used = 0;
    for (int d = 0; d < r->groups.datas && used < (int)sizeof text - 24; d++)
        used += snprintf(text + used, sizeof text - (size_t)used, " %lld", (long long)r->shares[d]);
    progress_note("balance: of a step's micro-batches the ranks now take%s%s", text,
                  used >= (int)sizeof text - 24 ? " ..." : "");
}

void balance_note(Run *r, int64_t step) {
    int datas = r->groups.datas;
    if (!r->config->parallel.balance || datas == 1 || r->stragglers.steps % STRAGGLER_STEPS != 0) return;
    double *ms = xmalloc(sizeof *ms * (size_t)datas, "the times of the ranks");
    gather_times(r, ms);
    if (balance_shares(ms, r->shares, datas)) {
        run_take_share(r, step);
        if (run_is_rank0(r)) say(r);
    }
    free(ms);
}
