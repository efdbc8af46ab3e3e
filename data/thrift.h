/* thrift.h - reading Thrift's compact protocol, in which parquet files keep their footer and the headers of their
 * pages.
 *
 * A cursor over bytes that believes nothing: after the first fault every call returns 0 and thrift_next() ends its
 * struct, so a reader may go on to its end and ask then. Each element takes at least a byte, so no loop is longer
 * than the bytes are.
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

typedef enum { THRIFT_GOOD, THRIFT_SHORT /* the bytes end before */, THRIFT_BAD } ThriftState;

typedef struct {
    const uint8_t *at, *end; /* borrowed */
    ThriftState    state;
} Thrift;

typedef struct { int id, type; } ThriftField;

/* The next field of a struct into *f, which was {0, 0} before the first: 1; 0 after the last. */
int            thrift_next(Thrift *t, ThriftField *f);
int64_t        thrift_int(Thrift *t, int type);  /* an integer of any width */
int            thrift_bool(Thrift *t, int type); /* a field, not an element of a list */
const uint8_t *thrift_text(Thrift *t, int type, size_t *bytes);
size_t         thrift_list(Thrift *t, int type, int *of); /* its elements, all of type *of; read or skip each */
void           thrift_struct(Thrift *t, int type);        /* is it one? Its fields follow */
void           thrift_skip(Thrift *t, int type);          /* a field */
void           thrift_skip_element(Thrift *t, int type);  /* an element of a list */

#endif
