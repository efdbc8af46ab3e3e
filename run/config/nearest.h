/* nearest.h - finds the probable meaning of a mistyped word: the nearest valid key, word or verb. */
#ifndef TRAIN_GPT_RUN_CONFIG_NEAREST_H
#define TRAIN_GPT_RUN_CONFIG_NEAREST_H

typedef struct {
    const char *word;  /* the nearest word; NULL if there are no words          */
    int         sure;  /* 1: near enough to print "did you mean"                */
} Nearest;

/* Returns the number of edits (insert, delete, replace, swap of neighbours) between a and b. Ignores case, and '-'
 * equals '_'. Only the first 64 bytes of each word count. */
int edit_distance(const char *a, const char *b);

/* Returns the nearest of words, which end with NULL. */
Nearest nearest_word(const char *typed, const char *const *words);

typedef enum { NEAREST_OPTION, NEAREST_SECTION } NearestKind;

/* Returns the nearest key or section of the option table. Compares the whole dotted path, its last name, and the names
 * of the same options in other programs. */
Nearest nearest_key(const char *path, NearestKind kind);

#endif
