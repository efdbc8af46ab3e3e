/* message_text.h - what writers and readers of the JSON of messages share. For messages_json.c and messages_servers.c;
 * nobody else includes this.
 */
#ifndef TRAIN_GPT_RUN_OUTER_MESSAGE_TEXT_H
#define TRAIN_GPT_RUN_OUTER_MESSAGE_TEXT_H

#include <stdio.h>

#include "core/error.h"
#include "core/json_text.h"
#include "run/outer/messages.h"

/* Returns the bytes of the text, which must have room. */
size_t message_text(char out[MESSAGE_TEXT], const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A number as JSON: all its digits, or null. */
typedef struct { char text[SHOWN_BYTES]; } ShownNumber;
ShownNumber message_number(double value);

/* malloc'ed text, for free(), of what `write` writes; it returns 0 without memory. NULL without memory, or (then *bytes
 * is what it takes) over MESSAGE_JSON_LIMIT. */
char *message_long(int (*write)(FILE *, const void *), const void *m, size_t *bytes);

/* A message that is being read. After the first fault all further reads do nothing. */
typedef struct {
    const char *name; /* of its kind, with an article */
    char       *fault;
    int         is_good;
} Reading;

Reading reading_begin(const char *name, const char *text, size_t bytes, Json *json, char *fault);
void    reading_refuse(Reading *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A member that must be there. NULL: it is not, or there was a fault before. */
const cJSON *read_member(Reading *r, const cJSON *object, const char *key);
/* A whole number of [least, most]. */
int64_t      read_number(Reading *r, const cJSON *object, const char *key, int64_t least, int64_t most);
/* A number, or null: NaN. */
double       read_real(Reading *r, const cJSON *object, const char *key);
/* Hex digits, from least to capacity - 1 of them. */
void         read_hex(Reading *r, const cJSON *object, const char *key, size_t least, char *out, size_t capacity);
int          read_flag(Reading *r, const cJSON *object, const char *key);
/* One of words [count]. */
int          read_choice(Reading *r, const cJSON *object, const char *key, const char *const *words, int count);

#endif
