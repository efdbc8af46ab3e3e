/* precision.c - see precision.h. */
#include "model/precision.h"

Numerics precision_resolve(Precision asked, int native_bf16) {
    static const Numerics fp32 = {F32, MATH_STRICT, "fp32"}, tf32 = {F32, MATH_TF32, "tf32"}, bf16 = {BF16, MATH_STRICT, "bf16"},
                          fp16 = {F16, MATH_STRICT, "fp16"}, fp8 = {BF16, MATH_STRICT, "fp8"};
    switch (asked) {
        case PRECISION_FP32: return fp32;
        case PRECISION_TF32: return tf32;
        case PRECISION_BF16: return bf16;
        case PRECISION_FP16: return fp16;
        case PRECISION_FP8: return fp8;
        case PRECISION_AUTO: break;
    }
    return native_bf16 ? bf16 : fp32;
}

/* 2^16 leaves a loss gradient of one in the upper half of fp16's range; 2^24 is past any use, and keeps scaled norms
 * finite in f32. */
static const double FIRST_SCALE = 65536.0, LARGEST_SCALE = 16777216.0, SMALLEST_SCALE = 1.0;

LossScale loss_scale_start(DType act) { return (LossScale){act == F16 ? FIRST_SCALE : 1.0, 0}; }

void loss_scale_keep(LossScale *s, DType act) {
    if (act != F16 || ++s->steps < LOSS_SCALE_GROWTH) return;
    if (s->scale < LARGEST_SCALE) s->scale *= 2.0;
    s->steps = 0;
}

int loss_scale_lower(LossScale *s) {
    if (s->scale <= SMALLEST_SCALE) return 0;
    s->scale *= 0.5;
    s->steps = 0;
    return 1;
}
