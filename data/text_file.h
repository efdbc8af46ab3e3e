/* text_file.h - reads any file as UTF-8 text, or gives the reason why it is not text.
 *
 * Packed files are unpacked. A byte-order mark is removed. UTF-16 and UTF-32 with a mark become UTF-8; without one they
 * are refused with the key that reads them, encoding=. Nothing else is changed. Line ends stay. Bytes that are not
 * UTF-8 stay and are counted. */
#ifndef TRAIN_GPT_DATA_TEXT_FILE_H
#define TRAIN_GPT_DATA_TEXT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "core/io.h"

enum { TEXT_FILE_FAULT_CHARS = 1200, TEXT_FILE_START = 65536 };

/* --- the bytes inside a packed file, as a stream ------------------------------------------------------------------ */

/* gzip is unpacked by zlib, zstd by libzstd, xz by libarchive's xz filter. Damage is a fault even where a library
 * ignores it: a wrong checksum or length, a later member without its header, and bytes after the last member. A file
 * that ends too early is reported as cut off. */
typedef enum { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD, PACKED_XZ } Packing;

/* Reads up to `bytes` of the packed file. Returns how many, 0 at its end, or minus the exit code with the reason in
 * fault. */
typedef int64_t UnpackSource(void *with, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]);

typedef struct Unpack Unpack;

/* Each packing's name ("none" for PACKED_NOT), and the filter that unpacks it in a shell (NULL for PACKED_NOT). */
typedef struct { const char *name, *command; } PackingText;
extern const PackingText PACKINGS[];

/* Returns the packing, detected from the first bytes of a file. */
Packing unpack_kind(const char *data, size_t bytes);
/* Creates a stream; source must begin at the first byte of the packed file. `with` is borrowed until unpack_destroy. */
Unpack *unpack_create(Packing packing, UnpackSource *source, void *with);
/* Reads the next unpacked bytes. Returns their number, 0 at the end, or minus the exit code (65, 71, 74) with the
 * reason in fault. */
int64_t unpack_read(Unpack *u, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]);
void    unpack_destroy(Unpack *u);

/* --- a file as text ----------------------------------------------------------------------------------------------- */

typedef struct TextFile TextFile;

/* ENCODING_FOUND: detected. The byte-order mark decides; a text without one is UTF-8. */
typedef enum {
    ENCODING_FOUND, ENCODING_UTF8, ENCODING_UTF16LE, ENCODING_UTF16BE, ENCODING_UTF32LE, ENCODING_UTF32BE,
    ENCODING_LATIN1
} TextEncoding;
/* the values of encoding=, from ENCODING_UTF8 on: "utf-8", ...; ends with NULL */
extern const char *const TEXT_ENCODINGS[];

typedef enum {
    TEXT_PLAIN,
    TEXT_PARQUET,
    TEXT_SHARD,   /* a file of token ids */
    TEXT_PACKED,  /* one text that has to be unpacked or fetched first */
    TEXT_ENCODED, /* a text in an encoding that this program cannot read */
    TEXT_OTHER,   /* another known format: a picture, an archive, a program, ... */
    TEXT_BINARY   /* an unknown format, with too many control bytes for a text */
} TextKind;

/* Opens path and looks at its start. Returns 0, or an exit code (65 not text, 71, 74) with the reason in fault, worded
 * to follow the name of the file. The path may be a pipe. */
int  text_file_open(TextFile **file, const char *path, IoOpen how, TextEncoding encoding,
                    char fault[TEXT_FILE_FAULT_CHARS]);
void text_file_close(TextFile *f);

/* Returns the kind of the file, judged by its first TEXT_FILE_START unpacked bytes. *what is NULL for TEXT_PLAIN and
 * TEXT_PARQUET. For other kinds it says what the file is and what to type, worded to follow "is". */
TextKind     text_file_kind(const TextFile *f, const char **what);
/* Returns words for a file that begins like a format of another program, with at least four bytes that are not zero;
 * else NULL. It is for files of tokens without a header, which may begin with any bytes. */
const char  *text_other_kind(const uint8_t *start, size_t bytes);
/* Returns the encoding of a text in UTF-16 or UTF-32, with or without a mark, by its first bytes; else ENCODING_FOUND.
 * It is for files of tokens without a header, so nearly all characters must be of ASCII and one other script, with
 * spaces or stops. */
TextEncoding text_wide_encoding(const uint8_t *start, size_t bytes);
typedef struct {
    Packing      packing;
    TextEncoding encoding; /* the encoding in effect, never ENCODING_FOUND */
    int          mark;     /* bytes of the byte-order mark of the file; 0: none */
} TextForm;
TextForm     text_file_form(const TextFile *f);

/* Reads the next clean bytes. Returns how many, 0 at the end, or minus the exit code with the reason in fault. `bytes`
 * is at least 8. */
int64_t text_file_read(TextFile *f, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]);
/* Returns the number of bytes read so far that are not UTF-8, and in *first the place of the first one in the unpacked
 * file. For Latin-1 it counts 0x80 to 0x9F, where Windows-1252 has letters and Latin-1 has none. */
int64_t text_file_invalid(const TextFile *f, int64_t *first);

/* Numbers of control characters that a text does not hold: all but tab to carriage return. `all` includes escapes and
 * backspaces. */
typedef struct { int64_t all, escapes, backspaces; } TextControls;
/* adds the control characters of a text to the counts in c */
void text_count_controls(TextControls *c, const char *text, size_t bytes);
/* Returns 1 if over 1 % of the bytes of a text are control characters. */
int  text_is_binary(const TextControls *c, int64_t bytes);
/* Returns words for a text with these control characters and the command that removes them, worded to follow "is"; or
 * NULL. */
const char *text_controls_cure(const TextControls *c);

/* Turns a whole file in memory, *text [*bytes], into clean UTF-8: unpacked, without its mark, with a NUL after it.
 * Replaces the malloc'ed *text. Over `limit` clean bytes are a fault. Returns 0, or an exit code with the reason in
 * fault; then *text is unchanged. path names the file in commands of the message; NULL for standard input. */
int text_clean(char **text, size_t *bytes, size_t limit, const char *path, char fault[TEXT_FILE_FAULT_CHARS]);

#endif
