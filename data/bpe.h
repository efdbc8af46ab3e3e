/* bpe.h - byte-pair encoding: a piece of text begins as its bytes, and the neighbours whose merge was learnt first become
 * one, again and again (Sennrich et al., arXiv:1508.07909; over bytes: Radford et al. 2019). The vocabulary and its merges
 * come from data/bpe_file.c.
 */
#ifndef TRAIN_GPT_DATA_BPE_H
#define TRAIN_GPT_DATA_BPE_H

#include "data/split.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Bpe Bpe;
enum { BPE_MOST_IDS = 1 << 20 }; /* published vocabularies have at most 262,144 */

Bpe *bpe_create(void);
void bpe_destroy(Bpe *b);

/* Gives an id its bytes, of which a piece may consist; 0 where the id or the bytes have been given before. */
int bpe_add(Bpe *b, int32_t id, const void *bytes, size_t count);
/* The ids left and right, side by side, become id, the sooner the lower the rank. The first rank of a pair stays. */
void bpe_add_merge(Bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id);
/* Merges wherever two tokens make a third, whose id is the rank: what a .tiktoken file means. */
void bpe_merge_all(Bpe *b);
/* A piece that is a token as a whole is that token, whatever its merges are ("ignore_merges"). */
void bpe_take_whole(Bpe *b);
/* Text that is an id by itself wherever it stands, before it is split: <|endoftext|>. 0 where the id is another token. */
int bpe_add_special(Bpe *b, int32_t id, const char *text, size_t count);
/* The special text of this id is looked for after text is normalized, in this form, and after all others. */
void bpe_match_normalized(Bpe *b, int32_t id, const char *form, size_t count);

/* The id of exactly these bytes, or -1. */
int32_t bpe_find(const Bpe *b, const void *bytes, size_t count);
/* Was this id added as special, with this text? */
int     bpe_is_special(const Bpe *b, int32_t id, const char *text, size_t count);
int32_t bpe_find_special(const Bpe *b, const char *text);
/* The bytes of an id; NULL where it is none. */
const char *bpe_bytes(const Bpe *b, int32_t id, size_t *count);
int32_t     bpe_ids(const Bpe *b);       /* the largest id + 1 */
int         bpe_id_is_special(const Bpe *b, int32_t id);
int         bpe_takes_whole(const Bpe *b);
/* The merges by rank: pair[2 i] and pair[2 i + 1] are the ids left and right of merge i, malloc'ed. Returns how many. */
int64_t     bpe_merges(const Bpe *b, int32_t **pair);
/* Hash of the merges that can happen, in their order: those by which the text of a token becomes that token. Of other pairs that
 * make the same text none ever meets. Where pieces that are tokens are taken whole, tokens that no merges make count too. Not
 * for two threads at once. */
uint64_t    bpe_merges_hash(Bpe *b);
/* Hash of the ids that are special, in whatever order they were added; of their forms, too, if text is normalized. */
uint64_t    bpe_added_hash(const Bpe *b, int normalizes);
int         bpe_missing_byte(const Bpe *b); /* a byte that no token is alone, or -1 */

/* Ids of one piece, at most `count` of them; returns how many. Not for two threads at once: it remembers pieces. */
size_t bpe_encode_piece(Bpe *b, const char *piece, size_t count, int32_t *ids);
/* Finds the first special text, of several at one place the longest. Returns 1, its place, length and id, or 0. With
 * SPLIT_MORE *at is then the first place where one may begin that the end of these bytes cuts; else it is `count`. */
typedef enum { BPE_VERBATIM, BPE_NORMALIZED } BpeForm;
int bpe_next_special(const Bpe *b, BpeForm form, const char *text, size_t count, SplitEnd end, size_t *at,
                     size_t *bytes, int32_t *id);

#ifdef __cplusplus
}
#endif
#endif
