/* layernorm_backward.cu - CUDA side of layernorm_backward in layers.h. With n = (x-mean) rstd and d = dy w,
 *
 *     dx = dresidual + rstd (d - mean(d) - n mean(d n)),   dw = sum over rows of dy n,   db = sum over rows of dy,
 *
 * and dbias = sum over rows of dx. A block has a contiguous range of rows, and each thread the same few channels of all
 * of them, so the sums over rows stay in its registers. They go to scratch as [blocks][3][C], and row_sums.cuh adds the
 * blocks in order. */
#include "core/ptx.cuh"
#include "layers/contracts.h"
#include "layers/row_sums.cuh"

enum {
    BLOCKS = 264,        /* two on each of 132 multiprocessors; the same number, and so the same sums, on every other
                          * GPU */
    ROWS = 2,            /* rows of a batch: their loads are in flight together, and they share a barrier */
    GROUP_THREADS = 256, /* a block has as many groups as fit into this many threads, each with its own rows */
    MOST_GROUPS = 8,     /* they use named barriers 1 to 8 */
    LONG_THREADS = 512, MOST_WARPS = LONG_THREADS / WARP,
    JOINED = 1024        /* most channels of a block with several groups */
};

/* Threads of a block: 168 registers each for packs of 8 channels, otherwise 128. A next batch in registers takes 140 of
 * them, without it 83 would do: two blocks of 768 channels are 12 warps of a multiprocessor, not 20. They load 36 KiB
 * at once; to keep memory busy takes some 40 KB, of which three quarters are reads here. All 12 issue a batch in some
 * 2400 clocks, and memory takes 3800 for it, so more warps would wait for the same memory. [calculated] */
template <int W> constexpr int max_threads() { return W > 4 ? 384 : 512; }

template <typename T> struct Backward {
    T           *dx;                /* may be dresidual, because each element is read and written by one thread */
    const T     *dresidual, *dy, *x, *w;
    const float *mean, *rstd;
    float       *partial;           /* [blocks][3][C]; [blocks][2][C] without dbias */
    int64_t      N, C;
    int          sums;              /* 3 or 2 */
    float        per_channel;       /* 1/C    */
};

typedef struct { float d, dn; } Sums; /* sums over a row of d and of d n */

DEVICE Sums warp_sums(Sums x) { return {warp_sum(x.d), warp_sum(x.dn)}; }

template <int W> struct Totals { Pack<float, W> dw, db, dbias; }; /* a thread's sums over rows */

/* A batch of rows that is being loaded: a thread's pack of each. */
template <typename T, int W> struct RowBatch {
    Pack<T, W> x[ROWS], dy[ROWS], dresidual[ROWS];
    float      mean[ROWS], rstd[ROWS];
};

/* Loads a batch. Rows past the end load the last row's elements, which are not used, so that no branch separates the
 * loads. */
template <typename T, int W> DEVICE void load_batch(RowBatch<T, W> &b, const Backward<T> &k, int64_t start, int first, int end, int c) {
    const T *joined = k.dresidual ? k.dresidual : k.x;
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t row = start + (first + r < end ? first + r : end - 1), i = row * k.C + c;
        b.mean[r] = k.mean[row], b.rstd[r] = k.rstd[row];
        b.x[r] = pack_load_once<T, W>(k.x + i), b.dy[r] = pack_load_once<T, W>(k.dy + i), b.dresidual[r] = pack_load<T, W>(joined + i);
    }
}

/* Adds a thread's share of one row to its sums. */
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
DEVICE void store_dx(const Backward<T> &k, Totals<W> &all, int64_t i, Pack<T, W> x, Pack<T, W> dy, Pack<T, W> w, Pack<T, W> dresidual,
                     float mean, float rstd, Sums means) {
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

template <typename T, int W> DEVICE void store_totals(const Backward<T> &k, const Totals<W> &all, int64_t c) {
    float *partial = k.partial + blockIdx.x * k.sums * k.C + c;
    for (int j = 0; j < W; j++) {
        partial[j] = all.dw.v[j], partial[k.C + j] = all.db.v[j];
        if (k.sums > 2) partial[2 * k.C + j] = all.dbias.v[j];
    }
}

/* Makes the first group's totals those of all groups, added in order. */
template <int W> DEVICE void join_groups(Totals<W> &all, int c, bool mine, int group, int groups) {
    SMEM(float, joined, [SUMS_MOST][JOINED]);
    for (int g = groups - 1; g > 0; g--) { /* from the last group down, so that each adds once and the first ends with
                                            * the total */
        if (group == g && mine)
            for (int j = 0; j < W; j++) joined[0][c + j] = all.dw.v[j], joined[1][c + j] = all.db.v[j], joined[2][c + j] = all.dbias.v[j];
        __syncthreads(); /* group g's totals are there */
        if (group == g - 1 && mine)
            for (int j = 0; j < W; j++)
                all.dw.v[j] += joined[0][c + j], all.db.v[j] += joined[1][c + j], all.dbias.v[j] += joined[2][c + j];
        __syncthreads(); /* and have been read */
    }
}

/* A group of threads processes a batch of ROWS rows while its next batch is being loaded; the groups of a block
 * alternate over the batches. Thread: one pack of channels, threads of a group W >= C. Shared memory: each warp's sums
 * of these rows, in two buffers, so that one barrier of the group a batch is enough. Bound: traffic of 3 elements each,
 * 4 with dresidual. */
template <typename T, int W> __launch_bounds__(max_threads<W>()) KERNEL layernorm_backward_kernel(Backward<T> k, int group_threads) {
    await_kernels();
    SMEM(Sums, part, [2][ROWS][MOST_WARPS]);
    int     group = (int)threadIdx.x / group_threads, groups = (int)blockDim.x / group_threads, warps = group_threads / WARP;
    int     lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, buffer = 0;
    int     c = ((int)threadIdx.x - group * group_threads) * W;
    bool    mine = c < k.C;
    if (!mine) c = 0; /* idle threads load valid elements that are not used */
    Pack<T, W>  w = pack_load<T, W>(k.w + c);
    Totals<W>   all = {};
    RowBatch<T, W> now, next;
    int64_t     start = first_row(k.N, blockIdx.x);
    /* rows relative to the block's first */
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
        named_barrier_sync(1 + group, group_threads); /* part is complete; it is written again past the next barrier,
                                                       * when all have read it */
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            Sums means = warp_sums(lane < warps ? part[buffer][r][group * warps + lane] : Sums{0.0f, 0.0f});
            means.d *= k.per_channel, means.dn *= k.per_channel;
            if (mine && first + r < end)
                store_dx(k, all, (start + first + r) * k.C + c, now.x[r], now.dy[r], w, now.dresidual[r], now.mean[r], now.rstd[r], means);
        }
    }
    join_groups(all, c, mine, group, groups);
    if (mine && group == 0) store_totals(k, all, c);
}

/* Handles any C: the block passes twice over each row, and its sums over rows stay in scratch, each element belonging
 * to one thread. Bound: as above, and 16 or 24 bytes of L2 traffic each. */
template <typename T, int W> KERNEL layernorm_backward_long_kernel(Backward<T> k) {
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
            add_pack(sums, here, pack_load<T, W>(k.x + i), pack_load<T, W>(k.dy + i), pack_load<T, W>(k.w + c), mean, rstd);
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

static int64_t blocks_of(int64_t N) { return blocks_for(N, MIN_ROWS) < BLOCKS ? blocks_for(N, MIN_ROWS) : (int64_t)BLOCKS; }

template <typename T, int W> static void launch_backward(Stream *s, Backward<T> k, int64_t blocks) {
    int64_t threads = blocks_for(blocks_for(k.C, W), WARP) * WARP, groups = GROUP_THREADS / threads;
    groups = groups < 1 ? 1 : groups > MOST_GROUPS ? (int64_t)MOST_GROUPS : groups;
    if (threads <= max_threads<W>()) LAUNCH_EARLY((layernorm_backward_kernel<T, W>), blocks, threads * groups, 0, s, k, (int)threads);
    else LAUNCH_EARLY((layernorm_backward_long_kernel<T, W>), blocks, LONG_THREADS, 0, s, k);
}

void layernorm_backward(Stream *s, Tensor dx, Tensor dbias, Tensor dw, Tensor db, Tensor dresidual, Tensor dy, Tensor x, Tensor w,
                        Tensor mean, Tensor rstd) {
    int64_t N = x.dim[0], C = x.dim[1], blocks = blocks_of(N), sums = tensor_is_none(dbias) ? 2 : 3;
    layernorm_backward_contract(s, dx, dbias, dw, db, dresidual, dy, x, w, mean, rstd);
    if (N == 0) return;
    size_t mark = arena_mark(&s->scratch);
    float *partial = (float *)arena_take(&s->scratch, (size_t)(blocks * sums * C) * sizeof(float));
    bool   fit = packs_fit((size_t)C * dtype_bytes(x.type), {dx.data, dresidual.data, dy.data, x.data, w.data});
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, fit, W, {
                     Backward<T> k = {ptr<T>(dx), ptr<T>(dresidual), ptr<T>(dy), ptr<T>(x), ptr<T>(w),
                                      ptr<float>(mean), ptr<float>(rstd), partial, N, C, (int)sums,
                                      1.0f / (float)C};
                     launch_backward<T, W>(s, k, blocks);
                 }));
    row_sums_total(s, {{ptr<float>(dw), ptr<float>(db), ptr<float>(dbias)}}, partial, blocks, C);
    arena_release(&s->scratch, mark);
}
