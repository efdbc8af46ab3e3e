/* loader.h - a thread that has the micro-batches of a step ready before it begins, and a few more.
 *
 * Rank r of W takes the contiguous part [r*G/W, (r+1)*G/W) of each step's G samples, micro_batch at a time: micro-batch
 * k of the step's K runs on rank floor(k*W/K), whatever W. Context ranks take their tokens of the same samples.
 */
#ifndef TRAIN_GPT_DATA_LOADER_H
#define TRAIN_GPT_DATA_LOADER_H

#include "core/batch.h"
#include "core/device.h"
#include "data/dataset.h"

typedef struct Loader Loader;

typedef struct {
    SampleOrder order;
    int64_t     step_samples;  /* G */
    int64_t     micro_batch;   /* B */
    int         rank, ranks;   /* of those with different samples           */
    int64_t     first_sample;  /* global index that the first step begins with */
    ContextPart context;       /* of each sample; ranks 0 counts as 1       */
    int64_t     batches;       /* micro-batches handed out that stay; 0 counts as 1 */
    int         documents;     /* batches have starts: of what begins with this id */
    int32_t     end_of_text;
} LoaderPlan;

/* arena (device memory) holds the batches handed out; dataset is borrowed. */
Loader *loader_create(const Dataset *dataset, LoaderPlan plan, Arena *arena);
/* Returns 0 where a hanging disk holds the thread: the dataset must then stay open until the process ends. */
int     loader_destroy(Loader *l);
/* The next micro-batch; valid until the call after `batches` more. *wait_ms (may be NULL) gets the time spent waiting for the
 * thread. */
Batch   loader_next(Loader *l, Stream *s, double *wait_ms);
/* Waits, ms at most, for all batches of a step, so that the step does not wait in its middle; returns whether they
 * came. */
int     loader_is_ready(Loader *l, double ms);
/* From here on as if made with this first_sample: to take a step's batches again, or to leave some out. */
void    loader_seek(Loader *l, int64_t first_sample);
/* T: a rank's tokens of a sample */
/* The same with another share of each step: of its micro-batches, in order, `count` from number `first` on. */
void    loader_share(Loader *l, int64_t first, int64_t count, int64_t first_sample);
size_t  loader_bytes(int64_t B, int64_t T, int64_t batches, int documents); /* arena bytes it will take, and of host memory: */
size_t  loader_host_bytes(int64_t B, int64_t T, int64_t micro_steps, int documents);

#endif
