/* simd.h - one source, several instruction sets, chosen when the program runs.
 *
 * Two ways to write a kernel:
 *   plain loop   compilers vectorise it. An always-inline body that SIMD_KERNEL compiles for AVX-512, AVX2+FMA and the
 *                baseline
 *   16 floats    GCC vector extensions, operations in simd_ops.h. In a file that core/simd_each.h compiles once per
 *                instruction set
 * Either way name() calls the version for this processor; TRAIN_GPT_ISA=avx512, avx2 or sse2 caps the choice.
 */
#ifndef TRAIN_GPT_CORE_SIMD_H
#define TRAIN_GPT_CORE_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef enum { ISA_BASE, ISA_AVX2, ISA_AVX512, ISA_AVX512_BF16 } Isa; /* each set includes the sets before it */

Isa         simd_isa(void);      /* instruction set of this processor by cpuid, at most TRAIN_GPT_ISA (exit 64 if that
                                  * is not a name below); constant */
const char *simd_name(void);     /* name of that instruction set: "avx512bf16", "avx512", "avx2", "sse2" */
int         simd_has_bf16(void); /* the processor multiplies bf16: AVX512-BF16 or AMX-BF16 */
int         simd_has_quick_bf16(void); /* the processor multiplies bf16 faster than fp32: AMX-BF16, or AVX512-BF16 on
                                        * processors not by Intel */

#define SIMD_INLINE static inline __attribute__((always_inline))

/* Defines name(), which calls name_avx512, name_avx2 or name_base. */
#if defined(__x86_64__)
#define SIMD_DISPATCH(result, name, params, args)         \
    static inline result name params {                    \
        Isa isa = simd_isa();                             \
        if (isa >= ISA_AVX512) return name##_avx512 args; \
        if (isa == ISA_AVX2) return name##_avx2 args;     \
        return name##_base args;                          \
    }
#define TARGET_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c,bmi2")))
#define TARGET_AVX2   __attribute__((target("avx2,fma,f16c,bmi2")))
/* SIMD_KERNEL(void, scale, (float *x, int64_t n), (x, n)) compiles SIMD_INLINE void scale_body(float *x, int64_t n)
 * {...} for each instruction set. */
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

/* --- 16 floats ---------------------------------------------------------------------------------------------------- */

enum { LANES = 16 };
typedef float    f32x16 __attribute__((vector_size(64)));
typedef int32_t  i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

/* Names of simd_ops.h in each pass of simd_each.h: SIMD(name) is name_avx512, name_avx2 or name_base. */
#define f32x16_load SIMD(f32x16_load)
#define f32x16_store SIMD(f32x16_store)
#define f32x16_all SIMD(f32x16_all)
#define f32x16_max SIMD(f32x16_max)
#define f32x16_sum SIMD(f32x16_sum)
#define f32x16_top SIMD(f32x16_top)
#define f32x16_sqrt SIMD(f32x16_sqrt)
#define f32x16_load_bf16 SIMD(f32x16_load_bf16)
#define f32x16_store_bf16 SIMD(f32x16_store_bf16)
#define f32x16_load_bf16_halves SIMD(f32x16_load_bf16_halves)
#define f32x16_store_bf16_halves SIMD(f32x16_store_bf16_halves)
#define f32x16_exp SIMD(f32x16_exp)

#endif
