/* text_file.h - reads any file as UTF-8 text, or gives the reason why it is not text.
 *
 * Packed files are unpacked. A byte-order mark is removed. UTF-16 and UTF-32 with such a mark become UTF-8. Without one
 * they are refused, and the message names the option that reads them, encoding=. Nothing else is changed. Line ends
 * stay. Bytes that are not UTF-8 stay and are counted. */
#ifndef TRAIN_GPT_DATA_TEXT_FILE_H
#define TRAIN_GPT_DATA_TEXT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "core/io.h"

enum { TEXT_FILE_FAULT_CHARS = 1200, TEXT_FILE_START = 65536 };

/* --- the bytes inside a packed file, as a stream ------------------------------------------------------------------ */

/* How a file is packed. gzip is unpacked by zlib, zstd by libzstd, xz by libarchive's xz filter. Damage is a fault even
 * where a library ignores it: a wrong checksum or length, a later member without its header, and bytes after the last
 * member. A file that ends too early is reported as cut off. */
typedef enum { PACKED_NOT, PACKED_GZIP, PACKED_ZSTD, PACKED_XZ } Packing;

/* A function that reads up to `bytes` of a packed file. It returns how many, 0 at its end, or minus an exit code with
 * the reason in fault. */
typedef int64_t UnpackSource(void *with, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]);

typedef struct Unpack Unpack;

/* For each kind of packing its name ("none" for PACKED_NOT), and the shell command that unpacks standard input (NULL
 * for PACKED_NOT). */
typedef struct { const char *name, *command; } PackingText;
extern const PackingText PACKINGS[];

/* Returns how a file is packed, detected from its first bytes. */
Packing unpack_kind(const char *data, size_t bytes);
/* Creates a stream of unpacked bytes. `source`, called with `with`, must begin at the first byte of the packed file.
 * `with` is borrowed until unpack_destroy. */
Unpack *unpack_create(Packing packing, UnpackSource *source, void *with);
/* Reads the next unpacked bytes. Returns their number, 0 at the end, or minus an exit code (65, 71, 74) with the reason
 * in fault. */
int64_t unpack_read(Unpack *u, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]);
void    unpack_destroy(Unpack *u);

/* --- a file as text ----------------------------------------------------------------------------------------------- */

typedef struct TextFile TextFile;

/* Encodings of a text. ENCODING_FOUND: it is to be detected. The byte-order mark then decides; a text without one is
 * UTF-8. */
typedef enum {
    ENCODING_FOUND, ENCODING_UTF8, ENCODING_UTF16LE, ENCODING_UTF16BE, ENCODING_UTF32LE, ENCODING_UTF32BE,
    ENCODING_LATIN1
} TextEncoding;
/* values of the option encoding=, "utf-8" for ENCODING_UTF8 and so on; ends with NULL */
extern const char *const TEXT_ENCODINGS[];

typedef enum {
    TEXT_PLAIN,
    TEXT_PARQUET,
    TEXT_SHARD,   /* a file of token ids */
    TEXT_PACKED,  /* a text that has to be unpacked or fetched by another program first */
    TEXT_ENCODED, /* a text in an encoding that this program cannot read */
    TEXT_OTHER,   /* another known format: a picture, an archive, a program, ... */
    TEXT_BINARY   /* an unknown format, with too many control bytes for a text */
} TextKind;

/* Opens a file and looks at its start. Returns 0, or an exit code with the reason in fault, worded to follow the name
 * of the file. 65: the file is not text. 71: no memory. 74: it cannot be read. The path may be a pipe. */
int  text_file_open(TextFile **file, const char *path, IoOpen how, TextEncoding encoding,
                    char fault[TEXT_FILE_FAULT_CHARS]);
void text_file_close(TextFile *f);

/* Returns the kind of a file, judged by its first TEXT_FILE_START unpacked bytes. *what is NULL for TEXT_PLAIN and
 * TEXT_PARQUET. For other kinds it says what the file is and what to type, worded to follow "is". */
TextKind     text_file_kind(const TextFile *f, const char **what);
/* Returns words for a file that begins like a format of another program, otherwise NULL. Considers only formats with at
 * least four fixed bytes that are not zero, because a file of tokens without a header may begin with any bytes. */
const char  *text_other_kind(const uint8_t *start, size_t bytes);
/* Returns the encoding of a text in UTF-16 or UTF-32, judged by its first bytes; ENCODING_FOUND for other data. For
 * files of tokens without a header, which must not be taken for text. So nearly all characters must be of ASCII and one
 * other script, with spaces or stops. */
TextEncoding text_wide_encoding(const uint8_t *start, size_t bytes);
typedef struct {
    Packing      packing;
    TextEncoding encoding; /* encoding in which the file is read, never ENCODING_FOUND */
    int          mark;     /* bytes of the byte-order mark at the start of the file; 0: none */
} TextForm;
TextForm     text_file_form(const TextFile *f);

/* Reads the next bytes of the text as UTF-8. Returns how many, 0 at the end, or minus an exit code with the reason in
 * fault. `bytes` is at least 8. */
int64_t text_file_read(TextFile *f, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]);
/* Returns how many of the bytes read so far are not valid in the file's encoding. *first is the place of the first of
 * them in the unpacked file. In Latin-1 these are 0x80 to 0x9F, where Windows-1252 has letters and Latin-1 has none. */
int64_t text_file_invalid(const TextFile *f, int64_t *first);

/* Numbers of control characters in a text, without those from tab to carriage return, which a text may hold. `all`
 * includes escapes and backspaces. */
typedef struct { int64_t all, escapes, backspaces; } TextControls;
/* adds the control characters of a text to the counts in c */
void text_count_controls(TextControls *c, const char *text, size_t bytes);
/* Returns 1 if over 1 % of the bytes of a text are control characters (c->all). */
int  text_is_binary(const TextControls *c, int64_t bytes);
/* Returns advice for a text that has mostly escapes or mostly backspaces as control characters, worded to follow "is".
 * It names the command that removes them. Returns NULL for other control characters. */
const char *text_controls_cure(const TextControls *c);

/* Turns a whole file in memory, *text [*bytes], into UTF-8: unpacked, without its byte-order mark, with a NUL after it.
 * Replaces the malloc'ed *text. It is a fault if the result has over `limit` bytes. Returns 0, or an exit code with the
 * reason in fault; *text is then unchanged. path names the file in commands of the message; NULL for standard input. */
int text_clean(char **text, size_t *bytes, size_t limit, const char *path, char fault[TEXT_FILE_FAULT_CHARS]);

#endif
