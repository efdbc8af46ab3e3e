/* newton_schulz.c - CPU side of newton_schulz in layers.h: the passes between its products. Rows are added up in order,
 * so threads do not matter. */
#include <math.h>

#include "layers/act_simd.h"

typedef float  f32x8 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));

double SIMD(row_squares)(const float *x, int64_t n) {
    f64x8  sum = {0};
    double lane[8], all = 0.0;
    for (int64_t i = 0; i < n; i += 8) {
        f32x8 part = {0};
        memcpy(&part, x + i, sizeof(float) * (size_t)(n - i < 8 ? n - i : 8));
        f64x8 wide = __builtin_convertvector(part, f64x8);
        sum += wide * wide; /* squares of f32 are exact in f64, so a fused sum is the same */
    }
    memcpy(lane, &sum, sizeof lane);
    for (int i = 0; i < 8; i++) all += lane[i];
    return all;
}

SIMD_INLINE void newton_narrow_row_of(DType type, void *X, int64_t at, const float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t lanes = act16_count(i, n);
        act16_store_n(X, at + i, lanes, type, factor * act16_load_n(x, i, lanes, F32));
    }
}
ACT_KERNEL(newton_narrow_row, (DType type, void *X, int64_t at, const float *x, float factor, int64_t n), X, at, x, factor, n)

SIMD_INLINE void newton_widen_row_of(DType type, float *x, const void *X, int64_t at, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t lanes = act16_count(i, n);
        act16_store_n(x, i, lanes, F32, act16_load_n(X, at + i, lanes, type));
    }
}
ACT_KERNEL(newton_widen_row, (DType type, float *x, const void *X, int64_t at, int64_t n), x, X, at, n)

SIMD_INLINE void mix_block_of(DType type, void *x, float inner, const void *y, float outer, int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; i += LANES) {
        int64_t lanes = act16_count(i, first + n);
        f32x16  sum = act16_load_n(y, i, lanes, type) + inner * act16_load_n(x, i, lanes, type);
        act16_store_n(x, i, lanes, type, outer * sum);
    }
}
ACT_KERNEL(mix_block, (DType type, void *x, float inner, const void *y, float outer, int64_t first, int64_t n),
           x, inner, y, outer, first, n)

#if SIMD_HOST
#include "layers/newton_schulz.h"

SIMD_DISPATCH(double, row_squares, (const float *x, int64_t n), (x, n))
SIMD_DISPATCH(void, newton_narrow_row, (DType type, void *X, int64_t at, const float *x, float factor, int64_t n),
              (type, X, at, x, factor, n))
SIMD_DISPATCH(void, newton_widen_row, (DType type, float *x, const void *X, int64_t at, int64_t n), (type, x, X, at, n))
SIMD_DISPATCH(void, mix_block, (DType type, void *x, float inner, const void *y, float outer, int64_t first, int64_t n),
              (type, x, inner, y, outer, first, n))

static void newton_narrow(Stream *s, Tensor X, Tensor x, int64_t part, double margin) {
    int64_t      R = X.dim[0], M = X.dim[1], ld = x.dim[1];
    size_t       mark = arena_mark(&s->scratch);
    double      *squares = (double *)arena_take(&s->scratch, sizeof(double) * (size_t)R), sum = 0.0;
    const float *from = (const float *)x.data + part * M;
    if (!s->ledger) {
        #pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < R; r++) squares[r] = row_squares(from + r * ld, M);
        for (int64_t r = 0; r < R; r++) sum += squares[r];
        double norm = margin * sqrt(sum);
        float  factor = (float)(1.0 / (norm < NEWTON_LEAST ? NEWTON_LEAST : norm));
        #pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < R; r++) newton_narrow_row(X.type, X.data, r * M, from + r * ld, factor, M);
    }
    arena_release(&s->scratch, mark);
}

static void newton_widen(Stream *s, Tensor x, Tensor X, int64_t part) {
    int64_t R = X.dim[0], M = X.dim[1], ld = x.dim[1];
    if (s->ledger) return;
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < R; r++) newton_widen_row(X.type, (float *)x.data + part * M + r * ld, X.data, r * M, M);
}

static void newton_mix(Stream *s, Tensor x, float inner, Tensor y, float outer) {
    int64_t n = tensor_elems(x);
    if (s->ledger) return;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i += ACT_BLOCK)
        mix_block(x.type, x.data, inner, y.data, outer, i, act_block_elems(i, n));
}

void newton_schulz(Stream *s, Tensor x, int64_t parts, DType type, NewtonKind kind) {
    EXPECT_ACT(tensor_1d(NULL, type, 0));
    newton_schulz_contract(s, x, parts, type);
    newton_schulz_by_parts(s, x, parts, type, kind);
}
#endif
