/* text_file.h - the bytes of a file as they come: plain, or unpacked from gzip, zstd or xz on the way (libarchive). */
#ifndef TRAIN_GPT_DATA_TEXT_FILE_H
#define TRAIN_GPT_DATA_TEXT_FILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TextFile TextFile;
enum { TEXT_FILE_FAULT_CHARS = 400, TEXT_FILE_START = 65536 };
typedef enum { TEXT_PLAIN, TEXT_JSON, TEXT_PARQUET, TEXT_OTHER } TextKind;

/* Opens path and looks at its start. Returns 0, or the exit code (65 no text, 74) with the reason in fault, as it follows
 * the file's name. A pipe is fine. */
int text_file_open(TextFile **file, const char *path, char fault[TEXT_FILE_FAULT_CHARS]);
void text_file_close(TextFile *f);

/* Returns the kind of the file, judged by its first TEXT_FILE_START unpacked bytes: JSON if they begin with { or [. For
 * TEXT_OTHER, *what is its name ("a PDF"), or NULL where that is unknown. */
TextKind text_file_kind(const TextFile *f, const char **what);
int      text_file_is_packed(const TextFile *f);
/* The first unpacked bytes, at most TEXT_FILE_START. */
const char *text_file_start(const TextFile *f, size_t *bytes);

/* The next bytes: how many, 0 at the end, or minus the exit code with the reason in fault. */
int64_t text_file_read(TextFile *f, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]);

#ifdef __cplusplus
}
#endif
#endif
