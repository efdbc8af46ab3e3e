/* tensor.h - a typed view of memory with a shape. Row-major and contiguous, up to four dimensions.
 *
 * A Tensor owns nothing: its memory belongs to an Arena. The element type is a property of the value, not of the build.
 * EXPECTn states an operation's contract; a breach is a bug and ends the job.
 */
#ifndef TRAIN_GPT_CORE_TENSOR_H
#define TRAIN_GPT_CORE_TENSOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { F32, BF16, F16, I32, F64, I64, E4M3, E5M2 } DType; /* the last two: core/fp8.h */

enum { TENSOR_DIMS = 4 };

typedef struct {
    void   *data;             /* borrowed; NULL in a dry run */
    DType   type;
    int     dims;
    int64_t dim[TENSOR_DIMS]; /* unused ones are 1 */
    int     is_fresh;         /* the gradient holds no values yet: a product sets it instead of adding to it */
} Tensor;

size_t      dtype_bytes(DType type);
const char *dtype_name(DType type); /* "fp32", "bf16", "fp16", "int32", "fp64", "int64", "e4m3", "e5m2" */

static inline Tensor tensor_of(void *data, DType type, int dims, int64_t a, int64_t b, int64_t c, int64_t d) {
    Tensor t;
    t.data = data, t.type = type, t.dims = dims, t.is_fresh = 0;
    t.dim[0] = a, t.dim[1] = b, t.dim[2] = c, t.dim[3] = d;
    return t;
}
static inline Tensor tensor_1d(void *data, DType type, int64_t a) { return tensor_of(data, type, 1, a, 1, 1, 1); }
static inline Tensor tensor_2d(void *data, DType type, int64_t a, int64_t b) { return tensor_of(data, type, 2, a, b, 1, 1); }
static inline Tensor tensor_3d(void *data, DType type, int64_t a, int64_t b, int64_t c) {
    return tensor_of(data, type, 3, a, b, c, 1);
}

/* Returns the tensor that stands for "not given", where a contract allows that. */
static inline Tensor tensor_none(void) { return tensor_of(NULL, F32, 0, 0, 0, 0, 0); }
static inline int    tensor_is_none(Tensor t) { return t.dims == 0; }

static inline int64_t tensor_elems(Tensor t) { return t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3]; }
static inline size_t  tensor_bytes(Tensor t) { return (size_t)tensor_elems(t) * dtype_bytes(t.type); }

/* Returns rows [first, first + rows) of the leading dimension. */
Tensor tensor_rows(Tensor t, int64_t first, int64_t rows);
/* Returns elements [first, first + elems) as a flat tensor. */
Tensor tensor_slice(Tensor t, int64_t first, int64_t elems);

/* --- the 16-bit types, on the host -------------------------------------------------------------------------------- */

static inline float bf16_to_f32(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float    f;
    memcpy(&f, &u, 4);
    return f;
}
/* Rounds to nearest, ties to even; NaN stays NaN. */
static inline uint16_t bf16_from_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float    f16_to_f32(uint16_t h);
uint16_t f16_from_f32(float f); /* rounds to nearest, ties to even; infinity above 65504 */

/* Read and write one element of an F32, BF16 or F16 tensor in memory that the host can access. Slow: for references and
 * tests. */
float tensor_get(Tensor t, int64_t i);
void  tensor_set(Tensor t, int64_t i, float value);

/* --- contracts ---------------------------------------------------------------------------------------------------- */

void tensor_expect(Tensor t, const char *name, DType type, int dims, int64_t a, int64_t b, int64_t c, const char *file, int line);
#define EXPECT1(t, type, a)       tensor_expect(t, #t, type, 1, a, 1, 1, __FILE__, __LINE__)
#define EXPECT2(t, type, a, b)    tensor_expect(t, #t, type, 2, a, b, 1, __FILE__, __LINE__)
#define EXPECT3(t, type, a, b, c) tensor_expect(t, #t, type, 3, a, b, c, __FILE__, __LINE__)

#ifdef __cplusplus
}
#endif
#endif
