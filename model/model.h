/* model.h - a whole model in memory: shards, activations, optimizer, and the stream they run on. The same code makes it
 * twice: in a dry run, to compute its sizes (`plan` prints them), and for real.
 */
#ifndef TRAIN_GPT_MODEL_MODEL_H
#define TRAIN_GPT_MODEL_MODEL_H

#include "model/gpt.h"
#include "model/groups.h"
#include "model/optimizer.h"
#include "model/pipeline.h"

typedef struct {
    ShardsSpec shards;
    const OptimizerKind *optimizer;      /* kind of optimizer; NULL for inference                      */
    OptimizerSettings optimizer_settings; /* settings that only some kinds of optimizer read           */
    int64_t    B, T;                     /* the largest micro-batch: B sequences of T tokens           */
    /* borrowed; ranks with other tokens of the same sequences, T/ranks each; NULL: one rank */
    Comm      *context;
    Comm      *experts;                  /* borrowed; ranks that divide the experts; NULL: each rank has all */
    double     capacity;                 /* moe.capacity; used if ranks divide the experts             */
    /* number of context ranks, 0 counts as 1, and the index of this rank; in a plan, those of the planned rank */
    int        context_ranks, context_rank;
    PipelineSpec pipeline;               /* stages and parts of the pipeline; 0 counts as 1            */
    Recompute  recompute;
    /* 1: batches may hold several documents; attention stays inside each (GptSpec) */
    int        document_mask;
    OptimizerMemory offload;             /* place of the optimizer's memory: device or host            */
    MathMode   math;
    int        fp8;                      /* 1: products of blocks are in fp8 (model/precision.h)             */
    /* model_dry: 1: measures a step that scales each fp8 operand by its own maximum, as a first step does */
    int        fp8_casts;
    int        any_threads;              /* 1: results have equal bits for any number of threads (core/device.h) */
    /* model_dry: whether activations are sized as on the CPU, on a GPU, or in this build (GptSpec) */
    GptSizes   sizes;
} ModelSpec;

typedef struct {
    size_t params, grads, optimizer, activations, scratch;
    /* parallel.deterministic: buffers in grads, not counting the gradients themselves */
    int    gradient_buffers;
} ModelBytes;

typedef struct {
    ModelSpec  spec;
    ModelBytes bytes;
    Arena      params_arena, grads_arena, optimizer_arena, activations_arena;
    Shards    *shards;                   /* owned */
    StepSums   sums;
    Gpt        gpt;
    Pipeline   pipeline;
    Optimizer  optimizer;
    Stream     stream;
} Model;

/* Sets the communicators of a spec, and this rank's places in them. */
void       model_take_groups(ModelSpec *spec, const Groups *groups);

/* Returns the sizes of a model by a dry run of its own code: a step of `micro_batches`, and for the scratch memory also
 * the smaller batches of evaluation and the lengths of sampling. micro_batches 0: no step. Allocates only tables.
 * spec.shards.comm may be NULL; spec.shards.ranks is used. Adds the step's operations and costs to *step, which may be
 * NULL. If step->is_elsewhere, only the step is sized and run. */
ModelBytes model_dry(ModelSpec spec, int64_t micro_batches, Ledger *step);
/* Returns the layout of a rank's weights. */
Layout     model_spec_layout(const ModelSpec *spec);
/* Returns the number of sequences of the next forward batch if `left` sequences remain, left > 0. It is B, or a smaller
 * size for which model_dry has measured the scratch memory: 1 to 64, and the powers of two. */
int64_t    model_batch(int64_t B, int64_t left);
/* Makes a model. Exits with 71 if there is not enough memory. Collectives of spec.shards.comm, if it is set, follow the
 * model's stream from now on. */
Model     *model_create(ModelSpec spec);
void       model_destroy(Model *m);      /* frees a model; does nothing if m is NULL */

/* Sets the first values of masters and weights. Each rank draws those that it updates, as a function of (seed, global
 * offset). ticks, which may be NULL, is called with ctx after each part of a parameter. */
void       masters_init(Optimizer *o, Stream *s, uint64_t seed, void (*ticks)(void *ctx), void *ctx);

#endif
