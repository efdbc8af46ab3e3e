/* arena.h - one allocation per class of memory, carved from tables.
 *
 * The same carving code runs twice. The first time is dry, with no memory behind the arena, and only counts bytes.
 * The second time is real. So `plan` prints the size that the run allocates. Every tensor starts at a multiple of 256
 * bytes.
 */
#ifndef TRAIN_GPT_CORE_ARENA_H
#define TRAIN_GPT_CORE_ARENA_H

#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ARENA_ALIGN = 256 };

typedef struct {
    const char *name;     /* name that plan and the banner print */
    char       *base;     /* owned; a made-up address in a dry arena */
    size_t      used_bytes, peak_bytes, capacity_bytes;
    int         is_dry, is_host;
} Arena;

/* Returns an arena that only counts bytes. Its addresses are made up: aligned and never NULL, because NULL means "no
 * such operand". No code reads or writes them. */
Arena arena_dry(const char *name);
Arena arena_create(const char *name, size_t capacity_bytes); /* device memory, zeroed; exit 71 if it does not fit */
Arena arena_create_host(const char *name, size_t capacity_bytes); /* pinned host memory, zeroed; exit 71 if it does not
                                                                   * fit */
void  arena_destroy(Arena *arena);

void  *arena_take(Arena *arena, size_t bytes);          /* ends the job (CHECK) when the arena is full */
Tensor arena_tensor(Arena *arena, DType type, int dims, int64_t a, int64_t b, int64_t c);

/* Use as a stack: m = arena_mark(a); ... arena_take() ...; arena_release(a, m). */
static inline size_t arena_mark(const Arena *arena) { return arena->used_bytes; }
static inline void   arena_release(Arena *arena, size_t mark) { arena->used_bytes = mark; }

#ifdef __cplusplus
}
#endif
#endif
