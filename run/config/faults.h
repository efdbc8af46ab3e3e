/* faults.h - the list of faults found in a config: one line each, all printed at once. */
#ifndef TRAIN_GPT_RUN_CONFIG_FAULTS_H
#define TRAIN_GPT_RUN_CONFIG_FAULTS_H

#include "core/error.h"
#include "core/json.h"

enum { FAULTS_SHOWN = 100 }; /* more are only counted */

/* Where a value came from; all NULL: nowhere that has a name (config_from_json, a default). */
typedef struct {
    const char *file;      /* borrowed; as the user gave it                     */
    const char *override;  /* borrowed; the argument, if it came from one       */
    JsonPlace   at;        /* in file; line 0: the file as a whole              */
} Where;

typedef struct {
    char  *text;           /* owned; lines, each ending in a line feed; NULL while there is none */
    size_t bytes;
    int    count;
} Faults;

/* Adds "file:line:column: error: ..." (or override "...": error: ...). */
void  faults_add(Faults *faults, Where where, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* The text, malloc'ed and handed over, NULL if there was no fault. */
char *faults_take(Faults *faults);

#endif
