/* dataset.h - shards as one numbered list of samples, and the order in which training reads them.
 *
 * Samples are numbered shard after shard. Sample j of a shard covers its tokens [j*T, j*T+T]: T inputs, and the targets
 * shifted by one. A sample never crosses a shard. Tokens after the last sample of a shard are never read, nor are
 * shards of at most T tokens.
 *
 * Step s reads the global indices s*G .. s*G+G-1. Index g is the (g mod n)-th sample of epoch floor(g/n). The order
 * within an epoch depends on (seed, epoch) only. Each source of a blend (data/blend.h) has its own epochs: index g is
 * the next sample of the source that the blend assigns to g.
 */
#ifndef TRAIN_GPT_DATA_DATASET_H
#define TRAIN_GPT_DATA_DATASET_H

#include "core/io.h"
#include "data/blend.h"
#include "data/shard.h"
#include "data/tokenizer.h"

typedef struct {
    Shard   *shard;           /* owned [shards] */
    int      shards;
    int64_t *first_sample;    /* owned [shards+1]: number of the first sample of each shard */
    int64_t  seq_len, vocab_size;
    int64_t  samples;         /* n */
    int64_t  tokens;          /* tokens in all shards */
    Blend   *blend;           /* owned; NULL if there is one source, with its shards in plain order */
    int64_t *first_of_source; /* owned [sources+1], for a blend: number of the first sample of each source */
    uint64_t tokenizer;       /* fingerprint of the tokenizer that made the tokens, set by the caller; 0: not known */
} Dataset;

typedef struct { int shuffle; uint64_t seed; } SampleOrder;

/* Numbers of files, tokens and samples in a dataset. */
typedef struct {
    int64_t files, tokens, samples;
    int64_t short_files, short_tokens; /* files of at most seq_len tokens, which hold no sample, and their tokens */
    int64_t tail_tokens;               /* tokens after the last whole sample, of the files that hold samples */
    /* files without a header, and the bytes that each of their tokens is taken to have */
    int64_t bare_files, bare_bytes;
} SampleCount;
enum { SAMPLE_COUNT_CHARS = 320 };

/* Adds a file of `tokens` tokens to the counts. No other function computes samples from tokens. */
void sample_count_add(SampleCount *c, int64_t tokens, int64_t seq_len);
/* Adds a file to the counts, by the number of tokens in its header. */
void sample_count_file(SampleCount *c, const ShardHeader *header, int64_t seq_len);
/* Writes what a reader of the counts should know, after `before`: how files without a header are read, how many tokens
 * are never read, and why: "; never read: 7 tokens after the last samples of files". Writes "" if there is nothing to
 * say. Returns out. */
const char *sample_count_unread(const SampleCount *c, int64_t seq_len, const char *before,
                                char out[SAMPLE_COUNT_CHARS]);
/* Returns how often `taken` samples pass over data of `samples` samples. No other function defines an epoch. */
double sample_epochs(int64_t taken, int64_t samples);

/* Adds the files that an entry of data.train or data.val matches (io_match). Leaves out tokens.json and the tokenizer
 * files, which `tokenize` writes beside shards. Exits with 71 if there is no memory. */
void dataset_files(const char *name, IoPaths *files);

/* Opens the files of a list of globs: globs in list order, the files of each sorted by byte. key names the option in
 * messages ("data.train"). In a blend globs[i] is the path of share[i], and a path in several stages is opened once.
 * With share NULL there is no blend. Exits with 65 if a file is named twice, nothing matches, no sample is whole, a
 * source of a blend holds no whole sample, or a token is >= vocab_size (the message names file and index). */
Dataset dataset_open(const char *key, const char *const *globs, const BlendShare *share, int count, int64_t seq_len,
                     int64_t vocab_size);
/* Warns if a file belongs to both datasets, even under different names. */
void    dataset_warn_shared(const Dataset *val, const Dataset *train);
void    dataset_close(Dataset *d);
SampleCount dataset_count(const Dataset *d);
/* Returns how many samples an evaluation over the first `tokens` tokens reads: whole ones, at least one. 0 tokens:
 * all. */
int64_t dataset_first_samples(const Dataset *d, int64_t tokens);
/* Returns the mean number of text bytes per token in the first `samples` samples: 1 if tokens are bytes, else the value
 * in tokens.json beside each file. NaN if a file has no tokens.json. */
double  dataset_bytes_per_token(const Dataset *d, const Tokenizer *t, int64_t samples);

/* Reads inputs and targets [seq_len] of sample number j; targets may be inputs + 1. Exits with 65 on a token >=
 * vocab_size, which shows that the file has changed since it was opened. */
void dataset_sample(const Dataset *d, int64_t j, int32_t *inputs, int32_t *targets);

/* Returns a hash (XXH3) of the name without folder, size, first and last tokens of each shard, and of the sources of a
 * blend. It is equal on two machines with the same data. */
uint64_t dataset_fingerprint(const Dataset *d);

/* Returns the sample number of global index g. */
int64_t dataset_order(const Dataset *d, SampleOrder order, int64_t g);

/* Writes the tokens that each source of a blend gives before global index g into tokens [BLEND_SOURCES]. Returns the
 * number of sources, 0 if it is no blend. */
int dataset_source_tokens(const Dataset *d, int64_t g, int64_t *tokens);

#endif
