/* vectors.cu - CUDA side of the ops in layers.h that set, add and copy elements: zero_tensors, add_forward,
 * copy_columns and cast_forward. */
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/pieces.cuh"

/* --- zero: many tensors a launch, where a fill of each would be a launch each ------------------------------------- */

enum { THREADS = 256, EACH = 16 };

/* Sets all pieces to zero. Each thread writes EACH elements of its block's piece, THREADS apart, so that any alignment
 * will do. grid the sum of ceil(n / (THREADS EACH)), no shared memory. Bound by memory: 4 bytes an element are
 * written. */
KERNEL zero_kernel(const __grid_constant__ TensorPieces all) {
    const TensorPiece &p = all.piece[piece_of(all, blockIdx.x)];
    int64_t            first = (int64_t)(blockIdx.x - p.first_unit) * THREADS * EACH + threadIdx.x;
    #pragma unroll
    for (int k = 0; k < EACH; k++)
        if (first + k * THREADS < p.n) p.x[first + k * THREADS] = 0.0f;
}

void zero_tensors(Stream *s, const Tensor *x, int count) {
    if (zero_contract(s, x, count)) return;
    for (int done = 0; done < count;) {
        TensorPieces all = {};
        done += pieces_take(&all, x + done, count - done, THREADS * EACH);
        if (all.units > 0) LAUNCH(zero_kernel, all.units, THREADS, 0, s, all);
    }
}

/* --- add ---------------------------------------------------------------------------------------------------------- */

/* y = y + x. Each thread adds W elements. grid ceil(n / (THREADS W)), no shared memory. Bound by memory: 12 bytes an
 * element. */
template <int W> KERNEL add_kernel(float *y, const float *x, int64_t n) {
    await_kernels();
    int64_t i = pack_place<W, 1>(0);
    if (i >= n) return;
    Pack<float, W> sum = pack_load_part<float, W>(y + i, n - i), part = pack_load_part<float, W>(x + i, n - i);
    for (int k = 0; k < W; k++) sum.v[k] += part.v[k];
    pack_store_part(y + i, sum, n - i);
}

void add_forward(Stream *s, Tensor y, Tensor x) {
    int64_t n = y.dim[0];
    if (add_forward_contract(s, y, x) || n == 0) return;
    DISPATCH_PACK(float, packs_fit(PACK_BYTES, {y.data, x.data}), W,
        LAUNCH_EARLY(add_kernel<W>, blocks_for(n, THREADS * W), THREADS, 0, s, ptr<float>(y), ptr<float>(x), n));
}

/* --- columns ------------------------------------------------------------------------------------------------------ */

/* Copies columns. Each thread copies W elements of a row of `columns`. grid ceil(rows columns / (THREADS W)). Bound by
 * memory: each element is read and written once. */
template <typename T, int W>
KERNEL copy_columns_kernel(T *to, const T *from, int64_t rows, int64_t columns, int64_t to_stride,
                           int64_t from_stride) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * W, row = i / columns, column = i % columns;
    if (row < rows) pack_store(to + row * to_stride + column, pack_load<T, W>(from + row * from_stride + column));
}

void copy_columns(Stream *s, Tensor to, int64_t to_first, Tensor from, int64_t from_first, int64_t columns) {
    int64_t rows = from.dim[0];
    if (copy_columns_contract(s, to, to_first, from, from_first, columns) || rows * columns == 0) return;
    DISPATCH_ACT(from.type, T, {
        T       *out = ptr<T>(to) + to_first;
        const T *in = ptr<T>(from) + from_first;
        bool fit = packs_fit((size_t)columns * sizeof(T), {out, in}) &&
                   packs_fit((size_t)to.dim[1] * sizeof(T), {out}) && packs_fit((size_t)from.dim[1] * sizeof(T), {in});
        DISPATCH_PACK(T, fit, W,
            LAUNCH((copy_columns_kernel<T, W>), blocks_for(rows * columns, THREADS * W), THREADS, 0, s, out, in, rows,
                   columns, to.dim[1], from.dim[1]));
    });
}

/* --- cast: a copy that rounds to nearest even where it narrows ---------------------------------------------------- */

enum { PACKS = 4 };

/* y = x in the type of y. Each thread converts PACKS packs, which have 16 bytes in the wider type. grid ceil(n /
 * (THREADS PACKS W)), no shared memory. Bound by memory traffic. */
template <typename To, typename From, int W> KERNEL cast_kernel(To *y, const From *x, int64_t n) {
    await_kernels();
    Pack<From, W> in[PACKS];
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i < n) in[k] = pack_load_part<From, W>(x + i, n - i);
    }
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i >= n) continue;
        Pack<To, W> out;
        if constexpr (std::is_same_v<To, From>) out = in[k];
        else for (int j = 0; j < W; j++) out.v[j] = from_f32<To>(to_f32(in[k].v[j]));
        pack_store_part(y + i, out, n - i);
    }
}

void cast_forward(Stream *s, Tensor y, Tensor x) {
    int64_t n = x.dim[0];
    if (cast_forward_contract(s, y, x) || n == 0) return;
    bool fit = packs_fit(PACK_BYTES, {y.data, x.data});
    DISPATCH_ACT(y.type, To, DISPATCH_ACT(x.type, From, {
        typedef typename std::conditional<sizeof(To) >= sizeof(From), To, From>::type Wider;
        DISPATCH_PACK(Wider, fit, W,
            LAUNCH_EARLY((cast_kernel<To, From, W>), blocks_for(n, THREADS * PACKS * W), THREADS, 0, s, ptr<To>(y),
                         ptr<From>(x), n));
    }));
}
