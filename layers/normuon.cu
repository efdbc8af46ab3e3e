/* normuon.cu - CUDA side of normuon in layers.h. Each sum has one order on every GPU. */
#include "core/kernel.cuh"
#include "layers/normuon.h"

enum { THREADS = 256, LANES = 8 };

/* squares[r] = sum of squares of row r. grid rows, block THREADS. Bound: its traffic. */
KERNEL row_squares_kernel(double *squares, const float *x, int64_t M, int64_t width) {
    SMEM(double, part, [WARP]);
    const float *row = x + (int64_t)blockIdx.x * width;
    double       sum = 0.0;
    for (int64_t c = threadIdx.x; c < M; c += THREADS) {
        double v = (double)row[c];
        sum = fma(v, v, sum);
    }
    sum = block_sum(sum, part);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

/* squares[c] = sum of squares of column c. Thread (c, k) of the block adds every LANES-th row from k on. grid ceil(M /
 * WARP), block (WARP, LANES). Bound: its traffic. */
KERNEL column_squares_kernel(double *squares, const float *x, int64_t R, int64_t M, int64_t width) {
    SMEM(double, part, [LANES][WARP]);
    int64_t c = (int64_t)blockIdx.x * WARP + threadIdx.x;
    double  sum = 0.0;
    for (int64_t r = threadIdx.y; r < R && c < M; r += LANES) {
        double v = (double)x[r * width + c];
        sum = fma(v, v, sum);
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads(); /* row 0 of the threads reads the sums of all lanes */
    if (threadIdx.y > 0 || c >= M) return;
    for (int k = 1; k < LANES; k++) sum += part[k][threadIdx.x];
    squares[c] = sum;
}

/* Sets factor and fresh. One block of THREADS; each thread has every THREADS-th neuron. Bound: latency. */
KERNEL neuron_factors_kernel(NeuronPart p, NeuronNumbers n, double away, double least) {
    SMEM(double, part, [WARP]);
    double sum = 0.0;
    for (int64_t i = threadIdx.x; i < p.neurons; i += THREADS) {
        double v = (double)p.v[i * (p.are_rows ? p.width : 1)];
        float  fresh = (float)fma(away, n.squares[i] / (double)p.each - v, v);
        double factor = 1.0 / (sqrt((double)fresh) + least);
        n.fresh[i] = fresh;
        n.factor[i] = (float)factor;
        sum = fma(factor * factor, n.squares[i], sum);
    }
    sum = block_sum(sum, part);
    double scale = sum > 0.0 || sum != sum ? sqrt((double)(p.R < p.M ? p.R : p.M) / sum) : 0.0;
    for (int64_t i = threadIdx.x; i < p.neurons; i += THREADS) n.factor[i] = (float)(scale * (double)n.factor[i]);
}

/* Scales x and sets v. Thread: one element. grid ceil(R M / THREADS), no shared memory. Bound: 12 bytes of traffic
 * each. */
KERNEL neuron_scale_kernel(NeuronPart p, NeuronNumbers n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, r = i / p.M, c = i % p.M;
    if (i >= p.R * p.M) return;
    p.x[r * p.width + c] *= n.factor[p.are_rows ? r : c];
    p.v[r * p.width + c] = n.fresh[p.are_rows ? r : c];
}

static void neuron_squares(Stream *s, NeuronPart p, NeuronNumbers n) {
    if (p.are_rows) LAUNCH(row_squares_kernel, p.R, THREADS, 0, s, n.squares, p.x, p.M, p.width);
    else LAUNCH(column_squares_kernel, blocks_for(p.M, WARP), dim3(WARP, LANES), 0, s, n.squares, p.x, p.R, p.M, p.width);
}
static void neuron_factors(Stream *s, NeuronPart p, NeuronNumbers n, double beta2) {
    LAUNCH(neuron_factors_kernel, 1, THREADS, 0, s, p, n, 1.0 - beta2, NORMUON_LEAST);
}
static void neuron_scale(Stream *s, NeuronPart p, NeuronNumbers n) {
    LAUNCH(neuron_scale_kernel, blocks_for(p.R * p.M, THREADS), THREADS, 0, s, p, n);
}

void normuon(Stream *s, Tensor x, Tensor v, int64_t parts, NeuronSide side, double beta2) {
    normuon_contract(s, x, v, parts);
    normuon_by_parts(s, x, v, parts, side, beta2);
}
