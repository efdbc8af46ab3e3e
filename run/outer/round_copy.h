/* round_copy.h - a rank's host copy of x, the weights that a round began with, in an island (run/outer/island.h).
 *
 * x comes in pieces of the model's flat order, in ascending order, and each rank keeps the elements of the masters that
 * it updates. At the round's end a rank sends x - master of the runs that it would write to a checkpoint's file
 * (exchange.h): all ranks together send each element once.
 *
 * With outer.stream x changes by fragments (run/outer/fragments.h), and masters do not wait for it: when a fragment
 * leaves, x becomes the masters that it leaves with; when the server's x' comes, master += x' - x, and x = x'. So the
 * steps made meanwhile are kept, and are the next delta, which the server knows nothing of yet. Where x' comes as a
 * change of x (round_change.h), x is kept beside until then.
 *
 * Where deltas are sent in fewer bytes, what rounding took from each is kept, and joins the next one (error feedback).
 */
#ifndef TRAIN_GPT_RUN_OUTER_ROUND_COPY_H
#define TRAIN_GPT_RUN_OUTER_ROUND_COPY_H

#include "comm/frame.h"
#include "model/optimizer.h"
#include "run/checkpoint/exchange.h"
#include "run/outer/messages.h"

/* x - master, the gradients, or state k of the optimizer: SOURCE_STATE + k. */
typedef enum { SOURCE_DELTAS, SOURCE_GRADIENTS, SOURCE_STATE } RoundSource;

typedef struct {
    Optimizer *optimizer;  /* borrowed */
    Stream    *stream;     /* borrowed */
    FrameType  type;       /* of the deltas on their way */
    FileRuns   runs;       /* owned: what this rank sends */
    float     *x;          /* owned [shards_state_elems], from device_alloc_host: in the places of the masters */
    float     *delta;      /* x - master [runs.elems], in the order of runs; then room for a span that is exchanged */
    float     *rest;       /* what rounding took [runs.elems]; NULL: deltas are fp32 */
    float     *block;      /* [MESSAGE_ELEMS] outer.stream: masters on their way; else NULL */
    RoundSource source;    /* of which delta is made, while it is */
    int64_t   *taken;      /* owned [spans]: elements of each that have come */
} RoundCopy;

typedef enum { ROUND_WHOLE, ROUND_STREAMS } RoundUse;
RoundCopy round_copy_create(Optimizer *optimizer, Stream *stream, FrameType type, RoundUse use);
void      round_copy_destroy(RoundCopy *c);
size_t    round_copy_bytes(const Layout *layout, int zero_stage, FrameType type, RoundUse use); /* host memory it takes */

/* A new x: round_copy_begin, then all of [0, P) in pieces, then round_copy_publish: masters and working copies of all
 * ranks. Until then the model is as it was. begin and publish are collective. */
void round_copy_begin(RoundCopy *c);
void round_copy_take(RoundCopy *c, int64_t offset, const float *values, int64_t elems);
/* In its place: by how much the new x differs from the one that the copy holds. */
void round_copy_take_change(RoundCopy *c, int64_t offset, const float *values, int64_t elems);
void round_copy_publish(RoundCopy *c);
/* In its place: what has been taken becomes state k of the optimizer, and the copy of x is no more, until it is taken
 * again. */
void round_copy_put_state(RoundCopy *c, int k);

/* Collective. Computes this rank's deltas; returns the sum of their squares. */
double round_copy_subtract(RoundCopy *c);
/* The same with the gradients of the step that shards_finish has ended (send=gradients). */
double round_copy_gradients(RoundCopy *c);
/* The same with state k of the optimizer. It goes as it is: not by round_copy_pack. */
double round_copy_state(RoundCopy *c, int k);
/* Elements [at, at + elems) of them as a payload of c->type; elems <= FRAME_PAYLOAD_LIMIT / 4. Once each. */
void   round_copy_pack(RoundCopy *c, int64_t at, int64_t elems, void *payload);
/* Forgets what rounding took: the deltas that it belonged to did not count. */
void   round_copy_forget(RoundCopy *c);

/* ROUND_STREAMS. Collective: computes the fragment's deltas, in the places of round_copy_subtract's, then x = x - delta
 * there: the masters, as the server will see them. was [f]: x before, from f.first on; may be NULL. */
void round_copy_leave(RoundCopy *c, Fragment f, float *was);
/* The server's x of elements [offset, offset + elems), elems <= MESSAGE_ELEMS: masters keep the steps made since. was
 * [elems]: x before, and values are its change; NULL: they are x. */
void round_copy_return(RoundCopy *c, int64_t offset, const float *values, int64_t elems, const float *was);
/* Collective, after the last of them: masters to the working copies of all ranks. */
void round_copy_show(RoundCopy *c);

#endif
