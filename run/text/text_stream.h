/* text_stream.h - text for a terminal or a pipe, out of the bytes of one token after the other. A piece is passed on as
 * soon as it is certain:
 *   whole UTF-8 sequences only; bytes that are none, and control characters that could steer a terminal, become U+FFFD
 *   nothing of a stop text, at whose first occurrence the text ends
 */
#ifndef TRAIN_GPT_RUN_TEXT_TEXT_STREAM_H
#define TRAIN_GPT_RUN_TEXT_TEXT_STREAM_H

#include <stddef.h>

typedef struct { char *bytes; size_t count, room; } TextBytes;

typedef struct {
    void (*put)(void *ctx, const char *text, size_t bytes); /* takes what is certain */
    void  *ctx;
    const char *const *stop; /* borrowed [stops], none of them empty */
    int    stops;
    int    is_over;          /* a stop text came                     */
    TextBytes held;          /* owned: the beginning of a stop text, it may be */
    TextBytes broken;        /* owned: the beginning of a UTF-8 sequence       */
} TextStream;

TextStream text_stream_create(void (*put)(void *ctx, const char *text, size_t bytes), void *ctx);
/* The next bytes. Stop texts are those of t->stop at that time: a prompt is given before they are set. */
void       text_stream_add(TextStream *t, const char *bytes, size_t count);
/* Passes on what waited, and frees its memory. */
void       text_stream_end(TextStream *t);

#endif
