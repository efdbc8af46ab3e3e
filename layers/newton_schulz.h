/* newton_schulz.h - the products of newton_schulz in layers.h, for its host and CUDA sides. Each side has the passes
 * over memory between them.
 */
#ifndef TRAIN_GPT_LAYERS_NEWTON_SCHULZ_H
#define TRAIN_GPT_LAYERS_NEWTON_SCHULZ_H

#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.h"

/* Jordan's: they bring singular values from 0.002 on to between 0.7 and 1.2 in five rounds. */
enum { NEWTON_ROUNDS = 5 };
static const double NEWTON_A = 3.4445, NEWTON_B = -4.7750, NEWTON_C = 2.0315, NEWTON_LEAST = 1e-7;

/* A side's own. On a dry stream they only take their scratch.
 * narrow: X = columns [part M, part M + M) of x, divided by max(their norm, NEWTON_LEAST), in X's type
 * widen: x's columns = X
 * mix: x = outer (y + inner x), of one type and size */
static void newton_narrow(Stream *s, Tensor X, Tensor x, int64_t part);
static void newton_widen(Stream *s, Tensor x, Tensor X, int64_t part);
static void newton_mix(Stream *s, Tensor x, float inner, Tensor y, float outer);

/* c = a b, of matrices of one type. */
static inline void newton_product(Stream *s, Tensor c, Tensor a, MatrixOrder a_order, Tensor b, MatrixOrder b_order) {
    int64_t inner = a_order == PLAIN ? a.dim[1] : a.dim[0];
    Matmul  p = {matrix_of(c, PLAIN), matrix_of(a, a_order), matrix_of(b, b_order), c.dim[0], c.dim[1], inner,
                 MATMUL_SET, NULL};
    matmul(s, p);
}

/* A is [k,k], k the smaller side of X. */
static inline void newton_round(Stream *s, Tensor X, Tensor P, Tensor A, Tensor AA) {
    int is_wide = X.dim[0] <= X.dim[1];
    newton_product(s, A, X, is_wide ? PLAIN : TRANSPOSED, X, is_wide ? TRANSPOSED : PLAIN);
    newton_product(s, AA, A, PLAIN, A, PLAIN);
    newton_mix(s, A, (float)(NEWTON_B / NEWTON_C), AA, (float)NEWTON_C);
    if (is_wide) newton_product(s, P, A, PLAIN, X, PLAIN);
    else newton_product(s, P, X, PLAIN, A, PLAIN);
    newton_mix(s, X, (float)NEWTON_A, P, 1.0f);
}

static inline void newton_schulz_by_parts(Stream *s, Tensor x, int64_t parts, DType type) {
    int64_t R = x.dim[0], M = x.dim[1] / parts, k = R < M ? R : M;
    size_t  mark = arena_mark(&s->scratch);
    Tensor  X = arena_tensor(&s->scratch, type, 2, R, M, 1), P = arena_tensor(&s->scratch, type, 2, R, M, 1);
    Tensor  A = arena_tensor(&s->scratch, type, 2, k, k, 1), AA = arena_tensor(&s->scratch, type, 2, k, k, 1);
    for (int64_t part = 0; part < parts; part++) {
        newton_narrow(s, X, x, part);
        for (int i = 0; i < NEWTON_ROUNDS; i++) newton_round(s, X, P, A, AA);
        newton_widen(s, x, X, part);
    }
    arena_release(&s->scratch, mark);
}

#endif
