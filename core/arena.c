/* arena.c - see arena.h. */
#include "core/arena.h"

#include "core/device.h"

Arena arena_dry(const char *name) {
    Arena a = {name, NULL, 0, 0, 0};
    return a;
}

Arena arena_create(const char *name, size_t capacity_bytes) {
    Arena a = arena_dry(name);
    a.capacity_bytes = capacity_bytes;
    a.base = (char *)device_alloc(capacity_bytes ? capacity_bytes : ARENA_ALIGN, name);
    return a;
}

void arena_destroy(Arena *arena) {
    if (arena->base) device_free(arena->base, arena->capacity_bytes ? arena->capacity_bytes : ARENA_ALIGN);
    arena->base = NULL;
}

void *arena_take(Arena *arena, size_t bytes) {
    size_t at = (arena->used_bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    arena->used_bytes = at + bytes;
    if (arena->used_bytes > arena->peak_bytes) arena->peak_bytes = arena->used_bytes;
    if (!arena->base) return NULL;
    CHECK(arena->used_bytes <= arena->capacity_bytes, "arena %s: %zu bytes wanted of %zu", arena->name, arena->used_bytes,
          arena->capacity_bytes);
    return arena->base + at;
}

Tensor arena_tensor(Arena *arena, DType type, int dims, int64_t a, int64_t b, int64_t c) {
    Tensor t = tensor_of(NULL, type, dims, a, b, c, 1);
    t.data = arena_take(arena, tensor_bytes(t));
    return t;
}
