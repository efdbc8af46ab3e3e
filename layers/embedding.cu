/* embedding.cu - CUDA side of the embedding ops in layers.h. The gradient of wte sums the rows of equal tokens: the
 * tokens are sorted with their positions, and each run of one token adds its rows in the order of their positions.
 * For a run of up to 32 rows a warp adds 32 packs of channels. For a longer one a block adds a slice of channels, so
 * that even a batch of a single token keeps many blocks busy. Each element is added to by one thread, so nothing is
 * atomic. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/sort_tokens.cuh"

enum {
    WARPS = 8, THREADS = WARPS * WARP,
    SLICE_PACKS = 8,                   /* if a token has many rows, a block adds this many packs of their channels: 128
                                        * bytes of each row */
    /* number of groups of threads in a block, which divide among themselves the rows of dy that belong to one token */
    GROUPS = THREADS / SLICE_PACKS,
    BATCH = 4                          /* number of rows whose loads are in flight together */
};

/* y[n] = wte[token[n]] + wpe[p - starts[n]], where p = POSITION_OF(n % T) is the position of the token in its whole
 * sequence, and starts[n] that of the first token of its document. wpe NULL adds nothing, starts NULL counts as 0,
 * and so does the row of a token equal to `rows`. Each warp takes one row. grid ceil(N / WARPS), no shared memory.
 * Bound by memory: 2 elements of traffic for each element of y, with wte and wpe mostly from L2. */
template <typename T, int W>
KERNEL embedding_forward_kernel(T *y, const int32_t *token, const T *wte, const T *wpe, const int32_t *starts,
                                int64_t N, int64_t length, Positions p, int64_t C, int64_t rows) {
    await_kernels();
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (n >= N) return;
    device_check(token[n] >= 0 && token[n] <= rows);
    int64_t  t = n % length;
    const T *a = token[n] < rows ? wte + token[n] * C : NULL,
            *b = wpe ? wpe + (POSITION_OF(p, t) - (starts ? starts[n] : 0)) * C : NULL;
#pragma unroll 4
    for (int64_t c = threadIdx.x % WARP * W; c < C; c += WARP * W) {
        Pack<float, W> sum = {}, other = {};
        if (a) sum = pack_to_f32(pack_load<T, W>(a + c));
        if (b) other = pack_to_f32(pack_load<T, W>(b + c));
        for (int j = 0; j < W; j++) sum.v[j] += other.v[j];
        pack_store(y + n * C + c, pack_from_f32<T>(sum));
    }
}

void embedding_forward(Stream *s, Tensor y, Tensor tokens, Tensor wte, Tensor wpe, Tensor starts, ContextPart context) {
    int64_t B = tokens.dim[0], T = tokens.dim[1], C = wte.dim[1], N = B * T;
    if (embedding_contract(s, "embedding_forward", y, tokens, wte, wpe, starts, context, y.type) || N == 0) return;
    Positions p = positions_of(context, T);
    bool      fit = packs_fit((size_t)C * dtype_bytes(y.type), {y.data, wte.data, wpe.data});
    DISPATCH_ACT(y.type, A, DISPATCH_PACK(A, fit, W,
        LAUNCH_EARLY((embedding_forward_kernel<A, W>), blocks_for(N, WARPS), THREADS, 0, s, ptr<A>(y),
                     ptr<int32_t>(tokens), ptr<A>(wte), ptr<A>(wpe), ptr<int32_t>(starts), N, T, p, C, wte.dim[0])));
}

/* own = token - first for tokens whose row of wte this rank has, otherwise `rows`. Each thread takes one token. */
KERNEL tokens_own_kernel(int32_t *own, const int32_t *token, int64_t n, int64_t first, int64_t rows) {
    await_kernels();
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) own[i] = (int32_t)(token[i] >= first && token[i] < first + rows ? token[i] - first : rows);
}

void tokens_own(Stream *s, Tensor own, Tensor tokens, int64_t first, int64_t rows) {
    int64_t n = tokens.dim[0];
    if (tokens_own_contract(s, own, tokens) || n == 0) return;
    LAUNCH_EARLY(tokens_own_kernel, blocks_for(n, THREADS), THREADS, 0, s, ptr<int32_t>(own), ptr<int32_t>(tokens), n,
                 first, rows);
}

/* --- backward ----------------------------------------------------------------------------------------------------- */

/* sum += the packs at place(i), i = first, first + step, ... below end, in this order. mine: this thread has a pack. */
template <typename T, int W, typename Place>
DEVICE void add_rows(Pack<float, W> &sum, int64_t first, int64_t end, int64_t step, bool mine, Place place) {
    for (int64_t i = first; i < end; i += BATCH * step) {
        Pack<T, W> row[BATCH];
        #pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (i + k * step >= end) continue;
            const T *p = place(i + k * step); /* place() may use a warp shuffle, so all lanes call it */
            if (mine) row[k] = pack_load<T, W>(p);
        }
        #pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (i + k * step >= end || !mine) continue;
            Pack<float, W> x = pack_to_f32(row[k]);
            for (int j = 0; j < W; j++) sum.v[j] += x.v[j];
        }
    }
}

/* dwpe[position of t] += sum over b of dy[b,t], in order. Each warp takes 32 packs of a position. grid (ceil(length /
 * WARPS), ceil(C / 32 packs)). */
template <typename T, int W>
KERNEL embedding_positions_kernel(float *dwpe, const T *dy, int64_t B, int64_t length, Positions p, int64_t C) {
    await_kernels();
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP,
            c = (blockIdx.y * (int64_t)WARP + threadIdx.x % WARP) * W;
    if (t >= length || c >= C) return;
    Pack<float, W> sum = {};
    add_rows<T, W>(sum, 0, B, 1, true, [=](int64_t b) { return dy + (b * length + t) * C + c; });
    pack_add(dwpe + POSITION_OF(p, t) * C + c, sum);
}

/* Adds the gradients of tokens that occur at most 32 times. The list is sorted by token. Each warp takes the token
 * whose first occurrence is at the warp's place in the list, and 32 packs of channels. Tokens from `rows` on are
 * ignored. grid (ceil(N / WARPS), ceil(C / 32 packs)), no shared memory. Bound by memory: dy is read once. */
template <typename T, int W>
KERNEL embedding_runs_kernel(float *dwte, const T *dy, TokenList list, int64_t N, int64_t C, int64_t rows_of_wte) {
    await_kernels();
    int     lane = (int)threadIdx.x % WARP;
    int64_t first = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, c = (blockIdx.y * (int64_t)WARP + lane) * W;
    if (first >= N) return;
    int32_t token = list.token[first];
    if (token >= rows_of_wte || (first > 0 && list.token[first - 1] == token)) return;
    int64_t  at = first + lane;
    unsigned same = __ballot_sync(0xffffffffu, at < N && list.token[at] == token);
    /* the token occurs more than 32 times, so embedding_long_runs_kernel adds its rows */
    if (same == 0xffffffffu && first + WARP < N && list.token[first + WARP] == token) return;
    /* occurrences of the token; the lanes that hold them are the first lanes of the warp */
    int            rows = __popc(same);
    int32_t        position = at < N ? list.position[at] : 0;
    Pack<float, W> sum = {};
    add_rows<T, W>(sum, 0, rows, 1, c < C,
                   [=](int64_t r) { return dy + (int64_t)__shfl_sync(0xffffffffu, position, (int)r) * C + c; });
    if (c < C) pack_add(dwte + token * C + c, sum);
}

/* Returns the first place in [low, high) whose token is at least `wanted`, or high. */
DEVICE int64_t lower_bound(const int32_t *token, int64_t low, int64_t high, int32_t wanted) {
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (token[middle] < wanted) low = middle + 1;
        else                        high = middle;
    }
    return low;
}

/* Adds to dwte the rows of dy of tokens that occur more than 32 times. The list is sorted by token, so the rows of a
 * token are a run in it. A run of more than 32 contains an index that is a multiple of 32, and the block of the
 * first such index adds it. Each thread adds one pack of channels of every GROUPS-th row. Shared memory holds the
 * sums of the groups, which are then added in order. grid (ceil(N / 32), ceil(C / SLICE_PACKS packs)). Bound by
 * memory: dy is read once. */
template <typename T, int W>
KERNEL embedding_long_runs_kernel(float *dwte, const T *dy, TokenList list, int64_t N, int64_t C, int64_t rows_of_wte) {
    await_kernels();
    SMEM(float, part, [GROUPS][SLICE_PACKS * W]);
    int64_t place = (int64_t)blockIdx.x * WARP;
    int32_t token = list.token[place];
    if (token >= rows_of_wte) return;
    /* a quick end at the last place of a token: an earlier block adds it if it has over 32 places, otherwise
     * embedding_runs_kernel does */
    if (place + 1 >= N || list.token[place + 1] != token) return;
    /* places of one token are neighbours in the sorted list; a block at an earlier place adds this token */
    if (place >= WARP && list.token[place - WARP] == token) return;
    int64_t begin = lower_bound(list.token, place >= WARP ? place - WARP : 0, place, token);
    /* at most 32 occurrences, which embedding_runs_kernel adds */
    if (begin + WARP >= N || list.token[begin + WARP] != token) return;
    int64_t end = lower_bound(list.token, begin + WARP, N, token + 1);

    int            group = (int)threadIdx.x / SLICE_PACKS, pack = (int)threadIdx.x % SLICE_PACKS;
    int64_t        slice = blockIdx.y * (int64_t)SLICE_PACKS * W, c = slice + pack * W;
    Pack<float, W> sum = {};
    add_rows<T, W>(sum, begin + group, end, GROUPS, c < C, [=](int64_t i) { return dy + list.position[i] * C + c; });
    for (int j = 0; j < W; j++) part[group][pack * W + j] = sum.v[j];
    __syncthreads();
    int column = (int)threadIdx.x;
    if (column >= SLICE_PACKS * W || slice + column >= C) return;
    float total = 0.0f;
    for (int g = 0; g < GROUPS; g++) total += part[g][column];
    dwte[token * C + slice + column] += total;
}

/* Computes the position of each row in its document. Each thread takes one row. */
KERNEL document_positions_kernel(int32_t *position, const int32_t *starts, int64_t N, int64_t length, Positions p) {
    await_kernels();
    int64_t n = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (n < N) position[n] = (int32_t)POSITION_OF(p, n % length) - starts[n];
}

/* dw[id of row n] += dy[n]; ids from `rows` on are skipped. The rows of equal ids are found with a sorted list. */
static void add_by_id(Stream *s, Tensor dw, Tensor dy, const int32_t *id, int64_t rows) {
    int64_t   N = dy.dim[0], C = dy.dim[1];
    size_t    mark = arena_mark(&s->scratch);
    TokenList list = sort_tokens(s, id, N, rows + 1);
    DISPATCH_ACT(dy.type, A, DISPATCH_PACK(A, packs_fit((size_t)C * dtype_bytes(dy.type), {dw.data, dy.data}), W, {
        dim3 runs((unsigned)blocks_for(N, WARPS), (unsigned)blocks_for(C, WARP * W));
        dim3 long_runs((unsigned)blocks_for(N, WARP), (unsigned)blocks_for(C, SLICE_PACKS * W));
        LAUNCH_EARLY((embedding_runs_kernel<A, W>), runs, THREADS, 0, s, ptr<float>(dw), ptr<A>(dy), list, N, C, rows);
        LAUNCH_EARLY((embedding_long_runs_kernel<A, W>), long_runs, THREADS, 0, s, ptr<float>(dw), ptr<A>(dy), list, N,
                     C, rows);
    }));
    arena_release(&s->scratch, mark);
}

void embedding_backward(Stream *s, Tensor dwte, Tensor dwpe, Tensor dy, Tensor tokens, Tensor starts,
                        ContextPart context) {
    int64_t B = tokens.dim[0], T = tokens.dim[1], C = dy.dim[1], N = B * T, rows = dwte.dim[0];
    embedding_contract(s, "embedding_backward", dy, tokens, dwte, dwpe, starts, context, F32);
    CHECK(N <= INT32_MAX && rows < INT32_MAX, "%lld tokens of %lld", (long long)N, (long long)rows);
    if (N == 0) return;
    Positions p = positions_of(context, T);
    add_by_id(s, dwte, dy, ptr<int32_t>(tokens), rows);
    if (tensor_is_none(dwpe)) return;
    if (!tensor_is_none(starts)) { /* With documents a row may have any position, so rows of equal positions are found
                                    * by sorting, as rows of equal tokens are. */
        size_t   mark = arena_mark(&s->scratch);
        int32_t *position = (int32_t *)arena_take(&s->scratch, (size_t)N * sizeof(int32_t));
        LAUNCH_EARLY(document_positions_kernel, blocks_for(N, THREADS), THREADS, 0, s, position, ptr<int32_t>(starts),
                     N, T, p);
        add_by_id(s, dwpe, dy, position, dwpe.dim[0]);
        arena_release(&s->scratch, mark);
        return;
    }
    DISPATCH_ACT(dy.type, A, DISPATCH_PACK(A, packs_fit((size_t)C * dtype_bytes(dy.type), {dwpe.data, dy.data}), W, {
        dim3 grid((unsigned)blocks_for(T, WARPS), (unsigned)blocks_for(C, WARP * W));
        LAUNCH_EARLY((embedding_positions_kernel<A, W>), grid, THREADS, 0, s, ptr<float>(dwpe), ptr<A>(dy), B, T, p, C);
    }));
}
