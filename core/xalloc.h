/* xalloc.h - allocations that end the job where there is no memory.
 *
 * Each function returns memory as its namesake in the C library does. Where there is none it ends the job with
 * EXIT_MEMORY and the sentence "no memory for WHAT: 12.3 MiB wanted". WHAT is a phrase such as "a group of ranks".
 * Zero bytes give memory as well, which the caller frees as any other.
 */
#ifndef TRAIN_GPT_CORE_XALLOC_H
#define TRAIN_GPT_CORE_XALLOC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

void *xmalloc(size_t bytes, const char *what);
void *xcalloc(size_t count, size_t bytes, const char *what); /* zeros; a product of over SIZE_MAX bytes is refused */
void *xrealloc(void *old, size_t bytes, const char *what);
char *xstrdup(const char *text, const char *what);
char *xstrndup(const char *text, size_t most, const char *what);

#ifdef __cplusplus
}
#endif
#endif
