/* gemm_hopper.cu - our kernel of matrix products for GPT-2's shapes on compute capability 9.0 (matmul.cuh).
 *
 * A block per multiprocessor stays for the whole product and computes tiles of 128 x 128 of c one after another. One
 * thread loads operands by TMA into a ring of 4 stages of 64 values of k. Two warpgroups multiply alternately
 * (ping-pong): while one stores its tile, the other has the tensor cores. With k = 768 a tile takes 12 stages of 512
 * clocks at best, and its store a third of that [calculated].
 *   cluster  two blocks with neighbouring tiles along m load each half of their tile of b, for both (multicast)
 *   parts    few tiles and a long k, as of weights' gradients: slices of k are summed separately, a second kernel adds
 *            them in order
 * Tiles, slices and orders of additions follow from the shape and the stored way alone, so a run repeats its bits.
 *
 * Shared memory: 128 KiB of stages, 64 KiB of panels of c before they are stored, barriers, of 227 KiB. Registers: 128
 * accumulators a thread, of 232.
 *
 * Bound by the tensor cores, which take 512 clocks for 128 x 128 x 64. A stage reads 48 KiB of shared memory for
 * products (64 KiB could be read in that time) and 24 KiB of L2, 32 without a cluster. Not measured on a GPU yet.
 */
#include <stdlib.h>
#include <string.h>

#include "core/ptx.cuh"
#include "layers/bias.cuh"
#include "layers/activation.h"
#include "layers/matmul.cuh"

/* --- from global memory to accumulators: tiles of the operands, the ring that a warp of producers fills ----------- */

enum {
    TILE = 128, SIDE = 64,        /* a tile of c is TILE x TILE; operands move in squares of SIDE x SIDE        */
    DEPTH = 64, STAGES = 4,       /* DEPTH: values of k in a stage; STAGES: stages of the ring */
    BAND = 8,                     /* number of rows of tiles (with clusters: of pairs of tiles) along m that run
                                   * together with all tiles along n */
    WARPGROUP = 128, MATH_GROUPS = 2, MATH_WARPS = MATH_GROUPS * 4, GEMM_THREADS = WARPGROUP * (MATH_GROUPS + 1),
    LOAD_REGISTERS = 40, MATH_REGISTERS = 232, /* registers of a thread: 168 at the start; in the loading warpgroup it
                                                * gives 128 away, 64 to each of the two others */
    PANEL_ROWS = 16, SLOTS = 4,   /* a warp stores a panel, 16 x 64 of c, at a time, through SLOTS buffers in
                                   * rotation */
    ACCUMULATORS = TILE / 2,      /* accumulators of a thread for 64 rows */
    TURN = 1, SUMS = TURN + MATH_GROUPS /* first of MATH_GROUPS named barriers each: TURN for the right to multiply,
                                         * SUMS for column sums in shared memory */
};

/* Lines of 128 bytes with the 128-byte swizzle, as TMA writes them and wgmma reads them. */
struct alignas(1024) Square { unsigned char byte[SIDE * 128]; };
struct alignas(1024) Panel { unsigned char byte[PANEL_ROWS * 128]; };
enum { SQUARE_BYTES = sizeof(Square), STAGE_BYTES = 4 * SQUARE_BYTES, PANEL_BYTES = sizeof(Panel) };

struct GemmShared {
    Square   a[STAGES][2], b[STAGES][2]; /* 128 KiB: tiles of a and b in each stage of the ring, two squares each */
    Panel    slot[MATH_WARPS][SLOTS];    /* 64 KiB: panels of c before they are stored, and of the matrix that an
                                          * epilogue reads */
    float    sums[MATH_WARPS][TILE];     /* 4 KiB: column sums of a warp's rows of a tile */
    uint64_t full[STAGES], empty[STAGES], read[MATH_WARPS];
};
static_assert(sizeof(GemmShared) <= 227 << 10, "a block's shared memory");

/* Parameters of a launch of gemm_hopper_kernel, for a product c [m,n] = a b. */
struct GemmCall {
    TensorMap a, b, c, aux;       /* aux: matrix of the epilogue (matmul.cuh): f(c) as output, or as input the
                                   * pre-activation, attention's output or the residual stream */
    int       m, n, steps;        /* sizes of the product; number of steps of DEPTH along k */
    /* blocks in a cluster; rows and columns of the grid of tiles of c. A cluster is along m, and tiles_m counts
     * clusters */
    int       cluster, tiles_m, tiles_n;
    int       parts, works;       /* number of slices of k; number of work items: the tiles of all slices */
    float    *sums;               /* output in f32, rows ld apart: c itself if k is not sliced, otherwise [parts,m,n]
                                   * the sums of each slice; not used for a 16-bit c */
    float    *column_sums;        /* [tiles along m,n] column sums of c as stored, or NULL */
    float    *delta;              /* [n/head,m] output of EPILOGUE_DELTA: for each row, the sum of c as stored times aux
                                   * over the columns of a head; head: SIDE or TILE */
    int       head;
    int64_t   ld, part_elems;
    int       add;
};

/* One work item: the tile of c at (row, column), and slice number `part` of k, which is steps `first` to end - 1. */
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

/* --- loading: one thread ------------------------------------------------------------------------------------------ */

/* Loads the square at `across` (along m or n) and `k`, into this block, or into both blocks of a cluster. by_lines: k
 * is the contiguous index of the matrix in memory; otherwise m or n is. */
template <bool by_lines>
DEVICE void load_square(Square *to, const TensorMap *map, uint64_t *full, int across, int k, bool for_both = false) {
    int column = by_lines ? k : across, row = by_lines ? across : k;
    if (for_both) tma_load_2d_multicast(to, map, full, column, row, 3);
    else tma_load_2d(to, map, full, column, row);
}

/* Loads one stage of the ring. The blocks of a cluster need the same tile of b, and each loads half of it for both. */
template <bool a_by_lines, bool b_by_lines>
DEVICE void load_stage(GemmShared *s, const GemmCall &g, const Work &w, int stage, int k) {
    uint64_t *full = &s->full[stage];
    mbarrier_arrive_expect(full, STAGE_BYTES);
    for (int h = 0; h < 2; h++) load_square<a_by_lines>(&s->a[stage][h], &g.a, full, w.row + h * SIDE, k);
    if (g.cluster == 2) {
        int h = (int)cluster_rank();
        load_square<b_by_lines>(&s->b[stage][h], &g.b, full, w.column + h * SIDE, k, true);
        return;
    }
    for (int h = 0; h < 2; h++) load_square<b_by_lines>(&s->b[stage][h], &g.b, full, w.column + h * SIDE, k);
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

/* --- multiplying: a warpgroup ------------------------------------------------------------------------------------- */

/* Returns wgmma's descriptor of an operand's 16 values of k from 16 i on. by_lines: the values are along the lines of
 * 128 bytes; otherwise they are 16 of these lines. An operand wider than a square continues in the square behind it. */
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
        wgmma_wait<1>(); /* after this the products have read the stage before this one */
        if (t > 0) release_stage(s, (step - 1) % STAGES, cluster);
    }
}

#endif

/* --- from accumulators to memory: the epilogues ---------------------------------------------------------------------
 *
 * A warp holds 16 rows of each half of a tile. It rounds 16 x 64 of them and writes them to a slot of shared memory by
 * stmatrix. TMA then writes the slot to c: whole lines, clipped at c's edges. An f32 c is written from registers, whose
 * quads fill sectors of 32 bytes; such products are long.
 *
 * Lane l, g = l / 4, t = l % 4, register i of block q of 16 columns: rows g + 8 (i % 2), columns 16 q + 8 (i / 2) + 2
 * t, + 1.
 */

#ifdef PTX_HOPPER

enum { BLOCKS = SIDE / 16 }; /* blocks of 16 columns in a panel */

/* A warp's slots, used in rotation, and how many panels went through them. */
struct Slots {
    Panel *slot;
    int    used;
};
/* Returns the address of the 16 bytes that this lane passes to stmatrix or ldmatrix for block q of a panel. */
DEVICE unsigned char *line_of(Panel *p, int q) {
    int lane = (int)threadIdx.x % WARP, row = lane % 16, unit = 2 * q + lane / 16;
    return p->byte + row * 128 + (unit ^ row % 8) * 16;
}

/* Stores a panel, 16 x 64 of c, by TMA at (row, column) of the map's matrix. */
DEVICE void put_panel(const TensorMap *map, Slots &s, const uint32_t (&r)[BLOCKS][4], int row, int column) {
    Panel *p = &s.slot[s.used++ % SLOTS];
    int    lane = (int)threadIdx.x % WARP;
    if (lane == 0) bulk_wait_read<SLOTS - 1>();
    __syncwarp(); /* after this the previous panel in this slot has been read by TMA */
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) stmatrix_x4(line_of(p, q), r[q]);
    fence_proxy_async();
    __syncwarp(); /* after this the panel is complete in shared memory */
    if (lane == 0) {
        tma_store_2d(map, p, column, row);
        bulk_commit();
    }
}

DEVICE constexpr bool reads_aux(int epilogue) {
    return epilogue == EPILOGUE_ACTIVATION_BACKWARD || epilogue == EPILOGUE_DELTA || epilogue == EPILOGUE_RESIDUAL;
}
/* Loads a warp's part of the tile of aux into the warp's four slots of shared memory, while the products run. */
DEVICE void load_aux(GemmShared *s, const GemmCall &g, const Work &w, int warp) {
    if ((int)threadIdx.x % WARP) return;
    bulk_wait_read<0>(); /* waits until earlier stores have read the slots, so that they are free */
    mbarrier_arrive_expect(&s->read[warp], SLOTS * PANEL_BYTES);
    for (int i = 0; i < SLOTS; i++)
        tma_load_2d(&s->slot[warp][i], &g.aux, &s->read[warp], w.column + i % 2 * SIDE,
                    w.row + i / 2 * SIDE + warp % 4 * PANEL_ROWS);
}

/* r = round(acc + bias), for half p of the tile's columns, in the register order of stmatrix. */
template <typename T>
DEVICE void round_panel(uint32_t (&r)[BLOCKS][4], const float (&acc)[ACCUMULATORS], int p, const T *bias, int column,
                        int n) {
#pragma unroll
    for (int k = 0; k < BLOCKS * 2; k++) { /* k: a group of eight columns */
        int    c = column + p * SIDE + k * 8 + (int)threadIdx.x % 4 * 2, at = p * 32 + k * 4;
        float2 b = {};
        if (bias && c < n) b = unpack_pair<T>(*(const uint32_t *)(bias + c));
        r[k / 2][k % 2 * 2] = pack_pair<T>(acc[at] + b.x, acc[at + 1] + b.y);
        r[k / 2][k % 2 * 2 + 1] = pack_pair<T>(acc[at + 2] + b.x, acc[at + 3] + b.y);
    }
}

/* r = f(r), where r holds c as it is stored and f is the activation, with activation.cu's arithmetic. */
template <typename T, Activation activation> DEVICE void activation_panel(uint32_t (&r)[BLOCKS][4]) {
#pragma unroll
    for (int i = 0; i < BLOCKS * 4; i++) {
        float2 x = unpack_pair<T>(r[i / 4][i % 4]);
        r[i / 4][i % 4] = pack_pair<T>(activate(activation, x.x), activate(activation, x.y));
    }
}

/* Calls use(q, i, aux) for each register i of each block q of 16 columns. aux is the pair of values at the same place
 * in the epilogue's matrix, which lies in the next slot. */
template <class F> DEVICE void each_aux(const Slots &s, F use) {
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) {
        uint32_t aux[4];
        ldmatrix_x4(aux, line_of(&s.slot[s.used % SLOTS], q));
#pragma unroll
        for (int i = 0; i < 4; i++) use(q, i, aux[i]);
    }
}

/* r = round(r + aux), where r holds the product with its bias, rounded, and aux the residual stream, with
 * residual_forward's arithmetic. */
template <typename T> DEVICE void residual_panel(uint32_t (&r)[BLOCKS][4], const Slots &s) {
    each_aux(s, [&](int q, int i, uint32_t aux) {
        float2 x = unpack_pair<T>(r[q][i]), stream = unpack_pair<T>(aux);
        r[q][i] = pack_pair<T>(stream.x + x.x, stream.y + x.y);
    });
}

/* r = round(acc f'(aux)), f the activation; sum += r for this thread's columns. */
template <typename T, Activation activation>
DEVICE void activation_grad_panel(uint32_t (&r)[BLOCKS][4], float (&sum)[SIDE / 4], const float (&acc)[ACCUMULATORS],
                                  int p, const Slots &s) {
    each_aux(s, [&](int q, int i, uint32_t aux) {
        float2 x = unpack_pair<T>(aux);
        int    at = p * 32 + q * 8 + i * 2;
        r[q][i] = pack_pair<T>(acc[at] * activation_slope(activation, x.x),
                               acc[at + 1] * activation_slope(activation, x.y));
        float2 stored = unpack_pair<T>(r[q][i]);
        sum[q * 4 + i / 2 * 2] += stored.x;
        sum[q * 4 + i / 2 * 2 + 1] += stored.y;
    });
}

/* r = round(acc); delta += r aux for this thread's two rows. */
template <typename T>
DEVICE void delta_panel(uint32_t (&r)[BLOCKS][4], float (&delta)[2], const float (&acc)[ACCUMULATORS], int p,
                        const Slots &s) {
    each_aux(s, [&](int q, int i, uint32_t aux) {
        int at = p * 32 + q * 8 + i * 2;
        r[q][i] = pack_pair<T>(acc[at], acc[at + 1]);
        float2 stored = unpack_pair<T>(r[q][i]), other = unpack_pair<T>(aux);
        delta[i % 2] = fmaf(stored.x, other.x, delta[i % 2]);
        delta[i % 2] = fmaf(stored.y, other.y, delta[i % 2]);
    });
}

/* Adds delta (attention_delta in layers.h) over the four lanes of a row and stores it. Rows of a head are contiguous,
 * and eight fill a sector. */
DEVICE void store_delta(float (&delta)[2], const GemmCall &g, int row, int column) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = delta[i];
        for (int o = 1; o < 4; o *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        int at = row + i * 8 + lane / 4;
        if (lane % 4 == 0 && at < g.m && column < g.n) g.delta[(int64_t)(column / g.head) * g.m + at] = sum;
        delta[i] = 0.0f;
    }
}

/* Stores a row of column_sums: adds over the lanes of a column, then over warps, in order. The named barrier before the
 * next tile protects shared memory from being filled again too early. */
DEVICE void store_column_sums(GemmShared *s, float (&sum)[2][SIDE / 4], const GemmCall &g, const Work &w) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, group = warp / 4,
        t = (int)threadIdx.x % WARPGROUP;
#pragma unroll
    for (int i = 0; i < SIDE / 2; i++) {
        float &x = sum[i / (SIDE / 4)][i % (SIDE / 4)];
        for (int o = 4; o < WARP; o *= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
        if (lane < 4) s->sums[warp][i / 2 * 8 + lane * 2 + i % 2] = x;
    }
    named_barrier_sync(SUMS + group, WARPGROUP); /* after this the column sums of the warpgroup's four warps are in
                                                  * shared memory */
    float total = 0.0f;
    for (int i = 0; i < 4; i++) total += s->sums[group * 4 + i][t];
    if (w.row < g.m && w.column + t < g.n) g.column_sums[(int64_t)(w.row / TILE) * g.n + w.column + t] = total;
}

/* Stores a tile of a 16-bit c. */
template <typename T, int epilogue, Activation activation>
DEVICE void store_tile(GemmShared *shared, const float (&acc)[2][ACCUMULATORS], Slots &s, const GemmCall &g,
                       const T *bias, const Work &w) {
    int   row = w.row + (int)threadIdx.x / WARP % 4 * PANEL_ROWS;
    float sum[2][SIDE / 4] = {}, delta[2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) { /* i / 2: upper or lower half of the tile; i % 2: left or right half */
        uint32_t r[BLOCKS][4];
        if constexpr (epilogue == EPILOGUE_ACTIVATION_BACKWARD)
            activation_grad_panel<T, activation>(r, sum[i % 2], acc[i / 2], i % 2, s);
        else if constexpr (epilogue == EPILOGUE_DELTA) delta_panel<T>(r, delta, acc[i / 2], i % 2, s);
        else round_panel<T>(r, acc[i / 2], i % 2, bias, w.column, g.n);
        if constexpr (epilogue == EPILOGUE_RESIDUAL) residual_panel<T>(r, s);
        if (epilogue == EPILOGUE_DELTA && (g.head == SIDE || i % 2))
            store_delta(delta, g, row + i / 2 * SIDE, w.column + i % 2 * SIDE);
        put_panel(&g.c, s, r, row + i / 2 * SIDE, w.column + i % 2 * SIDE);
        if constexpr (epilogue == EPILOGUE_ACTIVATION) {
            activation_panel<T, activation>(r);
            put_panel(&g.aux, s, r, row + i / 2 * SIDE, w.column + i % 2 * SIDE);
        }
    }
    if (epilogue == EPILOGUE_ACTIVATION_BACKWARD && g.column_sums) store_column_sums(shared, sum, g, w);
}

/* Stores a tile of an f32 c: c = or += acc. In the source all loads of a row precede its stores, because the compiler
 * may not move a load before a store. */
DEVICE void store_sums(const float (&acc)[2][ACCUMULATORS], const GemmCall &g, const Work &w) {
    int lane = (int)threadIdx.x % WARP, column = w.column + lane % 4 * 2;
#pragma unroll
    /* i / 2: upper or lower half of the tile; i % 2: the first or the last eight of each 16 rows */
    for (int i = 0; i < 4; i++) {
        int    row = w.row + i / 2 * SIDE + (int)threadIdx.x / WARP % 4 * PANEL_ROWS + i % 2 * 8 + lane / 4;
        float *line = g.sums + w.part * g.part_elems + row * g.ld + column;
        if (row >= g.m) continue;
        Pack<float, 2> old[TILE / 8] = {};
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
            if (g.add && column + j * 8 < g.n) old[j] = pack_load<float, 2>(line + j * 8);
#pragma unroll
        for (int j = 0; j < TILE / 8; j++) {
            Pack<float, 2> sum = {
                {old[j].v[0] + acc[i / 2][j * 4 + i % 2 * 2], old[j].v[1] + acc[i / 2][j * 4 + i % 2 * 2 + 1]}};
            if (column + j * 8 < g.n) pack_store(line + j * 8, sum);
        }
    }
}

#endif

/* --- the kernel, and the ways to launch it ------------------------------------------------------------------------ */

enum {
    MOST_PARTS = 32, LEAST_STEPS = 8 /* LEAST_STEPS: fewest steps of DEPTH in a slice of k, because each slice's sums
                                      * are written and read again */
};

#ifdef PTX_HOPPER
/* Does the work of a math warpgroup: it multiplies and stores every second work item of the block. */
template <typename T, typename C, bool a_by_lines, bool b_by_lines, int epilogue, Activation activation>
DEVICE void multiply_all(GemmShared *s, const GemmCall &g, const T *bias, int group) {
    int   warp = (int)threadIdx.x / WARP, stride = work_stride(g);
    float acc[2][ACCUMULATORS];
    Slots slots = {s->slot[warp], 0};
    if (group == 1) named_barrier_arrive(TURN, 2 * WARPGROUP);
    for (int i = first_work(g), turn = 0, step = 0; i < g.works; i += stride, turn++) {
        Work w = work_of(g, i);
        int  steps = w.end - w.first;
        if (turn % 2 == group) {
            if (reads_aux(epilogue)) load_aux(s, g, w, warp);
            /* Waits until the other warpgroup's products are issued, because its stages of the ring come first. */
            named_barrier_sync(TURN + group, 2 * WARPGROUP);
            multiply<T, a_by_lines, b_by_lines>(acc, s, step, steps, g.cluster);
            if (i + stride < g.works) named_barrier_arrive(TURN + 1 - group, 2 * WARPGROUP);
            wgmma_wait<0>(acc[0], acc[1]);
            release_stage(s, (step + steps - 1) % STAGES, g.cluster);
            if (reads_aux(epilogue)) mbarrier_wait(&s->read[warp], turn / 2 & 1);
            if constexpr (std::is_same_v<C, float>) store_sums(acc, g, w);
            else store_tile<T, epilogue, activation>(s, acc, slots, g, bias, w);
        }
        step += steps;
    }
    if (threadIdx.x % WARP == 0) bulk_wait_read<0>(); /* waits until TMA has read the panels, because the block's shared
                                                       * memory must outlast the stores */
}
#endif

/* Computes the product. Two warpgroups multiply, the third one loads. grid: the blocks that fit on the GPU at once, of
 * GEMM_THREADS threads, with a GemmShared each. */
template <typename T, typename C, bool a_by_lines, bool b_by_lines, int epilogue, Activation activation>
KERNEL __launch_bounds__(GEMM_THREADS, 1)
    gemm_hopper_kernel(const __grid_constant__ GemmCall g, const T *__restrict__ bias) {
#ifdef PTX_HOPPER
    SMEM_DYN(GemmShared, s);
    tiles_aligned(s);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            mbarrier_init(&s->full[i], 1);
            mbarrier_init(&s->empty[i], (unsigned)(4 * g.cluster)); /* counts the 4 warps of each block of the cluster
                                                                     * that read the stage */
        }
        for (int i = 0; i < MATH_WARPS; i++) mbarrier_init(&s->read[i], 1);
        mbarrier_init_fence();
    }
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait(); /* after this both blocks of the cluster may use the mbarriers */
    int group = (int)threadIdx.x / WARPGROUP;
    if (group == MATH_GROUPS) {
        registers_lower<LOAD_REGISTERS>();
        if (__shfl_sync(0xffffffffu, (int)threadIdx.x % WARPGROUP, 0) == 0 && elect_one())
            load_all<a_by_lines, b_by_lines>(s, g);
        __syncwarp(); /* the lanes come together again, because the cluster's barrier needs whole warps */
    } else {
        registers_raise<MATH_REGISTERS>();
        multiply_all<T, C, a_by_lines, b_by_lines, epilogue, activation>(s, g, bias, group);
    }
    cluster_arrive();
    cluster_wait(); /* no block ends while the other one may access its shared memory */
#else
    device_check(g.m < 0 && bias); /* never runs, because gemm_hopper_fits refuses a GPU for which this kernel was not
                                    * compiled */
#endif
}

/* c = or += the sum of slices [parts,m,n], in order. Each thread adds 4 elements. grid ceil(m n / (4 THREADS)), no
 * shared memory. Bound by memory: the slices are read once. */
enum { THREADS = 256, WIDE = 4 };
KERNEL parts_total_kernel(float *__restrict__ c, int64_t ld, const float *__restrict__ part, int parts, int64_t m,
                          int64_t n, int add) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDE;
    if (i >= m * n) return;
    float              *to = c + i / n * ld + i % n;
    Pack<float, WIDE> sum = {};
    for (int p = 0; p < parts; p++) {
        Pack<float, WIDE> x = pack_load<float, WIDE>(part + p * m * n + i);
        for (int j = 0; j < WIDE; j++) sum.v[j] += x.v[j];
    }
    if (add) pack_add(to, sum);
    else pack_store(to, sum);
}

/* --- which products, in which ways -------------------------------------------------------------------------------- */

/* gpu.mk defines HAS_SM90A if it compiles for sm_90a. In code for another architecture the kernel is empty, also if the
 * driver compiles its PTX for this GPU. */
#if defined(CUDA_EMU) || defined(HAS_SM90A)
enum { IS_COMPILED = 1 };
#else
enum { IS_COMPILED = 0 };
#endif

GemmAsked gemm_asked(void) {
    const char *asked = getenv("TRAIN_GPT_GEMM");
    if (!asked) return IS_EMULATED ? GEMM_CUBLASLT : GEMM_TIMED;
    if (strcmp(asked, "own") == 0) return GEMM_OWN;
    if (strcmp(asked, "cublaslt") == 0) return GEMM_CUBLASLT;
    if (strcmp(asked, "timed") == 0) return GEMM_TIMED;
    fail(EXIT_CONFIG, "TRAIN_GPT_GEMM is \"%s\": it must be own, cublaslt or timed, or not set", asked);
}

static int is_aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }
/* Returns whether TMA can read the matrix: rows are multiples of 16 bytes apart, and no coordinate overflows. */
static int view_fits(const Matrix *x) { return x->ld % 8 == 0 && x->ld < 1 << 30 && is_aligned(x->data, 16); }

int gemm_hopper_fits(const Matmul *p, Epilogue epilogue, const void *aux, int head) {
    if (!IS_COMPILED || strncmp(device_isa(), "sm_90", 5)) return 0;
    if ((p->a.type != BF16 && p->a.type != F16) || p->b.type != p->a.type) return 0;
    int64_t most = 1 << 30;
    if (!view_fits(&p->a) || !view_fits(&p->b) || !view_fits(&p->c) || p->n % 8 || p->m >= most || p->n >= most ||
        p->k >= most)
        return 0;
    if (p->m < 1 || p->n < 1 || p->k < 1 || !is_aligned(p->bias, 4) || !is_aligned(aux, 16)) return 0;
    if (p->c.type == F32)
        return p->a.order == TRANSPOSED && p->b.order == PLAIN && !p->bias && epilogue == EPILOGUE_NONE;
    if (p->a.order != PLAIN || p->write == MATMUL_ADD) return 0;
    return epilogue == EPILOGUE_NONE || (epilogue == EPILOGUE_ACTIVATION && p->b.order == PLAIN) ||
           (epilogue == EPILOGUE_ACTIVATION_BACKWARD && p->b.order == TRANSPOSED && !p->bias) ||
           (epilogue == EPILOGUE_RESIDUAL && aux != p->c.data) ||
           (epilogue == EPILOGUE_DELTA && p->b.order == TRANSPOSED && !p->bias && (head == SIDE || head == TILE));
}

static int64_t tiles_along(int64_t x) { return blocks_for(x, TILE); }
static int64_t steps_of(const Matmul *p) { return blocks_for(p->k, DEPTH); }
static int64_t works_of(const Matmul *p, GemmWay way) {
    return blocks_for(tiles_along(p->m), way.cluster) * tiles_along(p->n) * way.parts;
}

int gemm_hopper_has_way(const Matmul *p, size_t workspace_bytes, GemmWay way) {
    if ((way.cluster != 1 && way.cluster != 2) || way.parts < 1 || way.parts > MOST_PARTS || way.parts > steps_of(p))
        return 0;
    return way.parts == 1 || (p->c.type == F32 && (size_t)(way.parts * p->m * p->n) * sizeof(float) <= workspace_bytes);
}

size_t gemm_hopper_sums_bytes(const Matmul *p) { return (size_t)(tiles_along(p->m) * p->n) * sizeof(float); }

/* Writes the ways of computing the product that are worth timing: first those with clusters of two blocks, then those
 * with single blocks. A number of slices of k is a candidate if it keeps the GPU busier than every smaller number. Of
 * these the largest are written. */
int gemm_hopper_ways(const Matmul *p, size_t workspace_bytes, GemmWay ways[GEMM_WAYS]) {
    int    count = 0;
    double best = 0.0;
    for (int parts = 1; parts <= MOST_PARTS; parts++) {
        GemmWay way = {tiles_along(p->m) > 1 ? 2 : 1, parts};
        int64_t clusters = device_resident_blocks() / way.cluster, works = works_of(p, way);
        /* fraction of the time in which a multiprocessor has work, if all work items take equally long */
        double  share = (double)works / (double)(blocks_for(works, clusters) * clusters);
        int     is_long = parts == 1 || steps_of(p) / parts >= LEAST_STEPS;
        /* Another way must have a share (of busy time) that is larger by 0.02. The first way needs none, because a
         * small product may fill less than 2 % of the GPU. */
        if (!is_long || !gemm_hopper_has_way(p, workspace_bytes, way) || (count > 0 && share < best + 0.02)) continue;
        best = share;
        count = count < GEMM_WAYS / 2 ? count + 1 : GEMM_WAYS / 2;
        memmove(&ways[1], ways, (size_t)(count - 1) * sizeof *ways);
        ways[0] = way;
    }
    for (int i = 0, pairs = count; i < pairs; i++)
        if (ways[i].cluster == 2) ways[count++] = {1, ways[i].parts};
    return count;
}

/* --- the launch --------------------------------------------------------------------------------------------------- */

/* Returns the TMA map by which an operand is loaded in squares of SIDE x SIDE elements. */
template <typename T> static TensorMap operand_map(const Matrix &x, int64_t rows, int64_t columns) {
    if (x.order == TRANSPOSED) return tensor_map_2d((const T *)x.data, columns, rows, SIDE, SIDE, x.ld);
    return tensor_map_2d((const T *)x.data, rows, columns, SIDE, SIDE, x.ld);
}
template <typename T> static TensorMap panel_map(const void *x, const Matmul *p) {
    return tensor_map_2d((const T *)x, p->m, p->n, PANEL_ROWS, SIDE, p->c.ld);
}

template <typename T, typename C, bool a_by_lines, bool b_by_lines, int epilogue,
          Activation activation = ACTIVATION_GELU_NEW>
static void launch(Stream *s, const GemmCall &g, const void *bias = NULL) {
    int clusters = device_resident_blocks() / g.cluster, blocks = (g.works < clusters ? g.works : clusters) * g.cluster;
    LAUNCH_CLUSTER((unsigned)g.cluster, (gemm_hopper_kernel<T, C, a_by_lines, b_by_lines, epilogue, activation>),
                   (unsigned)blocks, GEMM_THREADS, sizeof(GemmShared), s, g, (const T *)bias);
}

template <typename T>
static void queue(Stream *s, const Matmul *p, Epilogue epilogue, Activation activation, const void *aux, float *sums,
                  int head, GemmWay way, void *workspace) {
    GemmCall g = {};
    g.a = operand_map<T>(p->a, p->m, p->k), g.b = operand_map<T>(p->b, p->k, p->n);
    g.m = (int)p->m, g.n = (int)p->n, g.steps = (int)steps_of(p);
    g.cluster = way.cluster, g.parts = way.parts, g.works = (int)works_of(p, way);
    g.tiles_m = (int)blocks_for(tiles_along(p->m), way.cluster), g.tiles_n = (int)tiles_along(p->n);
    if (p->c.type != F32) g.c = panel_map<T>(p->c.data, p);
    else if (way.parts == 1) g.sums = (float *)p->c.data, g.ld = p->c.ld, g.add = p->write == MATMUL_ADD;
    else g.sums = (float *)workspace, g.ld = p->n, g.part_elems = p->m * p->n;
    if (aux) g.aux = panel_map<T>(aux, p);
    int has_column_sums = sums && epilogue == EPILOGUE_ACTIVATION_BACKWARD;
    if (has_column_sums) g.column_sums = (float *)workspace;
    if (epilogue == EPILOGUE_DELTA) g.delta = sums, g.head = head;
    if (p->c.type == F32) launch<T, float, false, false, EPILOGUE_NONE>(s, g);
    else if (epilogue == EPILOGUE_ACTIVATION)
        DISPATCH_ACTIVATION(activation, K, launch<T, T, true, false, EPILOGUE_ACTIVATION, K>(s, g, p->bias));
    else if (epilogue == EPILOGUE_ACTIVATION_BACKWARD)
        DISPATCH_ACTIVATION(activation, K, launch<T, T, true, true, EPILOGUE_ACTIVATION_BACKWARD, K>(s, g));
    else if (epilogue == EPILOGUE_DELTA) launch<T, T, true, true, EPILOGUE_DELTA>(s, g);
    else if (epilogue == EPILOGUE_RESIDUAL && p->b.order == PLAIN)
        launch<T, T, true, false, EPILOGUE_RESIDUAL>(s, g, p->bias);
    else if (epilogue == EPILOGUE_RESIDUAL) launch<T, T, true, true, EPILOGUE_RESIDUAL>(s, g, p->bias);
    else if (p->b.order == PLAIN) launch<T, T, true, false, EPILOGUE_NONE>(s, g, p->bias);
    else launch<T, T, true, true, EPILOGUE_NONE>(s, g, p->bias);
    if (has_column_sums) column_sums(s, sums, workspace, F32, tiles_along(p->m), tiles_along(p->m), p->n, MATMUL_SET);
    if (way.parts == 1) return;
    LAUNCH(parts_total_kernel, blocks_for(p->m * p->n, WIDE * THREADS), THREADS, 0, s, (float *)p->c.data, p->c.ld,
           g.sums, way.parts, p->m, p->n, p->write == MATMUL_ADD);
}

void gemm_hopper(Stream *s, const Matmul *p, Epilogue epilogue, Activation activation, const void *aux, float *sums,
                 int head, GemmWay way, void *workspace) {
    if (p->a.type == BF16) queue<bf16>(s, p, epilogue, activation, aux, sums, head, way, workspace);
    else queue<half>(s, p, epilogue, activation, aux, sums, head, way, workspace);
}
