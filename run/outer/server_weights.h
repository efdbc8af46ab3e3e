/* server_weights.h - a server's x and momentum, as ranges of elements in the model's flat order (core/layout.h).
 *
 * With one server they lie in the masters and states of an optimizer of one rank in host memory, as a checkpoint has
 * them: x in the masters, the outer momentum in m. v has zeros, or, with wait=none, the arrivals that wait for
 * momentum. With send=gradients m and v are AdamW's. With several servers each has a part; a follower's lies in one
 * block of memory.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_WEIGHTS_H
#define TRAIN_GPT_RUN_OUTER_SERVER_WEIGHTS_H

#include "model/optimizer.h"
#include "run/outer/fragments.h"
#include "run/outer/messages.h"
#include "run/outer/outer_rule.h"

/* The tensors of the weights, in the order of optimizer_tensor. */
typedef enum { WEIGHTS_X, WEIGHTS_MOMENTUM, WEIGHTS_WAITING, WEIGHTS_TENSORS } ServerTensor;

typedef struct {
    float  *at[WEIGHTS_TENSORS];   /* [elems] of each tensor; borrowed */
    int64_t offset, elems;         /* range of the model */
    int     decays;                /* 1 if AdamW's weight decay applies */
    float   rate;        /* factor of the learning rate in AdamW's step */
} WeightsRun;

typedef struct {
    int64_t     first, elems;      /* range of the model */
    WeightsRun *run;               /* [runs] adjacent ranges that together are [first, first + elems); owned */
    int         runs;              /* ranges in run */
} ServerWeights;

/* Returns the part [first, first + elems) of the model: in the optimizer's memory, or in memory [WEIGHTS_TENSORS,
 * elems]. The memory is borrowed. shards is of one rank, with or without memory. */
ServerWeights server_weights_of(const Optimizer *o, int64_t first, int64_t elems);
ServerWeights server_weights_in(const Shards *shards, int64_t first, int64_t elems, float *memory);
void          server_weights_destroy(ServerWeights *w);

/* Copies elements [offset, offset + elems) of a tensor to `to`, or from `from`. */
void server_weights_read(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, float *to);
void server_weights_write(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, const float *from);

/* Returns the range of the whole part. */
Fragment server_weights_all(const ServerWeights *w);
/* Applies the rule of the step (outer_rule.h; STEP_ADAMW: layers.h) to elements f of the part. d [f] begins at f.first.
 * Adds to *squares the squares of d (STEP_MEAN) or of the arrivals that wait in the whole part (STEP_MOMENTUM). squares
 * is NULL for the other rules. */
void server_weights_step(const ServerWeights *w, const Step *step, Fragment f, float *d, Exact *squares);
/* outer.stream: applies to the whole part steps that no fragment has sent (outer_rest). d [elems]. */
void server_weights_rest(const ServerWeights *w, const float *d, double share);

#endif
