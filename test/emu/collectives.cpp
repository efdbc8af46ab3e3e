/* collectives.cpp - operations of several threads. Each arriving thread is checked against the waiting ones. The last
 * one computes for all. */
#include "engine.h"

namespace emu {

static bool same_place(const char *file_a, int line_a, const char *file_b, int line_b) {
    return line_a == line_b && (file_a == file_b || strcmp(file_a, file_b) == 0);
}

/* Returns the waiting lanes of a warp operation with this mask, or NULL if none waits. Refuses a mask that overlaps the
 * mask of waiting lanes and differs from it, because neither operation could complete. */
static Gathering *gathering_of(Warp &w, const char *name, unsigned mask, const char *file, int line) {
    Gathering *found = nullptr;
    for (int i = 0; i < w.gatherings; i++) {
        Gathering &g = w.gathering[i];
        if (g.wanted == mask) found = &g;
        else if (g.wanted & mask)
            fail_at(file, line, "%s(mask %08x) while lanes %08x wait in %s(mask %08x) at %s:%d: the masks overlap and differ", name,
                    mask, g.arrived,
                    g.name, g.wanted, g.file, g.line);
    }
    return found;
}

static void check_mask(const Warp &w, const char *name, unsigned mask, const char *file, int line) {
    if (!(mask >> current->lane & 1)) fail_at(file, line, "%s: lane %d is not in its own mask %08x", name, current->lane, mask);
    if (mask & ~w.exists)
        fail_at(file, line, "%s: mask %08x names lanes that a block of %d threads does not have", name, mask, engine.block_threads);
    if (mask & w.exited) fail_at(file, line, "%s: lanes %08x of mask %08x have exited", name, mask & w.exited, mask);
}

void warp_collective(Kind kind, const char *name, unsigned mask, void *argument, Compute f, const char *file, int line) {
    if (!current) fail_at(file, line, "%s outside of a kernel", name);
    Warp &w = engine.warps[current->warp];
    check_mask(w, name, mask, file, line);

    Gathering *g = gathering_of(w, name, mask, file, line);
    if (!g) {
        if (w.gatherings == sizeof w.gathering / sizeof *w.gathering) fail_at(file, line, "%s: too many groups of lanes in one warp", name);
        g = &w.gathering[w.gatherings++];
        *g = Gathering{mask, 0, kind, name, file, line};
    }
    if (g->kind != kind || !same_place(g->file, g->line, file, line))
        fail_at(file, line, "divergent warp: %s while lanes %08x wait in %s at %s:%d", name, g->arrived, g->name, g->file, g->line);
    g->arrived |= 1u << current->lane;
    current->argument = argument;
    current->mask = mask;
    if (g->arrived != mask) return fiber_wait(kind, name, file, line);

    void *argument_of_lane[WARP_LANES] = {};
    for (int l = 0; l < WARP_LANES; l++)
        if (mask >> l & 1) argument_of_lane[l] = engine.fibers[current->warp * WARP_LANES + l].argument;
    if (f) {
        bool was = race_pause(true);
        f(argument_of_lane, mask);
        race_pause(was);
    }
    if (kind == SYNCWARP) race_syncwarp(current->warp);
    *g = w.gathering[--w.gatherings];
    for (int l = 0; l < WARP_LANES; l++)
        if (mask >> l & 1 && l != current->lane) fiber_ready(&engine.fibers[current->warp * WARP_LANES + l]);
}

struct Vote {
    int      predicate;
    unsigned ballot;
};
static void count_votes(void **argument, unsigned mask) {
    unsigned ballot = 0;
    for (int l = 0; l < WARP_LANES; l++)
        if (mask >> l & 1 && ((Vote *)argument[l])->predicate) ballot |= 1u << l;
    for (int l = 0; l < WARP_LANES; l++)
        if (mask >> l & 1) ((Vote *)argument[l])->ballot = ballot;
}
unsigned vote(unsigned mask, int predicate, const char *name, const char *file, int line) {
    Vote v = {predicate, 0};
    warp_collective(VOTE, name, mask, &v, count_votes, file, line);
    return v.ballot;
}

void warpgroup_collective(const char *name, void (*f)(int group, void *argument), void *argument, const char *file, int line) {
    enum { LANES = 128 };
    int group = current->index / LANES;
    bool whole = engine.launch->cluster == 1 || engine.block_threads % LANES == 0;
    if (!whole || engine.threads < (group + 1) * LANES) fail_at(file, line, "%s needs a full warpgroup of 128 threads", name);
    std::vector<Fiber *> &waiting = engine.warpgroup_waiting[group];
    /* all threads must wait at the same place of the source as the first one */
    const Fiber *other = waiting.empty() ? nullptr : waiting[0];
    if (other && !same_place(other->file, other->line, file, line))
        fail_at(file, line, "divergent warpgroup: %s while thread %d waits in %s at %s:%d", name, other->index, other->name, other->file,
                other->line);
    if (waiting.size() < LANES - 1) {
        waiting.push_back(current);
        return fiber_wait(WARPGROUP, name, file, line);
    }
    f(group, argument);
    for (Fiber *each : waiting) fiber_ready(each);
    waiting.clear();
}

static void check_barrier(const Barrier &b, int id, int threads, int wanted, const char *name, const char *file, int line) {
    int of_block = engine.block_threads, live = engine.here->live;
    if (!threads && live < of_block) fail_at(file, line, "%s: %d threads of the block have already exited", name, of_block - live);
    if (threads % WARP_LANES || threads > of_block)
        fail_at(file, line, "%s: barrier %d wants %d threads of a block of %d", name, id, threads, of_block);
    if (!b.arrived) return;
    if (b.wanted != wanted)
        fail_at(file, line, "%s: barrier %d wants %d threads here and %d at %s:%d", name, id, wanted, b.wanted, b.file, b.line);
    if (!threads && !same_place(b.file, b.line, file, line))
        fail_at(file, line, "divergent barrier: %s while %d threads wait at %s:%d", name, b.arrived, b.file, b.line);
}

/* Counts a thread that arrives at barrier b. Returns whether it is the last one. */
static bool arrive(Barrier &b, int wanted, int value, Reduction reduction, const char *file, int line) {
    if (!b.arrived) {
        b.value = reduction == REDUCE_AND;
        b.warps = 0;
    }
    b.wanted = wanted, b.file = file, b.line = line;
    if (reduction == REDUCE_AND) b.value &= value;
    else if (reduction == REDUCE_OR) b.value |= value;
    else b.value += value;
    return ++b.arrived == wanted;
}
/* Completes a barrier. The race checker orders all arrivals before what the threads that waited do next. Threads that
 * arrived without waiting (bar.arrive) are not ordered. */
static void complete(Barrier &b) {
    race_barrier(b.warps);
    for (int w = 0; w < engine.warp_count; w++)
        if (b.warps >> w & 1) race_acquire(&b.arrivals, w);
    b.arrived = 0;
    for (Fiber *f : b.waiting) {
        f->result = b.value;
        fiber_ready(f);
    }
    b.waiting.clear();
}

void block_arrive(int id, int threads, const char *name, const char *file, int line) {
    Barrier &b = engine.here->barriers[id];
    check_barrier(b, id, threads, threads, name, file, line);
    race_release(&b.arrivals, current->warp);
    if (arrive(b, threads, 0, REDUCE_NONE, file, line)) complete(b);
}

int block_barrier(int id, int threads, const char *name, int value, Reduction reduction, const char *file, int line) {
    if (!current) fail_at(file, line, "%s outside of a kernel", name);
    Barrier &b = engine.here->barriers[id];
    int      wanted = threads ? threads : engine.block_threads;
    check_barrier(b, id, threads, wanted, name, file, line);
    bool last = arrive(b, wanted, value, reduction, file, line);
    b.warps |= 1u << current->warp;
    if (!last) {
        b.waiting.push_back(current);
        fiber_wait(BARRIER, name, file, line);
        return current->result;
    }
    complete(b);
    return b.value;
}

}  // namespace emu
