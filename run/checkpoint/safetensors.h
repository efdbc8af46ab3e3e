/* safetensors.h - reads and writes the header of a .safetensors file, and the index of a model in several such files.
 * The parsers are pure functions over bytes and length.
 *
 * A file is a u64 length N, N bytes of JSON that start with '{' (spaces may follow it), then the bytes of the tensors.
 * The parser trusts no value. Lengths and products are checked in 64 bits. The tensors must cover the rest of the file
 * exactly, without holes or overlap. It allocates at most a small multiple of the header bytes that really exist. It
 * does not read the values of tensors.
 *
 * The index, model.safetensors.index.json, says which file holds which tensor. It names files without a folder, so it
 * can only name files in its own folder. The metadata is not used.
 *
 *   {"metadata": {"total_size": 497759232},
 *    "weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors", ...}}
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_SAFETENSORS_H
#define TRAIN_GPT_RUN_CHECKPOINT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "core/json.h"

enum {
    SAFETENSORS_DIMS         = 8,
    SAFETENSORS_HEADER_LIMIT = 100000000, /* most bytes of a header, as in the reference reader */
    WEIGHTS_INDEX_LIMIT      = 16 << 20,  /* most bytes of an index file that is read */
    SAFETENSORS_FAULT_BYTES  = 480        /* bytes of the buffer for the phrase that a parser writes about a fault */
};

typedef enum {
    SAFE_F32, SAFE_F16, SAFE_BF16, SAFE_F64,
    SAFE_I64, SAFE_U64, SAFE_I32, SAFE_U32, SAFE_I16, SAFE_U16, SAFE_I8, SAFE_U8, SAFE_BOOL,
    SAFE_F8_E4M3, SAFE_F8_E5M2, SAFE_F8_E8M0,
    SAFE_TYPES
} SafeType;

typedef struct {
    const char *name;       /* name of the tensor; borrowed from the parsed header, or from the caller */
    SafeType    type;
    int         dims;
    uint64_t    dim[SAFETENSORS_DIMS];
    uint64_t    begin, end; /* byte range of the tensor, counted from the first tensor byte of the file */
} SafeTensor;

typedef struct {
    SafeTensor *tensor;      /* [tensors] sorted by the place of their bytes in the file; owned */
    int         tensors;
    uint64_t    data_offset; /* offset of the first tensor byte in the file */
    Json        json;        /* parsed header, which holds the names; owned */
} Safetensors;

const char *safetensors_type_name(SafeType type); /* returns the name of a type, such as "F32" */
size_t      safetensors_type_bytes(SafeType type);

/* Reads the header of a file of file_bytes from data, the first `bytes` of the file. These must contain the whole
 * header. Returns 1, or 0 with the fault as a phrase ("has a hole before tensor \"wte.weight\"") in fault
 * [SAFETENSORS_FAULT_BYTES]. */
int  safetensors_parse(const uint8_t *data, size_t bytes, uint64_t file_bytes, Safetensors *out, char *fault);
void safetensors_free(Safetensors *s);

const SafeTensor *safetensors_find(const Safetensors *s, const char *name); /* returns the tensor of this name, or NULL
                                                                             * if it is missing */

/* Writes a shape such as "[768,2304]" into out [capacity]. */
void safetensors_shape(char *out, size_t capacity, const SafeTensor *t);

/* Returns the header of a file that holds these tensors one after another, malloc'ed, with its length in *bytes. It has
 * metadata {"format":"pt"} and is padded with spaces to a multiple of 8 bytes. Fills in begin and end of the tensors.
 * Equal tensors give equal bytes. */
char *safetensors_header(SafeTensor *tensor, int tensors, size_t *bytes);

/* --- the index ---------------------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;       /* name of the tensor; borrowed from the JSON of the index */
    int         file;       /* position in WeightsIndex.file of the file that holds the tensor */
} IndexedTensor;

typedef struct {
    IndexedTensor *tensor;  /* [tensors] sorted by name, byte by byte; owned */
    int            tensors;
    const char   **file;    /* [files] names of the files, each once, in byte order; the list is owned, the names are
                             * borrowed */
    int            files;
    Json           json;    /* parsed index, which holds the names; owned */
} WeightsIndex;

/* Parses the index in text [bytes]. Returns 1, or 0 with a phrase ("has no weight_map") in fault
 * [SAFETENSORS_FAULT_BYTES]. *out is then empty. */
int  weights_index_parse(const char *text, size_t bytes, WeightsIndex *out, char *fault);
void weights_index_free(WeightsIndex *index);

int weights_index_find(const WeightsIndex *index, const char *name); /* returns the position of the tensor in
                                                                      * WeightsIndex.tensor, or -1 */

/* Returns the text of an index of these tensors, malloc'ed. total_bytes: size of all tensors. Equal tensors give equal
 * text. */
char *weights_index_text(const IndexedTensor *tensor, int tensors, const char *const *file, uint64_t total_bytes);

#endif
