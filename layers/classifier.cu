/* classifier.cu - CUDA side of the classifier ops in layers.h. A block owns a row and reads it once from memory: each
 * thread keeps a running maximum and the sum of exponentials below it (Milakov & Gimelshein, arXiv:1805.02867), which
 * the block then adds in a fixed order. The gradient pass reads the row again from shared memory, or from the L2 cache
 * if two rows do not fit into a multiprocessor's. */
#include "core/ptx.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"

enum {
    MAX_THREADS = 512, PACKS = 4, /* most threads of a block, and packs that a thread loads at once; two blocks on a
                                   * multiprocessor then have 64 KiB of loads in flight */
    MAX_COLUMNS = 1 << 30         /* most columns of a row, because its indices are int */
};

typedef enum { LOSS, LOSS_AND_GRADIENT } Pass;

typedef struct { float max, sum; } Softmax; /* softmax[v] = exp(x[v] - max) / sum */

/* Returns exp(x). The fast exponential errs by 2 units in the last place of f32, and by |x| 2^-24 for its argument's
 * rounding. That is far less than the precision of 16-bit logits and gradients, but too much for fp32's. */
template <typename T> DEVICE float softmax_exp(float x) {
    if constexpr (std::is_same_v<T, float>) return expf(x);
    else return exp_approx(x);
}

/* Returns the maximum that is subtracted from logits before exp. It is 0 if all logits so far are -infinity. NaN fails
 * every comparison and makes the sum NaN. */
DEVICE float finite_max(float max) { return max == -INFINITY ? 0.0f : max; }

/* Returns y = c tanh(x / c), rounded without fusing, so that the target's y equals that of the same logit in a pack.
 * With c 0 returns x itself. */
DEVICE float cap_logit(float x, float c) { return c == 0.0f ? x : __fmul_rn(c, tanhf(x / c)); }
template <int W> DEVICE void cap_logits(Pack<float, W> &x, float c) {
    if (c == 0.0f) return;
    #pragma unroll
    for (int j = 0; j < W; j++) x.v[j] = cap_logit(x.v[j], c);
}

/* Returns 1 - tanh(x / c)^2 = 4 e / (1 + e)^2, e = exp(-2 |x / c|). */
DEVICE float cap_slope(float x, float c) {
    float e = expf(-2.0f * fabsf(x / c));
    return 4.0f * e / ((1.0f + e) * (1.0f + e));
}

template <typename T, int W> DEVICE void softmax_add(Softmax &r, Pack<float, W> x) {
    float top = r.max;
    #pragma unroll
    for (int j = 0; j < W; j++) top = fmaxf(top, x.v[j]);
    if (top > r.max) {
        r.sum *= softmax_exp<T>(r.max - top);
        r.max = top;
    }
    float max = finite_max(top);
    #pragma unroll
    for (int j = 0; j < W; j++) r.sum += softmax_exp<T>(x.v[j] - max);
}

/* In a pack of logits that begins at column v, sets the columns V and above, which are padding, to -infinity. */
template <int W> DEVICE void mask_padding(Pack<float, W> &x, int v, int V) {
    if (v + W <= V) return;
    #pragma unroll
    for (int j = 0; j < W; j++)
        if (v + j >= V) x.v[j] = -INFINITY;
}

/* Computes this thread's share of the softmax of a row. Keeps the packs of logits that it loads in `copy`, unless that
 * is NULL. */
template <typename T, int W> DEVICE Softmax thread_softmax(T *copy, const T *row, int V, float softcap) {
    Softmax r = {-INFINITY, 0.0f};
    int     step = (int)blockDim.x * W;
    for (int first = (int)threadIdx.x * W; first < V; first += step * PACKS) {
        Pack<T, W> in[PACKS];
        #pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (first + k * step < V) in[k] = pack_load<T, W>(row + first + k * step);
        #pragma unroll
        for (int k = 0; k < PACKS; k++) {
            int v = first + k * step;
            if (v >= V) continue;
            if (copy) pack_store(copy + v, in[k]);
            Pack<float, W> x = pack_to_f32(in[k]);
            cap_logits(x, softcap);
            mask_padding(x, v, V);
            softmax_add<T>(r, x);
        }
    }
    return r;
}

/* Factors of the gradient of a row of logits: `others` multiplies exp(y - max), at_target is the gradient at the
 * target. */
typedef struct { float others, at_target; } RowFactors;
DEVICE RowFactors row_factors(Softmax r, float y_target, LossTerms k, float scale) {
    float more = k.z == 0.0f ? 0.0f : 2.0f * k.z * (logf(r.sum) + r.max), p = expf(y_target - r.max) / r.sum;
    /* At the target p and 1 nearly cancel once the model is sure, so the term of the z-loss is added to their
     * difference. */
    RowFactors f = {scale * (1.0f + more) / r.sum, scale * (p - 1.0f + more * p)};
    return f;
}

/* Writes row[0..V) = scale (pull softmax - target) slope and row[V..columns) = 0. Here pull = 1 + 2 z log(sum of
 * exp(y)), and slope is that of the softcap at the logit, or 1 without one. Each thread takes the packs that it took in
 * thread_softmax. */
template <typename T, int W>
DEVICE void write_gradient(T *row, const T *logits, Softmax r, int target, RowFactors f, float softcap, int V,
                           int columns) {
    for (int v = (int)threadIdx.x * W; v < columns; v += (int)blockDim.x * W) {
        Pack<float, W> x = {};
        if (v < V) {
            Pack<float, W> logit = pack_to_f32(pack_load<T, W>(logits + v));
            x = logit;
            cap_logits(x, softcap);
            mask_padding(x, v, V);
            #pragma unroll
            for (int j = 0; j < W; j++) {
                x.v[j] = softmax_exp<T>(x.v[j] - r.max) * f.others;
                if (v + j == target) x.v[j] = f.at_target;
                if (softcap != 0.0f && v + j < V) x.v[j] *= cap_slope(logit.v[j], softcap);
            }
        }
        pack_store(row + v, pack_from_f32<T>(x));
    }
}

/* Computes the loss of each row, and with LOSS_AND_GRADIENT replaces the logits by their gradients. Each block takes
 * one row of `columns`, a multiple of W. grid n, up to MAX_THREADS threads; shared memory: the row if kept is 1. The
 * bits are always the same. Bound by memory: the row is read, and for the gradient written, once: 4 bytes for each
 * 16-bit logit. */
template <Pass pass, typename T, int W>
KERNEL classifier_kernel(float *loss, T *logits, const int32_t *targets, int V, int columns, LossTerms terms,
                         float scale, int kept) {
    await_kernels();
    SMEM(float, part, [WARP]);
    SMEM_DYN(T, shared_row);
    T      *row = logits + (int64_t)blockIdx.x * columns, *copy = kept ? shared_row : NULL;
    int     target = targets[blockIdx.x];
    device_check(target >= 0 && target < V);
    /* The target's logit is read before the barriers below, so before any thread overwrites it. */
    float   y_target = cap_logit(to_f32(row[target]), terms.softcap);
    Softmax r = thread_softmax<T, W>(copy, row, V, terms.softcap);
    float   max = block_max(r.max, part);
    r.sum = block_sum(r.sum * softmax_exp<T>(r.max - finite_max(max)), part);
    r.max = max;
    if (threadIdx.x == 0) loss[blockIdx.x] = (float)(log((double)r.sum) + ((double)r.max - (double)y_target));
    if (pass == LOSS_AND_GRADIENT)
        write_gradient<T, W>(row, copy ? copy : row, r, target, row_factors(r, y_target, terms, scale), terms.softcap,
                             V, columns);
}

static int64_t threads_of(int64_t columns, int W) {
    int64_t threads = blocks_for(blocks_for(columns, W), WARP) * WARP;
    return threads < MAX_THREADS ? threads : (int64_t)MAX_THREADS;
}

template <Pass pass>
static void classify(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, LossTerms terms, float scale) {
    int64_t n = logits.dim[0], columns = logits.dim[1];
    CHECK(columns <= MAX_COLUMNS, "%lld columns", (long long)columns);
    if (classifier_contract(s, loss, logits, targets, V, pass == LOSS_AND_GRADIENT) || n == 0) return;
    size_t row_bytes = (size_t)columns * dtype_bytes(logits.type);
    int    kept = pass == LOSS_AND_GRADIENT && row_bytes <= device_shared_bytes() / 2;
    DISPATCH_ACT(logits.type, T, DISPATCH_PACK(T, packs_fit(row_bytes, {logits.data}), W,
        LAUNCH_EARLY((classifier_kernel<pass, T, W>), n, threads_of(columns, W), kept ? row_bytes : 0, s,
                     ptr<float>(loss), ptr<T>(logits), ptr<int32_t>(targets), (int)V, (int)columns, terms, scale,
                     kept)));
}

void classifier_loss(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, LossTerms terms, float scale) {
    if (scale != 0.0f) classify<LOSS_AND_GRADIENT>(s, loss, logits, targets, V, terms, scale);
    else classify<LOSS>(s, loss, logits, targets, V, terms, 0.0f);
}

/* --- a row of several ranks: targets[i] = columns belongs to another rank ----------------------------------------- */

/* Sets most[row] to the largest of this rank's logits row[0..V), after the soft cap. Each block takes one row. */
template <typename T, int W> KERNEL part_most_kernel(float *most, const T *logits, int V, int columns, float softcap) {
    await_kernels();
    SMEM(float, part, [WARP]);
    float max = block_max(thread_softmax<T, W>((T *)NULL, logits + (int64_t)blockIdx.x * columns, V, softcap).max,
                          part);
    if (threadIdx.x == 0) most[blockIdx.x] = max;
}

/* Sets sums[row] to the sum of exp(y - most[row]) over this rank's capped logits y, and sums[rows + row] to the
 * target's logit, or 0 if another rank has it. Each block takes one row. */
template <typename T, int W>
KERNEL part_sums_kernel(float *sums, const T *logits, const int32_t *targets, const float *most, int V, int columns,
                        float softcap) {
    await_kernels();
    SMEM(float, part, [WARP]);
    const T *row = logits + (int64_t)blockIdx.x * columns;
    int      target = targets[blockIdx.x];
    device_check((target >= 0 && target < V) || target == columns);
    Softmax  r = thread_softmax<T, W>((T *)NULL, row, V, softcap);
    float    sum = block_sum(r.sum * softmax_exp<T>(r.max - finite_max(most[blockIdx.x])), part);
    if (threadIdx.x > 0) return;
    sums[blockIdx.x] = sum;
    sums[gridDim.x + blockIdx.x] = target < V ? cap_logit(to_f32(row[target]), softcap) : 0.0f;
}

/* Sets loss[row] from the sums over all ranks. If scale is not 0 the logits become their gradients. Each block takes
 * one row. */
template <typename T, int W>
KERNEL part_loss_kernel(float *loss, T *logits, const int32_t *targets, const float *most, const float *sums, int V,
                        int columns, LossTerms terms, float scale) {
    await_kernels();
    T      *row = logits + (int64_t)blockIdx.x * columns;
    int     target = targets[blockIdx.x];
    Softmax r = {most[blockIdx.x], sums[blockIdx.x]};
    float   y_target = sums[gridDim.x + blockIdx.x];
    if (threadIdx.x == 0) loss[blockIdx.x] = (float)(log((double)r.sum) + ((double)r.max - (double)y_target));
    if (scale != 0.0f)
        write_gradient<T, W>(row, row, r, target, row_factors(r, y_target, terms, scale), terms.softcap, V, columns);
}

#define LAUNCH_ROWS(kernel, logits, ...)                                                                               \
    DISPATCH_ACT((logits).type, T,                                                                                     \
        DISPATCH_PACK(T, packs_fit((size_t)(logits).dim[1] * sizeof(T), {(logits).data}), W,                           \
        LAUNCH_EARLY((kernel<T, W>), (logits).dim[0], threads_of((logits).dim[1], W), 0, s, __VA_ARGS__)))

void classifier_part_most(Stream *s, Tensor most, Tensor logits, int64_t V, LossTerms terms) {
    if (classifier_part_most_contract(s, most, logits, V) || logits.dim[0] == 0) return;
    LAUNCH_ROWS(part_most_kernel, logits, ptr<float>(most), ptr<T>(logits), (int)V, (int)logits.dim[1], terms.softcap);
}

void classifier_part_sums(Stream *s, Tensor sums, Tensor logits, Tensor targets, int64_t V, Tensor most,
                          LossTerms terms) {
    CHECK(logits.dim[1] <= MAX_COLUMNS, "%lld columns", (long long)logits.dim[1]);
    if (classifier_part_contract(s, "classifier_part_sums", logits, targets, V, most, sums, 1.0) || logits.dim[0] == 0)
        return;
    LAUNCH_ROWS(part_sums_kernel, logits, ptr<float>(sums), ptr<T>(logits), ptr<int32_t>(targets), ptr<float>(most),
                (int)V, (int)logits.dim[1], terms.softcap);
}

void classifier_part_loss(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, Tensor most, Tensor sums,
                          LossTerms terms, float scale) {
    EXPECT1(loss, F32, logits.dim[0]);
    if (classifier_part_contract(s, "classifier_part_loss", logits, targets, V, most, sums,
                                 scale != 0.0f ? 2.0 : 0.0) ||
        logits.dim[0] == 0)
        return;
    LAUNCH_ROWS(part_loss_kernel, logits, ptr<float>(loss), ptr<T>(logits), ptr<int32_t>(targets), ptr<float>(most),
                ptr<float>(sums), (int)V, (int)logits.dim[1], terms, scale);
}
