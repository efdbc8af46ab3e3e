/* linear.cu - CUDA side of the linear ops in layers.h: products of matmul.h, with epilogues of matmul.cuh where they
 * pay, and a kernel for the bias gradient where they do not.
 *
 * GELU stays a kernel of its own in forward. cuBLASLt's GELU epilogue sees the sum before it is stored; the contract is
 * gelu of pre as stored, so that memory.recompute = "light" computes the same bits again from it. The epilogue would
 * save 0.7 % of a step, measured on an H100 (llm.c issue 591).
 */
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.cuh"

/* --- column sums -------------------------------------------------------------------------------------------------- */

enum {
    SUM_WARPS = 8,
    SUM_BLOCKS = 128 /* along the rows: enough of them to fill a GPU */,
    SUM_ROWS = 64 /* at least, per block */
};

/* Rows of one partial sum, by the shape alone: a GPU of another size adds in the same order. */
static int64_t rows_per_block(int64_t N) {
    int64_t rows = blocks_for(N, SUM_BLOCKS);
    return rows < SUM_ROWS ? (int64_t)SUM_ROWS : rows;
}

/* sums[i,c] = or += the sum of rows [i*rows_per_block, (i+1)*rows_per_block) of x [rows,M] in column c, i = blockIdx.y.
 * A block has a strip of 32*PACK columns: lanes side by side, warps taking turns with the rows; their eight sums meet
 * in shared memory, in order. grid (ceil(M/(32 PACK)), parts), block (32,8), static shared memory. Bound: reading x
 * once. */
template <typename T, int PACK>
KERNEL column_sums_kernel(float *sums, const T *x, int64_t rows, int64_t rows_per_block, int64_t M, MatmulWrite write) {
    SMEM(float, part, [SUM_WARPS][WARP * PACK]);
    int     lane = (int)threadIdx.x, warp = (int)threadIdx.y;
    int64_t strip = (int64_t)blockIdx.x * WARP * PACK, c = strip + lane * PACK, first = (int64_t)blockIdx.y * rows_per_block;
    int64_t end = first + rows_per_block < rows ? first + rows_per_block : rows;
    float   sum[PACK] = {};
    if (c < M) {
#pragma unroll 4
        for (int64_t r = first + warp; r < end; r += SUM_WARPS) {
            Pack<T, PACK> v = pack_load<T, PACK>(x + r * M + c);
            for (int k = 0; k < PACK; k++) sum[k] += to_f32(v.v[k]);
        }
    }
    for (int k = 0; k < PACK; k++) part[warp][k * WARP + lane] = sum[k]; /* neighbours in neighbouring banks */
    __syncthreads(); /* every warp's sums are there */
    for (int i = warp * WARP + lane; i < WARP * PACK; i += SUM_WARPS * WARP) {
        int64_t at = strip + i % WARP * PACK + i / WARP;
        if (at >= M) continue;
        float total = 0.0f;
        for (int w = 0; w < SUM_WARPS; w++) total += part[w][i];
        float *out = sums + (int64_t)blockIdx.y * M + at;
        *out = write == MATMUL_ADD ? *out + total : total;
    }
}

/* sums [parts,M] f32 (+)= sums of x [rows,M] over parts of its rows. 16 bytes at a time where the rows allow it. */
static void sum_rows(Stream *s, float *sums, const void *x, DType type, int64_t rows, int64_t per_block, int64_t M,
                     MatmulWrite write) {
    int64_t parts = blocks_for(rows, per_block);
    DISPATCH_ACT(type, T, constexpr int PACK = pack_elems<T>(); int64_t blocks = blocks_for(M, WARP * PACK);
                 if (M % PACK == 0 && (uintptr_t)x % PACK_BYTES == 0)
                     LAUNCH((column_sums_kernel<T, PACK>), dim3((unsigned)blocks, (unsigned)parts),
                            dim3(WARP, SUM_WARPS), 0, s, sums, (const T *)x, rows, per_block, M, write);
                 else LAUNCH((column_sums_kernel<T, 1>), dim3((unsigned)blocks_for(M, WARP), (unsigned)parts),
                             dim3(WARP, SUM_WARPS), 0, s, sums, (const T *)x, rows, per_block, M, write));
}

/* The bias gradient's own memory: partial sums of blocks of rows, and room for one sum. */
typedef struct {
    Tensor dy;
    float *partial, *sum; /* [parts,M], [M]; borrowed from scratch */
} BiasSums;

static BiasSums bias_sums(Arena *scratch, Tensor dy) {
    int64_t  N = dy.dim[0], M = dy.dim[1];
    BiasSums b = {dy, NULL, NULL};
    b.partial = (float *)arena_take(scratch, (size_t)(blocks_for(N, rows_per_block(N)) * M) * sizeof(float));
    b.sum = (float *)arena_take(scratch, (size_t)M * sizeof(float));
    return b;
}

/* out [M] (+)= column sums of dy: of blocks of rows, then of those. */
static void column_sums(Stream *s, const BiasSums *b, float *out, MatmulWrite write) {
    int64_t N = b->dy.dim[0], M = b->dy.dim[1], per_block = rows_per_block(N), parts = blocks_for(N, per_block);
    sum_rows(s, b->partial, b->dy.data, b->dy.type, N, per_block, M, MATMUL_SET);
    sum_rows(s, out, b->partial, F32, parts, parts, M, write);
}

static void column_sums_aside(Stream *s, void *sums) {
    const BiasSums *b = (const BiasSums *)sums;
    column_sums(s, b, b->sum, MATMUL_SET);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

static Matmul forward_product(Tensor y, Tensor x, Tensor w, const void *bias) {
    return {matrix_of(y, PLAIN), matrix_of(x, PLAIN), matrix_of(w, PLAIN), x.dim[0], w.dim[1], w.dim[0], MATMUL_SET, bias};
}
static Matmul input_gradient(Tensor dx, Tensor dy, Tensor w) {
    return {matrix_of(dx, PLAIN), matrix_of(dy, PLAIN), matrix_of(w, TRANSPOSED), dy.dim[0], w.dim[0], w.dim[1], MATMUL_SET, NULL};
}
static Matmul weight_gradient(Tensor dw, Tensor x, Tensor dy) {
    return {matrix_of(dw, PLAIN), matrix_of(x, TRANSPOSED), matrix_of(dy, PLAIN), x.dim[1], dy.dim[1], x.dim[0], MATMUL_ADD, NULL};
}

/* dw += x^T dy, db += column sums of dy: those with the product, which reads dy anyway, or by the kernel above. */
static void parameters_backward(Stream *s, Tensor dw, Tensor db, Tensor dy, Tensor x) {
    if (tensor_is_none(db)) {
        matmul(s, weight_gradient(dw, x, dy));
        return;
    }
    bias_backward_contract(s, db, dy);
    size_t   mark = arena_mark(&s->scratch);
    BiasSums b = bias_sums(&s->scratch, dy);
    Rest     rest = {column_sums_aside, &b};
    if (matmul_fused(s, weight_gradient(dw, x, dy), EPILOGUE_COLUMN_SUMS, b.sum, rest))
        sum_rows(s, ptr<float>(db), b.sum, F32, 1, 1, dy.dim[1], MATMUL_ADD);
    else
        column_sums(s, &b, ptr<float>(db), MATMUL_ADD);
    arena_release(&s->scratch, mark);
}

void bias_backward(Stream *s, Tensor db, Tensor dy) {
    bias_backward_contract(s, db, dy);
    size_t   mark = arena_mark(&s->scratch);
    BiasSums b = bias_sums(&s->scratch, dy);
    column_sums(s, &b, ptr<float>(db), MATMUL_ADD);
    arena_release(&s->scratch, mark);
}

/* --- the ops ------------------------------------------------------------------------------------------------------ */

void linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b) {
    linear_expect(y, x, w, b);
    matmul(s, forward_product(y, x, w, b.data));
}

void linear_gelu_forward(Stream *s, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b) {
    linear_forward(s, pre, x, w, b);
    gelu_forward(s, y, pre);
}

void linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    linear_backward_expect(dx, dw, db, dy, x, w);
    matmul(s, input_gradient(dx, dy, w));
    parameters_backward(s, dw, db, dy, x);
}

typedef struct { Tensor dpre, pre; } GeluBackward;

static void gelu_backward_in_place(Stream *s, void *tensors) {
    const GeluBackward *g = (const GeluBackward *)tensors;
    gelu_backward(s, g->dpre, g->dpre, g->pre);
}

void linear_gelu_backward(Stream *s, Tensor dpre, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor pre, Tensor w) {
    linear_backward_expect(dpre, dw, db, dy, x, w);
    EXPECT2(pre, x.type, x.dim[0], x.dim[1]);
    GeluBackward g = {dpre, pre};
    Rest         rest = {gelu_backward_in_place, &g};
    if (!matmul_fused(s, input_gradient(dpre, dy, w), EPILOGUE_GELU_BACKWARD, pre.data, rest)) gelu_backward(s, dpre, dpre, pre);
    parameters_backward(s, dw, db, dy, x);
}
