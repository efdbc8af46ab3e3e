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
/* Hash of what decides the ids of a text: vocabulary, added tokens, the merges that can happen, and the pieces that the patterns
 * make of a text of every kind of characters. A tokenizer has one hash in whatever files it was read from. 0: bytes, and ids
 * alone. */
uint64_t  tokenizer_fingerprint(const Tokenizer *t);
/* Returns whether the two give other ids, and in why what differs: "id 5 stands for other text". Ids alone differ from nothing. */
enum { TOKENIZER_WHY_CHARS = 80 };
int       tokenizer_difference(const Tokenizer *a, const Tokenizer *b, char why[TOKENIZER_WHY_CHARS]);
/* The tokenizer of data: path where it is given, else the first beside one of the files, else as of "". Exit 65 if one of the
 * files' folders has another tokenizer, or notes (data/tokens_json.h) of another number of ids. */
Tokenizer tokenizer_of_data(const char *path, const char *const *file, int64_t files, int64_t vocab_size);
/* Exit 65 if the folder of the file has another tokenizer than t, called `name`, or notes of another number of ids. whose: the
 * file's, in the message; cure: what to type. */
void      tokenizer_refuse_other(const Tokenizer *t, const char *name, const char *file, const char *whose, const char *cure);
void      tokenizer_destroy(Tokenizer *t);
/* Writes the text of one id. */
void      tokenizer_decode(const Tokenizer *t, int32_t id, FILE *out);
/* The id that ends a text; -1: there is none. Ids alone of GPT-2's vocabulary have GPT-2's. */
int32_t   tokenizer_end_of_text(const Tokenizer *t);
char     *tokenizer_special_text(const Tokenizer *t, int32_t id); /* malloc'ed; NULL where the id has no text */
/* The id that a text of its own begins after: the first that the tokenizer puts before each text, else bos_token, else
 * the end of the text before it; bytes have a newline, ids alone 0. */
int32_t   tokenizer_start(const Tokenizer *t);
/* The ids that the tokenizer puts before each text (post_processor, add_bos_token) into ids [BPE_MOST_BEGIN]; returns how
 * many. They stand before prompts and texts that are evaluated, not before the documents of training data. */
int64_t   tokenizer_begin(const Tokenizer *t, int32_t *ids);

#ifdef __cplusplus
}
#endif
#endif
