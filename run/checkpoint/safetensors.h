/* safetensors.h - the header of a .safetensors file: a pure parser over bytes and length, and the writer of ours.
 *
 * A file is a u64 length N, N bytes of JSON that start with '{' (spaces may follow it), then the bytes of the tensors.
 * The parser trusts no value. Lengths and products are checked in 64 bits. The tensors must cover the rest of the file
 * exactly, without holes or overlap. It allocates at most a small multiple of the header bytes that really exist.
 * Values are not read.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_SAFETENSORS_H
#define TRAIN_GPT_RUN_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/json.h"

enum {
    SAFETENSORS_DIMS         = 8,
    SAFETENSORS_HEADER_LIMIT = 100000000, /* limit of the reference reader */
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
    const char *name;       /* borrowed from the parsed header, or from the caller */
    SafeType    type;
    int         dims;
    uint64_t    dim[SAFETENSORS_DIMS];
    uint64_t    begin, end; /* bytes, counted from Safetensors.data_offset      */
} SafeTensor;

typedef struct {
    SafeTensor *tensor;      /* owned, in the order of their bytes */
    int         tensors;
    uint64_t    data_offset; /* offset of the first tensor byte in the file */
    Json        json;        /* owned: holds the names */
} Safetensors;

const char *safetensors_type_name(SafeType type); /* "F32" */
size_t      safetensors_type_bytes(SafeType type);

/* Reads the header of a file of file_bytes from data, its first `bytes`. These must contain the whole header. Returns
 * 1, or 0 with the fault as a phrase ("has a hole before tensor \"wte.weight\"") in fault [SAFETENSORS_FAULT_BYTES]. */
#define SAFETENSORS_NO_MEMORY "needs more memory than there is"
int  safetensors_parse(const uint8_t *data, size_t bytes, uint64_t file_bytes, Safetensors *out, char *fault);
void safetensors_free(Safetensors *s);

const SafeTensor *safetensors_find(const Safetensors *s, const char *name); /* NULL if absent */

/* Writes a shape such as "[768,2304]" into out [capacity]. */
void safetensors_shape(char *out, size_t capacity, const SafeTensor *t);

/* Returns the header of a file that holds these tensors one after another, malloc'ed, with its length in *bytes. It has
 * metadata {"format":"pt"} and is padded with spaces to a multiple of 8 bytes. Fills in begin and end of the tensors.
 * Equal tensors give equal bytes. */
char *safetensors_header(SafeTensor *tensor, int tensors, size_t *bytes);

#endif
