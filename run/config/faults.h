/* faults.h - tells a user what is wrong in a file of this program: the list of its faults, one line each, all printed
 * at once. Also finds the valid key, word or verb that a mistyped word probably means. */
#ifndef TRAIN_GPT_RUN_CONFIG_FAULTS_H
#define TRAIN_GPT_RUN_CONFIG_FAULTS_H

#include <stdio.h>

#include "core/error.h"
#include "core/json.h"

enum { FAULTS_SHOWN = 100 }; /* faults that are printed; more are only counted */

/* The source of a value. All NULL: a source without a name, such as a default. */
typedef struct {
    const char *file;      /* borrowed: path of the file as the user typed it                */
    const char *override;  /* borrowed: the whole argument, if the value is from an override */
    JsonPlace   at;        /* place in file; line 0: the file as a whole                     */
} Where;

/* A list of faults as text, one line each. The list must stay at its address between the first faults_add() and
 * faults_take(). */
typedef struct {
    FILE  *out;            /* owned: stream that writes `text`; NULL if there are no faults */
    char  *text;           /* owned: the faults, a line each, with line feeds */
    size_t bytes;
    int    count;
} Faults;

/* Adds a line to the list of faults: "file:line:column: error: ..." or "override "...": error: ...". */
void  faults_add(Faults *faults, Where where, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Returns the text of all faults, malloc'ed, for the caller to free. Returns NULL if there was no fault. */
char *faults_take(Faults *faults);

typedef struct {
    const char *word;  /* the nearest valid word; NULL if there are no words */
    int         sure;  /* 1 if the word is near enough to print "did you mean" */
} Nearest;

/* Returns the number of edits (insert, delete, replace, swap of neighbours) between a and b. Ignores case, and '-'
 * equals '_'. Only the first 64 bytes of each word count. */
int edit_distance(const char *a, const char *b);

/* Returns the word that is nearest to the typed one. words ends with NULL. */
Nearest nearest_word(const char *typed, const char *const *words);

typedef enum { NEAREST_OPTION, NEAREST_SECTION } NearestKind;

/* Returns the nearest key or section of the option table. Compares the whole dotted path, its last name, and the names
 * of the same options in other programs. */
Nearest nearest_key(const char *path, NearestKind kind);

#endif
