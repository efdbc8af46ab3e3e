/* nearest.h - the probable meaning of a mistyped word: the nearest valid key, word or verb. */
#ifndef TRAIN_GPT_RUN_CONFIG_NEAREST_H
#define TRAIN_GPT_RUN_CONFIG_NEAREST_H

typedef struct {
    const char *word;  /* the nearest; NULL if there was nothing to choose from */
    int         sure;  /* near enough to ask "did you mean"                     */
} Nearest;

/* Edits (insert, delete, replace, swap of neighbours) between a and b, ignoring case and taking '-' for '_'. Only the
 * first 64 bytes of each count. */
int edit_distance(const char *a, const char *b);

/* Among words, which end with NULL. */
Nearest nearest_word(const char *typed, const char *const *words);

typedef enum { NEAREST_OPTION, NEAREST_SECTION } NearestKind;

/* Among the keys of the option table, or its sections: by the whole dotted path, by its last part, and by the names
 * that other programs give the same thing. */
Nearest nearest_key(const char *path, NearestKind kind);

#endif
