/* memory_file.h - a FILE written into memory whose fclose() fails after a lack of memory.
 *
 * open_memstream(3) reports no such failure (glibc 2.36): bytes from the middle of a text are lost.
 */
#ifndef TRAIN_GPT_CORE_MEMORY_FILE_H
#define TRAIN_GPT_CORE_MEMORY_FILE_H

#include <stddef.h>
#include <stdio.h>

/* NULL without memory. After each fflush() and after fclose() *text holds the *bytes written so far and a NUL:
 * malloc'ed, the caller's to free in any case. fclose() returns EOF when something that was written is not there. */
FILE *memory_file_open(char **text, size_t *bytes);

#endif
