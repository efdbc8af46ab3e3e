/* round_copy.h - a rank's host copy of x, the weights that an island began a round with (run/outer/island.h).
 *
 * x arrives in chunks, in ascending order of the model's flat order. Each rank keeps the elements of the masters that
 * it updates. At the end of the round a rank sends x - master of the ranges that it would write to a checkpoint's file
 * (exchange.h). All ranks together send each element once.
 *
 * If deltas are sent in fewer bytes, what rounding lost from each is kept and added to the next one (error feedback).
 */
#ifndef TRAIN_GPT_RUN_OUTER_ROUND_COPY_H
#define TRAIN_GPT_RUN_OUTER_ROUND_COPY_H

#include "comm/frame.h"
#include "model/optimizer.h"
#include "run/checkpoint/exchange.h"
#include "run/config/config.h"

typedef struct {
    Optimizer *optimizer;  /* borrowed */
    Stream    *stream;     /* borrowed */
    FrameType  type;       /* type of the values of deltas in a frame */
    FileRuns   runs;       /* ranges of the model that this rank sends; owned */
    float     *x;          /* [shards_state_elems] x in the order of the masters, from device_alloc_host; owned */
    float     *delta;      /* [runs.elems] x - master in the order of runs, then a buffer to exchange a span */
    float     *rest;       /* [runs.elems] what rounding lost; NULL if deltas are fp32 */
    int64_t   *taken;      /* [spans] elements of each span that have arrived; owned */
} RoundCopy;

RoundCopy round_copy_create(Optimizer *optimizer, Stream *stream, FrameType type);
void      round_copy_destroy(RoundCopy *c);
size_t    round_copy_bytes(const Layout *layout, int zero_stage, FrameType type); /* host memory */

/* Loads a new x: round_copy_begin, then round_copy_take for all of [0, P) in chunks, then round_copy_publish, which
 * writes the masters and working copies of all ranks. Until then the model is unchanged. begin and publish are
 * collective. */
typedef enum { ROUND_X, ROUND_CHANGE } RoundValues; /* the new x; its change from the x that the copy holds */
void round_copy_begin(RoundCopy *c);
void round_copy_take(RoundCopy *c, RoundValues kind, int64_t offset, const float *values, int64_t elems);
void round_copy_publish(RoundCopy *c);

/* Collective. Fills `delta`: with x - master, or with the gradients of the step that shards_finish has ended
 * (send=gradients). Returns the sum of the squares of what this rank sends. */
double round_copy_gather(RoundCopy *c, OuterSend send);
/* Packs elements [at, at + elems) of the deltas as a payload of c->type. elems <= FRAME_PAYLOAD_LIMIT / 4. Each element
 * is packed once. */
void   round_copy_pack(RoundCopy *c, int64_t at, int64_t elems, void *payload);
/* Clears what rounding lost, because the deltas that it came from did not count. */
void   round_copy_forget(RoundCopy *c);

#endif
