/* encoder.h - text that comes in parts of any size into token ids, in a memory that does not grow with the text: a document
 * is cut where no piece of the tokenizer can lie across, and its ids are those of the whole.
 */
#ifndef TRAIN_GPT_DATA_ENCODER_H
#define TRAIN_GPT_DATA_ENCODER_H

#include "data/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Text in parts of any size becomes parts that no piece of a tokenizer lies across. */
typedef void TextSink(void *with, const char *text, size_t bytes);
typedef struct {
    TextSink *sink;
    void     *with;
    char     *text;              /* owned: what has not left yet */
    size_t    bytes, room;
} Cutter;
void cutter_put(Cutter *c, const char *text, size_t bytes);
void cutter_end(Cutter *c); /* of a document */
void cutter_free(Cutter *c);

typedef void EncoderSink(void *with, const int32_t *ids, int64_t count);
typedef struct {
    const Tokenizer *tokenizer;  /* borrowed; not TOKENIZER_IDS */
    EncoderSink     *sink;
    void            *with;
    Cutter           cutter;     /* owned */
    int32_t         *ids;        /* owned */
    size_t           ids_room;
    int64_t          invalid;    /* bytes so far that are no UTF-8 */
} Encoder;

/* A cut lies between a letter and a space before a letter, of ASCII: every published pattern ends a piece there. A text that
 * has none for so long is cut anywhere, between characters. */
enum { ENCODER_CHUNK = 1 << 20, ENCODER_LONGEST = 1 << 24 };

void encoder_put(Encoder *e, const char *text, size_t bytes);
void encoder_end(Encoder *e); /* of a document */
void encoder_free(Encoder *e);

#ifdef __cplusplus
}
#endif
#endif
