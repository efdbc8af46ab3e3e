/* dataset.h - shards as one numbered list of samples, and the order in which training takes them.
 *
 * Samples are numbered shard after shard; sample j of a shard covers its tokens [j*T, j*T+T]: T inputs, targets shifted
 * by one. A sample never crosses a shard. Tokens after a shard's last sample are never read, nor are shards of at most T tokens. Step s takes the global indices s*G .. s*G+G-1;
 * index g is the (g mod n)-th sample of epoch floor(g/n). The order within an epoch is a function of (seed, epoch)
 * only. Of a blend (data/blend.h) each source has epochs of its own: index g is the next sample of the source that g
 * falls to.
 */
#ifndef TRAIN_GPT_DATA_DATASET_H
#define TRAIN_GPT_DATA_DATASET_H

#include "core/io.h"
#include "data/blend.h"
#include "data/shard.h"
#include "data/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Shard   *shard;           /* owned */
    int      shards;
    int64_t *first_sample;    /* owned [shards+1]: sample number of each shard's first */
    int64_t  seq_len, vocab_size;
    int64_t  samples;         /* n */
    int64_t  tokens;          /* in all shards */
    Blend   *blend;           /* owned; NULL: one source, in plain order of its shards */
    int64_t *first_of_source; /* owned [sources+1], of a blend: sample number of each source's first */
    uint64_t tokenizer;       /* tokenizer_fingerprint of what made the tokens, set by the caller; 0: not known */
} Dataset;

typedef struct { int shuffle; uint64_t seed; } SampleOrder;

/* What the files of a dataset hold. */
typedef struct {
    int64_t files, tokens, samples;
    int64_t short_files, short_tokens; /* files of at most seq_len tokens hold no sample */
    int64_t tail_tokens;               /* after the last target of the last sample of other files */
} SampleCount;
enum { SAMPLE_COUNT_CHARS = 240 };

/* Adds a file of so many tokens. The only place where tokens become samples. */
void sample_count_add(SampleCount *c, int64_t tokens, int64_t seq_len);
/* Writes how many tokens are never read and why, after `before`: "; never read: 7 tokens after the last samples of files".
 * Writes "" if all are read. Returns out. */
const char *sample_count_unread(const SampleCount *c, int64_t seq_len, const char *before, char out[SAMPLE_COUNT_CHARS]);
/* Passes over data of so many samples: the only definition of an epoch. */
double sample_epochs(int64_t taken, int64_t samples);

/* Adds the files that a name of data.train or data.val stands for (io_match), without what `tokenize` leaves beside shards.
 * Exit 71 without memory. */
void dataset_files(const char *name, IoPaths *files);

/* Opens the files of a list of globs: globs in list order, the files of each sorted by byte; a file named twice is
 * refused. key names the option in messages ("data.train"). Exit 65: no match, no whole sample, foreign tokens (>=
 * vocab_size; file and index named). */
Dataset dataset_open(const char *key, const char *const *globs, int count, int64_t seq_len, int64_t vocab_size);
/* The same of a blend: globs[i] is the path of share[i]; a path in several stages is opened once. share NULL: no blend.
 * Exit 65 also where a source holds no whole sample. */
Dataset dataset_open_blend(const char *key, const char *const *globs, const BlendShare *share, int count, int64_t seq_len,
                           int64_t vocab_size);
/* The path of a file of `a` that is one of b's, too, whatever it is called there; NULL: there is none. */
const char *dataset_shared_file(const Dataset *a, const Dataset *b);
void    dataset_close(Dataset *d);
SampleCount dataset_count(const Dataset *d);
/* Returns how many samples an evaluation over the first so many tokens reads: whole samples, at least one; 0: all. */
int64_t dataset_first_samples(const Dataset *d, int64_t tokens);
/* Bytes of text that a token of the first so many samples stands for on average: 1 where tokens are bytes, else by tokens.json
 * beside each file. NaN if one of those files has none. */
double  dataset_bytes_per_token(const Dataset *d, const Tokenizer *t, int64_t samples);

/* inputs and targets [seq_len] of sample number j; targets may be inputs + 1. Exit 65 on a token >= vocab_size: the
 * file has changed since it was opened. */
void dataset_sample(const Dataset *d, int64_t j, int32_t *inputs, int32_t *targets);

/* Hash of each shard's name without folder, size, first and last tokens, and of a blend's sources: equal on two machines with the same data.
 * Source: XXH3. */
uint64_t dataset_fingerprint(const Dataset *d);

/* The sample number of global index g. */
int64_t dataset_order(const Dataset *d, SampleOrder order, int64_t g);

/* Of a blend: the tokens of each source before global index g, [BLEND_SOURCES]; returns how many sources there are. 0: it
 * is no blend. */
int dataset_source_tokens(const Dataset *d, int64_t g, int64_t *tokens);

#ifdef __cplusplus
}
#endif
#endif
