/* fuzz_parquet.c - any bytes as a parquet file with the column "text". The result is rows inside the reader's memory,
 * or a message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/parquet.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { ROWS = 1 << 14 }; /* most rows that are read, because a few bytes can stand for any number of rows */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static int    file = -1;
    static char   path[64];
    /* each byte of the texts is stored here, so that the compiler cannot leave out reading them */
    static volatile char byte;
    (void)byte;
    char          fault[PARQUET_FAULT_CHARS] = "";
    const char   *text;
    size_t        count;
    Parquet      *p;
    if (file < 0) {
        file = memfd_create("parquet", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    if (ftruncate(file, 0) != 0 || pwrite(file, data, bytes, 0) != (ssize_t)bytes) abort();
    int more = parquet_open(&p, path, "text", fault) ? 1 : -1, is_open = more > 0;
    for (int64_t row = 0; more > 0 && row < ROWS; row++) {
        more = parquet_next(p, &text, &count, fault);
        if (more > 0 && (row >= parquet_rows(p) || (!text && count > 0))) abort();
        for (size_t i = 0; more > 0 && i < count && i < ROWS; i++) byte = text[i];
    }
    if (more < 0 && (!fault[0] || !memchr(fault, 0, sizeof fault))) abort();
    if (is_open) parquet_close(p);
    return 0;
}
