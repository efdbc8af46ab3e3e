/* loader.h - a thread that reads the micro-batches of a step, and a few more, before the step begins.
 *
 * With G samples in each step, rank r of W reads samples [r*G/W, (r+1)*G/W) of a step, micro_batch at a time. So for
 * any W, micro-batch k of the step's K runs on rank floor(k*W/K). Context ranks read different tokens of the same
 * samples. */
#ifndef TRAIN_GPT_DATA_LOADER_H
#define TRAIN_GPT_DATA_LOADER_H

#include "core/batch.h"
#include "core/device.h"
#include "data/dataset.h"

typedef struct Loader Loader;

typedef struct {
    SampleOrder order;
    int64_t     step_samples;  /* G: samples of a step, over all ranks */
    int64_t     micro_batch;   /* B: samples of a micro-batch */
    int         rank, ranks;   /* index of this rank among the ranks that read different samples, and their number */
    int64_t     first_sample;  /* global index of the first step's first sample */
    ContextPart context;       /* this rank's slice of the tokens of each sample; context.ranks 0 counts as 1 */
    int64_t     batches;       /* number of returned micro-batches that stay valid at the same time; 0 counts as 1 */
    /* 1: batches also hold, for each token, the first position of its document; documents begin with the token
     * end_of_text */
    int         documents;
    int32_t     end_of_text;
} LoaderPlan;

/* Creates the loader and its thread. The batches that it returns are in device memory from arena. dataset is
 * borrowed. */
Loader *loader_create(const Dataset *dataset, LoaderPlan plan, Arena *arena);
/* Frees the loader and returns 1. Returns 0 if a hanging disk blocks its thread; the dataset must then stay open until
 * the process ends. */
int     loader_destroy(Loader *l);
/* Returns the next micro-batch. It stays valid until LoaderPlan.batches more have been returned. *wait_ms gets the time
 * spent waiting for the thread; wait_ms may be NULL. */
Batch   loader_next(Loader *l, Stream *s, double *wait_ms);
/* Waits at most ms until all micro-batches of a step are read, so that the step itself need not wait. Returns 1 if they
 * are read. */
int     loader_is_ready(Loader *l, double ms);
/* Continues as if the loader had been created with this first_sample. Used to read the batches of a step again, or to
 * skip some. */
void    loader_seek(Loader *l, int64_t first_sample);
/* Changes which micro-batches of each step this rank reads: [first, first + count) of the step. Continues at the step
 * that begins with global index first_sample. */
void    loader_share(Loader *l, int64_t first, int64_t count, int64_t first_sample);
/* returns how many bytes of device memory the loader needs; B: samples of a micro-batch, T: tokens of a sample on this
 * rank */
size_t  loader_bytes(int64_t B, int64_t T, int64_t batches, int documents);
size_t  loader_host_bytes(int64_t B, int64_t T, int64_t micro_steps, int documents);

#endif
