/* muon.c - CPU side of muon_momentum, newton_schulz, normuon and muon_update in layers.h.
 *
 * Each statement of momentum and update has one product to fuse with its sum, so any cut into spans, vectors or threads
 * gives the same bits. The sums of newton_schulz and normuon are each added up in one order, so threads do not matter.
 */
#include <math.h>

#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"

typedef float  f32x8 __attribute__((vector_size(32)));
typedef double f64x8 __attribute__((vector_size(64)));

double SIMD(row_squares)(const float *x, int64_t n) {
    f64x8  sum = {0};
    double lane[8], all = 0.0;
    for (int64_t i = 0; i < n; i += 8) {
        f32x8 part = {0};
        memcpy(&part, x + i, sizeof(float) * (size_t)(n - i < 8 ? n - i : 8));
        f64x8 wide = __builtin_convertvector(part, f64x8);
        sum += wide * wide; /* a square of an f32 is exact in f64, so a fused multiply-add gives the same sum */
    }
    memcpy(lane, &sum, sizeof lane);
    for (int i = 0; i < 8; i++) all += lane[i];
    return all;
}
SIMD_DISPATCH(double, row_squares, (const float *x, int64_t n), (x, n))

SIMD_INLINE void newton_narrow_row_of(DType type, void *X, int64_t at, const float *x, float factor, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t lanes = act16_count(i, n);
        act16_store_n(X, at + i, lanes, type, factor * act16_load_n(x, i, lanes, F32));
    }
}
ACT_KERNEL(newton_narrow_row, (DType type, void *X, int64_t at, const float *x, float factor, int64_t n), X, at, x,
           factor, n)

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
#include "layers/muon.h"

/* --- momentum and update ------------------------------------------------------------------------------------------ */

/* Computes Nesterov's momentum. With d = m - g, the new m is m - away d, and g + beta (m - g) is the new m minus ahead
 * d. away is 1-beta, and ahead is (1-beta) beta. */
SIMD_INLINE void momentum_body(float *restrict grad, float *restrict m, float grad_scale, float away,
                               float ahead, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float d = m[i] - grad_scale * grad[i], now = m[i] - away * d;
        m[i] = now;
        grad[i] = now - ahead * d;
    }
}
SIMD_KERNEL(void, momentum,
            (float *restrict grad, float *restrict m, float grad_scale, float away, float ahead, int64_t n),
            (grad, m, grad_scale, away, ahead, n))

SIMD_INLINE void step_body(float *restrict p, const float *restrict u, float rate, float decay, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float kept = p[i] - decay * p[i];
        p[i] = kept - rate * u[i];
    }
}
SIMD_KERNEL(void, step, (float *restrict p, const float *restrict u, float rate, float decay, int64_t n),
            (p, u, rate, decay, n))

void muon_momentum(Stream *s, Tensor grad, Tensor m, double beta, float grad_scale) {
    int64_t n = grad.dim[0];
    if (muon_momentum_contract(s, grad, m)) return;
    #pragma omp parallel for schedule(static) if (n > ACT_BLOCK)
    for (int64_t i = 0; i < n; i += ACT_BLOCK)
        momentum((float *)grad.data + i, (float *)m.data + i, grad_scale, (float)(1.0 - beta),
                 (float)((1.0 - beta) * beta), act_block_elems(i, n));
}

void muon_update(Stream *s, Tensor p, Tensor u, double rate, double decay) {
    int64_t n = p.dim[0];
    if (muon_update_contract(s, p, u)) return;
    #pragma omp parallel for schedule(static) if (n > ACT_BLOCK)
    for (int64_t i = 0; i < n; i += ACT_BLOCK)
        step((float *)p.data + i, (const float *)u.data + i, (float)rate, (float)decay, act_block_elems(i, n));
}

/* --- newton_schulz: the passes between its products --------------------------------------------------------------- */

static void newton_narrow(Stream *s, Tensor X, Tensor x, int64_t part, double margin) {
    int64_t      R = X.dim[0], M = X.dim[1], ld = x.dim[1];
    size_t       mark = arena_mark(&s->scratch);
    double      *squares = (double *)arena_take(&s->scratch, sizeof(double) * (size_t)R), sum = 0.0;
    const float *from = (const float *)x.data + part * M;
    EXPECT_ACT(X);
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

/* --- normuon ------------------------------------------------------------------------------------------------------ */

enum { COLUMNS = 64 }; /* number of columns whose squares one work item of a thread sums: the sums stay in the cache */

SIMD_INLINE void add_squares_body(double *restrict sum, const float *restrict x, int64_t n) {
    for (int64_t i = 0; i < n; i++) sum[i] += (double)x[i] * (double)x[i]; /* a square of an f32 is exact in f64, so a
                                                                            * fused multiply-add gives the same sum */
}
SIMD_KERNEL(void, add_squares, (double *restrict sum, const float *restrict x, int64_t n), (sum, x, n))

static void neuron_squares(Stream *s, NeuronPart p, NeuronNumbers n) {
    (void)s;
    if (p.are_rows) {
        #pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < p.R; r++) n.squares[r] = row_squares(p.x + r * p.width, p.M);
        return;
    }
    #pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < p.M; at += COLUMNS) {
        int64_t count = p.M - at < COLUMNS ? p.M - at : COLUMNS;
        memset(n.squares + at, 0, sizeof(double) * (size_t)count);
        for (int64_t r = 0; r < p.R; r++) add_squares(n.squares + at, p.x + r * p.width + at, count);
    }
}

static void neuron_factors(Stream *s, NeuronPart p, NeuronNumbers n, double beta2) {
    double sum = 0.0;
    (void)s;
    for (int64_t i = 0; i < p.neurons; i++) {
        double v = (double)p.v[i * (p.are_rows ? p.width : 1)];
        n.fresh[i] = (float)(v + (1.0 - beta2) * (n.squares[i] / (double)p.each - v));
        double factor = 1.0 / (sqrt((double)n.fresh[i]) + NORMUON_LEAST);
        n.factor[i] = (float)factor;
        sum += factor * factor * n.squares[i];
    }
    double scale = sum > 0.0 || sum != sum ? sqrt((double)(p.R < p.M ? p.R : p.M) / sum) : 0.0;
    for (int64_t i = 0; i < p.neurons; i++) n.factor[i] = (float)(scale * (double)n.factor[i]);
}

static void neuron_scale(Stream *s, NeuronPart p, NeuronNumbers n) {
    (void)s;
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < p.R; r++) {
        float *x = p.x + r * p.width, *v = p.v + r * p.width;
        for (int64_t c = 0; c < p.M; c++) {
            x[c] *= n.factor[p.are_rows ? r : c];
            v[c] = n.fresh[p.are_rows ? r : c];
        }
    }
}
#endif
