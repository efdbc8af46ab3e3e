/* fp8_linear.cu - CUDA side of the products in fp8 of layers.h: casts to 8 bits, and cuBLASLt's products of those.
 *
 * Hopper multiplies 8-bit matrices only if the sums run along the rows of both in memory. So each product has its own
 * copies: forward x and w^T, the input's gradient dy and w, the weight's gradient x^T and dy^T. A cast reads a tensor
 * once and writes it in row-major order, transposed, or both. If an op of fp8_outputs.cu has written x or dy, both
 * copies exist.
 */
#include "layers/contracts.h"
#include "layers/fp8_contracts.h"
#include "layers/fp8_tile.cuh"
#include "layers/layers.h"
#include "layers/matmul.cuh"

/* --- casts -------------------------------------------------------------------------------------------------------- */

enum { ROUND_UP = 16 };

/* Casts x [R,C] to t. Block: a tile. Bound: its traffic. */
template <DType type> KERNEL __launch_bounds__(TILE_THREADS) fp8_cast_kernel(Fp8Target t, const bf16 *x) {
    await_kernels();
    write_block<type>(t, [=](int64_t r, int64_t c) { return load_pairs(x + r * t.C + c); });
}

/* Sets scale [FP8_SCALES] to 1/s and s for `measured`, the bits of a tensor's amax. amax, unless it is NULL, becomes at
 * least `measured`. One thread. */
KERNEL own_scale_kernel(float *scale, int32_t *amax, const int32_t *measured, DType type) {
    int exponent = fp8_exponent((uint32_t)*measured, type);
    scale[FP8_SCALE] = fp8_power(exponent), scale[FP8_INVERSE] = fp8_power(-exponent);
    if (amax) atomicMax(amax, *measured);
}

typedef enum { NOTED, NOT_NOTED } Noting;
typedef enum { AS_IT_LIES = 1, TURNED = 2 } Copies;

typedef struct { Matrix plain, turned; const float *inverse; } Codes; /* in scratch, or where an op has written them */

void fp8_queue_cast(Stream *s, const Fp8Target &t, const void *x, DType type) {
    dim3 grid = tile_grid(t.R_up, t.C, TILE_ROWS);
    CHECK((uintptr_t)x % PACK_BYTES == 0, "a tensor for fp8 that is not aligned to %d bytes", PACK_BYTES);
    if (type == E4M3) LAUNCH_EARLY((fp8_cast_kernel<E4M3>), grid, TILE_THREADS, 0, s, t, (const bf16 *)x);
    else LAUNCH_EARLY((fp8_cast_kernel<E5M2>), grid, TILE_THREADS, 0, s, t, (const bf16 *)x);
}

static int which_of(DType type) { return type == E4M3 ? FP8_X : FP8_DY; }

Fp8Target fp8_target(Tensor y, Fp8 f) {
    int64_t             R = y.dim[0], C = y.dim[1], which = which_of(y.type);
    unsigned long long *counts = tensor_is_none(f.counts) ? NULL : (unsigned long long *)f.counts.data + 2 * which;
    return {ptr<uint8_t>(y), ptr<uint8_t>(y) + R * C, R, C, R, C, ptr<float>(f.scale) + FP8_SCALES * which, ptr<int32_t>(f.amax) + which, counts};
}

/* Returns 1/s and s from x's own largest value, in scratch. `amax`, unless it is NULL, becomes at least that value. */
static const float *own_scale(Stream *s, Tensor x, DType type, int32_t *amax) {
    Tensor    scale = arena_tensor(&s->scratch, F32, 1, FP8_SCALES, 1, 1), measured = arena_tensor(&s->scratch, I32, 1, 1, 1, 1);
    Fp8Target largest = {NULL, NULL, x.dim[0], x.dim[1], x.dim[0], x.dim[1], NULL, ptr<int32_t>(measured), NULL};
    device_zero(s, measured);
    fp8_queue_cast(s, largest, x.data, type);
    LAUNCH(own_scale_kernel, 1, 1, 0, s, ptr<float>(scale), amax, ptr<int32_t>(measured), type);
    return ptr<float>(scale);
}

static Codes written_codes(Tensor x, Fp8 f) {
    Fp8Target t = fp8_target(x, f);
    return {{t.plain, x.type, t.C, PLAIN}, {t.turned, x.type, t.R, PLAIN}, t.scale + FP8_INVERSE};
}

/* Returns x, w or dy as 8 bits. */
static Codes cast(Stream *s, Tensor x, int which, Fp8 f, Noting noting, int copies) {
    if (fp8_is_codes(x)) return written_codes(x, f);
    int64_t R = x.dim[0], C = x.dim[1], up = blocks_for(R, ROUND_UP) * ROUND_UP;
    DType   type = which == FP8_DY ? E5M2 : E4M3;
    Codes   c = {{NULL, type, C, PLAIN}, {NULL, type, up, PLAIN}, NULL};
    if (copies & AS_IT_LIES) c.plain.data = arena_take(&s->scratch, (size_t)(R * C));
    if (copies & TURNED) c.turned.data = arena_take(&s->scratch, (size_t)(C * up));
    int is_dry = fp8_cast_contract(s, x, copies == (AS_IT_LIES | TURNED) ? 2 : 1), notes = noting == NOTED && !is_dry;
    int32_t     *amax = notes ? ptr<int32_t>(f.amax) + which : NULL;
    int64_t     *counts = notes && !tensor_is_none(f.counts) ? ptr<int64_t>(f.counts) + 2 * which : NULL;
    const float *scale = f.uses_own ? own_scale(s, x, type, amax) : is_dry ? NULL : ptr<float>(f.scale) + FP8_SCALES * which;
    Fp8Target    t = {(uint8_t *)c.plain.data, (uint8_t *)c.turned.data, R, C, up, C, scale, f.uses_own ? NULL : amax,
                      (unsigned long long *)counts};
    fp8_queue_cast(s, t, x.data, type);
    c.inverse = is_dry ? NULL : scale + FP8_INVERSE;
    return c;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* c [m,n] = or += a b^T, with a [m,k], b [n,k] of 8 bits. */
static void product(Stream *s, Tensor c, const Codes &of_a, Matrix a, const Codes &of_b, Matrix b, int64_t k, MatmulWrite write,
                    const void *bias) {
    b.order = TRANSPOSED;
    Matmul p = {matrix_of(c, PLAIN), a, b, c.dim[0], c.dim[1], k, write, bias};
    matmul_fp8(s, p, of_a.inverse, of_b.inverse);
}

static void forward(Stream *s, Tensor y, Tensor x, Tensor w, const void *bias, Fp8 f, int is_turned) {
    fp8_expect(y, x, w, f, is_turned);
    size_t mark = arena_mark(&s->scratch);
    Codes  x8 = cast(s, x, FP8_X, f, NOTED, AS_IT_LIES), w8 = cast(s, w, FP8_W, f, NOTED, is_turned ? AS_IT_LIES : TURNED);
    product(s, y, x8, x8.plain, w8, is_turned ? w8.plain : w8.turned, x.dim[1], MATMUL_SET, bias);
    arena_release(&s->scratch, mark);
}

static void backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Fp8 f, int is_turned) {
    size_t mark = arena_mark(&s->scratch);
    Codes  dy8 = cast(s, dy, FP8_DY, f, NOTED, AS_IT_LIES | TURNED);
    Codes  w8 = cast(s, w, FP8_W, f, NOT_NOTED, is_turned ? TURNED : AS_IT_LIES), x8 = cast(s, x, FP8_X, f, NOT_NOTED, TURNED);
    product(s, dx, dy8, dy8.plain, w8, is_turned ? w8.turned : w8.plain, dy.dim[1], MATMUL_SET, NULL);
    int64_t rows = x8.turned.ld; /* with zeros after the last row */
    if (is_turned) product(s, dw, dy8, dy8.turned, x8, x8.turned, rows, gradient_write(dw), NULL);
    else product(s, dw, x8, x8.turned, dy8, dy8.turned, rows, gradient_write(dw), NULL);
    arena_release(&s->scratch, mark);
}

/* --- the ops ------------------------------------------------------------------------------------------------------ */

void fp8_linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b, Fp8 f) { forward(s, y, x, w, b.data, f, 0); }

void fp8_linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, Fp8 f) {
    fp8_backward_expect(dx, dw, db, dy, x, w, f, 0);
    backward(s, dx, dw, dy, x, w, f, 0);
    if (!tensor_is_none(db)) bias_backward(s, db, dy);
}

void fp8_head_forward(Stream *s, Tensor y, Tensor x, Tensor w, Fp8 f) { forward(s, y, x, w, NULL, f, 1); }

void fp8_head_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Fp8 f) {
    fp8_backward_expect(dx, dw, tensor_none(), dy, x, w, f, 1);
    backward(s, dx, dw, dy, x, w, f, 1);
}
