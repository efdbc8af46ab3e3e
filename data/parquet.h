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

#endif
