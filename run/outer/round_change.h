/* round_change.h - the way down in fewer bytes (outer.compress; wait=all): by how much a round has changed x, rounded,
 * for islands that hold the x before.
 *
 * The server's x is what islands hold: it moves by the rounded change, and what rounding took is kept and joins the next
 * change (error feedback, as in round_copy.h). An island adds the same numbers to the same x, so both have the same
 * bits. Whoever has no x of the round before fetches all of x. The rest is not in a checkpoint: it begins with zeros.
 *
 * A change lies ready in blocks of INT8_BLOCK elements from the part's first one on: a frame of it is whole blocks, or
 * goes to the part's end. With outer.stream each fragment changes at its turn. No sockets.
 */
#ifndef TRAIN_GPT_RUN_OUTER_ROUND_CHANGE_H
#define TRAIN_GPT_RUN_OUTER_ROUND_CHANGE_H

#include "run/config/config.h"
#include "run/outer/server_weights.h"

typedef struct {
    FrameType type;          /* FRAME_F32: there are no changes, and nothing below is */
    int64_t   first, elems;  /* of the part */
    int64_t   round;         /* that the last change leads to; -1: there was none */
    float    *rest;          /* owned [elems]: what x lacks: what rounding took; while x changes, x as it was */
    char     *packed;        /* owned: the blocks, one after another */
} RoundChange;

/* The values' type on the way up, and where the server's config has it, down. */
FrameType   round_change_type(const Config *c);
/* 0 in rounds whose islands do not begin with one x (wait=none: held_weights.h). */
int         round_change_is_kept(const Config *c);
size_t      round_change_bytes(const Config *c, size_t elems);
RoundChange round_change_create(const Config *c, const ServerWeights *w);
void        round_change_destroy(RoundChange *c);

/* Around the step that makes a new x of all of the part, or of a fragment, which begins with a block: then x is the old
 * one and the rounded change, of round `round`. */
void round_change_begin(RoundChange *c, const ServerWeights *w, Fragment f);
void round_change_end(RoundChange *c, const ServerWeights *w, Fragment f, int64_t round);

/* Where changes are kept: x -= share * d with the next change, of all of the part. d: [elems] */
void round_change_owe(RoundChange *c, const float *d, double share);
/* x has what it lacks, when no island holds it any more. */
void round_change_settle(RoundChange *c, const ServerWeights *w);

/* The payload of a frame of these elements; NULL: they are no whole blocks. */
const void *round_change_frame(const RoundChange *c, int64_t offset, int64_t elems);

/* What both sides do with a change: x += change. In fp32, so that both have the same bits. */
void round_change_add(float *x, const float *change, int64_t elems);

#endif
