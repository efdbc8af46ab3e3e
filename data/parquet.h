/* parquet.h - the rows of one text column of a parquet file, in order, in a memory that does not grow with the file:
 * a page and a dictionary at a time.
 *
 * A column at the top level of byte arrays, required or optional; pages of version 1 and 2, plain or by a dictionary;
 * uncompressed or packed by snappy, gzip or zstd. The rest is refused by name. Nothing in a file is believed before
 * it is checked against the bytes that are there. Sources of the layout: apache/parquet-format, parquet.thrift,
 * Encodings.md, Compression.md.
 */
#ifndef TRAIN_GPT_DATA_PARQUET_H
#define TRAIN_GPT_DATA_PARQUET_H

#include <stddef.h>
#include <stdint.h>

typedef struct Parquet Parquet;
enum { PARQUET_FAULT_CHARS = 400 };

/* Opens a file and finds the column `field`. Returns 1, or 0 and in fault the reason and the remedy, as the end of a
 * sentence that begins with the file's name. Exit 74, here and below, where the file cannot be read, 71 without
 * memory. */
int     parquet_open(Parquet **file, const char *path, const char *field, char fault[PARQUET_FAULT_CHARS]);
int64_t parquet_rows(const Parquet *p);
/* The next row's text: 1, with *text, *bytes (borrowed until the next call; NULL and 0: a row without text, null); 0
 * after the last row; -1: fault as above, after which only parquet_close may follow. */
int     parquet_next(Parquet *p, const char **text, size_t *bytes, char fault[PARQUET_FAULT_CHARS]);
void    parquet_close(Parquet *p);

#endif
