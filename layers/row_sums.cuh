/* row_sums.cuh - sums over rows of what each row adds to a weight's gradient: those of layernorm and rmsnorm.
 *
 * A block adds a contiguous range of rows and leaves its sums in scratch. A second kernel adds the blocks' sums in
 * order. The number of blocks depends on N and C alone: the same bits and the same scratch on every GPU.
 */
#ifndef TRAIN_GPT_LAYERS_ROW_SUMS_CUH
#define TRAIN_GPT_LAYERS_ROW_SUMS_CUH

#include "core/kernel.cuh"

enum {
    MIN_ROWS = 16,      /* rows of a block, so that its partial sums are under 1/4 of its traffic */
    MAX_BLOCKS = 1024, MIN_BLOCKS = 128, BLOCK_CHANNELS = 1 << 20, /* some 100,000 threads for any C */
    TOTAL_ROWS = 16     /* warps that add the partial sums of 32 columns */
};

/* Returns the number of blocks for N rows of C channels. */
static inline int64_t partial_blocks(int64_t N, int64_t C) {
    int64_t most = BLOCK_CHANNELS / C, blocks = blocks_for(N, MIN_ROWS);
    most = most > MAX_BLOCKS ? (int64_t)MAX_BLOCKS : most < MIN_BLOCKS ? (int64_t)MIN_BLOCKS : most;
    return blocks < most ? blocks : most;
}
DEVICE int64_t first_row(int64_t N, int64_t block) { return N * block / gridDim.x; }

enum { SUMS_MOST = 3 };
typedef struct { float *of[SUMS_MOST]; } RowSums; /* [C] each; the last ones may be NULL */

/* Adds the partial sums to each of the sums, in a fixed order. The columns of all sums are numbered consecutively.
 * Block: 32 columns; warp i adds blocks i, i + TOTAL_ROWS, ... */
KERNEL row_sums_total_kernel(RowSums sums, const float *partial, int64_t blocks, int64_t C, int64_t columns) {
    await_kernels();
    SMEM(float, part, [TOTAL_ROWS][WARP]);
    int     lane = (int)threadIdx.x % WARP, first = (int)threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * WARP + lane;
    float   sum = 0.0f;
    if (column < columns) {
        #pragma unroll 4
        for (int64_t b = first; b < blocks; b += TOTAL_ROWS) sum += partial[b * columns + column];
    }
    part[first][lane] = sum;
    __syncthreads();
    if (first > 0 || column >= columns) return;
    for (int i = 1; i < TOTAL_ROWS; i++) sum += part[i][lane];
    if (column < C)          sums.of[0][column] += sum;
    else if (column < 2 * C) sums.of[1][column - C] += sum;
    else                     sums.of[2][column - 2 * C] += sum;
}

/* Adds partial [blocks][columns of all sums] to the sums. */
static void row_sums_total(Stream *s, RowSums sums, const float *partial, int64_t blocks, int64_t C) {
    int64_t columns = 0;
    for (int i = 0; i < SUMS_MOST && sums.of[i]; i++) columns += C;
    LAUNCH_EARLY(row_sums_total_kernel, blocks_for(columns, WARP), TOTAL_ROWS * WARP, 0, s, sums, partial, blocks, C, columns);
}

#endif
