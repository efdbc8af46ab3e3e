/* experts.c - CPU side of the experts' ops in layers.h: the router, sorting and moving of rows, and products. A thread
 * owns a token or a row. The products of the experts follow one another. The host reads how many rows each expert has,
 * because its memory holds the tensors. */
#include <math.h>

#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.h"

/* y[n] = the sum of the k rows of x with the numbers place[n k], ..., place[n k + k - 1]; C columns. */
typedef struct { void *y; const void *x; const int32_t *place; int64_t k, C; } RowSum;

SIMD_INLINE void combine_row_of(DType type, RowSum r, int64_t n) {
    for (int64_t c = 0; c < r.C; c += LANES) {
        int64_t count = act16_count(c, r.C);
        f32x16  sum = act16_load_n(r.x, r.place[n * r.k] * r.C + c, count, type);
        for (int64_t j = 1; j < r.k; j++) sum += act16_load_n(r.x, r.place[n * r.k + j] * r.C + c, count, type);
        act16_store_n(r.y, n * r.C + c, count, type, sum);
    }
}
ACT_KERNEL(combine_row, (DType type, RowSum r, int64_t n), r, n)

#if SIMD_HOST
/* --- router ------------------------------------------------------------------------------------------------------- */

/* Returns the expert that follows `last` in the order of scores: the one with the largest score that is less, or equal
 * with a higher number. */
typedef struct { float score; int32_t expert; } Pick;
static Pick next_pick(const float *p, Tensor bias, int64_t E, Pick last) {
    Pick best = {-INFINITY, -1};
    for (int32_t e = 0; e < E; e++) {
        float score = p[e] + (bias.data ? act_get(bias.data, e, bias.type) : 0.0f);
        if (isnan(score)) score = -INFINITY;
        int comes_after = score < last.score || (score == last.score && e > last.expert);
        if (comes_after && (best.expert < 0 || score > best.score)) best = (Pick){score, e};
    }
    return best;
}

void router_forward(Stream *s, Tensor probability, Tensor expert, Tensor weight, Tensor logits, Tensor bias,
                    RouterWeights kind) {
    EXPECT_ACT(logits);
    if (router_forward_contract(s, probability, expert, weight, logits, bias)) return;
    int64_t N = logits.dim[0], E = logits.dim[1], k = expert.dim[1];
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < N; n++) {
        float   *p = (float *)probability.data + n * E, *w = (float *)weight.data + n * k, sum = 0.0f;
        int32_t *chosen = (int32_t *)expert.data + n * k;
        Pick     pick = {INFINITY, -1};
        float    most = -INFINITY, total = 0.0f;
        for (int64_t e = 0; e < E; e++) most = fmaxf(most, act_get(logits.data, n * E + e, logits.type));
        for (int64_t e = 0; e < E; e++) total += p[e] = expf(act_get(logits.data, n * E + e, logits.type) - most);
        for (int64_t e = 0; e < E; e++) p[e] /= total;
        for (int64_t j = 0; j < k; j++) {
            pick = next_pick(p, bias, E, pick);
            chosen[j] = pick.expert;
            sum += w[j] = p[pick.expert];
        }
        for (int64_t j = 0; j < k && kind == WEIGHTS_NORMED; j++) w[j] /= sum;
    }
}

void router_count(Stream *s, Tensor counts, Tensor total, Tensor expert) {
    if (router_count_contract(s, counts, total, expert)) return;
    int64_t  B = counts.dim[0], E = counts.dim[1], each = tensor_elems(expert) / B;
    int32_t *count = (int32_t *)counts.data;
    memset(count, 0, tensor_bytes(counts));
    #pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = b * each; i < (b + 1) * each; i++) count[b * E + ((const int32_t *)expert.data)[i]]++;
    for (int64_t i = 0; i < B * E && total.data; i++) ((int64_t *)total.data)[i % E] += count[i];
}

/* Computes dlogits = p (dp - sum_e p_e dp_e), where dp is the gradient of p. With WEIGHTS_NORMED w_j = p_j / S, S the
 * sum of the chosen p_j, so dp_j = (dw_j - sum_i dw_i w_i) / S. */
void router_backward(Stream *s, Tensor dlogits, Tensor dweight, Tensor probability, Tensor expert, Tensor weight,
                     RouterWeights kind, Tensor counts, Tensor balance) {
    EXPECT_ACT(dlogits);
    int     is_dry = router_backward_contract(s, dlogits, dweight, probability, expert, weight, counts, balance);
    int64_t N = dlogits.dim[0], E = dlogits.dim[1], k = expert.dim[1];
    int64_t each = counts.data ? N / counts.dim[0] : 1; /* number of tokens in a sequence */
    size_t  mark = arena_mark(&s->scratch);
    float  *rows = (float *)arena_take(&s->scratch, (size_t)(N * E) * sizeof(float));
    float   rate = counts.data && !is_dry ? *(const float *)balance.data * (float)E / (float)(k * each) : 0.0f;
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < (is_dry ? 0 : N); n++) {
        const float   *p = (const float *)probability.data + n * E, *w = (const float *)weight.data + n * k,
                      *dw = (const float *)dweight.data + n * k;
        const int32_t *chosen = (const int32_t *)expert.data + n * k;
        float         *dp = rows + n * E, sum = 0.0f, mean = 0.0f, dot = 0.0f;
        for (int64_t e = 0; e < E; e++)
            dp[e] = counts.data ? rate * (float)((const int32_t *)counts.data)[n / each * E + e] : 0.0f;
        for (int64_t j = 0; j < k; j++) sum += p[chosen[j]], mean += dw[j] * w[j];
        for (int64_t j = 0; j < k; j++) dp[chosen[j]] += kind == WEIGHTS_NORMED ? (dw[j] - mean) / sum : dw[j];
        for (int64_t e = 0; e < E; e++) dot += p[e] * dp[e];
        for (int64_t e = 0; e < E; e++) {
            float d = p[e] * (dp[e] - dot);
            if (dlogits.type == BF16) ((uint16_t *)dlogits.data)[n * E + e] = bf16_from_f32(d);
            else ((float *)dlogits.data)[n * E + e] = d;
        }
    }
    arena_release(&s->scratch, mark);
}

/* --- sorting and moving rows -------------------------------------------------------------------------------------- */

/* Sorts by counting, which is stable: one pass counts, one places. */
void experts_sort(Stream *s, Tensor order, Tensor place, Tensor first, Tensor expert) {
    int64_t  R = order.dim[0], E = first.dim[0] - 1;
    int      is_dry = experts_sort_contract(s, order, place, first, expert);
    size_t   mark = arena_mark(&s->scratch);
    int32_t *next = (int32_t *)arena_take(&s->scratch, (size_t)E * sizeof(int32_t)), *start = (int32_t *)first.data;
    const int32_t *of = (const int32_t *)expert.data;
    if (!is_dry) {
        memset(start, 0, tensor_bytes(first));
        for (int64_t i = 0; i < R; i++) {
            CHECK(of[i] >= 0 && of[i] < E, "expert %d of %lld", of[i], (long long)E);
            start[of[i] + 1]++;
        }
        for (int64_t e = 0; e < E; e++) next[e] = start[e], start[e + 1] += start[e];
        for (int64_t i = 0; i < R; i++) {
            int32_t row = next[of[i]]++;
            ((int32_t *)order.data)[row] = (int32_t)i;
            ((int32_t *)place.data)[i] = row;
        }
    }
    arena_release(&s->scratch, mark);
}

void rows_dispatch(Stream *s, Tensor y, Tensor x, Tensor order) {
    if (rows_contract(s, "rows_dispatch", y, x, order) || y.dim[0] == 0) return;
    int64_t k = y.dim[0] / x.dim[0];
    size_t  bytes = (size_t)y.dim[1] * dtype_bytes(y.type);
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < y.dim[0]; r++)
        memcpy((char *)y.data + (size_t)r * bytes,
               (const char *)x.data + (size_t)(((const int32_t *)order.data)[r] / k) * bytes, bytes);
}

void rows_combine(Stream *s, Tensor y, Tensor x, Tensor place) {
    EXPECT_ACT(y);
    if (rows_contract(s, "rows_combine", x, y, place) || x.dim[0] == 0) return;
    RowSum r = {y.data, x.data, (const int32_t *)place.data, x.dim[0] / y.dim[0], y.dim[1]};
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < y.dim[0]; n++) combine_row(y.type, r, n);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* The rows of an expert: [first[e], first[e+1]). On a dry stream, where no routing is known, expert 0 has all rows and
 * the others none, which takes the most memory. */
typedef struct { int64_t begin, count; } Rows;
static Rows rows_of(Stream *s, Tensor first, int64_t e, int64_t all) {
    const int32_t *start = (const int32_t *)first.data;
    return s->ledger ? (Rows){0, e == 0 ? all : 0} : (Rows){start[e], start[e + 1] - start[e]};
}

static Matrix rows_matrix(Tensor t, Rows rows, MatrixOrder order) {
    return matrix_of(tensor_rows(t, rows.begin, rows.count), order);
}

static Matrix weight_of(Tensor w, int64_t stride, int64_t e, MatrixOrder order) {
    Matrix m = matrix_of(w, order);
    m.data = (char *)m.data + (size_t)(e * stride) * dtype_bytes(w.type);
    return m;
}

void expert_linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, int64_t stride, Tensor first) {
    EXPECT_ACT(x);
    expert_linear_forward_contract(s, y, x, w, stride, first);
    for (int64_t e = 0; e < first.dim[0] - 1; e++) {
        Rows   rows = rows_of(s, first, e, x.dim[0]);
        Matmul p = {rows_matrix(y, rows, PLAIN), rows_matrix(x, rows, PLAIN), weight_of(w, stride, e, TRANSPOSED),
                    rows.count, w.dim[0], w.dim[1], MATMUL_SET, NULL};
        matmul_ragged(s, p, RAGGED_M);
    }
}

void expert_linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, int64_t stride,
                            Tensor first) {
    EXPECT_ACT(x);
    expert_linear_backward_contract(s, dx, dw, dy, x, w, stride, first);
    for (int64_t e = 0; e < first.dim[0] - 1; e++) {
        Rows   rows = rows_of(s, first, e, x.dim[0]);
        Matmul to_x = {rows_matrix(dx, rows, PLAIN), rows_matrix(dy, rows, PLAIN), weight_of(w, stride, e, PLAIN),
                       rows.count, w.dim[1], w.dim[0], MATMUL_SET, NULL};
        Matmul to_w = {weight_of(dw, stride, e, PLAIN), rows_matrix(dy, rows, TRANSPOSED), rows_matrix(x, rows, PLAIN),
                       w.dim[0], w.dim[1], rows.count, gradient_write(dw), NULL};
        matmul_ragged(s, to_x, RAGGED_M);
        matmul_ragged(s, to_w, RAGGED_K);
    }
}
#endif
