/* parquet_footer.c - see parquet_footer.h. */
#include "data/parquet_footer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/error.h"
#include "data/parquet_page.h"
#include "data/thrift.h"

enum { BYTE_ARRAY = 6, OPTIONAL = 1, NAME_CHARS = 64, NAMES_CHARS = 160 };
#define REFUSE(...) return snprintf(fault, PARQUET_FAULT_CHARS, __VA_ARGS__), 0
#define REFUSE_DAMAGED(...) REFUSE("is damaged: its footer " __VA_ARGS__)

/* --- the schema --------------------------------------------------------------------------------------------------- */

/* A node of the tree of columns. In the list of nodes each node is before its children. */
typedef struct {
    char    name[NAME_CHARS];
    int     is_field;                    /* 1 if the node is the wanted column */
    int64_t type, repetition, children;  /* type is -1 for a group */
    int64_t converted, logical;          /* meaning of the bytes, in the older and the newer form; -1: not given */
} Node;

static int64_t read_union(Thrift *t, int type) {
    ThriftField f = {0, 0};
    int64_t     id = -1;
    thrift_struct(t, type);
    while (thrift_next(t, &f)) {
        id = f.id;
        thrift_skip(t, f.type);
    }
    return id;
}

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
        case 10: n.logical = read_union(t, f.type); break;
        default: thrift_skip(t, f.type);
        }
    if (name)
        snprintf(n.name, sizeof n.name, "%.*s", (int)(bytes < NAME_CHARS ? bytes : NAME_CHARS), (const char *)name);
    n.is_field = bytes == strlen(field) && bytes > 0 && memcmp(name, field, bytes) == 0;
    return n;
}

/* Skips the nodes below a node with `children` children. Returns the number of leaves among them. *left is the number
 * of nodes left in the list. */
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

static const char *type_name(int64_t type) {
    static const char *const NAMES[] = {"BOOLEAN", "INT32",  "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY",
                                        "FIXED_LEN_BYTE_ARRAY"};
    return type >= 0 && type < 8 ? NAMES[type] : "UNKNOWN";
}

/* Returns the name of the bytes' meaning if they are no text, otherwise NULL. */
static const char *meaning(const Node *n) {
    enum { DECIMAL = 5, BSON = 20, DECIMAL_TYPE = 5, BSON_TYPE = 13, GEOMETRY = 17, GEOGRAPHY = 18 };
    if (n->converted == DECIMAL || n->logical == DECIMAL_TYPE) return "DECIMAL";
    if (n->converted == BSON || n->logical == BSON_TYPE) return "BSON";
    return n->logical == GEOMETRY ? "GEOMETRY" : n->logical == GEOGRAPHY ? "GEOGRAPHY" : NULL;
}

static int is_text(const Node *n, const char *name, char *fault) {
    enum { LIST = 3, LIST_TYPE = 3, REPEATED = 2 };
    if (n->converted == LIST || n->logical == LIST_TYPE)
        REFUSE("has lists in its column %s, not texts; write each text of a list as a row of its own", name);
    if (n->type < 0)
        REFUSE("has columns nested in its column %s, not texts; write the one with the text at the top level", name);
    if (n->repetition >= REPEATED)
        REFUSE("has several values a row in its column %s; write each as a row of its own", name);
    if (n->type != BYTE_ARRAY || meaning(n))
        REFUSE("has %s in its column %s, not texts; name another column, or write it as strings",
               n->type == BYTE_ARRAY ? meaning(n) : type_name(n->type), name);
    return 1;
}

/* Appends a name to the list of the file's columns. If it does not fit, the list ends in "...". */
static void list_name(char names[NAMES_CHARS], const Node *n) {
    char   shown[NAME_CHARS + 16];
    size_t used = strlen(names);
    if (used > 0 && names[used - 1] == '.') return;
    json_quote_short(shown, sizeof shown, n->name);
    if (used + 2 + strlen(shown) + sizeof ", ..." > NAMES_CHARS) snprintf(shown, sizeof shown, "...");
    snprintf(names + used, NAMES_CHARS - used, used ? ", %s" : "%s", shown);
}

/* Finds the field among the top-level nodes. Returns its place among the leaves, which is its place in every group of
 * rows, or -1 with the fault. */
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
    snprintf(fault, PARQUET_FAULT_CHARS, "is damaged: its footer describes no columns; copy or download it again");
    if (t.state != THRIFT_GOOD || root.children < 1) return -1;
    snprintf(fault, PARQUET_FAULT_CHARS, "has no column %s; its columns are %s: give field=NAME of the one with the text", name, names);
    if (!found) return -1;
    snprintf(fault, PARQUET_FAULT_CHARS, "has %d columns %s; write it with one", found, name);
    if (found > 1 || !is_text(&wanted, name, fault)) return -1;
    column->is_optional = wanted.repetition == OPTIONAL;
    return leaf;
}

/* --- groups of rows ----------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t type, codec, values, bytes, first_page, dictionary, bad_encoding;
    int     is_field, is_elsewhere, is_encrypted;
} Meta;

static int64_t find_bad_encoding(Thrift *t, int type) {
    int     of;
    int64_t bad = -1;
    for (size_t count = thrift_list(t, type, &of); count > 0; count--) {
        int64_t encoding = thrift_int(t, of);
        if (!page_encoding_is_built_in(encoding) && encoding != ENCODING_RLE && encoding != ENCODING_BIT_PACKED)
            bad = encoding;
    }
    return bad;
}

/* Returns 1 if this path of names consists of the field alone. */
static int is_path(Thrift *t, int type, const char *field) {
    int    of, is_field = 0;
    size_t count = thrift_list(t, type, &of);
    for (size_t i = 0; i < count && t->state == THRIFT_GOOD; i++) {
        size_t         bytes;
        const uint8_t *name = thrift_text(t, of, &bytes);
        is_field = count == 1 && bytes == strlen(field) && memcmp(name, field, bytes) == 0;
    }
    return is_field;
}

static void read_column_meta(Thrift *t, int type, const char *field, Meta *m) {
    thrift_struct(t, type);
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        switch (f.id) {
        case 1:  m->type = thrift_int(t, f.type); break;
        case 2:  m->bad_encoding = find_bad_encoding(t, f.type); break;
        case 3:  m->is_field = is_path(t, f.type, field); break;
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
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        switch (f.id) {
        case 1:  thrift_text(t, f.type, &bytes), m.is_elsewhere = bytes > 0; break;
        case 3:  read_column_meta(t, f.type, field, &m); break;
        case 8:  m.is_encrypted = 1, thrift_skip(t, f.type); break;
        default: thrift_skip(t, f.type);
        }
    return m;
}

/* Reads one group of rows. *rows is its number of rows, -1 if it has none written. */
static Meta read_group(Thrift *t, int type, int64_t leaf, const char *field, int64_t *rows) {
    Meta m = {.type = -1};
    int  of;
    *rows = -1;
    thrift_struct(t, type);
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        switch (f.id) {
        case 1:
            for (int64_t i = 0, count = (int64_t)thrift_list(t, f.type, &of); i < count && t->state == THRIFT_GOOD; i++)
                if (i == leaf) m = read_column(t, of, field);
                else thrift_skip_element(t, of);
            break;
        case 3:  *rows = thrift_int(t, f.type); break;
        default: thrift_skip(t, f.type);
        }
    return m;
}

static int take_chunk(const Meta *m, int64_t rows, uint64_t offset, const char *name, ParquetColumn *column,
                      char *fault) {
    long long group = (long long)column->chunks + 1;
    int64_t   start = m->dictionary > 0 && m->dictionary < m->first_page ? m->dictionary : m->first_page;
    if (m->is_encrypted) REFUSE("has its column %s encrypted; write it without encryption", name);
    if (m->is_elsewhere) REFUSE("has its column %s in another file; name the files with the data instead", name);
    if (m->type != BYTE_ARRAY || !m->is_field)
        REFUSE_DAMAGED("has no column %s in row group %lld; copy or download it again", name, group);
    if (!page_codec_is_built_in(m->codec))
        REFUSE("has its column %s packed by %s, which is not built in; write it uncompressed, or packed by snappy, "
               "gzip or zstd", name, page_codec_name(m->codec));
    if (m->bad_encoding >= 0)
        REFUSE("has its column %s encoded as %s, which is not built in; write it with the encoding PLAIN or a "
               "dictionary", name, page_encoding_name(m->bad_encoding));
    if (rows < 0 || m->values != rows || rows > INT64_MAX - column->rows)
        REFUSE_DAMAGED("says that row group %lld has %lld rows, and %lld values of %s; copy or download it again",
                       group, (long long)rows, (long long)m->values, name);
    if (rows == 0) return 1; /* a group without rows needs no page and no place */
    if (start < 4 || m->bytes < 0 || (uint64_t)start > offset || (uint64_t)m->bytes > offset - (uint64_t)start)
        REFUSE_DAMAGED("places %lld bytes of row group %lld of %s at byte %lld of %llu; copy or download it again",
                       (long long)m->bytes, group, name, (long long)start, (unsigned long long)offset);
    const ParquetChunk *before = column->chunks ? &column->chunk[column->chunks - 1] : NULL;
    /* overlapping chunks would let a small file hold any amount of text */
    if (before && (uint64_t)start < before->offset + before->bytes)
        REFUSE_DAMAGED("has row group %lld of %s begin within the one before; copy or download it again", group, name);
    if ((column->chunks & (column->chunks - 1)) == 0) { /* the list is full at each power of two */
        size_t        room = column->chunks ? 2 * (size_t)column->chunks : 1;
        ParquetChunk *chunk = xrealloc(column->chunk, sizeof *chunk * room, "the footer of a parquet file");
        column->chunk = chunk;
    }
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
    if (is_good && rows != column->rows) {
        snprintf(fault, PARQUET_FAULT_CHARS,
                 "is damaged: its footer says %lld rows, and its row groups have %lld; copy or download it again",
                 (long long)rows, (long long)column->rows);
        is_good = 0;
    }
    if (!is_good) parquet_footer_free(column);
    return is_good;
}

void parquet_footer_free(ParquetColumn *column) {
    free(column->chunk);
    column->chunk = NULL;
}
