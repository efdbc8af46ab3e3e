/* tensor.h - a typed view of memory with a shape, its element types, and the arenas that its memory is from.
 *
 * A Tensor is row-major and contiguous, in up to four dimensions. It owns nothing: its memory belongs to an Arena. The
 * element type is a property of the value, not of the build. EXPECTn states an operation's contract; a breach is a bug
 * and ends the job.
 */
#ifndef TRAIN_GPT_CORE_TENSOR_H
#define TRAIN_GPT_CORE_TENSOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/error.h"
#include "core/exact.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { F32, BF16, F16, I32, F64, I64, E4M3, E5M2 } DType;

enum { TENSOR_DIMS = 4 };

typedef struct {
    void   *data;             /* address of the first element; borrowed. In a dry run, which only counts bytes and
                               * costs, the address is made up */
    DType   type;
    int     dims;
    int64_t dim[TENSOR_DIMS]; /* size of each dimension; 1 for unused ones */
    int     is_fresh;         /* 1: this gradient holds no values yet, so a product sets it instead of adding to it */
} Tensor;

size_t      dtype_bytes(DType type);
const char *dtype_name(DType type); /* returns the name of the type, such as "fp32", "bf16", "fp16", "int32", "fp64",
                                     * "int64", "e4m3", "e5m2" */

static inline Tensor tensor_of(void *data, DType type, int dims, int64_t a, int64_t b, int64_t c, int64_t d) {
    Tensor t;
    t.data = data, t.type = type, t.dims = dims, t.is_fresh = 0;
    t.dim[0] = a, t.dim[1] = b, t.dim[2] = c, t.dim[3] = d;
    return t;
}
static inline Tensor tensor_1d(void *data, DType type, int64_t a) { return tensor_of(data, type, 1, a, 1, 1, 1); }
static inline Tensor tensor_2d(void *data, DType type, int64_t a, int64_t b) {
    return tensor_of(data, type, 2, a, b, 1, 1);
}

/* Returns the tensor that stands for "no such operand", where an operation's contract allows that. */
static inline Tensor tensor_none(void) { return tensor_of(NULL, F32, 0, 0, 0, 0, 0); }
static inline int    tensor_is_none(Tensor t) { return t.dims == 0; }

static inline int64_t tensor_elems(Tensor t) { return t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3]; }
static inline size_t  tensor_bytes(Tensor t) { return (size_t)tensor_elems(t) * dtype_bytes(t.type); }

/* Returns the rows [first, first + rows) of t's leading dimension as a tensor over the same memory. */
Tensor tensor_rows(Tensor t, int64_t first, int64_t rows);
/* Returns the elements [first, first + elems) of t as a flat tensor over the same memory. */
Tensor tensor_slice(Tensor t, int64_t first, int64_t elems);

/* --- the 16-bit types, on the host -------------------------------------------------------------------------------- */

static inline float bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float    f;
    memcpy(&f, &u, 4);
    return f;
}
/* Converts to bf16. Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t bf16_from_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float    f16_to_f32(uint16_t h);
uint16_t f16_from_f32(float f); /* converts to fp16; rounds to nearest, ties to even; numbers from 65520 up become
                                 * infinity */

/* Read and write element i of an F32, BF16 or F16 tensor in memory that the host can access. Slow: for references and
 * tests. */
float tensor_get(Tensor t, int64_t i);
void  tensor_set(Tensor t, int64_t i, float value);

/* --- the 8-bit types ---------------------------------------------------------------------------------------------- */

/* The types E4M3 and E5M2 of 8 bits, and the scale of a tensor that is stored in one: Micikevicius et al., "FP8
 * formats for deep learning", arXiv:2209.05433.
 *
 *   E4M3   sign, 4 bits of exponent (bias 7), 3 of fraction; the largest value is 448 = 1.75 * 2^8, the smallest 2^-9;
 *          no infinities, and NaN where all seven bits are set
 *   E5M2   sign, 5 bits of exponent (bias 15), 2 of fraction, as in IEEE 754; the largest value is 57344 = 1.75 * 2^15,
 *          the smallest 2^-16
 *
 * A tensor t is stored as fp8(s t), rounded to nearest, ties to even. A finite number beyond the type's largest becomes
 * the largest; an infinity becomes NaN, and NaN stays NaN, so that a fault stays visible. s is the largest power of two
 * with s amax <= max/2, where amax is the largest |t| and max the largest value of the type. The factor 1/2 leaves
 * space for a tensor that grows before its scale has followed. */

/* Return exponents of the type: `top` of its largest value, which is 1.75 * 2^top, `bottom` of its smallest normal
 * value. */
HOST_AND_DEVICE static inline int   fp8_top(DType type) { return type == E4M3 ? 8 : 15; }
HOST_AND_DEVICE static inline int   fp8_bottom(DType type) { return type == E4M3 ? -6 : -14; }
HOST_AND_DEVICE static inline float fp8_largest(DType type) { return type == E4M3 ? 448.0f : 57344.0f; }

/* Limits of the scale of an fp8 tensor, as exponents of 2: scales and their inverses stay far from overflow in f32 and
 * bf16. FP8_MARGIN is the log2 of the factor left free above the largest element, for a tensor that grows before its
 * scale has followed. */
enum { FP8_LEAST = -100, FP8_MOST = 100, FP8_MARGIN = 1 };

/* Returns log2 of the scale of an fp8 tensor whose largest |t| has the bits amax_bits as f32. Returns 0 if that value
 * is zero, infinite or NaN, because such a value gives no scale. */
HOST_AND_DEVICE static inline int fp8_exponent(uint32_t amax_bits, DType type) {
    if (amax_bits == 0 || amax_bits >= 0x7f800000u) return 0;
    /* is_over: the largest |t| has a larger fraction than 1.75, the fraction of the fp8 type's largest value */
    int own = (int)(amax_bits >> 23) - 127, is_over = (amax_bits & 0x7fffffu) > 0x600000u;
    int fits = fp8_top(type) - FP8_MARGIN - own - is_over;
    return fits < FP8_LEAST ? FP8_LEAST : fits > FP8_MOST ? FP8_MOST : fits;
}

/* Returns 2^exponent. */
HOST_AND_DEVICE static inline float fp8_power(int exponent) {
    uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float    power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* --- contracts ---------------------------------------------------------------------------------------------------- */

void tensor_expect(Tensor t, const char *name, DType type, int dims, int64_t a, int64_t b, int64_t c, const char *file,
                   int line);
#define EXPECT1(t, type, a)       tensor_expect(t, #t, type, 1, a, 1, 1, __FILE__, __LINE__)
#define EXPECT2(t, type, a, b)    tensor_expect(t, #t, type, 2, a, b, 1, __FILE__, __LINE__)
#define EXPECT3(t, type, a, b, c) tensor_expect(t, #t, type, 3, a, b, c, __FILE__, __LINE__)

/* --- arenas ------------------------------------------------------------------------------------------------------- */

/* An arena is one allocation from which tensors of one kind are carved: masters, moments, activations and so on. The
 * code that carves runs twice. The first time is dry, with no memory behind the arena, and only counts bytes. The
 * second time is real. So `plan` prints the size that the run allocates. Every tensor starts at a multiple of 256
 * bytes. */
enum { ARENA_ALIGN = 256 };

typedef struct {
    const char *name;     /* name of the arena that `plan` and the banner of a run print */
    char       *base;     /* address of the arena's memory; owned; made up if the arena only counts bytes */
    size_t      used_bytes, peak_bytes, capacity_bytes;
    int         is_dry, is_host;
} Arena;

/* Returns an arena that only counts bytes. Its addresses are made up: aligned and never NULL, because NULL means "no
 * such operand". No code reads or writes them. */
Arena arena_dry(const char *name);
Arena arena_create(const char *name, size_t capacity_bytes); /* allocates device memory, zeroed; exit 71 if it does not
                                                              * fit */
Arena arena_create_host(const char *name, size_t capacity_bytes); /* allocates pinned host memory, zeroed; exit 71 if it
                                                                   * does not fit */
void  arena_destroy(Arena *arena);

void  *arena_take(Arena *arena, size_t bytes);          /* takes the next `bytes` of the arena; a full arena ends the
                                                         * job (CHECK) */
Tensor arena_tensor(Arena *arena, DType type, int dims, int64_t a, int64_t b, int64_t c);

/* Uses of an arena as a stack: m = arena_mark(a); ... arena_take() ...; arena_release(a, m) frees what was taken
 * since. */
static inline size_t arena_mark(const Arena *arena) { return arena->used_bytes; }
static inline void   arena_release(Arena *arena, size_t mark) { arena->used_bytes = mark; }

#ifdef __cplusplus
}
#endif
#endif
