/* parquet_page.h - the pages of a parquet file: headers, compression and packed numbers. Private to data/parquet*.c and
 * their tests. */
#ifndef TRAIN_GPT_DATA_PARQUET_PAGE_H
#define TRAIN_GPT_DATA_PARQUET_PAGE_H

#include <stddef.h>
#include <stdint.h>

typedef enum { PAGE_DATA, PAGE_INDEX, PAGE_DICTIONARY, PAGE_DATA_V2 } PageKind;
enum { ENCODING_PLAIN, ENCODING_PLAIN_DICTIONARY = 2, ENCODING_RLE, ENCODING_BIT_PACKED, ENCODING_DICTIONARY = 8 };
/* bytes of a page, and of a header, which holds the least and the greatest text */
enum { PAGE_LIMIT = 1 << 30, PAGE_HEADER_LIMIT = 16 << 20 };

typedef struct {
    PageKind kind;
    int64_t  packed_bytes, bytes; /* bytes of levels and values, as in the file and uncompressed */
    int64_t  values;              /* number of values, nulls included */
    int64_t  level_bytes;         /* PAGE_DATA_V2: bytes of the levels, which are uncompressed and before the values */
    int      encoding, level_encoding;
    int      is_packed;           /* 1 if packed by the codec of the chunk */
    int      has_crc;
    uint32_t crc;                 /* checksum of the bytes as in the file */
} PageHeader;

/* Parses the header of a page. Returns its length, 0 if it is longer than `bytes`, -1 if it is not a header. */
int64_t page_header_parse(const uint8_t *data, size_t bytes, PageHeader *header);

/* Return the name of an encoding or a codec, "UNKNOWN" if the format has no such number. */
const char *page_encoding_name(int64_t encoding);
const char *page_codec_name(int64_t codec);
int         page_encoding_is_built_in(int64_t encoding);
int         page_codec_is_built_in(int64_t codec);
/* Returns whether packed_bytes can unpack to `bytes` with this codec. The caller allocates memory only then. */
int         page_may_hold(int codec, uint64_t packed_bytes, uint64_t bytes);
/* Unpacks by a codec other than 0 into out [bytes]. Returns 1 if it fills out exactly. */
int         page_unpack(int codec, const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t bytes);

/* A reader of numbers of `width` bits, which are stored as runs of one repeated value and runs of bit-packed values. */
typedef struct {
    const uint8_t *at, *end; /* borrowed */
    int            width;    /* 0 to 32 */
    uint64_t       left;     /* values left in the run */
    int            is_packed;
    uint32_t       value;    /* the value of a run of one repeated value */
    uint64_t       bit;      /* place of the next bit-packed value, in bits from `at` */
} PageRuns;

int64_t page_runs_next(PageRuns *r); /* returns the next number; -1 if there is none, or the bytes are not runs */

#endif
