/* safetensors.h - the header of a .safetensors file: a pure parser over bytes and length, and the writer of ours.
 *
 * A file is a u64 length N, N bytes of JSON that start with '{' (spaces may follow it), then the tensors' bytes. The
 * parser believes nothing: lengths and products are checked in 64 bits, the tensors must cover the rest of the file
 * exactly, without holes or overlap, and nothing is allocated beyond a small multiple of the header bytes that are
 * really there. Values are not looked at.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_SAFETENSORS_H
#define TRAIN_GPT_RUN_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/json.h"

enum {
    SAFETENSORS_DIMS         = 8,
    SAFETENSORS_HEADER_LIMIT = 100000000, /* the reference reader's own */
    SAFETENSORS_FAULT_BYTES  = 480
};

typedef enum {
    SAFE_F32,
    SAFE_F16,
    SAFE_BF16,
    SAFE_F64,
    SAFE_I64,
    SAFE_U64,
    SAFE_I32,
    SAFE_U32,
    SAFE_I16,
    SAFE_U16,
    SAFE_I8,
    SAFE_U8,
    SAFE_BOOL,
    SAFE_F8_E4M3,
    SAFE_F8_E5M2,
    SAFE_F8_E8M0,
    SAFE_TYPES
} SafeType;

typedef struct {
    const char *name;       /* borrowed from the header's tree, or the caller's */
    SafeType    type;
    int         dims;
    uint64_t    dim[SAFETENSORS_DIMS];
    uint64_t    begin, end; /* bytes, counted from Safetensors.data_offset      */
} SafeTensor;

typedef struct {
    SafeTensor *tensor;      /* owned, in the order of their bytes */
    int         tensors;
    uint64_t    data_offset; /* of the first tensor byte in the file */
    Json        json;        /* owned: holds the names */
} Safetensors;

const char *safetensors_type_name(SafeType type); /* "F32" */
size_t      safetensors_type_bytes(SafeType type);

/* Reads the header of a file of file_bytes bytes whose first `bytes` are given: all of the header, or the file is
 * refused. Returns 1, or 0 and the fault as a phrase ("has a hole before tensor \"wte.weight\"") in fault
 * [SAFETENSORS_FAULT_BYTES]. */
#define SAFETENSORS_NO_MEMORY "needs more memory than there is"
int  safetensors_parse(const uint8_t *data, size_t bytes, uint64_t file_bytes, Safetensors *out, char *fault);
void safetensors_free(Safetensors *s);

const SafeTensor *safetensors_find(const Safetensors *s, const char *name); /* NULL if absent */

/* "[768,2304]" into out [capacity]. */
void safetensors_shape(char *out, size_t capacity, const SafeTensor *t);

/* Header of a file that holds these tensors one after another, metadata {"format":"pt"}, padded with spaces to a
 * multiple of 8 bytes: malloc'ed, *bytes of it. Fills begin and end. The same rows give the same bytes. */
char *safetensors_header(SafeTensor *tensor, int tensors, size_t *bytes);

#endif
