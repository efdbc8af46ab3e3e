/* thrift.h - reads Thrift's compact protocol, in which parquet files store the footer and the headers of pages.
 *
 * The reader is a cursor over bytes that may be damaged. After the first fault every call returns 0 and thrift_next()
 * ends its struct, so a caller may read to the end and check the state then. Each element takes at least a byte, so no
 * loop has more steps than there are bytes.
 *
 *     for (ThriftField f = {0, 0}; thrift_next(t, &f);)
 *         switch (f.id) {
 *         case 3:  rows = thrift_int(t, f.type); break;
 *         default: thrift_skip(t, f.type);
 *         }
 */
#ifndef TRAIN_GPT_DATA_THRIFT_H
#define TRAIN_GPT_DATA_THRIFT_H

#include <stddef.h>
#include <stdint.h>

typedef enum { THRIFT_GOOD, THRIFT_SHORT /* the bytes end too early */, THRIFT_BAD } ThriftState;

typedef struct {
    const uint8_t *at, *end; /* borrowed */
    ThriftState    state;
} Thrift;

typedef struct { int id, type; } ThriftField;

/* Reads the next field of a struct into *f, which must be {0, 0} before the first. Returns 1, or 0 after the last
 * field. */
int            thrift_next(Thrift *t, ThriftField *f);
int64_t        thrift_int(Thrift *t, int type);  /* reads an integer of any width */
int            thrift_bool(Thrift *t, int type); /* reads the truth value of a field, not of an element of a list */
const uint8_t *thrift_text(Thrift *t, int type, size_t *bytes);
/* returns the number of elements, all of type *of; the caller reads or skips each */
size_t         thrift_list(Thrift *t, int type, int *of);
/* a fault unless the type is a struct, whose fields are read next */
void           thrift_struct(Thrift *t, int type);
void           thrift_skip(Thrift *t, int type);          /* skips a field */
void           thrift_skip_element(Thrift *t, int type);  /* skips an element of a list */

#endif
