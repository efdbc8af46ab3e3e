/* server_weights.h - a server's x and momentum, as runs of elements in the model's flat order (core/layout.h). With one
 * server they lie in the masters and states of an optimizer of one rank in host memory, as a checkpoint has them: x the
 * masters, m the outer momentum, v zeros, or between two arrivals of wait=none what waits for momentum. With
 * send=gradients m and v are AdamW's. Of several servers each has a part; a follower's lies in one block of memory.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_WEIGHTS_H
#define TRAIN_GPT_RUN_OUTER_SERVER_WEIGHTS_H

#include "model/optimizer.h"
#include "run/outer/fragments.h"
#include "run/outer/messages.h"
#include "run/outer/outer_rule.h"

/* As optimizer_tensor counts. */
typedef enum { WEIGHTS_X, WEIGHTS_MOMENTUM, WEIGHTS_WAITING, WEIGHTS_TENSORS } ServerTensor;

typedef struct {
    float  *at[WEIGHTS_TENSORS];   /* borrowed */
    int64_t offset, elems;         /* in the model */
    int     decays;
    float   rate;        /* of the learning rate of AdamW's step */
} WeightsRun;

typedef struct {
    int64_t     first, elems;      /* of the model */
    WeightsRun *run;               /* owned [runs]: one after another, all of [first, first + elems) */
    int         runs;
} ServerWeights;

/* The part [first, first + elems) of the model: an optimizer's, or in memory [WEIGHTS_TENSORS, elems], borrowed. shards:
 * of one rank, with or without memory. */
ServerWeights server_weights_of(const Optimizer *o, int64_t first, int64_t elems);
ServerWeights server_weights_in(const Shards *shards, int64_t first, int64_t elems, float *memory);
void          server_weights_destroy(ServerWeights *w);

/* Elements [offset, offset + elems) to `to`, and from `from`. */
void server_weights_read(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, float *to);
void server_weights_write(const ServerWeights *w, ServerTensor which, int64_t offset, int64_t elems, const float *from);

/* All that it has. */
Fragment server_weights_all(const ServerWeights *w);
/* The rule of the step (outer_rule.h; STEP_ADAMW: layers.h) over the elements f of the part. d [f]: from f.first on.
 * *squares += of d (STEP_MEAN), or of what had waited in the whole part (STEP_MOMENTUM); NULL for the other rules. */
void server_weights_step(const ServerWeights *w, const Step *step, Fragment f, float *d, Exact *squares);
/* outer.stream: steps that came in no turn, of the whole part (outer_rest). d [elems]. */
void server_weights_rest(const ServerWeights *w, const float *d, double share);

#endif
