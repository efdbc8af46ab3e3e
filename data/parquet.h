/* parquet.h - reads the rows of one text column of a parquet file in order. Only a page and a dictionary are in memory
 * at a time, so the memory does not grow with the file.
 *
 * The column must be a top-level column of byte arrays, required or optional. Pages may have version 1 or 2, be plain
 * or use a dictionary, and be uncompressed or packed by snappy, gzip or zstd. Everything else is refused by name. All
 * numbers in a file are checked against the bytes that are there before they are used. Sources of the layout:
 * apache/parquet-format, parquet.thrift, Encodings.md, Compression.md. */
#ifndef TRAIN_GPT_DATA_PARQUET_H
#define TRAIN_GPT_DATA_PARQUET_H

#include <stddef.h>
#include <stdint.h>

typedef struct Parquet Parquet;
enum { PARQUET_FAULT_CHARS = 512 };

/* Opens a file and finds the column `field`. Returns 1, or 0 with the reason and the remedy in fault, worded to follow
 * the name of the file. This function and parquet_next exit with 74 if the file cannot be read, with 71 if there is no
 * memory. */
int     parquet_open(Parquet **file, const char *path, const char *field, char fault[PARQUET_FAULT_CHARS]);
int64_t parquet_rows(const Parquet *p);
/* Reads the text of the next row. Returns 1 with *text and *bytes, valid until the next call; they are NULL and 0 for a
 * row that is null. Returns 0 after the last row. Returns -1 with the reason in fault; then only parquet_close may be
 * called. */
int     parquet_next(Parquet *p, const char **text, size_t *bytes, char fault[PARQUET_FAULT_CHARS]);
void    parquet_close(Parquet *p);

/* --- parts of a file, declared for their tests -------------------------------------------------------------------- */

typedef enum { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 } PageKind;
typedef struct {
    PageKind kind;
    /* bytes of the page, levels and values together: as stored in the file, and uncompressed */
    int64_t  packed_bytes, bytes;
    int64_t  values;              /* number of values in the page, nulls included */
    /* PAGE_DATA_V2: bytes of the levels, which precede the values and are never compressed */
    int64_t  level_bytes;
    int      encoding, level_encoding;
    int      is_packed;           /* 1 if the page is packed by the codec of its column */
    int      has_crc;
    uint32_t crc;                 /* checksum of the page's bytes as stored in the file */
} PageHeader;

/* Parses the header of a page. Returns its length. Returns 0 if the header is longer than `bytes`, -1 if the bytes are
 * no header. */
int64_t page_header_parse(const uint8_t *data, size_t bytes, PageHeader *header);
/* Unpacks the bytes of a page into out [bytes]. codec is the number that parquet gives the codec, not 0. Returns 1 if
 * the unpacked bytes fill out exactly. */
int     page_unpack(int codec, const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes);

/* A reader of numbers of `width` bits, which are stored as runs of one repeated value and runs of bit-packed values. */
typedef struct {
    const uint8_t *at, *end; /* borrowed: the bytes that are not read yet */
    int            width;    /* bits of each number, 0 to 32 */
    uint64_t       left;     /* number of values that are left in the current run (of one repeated value, or of
                              * bit-packed values) */
    int            is_packed;
    uint32_t       value;    /* the repeated value, in a run of one repeated value */
    uint64_t       bit;      /* place of the next bit-packed value, in bits from `at` */
} PageRuns;
int64_t page_runs_next(PageRuns *r); /* returns the next number; -1 if there is none, or the bytes are damaged */

/* Pages of the column in one group of rows; they are adjacent in the file. offset, bytes: where they are. codec: number
 * of the codec that packs them. */
typedef struct {
    uint64_t offset, bytes;
    int64_t  rows;
    int      codec;
} ParquetChunk;

typedef struct {
    int           is_optional; /* 1 if the column may have rows that are null */
    int64_t       rows;
    /* owned [chunks]: the column's pages in each group of rows that has rows; the caller frees it */
    ParquetChunk *chunk;
    int64_t       chunks;
} ParquetColumn;

/* Parses a footer [bytes] at byte `offset` of its file and finds the column `field`. Returns 1. Returns 0 with the
 * reason in fault, worded to follow the name of the file; *column then owns nothing. */
int parquet_footer_parse(const uint8_t *footer, size_t bytes, uint64_t offset, const char *field, ParquetColumn *column,
                         char fault[PARQUET_FAULT_CHARS]);

#endif
