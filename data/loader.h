/* loader.h - a thread that reads the micro-batches of a step, and a few more, before the step begins.
 *
 * Rank r of W reads samples [r*G/W, (r+1)*G/W) of each step's G samples, micro_batch at a time. So for any W,
 * micro-batch k of the step's K runs on rank floor(k*W/K). Context ranks read different tokens of the same samples.
 */
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
    int64_t     batches;       /* micro-batches that stay valid after they are returned; 0 counts as 1 */
    /* 1: batches hold the first key of each token's document; documents begin with end_of_text */
    int         documents;
    int32_t     end_of_text;
} LoaderPlan;

/* Creates the loader and its thread. arena (device memory) holds the batches that are returned; dataset is borrowed. */
Loader *loader_create(const Dataset *dataset, LoaderPlan plan, Arena *arena);
/* Returns 0 if a hanging disk blocks the thread. The dataset must then stay open until the process ends. */
int     loader_destroy(Loader *l);
/* Returns the next micro-batch. It stays valid until `batches` more have been returned. *wait_ms (may be NULL) gets the
 * time spent waiting for the thread. */
Batch   loader_next(Loader *l, Stream *s, double *wait_ms);
/* Waits at most ms for all batches of a step, so that the step does not wait in its middle. Returns 1 if they are
 * there. */
int     loader_is_ready(Loader *l, double ms);
/* Continues as if created with this first_sample: to read a step's batches again, or to skip some. */
void    loader_seek(Loader *l, int64_t first_sample);
/* Continues at first_sample, and reads another share of each step from then on: its micro-batches [first, first +
 * count). */
void    loader_share(Loader *l, int64_t first, int64_t count, int64_t first_sample);
/* returns the bytes that the loader takes from its arena; B: samples of a micro-batch, T: a rank's tokens of a
 * sample */
size_t  loader_bytes(int64_t B, int64_t T, int64_t batches, int documents);
size_t  loader_host_bytes(int64_t B, int64_t T, int64_t micro_steps, int documents);

#endif
