/* engine.h - shared by the emulator's parts. One kernel runs at a time, block after block, on one host thread; the blocks
 * of a cluster run together.
 *
 *   fiber.cpp        context switch, scheduler, and how the emulator reports and ends
 *   collectives.cpp  operations of several threads: warp operations, barriers, votes
 *   launch.cpp       a launch, its blocks, and shared memory
 *   race.cpp         which thread last wrote and read each piece of memory: finds races between threads
 *   tensor.cpp       ldmatrix, stmatrix, mma, cp.async      hopper.cpp   mbarrier, TMA loads, setmaxnreg
 *   wgmma.cpp        products of warpgroups                 bulk.cpp     TMA stores, the two proxies
 *   cluster.cpp      blocks that run together              count.cpp   bank conflicts, bytes
 *   memory.cpp, streams.cpp, runtime.cpp   the CUDA runtime: allocations and copies; streams, events, graphs; the device
 */
#pragma once
#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "cuda_emu.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define EMU_ASAN 1
#else
#define EMU_ASAN 0
#define ASAN_POISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

namespace emu {

/* The limits of compute capability 9.0, but with only 4 multiprocessors, so that grids stay small. */
enum {
    WARP_LANES = 32, MAX_THREADS = 1024, MAX_WARPS = 32, MAX_CLUSTER = 8, MULTIPROCESSORS = 4,
    SHARED_DEFAULT = 48 << 10, SHARED_MOST = 227 << 10
};

/* bytes of a fiber's stack; ASan needs larger frames */
constexpr size_t STACK_BYTES = EMU_ASAN ? 512 << 10 : 128 << 10;

/* Shared memory: dynamic memory at DYNAMIC_AT, then static objects, each with RED_ZONE bytes before it. */
constexpr size_t ARENA_BYTES = SHARED_MOST + (8 << 10), DYNAMIC_AT = 1024, RED_ZONE = 64;

/* --- a block and its threads -------------------------------------------------------------------------------------- */

struct CopyAsync {
    void       *to;
    const void *from;
    int         bytes, source_bytes;
    const char *file;
    int         line;
};
struct WgmmaOp {
    float                *d;
    int                   n, accumulate;
    MmaType               a_type, b_type;
    uint64_t              a, b;
    bool                  a_transposed, b_transposed;
    const uint32_t       *a_registers; /* NULL: operand a is in shared memory, as b is */
    uint32_t              a_issued[4];
    /* copy of the operands in shared memory when the product was issued; only the warpgroup's first thread keeps it */
    std::vector<uint16_t> issued;
    const char           *file;
    int                   line;
};
/* The result of products in flight, which the wait for them will write to the registers at d. */
struct Accumulator {
    float             *d;
    int                n, in_flight;
    std::vector<float> value;
    const char        *file;
    int                line;
};
struct BulkStore {
    EmuTensorMap      map;
    const void       *shared;
    int               column, row;
    bool              add, was_read, was_written;
    int               thread;
    uint64_t          stamp;
    std::vector<char> tile; /* copy of the tile that the TMA store reads, made when the store was issued */
    const char       *file;
    int               line;
};
/* Committed groups of asynchronous operations in flight, the oldest first. The last group is still open. */
template <class T> using Groups = std::deque<std::vector<T>>;

enum State : uint8_t { READY, WAITING, DONE };

/* One emulated CUDA thread. The fields up to `block` are used at each switch between threads and at the start of
 * each block. They fill one cache line. */
struct alignas(64) Fiber {
    void    *stack_pointer, *asan_stack;
    char    *stack;                   /* lowest address of the stack */
    void    *argument;                /* argument of the operation in which the fiber waits */
    /* index, lane and warp number within the cluster; rank of the thread's block in the cluster */
    int      index, lane, warp, rank;
    State    state;
    Kind     kind;       /* kind of the operation in which the fiber waits */
    /* the fiber has used the fields from `copies` to `written`, which only asynchronous instructions use */
    bool     is_async;
    /* this thread may access GPU memory, because earlier kernels have ended; true from the start unless the launch is
     * early */
    bool     awaited;
    unsigned mask;
    int      line, result;
    uint3    thread, block;
    const char *name, *file;

    bool     at_cluster_barrier; /* the fiber has arrived at the cluster's barrier and has not waited there yet */
    unsigned cluster_phase;      /* phase of the cluster's barrier when the fiber arrived */

    Groups<CopyAsync> copies;
    Groups<WgmmaOp>   wgmma;
    Groups<BulkStore> stores;

    std::vector<Accumulator> accumulators;
    bool                     wgmma_fenced;
    std::vector<std::pair<const char *, size_t>> held; /* registers of operand a that products in flight may read */

    /* registers on the fiber's stack that were written since its last wgmma fence; the race checker notes them */
    std::vector<std::pair<const char *, size_t>> written;
};

/* An operation of a warp, such as a shuffle, at which some lanes wait. Bit sets of lanes: wanted, those of the mask;
 * arrived, those that wait. */
struct Gathering {
    unsigned    wanted, arrived;
    Kind        kind;
    const char *name, *file;
    int         line;
};

struct Warp {
    unsigned  exists, ready, exited;
    int       gatherings;
    Gathering gathering[8];
};

struct Barrier {
    int                  arrived, wanted, value;
    unsigned             warps;
    const char          *file;
    int                  line;
    std::vector<Fiber *> waiting;
    /* Only the address of this field is used. Under it the race checker stores the clocks of threads that arrive
     * without waiting. */
    char                 arrivals;
};

struct StaticObject {
    const void *key;
    size_t      at, bytes;
};

struct TmaLoad {
    void        *shared;
    EmuTensorMap map;
    uint64_t    *barrier;
    int          column, row, thread, rank;
    /* bit set of the cluster's blocks that receive the tile, each at the same place of its shared memory */
    unsigned     blocks;
    uint64_t     stamp; /* for the race checker: clock of the requesting thread's warp at the request */
    const char  *file;
    int          line;
};

struct Launch {
    const char           *name, *file;
    int                   line;
    dim3                  grid, block;
    unsigned              cluster; /* number of blocks in a cluster, which are adjacent along x */
    bool                  early;   /* the kernel starts before earlier kernels have ended; its threads call
                                    * await_kernels */
    /* bytes of dynamic shared memory; limit of dynamic and static shared memory together */
    size_t                shared_bytes, most_shared;
    const void           *kernel;
    cudaStream_t          stream;
    std::shared_ptr<Body> body;
    size_t                body_bytes;
    const char           *op; /* operation of layers.h that launched the kernel; used when bytes are counted */
};

/* A block that runs now, with everything that its threads share. */
struct Block {
    char        *arena; /* emulated shared memory of the block */
    char        *async; /* shared memory as the asynchronous proxy sees it (bulk.cpp) */
    bool         async_used;
    /* bytes of the arena in use; offset of dynamic memory, which is DYNAMIC_AT plus EMU_SHIFT */
    size_t       arena_used, dynamic_at;
    StaticObject statics[64];
    int          static_count;
    Barrier      barriers[16];
    int          live;           /* number of threads that have not ended */
    int          registers_free; /* registers that no warpgroup holds, counted per thread of a warpgroup */
};

/* The blocks that run now: one block or one cluster. */
struct Engine {
    const Launch      *launch; /* the launch that runs; NULL while host code runs */
    std::vector<Fiber> fibers; /* MAX_THREADS fibers, for a block or a whole cluster; created at the first launch */
    Warp               warps[MAX_WARPS];
    Block              blocks[MAX_CLUSTER];
    Block             *here; /* block of the current thread */
    unsigned           ready_warps;
    int                threads, warp_count, live; /* threads, warps and live threads of all blocks that run now */
    int                block_threads;
    unsigned           block; /* index in the grid of the first block that runs now */
    unsigned           cluster_phase;
    int                cluster_arrived;

    std::vector<TmaLoad> tma;
    std::vector<Fiber *> warpgroup_waiting[MAX_WARPS / 4];
    /* [warpgroup] registers per thread now, and registers per thread requested */
    int                  registers[MAX_WARPS / 4], registers_wanted[MAX_WARPS / 4];

    std::mt19937 random;

    void       *host_stack_pointer, *host_asan_stack;
    const void *host_stack;
    size_t      host_stack_bytes;
    bool        came_from_host;
};
extern Engine engine;
extern Fiber *current; /* the thread that runs; NULL while host code runs */

/* Settings from the environment. EMU_SCHED=forward|reverse|random:seed. EMU_ASYNC=late: an asynchronous copy arrives
 * when a thread waits for it, which shows reads that are too early. EMU_ASYNC=early: it arrives when it is issued,
 * which shows tiles that are overwritten while in use. */
enum Schedule { FORWARD, REVERSE, RANDOM };
struct Settings {
    Schedule schedule;
    unsigned seed;
    bool     async_early;
    /* true with EMU_STREAMS=order: work runs when it is queued; else in a random order of seed streams_seed */
    bool     streams_in_order;
    unsigned streams_seed;
    size_t   memory_bytes;     /* memory of the GPU, EMU_MEMORY=MiB; default 8 GiB */
    bool     one_gpu;          /* EMU_GPU=one: all processes use one GPU; not set: each process has its own GPU */
};
extern const Settings settings;

void  fiber_place(Fiber &f, int index, dim3 block); /* sets index, lane, warp and rank of a fiber */
void  fiber_reset(Fiber &f, uint3 block);           /* prepares a fiber for the block that it runs next */
/* runs all threads of the block; returns after every thread has ended */
void  fiber_start_all();
void  fiber_ready(Fiber *f);
/* suspends the current fiber until fiber_ready is called */
void  fiber_wait(Kind kind, const char *name, const char *file, int line);
/* prints kernel, launch, block and thread to stderr */
void  print_context();
/* completes one TMA load in flight; returns false if there is none */
bool  tma_run_one();
void  launch_run(Launch launch);
void  registers_reset();
void  cluster_reset();

/* returns the offset after the swizzle: bits 4 and up, which number the 16-byte unit, are combined by exclusive or with
 * bits 7 and up, which number the row */
uint32_t swizzled(uint32_t offset, uint32_t bytes);
/* Calls f(offset in shared memory, place in the matrix, bytes) for each part of a tile that is contiguous in both. A
 * part has at most the 16 bytes that a swizzle keeps together. The place in the matrix is NULL outside of the matrix.
 * at: offset of the tile in shared memory. */
template <class F> void each_part(const EmuTensorMap &m, uint32_t at, int column, int row, F f) {
    const int64_t unit = m.element_bytes < 16 ? 16 / m.element_bytes : 1, columns = (int64_t)m.columns;
    for (uint32_t y = 0; y < m.box_rows; y++)
        for (int64_t x = 0, n; x < m.box_columns; x += n) {
            int64_t c = column + x, r = row + (int64_t)y, side = c < 0 ? -c : c < columns ? columns - c : unit;
            bool    inside = r >= 0 && r < (int64_t)m.rows && c >= 0 && c < columns;
            n = std::min({unit - x % unit, m.box_columns - x, side});
            f(swizzled(at + (y * m.box_columns + (uint32_t)x) * m.element_bytes, m.swizzle_bytes),
              inside ? (char *)m.base + r * (int64_t)m.pitch_bytes + c * (int64_t)m.element_bytes : nullptr, (size_t)n * m.element_bytes);
        }
}
/* While an object of this type lives, accesses to shared memory go to that of block `rank` of the cluster. */
struct InBlock {
    Block *was = engine.here;
    explicit InBlock(int rank) { engine.here = &engine.blocks[rank]; }
    ~InBlock() { engine.here = was; }
};
void     tma_check(const void *shared, const EmuTensorMap &map, const char *file, int line);
char    *async_view(size_t at); /* returns the place of offset `at` in the asynchronous proxy's view of shared memory */
void     async_may_read(const char *p, size_t n, const char *what, const char *file, int line);
bool     bulk_unread(const Fiber &f); /* returns whether TMA stores of this thread may still read shared memory */
void     bulk_finish_block();
/* returns which registers of products in flight contain the n bytes at p; NULL if none */
const char *wgmma_holds(const Fiber &f, const void *p, size_t n);

/* Returns element i (0 low, 1 high) of a register with two 16-bit operands. */
inline float operand_to_f32(uint32_t pair, int i, MmaType type) {
    if (type == MMA_BF16) return bits<float>(i ? pair & 0xffff0000u : pair << 16);
    __half_raw h;
    h.x = (uint16_t)(pair >> 16 * i);
    return __half2float(h);
}


/* Waits until all 128 threads of the warpgroup have called this. The last one calls f for the warpgroup. */
void warpgroup_collective(const char *name, void (*f)(int group, void *argument), void *argument, const char *file, int line);

/* --- device memory ------------------------------------------------------------------------------------------------ */

enum MemoryKind { DEVICE_ONLY, MANAGED, PINNED };
struct Cell;
struct Allocation {
    char      *base;
    size_t     bytes;
    MemoryKind kind;
    /* for the race checker: one Cell for each two bytes; lies inside shadow_memory, made at the first access */
    Cell      *shadow;
    void      *shadow_memory;
    bool       initialised; /* for the race checker: the whole allocation was written in one operation */
    int        open;        /* number of kernels and copies that use a large allocation now, under ASan */
};
Allocation *find_allocation(const void *p); /* returns the allocation that contains p; NULL if p is not CUDA's memory */
void        for_each_allocation(void (*f)(Allocation &));
/* under ASan: closes device memory to the host, or opens it for a kernel */
void        forbid_device_memory(bool forbid);

/* --- race checker: does nothing unless a .cu file was compiled with -fsanitize=thread ----------------------------- */

void     race_new_launch();
void     race_new_block();
/* orders all accesses so far of the warps in this bit set before all their later accesses, as a barrier does */
void     race_barrier(unsigned warps);
void     race_syncwarp(int warp);
/* race_release stores the clocks that a warp knows, its own included, under `object`, such as an mbarrier.
 * race_acquire gives a warp the stored clocks. Accesses before the release are then ordered before what that warp
 * does next. */
void     race_release(void *object, int warp);
void     race_acquire(void *object, int warp);
/* notes that an asynchronous copy may write these bytes of shared memory at any time from now on */
void     race_pending(void *shared, size_t n, const char *file, int line);
/* returns the clock of this thread's warp; asynchronous accesses that the thread starts now are stamped with it */
uint64_t race_stamp();
void     race_async_read(const void *p, size_t n, int thread, uint64_t stamp, const char *file, int line);
void     race_async_write(void *p, size_t n, int thread, uint64_t stamp, const char *file, int line);
/* notes that TMA writes shared memory on behalf of `thread` */
void     race_bulk_write(void *p, size_t n, bool add, int thread, uint64_t stamp, const char *file, int line);
void     race_proxy_fence(); /* notes a proxy fence of the current thread */
enum { NO_THREAD = -1 };
/* Checks that the asynchronous proxy may read shared memory for this warp, or for this thread. Earlier writes must be
 * ordered before the read. Writes of threads also need a proxy fence of the writer. */
void     race_visible(const void *p, size_t n, int warp, int thread, const char *file, int line);
void     race_initialised(const void *p, size_t n);
void     race_forget(Allocation &a);
/* returns whether the race checker is compiled in and sees accesses now */
bool     watching();
/* switches the checker off or on, because collectives touch the stacks of other threads; returns whether it was off */
bool     race_pause(bool pause);

/* --- counts of a kernel's accesses: does nothing unless EMU_COUNTS names a file and the race checker runs ---------- */

/* returns the name of the operation that note_op announced last; NULL if there is none, or if nothing is counted */
const char *op_now();
void        count_launch(const Launch &l);
void        count_block_end();
void        count_launch_end(const Launch &l);
/* bytes moved by all launches so far, plus a fixed cost for each; used instead of time while bytes are counted */
int64_t     counted_work();
/* counts an access of the current thread by the instruction at code address `at` */
void        count_access(const void *p, size_t n, bool writes, uint32_t at);
/* counts an access to global memory by TMA, which belongs to no lane of a warp */
void        count_bulk(const void *p, size_t n, bool writes);

}  // namespace emu
