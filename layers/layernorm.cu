/* layernorm.cu - CUDA side of the forward layernorm ops in layers.h; layernorm_backward.cu has the other. A row stays
 * where it was first loaded: in a warp's registers, or, if it is long, in a block's shared memory. Three passes read
 * it: mean, squared deviations from it (two passes lose nothing to cancellation), output. */
#include "core/kernel.cuh"
#include "layers/contracts.h"

enum { WARPS = 4, HELD_PACKS = 8, LONG_ROW_THREADS = 256 };

template <typename T> struct Forward {
    T       *sum, *y; /* sum: x + update as stored, if there is an update */
    float   *mean, *rstd;
    const T *x, *update, *w, *b;
    int64_t  N, C;
    float    eps;
};

/* Returns the row's pack at i of the flat arrays. If there is an update it adds it and stores the sum. The statistics
 * are those of the row as stored. */
template <typename T, int W> DEVICE Pack<T, W> updated_pack(const Forward<T> &f, int64_t i) {
    Pack<T, W> x = pack_load<T, W>(f.x + i);
    if (!f.update) return x;
    Pack<float, W> sum = pack_to_f32(x), update = pack_to_f32(pack_load_once<T, W>(f.update + i));
    for (int j = 0; j < W; j++) sum.v[j] += update.v[j];
    x = pack_from_f32<T>(sum);
    pack_store_once(f.sum + i, x); /* needed again only when the next branch ends */
    return x;
}

template <typename T, int W> DEVICE float pack_total(Pack<T, W> x) {
    float total = 0.0f;
    for (int j = 0; j < W; j++) total += to_f32(x.v[j]);
    return total;
}
template <typename T, int W> DEVICE float pack_deviation(Pack<T, W> x, float mean) {
    float total = 0.0f;
    for (int j = 0; j < W; j++) {
        float d = to_f32(x.v[j]) - mean;
        total += d * d;
    }
    return total;
}

template <typename T, int W>
DEVICE void store_norm(const Forward<T> &f, int64_t row, int64_t c, Pack<T, W> x, float mean, float rstd) {
    Pack<float, W> y = pack_to_f32(x), w = pack_to_f32(pack_load<T, W>(f.w + c)), b = pack_to_f32(pack_load<T, W>(f.b + c));
    for (int j = 0; j < W; j++) y.v[j] = (y.v[j] - mean) * rstd * w.v[j] + b.v[j];
    pack_store(f.y + row * f.C + c, pack_from_f32<T>(y));
}

/* Warp: one row of at most WARP HELD W channels, held in registers. grid ceil(N / WARPS), no shared memory. Bound: its
 * traffic, 2 elements each, 4 with an update. */
template <typename T, int W, int HELD> KERNEL layernorm_forward_kernel(Forward<T> f) {
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
        if ((k * WARP + lane) * W < f.C) square += pack_deviation(x[k], mean);
    float rstd = 1.0f / sqrtf(warp_sum(square) / (float)f.C + f.eps);
    #pragma unroll
    for (int k = 0; k < HELD; k++) {
        int64_t c = (k * WARP + lane) * W;
        if (c < f.C) store_norm(f, row, c, x[k], mean, rstd);
    }
    if (lane == 0) f.mean[row] = mean, f.rstd[row] = rstd;
}

/* Block: one longer row, held in dynamic shared memory. Each thread reads only its own packs. grid N. Bound: as
 * above. */
template <typename T, int W> KERNEL layernorm_forward_long_kernel(Forward<T> f) {
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
    for (int64_t c = first; c < f.C; c += step) square += pack_deviation(pack_load<T, W>(held + c), mean);
    float rstd = 1.0f / sqrtf(block_sum(square, part) / (float)f.C + f.eps);
    for (int64_t c = first; c < f.C; c += step) store_norm(f, row, c, pack_load<T, W>(held + c), mean, rstd);
    if (threadIdx.x == 0) f.mean[row] = mean, f.rstd[row] = rstd;
}

template <typename T, int W> static void launch_forward(Stream *s, Forward<T> f) {
    int64_t held = blocks_for(f.C, WARP * W);
    if (f.N == 0) return;
    if (held <= HELD_PACKS / 2)
        LAUNCH_EARLY((layernorm_forward_kernel<T, W, HELD_PACKS / 2>), blocks_for(f.N, WARPS), WARPS * WARP, 0, s, f);
    else if (held <= HELD_PACKS)
        LAUNCH_EARLY((layernorm_forward_kernel<T, W, HELD_PACKS>), blocks_for(f.N, WARPS), WARPS * WARP, 0, s, f);
    else
        LAUNCH_EARLY((layernorm_forward_long_kernel<T, W>), f.N, LONG_ROW_THREADS, (size_t)f.C * sizeof(T), s, f);
}

static void forward_rows(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update, Tensor w, Tensor b,
                         float eps) {
    int64_t N = x.dim[0], C = x.dim[1];
    bool    fit = packs_fit((size_t)C * dtype_bytes(x.type), {sum.data, y.data, x.data, update.data, w.data, b.data});
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, fit, W, {
                     Forward<T> f = {ptr<T>(sum),
                                     ptr<T>(y),
                                     ptr<float>(mean),
                                     ptr<float>(rstd),
                                     ptr<T>(x),
                                     ptr<T>(update),
                                     ptr<T>(w),
                                     ptr<T>(b),
                                     N,
                                     C,
                                     eps};
                     launch_forward<T, W>(s, f);
                 }));
}

void layernorm_forward(Stream *s, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor w, Tensor b, float eps) {
    Tensor none = tensor_2d(NULL, x.type, x.dim[0], x.dim[1]);
    if (!layernorm_forward_contract(s, y, mean, rstd, x, w, b)) forward_rows(s, none, y, mean, rstd, x, none, w, b, eps);
}

void residual_layernorm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update,
                                Tensor w, Tensor b, float eps) {
    if (!residual_layernorm_forward_contract(s, sum, y, mean, rstd, x, update, w, b))
        forward_rows(s, sum, y, mean, rstd, x, update, w, b, eps);
}

/* --- the sum alone ------------------------------------------------------------------------------------------------- */

enum { SUM_THREADS = 256 };

/* Adds the update alone. Thread: a pack. Bound: 3 elements of traffic each. */
template <typename T, int W> KERNEL residual_kernel(Forward<T> f, int64_t elems) {
    await_kernels();
    int64_t i = pack_place<W, 1>(0);
    if (i < elems) updated_pack<T, W>(f, i);
}

void residual_forward(Stream *s, Tensor sum, Tensor x, Tensor update) {
    int64_t elems = tensor_elems(x);
    if (residual_forward_contract(s, sum, x, update) || elems == 0) return;
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, packs_fit((size_t)elems * sizeof(T), {sum.data, x.data, update.data}), W, {
        Forward<T> f = {ptr<T>(sum), NULL, NULL, NULL, ptr<T>(x), ptr<T>(update), NULL, NULL, x.dim[0], x.dim[1], 0.0f};
        LAUNCH_EARLY((residual_kernel<T, W>), blocks_for(elems, SUM_THREADS * W), SUM_THREADS, 0, s, f, elems);
    }));
}
