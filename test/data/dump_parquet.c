/* dump_parquet.c - dump_parquet FILE FIELD writes the rows of a column to standard output, each after its length in
 * bytes and a newline; the length of a null is -1. test/interop compares them with pyarrow. It is also used to measure
 * the reader's speed. */
#include <stdio.h>

#include "data/parquet.h"

int main(int argc, char **argv) {
    char        fault[PARQUET_FAULT_CHARS];
    const char *text;
    size_t      bytes;
    Parquet    *p;
    int         more;
    if (argc < 3) return 64;
    if (!parquet_open(&p, argv[1], argv[2], fault)) return fprintf(stderr, "%s %s\n", argv[1], fault), 65;
    while ((more = parquet_next(p, &text, &bytes, fault)) > 0) {
        printf("%lld\n", text ? (long long)bytes : -1);
        if (bytes > 0) fwrite(text, 1, bytes, stdout);
    }
    if (more < 0) return fprintf(stderr, "%s %s\n", argv[1], fault), 65;
    parquet_close(p);
    return 0;
}
