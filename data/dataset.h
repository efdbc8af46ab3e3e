/* dataset.h - shards as one numbered list of samples, and the order in which training reads them.
 *
 * Samples are numbered shard after shard. With T = seq_len, sample j of a shard covers its tokens [j*T, j*T+T]: T
 * inputs, and the targets shifted by one. A sample never crosses a shard. Tokens after the last sample of a shard are
 * never read, nor are shards of at most T tokens.
 *
 * A global index counts the samples that training reads. With G samples in a step, step s reads the global indices s*G
 * .. s*G+G-1. Index g is the (g mod n)-th of the n samples, in epoch floor(g/n). The order within an epoch depends on
 * (seed, epoch) only. Each source of a blend (data/blend.h) has its own epochs: index g is the next sample of the
 * source that the blend assigns to g. */
#ifndef TRAIN_GPT_DATA_DATASET_H
#define TRAIN_GPT_DATA_DATASET_H

#include "core/io.h"
#include "data/blend.h"
#include "data/shard.h"
#include "data/tokenizer.h"

typedef struct {
    Shard   *shard;           /* owned [shards]: the token files */
    int      shards;
    int64_t *first_sample;    /* owned [shards+1]: for each shard, the number of samples in the shards before it */
    int64_t  seq_len, vocab_size;
    int64_t  samples;         /* number of samples in all shards */
    int64_t  tokens;          /* number of tokens in all shards */
    Blend   *blend;           /* owned: which source gives each sample; NULL if the shards are one source */
    /* owned [sources+1]: in a blend, for each source the number of samples in the sources before it */
    int64_t *first_of_source;
    uint64_t tokenizer;       /* fingerprint of the tokenizer that made the tokens; set by the caller; 0: not known */
} Dataset;

typedef struct { int shuffle; uint64_t seed; } SampleOrder;

/* Numbers of files, tokens and samples in a dataset. */
typedef struct {
    int64_t files, tokens, samples;
    int64_t short_files, short_tokens; /* files of at most seq_len tokens, which hold no sample, and their tokens */
    int64_t tail_tokens;               /* tokens after the last whole sample, of the files that hold samples */
    /* number of files without a header, and the bytes that each of their tokens is taken to have */
    int64_t bare_files, bare_bytes;
} SampleCount;
enum { SAMPLE_COUNT_CHARS = 320 };

/* Adds a file of `tokens` tokens to the counts. Only this function computes how many samples a file has. */
void sample_count_add(SampleCount *c, int64_t tokens, int64_t seq_len);
/* Adds a file to the counts, by the number of tokens that its header gives. */
void sample_count_file(SampleCount *c, const ShardHeader *header, int64_t seq_len);
/* Writes to out which tokens of the counted files are never read and why, and how files without a header are read. The
 * text follows `before`: "; never read: 7 tokens after the last samples of files". Writes "" if there is nothing to
 * say. Returns out. */
const char *sample_count_unread(const SampleCount *c, int64_t seq_len, const char *before,
                                char out[SAMPLE_COUNT_CHARS]);
/* Returns the number of epochs in `taken` samples of data that have `samples` samples. Only this function defines an
 * epoch. */
double sample_epochs(int64_t taken, int64_t samples);

/* Appends to `files` those that an entry of data.train or data.val matches (io_match). Leaves out tokens.json and the
 * tokenizer files, which `tokenize` writes into the folder of the shards. Exits with 71 if there is no memory. */
void dataset_files(const char *name, IoPaths *files);

/* Opens the files of a list of globs, in the order of the list; the files of one glob are sorted by byte. key names the
 * option in messages ("data.train"). In a blend globs[i] is the path of share[i], and a path in several stages is
 * opened once. With share NULL there is no blend. Exits with 65 if a file is named twice, a glob matches nothing, or no
 * sample is whole. Exits with 65 also if a source of a blend holds no whole sample, or a token is >= vocab_size (the
 * message names file and index). */
Dataset dataset_open(const char *key, const char *const *globs, const BlendShare *share, int count, int64_t seq_len,
                     int64_t vocab_size);
/* Warns if a file belongs to both datasets, even under different names. */
void    dataset_warn_shared(const Dataset *val, const Dataset *train);
void    dataset_close(Dataset *d);
SampleCount dataset_count(const Dataset *d);
/* Returns how many samples an evaluation over the first `tokens` tokens reads: only whole ones, at least one. With 0
 * tokens it reads all samples. */
int64_t dataset_first_samples(const Dataset *d, int64_t tokens);
/* Returns the mean number of bytes of text for each token in the first `samples` samples. It is 1 if tokens are bytes,
 * otherwise the value in tokens.json in the folder of each file. Returns NaN if a file has no tokens.json. */
double  dataset_bytes_per_token(const Dataset *d, const Tokenizer *t, int64_t samples);

/* Reads inputs and targets [seq_len] of sample number j; targets may be inputs + 1. Exits with 65 on a token >=
 * vocab_size, which shows that the file has changed since it was opened. */
void dataset_sample(const Dataset *d, int64_t j, int32_t *inputs, int32_t *targets);

/* Returns a hash (XXH3) of the data. It covers the name without folder, the size, and the first and last tokens of each
 * shard; also the sources of a blend. The hash is equal on two machines with the same data. */
uint64_t dataset_fingerprint(const Dataset *d);

/* Returns the number of the sample that training reads at global index g. */
int64_t dataset_order(const Dataset *d, SampleOrder order, int64_t g);

/* Writes to tokens [BLEND_SOURCES] how many tokens each source of a blend gives before global index g. Returns the
 * number of sources, 0 if the data are no blend. */
int dataset_source_tokens(const Dataset *d, int64_t g, int64_t *tokens);

#endif
