/* fp8.cu - CUDA side of the ops in fp8 of layers.h: casts to 8 bits, cuBLASLt's products of those, and bf16 ops that
 * write their output as 8 bits.
 *
 * Hopper multiplies 8-bit matrices only if the sums run along the rows of both in memory. So each product has its own
 * copies: forward x and w^T, the input's gradient dy and w, the weight's gradient x^T and dy^T. A cast reads a tensor
 * once and writes it in row-major order, transposed, or both. An op with an output in fp8 computes the bf16 op, rounds
 * to bf16, and writes both copies of what that op would have stored. A tensor then costs the bytes of one bf16 copy,
 * and no cast reads it again. fp8_tile.cuh casts and transposes.
 */
#include "layers/activation.h"
#include "layers/contracts.h"
#include "layers/fp8_tile.cuh"
#include "layers/layers.h"
#include "layers/matmul.cuh"

/* --- casts -------------------------------------------------------------------------------------------------------- */

enum { ROUND_UP = 16 };

/* Casts x [R,C] to 8-bit codes, which go to t. Each block casts one tile. Bound by memory traffic. */
template <DType type> KERNEL __launch_bounds__(TILE_THREADS) fp8_cast_kernel(Fp8Target t, const bf16 *x) {
    await_kernels();
    write_block<type>(t, [=](int64_t r, int64_t c) { return load_pairs(x + r * t.C + c); });
}

/* Sets scale [FP8_SCALES] to 1/s and s, where s is the scale by which a tensor is multiplied before it is rounded.
 * measured: bits of the largest absolute value of the tensor. amax, unless it is NULL, becomes at least `measured`. One
 * thread. */
KERNEL own_scale_kernel(float *scale, int32_t *amax, const int32_t *measured, DType type) {
    int exponent = fp8_exponent((uint32_t)*measured, type);
    scale[FP8_SCALE] = fp8_power(exponent), scale[FP8_INVERSE] = fp8_power(-exponent);
    if (amax) atomicMax(amax, *measured);
}

typedef enum { NOTED, NOT_NOTED } Noting;
typedef enum { AS_IT_LIES = 1, TURNED = 2 } Copies;

/* 8-bit copies of a tensor, in row-major order and transposed. They are in scratch, or where an op has written them.
 * inverse: 1/s, with s the scale by which the tensor was multiplied before rounding. */
typedef struct { Matrix plain, turned; const float *inverse; } Codes;

/* Queues the cast of x [R,C], a tensor of bf16, to 8-bit codes, which go to t. */
static void queue_cast(Stream *s, const Fp8Target &t, const void *x, DType type) {
    dim3 grid = tile_grid(t.R_up, t.C, TILE_ROWS);
    CHECK((uintptr_t)x % PACK_BYTES == 0, "a tensor for fp8 that is not aligned to %d bytes", PACK_BYTES);
    if (type == E4M3) LAUNCH_EARLY((fp8_cast_kernel<E4M3>), grid, TILE_THREADS, 0, s, t, (const bf16 *)x);
    else LAUNCH_EARLY((fp8_cast_kernel<E5M2>), grid, TILE_THREADS, 0, s, t, (const bf16 *)x);
}

Fp8Target fp8_target(Tensor y, Fp8 f) {
    int64_t             R = y.dim[0], C = y.dim[1], which = y.type == E4M3 ? FP8_X : FP8_DY;
    unsigned long long *counts = tensor_is_none(f.counts) ? NULL : (unsigned long long *)f.counts.data + 2 * which;
    return {ptr<uint8_t>(y), ptr<uint8_t>(y) + R * C, R, C, R, C, ptr<float>(f.scale) + FP8_SCALES * which,
            ptr<int32_t>(f.amax) + which, counts};
}

/* Returns the address in scratch of 1/s and s. s is the scale, by which x is multiplied before it is rounded to `type`.
 * It follows from the largest absolute value of x. `amax`, unless it is NULL, becomes at least that value. */
static const float *own_scale(Stream *s, Tensor x, DType type, int32_t *amax) {
    Tensor scale = arena_tensor(&s->scratch, F32, 1, FP8_SCALES, 1, 1),
           measured = arena_tensor(&s->scratch, I32, 1, 1, 1, 1);
    Fp8Target largest = {NULL, NULL, x.dim[0], x.dim[1], x.dim[0], x.dim[1], NULL, ptr<int32_t>(measured), NULL};
    device_zero(s, measured);
    queue_cast(s, largest, x.data, type);
    LAUNCH(own_scale_kernel, 1, 1, 0, s, ptr<float>(scale), amax, ptr<int32_t>(measured), type);
    return ptr<float>(scale);
}

/* Returns x, w or dy as 8-bit codes: a new cast in scratch, or the codes that an op has already written. `copies` says
 * in which orders. */
static Codes cast(Stream *s, Tensor x, int which, Fp8 f, Noting noting, int copies) {
    if (fp8_is_codes(x)) {
        Fp8Target t = fp8_target(x, f);
        return {{t.plain, x.type, t.C, PLAIN}, {t.turned, x.type, t.R, PLAIN}, &t.scale[FP8_INVERSE]};
    }
    int64_t R = x.dim[0], C = x.dim[1], up = blocks_for(R, ROUND_UP) * ROUND_UP;
    DType   type = which == FP8_DY ? E5M2 : E4M3;
    Codes   c = {{NULL, type, C, PLAIN}, {NULL, type, up, PLAIN}, NULL};
    if (copies & AS_IT_LIES) c.plain.data = arena_take(&s->scratch, (size_t)(R * C));
    if (copies & TURNED) c.turned.data = arena_take(&s->scratch, (size_t)(C * up));
    int is_dry = fp8_cast_contract(s, x, copies == (AS_IT_LIES | TURNED) ? 2 : 1), notes = noting == NOTED && !is_dry;
    int32_t     *amax = notes ? ptr<int32_t>(f.amax) + which : NULL;
    int64_t     *counts = notes && !tensor_is_none(f.counts) ? ptr<int64_t>(f.counts) + 2 * which : NULL;
    const float *scale = f.uses_own ? own_scale(s, x, type, amax)
                         : is_dry   ? NULL
                                    : ptr<float>(f.scale) + FP8_SCALES * which;
    Fp8Target    t = {(uint8_t *)c.plain.data, (uint8_t *)c.turned.data, R, C, up, C, scale, f.uses_own ? NULL : amax,
                      (unsigned long long *)counts};
    queue_cast(s, t, x.data, type);
    c.inverse = is_dry ? NULL : scale + FP8_INVERSE;
    return c;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* c [m,n] = or += a b^T, with a [m,k], b [n,k] of 8 bits. */
static void product(Stream *s, Tensor c, const Codes &of_a, Matrix a, const Codes &of_b, Matrix b, int64_t k,
                    MatmulWrite write, const void *bias) {
    b.order = TRANSPOSED;
    Matmul p = {matrix_of(c, PLAIN), a, b, c.dim[0], c.dim[1], k, write, bias};
    matmul_fp8(s, p, of_a.inverse, of_b.inverse);
}

void fp8_linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b, MatrixOrder order, Fp8 f) {
    fp8_expect(y, x, w, f, order);
    size_t mark = arena_mark(&s->scratch);
    Codes x8 = cast(s, x, FP8_X, f, NOTED, AS_IT_LIES),
          w8 = cast(s, w, FP8_W, f, NOTED, order == PLAIN ? TURNED : AS_IT_LIES);
    product(s, y, x8, x8.plain, w8, order == PLAIN ? w8.turned : w8.plain, x.dim[1], MATMUL_SET, b.data);
    arena_release(&s->scratch, mark);
}

void fp8_linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, MatrixOrder order,
                         Fp8 f) {
    fp8_backward_expect(dx, dw, db, dy, x, w, f, order);
    size_t mark = arena_mark(&s->scratch);
    Codes  dy8 = cast(s, dy, FP8_DY, f, NOTED, AS_IT_LIES | TURNED);
    Codes w8 = cast(s, w, FP8_W, f, NOT_NOTED, order == PLAIN ? AS_IT_LIES : TURNED),
          x8 = cast(s, x, FP8_X, f, NOT_NOTED, TURNED);
    product(s, dx, dy8, dy8.plain, w8, order == PLAIN ? w8.plain : w8.turned, dy.dim[1], MATMUL_SET, NULL);
    int64_t rows = x8.turned.ld; /* number of rows, including the rows of zeros that pad them to a multiple of 16 */
    if (order == PLAIN) product(s, dw, x8, x8.turned, dy8, dy8.turned, rows, gradient_write(dw), NULL);
    else product(s, dw, dy8, dy8.turned, x8, x8.turned, rows, gradient_write(dw), NULL);
    arena_release(&s->scratch, mark);
    if (!tensor_is_none(db)) bias_backward(s, db, dy);
}

/* --- outputs: what a bf16 op would have stored, cast -------------------------------------------------------------- */

static void expect_aligned(std::initializer_list<const void *> tensors) {
    CHECK(packs_fit(PACK_BYTES, tensors), "tensors for fp8 that are not aligned to %d bytes", PACK_BYTES);
}

/* --- activations with an output in fp8 ---------------------------------------------------------------------------- */

/* Writes f(x), f the activation, to t as 8-bit codes. Each block takes one tile. Bound by memory: 4 bytes an
 * element. */
template <Activation kind>
KERNEL __launch_bounds__(TILE_THREADS) fp8_activation_forward_kernel(Fp8Target t, const bf16 *x) {
    await_kernels();
    write_block<E4M3>(t, [=](int64_t r, int64_t c) {
        Pack<float, PACK8> v = pairs_to_f32(load_pairs_once(x + r * t.C + c)); /* the cache may drop x, which is read
                                                                                * again only in backward */
        for (int j = 0; j < PACK8; j++) v.v[j] = activate(kind, v.v[j]);
        return pairs_from_f32(v);
    });
}

void fp8_activation_forward(Stream *s, Activation kind, Tensor y, Tensor x, Fp8 f) {
    if (activation_forward_contract(s, y, x, &f) || tensor_elems(x) == 0) return;
    expect_aligned({y.data, x.data});
    DISPATCH_ACTIVATION(kind, K,
        LAUNCH_EARLY((fp8_activation_forward_kernel<K>), tile_grid(x.dim[0], x.dim[1], TILE_ROWS), TILE_THREADS, 0, s,
                     fp8_target(y, f), ptr<bf16>(x)));
}

/* Writes dy f'(x) to t as 8-bit codes, f the activation, and its column sums to sums unless that is NULL. Each block
 * takes rows_per_block rows of a strip of columns. Bound by memory: 6 bytes an element. */
template <Activation kind>
KERNEL __launch_bounds__(TILE_THREADS)
fp8_activation_backward_kernel(Fp8Target t, float *sums, const bf16 *dy, const bf16 *x, int64_t rows_per_block) {
    await_kernels();
    write_stretch<E5M2>(t, sums, rows_per_block, [=](int64_t r, int64_t c) {
        Pack<float, PACK8> v = pairs_to_f32(load_pairs_once(x + r * t.C + c));
        Pack<float, PACK8> d = pairs_to_f32(load_pairs_once(dy + r * t.C + c));
        for (int j = 0; j < PACK8; j++) v.v[j] = d.v[j] * activation_slope(kind, v.v[j]);
        return pairs_from_f32(v);
    });
}

void fp8_activation_backward(Stream *s, Activation kind, Tensor dx, Tensor dbias, Tensor dy, Tensor x, Fp8 f) {
    int64_t N = x.dim[0], M = x.dim[1], rows = blocks_for(sum_rows_of(N), TILE_ROWS) * TILE_ROWS,
            parts = blocks_for(N, rows);
    int     is_dry = activation_backward_contract(s, dx, dbias, dy, x, &f), is_summed = !tensor_is_none(dbias);
    if (N == 0) return;
    size_t mark = arena_mark(&s->scratch);
    float *partial = is_summed ? (float *)arena_take(&s->scratch, (size_t)(parts * M) * sizeof(float)) : NULL;
    if (!is_dry) {
        expect_aligned({dx.data, dy.data, x.data});
        DISPATCH_ACTIVATION(kind, K,
            LAUNCH_EARLY((fp8_activation_backward_kernel<K>), tile_grid(N, M, rows), TILE_THREADS, 0, s,
                         fp8_target(dx, f), partial, ptr<bf16>(dy), ptr<bf16>(x), rows));
        if (is_summed) column_sums(s, ptr<float>(dbias), partial, F32, parts, parts, M, MATMUL_ADD);
    }
    arena_release(&s->scratch, mark);
}

/* --- swiglu with an output in fp8 --------------------------------------------------------------------------------- */

/* Writes the product of silu(gate) and up to t as 8-bit codes. Each block takes one tile. Bound by memory: 6 bytes an
 * element. */
KERNEL __launch_bounds__(TILE_THREADS) fp8_swiglu_forward_kernel(Fp8Target t, const bf16 *gate_up) {
    await_kernels();
    write_block<E4M3>(t, [=](int64_t r, int64_t c) {
        const bf16        *gate = gate_up + r * 2 * t.C + c;
        Pack<float, PACK8> v = pairs_to_f32(load_pairs(gate)), up = pairs_to_f32(load_pairs(gate + t.C));
        for (int j = 0; j < PACK8; j++) v.v[j] = silu(v.v[j]) * up.v[j];
        return pairs_from_f32(v);
    });
}

void fp8_swiglu_forward(Stream *s, Tensor y, Tensor gate_up, Fp8 f) {
    if (swiglu_forward_contract(s, y, gate_up, &f) || tensor_elems(y) == 0) return;
    expect_aligned({y.data, gate_up.data});
    LAUNCH_EARLY(fp8_swiglu_forward_kernel, tile_grid(y.dim[0], y.dim[1], TILE_ROWS), TILE_THREADS, 0, s,
                 fp8_target(y, f), ptr<bf16>(gate_up));
}

/* Writes the gradients dy up silu'(gate) to target gate, and dy silu(gate) to target up. Each block takes one tile of
 * each. Bound by memory: 10 bytes an element of dy. */
KERNEL __launch_bounds__(TILE_THREADS)
fp8_swiglu_backward_kernel(Fp8Target gate, Fp8Target up, const bf16 *dy, const bf16 *gate_up) {
    await_kernels();
    int64_t    first_row = (int64_t)blockIdx.y * TILE_ROWS, first_column = (int64_t)blockIdx.x * TILE_COLUMNS;
    Seen       seen = {0, 0, 0};
    TileValues dgate = {}, dup = {};
    TilePlace  at = tile_place(first_row, first_column);
    #pragma unroll
    for (int k = 0; k < THREAD_ROWS; k++) {
        if (at.row + k >= gate.R || at.column >= gate.C) continue;
        const bf16        *from = gate_up + (at.row + k) * 2 * gate.C + at.column;
        Pack<float, PACK8> g = pairs_to_f32(load_pairs(from)), u = pairs_to_f32(load_pairs(from + gate.C));
        Pack<float, PACK8> d = pairs_to_f32(load_pairs(dy + (at.row + k) * gate.C + at.column));
        for (int j = 0; j < PACK8; j++) {
            float value, slope = silu_grad(&value, g.v[j]);
            g.v[j] = d.v[j] * u.v[j] * slope;
            d.v[j] *= value;
        }
        dgate.row[k] = pairs_from_f32(g), dup.row[k] = pairs_from_f32(d);
    }
    write_tile<E5M2>(gate, first_row, first_column, dgate, &seen);
    write_tile<E5M2>(up, first_row, first_column, dup, &seen);
    note_seen(seen, gate.amax, gate.counts);
}

void fp8_swiglu_backward(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up, Fp8 f) {
    int64_t N = dy.dim[0], F = dy.dim[1];
    if (swiglu_backward_contract(s, dgate_up, dy, gate_up, &f) || N * F == 0) return;
    expect_aligned({dgate_up.data, dy.data, gate_up.data});
    Fp8Target gate = fp8_target(dgate_up, f), up = gate;
    gate.C = up.C = F;
    up.plain += F, up.turned += F * gate.R_up;
    LAUNCH_EARLY(fp8_swiglu_backward_kernel, tile_grid(N, F, TILE_ROWS), TILE_THREADS, 0, s, gate, up, ptr<bf16>(dy),
                 ptr<bf16>(gate_up));
}

/* --- layernorm and rmsnorm with an output in fp8 ------------------------------------------------------------------ */

enum {
    NORM_WARPS = 8, NORM_THREADS = NORM_WARPS * WARP, NORM_ROWS = 2 * CHUNK, WARP_ROWS = NORM_ROWS / NORM_WARPS,
    HELD_PACKS = 8,
    SKEW_WORDS = 16 /* words by which a block's lower rows are moved in shared memory, so that its two chunks of a
                     * column are in different banks */
};

typedef struct {
    bf16       *sum; /* output: x + update, if there is an update */
    float      *mean, *rstd;
    const bf16 *x, *update, *w, *b;
    float       eps;
} NormForward;

/* Returns the row's pack at i of the flat arrays. If there is an update, adds the update to x and stores the sum. */
DEVICE Pairs8 updated_pack(const NormForward &f, int64_t i) {
    Pairs8 x = load_pairs(f.x + i);
    if (!f.update) return x;
    Pack<float, PACK8> sum = pairs_to_f32(x), update = pairs_to_f32(load_pairs_once(f.update + i));
    for (int j = 0; j < PACK8; j++) sum.v[j] += update.v[j];
    x = pairs_from_f32(sum);
    pack_store_once((uint32_t *)(f.sum + i), x); /* the cache may drop the sum, which is needed again only when the next
                                                  * branch ends */
    return x;
}

/* pack_total adds the elements of a pack, pack_squares their squared deviations from the mean, which is 0 for rmsnorm.
 * Both have the expressions of norm.cu, so that the bits are the same. */
DEVICE float pack_total(Pairs8 x) {
    Pack<float, PACK8> v = pairs_to_f32(x);
    float              total = 0.0f;
    for (int j = 0; j < PACK8; j++) total += v.v[j];
    return total;
}
DEVICE float pack_squares(Pairs8 x, float mean) {
    Pack<float, PACK8> v = pairs_to_f32(x);
    float              total = 0.0f;
    for (int j = 0; j < PACK8; j++) {
        float d = v.v[j] - mean;
        total += d * d;
    }
    return total;
}
template <bool centred> DEVICE Pairs8 normed(const NormForward &f, int64_t c, Pairs8 x, float mean, float rstd) {
    Pack<float, PACK8> y = pairs_to_f32(x), w = pairs_to_f32(load_pairs(f.w + c));
    if (centred) {
        Pack<float, PACK8> b = pairs_to_f32(load_pairs(f.b + c));
        for (int j = 0; j < PACK8; j++) y.v[j] = (y.v[j] - mean) * rstd * w.v[j] + b.v[j];
    } else {
        for (int j = 0; j < PACK8; j++) y.v[j] = y.v[j] * rstd * w.v[j];
    }
    return pairs_from_f32(y);
}

/* Computes the norm of one row, by a warp. The 8-bit codes go to t.plain in memory, and to `codes` [C/4] in shared
 * memory. */
template <bool centred, int HELD>
DEVICE void norm_row(const NormForward &f, const Fp8Target &t, int64_t row, uint32_t *codes, Seen *seen) {
    int     lane = (int)threadIdx.x % WARP, C = (int)t.C;
    Pairs8 x[HELD];
    float   sum = 0.0f, square = 0.0f, mean = 0.0f;
    #pragma unroll
    for (int k = 0; k < HELD; k++)
        if ((k * WARP + lane) * PACK8 < C) x[k] = updated_pack(f, row * C + (k * WARP + lane) * PACK8);
    if (centred) {
        #pragma unroll
        for (int k = 0; k < HELD; k++)
            if ((k * WARP + lane) * PACK8 < C) sum += pack_total(x[k]);
        mean = warp_sum(sum) / (float)t.C;
    }
    #pragma unroll
    for (int k = 0; k < HELD; k++)
        if ((k * WARP + lane) * PACK8 < C) square += pack_squares(x[k], mean);
    float rstd = 1.0f / sqrtf(warp_sum(square) / (float)t.C + f.eps);
    CastScale by = cast_scale<E4M3>(t.scale);
    #pragma unroll
    for (int k = 0; k < HELD; k++) {
        int c = (k * WARP + lane) * PACK8;
        if (c >= C) continue;
        Codes8 code = cast_pack<E4M3>(normed<centred>(f, c, x[k], mean, rstd), by, seen);
        pack_store((uint32_t *)(t.plain + row * C + c), code);
        pack_store(codes + c / 4, code);
    }
    if (lane == 0) f.rstd[row] = rstd;
    if (lane == 0 && centred) f.mean[row] = mean;
}

/* Computes the norm of rows and writes it as codes. Each block takes 32 rows of at most WARP HELD 8 channels. Each warp
 * processes four of them one after another, in registers. Then a thread transposes 16 rows of four columns at a time.
 * grid ceil(R/32), dynamic shared memory of a byte an element. Bound by memory: 4 bytes an element, 8 with an
 * update. */
template <bool centred, int HELD>
KERNEL __launch_bounds__(NORM_THREADS, 16 / HELD) fp8_norm_forward_kernel(NormForward f, Fp8Target t) {
    await_kernels();
    SMEM_DYN(uint32_t, codes);
    int     warp = (int)threadIdx.x / WARP, row_words = (int)t.C / 4;
    int64_t first = (int64_t)blockIdx.x * NORM_ROWS;
    Seen    seen = {0, 0, 0};
    #pragma unroll 1
    for (int i = warp * WARP_ROWS; i < (warp + 1) * WARP_ROWS && first + i < t.R; i++)
        norm_row<centred, HELD>(f, t, first + i, codes + i * row_words + i / CHUNK * SKEW_WORDS, &seen);
    __syncthreads(); /* after this the codes of the block's 32 rows are in shared memory */
    for (int i = (int)threadIdx.x; i < 2 * row_words; i += NORM_THREADS) {
        int         chunk = i % 2, word = i / 2;
        ColumnChunk column[4];
        if (first + chunk * CHUNK >= t.R) continue;
        #pragma unroll
        for (int rows = 0; rows < CHUNK / 4; rows++) {
            uint32_t w[4];
            for (int j = 0; j < 4; j++)
                w[j] = codes[(chunk * CHUNK + rows * 4 + j) * row_words + chunk * SKEW_WORDS + word];
            turn_words(w);
            for (int j = 0; j < 4; j++) column[j].v[rows] = w[j];
        }
        for (int j = 0; j < 4; j++)
            pack_store((uint32_t *)(t.turned + (word * 4 + j) * t.R_up + first + chunk * CHUNK), column[j]);
    }
    note_seen(seen, t.amax, t.counts);
}

/* Computes a norm whose output is written as 8-bit codes. If rows are too long for the kernel, or weights not aligned,
 * computes the norm in bf16 into scratch memory and casts that. */
template <bool centred>
static void norm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update, Tensor w,
                         Tensor b, float eps, Fp8 f) {
    bool runs = !norm_forward_contract(s, sum, y, mean, rstd, x, update, w, b, &f) && x.dim[0] > 0;
    if (x.dim[1] <= WARP * PACK8 * HELD_PACKS && packs_fit(PACK_BYTES, {w.data, b.data})) {
        expect_aligned({sum.data, y.data, x.data, update.data});
        if (!runs) return;
        NormForward n = {ptr<bf16>(sum), ptr<float>(mean), ptr<float>(rstd), ptr<bf16>(x), ptr<bf16>(update),
                         ptr<bf16>(w), ptr<bf16>(b), eps};
        Fp8Target   t = fp8_target(y, f);
        size_t      shared = (size_t)(NORM_ROWS * t.C) + SKEW_WORDS * sizeof(uint32_t);
        int64_t     blocks = blocks_for(t.R, NORM_ROWS);
        if (t.C <= WARP * PACK8 * HELD_PACKS / 2)
            LAUNCH_EARLY((fp8_norm_forward_kernel<centred, HELD_PACKS / 2>), blocks, NORM_THREADS, shared, s, n, t);
        else LAUNCH_EARLY((fp8_norm_forward_kernel<centred, HELD_PACKS>), blocks, NORM_THREADS, shared, s, n, t);
        return;
    }
    size_t mark = arena_mark(&s->scratch);
    Tensor plain = arena_tensor(&s->scratch, BF16, 2, y.dim[0], y.dim[1], 1);
    if (runs) {
        layernorm_forward(s, sum, plain, mean, rstd, x, update, w, b, eps);
        fp8_cast_contract(s, plain, 2);
        queue_cast(s, fp8_target(y, f), plain.data, E4M3);
    }
    arena_release(&s->scratch, mark);
}

void fp8_layernorm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update, Tensor w,
                           Tensor b, float eps, Fp8 f) {
    auto norm = tensor_is_none(b) ? norm_forward<false> : norm_forward<true>;
    norm(s, sum, y, mean, rstd, x, update, w, b, eps, f);
}
