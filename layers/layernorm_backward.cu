/* layernorm_backward.cu - CUDA side of layernorm_backward in layers.h. With n = (x-mean) rstd and d = dy w,
 *
 *     dx = dresidual + rstd (d - mean(d) - n mean(d n)),   dw = sum over rows of dy n,   db = sum over rows of dy.
 *
 * A block takes a stretch of rows, and each thread the same few channels of all of them, so the sums over rows stay in
 * its registers; they go to scratch as [blocks][2][C], and row_sums.cuh adds the blocks in order. */
#include "layers/contracts.h"
#include "layers/row_sums.cuh"

enum {
    ROWS = 2,           /* of a batch: their loads are on their way together, and they share a barrier   */
    MAX_THREADS = 512   /* 128 registers each                                                            */
};

template <typename T> struct Backward {
    T           *dx;                /* may be dresidual: each element is read and written by one thread */
    const T     *dresidual, *dy, *x, *w;
    const float *mean, *rstd;
    float       *partial;           /* [blocks][2][C] */
    int64_t      N, C;
};

typedef struct { float d, dn; } Sums; /* over a row of d, and of d n */

DEVICE Sums warp_sums(Sums x) { return {warp_sum(x.d), warp_sum(x.dn)}; }

/* Adds a thread's share of one row to its sums. */
template <typename T, int W>
DEVICE void add_pack(Sums &row, Pack<float, W> &dw, Pack<float, W> &db, Pack<T, W> x, Pack<T, W> dy, Pack<T, W> w, float mean,
                     float rstd) {
    #pragma unroll
    for (int j = 0; j < W; j++) {
        float n = (to_f32(x.v[j]) - mean) * rstd, g = to_f32(dy.v[j]), d = g * to_f32(w.v[j]);
        row.d += d, row.dn += d * n;
        dw.v[j] += g * n, db.v[j] += g;
    }
}

template <typename T, int W>
DEVICE void store_dx(const Backward<T> &k, int64_t i, Pack<T, W> x, Pack<T, W> dy, Pack<T, W> w, Pack<T, W> dresidual, float mean,
                     float rstd, Sums means) {
    Pack<float, W> dx;
    #pragma unroll
    for (int j = 0; j < W; j++) {
        float n = (to_f32(x.v[j]) - mean) * rstd, d = to_f32(dy.v[j]) * to_f32(w.v[j]);
        dx.v[j] = rstd * (d - means.d - n * means.dn);
        if (k.dresidual) dx.v[j] += to_f32(dresidual.v[j]);
    }
    pack_store(k.dx + i, pack_from_f32<T>(dx));
}

/* Thread: one pack of channels of ROWS rows at a time, blockDim.x W >= C. Shared memory: each warp's sums of these
 * rows, in two buffers, so that one barrier a batch is enough. Bound: traffic of 3 elements each, 4 with dresidual. */
template <typename T, int W> __launch_bounds__(MAX_THREADS) KERNEL layernorm_backward_kernel(Backward<T> k) {
    SMEM(Sums, part, [2][ROWS][WARP]);
    int     lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, warps = (int)blockDim.x / WARP, buffer = 0;
    int64_t c = threadIdx.x * W, end = first_row(k.N, blockIdx.x + 1);
    bool    mine = c < k.C;
    if (!mine) c = 0; /* idle threads and rows past the end load valid elements, unused: no branch parts the loads */
    const T       *joined = k.dresidual ? k.dresidual : k.x;
    Pack<T, W>     w = pack_load<T, W>(k.w + c);
    Pack<float, W> dw = {}, db = {};
    for (int64_t first = first_row(k.N, blockIdx.x); first < end; first += ROWS, buffer ^= 1) {
        Pack<T, W> x[ROWS], dy[ROWS], dresidual[ROWS];
        float      mean[ROWS], rstd[ROWS];
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int64_t row = first + r < end ? first + r : end - 1, i = row * k.C + c;
            mean[r] = k.mean[row], rstd[r] = k.rstd[row];
            x[r] = pack_load<T, W>(k.x + i), dy[r] = pack_load<T, W>(k.dy + i), dresidual[r] = pack_load<T, W>(joined + i);
        }
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            Sums row = {0.0f, 0.0f};
            if (mine && first + r < end) add_pack(row, dw, db, x[r], dy[r], w, mean[r], rstd[r]);
            row = warp_sums(row);
            if (lane == 0) part[buffer][r][warp] = row;
        }
        __syncthreads(); /* part is complete; this buffer is written again past the next barrier, which all reach after reading */
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            Sums means = warp_sums(lane < warps ? part[buffer][r][lane] : Sums{0.0f, 0.0f});
            means.d /= (float)k.C, means.dn /= (float)k.C;
            if (mine && first + r < end) store_dx(k, (first + r) * k.C + c, x[r], dy[r], w, dresidual[r], mean[r], rstd[r], means);
        }
    }
    if (!mine) return;
    float *partial = k.partial + blockIdx.x * 2 * k.C + c;
    for (int j = 0; j < W; j++) partial[j] = dw.v[j], partial[k.C + j] = db.v[j];
}

/* Any C: the block goes twice over each row, and its sums over rows stay in scratch, each element one thread's. Bound:
 * as above and 16 bytes of L2 traffic each. */
template <typename T, int W> KERNEL layernorm_backward_long_kernel(Backward<T> k) {
    SMEM(float, part, [WARP]);
    int64_t at = threadIdx.x * W, step = (int64_t)blockDim.x * W, end = first_row(k.N, blockIdx.x + 1);
    float  *dw = k.partial + blockIdx.x * 2 * k.C, *db = dw + k.C;
    for (int64_t c = at; c < k.C; c += step)
        for (int j = 0; j < W; j++) dw[c + j] = 0.0f, db[c + j] = 0.0f;
    for (int64_t row = first_row(k.N, blockIdx.x); row < end; row++) {
        float mean = k.mean[row], rstd = k.rstd[row];
        Sums  sums = {0.0f, 0.0f};
        for (int64_t c = at; c < k.C; c += step) {
            int64_t        i = row * k.C + c;
            Pack<float, W> dw_row = {}, db_row = {};
            add_pack(sums, dw_row, db_row, pack_load<T, W>(k.x + i), pack_load<T, W>(k.dy + i),
                     pack_load<T, W>(k.w + c), mean, rstd);
            for (int j = 0; j < W; j++) dw[c + j] += dw_row.v[j], db[c + j] += db_row.v[j];
        }
        Sums means = {block_sum(sums.d, part) / (float)k.C, block_sum(sums.dn, part) / (float)k.C};
        for (int64_t c = at; c < k.C; c += step) {
            int64_t    i = row * k.C + c;
            Pack<T, W> x = pack_load<T, W>(k.x + i), dresidual = k.dresidual ? pack_load<T, W>(k.dresidual + i) : x;
            store_dx(k, i, x, pack_load<T, W>(k.dy + i), pack_load<T, W>(k.w + c), dresidual, mean, rstd, means);
        }
    }
}

static size_t partial_bytes(int64_t N, int64_t C) { return (size_t)(partial_blocks(N, C) * 2 * C) * sizeof(float); }

void layernorm_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dresidual, Tensor dy, Tensor x, Tensor w, Tensor mean,
                        Tensor rstd) {
    int64_t N = x.dim[0], C = x.dim[1], blocks = partial_blocks(N, C);
    layernorm_backward_contract(s, dx, dw, db, dresidual, dy, x, w, mean, rstd);
    if (N == 0) return;
    size_t mark = arena_mark(&s->scratch);
    float *partial = (float *)arena_take(&s->scratch, partial_bytes(N, C));
    bool   fit = packs_fit((size_t)C * dtype_bytes(x.type), {dx.data, dresidual.data, dy.data, x.data, w.data});
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, fit, W, {
                     Backward<T> k = {ptr<T>(dx), ptr<T>(dresidual), ptr<T>(dy), ptr<T>(x), ptr<T>(w),
                                      ptr<float>(mean), ptr<float>(rstd), partial, N, C};
                     int64_t     threads = blocks_for(blocks_for(C, W), WARP) * WARP;
                     if (threads <= MAX_THREADS) LAUNCH((layernorm_backward_kernel<T, W>), blocks, threads, 0, s, k);
                     else LAUNCH((layernorm_backward_long_kernel<T, W>), blocks, MAX_THREADS, 0, s, k);
                 }));
    row_sums_total(s, ptr<float>(dw), ptr<float>(db), partial, blocks, C);
    arena_release(&s->scratch, mark);
}
