/* router.cu - CUDA side of the router ops in layers.h: a warp to each token. */
#include "core/kernel.cuh"
#include "layers/expert_contracts.h"
#include "layers/layers.h"

enum { WARPS = 8, THREADS = WARPS * WARP };

/* Finds the lanes' largest score and its expert; the lower expert wins a tie. */
DEVICE void best_of_warp(float &score, int &expert) {
    for (int o = WARP / 2; o > 0; o /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, score, o);
        int   number = __shfl_xor_sync(0xffffffffu, expert, o);
        if (other > score || (other == score && number < expert)) score = other, expert = number;
    }
}

/* Warp: a token. A lane reads again only what it wrote itself: experts lane, lane + 32, ... grid ceil(N / WARPS), no
 * shared memory. */
template <typename T>
KERNEL router_forward_kernel(float *probability, int32_t *expert, float *weight, const T *logits, const T *bias, int64_t N, int E, int k,
                             bool normed) {
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int     lane = (int)threadIdx.x % WARP;
    if (n >= N) return; /* uniform per warp */
    const T *x = logits + n * E;
    float   *p = probability + n * E, most = -INFINITY, sum = 0.0f;
    for (int e = lane; e < E; e += WARP) most = fmaxf(most, to_f32(x[e]));
    most = warp_max(most);
    for (int e = lane; e < E; e += WARP) sum += expf(to_f32(x[e]) - most);
    sum = warp_sum(sum);
    for (int e = lane; e < E; e += WARP) p[e] = expf(to_f32(x[e]) - most) / sum;

    float last_score = INFINITY, total = 0.0f;
    int   last = -1;
    for (int j = 0; j < k; j++) {
        float score = -INFINITY;
        int   best = E; /* no expert yet */
        for (int e = lane; e < E; e += WARP) {
            float mine = p[e] + (bias ? to_f32(bias[e]) : 0.0f);
            if (isnan(mine)) mine = -INFINITY;
            bool comes_after = mine < last_score || (mine == last_score && e > last);
            if (comes_after && (best == E || mine > score)) score = mine, best = e;
        }
        best_of_warp(score, best);
        last_score = score, last = best;
        float chosen = __shfl_sync(0xffffffffu, best % WARP == lane ? p[best] : 0.0f, best % WARP);
        total += chosen;
        if (lane == 0) expert[n * k + j] = best, weight[n * k + j] = chosen;
    }
    for (int j = 0; normed && lane == 0 && j < k; j++) weight[n * k + j] /= total;
}

void router_forward(Stream *s, Tensor probability, Tensor expert, Tensor weight, Tensor logits, Tensor bias, RouterWeights kind) {
    int64_t N = logits.dim[0];
    if (router_forward_contract(s, probability, expert, weight, logits, bias) || N == 0) return;
    DISPATCH_ACT(logits.type, T,
        LAUNCH(router_forward_kernel<T>, blocks_for(N, WARPS), THREADS, 0, s, ptr<float>(probability), ptr<int32_t>(expert),
               ptr<float>(weight), ptr<T>(logits), ptr<T>(bias), N, (int)logits.dim[1], (int)expert.dim[1], kind == WEIGHTS_NORMED));
}

/* Block: a sequence. Integer sums, whose order does not matter, in shared memory, then added to the total. grid B, 4 E
 * bytes. */
KERNEL router_count_kernel(int32_t *counts, unsigned long long *total, const int32_t *expert, int64_t each, int E) {
    SMEM_DYN(int32_t, count);
    for (int e = (int)threadIdx.x; e < E; e += THREADS) count[e] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < each; i += THREADS) {
        int32_t e = expert[blockIdx.x * each + i];
        device_check(e >= 0 && e < E);
        atomicAdd(&count[e], 1);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < E; e += THREADS) {
        counts[(int64_t)blockIdx.x * E + e] = count[e];
        if (total && count[e]) atomicAdd(total + e, (unsigned long long)count[e]);
    }
}

void router_count(Stream *s, Tensor counts, Tensor total, Tensor expert) {
    int64_t B = counts.dim[0], E = counts.dim[1];
    if (router_count_contract(s, counts, total, expert)) return;
    LAUNCH(router_count_kernel, B, THREADS, (size_t)E * sizeof(int32_t), s, ptr<int32_t>(counts), ptr<unsigned long long>(total),
           ptr<int32_t>(expert), tensor_elems(expert) / B, (int)E);
}

typedef struct {
    const float   *dweight, *probability, *weight, *balance;
    const int32_t *expert, *counts;
    int64_t        N, each; /* tokens in all; tokens of a sequence */
    int            E, k;
    bool           normed;
} Backward;

/* Returns dp of expert e: the balance loss's gradient, and the weight's gradient if the token chose e. */
DEVICE float dp_of(const Backward &b, int64_t n, int e, float rate, float sum, float mean) {
    float dp = b.counts ? rate * (float)b.counts[n / b.each * b.E + e] : 0.0f;
    for (int j = 0; j < b.k; j++)
        if (b.expert[n * b.k + j] == e) dp += b.normed ? (b.dweight[n * b.k + j] - mean) / sum : b.dweight[n * b.k + j];
    return dp;
}

/* dlogits = p (dp - sum_e p_e dp_e). Warp: a token. grid ceil(N / WARPS), no shared memory. */
template <typename T> KERNEL router_backward_kernel(T *dlogits, Backward b) {
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int     lane = (int)threadIdx.x % WARP;
    if (n >= b.N) return; /* uniform per warp */
    const float *p = b.probability + n * b.E;
    float        sum = 0.0f, mean = 0.0f, dot = 0.0f, rate = b.counts ? *b.balance * (float)b.E / (float)(b.k * b.each) : 0.0f;
    for (int j = 0; j < b.k; j++) {
        sum += p[b.expert[n * b.k + j]];
        mean += b.dweight[n * b.k + j] * b.weight[n * b.k + j];
    }
    for (int e = lane; e < b.E; e += WARP) dot += p[e] * dp_of(b, n, e, rate, sum, mean);
    dot = warp_sum(dot);
    for (int e = lane; e < b.E; e += WARP) dlogits[n * b.E + e] = from_f32<T>(p[e] * (dp_of(b, n, e, rate, sum, mean) - dot));
}

void router_backward(Stream *s, Tensor dlogits, Tensor dweight, Tensor probability, Tensor expert, Tensor weight,
                     RouterWeights kind, Tensor counts, Tensor balance) {
    int64_t N = dlogits.dim[0];
    if (router_backward_contract(s, dlogits, dweight, probability, expert, weight, counts, balance) || N == 0) return;
    Backward b = {ptr<float>(dweight), ptr<float>(probability), ptr<float>(weight), ptr<float>(balance), ptr<int32_t>(expert),
                  ptr<int32_t>(counts), N, tensor_is_none(counts) ? 1 : N / counts.dim[0], (int)dlogits.dim[1], (int)expert.dim[1],
                  kind == WEIGHTS_NORMED};
    DISPATCH_ACT(dlogits.type, T, LAUNCH(router_backward_kernel<T>, blocks_for(N, WARPS), THREADS, 0, s, ptr<T>(dlogits), b));
}
