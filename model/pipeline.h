/* pipeline.h - a step's, or an evaluation's, micro-batches through the stages of a pipeline: runs a stage's work list
 * (model/work.h) over its parts of the model (model/gpt.h). Without a pipeline the one stage has the whole model.
 *
 * The stream goes from stage to stage in forward, its gradient in backward, a message for each part and micro-batch. The
 * message of the next work is awaited while this one is computed, and this one's leaves while the next is.
 */
#ifndef TRAIN_GPT_MODEL_PIPELINE_H
#define TRAIN_GPT_MODEL_PIPELINE_H

#include "model/gpt.h"
#include "model/work.h"

typedef struct {
    int     stages, stage, parts; /* parts: of this stage, parallel.interleave                   */
    int64_t micro_batches;        /* of a step, on each stage; may be more at a call             */
    /* borrowed, of model/groups.h */
    Comm   *all, *forward_in, *forward_out, *backward_in, *backward_out;
} PipelineSpec;

typedef struct {
    PipelineSpec spec;
    Gpt      *gpt;                /* borrowed */
    WorkList  list;               /* owned: of a step */
} Pipeline;

/* The stage's blocks, [parts], malloc'ed; and the buckets that it holds, [n_layer + 2], malloc'ed. */
GptPartSpec *pipeline_parts(ModelShape shape, PipelineSpec spec);
BucketHold  *pipeline_holds(ModelShape shape, PipelineSpec spec);
/* For each stage the first one whose parts have as many blocks, and as its ends have: [stages], malloc'ed. */
int *pipeline_alike(ModelShape shape, PipelineSpec spec);
/* Micro-batches whose tokens are kept: batch number n of a step in place n modulo this. */
int64_t pipeline_batches(PipelineSpec spec);

Pipeline pipeline_create(PipelineSpec spec, Gpt *gpt);
void     pipeline_destroy(Pipeline *p);
/* Makes the graphs of all blocks, and loads their kernels, by forwards and backwards of this rank alone. A GPU may make or load one only
 * once everything that is queued has ended. In a step that can be a message that another rank has not sent yet, so both are done before the
 * first step. Afterwards the gradients hold no result. */
void     pipeline_warm_up(Pipeline *p, Stream *s, Batch batch);

/* From the next step on; without stages only, which would keep other tapes. */
void     pipeline_set_micro_batches(Pipeline *p, int64_t micro_batches);

/* A step: next(ctx) is called once for each micro-batch, in order, when its forward begins, and each batch stays as long
 * as pipeline_batches says. grad_scale as in gpt_backward. */
void pipeline_step(Pipeline *p, Stream *s, float grad_scale, Batch (*next)(void *ctx), void *ctx);
/* One batch through all parts, forward alone; the last stage has the result. All stages call it together. */
void pipeline_forward(Pipeline *p, Stream *s, Batch batch);
void pipeline_loss(Pipeline *p, Stream *s, Batch batch);                                     /* as gpt_loss   */
/* As gpt_token_losses; returns 1 on the last stage, else 0 and out is as it was. */
int  pipeline_token_losses(Pipeline *p, Stream *s, Batch batch, float *out);
void pipeline_logits(Pipeline *p, Stream *s, Batch batch, int64_t row, float *out); /* as gpt_logits, on every stage */
/* Forward of gpt_token_rows tokens of one sequence after `past` others, which earlier calls have gone through; then the
 * last one's logits. The model has to keep these others (gpt_keeps_past). */
void pipeline_token_logits(Pipeline *p, Stream *s, Batch batch, int64_t past, float *out);

#endif
