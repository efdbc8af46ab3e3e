/* norm.cu - CUDA side of norm_squared and sum_forward in layers.h. Blocks, fixed by the length alone, leave float64 sums in scratch; one
 * block then adds them in order: the same bits on every GPU. */
#include "core/kernel.cuh"
#include "layers/layers.h"

enum { THREADS = 256, PACKS = 4, MAX_BLOCKS = 1024 }; /* a few blocks for each multiprocessor of the largest GPUs */

typedef enum { VALUES, SQUARES } Terms;

static int64_t partial_blocks(int64_t n) {
    int64_t blocks = blocks_for(n, THREADS * PACKS * pack_elems<float>());
    return blocks < MAX_BLOCKS ? blocks : (int64_t)MAX_BLOCKS;
}

/* partial[block] = sum of the block's terms. Thread: PACKS packs of every tile that is the block's turn; bound: 4 bytes each. */
template <Terms terms, int W> KERNEL norm_partial_kernel(double *partial, const float *x, int64_t n) {
    SMEM(double, part, [WARP]);
    double  sum = 0.0;
    int64_t tile = (int64_t)blockDim.x * PACKS * W;
    for (int64_t first = blockIdx.x * tile; first < n; first += gridDim.x * tile) {
        Pack<float, W> in[PACKS];
        #pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int64_t i = first + ((int64_t)k * blockDim.x + threadIdx.x) * W;
            in[k] = i < n ? pack_load_part<float, W>(x + i, n - i) : Pack<float, W>{};
        }
        #pragma unroll
        for (int k = 0; k < PACKS; k++)
            for (int j = 0; j < W; j++) sum += terms == SQUARES ? (double)in[k].v[j] * (double)in[k].v[j] : (double)in[k].v[j];
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* *sum += the partials. One block. */
KERNEL norm_total_kernel(double *sum, const double *partial, int blocks) {
    SMEM(double, part, [WARP]);
    double total = 0.0;
    for (int b = (int)threadIdx.x; b < blocks; b += (int)blockDim.x) total += partial[b];
    total = block_sum(total, part);
    if (threadIdx.x == 0) *sum += total;
}

size_t norm_scratch_bytes(int64_t n) { return (size_t)partial_blocks(n) * sizeof(double) + ARENA_ALIGN; }

template <Terms terms> static void add_terms(Stream *s, Tensor sum, Tensor x) {
    int64_t n = x.dim[0], blocks = partial_blocks(n);
    EXPECT1(sum, F64, 1);
    EXPECT1(x, F32, n);
    if (n == 0) return;
    size_t  mark = arena_mark(&s->scratch);
    double *partial = (double *)arena_take(&s->scratch, (size_t)blocks * sizeof(double));
    DISPATCH_PACK(float, packs_fit(PACK_BYTES, {x.data}), W,
        LAUNCH((norm_partial_kernel<terms, W>), blocks, THREADS, 0, s, partial, ptr<float>(x), n));
    LAUNCH(norm_total_kernel, 1, THREADS, 0, s, ptr<double>(sum), partial, (int)blocks);
    arena_release(&s->scratch, mark);
}

void norm_squared(Stream *s, Tensor sum, Tensor x) { add_terms<SQUARES>(s, sum, x); }

void sum_forward(Stream *s, Tensor sum, Tensor x) { add_terms<VALUES>(s, sum, x); }
