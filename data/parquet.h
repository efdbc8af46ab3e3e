/* parquet.h - reads the rows of one text column of a parquet file in order. Memory holds a page and a dictionary at a
 * time, so it does not grow with the file.
 *
 * The column must be a top-level column of byte arrays, required or optional. Pages may have version 1 or 2, be plain
 * or use a dictionary, and be uncompressed or packed by snappy, gzip or zstd. Everything else is refused by name. All
 * numbers in a file are checked against the bytes that are there before they are used. Sources of the layout:
 * apache/parquet-format, parquet.thrift, Encodings.md, Compression.md.
 */
#ifndef TRAIN_GPT_DATA_PARQUET_H
#define TRAIN_GPT_DATA_PARQUET_H

#include <stddef.h>
#include <stdint.h>

typedef struct Parquet Parquet;
enum { PARQUET_FAULT_CHARS = 400 };

/* Opens a file and finds the column `field`. Returns 1, or 0 with the reason and the remedy in fault, worded to follow
 * the name of the file. This function and parquet_next exit with 74 if the file cannot be read, with 71 if there is no
 * memory. */
int     parquet_open(Parquet **file, const char *path, const char *field, char fault[PARQUET_FAULT_CHARS]);
int64_t parquet_rows(const Parquet *p);
/* Reads the text of the next row. Returns 1 with *text and *bytes, borrowed until the next call; NULL and 0 for a row
 * that is null. Returns 0 after the last row. Returns -1 with the reason in fault; then only parquet_close may be
 * called. */
int     parquet_next(Parquet *p, const char **text, size_t *bytes, char fault[PARQUET_FAULT_CHARS]);
void    parquet_close(Parquet *p);

/* --- parts of a file, declared for their tests -------------------------------------------------------------------- */

typedef enum { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 } PageKind;
typedef struct {
    PageKind kind;
    /* bytes of the levels and values of the page: as stored in the file, and uncompressed */
    int64_t  packed_bytes, bytes;
    int64_t  values;              /* number of values in the page, nulls included */
    int64_t  level_bytes;         /* PAGE_DATA_V2: bytes of the levels, which are uncompressed and before the values */
    int      encoding, level_encoding;
    int      is_packed;           /* 1 if the page is packed by the codec of its chunk */
    int      has_crc;
    uint32_t crc;                 /* checksum of the page's bytes as stored in the file */
} PageHeader;

/* Parses the header of a page. Returns its length, 0 if it is longer than `bytes`, -1 if it is not a header. */
int64_t page_header_parse(const uint8_t *data, size_t bytes, PageHeader *header);
/* Unpacks the bytes of a page into out [bytes]. codec is the codec's number in parquet, not 0. Returns 1 if the result
 * fills out exactly. */
int     page_unpack(int codec, const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes);

/* A reader of numbers of `width` bits, which are stored as runs of one repeated value and runs of bit-packed values. */
typedef struct {
    const uint8_t *at, *end; /* borrowed: the bytes that are not read yet */
    int            width;    /* bits of each number, 0 to 32 */
    uint64_t       left;     /* values that are left in the current run */
    int            is_packed;
    uint32_t       value;    /* the repeated value, in a run of one repeated value */
    uint64_t       bit;      /* place of the next bit-packed value, in bits from `at` */
} PageRuns;
int64_t page_runs_next(PageRuns *r); /* returns the next number; -1 if there is none, or the bytes are not runs */

/* The pages of the column in one group of rows, which are adjacent. */
typedef struct {
    uint64_t offset, bytes;
    int64_t  rows;
    int      codec;
} ParquetChunk;

typedef struct {
    int           is_optional; /* 1 if rows of the column may be null */
    int64_t       rows;
    ParquetChunk *chunk;       /* owned; the caller frees it */
    int64_t       chunks;
} ParquetColumn;

/* Parses a footer [bytes] at byte `offset` of its file. Returns 1. Returns 0 with the reason in fault, worded to follow
 * the name of the file; then *column owns nothing. */
int parquet_footer_parse(const uint8_t *footer, size_t bytes, uint64_t offset, const char *field, ParquetColumn *column,
                         char fault[PARQUET_FAULT_CHARS]);

#endif
