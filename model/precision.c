/* precision.c - see precision.h. */
#include "model/precision.h"

#include <stdlib.h>
#include <string.h>

#include "core/tensor.h"
#include "core/error.h"

Numerics precision_resolve(Precision asked, int native_bf16) {
    static const Numerics all[] = {[PRECISION_FP32] = {F32, MATH_STRICT, "fp32"},
                                   [PRECISION_TF32] = {F32, MATH_TF32, "tf32"},
                                   [PRECISION_BF16] = {BF16, MATH_STRICT, "bf16"},
                                   [PRECISION_FP16] = {F16, MATH_STRICT, "fp16"},
                                   [PRECISION_FP8] = {BF16, MATH_STRICT, "fp8"}};
    if (asked == PRECISION_AUTO) asked = native_bf16 ? PRECISION_BF16 : PRECISION_FP32;
    return all[asked];
}

/* 2^16 is about the largest number of fp16; overflows soon halve a scale that is too large. 2^24 is more than is ever
 * useful, and keeps norms of scaled gradients finite in f32. */
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

/* --- fp8 ---------------------------------------------------------------------------------------------------------- */

Fp8History fp8_history_create(int64_t n_layer) {
    Fp8History h = {.cells = n_layer * FP8_BLOCK_CELLS};
    h.exponent = xmalloc((size_t)(FP8_STEPS * h.cells), "the scales of tensors");
    return h;
}

void fp8_history_destroy(Fp8History *h) {
    free(h->exponent);
    *h = (Fp8History){0};
}

void fp8_history_add(Fp8History *h, const int64_t *amax) {
    memmove(h->exponent + h->cells, h->exponent, (size_t)((FP8_STEPS - 1) * h->cells));
    for (int64_t c = 0; c < h->cells; c++) {
        int   says_nothing = amax[c] <= 0 || amax[c] >= 0x7f800000;
        DType type = c % FP8_TENSORS == FP8_DY ? E5M2 : E4M3;
        h->exponent[c] = (int8_t)(says_nothing ? FP8_SILENT : fp8_exponent((uint32_t)amax[c], type));
    }
    if (h->steps < FP8_STEPS) h->steps++;
}

int fp8_history_exponent(const Fp8History *h, int64_t cell) {
    int least = FP8_SILENT;
    for (int k = 0; k < h->steps; k++)
        if (h->exponent[k * h->cells + cell] < least) least = h->exponent[k * h->cells + cell];
    return least == FP8_SILENT ? 0 : least;
}

cJSON *fp8_history_to_json(const Fp8History *h) {
    cJSON *list = cJSON_CreateArray();
    char  *digits = xmalloc((size_t)(2 * h->cells + 1), "the history of fp8");
    for (int k = 0; k < h->steps; k++) {
        for (int64_t c = 0; c < h->cells; c++) {
            unsigned value = (unsigned)(h->exponent[k * h->cells + c] + 128);
            digits[2 * c] = "0123456789abcdef"[value / 16], digits[2 * c + 1] = "0123456789abcdef"[value % 16];
        }
        digits[2 * h->cells] = 0;
        cJSON_AddItemToArray(list, cJSON_CreateString(digits));
    }
    free(digits);
    return list;
}

static int digit_of(char c) { return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1; }

int fp8_history_from_json(Fp8History *h, const cJSON *json) {
    h->steps = 0;
    if (!cJSON_IsArray(json) || cJSON_GetArraySize(json) > FP8_STEPS) return 0;
    int steps = 0;
    for (const cJSON *step = json->child; step; step = step->next, steps++) {
        if (!cJSON_IsString(step) || (int64_t)strlen(step->valuestring) != 2 * h->cells) return 0;
        for (int64_t c = 0; c < h->cells; c++) {
            int high = digit_of(step->valuestring[2 * c]), low = digit_of(step->valuestring[2 * c + 1]);
            int value = 16 * high + low - 128;
            if (high < 0 || low < 0 || ((value < FP8_LEAST || value > FP8_MOST) && value != FP8_SILENT)) return 0;
            h->exponent[steps * h->cells + c] = (int8_t)value;
        }
    }
    h->steps = steps;
    return 1;
}

Fp8Scales fp8_scales_create(int64_t n_layer, Arena *a) {
    return (Fp8Scales){arena_tensor(a, F32, 1, FP8_SCALES * n_layer * FP8_BLOCK_CELLS, 1, 1), 1};
}

Fp8 fp8_of_block(const Fp8Scales *f, Tensor amax, Tensor counts, int64_t l) {
    if (tensor_is_none(f->scale)) return (Fp8){tensor_none(), tensor_none(), tensor_none(), 0};
    int64_t first = l * FP8_BLOCK_CELLS, cells = FP8_BLOCK_CELLS;
    return (Fp8){tensor_slice(f->scale, FP8_SCALES * first, FP8_SCALES * cells), tensor_slice(amax, first, cells),
                 tensor_slice(counts, 2 * first, 2 * cells), f->uses_own};
}

void fp8_scales_set(Fp8Scales *f, Stream *s, const Fp8History *h) {
    if (tensor_is_none(f->scale)) return;
    f->uses_own = h->steps == 0;
    float *values = xcalloc(1, tensor_bytes(f->scale), "the scales of tensors");
    for (int64_t c = 0; c < h->cells; c++) {
        int exponent = fp8_history_exponent(h, c);
        values[FP8_SCALES * c + FP8_SCALE] = fp8_power(exponent);
        values[FP8_SCALES * c + FP8_INVERSE] = fp8_power(-exponent);
    }
    device_from_host(s, f->scale, values);
    free(values);
}
