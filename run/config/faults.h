/* faults.h - tells a user what is wrong in a file of ours: the list of its faults, one line each, all printed at once;
 * and the valid key, word or verb that a mistyped word probably means. */
#ifndef TRAIN_GPT_RUN_CONFIG_FAULTS_H
#define TRAIN_GPT_RUN_CONFIG_FAULTS_H

#include "core/error.h"
#include "core/json.h"

enum { FAULTS_SHOWN = 100 }; /* faults that are printed; others are only counted */

/* The source of a value. All NULL: a source without a name (config_from_json, a default). */
typedef struct {
    const char *file;      /* borrowed: path as the user typed it               */
    const char *override;  /* borrowed: the argument, if the value is from one  */
    JsonPlace   at;        /* place in file; line 0: the file as a whole        */
} Where;

typedef struct {
    char  *text;           /* owned: lines, each with a line feed; NULL without faults */
    size_t bytes;
    int    count;
} Faults;

/* Adds a line "file:line:column: error: ..." or "override "...": error: ...". */
void  faults_add(Faults *faults, Where where, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Returns the text, malloc'ed, for the caller to free, or NULL if there was no fault. */
char *faults_take(Faults *faults);

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
