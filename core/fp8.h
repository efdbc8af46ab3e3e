/* fp8.h - the types E4M3 and E5M2 of 8 bits, and the scale of a tensor that is stored in one: Micikevicius et al., "FP8
 * formats for deep learning", arXiv:2209.05433.
 *
 *   E4M3   sign, 4 bits of exponent (bias 7), 3 of fraction; the largest value is 448 = 1.75 * 2^8, the smallest 2^-9;
 *          no infinities, and NaN where all seven bits are set
 *   E5M2   sign, 5 bits of exponent (bias 15), 2 of fraction, as in IEEE 754; the largest value is 57344 = 1.75 * 2^15,
 *          the smallest 2^-16
 *
 * A tensor t is stored as fp8(s t), rounded to nearest, ties to even. A finite number beyond the type's largest becomes
 * the largest; an infinity becomes NaN, and NaN stays NaN, so that a fault stays visible. s is the largest power of two
 * with s amax <= max/2. The half is spare, for a tensor that grows before its scale has followed.
 */
#ifndef TRAIN_GPT_CORE_FP8_H
#define TRAIN_GPT_CORE_FP8_H

#include "core/exact.h"
#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

float   fp8_to_f32(uint8_t code, DType type);
uint8_t fp8_from_f32(float x, DType type);

/* Exponents of the largest value, which is 1.75 * 2^top, and of the smallest normal value. */
HOST_AND_DEVICE static inline int   fp8_top(DType type) { return type == E4M3 ? 8 : 15; }
HOST_AND_DEVICE static inline int   fp8_bottom(DType type) { return type == E4M3 ? -6 : -14; }
HOST_AND_DEVICE static inline float fp8_largest(DType type) { return type == E4M3 ? 448.0f : 57344.0f; }

/* Limits of a scale, as exponents of 2. Such scales and their inverses are far from the ends of f32 and bf16.
 * FP8_MARGIN is the log2 of the spare factor of 2. */
enum { FP8_LEAST = -100, FP8_MOST = 100, FP8_MARGIN = 1 };

/* Returns log2 s for a tensor whose largest |t| has these bits as f32. Returns 0 if that value is zero, infinite or
 * NaN, because it then gives no scale. */
HOST_AND_DEVICE static inline int fp8_exponent(uint32_t amax_bits, DType type) {
    if (amax_bits == 0 || amax_bits >= 0x7f800000u) return 0;
    /* the fraction is above 1.75 */
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

#ifdef __cplusplus
}
#endif
#endif
