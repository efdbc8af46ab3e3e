/* thrift.c - see thrift.h. Source of the layout: apache/thrift, doc/specs/thrift-compact-protocol.md. */
#include "data/thrift.h"

enum { DEPTH = 32 }; /* most levels of nested values; those of parquet have eight */
enum { STOP, TRUE, FALSE, I8, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT, UUID };

static uint8_t fault(Thrift *t, ThriftState state) {
    if (t->state == THRIFT_GOOD) t->state = state;
    return 0;
}

static uint8_t next_byte(Thrift *t) {
    if (t->state != THRIFT_GOOD || t->at == t->end) return fault(t, THRIFT_SHORT);
    return *t->at++;
}

static uint64_t next_varint(Thrift *t) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = next_byte(t);
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return value;
    }
    return fault(t, THRIFT_BAD);
}

static int64_t next_zigzag(Thrift *t) {
    uint64_t value = next_varint(t);
    return (int64_t)(value >> 1 ^ (0 - (value & 1)));
}

static void pass(Thrift *t, uint64_t bytes) {
    if (t->state != THRIFT_GOOD || bytes > (uint64_t)(t->end - t->at)) fault(t, THRIFT_SHORT);
    else t->at += bytes;
}

int thrift_next(Thrift *t, ThriftField *f) {
    uint8_t byte = next_byte(t);
    if (byte == STOP) return 0;
    int64_t id = byte >> 4 ? f->id + (byte >> 4) : next_zigzag(t);
    if (id < 0 || id > INT16_MAX) return fault(t, THRIFT_BAD);
    *f = (ThriftField){(int)id, byte & 0xF};
    return t->state == THRIFT_GOOD;
}

int64_t thrift_int(Thrift *t, int type) {
    if (type == I8) return (int8_t)next_byte(t);
    return type >= I16 && type <= I64 ? next_zigzag(t) : fault(t, THRIFT_BAD);
}

int thrift_bool(Thrift *t, int type) { return type == TRUE || type == FALSE ? type == TRUE : fault(t, THRIFT_BAD); }

const uint8_t *thrift_text(Thrift *t, int type, size_t *bytes) {
    if (type != BINARY) fault(t, THRIFT_BAD);
    uint64_t       count = next_varint(t);
    const uint8_t *text = t->at;
    pass(t, count);
    *bytes = t->state == THRIFT_GOOD ? (size_t)count : 0;
    return text;
}

size_t thrift_list(Thrift *t, int type, int *of) {
    if (type != LIST && type != SET) fault(t, THRIFT_BAD);
    uint8_t  byte = next_byte(t);
    uint64_t count = byte >> 4 == 15 ? next_varint(t) : byte >> 4;
    *of = byte & 0xF;
    if (count > (uint64_t)(t->end - t->at)) fault(t, THRIFT_SHORT);
    return t->state == THRIFT_GOOD ? (size_t)count : 0;
}

void thrift_struct(Thrift *t, int type) {
    if (type != STRUCT) fault(t, THRIFT_BAD);
}

static void skip(Thrift *t, int type, int depth);

static void skip_map(Thrift *t, int depth) {
    uint64_t count = next_varint(t);
    uint8_t  types = count > 0 ? next_byte(t) : 0;
    for (; count > 0 && t->state == THRIFT_GOOD; count--) {
        skip(t, types >> 4, depth + 1);
        skip(t, types & 0xF, depth + 1);
    }
}

/* Skips an element. As an element a truth value takes a byte; as a field it is part of the type. */
static void skip(Thrift *t, int type, int depth) {
    size_t bytes;
    int    of;
    if (depth > DEPTH) fault(t, THRIFT_BAD);
    if (t->state != THRIFT_GOOD) return;
    switch (type) {
    case TRUE: case FALSE: case I8: next_byte(t); break;
    case I16: case I32: case I64: next_varint(t); break;
    case DOUBLE: pass(t, 8); break;
    case UUID: pass(t, 16); break;
    case BINARY: thrift_text(t, type, &bytes); break;
    case LIST: case SET:
        for (size_t count = thrift_list(t, type, &of); count > 0 && t->state == THRIFT_GOOD; count--)
            skip(t, of, depth + 1);
        break;
    case MAP: skip_map(t, depth); break;
    case STRUCT:
        for (ThriftField f = {0, 0}; thrift_next(t, &f);)
            if (f.type != TRUE && f.type != FALSE) skip(t, f.type, depth + 1);
        break;
    default: fault(t, THRIFT_BAD);
    }
}

void thrift_skip_element(Thrift *t, int type) { skip(t, type, 0); }
void thrift_skip(Thrift *t, int type) {
    if (type != TRUE && type != FALSE) skip(t, type, 0);
}
