/* rmsnorm.cuh - where the rows of the rmsnorm and head_norm kernels stand; the CPU's is in rmsnorm.c. */
#ifndef TRAIN_GPT_LAYERS_RMSNORM_CUH
#define TRAIN_GPT_LAYERS_RMSNORM_CUH

#include "core/kernel.cuh"

/* Rows of C channels: in each row of a tensor, `heads` of them side by side from column `first` on; `rows` in all. */
typedef struct { int64_t rows, C, heads, first; } HeadRows;

/* Where row `row` begins in a tensor that is `width` wide. */
DEVICE int64_t row_start(HeadRows r, int64_t row, int64_t width) {
    if (r.heads == 1) return row * width + r.first; /* no division */
    return row / r.heads * width + r.first + row % r.heads * r.C;
}

#endif
