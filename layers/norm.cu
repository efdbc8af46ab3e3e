/* norm.cu - CUDA side of the layernorm, residual, rmsnorm and head_norm ops in layers.h.
 *
 * forward    A row stays where it was first loaded: in a warp's registers, or, if it is long, in a block's shared
 *            memory. Three passes of layernorm read it: mean, squared deviations from it (two passes lose nothing to
 *            cancellation), output. Two of rmsnorm: squares, output. Heads are rows too, several to a row of the
 *            tensor.
 * backward   A block has a contiguous range of rows, and each thread the same few channels of all of them, so the sums
 *            over rows stay in its registers. They go to scratch, and a second kernel adds the blocks' sums in order.
 *            The number of blocks depends on N and C alone: the same bits and the same scratch on every GPU.
 *
 *     layernorm   dx = dresidual + rstd (d - mean(d) - n mean(d n)),   n = (x-mean) rstd,   d = dy w,
 *                 dw = sum over rows of dy n,   db = sum over rows of dy,   dbias = sum over rows of dx
 *     rmsnorm     dx = dresidual + rstd (d - n mean(d n)),   n = x rstd,   d = dy w,   dw = sum over rows of dy n
 */
#include "core/kernel.cuh"
#include "core/ptx.cuh"
#include "layers/contracts.h"

/* --- sums over rows of what each row adds to a weight's gradient -------------------------------------------------- */

enum {
    MIN_ROWS = 16,      /* fewest rows of a block, so that its partial sums are under 1/4 of its memory traffic */
    MAX_BLOCKS = 1024, MIN_BLOCKS = 128, BLOCK_CHANNELS = 1 << 20, /* limits of the number of blocks, which give some
                                                                    * 100,000 threads for any C */
    TOTAL_ROWS = 16     /* warps that add the partial sums of 32 columns */
};

DEVICE int64_t first_row(int64_t N, int64_t block) { return N * block / gridDim.x; }

enum { SUMS_MOST = 3 };
typedef struct { float *of[SUMS_MOST]; } RowSums; /* outputs: one to three sums over rows, each [C]; of[1] and of[2] may
                                                   * be NULL */

/* Adds the partial sums to each of the sums, in a fixed order. The columns of all sums are numbered consecutively. Each
 * block of threads takes 32 columns; its warp i adds the partial sums i, i + TOTAL_ROWS, ... */
KERNEL row_sums_total_kernel(RowSums sums, const float *partial, int64_t blocks, int64_t C, int64_t columns) {
    await_kernels();
    SMEM(float, part, [TOTAL_ROWS][WARP]);
    int     lane = (int)threadIdx.x % WARP, first = (int)threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * WARP + lane;
    float   sum = 0.0f;
    if (column < columns) {
        #pragma unroll 4
        for (int64_t b = first; b < blocks; b += TOTAL_ROWS) sum += partial[b * columns + column];
    }
    part[first][lane] = sum;
    __syncthreads();
    if (first > 0 || column >= columns) return;
    for (int i = 1; i < TOTAL_ROWS; i++) sum += part[i][lane];
    if (column < C)          sums.of[0][column] += sum;
    else if (column < 2 * C) sums.of[1][column - C] += sum;
    else                     sums.of[2][column - 2 * C] += sum;
}

/* Adds the partial sums of all blocks, partial [blocks][columns of all sums], to the sums. */
static void row_sums_total(Stream *s, RowSums sums, const float *partial, int64_t blocks, int64_t C) {
    int64_t columns = 0;
    for (int i = 0; i < SUMS_MOST && sums.of[i]; i++) columns += C;
    LAUNCH_EARLY(row_sums_total_kernel, blocks_for(columns, WARP), TOTAL_ROWS * WARP, 0, s, sums, partial, blocks, C,
                 columns);
}

/* --- layernorm: forward ------------------------------------------------------------------------------------------- */

enum { WARPS = 4, HELD_PACKS = 8, LONG_ROW_THREADS = 256 };

template <typename T> struct LayerForward {
    T       *sum, *y; /* outputs: sum is x + update, if there is an update; y is the norm */
    float   *mean, *rstd;
    const T *x, *update, *w, *b;
    int64_t  N, C;
    float    eps;
};

/* Returns the row's pack at i of the flat arrays. If there is an update, adds the update to x and stores the sum. The
 * statistics are those of the row as stored. With ONCE the cache may drop the sum early, because it is needed again
 * only when the next branch ends. */
template <typename T, int W, Reuse reuse = ONCE, class F> DEVICE Pack<T, W> updated_pack(const F &f, int64_t i) {
    Pack<T, W> x = pack_load<T, W>(f.x + i);
    if (!f.update) return x;
    Pack<float, W> sum = pack_to_f32(x), update = pack_to_f32(pack_load_part<T, W, reuse>(f.update + i, W));
    for (int j = 0; j < W; j++) sum.v[j] += update.v[j];
    x = pack_from_f32<T>(sum);
    pack_store_part<reuse>(f.sum + i, x, W);
    return x;
}

template <typename T, int W> DEVICE float pack_total(Pack<T, W> x) {
    float total = 0.0f;
    for (int j = 0; j < W; j++) total += to_f32(x.v[j]);
    return total;
}
/* Returns the sum of the squared deviations from the mean. Without a mean it is the sum of the squares, for rmsnorm. */
template <typename T, int W> DEVICE float pack_squares(Pack<T, W> x, float mean = 0.0f) {
    float total = 0.0f;
    for (int j = 0; j < W; j++) {
        float d = to_f32(x.v[j]) - mean;
        total += d * d;
    }
    return total;
}

template <typename T, int W>
DEVICE void store_norm(const LayerForward<T> &f, int64_t row, int64_t c, Pack<T, W> x, float mean, float rstd) {
    Pack<float, W> y = pack_to_f32(x), w = pack_to_f32(pack_load<T, W>(f.w + c)),
                   b = pack_to_f32(pack_load<T, W>(f.b + c));
    for (int j = 0; j < W; j++) y.v[j] = (y.v[j] - mean) * rstd * w.v[j] + b.v[j];
    pack_store(f.y + row * f.C + c, pack_from_f32<T>(y));
}

/* Computes layernorm. Each warp holds one row of at most WARP HELD W channels in registers. grid ceil(N / WARPS), no
 * shared memory. Bound by memory: 2 elements of traffic for each element of y, 4 with an update. */
template <typename T, int W, int HELD> KERNEL layernorm_forward_kernel(LayerForward<T> f) {
    await_kernels();
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int     lane = (int)threadIdx.x % WARP;
    if (row >= f.N) return; /* the whole warp returns; the block has no barrier */
    Pack<T, W> x[HELD];
    float      sum = 0.0f, square = 0.0f;
    #pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t c = (k * WARP + lane) * W;
        if (c < f.C) x[k] = updated_pack<T, W>(f, row * f.C + c);
    }
    #pragma unroll
    for (int k = 0; k < HELD; k++)
        if ((k * WARP + lane) * W < f.C) sum += pack_total(x[k]);
    float mean = warp_sum(sum) / (float)f.C;
    #pragma unroll
    for (int k = 0; k < HELD; k++)
        if ((k * WARP + lane) * W < f.C) square += pack_squares(x[k], mean);
    float rstd = 1.0f / sqrtf(warp_sum(square) / (float)f.C + f.eps);
    #pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t c = (k * WARP + lane) * W;
        if (c < f.C) store_norm(f, row, c, x[k], mean, rstd);
    }
    if (lane == 0) f.mean[row] = mean, f.rstd[row] = rstd;
}

/* Computes layernorm of rows that do not fit in the registers of a warp. Each block holds one row in dynamic shared
 * memory. Each thread reads only its own packs. grid N. Bound by memory: 2 elements of traffic for each element of y, 4
 * with an update. */
template <typename T, int W> KERNEL layernorm_forward_long_kernel(LayerForward<T> f) {
    await_kernels();
    SMEM(float, part, [WARP]);
    SMEM_DYN(T, held);
    int64_t row = blockIdx.x, first = threadIdx.x * W, step = (int64_t)blockDim.x * W;
    float   sum = 0.0f, square = 0.0f;
    #pragma unroll 4
    for (int64_t c = first; c < f.C; c += step) {
        Pack<T, W> x = updated_pack<T, W>(f, row * f.C + c);
        pack_store(held + c, x);
        sum += pack_total(x);
    }
    float mean = block_sum(sum, part) / (float)f.C;
    for (int64_t c = first; c < f.C; c += step) square += pack_squares(pack_load<T, W>(held + c), mean);
    float rstd = 1.0f / sqrtf(block_sum(square, part) / (float)f.C + f.eps);
    for (int64_t c = first; c < f.C; c += step) store_norm(f, row, c, pack_load<T, W>(held + c), mean, rstd);
    if (threadIdx.x == 0) f.mean[row] = mean, f.rstd[row] = rstd;
}

enum { SUM_THREADS = 256 };

/* Computes sum = x + update alone. Each thread adds one pack. Bound by memory: 3 elements of traffic for each element
 * of sum. */
template <typename T, int W> KERNEL residual_kernel(LayerForward<T> f, int64_t elems) {
    await_kernels();
    int64_t i = pack_place<W, 1>(0);
    if (i < elems) updated_pack<T, W>(f, i);
}

void residual_forward(Stream *s, Tensor sum, Tensor x, Tensor update) {
    int64_t elems = tensor_elems(x);
    if (residual_forward_contract(s, sum, x, update) || elems == 0) return;
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, packs_fit((size_t)elems * sizeof(T), {sum.data, x.data, update.data}), W, {
        LayerForward<T> f = {};
        f.sum = ptr<T>(sum), f.x = ptr<T>(x), f.update = ptr<T>(update);
        LAUNCH_EARLY((residual_kernel<T, W>), blocks_for(elems, SUM_THREADS * W), SUM_THREADS, 0, s, f, elems);
    }));
}

/* --- layernorm: backward ------------------------------------------------------------------------------------------ */

enum {
    BLOCKS = 264,        /* two on each of 132 multiprocessors; the same number, and so the same sums, on every other
                          * GPU */
    ROWS = 2,            /* rows of a batch: their loads are in flight together, and they share a barrier */
    GROUP_THREADS = 256, /* a block has as many groups as fit into this many threads, each with its own rows */
    MOST_GROUPS = 8,     /* most groups of a block; they use named barriers 1 to 8 */
    LONG_THREADS = 512, MOST_WARPS = LONG_THREADS / WARP,
    JOINED = 1024        /* most channels of a block with several groups */
};

/* Returns the most threads of a block. So each thread has 168 registers for packs of 8 channels, otherwise 128. A
 * thread takes 140 with the next batch of rows in registers, and would take 83 without it.
 *
 * Why a batch ahead is worth fewer warps: two blocks of 768 channels are 12 warps of a multiprocessor, instead of 20.
 * They load 36 KiB at once, and memory is busy with some 40 KB in flight, of which three quarters are reads here. All
 * 12 warps issue a batch in some 2400 clocks, and memory takes 3800 for it, so more warps would wait for the same
 * memory. [calculated] */
template <int W> constexpr int max_threads() { return W > 4 ? 384 : 512; }

template <typename T> struct LayerBackward {
    T           *dx;                /* output; may be dresidual, because each element is read and written by one
                                     * thread */
    const T     *dresidual, *dy, *x, *w;
    const float *mean, *rstd;
    float       *partial;           /* partial sums of dw, db and dbias; [blocks][3][C], or [blocks][2][C] without
                                     * dbias */
    int64_t      N, C;
    int          sums;              /* number of sums over rows: 3 with dbias, otherwise 2 */
    float        per_channel;       /* 1/C    */
};

typedef struct { float d, dn; } Sums; /* sums over a row: d of dy w, and dn of dy w n, where n is the normalized x */

DEVICE Sums warp_sums(Sums x) { return {warp_sum(x.d), warp_sum(x.dn)}; }

template <int W> struct Totals { Pack<float, W> dw, db, dbias; }; /* a thread's sums over rows, for its pack of
                                                                   * channels */

/* A batch of rows that is being loaded: a thread's pack of each. */
template <typename T, int W> struct RowBatch {
    Pack<T, W> x[ROWS], dy[ROWS], dresidual[ROWS];
    float      mean[ROWS], rstd[ROWS];
};

/* Loads a batch. Rows past the end load the last row's elements, which are not used, so that no branch separates the
 * loads. */
template <typename T, int W>
DEVICE void load_batch(RowBatch<T, W> &b, const LayerBackward<T> &k, int64_t start, int first, int end, int c) {
    const T *joined = k.dresidual ? k.dresidual : k.x;
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t row = start + (first + r < end ? first + r : end - 1), i = row * k.C + c;
        b.mean[r] = k.mean[row], b.rstd[r] = k.rstd[row];
        b.x[r] = pack_load_once<T, W>(k.x + i), b.dy[r] = pack_load_once<T, W>(k.dy + i),
        b.dresidual[r] = pack_load<T, W>(joined + i);
    }
}

/* Adds a thread's share of one row to the row's sums and to the thread's totals. */
template <typename T, int W>
DEVICE void add_pack(Sums &row, Totals<W> &all, Pack<T, W> x, Pack<T, W> dy, Pack<T, W> w, float mean, float rstd) {
    #pragma unroll
    for (int j = 0; j < W; j++) {
        float n = (to_f32(x.v[j]) - mean) * rstd, g = to_f32(dy.v[j]), d = g * to_f32(w.v[j]);
        row.d += d, row.dn += d * n;
        all.dw.v[j] += g * n, all.db.v[j] += g;
    }
}

/* Computes and stores a pack of dx, and adds it, as stored, to dbias. */
template <typename T, int W>
DEVICE void store_dx(const LayerBackward<T> &k, Totals<W> &all, int64_t i, Pack<T, W> x, Pack<T, W> dy, Pack<T, W> w,
                     Pack<T, W> dresidual, float mean, float rstd, Sums means) {
    Pack<float, W> dx;
    #pragma unroll
    for (int j = 0; j < W; j++) {
        float n = (to_f32(x.v[j]) - mean) * rstd, d = to_f32(dy.v[j]) * to_f32(w.v[j]);
        dx.v[j] = rstd * (d - means.d - n * means.dn);
        if (k.dresidual) dx.v[j] += to_f32(dresidual.v[j]);
    }
    Pack<T, W> stored = pack_from_f32<T>(dx);
    pack_store(k.dx + i, stored);
    #pragma unroll
    for (int j = 0; j < W; j++) all.dbias.v[j] += to_f32(stored.v[j]);
}

template <typename T, int W> DEVICE void store_totals(const LayerBackward<T> &k, const Totals<W> &all, int64_t c) {
    float *partial = k.partial + blockIdx.x * k.sums * k.C + c;
    for (int j = 0; j < W; j++) {
        partial[j] = all.dw.v[j], partial[k.C + j] = all.db.v[j];
        if (k.sums > 2) partial[2 * k.C + j] = all.dbias.v[j];
    }
}

/* Makes the first group's totals those of all groups, added in order. */
template <int W> DEVICE void join_groups(Totals<W> &all, int c, bool mine, int group, int groups) {
    SMEM(float, joined, [SUMS_MOST][JOINED]);
    for (int g = groups - 1; g > 0; g--) { /* the last group begins, so that each group adds once and the first one ends
                                            * with the total */
        if (group == g && mine)
            for (int j = 0; j < W; j++)
                joined[0][c + j] = all.dw.v[j], joined[1][c + j] = all.db.v[j], joined[2][c + j] = all.dbias.v[j];
        __syncthreads(); /* after this group g's totals are in shared memory */
        if (group == g - 1 && mine)
            for (int j = 0; j < W; j++)
                all.dw.v[j] += joined[0][c + j], all.db.v[j] += joined[1][c + j], all.dbias.v[j] += joined[2][c + j];
        __syncthreads(); /* waits until the totals of group g have been read */
    }
}

/* A group of threads processes a batch of ROWS rows while its next batch is being loaded; the groups of a block
 * alternate over the batches. Each thread has one pack of channels; the threads of a group have at least C channels
 * together. Shared memory: each warp's sums of these rows, in two buffers, so that one barrier of the group a batch is
 * enough. Bound by memory: 3 elements of traffic for each element of dx, 4 with dresidual. */
template <typename T, int W>
__launch_bounds__(max_threads<W>()) KERNEL layernorm_backward_kernel(LayerBackward<T> k, int group_threads) {
    await_kernels();
    SMEM(Sums, part, [2][ROWS][MOST_WARPS]);
    int     group = (int)threadIdx.x / group_threads, groups = (int)blockDim.x / group_threads,
            warps = group_threads / WARP;
    int     lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, buffer = 0;
    int     c = ((int)threadIdx.x - group * group_threads) * W;
    bool    mine = c < k.C;
    if (!mine) c = 0; /* idle threads load valid elements that are not used */
    Pack<T, W>  w = pack_load<T, W>(k.w + c);
    Totals<W>   all = {};
    RowBatch<T, W> now, next;
    int64_t     start = first_row(k.N, blockIdx.x);
    /* row numbers, counted from the first row of the block */
    int         first = group * ROWS, step = groups * ROWS, end = (int)(first_row(k.N, blockIdx.x + 1) - start);
    if (first < end) load_batch(now, k, start, first, end, c);
    #pragma unroll 1
    for (; first < end; first += step, buffer ^= 1, now = next) {
        if (first + step < end) load_batch(next, k, start, first + step, end, c);
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            Sums row = {0.0f, 0.0f};
            if (mine && first + r < end) add_pack(row, all, now.x[r], now.dy[r], w, now.mean[r], now.rstd[r]);
            row = warp_sums(row);
            if (lane == 0) part[buffer][r][warp] = row;
        }
        named_barrier_sync(1 + group, group_threads); /* after this `part`, the sums of each warp, is complete; it is
                                                       * written again only after the next barrier, when all warps have
                                                       * read it */
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            Sums means = warp_sums(lane < warps ? part[buffer][r][group * warps + lane] : Sums{0.0f, 0.0f});
            means.d *= k.per_channel, means.dn *= k.per_channel;
            if (mine && first + r < end)
                store_dx(k, all, (start + first + r) * k.C + c, now.x[r], now.dy[r], w, now.dresidual[r], now.mean[r],
                         now.rstd[r], means);
        }
    }
    join_groups(all, c, mine, group, groups);
    if (mine && group == 0) store_totals(k, all, c);
}

/* Computes layernorm's backward for any C: the block passes twice over each row, and its sums over rows stay in
 * scratch, each element belonging to one thread. Bound by memory: 3 elements of traffic for each element of dx, 4 with
 * dresidual, and 16 or 24 bytes of L2 traffic. */
template <typename T, int W> KERNEL layernorm_backward_long_kernel(LayerBackward<T> k) {
    await_kernels();
    SMEM(float, part, [WARP]);
    int64_t at = threadIdx.x * W, step = (int64_t)blockDim.x * W, end = first_row(k.N, blockIdx.x + 1);
    float  *dw = k.partial + blockIdx.x * k.sums * k.C, *db = dw + k.C, *dbias = db + k.C;
    for (int64_t c = at; c < k.C; c += step) store_totals(k, Totals<W>{}, c);
    for (int64_t row = first_row(k.N, blockIdx.x); row < end; row++) {
        float mean = k.mean[row], rstd = k.rstd[row];
        Sums  sums = {0.0f, 0.0f};
        for (int64_t c = at; c < k.C; c += step) {
            int64_t   i = row * k.C + c;
            Totals<W> here = {};
            add_pack(sums, here, pack_load<T, W>(k.x + i), pack_load<T, W>(k.dy + i), pack_load<T, W>(k.w + c), mean,
                     rstd);
            for (int j = 0; j < W; j++) dw[c + j] += here.dw.v[j], db[c + j] += here.db.v[j];
        }
        Sums means = {block_sum(sums.d, part) / (float)k.C, block_sum(sums.dn, part) / (float)k.C};
        for (int64_t c = at; c < k.C; c += step) {
            int64_t    i = row * k.C + c;
            Totals<W>  here = {};
            Pack<T, W> x = pack_load<T, W>(k.x + i), dresidual = k.dresidual ? pack_load<T, W>(k.dresidual + i) : x;
            store_dx(k, here, i, x, pack_load<T, W>(k.dy + i), pack_load<T, W>(k.w + c), dresidual, mean, rstd, means);
            for (int j = 0; j < W && k.sums > 2; j++) dbias[c + j] += here.dbias.v[j];
        }
    }
}

/* --- rmsnorm and head_norm: rows ---------------------------------------------------------------------------------- */

/* Rows of C channels. Each row of a tensor has `heads` of them, contiguous from column `first` on. `rows` is the number
 * in all. */
typedef struct { int64_t rows, C, heads, first; } HeadRows;

/* Returns the element at which row `row` begins in a tensor that is `width` wide. */
DEVICE int64_t row_start(HeadRows r, int64_t row, int64_t width) {
    if (r.heads == 1) return row * width + r.first; /* avoids the division that several heads need */
    return row / r.heads * width + r.first + row % r.heads * r.C;
}

/* --- rmsnorm and head_norm: forward ------------------------------------------------------------------------------- */

template <typename T> struct RmsForward {
    T       *sum, *y; /* outputs: sum is x + update, if there is an update; y is the norm */
    float   *rstd;
    const T *x, *update, *w;
    HeadRows r;
    int64_t  x_width, y_width;
    float    eps;
};

template <typename T, int W> DEVICE void store_norm(T *y, const T *w, Pack<T, W> x, float rstd) {
    Pack<float, W> out = pack_to_f32(x), weight = pack_to_f32(pack_load<T, W>(w));
    for (int j = 0; j < W; j++) out.v[j] = out.v[j] * rstd * weight.v[j];
    pack_store(y, pack_from_f32<T>(out));
}

/* Computes rmsnorm. Each warp holds one row of at most WARP HELD W channels in registers. grid ceil(rows / WARPS), no
 * shared memory. Bound by memory: 2 elements of traffic for each element of y, 4 with an update. */
template <typename T, int W, int HELD> KERNEL rmsnorm_forward_kernel(RmsForward<T> f) {
    await_kernels();
    int64_t   row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    const int lane = (int)threadIdx.x % WARP, C = (int)f.r.C;
    if (row >= f.r.rows) return; /* the whole warp returns; the block has no barrier */
    int64_t    at = row_start(f.r, row, f.x_width), to = row_start(f.r, row, f.y_width);
    Pack<T, W> x[HELD];
    float      square = 0.0f;
    #pragma unroll
    for (int k = 0; k < HELD; k++) {
        int c = (k * WARP + lane) * W;
        x[k] = c < C ? updated_pack<T, W, REUSED>(f, at + c) : Pack<T, W>{};
    }
    #pragma unroll
    for (int k = 0; k < HELD; k++) square += pack_squares(x[k]);
    float rstd = 1.0f / sqrtf(warp_sum(square) / (float)C + f.eps);
    #pragma unroll
    for (int k = 0; k < HELD; k++) {
        int c = (k * WARP + lane) * W;
        if (c < C) store_norm(f.y + to + c, f.w + c, x[k], rstd);
    }
    if (lane == 0) f.rstd[row] = rstd;
}

/* Computes rmsnorm of longer rows. Each block holds one row in dynamic shared memory. Each thread reads only its own
 * packs. grid rows. Bound by memory: 2 elements of traffic for each element of y, 4 with an update. */
template <typename T, int W> KERNEL rmsnorm_forward_long_kernel(RmsForward<T> f) {
    await_kernels();
    SMEM(float, part, [WARP]);
    SMEM_DYN(T, held);
    int64_t row = blockIdx.x, first = threadIdx.x * W, step = (int64_t)blockDim.x * W;
    int64_t at = row_start(f.r, row, f.x_width), to = row_start(f.r, row, f.y_width);
    float   square = 0.0f;
    #pragma unroll 4
    for (int64_t c = first; c < f.r.C; c += step) {
        Pack<T, W> x = updated_pack<T, W, REUSED>(f, at + c);
        pack_store(held + c, x);
        square += pack_squares(x);
    }
    float rstd = 1.0f / sqrtf(block_sum(square, part) / (float)f.r.C + f.eps);
    for (int64_t c = first; c < f.r.C; c += step) store_norm(f.y + to + c, f.w + c, pack_load<T, W>(held + c), rstd);
    if (threadIdx.x == 0) f.rstd[row] = rstd;
}

static void forward_rows(Stream *s, Tensor sum, Tensor y, Tensor rstd, Tensor x, Tensor update, Tensor w, HeadRows r,
                         float eps) {
    int64_t x_width = x.dim[1], y_width = y.dim[1];
    bool    fit = packs_fit((size_t)(r.C | r.first | x_width | y_width) * dtype_bytes(x.type),
                            {sum.data, y.data, x.data, update.data, w.data});
    if (r.rows == 0) return;
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, fit, W, {
        RmsForward<T> f = {ptr<T>(sum), ptr<T>(y), ptr<float>(rstd), ptr<T>(x), ptr<T>(update), ptr<T>(w), r, x_width,
                           y_width, eps};
        int64_t held = blocks_for(r.C, WARP * W), blocks = blocks_for(r.rows, WARPS);
        if (held <= 1) LAUNCH_EARLY((rmsnorm_forward_kernel<T, W, 1>), blocks, WARPS * WARP, 0, s, f);
        else if (held <= HELD_PACKS)
            LAUNCH_EARLY((rmsnorm_forward_kernel<T, W, HELD_PACKS>), blocks, WARPS * WARP, 0, s, f);
        else LAUNCH_EARLY((rmsnorm_forward_long_kernel<T, W>), r.rows, LONG_ROW_THREADS, (size_t)r.C * sizeof(T), s, f);
    }));
}

/* --- rmsnorm and head_norm: backward ------------------------------------------------------------------------------ */

enum { MAX_THREADS = 512 }; /* most threads of a block, so that each thread may have 128 registers */

template <typename T> struct RmsBackward {
    T           *dx;                /* output; may be dresidual or dy, because each element is read and written by one
                                     * thread */
    const T     *dresidual, *dy, *x, *w;
    const float *rstd;
    float       *partial;           /* partial sums of dw; [blocks][C] */
    HeadRows     r;
    int64_t      dx_width, dy_width, x_width;
};

/* Adds a thread's share of one row to the row's sum of dy w n, and to dw; n is the normalized x. */
template <typename T, int W>
DEVICE void add_pack(float &sum, Pack<float, W> &dw, Pack<T, W> x, Pack<T, W> dy, Pack<T, W> w, float rstd) {
    #pragma unroll
    for (int j = 0; j < W; j++) {
        float n = to_f32(x.v[j]) * rstd, g = to_f32(dy.v[j]);
        sum += g * to_f32(w.v[j]) * n;
        dw.v[j] += g * n;
    }
}

template <typename T, int W>
DEVICE void store_dx(const RmsBackward<T> &k, int64_t i, Pack<T, W> x, Pack<T, W> dy, Pack<T, W> w,
                     Pack<T, W> dresidual, float rstd, float mean) {
    Pack<float, W> dx;
    #pragma unroll
    for (int j = 0; j < W; j++) {
        dx.v[j] = rstd * (to_f32(dy.v[j]) * to_f32(w.v[j]) - to_f32(x.v[j]) * rstd * mean);
        if (k.dresidual) dx.v[j] += to_f32(dresidual.v[j]);
    }
    pack_store(k.dx + i, pack_from_f32<T>(dx));
}

/* Computes dx and partial sums of dw. Each thread takes one pack of channels of ROWS rows at a time; blockDim.x W >= C.
 * Shared memory: each warp's sums of these rows, in two buffers, so that one barrier a batch is enough. Bound by
 * memory: 3 elements of traffic for each element of dx, 4 with dresidual. */
template <typename T, int W> __launch_bounds__(MAX_THREADS) KERNEL rmsnorm_backward_kernel(RmsBackward<T> k) {
    await_kernels();
    SMEM(float, part, [2][ROWS][WARP]);
    int     lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP, buffer = 0;
    int64_t c = threadIdx.x * W, end = first_row(k.r.rows, blockIdx.x + 1);
    bool    mine = c < k.r.C;
    if (!mine) c = 0; /* idle threads and rows past the end load valid elements that are not used, so that no branch
                       * separates the loads */
    Pack<T, W>     w = pack_load<T, W>(k.w + c);
    Pack<float, W> dw = {};
    for (int64_t first = first_row(k.r.rows, blockIdx.x); first < end; first += ROWS, buffer ^= 1) {
        Pack<T, W> x[ROWS], dy[ROWS], dresidual[ROWS];
        int64_t    to[ROWS];
        float      rstd[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int64_t row = first + r < end ? first + r : end - 1;
            to[r] = row_start(k.r, row, k.dx_width) + c, rstd[r] = k.rstd[row];
            x[r] = pack_load<T, W>(k.x + row_start(k.r, row, k.x_width) + c);
            dy[r] = pack_load<T, W>(k.dy + row_start(k.r, row, k.dy_width) + c);
            dresidual[r] = k.dresidual ? pack_load<T, W>(k.dresidual + to[r]) : x[r];
        }
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float sum = 0.0f;
            if (mine && first + r < end) add_pack(sum, dw, x[r], dy[r], w, rstd[r]);
            sum = warp_sum(sum);
            if (lane == 0) part[buffer][r][warp] = sum;
        }
        __syncthreads(); /* after this `part`, the sums of each warp, is complete; its buffer is written again only
                          * after the next barrier, when all warps have read it */
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float mean = warp_sum(lane < warps ? part[buffer][r][lane] : 0.0f) / (float)k.r.C;
            if (mine && first + r < end) store_dx(k, to[r], x[r], dy[r], w, dresidual[r], rstd[r], mean);
        }
    }
    if (!mine) return;
    float *partial = k.partial + blockIdx.x * k.r.C + c;
    for (int j = 0; j < W; j++) partial[j] = dw.v[j];
}

/* Computes rmsnorm's backward for any C: the block passes twice over each row, and its sums over rows stay in scratch,
 * each element belonging to one thread. Bound by memory: 3 elements of traffic for each element of dx, 4 with
 * dresidual, and 8 bytes of L2 traffic. */
template <typename T, int W> KERNEL rmsnorm_backward_long_kernel(RmsBackward<T> k) {
    await_kernels();
    SMEM(float, part, [WARP]);
    int64_t at = threadIdx.x * W, step = (int64_t)blockDim.x * W, end = first_row(k.r.rows, blockIdx.x + 1);
    float  *dw = k.partial + blockIdx.x * k.r.C;
    for (int64_t c = at; c < k.r.C; c += step)
        for (int j = 0; j < W; j++) dw[c + j] = 0.0f;
    for (int64_t row = first_row(k.r.rows, blockIdx.x); row < end; row++) {
        const T *x = k.x + row_start(k.r, row, k.x_width), *dy = k.dy + row_start(k.r, row, k.dy_width);
        int64_t  to = row_start(k.r, row, k.dx_width);
        float    rstd = k.rstd[row], sum = 0.0f;
        for (int64_t c = at; c < k.r.C; c += step) {
            Pack<float, W> dw_row = {};
            add_pack(sum, dw_row, pack_load<T, W>(x + c), pack_load<T, W>(dy + c), pack_load<T, W>(k.w + c), rstd);
            for (int j = 0; j < W; j++) dw[c + j] += dw_row.v[j];
        }
        float mean = block_sum(sum, part) / (float)k.r.C;
        for (int64_t c = at; c < k.r.C; c += step) {
            Pack<T, W> in = pack_load<T, W>(x + c), dresidual = in;
            if (k.dresidual) dresidual = pack_load<T, W>(k.dresidual + to + c);
            store_dx(k, to + c, in, pack_load<T, W>(dy + c), pack_load<T, W>(k.w + c), dresidual, rstd, mean);
        }
    }
}

static void backward_rows(Stream *s, Tensor dx, Tensor dw, Tensor dresidual, Tensor dy, Tensor x, Tensor w, Tensor rstd,
                          HeadRows r) {
    int64_t most = BLOCK_CHANNELS / r.C, blocks = blocks_for(r.rows, MIN_ROWS);
    most = most > MAX_BLOCKS ? (int64_t)MAX_BLOCKS : most < MIN_BLOCKS ? (int64_t)MIN_BLOCKS : most;
    if (blocks > most) blocks = most;
    if (r.rows == 0) return;
    size_t mark = arena_mark(&s->scratch);
    float *partial = (float *)arena_take(&s->scratch, (size_t)(blocks * r.C) * sizeof(float));
    bool   fit = packs_fit((size_t)(r.C | r.first | dx.dim[1] | dy.dim[1] | x.dim[1]) * dtype_bytes(x.type),
                           {dx.data, dresidual.data, dy.data, x.data, w.data});
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, fit, W, {
        RmsBackward<T> k = {ptr<T>(dx), ptr<T>(dresidual), ptr<T>(dy), ptr<T>(x), ptr<T>(w), ptr<float>(rstd), partial,
                            r, dx.dim[1], dy.dim[1], x.dim[1]};
        int64_t threads = blocks_for(blocks_for(r.C, W), WARP) * WARP;
        if (threads <= MAX_THREADS) LAUNCH_EARLY((rmsnorm_backward_kernel<T, W>), blocks, threads, 0, s, k);
        else LAUNCH_EARLY((rmsnorm_backward_long_kernel<T, W>), blocks, MAX_THREADS, 0, s, k);
    }));
    row_sums_total(s, {{ptr<float>(dw)}}, partial, blocks, r.C);
    arena_release(&s->scratch, mark);
}

/* --- the ops: layernorm is rmsnorm if it has no mean and no bias -------------------------------------------------- */

void layernorm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update, Tensor w,
                       Tensor b, float eps) {
    int64_t N = x.dim[0], C = x.dim[1];
    if (norm_forward_contract(s, sum, y, mean, rstd, x, update, w, b, NULL) || N == 0) return;
    if (tensor_is_none(b)) {
        forward_rows(s, sum, y, rstd, x, update, w, {N, C, 1, 0}, eps);
        return;
    }
    bool fit = packs_fit((size_t)C * dtype_bytes(x.type), {sum.data, y.data, x.data, update.data, w.data, b.data});
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, fit, W, {
        LayerForward<T> f = {ptr<T>(sum), ptr<T>(y), ptr<float>(mean), ptr<float>(rstd), ptr<T>(x), ptr<T>(update),
                             ptr<T>(w), ptr<T>(b), N, C, eps};
        int64_t held = blocks_for(C, WARP * W), blocks = blocks_for(N, WARPS);
        if (held <= HELD_PACKS / 2)
            LAUNCH_EARLY((layernorm_forward_kernel<T, W, HELD_PACKS / 2>), blocks, WARPS * WARP, 0, s, f);
        else if (held <= HELD_PACKS)
            LAUNCH_EARLY((layernorm_forward_kernel<T, W, HELD_PACKS>), blocks, WARPS * WARP, 0, s, f);
        else LAUNCH_EARLY((layernorm_forward_long_kernel<T, W>), N, LONG_ROW_THREADS, (size_t)C * sizeof(T), s, f);
    }));
}

void layernorm_backward(Stream *s, Tensor dx, Tensor dbias, Tensor dw, Tensor db, Tensor dresidual, Tensor dy, Tensor x,
                        Tensor w, Tensor mean, Tensor rstd) {
    int64_t N = x.dim[0], C = x.dim[1], sums = tensor_is_none(dbias) ? 2 : 3, blocks = blocks_for(N, MIN_ROWS);
    if (blocks > BLOCKS) blocks = BLOCKS;
    norm_backward_contract(s, dx, dbias, dw, db, dresidual, dy, x, w, mean, rstd);
    if (N == 0) return;
    if (tensor_is_none(db)) {
        backward_rows(s, dx, dw, dresidual, dy, x, w, rstd, {N, C, 1, 0});
        return;
    }
    size_t mark = arena_mark(&s->scratch);
    float *partial = (float *)arena_take(&s->scratch, (size_t)(blocks * sums * C) * sizeof(float));
    bool   fit = packs_fit((size_t)C * dtype_bytes(x.type), {dx.data, dresidual.data, dy.data, x.data, w.data});
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, fit, W, {
        LayerBackward<T> k = {ptr<T>(dx), ptr<T>(dresidual), ptr<T>(dy), ptr<T>(x), ptr<T>(w), ptr<float>(mean),
                              ptr<float>(rstd), partial, N, C, (int)sums, 1.0f / (float)C};
        int64_t threads = blocks_for(blocks_for(C, W), WARP) * WARP, groups = GROUP_THREADS / threads;
        groups = groups < 1 ? 1 : groups > MOST_GROUPS ? (int64_t)MOST_GROUPS : groups;
        if (threads <= max_threads<W>())
            LAUNCH_EARLY((layernorm_backward_kernel<T, W>), blocks, threads * groups, 0, s, k, (int)threads);
        else LAUNCH_EARLY((layernorm_backward_long_kernel<T, W>), blocks, LONG_THREADS, 0, s, k);
    }));
    row_sums_total(s, {{ptr<float>(dw), ptr<float>(db), ptr<float>(dbias)}}, partial, blocks, C);
    arena_release(&s->scratch, mark);
}

void head_norm_forward(Stream *s, Tensor y, Tensor rstd, Tensor x, int64_t first, int64_t heads, Tensor w, float eps) {
    HeadRows r = {x.dim[0] * heads, w.dim[0], heads, first};
    if (head_norm_forward_contract(s, y, rstd, x, first, heads, w)) return;
    forward_rows(s, tensor_none(), y, rstd, x, tensor_none(), w, r, eps);
}

void head_norm_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, int64_t first, int64_t heads, Tensor w,
                        Tensor rstd) {
    HeadRows r = {x.dim[0] * heads, w.dim[0], heads, first};
    head_norm_backward_contract(s, dx, dw, dy, x, first, heads, w, rstd);
    backward_rows(s, dx, dw, tensor_none(), dy, x, w, rstd, r);
}
