/* parquet_footer.h - the footer of a parquet file: the places of one column's pages. Private to data/parquet*.c and
 * their tests. */
#ifndef TRAIN_GPT_DATA_PARQUET_FOOTER_H
#define TRAIN_GPT_DATA_PARQUET_FOOTER_H

#include "data/parquet.h"

/* Of a group of rows: the column's pages, one after another. */
typedef struct {
    uint64_t offset, bytes;
    int64_t  rows;
    int      codec;
} ParquetChunk;

typedef struct {
    int           is_optional; /* rows may be without text */
    int64_t       rows;
    ParquetChunk *chunk;       /* owned */
    int64_t       chunks;
} ParquetColumn;

/* Parses a footer [bytes] that stands `offset` bytes into its file. Returns 1, or 0 and the fault as parquet_open
 * does; then nothing is owned. */
int parquet_footer_parse(const uint8_t *footer, size_t bytes, uint64_t offset, const char *field, ParquetColumn *column,
                         char fault[PARQUET_FAULT_CHARS]);
void parquet_footer_free(ParquetColumn *column);

#endif
