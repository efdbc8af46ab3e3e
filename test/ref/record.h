/* record.h - a file of named tensors. generate.py writes such files. So do tests, for the results of one backend, which
 * are compared with those of another.
 *
 * The file is the eight bytes "tensors1" and then, for each tensor, a header of 104 bytes (name, type code, dims, four
 * sizes, in this machine's byte order) and its values, padded to eight bytes. */
#ifndef TRAIN_GPT_TEST_REF_RECORD_H
#define TRAIN_GPT_TEST_REF_RECORD_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum { RECORD_F32, RECORD_F64, RECORD_I32 } RecordType;

typedef struct {
    char    name[64];
    int32_t type, dims;
    int64_t dim[4];  /* sizes of the tensor's dimensions; 1 in dimensions that are not used */
} RecordHeader;

typedef struct {
    RecordHeader head;
    int64_t      elems;
    const void  *data;  /* the tensor's values; they belong to RecordFile.bytes */
} Record;

typedef struct {
    char   *bytes;  /* owned: the bytes of the file */
    Record *record; /* owned: the tensors, which point into bytes */
    int     records;
} RecordFile;

/* Stops the program with a message if the file is missing or damaged. */
RecordFile    record_load(const char *path);
void          record_unload(RecordFile *file);
/* returns the tensor of this name; stops the program if the file has none */
const Record *record_find(const RecordFile *file, const char *name);
double        record_value(const Record *r, int64_t i);

/* record_begin starts a file of named tensors; `out` must be open on an empty file. record_append adds a tensor. */
void record_begin(FILE *out);
void record_append(FILE *out, const char *name, RecordType type, int dims, const int64_t *dim, const void *data);

#endif
