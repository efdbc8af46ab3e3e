/* format.h - how messages write sizes, times, numbers and names, and small arithmetic that several folders use. */
#ifndef TRAIN_GPT_CORE_FORMAT_H
#define TRAIN_GPT_CORE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- numbers ------------------------------------------------------------------------------------------------------ */

enum { SHOWN_BYTES = 160 }; /* largest number of bytes of a value or range in a message */

typedef struct { char text[40]; } ShortText;
/* Returns "1.88 GiB", or "512.0 MiB" below a GiB. */
ShortText bytes_text(double bytes);
/* Writes the shortest decimal that this program's JSON reader reads back as `value`. Returns out [SHOWN_BYTES]. */
char *number_text(double value, char out[SHOWN_BYTES]);
/* Writes 12288 as "12,288". Returns out [32]. */
char *grouped_text(int64_t n, char out[32]);
/* Writes "8s", "2m08s", "1h47m" or "3d04h" into out; "?" if ms is negative, not a number, or 1e14 and more. */
void  duration_text(char out[32], double ms);

/* Returns the ending of a noun that counts n things: "" for one, otherwise "s". */
static inline const char *plural(int64_t n) { return n == 1 ? "" : "s"; }
static inline int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }
/* Returns the greatest common divisor of a and b, at least 0 each. */
static inline int64_t common_divisor(int64_t a, int64_t b) {
    for (int64_t rest; b; a = b, b = rest) rest = a % b;
    return a;
}
/* Returns the least multiple of `multiple` that is at least n. */
static inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
/* Compares two doubles, for qsort(). */
int ascending_doubles(const void *a, const void *b);

/* Read and write an integer of `count` bytes in little-endian order. */
uint64_t little_endian(const void *bytes, int count);
void     little_endian_put(void *bytes, uint64_t value, int count);

/* Returns the number of bytes of the UTF-8 sequence at text (1 to 4), or 0 if none within `bytes` is valid. */
int utf8_bytes(const char *text, size_t bytes);

/* --- commands ----------------------------------------------------------------------------------------------------- */

/* A word of a shell command in a message, quoted if it has spaces or other special characters. */
typedef struct { char text[4352]; } ShellWord;
ShellWord shell_word(const char *word);

/* A file that a command in a message reads. `unpack` and `decode` are filters that the file's bytes pass first, such as
 * "gzip -dc"; NULL if the file needs none. `path` is NULL for standard input. All three are borrowed. */
typedef struct { const char *path, *unpack, *decode; } ShellFile;
/* Puts the name of a file into the commands of `sentence` [capacity]. "$ " marks the start of a command and is removed.
 * Each command has a placeholder. FILE becomes the file after its filters, and PACKED the file as it is. A command with
 * "< FILE" may read from a pipe; a command with " FILE" alone needs a file of its own. Without "$ " the placeholder
 * becomes the path. A command that would write NEW over the file that it reads writes NEW2. A sentence that would not
 * fit stays as it is. Example: "$ jq . < FILE > NEW" becomes "jq . < a.json > NEW", for a packed file "gzip -dc <
 * a.json.gz | jq . > NEW", and for standard input "... | jq . > NEW". */
void shell_read_file(char *sentence, size_t capacity, ShellFile file);
/* Replaces FILE and PACKED in the commands of `sentence` by the path of a file that needs no filters such as gzip.
 * Removes the marks at the start of commands ("$ "). */
void shell_name_file(char *sentence, size_t capacity, const char *path);

#ifdef __cplusplus
}
#endif

#endif
