/* sort_tokens.cuh - a stable sort of (token, position) by token on the device: equal tokens come to stand side by side,
 * their positions in rising order. It is a radix sort from the lowest digit up, with three kernels a digit. They count
 * each digit in each tile, compute where the tile's keys of that digit begin in the output, and move the keys there.
 * The order depends on the input alone, not on which thread is first.
 */
#ifndef TRAIN_GPT_LAYERS_SORT_TOKENS_CUH
#define TRAIN_GPT_LAYERS_SORT_TOKENS_CUH

#include "core/kernel.cuh"

enum {
    SORT_BITS = 8, SORT_RADIX = 1 << SORT_BITS,
    SORT_WARPS = SORT_RADIX / WARP,         /* number of warps of a block: a thread for each value of a digit */
    SORT_WARP_KEYS = 4 * WARP,              /* number of keys that a warp moves to the output, 32 at a time, in order */
    SORT_TILE = SORT_WARPS * SORT_WARP_KEYS,
    SORT_SCAN_THREADS = 1024
};

typedef struct { int32_t *token, *position; } TokenList;

DEVICE int digit_of(int32_t token, int shift) { return token >> shift & (SORT_RADIX - 1); }

/* Sets counts[digit][tile]. Each block counts one tile, by atomic additions of integers, whose sums do not depend on
 * the order. */
KERNEL sort_count_kernel(int32_t *counts, const int32_t *token, int64_t N, int shift, int64_t rows) {
    await_kernels();
    SMEM(int32_t, count, [SORT_RADIX]);
    count[threadIdx.x] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < SORT_TILE; i += SORT_RADIX) {
        int64_t at = (int64_t)blockIdx.x * SORT_TILE + i;
        if (at >= N) break;
        device_check(token[at] >= 0 && token[at] < rows);
        atomicAdd(&count[digit_of(token[at], shift)], 1);
    }
    __syncthreads();
    counts[(int64_t)threadIdx.x * gridDim.x + blockIdx.x] = count[threadIdx.x];
}

/* Replaces each count by the sum of the counts before it. One block; each thread has a contiguous range of counts. */
KERNEL sort_scan_kernel(int32_t *counts, int64_t n) {
    await_kernels();
    SMEM(int32_t, part, [WARP]);
    int     lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t stretch = (n + SORT_SCAN_THREADS - 1) / SORT_SCAN_THREADS, first = threadIdx.x * stretch;
    int64_t end = first + stretch < n ? first + stretch : n;
    int32_t sum = 0;
    for (int64_t i = first; i < end; i++) sum += counts[i];
    int32_t upto = sum;
    for (int o = 1; o < WARP; o *= 2) {
        int32_t left = __shfl_up_sync(0xffffffffu, upto, o);
        if (lane >= o) upto += left;
    }
    if (lane == WARP - 1) part[warp] = upto;
    __syncthreads();
    int32_t before = upto - sum;
    for (int w = 0; w < warp; w++) before += part[w];
    for (int64_t i = first; i < end; i++) {
        int32_t count = counts[i];
        counts[i] = before;
        before += count;
    }
}

/* Returns the lanes that have this lane's digit; none for a lane without a key. */
DEVICE unsigned lanes_alike(int digit, bool has_key) {
    unsigned alike = __ballot_sync(0xffffffffu, has_key);
    for (int b = 0; b < SORT_BITS; b++) {
        int      bit = digit >> b & 1;
        unsigned ones = __ballot_sync(0xffffffffu, bit);
        alike &= bit ? ones : ~ones;
    }
    return has_key ? alike : 0u;
}

/* Moves the keys to their places in the output. Each block takes one tile, each warp SORT_WARP_KEYS keys of it.
 * place[warp][digit] first counts the warp's keys, then holds the place of its next key. Votes give a key's rank among
 * the 32 of the warp. position_in NULL: a token's position is its index. */
KERNEL sort_place_kernel(TokenList out, const int32_t *token_in, const int32_t *position_in, const int32_t *counts,
                         int64_t N, int shift) {
    await_kernels();
    SMEM(int32_t, place, [SORT_WARPS][SORT_RADIX]);
    int     lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    int64_t first = (int64_t)blockIdx.x * SORT_TILE + warp * SORT_WARP_KEYS + lane;
    for (int d = lane; d < SORT_RADIX; d += WARP) place[warp][d] = 0;
    __syncwarp();
    for (int i = 0; i < SORT_WARP_KEYS; i += WARP) {
        bool     has_key = first + i < N;
        int      digit = has_key ? digit_of(token_in[first + i], shift) : 0;
        unsigned alike = lanes_alike(digit, has_key);
        if (has_key && lane == __ffs((int)alike) - 1) place[warp][digit] += __popc(alike);
        __syncwarp(); /* orders the addition before the next iteration, in which another lane may add to the same
                       * count */
    }
    __syncthreads();
    int32_t next = counts[(int64_t)threadIdx.x * gridDim.x + blockIdx.x];
    for (int w = 0; w < SORT_WARPS; w++) {
        int32_t count = place[w][threadIdx.x];
        place[w][threadIdx.x] = next;
        next += count;
    }
    __syncthreads();
    for (int i = 0; i < SORT_WARP_KEYS; i += WARP) {
        bool     has_key = first + i < N;
        int32_t  token = has_key ? token_in[first + i] : 0;
        int      digit = digit_of(token, shift);
        unsigned alike = lanes_alike(digit, has_key);
        if (has_key) {
            int32_t to = place[warp][digit] + __popc(alike & ((1u << lane) - 1u));
            out.token[to] = token;
            out.position[to] = position_in ? position_in[first + i] : (int32_t)(first + i);
        }
        __syncwarp(); /* after this all lanes have read `place`, which some of them change next */
        if (has_key && lane == __ffs((int)alike) - 1) place[warp][digit] += __popc(alike);
        __syncwarp();
    }
}

/* Sorts tokens [N], each in [0, rows). The resulting list is in memory of s->scratch. */
static inline TokenList sort_tokens(Stream *s, const int32_t *tokens, int64_t N, int64_t rows) {
    int64_t        tiles = blocks_for(N, SORT_TILE);
    TokenList      list[2];
    const int32_t *token = tokens, *position = NULL;
    int            turn = 0;
    for (int i = 0; i < 2; i++) {
        list[i].token = (int32_t *)arena_take(&s->scratch, (size_t)N * sizeof(int32_t));
        list[i].position = (int32_t *)arena_take(&s->scratch, (size_t)N * sizeof(int32_t));
    }
    /* number of keys of each digit in each tile */
    int32_t *counts = (int32_t *)arena_take(&s->scratch, (size_t)(SORT_RADIX * tiles) * sizeof(int32_t));
    if (N == 0) return list[0];
    for (int shift = 0; shift == 0 || (shift < 31 && (rows - 1) >> shift > 0); shift += SORT_BITS, turn ^= 1) {
        LAUNCH_EARLY(sort_count_kernel, tiles, SORT_RADIX, 0, s, counts, token, N, shift, rows);
        LAUNCH_EARLY(sort_scan_kernel, 1, SORT_SCAN_THREADS, 0, s, counts, SORT_RADIX * tiles);
        LAUNCH_EARLY(sort_place_kernel, tiles, SORT_RADIX, 0, s, list[turn], token, position, counts, N, shift);
        token = list[turn].token, position = list[turn].position;
    }
    return list[turn ^ 1];
}

#endif
