/* shell_word.h - names in the commands that messages offer, quoted so that the command works when it is pasted. */
#ifndef TRAIN_GPT_CORE_SHELL_WORD_H
#define TRAIN_GPT_CORE_SHELL_WORD_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A word of a command that a message offers, as a shell takes it: in quotes if it has spaces or other marks. */
typedef struct { char text[4352]; } ShellWord;
ShellWord shell_word(const char *word);
/* Replaces the placeholder FILE in the commands of a sentence [capacity] by the path as a shell takes it. A sentence
 * that would not fit stays as it is. */
void      shell_name_file(char *sentence, size_t capacity, const char *path);

#ifdef __cplusplus
}
#endif
#endif
