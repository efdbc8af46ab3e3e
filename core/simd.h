/* simd.h - one source, several instruction sets, chosen when the program runs.
 *
 * Two ways to write a kernel:
 *   plain loop   compilers vectorise it. An always-inline body that SIMD_KERNEL compiles for AVX-512, AVX2+FMA and the
 *                baseline
 *   16 floats    GCC vector extensions, with the operations at the end of this file, in a file of layers/ that has
 *                #if SIMD_HOST. The Makefile compiles such a file X.c as X.o for the baseline, and its kernels again as
 *                X.avx2.o and X.avx512.o:
 *
 *     void SIMD(scale)(float *x, int64_t n) { ... f32x16 ... }               a kernel; its name is not used elsewhere
 *     SIMD_DISPATCH(void, scale, (float *x, int64_t n), (x, n))
 *     #if SIMD_HOST                                                          the rest is only in X.o
 *     ... scale(x, n) ...
 *     #endif
 *
 * Either way name() calls the version for this processor; TRAIN_GPT_ISA=avx512, avx2 or sse2 caps the choice.
 *
 * Vectors need a file per instruction set. One body inlined into functions of several targets is slow: before it
 * inlines, GCC breaks vector operations down to the instructions of the *body's* own target (measured on GCC 12: 10
 * times slower than clang, the same for every target; 20 November 2026).
 */
#ifndef TRAIN_GPT_CORE_SIMD_H
#define TRAIN_GPT_CORE_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef enum { ISA_BASE, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16 } Isa; /* instruction sets; each includes the ones before
                                                                       * it in this list */

Isa         simd_isa(void);      /* returns the best instruction set of this processor by cpuid, limited by
                                  * TRAIN_GPT_ISA (exit 64 if that is not one of simd_name's names); never changes */
const char *simd_name(void);     /* returns the name of the instruction set of simd_isa(): "avx512bf16", "avx512",
                                  * "avx2" or "sse2" */
int         simd_has_bf16(void); /* returns whether the processor multiplies bf16, by AVX512-BF16 or AMX-BF16 */
int         simd_has_quick_bf16(void); /* returns whether the processor multiplies bf16 faster than fp32: with AMX-BF16,
                                        * or with AVX512-BF16 on processors not by Intel */

#define SIMD_INLINE static inline __attribute__((always_inline))

/* Bytes of a vector register in the instruction set that this file is compiled for. The Makefile defines SIMD_BYTES as
 * 64 for AVX-512 or 32 for AVX2. SIMD(name) is the name of a kernel for that set. */
#ifndef SIMD_BYTES
#define SIMD_BYTES 16
#endif
#if SIMD_BYTES == 64
#define SIMD(name) name##_avx512
#define SIMD_HOST  0
#elif SIMD_BYTES == 32
#define SIMD(name) name##_avx2
#define SIMD_HOST  0
#else
#define SIMD(name) name##_base
#define SIMD_HOST  1
#endif

/* Defines name(), which calls name_avx512, name_avx2 or name_base, the best for this processor. Defines nothing in the
 * compilations that contain only kernels. */
#if !SIMD_HOST
#define SIMD_DISPATCH(result, name, params, args)
#elif defined(__x86_64__)
#define SIMD_DISPATCH(result, name, params, args)         \
    result name##_avx512 params;                          \
    result name##_avx2 params;                            \
    static inline result name params {                    \
        Isa isa = simd_isa();                             \
        if (isa >= ISA_AVX512) return name##_avx512 args; \
        if (isa == ISA_AVX2) return name##_avx2 args;     \
        return name##_base args;                          \
    }
#define TARGET_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi2")))
#define TARGET_AVX2   __attribute__((target("avx2,fma,f16c,bmi2")))
/* Compiles a kernel's body for each instruction set. Example: SIMD_KERNEL(void, scale, (float *x, int64_t n), (x, n))
 * needs SIMD_INLINE void scale_body(float *x, int64_t n) {...} and defines scale(). */
#define SIMD_KERNEL(result, name, params, args)                                   \
    TARGET_AVX512 static result name##_avx512 params { return name##_body args; } \
    TARGET_AVX2 static result name##_avx2 params { return name##_body args; }     \
    static result name##_base params { return name##_body args; }                 \
    SIMD_DISPATCH(result, name, params, args)
#else
#define SIMD_DISPATCH(result, name, params, args) \
    static inline result name params { return name##_base args; }
#define SIMD_KERNEL(result, name, params, args) \
    static inline result name params { return name##_body args; }
#endif

/* --- 16 floats ------------------------------------------------------------------------------------------------------
 *
 * Where a vector is longer than a register GCC 12 does + - * / & | << register by register, but compares and converts
 * lane by lane. Such operations are therefore written on registers: SIMD_BYTES long, SIMD_REGISTERS of
 * them in a vector.
 */
enum { LANES = 16 };
typedef float    f32x16 __attribute__((vector_size(64)));
typedef int32_t  i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
enum { SIMD_REGISTERS = sizeof(f32x16) / SIMD_BYTES };
typedef float    f32reg __attribute__((vector_size(SIMD_BYTES)));
typedef int32_t  i32reg __attribute__((vector_size(SIMD_BYTES)));
typedef uint32_t u32reg __attribute__((vector_size(SIMD_BYTES)));
typedef union { f32x16 all; f32reg each[SIMD_REGISTERS]; } f32regs;
typedef union { u32x16 all; u32reg each[SIMD_REGISTERS]; } u32regs;

SIMD_INLINE f32x16 f32x16_load(const float *p) {
    f32x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}
SIMD_INLINE void   f32x16_store(float *p, f32x16 v) { memcpy(p, &v, sizeof v); }
SIMD_INLINE f32x16 f32x16_all(float x) { return x - (f32x16){0}; } /* sets all lanes to x: x - 0 is x and costs nothing;
                                                                    * 0 + x would need an addition, because of -0 */

/* Return the larger and the smaller of a and b, lane by lane. The result is b if either is NaN or both are zeros. */
#if SIMD_BYTES == 64
#define REG_CHOICE(max, a, above, b) (f32reg)_mm512_##max##_ps((__m512)a, (__m512)b)
#elif SIMD_BYTES == 32
#define REG_CHOICE(max, a, above, b) (f32reg)_mm256_##max##_ps((__m256)a, (__m256)b)
#else
#define REG_CHOICE(max, a, above, b) (f32reg)(((i32reg)a & (a above b)) | ((i32reg)b & ~(a above b)))
#endif
SIMD_INLINE f32reg reg_max(f32reg a, f32reg b) { return REG_CHOICE(max, a, >, b); }
SIMD_INLINE f32reg reg_min(f32reg a, f32reg b) { return REG_CHOICE(min, a, <, b); }
SIMD_INLINE f32x16 f32x16_max(f32x16 a, f32x16 b) {
    f32regs x = {a}, y = {b};
    for (int k = 0; k < SIMD_REGISTERS; k++) x.each[k] = reg_max(x.each[k], y.each[k]);
    return x.all;
}
/* Return the sum and the maximum over the lanes of v, computed in a fixed order. */
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
SIMD_INLINE f32x16 f32x16_sqrt(f32x16 v) {
    float x[LANES];
    memcpy(x, &v, sizeof x);
    for (int k = 0; k < LANES; k++) x[k] = sqrtf(x[k]);
    memcpy(&v, x, sizeof v);
    return v;
}

/* Convert between bf16 in memory and f32 in registers. They round to nearest even; NaN stays NaN. */
SIMD_INLINE f32x16 f32x16_load_bf16(const uint16_t *p) {
#if SIMD_BYTES == 64
    return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif SIMD_BYTES == 32
    __m256i half[2];
    for (int k = 0; k < 2; k++)
        half[k] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8 * k))), 16);
    f32x16 v;
    memcpy(&v, half, sizeof v);
    return v;
#else
    uint32_t u[LANES];
    for (int k = 0; k < LANES; k++) u[k] = (uint32_t)p[k] << 16;
    f32x16 v;
    memcpy(&v, u, sizeof v);
    return v;
#endif
}
SIMD_INLINE u32reg reg_round_bf16(u32reg u) { /* rounds f32 lanes to bf16 in their high halves; the low halves of the
                                               * result are undefined */
#if SIMD_BYTES == 64
    __m512i   x = (__m512i)u, up = _mm512_add_epi32(x, _mm512_set1_epi32(0x7fff));
    __mmask16 is_odd = _mm512_test_epi32_mask(x, _mm512_set1_epi32(0x10000));
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    up = _mm512_mask_add_epi32(up, is_odd, up, _mm512_set1_epi32(1));
    return (u32reg)_mm512_mask_or_epi32(up, is_nan, x, _mm512_set1_epi32(0x400000));
#else
    u32reg nan = (u32reg)((i32reg)(u & 0x7fffffffu) > 0x7f800000);
    return (u + ((0x7fffu + ((u >> 16) & 1u)) & ~nan)) | (nan & 0x400000u);
#endif
}
SIMD_INLINE u32x16 round_bf16(f32x16 v) {
    u32regs u = {(u32x16)v};
    for (int k = 0; k < SIMD_REGISTERS; k++) u.each[k] = reg_round_bf16(u.each[k]);
    return u.all;
}
SIMD_INLINE void f32x16_store_bf16(uint16_t *p, f32x16 v) {
    u32x16 h = round_bf16(v) >> 16;
#if SIMD_BYTES == 64
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)h));
#elif SIMD_BYTES == 32
    __m256i u[2];
    memcpy(u, &h, sizeof h);
    __m256i mixed = _mm256_packus_epi32(u[0], u[1]); /* restores the order of elements, because _mm256_packus_epi32
                                                      * packs within 128-bit halves */
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(mixed, 0xd8));
#else
    for (int k = 0; k < LANES; k++) p[k] = (uint16_t)h[k];
#endif
}

/* Load and store 32 bf16 values without moving lanes. v[0] has the values in the low halves of sixteen 32-bit words
 * (elements 0, 2, 4, ...), v[1] those in the high halves (elements 1, 3, 5, ...). */
SIMD_INLINE void f32x16_load_bf16_halves(f32x16 v[2], const uint16_t *p) {
    u32x16 words;
    memcpy(&words, p, sizeof words);
    v[0] = (f32x16)(words << 16), v[1] = (f32x16)(words & 0xffff0000u);
}
SIMD_INLINE void f32x16_store_bf16_halves(uint16_t *p, const f32x16 v[2]) {
    u32x16 words = (round_bf16(v[0]) >> 16) | (round_bf16(v[1]) & 0xffff0000u);
    memcpy(p, &words, sizeof words);
}

/* Returns exp(x), relative error under 2 ulp for x in [-87.3, 88.3]. Below that it returns 0, above it exp(88.3); NaN
 * stays NaN. Computed as 2^n e^r, where x = n ln2 + r with |r| <= ln2/2. The polynomial for e^r is Taylor's up to
 * r^7/7! (remainder below 2^-27). */
SIMD_INLINE f32reg reg_exp(f32reg x) {
    f32reg zero = {0}, low = zero - 87.336544f, high = zero + 88.3762589f;
    f32reg clamped = reg_min(high, reg_max(low, x));
    f32reg magic = zero + 12582912.0f; /* 1.5 * 2^23: adding it rounds a number to an integer, which is then in the low
                                        * bits */
    f32reg shifted = clamped * 1.44269504f + magic;
    f32reg n = shifted - magic;
    f32reg r = clamped - n * 0.693359375f; /* subtracts n ln2, with ln2 as a sum of two constants, the first exact in 10
                                            * bits */
    r = r - n * -2.12194440e-4f;
    f32reg p = zero + 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    /* makes 2^n by writing n into the exponent of a float: the low bits of `shifted` hold n, and its other bits are
     * shifted out */
    i32reg power = ((i32reg)shifted << 23) + (127 << 23);
    i32reg below = x < low;
    return (f32reg)((i32reg)(p * (f32reg)power) & ~below);
}
SIMD_INLINE f32x16 f32x16_exp(f32x16 x) {
    f32regs v = {x};
    for (int k = 0; k < SIMD_REGISTERS; k++) v.each[k] = reg_exp(v.each[k]);
    return v.all;
}

#endif
