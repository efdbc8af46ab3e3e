/* swiglu.cu - CUDA side of the swiglu and expert_swiglu ops in layers.h. silu and silu_grad are in
 * activation.h. */
#include "layers/activation.h"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 128, PACKS = 2 }; /* PACKS: number of packs (16 bytes) of a thread, so that two loads of each array are
                                    * in flight at once */

/* Returns the number of thread blocks for a row of F columns. */
template <int W> __host__ __device__ constexpr int64_t row_blocks(int64_t F) {
    return (F + THREADS * PACKS * W - 1) / (THREADS * PACKS * W);
}
/* Returns the first column of this thread's k-th pack in its row. */
template <int W> DEVICE int64_t column_of(int64_t F, int k) {
    return ((blockIdx.x % row_blocks<W>(F) * PACKS + k) * THREADS + threadIdx.x) * W;
}

/* y = silu(gate) up. Each thread computes PACKS packs of a row. grid N row_blocks(F), no shared memory. Bound by
 * memory: 3 elements of traffic for each of y. */
template <typename T, int W> KERNEL swiglu_forward_kernel(T *y, const T *gate_up, int64_t F) {
    await_kernels();
    int64_t    row = blockIdx.x / row_blocks<W>(F);
    const T   *gate = gate_up + row * 2 * F, *up = gate + F;
    Pack<T, W> g[PACKS], u[PACKS];
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t f = column_of<W>(F, k);
        if (f < F) g[k] = pack_load<T, W>(gate + f), u[k] = pack_load<T, W>(up + f);
    }
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t f = column_of<W>(F, k);
        if (f >= F) continue;
        Pack<float, W> v = pack_to_f32(g[k]), w = pack_to_f32(u[k]);
        for (int j = 0; j < W; j++) v.v[j] = silu(v.v[j]) * w.v[j];
        pack_store(y + row * F + f, pack_from_f32<T>(v));
    }
}

/* dgate = dy up silu'(gate), dup = dy silu(gate). dgate_up may be gate_up, because each element is read and written by
 * one thread. Threads and grid are those of swiglu_forward_kernel. Bound by memory: 5 elements of traffic for each of
 * dy. */
template <typename T, int W> KERNEL swiglu_backward_kernel(T *dgate_up, const T *dy, const T *gate_up, int64_t F) {
    await_kernels();
    int64_t    row = blockIdx.x / row_blocks<W>(F), gate = row * 2 * F, up = gate + F;
    Pack<T, W> g[PACKS], u[PACKS], d[PACKS];
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t f = column_of<W>(F, k);
        if (f >= F) continue;
        g[k] = pack_load<T, W>(gate_up + gate + f), u[k] = pack_load<T, W>(gate_up + up + f);
        d[k] = pack_load<T, W>(dy + row * F + f);
    }
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t f = column_of<W>(F, k);
        if (f >= F) continue;
        Pack<float, W> dgate = pack_to_f32(g[k]), dup = pack_to_f32(d[k]), w = pack_to_f32(u[k]);
        for (int j = 0; j < W; j++) {
            float value, slope = silu_grad(&value, dgate.v[j]);
            dgate.v[j] = dup.v[j] * w.v[j] * slope;
            dup.v[j] *= value;
        }
        pack_store(dgate_up + gate + f, pack_from_f32<T>(dgate));
        pack_store(dgate_up + up + f, pack_from_f32<T>(dup));
    }
}

void swiglu_forward(Stream *s, Tensor y, Tensor gate_up) {
    int64_t N = y.dim[0], F = y.dim[1];
    if (swiglu_forward_contract(s, y, gate_up, NULL) || N * F == 0) return;
    DISPATCH_ACT(y.type, T,
                 DISPATCH_PACK(T, packs_fit((size_t)F * sizeof(T), {y.data, gate_up.data}), W,
                               LAUNCH_EARLY((swiglu_forward_kernel<T, W>), N * row_blocks<W>(F), THREADS, 0, s,
                                            ptr<T>(y), ptr<T>(gate_up), F)));
}

void swiglu_backward(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up) {
    int64_t N = dy.dim[0], F = dy.dim[1];
    if (swiglu_backward_contract(s, dgate_up, dy, gate_up, NULL) || N * F == 0) return;
    DISPATCH_ACT(dy.type, T,
                 DISPATCH_PACK(T, packs_fit((size_t)F * sizeof(T), {dgate_up.data, dy.data, gate_up.data}), W,
                               LAUNCH_EARLY((swiglu_backward_kernel<T, W>), N * row_blocks<W>(F), THREADS, 0, s,
                                      ptr<T>(dgate_up), ptr<T>(dy), ptr<T>(gate_up), F)));
}

/* --- weighted ----------------------------------------------------------------------------------------------------- */

/* Returns the assignment (of a token to an expert) of a row. It is read again where it is needed, so that no register
 * holds it through a loop. */
DEVICE int64_t assignment_of(const int32_t *order, int64_t row) { return order ? order[row] : row; }

/* y = weight silu(gate) up. Each warp computes one row. grid ceil(R / (THREADS / WARP)), no shared memory. Bound by
 * memory: 3 elements of traffic for each of y. */
template <typename T, int W>
KERNEL expert_swiglu_forward_kernel(T *y, const T *gate_up, const float *weight, const int32_t *order, int64_t R,
                                    int64_t F) {
    await_kernels();
    int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (row >= R) return;
    const T *gate = gate_up + row * 2 * F;
    float    w = weight[assignment_of(order, row)];
    #pragma unroll 2
    for (int64_t f = threadIdx.x % WARP * W; f < F; f += WARP * W) {
        Pack<float, W> v = pack_to_f32(pack_load<T, W>(gate + f)), u = pack_to_f32(pack_load<T, W>(gate + F + f));
        for (int j = 0; j < W; j++) v.v[j] = silu(v.v[j]) * u.v[j] * w;
        pack_store(y + row * F + f, pack_from_f32<T>(v));
    }
}

/* Backward of the weighted swiglu, with dweight = sum_f dy silu(gate) up. dgate_up may be gate_up, because each element
 * is read and written by one thread. Warps and grid are those of expert_swiglu_forward_kernel. Bound by memory: 5
 * elements of traffic for each of dy. */
template <typename T, int W>
KERNEL expert_swiglu_backward_kernel(T *dgate_up, float *dweight, const T *dy, const T *gate_up, const float *weight,
                                     const int32_t *order, int64_t R, int64_t F) {
    await_kernels();
    int64_t row = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP, gate = row * 2 * F;
    if (row >= R) return; /* all lanes of a warp have the same row, and return together */
    float w = weight[assignment_of(order, row)], sum = 0.0f;
    #pragma unroll 2
    for (int64_t f = threadIdx.x % WARP * W; f < F; f += WARP * W) {
        Pack<float, W> dgate = pack_to_f32(pack_load<T, W>(gate_up + gate + f)),
                       up = pack_to_f32(pack_load<T, W>(gate_up + gate + F + f));
        Pack<float, W> d = pack_to_f32(pack_load<T, W>(dy + row * F + f));
        for (int j = 0; j < W; j++) {
            float value, slope = silu_grad(&value, dgate.v[j]);
            sum += d.v[j] * up.v[j] * value;
            d.v[j] *= w;
            dgate.v[j] = d.v[j] * up.v[j] * slope;
            d.v[j] *= value;
        }
        pack_store(dgate_up + gate + f, pack_from_f32<T>(dgate));
        pack_store(dgate_up + gate + F + f, pack_from_f32<T>(d));
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) dweight[assignment_of(order, row)] = sum;
}

void expert_swiglu_forward(Stream *s, Tensor y, Tensor gate_up, Tensor weight, Tensor order) {
    int64_t R = y.dim[0], F = y.dim[1];
    if (expert_swiglu_contract(s, "expert_swiglu_forward", y, gate_up, gate_up, weight, order, 6.0, 3.0) || R * F == 0)
        return;
    DISPATCH_ACT(y.type, T,
                 DISPATCH_PACK(T, packs_fit((size_t)F * sizeof(T), {y.data, gate_up.data}), W,
                               LAUNCH_EARLY((expert_swiglu_forward_kernel<T, W>), blocks_for(R, THREADS / WARP),
                                            THREADS, 0, s, ptr<T>(y), ptr<T>(gate_up), ptr<float>(weight),
                                            ptr<int32_t>(order), R, F)));
}

void expert_swiglu_backward(Stream *s, Tensor dgate_up, Tensor dweight, Tensor dy, Tensor gate_up, Tensor weight,
                            Tensor order) {
    int64_t R = dy.dim[0], F = dy.dim[1];
    EXPECT2(dweight, F32, weight.dim[0], weight.dim[1]);
    if (expert_swiglu_contract(s, "expert_swiglu_backward", dy, gate_up, dgate_up, weight, order, 15.0, 5.0) ||
        R * F == 0)
        return;
    DISPATCH_ACT(dy.type, T,
                 DISPATCH_PACK(T, packs_fit((size_t)F * sizeof(T), {dgate_up.data, dy.data, gate_up.data}), W,
                               LAUNCH_EARLY((expert_swiglu_backward_kernel<T, W>), blocks_for(R, THREADS / WARP),
                                            THREADS, 0, s, ptr<T>(dgate_up), ptr<float>(dweight), ptr<T>(dy),
                                            ptr<T>(gate_up), ptr<float>(weight), ptr<int32_t>(order), R, F)));
}
