/* fp8.c - see fp8.h. */
#include "core/fp8.h"

#include <math.h>

static int fraction_bits(DType type) { return type == E4M3 ? 3 : 2; }

float fp8_to_f32(uint8_t code, DType type) {
    int bits = fraction_bits(type), exponent = (code & 0x7f) >> bits, fraction = code & ((1 << bits) - 1);
    if (type == E4M3 && (code & 0x7f) == 0x7f) return NAN;
    if (type == E5M2 && exponent == 31) return fraction ? NAN : code & 0x80 ? -INFINITY : INFINITY;
    int   is_normal = exponent > 0;
    float size = ldexpf((float)(fraction + (is_normal << bits)), (is_normal ? exponent - 1 : 0) + fp8_bottom(type) - bits);
    return code & 0x80 ? -size : size;
}

uint8_t fp8_from_f32(float x, DType type) {
    int     bits = fraction_bits(type);
    uint8_t sign = signbit(x) ? 0x80 : 0;
    float   size = fabsf(x), largest = fp8_largest(type);
    if (!isfinite(x)) return sign | 0x7f;
    if (size > largest) size = largest;
    int exponent = fp8_bottom(type); /* exponent of subnormals, too */
    if (size >= fp8_power(exponent)) exponent = ilogbf(size);
    int steps = (int)rintf(ldexpf(size, bits - exponent)); /* multiples of the last place; a carry goes into the
                                                            * exponent */
    return (uint8_t)(sign | (steps + ((exponent - fp8_bottom(type)) << bits)));
}
