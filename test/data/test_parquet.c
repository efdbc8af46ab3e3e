/* test_parquet.c - reads the rows of a text column. Files that pyarrow wrote (test/interop/make_parquet.py) are also
 * cut at every length and changed at every byte. Files that are made here have false numbers. */
#include "data/parquet.h"

#include <fcntl.h>
#include <zlib.h>

#include "core/error.h"
#include "core/io.h"
#include "test/data/files.h"

/* --- the rule of make_parquet.py ---------------------------------------------------------------------------------- */

static size_t text_of(int i, char *out) {
    static const char *const WORDS[] = {"stone", "rivière", "雨", "🙂 grin", "and"};
    if (i % 11 == 5) return 0;
    int n = sprintf(out, "%d", i);
    for (int k = 0; k < i % 4; k++) n += sprintf(out + n, " %s", WORDS[(i + k) % 5]);
    return (size_t)n;
}

typedef struct { const char *name; int rows, period, has_null; } Fixture;
enum { ALL_NULL = 2 };
static const Fixture FIXTURES[] = {{"none_v1_plain", 30, 0, 1},   {"none_v1_dictionary", 30, 9, 1},
                                   {"none_v2_plain", 30, 0, 1},   {"none_v2_dictionary", 30, 9, 1},
                                   {"snappy_v1_plain", 30, 0, 1}, {"snappy_v1_dictionary", 30, 9, 1},
                                   {"snappy_v2_plain", 30, 0, 1}, {"snappy_v2_dictionary", 30, 9, 1},
                                   {"gzip_v1_plain", 30, 0, 1},   {"gzip_v1_dictionary", 30, 9, 1},
                                   {"gzip_v2_plain", 30, 0, 1},   {"gzip_v2_dictionary", 30, 9, 1},
                                   {"zstd_v1_plain", 30, 0, 1},   {"zstd_v1_dictionary", 30, 9, 1},
                                   {"zstd_v2_plain", 30, 0, 1},   {"zstd_v2_dictionary", 30, 9, 1},
                                   {"groups", 60, 0, 0},          {"groups_dictionary", 60, 9, 1},
                                   {"overflow", 60, 0, 1},        {"checksum", 30, 0, 1},
                                   {"binary", 30, 0, 1},          {"large", 30, 0, 1},
                                   {"null", 30, 0, ALL_NULL},     {"empty", 0, 0, 1},
                                   {"beside", 30, 0, 1}};
enum { COUNT = sizeof FIXTURES / sizeof *FIXTURES };

/* --- helpers ------------------------------------------------------------------------------------------------------ */

static char folder[PATH_CHARS]; /* absolute path of the fixtures' folder, because tests change to another folder */
static const char copy[] = "copy.parquet";

static char *fixture(const char *name, size_t *bytes) {
    char  path[2 * PATH_CHARS], *data;
    snprintf(path, sizeof path, "%s/test/data/parquet/%s.parquet", folder, name);
    int64_t n = io_read_file(path, 1 << 20, &data);
    assert_true(n > 0);
    *bytes = (size_t)n;
    return data;
}

/* Reads all rows of the file `copy`. Returns their number, or -1 with a message in fault. */
static int64_t read_all(const char *field, char fault[PARQUET_FAULT_CHARS]) {
    Parquet    *p;
    const char *text;
    size_t      bytes;
    int64_t     rows = 0;
    int         more;
    memset(fault, 0, PARQUET_FAULT_CHARS);
    if (!parquet_open(&p, copy, field, fault)) return -1;
    while ((more = parquet_next(p, &text, &bytes, fault)) > 0) rows++;
    if (more == 0) assert_int_equal(rows, parquet_rows(p));
    parquet_close(p);
    return more < 0 ? -1 : rows;
}

static void assert_fault(const char *field, const char *phrase) {
    char fault[PARQUET_FAULT_CHARS];
    assert_int_equal(read_all(field, fault), -1);
    if (!strstr(fault, phrase)) fail_msg("\"%s\" is missing in: %s", phrase, fault);
}

/* --- what pyarrow wrote ------------------------------------------------------------------------------------------- */

static void rows_are_those_written(void **state) {
    (void)state;
    for (int f = 0; f < COUNT; f++) {
        Fixture     x = FIXTURES[f];
        char        fault[PARQUET_FAULT_CHARS], expected[200];
        const char *text;
        size_t      bytes, size;
        Parquet    *p;
        char       *data = fixture(x.name, &size);
        write_file(copy, data, size);
        if (!parquet_open(&p, copy, "text", fault)) fail_msg("%s %s", x.name, fault);
        assert_int_equal(parquet_rows(p), x.rows);
        for (int i = 0; i < x.rows; i++) {
            if (parquet_next(p, &text, &bytes, fault) != 1) fail_msg("%s, row %d: %s", x.name, i, fault);
            if (x.has_null == ALL_NULL || (x.has_null && i % 7 == 3)) {
                assert_null(text);
                assert_int_equal(bytes, 0);
                continue;
            }
            assert_non_null(text);
            assert_int_equal(bytes, text_of(x.period ? i % x.period : i, expected));
            assert_memory_equal(text, expected, bytes);
        }
        assert_int_equal(parquet_next(p, &text, &bytes, fault), 0);
        assert_int_equal(parquet_next(p, &text, &bytes, fault), 0);
        parquet_close(p);
        free(data);
    }
}

static void a_cut_file_is_refused(void **state) {
    (void)state;
    for (int f = 0; f < COUNT; f++) {
        char   fault[PARQUET_FAULT_CHARS];
        size_t size;
        char  *data = fixture(FIXTURES[f].name, &size);
        write_file(copy, data, size);
        while (size-- > 0) {
            assert_int_equal(truncate(copy, (off_t)size), 0);
            assert_int_equal(read_all("text", fault), -1);
            if (!strstr(fault, "truncated") && !strstr(fault, "does not end with its footer")) fail_msg("%s, %zu bytes: %s", FIXTURES[f].name, size, fault);
        }
        free(data);
    }
}

/* Replaces each byte of a file by other values. Reading gives rows or a message, never a crash. */
static void a_changed_byte_is_survived(void **state) {
    (void)state;
    static const uint8_t CHANGES[] = {0x01, 0x80, 0xFF};
    for (int f = 0; f < COUNT; f++) {
        char   fault[PARQUET_FAULT_CHARS];
        size_t size;
        char  *data = fixture(FIXTURES[f].name, &size);
        write_file(copy, data, size);
        int fd = open(copy, O_WRONLY);
        for (size_t at = 0; at < size; at++)
            for (size_t c = 0; c < sizeof CHANGES; c++) {
                char changed = (char)(data[at] ^ (char)CHANGES[c]);
                assert_int_equal(io_pwrite(fd, &changed, 1, at), 0);
                if (read_all("text", fault) < 0) assert_true(fault[0] && memchr(fault, 0, sizeof fault));
                assert_int_equal(io_pwrite(fd, &data[at], 1, at), 0);
            }
        io_close(fd);
        free(data);
    }
}

static void checksums_are_compared(void **state) {
    (void)state;
    size_t size;
    char  *data = fixture("checksum", &size), *text = memmem(data, size, "stone", 5);
    text[0] = 'S';
    write_file(copy, data, size);
    assert_fault("text", "the bytes of a page do not match its checksum");
    free(data);
}

static void others_are_refused_by_name(void **state) {
    (void)state;
    static const struct { const char *name, *field, *says; } CASES[] = {
        {"beside", "id", "has values of type INT64 in its column \"id\""},
        {"beside", "meta", "has columns nested in its column \"meta\""},
        {"beside", "tags", "has lists instead of texts in its column \"tags\""},
        {"beside", "c", "has no column \"c\"; its columns are \"id\", \"meta\", \"tags\", \"text\""},
        {"brotli", "text", "packed by BROTLI"},
        {"lz4", "text", "packed by LZ4_RAW"},
        {"delta", "text", "encoded as DELTA_BYTE_ARRAY"}};
    char   fault[PARQUET_FAULT_CHARS];
    size_t size;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char *data = fixture(CASES[i].name, &size);
        write_file(copy, data, size);
        assert_fault(CASES[i].field, CASES[i].says);
        free(data);
    }
    char *data = fixture("none_v1_plain", &size);
    memcpy(data + size - 4, "PARE", 4);
    write_file(copy, data, size);
    assert_fault("text", "is encrypted");
    memcpy(data + size - 4, "PAR1", 4), memcpy(data, "text", 4);
    write_file(copy, data, size);
    assert_fault("text", "is no parquet file");
    free(data);
    Parquet *p;
    assert_int_equal(parquet_open(&p, "none", "text", fault), 0);
    assert_string_equal(fault, "is not there: correct the path");
    assert_int_equal(parquet_open(&p, ".", "text", fault), 0);
}

/* --- files that lie ----------------------------------------------------------------------------------------------- */

/* Buffer in which tests write a file by hand, in Thrift's compact protocol. */
static struct { uint8_t data[1 << 20]; size_t bytes; } made;
static void put(const void *data, size_t bytes) { memcpy(made.data + made.bytes, data, bytes), made.bytes += bytes; }
static void put_byte(int byte) { made.data[made.bytes++] = (uint8_t)byte; }
static void put_int(int64_t value) {
    uint64_t z = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    for (; z >= 0x80; z >>= 7) put_byte((int)(z & 0x7F) | 0x80);
    put_byte((int)z);
}
enum { I32 = 5, I64 = 6, BINARY = 8, LIST = 9, STRUCT = 12 };
/* Writes the header of a field. step: number of the field minus that of the previous field. */
static void put_field(int step, int type) { put_byte(step << 4 | type); }
static void put_number(int step, int type, int64_t value) { put_field(step, type), put_int(value); }
static void put_name(int step, const char *name) {
    put_field(step, BINARY), put_byte((int)strlen(name)), put(name, strlen(name));
}

typedef struct {
    int64_t     kind, bytes, packed_bytes, values, encoding; /* numbers that are written into the header of the page */
    const char *data;
    /* numbers that are written into the footer; chunk_bytes -1: the true number */
    int64_t data_bytes, codec, chunk_values, chunk_bytes, offset, group_rows, rows;
    const char *says;       /* text in the message; NULL: the file is accepted, with group_rows rows */
    int64_t     repetition; /* repetition of the column: 0 required, 1 optional, 2 repeated */
    int64_t     levels;     /* encoding of the definition levels; in a page of PAGE_DATA_V2 the number of their bytes */
} Lie;

/* Writes a file with one page of data and a footer with one row group of the column "text". The numbers in both are
 * those of x, which may be false. */
static void write_lie(const Lie *x) {
    static const int STEPS[] = {[PAGE_DATA] = 2, [PAGE_INDEX] = 3, [PAGE_DICTIONARY] = 4, [PAGE_DATA_V2] = 5};
    made.bytes = 0;
    put("PAR1", 4);
    put_number(1, I32, x->kind), put_number(1, I32, x->bytes), put_number(1, I32, x->packed_bytes);
    put_field(STEPS[x->kind], STRUCT), put_number(1, I32, x->values);
    put_number(x->kind == PAGE_DATA_V2 ? 3 : 1, I32, x->encoding);
    if (x->kind != PAGE_DICTIONARY) put_number(1, I32, x->levels);
    put_byte(0), put_byte(0);
    put(x->data, (size_t)x->data_bytes);
    size_t footer = made.bytes;
    put_number(1, I32, 2);
    put_field(1, LIST), put_byte(2 << 4 | STRUCT);
    put_name(4, "root"), put_number(1, I32, 1), put_byte(0);
    put_number(1, I32, 6), put_number(2, I32, x->repetition), put_name(1, "text"), put_byte(0);
    put_number(1, I64, x->rows);
    put_field(1, LIST), put_byte(1 << 4 | STRUCT);
    put_field(1, LIST), put_byte(1 << 4 | STRUCT), put_field(3, STRUCT);
    put_number(1, I32, 6), put_field(1, LIST), put_byte(1 << 4 | I32), put_int(0);
    put_field(1, LIST), put_byte(1 << 4 | BINARY), put_byte(4), put("text", 4);
    put_number(1, I32, x->codec), put_number(1, I64, x->chunk_values),
        put_number(2, I64, x->chunk_bytes < 0 ? (int64_t)footer - 4 : x->chunk_bytes);
    put_number(2, I64, x->offset), put_byte(0), put_byte(0);
    put_number(2, I64, x->group_rows), put_byte(0), put_byte(0);
    uint32_t length = (uint32_t)(made.bytes - footer);
    put(&length, 4), put("PAR1", 4);
    write_file(copy, made.data, made.bytes);
}

static void lies_are_refused(void **state) {
    (void)state;
    static const char  TEXTS[] = "\3\0\0\0one\0\0\0\0\2\0\0\0is"; /* three texts: "one", "" and "is" */
    enum { N = sizeof TEXTS - 1, GIB = 1 << 30 };
#define PAGE(values) 0, N, N, values, 0, TEXTS, N
    static const Lie CASES[] = {
        {PAGE(3), 0, 3, -1, 4, 3, 3, NULL, 0, 0},
        {PAGE(3), 0, 3, -1, 4, 3, 4, "its footer says 4 rows, and its row groups have 3", 0, 0},
        {PAGE(3), 0, 3, -1, 4, 1ll << 60, 1ll << 60, "row group 1 has 1152921504606846976 rows, and 3 values", 0, 0},
        {PAGE(3), 0, -3, -1, 4, -3, -3, "row group 1 has -3 rows", 0, 0},
        {PAGE(3), 0, 4, -1, 4, 4, 4, "no valid header of a page was found", 0, 0},
        {PAGE(3), 0, 1ll << 60, -1, 4, 1ll << 60, 1ll << 60, "no valid header of a page was found", 0, 0},
        {PAGE(3), 0, 2, -1, 4, 2, 2, "more rows than the footer", 0, 0},
        {PAGE(2), 0, 2, -1, 4, 2, 2, NULL, 0, 0}, /* accepted: fastparquet leaves bytes after the texts of a page */
        {PAGE(4), 0, 4, -1, 4, 4, 4, "a text is longer than its page", 0, 0},
        {0, 7, 7, 1, 0, "\4\0\0\0one", 7, 0, 1, -1, 4, 1, 1, "a text is longer than its page", 0, 0},
        {PAGE(3), 0, 3, -1, 3, 3, 3, "bytes of row group 1 of", 0, 0},
        {PAGE(3), 0, 3, -1, 1ll << 62, 3, 3, "bytes of row group 1 of", 0, 0},
        {PAGE(3), 0, 3, -1, -1, 3, 3, "bytes of row group 1 of", 0, 0},
        {PAGE(3), 0, 3, INT64_MAX, 4, 3, 3, "bytes of row group 1 of", 0, 0},
        {PAGE(3), 0, 3, 20, 4, 3, 3, "a page is longer than its column", 0, 0},
        {PAGE(3), 99, 3, -1, 4, 3, 3, "packed by UNKNOWN", 0, 0},
        {PAGE(3), 1, 3, -1, 4, 3, 3, "a page cannot be unpacked", 0, 0},
        {PAGE(3), 2, 3, -1, 4, 3, 3, "a page cannot be unpacked", 0, 0},
        {PAGE(3), 6, 3, -1, 4, 3, 3, "a page cannot be unpacked", 0, 0},
        {0, N, N, 3, 8, TEXTS, N, 0, 3, -1, 4, 3, 3, "there is none", 0, 0},
        {0, N, N, 3, 7, TEXTS, N, 0, 3, -1, 4, 3, 3, "encoded as DELTA_BYTE_ARRAY", 0, 0},
        {0, N - 1, N, 3, 0, TEXTS, N, 0, 3, -1, 4, 3, 3, "a page that is not compressed has two different lengths", 0, 0},
        {0, GIB + 1ll, N, 3, 0, TEXTS, N, 2, 3, -1, 4, 3, 3, "1 GiB is the most", 0, 0},
        {0, N, GIB + 1ll, 3, 0, TEXTS, N, 2, 3, -1, 4, 3, 3, "1 GiB is the most", 0, 0},
        {0, GIB, N, 3, 0, TEXTS, N, 2, 3, -1, 4, 3, 3, "too short for the size", 0, 0},
        {0, GIB, N, 3, 0, TEXTS, N, 1, 3, -1, 4, 3, 3, "too short for the size", 0, 0},
        {0, GIB, N, 3, 0, TEXTS, N, 6, 3, -1, 4, 3, 3, "too short for the size", 0, 0},
        {0, -1, N, 3, 0, TEXTS, N, 6, 3, -1, 4, 3, 3, "no valid header of a page was found", 0, 0},
        {2, N, N, GIB, 0, TEXTS, N, 0, 3, -1, 4, 3, 3, "the dictionary of the column is too short", 0, 0},
        {2, N, N, 4, 0, TEXTS, N, 0, 3, -1, 4, 3, 3, "a text in the dictionary", 0, 0},
        {2, N, N, 3, 8, TEXTS, N, 0, 3, -1, 4, 3, 3, "the dictionary of the column is not encoded as PLAIN", 0, 0},
        {2, N, N, 3, 0, TEXTS, N, 0, 3, -1, 4, 3, 3, "no valid header of a page was found", 0, 0},
        {1, N, N, 3, 0, TEXTS, N, 0, 3, -1, 4, 3, 3, "no valid header of a page was found", 0, 0},
        {3, N, N, 3, 0, TEXTS, N, 0, 3, -1, 4, 3, 3, NULL, 0, 0},
        /* accepted: for a required column the reader ignores the 7 bytes of levels */
        {3, N, N, 2, 0, TEXTS, N, 0, 2, -1, 4, 2, 2, NULL, 0, 7},
        {3, N, N, 3, 0, TEXTS, N, 0, 3, -1, 4, 3, 3, "shorter than its own list of nulls", 1, N + 1},
        {3, N, N, 3, 0, TEXTS, N, 0, 3, -1, 4, 3, 3, "no valid header of a page was found", 1, -1},
        {3, N, N, 3, 0, "\6\0", 2, 0, 3, -1, 4, 3, 3, "a page is longer than its column", 1, 2},
        /* accepted: three nulls, so the page has no values */
        {3, 2, 2, 3, 0, "\6\0", 2, 0, 3, -1, 4, 3, 3, NULL, 1, 2},
        {3, 2, 2, 3, 8, "\6\0", 2, 0, 3, -1, 4, 3, 3, "there is none", 1, 2},
        {3, 2, 2, 3, 0, "\4\0", 2, 0, 3, -1, 4, 3, 3, "a page marks fewer rows than it has", 1, 2},
        {3, 2, 2, 3, 0, "\6\2", 2, 0, 3, -1, 4, 3, 3, "a page marks fewer rows than it has", 1, 2},
        {3, 2, 2, 3, 0, "\6\1", 2, 0, 3, -1, 4, 3, 3, "a text is longer than its page", 1, 2},
        {PAGE(3), 0, 3, -1, 4, 3, 3, "with nulls encoded as BIT_PACKED", 1, 4},
        {0, 3, 3, 3, 0, "\6\0", 3, 0, 3, -1, 4, 3, 3, "shorter than its own list of nulls", 1, 3},
        {0, 4, 4, 3, 0, "\1\0\0\0", 4, 0, 3, -1, 4, 3, 3, "shorter than its own list of nulls", 1, 3},
        {PAGE(3), 0, 3, -1, 4, 3, 3, "has several values in each row", 2, 0}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char fault[PARQUET_FAULT_CHARS];
        write_lie(&CASES[i]);
        if (CASES[i].says) assert_fault("text", CASES[i].says);
        else assert_int_equal(read_all("text", fault), CASES[i].group_rows);
    }
}

/* A page of indices into a dictionary of texts. Indices wider than 32 bits are refused, and those beyond the last
 * text. */
static void indices_are_checked(void **state) {
    (void)state;
    static const struct { const char *bytes, *says; } CASES[] = {
        {"\x21", "wider than 32 bits"}, {"\xff", "wider than 32 bits"}, {"\x08\x10\xff", "fewer texts than rows"}};
    size_t size;
    char  *data = fixture("none_v1_dictionary", &size), *at = data;
    PageHeader h;
    at += 4 + page_header_parse((uint8_t *)at + 4, size - 4, &h);
    assert_int_equal(h.kind, PAGE_DICTIONARY);
    at += h.packed_bytes;
    at += page_header_parse((uint8_t *)at, size - (size_t)(at - data), &h);
    assert_int_equal(h.kind, PAGE_DATA);
    at += 4 + at[0]; /* moves `at` past the definition levels and the four bytes of their length */
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        memcpy(at, CASES[i].bytes, strlen(CASES[i].bytes));
        write_file(copy, data, size);
        assert_fault("text", CASES[i].says);
    }
    free(data);
}

static void a_file_cut_while_it_is_read(void **state) {
    (void)state;
    char        fault[PARQUET_FAULT_CHARS];
    const char *text;
    size_t      size, bytes;
    Parquet    *p;
    char       *data = fixture("none_v1_plain", &size);
    write_file(copy, data, size);
    assert_int_equal(parquet_open(&p, copy, "text", fault), 1);
    assert_int_equal(truncate(copy, 100), 0);
    assert_int_equal(parquet_next(p, &text, &bytes, fault), -1);
    assert_non_null(strstr(fault, "cut short while it was read"));
    parquet_close(p);
    free(data);
}

/* A writer that packs in parts may leave a page of two gzip members. The page then contains both texts, no more and no
 * less. */
static void gzip_members_are_one_page(void **state) {
    (void)state;
    static const uint8_t TEXT[] = "a river and a stone, a stone and a river";
    enum { GZIP = 2, GZIP_WINDOW = 15 + 16, HALF = 20, BYTES = sizeof TEXT };
    uint8_t packed[400], out[BYTES + 1];
    size_t  packed_bytes = 0;
    for (size_t part = 0; part < 2; part++) {
        z_stream z = {0};
        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, GZIP_WINDOW, 8, Z_DEFAULT_STRATEGY), Z_OK);
        z.next_in = (Bytef *)TEXT + part * HALF, z.avail_in = part ? BYTES - HALF : HALF;
        z.next_out = packed + packed_bytes, z.avail_out = 200;
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        packed_bytes += z.total_out;
        deflateEnd(&z);
    }
    assert_int_equal(page_unpack(GZIP, packed, packed_bytes, out, BYTES), 1);
    assert_memory_equal(out, TEXT, BYTES);
    assert_int_equal(page_unpack(GZIP, packed, packed_bytes, out, BYTES - 1), 0);
    assert_int_equal(page_unpack(GZIP, packed, packed_bytes, out, BYTES + 1), 0);
    assert_int_equal(page_unpack(GZIP, packed, packed_bytes - 1, out, BYTES), 0);
}

/* Changes the footer so that row group 2 begins at byte 452, inside row group 1, instead of at byte 458. The file is
 * refused. */
static void groups_that_overlap_are_refused(void **state) {
    (void)state;
    size_t size;
    char  *data = fixture("groups", &size), *place = memmem(data, size, "\x26\x94\x07\x49", 4);
    assert_non_null(place);
    place[1] = (char)0x88;
    write_file(copy, data, size);
    assert_fault("text", "has row group 2 of \"text\" begin within the one before");
    free(data);
}

/* If a file has many columns, the message names the first ones and says that there are more. */
static void many_columns_are_cut_short(void **state) {
    (void)state;
    enum { COLUMNS = 200 };
    ParquetColumn c;
    char          fault[PARQUET_FAULT_CHARS], name[24];
    made.bytes = 0;
    put_field(2, LIST), put_byte(15 << 4 | STRUCT);
    put_byte(((COLUMNS + 1) & 0x7F) | 0x80), put_byte((COLUMNS + 1) >> 7);
    put_name(4, "root"), put_number(1, I32, COLUMNS), put_byte(0);
    for (int i = 0; i < COLUMNS; i++) {
        sprintf(name, "c%.*s%d", i % 7, "......", i);
        put_number(1, I32, 6), put_name(3, name), put_byte(0);
    }
    put_field(2, LIST), put_byte(STRUCT), put_byte(0);
    assert_int_equal(parquet_footer_parse(made.data, made.bytes, 4, "text", &c, fault), 0);
    assert_non_null(strstr(fault, "has no column \"text\"; its columns are \"c0\", \"c.1\", \"c..2\""));
    assert_non_null(strstr(fault, ", ...: give field=NAME of the one with the text"));
    assert_int_equal(parquet_footer_parse(made.data, made.bytes, 4, "c.1", &c, fault), 0);
    assert_non_null(strstr(fault, "says -1 rows"));
}

/* Nested structs, nested lists, and lists longer than the file are refused before the stack or the memory is used
 * up. */
static void endless_footers_are_refused(void **state) {
    (void)state;
    static const uint8_t DEEP[][2] = {{0x1C, 0x1C}, {0x19, 0x19}, {0x19, 0xFC},
                                      {0x1B, 0xFF}, {0xFF, 0xFF}, {0x1C, 0x00}};
    for (size_t i = 0; i < sizeof DEEP / sizeof *DEEP; i++) {
        made.bytes = 0;
        put("PAR1", 4);
        for (int k = 0; k < 1000000; k++) /* 1,000,000 levels, whose stack frames would not fit on 8 MiB of stack */
            put_byte(DEEP[i][k > 0]);
        uint32_t length = (uint32_t)made.bytes - 4;
        put(&length, 4), put("PAR1", 4);
        write_file(copy, made.data, made.bytes);
        assert_fault("text", "its footer cannot be understood");
        length++;
        memcpy(made.data + made.bytes - 8, &length, 4);
        write_file(copy, made.data, made.bytes);
        assert_fault("text", "is longer than the file");
    }
}

/* Reads a sequence of numbers that is encoded as bit-packed and run-length parts, for every bit width, and compares
 * them with the numbers that were packed. */
static void runs_of_every_width(void **state) {
    (void)state;
    for (int width = 0; width <= 32; width++) {
        /* encodes three groups of eight bit-packed values, and after them a run of five equal values */
        uint8_t  data[200] = {3 << 1 | 1};
        uint32_t value[24];
        for (int i = 0; i < 24; i++) {
            value[i] = (uint32_t)(2654435761u * (uint32_t)(i + 1)) & (uint32_t)((1ull << width) - 1);
            for (int b = 0; b < width; b++)
                if (value[i] >> b & 1) data[1 + (i * width + b) / 8] |= (uint8_t)(1 << (i * width + b) % 8);
        }
        int at = 1 + 3 * width;
        data[at++] = 5 << 1;
        for (int k = 0; k < (width + 7) / 8; k++) data[at++] = (uint8_t)(value[7] >> 8 * k);
        PageRuns r = {.at = data, .end = data + at, .width = width};
        for (int i = 0; i < 24; i++) assert_int_equal(page_runs_next(&r), value[i]);
        for (int i = 0; i < 5; i++) assert_int_equal(page_runs_next(&r), value[7]);
        assert_int_equal(page_runs_next(&r), -1);
        /* the data end after the first group of eight */
        r = (PageRuns){.at = data, .end = data + 1 + width, .width = width};
        for (int i = 0; i < 8; i++) assert_int_equal(page_runs_next(&r), value[i]);
        if (width > 0) assert_int_equal(page_runs_next(&r), -1);
    }
}

int main(void) {
    if (!getcwd(folder, sizeof folder)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(rows_are_those_written, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(a_cut_file_is_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(a_changed_byte_is_survived, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(checksums_are_compared, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(others_are_refused_by_name, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(lies_are_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(endless_footers_are_refused, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(indices_are_checked, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(a_file_cut_while_it_is_read, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(groups_that_overlap_are_refused, enter_folder, leave_folder),
        cmocka_unit_test(many_columns_are_cut_short),
        cmocka_unit_test(gzip_members_are_one_page),
        cmocka_unit_test(runs_of_every_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
