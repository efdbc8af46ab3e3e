/* model.h - a whole model in memory: parameters and gradients, activations, optimizer, and the stream that computes
 * them. The same code makes it twice: first in a dry run that only computes sizes (`plan` prints them), then with real
 * memory. */
#ifndef TRAIN_GPT_MODEL_MODEL_H
#define TRAIN_GPT_MODEL_MODEL_H

#include "model/gpt.h"
#include "model/groups.h"
#include "model/optimizer.h"
#include "model/pipeline.h"

typedef struct {
    ShardsSpec shards;
    const OptimizerKind *optimizer;      /* kind of optimizer; NULL for a model that is not trained */
    OptimizerSettings optimizer_settings; /* settings that only some kinds of optimizer read           */
    int64_t    B, T;                     /* the largest micro-batch: B sequences of T tokens           */
    /* borrowed; ranks with other tokens of the same sequences, T divided by their number for each; NULL: one rank */
    Comm      *context;
    Comm      *experts;                  /* borrowed; ranks that divide the experts; NULL: each rank has all */
    /* the option moe.capacity: rows that the experts of a rank compute at once, as a multiple of an equal share; used
     * if ranks divide the experts */
    double     capacity;
    /* number of context ranks, 0 counts as 1, and index of this rank among them; in a plan, index of the planned
     * rank */
    int        context_ranks, context_rank;
    PipelineSpec pipeline;               /* stages and parts of the pipeline; 0 counts as 1            */
    Recompute  recompute;
    /* 1: batches may hold several documents, and a token attends only to tokens of its document */
    int        document_mask;
    OptimizerMemory offload;             /* place of the optimizer's memory: device or host            */
    MathMode   math;
    int        fp8;                      /* 1: products of blocks are in fp8 (model/precision.h) */
    /* used by model_dry; 1: sizes a step that scales each fp8 operand by its own maximum, as a first step does */
    int        fp8_casts;
    int        any_threads;              /* 1: results have equal bits for any number of threads (core/device.h) */
    /* used by model_dry: sizes activations as on the CPU, as on a GPU, or as this build does */
    GptSizes   sizes;
} ModelSpec;

typedef struct {
    size_t params, grads, optimizer, activations, scratch;
    /* with parallel.deterministic: number of buffers in `grads` besides the gradients themselves */
    int    gradient_buffers;
} ModelBytes;

typedef struct {
    ModelSpec  spec;
    ModelBytes bytes;
    Arena      params_arena, grads_arena, optimizer_arena, activations_arena;
    Shards    *shards;                   /* owned: parameters and gradients of this rank */
    StepSums   sums;
    Gpt        gpt;
    Pipeline   pipeline;
    Optimizer  optimizer;
    Stream     stream;
} Model;

/* Fills a spec with the groups of ranks, and with the index of this rank in each of them. */
void       model_take_groups(ModelSpec *spec, const Groups *groups);

/* Returns the sizes of a model by a dry run of its own code: a step of `micro_batches`; for the scratch memory also the
 * smaller batches of evaluation and the lengths of sampling. With micro_batches 0 there is no step. Allocates only
 * tables. spec.shards.comm may be NULL, because spec.shards.ranks is used. Adds the operations and costs of the step to
 * *step, which may be NULL. If step->is_elsewhere, only the step is sized and run. */
ModelBytes model_dry(ModelSpec spec, int64_t micro_batches, Ledger *step);
/* Returns the layout of the parameters on the rank that the spec describes. */
Layout     model_spec_layout(const ModelSpec *spec);
/* Returns how many sequences the next forward of an evaluation takes if `left` sequences remain, left > 0. It is B, or
 * a smaller size for which model_dry has measured the scratch memory: 1 to 64, and the powers of two. */
int64_t    model_batch(int64_t B, int64_t left);
/* Makes a model: allocates its memory. Exits with 71 if there is not enough. From now on collectives of the ranks of
 * spec.shards.comm, if it is set, follow the model's stream. */
Model     *model_create(ModelSpec spec);
void       model_destroy(Model *m);      /* frees a model; does nothing if m is NULL */

/* Sets the first values of masters and weights. Each rank draws the values that it updates, as a function of seed and
 * of the place of the element in files (global offset). ticks(ctx) is called after each part of a parameter; ticks may
 * be NULL. */
void       masters_init(Optimizer *o, Stream *s, uint64_t seed, void (*ticks)(void *ctx), void *ctx);

#endif
