/* linear.cu - CUDA side of the linear ops in layers.h: products of matmul.h, with epilogues of matmul.cuh
 * where they pay, and a kernel for the bias gradient where they do not.
 *
 * In forward only the product of gemm_hopper.cu has activations as an epilogue. cuBLASLt's GELU uses the sum before it
 * is stored. The contract is the activation of pre as stored, so that memory.recompute = "light" computes the same bits
 * again from it. In backward cuBLASLt has an epilogue for gelu_new alone.
 * cuBLASLt also has no epilogue for attention's delta, and none that rounds a product before it adds it to the stream.
 */
#include "layers/bias.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.cuh"

/* --- column sums: the gradient of a bias -------------------------------------------------------------------------- */

/* sums[i,c] = or += the sum of rows [i*rows_per_block, (i+1)*rows_per_block) of x [rows,M] in column c, i = blockIdx.y.
 * grid (ceil(M/(32 PACK)), parts), block (32,8), static shared memory. Bound by memory: x is read once. */
template <typename T, int PACK>
KERNEL column_sums_kernel(float *sums, const T *x, int64_t rows, int64_t rows_per_block, int64_t M, MatmulWrite write) {
    await_kernels();
    int64_t c = ((int64_t)blockIdx.x * WARP + threadIdx.x) * PACK, first = (int64_t)blockIdx.y * rows_per_block;
    int64_t end = first + rows_per_block < rows ? first + rows_per_block : rows;
    float   sum[PACK] = {};
    if (c < M) {
#pragma unroll 4
        for (int64_t r = first + threadIdx.y; r < end; r += SUM_WARPS) {
            Pack<T, PACK> v = pack_load<T, PACK>(x + r * M + c);
            for (int k = 0; k < PACK; k++) sum[k] += to_f32(v.v[k]);
        }
    }
    strip_sums(sum, M, [=](int64_t at, float total) {
        float *out = sums + (int64_t)blockIdx.y * M + at;
        *out = write == MATMUL_ADD ? *out + total : total;
    });
}

/* Queues column_sums_kernel, which sums the columns of x over ranges of per_block rows. It reads 16 bytes at a time if
 * the rows allow it. */
void column_sums(Stream *s, float *sums, const void *x, DType type, int64_t rows, int64_t per_block, int64_t M,
                 MatmulWrite write) {
    unsigned parts = (unsigned)blocks_for(rows, per_block);
    DISPATCH_ACT(type, T, DISPATCH_PACK(T, packs_fit((size_t)M * sizeof(T), {x}), PACK,
        LAUNCH_EARLY((column_sums_kernel<T, PACK>), dim3((unsigned)blocks_for(M, WARP * PACK), parts),
                     dim3(WARP, SUM_WARPS), 0, s, sums, (const T *)x, rows, per_block, M, write)));
}

void bias_backward(Stream *s, Tensor db, Tensor dy) {
    int64_t N = dy.dim[0], M = dy.dim[1], parts = sum_parts_of(N);
    bias_backward_contract(s, db, dy);
    if (N == 0) return;
    size_t mark = arena_mark(&s->scratch);
    float *partial = (float *)arena_take(&s->scratch, bias_scratch_bytes(N, M));
    column_sums(s, partial, dy.data, dy.type, N, sum_rows_of(N), M, MATMUL_SET);
    column_sums(s, ptr<float>(db), partial, F32, parts, parts, M, MATMUL_ADD);
    arena_release(&s->scratch, mark);
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Returns scratch for the column sums of dy, so that timing the kernels does not change db, to which the sums are added
 * later. */
static Tensor sums_aside(Stream *s, Tensor dy) { return arena_tensor(&s->scratch, F32, 1, dy.dim[1], 1, 1); }

/* dw = or += x^T dy, or dy^T x if TRANSPOSED; db += column sums of dy. The sums are computed with the product, which
 * reads dy anyway, or by column_sums_kernel. */
static void parameters_backward(Stream *s, Tensor dw, Tensor db, Tensor dy, Tensor x, MatrixOrder order) {
    if (tensor_is_none(db)) {
        matmul(s, weight_gradient(dw, x, dy, order));
        return;
    }
    size_t mark = arena_mark(&s->scratch);
    Tensor aside = sums_aside(s, dy);
    Rest   rest;
    rest.queue = [&] { bias_backward(s, aside, dy); };
    rest.scratch_bytes = bias_scratch_bytes(dy.dim[0], dy.dim[1]);
    if (matmul_fused(s, weight_gradient(dw, x, dy, PLAIN), EPILOGUE_COLUMN_SUMS, aside.data, rest))
        column_sums(s, ptr<float>(db), aside.data, F32, 1, 1, dy.dim[1], MATMUL_ADD);
    else
        bias_backward(s, db, dy);
    arena_release(&s->scratch, mark);
}

/* --- the ops ------------------------------------------------------------------------------------------------------ */

void linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b, MatrixOrder order) {
    linear_expect(y, x, w, b, order);
    matmul(s, forward_product(y, x, w, order, b.data));
}

void linear_activation_forward(Stream *s, Activation kind, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b) {
    linear_expect(pre, x, w, b, PLAIN);
    EXPECT2(y, pre.type, pre.dim[0], pre.dim[1]);
    Rest rest;
    rest.queue = [&] { activation_forward(s, kind, y, pre); };
    rest.activation = kind;
    if (!matmul_fused(s, forward_product(pre, x, w, PLAIN, b.data), EPILOGUE_ACTIVATION, y.data, rest))
        activation_forward(s, kind, y, pre);
}

/* Computes sum = stream + y, y = x w + b, as one fused product if that is faster. A plain product costs the next norm
 * two passes more: it reads y and writes sum. These are as many bytes as residual_forward moves for two thirds of the
 * rows. So timing compares the fused product with a plain one and residual_forward over that many rows, which writes to
 * y. */
int linear_residual_forward(Stream *s, Tensor sum, Tensor y, Tensor stream, Tensor x, Tensor w, Tensor b,
                            MatrixOrder order) {
    linear_expect(sum, x, w, b, order);
    residual_expect(sum, y, stream);
    int64_t rows = (2 * y.dim[0] + 2) / 3;
    Tensor  part = tensor_rows(y, 0, rows), stream_part = tensor_rows(stream, 0, rows);
    Rest    rest;
    rest.queue = [&] { residual_forward(s, part, stream_part, part); };
    rest.apart = y.data;
    return matmul_fused(s, forward_product(sum, x, w, order, b.data), EPILOGUE_RESIDUAL, stream.data, rest) != 0;
}

void linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, MatrixOrder order) {
    linear_backward_expect(dx, dw, db, dy, x, w, order);
    matmul(s, input_gradient(dx, dy, w, order));
    parameters_backward(s, dw, db, dy, x, order);
}

void linear_delta_backward(Stream *s, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w) {
    linear_backward_expect(dx, dw, db, dy, x, w, PLAIN);
    EXPECT2(delta, F32, delta.dim[0], x.dim[0]);
    Rest rest;
    rest.queue = [&] { attention_delta(s, delta, dx, x); };
    rest.sums = ptr<float>(delta), rest.head = (int)(x.dim[1] / delta.dim[0]);
    if (!matmul_fused(s, input_gradient(dx, dy, w, PLAIN), EPILOGUE_DELTA, x.data, rest)) rest.queue();
    parameters_backward(s, dw, db, dy, x, PLAIN);
}

/* The activation's kernel has dpre in registers and adds it to dbias; so does the product of gemm_hopper.cu. After
 * cuBLASLt's epilogue a separate pass computes the sums. */
void linear_activation_backward(Stream *s, Activation kind, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy,
                                Tensor x, Tensor pre, Tensor w) {
    linear_backward_expect(dpre, dw, db, dy, x, w, PLAIN);
    EXPECT2(pre, x.type, x.dim[0], x.dim[1]);
    int    sums = !tensor_is_none(dbias);
    size_t mark = arena_mark(&s->scratch);
    Tensor aside = sums ? sums_aside(s, dpre) : dbias;
    Rest   rest;
    rest.queue = [&] { activation_backward(s, kind, dpre, aside, dpre, pre); };
    rest.activation = kind;
    if (sums) {
        rest.behind = [&] { bias_backward(s, aside, dpre); };
        rest.scratch_bytes = bias_scratch_bytes(x.dim[0], x.dim[1]);
        rest.sums = ptr<float>(aside);
    }
    int done = matmul_fused(s, input_gradient(dpre, dy, w, PLAIN), EPILOGUE_ACTIVATION_BACKWARD, pre.data, rest);
    if (!done) activation_backward(s, kind, dpre, dbias, dpre, pre);
    else if (done == 1 && sums) bias_backward(s, dbias, dpre);
    else if (sums) column_sums(s, ptr<float>(dbias), rest.sums, F32, 1, 1, dbias.dim[0], MATMUL_ADD);
    parameters_backward(s, dw, db, dy, x, PLAIN);
    arena_release(&s->scratch, mark);
}
