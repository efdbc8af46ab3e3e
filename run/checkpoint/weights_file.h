/* weights_file.h - a .safetensors file opened for reading. Its header is checked by safetensors_parse, and its tensors
 * are read block by block. Faults end the program and name the file: exit 65 for a fault of the file, exit 74 for a
 * system error.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_FILE_H
#define TRAIN_GPT_RUN_CHECKPOINT_WEIGHTS_FILE_H

#include "core/error.h"
#include "core/layout.h"
#include "run/checkpoint/safetensors.h"

enum { WEIGHTS_BLOCK = 1 << 22 };  /* elements read at a time: 16 MiB of fp32 */

typedef struct {
    char       *path;              /* owned */
    int         fd;
    Safetensors header;            /* owned */
} WeightsFile;

WeightsFile weights_open(const char *path);
void        weights_close(WeightsFile *w);

/* Returns 1 if values of this type can be read: F64, F32, F16 and BF16. */
static inline int weights_type_is_read(SafeType t) {
    return t == SAFE_F64 || t == SAFE_F32 || t == SAFE_F16 || t == SAFE_BF16;
}

/* Reads elements [first, first + elems) of a tensor as fp32, with all threads. elems is at most WEIGHTS_BLOCK. */
void weights_read(const WeightsFile *w, const SafeTensor *t, int64_t first, int64_t elems, float *out);

/* Returns the index of the first value that is not finite, or n. */
int64_t weights_finite(const float *value, int64_t n);
/* Ends the program with exit 65, and names the element of a tensor that has no finite value in fp32. */
NORETURN void weights_refuse_element(const WeightsFile *w, const SafeTensor *t, int64_t element);

/* Reads elements of a span from index `at` on, out of the tensor that begins at global offset `begin`. Reads whole rows
 * of the file, and copies the columns of this rank to values. Returns the number of elements. values and block have
 * space for WEIGHTS_BLOCK each. */
int64_t weights_read_span(const WeightsFile *w, const SafeTensor *t, int64_t begin, const Layout *layout,
                          const Span *span, int64_t at, float *values, float *block);

#endif
