/* rmsnorm.cu - CUDA side of the forward rmsnorm and head_norm ops in layers.h; rmsnorm_backward.cu has the others. A
 * row stays where it was first loaded: in a warp's registers, or, if it is long, in a block's shared memory. Two passes
 * read it: squares, output. Heads are rows too, several to a row of the tensor. */
#include "layers/contracts.h"
#include "layers/rmsnorm.cuh"

enum { WARPS = 4, HELD_PACKS = 8, LONG_ROW_THREADS = 256 };

template <typename T> struct RmsForward {
    T       *sum, *y; /* sum: x + update as stored, if there is an update */
    float   *rstd;
    const T *x, *update, *w;
    HeadRows r;
    int64_t  x_width, y_width;
    float    eps;
};

/* Returns the row's pack at i of the flat arrays. If there is an update it adds it and stores the sum. The statistics
 * are those of the row as stored. */
template <typename T, int W> DEVICE Pack<T, W> updated_pack(const RmsForward<T> &f, int64_t i) {
    Pack<T, W> x = pack_load<T, W>(f.x + i);
    if (!f.update) return x;
    Pack<float, W> sum = pack_to_f32(x), update = pack_to_f32(pack_load<T, W>(f.update + i));
    for (int j = 0; j < W; j++) sum.v[j] += update.v[j];
    x = pack_from_f32<T>(sum);
    pack_store(f.sum + i, x);
    return x;
}

template <typename T, int W> DEVICE float pack_square(Pack<T, W> x) {
    float total = 0.0f;
    for (int j = 0; j < W; j++) total += to_f32(x.v[j]) * to_f32(x.v[j]);
    return total;
}

template <typename T, int W> DEVICE void store_norm(T *y, const T *w, Pack<T, W> x, float rstd) {
    Pack<float, W> out = pack_to_f32(x), weight = pack_to_f32(pack_load<T, W>(w));
    for (int j = 0; j < W; j++) out.v[j] = out.v[j] * rstd * weight.v[j];
    pack_store(y, pack_from_f32<T>(out));
}

/* Warp: one row of at most WARP HELD W channels, held in registers. grid ceil(rows / WARPS), no shared memory. Bound:
 * its traffic, 2 elements each, 4 with an update. */
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
        x[k] = c < C ? updated_pack<T, W>(f, at + c) : Pack<T, W>{};
    }
    #pragma unroll
    for (int k = 0; k < HELD; k++) square += pack_square(x[k]);
    float rstd = 1.0f / sqrtf(warp_sum(square) / (float)C + f.eps);
    #pragma unroll
    for (int k = 0; k < HELD; k++) {
        int c = (k * WARP + lane) * W;
        if (c < C) store_norm(f.y + to + c, f.w + c, x[k], rstd);
    }
    if (lane == 0) f.rstd[row] = rstd;
}

/* Block: one longer row, held in dynamic shared memory. Each thread reads only its own packs. grid rows. Bound: as
 * above. */
template <typename T, int W> KERNEL rmsnorm_forward_long_kernel(RmsForward<T> f) {
    await_kernels();
    SMEM(float, part, [WARP]);
    SMEM_DYN(T, held);
    int64_t row = blockIdx.x, first = threadIdx.x * W, step = (int64_t)blockDim.x * W;
    int64_t at = row_start(f.r, row, f.x_width), to = row_start(f.r, row, f.y_width);
    float   square = 0.0f;
    #pragma unroll 4
    for (int64_t c = first; c < f.r.C; c += step) {
        Pack<T, W> x = updated_pack<T, W>(f, at + c);
        pack_store(held + c, x);
        square += pack_square(x);
    }
    float rstd = 1.0f / sqrtf(block_sum(square, part) / (float)f.r.C + f.eps);
    for (int64_t c = first; c < f.r.C; c += step) store_norm(f.y + to + c, f.w + c, pack_load<T, W>(held + c), rstd);
    if (threadIdx.x == 0) f.rstd[row] = rstd;
}

template <typename T, int W> static void launch_forward(Stream *s, RmsForward<T> f) {
    int64_t held = blocks_for(f.r.C, WARP * W), rows = f.r.rows;
    if (rows == 0) return;
    if (held <= 1) LAUNCH_EARLY((rmsnorm_forward_kernel<T, W, 1>), blocks_for(rows, WARPS), WARPS * WARP, 0, s, f);
    else if (held <= HELD_PACKS)
        LAUNCH_EARLY((rmsnorm_forward_kernel<T, W, HELD_PACKS>), blocks_for(rows, WARPS), WARPS * WARP, 0, s, f);
    else LAUNCH_EARLY((rmsnorm_forward_long_kernel<T, W>), rows, LONG_ROW_THREADS, (size_t)f.r.C * sizeof(T), s, f);
}

static void forward_rows(Stream *s, Tensor sum, Tensor y, Tensor rstd, Tensor x, Tensor update, Tensor w, HeadRows r,
                         float eps) {
    int64_t x_width = x.dim[1], y_width = y.dim[1];
    bool    fit = packs_fit((size_t)(r.C | r.first | x_width | y_width) * dtype_bytes(x.type),
                            {sum.data, y.data, x.data, update.data, w.data});
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, fit, W, {
                     RmsForward<T> f = {ptr<T>(sum), ptr<T>(y), ptr<float>(rstd), ptr<T>(x), ptr<T>(update), ptr<T>(w),
                                     r, x_width, y_width, eps};
                     launch_forward<T, W>(s, f);
                 }));
}

void rmsnorm_forward(Stream *s, Tensor y, Tensor rstd, Tensor x, Tensor w, float eps) {
    Tensor   none = tensor_2d(NULL, x.type, x.dim[0], x.dim[1]);
    HeadRows r = {x.dim[0], x.dim[1], 1, 0};
    if (!rmsnorm_forward_contract(s, y, rstd, x, w)) forward_rows(s, none, y, rstd, x, none, w, r, eps);
}

void residual_rmsnorm_forward(Stream *s, Tensor sum, Tensor y, Tensor rstd, Tensor x, Tensor update, Tensor w,
                              float eps) {
    HeadRows r = {x.dim[0], x.dim[1], 1, 0};
    if (!residual_rmsnorm_forward_contract(s, sum, y, rstd, x, update, w))
        forward_rows(s, sum, y, rstd, x, update, w, r, eps);
}

void head_norm_forward(Stream *s, Tensor y, Tensor rstd, Tensor x, int64_t first, int64_t heads, Tensor w, float eps) {
    Tensor   none = tensor_2d(NULL, x.type, x.dim[0], x.dim[1]);
    HeadRows r = {x.dim[0] * heads, w.dim[0], heads, first};
    if (!head_norm_forward_contract(s, y, rstd, x, first, heads, w)) forward_rows(s, none, y, rstd, x, none, w, r, eps);
}
