/* simd.c - finds this processor's instruction sets by cpuid (simd.h). */
#include "core/simd.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "core/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* Returns whether the processor has AMX-BF16: bit 22 of edx in CPUID leaf 7, subleaf 0 (Intel SDM). The compiler's own
 * check also demands that the system lets this process use AMX. */
#if defined(__x86_64__)
static int cpu_has_amx_bf16(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
}
#endif

static const char *const NAMES[] = {"sse2", "avx2", "avx512", "avx512bf16"};
enum { ISAS = sizeof NAMES / sizeof *NAMES };

static Isa detect(void) {
    const char *asked = getenv("TRAIN_GPT_ISA");
    Isa         isa = ISA_BASE;
    int         cap = ISA_AVX512_BF16;
    if (asked)
        for (cap = 0; cap < ISAS && strcmp(asked, NAMES[cap]) != 0;) cap++;
    if (cap == ISAS)
        fail(EXIT_CONFIG,
             "TRAIN_GPT_ISA is \"%.40s\", which names no instruction set: set one of sse2, avx2, avx512, avx512bf16, "
             "or unset TRAIN_GPT_ISA to use all that the processor has",
             asked);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) isa = ISA_AVX2;
    if (isa == ISA_AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")) isa = ISA_AVX512;
    if (isa == ISA_AVX512 && (__builtin_cpu_supports("avx512bf16") || cpu_has_amx_bf16())) isa = ISA_AVX512_BF16;
#endif
    return (int)isa < cap ? isa : (Isa)cap;
}

Isa simd_isa(void) {
    static _Atomic int known = -1; /* the instruction set; -1: not determined yet. Threads that determine it at the same
                                    * time all get the same value */
    int isa = atomic_load_explicit(&known, memory_order_relaxed);
    if (isa < 0) atomic_store_explicit(&known, isa = (int)detect(), memory_order_relaxed);
    return (Isa)isa;
}

int simd_has_bf16(void) { return simd_isa() == ISA_AVX512_BF16; }

/* Returns whether bf16 products are faster than fp32. On Intel that needs AMX, which a virtual machine may hide. oneDNN
 * then multiplies bf16 by VDPBF16PS: on a Sapphire Rapids core 82 GFLOP/s, where fp32 reaches 160 (n = 1024, 23
 * November 2026). On AMD's cores VDPBF16PS does twice as many multiplications per second as fp32. */
int simd_has_quick_bf16(void) {
#if defined(__x86_64__)
    static _Atomic int known = -1; /* 1 if bf16 products are faster, -1 if not determined yet; cached, because each
                                    * matrix product calls this function, and in a virtual machine cpuid takes as long
                                    * as a small product */
    int is_quick = atomic_load_explicit(&known, memory_order_relaxed);
    if (is_quick < 0) {
        __builtin_cpu_init();
        is_quick = cpu_has_amx_bf16() || !__builtin_cpu_is("intel");
        atomic_store_explicit(&known, is_quick, memory_order_relaxed);
    }
    return is_quick && simd_has_bf16();
#else
    return 0;
#endif
}

const char *simd_name(void) { return NAMES[simd_isa()]; }
