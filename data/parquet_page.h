/* parquet_page.h - the pages of a parquet file: their headers, their compression, their packed numbers. Private to
 * data/parquet*.c and their tests. */
#ifndef TRAIN_GPT_DATA_PARQUET_PAGE_H
#define TRAIN_GPT_DATA_PARQUET_PAGE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 } PageKind;
enum { ENCODING_PLAIN, ENCODING_PLAIN_DICTIONARY = 2, ENCODING_RLE, ENCODING_BIT_PACKED, ENCODING_DICTIONARY = 8 };
enum { PAGE_LIMIT = 1 << 30, PAGE_HEADER_LIMIT = 16 << 20 }; /* bytes; a header holds the least and the greatest text */

typedef struct {
    PageKind kind;
    int64_t  packed_bytes, bytes; /* as in the file, and without compression: levels and values */
    int64_t  values;              /* with those that are null */
    int64_t  level_bytes;         /* of PAGE_DATA_V2: uncompressed, before the values */
    int      encoding, level_encoding;
    int      is_packed;           /* by the chunk's codec */
    int      has_crc;
    uint32_t crc;                 /* of the bytes as in the file */
} PageHeader;

/* Parses the header of a page. Returns its length; 0 where it is longer than the bytes; -1 where it is none. */
int64_t page_header_parse(const uint8_t *data, size_t bytes, PageHeader *header);

/* The name of an encoding or a codec, "UNKNOWN" for one that the format has not. */
const char *page_encoding_name(int64_t encoding);
const char *page_codec_name(int64_t codec);
int         page_encoding_is_built_in(int64_t encoding);
int         page_codec_is_built_in(int64_t codec);
/* Whether so many bytes can be what the codec made of so many others: memory is asked for only then. */
int         page_may_hold(int codec, uint64_t packed_bytes, uint64_t bytes);
/* Unpacks by a codec other than 0 into out [bytes]; returns whether it is just filled. */
int         page_unpack(int codec, const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes);

/* Numbers of `width` bits: runs of one value, and runs of values packed bit by bit. */
typedef struct {
    const uint8_t *at, *end; /* borrowed */
    int            width;    /* 0 to 32 */
    uint64_t       left;     /* values of the run */
    int            is_packed;
    uint32_t       value;    /* of a run of one value */
    uint64_t       bit;      /* of packed ones, from `at` */
} PageRuns;

int64_t page_runs_next(PageRuns *r); /* -1: there is none, or the bytes are no runs */

#endif
