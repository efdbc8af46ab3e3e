/* attention_last.cu - CUDA side of attention_last_forward in layers.h; the CPU twin is attention_last.c.
 *
 * A block has one query of one head and walks the keys up to its own, THREADS at a time, with a running maximum and
 * sum. First each thread computes the score of one key. Then each warp adds the values of every WARPSth of these keys;
 * a lane has D/32 channels.
 */
#include "core/kernel.cuh"
#include "layers/contracts.h"

enum { THREADS = 256, WARPS = THREADS / WARP, MOST_D = 128, HELD = MOST_D / WARP };

/* C, columns: columns of y and of qkv; group: query heads that share a head of keys */
typedef struct { int64_t T, n, C, columns; int D, group; float scale; } Last;

/* Returns q . k of D channels, W at a time. */
template <typename T, int W> DEVICE float last_score(const float *q, const T *k, int D) {
    float score = 0.0f;
    for (int d = 0; d < D; d += W) {
        Pack<float, W> part = pack_to_f32(pack_load<T, W>(k + d));
        for (int i = 0; i < W; i++) score += q[d + i] * part.v[i];
    }
    return score;
}

/* Block: query blockIdx.y of head blockIdx.x. grid (H, n). Sums in a fixed order. Bound: keys and values are read
 * once. */
template <typename T, int W> KERNEL attention_last_kernel(T *y, const T *qkv, Last job) {
    SMEM(float, q, [MOST_D]);
    SMEM(float, p, [THREADS]);
    SMEM(float, part, [WARP]);
    SMEM(float, sums, [WARPS * MOST_D]);
    int      thread = (int)threadIdx.x, lane = thread % WARP, warp = thread / WARP, D = job.D;
    int64_t  seen = job.T - job.n + blockIdx.y + 1, step = job.columns;
    const T *row = qkv + (seen - 1) * step + blockIdx.x * (int64_t)D;
    const T *keys = qkv + job.C + blockIdx.x / job.group * (int64_t)D, *values = keys + (job.columns - job.C) / 2;
    float    top = -INFINITY, total = 0.0f, sum[HELD];
    for (int i = 0; i < HELD; i++) sum[i] = 0.0f;
    if (thread < D) q[thread] = to_f32(row[thread]) * job.scale;
    __syncthreads(); /* q is complete */
    for (int64_t first = 0; first < seen; first += THREADS) {
        int   left = (int)(seen - first), count = left < THREADS ? left : (int)THREADS;
        float score = thread < count ? last_score<T, W>(q, keys + (first + thread) * step, D) : -INFINITY;
        float high = fmaxf(top, block_max(score, part)), shrink = expf(top - high);
        top = high;
        p[thread] = expf(score - high); /* block_max has a barrier, so the values of the earlier keys have been added */
        total = total * shrink + p[thread];
        __syncthreads(); /* p is complete */
        for (int i = 0; i < HELD; i++) sum[i] *= shrink;
        for (int k = warp; k < count; k += WARPS)
            for (int i = 0; i < HELD; i++) {
                int d = lane + i * WARP;
                if (d < D) sum[i] += p[k] * to_f32(values[(first + k) * step + d]);
            }
    }
    total = block_sum(total, part);
    for (int i = 0; i < HELD; i++) sums[warp * MOST_D + lane + i * WARP] = sum[i];
    __syncthreads(); /* the warps' sums are complete */
    if (thread >= D) return;
    float all = 0.0f;
    for (int w = 0; w < WARPS; w++) all += sums[w * MOST_D + thread];
    y[blockIdx.y * job.C + blockIdx.x * (int64_t)D + thread] = from_f32<T>(all / total);
}

void attention_last_forward(Stream *s, Tensor y, Tensor qkv, HeadShape h) {
    if (attention_last_forward_contract(s, y, qkv, h) || tensor_elems(y) == 0) return;
    int64_t D = h.size;
    CHECK(D <= MOST_D, "%lld channels in a head, the GPU's kernels take %d", (long long)D, MOST_D);
    Last job = {qkv.dim[0], y.dim[0], y.dim[1], qkv.dim[1], (int)D, (int)(h.query / h.key), 1.0f / sqrtf((float)D)};
    DISPATCH_ACT(qkv.type, T, {
        bool fit = packs_fit((size_t)D * sizeof(T), {qkv.data});
        DISPATCH_PACK(T, fit, W,
                      LAUNCH((attention_last_kernel<T, W>), dim3((unsigned)h.query, (unsigned)job.n), THREADS, 0, s,
                             ptr<T>(y), ptr<T>(qkv), job));
    });
}
