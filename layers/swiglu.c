/* swiglu.c - CPU side of the swiglu and expert_swiglu ops in layers.h. A thread owns a row. */
#include "layers/act_simd.h"
#include "layers/expert_contracts.h"
#include "layers/layers.h"

#define SIMD_FILE "layers/swiglu_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, swiglu_row, (DType type, void *y, const void *gate_up, float weight, int64_t row, int64_t F),
              (type, y, gate_up, weight, row, F))
SIMD_DISPATCH(void, swiglu_grad_row,
              (DType type, void *dgate_up, const void *dy, const void *gate_up, int64_t row, int64_t F),
              (type, dgate_up, dy, gate_up, row, F))
SIMD_DISPATCH(void, expert_swiglu_grad_row,
              (DType type, void *dgate_up, float *dweight, const void *dy, const void *gate_up, float weight, int64_t row, int64_t F),
              (type, dgate_up, dweight, dy, gate_up, weight, row, F))

void swiglu_forward(Stream *s, Tensor y, Tensor gate_up) {
    EXPECT_ACT(y);
    if (swiglu_forward_contract(s, y, gate_up)) return;
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < y.dim[0]; row++) swiglu_row(y.type, y.data, gate_up.data, 1.0f, row, y.dim[1]);
}

void swiglu_backward(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up) {
    EXPECT_ACT(dy);
    if (swiglu_backward_contract(s, dgate_up, dy, gate_up)) return;
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
        swiglu_row(y.type, y.data, gate_up.data, ((const float *)weight.data)[assignment ? assignment[row] : row], row, y.dim[1]);
}

void expert_swiglu_backward(Stream *s, Tensor dgate_up, Tensor dweight, Tensor dy, Tensor gate_up, Tensor weight, Tensor order) {
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
