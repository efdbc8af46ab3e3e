/* pace.c - warns of slow ranks and slow machines, and balances the work of the ranks: see pace.h. */
#include "run/pace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/format.h"
#include "run/run.h"

/* --- stragglers --------------------------------------------------------------------------------------------------- */

/* Returns the medians of the last STRAGGLER_STEPS steps of this rank. At least STRAGGLER_STEPS steps must have been
 * recorded. */
static Pace median_of(const Stragglers *s) {
    double compute[STRAGGLER_STEPS], wait[STRAGGLER_STEPS];
    for (int i = 0; i < STRAGGLER_STEPS; i++) compute[i] = s->window[i].compute_ms, wait[i] = s->window[i].wait_ms;
    qsort(compute, STRAGGLER_STEPS, sizeof *compute, ascending_doubles);
    qsort(wait, STRAGGLER_STEPS, sizeof *wait, ascending_doubles);
    return (Pace){compute[STRAGGLER_STEPS / 2], wait[STRAGGLER_STEPS / 2]};
}

static int fastest_of(const Pace *pace, int ranks) {
    int best = 0;
    for (int r = 1; r < ranks; r++)
        if (pace[r].compute_ms < pace[best].compute_ms) best = r;
    return best;
}

int stragglers_find(const Pace *pace, int ranks, int has_hosts) {
    int    slow = 0, best = fastest_of(pace, ranks);
    double least_wait = pace[0].wait_ms;
    for (int r = 1; r < ranks; r++) {
        if (pace[r].compute_ms > pace[slow].compute_ms) slow = r;
        if (pace[r].wait_ms < least_wait) least_wait = pace[r].wait_ms;
    }
    /* no single rank is slow, because all ranks wait longer than they compute */
    if (has_hosts && least_wait > pace[slow].compute_ms) return -1;
    return pace[best].compute_ms < STRAGGLER_SPEED * pace[slow].compute_ms ? 1 + slow : 0;
}

/* Returns the first rank on another host than rank 0, or 0 if there is none. */
static int first_elsewhere(const Comm *comm) {
    for (int r = 1; r < comm_size(comm); r++)
        if (strcmp(comm_host(comm, r), comm_host(comm, 0)) != 0) return r;
    return 0;
}

/* Warns of the slow rank, or of the slow link between hosts, that stragglers_find has found. */
static void warn_of(const Comm *comm, const Pace *pace, int found) {
    int slow = found - 1, best = fastest_of(pace, comm_size(comm)), other = first_elsewhere(comm);
    if (found > 0)
        warn("rank %d on %s computes %.1f ms a step, rank %d on %s %.1f ms (medians of %d steps): all ranks wait for "
             "rank %d; look for other programs or heat on %s, or set parallel.balance=true, which gives slow ranks "
             "less work",
             slow, comm_host(comm, slow), pace[slow].compute_ms, best, comm_host(comm, best), pace[best].compute_ms,
             STRAGGLER_STEPS, slow, comm_host(comm, slow));
    else
        warn("rank 0 on %s computes %.1f ms a step and waits %.1f ms for messages, and no rank waits much less "
             "(medians of %d steps): the link between %s and %s is slow, or the steps are too short for it: raise "
             "batch.global_tokens, or start fewer hosts",
             comm_host(comm, 0), pace[0].compute_ms, pace[0].wait_ms, STRAGGLER_STEPS, comm_host(comm, 0),
             comm_host(comm, other));
}

void stragglers_note(Stragglers *s, Comm *comm, const StepMetrics *m) {
    if (comm_size(comm) == 1) return;
    s->window[s->steps++ % STRAGGLER_STEPS] = (Pace){m->ms - m->exchange.exposed_ms, m->exchange.exposed_ms};
    if (s->steps % STRAGGLER_STEPS != 0) return;
    size_t *bytes = NULL;
    Pace    mine = median_of(s);
    Pace   *all = (Pace *)(void *)comm_gather(comm, &mine, sizeof mine, 0, &bytes);
    if (comm_rank(comm) == 0) {
        int found = stragglers_find(all, comm_size(comm), first_elsewhere(comm) > 0);
        if (found && found == s->suspect && (s->warned == 0 || s->steps - s->warned >= STRAGGLER_WARN_EVERY)) {
            warn_of(comm, all, found);
            s->warned = s->steps;
        }
        s->suspect = found;
    }
    free(all), free(bytes);
}

/* --- slowness ----------------------------------------------------------------------------------------------------- */

int slowness_note(Slowness *s, double ms) {
    if (s->best_ms == 0 || ms < s->best_ms) s->best_ms = ms;
    int is_slow = ms > SLOW_FACTOR * s->best_ms;
    s->slow = is_slow ? s->slow + 1 : 0;
    s->quick = is_slow ? 0 : s->quick + 1;
    if (s->quick >= SLOW_STEPS) s->has_warned = 0;
    if (s->has_warned || s->slow < SLOW_STEPS) return 0;
    return s->has_warned = 1;
}

void slowness_warn(const Slowness *s, double ms) {
    double load[1] = {0};
    if (getloadavg(load, 1) != 1) load[0] = 0;
    warn("%d steps in a row took over %d times the best one (%.1f ms; the last %.1f ms): the machine's load is %.1f "
         "on %ld cores, other programs may be using them",
         SLOW_STEPS, SLOW_FACTOR, s->best_ms, ms, load[0], sysconf(_SC_NPROCESSORS_ONLN));
}

/* --- balance ------------------------------------------------------------------------------------------------------ */

static double slowest_of(const double *per_micro, const int64_t *micro, int datas) {
    double most = 0.0;
    for (int d = 0; d < datas; d++)
        if (per_micro[d] * (double)micro[d] > most) most = per_micro[d] * (double)micro[d];
    return most;
}

int balance_shares(const double *ms, int64_t *micro, int datas) {
    double  *per_micro = xmalloc(sizeof *per_micro * (size_t)datas, "the shares of the ranks");
    int64_t *shares = xmalloc(sizeof *shares * (size_t)datas, "the shares of the ranks"), all = 0;
    for (int d = 0; d < datas; d++) {
        all += micro[d];
        per_micro[d] = (ms[d] > 1e-3 ? ms[d] : 1e-3) / (double)micro[d];
    }
    /* Each micro-batch goes to the group of ranks that would finish it first. No other numbers of micro-batches make
     * the slowest group faster. */
    for (int d = 0; d < datas; d++) shares[d] = 1;
    for (int64_t left = all - datas; left > 0; left--) {
        int next = 0;
        for (int d = 1; d < datas; d++)
            if (per_micro[d] * (double)(shares[d] + 1) < per_micro[next] * (double)(shares[next] + 1)) next = d;
        shares[next]++;
    }
    int gains = slowest_of(per_micro, shares, datas) < BALANCE_GAIN * slowest_of(per_micro, micro, datas);
    if (gains) memcpy(micro, shares, sizeof *micro * (size_t)datas);
    free(per_micro);
    free(shares);
    return gains;
}

/* Writes the time of the slowest rank of each group to ms [datas]. The ranks exchange times in whole microseconds, so
 * that all ranks get equal numbers. */
static void gather_times(const Run *r, double *ms) {
    int      datas = r->groups.datas, ranks = comm_size(r->comm);
    int64_t *us = xcalloc((size_t)ranks, sizeof *us, "the times of the ranks");
    us[comm_rank(r->comm)] = (int64_t)(median_of(&r->stragglers).compute_ms * 1e3);
    comm_all_reduce_i64(r->comm, us, ranks, COMM_SUM);
    memset(ms, 0, sizeof *ms * (size_t)datas);
    for (int rank = 0; rank < ranks; rank++) {
        MeshPlace p = mesh_place(r->groups.mesh, rank);
        int       d = p.at[AXIS_REPLICA] * r->groups.mesh.size[AXIS_SHARD] + p.at[AXIS_SHARD];
        if ((double)us[rank] * 1e-3 > ms[d]) ms[d] = (double)us[rank] * 1e-3;
    }
    free(us);
}

void balance_note(Run *r, int64_t step) {
    int  datas = r->groups.datas, used = 0;
    char text[200];
    if (!r->config->parallel.balance || datas == 1 || r->stragglers.steps % STRAGGLER_STEPS != 0) return;
    double *ms = xmalloc(sizeof *ms * (size_t)datas, "the times of the ranks");
    gather_times(r, ms);
    int changes = balance_shares(ms, r->shares, datas);
    free(ms);
    if (changes) run_take_share(r, step);
    if (!changes || !run_is_rank0(r)) return;
    for (int d = 0; d < datas && used < (int)sizeof text - 24; d++)
        used += snprintf(text + used, sizeof text - (size_t)used, " %lld", (long long)r->shares[d]);
    progress_note("balance: micro-batches of each step, rank by rank, are now%s%s", text,
                  used >= (int)sizeof text - 24 ? " ..." : "");
}
