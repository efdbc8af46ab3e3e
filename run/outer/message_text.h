/* message_text.h - what writers and readers of JSON messages share. For messages_json.c and messages_servers.c. No
 * other file includes this.
 */
#ifndef TRAIN_GPT_RUN_OUTER_MESSAGE_TEXT_H
#define TRAIN_GPT_RUN_OUTER_MESSAGE_TEXT_H

#include <stdio.h>

#include "core/error.h"
#include "core/json.h"
#include "run/outer/messages.h"

/* Writes a message and returns its bytes. A text longer than MESSAGE_TEXT is a bug. */
size_t message_text(char out[MESSAGE_TEXT], const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A number as JSON: all its digits, or null if it is not finite. */
typedef struct { char text[SHOWN_BYTES]; } ShownNumber;
ShownNumber message_number(double value);

/* Returns the text that `write` writes, from malloc; free it with free(). Returns NULL if there is no memory, or if the
 * text has more than MESSAGE_JSON_LIMIT bytes; then *bytes is its length. write returns 0 if it has no memory. */
char *message_long(int (*write)(FILE *, const void *), const void *m, size_t *bytes);

/* A message that is being read. After the first fault, the other reads do nothing. */
typedef struct {
    const char *name; /* the kind with its article: "an OPEN" */
    char       *fault; /* [MESSAGE_FAULT_BYTES] the first fault; borrowed */
    int         is_good; /* 0 after a fault */
} Reading;

Reading reading_begin(const char *name, const char *text, size_t bytes, Json *json, char *fault);
void    reading_refuse(Reading *r, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Returns a member that must exist. Returns NULL if it is missing or a fault came before. */
const cJSON *read_member(Reading *r, const cJSON *object, const char *key);
/* Reads a whole number of [least, most]. */
int64_t      read_number(Reading *r, const cJSON *object, const char *key, int64_t least, int64_t most);
/* Reads a number; null is NaN. */
double       read_real(Reading *r, const cJSON *object, const char *key);
/* Reads a string of least to capacity - 1 hex digits. */
void         read_hex(Reading *r, const cJSON *object, const char *key, size_t least, char *out, size_t capacity);
int          read_flag(Reading *r, const cJSON *object, const char *key);
/* Returns the index of the string in words [count]. */
int          read_choice(Reading *r, const cJSON *object, const char *key, const char *const *words, int count);

#endif
