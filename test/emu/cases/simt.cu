/* simt.cu - cases without tensor cores: shuffles, block reductions, vector accesses, atomics, warp-private shared
 * memory. */
#include <stdio.h>

#include "test/emu/cases/cases.cuh"

/* --- layernorm: one warp per row, 8 elements per load ------------------------------------------------------------- */

typedef Pack<bf16, 8> Eight;

KERNEL layernorm_kernel(bf16 *__restrict__ out, float *__restrict__ mean, float *__restrict__ rstd, const bf16 *__restrict__ in,
                        const bf16 *__restrict__ gain, const bf16 *__restrict__ bias, int rows, int columns) {
    int lane = threadIdx.x % WARP, row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (!BUG(1)) /* planted fault 1: does not check that the row is inside the matrix */
        if (row >= rows) return;
    const bf16 *x = in + (size_t)row * columns;
    float       sum = 0.0f, squares = 0.0f;
    for (int c = lane * 8; c < columns; c += WARP * 8) {
        /* planted fault 2: misaligned 128-bit load */
        int4  raw = __ldcs(reinterpret_cast<const int4 *>(x + c + (BUG(2) ? 1 : 0)));
        Eight e = *reinterpret_cast<const Eight *>(&raw);
        for (int i = 0; i < 8; i++) {
            float f = to_f32(e.v[i]);
            sum += f;
            squares += f * f;
        }
    }
    if (BUG(3)) { /* planted fault 3: full-mask shuffle in a branch */
        if (lane < 16) sum = warp_sum(sum);
    } else if (BUG(4)) { /* planted fault 4: wrong mask of lanes in a shuffle */
        for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0x0000ffffu, sum, o);
    } else {
        sum = warp_sum(sum);
    }
    squares = warp_sum(squares);
    float m = sum / columns, r = rsqrtf(fmaxf(squares / columns - m * m, 0.0f) + 1e-5f);
    if (lane == 0) mean[row] = m, rstd[row] = r;
    for (int c = lane * 8; c < columns; c += WARP * 8) {
        Eight e = pack_load<bf16, 8>(x + c), g = pack_load<bf16, 8>(gain + c), b = pack_load<bf16, 8>(bias + c), y;
        for (int i = 0; i < 8; i++) y.v[i] = from_f32<bf16>((to_f32(e.v[i]) - m) * r * to_f32(g.v[i]) + to_f32(b.v[i]));
        __stcs(reinterpret_cast<int4 *>(out + (size_t)row * columns + c), *reinterpret_cast<const int4 *>(&y));
    }
}
void layernorm(bf16 *out, float *mean, float *rstd, const bf16 *in, const bf16 *gain, const bf16 *bias, int rows,
               int columns, Stream *s) {
    LAUNCH(layernorm_kernel, (unsigned)blocks_for(rows, 8), 256, 0, s, out, mean, rstd, in, gain, bias, rows, columns);
}

/* --- softmax: one block per row ----------------------------------------------------------------------------------- */

enum Of { SUM, MAXIMUM };
template <int BLOCK> DEVICE float block_reduce(float v, Of of) {
    SMEM(float, part, [BLOCK / WARP]);
    SMEM(float, total, );
    int   lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    float nothing = of == MAXIMUM ? -INFINITY : 0.0f;
    v = of == MAXIMUM ? warp_max(v) : warp_sum(v);
    if (lane == 0) part[BUG(5) ? warp + 1 : warp] = v; /* planted fault 5: shared array overrun by one */
    if (!BUG(6)) __syncthreads();                      /* planted fault 6: missing barrier, read after write */
    /* planted fault 8: every warp reads `part`, which the next call overwrites */
    if (BUG(8)) {
        v = lane < BLOCK / WARP ? part[lane] : nothing;
        return of == MAXIMUM ? warp_max(v) : warp_sum(v);
    }
    if (warp == 0) {
        v = lane < BLOCK / WARP ? part[lane] : nothing;
        if (BUG(7)) v = part[lane & (BLOCK / WARP - 1)]; /* planted fault 7: adds each partial result more than once */
        v = of == MAXIMUM ? warp_max(v) : warp_sum(v);
        if (lane == 0) total = v;
    }
    __syncthreads();
    return total;
}
template <int BLOCK> KERNEL softmax_kernel(float *__restrict__ out, const float *__restrict__ in, int columns) {
    const float *x = in + (size_t)blockIdx.x * columns;
    float        most = -INFINITY, sum = 0.0f;
    /* planted fault 9: reads one element after the row */
    for (int i = threadIdx.x; i < columns + (BUG(9) ? 1 : 0); i += BLOCK) most = fmaxf(most, x[i]);
    if (BUG(10)) { /* planted fault 10: barrier in divergent code */
        if (threadIdx.x < BLOCK / 2) most = block_reduce<BLOCK>(most, MAXIMUM);
    } else {
        most = block_reduce<BLOCK>(most, MAXIMUM);
    }
    for (int i = threadIdx.x; i < columns; i += BLOCK) sum += __expf(x[i] - most);
    sum = block_reduce<BLOCK>(sum, SUM);
    for (int i = threadIdx.x; i < columns; i += BLOCK) out[(size_t)blockIdx.x * columns + i] = __expf(x[i] - most) / sum;
}
void softmax(float *out, const float *in, int rows, int columns, Stream *s) {
    LAUNCH((softmax_kernel<256>), rows, 256, 0, s, out, in, columns);
    if (BUG(20) && out[0] == 12345.0f) printf("never\n"); /* planted fault 20: the host reads device memory */
    if (BUG(120)) { /* planted fault 120: the host reads device memory of a large allocation, which has its own pages */
        float *large;
        cudaMalloc((void **)&large, 4 << 20);
        if (large[1 << 19] == 12345.0f) printf("never\n");
        cudaFree(large);
    }
}

/* --- column sums: blocks meet in global memory -------------------------------------------------------------------- */

KERNEL column_sums_kernel(float *__restrict__ sums, const float *__restrict__ in, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    float sum = 0.0f;
    for (int r = blockIdx.y; r < rows; r += gridDim.y) sum += in[(size_t)r * columns + c];
    if (BUG(18)) sums[c] += sum; /* planted fault 18: missing atomicAdd between blocks */
    else atomicAdd(&sums[c], sum);
}
void column_sums(float *sums, const float *in, int rows, int columns, Stream *s) {
    LAUNCH(column_sums_kernel, dim3((unsigned)blocks_for(columns, 128), 8), 128, 0, s, sums, in, rows, columns);
}

/* --- AdamW: four elements per thread ------------------------------------------------------------------------------ */

KERNEL adamw_kernel(float *__restrict__ p, float *__restrict__ m, float *__restrict__ v, const float *__restrict__ g, size_t n) {
    const float lr = 0.01f, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, decay = 0.1f;
    size_t      i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (BUG(17) ? i > n : i >= n) return; /* planted fault 17: the bound of the last elements is wrong by one vector */
    auto pp = pack_load<float, 4>(p + i), mm = pack_load<float, 4>(m + i), vv = pack_load<float, 4>(v + i),
         gg = pack_load<float, 4>(g + i);
    for (int e = 0; e < 4; e++) {
        mm.v[e] = beta1 * mm.v[e] + (1 - beta1) * gg.v[e];
        vv.v[e] = beta2 * vv.v[e] + (1 - beta2) * gg.v[e] * gg.v[e];
        pp.v[e] -= lr * (mm.v[e] / (sqrtf(vv.v[e]) + eps) + decay * pp.v[e]);
    }
    pack_store(p + i, pp);
    pack_store(m + i, mm);
    pack_store(v + i, vv);
}
void adamw(float *p, float *m, float *v, const float *g, size_t n, Stream *s) {
    LAUNCH(adamw_kernel, (unsigned)blocks_for((int64_t)n / 4, 256), 256, 0, s, p, m, v, g, n);
}

/* --- each warp reverses its 32 values through shared memory ------------------------------------------------------- */

KERNEL reverse_kernel(float *__restrict__ out, const float *__restrict__ in, int n) {
    SMEM(float, values, [4][WARP]);
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, i = blockIdx.x * 128 + threadIdx.x;
    values[warp][lane] = in[i];
    if (!BUG(21)) __syncwarp(); /* planted fault 21: missing __syncwarp */
    out[i] = values[warp][WARP - 1 - lane];
    /* planted fault 22: two barriers in the source instead of one; the hardware accepts this */
    if (BUG(22)) { if (warp & 1) __syncthreads(); else __syncthreads(); }
    if (BUG(23)) { /* planted fault 23: threads of one block wait at two different barriers */
        if (warp & 1)
            __syncthreads();
        else
            __syncthreads();
    }
    if (BUG(24)) { /* planted fault 24: lanes wait in __syncwarp with masks that overlap and differ */
        if (warp == 1 && lane < 16) __syncwarp(0x0000ffffu);
        else if (warp == 1) __syncwarp(0xffffffffu);
    }
    if (BUG(25) && lane == 3 && warp == 2) { /* planted fault 25: null store */
        float *nowhere = nullptr;
        *nowhere = 1.0f;
    }
    if (BUG(26)) { /* planted fault 26: shifts by more bits than an int has */
        int by = lane == 5 ? 40 : 1;
        out[i] = (float)(1 << by);
    }
    if (BUG(27)) { /* planted fault 27: overrun of a local array */
        float few[4] = {1, 2, 3, 4};
        out[i] = few[(lane + n) & 7];
    }
}
void reverse_warps(float *out, const float *in, int n, Stream *s) {
    /* planted fault 28: 2048 threads per block */
    LAUNCH(reverse_kernel, n / 128, BUG(28) ? 2048 : 128, 0, s, out, in, n);
}

/* --- warps 0 and 1, and warps 2 and 3, exchange their values behind a barrier of their own; then all count them --- */

KERNEL pairs_kernel(float *__restrict__ out, const float *__restrict__ in, int n) {
    SMEM(float, values, [128]);
    int t = threadIdx.x, i = blockIdx.x * 128 + t;
    values[t] = i < n ? in[i] : 0.0f;
    named_barrier_sync(1 + t / 64, 64);
    float    other = values[t ^ 32];
    int      positive = __syncthreads_count(other > 0.0f);
    unsigned votes = __ballot_sync(0xffffffffu, other > 0.0f);
    bool     agrees = __syncthreads_and(__popc(votes) <= positive) && !__syncthreads_or(__all_sync(0xffffffffu, other > 2.0f));
    if (i < n) out[i] = agrees ? other : NAN;
}
void pairs_of_warps(float *out, const float *in, int n, Stream *s) {
    LAUNCH(pairs_kernel, (unsigned)blocks_for(n, 128), 128, 0, s, out, in, n);
}

KERNEL fill_kernel(float *out, int n, float value) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = value;
}
void fill(float *out, int n, float value, Stream *s) {
    LAUNCH(fill_kernel, (unsigned)blocks_for(n, 128), 128, 0, s, out, n, value);
}
