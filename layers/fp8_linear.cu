/* fp8_linear.cu - CUDA side of the products in fp8 of layers.h: casts to 8 bits, and cuBLASLt's products of those.
 *
 * Hopper multiplies 8-bit matrices whose sums run along their rows in memory, both of them. So each product has its own
 * copies: forward x and w^T, the input's gradient dy and w, the weight's gradient x^T and dy^T. A cast reads a tensor once
 * and writes it as it lies, turned, or both.
 */
#include <cuda_fp8.h>

#include "core/fp8.h"
#include "layers/bias.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.cuh"

/* --- casts -------------------------------------------------------------------------------------------------------- */

enum { TILE = 64, THREADS = 256, PACK8 = 8, TURNED_PACK = 16, ROUND_UP = 16 };

DEVICE uint8_t fp8_of(float scaled, DType type) {
    return __nv_cvt_float_to_fp8(scaled, __NV_SATFINITE, type == E4M3 ? __NV_E4M3 : __NV_E5M2);
}

typedef struct { int over, vanished; int32_t most; } Seen;

DEVICE uint8_t cast_one(bf16 x, float scale, DType type, Seen *seen) {
    float   value = to_f32(x), size = fabsf(value), scaled = value * scale;
    int32_t bits = __float_as_int(size);
    seen->most = bits > seen->most ? bits : seen->most;
    if (bits >= 0x7f800000) return 0x7f; /* NaN in both types */
    uint8_t code = fp8_of(scaled, type);
    seen->over += fabsf(scaled) > fp8_largest(type);
    seen->vanished += bits != 0 && (code & 0x7f) == 0;
    return code;
}

/* What all threads have seen, to memory: maxima and whole numbers, which any order gives. */
DEVICE void note_seen(Seen seen, int32_t *amax, unsigned long long *counts) {
    SMEM(int, all, [3]);
    if (threadIdx.x < 3) all[threadIdx.x] = 0;
    __syncthreads();
    for (int o = WARP / 2; o > 0; o /= 2) {
        int32_t other = __shfl_xor_sync(0xffffffffu, seen.most, o);
        seen.most = other > seen.most ? other : seen.most;
        seen.over += __shfl_xor_sync(0xffffffffu, seen.over, o);
        seen.vanished += __shfl_xor_sync(0xffffffffu, seen.vanished, o);
    }
    if (threadIdx.x % WARP == 0) {
        atomicMax(&all[0], seen.most);
        if (seen.over) atomicAdd(&all[1], seen.over);
        if (seen.vanished) atomicAdd(&all[2], seen.vanished);
    }
    __syncthreads();
    if (threadIdx.x == 0 && amax && all[0]) atomicMax(amax, all[0]);
    if (threadIdx.x == 0 && counts && all[1]) atomicAdd(counts, (unsigned long long)all[1]);
    if (threadIdx.x == 0 && counts && all[2]) atomicAdd(counts + 1, (unsigned long long)all[2]);
}

/* plain [R,C], turned [C,R'], R' = R rounded up: columns from R on are zero. Each of plain, turned, amax and counts may
 * be NULL; scale NULL: only the maximum is looked for. Block: a tile of 64 x 64, turned in shared memory, from which 16 rows
 * of a column leave as one access; rows of 68 bytes keep a warp's reads of it on all banks but for pairs. C a multiple of 16.
 * grid (ceil(C/64), ceil(R'/64)). Bound: its traffic. */
template <DType type>
KERNEL fp8_cast_kernel(uint8_t *plain, uint8_t *turned, const bf16 *x, int64_t R, int64_t C, int64_t R_up, const float *scale,
                       int32_t *amax, unsigned long long *counts) {
    SMEM(uint32_t, tile, [TILE][TILE / 4 + 1]);
    int64_t first_row = (int64_t)blockIdx.y * TILE, first_column = (int64_t)blockIdx.x * TILE;
    float   s = scale ? *scale : 0.0f;
    Seen    seen = {0, 0, 0};
#pragma unroll
    for (int k = 0; k < TILE * TILE / (PACK8 * THREADS); k++) {
        int     at = k * THREADS + (int)threadIdx.x, row = at / (TILE / PACK8), pack = at % (TILE / PACK8);
        int64_t r = first_row + row, c = first_column + pack * PACK8;
        bool    is_in = r < R && c < C;
        Pack<uint8_t, PACK8> codes = {};
        if (is_in) {
            Pack<bf16, PACK8> in = pack_load<bf16, PACK8>(x + r * C + c);
            for (int j = 0; j < PACK8; j++) codes.v[j] = cast_one(in.v[j], s, type, &seen);
        }
        if (is_in && plain) pack_store(plain + r * C + c, codes);
        if (turned) memcpy(&tile[row][pack * 2], codes.v, PACK8);
    }
    if (turned) {
        __syncthreads(); /* the tile is whole */
        int     part = (int)threadIdx.x % (TILE / TURNED_PACK), column = (int)threadIdx.x / (TILE / TURNED_PACK);
        int64_t c = first_column + column, r = first_row + part * TURNED_PACK;
        Pack<uint8_t, TURNED_PACK> out;
        for (int j = 0; j < TURNED_PACK; j++) out.v[j] = (uint8_t)(tile[part * TURNED_PACK + j][column / 4] >> 8 * (column % 4));
        if (c < C && r < R_up) pack_store(turned + c * R_up + r, out);
    }
    if (amax || counts) note_seen(seen, amax, counts);
}

/* scale [2] = s and 1/s for `measured`, the bits of a tensor's amax, which amax, where it is not NULL, takes over. One thread. */
KERNEL own_scale_kernel(float *scale, int32_t *amax, const int32_t *measured, DType type) {
    int exponent = fp8_exponent((uint32_t)*measured, type);
    scale[0] = fp8_power(exponent), scale[1] = fp8_power(-exponent);
    if (amax) atomicMax(amax, *measured);
}

typedef enum { NOTED, NOT_NOTED } Noting;
typedef enum { AS_IT_LIES = 1, TURNED = 2 } Copies;

typedef struct { Matrix plain, turned; const float *inverse; } Codes; /* in scratch */

template <DType type>
static void queue_cast_to(Stream *s, const Codes *c, Tensor x, const float *scale, int32_t *amax, int64_t *counts) {
    int64_t R = x.dim[0], C = x.dim[1], up = blocks_for(R, ROUND_UP) * ROUND_UP;
    CHECK((uintptr_t)x.data % PACK_BYTES == 0, "a tensor for fp8 that is not aligned to %d bytes", PACK_BYTES);
    LAUNCH((fp8_cast_kernel<type>), dim3((unsigned)blocks_for(C, TILE), (unsigned)blocks_for(up, TILE)), THREADS, 0, s,
           (uint8_t *)c->plain.data, (uint8_t *)c->turned.data, ptr<bf16>(x), R, C, up, scale, amax, (unsigned long long *)counts);
}
static void queue_cast(Stream *s, const Codes *c, Tensor x, DType type, const float *scale, int32_t *amax, int64_t *counts) {
    if (type == E4M3) queue_cast_to<E4M3>(s, c, x, scale, amax, counts);
    else queue_cast_to<E5M2>(s, c, x, scale, amax, counts);
}

/* s and 1/s for x alone, in scratch; `amax`, if it is not NULL, takes x's over. */
static const float *own_scale(Stream *s, Tensor x, DType type, int32_t *amax) {
    Tensor scale = arena_tensor(&s->scratch, F32, 1, 2, 1, 1), measured = arena_tensor(&s->scratch, I32, 1, 1, 1, 1);
    Codes  none = {};
    device_zero(s, measured);
    queue_cast(s, &none, x, type, NULL, ptr<int32_t>(measured), NULL);
    LAUNCH(own_scale_kernel, 1, 1, 0, s, ptr<float>(scale), amax, ptr<int32_t>(measured), type);
    return ptr<float>(scale);
}

/* One of x, w and dy as 8 bits. */
static Codes cast(Stream *s, Tensor x, int which, Fp8 f, Noting noting, int copies) {
    int64_t R = x.dim[0], C = x.dim[1], up = blocks_for(R, ROUND_UP) * ROUND_UP;
    DType   type = which == FP8_DY ? E5M2 : E4M3;
    Codes   c = {{NULL, type, C, PLAIN}, {NULL, type, up, PLAIN}, NULL};
    if (copies & AS_IT_LIES) c.plain.data = arena_take(&s->scratch, (size_t)(R * C));
    if (copies & TURNED) c.turned.data = arena_take(&s->scratch, (size_t)(C * up));
    int is_dry = fp8_cast_contract(s, x, copies == (AS_IT_LIES | TURNED) ? 2 : 1), notes = noting == NOTED && !is_dry;
    int32_t     *amax = notes ? ptr<int32_t>(f.amax) + which : NULL;
    int64_t     *counts = notes && !tensor_is_none(f.counts) ? ptr<int64_t>(f.counts) + 2 * which : NULL;
    const float *scale = f.uses_own ? own_scale(s, x, type, amax) : is_dry ? NULL : ptr<float>(f.scale) + 2 * which;
    queue_cast(s, &c, x, type, scale, f.uses_own ? NULL : amax, counts);
    c.inverse = is_dry ? NULL : scale + 1;
    return c;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* c [m,n] = or += a b^T, a [m,k], b [n,k] 8-bit */
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
    int64_t rows = x8.turned.ld; /* with zeros behind the last */
    if (is_turned) product(s, dw, dy8, dy8.turned, x8, x8.turned, rows, MATMUL_ADD, NULL);
    else product(s, dw, x8, x8.turned, dy8, dy8.turned, rows, MATMUL_ADD, NULL);
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
