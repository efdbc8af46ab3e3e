/* muon.cu - CUDA side of muon_momentum, newton_schulz, normuon and muon_update in layers.h.
 *
 * Momentum and update work on each element on its own, as in muon.c. Products and sums are written as fused
 * multiply-adds, so that the compiler has no choice. The norms of newton_schulz and normuon are sums of the same number
 * of partial sums in one order on every GPU, so their bits are the same on all.
 */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/muon.h"

/* --- momentum and update ------------------------------------------------------------------------------------------ */

enum { THREADS = 256 };

/* Computes muon_momentum. Each thread takes W elements. grid ceil(n / (THREADS W)), no shared memory. Bound by memory:
 * 16 bytes an element. */
template <int W> KERNEL momentum_kernel(float *grad, float *m, float grad_scale, float away, float ahead, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    Pack<float, W> g4 = pack_load_part<float, W>(grad + i, n - i), m4 = pack_load_part<float, W>(m + i, n - i);
    for (int j = 0; j < W; j++) {
        float d = fmaf(-grad_scale, g4.v[j], m4.v[j]);
        m4.v[j] = fmaf(-away, d, m4.v[j]);
        g4.v[j] = fmaf(-ahead, d, m4.v[j]);
    }
    pack_store_part(m + i, m4, n - i);
    pack_store_part(grad + i, g4, n - i);
}

/* Computes muon_update. Each thread takes W elements. grid ceil(n / (THREADS W)), no shared memory. Bound by memory: 12
 * bytes an element. */
template <int W> KERNEL step_kernel(float *p, const float *u, float rate, float decay, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    Pack<float, W> p4 = pack_load_part<float, W>(p + i, n - i), u4 = pack_load_part<float, W>(u + i, n - i);
    for (int j = 0; j < W; j++) p4.v[j] = fmaf(-rate, u4.v[j], fmaf(-decay, p4.v[j], p4.v[j]));
    pack_store_part(p + i, p4, n - i);
}

void muon_momentum(Stream *s, Tensor grad, Tensor m, double beta, float grad_scale) {
    int64_t n = grad.dim[0];
    if (muon_momentum_contract(s, grad, m) || n == 0) return;
    DISPATCH_PACK(float, packs_fit(PACK_BYTES, {grad.data, m.data}), W,
        LAUNCH((momentum_kernel<W>), blocks_for(n, THREADS * W), THREADS, 0, s, ptr<float>(grad), ptr<float>(m),
               grad_scale, (float)(1.0 - beta), (float)((1.0 - beta) * beta), n));
}

void muon_update(Stream *s, Tensor p, Tensor u, double rate, double decay) {
    int64_t n = p.dim[0];
    if (muon_update_contract(s, p, u) || n == 0) return;
    DISPATCH_PACK(float, packs_fit(PACK_BYTES, {p.data, u.data}), W,
        LAUNCH((step_kernel<W>), blocks_for(n, THREADS * W), THREADS, 0, s, ptr<float>(p), ptr<float>(u), (float)rate,
               (float)decay, n));
}

/* --- newton_schulz: the passes between its products --------------------------------------------------------------- */

enum { PARTIALS = THREADS }; /* number of partial sums: each thread of a block of narrow_kernel reads one */

/* A matrix inside a wider one: rows of M columns that are ld apart. */
struct Columns { int64_t M, ld; };
DEVICE int64_t place_of(Columns c, int64_t i) { return i / c.M * c.ld + i % c.M; }

/* partial[block] = sum of squares of every PARTIALS-th tile of THREADS elements. grid PARTIALS, block THREADS. Bound by
 * memory: x is read once. */
KERNEL squares_kernel(double *partial, const float *x, Columns c, int64_t n) {
    SMEM(double, part, [WARP]);
    double sum = 0.0;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (int64_t)PARTIALS * THREADS) {
        double v = (double)x[place_of(c, i)];
        sum = fma(v, v, sum);
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* X = x / max(margin norm, least). Each thread computes one element, and each block adds up all partial sums again.
 * grid ceil(n / THREADS). Bound by memory traffic. */
template <typename T> KERNEL narrow_kernel(T *X, const float *x, const double *partial, Columns c, int64_t n,
                                         double margin, double least) {
    SMEM(double, part, [WARP]);
    double  norm = margin * sqrt(block_sum(partial[threadIdx.x], part));
    float   factor = (float)(1.0 / (norm < least ? least : norm));
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) X[i] = from_f32<T>(x[place_of(c, i)] * factor);
}

/* x = X, widened to f32. Each thread copies one element. grid ceil(n / THREADS), no shared memory. Bound by memory
 * traffic. */
template <typename T> KERNEL widen_kernel(float *x, const T *X, Columns c, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) x[place_of(c, i)] = to_f32(X[i]);
}

/* x = outer (y + inner x). Each thread computes W elements. grid ceil(n / (THREADS W)), no shared memory. Bound by
 * memory traffic. */
template <typename T, int W> KERNEL mix_kernel(T *x, float inner, const T *y, float outer, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W;
    if (i >= n) return;
    Pack<T, W> x4 = pack_load_part<T, W>(x + i, n - i), y4 = pack_load_part<T, W>(y + i, n - i);
    for (int j = 0; j < W; j++) x4.v[j] = from_f32<T>(outer * fmaf(inner, to_f32(x4.v[j]), to_f32(y4.v[j])));
    pack_store_part(x + i, x4, n - i);
}

static void newton_narrow(Stream *s, Tensor X, Tensor x, int64_t part, double margin) {
    int64_t n = tensor_elems(X);
    Columns c = {X.dim[1], x.dim[1]};
    float  *from = ptr<float>(x) + part * c.M;
    size_t  mark = arena_mark(&s->scratch);
    double *partial = (double *)arena_take(&s->scratch, sizeof(double) * PARTIALS);
    LAUNCH(squares_kernel, PARTIALS, THREADS, 0, s, partial, from, c, n);
    DISPATCH_ACT(X.type, T, LAUNCH((narrow_kernel<T>), blocks_for(n, THREADS), THREADS, 0, s, ptr<T>(X), from, partial,
                                   c, n, margin, NEWTON_LEAST));
    arena_release(&s->scratch, mark);
}

static void newton_widen(Stream *s, Tensor x, Tensor X, int64_t part) {
    int64_t n = tensor_elems(X);
    Columns c = {X.dim[1], x.dim[1]};
    DISPATCH_ACT(X.type, T,
        LAUNCH((widen_kernel<T>), blocks_for(n, THREADS), THREADS, 0, s, ptr<float>(x) + part * c.M, ptr<T>(X), c, n));
}

static void newton_mix(Stream *s, Tensor x, float inner, Tensor y, float outer) {
    int64_t n = tensor_elems(x);
    DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, packs_fit(PACK_BYTES, {x.data, y.data}), W,
        LAUNCH((mix_kernel<T, W>), blocks_for(n, THREADS * W), THREADS, 0, s, ptr<T>(x), inner, ptr<T>(y), outer, n)));
}

/* --- normuon ------------------------------------------------------------------------------------------------------ */

enum { LANES = 8 };

/* squares[r] = sum of squares of row r. grid rows, block THREADS. Bound by memory: x is read once. */
KERNEL row_squares_kernel(double *squares, const float *x, int64_t M, int64_t width) {
    SMEM(double, part, [WARP]);
    const float *row = x + (int64_t)blockIdx.x * width;
    double       sum = 0.0;
    for (int64_t c = threadIdx.x; c < M; c += THREADS) {
        double v = (double)row[c];
        sum = fma(v, v, sum);
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

/* squares[c] = sum of squares of column c. Thread (c, k) of the block adds every LANES-th row from k on. grid ceil(M /
 * WARP), block (WARP, LANES). Bound by memory: x is read once. */
KERNEL column_squares_kernel(double *squares, const float *x, int64_t R, int64_t M, int64_t width) {
    SMEM(double, part, [LANES][WARP]);
    int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x;
    double  sum = 0.0;
    for (int64_t r = threadIdx.y; r < R && c < M; r += LANES) {
        double v = (double)x[r * width + c];
        sum = fma(v, v, sum);
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads(); /* after this the threads of row 0 read the sums of all rows of threads */
    if (threadIdx.y > 0 || c >= M) return;
    for (int k = 1; k < LANES; k++) sum += part[k][threadIdx.x];
    squares[c] = sum;
}

/* Sets for each neuron the factor by which x is multiplied, and `fresh`, the new value of v. One block of THREADS; each
 * thread has every THREADS-th neuron. Bound by latency. */
KERNEL neuron_factors_kernel(NeuronPart p, NeuronNumbers n, double away, double least) {
    SMEM(double, part, [WARP]);
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < p.neurons; i += THREADS) {
        double v = (double)p.v[i * (p.are_rows ? p.width : 1)];
        float  fresh = (float)fma(away, n.squares[i] / (double)p.each - v, v);
        double factor = 1.0 / (sqrt((double)fresh) + least);
        n.fresh[i] = fresh;
        n.factor[i] = (float)factor;
        sum = fma(factor * factor, n.squares[i], sum);
    }
    sum = block_sum(sum, part);
    double scale = sum > 0.0 || sum != sum ? sqrt((double)(p.R < p.M ? p.R : p.M) / sum) : 0.0;
    for (int64_t i = threadIdx.x; i < p.neurons; i += THREADS) n.factor[i] = (float)(scale * (double)n.factor[i]);
}

/* Multiplies x by the factors of its neurons and writes their new values to v. Each thread takes one element. grid
 * ceil(R M / THREADS), no shared memory. Bound by memory: 12 bytes an element. */
KERNEL neuron_scale_kernel(NeuronPart p, NeuronNumbers n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = i / p.M, c = i % p.M;
    if (i >= p.R * p.M) return;
    p.x[r * p.width + c] *= n.factor[p.are_rows ? r : c];
    p.v[r * p.width + c] = n.fresh[p.are_rows ? r : c];
}

static void neuron_squares(Stream *s, NeuronPart p, NeuronNumbers n) {
    if (p.are_rows) LAUNCH(row_squares_kernel, p.R, THREADS, 0, s, n.squares, p.x, p.M, p.width);
    else
        LAUNCH(column_squares_kernel, blocks_for(p.M, WARP), dim3(WARP, LANES), 0, s, n.squares, p.x, p.R, p.M,
               p.width);
}
static void neuron_factors(Stream *s, NeuronPart p, NeuronNumbers n, double beta2) {
    LAUNCH(neuron_factors_kernel, 1, THREADS, 0, s, p, n, 1.0 - beta2, NORMUON_LEAST);
}
static void neuron_scale(Stream *s, NeuronPart p, NeuronNumbers n) {
    LAUNCH(neuron_scale_kernel, blocks_for(p.R * p.M, THREADS), THREADS, 0, s, p, n);
}
