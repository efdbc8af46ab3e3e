/* race.cpp - the race checker: finds accesses that no barrier orders, reads of memory that nobody wrote, accesses outside of everything.
 *
 * The .cu files are compiled with -fsanitize=thread, which calls a hook before each access; the hooks are ours, the
 * sanitizer's library is not linked. Each two bytes of shared and of device memory have a Cell: the last write and the
 * last two reads, each stamped with launch, block, thread and the clock of the thread's warp. At a barrier the warps
 * learn each other's clocks. An access is a race if the warp does not know the clock of the earlier access. Nothing
 * orders two blocks of one launch, so an earlier access by another block is a race too, unless both are atomic. The
 * blocks of a cluster count as one block. The hooks see only code of .cu files. The emulator reports accesses that it
 * makes for a thread through note_* and race_async_*.
 */
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "engine.h"

/* begin and end of the program's image, which the linker defines; globals and constants are between them */
extern "C" char __executable_start, _end;

namespace emu {

struct alignas(32) Cell { /* state of two bytes of memory; two cells share a cache line */
    /* stamps of the last write and the last two reads; the last bit of a read is set for the asynchronous proxy */
    uint64_t write, read[2];
    uint32_t write_at, read_at; /* low 32 bits of the addresses of the instructions that wrote and read */
};
/* Values that stand for the code address of an access that no instruction makes. PENDING: an asynchronous copy that
 * may still write. ASYNC: an asynchronous copy. BULK: TMA. */
enum : uint32_t { PENDING = ~0u, ASYNC = ~0u - 1, BULK = ~0u - 2 };

static struct {
    bool               compiled_in, paused;
    uint32_t           launch;
    /* states (cells) of the shared memory of all blocks of the cluster that runs, one for two bytes */
    Cell              *shared;
    std::vector<uint32_t> fences[MAX_THREADS]; /* clocks at which each thread made a proxy fence */
    /* for each cell (two bytes) of shared memory: how many proxy fences its last writer had made before it wrote */
    std::vector<uint32_t> fenced;
    uint32_t           clock[MAX_WARPS];
    uint32_t           told[MAX_WARPS][MAX_WARPS]; /* told[w][v]: the latest clock of warp v that warp w knows of */
    /* vector clocks that warps have published through an object such as an mbarrier, by its address */
    std::map<void *, std::array<uint32_t, MAX_WARPS>> released;
    Allocation        *last_hit;
    const char        *async_file; /* source file of the asynchronous access that is being checked */
    int                async_line;
} race;

static bool on() { return race.compiled_in && !race.paused; }
bool        watching() { return on(); }
bool        race_pause(bool pause) {
    bool was = race.paused;
    race.paused = pause;
    return was;
}

/* --- stamps: launch 16 bits, block 20, thread 10, clock 17, atomic 1; launch 0 is the host ------------------------ */

enum { LAUNCHES = 1 << 16 };
enum : uint64_t { BY_HOST = 1 };
static uint64_t stamp_of(int thread, uint32_t clock, bool atomic) {
    uint64_t launch = race.launch, block = engine.block & 0xfffff;
    return launch << 48 | block << 28 | (uint64_t)thread << 18 | (uint64_t)(clock & 0x1ffff) << 1 | atomic;
}
static uint32_t launch_of(uint64_t s) { return (uint32_t)(s >> 48); }
static uint32_t block_of(uint64_t s) { return s >> 28 & 0xfffff; }
static int      thread_of(uint64_t s) { return s >> 18 & 1023; }
static uint32_t clock_of(uint64_t s) { return s >> 1 & 0x1ffff; }
static bool     is_atomic(uint64_t s) { return s & 1; }
static bool     same_thread(uint64_t a, uint64_t b) { return a >> 18 == b >> 18; }

/* Returns whether the access with the stamp `earlier` is ordered before what the thread with the stamp `me` does now,
 * so that there is no race. A stamp packs launch, block, thread and the clock of the thread's warp. */
[[gnu::always_inline]] static inline bool ordered(uint64_t earlier, uint64_t me) {
    uint64_t differs = earlier ^ me;
    if (launch_of(differs)) return true;
    if (block_of(differs)) return false;
    return !thread_of(differs) || clock_of(earlier) <= race.told[thread_of(me) / WARP_LANES][thread_of(earlier) / WARP_LANES];
}

uint64_t race_stamp() { return race.clock[current->warp]; }

/* Removes old stamps. Launch numbers wrap around, and stamps of 65535 launches ago must not look like those of this
 * launch. */
static void age(Allocation &a) {
    if (!a.shadow) return;
    for (size_t i = 0; i < a.bytes / 2 + 1; i++) {
        Cell &c = a.shadow[i];
        c = Cell{c.write ? (uint64_t)BY_HOST : 0, {0, 0}, 0, 0};
    }
}
void race_new_launch() {
    if (!on()) return;
    if (++race.launch == LAUNCHES) {
        race.launch = 1;
        for_each_allocation(age);
    }
}
void race_new_block() {
    if (!on()) return;
    if (!race.shared) {
        race.shared = (Cell *)aligned_alloc(64, ARENA_BYTES / 2 * MAX_CLUSTER * sizeof(Cell));
        std::fill_n(race.shared, ARENA_BYTES / 2 * MAX_CLUSTER, Cell{});
    }
    /* clears the states (cells) of the shared memory that the previous blocks used; all others are already clear */
    for (int r = 0; r < MAX_CLUSTER; r++) {
        size_t used = engine.blocks[r].arena_used;
        if (used) std::fill_n(race.shared + ARENA_BYTES / 2 * (size_t)r, used / 2 + 1, Cell{});
    }
    race.fenced.resize(ARENA_BYTES / 2 * MAX_CLUSTER);
    for (int i = 0; i < engine.threads; i++) race.fences[i].clear();
    race.released.clear();
    memset(race.told, 0, sizeof race.told);
    for (uint32_t &clock : race.clock) clock = 1;
}

void race_barrier(unsigned warps) {
    if (!on()) return;
    uint32_t newest[MAX_WARPS] = {};
    for (int w = 0; w < engine.warp_count; w++) {
        if (!(warps >> w & 1)) continue;
        for (int v = 0; v < MAX_WARPS; v++) newest[v] = std::max(newest[v], race.told[w][v]);
        newest[w] = std::max(newest[w], race.clock[w]);
    }
    for (int w = 0; w < engine.warp_count; w++) {
        if (!(warps >> w & 1)) continue;
        memcpy(race.told[w], newest, sizeof newest);
        race.clock[w]++;
    }
}
void race_syncwarp(int warp) {
    if (!on()) return;
    race.told[warp][warp] = race.clock[warp]++;
}
void race_release(void *object, int warp) {
    if (!on()) return;
    auto &handed = race.released[object];
    for (int v = 0; v < MAX_WARPS; v++) handed[v] = std::max(handed[v], race.told[warp][v]);
    handed[warp] = std::max(handed[warp], race.clock[warp]++);
}
void race_acquire(void *object, int warp) {
    if (!on()) return;
    const auto &handed = race.released[object];
    for (int v = 0; v < MAX_WARPS; v++) race.told[warp][v] = std::max(race.told[warp][v], handed[v]);
}

/* --- reports ------------------------------------------------------------------------------------------------------ */

/* Prints function and line of the instruction at a code address. Only 32 bits of the address are kept, because the
 * program's image is smaller than 4 GiB. */
static void print_place(const char *label, uint32_t at) {
    if (at >= BULK) {
        fprintf(stderr, "EMU   %s: an asynchronous copy issued at %s:%d\n", label, race.async_file ? race.async_file : "?",
                race.async_line);
        return;
    }
    char command[512];
    fprintf(stderr, "EMU   %s: ", label);
    fflush(stderr);
    snprintf(command, sizeof command, "addr2line -Cfpe /proc/%d/exe 0x%x >&2", (int)getpid(),
             at - (uint32_t)(uintptr_t)&__executable_start);
    if (system(command) != 0) fprintf(stderr, "(addr2line is missing)\n");
}

[[noreturn]] static void report(const char *kind, const char *what, const void *p, uint32_t at, uint64_t other = 0, uint32_t other_at = 0) {
    fprintf(stderr, "EMU %s: %s, at address %p\n", kind, what, p);
    print_place("this access", at);
    if (other_at) {
        dim3 d = engine.launch->block;
        int  t = thread_of(other), rank = t / engine.block_threads;
        t %= engine.block_threads;
        fprintf(stderr, "EMU   the other access is by block %u thread (%u,%u,%u), and no barrier orders them\n",
                block_of(other) + (unsigned)rank, t % d.x, t / d.x % d.y, t / (d.x * d.y));
        print_place("other access", other_at);
    }
    print_context();
    fflush(nullptr);
    abort();
}

/* --- an access ---------------------------------------------------------------------------------------------------- */

enum Access { READ, WRITE, ATOMIC, ISSUE }; /* ISSUE: an asynchronous copy was started that may write these bytes at any
                                             * time from now on */

static Cell *shadow_of(Allocation &a) {
    if (a.shadow) return a.shadow;
    /* calloc, because pages of the shadow that are never touched use no memory */
    a.shadow_memory = calloc(a.bytes / 2 + 3, sizeof(Cell));
    return a.shadow = (Cell *)(((uintptr_t)a.shadow_memory + 63) / 64 * 64);
}

static bool inside_shared(size_t at, size_t n) {
    if (at >= engine.here->dynamic_at && at + n <= engine.here->dynamic_at + engine.launch->shared_bytes) return true;
    for (int i = 0; i < engine.here->static_count; i++)
        if (at >= engine.here->statics[i].at && at + n <= engine.here->statics[i].at + engine.here->statics[i].bytes) return true;
    return false;
}

static Allocation *allocation_of(const char *p) {
    Allocation *a = race.last_hit;
    if (!a || p < a->base || p >= a->base + a->bytes) a = find_allocation(p);
    return race.last_hit = a;
}

/* Returns whether an address is in other memory that kernels may read: the program's globals and constants, and the
 * kernel's arguments. */
static bool inside_program(const char *p, size_t n) {
    const char *arguments = (const char *)engine.launch->body.get();
    return (p >= &__executable_start && p + n <= &_end) || (p >= arguments && p + n <= arguments + engine.launch->body_bytes);
}

struct Place {
    /* messages for a race, named by its two accesses, the later one first */
    const char *write_write, *write_read, *read_write, *uninitialised;
};
static const Place SHARED_MEMORY = {"shared write after write", "shared write after read", "shared read after write",
                                    "read of shared memory that nobody wrote"};
static const Place DEVICE_MEMORY = {"global write after write", "global write after read", "global read after write",
                                    "read of device memory that nobody wrote"};

[[gnu::always_inline]] static inline void check_cell(Cell &c, const Place &place, bool initialised, const void *p,
                                                     Access kind, uint32_t at, uint64_t me) {
    bool writes = kind != READ, needs_value = kind == READ || kind == ATOMIC;
    if (needs_value && !c.write && !initialised) report("ERROR", place.uninitialised, p, at);
    if (c.write_at == PENDING && !(kind == WRITE && same_thread(c.write, me)))
        report("RACE", "use of shared memory while a cp.async into it is pending", p, at);
    bool both_atomic = kind == ATOMIC && is_atomic(c.write);
    if (!ordered(c.write, me) && !both_atomic)
        report("RACE", writes ? place.write_write : place.read_write, p, at, c.write, c.write_at);
    if (writes) {
        for (uint64_t read : c.read)
            if (!ordered(read, me)) report("RACE", place.write_read, p, at, read, c.read_at);
        c.write = me;
        c.write_at = kind == ISSUE ? (uint32_t)PENDING : at;
    } else {
        if (!same_thread(c.read[0], me)) c.read[1] = c.read[0];
        c.read[0] = me;
        c.read_at = at;
    }
}

/* Returns the index of the cell (state of two bytes) for address p in the current block's shared memory. */
static size_t cell_of(const char *p) {
    return ARENA_BYTES / 2 * (size_t)(engine.here - engine.blocks) + (size_t)(p - engine.here->arena) / 2;
}

/* Returns whether the asynchronous proxy sees the contents of this cell of shared memory. It does if TMA wrote them, or
 * if a proxy fence of the writer is ordered before what this warp or thread does now. */
static bool published(size_t cell, int warp, int thread) {
    const Cell &c = race.shared[cell];
    if (c.write_at == BULK) return true;
    int         writer = thread_of(c.write);
    const auto &fences = race.fences[writer];
    uint32_t    before = race.fenced[cell];
    return fences.size() > before && (writer == thread || fences[before] <= race.told[warp][writer / WARP_LANES]);
}

/* Returns whether TMA may overwrite the shared memory that an earlier access has read. A stamp is the thread of an
 * access and the thread's clock at that time: `read` is the stamp of the earlier access, `me` that of the thread that
 * starts the TMA. After an ordinary read the reader must have made a proxy fence that is ordered before the TMA. */
static bool handed_over(uint64_t read, uint64_t me) {
    /* TMA needs no fence after a read by another block, by an earlier launch or by the asynchronous proxy */
    if (launch_of(read ^ me) || block_of(read ^ me) || is_atomic(read)) return true;
    int         reader = thread_of(read);
    const auto &fences = race.fences[reader];
    auto        fence = std::lower_bound(fences.begin(), fences.end(), clock_of(read));
    return fence != fences.end() &&
           (reader == thread_of(me) || *fence <= race.told[thread_of(me) / WARP_LANES][reader / WARP_LANES]);
}

/* Notes that a thread, or TMA for a thread, writes n cells of shared memory from `first` on; a cell is the state of two
 * bytes. Reports a missing proxy fence. */
static void fence_cells(size_t first, size_t n, const void *p, uint32_t at, int thread, uint64_t me) {
    uint32_t fences = (uint32_t)race.fences[thread].size();
    for (size_t i = first; i < first + n; i++) {
        const Cell &c = race.shared[i];
        if (at == BULK && c.write && !published(i, thread / WARP_LANES, thread))
            report("RACE", "TMA writes what a thread wrote without a fence.proxy.async", p, at, c.write, c.write_at);
        for (uint64_t read : c.read)
            if (at == BULK && !handed_over(read, me))
                report("RACE", "TMA writes what a thread read, which made no fence.proxy.async since then", p, at, read, c.read_at);
        race.fenced[i] = fences;
    }
}

/* Checks an access for races. It is inlined into each hook, where size and kind are constants, because half of a
 * kernel's time is spent here. */
[[gnu::always_inline]] static inline void check(const void *pointer, size_t n, Access kind, uint32_t at, int thread,
                                                uint32_t clock) {
    const char  *p = (const char *)pointer;
    const Place *place = &DEVICE_MEMORY;
    Cell        *cells;
    bool         initialised = false;
    if (p >= engine.here->arena && p < engine.here->arena + ARENA_BYTES) {
        if (!inside_shared((size_t)(p - engine.here->arena), n)) report("ERROR", "access outside of every shared array", p, at);
        cells = &race.shared[cell_of(p)];
        place = &SHARED_MEMORY;
    } else {
        if (inside_program(p, n)) return;
        Allocation *a = allocation_of(p);
        if (!a) report("ERROR", "access outside of every device allocation", p, at);
        if (p + n > a->base + a->bytes) report("ERROR", "access runs past its device allocation", p, at);
        cells = shadow_of(*a) + (p - a->base) / 2;
        /* host writes are not seen, so memory that the host can access counts as initialised */
        initialised = a->kind != DEVICE_ONLY || a->initialised;
    }
    uint64_t me = stamp_of(thread, clock, kind == ATOMIC || (kind == READ && at >= BULK));
    if (place == &SHARED_MEMORY && kind != READ) fence_cells((size_t)(cells - race.shared), (n + 1) / 2, p, at, thread, me);
    for (size_t i = 0; i < (n + 1) / 2; i++) check_cell(cells[i], *place, initialised, p, kind, at, me);
}

/* Checks an access by code of a .cu file, which is compiled with hooks: a kernel or a host function. */
[[gnu::always_inline]] static inline void seen(const void *p, size_t n, Access kind, void *return_address) {
    if (!on()) return;
    uint32_t at = (uint32_t)(uintptr_t)return_address - 1;
    if (!current) {
        Allocation *a = find_allocation(p);
        if (a && a->kind == DEVICE_ONLY) report("ERROR", "host code dereferences device memory", p, at);
        return;
    }
    if ((const char *)p >= current->stack && (const char *)p < current->stack + STACK_BYTES) {
        const char *held = current->accumulators.empty() ? nullptr : wgmma_holds(*current, p, n);
        if (held) report("RACE", (std::string("use of wgmma's ") + held + " before a wait covers them").c_str(), p, at);
        if (kind == WRITE && current->wgmma_fenced) current->written.push_back({(const char *)p, n});
        return;
    }
    if (!current->awaited && find_allocation(p)) report("ERROR", "an early launch touches memory before await_kernels", p, at);
    if (counts) count_access(p, n, kind != READ, at);
    check(p, n, kind, at, current->index, race.clock[current->warp]);
}

void note_read(const void *p, size_t n) { seen(p, n, READ, __builtin_return_address(0)); }
void note_write(void *p, size_t n) { seen(p, n, WRITE, __builtin_return_address(0)); }
void note_atomic(void *p, size_t n) { seen(p, n, ATOMIC, __builtin_return_address(0)); }

/* the race checker does not see this copy, because this file is not instrumented */
void copy_unnoted(void *to, const void *from, size_t n) { memcpy(to, from, n); }

static bool is_global(const void *p) {
    return (const char *)p < engine.here->arena || (const char *)p >= engine.here->arena + ARENA_BYTES;
}
static void check_async(const void *p, size_t n, Access kind, int thread, uint64_t stamp, const char *file, int line) {
    if (!on() || !n) return;
    race.async_file = file, race.async_line = line;
    check(p, n, kind, ASYNC, thread, (uint32_t)stamp);
}
void race_async_read(const void *p, size_t n, int thread, uint64_t stamp, const char *file, int line) {
    if (counts && on() && is_global(p)) count_bulk(p, n, false);
    check_async(p, n, READ, thread, stamp, file, line);
}
void race_async_write(void *p, size_t n, int thread, uint64_t stamp, const char *file, int line) {
    check_async(p, n, WRITE, thread, stamp, file, line);
}
void race_bulk_write(void *p, size_t n, bool add, int thread, uint64_t stamp, const char *file, int line) {
    if (!on() || !n) return;
    race.async_file = file, race.async_line = line;
    if (counts && is_global(p)) count_bulk(p, n, true);
    check(p, n, add ? ATOMIC : WRITE, BULK, thread, (uint32_t)stamp);
}
/* Notes a proxy fence. Later accesses of the warp have a later clock than the fence. */
void race_proxy_fence() {
    if (on()) race.fences[current->index].push_back(race.clock[current->warp]++);
}
void race_visible(const void *p, size_t n, int warp, int thread, const char *file, int line) {
    if (!on()) return;
    race.async_file = file, race.async_line = line;
    size_t first = cell_of((const char *)p);
    for (size_t i = first; i < first + (n + 1) / 2; i++) {
        const Cell &c = race.shared[i];
        if (!c.write) report("ERROR", SHARED_MEMORY.uninitialised, p, BULK);
        bool known = thread_of(c.write) == thread || clock_of(c.write) <= race.told[warp][thread_of(c.write) / WARP_LANES];
        if (!known) report("RACE", SHARED_MEMORY.read_write, p, BULK, c.write, c.write_at);
        if (!published(i, warp, thread))
            report("RACE", "asynchronous read of what a thread wrote without a fence.proxy.async and a barrier behind it", p, BULK, c.write,
                   c.write_at);
    }
}
void race_pending(void *shared, size_t n, const char *file, int line) {
    if (counts && on()) count_access(shared, n, true, (uint32_t)line);
    check_async(shared, n, ISSUE, current->index, race_stamp(), file, line);
}

void race_initialised(const void *p, size_t n) {
    Allocation *a = on() ? find_allocation(p) : nullptr;
    if (!a) return;
    /* The whole allocation is written, which is noted once instead of in each cell. */
    if (p == a->base && n == a->bytes) {
        race_forget(*a);
        a->initialised = true;
        return;
    }
    Cell *cells = shadow_of(*a);
    for (size_t i = (size_t)((const char *)p - a->base) / 2, end = i + (n + 1) / 2; i < end; i++) cells[i] = Cell{BY_HOST, {0, 0}, 0, 0};
}
void race_forget(Allocation &a) {
    free(a.shadow_memory);
    a.shadow_memory = nullptr, a.shadow = nullptr;
    race.last_hit = nullptr;
}

}  // namespace emu

/* --- the hooks that -fsanitize=thread calls ----------------------------------------------------------------------- */

#define CALLER __builtin_return_address(0)
#define HOOKS(n)                                                             \
    void __tsan_read##n(void *p) { emu::seen(p, n, emu::READ, CALLER); }     \
    void __tsan_write##n(void *p) { emu::seen(p, n, emu::WRITE, CALLER); }
#define UNALIGNED_HOOKS(n)                                                             \
    void __tsan_unaligned_read##n(void *p) { emu::seen(p, n, emu::READ, CALLER); }     \
    void __tsan_unaligned_write##n(void *p) { emu::seen(p, n, emu::WRITE, CALLER); }
extern "C" {
void __tsan_init() { emu::race.compiled_in = true; }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
UNALIGNED_HOOKS(2)
UNALIGNED_HOOKS(4)
UNALIGNED_HOOKS(8)
UNALIGNED_HOOKS(16)
void __tsan_read_range(void *p, unsigned long n) { emu::seen(p, n, emu::READ, CALLER); }
void __tsan_write_range(void *p, unsigned long n) { emu::seen(p, n, emu::WRITE, CALLER); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void *) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
/* Hooks for atomic operations. Only host code in .cu files calls them, so they do not concern kernels. */
#define ATOMIC_HOOKS(bits, type)                                                                                                               \
    type __tsan_atomic##bits##_load(const volatile type *p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }                              \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }                              \
    type __tsan_atomic##bits##_exchange(volatile type *p, type v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }                 \
    type __tsan_atomic##bits##_fetch_add(volatile type *p, type v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }                 \
    type __tsan_atomic##bits##_fetch_sub(volatile type *p, type v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); }
ATOMIC_HOOKS(8, char) /* 8-bit atomics are also used by the guards of local statics */
ATOMIC_HOOKS(32, int)
ATOMIC_HOOKS(64, long)
#undef ATOMIC_HOOKS
}
