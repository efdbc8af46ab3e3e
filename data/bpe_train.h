/* bpe_train.h - learns a byte-pair vocabulary: the two neighbours that are side by side most often become one token, again and
 * again (Sennrich et al., arXiv:1508.07909, over bytes). The same text gives the same vocabulary: of equally frequent pairs the
 * one with the smaller left id goes first, then that with the smaller right id.
 */
#ifndef TRAIN_GPT_DATA_BPE_TRAIN_H
#define TRAIN_GPT_DATA_BPE_TRAIN_H

#include <stddef.h>
#include <stdint.h>

typedef struct BpeTrainer BpeTrainer;

/* Words are counted in at most so many bytes of memory; where these are too few, words met once only are forgotten. */
BpeTrainer *bpe_trainer_create(size_t memory_bytes);
void        bpe_trainer_destroy(BpeTrainer *t);
void        bpe_trainer_add(BpeTrainer *t, const char *word, size_t bytes);
int64_t     bpe_trainer_forgotten(const BpeTrainer *t); /* words */

/* Ids 0 to 255 are the bytes, the next the merges in the order they were learnt: merge i makes id 256 + i from left[i] and
 * right[i], which have room for `most`. Returns how many there are: fewer where no pair is there twice. Once. */
int32_t bpe_trainer_learn(BpeTrainer *t, int32_t most, int32_t *left, int32_t *right);

#endif
