/* bias.cuh - column sums on a GPU: by linear.cu's kernel, and by kernels that have just computed the matrix.
 *
 * Blocks add contiguous ranges of rows and leave partial sums in scratch; a second pass adds those in order. The shape
 * alone fixes the ranges, so a GPU of another size adds in the same order.
 */
#ifndef TRAIN_GPT_LAYERS_BIAS_CUH
#define TRAIN_GPT_LAYERS_BIAS_CUH

#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/matmul.h"

enum {
    SUM_WARPS = 8,
    SUM_BLOCKS = 128, /* most partial sums (each over a range of rows): enough to fill a GPU */
    SUM_ROWS = 64     /* fewest rows of one partial sum */
};

/* sum_rows_of returns how many rows one partial sum adds, sum_parts_of the number of partial sums of N rows. */
static inline int64_t sum_rows_of(int64_t N) {
    int64_t rows = blocks_for(N, SUM_BLOCKS);
    return rows < SUM_ROWS ? (int64_t)SUM_ROWS : rows;
}
static inline int64_t sum_parts_of(int64_t N) { return blocks_for(N, sum_rows_of(N)); }
static inline size_t  bias_scratch_bytes(int64_t N, int64_t M) { return (size_t)(sum_parts_of(N) * M) * sizeof(float); }

/* Adds the warps' sums of a block. A block has a strip of 32 PACK columns, and its warps alternate over the rows. The
 * eight sums are added in shared memory, in order: total_of(c, sum) is called for this thread's columns below M. Block
 * (32,8). */
template <int PACK, typename F> DEVICE void strip_sums(const float (&sum)[PACK], int64_t M, F total_of) {
    SMEM(float, part, [SUM_WARPS][WARP * PACK]);
    int     lane = (int)threadIdx.x, warp = (int)threadIdx.y;
    int64_t strip = (int64_t)blockIdx.x * WARP * PACK;
    for (int k = 0; k < PACK; k++) part[warp][k * WARP + lane] = sum[k]; /* neighbouring lanes write to neighbouring
                                                                          * banks */
    __syncthreads(); /* after this the column sums of every warp are in `part` */
    for (int i = warp * WARP + lane; i < WARP * PACK; i += SUM_WARPS * WARP) {
        int64_t at = strip + i % WARP * PACK + i / WARP;
        if (at >= M) continue;
        float total = 0.0f;
        for (int w = 0; w < SUM_WARPS; w++) total += part[w][i];
        total_of(at, total);
    }
}

/* sums [parts,M] f32 = or += the column sums of x [rows,M] over each range of per_block rows. */
void column_sums(Stream *s, float *sums, const void *x, DType type, int64_t rows, int64_t per_block, int64_t M,
                 MatmulWrite write);

#endif
