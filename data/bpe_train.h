/* bpe_train.h - learns a byte-pair vocabulary (Sennrich et al., arXiv:1508.07909, over bytes). Again and again the most
 * frequent adjacent pair becomes one token. The same text gives the same vocabulary: of equally frequent pairs the one
 * with the smaller left id is first, then the one with the smaller right id.
 */
#ifndef TRAIN_GPT_DATA_BPE_TRAIN_H
#define TRAIN_GPT_DATA_BPE_TRAIN_H

#include <stddef.h>
#include <stdint.h>

typedef struct BpeTrainer BpeTrainer;

/* Creates a trainer that counts words in at most memory_bytes. If these are too few, words that occurred only once are
 * forgotten. */
BpeTrainer *bpe_trainer_create(size_t memory_bytes);
void        bpe_trainer_destroy(BpeTrainer *t);
void        bpe_trainer_add(BpeTrainer *t, const char *word, size_t bytes);
int64_t     bpe_trainer_forgotten(const BpeTrainer *t); /* returns the number of forgotten words */

/* Learns merges and returns their number, at most `most`. There are fewer if no pair occurs twice any more. Ids 0 to
 * 255 are the bytes. Merge i makes id 256 + i from left[i] and right[i], arrays [most]. Call it only once. */
int32_t bpe_trainer_learn(BpeTrainer *t, int32_t most, int32_t *left, int32_t *right);

#endif
