/* attention_bounds.h - bounds for the difference between the results of attention and those in float64. */
#ifndef TRAIN_GPT_TEST_REF_ATTENTION_BOUNDS_H
#define TRAIN_GPT_TEST_REF_ATTENTION_BOUNDS_H

#include "test/ref/test.h"

/* Bounds for inputs uniform in +-spread and gradients dy uniform in +-dy_spread. A score is a sum of D terms and has
 * the size spread^2/3. Its rounding error is a relative error of exp(score). dp is the gradient of a probability p,
 * and ds = p (dp - dy.y) that of a score. In bf16 the rounding of y makes dy.y wrong by some u of dp's size, like
 * the rounding of dp itself. The op may also round p and ds for its matrix products. So at most three such errors
 * are independent. In row 0, p = 1 and dp - dy.y = 0, so only errors are left. For an element k of a key they have
 * terms of size dp k / sqrt(D) = dy_spread spread^2 / 3^1.5. */
typedef struct { Bound y, lse, dv, dqk; } AttentionBounds;

static inline AttentionBounds attention_bounds(int64_t T, HeadShape h, double spread, double dy_spread) {
    int64_t D = h.size, G = h.query / h.key;
    double  score = spread * spread / 3.0, terms = (double)T + (double)D * (1.0 + score * score);
    AttentionBounds b;
    b.lse = bound_sum(D);
    b.y = bound_bf16((int64_t)terms, 1.0, 1.0);
    b.dv = bound_bf16(G * (int64_t)terms, 1.0, 1.0);
    b.dqk = bound_bf16(G * (int64_t)terms, 1.0, sqrt(3.0));
    b.dqk.size = dy_spread * spread * spread / pow(3.0, 1.5);
    return b;
}

/* Compares the gradients dq, dk and dv within dqkv, each on its own, because they differ in size. */
static inline void assert_dqkv(Stage *s, Tensor dqkv, const double *want, HeadShape h, AttentionBounds b) {
    int64_t N = dqkv.dim[0], columns = dqkv.dim[1], starts[] = {0, h.query * h.size, (h.query + h.key) * h.size, columns};
    stage_settle();
    for (int which = 0; which < 3; which++) {
        int64_t C = starts[which + 1] - starts[which];
        Tensor  part = stage_tensor(s, dqkv.type, 2, N, C);
        double *part64 = stage_doubles(s, N * C);
        for (int64_t i = 0; i < N * C; i++) {
            int64_t at = i / C * columns + starts[which] + i % C;
            tensor_set(part, i, tensor_get(dqkv, at));
            part64[i] = want[at];
        }
        assert_close(part, part64, dqkv.type, which == 2 ? b.dv : b.dqk);
    }
}

#endif
