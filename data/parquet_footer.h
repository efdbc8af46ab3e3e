/* parquet_footer.h - the footer of a parquet file: the places of one column's pages. Private to data/parquet*.c and
 * their tests. */
#ifndef TRAIN_GPT_DATA_PARQUET_FOOTER_H
#define TRAIN_GPT_DATA_PARQUET_FOOTER_H

#include "data/parquet.h"

/* The pages of the column in one group of rows, which are adjacent. */
typedef struct {
    uint64_t offset, bytes;
    int64_t  rows;
    int      codec;
} ParquetChunk;

typedef struct {
    int           is_optional; /* 1 if rows may be null */
    int64_t       rows;
    ParquetChunk *chunk;       /* owned */
    int64_t       chunks;
} ParquetColumn;

/* Parses a footer [bytes] at byte `offset` of its file. Returns 1. Returns 0 with the fault, as parquet_open does; then
 * *column owns nothing. */
int parquet_footer_parse(const uint8_t *footer, size_t bytes, uint64_t offset, const char *field, ParquetColumn *column,
                         char fault[PARQUET_FAULT_CHARS]);
void parquet_footer_free(ParquetColumn *column);

#endif
