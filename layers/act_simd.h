/* act_simd.h - sixteen values of an activation tensor in f32 registers, whatever its type in memory. CPU only.
 *
 * `type` is a constant in every kernel body (see ACT_KERNEL), so the compiler makes each choice by type in this file.
 * The _part forms handle the last n < 16 values of a row and access no byte beyond them.
 */
#ifndef TRAIN_GPT_LAYERS_ACT_SIMD_H
#define TRAIN_GPT_LAYERS_ACT_SIMD_H

#include "core/simd.h"
#include "core/tensor.h"

#define EXPECT_ACT(t)                                                                                                  \
    CHECK((t).type == F32 || (t).type == BF16, "the CPU computes in fp32 and bf16, not in %s", dtype_name((t).type))

/* Elementwise ops process flat memory in blocks of ACT_BLOCK elements, one in each iteration of a thread. ACT_BLOCK is
 * a multiple of every vector length. */
enum { ACT_BLOCK = 1 << 14 };
static inline int64_t act_block_elems(int64_t first, int64_t elems) {
    return elems - first < ACT_BLOCK ? elems - first : ACT_BLOCK;
}

/* Thirty-two values that are processed element by element. In memory order, half[0] and half[1] hold the first and the
 * last sixteen for fp32; for bf16 they hold the even and the odd ones. */
enum { PAIR = 2 * LANES };
typedef struct { f32x16 half[2]; } ActPair;

/* ACT_KERNEL(scale, (DType type, ...), ...) makes the kernel SIMD(scale), and the function scale() that calls it. The
 * kernel calls an inline function scale_of(type, ...) with a constant type, so the compiler makes a copy of scale_of
 * for each type. The file that uses the macro defines scale_of before. The last arguments name the parameters after
 * type. */
#define ACT_KERNEL(name, params, ...)                   \
    void SIMD(name) params {                            \
        if (type == BF16) name##_of(BF16, __VA_ARGS__); \
        else              name##_of(F32, __VA_ARGS__);  \
    }                                                   \
    SIMD_DISPATCH(void, name, params, (type, __VA_ARGS__))

SIMD_INLINE f32x16 act16_load(const void *p, int64_t i, DType type) {
    return type == BF16 ? f32x16_load_bf16((const uint16_t *)p + i) : f32x16_load((const float *)p + i);
}
SIMD_INLINE void act16_store(void *p, int64_t i, DType type, f32x16 v) {
    if (type == BF16) f32x16_store_bf16((uint16_t *)p + i, v);
    else              f32x16_store((float *)p + i, v);
}

/* Returns element i of p, which has the given type, as f32. */
SIMD_INLINE float act_get(const void *p, int64_t i, DType type) {
    return type == BF16 ? bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

/* Loads n < 16 values of p as f32, from element i on; lanes n..15 become `rest`. */
SIMD_INLINE f32x16 act16_load_part(const void *p, int64_t i, int64_t n, DType type, float rest) {
    float x[LANES];
    for (int64_t k = 0; k < LANES; k++) x[k] = k < n ? act_get(p, i + k, type) : rest;
    return f32x16_load(x);
}
SIMD_INLINE void act16_store_part(void *p, int64_t i, int64_t n, DType type, f32x16 v) {
    float x[LANES];
    f32x16_store(x, v);
    for (int64_t k = 0; k < n; k++)
        if (type == BF16) ((uint16_t *)p)[i + k] = bf16_from_f32(x[k]);
        else              ((float *)p)[i + k] = x[k];
}

/* Load and store n <= 16 values of a row, from element i on; lanes past n load as 0. A caller walks a row of `elems`
 * values with n = 16, ..., 16, elems % 16, as act16_count returns them. */
SIMD_INLINE f32x16 act16_load_n(const void *p, int64_t i, int64_t n, DType type) {
    return n == LANES ? act16_load(p, i, type) : act16_load_part(p, i, n, type, 0.0f);
}
SIMD_INLINE void act16_store_n(void *p, int64_t i, int64_t n, DType type, f32x16 v) {
    if (n == LANES) act16_store(p, i, type, v);
    else            act16_store_part(p, i, n, type, v);
}
SIMD_INLINE int64_t act16_count(int64_t i, int64_t elems) { return elems - i < LANES ? elems - i : LANES; }

/* Load and store n values of a row as a pair of vectors. A caller walks a row of `elems` values with n = 32, ..., 32,
 * elems % 32, as act32_count returns them. */
SIMD_INLINE ActPair act32_load_n(const void *p, int64_t i, int64_t n, DType type) {
    ActPair v = {{f32x16_all(0.0f), f32x16_all(0.0f)}};
    if (n == PAIR && type == BF16) {
        f32x16_load_bf16_halves(v.half, (const uint16_t *)p + i);
        return v;
    }
    v.half[0] = act16_load_n(p, i, n < LANES ? n : LANES, type);
    if (n > LANES) v.half[1] = act16_load_n(p, i + LANES, n - LANES, type);
    return v;
}
SIMD_INLINE void act32_store_n(void *p, int64_t i, int64_t n, DType type, ActPair v) {
    if (n == PAIR && type == BF16) {
        f32x16_store_bf16_halves((uint16_t *)p + i, v.half);
        return;
    }
    act16_store_n(p, i, n < LANES ? n : LANES, type, v.half[0]);
    if (n > LANES) act16_store_n(p, i + LANES, n - LANES, type, v.half[1]);
}
SIMD_INLINE int64_t act32_count(int64_t i, int64_t elems) { return elems - i < PAIR ? elems - i : PAIR; }
#endif
