/* simd_each.h - compiles a file of kernels once per instruction set.
 *
 *     #define SIMD_FILE "layers/scale_simd.h"     static void SIMD(scale)(float *x, int64_t n) { ... f32x16 ... }
 *     #include "core/simd_each.h"
 *     SIMD_DISPATCH(void, scale, (float *x, int64_t n), (x, n))      scale() calls the version for this processor
 *
 * Every function of such a file is named with SIMD(), which appends the instruction set. One body inlined into
 * functions of several targets is slow: before it inlines, GCC breaks vector operations down to the instructions of
 * the *body's* own target (measured on GCC 12: 10 times slower than clang, the same for every target; 20 November
 * 2026).
 */
#if defined(__x86_64__)
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi2,prefer-vector-width=512")
#endif
#define SIMD_PASS ISA_AVX512
#define SIMD_BYTES 64
#define SIMD(name) name##_avx512
#include "core/simd_ops.h"
#include SIMD_FILE
#undef SIMD
#undef SIMD_BYTES
#undef SIMD_PASS
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi2"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2")
#endif
#define SIMD_PASS ISA_AVX2
#define SIMD_BYTES 32
#define SIMD(name) name##_avx2
#include "core/simd_ops.h"
#include SIMD_FILE
#undef SIMD
#undef SIMD_BYTES
#undef SIMD_PASS
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#define SIMD_PASS ISA_BASE
#define SIMD_BYTES 16
#define SIMD(name) name##_base
#include "core/simd_ops.h"
#include SIMD_FILE
#undef SIMD
#undef SIMD_BYTES
#undef SIMD_PASS
#undef SIMD_FILE
