/* launch.cpp - a launch, its blocks one after another, and the shared memory of a block.
 *
 * Shared memory is one arena: first dynamic memory, then each static object with a red zone before it. For every block
 * all of it is filled with 0xFF. That is NaN in every floating-point type, so the use of a value that was never written
 * becomes visible. */
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "engine.h"

namespace emu {

/* --- shared memory ------------------------------------------------------------------------------------------------ */

void *smem_static(const void *key, size_t bytes, size_t align) {
    for (int i = 0; i < engine.here->static_count; i++)
        if (engine.here->statics[i].key == key) return engine.here->arena + engine.here->statics[i].at;
    if (engine.here->static_count == sizeof engine.here->statics / sizeof *engine.here->statics)
        fail("too many shared objects in one kernel");
    /* A GPU places static objects first, then dynamic memory at a multiple of its alignment. */
    size_t of_static = bytes;
    for (int i = 0; i < engine.here->static_count; i++) of_static += engine.here->statics[i].bytes;
    size_t behind = engine.launch->shared_bytes ? (of_static + DYNAMIC_AT - 1) / DYNAMIC_AT * DYNAMIC_AT : of_static;
    if (behind + engine.launch->shared_bytes > engine.launch->most_shared)
        fail("%zu bytes of static and %zu of dynamic shared memory: a launch has %zu unless cudaFuncSetAttribute asks for more", of_static,
             engine.launch->shared_bytes, engine.launch->most_shared);
    align = std::max<size_t>(align, 16);
    size_t at = (engine.here->arena_used + RED_ZONE + align - 1) / align * align;
    if (at + bytes > ARENA_BYTES) fail("shared memory exceeds %d KiB", SHARED_MOST >> 10);
    engine.here->statics[engine.here->static_count++] = {key, at, bytes};
    engine.here->arena_used = at + bytes;
    ASAN_UNPOISON_MEMORY_REGION(engine.here->arena + at, bytes);
    return memset(engine.here->arena + at, 0xff, bytes);
}

void *smem_dynamic(size_t align) {
    if (align > DYNAMIC_AT) fail("dynamic shared memory is aligned to %zu bytes, not to %zu", DYNAMIC_AT, align);
    return engine.here->arena + engine.here->dynamic_at;
}

uint32_t shared_offset(const void *p, size_t n, const char *what, const char *file, int line) {
    const char *q = (const char *)p;
    if (q < engine.here->arena + DYNAMIC_AT || q + n > engine.here->arena + ARENA_BYTES)
        fail_at(file, line, "%s: %p is not shared memory", what, p);
    return (uint32_t)(q - engine.here->arena);
}

/* --- who was launched --------------------------------------------------------------------------------------------- */

void note_kernel(const char *name, const char *signature) {
    static const char *const path = getenv("EMU_KERNELS");
    if (!path) return;
    static std::set<std::pair<const char *, const char *>> seen;
    if (!seen.insert({name, signature}).second) return;
    FILE *f = fopen(path, "a");
    if (!f) fail("EMU_KERNELS=%s cannot be written", path);
    fprintf(f, "%s: %s\n", name, strstr(signature, "P = "));
    fclose(f);
}

void check_argument(const char *kernel, const void *pointer) {
    /* p - 1 is tried too, because an empty array may begin at the end of an allocation */
    const char *p = (const char *)pointer;
    if (p && !find_allocation(p) && !find_allocation(p - 1)) fail("%s: the argument %p is memory of the host, which no GPU can reach", kernel, pointer);
}

/* --- a launch ----------------------------------------------------------------------------------------------------- */

static void make_engine() {
    char *stacks = (char *)mmap(nullptr, STACK_BYTES * MAX_THREADS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                                -1, 0);
    if (stacks == MAP_FAILED) fail("no memory for the stacks of %d threads", MAX_THREADS);
    engine.fibers.resize(MAX_THREADS);
    for (int i = 0; i < MAX_THREADS; i++) {
        engine.fibers[i].stack = stacks + STACK_BYTES * i;
        /* protects the lowest page of the stack, so that an overflow faults */
        mprotect(engine.fibers[i].stack, 4096, PROT_NONE);
    }
    for (Block &b : engine.blocks) b.arena = (char *)aligned_alloc(4096, ARENA_BYTES / 4096 * 4096 + 4096);
    engine.here = engine.blocks;
    engine.random.seed(settings.seed);
}

/* Prepares the shared memory and the barriers of block `rank` of a cluster that starts. */
static void begin_block(int rank) {
    InBlock       there(rank);
    Block        &b = *engine.here;
    const Launch &l = *engine.launch;
    /* EMU_SHIFT: bytes by which dynamic memory is moved, to find kernels that rely on its place */
    const char *shift = getenv("EMU_SHIFT");
    b.dynamic_at = DYNAMIC_AT + (shift ? (size_t)atoi(shift) : 0);
    b.arena_used = b.dynamic_at + l.shared_bytes;
    b.static_count = 0;
    b.async_used = false;
    b.live = engine.block_threads;
    ASAN_POISON_MEMORY_REGION(b.arena, ARENA_BYTES);
    ASAN_UNPOISON_MEMORY_REGION(b.arena + b.dynamic_at, l.shared_bytes);
    memset(b.arena + b.dynamic_at, 0xff, l.shared_bytes);
    for (Barrier &barrier : b.barriers) barrier.arrived = 0, barrier.waiting.clear();
}

/* Runs the block number `index`, or the cluster that begins with it. */
static void run_block(unsigned index) {
    const Launch &l = *engine.launch;
    engine.block = index;
    race_new_block();
    for (int rank = 0; rank < (int)l.cluster; rank++) begin_block(rank);

    engine.live = engine.threads;
    engine.ready_warps = 0;
    engine.tma.clear();
    registers_reset();
    cluster_reset();
    for (auto &waiting : engine.warpgroup_waiting) waiting.clear();
    for (int w = 0; w < engine.warp_count; w++) {
        int      lanes = std::min<int>(WARP_LANES, engine.threads - w * WARP_LANES);
        unsigned all = lanes == WARP_LANES ? ~0u : (1u << lanes) - 1;
        engine.warps[w].exists = engine.warps[w].ready = all;
        engine.warps[w].exited = 0;
        engine.warps[w].gatherings = 0;
        engine.ready_warps |= 1u << w;
    }
    for (int rank = 0; rank < (int)l.cluster; rank++) {
        unsigned b = index + (unsigned)rank;
        uint3    place = {b % l.grid.x, b / l.grid.x % l.grid.y, b / l.grid.x / l.grid.y};
        Fiber   *first = &engine.fibers[rank * engine.block_threads];
        for (Fiber *f = first; f < first + engine.block_threads; f++) fiber_reset(*f, place);
    }
    fiber_start_all();
    bulk_finish_block();
    if (counts) count_block_end();
}

void launch_run(Launch launch) {
    static std::mutex           one_kernel_at_a_time;
    std::lock_guard<std::mutex> lock(one_kernel_at_a_time);
    if (!engine.here) make_engine();
    engine.launch = &launch;
    engine.block_threads = (int)(launch.block.x * launch.block.y * launch.block.z);
    engine.threads = engine.block_threads * (int)launch.cluster;
    engine.warp_count = (engine.threads + WARP_LANES - 1) / WARP_LANES;
    blockDim = {launch.block.x, launch.block.y, launch.block.z};
    gridDim = {launch.grid.x, launch.grid.y, launch.grid.z};
    unsigned blocks = launch.grid.x * launch.grid.y * launch.grid.z;
    for (int i = 0; i < engine.threads; i++) fiber_place(engine.fibers[i], i, launch.block);

    race_new_launch();
    count_launch(launch);
    forbid_device_memory(false);
    for (unsigned b = 0; b < blocks; b += launch.cluster) run_block(settings.schedule == REVERSE ? blocks - launch.cluster - b : b);
    forbid_device_memory(true);
    count_launch_end(launch);
    engine.launch = nullptr;
}

}  // namespace emu
