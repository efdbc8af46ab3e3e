/* grad_norm.cu - CUDA side of norm_squared and sum_forward in layers.h. Blocks add to exact sums in shared memory, then
 * to the result: integer atomics, which come in any order and give the same sum on every GPU. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { THREADS = 256, LANES = 16, PER_LANE = 4, MAX_BLOCKS = 1024 }; /* LANES x PER_LANE: the 64 elements summed in float64 */

typedef enum { VALUES, SQUARES } Terms;

/* Two's complement: sums of unsigned words are those of signed ones. */
DEVICE void add_exactly(unsigned long long *word, double x) {
    ExactParts p = exact_parts(x);
    for (int k = 0; k < 3; k++)
        if (p.part[k]) atomicAdd(word + p.first + k, (unsigned long long)p.part[k]);
}

/* Squares of 64 elements: four neighbours a lane, then the 16 lanes as a tree; every lane gets the sum. */
DEVICE double squares_of_64(Pack<float, PER_LANE> x) {
    double sum = 0.0;
    for (int j = 0; j < PER_LANE; j++) sum = fma((double)x.v[j], (double)x.v[j], sum); /* the product is exact either way */
    for (int o = LANES / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    return sum;
}

/* sum += the terms of x. Thread: a pack of 4 of every tile that is its block's turn; no thread leaves the loop before
 * its warp. Bound: 4 bytes each. Words of the exact sum in shared memory: nearly all squares of a gradient meet in a
 * handful of them. */
template <Terms terms, int W> KERNEL exact_sum_kernel(unsigned long long *sum, const float *x, int64_t n) {
    SMEM(unsigned long long, word, [EXACT_WORDS]);
    for (int i = (int)threadIdx.x; i < EXACT_WORDS; i += (int)blockDim.x) word[i] = 0;
    __syncthreads(); /* the sum is empty */
    int64_t tile = (int64_t)blockDim.x * PER_LANE;
    for (int64_t first = blockIdx.x * tile; first < n; first += gridDim.x * tile) {
        int64_t               at = first + (int64_t)threadIdx.x * PER_LANE;
        Pack<float, PER_LANE> in = {};
        for (int j = 0; j < PER_LANE; j += W) {
            if (at + j >= n) break;
            Pack<float, W> part = pack_load_part<float, W>(x + at + j, n - at - j);
            for (int k = 0; k < W; k++) in.v[j + k] = part.v[k];
        }
        if (terms == SQUARES) {
            double square = squares_of_64(in);
            if (threadIdx.x % LANES == 0) add_exactly(word, square);
        } else {
            for (int j = 0; j < PER_LANE; j++) add_exactly(word, (double)in.v[j]);
        }
    }
    __syncthreads(); /* every thread's terms are in it */
    for (int i = (int)threadIdx.x; i < EXACT_WORDS; i += (int)blockDim.x)
        if (word[i]) atomicAdd(sum + i, word[i]);
}

template <Terms terms> static void add_terms(Stream *s, Tensor sum, Tensor x) {
    int64_t n = x.dim[0], blocks = blocks_for(n, THREADS * PER_LANE);
    if (n == 0) return;
    DISPATCH_PACK(float, packs_fit(PACK_BYTES, {x.data}), W,
        LAUNCH((exact_sum_kernel<terms, W>), blocks < MAX_BLOCKS ? blocks : (int64_t)MAX_BLOCKS, THREADS, 0, s,
               ptr<unsigned long long>(sum), ptr<float>(x), n));
}

void norm_squared(Stream *s, Tensor sum, Tensor x) {
    if (!norm_squared_contract(s, sum, x)) add_terms<SQUARES>(s, sum, x);
}
void sum_forward(Stream *s, Tensor sum, Tensor x) {
    if (!sum_forward_contract(s, sum, x)) add_terms<VALUES>(s, sum, x);
}
