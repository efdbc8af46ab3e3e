/* tokenizer.h - text to token ids and back: bytes (a vocabulary of 256 without files), byte-pair encoding from the files of
 * data/bpe_file.h, or ids alone, which take no text and print as <id>.
 *
 * Decoded text is for people and terminals: of bytes, control characters other than newline and tab, which could steer a
 * terminal, come as \xNN. Bytes from 0x80 on pass, so that UTF-8 reads as it was written.
 */
#ifndef TRAIN_GPT_DATA_TOKENIZER_H
#define TRAIN_GPT_DATA_TOKENIZER_H

#include <stdio.h>

#include "data/bpe_file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { TOKENIZER_IDS, TOKENIZER_BYTES, TOKENIZER_BPE } TokenizerKind;
typedef struct {
    TokenizerKind kind;
    int64_t       vocab_size;
    BpeFile       file;      /* of TOKENIZER_BPE */
} Tokenizer;

/* path "": bytes if vocab_size is 256, else ids only (no text in, ids out). Else a tokenizer's folder or file: exit 65 where
 * it is not understood, 64 where it has ids that a model of vocab_size has not. */
Tokenizer tokenizer_create(const char *path, int64_t vocab_size);
/* Whether the folder of a shard (or of a glob of them) holds a tokenizer, as `tokenize` leaves it there: its path into out
 * [capacity]. */
int       tokenizer_beside(const char *shard, char *out, size_t capacity);
/* The first id that stands for other text in the two, or -1; ids alone differ from nothing. */
int32_t   tokenizer_difference(const Tokenizer *a, const Tokenizer *b);
/* The tokenizer of data: path where it is given, else the one beside the shard, else as of "". Exit 65 where both are there
 * and differ: the ids of the data would mean something else. */
Tokenizer tokenizer_of_data(const char *path, const char *shard, int64_t vocab_size);
/* Exit 65 where the notes beside a shard (data/tokens_json.h) count other ids than byte-pair encoding called `name`. */
void      tokenizer_refuse_notes(const Tokenizer *t, const char *name, const char *shard);
void      tokenizer_destroy(Tokenizer *t);
/* Ids that a text of so many bytes has at most. */
size_t    tokenizer_most(const Tokenizer *t, size_t bytes);
/* ids [tokenizer_most] from text; returns how many, -1 when this tokenizer takes no text. Special text, as <|endoftext|>, is
 * its id; bytes that are no UTF-8 are tokens of their bytes. Not for two threads at once. */
int64_t   tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int32_t *ids);
/* Writes the text of one id. */
void      tokenizer_decode(const Tokenizer *t, int32_t id, FILE *out);
/* The id that ends a text; -1: there is none. Ids alone of GPT-2's vocabulary have GPT-2's. */
int32_t   tokenizer_end_of_text(const Tokenizer *t);
char     *tokenizer_special_text(const Tokenizer *t, int32_t id); /* malloc'ed; NULL where the id has no text */
/* The id that a text of its own begins after: the end of the text before it; bytes have a newline, ids alone 0. */
int32_t   tokenizer_start(const Tokenizer *t);

#ifdef __cplusplus
}
#endif
#endif
