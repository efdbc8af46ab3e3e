/* text_file.h - the one reader of a text's first bytes: any file becomes clean UTF-8, or the reason why it is no text.
 *
 * Packing is undone (data/unpack.h). A byte-order mark is passed over, and UTF-16 and UTF-32 behind one become
 * UTF-8. Without a mark they are refused with the key that reads them, encoding=. Nothing else is changed: line
 * ends stay, and so do bytes that are no UTF-8, which are counted. / */
#ifndef TRAIN_GPT_DATA_TEXT_FILE_H
#define TRAIN_GPT_DATA_TEXT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "data/unpack.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TextFile TextFile;
enum { TEXT_FILE_FAULT_CHARS = UNPACK_FAULT_CHARS, TEXT_FILE_START = 65536 };

/* ENCODING_FOUND: a mark says it, else the text is UTF-8. */
typedef enum {
    ENCODING_FOUND,
    ENCODING_UTF8,
    ENCODING_UTF16LE,
    ENCODING_UTF16BE,
    ENCODING_UTF32LE,
    ENCODING_UTF32BE,
    ENCODING_LATIN1
} TextEncoding;
extern const char
    *const TEXT_ENCODINGS[]; /* "utf-8", ...: the values of encoding=, from ENCODING_UTF8 on; ends with NULL */

typedef enum {
    TEXT_PLAIN,
    TEXT_PARQUET,
    TEXT_SHARD,   /* a file of token ids */
    TEXT_PACKED,  /* one text that has to be unpacked or fetched first */
    TEXT_ENCODED, /* a text in an encoding that is not built in */
    TEXT_OTHER,   /* known by its first bytes: a picture, an archive, a program, ... */
    TEXT_BINARY   /* not known; too many control bytes for a text */
} TextKind;

/* Opens path and looks at its start. Returns 0, or the exit code (65 no text, 71, 74) with the reason in fault, as
 * it follows the file's name. A pipe is fine. */
int text_file_open(TextFile **file, const char *path, TextEncoding encoding, char fault[TEXT_FILE_FAULT_CHARS]);
void text_file_close(TextFile *f);

/* Returns the kind of the file, judged by its first TEXT_FILE_START unpacked bytes. Of all but TEXT_PLAIN and
 * TEXT_PARQUET, *what says what the file is and what to do with it, as it follows "is". */
TextKind     text_file_kind(const TextFile *f, const char **what);
Packing      text_file_packing(const TextFile *f);
TextEncoding text_file_encoding(const TextFile *f); /* never ENCODING_FOUND */
int          text_file_mark(const TextFile *f);     /* bytes of its byte-order mark */

/* Reads the next clean bytes: returns how many, 0 at the end, or minus the exit code with the reason in fault.
 * bytes: at least 8. */
int64_t text_file_read(TextFile *f, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]);
/* Returns the bytes read so far that are no UTF-8. Of Latin-1 they are those from 0x80 to 0x9F: Windows-1252 has
 * letters there, Latin-1 has none. *first: the place of the first one in the unpacked file. */
int64_t text_file_invalid(const TextFile *f, int64_t *first);

/* Turns a whole file in memory, *text [*bytes] with a NUL behind it, into clean UTF-8: unpacked, without its mark.
 * Takes and gives malloc'ed memory. Over `limit` clean bytes are a fault. Returns as text_file_open; *text stays
 * valid. */
int text_clean(char **text, size_t *bytes, size_t limit, char fault[TEXT_FILE_FAULT_CHARS]);

#ifdef __cplusplus
}
#endif
#endif
