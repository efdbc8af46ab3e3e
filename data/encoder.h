/* encoder.h - text to token ids, whole or in parts of any size: the ids of the parts are those of the whole text.
 * What the tokenizer may still join with text that follows is kept back until that text is there.
 */
#ifndef TRAIN_GPT_DATA_ENCODER_H
#define TRAIN_GPT_DATA_ENCODER_H

#include "data/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that are kept back at most: of a text that a pattern has to see whole, or that it takes as one piece; and of
 * a piece that is encoded, for which 60 times its memory is needed. */
enum { ENCODER_CHUNK = 1 << 20, ENCODER_LONGEST = 1 << 30, ENCODER_LONGEST_PIECE = 1 << 26 };

/* Takes text of which only the beginning may be certain. Returns how many bytes it took, with SPLIT_END all. */
typedef size_t TextTake(void *with, const char *text, size_t bytes, SplitEnd end);
/* Keeps the text that was not taken, and gives it again in front of what follows. Exit 65 over ENCODER_LONGEST. */
typedef struct {
    TextTake *take;
    void     *with;
    char     *text;              /* owned: what is kept back */
    size_t    bytes, room;
    size_t    chunk, enough;     /* bytes with which take() is tried first (0: ENCODER_CHUNK), and tried again */
} Cutter;
void cutter_put(Cutter *c, const char *text, size_t bytes);
void cutter_end(Cutter *c); /* of a document */
void cutter_free(Cutter *c);

typedef void EncoderSink(void *with, const int32_t *ids, int64_t count);
typedef struct {
    const Tokenizer *tokenizer;  /* borrowed; not TOKENIZER_IDS */
    EncoderSink     *sink;
    void            *with;
    Cutter           cutter;     /* owned: the text as it came */
    Cutter           normal;     /* owned: normalized text, if the tokenizer normalizes it */
    int32_t         *ids;        /* owned [room]: count of them are on their way to the sink */
    size_t           room, count;
    int64_t          begun;      /* bytes of the document that cutter gave away */
    int64_t          invalid;    /* bytes so far that are not UTF-8 */
} Encoder;

void encoder_put(Encoder *e, const char *text, size_t bytes);
void encoder_end(Encoder *e); /* of a document */
void encoder_free(Encoder *e);

/* Ids that a text of so many bytes has at most. */
size_t  tokenizer_most(const Tokenizer *t, size_t bytes);
/* ids [tokenizer_most] from text; returns how many, -1 if this tokenizer takes no text. Added tokens, as
 * <|endoftext|>, are their ids; bytes that are not UTF-8 are tokens of their bytes. Not for two threads at once. */
int64_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int32_t *ids);

#ifdef __cplusplus
}
#endif
#endif
