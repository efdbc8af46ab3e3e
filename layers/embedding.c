/* embedding.c - CPU side of the embedding ops in layers.h. Forward goes row by row; backward gives each thread a range
 * of channels and walks the rows in order, so equal tokens are added in one fixed order whatever the number of
 * threads. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

SIMD_INLINE void add_two_rows_of(DType type, void *y, const void *a, const void *b, int64_t C) {
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        act16_store_n(y, c, n, type, act16_load_n(a, c, n, type) + act16_load_n(b, c, n, type));
    }
}
ACT_KERNEL(add_two_rows, (DType type, void *y, const void *a, const void *b, int64_t C), y, a, b, C)

/* Adds the row x[at..at+C) to sum[0..C). */
SIMD_INLINE void accumulate_row_of(DType type, float *sum, const void *x, int64_t at, int64_t C) {
    for (int64_t c = 0; c < C; c += LANES) {
        int64_t n = act16_count(c, C);
        act16_store_n(sum, c, n, F32, act16_load_n(sum, c, n, F32) + act16_load_n(x, at + c, n, type));
    }
}
ACT_KERNEL(accumulate_row, (DType type, float *sum, const void *x, int64_t at, int64_t C), sum, x, at, C)

#if SIMD_HOST
static void expect_tokens(Tensor tokens, int64_t rows) {
    const int32_t *token = (const int32_t *)tokens.data;
    for (int64_t n = 0; n < tensor_elems(tokens); n++)
        CHECK(token[n] >= 0 && token[n] <= rows, "token %d at %lld, wte has %lld rows", token[n], (long long)n,
              (long long)rows);
}

/* Returns the position at which row n's document begins. */
static int64_t start_of(Tensor starts, int64_t n) {
    return tensor_is_none(starts) ? 0 : ((const int32_t *)starts.data)[n];
}

void embedding_forward(Stream *s, Tensor y, Tensor tokens, Tensor wte, Tensor wpe, Tensor starts, ContextPart context) {
    int64_t B = tokens.dim[0], T = tokens.dim[1], C = wte.dim[1];
    EXPECT_ACT(y);
    if (embedding_contract(s, "embedding_forward", y, tokens, wte, wpe, starts, context, y.type)) return;
    expect_tokens(tokens, wte.dim[0]);
    Positions p = positions_of(context, T);
    const int32_t *token = (const int32_t *)tokens.data;
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < B * T; n++) {
        void       *out = tensor_rows(y, n, 1).data;
        const void *a = token[n] < wte.dim[0] ? tensor_rows(wte, token[n], 1).data : NULL, *b = NULL;
        if (!tensor_is_none(wpe)) b = tensor_rows(wpe, POSITION_OF(p, n % T) - start_of(starts, n), 1).data;
        if (a && b) add_two_rows(y.type, out, a, b, C);
        else if (a || b) memcpy(out, a ? a : b, (size_t)C * dtype_bytes(y.type));
        else memset(out, 0, (size_t)C * dtype_bytes(y.type));
    }
}

void embedding_backward(Stream *s, Tensor dwte, Tensor dwpe, Tensor dy, Tensor tokens, Tensor starts,
                        ContextPart context) {
    enum { CHANNELS = 64 }; /* channels of one work item of a thread: whole cache lines of f32 */
    int64_t B = tokens.dim[0], T = tokens.dim[1], C = dy.dim[1];
    EXPECT_ACT(dy);
    if (embedding_contract(s, "embedding_backward", dy, tokens, dwte, dwpe, starts, context, F32)) return;
    expect_tokens(tokens, dwte.dim[0]);
    Positions p = positions_of(context, T);
    const int32_t *token = (const int32_t *)tokens.data;
    #pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < C; c += CHANNELS) {
        int64_t width = C - c < CHANNELS ? C - c : CHANNELS;
        for (int64_t n = 0; n < B * T; n++) {
            if (token[n] < dwte.dim[0])
                accumulate_row(dy.type, (float *)dwte.data + token[n] * C + c, dy.data, n * C + c, width);
            if (tensor_is_none(dwpe)) continue;
            accumulate_row(dy.type, (float *)dwpe.data + (POSITION_OF(p, n % T) - start_of(starts, n)) * C + c, dy.data,
                           n * C + c, width);
        }
    }
}

void tokens_own(Stream *s, Tensor own, Tensor tokens, int64_t first, int64_t rows) {
    if (tokens_own_contract(s, own, tokens)) return;
    const int32_t *token = (const int32_t *)tokens.data;
    for (int64_t n = 0; n < tokens.dim[0]; n++)
        ((int32_t *)own.data)[n] = (int32_t)(token[n] >= first && token[n] < first + rows ? token[n] - first : rows);
}
#endif
