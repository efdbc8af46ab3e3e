/* hopper.cpp - the emulated twins of core/ptx.cuh for compute capability 9.0: mbarrier, TMA loads and wgmma.
 *
 * Descriptors, swizzles and layouts follow the PTX ISA manual, "Asynchronous warpgroup-level matrix instructions".
 * Emulated: 2-D tiles with zero fill outside and 0, 32, 64 or 128 bytes of swizzle; m64nNk16 with both operands in
 * shared memory and 128 bytes of swizzle.
 */
#include "engine.h"

namespace emu {

/* --- mbarrier: counts arrivals and bytes; a phase completes when both are there ----------------------------------- */

enum { COUNT_UNSET = 4095 }; /* all bits set: memory that nobody has initialised */
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
}
void mbarrier_arrive(uint64_t *barrier, unsigned expected_bytes, const char *file, int line) {
    MBarrier &b = initialised_at(barrier, file, line);
    if (!b.pending) fail_at(file, line, "mbarrier: more arrivals than its count of %u", b.count);
    b.bytes += (int32_t)expected_bytes;
    b.pending--;
    race_release(barrier, current->warp);
    complete_if_due(barrier);
}
/* Until the phase of this parity has completed. */
void mbarrier_wait(uint64_t *barrier, unsigned parity, const char *file, int line) {
    const MBarrier &b = initialised_at(barrier, file, line);
    while (b.phase == (parity & 1)) {
        current->argument = barrier;
        fiber_wait(MBARRIER, "mbarrier wait", file, line);
    }
    race_acquire(barrier, current->warp);
}

/* --- TMA ---------------------------------------------------------------------------------------------------------- */

/* 16-byte units of a row are exchanged by the row's number: bits 4.. of the offset take bits 7.. in. */
static uint32_t swizzled(uint32_t offset, uint32_t bytes) {
    uint32_t units = bytes / 16;
    return bytes ? offset ^ (offset >> 7 & (units - 1)) << 4 : offset;
}

static void load_element(const TmaLoad &t, char *to, int64_t column, int64_t row) {
    const EmuTensorMap &m = t.map;
    bool inside = column >= 0 && row >= 0 && column < (int64_t)m.columns && row < (int64_t)m.rows;
    const char *from = (const char *)m.base + row * (int64_t)m.pitch_bytes + column * (int64_t)m.element_bytes;
    if (inside) race_async_read(from, m.element_bytes, t.thread, t.stamp, t.file, t.line);
    race_async_write(to, m.element_bytes, t.thread, t.stamp, t.file, t.line);
    if (inside) memcpy(to, from, m.element_bytes);
    else memset(to, 0, m.element_bytes);
}

static void load_now(const TmaLoad &t) {
    const EmuTensorMap &m = t.map;
    uint32_t            bytes = m.box_columns * m.box_rows * m.element_bytes;
    uint32_t            at = shared_offset(t.shared, bytes, "TMA", t.file, t.line);
    for (uint32_t y = 0; y < m.box_rows; y++)
        for (uint32_t x = 0; x < m.box_columns; x++) {
            uint32_t offset = swizzled(at + (y * m.box_columns + x) * m.element_bytes, m.swizzle_bytes);
            load_element(t, engine.arena + offset, t.column + (int64_t)x, t.row + (int64_t)y);
        }
    MBarrier &b = mbarrier_at(t.barrier, t.file, t.line);
    b.bytes -= (int32_t)bytes;
    complete_if_due(t.barrier);
}

bool tma_run_one() {
    if (engine.tma.empty()) return false;
    size_t  i = settings.schedule == RANDOM ? engine.random() % engine.tma.size() : 0;
    TmaLoad t = engine.tma[i];
    engine.tma.erase(engine.tma.begin() + (long)i);
    load_now(t);
    return true;
}

void tma_load_2d(void *shared, const EmuTensorMap *map, uint64_t *barrier, int column, int row, const char *file, int line) {
    unsigned align = map->swizzle_bytes ? map->swizzle_bytes * 8 : 128;
    if ((uintptr_t)shared % align) fail_at(file, line, "TMA: shared address %p is not aligned to %u bytes", shared, align);
    if (map->swizzle_bytes && map->box_columns * map->element_bytes > map->swizzle_bytes)
        fail_at(file, line, "TMA: a box row of %u bytes exceeds the swizzle of %u", map->box_columns * map->element_bytes,
                map->swizzle_bytes);
    TmaLoad t = {shared, *map, barrier, column, row, current->index, race_stamp(), file, line};
    race_release(barrier, current->warp);
    if (settings.async_early) load_now(t);
    else engine.tma.push_back(t);
}

/* --- wgmma -------------------------------------------------------------------------------------------------------- */

enum { WARPGROUP_THREADS = 128, SWIZZLE_128 = 1 };

/* An operand as its descriptor names it: start address, leading and stride byte offset, each in units of 16 bytes. */
static float wgmma_operand(uint64_t descriptor, int mn, int k, bool mn_major, MmaType type) {
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != SWIZZLE_128) fail("wgmma: only the 128-byte swizzle is emulated");
    if (descriptor >> 49 & 7) fail("wgmma: the base offset must be 0");
    uint32_t at = start + mn / 8 * stride + mn % 8 * 128 + k * 2;
    if (mn_major) at = start + mn / 64 * leading + k / 8 * stride + k % 8 * 128 + mn % 64 * 2;
    const char *p = engine.arena + swizzled(at, 128);
    shared_offset(p, 2, "wgmma operand", current->file ? current->file : "?", current->line);
    note_read(p, 2);
    uint16_t half_word;
    memcpy(&half_word, p, sizeof half_word);
    return operand_to_f32(half_word, 0, type);
}

/* Operation i of the given group in flight; the accumulators lie with the threads. */
static void multiply_now(int warpgroup, size_t group, size_t i) {
    static float   a[64][16], b[256][16];
    Fiber         *threads = &engine.fibers[warpgroup * WARPGROUP_THREADS];
    const WgmmaOp &op = threads[0].wgmma[group][i];
    for (int r = 0; r < 64; r++)
        for (int k = 0; k < 16; k++) a[r][k] = wgmma_operand(op.a, r, k, op.a_transposed, op.type);
    for (int n = 0; n < op.n; n++)
        for (int k = 0; k < 16; k++) b[n][k] = wgmma_operand(op.b, n, k, op.b_transposed, op.type);
    for (int t = 0; t < WARPGROUP_THREADS; t++) {
        const WgmmaOp &mine = threads[t].wgmma[group][i];
        if (mine.a != op.a || mine.b != op.b || mine.n != op.n || mine.accumulate != op.accumulate)
            fail("wgmma: the threads of the warpgroup name different operands");
        for (int e = 0; e < op.n / 2; e++) {
            int   row = t / 32 * 16 + t % 32 / 4 + (e >> 1 & 1) * 8, column = e / 4 * 8 + t % 4 * 2 + (e & 1);
            float sum = 0.0f;
            for (int k = 0; k < 16; k++) sum += a[row][k] * b[column][k];
            mine.d[e] = op.accumulate ? mine.d[e] + sum : sum;
        }
    }
}

static void issued(int warpgroup, void *) {
    if (!settings.async_early) return;
    const Groups<WgmmaOp> &groups = engine.fibers[warpgroup * WARPGROUP_THREADS].wgmma;
    multiply_now(warpgroup, groups.size() - 1, groups.back().size() - 1);
}
void wgmma(float *d, int n, MmaType type, uint64_t a, uint64_t b, int accumulate, bool a_transposed, bool b_transposed, const char *file,
           int line) {
    if (current->wgmma.empty()) current->wgmma.emplace_back();
    current->wgmma.back().push_back(WgmmaOp{d, n, accumulate, type, a, b, a_transposed, b_transposed});
    warpgroup_collective("wgmma", issued, nullptr, file, line);
}
void wgmma_commit() {
    if (current->wgmma.empty()) current->wgmma.emplace_back();
    current->wgmma.emplace_back();
}

static void waited(int warpgroup, void *pending) {
    Fiber *threads = &engine.fibers[warpgroup * WARPGROUP_THREADS];
    while ((int)threads[0].wgmma.size() - 1 > *(int *)pending) {
        if (!settings.async_early)
            for (size_t i = 0; i < threads[0].wgmma[0].size(); i++) multiply_now(warpgroup, 0, i);
        for (int t = 0; t < WARPGROUP_THREADS; t++) threads[t].wgmma.pop_front();
    }
}
void wgmma_wait(int pending, const char *file, int line) { warpgroup_collective("wgmma.wait_group", waited, &pending, file, line); }

}  // namespace emu
