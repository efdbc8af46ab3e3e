/* cluster.cpp - emulates the functions of core/ptx.cuh for clusters: blocks adjacent along x that run together, their
 * barrier, and arrivals at each other's mbarriers. TMA loads into several blocks are in hopper.cpp. */
#include "engine.h"

namespace emu {

unsigned cluster_rank() { return (unsigned)current->rank; }

void cluster_reset() {
    engine.cluster_phase = 0;
    engine.cluster_arrived = 0;
}
void cluster_arrive(const char *file, int line) {
    if (current->at_cluster_barrier) fail_at(file, line, "cluster_arrive: the thread has not waited since it last arrived");
    current->at_cluster_barrier = true;
    current->cluster_phase = engine.cluster_phase;
    race_release(&engine.cluster_phase, current->warp);
    if (++engine.cluster_arrived < engine.threads) return;
    engine.cluster_arrived = 0;
    engine.cluster_phase++;
    for (int i = 0; i < engine.threads; i++) {
        Fiber &f = engine.fibers[i];
        if (f.state == WAITING && f.kind == CLUSTER) fiber_ready(&f);
    }
}
void cluster_wait(const char *file, int line) {
    if (!current->at_cluster_barrier) fail_at(file, line, "cluster_wait: the thread has not arrived");
    while (current->cluster_phase == engine.cluster_phase) fiber_wait(CLUSTER, "cluster_wait", file, line);
    current->at_cluster_barrier = false;
    race_acquire(&engine.cluster_phase, current->warp);
}

void mbarrier_arrive_at(uint64_t *barrier, unsigned rank, const char *file, int line) {
    if (rank >= engine.launch->cluster) fail_at(file, line, "mapa: a cluster of %u has no block %u", engine.launch->cluster, rank);
    ptrdiff_t there = engine.blocks[rank].arena - engine.here->arena;
    InBlock   in(static_cast<int>(rank));
    if (!engine.here->live) fail_at(file, line, "mbarrier: block %u of the cluster has ended", rank);
    mbarrier_arrive((uint64_t *)((char *)barrier + there), 0, file, line);
}

}  // namespace emu
