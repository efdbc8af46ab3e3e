/* simd.h - one source, several instruction sets, chosen when the program runs.
 *
 * A kernel is written once as an always-inline body over 16-float vectors (GCC vector extensions: the compiler splits them where
 * registers are shorter). SIMD_KERNEL compiles that body for AVX-512, AVX2+FMA and the baseline, and defines name() which calls the one
 * this processor has. TRAIN_GPT_ISA=avx2 or sse2 caps the choice.
 */
#ifndef TRAIN_GPT_CORE_SIMD_H
#define TRAIN_GPT_CORE_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef enum { ISA_BASE, ISA_AVX2, ISA_AVX512 } Isa;

Isa         simd_isa(void);      /* what kernels use: cpuid, capped by TRAIN_GPT_ISA; the same for the life of the process */
const char *simd_name(void);     /* "avx512bf16", "avx512", "avx2", "sse2" */
int         simd_has_bf16(void); /* AVX512-BF16 or AMX-BF16 by cpuid, and not capped */

#define SIMD_INLINE static inline __attribute__((always_inline))

#if defined(__x86_64__)
#define TARGET_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi2")))
#define TARGET_AVX2   __attribute__((target("avx2,fma,f16c,bmi2")))
/* SIMD_KERNEL(void, scale, (float *x, int64_t n), (x, n)) needs: SIMD_INLINE void scale_body(float *x, int64_t n) {...} */
#define SIMD_KERNEL(result, name, params, args)                                  \
    TARGET_AVX512 static result name##_avx512 params { return name##_body args; } \
    TARGET_AVX2 static result name##_avx2 params { return name##_body args; }     \
    static result name##_base params { return name##_body args; }                 \
    static inline result name params {                                            \
        Isa isa = simd_isa();                                                     \
        if (isa == ISA_AVX512) return name##_avx512 args;                         \
        if (isa == ISA_AVX2) return name##_avx2 args;                             \
        return name##_base args;                                                  \
    }
#else
#define SIMD_KERNEL(result, name, params, args) \
    static inline result name params { return name##_body args; }
#endif

/* --- 16 floats --------------------------------------------------------------------------------------------------------------- */

enum { LANES = 16 };
typedef float    f32x16 __attribute__((vector_size(64)));
typedef int32_t  i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

SIMD_INLINE f32x16 f32x16_load(const float *p) {
    f32x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}
SIMD_INLINE void   f32x16_store(float *p, f32x16 v) { memcpy(p, &v, sizeof v); }
SIMD_INLINE f32x16 f32x16_all(float x) { return (f32x16){0} + x; }
SIMD_INLINE f32x16 f32x16_max(f32x16 a, f32x16 b) {
    i32x16 above = a > b;
    return (f32x16)(((i32x16)a & above) | ((i32x16)b & ~above));
}
/* The sum and the maximum over lanes, in a fixed order. */
SIMD_INLINE float f32x16_sum(f32x16 v) {
    float x[LANES];
    memcpy(x, &v, sizeof x);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}
SIMD_INLINE float f32x16_top(f32x16 v) {
    float x[LANES];
    memcpy(x, &v, sizeof x);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}

/* bf16 in memory, f32 in registers; rounding to nearest even. */
SIMD_INLINE f32x16 f32x16_load_bf16(const uint16_t *p) {
    u16x16 h;
    memcpy(&h, p, sizeof h);
    return (f32x16)(__builtin_convertvector(h, u32x16) << 16);
}
SIMD_INLINE void f32x16_store_bf16(uint16_t *p, f32x16 v) {
    u32x16 u = (u32x16)v;
    u32x16 rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    u32x16 nan = (u32x16)((u & 0x7fffffffu) > 0x7f800000u);
    u32x16 quiet = (u >> 16) | 0x40u;
    u16x16 h = __builtin_convertvector((rounded & ~nan) | (quiet & nan), u16x16);
    memcpy(p, &h, sizeof h);
}

/* exp(x), relative error under 2 ulp for x in [-87, 88]; below it goes to 0, NaN stays NaN. x = n ln2 + r, |r| <= ln2/2; the polynomial
 * is Taylor's up to r^7/7! (remainder below 2^-27). */
SIMD_INLINE f32x16 f32x16_exp(f32x16 x) {
    f32x16 low = f32x16_all(-87.336544f), high = f32x16_all(88.3762589f);
    i32x16 below = x < low, above = x > high;
    f32x16 clamped = (f32x16)(((i32x16)x & ~below & ~above) | ((i32x16)low & below) | ((i32x16)high & above));
    f32x16 magic = f32x16_all(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    f32x16 shifted = clamped * 1.44269504f + magic;
    f32x16 n = shifted - magic;
    f32x16 r = clamped - n * 0.693359375f;  /* ln2 in two parts, the first exact in 10 bits */
    r = r - n * -2.12194440e-4f;
    f32x16 p = f32x16_all(1.98412698e-4f);
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    i32x16 power = ((i32x16)shifted << 23) + (127 << 23); /* the low bits of shifted hold n; the constant's bits shift out */
    f32x16 y = p * (f32x16)power;
    y = (f32x16)((i32x16)y & ~below);
    i32x16 is_nan = x != x;
    return (f32x16)(((i32x16)y & ~is_nan) | ((i32x16)x & is_nan));
}

#endif
