/* bias.cu - CUDA side of bias.h. */
#include "layers/bias.cuh"
#include "layers/contracts.h"

/* sums[i,c] = or += the sum of rows [i*rows_per_block, (i+1)*rows_per_block) of x [rows,M] in column c, i = blockIdx.y.
 * grid (ceil(M/(32 PACK)), parts), block (32,8), static shared memory. Bound: reading x once. */
template <typename T, int PACK>
KERNEL column_sums_kernel(float *sums, const T *x, int64_t rows, int64_t rows_per_block, int64_t M, MatmulWrite write) {
    await_kernels();
    int64_t c = ((int64_t)blockIdx.x * WARP + threadIdx.x) * PACK, first = (int64_t)blockIdx.y * rows_per_block;
    int64_t end = first + rows_per_block < rows ? first + rows_per_block : rows;
    float   sum[PACK] = {};
    if (c < M) {
#pragma unroll 4
        for (int64_t r = first + threadIdx.y; r < end; r += SUM_WARPS) {
            Pack<T, PACK> v = pack_load<T, PACK>(x + r * M + c);
            for (int k = 0; k < PACK; k++) sum[k] += to_f32(v.v[k]);
        }
    }
    strip_sums(sum, M, [=](int64_t at, float total) {
        float *out = sums + (int64_t)blockIdx.y * M + at;
        *out = write == MATMUL_ADD ? *out + total : total;
    });
}

/* Queues the kernel. It reads 16 bytes at a time if the rows allow it. */
void column_sums(Stream *s, float *sums, const void *x, DType type, int64_t rows, int64_t per_block, int64_t M, MatmulWrite write) {
    unsigned parts = (unsigned)blocks_for(rows, per_block);
    DISPATCH_ACT(type, T, DISPATCH_PACK(T, packs_fit((size_t)M * sizeof(T), {x}), PACK,
        LAUNCH_EARLY((column_sums_kernel<T, PACK>), dim3((unsigned)blocks_for(M, WARP * PACK), parts), dim3(WARP, SUM_WARPS), 0, s,
               sums, (const T *)x, rows, per_block, M, write)));
}

void bias_backward(Stream *s, Tensor db, Tensor dy) {
    int64_t N = dy.dim[0], M = dy.dim[1], parts = sum_parts_of(N);
    bias_backward_contract(s, db, dy);
    if (N == 0) return;
    size_t mark = arena_mark(&s->scratch);
    float *partial = (float *)arena_take(&s->scratch, bias_scratch_bytes(N, M));
    column_sums(s, partial, dy.data, dy.type, N, sum_rows_of(N), M, MATMUL_SET);
    column_sums(s, ptr<float>(db), partial, F32, parts, parts, M, MATMUL_ADD);
    arena_release(&s->scratch, mark);
}
