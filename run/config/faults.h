/* faults.h - the list of faults found in a config: one line each, all printed at once. */
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

#endif
