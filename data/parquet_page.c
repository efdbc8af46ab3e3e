/* parquet_page.c - see parquet_page.h. */
#include "data/parquet_page.h"

#include <snappy-c.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "data/thrift.h"

/* --- headers ------------------------------------------------------------------------------------------------------ */

static void parse_data(Thrift *t, int type, PageHeader *h) {
    thrift_struct(t, type);
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        switch (f.id) {
        case 1: h->values = thrift_int(t, f.type); break;
        case 2: h->encoding = (int)thrift_int(t, f.type); break;
        case 3: h->level_encoding = (int)thrift_int(t, f.type); break;
        default: thrift_skip(t, f.type);
        }
}

static void parse_dictionary(Thrift *t, int type, PageHeader *h) {
    thrift_struct(t, type);
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        switch (f.id) {
        case 1: h->values = thrift_int(t, f.type); break;
        case 2: h->encoding = (int)thrift_int(t, f.type); break;
        default: thrift_skip(t, f.type);
        }
}

static void parse_data_v2(Thrift *t, int type, PageHeader *h) {
    int64_t definitions = 0, repetitions = 0;
    thrift_struct(t, type);
    for (ThriftField f = {0, 0}; thrift_next(t, &f);)
        switch (f.id) {
        case 1: h->values = thrift_int(t, f.type); break;
        case 4: h->encoding = (int)thrift_int(t, f.type); break;
        case 5: definitions = thrift_int(t, f.type); break;
        case 6: repetitions = thrift_int(t, f.type); break;
        case 7: h->is_packed = thrift_bool(t, f.type); break;
        default: thrift_skip(t, f.type);
        }
    if (repetitions != 0) definitions = -1; /* a flat column has no repetition levels */
    h->level_bytes = definitions;
    h->level_encoding = ENCODING_RLE;
}

int64_t page_header_parse(const uint8_t *data, size_t bytes, PageHeader *header) {
    Thrift     t = {data, data + bytes, THRIFT_GOOD};
    PageHeader h = {.bytes = -1, .packed_bytes = -1, .values = -1, .encoding = -1, .is_packed = 1};
    int64_t    kind = -1, described = -1;
    for (ThriftField f = {0, 0}; thrift_next(&t, &f);)
        switch (f.id) {
        case 1: kind = thrift_int(&t, f.type); break;
        case 2: h.bytes = thrift_int(&t, f.type); break;
        case 3: h.packed_bytes = thrift_int(&t, f.type); break;
        case 4: h.crc = (uint32_t)thrift_int(&t, f.type), h.has_crc = 1; break;
        case 5: parse_data(&t, f.type, &h), described = PAGE_DATA; break;
        case 7: parse_dictionary(&t, f.type, &h), described = PAGE_DICTIONARY; break;
        case 8: parse_data_v2(&t, f.type, &h), described = PAGE_DATA_V2; break;
        default: thrift_skip(&t, f.type);
        }
    if (t.state == THRIFT_SHORT) return 0;
    if (t.state == THRIFT_BAD || kind < PAGE_DATA || kind > PAGE_DATA_V2 || h.bytes < 0 || h.packed_bytes < 0)
        return -1;
    if (kind != PAGE_INDEX && (kind != described || h.values < 0 || h.level_bytes < 0)) return -1;
    h.kind = (PageKind)kind;
    *header = h;
    return t.at - data;
}

/* --- names -------------------------------------------------------------------------------------------------------- */

const char *page_encoding_name(int64_t encoding) {
    static const char *const NAMES[] = {
        "PLAIN", "GROUP_VAR_INT", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED",
        "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
    return encoding >= 0 && encoding < (int64_t)(sizeof NAMES / sizeof *NAMES) ? NAMES[encoding] : "UNKNOWN";
}

int page_encoding_is_built_in(int64_t encoding) {
    return encoding == ENCODING_PLAIN || encoding == ENCODING_PLAIN_DICTIONARY || encoding == ENCODING_DICTIONARY;
}

/* --- compression -------------------------------------------------------------------------------------------------- */

static int unpack_snappy(const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes) {
    size_t made = 0;
    if (snappy_uncompressed_length((const char *)packed, packed_bytes, &made) != SNAPPY_OK || made != bytes) return 0;
    return snappy_uncompress((const char *)packed, packed_bytes, (char *)out, &made) == SNAPPY_OK && made == bytes;
}

/* Unpacks the members of a gzip file one after another, until the page is full. */
static int unpack_gzip(const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes) {
    enum { ANY_WRAPPER = 15 + 32 }; /* the largest window, gzip or zlib */
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
    return ZSTD_decompress(out, bytes, packed, packed_bytes) == bytes; /* an error is a number larger than any size */
}

/* The codecs by number. `most`: the most bytes that one packed byte can become. A snappy copy makes 64 bytes from 3,
 * deflate 258 bytes from 2 bits, a zstd block 128 KiB from 4 bytes. */
static const struct {
    const char *name;
    uint64_t    most;
    int (*unpack)(const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes);
} CODECS[] = {{"UNCOMPRESSED", 1, NULL}, {"SNAPPY", 22, unpack_snappy}, {"GZIP", 1032, unpack_gzip}, {"LZO", 0, NULL},
              {"BROTLI", 0, NULL}, {"LZ4", 0, NULL}, {"ZSTD", 1 << 15, unpack_zstd}, {"LZ4_RAW", 0, NULL}};

const char *page_codec_name(int64_t codec) {
    return codec >= 0 && codec < (int64_t)(sizeof CODECS / sizeof *CODECS) ? CODECS[codec].name : "UNKNOWN";
}

int page_codec_is_built_in(int64_t codec) {
    return codec >= 0 && codec < (int64_t)(sizeof CODECS / sizeof *CODECS) && CODECS[codec].most > 0;
}

int page_may_hold(int codec, uint64_t packed_bytes, uint64_t bytes) {
    return bytes <= packed_bytes * CODECS[codec].most;
}

int page_unpack(int codec, const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes) {
    if (bytes == 0) return 1; /* if all rows are null, some writers pack nothing, others write nothing */
    return CODECS[codec].unpack(packed, packed_bytes, out, bytes);
}

/* --- runs --------------------------------------------------------------------------------------------------------- */

static int begin_run(PageRuns *r) {
    uint64_t head = 0;
    int      shift = 0;
    r->at += r->bit / 8; /* bit-packed values end at a whole byte, because their number is a multiple of eight */
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

static int64_t next_packed(PageRuns *r) {
    uint64_t first = r->bit / 8, last = (r->bit + (uint64_t)r->width + 7) / 8, word = 0;
    if (last > (uint64_t)(r->end - r->at)) return -1;
    memcpy(&word, r->at + first, (size_t)(last - first));
    word = word >> r->bit % 8 & ((1ull << r->width) - 1);
    r->bit += (uint64_t)r->width;
    return (int64_t)word;
}

int64_t page_runs_next(PageRuns *r) {
    while (r->left == 0)
        if (!begin_run(r)) return -1;
    r->left--;
    return r->is_packed ? next_packed(r) : (int64_t)r->value;
}
