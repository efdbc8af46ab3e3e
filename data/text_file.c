/* text_file.c - see text_file.h. */
#include "data/text_file.h"

#include <archive.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "data/shard.h"

struct TextFile {
    int             fd;
    struct archive *packed;        /* owned; NULL: the bytes are as they lie in the file */
    char            raw[TEXT_FILE_START]; /* the file's own start, which libarchive reads first */
    size_t          raws;
    char            start[TEXT_FILE_START];
    size_t          starts, given; /* bytes of the start, and how many of them have been read */
};

static int64_t read_file(int fd, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]) {
    ssize_t n;
    do n = read(fd, data, bytes);
    while (n < 0 && errno == EINTR);
    if (n < 0) snprintf(fault, TEXT_FILE_FAULT_CHARS, "cannot be read: %s", strerror(errno));
    return n < 0 ? -EXIT_IO : n;
}

/* --- unpacking ---------------------------------------------------------------------------------------------------- */

static la_ssize_t next_packed(struct archive *a, void *file, const void **data) {
    TextFile *f = (TextFile *)file;
    char      fault[TEXT_FILE_FAULT_CHARS];
    *data = f->raw;
    size_t n = f->raws;
    f->raws = 0;
    if (n > 0) return (la_ssize_t)n;
    int64_t more = read_file(f->fd, f->raw, sizeof f->raw, fault);
    if (more < 0) archive_set_error(a, errno, "%s", strerror(errno));
    return more < 0 ? -1 : (la_ssize_t)more;
}

static int packed_fault(const TextFile *f, char fault[TEXT_FILE_FAULT_CHARS]) {
    const char *why = archive_error_string(f->packed);
    snprintf(fault, TEXT_FILE_FAULT_CHARS, "cannot be unpacked to its end: %s; copy or make it again", why ? why : "it is damaged");
    return EXIT_DATA;
}

static int open_packed(TextFile *f, char fault[TEXT_FILE_FAULT_CHARS]) {
    struct archive_entry *entry;
    f->packed = archive_read_new();
    if (!f->packed) fail(EXIT_MEMORY, "no memory to unpack a text");
    archive_read_support_filter_gzip(f->packed);
    archive_read_support_filter_zstd(f->packed);
    archive_read_support_filter_xz(f->packed);
    archive_read_support_format_raw(f->packed);
    archive_read_support_format_empty(f->packed);
    if (archive_read_open(f->packed, f, NULL, next_packed, NULL) != ARCHIVE_OK) return packed_fault(f, fault);
    int status = archive_read_next_header(f->packed, &entry);
    return status == ARCHIVE_OK || status == ARCHIVE_EOF ? 0 : packed_fault(f, fault);
}

/* Bytes from behind the start. */
static int64_t read_on(TextFile *f, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]) {
    if (!f->packed && f->raws > 0) { /* the file's own start is the start */
        size_t n = f->raws < bytes ? f->raws : bytes;
        memcpy(data, f->raw, n);
        memmove(f->raw, f->raw + n, f->raws -= n);
        return (int64_t)n;
    }
    if (!f->packed) return read_file(f->fd, data, bytes, fault);
    la_ssize_t n;
    do n = archive_read_data(f->packed, data, bytes);
    while (n == ARCHIVE_RETRY);
    return n < 0 ? -packed_fault(f, fault) : (int64_t)n;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Fills data from the file's own bytes or the unpacked ones, up to its end. */
static int64_t fill(TextFile *f, char *data, size_t bytes, int is_raw, char fault[TEXT_FILE_FAULT_CHARS]) {
    size_t got = 0;
    for (int64_t n; got < bytes; got += (size_t)n) {
        n = is_raw ? read_file(f->fd, data + got, bytes - got, fault) : read_on(f, data + got, bytes - got, fault);
        if (n < 0) return n;
        if (n == 0) break;
    }
    return (int64_t)got;
}

int text_file_open(TextFile **file, const char *path, char fault[TEXT_FILE_FAULT_CHARS]) {
    struct stat st;
    TextFile   *f = (TextFile *)calloc(1, sizeof *f);
    if (!f) fail(EXIT_MEMORY, "no memory to read a text");
    *file = f;
    f->fd = io_open(path, IO_READ);
    int exit_code = 0;
    if (f->fd < 0) {
        snprintf(fault, TEXT_FILE_FAULT_CHARS, "cannot be read: %s", strerror(-f->fd));
        exit_code = EXIT_DATA;
    } else if (fstat(f->fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        snprintf(fault, TEXT_FILE_FAULT_CHARS, "is a folder");
        exit_code = EXIT_DATA;
    }
    int64_t n = exit_code ? 0 : fill(f, f->raw, sizeof f->raw, 1, fault);
    if (n < 0) exit_code = (int)-n;
    else f->raws = (size_t)n;
    const char *kind = exit_code ? NULL : shard_text_kind((const uint8_t *)f->raw, f->raws);
    if (kind && (strcmp(kind, "gzip") == 0 || strcmp(kind, "zstd") == 0 || strcmp(kind, "xz") == 0))
        exit_code = open_packed(f, fault);
    n = exit_code ? 0 : fill(f, f->start, sizeof f->start, 0, fault);
    if (n < 0) exit_code = (int)-n;
    else f->starts = (size_t)n;
    if (exit_code) text_file_close(f), *file = NULL;
    return exit_code;
}

void text_file_close(TextFile *f) {
    if (!f) return;
    if (f->packed) archive_read_free(f->packed);
    if (f->fd >= 0) io_close(f->fd);
    free(f);
}

TextKind text_file_kind(const TextFile *f, const char **what) {
    static const struct { const char *start; size_t bytes, at; const char *what; } OTHERS[] = {
        {"PK\3\4", 4, 0, "a zip archive or an office document"},
        {"ustar", 5, 257, "a tar archive"},
        {"%PDF-", 5, 0, "a PDF"},
        {"\x89PNG", 4, 0, "a picture"},
        {"\xff\xd8\xff", 3, 0, "a picture"},
        {"\x7f" "ELF", 4, 0, "a program"},
        {"\xff\xfe", 2, 0, "UTF-16 text (iconv -f UTF-16 -t UTF-8 turns it into UTF-8)"},
        {"\xfe\xff", 2, 0, "UTF-16 text (iconv -f UTF-16 -t UTF-8 turns it into UTF-8)"},
        {"BZh9", 4, 0, "packed by bzip2"},
        {"\x28\xb5\x2f\xfd", 4, 0, "packed twice"},
        {"\x1f\x8b\x08", 3, 0, "packed twice"},
    };
    const char *kind = shard_text_kind((const uint8_t *)f->start, f->starts);
    *what = NULL;
    if (kind && strcmp(kind, "parquet") == 0) return TEXT_PARQUET;
    if (kind && strcmp(kind, "JSON") == 0) return TEXT_JSON;
    if (shard_is_llmc((const uint8_t *)f->start, f->starts)) return *what = "a shard of tokens already", TEXT_OTHER;
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        if (f->starts >= OTHERS[i].at + OTHERS[i].bytes && memcmp(f->start + OTHERS[i].at, OTHERS[i].start, OTHERS[i].bytes) == 0)
            return *what = OTHERS[i].what, TEXT_OTHER;
    return memchr(f->start, '\0', f->starts) ? TEXT_OTHER : TEXT_PLAIN;
}

int         text_file_is_packed(const TextFile *f) { return f->packed != NULL; }
const char *text_file_start(const TextFile *f, size_t *bytes) { return *bytes = f->starts, f->start; }

int64_t text_file_read(TextFile *f, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]) {
    if (f->given == f->starts) return read_on(f, data, bytes, fault);
    size_t n = f->starts - f->given < bytes ? f->starts - f->given : bytes;
    memcpy(data, f->start + f->given, n);
    f->given += n;
    return (int64_t)n;
}
