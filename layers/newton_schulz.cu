/* newton_schulz.cu - CUDA side of newton_schulz in layers.h: the passes between its products. The norm is the sum of
 * the same number of partial sums on every GPU, so its bits are the same on all. */
#include "core/kernel.cuh"
#include "layers/newton_schulz.h"

enum { THREADS = 256, PARTIALS = 256 };

/* A matrix inside a wider one: rows of M columns that are ld apart. */
struct Columns { int64_t M, ld; };
DEVICE int64_t place_of(Columns c, int64_t i) { return i / c.M * c.ld + i % c.M; }

/* partial[block] = sum of squares of every PARTIALS-th tile of THREADS elements. grid PARTIALS, block THREADS. Bound:
 * its traffic. */
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

/* X = x / max(margin norm, least). Thread: one element; each block adds up all partial sums again. grid ceil(n /
 * THREADS). Bound: its traffic. */
template <typename T> KERNEL narrow_kernel(T *X, const float *x, const double *partial, Columns c, int64_t n,
                                         double margin, double least) {
    SMEM(double, part, [WARP]);
    double  norm = margin * sqrt(block_sum(partial[threadIdx.x], part));
    float   factor = (float)(1.0 / (norm < least ? least : norm));
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) X[i] = from_f32<T>(x[place_of(c, i)] * factor);
}
static_assert(PARTIALS == THREADS, "a thread for each partial sum");

/* x = X. Thread: one element. grid ceil(n / THREADS), no shared memory. Bound: its traffic. */
template <typename T> KERNEL widen_kernel(float *x, const T *X, Columns c, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) x[place_of(c, i)] = to_f32(X[i]);
}

/* x = outer (y + inner x). Thread: W elements. grid ceil(n / (THREADS W)), no shared memory. Bound: its traffic. */
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
    DISPATCH_ACT(X.type, T,
        LAUNCH((narrow_kernel<T>), blocks_for(n, THREADS), THREADS, 0, s, ptr<T>(X), from, partial, c, n, margin, NEWTON_LEAST));
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

void newton_schulz(Stream *s, Tensor x, int64_t parts, DType type, NewtonKind kind) {
    newton_schulz_contract(s, x, parts, type);
    newton_schulz_by_parts(s, x, parts, type, kind);
}
