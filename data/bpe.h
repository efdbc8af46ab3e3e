/* bpe.h - byte-pair encoding (Sennrich et al., arXiv:1508.07909; over bytes: Radford et al. 2019). A piece of text
 * begins as its bytes. Again and again the adjacent pair whose merge was learnt first is joined, until no pair has a
 * merge. data/bpe_file.c reads the vocabulary and its merges.
 */
#ifndef TRAIN_GPT_DATA_BPE_H
#define TRAIN_GPT_DATA_BPE_H

#include "data/split.h"

typedef struct Bpe Bpe;
/* largest number of ids that is accepted; published vocabularies have at most 262,144 */
enum { BPE_MOST_IDS = 1 << 20 };

Bpe *bpe_create(void);
void bpe_destroy(Bpe *b);

/* Adds a token: an id and its bytes. Returns 1, or 0 if the id has bytes already or another id has these bytes. */
int bpe_add(Bpe *b, int32_t id, const void *bytes, size_t count);
/* Adds a merge: adjacent tokens left and right become token id. Merges of lower rank are applied first. A pair that is
 * added again gets the later rank, as in Hugging Face tokenizers and in GPT-2's encoder.py. */
void bpe_add_merge(Bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
/* Allows every merge of two tokens whose bytes together are a third token. The rank of the merge is the id of the third
 * token, as in a .tiktoken file. */
void bpe_merge_all(Bpe *b);
/* Encodes each piece of text that equals a token as that token, even if no merges make it ("ignore_merges"). */
void bpe_take_whole(Bpe *b);
/* Adds a special token, a text such as <|endoftext|>. It becomes this id wherever it occurs, before text is split.
 * Returns 0 if the id already belongs to another token. */
int bpe_add_special(Bpe *b, int32_t id, const char *text, size_t count);
/* Makes a special token part of the vocabulary as well, so that merges make it and join it. Its bytes are its text. */
void bpe_enter_special(Bpe *b, int32_t id);
/* Makes the encoder search for the special token of this id in normalized text, where it is spelled as `form`. It does
 * so after it has found all other special tokens. */
void bpe_match_normalized(Bpe *b, int32_t id, const char *form, size_t count);

/* Returns the id of the token that has exactly these bytes, or -1. */
int32_t bpe_find(const Bpe *b, const void *bytes, size_t count);
/* Returns 1 if this id is a special token with this text. */
int     bpe_is_special(const Bpe *b, int32_t id, const char *text, size_t count);
int32_t bpe_find_special(const Bpe *b, const char *text);
/* Returns the bytes of an id, or NULL if no token has it. */
const char *bpe_bytes(const Bpe *b, int32_t id, size_t *count);
int32_t     bpe_ids(const Bpe *b);       /* returns the largest id + 1 */
int         bpe_id_is_special(const Bpe *b, int32_t id);
int         bpe_takes_whole(const Bpe *b);
/* Lists the merges in order of rank. (*pair)[2 i] and (*pair)[2 i + 1] are the left and right id of merge i. *pair is
 * malloc'ed. Returns the number of merges. */
int64_t     bpe_merges(const Bpe *b, int32_t **pair);
/* Returns a hash of the merges that can happen, in order of rank: those that turn the text of a token into that token.
 * Other pairs with the text of a token never become adjacent. After bpe_take_whole() it includes tokens that no merges
 * make. Not for two threads at once. */
uint64_t    bpe_merges_hash(Bpe *b);
/* Returns a hash of the ids of special tokens, equal for any order in which they were added. If text is normalized, it
 * also includes the spelling of those that are searched in normalized text. */
uint64_t    bpe_added_hash(const Bpe *b, int normalizes);
int         bpe_missing_byte(const Bpe *b); /* returns a byte that is not a token by itself, or -1 */

/* Encodes a piece of text (a word) of `count` bytes into ids [count]. Returns the number of ids. Not for two threads at
 * once, because it caches pieces. */
size_t bpe_encode_piece(Bpe *b, const char *piece, size_t count, int32_t *ids);
/* Finds the first special token of this form in a text. If several begin at the same byte, takes the longest. Returns 1
 * with its place, length and id. Returns 0 if there is none, with *at = count. With SPLIT_MORE more text follows. If
 * the end of these bytes may cut a special token, returns 0 with *at = the place where it begins. */
typedef enum { BPE_VERBATIM, BPE_NORMALIZED } BpeForm;
int bpe_next_special(const Bpe *b, BpeForm form, const char *text, size_t count, SplitEnd end, size_t *at,
                     size_t *bytes, int32_t *id);

/* --- learning a vocabulary ---------------------------------------------------------------------------------------- */

/* A trainer that learns a vocabulary: the most frequent adjacent pair of tokens becomes one token, again and again. The
 * same text gives the same vocabulary: of equally frequent pairs the one with the smaller left id is first, then the
 * one with the smaller right id. */
typedef struct BpeTrainer BpeTrainer;

/* Creates a trainer that counts words in at most memory_bytes. If that is too little memory, it forgets the rarest
 * words, beginning with those that occurred once. */
BpeTrainer *bpe_trainer_create(size_t memory_bytes);
void        bpe_trainer_destroy(BpeTrainer *t);
void        bpe_trainer_add(BpeTrainer *t, const char *word, size_t bytes);
/* returns how many counted words were removed because memory_bytes was too little */
int64_t     bpe_trainer_forgotten(const BpeTrainer *t);

/* Learns at most `most` merges and returns their number. There are fewer if no pair occurs twice any more. Ids 0 to 255
 * are the bytes. Merge i joins tokens left[i] and right[i] to token 256 + i. Both arrays are [most]. Call it only
 * once. */
int32_t bpe_trainer_learn(BpeTrainer *t, int32_t most, int32_t *left, int32_t *right);

#endif
