/* memory_file.h - a FILE written into memory whose fclose() fails after a lack of memory.
 *
 * open_memstream(3) reports no such failure (glibc 2.36): bytes from the middle of a text are lost.
 */
#ifndef TRAIN_GPT_CORE_MEMORY_FILE_H
#define TRAIN_GPT_CORE_MEMORY_FILE_H

#include <stddef.h>
#include <stdio.h>

/* Opens a FILE that writes to memory. Returns NULL if memory runs out. After each fflush() and after fclose() *text
 * holds the *bytes written so far and a NUL. The caller frees *text in any case. fclose() returns EOF if some of the
 * written bytes were lost. */
FILE *memory_file_open(char **text, size_t *bytes);

#endif
