/* attention_delta.cu - CUDA side of attention_delta in layers.h, for where no product's epilogue finds delta
 * (linear.cu). */
#include "core/kernel.cuh"
#include "layers/attention_tile.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum { LANES = 8, ROWS = 8, THREADS = 256 };

/* Eight threads share a row of one head. A block has 32 such rows, eight rows for each head, so that it reads and
 * writes whole sectors. grid ceil(ceil(N / 8) 8 H / 32), no shared memory. Bound: reading dy and y once. */
template <typename T, int PACK>
KERNEL attention_delta_kernel(float *delta, const T *dy, const T *y, int64_t N, int H, int D) {
    await_kernels();
    int64_t item = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES, rows = item / ROWS;
    int64_t head = rows % H, row = rows / H * ROWS + item % ROWS, from = (row * H + head) * D;
    int     lane = (int)threadIdx.x % LANES;
    float   sum = 0.0f;
    for (int d = lane * PACK; row < N && d < D; d += LANES * PACK) {
        Pack<T, PACK> left = pack_load<T, PACK>(dy + from + d), right = pack_load<T, PACK>(y + from + d);
        for (int e = 0; e < PACK; e++) sum = fmaf(to_f32(left.v[e]), to_f32(right.v[e]), sum);
    }
    for (int o = LANES / 2; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (row < N && lane == 0) delta[head * N + row] = sum;
}

void attention_delta(Stream *s, Tensor delta, Tensor dy, Tensor y) {
    int64_t H = delta.dim[0], N = y.dim[0], D = y.dim[1] / H;
    if (attention_delta_contract(s, delta, dy, y)) return;
    unsigned blocks = (unsigned)blocks_for(blocks_for(N, ROWS) * ROWS * H, THREADS / LANES);
    DISPATCH_ACT(y.type, T, DISPATCH_PACK(T, packs_fit((size_t)D * sizeof(T), {dy.data, y.data}), PACK,
        LAUNCH_EARLY((attention_delta_kernel<T, PACK>), blocks, THREADS, 0, s, ptr<float>(delta), ptr<T>(dy), ptr<T>(y), N,
                     (int)H, (int)D)));
}

Tensor attention_delta_given(Stream *s, Tensor delta, Tensor dy, Tensor y, HeadShape shape) {
    if (!tensor_is_none(delta)) return delta;
    delta = arena_tensor(&s->scratch, F32, 2, shape.query, y.dim[0], 1);
    attention_delta(s, delta, dy, y);
    return delta;
}
