/* gemm_hopper_tile.cuh - gemm_hopper.cu's way from global memory to accumulators: tiles of the operands, the ring that a warp of
 * producers fills, products of a warpgroup.
 */
#ifndef TRAIN_GPT_LAYERS_GEMM_HOPPER_TILE_CUH
#define TRAIN_GPT_LAYERS_GEMM_HOPPER_TILE_CUH

#include "core/ptx.cuh"
#include "layers/matmul.cuh"

enum {
    TILE = 128, SIDE = 64,        /* a tile of c is TILE x TILE; operands move in squares of SIDE x SIDE        */
    DEPTH = 64, STAGES = 4,       /* values of k in a stage of the ring */
    BAND = 8,                     /* tiles, or pairs of them, along m that run together with all tiles along n */
    WARPGROUP = 128, MATH_GROUPS = 2, MATH_WARPS = MATH_GROUPS * 4, GEMM_THREADS = WARPGROUP * (MATH_GROUPS + 1),
    LOAD_REGISTERS = 40, MATH_REGISTERS = 232, /* 168 a thread at the start; the loading warpgroup gives 128, 64 to
                                                * each of the two others */
    PANEL_ROWS = 16, SLOTS = 4,   /* a warp stores 16 x 64 of c at a time                                       */
    ACCUMULATORS = TILE / 2,      /* accumulators of a thread for 64 rows */
    TURN = 1, SUMS = TURN + MATH_GROUPS /* named barriers, one for each math warpgroup                          */
};

/* Lines of 128 bytes with the 128-byte swizzle, as TMA writes them and wgmma reads them. */
struct alignas(1024) Square { unsigned char byte[SIDE * 128]; };
struct alignas(1024) Panel { unsigned char byte[PANEL_ROWS * 128]; };
enum { SQUARE_BYTES = sizeof(Square), STAGE_BYTES = 4 * SQUARE_BYTES, PANEL_BYTES = sizeof(Panel) };

struct GemmShared {
    Square   a[STAGES][2], b[STAGES][2]; /* 128 KiB */
    Panel    slot[MATH_WARPS][SLOTS];    /* 64 KiB: c before it is stored, and what an epilogue reads */
    float    sums[MATH_WARPS][TILE];     /* 4 KiB: column sums of a warp's rows of a tile */
    uint64_t full[STAGES], empty[STAGES], read[MATH_WARPS];
};
static_assert(sizeof(GemmShared) <= 227 << 10, "a block's shared memory");

/* The parameters of a launch. */
struct GemmCall {
    TensorMap a, b, c, aux;       /* aux: gelu(c), or the pre of c's gradient, or the stream */
    int       m, n, steps;        /* steps of DEPTH along k */
    int       cluster, tiles_m, tiles_n; /* tiles_m: number of clusters along m, whose blocks lie along m */
    int       parts, works;       /* number of slices of k; number of tiles of all slices */
    float    *sums;               /* an f32 c, or sums of slices [parts,m,n]; rows are ld apart */
    float    *column_sums;        /* [tiles along m,n] column sums of c as stored, or NULL */
    float    *delta;              /* [n/head,m] sums of c as stored times aux; head: SIDE or TILE */
    int       head;
    int64_t   ld, part_elems;
    int       add;
};

/* One work item: a tile of c and a slice of k. */
struct Work { int row, column, first, end, part; };

#ifdef PTX_HOPPER

/* Returns work item i. Items run in the order of slices of k, and in each slice in bands of BAND rows of tiles. So
 * items that run together share operands in L2. */
DEVICE Work work_of(const GemmCall &g, int i) {
    int tiles = g.tiles_m * g.tiles_n, part = i / tiles, tile = i % tiles;
    int top = tile / (BAND * g.tiles_n) * BAND, in_band = tile % (BAND * g.tiles_n);
    int rows = g.tiles_m - top < BAND ? g.tiles_m - top : (int)BAND;
    return {((top + in_band % rows) * g.cluster + (int)cluster_rank()) * TILE, in_band / rows * TILE,
            (int)((int64_t)g.steps * part / g.parts), (int)((int64_t)g.steps * (part + 1) / g.parts), part};
}
DEVICE int first_work(const GemmCall &g) { return (int)blockIdx.x / g.cluster; }
DEVICE int work_stride(const GemmCall &g) { return (int)gridDim.x / g.cluster; }

DEVICE void barriers_init(GemmShared *s, int cluster) {
    for (int i = 0; i < STAGES; i++) {
        mbarrier_init(&s->full[i], 1);
        mbarrier_init(&s->empty[i], (unsigned)(4 * cluster)); /* the warps of each block that read the stage */
    }
    for (int i = 0; i < MATH_WARPS; i++) mbarrier_init(&s->read[i], 1);
    mbarrier_init_fence();
}

/* --- loading: one thread ------------------------------------------------------------------------------------------- */

/* Return the coordinates of square h of a tile at `across` (along m or n) and `k`. by_lines: k lies along the columns
 * of memory. */
template <bool by_lines> DEVICE int column_of(int across, int k, int h) { return by_lines ? k : across + h * SIDE; }
template <bool by_lines> DEVICE int row_of(int across, int k, int h) { return by_lines ? across + h * SIDE : k; }

/* Loads a stage. The blocks of a cluster have one tile of b, and each loads a square of it for both. */
template <bool a_by_lines, bool b_by_lines> DEVICE void load_stage(GemmShared *s, const GemmCall &g, const Work &w, int stage, int k) {
    uint64_t *full = &s->full[stage];
    mbarrier_arrive_expect(full, STAGE_BYTES);
    for (int h = 0; h < 2; h++)
        tma_load_2d(&s->a[stage][h], &g.a, full, column_of<a_by_lines>(w.row, k, h), row_of<a_by_lines>(w.row, k, h));
    if (g.cluster == 2) {
        int h = (int)cluster_rank();
        tma_load_2d_multicast(&s->b[stage][h], &g.b, full, column_of<b_by_lines>(w.column, k, h), row_of<b_by_lines>(w.column, k, h), 3);
        return;
    }
    for (int h = 0; h < 2; h++)
        tma_load_2d(&s->b[stage][h], &g.b, full, column_of<b_by_lines>(w.column, k, h), row_of<b_by_lines>(w.column, k, h));
}
template <bool a_by_lines, bool b_by_lines> DEVICE void load_all(GemmShared *s, const GemmCall &g) {
    for (int i = first_work(g), step = 0; i < g.works; i += work_stride(g)) {
        Work w = work_of(g, i);
        for (int t = w.first; t < w.end; t++, step++) {
            mbarrier_wait(&s->empty[step % STAGES], (step / STAGES & 1) ^ 1);
            load_stage<a_by_lines, b_by_lines>(s, g, w, step % STAGES, t * DEPTH);
        }
    }
}

/* --- multiplying: a warpgroup -------------------------------------------------------------------------------------- */

/* Returns wgmma's descriptor of the 16 values of k from 16 i on: along the lines, or 16 lines of 128 bytes. The next
 * square follows. */
template <bool by_lines> DEVICE uint64_t operand(const Square *square, int i) {
    return matrix_descriptor(square->byte + i * (by_lines ? 32 : 16 * 128), by_lines ? 16 : SQUARE_BYTES, 8 * 128);
}
DEVICE void release_stage(GemmShared *s, int stage, int cluster) {
    int lane = (int)threadIdx.x % WARP;
    if (lane < cluster) mbarrier_arrive_at(&s->empty[stage], (unsigned)lane);
}

/* acc = the tile's sum over `steps` stages of the ring from `step` on. On return the last stage's products are still in
 * flight. */
template <typename T, bool a_by_lines, bool b_by_lines>
DEVICE void multiply(float (&acc)[2][ACCUMULATORS], GemmShared *s, int step, int steps, int cluster) {
    for (int t = 0; t < steps; t++, step++) {
        int stage = step % STAGES;
        mbarrier_wait(&s->full[stage], step / STAGES & 1);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DEPTH / 16; i++) {
            uint64_t b = operand<b_by_lines>(s->b[stage], i);
            wgmma<T, T, TILE, !a_by_lines, !b_by_lines>(acc[0], operand<a_by_lines>(&s->a[stage][0], i), b, t + i > 0);
            wgmma<T, T, TILE, !a_by_lines, !b_by_lines>(acc[1], operand<a_by_lines>(&s->a[stage][1], i), b, t + i > 0);
        }
        wgmma_commit();
        wgmma_wait<1>(); /* the stage before this one has been read */
        if (t > 0) release_stage(s, (step - 1) % STAGES, cluster);
    }
}

#endif
#endif
