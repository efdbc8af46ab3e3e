/* swiglu.c - CPU side of the swiglu and expert_swiglu ops in layers.h. A thread owns a row. The
 * functions silu and silu_grad are in activation.h. */
#include "layers/activation.h"
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

/* Computes n values of weight silu(gate) up, from element `to` of y on. */
SIMD_INLINE void swiglu_run(DType type, void *y, int64_t to, const void *gate_up, int64_t gate, int64_t up,
                            float weight, int64_t n) {
    ActPair x = act32_load_n(gate_up, gate, n, type), u = act32_load_n(gate_up, up, n, type);
    for (int k = 0; k < 2; k++) x.half[k] = silu(x.half[k]) * u.half[k] * weight;
    act32_store_n(y, to, n, type, x);
}

/* Computes a row of swiglu, multiplied by `weight` (of an expert). Without experts the weight is 1, which changes no
 * bit. */
SIMD_INLINE void swiglu_row_of(DType type, void *y, const void *gate_up, float weight, int64_t row, int64_t F) {
    int64_t gate = row * 2 * F, up = gate + F, f = 0;
    for (; f + PAIR <= F; f += PAIR) swiglu_run(type, y, row * F + f, gate_up, gate + f, up + f, weight, PAIR);
    if (f < F) swiglu_run(type, y, row * F + f, gate_up, gate + f, up + f, weight, F - f);
}
ACT_KERNEL(swiglu_row, (DType type, void *y, const void *gate_up, float weight, int64_t row, int64_t F), y, gate_up,
           weight, row, F)

/* Computes n gradients each of gate and up, at elements `gate` and `up` of dgate_up, from elements `at` on of dy.
 * dgate_up may be gate_up. */
SIMD_INLINE void swiglu_grad_run(DType type, void *dgate_up, const void *dy, int64_t at, const void *gate_up,
                                 int64_t gate, int64_t up, int64_t n) {
    ActPair d = act32_load_n(dy, at, n, type), u = act32_load_n(gate_up, up, n, type),
            x = act32_load_n(gate_up, gate, n, type);
    for (int k = 0; k < 2; k++) {
        f32x16 value, slope = silu_grad(&value, x.half[k]);
        x.half[k] = d.half[k] * u.half[k] * slope, u.half[k] = d.half[k] * value;
    }
    act32_store_n(dgate_up, gate, n, type, x);
    act32_store_n(dgate_up, up, n, type, u);
}

SIMD_INLINE void swiglu_grad_row_of(DType type, void *dgate_up, const void *dy, const void *gate_up, int64_t row,
                                    int64_t F) {
    int64_t gate = row * 2 * F, up = gate + F, f = 0;
    for (; f + PAIR <= F; f += PAIR) swiglu_grad_run(type, dgate_up, dy, row * F + f, gate_up, gate + f, up + f, PAIR);
    if (f < F) swiglu_grad_run(type, dgate_up, dy, row * F + f, gate_up, gate + f, up + f, F - f);
}
ACT_KERNEL(swiglu_grad_row, (DType type, void *dgate_up, const void *dy, const void *gate_up, int64_t row, int64_t F),
           dgate_up, dy, gate_up, row, F)

/* Computes a row of dgate_up, and the gradient of the row's weight in *dweight. */
SIMD_INLINE void expert_swiglu_grad_row_of(DType type, void *dgate_up, float *dweight, const void *dy,
                                           const void *gate_up, float weight, int64_t row, int64_t F) {
    int64_t gate = row * 2 * F, up = gate + F;
    f32x16  sum = f32x16_all(0.0f);
    for (int64_t f = 0; f < F; f += LANES) {
        int64_t n = act16_count(f, F);
        f32x16  value, d = act16_load_n(dy, row * F + f, n, type), u = act16_load_n(gate_up, up + f, n, type);
        f32x16  slope = silu_grad(&value, act16_load_n(gate_up, gate + f, n, type));
        sum += d * u * value;
        d *= weight;
        act16_store_n(dgate_up, gate + f, n, type, d * u * slope);
        act16_store_n(dgate_up, up + f, n, type, d * value);
    }
    *dweight = f32x16_sum(sum);
}
ACT_KERNEL(expert_swiglu_grad_row,
           (DType type, void *dgate_up, float *dweight, const void *dy, const void *gate_up, float weight, int64_t row,
            int64_t F),
           dgate_up, dweight, dy, gate_up, weight, row, F)

#if SIMD_HOST
void swiglu_forward(Stream *s, Tensor y, Tensor gate_up) {
    EXPECT_ACT(y);
    if (swiglu_forward_contract(s, y, gate_up, NULL)) return;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < y.dim[0]; row++) swiglu_row(y.type, y.data, gate_up.data, 1.0f, row, y.dim[1]);
}

void swiglu_backward(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up) {
    EXPECT_ACT(dy);
    if (swiglu_backward_contract(s, dgate_up, dy, gate_up, NULL)) return;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < dy.dim[0]; row++)
        swiglu_grad_row(dy.type, dgate_up.data, dy.data, gate_up.data, row, dy.dim[1]);
}

void expert_swiglu_forward(Stream *s, Tensor y, Tensor gate_up, Tensor weight, Tensor order) {
    EXPECT_ACT(y);
    if (expert_swiglu_contract(s, "expert_swiglu_forward", y, gate_up, gate_up, weight, order, 6.0, 3.0)) return;
    const int32_t *assignment = (const int32_t *)order.data;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < y.dim[0]; row++)
        swiglu_row(y.type, y.data, gate_up.data, ((const float *)weight.data)[assignment ? assignment[row] : row], row,
                   y.dim[1]);
}

void expert_swiglu_backward(Stream *s, Tensor dgate_up, Tensor dweight, Tensor dy, Tensor gate_up, Tensor weight,
                            Tensor order) {
    EXPECT_ACT(dy);
    EXPECT2(dweight, F32, weight.dim[0], weight.dim[1]);
    if (expert_swiglu_contract(s, "expert_swiglu_backward", dy, gate_up, dgate_up, weight, order, 15.0, 5.0)) return;
    const int32_t *assignment = (const int32_t *)order.data;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < dy.dim[0]; row++) {
        int64_t at = assignment ? assignment[row] : row;
        expert_swiglu_grad_row(dy.type, dgate_up.data, (float *)dweight.data + at, dy.data, gate_up.data,
                               ((const float *)weight.data)[at], row, dy.dim[1]);
    }
}
#endif
