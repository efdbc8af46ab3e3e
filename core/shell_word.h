/* shell_word.h - names in the commands that messages offer, quoted so that the command works when it is pasted. */
#ifndef TRAIN_GPT_CORE_SHELL_WORD_H
#define TRAIN_GPT_CORE_SHELL_WORD_H

#include <stddef.h>

/* A word of a command in a message, quoted for the shell if it has spaces or other special characters. */
typedef struct { char text[4352]; } ShellWord;
ShellWord shell_word(const char *word);

/* How a command reads a file. `unpack` and `decode` are filters that the file's bytes pass first, such as "gzip -dc";
 * NULL if the file needs none. `path` is NULL for standard input. All are borrowed. */
typedef struct { const char *path, *unpack, *decode; } ShellFile;
/* Puts the file into the commands of `sentence` [capacity]. "$ " marks the start of a command and is removed. Each
 * command has a placeholder: FILE is the file behind its filters, and PACKED the file as it is. "< FILE" stands in a
 * command that may read from a pipe; a command with " FILE" alone needs a file of its own. Without "$ " the placeholder
 * becomes the path. A sentence that would not fit stays as it is.
 *
 * "$ jq . < FILE > NEW" becomes "jq . < a.json > NEW", "gzip -dc < a.json.gz | jq . > NEW", or "... | jq . > NEW". */
void shell_read_file(char *sentence, size_t capacity, ShellFile file);
/* Does the same as shell_read_file for a file without filters. */
void shell_name_file(char *sentence, size_t capacity, const char *path);

#endif
