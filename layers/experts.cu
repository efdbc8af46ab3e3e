/* experts.cu - CUDA side of the ops in layers.h that sort rows by expert, and of rows_dispatch and rows_combine. */
#include "core/kernel.cuh"
#include "layers/expert_contracts.h"
#include "layers/layers.h"
#include "layers/sort_tokens.cuh"

enum { WARPS = 8, THREADS = WARPS * WARP };

/* Thread: a row of the sorted list, and the experts whose rows begin at it, those after the expert of the row before.
 * Thread R: experts that begin at the end. grid ceil((R + 1) / THREADS). */
KERNEL experts_place_kernel(int32_t *order, int32_t *place, int32_t *first, TokenList list, int64_t R, int E) {
    int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r > R) return;
    int last = r == 0 ? -1 : list.token[r - 1], mine = r == R ? E : list.token[r];
    for (int e = last + 1; e <= mine; e++) first[e] = (int32_t)r;
    if (r == R) return;
    int32_t assignment = list.position[r];
    order[r] = assignment;
    place[assignment] = (int32_t)r;
}

void experts_sort(Stream *s, Tensor order, Tensor place, Tensor first, Tensor expert) {
    int64_t R = order.dim[0], E = first.dim[0] - 1;
    experts_sort_contract(s, order, place, first, expert);
    size_t      mark = arena_mark(&s->scratch);
    SortScratch k = sort_scratch(&s->scratch, R);
    TokenList   list = R > 0 ? sort_tokens(s, k, ptr<int32_t>(expert), R, E) : k.list[0];
    LAUNCH(experts_place_kernel, blocks_for(R + 1, THREADS), THREADS, 0, s, ptr<int32_t>(order), ptr<int32_t>(place), ptr<int32_t>(first),
           list, R, (int)E);
    arena_release(&s->scratch, mark);
}

/* Copies each row's token. Warp: a row. grid ceil(R / WARPS), no shared memory. Bound: 2 elements of traffic each. */
template <typename T, int W> KERNEL rows_dispatch_kernel(T *y, const T *x, const int32_t *order, int64_t R, int64_t k, int64_t C) {
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (r >= R) return;
    const T *from = x + order[r] / k * C;
    #pragma unroll 4
    for (int64_t c = threadIdx.x % WARP * W; c < C; c += WARP * W) pack_store(y + r * C + c, pack_load<T, W>(from + c));
}

/* Adds a token's rows in order. Warp: a token. grid ceil(N / WARPS), no shared memory. Bound: k + 1 elements of traffic
 * each. */
template <typename T, int W> KERNEL rows_combine_kernel(T *y, const T *x, const int32_t *place, int64_t N, int64_t k, int64_t C) {
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (n >= N) return;
    for (int64_t c = threadIdx.x % WARP * W; c < C; c += WARP * W) {
        Pack<float, W> sum = {};
        #pragma unroll 4
        for (int64_t j = 0; j < k; j++) {
            Pack<float, W> row = pack_to_f32(pack_load<T, W>(x + place[n * k + j] * C + c));
            for (int i = 0; i < W; i++) sum.v[i] += row.v[i];
        }
        pack_store(y + n * C + c, pack_from_f32<T>(sum));
    }
}

void rows_dispatch(Stream *s, Tensor y, Tensor x, Tensor order) {
    int64_t R = y.dim[0], C = y.dim[1];
    if (rows_contract(s, "rows_dispatch", y, x, order) || R == 0) return;
    DISPATCH_ACT(y.type, T, DISPATCH_PACK(T, packs_fit((size_t)C * sizeof(T), {y.data, x.data}), W,
        LAUNCH((rows_dispatch_kernel<T, W>), blocks_for(R, WARPS), THREADS, 0, s, ptr<T>(y), ptr<T>(x), ptr<int32_t>(order), R,
               R / x.dim[0], C)));
}

void rows_combine(Stream *s, Tensor y, Tensor x, Tensor place) {
    int64_t N = y.dim[0], C = y.dim[1];
    if (rows_contract(s, "rows_combine", x, y, place) || N == 0) return;
    DISPATCH_ACT(y.type, T, DISPATCH_PACK(T, packs_fit((size_t)C * sizeof(T), {y.data, x.data}), W,
        LAUNCH((rows_combine_kernel<T, W>), blocks_for(N, WARPS), THREADS, 0, s, ptr<T>(y), ptr<T>(x), ptr<int32_t>(place), N,
               x.dim[0] / N, C)));
}
