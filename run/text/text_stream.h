/* text_stream.h - makes text for a terminal or a pipe from the bytes of one token after the other. Text is passed on as
 * soon as it is certain:
 *   It is whole UTF-8 sequences. Other bytes, and control characters that could steer a terminal, become U+FFFD.
 *   It contains nothing of a stop text, because the text ends before the first one.
 */
#ifndef TRAIN_GPT_RUN_TEXT_TEXT_STREAM_H
#define TRAIN_GPT_RUN_TEXT_TEXT_STREAM_H

#include <stddef.h>

typedef struct { char *bytes; size_t count, room; } TextBytes;

typedef struct {
    void (*put)(void *ctx, const char *text, size_t bytes); /* receives certain text */
    void  *ctx;
    const char *const *stop; /* borrowed [stops], none of them empty */
    int    stops;
    int    is_over;          /* a stop text was found                */
    TextBytes held;          /* owned: bytes that may begin a stop text        */
    TextBytes broken;        /* owned: the beginning of a UTF-8 sequence       */
} TextStream;

TextStream text_stream_create(void (*put)(void *ctx, const char *text, size_t bytes), void *ctx);
/* Adds bytes. Only stop texts that t->stop has at that time count, so a prompt is added before they are set. */
void       text_stream_add(TextStream *t, const char *bytes, size_t count);
/* Passes on the bytes that are held, and frees the memory. */
void       text_stream_end(TextStream *t);

#endif
