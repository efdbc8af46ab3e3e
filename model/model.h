/* model.h - a whole model in memory: shards, activations, optimizer, and the stream they run on. Made twice from one
 * text: dry, to learn its sizes (`plan` prints them), and for real.
 */
#ifndef TRAIN_GPT_MODEL_MODEL_H
#define TRAIN_GPT_MODEL_MODEL_H

#include "model/gpt.h"
#include "model/groups.h"
#include "model/optimizer.h"
#include "model/pipeline.h"

typedef struct {
    ShardsSpec shards;
    const OptimizerKind *optimizer;      /* NULL for inference                                         */
    MuonSettings muon;                   /* where it is Muon                                           */
    int64_t    B, T;                     /* the largest micro-batch: B sequences of T tokens           */
    Comm      *context;                  /* borrowed; ranks with other tokens of the same sequences, T/ranks each; NULL: there is one */
    Comm      *experts;                  /* borrowed; ranks that divide the experts; NULL: each has all */
    double     capacity;                 /* moe.capacity, of such ranks                                */
    int        context_ranks, context_rank; /* of it, 0 counts as 1; or of those that a plan is for    */
    PipelineSpec pipeline;               /* stages and parts 0 count as 1                              */
    Recompute  recompute;
    int        document_mask;            /* batches may hold several documents (GptSpec)               */
    OptimizerMemory offload;             /* where the optimizer's memory is                            */
    MathMode   math;
    int        fp8;                      /* the blocks' products (model/fp8.h)                         */
    int        fp8_casts;                /* model_dry: a step that casts all they multiply, as a first step does */
    int        any_threads;              /* the same bits for any number of threads (core/device.h)    */
    GptSizes   sizes;                    /* model_dry: of activations (GptSpec)                        */
} ModelSpec;

typedef struct {
    size_t params, grads, optimizer, activations, scratch;
    int    gradient_buffers;             /* parallel.deterministic: of grads, so many beside the gradients themselves */
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

/* Sizes and costs, by a dry run of the model's own code: a step of `micro_batches`, and for the scratch also
 * evaluation's smaller batches and sampling's lengths. Allocates only tables. spec.shards.comm need not be there:
 * spec.shards.ranks counts. Adds the step's operations to *step, which may be NULL. One that is_elsewhere sizes and
 * runs the step alone; micro_batches 0: no step. */
ModelBytes model_dry(ModelSpec spec, int64_t micro_batches, Ledger *step);
/* The layout of a rank's weights. */
Layout     model_spec_layout(const ModelSpec *spec);
/* Returns the number of sequences of the next forward batch where `left` sequences remain: B, or a smaller size that the
 * scratch was measured for. These are 1 to 64, and the powers of two. left > 0. */
int64_t    model_batch(int64_t B, int64_t left);
/* Takes memory: exit 71 where there is none. With a comm, its collectives follow the stream from now on. */
Model     *model_create(ModelSpec spec);
void       model_destroy(Model *m);      /* NULL: nothing */

/* First weights: each rank draws those it updates, a function of (seed, global offset). ticks(ctx), which may be NULL,
 * is called now and then. */
void       model_init_weights(Model *m, uint64_t seed, void (*ticks)(void *ctx), void *ctx);
/* The same of masters that no model is made for. */
void       masters_init(Optimizer *o, Stream *s, uint64_t seed, void (*ticks)(void *ctx), void *ctx);

#endif
