/* embedding.c - CPU side of the embedding ops in layers.h. Forward goes row by row; backward gives each thread a range
 * of channels and walks the rows in order, so equal tokens are added in one fixed order whatever the number of
 * threads. */
#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

#define SIMD_FILE "layers/embedding_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, add_rows, (DType type, void *y, const void *a, const void *b, int64_t y_at, int64_t a_at, int64_t b_at, int64_t C),
              (type, y, a, b, y_at, a_at, b_at, C))
SIMD_DISPATCH(void, accumulate_row, (DType type, float *sum, const void *x, int64_t at, int64_t C), (type, sum, x, at, C))

static void expect_tokens(Tensor tokens, int64_t rows) {
    const int32_t *token = (const int32_t *)tokens.data;
    for (int64_t n = 0; n < tensor_elems(tokens); n++)
        CHECK(token[n] >= 0 && token[n] < rows, "token %d at %lld, wte has %lld rows", token[n], (long long)n, (long long)rows);
}

void embedding_forward(Stream *s, Tensor y, Tensor tokens, Tensor wte, Tensor wpe) {
    int64_t B = tokens.dim[0], T = tokens.dim[1], C = wte.dim[1];
    EXPECT_ACT(y);
    if (embedding_forward_contract(s, y, tokens, wte, wpe)) return;
    expect_tokens(tokens, wte.dim[0]);
    const int32_t *token = (const int32_t *)tokens.data;
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < B * T; n++) add_rows(y.type, y.data, wte.data, wpe.data, n * C, token[n] * C, n % T * C, C);
}

void embedding_backward(Stream *s, Tensor dwte, Tensor dwpe, Tensor dy, Tensor tokens) {
    enum { CHANNELS = 64 }; /* of one thread's turn: whole cache lines of f32 */
    int64_t B = tokens.dim[0], T = tokens.dim[1], C = dy.dim[1];
    EXPECT_ACT(dy);
    if (embedding_backward_contract(s, dwte, dwpe, dy, tokens)) return;
    expect_tokens(tokens, dwte.dim[0]);
    const int32_t *token = (const int32_t *)tokens.data;
    #pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < C; c += CHANNELS) {
        int64_t width = C - c < CHANNELS ? C - c : CHANNELS;
        for (int64_t n = 0; n < B * T; n++) {
            accumulate_row(dy.type, (float *)dwte.data + token[n] * C + c, dy.data, n * C + c, width);
            accumulate_row(dy.type, (float *)dwpe.data + n % T * C + c, dy.data, n * C + c, width);
        }
    }
}
