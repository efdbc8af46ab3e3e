/* rmsnorm.cuh - where the rows of the rmsnorm and head_norm kernels stand; the CPU's is in rmsnorm.c. */
#ifndef TRAIN_GPT_LAYERS_RMSNORM_CUH
#define TRAIN_GPT_LAYERS_RMSNORM_CUH

#include "core/kernel.cuh"

/* Rows of C channels. Each row of a tensor has `heads` of them, contiguous from column `first` on. `rows` is the number
 * in all. */
typedef struct { int64_t rows, C, heads, first; } HeadRows;

/* Returns the element at which row `row` begins in a tensor that is `width` wide. */
DEVICE int64_t row_start(HeadRows r, int64_t row, int64_t width) {
    if (r.heads == 1) return row * width + r.first; /* avoids the division */
    return row / r.heads * width + r.first + row % r.heads * r.C;
}

#endif
