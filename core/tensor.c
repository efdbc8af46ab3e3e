/* tensor.c - views of tensors, conversions of 16-bit numbers, checks of contracts, and arenas (tensor.h). */
#include "core/tensor.h"

#include "core/device.h"

size_t dtype_bytes(DType type) {
    static const size_t bytes[] =
        {[F32] = 4, [BF16] = 2, [F16] = 2, [I32] = 4, [F64] = 8, [I64] = 8, [E4M3] = 1, [E5M2] = 1};
    return bytes[type];
}

const char *dtype_name(DType type) {
    static const char *const names[] = {"fp32", "bf16", "fp16", "int32", "fp64", "int64", "e4m3", "e5m2"};
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
    CHECK(first >= 0 && elems >= 0 && first + elems <= tensor_elems(t), "elements [%lld, %lld) of %lld",
          (long long)first, (long long)(first + elems), (long long)tensor_elems(t));
    t = tensor_advance(t, first);
    return tensor_1d(t.data, t.type, elems);
}

/* Converts an IEEE 754 binary16 number, which has a sign, 5 bits of exponent (bias 15) and 10 of fraction. */
float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 1023u;
    if (exponent == 0) { /* zero and subnormal numbers: fraction * 2^-24 is exact */
        float value = (float)fraction * 0x1p-24f;
        return sign ? -value : value;
    }
    uint32_t u = sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | fraction << 13;
    float    f;
    memcpy(&f, &u, 4);
    return f;
}

uint16_t f16_from_f32(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    uint32_t sign = u >> 16 & 0x8000u, size = u & 0x7fffffffu;
    if (size > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (size >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* numbers from 65520 up round to infinity */
    if (size < 0x38800000u) {                                   /* numbers below 2^-14: adding 1/2 leaves the fraction
                                                                 * as a multiple of 2^-24 */
        float value;
        memcpy(&value, &size, 4);
        value += 0.5f;
        memcpy(&size, &value, 4);
        return (uint16_t)(sign | (size - 0x3f000000u));
    }
    size += 0xfffu + (size >> 13 & 1u);
    return (uint16_t)(sign | (size - 0x38000000u) >> 13);
}

float tensor_get(Tensor t, int64_t i) {
    if (t.type == F32) return ((const float *)t.data)[i];
    uint16_t h = ((const uint16_t *)t.data)[i];
    CHECK(t.type == BF16 || t.type == F16, "no host access to %s", dtype_name(t.type));
    return t.type == BF16 ? bf16_to_f32(h) : f16_to_f32(h);
}

void tensor_set(Tensor t, int64_t i, float value) {
    CHECK(t.type == F32 || t.type == BF16 || t.type == F16, "no host access to %s", dtype_name(t.type));
    if (t.type == F32)       ((float *)t.data)[i] = value;
    else if (t.type == BF16) ((uint16_t *)t.data)[i] = bf16_from_f32(value);
    else                     ((uint16_t *)t.data)[i] = f16_from_f32(value);
}

void tensor_expect(Tensor t, const char *name, DType type, int dims, int64_t a, int64_t b, int64_t c, const char *file,
                   int line) {
    if (t.type == type && t.dims == dims && t.dim[0] == a && t.dim[1] == b && t.dim[2] == c && t.dim[3] == 1) return;
    check_failed(name, file, line,
                 "tensor %s is %s [%lld,%lld,%lld] in %d dimensions, expected %s [%lld,%lld,%lld] in %d", name,
                 dtype_name(t.type), (long long)t.dim[0], (long long)t.dim[1], (long long)t.dim[2], t.dims,
                 dtype_name(type), (long long)a, (long long)b, (long long)c, dims);
}

/* --- arenas ------------------------------------------------------------------------------------------------------- */

/* Returns an arena that only counts bytes. Arenas of different names have made-up addresses far apart, so that an op
 * never mistakes a tensor of one arena for a tensor of another. */
Arena arena_dry(const char *name) {
    uintptr_t place = 0;
    for (const char *c = name; *c; c++) place = (place * 31 + (unsigned char)*c) % 4093;
    return (Arena){name, (char *)((place + 1) << 40), 0, 0, 0, 1, 0};
}

/* Allocates at least ARENA_ALIGN bytes, so that an arena of size 0 also has an address. */
static Arena create(const char *name, size_t capacity_bytes, int is_host) {
    size_t bytes = capacity_bytes ? capacity_bytes : ARENA_ALIGN;
    void  *base = is_host ? device_alloc_host(bytes, name) : device_alloc(bytes, name);
    return (Arena){name, base, 0, 0, capacity_bytes, 0, is_host};
}

Arena arena_create(const char *name, size_t capacity_bytes) { return create(name, capacity_bytes, 0); }
Arena arena_create_host(const char *name, size_t capacity_bytes) { return create(name, capacity_bytes, 1); }

void arena_destroy(Arena *arena) {
    if (arena->base && arena->is_host) device_free_host(arena->base);
    else if (arena->base && !arena->is_dry)
        device_free(arena->base, arena->capacity_bytes ? arena->capacity_bytes : ARENA_ALIGN);
    arena->base = NULL;
}

void *arena_take(Arena *arena, size_t bytes) {
    size_t at = (arena->used_bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    arena->used_bytes = at + bytes;
    if (arena->used_bytes > arena->peak_bytes) arena->peak_bytes = arena->used_bytes;
    CHECK(arena->is_dry || arena->used_bytes <= arena->capacity_bytes, "arena %s: %zu bytes wanted of %zu", arena->name,
          arena->used_bytes, arena->capacity_bytes);
    return arena->base + at;
}

Tensor arena_tensor(Arena *arena, DType type, int dims, int64_t a, int64_t b, int64_t c) {
    Tensor t = tensor_of(NULL, type, dims, a, b, c, 1);
    t.data = arena_take(arena, tensor_bytes(t));
    return t;
}
