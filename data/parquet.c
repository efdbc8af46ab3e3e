/* parquet.c - see parquet.h. */
#include "data/parquet.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "data/parquet_footer.h"
#include "data/parquet_page.h"

enum { MAGIC_BYTES = 4, TAIL_BYTES = 8, HEADER_GUESS = 1 << 10, NAME_CHARS = 64 };

typedef struct { uint8_t *data; size_t room; } Buffer; /* owned */
typedef struct { const uint8_t *text; uint32_t bytes; } Entry;

struct Parquet {
    char         *path;                       /* owned */
    char          name[NAME_CHARS];           /* name of the column, for messages */
    int           fd;
    ParquetColumn column;
    int64_t       next_chunk;
    uint64_t      at, end;                    /* place in the file of the chunk's next page, and of its end */
    int           codec;
    int64_t       chunk_left, page_left;      /* rows left in the next pages of the chunk, and in this page */
    Buffer        packed, page, dictionary;
    Entry        *entry;                      /* owned [entry_room]: texts of the dictionary */
    int64_t       entries, entry_room;
    /* 1 if this page holds indices into the dictionary, 0 if it holds texts */
    int           is_by_dictionary;
    /* a level is 1 for a text, 0 for null; indices are those of texts in the dictionary */
    PageRuns      levels, indices;
    const uint8_t *value, *value_end;
};

/* Writes the fault and returns -1. */
static int refuse(char *fault, const char *fmt, ...) PRINTF_LIKE(2, 3);
static int refuse(char *fault, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault, PARQUET_FAULT_CHARS, fmt, args);
    va_end(args);
    return -1;
}
static int damaged(const Parquet *p, char *fault, const char *what) {
    return refuse(fault, "is damaged before byte %llu, row group %lld of its column %s: %s; copy or download it again",
                  (unsigned long long)p->at, (long long)p->next_chunk, p->name, what);
}

/* --- bytes of the file -------------------------------------------------------------------------------------------- */

/* Reads bytes of the file. Returns 1, or -1 with the fault. */
static int read_bytes(const Parquet *p, void *data, size_t bytes, uint64_t offset, char *fault) {
    int rc = io_pread(p->fd, data, bytes, offset);
    if (rc == 0) return 1;
    if (rc != -ENODATA)
        fail(EXIT_IO, "cannot read %s at byte %llu: %s", p->path, (unsigned long long)offset, io_error_text(rc));
    return refuse(fault, "is truncated: it was cut short while it was read");
}

/* Makes the buffer at least that large. Its contents are lost. */
static uint8_t *make_room(Buffer *b, size_t bytes) {
    if (bytes > b->room) {
        free(b->data);
        b->data = xmalloc(bytes, "a part of a parquet file");
        b->room = bytes;
    }
    return b->data;
}

/* --- pages -------------------------------------------------------------------------------------------------------- */

/* Reads the header of the page at p->at and moves p->at after it. Returns 1 or -1. A header may be long, because it may
 * hold statistics. */
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
            return damaged(p, fault, "the header of a page is due there");
    }
    if (h->bytes > PAGE_LIMIT || h->packed_bytes > PAGE_LIMIT)
        return refuse(fault, "has a page of %lld bytes in its column %s, and 1 GiB is the most; write smaller pages",
                      (long long)(h->bytes > h->packed_bytes ? h->bytes : h->packed_bytes), p->name);
    if ((uint64_t)h->packed_bytes > p->end - p->at) return damaged(p, fault, "a page is longer than its column");
    return 1;
}

/* Reads the page after its header and unpacks levels and values into *out. Returns 1 or -1. */
static int read_page(Parquet *p, const PageHeader *h, Buffer *out, char *fault) {
    size_t   packed_bytes = (size_t)h->packed_bytes, bytes = (size_t)h->bytes, plain = (size_t)h->level_bytes;
    int      codec = h->is_packed ? p->codec : 0;
    if (plain > packed_bytes || plain > bytes) return damaged(p, fault, "a page is shorter than its levels");
    if (!page_may_hold(codec, packed_bytes - plain, bytes - plain))
        return damaged(p, fault, "a page is too short for its size unpacked");
    uint8_t *packed = make_room(codec ? &p->packed : out, packed_bytes + 1);
    if (read_bytes(p, packed, packed_bytes, p->at, fault) < 0) return -1;
    p->at += packed_bytes;
    if (h->has_crc && crc32_z(crc32(0, NULL, 0), packed, packed_bytes) != h->crc)
        return damaged(p, fault, "a page has another checksum");
    if (codec == 0) return packed_bytes == bytes ? 1 : damaged(p, fault, "a page has two lengths");
    uint8_t *data = make_room(out, bytes + 1);
    memcpy(data, packed, plain);
    if (!page_unpack(codec, packed + plain, packed_bytes - plain, data + plain, bytes - plain))
        return damaged(p, fault, "a page cannot be unpacked");
    return 1;
}

static uint32_t length_at(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

/* Reads the next text of a sequence, each with its length before it. Returns 0 if there is none. */
static int next_text(const uint8_t **at, const uint8_t *end, Entry *text) {
    if (end - *at < 4) return 0;
    uint32_t bytes = length_at(*at);
    if (bytes > (uint64_t)(end - *at - 4)) return 0;
    *text = (Entry){*at + 4, bytes};
    *at += 4 + bytes;
    return 1;
}

static int take_dictionary(Parquet *p, const PageHeader *h, char *fault) {
    if (p->entries >= 0) return damaged(p, fault, "it has two dictionaries");
    if (h->encoding != ENCODING_PLAIN && h->encoding != ENCODING_PLAIN_DICTIONARY)
        return damaged(p, fault, "its dictionary is not PLAIN");
    if (h->values > h->bytes / 4) return damaged(p, fault, "its dictionary is too short for its texts");
    if (read_page(p, h, &p->dictionary, fault) < 0) return -1;
    if (h->values > p->entry_room) {
        free(p->entry);
        p->entry = xmalloc(sizeof *p->entry * (size_t)h->values, "the dictionary of a parquet file");
        p->entry_room = h->values;
    }
    const uint8_t *at = p->dictionary.data, *end = at + h->bytes;
    for (p->entries = 0; p->entries < h->values; p->entries++)
        if (!next_text(&at, end, &p->entry[p->entries]))
            return damaged(p, fault, "a text of its dictionary is longer than the page");
    return 1;
}

static int refuse_encoding(const Parquet *p, const char *what, int encoding, char *fault) {
    return refuse(fault, "has its column %s with %s encoded as %s, which is not built in; write it with the encoding "
                  "PLAIN or a dictionary", p->name, what, page_encoding_name(encoding));
}

/* Reads the levels of a page if rows may be null. They are before the values. In a page of version 1 their length is
 * before them. */
static int take_levels(Parquet *p, const PageHeader *h, const uint8_t **at, const uint8_t *end, char *fault) {
    uint64_t bytes = (uint64_t)h->level_bytes;
    if (h->kind == PAGE_DATA && p->column.is_optional) {
        if (h->level_encoding != ENCODING_RLE) return refuse_encoding(p, "nulls", h->level_encoding, fault);
        if (end - *at < 4) return damaged(p, fault, "a page is shorter than its levels");
        bytes = length_at(*at);
        *at += 4;
    }
    if (bytes > (uint64_t)(end - *at)) return damaged(p, fault, "a page is shorter than its levels");
    p->levels = (PageRuns){.at = *at, .end = *at + bytes, .width = 1};
    *at += bytes;
    return 1;
}

static int take_data(Parquet *p, const PageHeader *h, char *fault) {
    enum { WIDEST = 32 };
    if (h->values > p->chunk_left) return damaged(p, fault, "it has more rows than its footer says");
    if (!page_encoding_is_built_in(h->encoding)) return refuse_encoding(p, "texts", h->encoding, fault);
    p->is_by_dictionary = h->encoding != ENCODING_PLAIN;
    if (p->is_by_dictionary && p->entries < 0) return damaged(p, fault, "a page needs a dictionary, and there is none");
    if (read_page(p, h, &p->page, fault) < 0) return -1;
    const uint8_t *at = p->page.data, *end = at + h->bytes;
    if (take_levels(p, h, &at, end, fault) < 0) return -1;
    p->chunk_left -= h->values;
    p->page_left = h->values;
    p->value = at, p->value_end = end;
    p->indices = (PageRuns){.at = at, .end = end};
    if (!p->is_by_dictionary || at == end) return 1; /* all rows are null, so not even a width is there */
    p->indices.width = *p->indices.at++;
    return p->indices.width <= WIDEST ? 1 : damaged(p, fault, "its indices are wider than 32 bits");
}

/* Reads the next page, of any kind. Returns 1, 0 after the last page, or -1. */
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
        return damaged(p, fault, "a page has too few levels, or of other kinds than text and null");
    if (level == 1 && p->is_by_dictionary) {
        int64_t index = page_runs_next(&p->indices);
        if (index < 0 || index >= p->entries)
            return damaged(p, fault, "a page has too few texts, or some that its dictionary has not");
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

/* Reads the footer. After it are the last eight bytes of the file: the footer's length, and PAR1. Returns 1 or -1. */
static int read_footer(Parquet *p, uint64_t file_bytes, const char *field, char *fault) {
    uint8_t  head[MAGIC_BYTES], tail[TAIL_BYTES];
    uint64_t end = file_bytes - TAIL_BYTES;
    if (read_bytes(p, head, sizeof head, 0, fault) < 0 || read_bytes(p, tail, sizeof tail, end, fault) < 0) return -1;
    uint32_t bytes = length_at(tail);
    if (memcmp(head, "PARE", 4) == 0 || memcmp(tail + 4, "PARE", 4) == 0)
        return refuse(fault, "is encrypted (PARE); write it without encryption");
    if (memcmp(head, "PAR1", 4) != 0) return refuse(fault, "is no parquet file: it does not begin with PAR1");
    if (memcmp(tail + 4, "PAR1", 4) != 0)
        return refuse(fault, "does not end with its footer (PAR1): it was cut off, or bytes were added behind its end; copy or download it again");
    if (bytes <= end - MAGIC_BYTES && bytes > PAGE_LIMIT)
        return refuse(fault, "has a footer of %u bytes, and 1 GiB is the most that is read; write it as several files",
                      bytes);
    if (bytes > end - MAGIC_BYTES)
        return refuse(fault, "is damaged: its footer of %u bytes is longer than it; copy or download it again", bytes);
    uint8_t *footer = make_room(&p->page, (size_t)bytes + 1);
    int      is_good = read_bytes(p, footer, bytes, end - bytes, fault) > 0 &&
                  parquet_footer_parse(footer, bytes, end - bytes, field, &p->column, fault);
    free(p->page.data);
    p->page = (Buffer){NULL, 0};
    return is_good ? 1 : -1;
}

int parquet_open(Parquet **file, const char *path, const char *field, char fault[PARQUET_FAULT_CHARS]) {
    int64_t bytes = io_file_bytes(path);
    if (bytes == -ENOENT) return refuse(fault, "is not there"), 0;
    if (bytes == -EISDIR) return refuse(fault, "is a folder, no parquet file"), 0;
    if (bytes >= 0 && bytes < MAGIC_BYTES + TAIL_BYTES)
        return refuse(fault, "is truncated, or no parquet file: it holds %lld bytes", (long long)bytes), 0;
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
    parquet_footer_free(&p->column);
    free(p->packed.data), free(p->page.data), free(p->dictionary.data), free(p->entry), free(p->path);
    free(p);
}
