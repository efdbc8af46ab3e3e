/* activation.cu - CUDA side of the activation ops in layers.h; the functions themselves are in activation.h. */
#include "layers/activation.h"
#include "layers/bias.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 256, PACKS = 2 }; /* PACKS: number of packs (16 bytes) of a thread, so that two loads of each array are
                                    * in flight at once */

/* y = f(x), f the function of `kind`. Each thread computes PACKS packs of W elements. grid ceil(n / (THREADS PACKS W)),
 * no shared memory. Bound by memory: 2 elements of traffic for each of y. */
template <Activation kind, typename T, int W>
KERNEL activation_forward_kernel(T *y, const T *x, int64_t n) {
    await_kernels();
    Pack<T, W> in[PACKS];
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i < n) in[k] = pack_load_part<T, W, ONCE>(x + i, n - i); /* ONCE: the cache may drop x, which is read again
                                                                      * only in backward */
    }
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i >= n) continue;
        Pack<float, W> v = pack_to_f32(in[k]);
        for (int j = 0; j < W; j++) v.v[j] = activate(kind, v.v[j]);
        pack_store_part(y + i, pack_from_f32<T>(v), n - i);
    }
}

/* dx = dy f'(x). dx may be dy, because each element is read and written by one thread. Threads and grid are those of
 * activation_forward_kernel. Bound by memory: 3 elements of traffic for each of dx. */
template <Activation kind, typename T, int W>
KERNEL activation_backward_kernel(T *dx, const T *dy, const T *x, int64_t n) {
    await_kernels();
    Pack<T, W> in[PACKS], grad[PACKS];
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i >= n) continue;
        in[k] = pack_load_part<T, W, ONCE>(x + i, n - i);
        grad[k] = pack_load_part<T, W>(dy + i, n - i);
    }
    #pragma unroll
    for (int k = 0; k < PACKS; k++) {
        int64_t i = pack_place<W, PACKS>(k);
        if (i >= n) continue;
        Pack<float, W> v = pack_to_f32(in[k]), d = pack_to_f32(grad[k]);
        for (int j = 0; j < W; j++) v.v[j] = d.v[j] * activation_slope(kind, v.v[j]);
        pack_store_part(dx + i, pack_from_f32<T>(v), n - i);
    }
}

void activation_forward(Stream *s, Activation kind, Tensor y, Tensor x) {
    int64_t n = tensor_elems(x);
    if (activation_forward_contract(s, y, x, NULL) || n == 0) return;
    DISPATCH_ACTIVATION(kind, K, DISPATCH_ACT(x.type, T, DISPATCH_PACK(T, packs_fit(PACK_BYTES, {y.data, x.data}), W,
        LAUNCH_EARLY((activation_forward_kernel<K, T, W>), blocks_for(n, THREADS * PACKS * W), THREADS, 0, s,
                     ptr<T>(y), ptr<T>(x), n))));
}

/* dx = dy f'(x) for a strip of 32 W columns and rows_per_block rows. Column sums of the strip go to sums[blockIdx.y]
 * (see bias.cuh). A warp has ROWS rows in flight at once. grid (ceil(M/(32 W)), number of partial sums), block (32,8),
 * static shared memory. Bound by memory: 3 elements of traffic for each of dx. */
enum { ROWS = 2 };
template <Activation kind, typename T, int W>
KERNEL activation_backward_sums_kernel(T *dx, float *sums, const T *dy, const T *x, int64_t rows,
                                       int64_t rows_per_block, int64_t M) {
    await_kernels();
    int64_t c = ((int64_t)blockIdx.x * WARP + threadIdx.x) * W, first = (int64_t)blockIdx.y * rows_per_block;
    int64_t end = first + rows_per_block < rows ? first + rows_per_block : rows;
    float   sum[W] = {};
    for (int64_t r = first + threadIdx.y; c < M && r < end; r += ROWS * SUM_WARPS) {
        Pack<T, W> in[ROWS], grad[ROWS];
        #pragma unroll
        for (int k = 0; k < ROWS; k++) {
            int64_t i = (r + k * SUM_WARPS) * M + c;
            if (r + k * SUM_WARPS < end) in[k] = pack_load_once<T, W>(x + i), grad[k] = pack_load<T, W>(dy + i);
        }
        #pragma unroll
        for (int k = 0; k < ROWS; k++) {
            if (r + k * SUM_WARPS >= end) continue;
            Pack<float, W> v = pack_to_f32(in[k]), d = pack_to_f32(grad[k]);
            for (int j = 0; j < W; j++) v.v[j] = d.v[j] * activation_slope(kind, v.v[j]);
            Pack<T, W> stored = pack_from_f32<T>(v);
            pack_store(dx + (r + k * SUM_WARPS) * M + c, stored);
            for (int j = 0; j < W; j++) sum[j] += to_f32(stored.v[j]);
        }
    }
    strip_sums(sum, M, [=](int64_t at, float total) { sums[(int64_t)blockIdx.y * M + at] = total; });
}

void activation_backward(Stream *s, Activation kind, Tensor dx, Tensor dbias, Tensor dy, Tensor x) {
    int64_t n = tensor_elems(x);
    int     is_dry = activation_backward_contract(s, dx, dbias, dy, x, NULL);
    if (n == 0) return;
    if (!tensor_is_none(dbias)) {
        int64_t N = x.dim[0], M = x.dim[1], parts = sum_parts_of(N);
        size_t  mark = arena_mark(&s->scratch);
        float  *partial = (float *)arena_take(&s->scratch, bias_scratch_bytes(N, M));
        DISPATCH_ACTIVATION(kind, K, DISPATCH_ACT(x.type, T,
            DISPATCH_PACK(T, packs_fit((size_t)M * sizeof(T), {dx.data, dy.data, x.data}), W,
                LAUNCH_EARLY((activation_backward_sums_kernel<K, T, W>),
                             dim3((unsigned)blocks_for(M, WARP * W), (unsigned)parts), dim3(WARP, SUM_WARPS), 0, s,
                             ptr<T>(dx), partial, ptr<T>(dy), ptr<T>(x), N, sum_rows_of(N), M))));
        column_sums(s, ptr<float>(dbias), partial, F32, parts, parts, M, MATMUL_ADD);
        arena_release(&s->scratch, mark);
        return;
    }
    if (is_dry) return;
    DISPATCH_ACTIVATION(kind, K, DISPATCH_ACT(x.type, T,
        DISPATCH_PACK(T, packs_fit(PACK_BYTES, {dx.data, dy.data, x.data}), W,
            LAUNCH_EARLY((activation_backward_kernel<K, T, W>), blocks_for(n, THREADS * PACKS * W), THREADS, 0, s,
                         ptr<T>(dx), ptr<T>(dy), ptr<T>(x), n))));
}
