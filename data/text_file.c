/* text_file.c - see text_file.h. First the bytes inside a packed file, then the text in them: its encoding, what a file
 * is that is no text, and characters decoded to UTF-8. */
#include "data/text_file.h"

#include <archive.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utf8proc.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/format.h"
#include "data/shard.h"

enum { CARRY = 4 /* most bytes of a character in any encoding */, CHUNK = 1 << 15, FIRST_BLOCK = 4096 };

const char *const TEXT_ENCODINGS[] = {"utf-8", "utf-16le", "utf-16be", "utf-32le", "utf-32be", "latin-1", NULL};

/* Writes a sentence about a fault into `fault`. Its value is exit_code. */
#define FAULT(exit_code, ...) (snprintf(fault, TEXT_FILE_FAULT_CHARS, __VA_ARGS__), (exit_code))

/* --- packed files ------------------------------------------------------------------------------------------------- */

enum {
    INPUT_BYTES = 1 << 16,
    ZSTD_HEADER = 18,  /* most bytes of the header of a zstd frame (RFC 8878) */
    ZSTD_MOST = 31,    /* log2 of the largest window of zstd that libzstd reads */
    /* XZ_HEADER, XZ_FOOTER: bytes of the header and of the footer of an xz stream */
    XZ_HEADER = 12, XZ_FOOTER = 12, XZ_LAST = XZ_HEADER + XZ_FOOTER,
    ZLIB_GZIP = 15 + 16 /* log2 of the largest window, plus 16 to accept only a gzip header */
};

struct Unpack {
    Packing         packing;
    UnpackSource   *source;       /* borrowed: reads the packed file */
    void           *with;         /* borrowed: argument of source() */
    char            in[INPUT_BYTES];
    size_t          at, end;      /* unused bytes of `in` are in[at .. end-1] */
    int64_t         used;         /* number of bytes of the packed file that have been used */
    int             is_at_end;    /* 1 when source() has reached the end of the packed file */
    int             member;       /* number of the gzip member, zstd frame or xz file that is being read, from 1 */
    int             is_between;   /* 1 between two members: the next byte begins a member, or the file ends */
    int             is_done;
    z_stream        gzip;
    ZSTD_DCtx      *zstd;         /* owned: state of libzstd */
    uint64_t        window;       /* memory in bytes that the header of the zstd frame requires; 0 if not known */
    struct archive *xz;           /* owned: libarchive's reader of an xz file */
    unsigned char   last[XZ_LAST]; /* the last bytes of the xz file that have been read */
    size_t          lasts;
    /* exit code of a failed source(), which libarchive does not keep; 0 if it has not failed */
    int             error;
    char            why[TEXT_FILE_FAULT_CHARS];
};

Packing unpack_kind(const char *data, size_t bytes) {
    static const char GZIP[] = "\x1f\x8b\x08", ZSTD[] = "\x28\xb5\x2f\xfd", SKIPPABLE[] = "\x2a\x4d\x18",
                      XZ[] = "\xfd" "7zXZ";
    /* recognises gzip even if the file is cut off within the three bytes of its magic */
    if (bytes >= 2 && memcmp(data, GZIP, bytes < 3 ? bytes : 3) == 0) return PACKED_GZIP;
    if (bytes >= 4 && memcmp(data, ZSTD, 4) == 0) return PACKED_ZSTD;
    if (bytes >= 4 && ((unsigned char)data[0] & 0xF0) == 0x50 && memcmp(data + 1, SKIPPABLE, 3) == 0)
        return PACKED_ZSTD;
    if (bytes >= 6 && memcmp(data, XZ, sizeof XZ) == 0) return PACKED_XZ;
    return PACKED_NOT;
}

const PackingText PACKINGS[] = {
    [PACKED_NOT] = {"none", NULL}, [PACKED_GZIP] = {"gzip", "gzip -dc"}, [PACKED_ZSTD] = {"zstd", "zstd -dc --long=31"},
    [PACKED_XZ] = {"xz", "xz -dc"}};

static int64_t is_cut(const Unpack *u, char *fault) {
    return -FAULT(EXIT_DATA, "cannot be unpacked to its end: the file was cut off, after %lld bytes of %s; copy or "
                  "make it again", (long long)u->used, PACKINGS[u->packing].name);
}

static int64_t is_damaged(const Unpack *u, const char *why, char *fault) {
    return -FAULT(EXIT_DATA, "is damaged before byte %lld (%s, member %d): %s; copy or download it again",
                  (long long)u->used, PACKINGS[u->packing].name, u->member, why);
}

/* Reads the packed file until `in` has at least `least` unused bytes, or the file ends. Returns how many bytes are
 * unused, or minus an exit code. */
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

/* --- packed: gzip ------------------------------------------------------------------------------------------------- */

static int64_t read_gzip(Unpack *u, char *data, size_t bytes, char *fault) {
    u->gzip.next_out = (Bytef *)data, u->gzip.avail_out = (uInt)bytes;
    for (;;) {
        int64_t n = refill(u, u->is_between ? 2 : 1, fault);
        if (n < 0) return n;
        if (u->is_between) { /* the next member begins, or the file ends */
            if (n == 0 && u->member > 0) return u->is_done = 1, 0;
            if (u->member > 0 && (u->in[u->at] != '\x1f' || (n > 1 && u->in[u->at + 1] != '\x8b')))
                return -FAULT(EXIT_DATA, "has bytes after gzip member %d, from byte %lld on, that are not gzip: it "
                              "is damaged, or something was appended; copy or download it again ($ gzip -dc < PACKED "
                              "> NEW keeps what is before them)", u->member, (long long)u->used);
            u->member++;
            if (u->member > 1 && inflateReset(&u->gzip) != Z_OK)
                fail(EXIT_MEMORY, "no memory to unpack a text; free memory on this host");
            u->is_between = 0;
        }
        u->gzip.next_in = (Bytef *)u->in + u->at, u->gzip.avail_in = (uInt)(u->end - u->at);
        int status = inflate(&u->gzip, Z_NO_FLUSH);
        use(u, u->end - u->at - u->gzip.avail_in);
        if (status == Z_MEM_ERROR) fail(EXIT_MEMORY, "no memory to unpack a text; free memory on this host");
        if (status == Z_DATA_ERROR || status == Z_NEED_DICT)
            return is_damaged(u, u->gzip.msg ? u->gzip.msg : "it asks for a dictionary", fault);
        if (status == Z_STREAM_END) u->is_between = 1;
        if (u->gzip.avail_out < bytes) return (int64_t)(bytes - u->gzip.avail_out);
        if (status != Z_STREAM_END && n == 0) return is_cut(u, fault);
    }
}

/* --- packed: zstd ------------------------------------------------------------------------------------------------- */

/* Returns the memory that a zstd frame needs, in bytes: its window, or the size of its text if the header gives a
 * smaller size. Returns 0 if the bytes are no frame. */
static uint64_t window_of(const unsigned char *header, int64_t bytes) {
    /* bytes of the two fields of the header, by the bits that announce them (RFC 8878 3.1.1.1) */
    static const int DICTIONARY[] = {0, 1, 2, 4}, SIZE[] = {0, 2, 4, 8};
    if (bytes < 6 || memcmp(header, "\x28\xb5\x2f\xfd", 4) != 0) return 0;
    if (header[4] & 0x20) { /* a single segment, whose window is the whole text */
        int at = 5 + DICTIONARY[header[4] & 3], count = header[4] >> 6 ? SIZE[header[4] >> 6] : 1;
        return at + count > bytes ? 0 : little_endian(header + at, count) + (count == 2 ? 256 : 0);
    }
    uint64_t base = (uint64_t)1 << (10 + (header[5] >> 3)), window = base + base / 8 * (header[5] & 7);
    int      at = 6 + DICTIONARY[header[4] & 3], count = SIZE[header[4] >> 6];
    if (at + count > bytes || count == 0) return window;
    uint64_t size = little_endian(header + at, count) + (count == 2 ? 256 : 0);
    return size < window && window <= (uint64_t)1 << ZSTD_MOST ? size : window;
}

/* Returns the memory that the system can still allocate, in bytes; UINT64_MAX if it is not known. */
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
        return -FAULT(EXIT_DATA, "was packed by zstd with a window of %.0f MiB; the limit is 2048 MiB (zstd "
                      "--long=31): pack it again with a smaller window", (double)u->window / mib);
    return -FAULT(EXIT_MEMORY, "was packed by zstd with a window of %.0f MiB (zstd --long=31) and needs as "
                  "much memory to unpack; this machine has %.0f MiB left: unpack it on another one by $ zstd -dc "
                  "--long=31 < PACKED > NEW", (double)u->window / mib, there);
}

static int64_t zstd_fault(const Unpack *u, size_t status, char *fault) {
    switch (ZSTD_getErrorCode(status)) {
    case ZSTD_error_memory_allocation:
    case ZSTD_error_frameParameter_windowTooLarge: return is_too_wide(u, fault);
    case ZSTD_error_dictionary_wrong:
    case ZSTD_error_dictionary_corrupted:
        return -FAULT(EXIT_DATA, "was packed by zstd with a dictionary, which is not read: $ zstd -dc -D "
                      "DICTIONARY < PACKED > NEW unpacks it");
    default: return is_damaged(u, ZSTD_getErrorName(status), fault);
    }
}

static int64_t read_zstd(Unpack *u, char *data, size_t bytes, char *fault) {
    ZSTD_outBuffer out = {data, bytes, 0};
    while (out.pos == 0) {
        int64_t     n = refill(u, u->is_between ? ZSTD_HEADER : 1, fault);
        const char *head = u->in + u->at;
        if (n < 0) return n;
        if (u->is_between) { /* the next frame begins, or the file ends */
            if (n == 0) return u->is_done = 1, 0;
            u->member++;
            u->window = window_of((const unsigned char *)head, n);
            if (u->window > (uint64_t)1 << ZSTD_MOST || (u->window > (uint64_t)1 << 27 && u->window > memory_there()))
                return is_too_wide(u, fault);
            if (n >= 4 && memcmp(head, "\x04\x22\x4d\x18", 4) == 0)
                return -FAULT(EXIT_DATA, "is packed by lz4, which is not read: $ lz4 -dc < PACKED > NEW unpacks it");
            int is_other = u->member > 1 && unpack_kind(head, (size_t)n) != PACKED_ZSTD;
            if (is_other && n < 4 && u->is_at_end && memcmp(head, "\x28\xb5\x2f", (size_t)n) == 0)
                return is_cut(u, fault);
            if (is_other)
                return -FAULT(EXIT_DATA, "has bytes after zstd frame %d, from byte %lld on, that are not zstd: it is "
                              "damaged, or something was appended; copy or download it again ($ zstd -dc --long=31 < "
                              "PACKED > NEW keeps what is before them)", u->member - 1, (long long)u->used);
            u->is_between = 0;
        }
        ZSTD_inBuffer in = {u->in + u->at, u->end - u->at, 0};
        size_t        status = ZSTD_decompressStream(u->zstd, &out, &in);
        use(u, in.pos);
        if (ZSTD_isError(status)) return zstd_fault(u, status, fault);
        if (status == 0) u->is_between = 1;
        else if (n == 0 && out.pos == 0) return is_cut(u, fault);
    }
    return (int64_t)out.pos;
}

/* --- packed: xz --------------------------------------------------------------------------------------------------- */

/* Returns whether a whole xz stream is followed by one to eleven other bytes. liblzma ignores these bytes, because it
 * waits for twelve bytes before it reads a header. A stream ends with a footer of twelve bytes: the checksum of six
 * bytes, these six bytes, and "YZ" (xz-file-format 2.1.2). Bytes that may begin another stream do not count. */
static int is_behind_xz(const Unpack *u) {
    for (size_t n = 1; n < XZ_HEADER && n + XZ_FOOTER <= u->lasts; n++) {
        const unsigned char *behind = u->last + u->lasts - n, *footer = behind - XZ_FOOTER;
        if (memcmp(footer + 10, "YZ", 2) == 0 && crc32(0, footer + 4, 6) == little_endian(footer, 4))
            return memcmp(behind, "\xfd" "7zXZ", n < 6 ? n : 6) != 0;
    }
    return 0;
}

static la_ssize_t next_xz(struct archive *a, void *with, const void **data) {
    Unpack *u = (Unpack *)with;
    /* counts all bytes read so far as used, because libarchive asks for more only when it has finished them */
    use(u, u->end - u->at);
    *data = u->in;
    int64_t n = refill(u, 1, u->why);
    if (n < 0) return u->error = (int)-n, archive_set_error(a, -1, "cannot be read"), -1;
    /* keeps the last XZ_LAST bytes of the file so far: those read now, and before them those read earlier */
    size_t now = u->end < XZ_LAST ? u->end : XZ_LAST, old = u->lasts < XZ_LAST - now ? u->lasts : XZ_LAST - now;
    memmove(u->last, u->last + u->lasts - old, old);
    memcpy(u->last + old, u->in + u->end - now, now);
    u->lasts = old + now;
    return (la_ssize_t)n;
}

static int64_t xz_fault(const Unpack *u, char *fault) {
    const char *why = archive_error_string(u->xz);
    if (u->error) return -FAULT(u->error, "%s", u->why);
    if (!why) why = "";
    if (strstr(why, "No progress") && is_behind_xz(u))
        return -FAULT(EXIT_DATA, "holds bytes that are no xz behind its last stream: damaged, or something was added; "
                      "copy or download it again");
    if (strstr(why, "No progress")) return is_cut(u, fault);
    /* part of "memory" or "Memory", which libarchive says if there is no memory for the dictionary */
    if (strstr(why, "emory"))
        return -FAULT(EXIT_MEMORY, "was packed by xz with a dictionary for which there is no memory: unpack it on a "
                      "machine with more, by $ xz -dc < PACKED > NEW");
    /* finds the last part of a message of libarchive, such as "Lzma library error: Corrupted input data" */
    const char *colon = strrchr(why, ':');
    return -FAULT(EXIT_DATA, "is damaged (xz):%s; copy or download it again", colon ? colon + 1 : why);
}

static int64_t read_xz(Unpack *u, char *data, size_t bytes, char *fault) {
    if (!u->xz) {
        struct archive_entry *entry;
        u->xz = archive_read_new();
        if (!u->xz) fail(EXIT_MEMORY, "no memory to unpack a text; free memory on this host");
        archive_read_support_filter_xz(u->xz);
        archive_read_support_format_raw(u->xz);
        archive_read_support_format_empty(u->xz);
        u->member = 1;
        int status = archive_read_open(u->xz, u, NULL, next_xz, NULL);
        if (status == ARCHIVE_OK) status = archive_read_next_header(u->xz, &entry);
        u->is_done = status != ARCHIVE_OK;
        if (u->is_done && status != ARCHIVE_EOF) return xz_fault(u, fault);
        if (archive_filter_count(u->xz) > 2)
            return u->is_done = 1, -FAULT(EXIT_DATA, "is packed twice: $ xz -dc < PACKED > NEW unpacks it once");
        if (u->is_done) return 0;
    }
    la_ssize_t n;
    do n = archive_read_data(u->xz, data, bytes);
    while (n == ARCHIVE_RETRY);
    if (n == 0) u->is_done = 1;
    return n < 0 ? xz_fault(u, fault) : (int64_t)n;
}

/* --- packed: all of them ------------------------------------------------------------------------------------------ */

Unpack *unpack_create(Packing packing, UnpackSource *source, void *with) {
    Unpack *u = xcalloc(1, sizeof *u, "unpacking a text");
    u->packing = packing, u->source = source, u->with = with, u->is_between = 1;
    int is_good = 1;
    if (packing == PACKED_GZIP) is_good = inflateInit2(&u->gzip, ZLIB_GZIP) == Z_OK;
    if (packing == PACKED_ZSTD)
        is_good = (u->zstd = ZSTD_createDCtx()) != NULL &&
                  !ZSTD_isError(ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, ZSTD_MOST));
    if (!is_good) fail(EXIT_MEMORY, "no memory to unpack a text; free memory on this host");
    return u;
}

int64_t unpack_read(Unpack *u, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]) {
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

/* --- the file as text --------------------------------------------------------------------------------------------- */

/* State of the check for UTF-8 within a character. */
typedef struct {
    /* numbers of bytes of the current character: those that are missing, and those that were seen */
    int           due, taken;
    unsigned char least, most; /* range that the next byte of the character must be in */
} Utf8;

struct TextFile {
    int          fd;
    /* borrowed [memory_bytes]: a file in memory, of which memory_at bytes are used; NULL if fd is read instead */
    const char  *memory;
    size_t       memory_bytes, memory_at;
    Unpack      *packed;       /* owned: unpacks the file; NULL if it is not packed */
    Packing      packing;
    char         raw[TEXT_FILE_START]; /* [raws] bytes at the start of the packed file; raw_at of them are used */
    size_t       raws, raw_at;
    /* [starts] bytes at the start of the unpacked file, with its byte-order mark */
    char         start[TEXT_FILE_START];
    size_t       starts, given;          /* bytes in `start`, and how many of them have been read from it */
    TextEncoding encoding;
    int          mark;
    unsigned char carry[CARRY]; /* bytes of a character whose end has not been read yet */
    size_t       carried;
    /* place in the unpacked file; number of bytes that are not UTF-8; place of the first of these */
    int64_t      at, invalid, first_invalid;
    Utf8         utf8;
};

/* --- bytes of the file -------------------------------------------------------------------------------------------- */

/* Copies the next bytes of kept [have] to data, at most `bytes`. *used counts the bytes of kept that are used. Returns
 * how many were copied. */
static int64_t take_kept(const char *kept, size_t have, size_t *used, char *data, size_t bytes) {
    size_t n = have - *used < bytes ? have - *used : bytes;
    memcpy(data, kept + *used, n);
    *used += n;
    return (int64_t)n;
}

/* Reads the next bytes of the file as it is stored: first those kept in f->raw, then the rest. */
static int64_t read_raw(void *file, char *data, size_t bytes, char *fault) {
    TextFile *f = (TextFile *)file;
    ssize_t   n = take_kept(f->raw, f->raws, &f->raw_at, data, bytes);
    if (n > 0) return n;
    if (f->memory) return take_kept(f->memory, f->memory_bytes, &f->memory_at, data, bytes);
    do n = read(f->fd, data, bytes);
    while (n < 0 && errno == EINTR);
    if (n < 0) return -FAULT(EXIT_IO, "cannot be read: %s", io_error_text(errno));
    return n;
}

/* Reads the next unpacked bytes of the file: first those kept in f->start, then the rest. */
static int64_t read_next(TextFile *f, char *data, size_t bytes, char *fault) {
    int64_t n = take_kept(f->start, f->starts, &f->given, data, bytes);
    if (n > 0) return n;
    return f->packed ? unpack_read(f->packed, data, bytes, fault) : read_raw(f, data, bytes, fault);
}

/* Reads the first bytes of the file into a start. They are fewer than TEXT_FILE_START only if the file is shorter.
 * Returns 0 or minus an exit code. */
static int64_t fill(TextFile *f, char start[TEXT_FILE_START], size_t *bytes, char *fault) {
    size_t  got = 0;
    int64_t n = 0;
    while (got < TEXT_FILE_START && (n = read_next(f, start + got, TEXT_FILE_START - got, fault)) > 0) got += (size_t)n;
    *bytes = got;
    return n < 0 ? n : 0;
}

/* --- characters --------------------------------------------------------------------------------------------------- */

/* Checks the next bytes of a text, and counts those that are not UTF-8 (RFC 3629) in f->invalid. Each byte of an
 * incomplete character counts. */
static void check_utf8(TextFile *f, const char *text, size_t bytes) {
    Utf8 *u = &f->utf8;
    for (size_t i = 0; i < bytes; i++) {
        uint64_t      eight;
        unsigned char c = (unsigned char)text[i];
        if (u->due > 0 && c >= u->least && c <= u->most) {
            u->due--, u->taken++, u->least = 0x80, u->most = 0xBF;
            continue;
        }
        int64_t bad = u->due > 0 ? u->taken : 0;
        if (bad && f->invalid == 0) f->first_invalid = f->at + (int64_t)i - bad;
        f->invalid += bad;
        *u = (Utf8){0, 0, 0x80, 0xBF};
        while (i + 8 <= bytes && (memcpy(&eight, text + i, 8), (eight & 0x8080808080808080u) == 0)) i += 8;
        if (i == bytes) break;
        c = (unsigned char)text[i];
        if (c < 0x80) continue;
        u->due = c >= 0xC2 && c < 0xE0 ? 1 : (c & 0xF0) == 0xE0 ? 2 : c >= 0xF0 && c < 0xF5 ? 3 : 0;
        u->taken = 1;
        if (c == 0xE0) u->least = 0xA0;
        if (c == 0xED) u->most = 0x9F;
        if (c == 0xF0) u->least = 0x90;
        if (c == 0xF4) u->most = 0x8F;
        if (u->due > 0) continue;
        if (f->invalid++ == 0) f->first_invalid = f->at + (int64_t)i;
    }
}

static int unit_bytes(TextEncoding e) {
    return e == ENCODING_LATIN1 || e == ENCODING_UTF8 ? 1 : e <= ENCODING_UTF16BE ? 2 : 4;
}

static uint32_t unit_at(TextEncoding e, const unsigned char *in) {
    switch (e) {
    case ENCODING_UTF16LE: return in[0] | (uint32_t)in[1] << 8;
    case ENCODING_UTF16BE: return in[1] | (uint32_t)in[0] << 8;
    case ENCODING_UTF32LE: return in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
    case ENCODING_UTF32BE: return in[3] | (uint32_t)in[2] << 8 | (uint32_t)in[1] << 16 | (uint32_t)in[0] << 24;
    default: return in[0];
    }
}

/* Decodes the character at the beginning of in [bytes] into *character. Returns how many bytes it has. Returns 0 if
 * more bytes are needed, or -1 if it is invalid. */
static int decode_one(TextEncoding e, const unsigned char *in, size_t bytes, uint32_t *character) {
    size_t unit = (size_t)unit_bytes(e);
    if (bytes < unit) return 0;
    uint32_t c = *character = unit_at(e, in);
    if (c > 0x10FFFF) return -1;
    if (c < 0xD800 || c > 0xDFFF) return (int)unit;
    if (unit == 4 || c > 0xDBFF) return -1;
    if (bytes < 4) return 0;
    uint32_t low = unit_at(e, in + 2);
    if (low < 0xDC00 || low > 0xDFFF) return -1;
    *character = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    return 4;
}

/* --- what the first bytes say ------------------------------------------------------------------------------------- */

/* Byte-order marks. UTF-32LE is listed before UTF-16LE, because its mark begins with that of UTF-16LE. */
static const struct { const char *start; int bytes; TextEncoding encoding; } MARKS[] = {
    {"\xff\xfe\0\0", 4, ENCODING_UTF32LE}, {"\0\0\xfe\xff", 4, ENCODING_UTF32BE}, {"\xef\xbb\xbf", 3, ENCODING_UTF8},
    {"\xff\xfe", 2, ENCODING_UTF16LE},     {"\xfe\xff", 2, ENCODING_UTF16BE},
};

static const char *encoding_name(TextEncoding e) { return TEXT_ENCODINGS[e - ENCODING_UTF8]; }

static int begins_with(const char *start, size_t starts, const char *with, size_t bytes, size_t at) {
    return starts >= at + bytes && memcmp(start + at, with, bytes) == 0;
}

/* Returns 1 if a text may contain this code point: it is assigned, and no control character but common ones such as
 * line ends. */
static int is_of_text(uint32_t c) {
    utf8proc_category_t kind = utf8proc_category((utf8proc_int32_t)c);
    return (kind != UTF8PROC_CATEGORY_CN && kind != UTF8PROC_CATEGORY_CC && kind != UTF8PROC_CATEGORY_CO) ||
           (c >= 8 && c <= 13) || c == 27;
}

/* Decodes the start of a file in this encoding. Returns the number of common characters in it, or -1 if it has a
 * character that does not belong in a text. */
static int64_t common_characters(const TextFile *f, TextEncoding e) {
    int64_t count = 0;
    for (size_t at = 0; at < f->starts;) {
        uint32_t c;
        int      n = decode_one(e, (const unsigned char *)f->start + at, f->starts - at, &c);
        if (n < 0 || (n == 0 && f->starts < TEXT_FILE_START) || (n > 0 && !is_of_text(c))) return -1;
        if (n == 0) break;
        count += (c < 0x7F && c != 0) || (c >= 0x3000 && c <= 0x3002) || c == 0xFF0C;
        at += (size_t)n;
    }
    return count;
}

/* Returns how many bytes at the start of the file are not UTF-8. */
static int64_t invalid_at_start(const TextFile *f) {
    int64_t invalid = 0;
    for (size_t at = 0; at < f->starts;) {
        size_t left = f->starts - at;
        int    n = (unsigned char)f->start[at] < 0x80 ? 1 : utf8_bytes(f->start + at, left);
        /* the end of the kept start cuts this character */
        if (n == 0 && left < CARRY && f->starts == TEXT_FILE_START) break;
        invalid += n == 0;
        at += n ? (size_t)n : 1;
    }
    return invalid;
}

/* Returns 1 if a file that is to be read in another encoding is text in UTF-8. UTF-16 and UTF-32 hold zero bytes,
 * control characters, or bytes that are not UTF-8. In Latin-1 the bytes of one UTF-8 character are two or more
 * characters that no word has. */
static int is_utf8_text(const TextFile *f, TextEncoding asked) {
    enum { LEAST = 64 }; /* a shorter text in UTF-16, such as a Chinese one, may consist of bytes that are ASCII */
    size_t wide = 0, controls = 0;
    for (size_t i = 0; i < f->starts; i++) {
        unsigned char c = (unsigned char)f->start[i];
        if (c == 0) return 0;
        wide += c >= 0x80, controls += c < 0x20 && !strchr("\t\n\r\f", c);
    }
    if (controls * 100 > f->starts) return 0; /* Thai in UTF-16: every second byte is 0x0E */
    return asked == ENCODING_LATIN1 ? wide > 0 && invalid_at_start(f) == 0
                                    : f->starts >= LEAST && invalid_at_start(f) * 100 <= (int64_t)f->starts;
}

/* Detects UTF-16 and UTF-32 without a byte-order mark. Evidence is bytes that are control characters, and which byte
 * order gives common characters. In Latin text every second byte is zero, in Cyrillic text 4, in Hindi 9. Returns
 * ENCODING_FOUND if the file is neither. */
static TextEncoding unmarked_encoding(const TextFile *f) {
    enum { LEAST = 16 }; /* a shorter binary file may have a control character in every second byte by chance */
    TextEncoding best = ENCODING_FOUND;
    int64_t      most = 0, controls = 0;
    for (size_t i = 0; i < f->starts; i++) {
        unsigned char c = (unsigned char)f->start[i];
        controls += c == 0 || (f->starts >= LEAST && c < 0x20 && c != 10 && c != 13);
    }
    if (controls * 5 < (int64_t)f->starts && invalid_at_start(f) * 100 <= (int64_t)f->starts) return ENCODING_FOUND;
    for (TextEncoding e = ENCODING_UTF16LE; e <= ENCODING_UTF32BE; e++) {
        int64_t common = common_characters(f, e);
        if (common * 64 * unit_bytes(e) < (int64_t)f->starts || common <= most) continue;
        best = e, most = common;
    }
    return best;
}

/* Returns a number for the script of a character, roughly: ASCII, Chinese with Japanese, Korean, or a block of 256
 * characters. */
static int script_of(uint32_t c) {
    enum { ASCII, CHINESE, KOREAN, OTHERS };
    /* counts dashes and quotes as ASCII, because they belong to every script */
    if (c < 0x80 || (c >= 0x2010 && c <= 0x2027)) return ASCII;
    if ((c >= 0x3000 && c <= 0x30FF) || (c >= 0x3400 && c <= 0x9FFF) || (c >= 0xFF00 && c <= 0xFFEF)) return CHINESE;
    return c >= 0xAC00 && c <= 0xD7A3 ? KOREAN : c < 0x1000 ? OTHERS + (int)(c >> 8) : OTHERS + 0x10;
}

TextEncoding text_wide_encoding(const uint8_t *start, size_t bytes) {
    /* LEAST: fewest characters that are judged; SCRIPTS: how many numbers script_of() can return */
    enum { LEAST = 16, SCRIPTS = 32 };
    size_t count = bytes < TEXT_FILE_START ? bytes : TEXT_FILE_START;
    /* tries UTF-32 first, because it can also be read as UTF-16 with zeros */
    for (TextEncoding e = ENCODING_UTF32BE; e >= ENCODING_UTF16LE; e--) {
        int64_t of[SCRIPTS] = {0}, all = 0, stops = 0, most = 0;
        for (size_t at = 0; at < count && all >= 0;) {
            uint32_t c;
            int      n = decode_one(e, start + at, count - at, &c);
            if (n == 0) break;
            int is_odd = n < 0 || !is_of_text(c) || c == 8 || c == 11 || c == 12 || c == 27;
            at += n < 0 ? 0 : (size_t)n;
            all = is_odd ? -1 : all + 1;
            if (!is_odd) of[script_of(c)]++;
            stops += c == ' ' || c == '\n' || (c >= 0x3000 && c <= 0x3002) || c == 0xFF0C;
        }
        for (int i = 1; i < SCRIPTS; i++) most = of[i] > most ? of[i] : most;
        if (all >= LEAST && stops * 64 >= all && (of[0] + most) * 20 >= all * 19) return e;
    }
    return ENCODING_FOUND;
}

/* --- what is no text ---------------------------------------------------------------------------------------------- */

/* A shell command for messages, which converts a table to parquet by Python. */
#define TO_PARQUET(module, table)                                                                              \
    "$ python3 -c 'import sys, " module " as a, pyarrow.parquet as p; p.write_table(" table ", \"NEW.parquet\")' " \
    "FILE makes parquet of it"

#define TAR "a tar archive: $ tar -xf PACKED unpacks it"

/* Which files these first bytes identify. ALWAYS: all. IF_BINARY: only those whose start has too many control bytes for
 * a text, because a text could begin with the same bytes. */
enum { ALWAYS, IF_BINARY };
/* clang-format off */
static const struct { const char *start; size_t bytes, at; int when; TextKind kind; const char *what; } OTHERS[] = {
    {"1AY&SY", 6, 4, ALWAYS, TEXT_PACKED, "packed by bzip2, which is not read: $ bzip2 -dc < FILE > NEW unpacks it"},
    {"\x17\x72\x45\x38\x50\x90", 6, 4, ALWAYS, TEXT_PACKED, "packed by bzip2, and empty"},
    {"\x04\x22\x4d\x18", 4, 0, ALWAYS, TEXT_PACKED, "packed by lz4, which is not read: $ lz4 -dc < FILE > NEW unpacks it"},
    {"\x02\x21\x4c\x18", 4, 0, ALWAYS, TEXT_PACKED, "packed by lz4, which is not read: $ lz4 -dc < FILE > NEW unpacks it"},
    {"LZIP", 4, 0, IF_BINARY, TEXT_PACKED, "packed by lzip, which is not read: $ lzip -dc < FILE > NEW unpacks it"},
    {"\x89LZO\0\r\n\x1a\n", 9, 0, ALWAYS, TEXT_PACKED, "packed by lzop, which is not read: $ lzop -dc < FILE > NEW unpacks it"},
    {"\x1f\x9d", 2, 0, ALWAYS, TEXT_PACKED, "packed by compress, which is not read: $ gzip -dc < FILE > NEW unpacks it"},
    {"\x1f\xa0", 2, 0, ALWAYS, TEXT_PACKED, "packed by compress, which is not read: $ gzip -dc < FILE > NEW unpacks it"},
    {"\x5d\0\0", 3, 0, ALWAYS, TEXT_PACKED, "packed by lzma, which is not read: $ xz --format=lzma -dc < FILE > NEW unpacks it"},
    {"\xff\x06\0\0sNaPpY", 10, 0, ALWAYS, TEXT_PACKED, "packed by snappy, which is not read: unpack it first"},
    {"\x37\x7a\xbc\xaf\x27\x1c", 6, 0, ALWAYS, TEXT_OTHER, "a 7z archive: $ 7z x FILE unpacks it"},
    {"Rar!\x1a\x07", 6, 0, ALWAYS, TEXT_OTHER, "a rar archive: $ unrar x FILE unpacks it"},
    {"PK\3\4", 4, 0, ALWAYS, TEXT_OTHER, "a zip archive, or a document, book or weights packed as one: $ unzip FILE unpacks it"},
    {"PK\5\6", 4, 0, ALWAYS, TEXT_OTHER, "a zip archive without files"},
    {"PK\7\x08", 4, 0, ALWAYS, TEXT_OTHER, "a zip archive in parts: $ unzip FILE unpacks it"},
    {"ustar", 5, 257, ALWAYS, TEXT_OTHER, TAR},
    {"!<arch>\n", 8, 0, ALWAYS, TEXT_OTHER, "an ar archive, a library or a Debian package: $ ar x FILE unpacks it"},
    {"07070", 5, 0, IF_BINARY, TEXT_OTHER, "a cpio archive: $ cpio -i < FILE unpacks it"},
    {"\xc7\x71", 2, 0, ALWAYS, TEXT_OTHER, "a cpio archive: $ cpio -i < FILE unpacks it"},
    {"xar!", 4, 0, IF_BINARY, TEXT_OTHER, "a xar archive"},
    {"MSCF", 4, 0, IF_BINARY, TEXT_OTHER, "a cabinet archive"},
    {"hsqs", 4, 0, IF_BINARY, TEXT_OTHER, "a squashfs image"},
    {"\xed\xab\xee\xdb", 4, 0, ALWAYS, TEXT_OTHER, "an rpm package"},
    {"CD001", 5, 32769, IF_BINARY, TEXT_OTHER, "the image of a CD"},
    {"PACK", 4, 0, IF_BINARY, TEXT_OTHER, "a pack of git"},
    {"DIRC", 4, 0, IF_BINARY, TEXT_OTHER, "an index of git"},
    {"\x89PNG", 4, 0, ALWAYS, TEXT_OTHER, "a PNG picture"},
    {"\xff\xd8\xff", 3, 0, ALWAYS, TEXT_OTHER, "a JPEG picture"},
    {"GIF8", 4, 0, IF_BINARY, TEXT_OTHER, "a GIF picture"},
    {"BM", 2, 0, IF_BINARY, TEXT_OTHER, "a BMP picture"},
    {"II*\0", 4, 0, ALWAYS, TEXT_OTHER, "a TIFF picture"},
    {"MM\0*", 4, 0, ALWAYS, TEXT_OTHER, "a TIFF picture"},
    {"WEBP", 4, 8, IF_BINARY, TEXT_OTHER, "a WebP picture"},
    {"\0\0\1\0", 4, 0, ALWAYS, TEXT_OTHER, "an icon, or a font"},
    {"8BPS", 4, 0, IF_BINARY, TEXT_OTHER, "a Photoshop picture"},
    {"gimp xcf", 8, 0, IF_BINARY, TEXT_OTHER, "a GIMP picture"},
    {"DDS ", 4, 0, IF_BINARY, TEXT_OTHER, "a DDS picture"},
    {"\x76\x2f\x31\x01", 4, 0, ALWAYS, TEXT_OTHER, "an OpenEXR picture"},
    {"\0\0\0\x0cjP  ", 8, 0, ALWAYS, TEXT_OTHER, "a JPEG 2000 picture"},
    {"\xff\x0a", 2, 0, ALWAYS, TEXT_OTHER, "a JPEG XL picture"},
    {"AT&TFORM", 8, 0, IF_BINARY, TEXT_OTHER, "a DjVu document"},
    {"ftyp", 4, 4, IF_BINARY, TEXT_OTHER, "a video, an audio file or a picture (MP4, HEIC)"},
    {"WAVE", 4, 8, IF_BINARY, TEXT_OTHER, "an audio file (WAV)"},
    {"AVI ", 4, 8, IF_BINARY, TEXT_OTHER, "a video (AVI)"},
    {"ID3", 3, 0, IF_BINARY, TEXT_OTHER, "an audio file (MP3)"},
    {"\xff\xfb", 2, 0, ALWAYS, TEXT_OTHER, "an audio file (MP3)"},
    {"\xff\xf3", 2, 0, ALWAYS, TEXT_OTHER, "an audio file (MP3)"},
    {"\xff\xf1", 2, 0, ALWAYS, TEXT_OTHER, "an audio file (AAC)"},
    {"OggS", 4, 0, IF_BINARY, TEXT_OTHER, "an audio file or a video (Ogg)"},
    {"fLaC", 4, 0, IF_BINARY, TEXT_OTHER, "an audio file (FLAC)"},
    {"MThd", 4, 0, IF_BINARY, TEXT_OTHER, "an audio file (MIDI)"},
    {"FORM", 4, 0, IF_BINARY, TEXT_OTHER, "an audio file (AIFF)"},
    {"\x1a\x45\xdf\xa3", 4, 0, ALWAYS, TEXT_OTHER, "a video (Matroska, WebM)"},
    {"FLV\1", 4, 0, ALWAYS, TEXT_OTHER, "a video (FLV)"},
    {"\0\0\1\xba", 4, 0, ALWAYS, TEXT_OTHER, "a video (MPEG)"},
    {"\x30\x26\xb2\x75", 4, 0, ALWAYS, TEXT_OTHER, "a video or an audio file (ASF)"},
    {"\x7f" "ELF", 4, 0, ALWAYS, TEXT_OTHER, "a program or library (ELF)"},
    {"MZ", 2, 0, IF_BINARY, TEXT_OTHER, "a program of Windows"},
    {"\xfe\xed\xfa", 3, 0, ALWAYS, TEXT_OTHER, "a program of macOS"},
    {"\xcf\xfa\xed\xfe", 4, 0, ALWAYS, TEXT_OTHER, "a program of macOS"},
    {"\xce\xfa\xed\xfe", 4, 0, ALWAYS, TEXT_OTHER, "a program of macOS"},
    {"\xca\xfe\xba\xbe", 4, 0, ALWAYS, TEXT_OTHER, "compiled Java, or a program of macOS"},
    {"\0asm", 4, 0, ALWAYS, TEXT_OTHER, "a program (WebAssembly)"},
    {"dex\n", 4, 0, IF_BINARY, TEXT_OTHER, "a program of Android"},
    {"BC\xc0\xde", 4, 0, ALWAYS, TEXT_OTHER, "bitcode of LLVM"},
    {"\x1bLua", 4, 0, ALWAYS, TEXT_OTHER, "compiled Lua"},
    {"version https://git-lfs.github.com/spec/", 40, 0, ALWAYS, TEXT_PACKED,
     "a pointer of Git LFS in place of a file: git lfs pull, or download the file itself"},
    {"%PDF-", 5, 0, ALWAYS, TEXT_OTHER, "a PDF: $ pdftotext FILE NEW.txt takes its text out"},
    {"%!PS-Adobe", 10, 0, ALWAYS, TEXT_OTHER, "a PostScript document: $ ps2ascii FILE NEW.txt takes its text out"},
    {"{\\rtf", 5, 0, ALWAYS, TEXT_OTHER, "an RTF document: save it as plain text"},
    {"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 8, 0, ALWAYS, TEXT_OTHER, "an old Office document: save it as plain text"},
    {"OTTO", 4, 0, IF_BINARY, TEXT_OTHER, "a font"},
    {"\0\1\0\0", 4, 0, ALWAYS, TEXT_OTHER, "a font, or a database of Access"},
    {"ttcf", 4, 0, IF_BINARY, TEXT_OTHER, "a font"},
    {"wOFF", 4, 0, IF_BINARY, TEXT_OTHER, "a font"},
    {"wOF2", 4, 0, IF_BINARY, TEXT_OTHER, "a font"},
    {"SQLite format 3", 16, 0, ALWAYS, TEXT_OTHER, "an SQLite database: $ sqlite3 FILE .dump > NEW.sql writes it as text"},
    {"\x1e{", 2, 0, ALWAYS, TEXT_ENCODED, "a sequence of JSON texts (RFC 7464): $ tr -d '\\036' < FILE > NEW.jsonl makes JSON Lines of it"},
    {"\x93NUMPY", 6, 0, ALWAYS, TEXT_OTHER,
     "an array of NumPy: if it has ids below 65,536, $ python3 -c 'import sys, numpy; numpy.load(sys.argv[1]).astype(\"uint16\").tofile(\"NEW.bin\")' "
     "FILE makes a file for data.train of it"},
    {"ARROW1", 6, 0, IF_BINARY, TEXT_OTHER, "an Arrow file: " TO_PARQUET("pyarrow.feather", "a.read_table(sys.argv[1])")},
    {"\xff\xff\xff\xff", 4, 0, ALWAYS, TEXT_OTHER,
     "an Arrow stream, or damaged: " TO_PARQUET("pyarrow", "a.ipc.open_stream(sys.argv[1]).read_all()")},
    {"FEA1", 4, 0, IF_BINARY, TEXT_OTHER, "a Feather file: " TO_PARQUET("pyarrow.feather", "a.read_table(sys.argv[1])")},
    {"ORC", 3, 0, IF_BINARY, TEXT_OTHER, "an ORC file: " TO_PARQUET("pyarrow.orc", "a.read_table(sys.argv[1])")},
    {"Obj\1", 4, 0, ALWAYS, TEXT_OTHER, "an Avro file: write it as parquet or JSON Lines"},
    {"PARE", 4, 0, IF_BINARY, TEXT_OTHER, "an encrypted parquet file: write it without encryption"},
    {"\x89HDF\r\n\x1a\n", 8, 0, ALWAYS, TEXT_OTHER, "an HDF5 file"},
    {"CDF\1", 4, 0, ALWAYS, TEXT_OTHER, "a NetCDF file"},
    {"CDF\2", 4, 0, ALWAYS, TEXT_OTHER, "a NetCDF file"},
    {"GGUF", 4, 0, IF_BINARY, TEXT_OTHER, "weights of a model (GGUF)"},
    {"lmgg", 4, 0, IF_BINARY, TEXT_OTHER, "weights of a model (GGML)"},
    {"tjgg", 4, 0, IF_BINARY, TEXT_OTHER, "weights of a model (GGML)"},
    {"\x80\2", 2, 0, ALWAYS, TEXT_OTHER, "a pickle of Python, perhaps weights of PyTorch: load it in Python, and write its texts by json.dumps, a line each"},
    {"\x80\3", 2, 0, ALWAYS, TEXT_OTHER, "a pickle of Python, perhaps weights of PyTorch: load it in Python, and write its texts by json.dumps, a line each"},
    {"\x80\4", 2, 0, ALWAYS, TEXT_OTHER, "a pickle of Python: load it in Python, and write its texts by json.dumps, a line each"},
    {"\x80\5", 2, 0, ALWAYS, TEXT_OTHER, "a pickle of Python: load it in Python, and write its texts by json.dumps, a line each"},
    {"MATLAB 5.0 MAT", 14, 0, IF_BINARY, TEXT_OTHER, "a MATLAB file"},
    {"REDIS", 5, 0, IF_BINARY, TEXT_OTHER, "a database of Redis"},
    {"\xd4\xc3\xb2\xa1", 4, 0, ALWAYS, TEXT_OTHER, "a capture of a network"},
    {"MMIDIDX\0", 8, 0, ALWAYS, TEXT_SHARD, "a Megatron index, which belongs to tokens"},
    {"BIN.TOK\n", 8, 0, IF_BINARY, TEXT_SHARD, "a file of llmq tokens already"},
};
/* clang-format on */

void text_count_controls(TextControls *c, const char *text, size_t bytes) {
    int64_t controls = 0;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)text[i];
        controls += (byte < 32 && !(byte >= 9 && byte <= 13)) || byte == 127;
    }
    c->all += controls;
    for (size_t i = 0; i < bytes && controls > 0; i++) c->escapes += text[i] == 27, c->backspaces += text[i] == 8;
}

int text_is_binary(const TextControls *c, int64_t bytes) { return c->all * 100 > bytes; }

const char *text_controls_cure(const TextControls *c) {
    if (c->escapes * 2 > c->all)
        return "text with colours of a terminal (escape characters): $ sed 's/\\x1b\\[[0-9;?]*[A-Za-z]//g' < FILE > "
            "NEW takes them away";
    if (c->backspaces * 2 > c->all)
        return "text with backspaces, as manual pages have: $ col -bx < FILE > NEW takes them away";
    return NULL;
}

static int is_binary(const char *text, size_t count, TextControls *c) {
    *c = (TextControls){0, 0, 0};
    text_count_controls(c, text, count);
    return text_is_binary(c, (int64_t)count);
}

/* Recognises two kinds of files by more than a few bytes and returns words for them. A tar archive from before 1988
 * shows by the checksum of its first block. safetensors shows by eight bytes of length and then a header in JSON.
 * Returns NULL for other files. */
static const char *known_by_form(const char *start, size_t starts) {
    unsigned sum = 0, stored = 0;
    for (int i = 0; i < 512 && starts >= 512; i++) sum += i >= 148 && i < 156 ? ' ' : (unsigned char)start[i];
    for (int i = 148; i < 156 && starts >= 512; i++)
        if (start[i] >= '0' && start[i] <= '7') stored = stored * 8 + (unsigned)(start[i] - '0');
    if (starts >= 512 && start[0] != 0 && sum == stored) return TAR;
    return starts >= 10 && start[8] == '{' && memcmp(start + 4, "\0\0\0\0", 4) == 0 ? "weights of a model (safetensors)"
                                                                                    : NULL;
}

const char *text_other_kind(const uint8_t *data, size_t bytes) {
    const char *start = (const char *)data, *what;
    size_t      starts = bytes < TEXT_FILE_START ? bytes : TEXT_FILE_START;
    what = known_by_form(start, starts);
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS && !what; i++) {
        /* bytes of the format's magic that are not zero; zeros do not count, because they are common among tokens */
        size_t marks = 0;
        for (size_t k = 0; k < OTHERS[i].bytes; k++) marks += OTHERS[i].start[k] != 0;
        if (OTHERS[i].when == ALWAYS && marks >= 4 &&
            begins_with(start, starts, OTHERS[i].start, OTHERS[i].bytes, OTHERS[i].at))
            what = OTHERS[i].what;
    }
    return what;
}

TextKind text_file_kind(const TextFile *f, const char **what) {
    int is_wide = unit_bytes(f->encoding) > 1;
    TextControls controls;
    int looks_binary = is_binary(f->start, f->starts, &controls) ||
                       is_binary(f->start, f->starts < FIRST_BLOCK ? f->starts : FIRST_BLOCK, &controls);
    *what = NULL;
    /* a byte-order mark decides, because the tests below look at single bytes, which mean little in UTF-16 and
     * UTF-32 */
    if (is_wide && f->mark) return TEXT_PLAIN;
    if (begins_with(f->start, f->starts, "PAR1\x15", 5, 0)) return TEXT_PARQUET;
    if (shard_is_llmc((const uint8_t *)f->start, f->starts))
        return *what = "a shard of tokens already, or another file of llm.c, not text", TEXT_SHARD;
    if ((*what = known_by_form(f->start, f->starts))) return TEXT_OTHER;
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++)
        if (begins_with(f->start, f->starts, OTHERS[i].start, OTHERS[i].bytes, OTHERS[i].at) &&
            (OTHERS[i].when == ALWAYS || looks_binary) &&
            (OTHERS[i].bytes > 2 || !is_wide)) /* two bytes of another format may also be a character of UTF-16 */
            return *what = OTHERS[i].what, OTHERS[i].kind;
    if (f->packing != PACKED_NOT && unpack_kind(f->start, f->starts) != PACKED_NOT) {
        static const char *const ONCE[] = {
            [PACKED_GZIP] = "packed twice: $ gzip -dc < PACKED > NEW unpacks it once",
            [PACKED_ZSTD] = "packed twice: $ zstd -dc --long=31 < PACKED > NEW unpacks it once",
            [PACKED_XZ] = "packed twice: $ xz -dc < PACKED > NEW unpacks it once"};
        return *what = ONCE[f->packing], TEXT_PACKED;
    }
#define ISO_2022(country)                                                                                              \
    "text in ISO-2022, which is not read: $ iconv -f ISO-2022-" country " -t utf-8 < FILE > NEW makes UTF-8 of it"
    /* escape sequences that announce 7-bit characters */
    static const struct { const char *escape, *what; } SHIFTS[] = {
        {"\x1b$B", ISO_2022("JP")}, {"\x1b$@", ISO_2022("JP")},
        {"\x1b$)C", ISO_2022("KR")}, {"\x1b$)A", ISO_2022("CN")}};
#undef ISO_2022
    for (size_t i = 0; i < sizeof SHIFTS / sizeof *SHIFTS && !is_wide; i++)
        if (memmem(f->start, f->starts, SHIFTS[i].escape, strlen(SHIFTS[i].escape)))
            return *what = SHIFTS[i].what, TEXT_ENCODED;
    if (is_wide || !looks_binary) return TEXT_PLAIN;
    *what = text_controls_cure(&controls);
    if (!*what) *what = "binary (over 1 % of its first bytes are control characters)";
    return TEXT_BINARY;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static int open_start(TextFile *f, TextEncoding asked, char *fault) {
    int64_t n = fill(f, f->raw, &f->raws, fault);
    if (n < 0) return (int)-n;
    f->packing = unpack_kind(f->raw, f->raws);
    if (f->packing != PACKED_NOT) f->packed = unpack_create(f->packing, read_raw, f);
    n = fill(f, f->start, &f->starts, fault);
    if (n < 0) return (int)-n;
    /* detects and skips the byte-order mark; if the user has asked for an encoding, the mark of another is a fault */
    f->encoding = asked;
    for (size_t i = 0; i < sizeof MARKS / sizeof *MARKS && !f->mark; i++) {
        if (!begins_with(f->start, f->starts, MARKS[i].start, (size_t)MARKS[i].bytes, 0)) continue;
        if (MARKS[i].encoding == ENCODING_UTF32LE && asked == ENCODING_UTF16LE)
            continue; /* the four bytes are also the mark of UTF-16LE and then U+0000, and UTF-16LE was asked for */
        if (asked != ENCODING_FOUND && asked != MARKS[i].encoding)
            return FAULT(EXIT_DATA, "begins with the byte-order mark of %s, and encoding=%s is given: leave encoding= "
                         "out, and the mark decides", encoding_name(MARKS[i].encoding), encoding_name(asked));
        f->encoding = MARKS[i].encoding, f->mark = MARKS[i].bytes;
    }
    if (f->encoding == ENCODING_FOUND) f->encoding = ENCODING_UTF8;
    f->given = (size_t)f->mark, f->at = f->mark;
    if (!f->mark && asked > ENCODING_UTF8 && is_utf8_text(f, asked))
        return FAULT(EXIT_DATA, "is text in UTF-8, and encoding=%s is given, which holds for all files: leave "
                     "encoding= out, and make UTF-8 of the files that are in %s by iconv -f %s -t utf-8 < OTHER > NEW",
                     encoding_name(asked), encoding_name(asked),
                     asked == ENCODING_LATIN1 ? "ISO-8859-1" : encoding_name(asked));
    if (f->mark || asked != ENCODING_FOUND) return 0;
    const char  *what;
    TextKind     kind = text_file_kind(f, &what);
    TextEncoding found = kind == TEXT_PLAIN || kind == TEXT_BINARY ? unmarked_encoding(f) : ENCODING_FOUND;
    if (found == ENCODING_FOUND) return 0;
    const char *family = found <= ENCODING_UTF16BE ? "UTF-16" : "UTF-32", *name = encoding_name(found);
    if (f->memory)
        return FAULT(EXIT_DATA, "looks like %s without a byte-order mark: $ iconv -f %s -t utf-8 < FILE > NEW makes "
                     "UTF-8 of it", family, name);
    return FAULT(EXIT_DATA, "looks like %s without a byte-order mark: encoding=%s reads it (encoding=utf-8 keeps its "
                 "bytes as they are)", family, name);
}

int text_file_open(TextFile **file, const char *path, IoOpen how, TextEncoding encoding,
                   char fault[TEXT_FILE_FAULT_CHARS]) {
    struct stat st;
    TextFile   *f = xcalloc(1, sizeof *f, "reading a text");
    int         exit_code = 0;
    f->fd = io_open(path, how);
    if (f->fd < 0) exit_code = FAULT(EXIT_DATA, "cannot be read: %s", io_error_text(f->fd));
    else if (fstat(f->fd, &st) == 0 && S_ISDIR(st.st_mode)) exit_code = FAULT(EXIT_DATA, "is a folder: name a file");
    else exit_code = open_start(f, encoding, fault);
    if (exit_code) text_file_close(f), f = NULL;
    *file = f;
    return exit_code;
}

void text_file_close(TextFile *f) {
    if (!f) return;
    unpack_destroy(f->packed);
    if (f->fd >= 0) io_close(f->fd);
    free(f);
}

TextForm text_file_form(const TextFile *f) { return (TextForm){f->packing, f->encoding, f->mark}; }
int64_t  text_file_invalid(const TextFile *f, int64_t *first) { return *first = f->first_invalid, f->invalid; }

/* Returns advice for a file that is not valid in its encoding. A file in memory belongs to a tokenizer or a task, for
 * which there is no option encoding=. */
static const char *encoding_cure(const TextFile *f) {
    return f->memory ? "write it as UTF-8, or copy it again"
                        : "give the encoding it has, encoding=utf-8, utf-16le, utf-16be, utf-32le, utf-32be or latin-1";
}

/* Reads the next characters of a file in UTF-16, UTF-32 or Latin-1 and writes them as UTF-8. One byte of Latin-1
 * becomes at most two bytes, and two bytes of UTF-16 at most three. */
static int64_t read_decoded(TextFile *f, char *data, size_t bytes, char *fault) {
    unsigned char in[CHUNK];
    size_t        room = bytes / 2 < sizeof in ? bytes / 2 : sizeof in, out = 0;
    while (out == 0) {
        memcpy(in, f->carry, f->carried);
        int64_t n = read_next(f, (char *)in + f->carried, room - f->carried, fault);
        if (n < 0) return n;
        if (n == 0 && f->carried > 0)
            return -FAULT(EXIT_DATA, "is not %s, or was cut off: the last %zu byte%s, from byte %lld on, are not a "
                          "whole character; %s", encoding_name(f->encoding), f->carried, plural((int64_t)f->carried),
                          (long long)f->at, encoding_cure(f));
        if (n == 0) return 0;
        size_t have = f->carried + (size_t)n, at = 0;
        for (int took; at < have; at += (size_t)took) {
            uint32_t c;
            took = decode_one(f->encoding, in + at, have - at, &c);
            if (took == 0) break;
            if (took < 0)
                return -FAULT(EXIT_DATA, "is not %s: 0x%0*X at byte %lld is %s; %s",
                              encoding_name(f->encoding), 2 * unit_bytes(f->encoding), c, (long long)f->at,
                              c > 0x10FFFF ? "not a character" : "half of a surrogate pair", encoding_cure(f));
            if (f->encoding == ENCODING_LATIN1 && c >= 0x80 && c < 0xA0 && f->invalid++ == 0) f->first_invalid = f->at;
            out += (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)data + out);
            f->at += took;
        }
        f->carried = have - at;
        memcpy(f->carry, in + at, f->carried);
    }
    return (int64_t)out;
}

int64_t text_file_read(TextFile *f, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]) {
    if (f->encoding != ENCODING_UTF8) return read_decoded(f, data, bytes, fault);
    int64_t n = read_next(f, data, bytes, fault);
    if (n > 0) check_utf8(f, data, (size_t)n), f->at += n;
    if (n == 0 && f->utf8.due > 0) { /* the text ends within a character */
        if (f->invalid == 0) f->first_invalid = f->at - f->utf8.taken;
        f->invalid += f->utf8.taken;
        f->utf8 = (Utf8){0, 0, 0, 0};
    }
    return n;
}

/* --- a file in memory --------------------------------------------------------------------------------------------- */

int text_clean(char **text, size_t *bytes, size_t limit, const char *path, char fault[TEXT_FILE_FAULT_CHARS]) {
    TextFile   *f = xcalloc(1, sizeof *f, "reading a text");
    const char *what;
    size_t      used = 0, room = *bytes + 16;
    char       *clean = xmalloc(room + 1, "a text");
    int64_t     n = 0;
    f->fd = -1, f->memory = *text, f->memory_bytes = *bytes;
    int exit_code = open_start(f, ENCODING_FOUND, fault);
    TextKind kind = exit_code ? TEXT_PLAIN : text_file_kind(f, &what);
    /* bytes that look binary are no fault here, because the caller's parser judges them */
    if (kind != TEXT_PLAIN && kind != TEXT_BINARY)
        exit_code = FAULT(EXIT_DATA, "is %s%s", what ? what : "a parquet file",
                          what && strchr(what, ':') ? "" : ": name a text file instead");
    while (exit_code == 0) {
        if (room - used < 16) clean = xrealloc(clean, (room *= 2) + 1, "a text");
        n = text_file_read(f, clean + used, room - used, fault);
        if (n <= 0) break;
        used += (size_t)n;
        if (used > limit)
            exit_code = FAULT(EXIT_DATA, "holds more than %zu MiB of text, the most that is read: name a smaller file",
                              limit >> 20);
    }
    if (n < 0) exit_code = (int)-n;
    if (exit_code)
        shell_read_file(fault, TEXT_FILE_FAULT_CHARS,
                        (ShellFile){.path = path, .unpack = PACKINGS[f->packing].command});
    text_file_close(f);
    if (exit_code) return free(clean), exit_code;
    clean[used] = 0;
    free(*text);
    *text = clean, *bytes = used;
    return 0;
}
