/* encoder.h - encodes text into token ids, whole or in parts of any size with the same ids. The encoder keeps back text
 * that the tokenizer may still join with the next part.
 */
#ifndef TRAIN_GPT_DATA_ENCODER_H
#define TRAIN_GPT_DATA_ENCODER_H

#include "data/tokenizer.h"

/* Limits in bytes. ENCODER_LONGEST: text kept back because a pattern must see it whole or matches it as one piece.
 * ENCODER_LONGEST_PIECE: one piece to encode, which needs 60 times its memory. */
enum { ENCODER_CHUNK = 1 << 20, ENCODER_LONGEST = 1 << 30, ENCODER_LONGEST_PIECE = 1 << 26 };

/* Consumes the part of a text that later text cannot change. Returns the bytes consumed; with SPLIT_END, all. */
typedef size_t TextTake(void *with, const char *text, size_t bytes, SplitEnd end);
/* Keeps the text that take() did not consume, and passes it again before the next text. Exits with 65 over
 * ENCODER_LONGEST. */
typedef struct {
    TextTake *take;
    void     *with;
    char     *text;              /* owned [room]: text kept back, of `bytes` bytes */
    size_t    bytes, room;
    size_t    chunk, enough;     /* bytes at which take() is called first (0: ENCODER_CHUNK), and called next */
} Cutter;
void cutter_put(Cutter *c, const char *text, size_t bytes);
void cutter_end(Cutter *c); /* ends a document */
void cutter_free(Cutter *c);

typedef void EncoderSink(void *with, const int32_t *ids, int64_t count);
typedef struct {
    const Tokenizer *tokenizer;  /* borrowed; not TOKENIZER_IDS */
    EncoderSink     *sink;
    void            *with;
    Cutter           cutter;     /* owned: the text as given */
    Cutter           normal;     /* owned: normalized text, if the tokenizer normalizes it */
    int32_t         *ids;        /* owned [room]: `count` ids not yet passed to the sink */
    size_t           room, count;
    int64_t          begun;      /* bytes of the document that have left `cutter` */
    int64_t          invalid;    /* bytes so far that are not UTF-8 */
} Encoder;

void encoder_put(Encoder *e, const char *text, size_t bytes);
void encoder_end(Encoder *e); /* ends a document */
void encoder_free(Encoder *e);

/* Returns the largest number of ids that a text of `bytes` bytes can have. */
size_t  tokenizer_most(const Tokenizer *t, size_t bytes);
/* Encodes text into ids [tokenizer_most]. Returns their number, -1 if this tokenizer reads no text. Added tokens such
 * as <|endoftext|> become their ids. Bytes that are not UTF-8 become tokens of bytes. Not for two threads at once. */
int64_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int32_t *ids);

#endif
