/* parquet.c - see parquet.h. The file is read through its footer and its pages, which are described in Thrift's compact
 * protocol. In this order: the protocol, the parts of a page, the footer, the file.
 */
#include "data/parquet.h"

#include <errno.h>
#include <snappy-c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"

enum { NAME_CHARS = 64, NAMES_CHARS = 160, MAGIC_BYTES = 4, TAIL_BYTES = 8, HEADER_GUESS = 1 << 10 };
/* most bytes of a page, and of its header, which may hold the least and the greatest text of the page */
enum { PAGE_LIMIT = 1 << 30, PAGE_HEADER_LIMIT = 16 << 20 };
enum { ENCODING_PLAIN, ENCODING_PLAIN_DICTIONARY = 2, ENCODING_RLE, ENCODING_BIT_PACKED, ENCODING_DICTIONARY = 8 };

/* --- Thrift's compact protocol ------------------------------------------------------------------------------------ */

/* The footer and the headers of pages are stored in Thrift's compact protocol. Source: apache/thrift,
 * doc/specs/thrift-compact-protocol.md.
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
enum { DEPTH = 32 }; /* most levels of nested values that are read; parquet's own structs have eight */
typedef enum { THRIFT_GOOD, THRIFT_SHORT /* the bytes end before the value does */, THRIFT_BAD } ThriftState;
enum {
    THRIFT_STOP, THRIFT_TRUE, THRIFT_FALSE, THRIFT_I8, THRIFT_I16, THRIFT_I32, THRIFT_I64, THRIFT_DOUBLE, THRIFT_BINARY,
    THRIFT_LIST, THRIFT_SET, THRIFT_MAP, THRIFT_STRUCT, THRIFT_UUID
};

typedef struct {
    const uint8_t *at, *end; /* borrowed: the bytes that are not read yet, from `at` to `end` */
    ThriftState    state;
} Thrift;

typedef struct { int id, type; } ThriftField;

static uint8_t thrift_fault(Thrift *t, ThriftState state) {
    if (t->state == THRIFT_GOOD) t->state = state;
    return 0;
}

static uint8_t next_byte(Thrift *t) {
    if (t->state != THRIFT_GOOD || t->at == t->end) return thrift_fault(t, THRIFT_SHORT);
    return *t->at++;
}

static uint64_t next_varint(Thrift *t) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = next_byte(t);
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return value;
    }
    return thrift_fault(t, THRIFT_BAD);
}

static int64_t next_zigzag(Thrift *t) {
    uint64_t value = next_varint(t);
    return (int64_t)(value >> 1 ^ (0 - (value & 1)));
}

static void pass(Thrift *t, uint64_t bytes) {
    if (t->state != THRIFT_GOOD || bytes > (uint64_t)(t->end - t->at)) thrift_fault(t, THRIFT_SHORT);
    else t->at += bytes;
}

/* Reads the next field of a struct into *f, which must be {0, 0} before the first. Returns 1, or 0 after the last
 * field. */
static int thrift_next(Thrift *t, ThriftField *f) {
    uint8_t byte = next_byte(t);
    if (byte == THRIFT_STOP) return 0;
    int64_t id = byte >> 4 ? f->id + (byte >> 4) : next_zigzag(t);
    if (id < 0 || id > INT16_MAX) return thrift_fault(t, THRIFT_BAD);
    *f = (ThriftField){(int)id, byte & 0xF};
    return t->state == THRIFT_GOOD;
}

/* Reads an integer of any width. Any other type is a fault. */
static int64_t thrift_int(Thrift *t, int type) {
    if (type == THRIFT_I8) return (int8_t)next_byte(t);
    return type >= THRIFT_I16 && type <= THRIFT_I64 ? next_zigzag(t) : thrift_fault(t, THRIFT_BAD);
}

static const uint8_t *thrift_text(Thrift *t, int type, size_t *bytes) {
    if (type != THRIFT_BINARY) thrift_fault(t, THRIFT_BAD);
    uint64_t       count = next_varint(t);
    const uint8_t *text = t->at;
    pass(t, count);
    *bytes = t->state == THRIFT_GOOD ? (size_t)count : 0;
    return text;
}

/* Reads the header of a list. Returns the number of its elements, and writes their type into *of. The caller reads or
 * skips each element. */
static size_t thrift_list(Thrift *t, int type, int *of) {
    if (type != THRIFT_LIST && type != THRIFT_SET) thrift_fault(t, THRIFT_BAD);
    uint8_t  byte = next_byte(t);
    uint64_t count = byte >> 4 == 15 ? next_varint(t) : byte >> 4;
    *of = byte & 0xF;
    if (count > (uint64_t)(t->end - t->at)) thrift_fault(t, THRIFT_SHORT);
    return t->state == THRIFT_GOOD ? (size_t)count : 0;
}

/* Begins a struct, whose fields the caller reads next. A type other than a struct is a fault. */
static void thrift_struct(Thrift *t, int type) {
    if (type != THRIFT_STRUCT) thrift_fault(t, THRIFT_BAD);
}

/* Skips an element of a list, map or struct. In a list a truth value takes a byte. As a field of a struct it takes
 * none, because it is part of the field's type. */
static void skip(Thrift *t, int type, int depth) {
    size_t bytes;
    int    of;
    if (depth > DEPTH) thrift_fault(t, THRIFT_BAD);
    if (t->state != THRIFT_GOOD) return;
    switch (type) {
    case THRIFT_TRUE: case THRIFT_FALSE: case THRIFT_I8: next_byte(t); break;
    case THRIFT_I16: case THRIFT_I32: case THRIFT_I64: next_varint(t); break;
    case THRIFT_DOUBLE: pass(t, 8); break;
    case THRIFT_UUID: pass(t, 16); break;
    case THRIFT_BINARY: thrift_text(t, type, &bytes); break;
    case THRIFT_LIST: case THRIFT_SET:
        for (size_t count = thrift_list(t, type, &of); count > 0 && t->state == THRIFT_GOOD; count--)
            skip(t, of, depth + 1);
        break;
    case THRIFT_MAP: {
        uint64_t count = next_varint(t);
        uint8_t  types = count > 0 ? next_byte(t) : 0;
        for (; count > 0 && t->state == THRIFT_GOOD; count--) {
            skip(t, types >> 4, depth + 1);
            skip(t, types & 0xF, depth + 1);
        }
        break;
    }
    case THRIFT_STRUCT:
        for (ThriftField f = {0, 0}; thrift_next(t, &f);)
            if (f.type != THRIFT_TRUE && f.type != THRIFT_FALSE) skip(t, f.type, depth + 1);
        break;
    default: thrift_fault(t, THRIFT_BAD);
    }
}

static void thrift_skip(Thrift *t, int type) {
    if (type != THRIFT_TRUE && type != THRIFT_FALSE) skip(t, type, 0);
}

/* --- headers of pages --------------------------------------------------------------------------------------------- */

/* Reads the struct in a page header that describes pages of one kind. */
static void read_description(Thrift *t, int type, PageKind kind, PageHeader *h) {
    const int is_v2 = kind == PAGE_DATA_V2;
    int64_t   definitions = 0, repetitions = 0;
    thrift_struct(t, type);
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        if (f.id == 1) h->values = thrift_int(t, f.type);
        else if (f.id == (is_v2 ? 4 : 2)) h->encoding = (int)thrift_int(t, f.type);
        else if (f.id == 3 && kind == PAGE_DATA) h->level_encoding = (int)thrift_int(t, f.type);
        else if (f.id == 5 && is_v2) definitions = thrift_int(t, f.type);
        else if (f.id == 6 && is_v2) repetitions = thrift_int(t, f.type);
        else if (f.id == 7 && is_v2)
            h->is_packed = f.type == THRIFT_TRUE || f.type == THRIFT_FALSE ? f.type == THRIFT_TRUE
                                                                           : thrift_fault(t, THRIFT_BAD);
        else thrift_skip(t, f.type);
    if (!is_v2) return;
    /* a page with repetition levels gets -1, because a flat column has none */
    h->level_bytes = repetitions != 0 ? -1 : definitions;
    h->level_encoding = ENCODING_RLE;
}

int64_t page_header_parse(const uint8_t *data, size_t bytes, PageHeader *header) {
    Thrift     t = {data, data + bytes, THRIFT_GOOD};
    PageHeader h = {.bytes = -1, .packed_bytes = -1, .values = -1, .encoding = -1, .is_packed = 1};
    int64_t    kind = -1;
    /* kind of page whose struct the header contains; PAGE_INDEX: none of those that are read */
    PageKind   described = PAGE_INDEX;
    for (ThriftField f = {0, 0}; thrift_next(&t, &f);)
        switch (f.id) {
        case 1: kind = thrift_int(&t, f.type); break;
        case 2: h.bytes = thrift_int(&t, f.type); break;
        case 3: h.packed_bytes = thrift_int(&t, f.type); break;
        case 4: h.crc = (uint32_t)thrift_int(&t, f.type), h.has_crc = 1; break;
        case 5: read_description(&t, f.type, described = PAGE_DATA, &h); break;
        case 7: read_description(&t, f.type, described = PAGE_DICTIONARY, &h); break;
        case 8: read_description(&t, f.type, described = PAGE_DATA_V2, &h); break;
        default: thrift_skip(&t, f.type);
        }
    if (t.state == THRIFT_SHORT) return 0;
    if (t.state == THRIFT_BAD || kind < PAGE_DATA || kind > PAGE_DATA_V2 || h.bytes < 0 || h.packed_bytes < 0)
        return -1;
    if (kind != PAGE_INDEX && (kind != (int64_t)described || h.values < 0 || h.level_bytes < 0)) return -1;
    h.kind = (PageKind)kind;
    *header = h;
    return t.at - data;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

static const char *encoding_name(int64_t encoding) {
    static const char *const NAMES[] = {
        "PLAIN", "GROUP_VAR_INT", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED",
        "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
    return encoding >= 0 && encoding < (int64_t)(sizeof NAMES / sizeof *NAMES) ? NAMES[encoding] : "UNKNOWN";
}

static int is_text_encoding(int64_t encoding) {
    return encoding == ENCODING_PLAIN || encoding == ENCODING_PLAIN_DICTIONARY || encoding == ENCODING_DICTIONARY;
}

/* --- compression -------------------------------------------------------------------------------------------------- */

static int unpack_snappy(const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes) {
    size_t made = 0;
    if (snappy_uncompressed_length((const char *)packed, packed_bytes, &made) != SNAPPY_OK || made != bytes) return 0;
    return snappy_uncompress((const char *)packed, packed_bytes, (char *)out, &made) == SNAPPY_OK && made == bytes;
}

/* Unpacks the members of a gzip file one after another, until out is full. */
static int unpack_gzip(const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes) {
    enum { ANY_WRAPPER = 15 + 32 }; /* log2 of the largest window, plus 32 to accept headers of gzip and of zlib */
    z_stream z = {.next_in = (Bytef *)(uintptr_t)packed, .avail_in = (uInt)packed_bytes};
    z.next_out = out, z.avail_out = (uInt)bytes;
    if (inflateInit2(&z, ANY_WRAPPER) != Z_OK) return 0;
    int rc = inflate(&z, Z_FINISH);
    while (rc == Z_STREAM_END && z.avail_in > 0 && z.avail_out > 0 && inflateReset(&z) == Z_OK)
        rc = inflate(&z, Z_FINISH);
    int is_full = rc == Z_STREAM_END && z.avail_out == 0;
    inflateEnd(&z);
    return is_full;
}

static int unpack_zstd(const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes) {
    /* on an error ZSTD_decompress returns a number larger than any size */
    return ZSTD_decompress(out, bytes, packed, packed_bytes) == bytes;
}

/* The codecs, by their number in parquet. `most` is the most bytes that one packed byte can become. It is 0 for a codec
 * that is not read. A snappy copy makes 64 bytes from 3, deflate 258 bytes from 2 bits, a zstd block 128 KiB from 4
 * bytes. */
static const struct {
    const char *name;
    uint64_t    most;
    int (*unpack)(const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes);
} CODECS[] = {{"UNCOMPRESSED", 1, NULL}, {"SNAPPY", 22, unpack_snappy}, {"GZIP", 1032, unpack_gzip}, {"LZO", 0, NULL},
              {"BROTLI", 0, NULL}, {"LZ4", 0, NULL}, {"ZSTD", 1 << 15, unpack_zstd}, {"LZ4_RAW", 0, NULL}};

int page_unpack(int codec, const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes) {
    if (bytes == 0) return 1; /* a page in which all rows are null; some writers pack nothing, others write nothing */
    return CODECS[codec].unpack(packed, packed_bytes, out, bytes);
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

static int begin_run(PageRuns *r) {
    uint64_t head = 0;
    int      shift = 0;
    /* moves to the next whole byte, where bit-packed values end because their number is a multiple of eight */
    r->at += r->bit / 8;
    r->bit = 0;
    for (;; shift += 7) {
        if (r->at == r->end || shift > 28) return 0;
        head |= (uint64_t)(*r->at & 0x7F) << shift;
        if (!(*r->at++ & 0x80)) break;
    }
    r->is_packed = head & 1;
    r->left = r->is_packed ? head / 2 * 8 : head / 2;
    r->value = 0;
    if (r->is_packed) return 1;
    for (int i = 0; i < (r->width + 7) / 8; i++) {
        if (r->at == r->end) return 0;
        r->value |= (uint32_t)*r->at++ << 8 * i;
    }
    return 1;
}

int64_t page_runs_next(PageRuns *r) {
    while (r->left == 0)
        if (!begin_run(r)) return -1;
    r->left--;
    if (!r->is_packed) return (int64_t)r->value;
    uint64_t first = r->bit / 8, last = (r->bit + (uint64_t)r->width + 7) / 8, word = 0;
    if (last > (uint64_t)(r->end - r->at)) return -1;
    memcpy(&word, r->at + first, (size_t)(last - first));
    word = word >> r->bit % 8 & ((1ull << r->width) - 1);
    r->bit += (uint64_t)r->width;
    return (int64_t)word;
}

/* --- the footer: its schema --------------------------------------------------------------------------------------- */

enum { BYTE_ARRAY = 6, OPTIONAL = 1 };
/* FAULT() writes the reason into `fault` and has the value -1. REFUSE() makes its caller return 0 instead. */
#define FAULT(...) (snprintf(fault, PARQUET_FAULT_CHARS, __VA_ARGS__), -1)
#define REFUSE(...) return snprintf(fault, PARQUET_FAULT_CHARS, __VA_ARGS__), 0
#define REFUSE_DAMAGED(...) REFUSE("is damaged: its footer " __VA_ARGS__)
/* Cure for a column in a form that this program does not read. */
#define REWRITE "; with the package pyarrow $ python3 -c 'import sys, pyarrow.parquet as p; " \
                "p.write_table(p.read_table(sys.argv[1]), \"NEW.parquet\")' FILE writes it anew"

/* A node of the tree of columns in the footer. In the list of nodes each node precedes its children. */
typedef struct {
    char    name[NAME_CHARS];
    int     is_field;                    /* 1 if the name of the node is that of the wanted column */
    /* fields of SchemaElement in parquet.thrift; type: -1 for a group of columns */
    int64_t type, repetition, children;
    /* what the bytes of a value mean, in the older form (ConvertedType) and in the newer one (LogicalType); -1: not
     * given */
    int64_t converted, logical;
} Node;

static Node read_node(Thrift *t, const char *field) {
    Node           n = {.type = -1, .converted = -1, .logical = -1};
    const uint8_t *name = NULL;
    size_t         bytes = 0;
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        switch (f.id) {
        case 1:  n.type = thrift_int(t, f.type); break;
        case 3:  n.repetition = thrift_int(t, f.type); break;
        case 4:  name = thrift_text(t, f.type, &bytes); break;
        case 5:  n.children = thrift_int(t, f.type); break;
        case 6:  n.converted = thrift_int(t, f.type); break;
        case 10: /* the logical type is a union: the number of its only field says what the bytes mean */
            thrift_struct(t, f.type);
            for (ThriftField u = {0, 0}; thrift_next(t, &u); thrift_skip(t, u.type)) n.logical = u.id;
            break;
        default: thrift_skip(t, f.type);
        }
    if (name)
        snprintf(n.name, sizeof n.name, "%.*s", (int)(bytes < NAME_CHARS ? bytes : NAME_CHARS), (const char *)name);
    n.is_field = bytes == strlen(field) && bytes > 0 && memcmp(name, field, bytes) == 0;
    return n;
}

/* Skips the nodes below a node that has `children` children. Returns how many of the skipped nodes are leaves. *left is
 * the number of nodes that remain in the list. */
static int64_t pass_children(Thrift *t, int64_t children, size_t *left) {
    int64_t leaves = 0;
    while (children > 0 && *left > 0 && t->state == THRIFT_GOOD) {
        Node n = read_node(t, "");
        if (n.children < 0 || n.children > (int64_t)*left) t->state = THRIFT_BAD;
        children += n.children - 1;
        leaves += n.type >= 0;
        --*left;
    }
    return leaves;
}

/* Returns the name of the column's type if its bytes are not text, otherwise NULL. */
static const char *meaning(const Node *n) {
    enum { DECIMAL = 5, BSON = 20, DECIMAL_TYPE = 5, BSON_TYPE = 13, GEOMETRY = 17, GEOGRAPHY = 18 };
    if (n->converted == DECIMAL || n->logical == DECIMAL_TYPE) return "DECIMAL";
    if (n->converted == BSON || n->logical == BSON_TYPE) return "BSON";
    return n->logical == GEOMETRY ? "GEOMETRY" : n->logical == GEOGRAPHY ? "GEOGRAPHY" : NULL;
}

static int is_text(const Node *n, const char *name, char *fault) {
    enum { LIST = 3, LIST_TYPE = 3, REPEATED = 2 };
    static const char *const TYPES[] = {"BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY",
                                        "FIXED_LEN_BYTE_ARRAY"};
    if (n->converted == LIST || n->logical == LIST_TYPE)
        REFUSE("has lists instead of texts in its column %s; write each text of a list as a row of its own", name);
    if (n->type < 0)
        REFUSE("has columns nested in its column %s instead of texts; write the column with the text at the top level",
               name);
    if (n->repetition >= REPEATED)
        REFUSE("has several values in each row of its column %s; write each value as a row of its own", name);
    if (n->type != BYTE_ARRAY || meaning(n))
        REFUSE("has values of type %s in its column %s, not texts; name another column by field=NAME, or write this "
               "one as strings",
               n->type == BYTE_ARRAY ? meaning(n) : n->type < 8 ? TYPES[n->type] : "UNKNOWN", name);
    return 1;
}

/* Appends the name of a column to a list of names for messages. If it does not fit, the list ends in "...". */
static void list_name(char names[NAMES_CHARS], const Node *n) {
    char   shown[NAME_CHARS + 16];
    size_t used = strlen(names);
    if (used > 0 && names[used - 1] == '.') return;
    json_quote_short(shown, sizeof shown, n->name);
    if (used + 2 + strlen(shown) + sizeof ", ..." > NAMES_CHARS) snprintf(shown, sizeof shown, "...");
    snprintf(names + used, NAMES_CHARS - used, used ? ", %s" : "%s", shown);
}

/* Finds the column `field` among the top-level nodes of the schema. Returns its index among the leaves, which is its
 * index in every group of rows. On a fault returns -1 with the reason in fault. */
static int64_t find_column(Thrift t, int type, const char *field, const char *name, ParquetColumn *column,
                           char *fault) {
    char    names[NAMES_CHARS] = "";
    int     of, found = 0;
    int64_t leaves = 0, leaf = -1;
    size_t  left = thrift_list(&t, type, &of);
    Node    root = {.children = 0}, wanted = root;
    if (left > 0) thrift_struct(&t, of), root = read_node(&t, ""), left--;
    for (int64_t i = 0; i < root.children && left > 0 && t.state == THRIFT_GOOD; i++) {
        Node n = read_node(&t, field);
        left--;
        if (n.is_field) wanted = n, leaf = leaves, found++;
        list_name(names, &n);
        leaves += n.type >= 0 ? 1 : pass_children(&t, n.children, &left);
    }
    if (t.state != THRIFT_GOOD || root.children < 1)
        return FAULT("is damaged: its footer describes no columns; copy or download it again");
    if (!found)
        return FAULT("has no column %s; its columns are %s: give field=NAME of the one with the text", name, names);
    if (found > 1) return FAULT("has %d columns named %s, so it is unknown which one to read; rename or remove all "
                                "but one of them", found, name);
    if (!is_text(&wanted, name, fault)) return -1;
    column->is_optional = wanted.repetition == OPTIONAL;
    return leaf;
}

/* --- the footer: its groups of rows ------------------------------------------------------------------------------- */

typedef struct {
    int64_t type, codec, values, bytes, first_page, dictionary, bad_encoding;
    int     is_field, is_elsewhere, is_encrypted;
} Meta;

static void read_column_meta(Thrift *t, int type, const char *field, Meta *m) {
    int of;
    thrift_struct(t, type);
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        switch (f.id) {
        case 1:  m->type = thrift_int(t, f.type); break;
        case 2:
            for (size_t count = thrift_list(t, f.type, &of); count > 0; count--) {
                int64_t encoding = thrift_int(t, of);
                if (!is_text_encoding(encoding) && encoding != ENCODING_RLE && encoding != ENCODING_BIT_PACKED)
                    m->bad_encoding = encoding;
            }
            break;
        case 3: { /* the path in the tree of columns; that of the column `field` consists of its name alone */
            size_t count = thrift_list(t, f.type, &of), bytes;
            m->is_field = 0;
            for (size_t i = 0; i < count && t->state == THRIFT_GOOD; i++) {
                const uint8_t *name = thrift_text(t, of, &bytes);
                m->is_field = count == 1 && bytes == strlen(field) && memcmp(name, field, bytes) == 0;
            }
            break;
        }
        case 4:  m->codec = thrift_int(t, f.type); break;
        case 5:  m->values = thrift_int(t, f.type); break;
        case 7:  m->bytes = thrift_int(t, f.type); break;
        case 9:  m->first_page = thrift_int(t, f.type); break;
        case 11: m->dictionary = thrift_int(t, f.type); break;
        default: thrift_skip(t, f.type);
        }
}

static Meta read_column(Thrift *t, int type, const char *field) {
    Meta   m = {.type = -1, .codec = -1, .values = -1, .bytes = -1, .first_page = -1, .bad_encoding = -1};
    size_t bytes;
    thrift_struct(t, type);
    for (ThriftField f = {0, 0}; thrift_next(t, &f);) {
        m.is_encrypted |= f.id == 8;
        if (f.id == 1) thrift_text(t, f.type, &bytes), m.is_elsewhere = bytes > 0;
        else if (f.id == 3) read_column_meta(t, f.type, field, &m);
        else thrift_skip(t, f.type);
    }
    return m;
}

/* Reads one group of rows of the footer. Returns what it says about column `leaf`. *rows is the group's number of rows,
 * -1 if it is not given. */
static Meta read_group(Thrift *t, int type, int64_t leaf, const char *field, int64_t *rows) {
    Meta m = {.type = -1};
    int  of;
    *rows = -1;
    thrift_struct(t, type);
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        if (f.id == 1) {
            for (int64_t i = 0, count = (int64_t)thrift_list(t, f.type, &of); i < count && t->state == THRIFT_GOOD; i++)
                if (i == leaf) m = read_column(t, of, field);
                else skip(t, of, 0);
        } else if (f.id == 3) {
            *rows = thrift_int(t, f.type);
        } else {
            thrift_skip(t, f.type);
        }
    return m;
}

static int take_chunk(const Meta *m, int64_t rows, uint64_t offset, const char *name, ParquetColumn *column,
                      char *fault) {
    long long group = (long long)column->chunks + 1;
    int       is_known = m->codec >= 0 && m->codec < (int64_t)(sizeof CODECS / sizeof *CODECS);
    int64_t   start = m->dictionary > 0 && m->dictionary < m->first_page ? m->dictionary : m->first_page;
    if (m->is_encrypted) REFUSE("has its column %s encrypted; write the file without encryption", name);
    if (m->is_elsewhere) REFUSE("refers for its column %s to another file; name the files that hold the data instead",
                                name);
    if (m->type != BYTE_ARRAY || !m->is_field)
        REFUSE_DAMAGED("has no column %s in row group %lld; copy or download it again", name, group);
    if (!is_known || CODECS[m->codec].most == 0)
        REFUSE("has its column %s packed by %s; only snappy, gzip and zstd are read" REWRITE, name,
               is_known ? CODECS[m->codec].name : "UNKNOWN");
    if (m->bad_encoding >= 0)
        REFUSE("has its column %s encoded as %s; only PLAIN and dictionaries are read" REWRITE, name,
               encoding_name(m->bad_encoding));
    if (rows < 0 || m->values != rows || rows > INT64_MAX - column->rows)
        REFUSE_DAMAGED("says that row group %lld has %lld rows, and %lld values of %s; copy or download it again",
                       group, (long long)rows, (long long)m->values, name);
    if (rows == 0) return 1; /* a group without rows needs no page, so its place in the file is not checked */
    if (start < 4 || m->bytes < 0 || (uint64_t)start > offset || (uint64_t)m->bytes > offset - (uint64_t)start)
        REFUSE_DAMAGED("places %lld bytes of row group %lld of %s at byte %lld of %llu; copy or download it again",
                       (long long)m->bytes, group, name, (long long)start, (unsigned long long)offset);
    const ParquetChunk *before = column->chunks ? &column->chunk[column->chunks - 1] : NULL;
    /* refuses overlapping chunks, because with them a small file could hold any amount of text */
    if (before && (uint64_t)start < before->offset + before->bytes)
        REFUSE_DAMAGED("has row group %lld of %s begin within the one before; copy or download it again", group, name);
    column->chunk = xgrow(column->chunk, column->chunks, sizeof *column->chunk, "the footer of a parquet file");
    column->chunk[column->chunks++] = (ParquetChunk){(uint64_t)start, (uint64_t)m->bytes, rows, (int)m->codec};
    column->rows += rows;
    return 1;
}

int parquet_footer_parse(const uint8_t *footer, size_t bytes, uint64_t offset, const char *field, ParquetColumn *column,
                         char fault[PARQUET_FAULT_CHARS]) {
    Thrift  t = {footer, footer + bytes, THRIFT_GOOD}, schema = t, groups = t;
    int     schema_type = 0, groups_type = 0, is_encrypted = 0, of, is_good = 1;
    int64_t rows = -1, leaf;
    char    name[NAME_CHARS];
    *column = (ParquetColumn){.chunk = NULL};
    json_quote_short(name, sizeof name, field);
    for (ThriftField f = {0, 0}; thrift_next(&t, &f);) {
        if (f.id == 2) schema = t, schema_type = f.type;
        if (f.id == 4) groups = t, groups_type = f.type;
        if (f.id == 8) is_encrypted = 1;
        if (f.id == 3) rows = thrift_int(&t, f.type);
        else thrift_skip(&t, f.type);
    }
    if (t.state != THRIFT_GOOD || !schema_type || !groups_type)
        REFUSE_DAMAGED("cannot be understood; copy or download it again");
    leaf = find_column(schema, schema_type, field, name, column, fault);
    if (leaf < 0) return 0;
    for (size_t count = thrift_list(&groups, groups_type, &of); is_good && count > 0; count--) {
        int64_t group_rows;
        Meta    m = read_group(&groups, of, leaf, field, &group_rows);
        m.is_encrypted |= is_encrypted && m.type < 0;
        is_good = take_chunk(&m, group_rows, offset, name, column, fault);
    }
    if (is_good && rows == column->rows) return 1;
    free(column->chunk), column->chunk = NULL;
    if (!is_good) return 0;
    REFUSE_DAMAGED("says %lld rows, and its row groups have %lld; copy or download it again", (long long)rows,
                   (long long)column->rows);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

typedef struct { uint8_t *data; size_t room; } Buffer; /* owned: data [room]; grows by make_room() */
typedef struct { const uint8_t *text; uint32_t bytes; } Entry;

struct Parquet {
    char         *path;                       /* owned: path of the file, for messages */
    char          name[NAME_CHARS];           /* name of the column in quotes, for messages */
    int           fd;
    ParquetColumn column;
    int64_t       next_chunk;
    /* places in the file: the next page of the chunk, and the end of the chunk (the column's pages in one group of
     * rows) */
    uint64_t      at, end;
    int           codec;
    /* rows left in the pages of the chunk that are not read yet, and in the current page */
    int64_t       chunk_left, page_left;
    Buffer        packed, page, dictionary;
    Entry        *entry;                      /* owned [entry_room]: texts of the chunk's dictionary */
    int64_t       entries, entry_room;
    /* 1 if the current page holds indices of texts in the dictionary, 0 if it holds the texts themselves */
    int           is_by_dictionary;
    /* the current page; levels: 1 for each text, 0 for each null; indices: index of each text in the dictionary */
    PageRuns      levels, indices;
    const uint8_t *value, *value_end;
};

static int damaged(const Parquet *p, char *fault, const char *what) {
    return FAULT("is damaged before byte %llu, row group %lld of its column %s: %s; copy or download it again",
                 (unsigned long long)p->at, (long long)p->next_chunk, p->name, what);
}

/* Reads bytes of the file. Returns 1, or -1 with the reason in fault if the file has become shorter. Exits with 74 if
 * it cannot be read. */
static int read_bytes(const Parquet *p, void *data, size_t bytes, uint64_t offset, char *fault) {
    int rc = io_pread(p->fd, data, bytes, offset);
    if (rc == 0) return 1;
    if (rc != -ENODATA)
        fail(EXIT_IO, "cannot read %s at byte %llu: %s", p->path, (unsigned long long)offset, io_error_text(rc));
    return FAULT("is truncated: it was cut short while it was read; copy or download it again when no program writes "
                 "it");
}

/* Makes the buffer at least `bytes` bytes large and returns it. Its contents are lost. */
static uint8_t *make_room(Buffer *b, size_t bytes) {
    if (bytes > b->room) {
        free(b->data);
        b->data = xmalloc(bytes, "a part of a parquet file");
        b->room = bytes;
    }
    return b->data;
}

/* --- pages of the file -------------------------------------------------------------------------------------------- */

/* Reads the header of the page at p->at and moves p->at after it. Returns 1, or -1 with the reason in fault. A header
 * is read in growing attempts, because it may hold statistics and be long. */
static int read_header(Parquet *p, PageHeader *h, char *fault) {
    for (size_t room = HEADER_GUESS;; room *= 8) {
        uint64_t left = p->end - p->at;
        size_t   bytes = left < room ? (size_t)left : room;
        uint8_t *data = make_room(&p->packed, bytes + 1);
        if (read_bytes(p, data, bytes, p->at, fault) < 0) return -1;
        int64_t length = page_header_parse(data, bytes, h);
        if (length > 0) {
            p->at += (uint64_t)length;
            break;
        }
        if (length < 0 || bytes == left || room >= PAGE_HEADER_LIMIT)
            return damaged(p, fault, "no valid header of a page was found there");
    }
    if (h->bytes > PAGE_LIMIT || h->packed_bytes > PAGE_LIMIT)
        return FAULT("has a page of %lld bytes in its column %s, and 1 GiB is the most; write smaller pages",
                     (long long)(h->bytes > h->packed_bytes ? h->bytes : h->packed_bytes), p->name);
    if ((uint64_t)h->packed_bytes > p->end - p->at) return damaged(p, fault, "a page is longer than its column");
    return 1;
}

/* Reads the page that follows the header h. Unpacks its levels and values into *out. Returns 1, or -1 with the reason
 * in fault. */
static int read_page(Parquet *p, const PageHeader *h, Buffer *out, char *fault) {
    size_t   packed_bytes = (size_t)h->packed_bytes, bytes = (size_t)h->bytes, plain = (size_t)h->level_bytes;
    int      codec = h->is_packed ? p->codec : 0;
    if (plain > packed_bytes || plain > bytes) return damaged(p, fault, "a page is shorter than its own list of nulls");
    /* checked before memory for the unpacked page is allocated */
    if (bytes - plain > (packed_bytes - plain) * CODECS[codec].most)
        return damaged(p, fault, "a compressed page is too short for the size that its header gives");
    uint8_t *packed = make_room(codec ? &p->packed : out, packed_bytes + 1);
    if (read_bytes(p, packed, packed_bytes, p->at, fault) < 0) return -1;
    p->at += packed_bytes;
    if (h->has_crc && crc32_z(crc32(0, NULL, 0), packed, packed_bytes) != h->crc)
        return damaged(p, fault, "the bytes of a page do not match its checksum");
    if (codec == 0) return packed_bytes == bytes ? 1 : damaged(p, fault, "a page that is not compressed has two "
                                                               "different lengths");
    uint8_t *data = make_room(out, bytes + 1);
    memcpy(data, packed, plain);
    if (!page_unpack(codec, packed + plain, packed_bytes - plain, data + plain, bytes - plain))
        return damaged(p, fault, "a page cannot be unpacked");
    return 1;
}

static uint32_t length_at(const uint8_t *at) { return (uint32_t)little_endian(at, 4); }

/* Reads the next text of a sequence in which each text follows its length. Returns 0 if there is none. */
static int next_text(const uint8_t **at, const uint8_t *end, Entry *text) {
    if (end - *at < 4) return 0;
    uint32_t bytes = length_at(*at);
    if (bytes > (uint64_t)(end - *at - 4)) return 0;
    *text = (Entry){*at + 4, bytes};
    *at += 4 + bytes;
    return 1;
}

static int take_dictionary(Parquet *p, const PageHeader *h, char *fault) {
    if (p->entries >= 0) return damaged(p, fault, "the column has two dictionaries");
    if (h->encoding != ENCODING_PLAIN && h->encoding != ENCODING_PLAIN_DICTIONARY)
        return damaged(p, fault, "the dictionary of the column is not encoded as PLAIN");
    if (h->values > h->bytes / 4) return damaged(p, fault, "the dictionary of the column is too short for its number "
                                                 "of texts");
    if (read_page(p, h, &p->dictionary, fault) < 0) return -1;
    if (h->values > p->entry_room) {
        free(p->entry);
        p->entry = xmalloc(sizeof *p->entry * (size_t)h->values, "the dictionary of a parquet file");
        p->entry_room = h->values;
    }
    const uint8_t *at = p->dictionary.data, *end = at + h->bytes;
    for (p->entries = 0; p->entries < h->values; p->entries++)
        if (!next_text(&at, end, &p->entry[p->entries]))
            return damaged(p, fault, "a text in the dictionary of the column is longer than the page");
    return 1;
}

static int refuse_encoding(const Parquet *p, const char *what, int encoding, char *fault) {
    return FAULT("has its column %s with %s encoded as %s, which this program does not read; write the column with the "
                 "encoding PLAIN or a dictionary", p->name, what, encoding_name(encoding));
}

static int take_data(Parquet *p, const PageHeader *h, char *fault) {
    enum { WIDEST = 32 };
    if (h->values > p->chunk_left) return damaged(p, fault, "the column has more rows than the footer of the file "
                                                  "says");
    if (!is_text_encoding(h->encoding)) return refuse_encoding(p, "texts", h->encoding, fault);
    p->is_by_dictionary = h->encoding != ENCODING_PLAIN;
    if (p->is_by_dictionary && p->entries < 0) return damaged(p, fault, "a page needs a dictionary, and there is none");
    if (read_page(p, h, &p->page, fault) < 0) return -1;
    const uint8_t *at = p->page.data, *end = at + h->bytes;
    /* the levels, which say which rows are null, precede the values; in a page of version 1 their length precedes
     * them */
    uint64_t level_bytes = (uint64_t)h->level_bytes;
    if (h->kind == PAGE_DATA && p->column.is_optional) {
        if (h->level_encoding != ENCODING_RLE) return refuse_encoding(p, "nulls", h->level_encoding, fault);
        if (end - at < 4) return damaged(p, fault, "a page is shorter than its own list of nulls");
        level_bytes = length_at(at);
        at += 4;
    }
    if (level_bytes > (uint64_t)(end - at)) return damaged(p, fault, "a page is shorter than its own list of nulls");
    p->levels = (PageRuns){.at = at, .end = at + level_bytes, .width = 1};
    at += level_bytes;
    p->chunk_left -= h->values;
    p->page_left = h->values;
    p->value = at, p->value_end = end;
    p->indices = (PageRuns){.at = at, .end = end};
    /* if all rows are null, the page ends here, without even the bit width of dictionary indices */
    if (!p->is_by_dictionary || at == end) return 1;
    p->indices.width = *p->indices.at++;
    return p->indices.width <= WIDEST ? 1 : damaged(p, fault, "the indices of a page are wider than 32 bits");
}

/* Reads the next page, of any kind, or moves to the next group of rows. Returns 1, 0 after the last page, or -1 with
 * the reason in fault. */
static int next_page(Parquet *p, char *fault) {
    PageHeader h;
    if (p->chunk_left == 0) {
        if (p->next_chunk == p->column.chunks) return 0;
        const ParquetChunk *c = &p->column.chunk[p->next_chunk++];
        p->at = c->offset, p->end = c->offset + c->bytes;
        p->codec = c->codec;
        p->chunk_left = c->rows;
        p->entries = -1;
        return 1;
    }
    if (read_header(p, &h, fault) < 0) return -1;
    switch (h.kind) {
    case PAGE_DICTIONARY: return take_dictionary(p, &h, fault);
    case PAGE_DATA: case PAGE_DATA_V2: return take_data(p, &h, fault);
    case PAGE_INDEX: p->at += (uint64_t)h.packed_bytes;
    }
    return 1;
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

int parquet_next(Parquet *p, const char **text, size_t *bytes, char fault[PARQUET_FAULT_CHARS]) {
    Entry entry = {NULL, 0};
    while (p->page_left == 0) {
        int more = next_page(p, fault);
        if (more <= 0) return more;
    }
    p->page_left--;
    int64_t level = p->column.is_optional ? page_runs_next(&p->levels) : 1;
    if (level < 0 || level > 1)
        return damaged(p, fault, "a page marks fewer rows than it has, or some as neither text nor null");
    if (level == 1 && p->is_by_dictionary) {
        int64_t index = page_runs_next(&p->indices);
        if (index < 0 || index >= p->entries)
            return damaged(p, fault, "a page has fewer texts than rows, or one that is not in its dictionary");
        entry = p->entry[index];
    } else if (level == 1 && !next_text(&p->value, p->value_end, &entry)) {
        return damaged(p, fault, "a text is longer than its page");
    }
    *text = (const char *)entry.text;
    *bytes = entry.bytes;
    return 1;
}

int64_t parquet_rows(const Parquet *p) { return p->column.rows; }

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Reads the footer. It is followed by the last eight bytes of the file: the footer's length, and PAR1. Returns 1, or -1
 * with the reason in fault. */
static int read_footer(Parquet *p, uint64_t file_bytes, const char *field, char *fault) {
    uint8_t  head[MAGIC_BYTES], tail[TAIL_BYTES];
    uint64_t end = file_bytes - TAIL_BYTES;
    if (read_bytes(p, head, sizeof head, 0, fault) < 0 || read_bytes(p, tail, sizeof tail, end, fault) < 0) return -1;
    uint32_t bytes = length_at(tail);
    if (memcmp(head, "PARE", 4) == 0 || memcmp(tail + 4, "PARE", 4) == 0)
        return FAULT("is encrypted (PARE); write the file without encryption");
    if (memcmp(head, "PAR1", 4) != 0)
        return FAULT("is no parquet file: it does not begin with PAR1; format=text or format=jsonl reads it as text or "
                     "JSON Lines");
    if (memcmp(tail + 4, "PAR1", 4) != 0)
        return FAULT("does not end with its footer (PAR1): it was cut off, or bytes were added behind its end; "
                     "copy or download it again");
    if (bytes <= end - MAGIC_BYTES && bytes > PAGE_LIMIT)
        return FAULT("has a footer of %u bytes, and 1 GiB is the most that is read; write the rows as several files",
                     bytes);
    if (bytes > end - MAGIC_BYTES)
        return FAULT("is damaged: its footer of %u bytes is longer than the file; copy or download it again", bytes);
    uint8_t *footer = make_room(&p->page, (size_t)bytes + 1);
    int      is_good = read_bytes(p, footer, bytes, end - bytes, fault) > 0 &&
                  parquet_footer_parse(footer, bytes, end - bytes, field, &p->column, fault);
    free(p->page.data);
    p->page = (Buffer){NULL, 0};
    return is_good ? 1 : -1;
}

int parquet_open(Parquet **file, const char *path, const char *field, char fault[PARQUET_FAULT_CHARS]) {
    int64_t bytes = io_file_bytes(path);
    if (bytes == -ENOENT) REFUSE("is not there: correct the path");
    if (bytes == -EISDIR) REFUSE("is a folder, no parquet file: name a file");
    if (bytes >= 0 && bytes < MAGIC_BYTES + TAIL_BYTES)
        REFUSE("is truncated, or is not a parquet file: the file has %lld bytes; copy or download it again",
               (long long)bytes);
    int      fd = bytes < 0 ? (int)bytes : io_open(path, IO_READ);
    Parquet *p = xcalloc(1, sizeof *p, "reading a parquet file");
    if (fd < 0) fail(EXIT_IO, "cannot read %s: %s", path, io_error_text(fd));
    p->path = xstrdup(path, "reading a parquet file");
    json_quote_short(p->name, sizeof p->name, field);
    p->fd = fd;
    if (read_footer(p, (uint64_t)bytes, field, fault) < 0) {
        parquet_close(p);
        return 0;
    }
    *file = p;
    return 1;
}

void parquet_close(Parquet *p) {
    io_close(p->fd);
    free(p->column.chunk);
    free(p->packed.data), free(p->page.data), free(p->dictionary.data), free(p->entry), free(p->path);
    free(p);
}
