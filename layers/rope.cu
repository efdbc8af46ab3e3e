/* rope.cu - CUDA side of rope in layers.h. A thread has a pack of neighbouring pairs of a row and rotates it in
 * every head, because their angles are the same. */
#include "core/kernel.cuh"
#include "layers/contracts.h"
#include "layers/rope_angle.h"

enum { THREADS = 256 };

typedef struct {
    int64_t   N, columns, T, first;
    int       pairs, heads; /* number of channel pairs that a head rotates, and of heads of q and k in a row */
    Positions at;
    float     direction; /* 1 to rotate, -1 to rotate back */
} Rope;

/* Rotates q and k in place. Each thread takes W pairs of a row. grid ceil(N pairs / (THREADS W)), no shared memory.
 * Bound by memory: q and k are read and written once; an angle is computed in f64 once for all heads. */
template <typename T, int W> KERNEL rope_kernel(T *qkv, const float *frequency, Rope r) {
    await_kernels();
    int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x, row = item / (r.pairs / W);
    int     i = (int)(item % (r.pairs / W)) * W;
    if (row >= r.N) return;
    int64_t position = r.first + POSITION_OF(r.at, row % r.T);
    float   cosine[W], sine[W];
    for (int j = 0; j < W; j++) {
        float angle = ROPE_RADIANS(ROPE_TURNS(position, frequency[i + j]));
        cosine[j] = cosf(angle);
        sine[j] = r.direction * sinf(angle);
    }
    T *x = qkv + row * r.columns + i;
    for (int head = 0; head < r.heads; head++, x += 2 * r.pairs) {
        Pack<float, W> low = pack_to_f32(pack_load<T, W>(x)), high = pack_to_f32(pack_load<T, W>(x + r.pairs));
        for (int j = 0; j < W; j++) {
            float a = low.v[j], b = high.v[j];
            low.v[j] = a * cosine[j] - b * sine[j];
            high.v[j] = b * cosine[j] + a * sine[j];
        }
        pack_store(x, pack_from_f32<T>(low));
        pack_store(x + r.pairs, pack_from_f32<T>(high));
    }
}

void rope(Stream *s, Tensor qkv, Tensor frequencies, HeadShape h, int64_t T, int64_t first, ContextPart context,
          RopeDirection direction) {
    int64_t pairs = h.size / 2;
    Rope r = {qkv.dim[0], qkv.dim[1], T, first, (int)pairs, (int)(h.query + h.key), positions_of(context, T),
              (float)direction};
    if (rope_contract(s, qkv, frequencies, h, T, first, direction) || r.N == 0) return;
    DISPATCH_ACT(qkv.type, A, DISPATCH_PACK(A, packs_fit((size_t)pairs * sizeof(A), {qkv.data}), W,
        LAUNCH_EARLY((rope_kernel<A, W>), blocks_for(r.N * (pairs / W), THREADS), THREADS, 0, s, ptr<A>(qkv),
               ptr<float>(frequencies), r)));
}
