/* arena.c - see arena.h. */
#include "core/arena.h"

#include "core/device.h"

/* Arenas of different names have addresses far apart, so that an op never takes a tensor of one for a tensor of
 * another. */
Arena arena_dry(const char *name) {
    uintptr_t place = 0;
    for (const char *c = name; *c; c++) place = (place * 31 + (unsigned char)*c) % 4093;
    return (Arena){name, (char *)((place + 1) << 40), 0, 0, 0, 1, 0};
}

Arena arena_create(const char *name, size_t capacity_bytes) {
    return (Arena){name, (char *)device_alloc(capacity_bytes ? capacity_bytes : ARENA_ALIGN, name), 0, 0, capacity_bytes, 0, 0};
}

Arena arena_create_host(const char *name, size_t capacity_bytes) {
    return (Arena){name,
                   (char *)device_alloc_host(capacity_bytes ? capacity_bytes : ARENA_ALIGN, name),
                   0,
                   0,
                   capacity_bytes,
                   0,
                   1};
}

void arena_destroy(Arena *arena) {
    if (arena->base && arena->is_host) device_free_host(arena->base);
    else if (arena->base && !arena->is_dry) device_free(arena->base, arena->capacity_bytes ? arena->capacity_bytes : ARENA_ALIGN);
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
