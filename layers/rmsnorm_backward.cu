/* rmsnorm_backward.cu - CUDA side of rmsnorm_backward and head_norm_backward in layers.h. With n = x rstd and d = dy w,
 *
 *     dx = dresidual + rstd (d - n mean(d n)),   dw = sum over rows of dy n.
 *
 * A block has a contiguous range of rows, and each thread the same few channels of all of them, so the sums over rows
 * stay in its registers. They go to scratch as [blocks][C], and row_sums.cuh adds the blocks in order. */
#include "layers/contracts.h"
#include "layers/rmsnorm.cuh"
#include "layers/row_sums.cuh"

enum {
    ROWS = 2,           /* rows of a batch: their loads are in flight together, and they share a barrier */
    MAX_THREADS = 512   /* 128 registers each                                                            */
};

template <typename T> struct RmsBackward {
    T           *dx;                /* may be dresidual or dy, because each element is read and written by one thread */
    const T     *dresidual, *dy, *x, *w;
    const float *rstd;
    float       *partial;           /* [blocks][C] */
    HeadRows     r;
    int64_t      dx_width, dy_width, x_width;
};

/* Adds a thread's share of one row to the row's sum of d n, and to dw. */
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

/* Thread: one pack of channels of ROWS rows at a time, blockDim.x W >= C. Shared memory: each warp's sums of these
 * rows, in two buffers, so that one barrier a batch is enough. Bound: traffic of 3 elements each, 4 with dresidual. */
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
        __syncthreads(); /* part is complete; its buffer is written again past the next barrier, when all have read
                          * it */
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

/* Handles any C: the block passes twice over each row, and its sums over rows stay in scratch, each element belonging
 * to one thread. Bound: as above, and 8 bytes of L2 traffic each. */
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
    int64_t blocks = partial_blocks(r.rows, r.C);
    if (r.rows == 0) return;
    size_t mark = arena_mark(&s->scratch);
    float *partial = (float *)arena_take(&s->scratch, (size_t)(blocks * r.C) * sizeof(float));
    bool   fit = packs_fit((size_t)(r.C | r.first | dx.dim[1] | dy.dim[1] | x.dim[1]) * dtype_bytes(x.type),
                           {dx.data, dresidual.data, dy.data, x.data, w.data});
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, fit, W, {
                     RmsBackward<T> k = {ptr<T>(dx), ptr<T>(dresidual), ptr<T>(dy), ptr<T>(x), ptr<T>(w),
                                         ptr<float>(rstd), partial, r, dx.dim[1], dy.dim[1], x.dim[1]};
                     int64_t     threads = blocks_for(blocks_for(r.C, W), WARP) * WARP;
                     if (threads <= MAX_THREADS) LAUNCH_EARLY((rmsnorm_backward_kernel<T, W>), blocks, threads, 0, s, k);
                     else LAUNCH_EARLY((rmsnorm_backward_long_kernel<T, W>), blocks, MAX_THREADS, 0, s, k);
                 }));
    row_sums_total(s, {{ptr<float>(dw)}}, partial, blocks, r.C);
    arena_release(&s->scratch, mark);
}

void rmsnorm_backward(Stream *s, Tensor dx, Tensor dw, Tensor dresidual, Tensor dy, Tensor x, Tensor w, Tensor rstd) {
    HeadRows r = {x.dim[0], x.dim[1], 1, 0};
    rmsnorm_backward_contract(s, dx, dw, dresidual, dy, x, w, rstd);
    backward_rows(s, dx, dw, dresidual, dy, x, w, rstd, r);
}

void head_norm_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, int64_t first, int64_t heads, Tensor w,
                        Tensor rstd) {
    Tensor   none = tensor_2d(NULL, x.type, x.dim[0], x.dim[1]);
    HeadRows r = {x.dim[0] * heads, w.dim[0], heads, first};
    head_norm_backward_contract(s, dx, dw, dy, x, first, heads, w, rstd);
    backward_rows(s, dx, dw, none, dy, x, w, rstd, r);
}
