/* round_change.h - weights on their way down in fewer bytes (outer.compress with wait=all). The server sends the
 * rounded change of x in a round to islands that hold the x before it.
 *
 * Server and islands hold the same x, to the bit: each adds the same rounded change to it. The server keeps the
 * rounding error and adds it to the next change (error feedback, as in round_copy.h). An island that lacks the x of the
 * round before fetches all of x. A checkpoint does not hold the rounding error. After a resume the error is zero.
 *
 * A change is stored in blocks of INT8_BLOCK elements, from the first element of the part on. A frame of it is whole
 * blocks, or ends at the end of the part. With outer.stream each fragment changes when all islands have sent it. This
 * file uses no sockets.
 */
#ifndef TRAIN_GPT_RUN_OUTER_ROUND_CHANGE_H
#define TRAIN_GPT_RUN_OUTER_ROUND_CHANGE_H

#include "run/config/config.h"
#include "run/outer/server_weights.h"

typedef struct {
    FrameType type;          /* type of the values; FRAME_F32 if no changes are kept, and the fields below are unused */
    int64_t   first, elems;  /* range of the model that this server has */
    int64_t   round;         /* the round that the last change leads to; -1 if there was none */
    float    *rest;          /* [elems] what rounding has kept from x. Between begin and end: x before the step.
                              * Owned */
    char     *packed;        /* the blocks of the change, one after another; owned */
} RoundChange;

/* Returns the type of the values of deltas, and of changes if the server keeps them. */
FrameType   round_change_type(const Config *c);
/* Returns 1 if the server keeps changes. With wait=none the islands do not begin with one x, so it returns 0
 * (held_weights.h). */
int         round_change_is_kept(const Config *c);
size_t      round_change_bytes(const Config *c, size_t elems);
RoundChange round_change_create(const Config *c, const ServerWeights *w);
void        round_change_destroy(RoundChange *c);

/* Calls before and after the step that makes a new x of the whole part, or of a fragment that begins with a block.
 * After the second call x is the old x plus the rounded change of round `round`. */
void round_change_begin(RoundChange *c, const ServerWeights *w, Fragment f);
void round_change_end(RoundChange *c, const ServerWeights *w, Fragment f, int64_t round);

/* Adds x -= share * d to the next change of the whole part. d [elems]. Changes must be kept. */
void round_change_owe(RoundChange *c, const float *d, double share);
/* Adds to x what the rounding kept from it, when no island holds x any more. */
void round_change_settle(RoundChange *c, const ServerWeights *w);

/* Returns the payload of a frame of these elements, or NULL if they are not whole blocks. */
const void *round_change_frame(const RoundChange *c, int64_t offset, int64_t elems);

/* Adds a change to x, on both sides. It computes in fp32, so that both have the same bits. */
void round_change_add(float *x, const float *change, int64_t elems);

#endif
