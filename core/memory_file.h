/* memory_file.h - a FILE that is written into memory, as open_memstream(3) makes one, but whose fclose() fails when there was too little:
 * what open_memstream() has no memory for is lost without a word (glibc 2.36), from the middle of a text.
 */
#ifndef TRAIN_GPT_CORE_MEMORY_FILE_H
#define TRAIN_GPT_CORE_MEMORY_FILE_H

#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL without memory. After each fflush() and after fclose() *text holds the *bytes written so far and a NUL: malloc'ed, the caller's to
 * free in any case. fclose() returns EOF when something that was written is not there. */
FILE *memory_file_open(char **text, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
