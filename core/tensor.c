/* tensor.c - see tensor.h. */
#include "core/tensor.h"

#include <stdio.h>

size_t dtype_bytes(DType type) { return type == F32 || type == I32 ? 4 : 2; }

const char *dtype_name(DType type) {
    static const char *const names[] = {"fp32", "bf16", "fp16", "int32"};
    return names[type];
}

static Tensor tensor_advance(Tensor t, int64_t elems) {
    if (t.data) t.data = (char *)t.data + (size_t)elems * dtype_bytes(t.type);
    return t;
}

Tensor tensor_rows(Tensor t, int64_t first, int64_t rows) {
    CHECK(first >= 0 && rows >= 0 && first + rows <= t.dim[0], "rows [%lld, %lld) of %lld", (long long)first,
          (long long)(first + rows), (long long)t.dim[0]);
    int64_t row_elems = t.dim[1] * t.dim[2] * t.dim[3];
    t = tensor_advance(t, first * row_elems);
    t.dim[0] = rows;
    return t;
}

Tensor tensor_slice(Tensor t, int64_t first, int64_t elems) {
    CHECK(first >= 0 && elems >= 0 && first + elems <= tensor_elems(t), "elements [%lld, %lld) of %lld", (long long)first,
          (long long)(first + elems), (long long)tensor_elems(t));
    t = tensor_advance(t, first);
    return tensor_1d(t.data, t.type, elems);
}

float tensor_get(Tensor t, int64_t i) {
    CHECK(t.type == F32 || t.type == BF16, "no host access to %s", dtype_name(t.type));
    return t.type == F32 ? ((const float *)t.data)[i] : bf16_to_f32(((const uint16_t *)t.data)[i]);
}

void tensor_set(Tensor t, int64_t i, float value) {
    CHECK(t.type == F32 || t.type == BF16, "no host access to %s", dtype_name(t.type));
    if (t.type == F32) ((float *)t.data)[i] = value;
    else               ((uint16_t *)t.data)[i] = bf16_from_f32(value);
}

void tensor_expect(Tensor t, const char *name, DType type, int dims, int64_t a, int64_t b, int64_t c, const char *file, int line) {
    if (t.type == type && t.dims == dims && t.dim[0] == a && t.dim[1] == b && t.dim[2] == c && t.dim[3] == 1) return;
    check_failed(name, file, line, "tensor %s is %s [%lld,%lld,%lld] in %d dimensions, expected %s [%lld,%lld,%lld] in %d", name,
                 dtype_name(t.type), (long long)t.dim[0], (long long)t.dim[1], (long long)t.dim[2], t.dims, dtype_name(type),
                 (long long)a, (long long)b, (long long)c, dims);
}
