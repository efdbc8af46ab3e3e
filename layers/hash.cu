/* hash.cu - CUDA side of hash_words in layers.h. Sums modulo 2^64 are the same in any order, so blocks add their sums
 * in any order. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 256, PACKS = 4, MAX_BLOCKS = 1024 };

typedef unsigned long long Word; /* the type that atomicAdd takes */

DEVICE Word mix(Word word, Word i) {
    Word x = word + i * HASH_STEP;
    x = (x ^ x >> 32) * HASH_FACTOR;
    return x ^ x >> 29;
}

/* Adds the mixed words to the hash. Each thread takes PACKS packs of W words of every tile of its block. Thread 0 of
 * block 0 also adds the last, incomplete word. One atomic a block. Bound by memory: 8 bytes a word. */
template <int W> KERNEL hash_words_kernel(Word *hash, const Word *word, int64_t words, int64_t rest_bytes) {
    await_kernels();
    SMEM(Word, part, [THREADS / WARP]);
    Word    sum = 0;
    int64_t tile = (int64_t)blockDim.x * PACKS * W;
    for (int64_t first = blockIdx.x * tile; first < words; first += gridDim.x * tile) {
        Pack<Word, W> in[PACKS];
        #pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int64_t i = first + ((int64_t)k * blockDim.x + threadIdx.x) * W;
            for (int j = 0; j < W; j++) in[k].v[j] = 0;
            if (i + W <= words) in[k] = pack_load<Word, W>(word + i);
            else if (i < words) in[k].v[0] = word[i]; /* a single last word, because a pack has at most 2 words */
        }
        #pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int64_t i = first + ((int64_t)k * blockDim.x + threadIdx.x) * W;
            for (int j = 0; j < W; j++)
                if (i + j < words) sum += mix(in[k].v[j], (Word)(i + j));
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0 && rest_bytes > 0) {
        Word rest = 0;
        for (int64_t b = 0; b < rest_bytes; b++) rest |= (Word)((const unsigned char *)(word + words))[b] << 8 * b;
        sum += mix(rest, (Word)words);
    }
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP;
    sum = warp_sum(sum);
    if (lane == 0) part[warp] = sum;
    __syncthreads(); /* after this the hash sum of every warp is in `part` */
    sum = warp_sum(lane < THREADS / WARP ? part[lane] : 0);
    if (threadIdx.x == 0) atomicAdd(hash, sum);
}

void hash_words(Stream *s, Tensor hash, Tensor x) {
    if (hash_words_contract(s, hash, x)) return;
    int64_t bytes = (int64_t)tensor_bytes(x), words = bytes / 8,
            blocks = blocks_for(words, THREADS * PACKS * pack_elems<Word>());
    CHECK((uintptr_t)x.data % sizeof(Word) == 0, "words at %p", x.data);
    if (bytes == 0) return;
    if (blocks < 1) blocks = 1;
    if (blocks > MAX_BLOCKS) blocks = MAX_BLOCKS;
    DISPATCH_PACK(Word, packs_fit(PACK_BYTES, {x.data}), W,
                  LAUNCH_EARLY((hash_words_kernel<W>), blocks, THREADS, 0, s, ptr<Word>(hash), ptr<Word>(x), words,
                               bytes - 8 * words));
}
