/* attention_hopper_backward.cuh - shared by the kernels of attention_backward for compute capability 9.0
 * (attention_hopper_backward.cu, attention_hopper_heads.cu): the step in which a warpgroup has 64 keys, and statistics.
 *
 * A warpgroup queues the products of a step in the order s dp (exp) dv (ds) dk. Each runs while the next is queued: dp
 * during exp, dv during ds, dk together with the next step's s. While one warpgroup computes exp and ds, the other's
 * products run. With D = 128 dk and dv take half of the registers, and dp waits for exp.
 */
#ifndef TRAIN_GPT_LAYERS_ATTENTION_HOPPER_BACKWARD_CUH
#define TRAIN_GPT_LAYERS_ATTENTION_HOPPER_BACKWARD_CUH

#include "layers/attention_hopper.cuh"

enum { KEYS_STEP = 64 }; /* queries of a step */

/* Negated statistics pass through TMA as rows of 32. */
enum { MINUS_ROW = 32, MINUS_BOX_ROWS = 2, MINUS_BYTES = MINUS_ROW * MINUS_BOX_ROWS * 4 };

static TensorMap map_of_minus(const float *minus, int64_t values) {
    return tensor_map_2d(minus, values / MINUS_ROW, MINUS_ROW, MINUS_BOX_ROWS, MINUS_ROW);
}

#ifdef PTX_HOPPER

/* Returns the values of column held_column(i) and the next one; they lie swizzled. */
DEVICE float2 column_pair(const float *minus, int i) {
    return *reinterpret_cast<const float2 *>(minus + (held_column(i) ^ i * 2 / MINUS_ROW * 4));
}
/* Replaces s by p = exp(s - lse), with one value of lse for each column. */
template <int N> DEVICE void exponentials(float (&s)[N], const float *lse, float scale_log2) {
    #pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float2 minus = column_pair(lse, i);
        const float  low = minus.x * scale_log2, high = minus.y * scale_log2;
        s[i] = exp2_approx(fmaf(s[i], scale_log2, low)), s[i + 1] = exp2_approx(fmaf(s[i + 1], scale_log2, high));
        s[i + 2] = exp2_approx(fmaf(s[i + 2], scale_log2, low)), s[i + 3] = exp2_approx(fmaf(s[i + 3], scale_log2, high));
    }
}
/* Replaces dp by ds = p (dp - delta). p is the rounded one, because the exact p would take as many registers again. */
template <typename T, int N> DEVICE void multiply_by_scores(float (&dp)[N], const uint32_t (&p)[N / 8][4], const float *delta) {
    #pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float2 minus = column_pair(delta, i), low = unpack_pair<T>(p[i / 8][i / 2 % 4]),
                     high = unpack_pair<T>(p[i / 8][i / 2 % 4 + 1]);
        dp[i] = low.x * (dp[i] + minus.x), dp[i + 1] = low.y * (dp[i + 1] + minus.y);
        dp[i + 2] = high.x * (dp[i + 2] + minus.x), dp[i + 3] = high.y * (dp[i + 3] + minus.y);
    }
}

/* Tiles of a step: 128 keys, of which each warpgroup has 64; KEYS_STEP queries; the negated statistics of these
 * queries. */
template <typename T> struct KeysTiles {
    const T     *k, *v, *q, *dy;
    const float *lse, *delta;
};

/* One step: computes s and dp, whose rows are the warpgroup's keys, and what they add to dv and dk. At the begin the
 * last step's product for dk still runs, and on return this step's, with ds. free_last is called when the last step's
 * product has ended, use(ds) before this step's product begins: until a wait only the product may read its registers.
 * starts: NULL, or the starts of documents. TIGHT: ds takes the registers of p, after dv's product. */
template <typename T, int D, bool DOCUMENTS, bool TIGHT = false, class F, class G>
DEVICE void keys_step(float (&dk)[D / 2], float (&dv)[D / 2], uint32_t (&ds)[KEYS_STEP / 16][4], const KeysTiles<T> &at, int position,
                      int query, const int32_t *starts, const Heads &h, F free_last, G use) {
    constexpr int  STEP = KEYS_STEP;
    constexpr bool EARLY = D == 64; /* with D = 128 the registers do not suffice for s and dp at once */
    const int     query_position = position_of(h, query), own = (int)threadIdx.x / WARPGROUP * GROUP_ROWS;
    float         s[STEP / 2], dp[STEP / 2];
    uint32_t      p[STEP / 16][4], kept[STEP / 16][4]; /* kept: a copy of p, whose own registers dv's product uses until
                                                        * a wait */
    wgmma_fence();
    multiply_rows<T, STEP, D, BLOCK_ROWS>(s, at.k, own, at.q, false);
    if (EARLY) multiply_rows<T, STEP, D, BLOCK_ROWS>(dp, at.v, own, at.dy, false);
    wgmma_wait<EARLY ? 1 : 0>(dk, s);
    free_last();
    if (position + GROUP_ROWS - 1 > query_position) mask_later<true>(s, query_position, position);
    if (DOCUMENTS && starts && position < start_at(starts, query + STEP - 1, h)) mask_earlier<true>(s, starts, query, position, h);
    exponentials(s, at.lse, h.scale_log2);
    round_product<T, STEP>(p, s);
    #pragma unroll
    for (int i = 0; !TIGHT && i < STEP / 4; i++) kept[i / 4][i % 4] = afresh(p[i / 4][i % 4]);
    wgmma_fence();
    if (!EARLY) multiply_rows<T, STEP, D, BLOCK_ROWS>(dp, at.v, own, at.dy, false);
    add_rows<T, STEP, D>(dv, p, at.dy);
    if (TIGHT) wgmma_wait<0>(dp, dv);
    else wgmma_wait<1>(dp);
    multiply_by_scores<T>(dp, TIGHT ? p : kept, at.delta);
    round_product<T, STEP>(ds, dp);
    use(ds);
    wgmma_fence();
    add_rows<T, STEP, D>(dk, ds, at.q);
    if (!TIGHT) wgmma_wait<1>(dv); /* frees p's registers */
}

/* Calls put(), which writes a product into a tile, and adds the columns of the warp's rows, as written there, to
 * row_sums. A lane has pairs of columns. A later part adds to the sum that the same warp has written before, which is
 * loaded while put works. Rows past T are zeros. first: the warp's first position   column: the tile's first column in
 * dqkv. */
template <typename T, int ROWS, int D, class F>
DEVICE void sum_product(int first, const T *tile, int row, int head, int column, const Heads &h, F put) {
    const int     lane = (int)threadIdx.x % WARP, part = first / SUMMED_ROWS;
    const bool    is_summed = h.row_sums && first < h.T;
    const int64_t at = ((int64_t)(head / h.H) * h.parts + part % h.parts) * h.columns + column;
    float2       *sums = reinterpret_cast<float2 *>(h.row_sums) + at / 2 + lane, sum[D / BOX] = {};
    if (is_summed && part >= h.parts)
        #pragma unroll
        for (int d = 0; d < D / BOX; d++) sum[d] = sums[d * WARP];
    put();
    if (!is_summed) return;
    #pragma unroll 4
    for (int r = row; r < row + SUMMED_ROWS; r++)
        #pragma unroll
        for (int d = 0; d < D / BOX; d++) {
            const T     *pair = tile + d * BOX * ROWS + r * BOX + (lane / 4 ^ r % 8) * 8 + lane % 4 * 2;
            const float2 two = unpack_pair<T>(*reinterpret_cast<const uint32_t *>(pair));
            sum[d].x += two.x, sum[d].y += two.y;
        }
    #pragma unroll
    for (int d = 0; d < D / BOX; d++) sums[d * WARP] = sum[d];
}
/* Stores a product and its column sums. to: the head's columns, in the sequence's first row. */
template <typename T, int ROWS, int D>
DEVICE void store_summed(T *to, int stride, int first, T *tile, int row, const float (&x)[D / 2], const float (&scale)[2], int head,
                         int column, const Heads &h) {
    sum_product<T, ROWS, D>(first, tile, row, head, column, h,
                            [&] { store_product<T, ROWS, D>(to, stride, first, tile, row, x, scale, h); });
}

#endif
#endif
