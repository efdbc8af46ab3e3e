/* unpack.c - see unpack.h. */
#include "data/unpack.h"

#include <archive.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "core/error.h"

enum {
    INPUT_BYTES = 1 << 16,
    ZSTD_HEADER = 18,  /* bytes: the longest header of a frame (RFC 8878) */
    ZSTD_MOST = 31,    /* log2 of the largest window that libzstd reads */
    XZ_HEADER = 12, XZ_FOOTER = 12, XZ_LAST = XZ_HEADER + XZ_FOOTER, /* bytes */
    ZLIB_GZIP = 15 + 16 /* the largest window, plus 16: expect a gzip header */
};

struct Unpack {
    Packing         packing;
    UnpackSource   *source;       /* borrowed */
    void           *with;         /* borrowed */
    char            in[INPUT_BYTES];
    size_t          at, end;      /* range of `in` that is not used yet */
    int64_t         used;         /* bytes of the packed file before `at` */
    int             is_at_end;    /* the source has reached its end */
    int             member;       /* number of the member being read, from 1 */
    int             is_between;   /* between members: the next byte begins one, or the file ends */
    int             is_done;
    z_stream        gzip;
    ZSTD_DCtx      *zstd;         /* owned */
    uint64_t        window;       /* bytes of memory that the header of the zstd frame requires; 0 if not known */
    struct archive *xz;           /* owned */
    unsigned char   last[XZ_LAST]; /* the last bytes of an xz file so far */
    size_t          lasts;
    int             error;        /* exit code of a failed source, because libarchive does not keep it; 0 if none */
    char            why[UNPACK_FAULT_CHARS];
};

Packing unpack_kind(const char *data, size_t bytes) {
    static const char GZIP[] = "\x1f\x8b\x08", ZSTD[] = "\x28\xb5\x2f\xfd", SKIPPABLE[] = "\x2a\x4d\x18",
                      XZ[] = "\xfd"
                             "7zXZ";
    if (bytes >= 2 && memcmp(data, GZIP, bytes < 3 ? bytes : 3) == 0) return PACKED_GZIP; /* even if it is cut there */
    if (bytes >= 4 && memcmp(data, ZSTD, 4) == 0) return PACKED_ZSTD;
    if (bytes >= 4 && ((unsigned char)data[0] & 0xF0) == 0x50 && memcmp(data + 1, SKIPPABLE, 3) == 0)
        return PACKED_ZSTD;
    if (bytes >= 6 && memcmp(data, XZ, sizeof XZ) == 0) return PACKED_XZ;
    return PACKED_NOT;
}

const char *unpack_name(Packing packing) {
    static const char *const NAMES[] = {"none", "gzip", "zstd", "xz"};
    return NAMES[packing];
}

const char *unpack_command(Packing packing) {
    static const char *const COMMANDS[] = {NULL, "gzip -dc", "zstd -dc --long=31", "xz -dc"};
    return COMMANDS[packing];
}

static int64_t fault_is(char *fault, int exit_code, const char *fmt, ...) PRINTF_LIKE(3, 4);
static int64_t fault_is(char *fault, int exit_code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault, UNPACK_FAULT_CHARS, fmt, args);
    va_end(args);
    return -exit_code;
}

static int64_t is_cut(const Unpack *u, char *fault) {
    return fault_is(fault, EXIT_DATA,
                    "cannot be unpacked to its end: the file was cut off, after %lld bytes of %s; copy or make it "
                    "again",
                    (long long)u->used, unpack_name(u->packing));
}

static int64_t is_damaged(const Unpack *u, const char *why, char *fault) {
    return fault_is(fault, EXIT_DATA, "is damaged before byte %lld (%s, member %d): %s; copy or download it again",
                    (long long)u->used, unpack_name(u->packing), u->member, why);
}

/* Reads until `in` has at least `least` unused bytes or the file ends. Returns how many it has, or minus an exit
 * code. */
static int64_t refill(Unpack *u, size_t least, char *fault) {
    if (u->end - u->at >= least) return (int64_t)(u->end - u->at);
    memmove(u->in, u->in + u->at, u->end - u->at);
    u->end -= u->at, u->at = 0;
    while (u->end < least && !u->is_at_end) {
        int64_t n = u->source(u->with, u->in + u->end, sizeof u->in - u->end, fault);
        if (n < 0) return n;
        u->is_at_end = n == 0;
        u->end += (size_t)n;
    }
    return (int64_t)u->end;
}

static void use(Unpack *u, size_t bytes) { u->at += bytes, u->used += (int64_t)bytes; }

/* --- gzip --------------------------------------------------------------------------------------------------------- */

/* Begins the next member. Returns 1, 0 if none follows, or minus an exit code. */
static int64_t begin_gzip(Unpack *u, char *fault) {
    int64_t n = refill(u, 2, fault);
    if (n < 0) return n;
    if (n == 0 && u->member > 0) return 0;
    if (u->member > 0 && (u->in[u->at] != '\x1f' || (n > 1 && u->in[u->at + 1] != '\x8b')))
        return fault_is(fault, EXIT_DATA,
                        "has bytes after gzip member %d, from byte %lld on, that are not gzip: it is damaged, or "
                        "something was appended; copy or download it again ($ gzip -dc < PACKED > NEW keeps what is before them)",
                        u->member, (long long)u->used);
    u->member++;
    if (u->member > 1 && inflateReset(&u->gzip) != Z_OK) fail(EXIT_MEMORY, "no memory to unpack a text");
    u->is_between = 0;
    return 1;
}

static int64_t read_gzip(Unpack *u, char *data, size_t bytes, char *fault) {
    u->gzip.next_out = (Bytef *)data, u->gzip.avail_out = (uInt)bytes;
    for (;;) {
        int64_t n = u->is_between ? begin_gzip(u, fault) : 1;
        if (n < 0) return n;
        if (n == 0) return u->is_done = 1, 0;
        if ((n = refill(u, 1, fault)) < 0) return n;
        u->gzip.next_in = (Bytef *)u->in + u->at, u->gzip.avail_in = (uInt)(u->end - u->at);
        int status = inflate(&u->gzip, Z_NO_FLUSH);
        use(u, u->end - u->at - u->gzip.avail_in);
        if (status == Z_MEM_ERROR) fail(EXIT_MEMORY, "no memory to unpack a text");
        if (status == Z_DATA_ERROR || status == Z_NEED_DICT)
            return is_damaged(u, u->gzip.msg ? u->gzip.msg : "it asks for a dictionary", fault);
        if (status == Z_STREAM_END) u->is_between = 1;
        if (u->gzip.avail_out < bytes) return (int64_t)(bytes - u->gzip.avail_out);
        if (status != Z_STREAM_END && n == 0) return is_cut(u, fault);
    }
}

/* --- zstd --------------------------------------------------------------------------------------------------------- */

/* Returns the window of a frame in bytes, or the size of its text if the header has it and it is smaller. Returns 0 if
 * it is no frame. */
static uint64_t window_of(const unsigned char *header, int64_t bytes) {
    static const int DICTIONARY[] = {0, 1, 2, 4}, SIZE[] = {0, 2, 4, 8}; /* bytes of the fields (RFC 8878 3.1.1.1) */
    if (bytes < 6 || memcmp(header, "\x28\xb5\x2f\xfd", 4) != 0 || header[4] & 0x20) return 0;
    uint64_t base = (uint64_t)1 << (10 + (header[5] >> 3)), window = base + base / 8 * (header[5] & 7), size = 0;
    int      at = 6 + DICTIONARY[header[4] & 3], count = SIZE[header[4] >> 6];
    if (at + count > bytes || count == 0) return window;
    for (int i = count - 1; i >= 0; i--) size = size << 8 | header[at + i];
    if (count == 2) size += 256;
    return size < window && window <= (uint64_t)1 << ZSTD_MOST ? size : window;
}

/* Returns the memory that the system can still give, in bytes; UINT64_MAX if it is not known. */
static uint64_t memory_there(void) {
    char               line[200];
    unsigned long long kib = 0;
    FILE              *file = fopen("/proc/meminfo", "re");
    while (file && kib == 0 && fgets(line, sizeof line, file)) sscanf(line, "MemAvailable: %llu", &kib);
    if (file) fclose(file);
    return kib ? (uint64_t)kib << 10 : UINT64_MAX;
}

static int64_t is_too_wide(const Unpack *u, char *fault) {
    double mib = 1048576.0, there = (double)memory_there() / mib;
    if (u->window > (uint64_t)1 << ZSTD_MOST)
        return fault_is(fault, EXIT_DATA,
                        "was packed by zstd with a window of %.0f MiB; the limit is 2048 MiB (zstd --long=31): pack it "
                        "again with a smaller window",
                        (double)u->window / mib);
    return fault_is(fault, EXIT_MEMORY,
                    "was packed by zstd with a window of %.0f MiB (zstd --long=31) and needs as much memory to unpack; "
                    "this machine has %.0f MiB left: unpack it on another one by $ zstd -dc --long=31 < PACKED > NEW",
                    (double)u->window / mib, there);
}

/* Begins the next frame. Returns 1, 0 if none follows, or minus an exit code. */
static int64_t begin_zstd(Unpack *u, char *fault) {
    int64_t n = refill(u, ZSTD_HEADER, fault);
    if (n <= 0) return n;
    u->member++;
    u->window = window_of((const unsigned char *)u->in + u->at, n);
    if (u->window > (uint64_t)1 << 27 && u->window > memory_there()) return is_too_wide(u, fault);
    if (u->window > (uint64_t)1 << ZSTD_MOST) return is_too_wide(u, fault);
    if (n >= 4 && memcmp(u->in + u->at, "\x04\x22\x4d\x18", 4) == 0)
        return fault_is(fault, EXIT_DATA, "is packed by lz4, which is not read: $ lz4 -dc < PACKED > NEW unpacks it");
    if (u->member > 1 && unpack_kind(u->in + u->at, (size_t)n) != PACKED_ZSTD) {
        if (n < 4 && u->is_at_end && memcmp(u->in + u->at, "\x28\xb5\x2f", (size_t)n) == 0) return is_cut(u, fault);
        return fault_is(fault, EXIT_DATA,
                        "has bytes after zstd frame %d, from byte %lld on, that are not zstd: it is damaged, or "
                        "something was appended; copy or download it again ($ zstd -dc --long=31 < PACKED > NEW keeps what is before them)",
                        u->member - 1, (long long)u->used);
    }
    u->is_between = 0;
    return 1;
}

static int64_t zstd_fault(const Unpack *u, size_t status, char *fault) {
    switch (ZSTD_getErrorCode(status)) {
    case ZSTD_error_memory_allocation:
    case ZSTD_error_frameParameter_windowTooLarge: return is_too_wide(u, fault);
    case ZSTD_error_dictionary_wrong:
    case ZSTD_error_dictionary_corrupted:
        return fault_is(fault, EXIT_DATA,
                        "was packed by zstd with a dictionary, which is not read: $ zstd -dc -D DICTIONARY < PACKED > NEW "
                        "unpacks it");
    default: return is_damaged(u, ZSTD_getErrorName(status), fault);
    }
}

static int64_t read_zstd(Unpack *u, char *data, size_t bytes, char *fault) {
    ZSTD_outBuffer out = {data, bytes, 0};
    while (out.pos == 0) {
        int64_t n = u->is_between ? begin_zstd(u, fault) : 1;
        if (n < 0) return n;
        if (n == 0) return u->is_done = 1, 0;
        if ((n = refill(u, 1, fault)) < 0) return n;
        ZSTD_inBuffer in = {u->in + u->at, u->end - u->at, 0};
        size_t        status = ZSTD_decompressStream(u->zstd, &out, &in);
        use(u, in.pos);
        if (ZSTD_isError(status)) return zstd_fault(u, status, fault);
        if (status == 0) u->is_between = 1;
        else if (n == 0 && out.pos == 0) return is_cut(u, fault);
    }
    return (int64_t)out.pos;
}

/* --- xz ----------------------------------------------------------------------------------------------------------- */

/* Keeps the last bytes of the file so far: those read now after those read before. */
static void keep_last(Unpack *u) {
    size_t n = u->end < XZ_LAST ? u->end : XZ_LAST, old = u->lasts < XZ_LAST - n ? u->lasts : XZ_LAST - n;
    memmove(u->last, u->last + u->lasts - old, old);
    memcpy(u->last + old, u->in + u->end - n, n);
    u->lasts = old + n;
}

/* Returns whether a whole xz stream is followed by fewer than twelve bytes. liblzma ignores these bytes, because it
 * waits for twelve bytes before it reads a header. A stream ends with the checksum of six bytes, these six bytes, and
 * "YZ" (xz-file-format 2.1.2). Bytes that may begin another stream do not count. */
static int is_behind_xz(const Unpack *u) {
    for (size_t n = 1; n < XZ_HEADER && n + XZ_FOOTER <= u->lasts; n++) {
        const unsigned char *behind = u->last + u->lasts - n, *footer = behind - XZ_FOOTER;
        uint32_t sum = footer[0] | (uint32_t)footer[1] << 8 | (uint32_t)footer[2] << 16 | (uint32_t)footer[3] << 24;
        if (memcmp(footer + 10, "YZ", 2) == 0 && crc32(0, footer + 4, 6) == sum)
            return memcmp(behind, "\xfd" "7zXZ", n < 6 ? n : 6) != 0;
    }
    return 0;
}

static la_ssize_t next_xz(struct archive *a, void *with, const void **data) {
    Unpack *u = (Unpack *)with;
    use(u, u->end - u->at); /* libarchive has finished the previous bytes */
    *data = u->in;
    int64_t n = refill(u, 1, u->why);
    if (n < 0) u->error = (int)-n, archive_set_error(a, -1, "cannot be read");
    else keep_last(u);
    return n < 0 ? -1 : (la_ssize_t)n;
}

static int64_t xz_fault(const Unpack *u, char *fault) {
    const char *why = archive_error_string(u->xz);
    if (u->error) return fault_is(fault, u->error, "%s", u->why);
    if (!why) why = "";
    if (strstr(why, "No progress") && is_behind_xz(u))
        return fault_is(fault, EXIT_DATA,
                        "holds bytes that are no xz behind its last stream: damaged, or something was added; copy or "
                        "download it again");
    if (strstr(why, "No progress")) return is_cut(u, fault);
    if (strstr(why, "emory")) /* the words of libarchive if there is no memory for the dictionary */
        return fault_is(fault, EXIT_MEMORY,
                        "was packed by xz with a dictionary for which there is no memory: unpack it on a machine with "
                        "more, by $ xz -dc < PACKED > NEW");
    const char *colon = strrchr(why, ':'); /* "Lzma library error: Corrupted input data" */
    return fault_is(fault, EXIT_DATA, "is damaged (xz):%s; copy or download it again", colon ? colon + 1 : why);
}

static int64_t open_xz(Unpack *u, char *fault) {
    struct archive_entry *entry;
    u->xz = archive_read_new();
    if (!u->xz) fail(EXIT_MEMORY, "no memory to unpack a text");
    archive_read_support_filter_xz(u->xz);
    archive_read_support_format_raw(u->xz);
    archive_read_support_format_empty(u->xz);
    u->member = 1;
    int status = archive_read_open(u->xz, u, NULL, next_xz, NULL);
    if (status == ARCHIVE_OK) status = archive_read_next_header(u->xz, &entry);
    if (status != ARCHIVE_OK && status != ARCHIVE_EOF) return xz_fault(u, fault);
    if (archive_filter_count(u->xz) > 2)
        return fault_is(fault, EXIT_DATA, "is packed twice: $ xz -dc < PACKED > NEW unpacks it once");
    return status == ARCHIVE_EOF ? 0 : 1;
}

static int64_t read_xz(Unpack *u, char *data, size_t bytes, char *fault) {
    int64_t is_open = u->xz ? 1 : open_xz(u, fault);
    if (is_open <= 0) return u->is_done = 1, is_open;
    la_ssize_t n;
    do n = archive_read_data(u->xz, data, bytes);
    while (n == ARCHIVE_RETRY);
    if (n == 0) u->is_done = 1;
    return n < 0 ? xz_fault(u, fault) : (int64_t)n;
}

/* --- all of them -------------------------------------------------------------------------------------------------- */

Unpack *unpack_create(Packing packing, UnpackSource *source, void *with) {
    Unpack *u = xcalloc(1, sizeof *u, "unpacking a text");
    u->packing = packing, u->source = source, u->with = with, u->is_between = 1;
    int is_good = 1;
    if (packing == PACKED_GZIP) is_good = inflateInit2(&u->gzip, ZLIB_GZIP) == Z_OK;
    if (packing == PACKED_ZSTD)
        is_good = (u->zstd = ZSTD_createDCtx()) != NULL &&
                  !ZSTD_isError(ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, ZSTD_MOST));
    if (!is_good) fail(EXIT_MEMORY, "no memory to unpack a text");
    return u;
}

int64_t unpack_read(Unpack *u, char *data, size_t bytes, char fault[UNPACK_FAULT_CHARS]) {
    if (u->is_done || bytes == 0) return 0;
    if (bytes > INT_MAX) bytes = INT_MAX;
    switch (u->packing) {
    case PACKED_GZIP: return read_gzip(u, data, bytes, fault);
    case PACKED_ZSTD: return read_zstd(u, data, bytes, fault);
    default: return read_xz(u, data, bytes, fault);
    }
}

void unpack_destroy(Unpack *u) {
    if (!u) return;
    if (u->packing == PACKED_GZIP) inflateEnd(&u->gzip);
    if (u->zstd) ZSTD_freeDCtx(u->zstd);
    if (u->xz) archive_read_free(u->xz);
    free(u);
}
