/* attention_f32.cuh - the products of f32 tiles, for attention in strict f32: no tensor core multiplies two f32 numbers
 * exactly enough.
 *
 * 256 threads as 16 x 16, (ty, tx). A thread has M x M scores of a ROWS x ROWS tile, rows ty M + i, columns tx + 16
 * j, and M x D/16 elements of a product with D columns, the same rows. The 16 threads of a row are half a warp. They
 * alone write and read its scores in the shared tile, and __syncwarp() orders that.
 */
#ifndef TRAIN_GPT_LAYERS_ATTENTION_F32_CUH
#define TRAIN_GPT_LAYERS_ATTENTION_F32_CUH

#include "layers/attention_tile.cuh"

template <int D> struct F32Tile {
    static constexpr int THREADS = 256, SIDE = 16;
    /* per thread; per tile; per thread in D */
    static constexpr int M = D <= 64 ? 4 : 2, ROWS = M * SIDE, COLUMNS = D / SIDE;
    static constexpr int ELEMS = ROWS * Row<float, D>::STRIDE;                     /* a tile of positions */
    static constexpr int SCORE_STRIDE = Row<float, ROWS>::STRIDE, SCORE_ELEMS = ROWS * SCORE_STRIDE;
};

DEVICE int f32_tx() { return (int)threadIdx.x % 16; }
DEVICE int f32_ty() { return (int)threadIdx.x / 16; }

/* s = a b^T over D columns. Rows of b that half a warp reads together are in different banks; those of a are
 * broadcast. */
template <int D> DEVICE void f32_scores(float (&s)[F32Tile<D>::M][F32Tile<D>::M], const float *a, const float *b) {
    constexpr int M = F32Tile<D>::M, STRIDE = Row<float, D>::STRIDE;
    for (int i = 0; i < M; i++)
        for (int j = 0; j < M; j++) s[i][j] = 0.0f;
    #pragma unroll 2
    for (int d = 0; d < D; d += 4) {
        Pack<float, 4> left[M], right[M];
        #pragma unroll
        for (int i = 0; i < M; i++) {
            left[i] = pack_load<float, 4>(a + (f32_ty() * M + i) * STRIDE + d);
            right[i] = pack_load<float, 4>(b + (f32_tx() + 16 * i) * STRIDE + d);
        }
        #pragma unroll
        for (int i = 0; i < M; i++)
            #pragma unroll
            for (int j = 0; j < M; j++)
                #pragma unroll
                for (int e = 0; e < 4; e++) s[i][j] = fmaf(left[i].v[e], right[j].v[e], s[i][j]);
    }
}

/* Writes a thread's scores to the shared tile p, then out += p x. The first barrier protects threads that still read
 * p's old scores. */
template <int D>
DEVICE void f32_add(float (&out)[F32Tile<D>::M][F32Tile<D>::COLUMNS], float *p, const float (&s)[F32Tile<D>::M][F32Tile<D>::M],
                    const float *x) {
    constexpr int M = F32Tile<D>::M, STRIDE = Row<float, D>::STRIDE, SCORES = F32Tile<D>::SCORE_STRIDE;
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < M; i++)
        #pragma unroll
        for (int j = 0; j < M; j++) p[(f32_ty() * M + i) * SCORES + f32_tx() + 16 * j] = s[i][j];
    __syncwarp();
    #pragma unroll 1
    for (int row = 0; row < F32Tile<D>::ROWS; row += 4) {
        Pack<float, 4> left[M];
        #pragma unroll
        for (int i = 0; i < M; i++) left[i] = pack_load<float, 4>(p + (f32_ty() * M + i) * SCORES + row);
        #pragma unroll
        for (int e = 0; e < 4; e++)
            #pragma unroll
            for (int c = 0; c < F32Tile<D>::COLUMNS; c++) {
                float right = x[(row + e) * STRIDE + f32_tx() + 16 * c];
                #pragma unroll
                for (int i = 0; i < M; i++) out[i][c] = fmaf(left[i].v[e], right, out[i][c]);
            }
    }
}

/* Stores rows [first, first + ROWS) of a head: scale[i] out. */
template <int D>
DEVICE void f32_store(float *to, int stride, const float (&out)[F32Tile<D>::M][F32Tile<D>::COLUMNS],
                      const float (&scale)[F32Tile<D>::M], int first, const Heads &h) {
    for (int i = 0; i < F32Tile<D>::M; i++)
        for (int c = 0; c < F32Tile<D>::COLUMNS; c++) {
            int row = first + f32_ty() * F32Tile<D>::M + i, column = f32_tx() + 16 * c;
            if (row < h.T && column < h.D) to[(int64_t)row * stride + column] = out[i][c] * scale[i];
        }
}

/* Return the maximum and the sum over the 16 threads of a row. */
DEVICE float row_max(float x) {
    for (int o = 8; o > 0; o /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, o));
    return x;
}
DEVICE float row_sum(float x) {
    for (int o = 8; o > 0; o /= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
    return x;
}

template <int M, int N> DEVICE void f32_zero(float (&x)[M][N]) {
    #pragma unroll
    for (int i = 0; i < M; i++)
        #pragma unroll
        for (int j = 0; j < N; j++) x[i][j] = 0.0f;
}

#endif
