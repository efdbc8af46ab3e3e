/* xalloc.c - see xalloc.h. */
#include "core/xalloc.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static NORETURN void end_without(double bytes, const char *what) {
    if (bytes < 1024.0) fail(EXIT_MEMORY, "no memory for %s: %.0f bytes wanted", what, bytes);
    if (bytes < 1048576.0) fail(EXIT_MEMORY, "no memory for %s: %.1f KiB wanted", what, bytes / 1024.0);
    fail(EXIT_MEMORY, "no memory for %s: %.1f MiB wanted", what, bytes / 1048576.0);
}

void *xmalloc(size_t bytes, const char *what) {
    void *memory = malloc(bytes ? bytes : 1); /* malloc may return NULL for 0 bytes */
    if (!memory) end_without((double)bytes, what);
    return memory;
}

void *xcalloc(size_t count, size_t bytes, const char *what) {
    size_t product;
    void  *memory = NULL;
    if (!__builtin_mul_overflow(count, bytes, &product)) memory = calloc(1, product ? product : 1);
    if (!memory) end_without((double)count * (double)bytes, what);
    return memory;
}

void *xrealloc(void *old, size_t bytes, const char *what) {
    void *memory = realloc(old, bytes ? bytes : 1); /* realloc may free old for 0 bytes */
    if (!memory) end_without((double)bytes, what);
    return memory;
}

char *xstrdup(const char *text, const char *what) {
    size_t bytes = strlen(text) + 1;
    return memcpy(xmalloc(bytes, what), text, bytes);
}

char *xstrndup(const char *text, size_t most, const char *what) {
    size_t bytes = strnlen(text, most);
    char  *copy = memcpy(xmalloc(bytes + 1, what), text, bytes);
    copy[bytes] = 0;
    return copy;
}
