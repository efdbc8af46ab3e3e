/* hopper.cpp - emulates the functions of core/ptx.cuh for compute capability 9.0: mbarrier, TMA loads, setmaxnreg.
 *
 * Emulated: 2-D tiles with zero fill outside and 0, 32, 64 or 128 bytes of swizzle.
 */
#include "streams.h"

namespace emu {

/* --- mbarrier: counts arrivals and bytes; a phase completes when both are there ----------------------------------- */

enum { COUNT_UNSET = 4095 }; /* the value of `count` in shared memory that was never initialised: all bits are set */
struct MBarrier {
    uint32_t pending : 12, count : 12, phase : 1, unused : 7;
    int32_t  bytes;
};
static_assert(sizeof(MBarrier) == sizeof(uint64_t), "an mbarrier is 64 bits");

static MBarrier &mbarrier_at(uint64_t *barrier, const char *file, int line) {
    if ((uintptr_t)barrier % 8) fail_at(file, line, "mbarrier at %p is not aligned to 8 bytes", (void *)barrier);
    shared_offset(barrier, 8, "mbarrier", file, line);
    return *(MBarrier *)barrier;
}
static MBarrier &initialised_at(uint64_t *barrier, const char *file, int line) {
    MBarrier &b = mbarrier_at(barrier, file, line);
    if (b.count == 0 || b.count == COUNT_UNSET) fail_at(file, line, "mbarrier used before its init");
    /* makes the race checker report an access to the mbarrier that is not ordered after its initialisation */
    race_async_read(barrier, sizeof b, current->index, race_stamp(), file, line);
    return b;
}
static void complete_if_due(uint64_t *barrier) {
    MBarrier &b = *(MBarrier *)barrier;
    if (b.pending || b.bytes) return;
    b.phase ^= 1;
    b.pending = b.count;
    for (int i = 0; i < engine.threads; i++) {
        Fiber &f = engine.fibers[i];
        if (f.state == WAITING && f.kind == MBARRIER && f.argument == barrier) fiber_ready(&f);
    }
}

void mbarrier_init(uint64_t *barrier, unsigned count, const char *file, int line) {
    MBarrier &b = mbarrier_at(barrier, file, line);
    b.pending = b.count = count;
    b.phase = 0, b.unused = 0, b.bytes = 0;
    note_write(barrier, sizeof b);
}
void mbarrier_arrive(uint64_t *barrier, unsigned expected_bytes, const char *file, int line) {
    MBarrier &b = initialised_at(barrier, file, line);
    if (!b.pending) fail_at(file, line, "mbarrier: more arrivals than its count of %u", b.count);
    b.bytes += (int32_t)expected_bytes;
    b.pending--;
    race_release(barrier, current->warp);
    complete_if_due(barrier);
}
/* Waits until the barrier has completed the phase of this parity. */
void mbarrier_wait(uint64_t *barrier, unsigned parity, const char *file, int line) {
    const MBarrier &b = initialised_at(barrier, file, line);
    while (b.phase == (parity & 1)) {
        current->argument = barrier;
        fiber_wait(MBARRIER, "mbarrier wait", file, line);
    }
    race_acquire(barrier, current->warp);
}

/* --- TMA ---------------------------------------------------------------------------------------------------------- */

uint32_t swizzled(uint32_t offset, uint32_t bytes) {
    uint32_t units = bytes / 16;
    return bytes ? offset ^ (offset >> 7 & (units - 1)) << 4 : offset;
}

static void load_into(const TmaLoad &t, int rank) {
    InBlock             there(rank);
    ptrdiff_t           to = engine.here->arena - engine.blocks[t.rank].arena;
    const EmuTensorMap &m = t.map;
    uint32_t            bytes = m.box_columns * m.box_rows * m.element_bytes;
    uint32_t            at = shared_offset((char *)t.shared + to, bytes, "TMA", t.file, t.line);
    if (!engine.here->live) fail_at(t.file, t.line, "TMA: a load into a block of the cluster that has ended");
    each_part(m, at, t.column, t.row, [&](uint32_t offset, const char *from, size_t n) {
        char *p = engine.here->arena + offset;
        if (from) race_async_read(from, n, t.thread, t.stamp, t.file, t.line);
        race_bulk_write(p, n, false, t.thread, t.stamp, t.file, t.line);
        if (from) memcpy(p, from, n);
        else memset(p, 0, n);
        if (!watching()) memcpy(async_view(offset), p, n);
    });
    uint64_t *barrier = (uint64_t *)((char *)t.barrier + to);
    MBarrier &b = *(MBarrier *)barrier;
    b.bytes -= (int32_t)bytes;
    complete_if_due(barrier);
}
static void load_now(const TmaLoad &t) {
    for (int rank = 0; rank < (int)engine.launch->cluster; rank++)
        if (t.blocks >> rank & 1) load_into(t, rank);
}

bool tma_run_one() {
    if (engine.tma.empty()) return false;
    size_t  i = settings.schedule == RANDOM ? engine.random() % engine.tma.size() : 0;
    TmaLoad t = engine.tma[i];
    engine.tma.erase(engine.tma.begin() + (long)i);
    load_now(t);
    return true;
}

void tma_check(const void *shared, const EmuTensorMap &map, const char *file, int line) {
    unsigned align = map.swizzle_bytes ? map.swizzle_bytes * 8 : 128, row_bytes = map.box_columns * map.element_bytes;
    if ((uintptr_t)shared % align) fail_at(file, line, "TMA: shared address %p is not aligned to %u bytes", shared, align);
    if (map.swizzle_bytes && row_bytes > map.swizzle_bytes)
        fail_at(file, line, "TMA: a box row of %u bytes exceeds the swizzle of %u", row_bytes, map.swizzle_bytes);
}
/* Starts a TMA load. blocks: bit set of blocks of the cluster that receive the tile; 0: the thread's own block only. */
void tma_load_2d(void *shared, const EmuTensorMap *map, uint64_t *barrier, int column, int row, unsigned blocks, const char *file,
                 int line) {
    tma_check(shared, *map, file, line);
    unsigned all = engine.launch->cluster;
    if (blocks >> all) fail_at(file, line, "TMA: mask %x names blocks that a cluster of %u does not have", blocks, all);
    if (!blocks) blocks = 1u << current->rank;
    TmaLoad t = {shared, *map, barrier, column, row, current->index, current->rank, blocks, race_stamp(), file, line};
    for (int rank = 0; rank < MAX_CLUSTER; rank++) {
        uint64_t *there = (uint64_t *)((char *)barrier + (engine.blocks[rank].arena - engine.here->arena));
        InBlock   in(rank);
        if (!(blocks >> rank & 1)) continue;
        initialised_at(there, file, line);
        race_release(there, current->warp);
    }
    if (settings.async_early) load_now(t);
    else engine.tma.push_back(t);
}

/* --- setmaxnreg: a block's registers, which its warpgroups give up and take --------------------------------------- */

enum { REGISTERS = 64 << 10, WARPGROUP_LANES = 128, FEWEST = 24, MOST = 248 };

/* Gives a block as many registers per thread as its launch bounds allow. The real compiler may have used fewer, so
 * setmaxnreg may request less than this number. */
void registers_reset() {
    int per_thread = REGISTERS / engine.block_threads / 8 * 8;
    for (Block &b : engine.blocks) b.registers_free = 0;
    for (int &r : engine.registers) r = per_thread < MOST ? per_thread : MOST;
    for (int &r : engine.registers_wanted) r = 0;
}
static void grant() {
    int groups = engine.block_threads / WARPGROUP_LANES, first = current->rank * groups;
    for (int g = first; g < first + groups; g++) {
        int more = engine.registers_wanted[g] - engine.registers[g];
        if (more <= 0 || more > engine.here->registers_free) continue;
        engine.here->registers_free -= more;
        engine.registers[g] += more;
        for (int t = 0; t < WARPGROUP_LANES; t++) {
            Fiber &f = engine.fibers[g * WARPGROUP_LANES + t];
            if (f.state == WAITING && f.kind == SETMAXNREG) fiber_ready(&f);
        }
    }
}
struct SetRegisters {
    int         n;
    bool        raise;
    const char *file;
    int         line;
};
/* Checks that a grid whose blocks raise their registers has enough multiprocessors besides those that NCCL holds. Each
 * such block occupies one multiprocessor for the whole launch, and the blocks divide the work. Blocks without a
 * multiprocessor would start only after the first have ended. */
static void check_room_beside_library(const char *file, int line) {
    const Launch &l = *engine.launch;
    unsigned      blocks = l.grid.x * l.grid.y * l.grid.z;
    int           library = library_blocks_beside(l.stream);
    if (library > 0 && blocks + (unsigned)library > MULTIPROCESSORS)
        fail_at(file, line, "%u blocks that stay and up to %d of NCCL on another stream, and there are %d multiprocessors: the last blocks "
                "would start when the first have ended", blocks, library, MULTIPROCESSORS);
}

static void set(int warpgroup, void *argument) {
    const SetRegisters &s = *(SetRegisters *)argument;
    int                &now = engine.registers[warpgroup], groups = engine.block_threads / WARPGROUP_LANES;
    int                 all = engine.here->registers_free;
    for (int g = 0; g < groups; g++) all += engine.registers[current->rank * groups + g];
    if (s.raise) check_room_beside_library(s.file, s.line);
    if (!s.raise && s.n > now) fail_at(s.file, s.line, "setmaxnreg: lowered to %d registers from %d", s.n, now);
    if (s.raise && s.n > all - FEWEST * (groups - 1))
        fail_at(s.file, s.line, "setmaxnreg: %d registers a thread can never be granted: %d warpgroups share %d", s.n, groups, all);
    engine.registers_wanted[warpgroup] = s.n;
    if (!s.raise) engine.here->registers_free += now - s.n, now = s.n;
    grant();
}
void set_registers(int n, bool raise, const char *file, int line) {
    if (n % 8 || n < FEWEST || n > 256) fail_at(file, line, "setmaxnreg: %d is not a multiple of 8 from 24 to 256", n);
    SetRegisters s = {n, raise, file, line};
    warpgroup_collective("setmaxnreg, which all warps of a warpgroup execute,", set, &s, file, line);
    while (raise && engine.registers[current->index / WARPGROUP_LANES] < n)
        fiber_wait(SETMAXNREG, "setmaxnreg.inc, for registers that others hold,", file, line);
}

}  // namespace emu
