/* engine.h - shared by the emulator's parts. One kernel runs at a time, block after block, on one host thread; the blocks
 * of a cluster run together.
 *
 *   fiber.cpp        context switch, scheduler, and how the emulator reports and ends
 *   collectives.cpp  operations of several threads: warp operations, barriers, votes
 *   launch.cpp       a launch, its blocks, and shared memory
 *   race.cpp         who touched which memory when; only it knows the shadow
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

/* The limits of compute capability 9.0, and 4 multiprocessors, so that grids stay small. */
enum {
    WARP_LANES = 32, MAX_THREADS = 1024, MAX_WARPS = 32, MAX_CLUSTER = 8, MULTIPROCESSORS = 4,
    SHARED_DEFAULT = 48 << 10, SHARED_MOST = 227 << 10
};

constexpr size_t STACK_BYTES = EMU_ASAN ? 512 << 10 : 128 << 10; /* ASan's frames are larger */

/* Shared memory: dynamic at DYNAMIC_AT, static objects behind it, RED_ZONE bytes before each. */
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
    const uint32_t       *a_registers; /* NULL: a is in shared memory, too */
    uint32_t              a_issued[4];
    std::vector<uint16_t> issued; /* the operands in shared memory as they were then; with the warpgroup's first thread */
    const char           *file;
    int                   line;
};
/* Of products in flight: what the registers will hold. */
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
    std::vector<char> tile; /* as it was when the store was issued */
    const char       *file;
    int               line;
};
/* Groups in flight, oldest first; the last one is still open. */
template <class T> using Groups = std::deque<std::vector<T>>;

enum State : uint8_t { READY, WAITING, DONE };

/* The first fields are those that each switch and each block read: together they fill one cache line. */
struct alignas(64) Fiber {
    void    *stack_pointer, *asan_stack;
    char    *stack;                   /* lowest address */
    void    *argument;                /* of the operation that it waits in */
    int      index, lane, warp, rank; /* index and warp count through the cluster; rank: the block's in it */
    State    state;
    Kind     kind;       /* of its wait: the operation, and its place */
    bool     is_async;   /* it has used what only asynchronous instructions use, from `copies` to `written` */
    bool     awaited;    /* the kernels before: at once, unless the launch is early */
    unsigned mask;
    int      line, result;
    uint3    thread, block;
    const char *name, *file;

    bool     at_cluster_barrier; /* arrived, and has not waited */
    unsigned cluster_phase;      /* when it arrived */

    Groups<CopyAsync> copies;
    Groups<WgmmaOp>   wgmma;
    Groups<BulkStore> stores;

    std::vector<Accumulator> accumulators;
    bool                     wgmma_fenced;
    std::vector<std::pair<const char *, size_t>> held; /* registers of a that products in flight may read */

    std::vector<std::pair<const char *, size_t>> written; /* of its stack, since the fence; the race checker notes it */
};

/* Lanes that gather for one warp operation. */
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
    char                 arrivals; /* its address stands for those who came and went on, to the race checker */
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
    unsigned     blocks; /* of the cluster, a bit each, which receive it at the same place */
    uint64_t     stamp; /* the race checker's: who asked, when */
    const char  *file;
    int          line;
};

struct Launch {
    const char           *name, *file;
    int                   line;
    dim3                  grid, block;
    unsigned              cluster; /* blocks, along x */
    bool                  early;   /* before the kernels before it have ended: its threads call await_kernels */
    size_t                shared_bytes, most_shared; /* dynamic; and with static objects */
    const void           *kernel;
    cudaStream_t          stream;
    std::shared_ptr<Body> body;
    size_t                body_bytes;
    const char           *op; /* of layers.h, that launched it; for count.cpp */
};

/* A block that runs now: what its threads alone have. */
struct Block {
    char        *arena; /* its shared memory */
    char        *async; /* as the asynchronous proxy sees it: bulk.cpp */
    bool         async_used;
    size_t       arena_used, dynamic_at; /* dynamic memory's place: DYNAMIC_AT, and EMU_SHIFT more */
    StaticObject statics[64];
    int          static_count;
    Barrier      barriers[16];
    int          live;           /* threads that have not ended */
    int          registers_free; /* per thread of a warpgroup */
};

/* The blocks that run now, one or a cluster. */
struct Engine {
    const Launch      *launch; /* NULL: the host runs */
    std::vector<Fiber> fibers; /* as many as a block may have; made at the first launch */
    Warp               warps[MAX_WARPS];
    Block              blocks[MAX_CLUSTER];
    Block             *here; /* of the current thread */
    unsigned           ready_warps;
    int                threads, warp_count, live; /* of all blocks that run now */
    int                block_threads;
    unsigned           block; /* the first one's number */
    unsigned           cluster_phase;
    int                cluster_arrived;

    std::vector<TmaLoad> tma;
    std::vector<Fiber *> warpgroup_waiting[MAX_WARPS / 4];
    int                  registers[MAX_WARPS / 4], registers_wanted[MAX_WARPS / 4]; /* per thread, by warpgroup */

    std::mt19937 random;

    void       *host_stack_pointer, *host_asan_stack;
    const void *host_stack;
    size_t      host_stack_bytes;
    bool        came_from_host;
};
extern Engine engine;
extern Fiber *current; /* NULL: the host runs */

/* From the environment: EMU_SCHED=forward|reverse|random:seed, EMU_ASYNC=late|early. Late: an asynchronous copy arrives
 * when somebody waits for it, which shows reads that come too soon; early: when it is issued, which shows tiles that
 * are overwritten while in use. */
enum Schedule { FORWARD, REVERSE, RANDOM };
struct Settings {
    Schedule schedule;
    unsigned seed;
    bool     async_early;
    bool     streams_in_order; /* EMU_STREAMS: streams.h */
    unsigned streams_seed;
    size_t   memory_bytes;     /* EMU_MEMORY=MiB of the GPU; 8 GiB */
    bool     one_gpu;          /* EMU_GPU=one: all processes compute on one GPU; unset: each on a GPU of its own */
};
extern const Settings settings;

void  fiber_place(Fiber &f, int index, dim3 block); /* in a launch */
void  fiber_reset(Fiber &f, uint3 block);           /* for a block that begins */
void  fiber_start_all();                                                /* returns when every thread of the block has ended */
void  fiber_ready(Fiber *f);
void  fiber_wait(Kind kind, const char *name, const char *file, int line); /* until somebody calls fiber_ready */
void  print_context();                                                  /* kernel, launch, block and thread, to stderr */
bool  tma_run_one();                                                    /* false: nothing is on its way */
void  launch_run(Launch launch);
void  registers_reset();
void  cluster_reset();

/* 16-byte units of a row are exchanged by the row's number: bits 4.. of the offset take bits 7.. in. */
uint32_t swizzled(uint32_t offset, uint32_t bytes);
/* Calls f(place in the arena, matrix or NULL, bytes) for each part of a tile of shared memory that lies side by side in both: at most the
 * 16 bytes that a swizzle leaves together. NULL: outside of the matrix. at: the tile in the arena. */
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
/* While one lives, shared memory is that block's. */
struct InBlock {
    Block *was = engine.here;
    explicit InBlock(int rank) { engine.here = &engine.blocks[rank]; }
    ~InBlock() { engine.here = was; }
};
void     tma_check(const void *shared, const EmuTensorMap &map, const char *file, int line);
char    *async_view(size_t at); /* shared memory as the asynchronous proxy sees it */
void     async_may_read(const char *p, size_t n, const char *what, const char *file, int line);
bool     bulk_unread(const Fiber &f); /* TMA stores that may still read shared memory */
void     bulk_finish_block();
const char *wgmma_holds(const Fiber &f, const void *p, size_t n); /* NULL, or which registers of products in flight these are */

/* Element i (0 low, 1 high) of a register of two 16-bit operands. */
inline float operand_to_f32(uint32_t pair, int i, MmaType type) {
    if (type == MMA_BF16) return bits<float>(i ? pair & 0xffff0000u : pair << 16);
    __half_raw h;
    h.x = (uint16_t)(pair >> 16 * i);
    return __half2float(h);
}


/* All 128 threads of the warpgroup meet; the last one calls f. */
void warpgroup_collective(const char *name, void (*f)(int group, void *argument), void *argument, const char *file, int line);

/* --- device memory ------------------------------------------------------------------------------------------------ */

enum MemoryKind { DEVICE_ONLY, MANAGED, PINNED };
struct Cell;
struct Allocation {
    char      *base;
    size_t     bytes;
    MemoryKind kind;
    Cell      *shadow; /* the race checker's, made at the first access, in shadow_memory */
    void      *shadow_memory;
    bool       initialised; /* for the race checker: all of it was written at once */
    int        open;        /* a large one under ASan: how many may touch it just now */
};
Allocation *find_allocation(const void *p); /* NULL: not CUDA's memory */
void        for_each_allocation(void (*f)(Allocation &));
void        forbid_device_memory(bool forbid); /* to the host, under ASan, while no kernel runs */

/* --- race checker: does nothing unless a .cu file was compiled with -fsanitize=thread ----------------------------- */

void     race_new_launch();
void     race_new_block();
void     race_barrier(unsigned warps);         /* all their accesses so far happen before any of their next ones */
void     race_syncwarp(int warp);
void     race_release(void *object, int warp); /* through an mbarrier */
void     race_acquire(void *object, int warp);
void     race_pending(void *shared, size_t n, const char *file, int line); /* the hardware may write from now on */
uint64_t race_stamp();                         /* this thread, now; for the hardware's later accesses in its name */
void     race_async_read(const void *p, size_t n, int thread, uint64_t stamp, const char *file, int line);
void     race_async_write(void *p, size_t n, int thread, uint64_t stamp, const char *file, int line);
void     race_bulk_write(void *p, size_t n, bool add, int thread, uint64_t stamp, const char *file, int line); /* by TMA */
void     race_proxy_fence(); /* by the current thread */
enum { NO_THREAD = -1 };
/* The asynchronous proxy reads shared memory for this warp (and thread): what was written there must be ordered before, and
 * what threads wrote behind a proxy fence of the writer. */
void     race_visible(const void *p, size_t n, int warp, int thread, const char *file, int line);
void     race_initialised(const void *p, size_t n);
void     race_forget(Allocation &a);
bool     watching();                           /* it sees accesses now */
bool     race_pause(bool pause);               /* collectives touch other threads' stacks; returns the last state */

/* --- counts of a kernel's accesses: does nothing unless EMU_COUNTS names a file and the race checker runs ---------- */

const char *op_now();               /* the operation whose contract was met last; NULL: none, or nothing is counted */
void        count_launch(const Launch &l);
void        count_block_end();
void        count_launch_end(const Launch &l);
int64_t     counted_work();         /* of all launches so far: in the place of time, while it counts */
void        count_access(const void *p, size_t n, bool writes, uint32_t at); /* by the current thread, from code at `at` */
void        count_bulk(const void *p, size_t n, bool writes);                /* of global memory, not a lane's own      */

}  // namespace emu
