/* round_copy.h - a rank's host copy of x, the weights that an island began a round with (run/outer/island.h).
 *
 * x arrives in chunks, in ascending order of the model's flat order. Each rank keeps the elements of the masters that
 * it updates. At the end of the round a rank sends x - master of the ranges that it would write to a checkpoint's file
 * (exchange.h). All ranks together send each element once.
 *
 * With outer.stream x changes by fragments (run/outer/fragments.h), and the masters do not wait for it. When a fragment
 * is sent, x becomes the masters at that moment. When the server's x' arrives, master += x' - x, and x = x'. So the
 * steps made meanwhile are kept and become the next delta; the server does not know them yet. If x' arrives as a change
 * of x (round_change.h), the x before is kept until then.
 *
 * If deltas are sent in fewer bytes, what rounding lost from each is kept and added to the next one (error feedback).
 */
#ifndef TRAIN_GPT_RUN_OUTER_ROUND_COPY_H
#define TRAIN_GPT_RUN_OUTER_ROUND_COPY_H

#include "comm/frame.h"
#include "model/optimizer.h"
#include "run/checkpoint/exchange.h"
#include "run/outer/messages.h"

/* What is sent: x - master, the gradients, or state k of the optimizer (SOURCE_STATE + k). */
typedef enum { SOURCE_DELTAS, SOURCE_GRADIENTS, SOURCE_STATE } RoundSource;

typedef struct {
    Optimizer *optimizer;  /* borrowed */
    Stream    *stream;     /* borrowed */
    FrameType  type;       /* type of the values of deltas in a frame */
    FileExtents   runs;       /* ranges of the model that this rank sends; owned */
    float     *x;          /* [shards_state_elems] x in the order of the masters, from device_alloc_host; owned */
    float     *delta;      /* [runs.elems] x - master in the order of runs, then a buffer to exchange a span */
    float     *rest;       /* [runs.elems] what rounding lost; NULL if deltas are fp32 */
    float     *block;      /* outer.stream: [MESSAGE_ELEMS] masters on their way; NULL without it */
    RoundSource source;    /* what delta is computed from at the moment */
    int64_t   *taken;      /* [spans] elements of each span that have arrived; owned */
} RoundCopy;

typedef enum { ROUND_WHOLE, ROUND_STREAMS } RoundUse;
RoundCopy round_copy_create(Optimizer *optimizer, Stream *stream, FrameType type, RoundUse use);
void      round_copy_destroy(RoundCopy *c);
size_t    round_copy_bytes(const Layout *layout, int zero_stage, FrameType type, RoundUse use); /* host memory */

/* Loads a new x: round_copy_begin, then round_copy_take for all of [0, P) in chunks, then round_copy_publish, which
 * writes the masters and working copies of all ranks. Until then the model is unchanged. begin and publish are
 * collective. */
void round_copy_begin(RoundCopy *c);
void round_copy_take(RoundCopy *c, int64_t offset, const float *values, int64_t elems);
/* Replaces round_copy_take if the values are the change from the x that the copy holds to the new one. */
void round_copy_take_change(RoundCopy *c, int64_t offset, const float *values, int64_t elems);
void round_copy_publish(RoundCopy *c);
/* Replaces round_copy_publish: writes what was taken to state k of the optimizer. The copy then holds no x until a new
 * one is taken. */
void round_copy_put_state(RoundCopy *c, int k);

/* Collective. Computes this rank's deltas. Returns the sum of their squares. */
double round_copy_subtract(RoundCopy *c);
/* Collective. Reads the gradients of the step that shards_finish has ended in place of deltas (send=gradients). Returns
 * the sum of their squares. */
double round_copy_gradients(RoundCopy *c);
/* Collective. Reads state k of the optimizer in place of deltas. It is sent unrounded, not through round_copy_pack. */
double round_copy_state(RoundCopy *c, int k);
/* Packs elements [at, at + elems) of the deltas as a payload of c->type. elems <= FRAME_PAYLOAD_LIMIT / 4. Each element
 * is packed once. */
void   round_copy_pack(RoundCopy *c, int64_t at, int64_t elems, void *payload);
/* Clears what rounding lost, because the deltas that it came from did not count. */
void   round_copy_forget(RoundCopy *c);

/* ROUND_STREAMS. Collective. Computes the deltas of the fragment, stored as by round_copy_subtract. Then x = x - delta
 * in the fragment: the masters as the server will see them. was [f] receives the x before, from f.first on; may be
 * NULL. */
void round_copy_leave(RoundCopy *c, Fragment f, float *was);
/* ROUND_STREAMS. Takes the server's x of elements [offset, offset + elems), elems <= MESSAGE_ELEMS. The masters keep
 * the steps made since. If was [elems] is not NULL, it is the x before, and values are the change of it. */
void round_copy_return(RoundCopy *c, int64_t offset, const float *values, int64_t elems, const float *was);
/* Collective, after the last chunk. Copies the masters to the working copies of all ranks. */
void round_copy_show(RoundCopy *c);

#endif
