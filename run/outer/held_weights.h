/* held_weights.h - the server's record of the weights that one island holds (outer.wait=none with outer.compress).
 *
 * Each island's weights have a different age, so the server keeps what it has sent to each island. First it sends all
 * of x. After that it sends change = rounded(x - held) and computes held += change. The island adds the same change to
 * the same numbers, so both have the same bits. The error of a rounding stays in x - held, so the next change contains
 * it (error feedback). The server does not round x itself.
 *
 * The memory is allocated at the first GET of an island whose config has outer.compress, too. This file uses no
 * sockets.
 */
#ifndef TRAIN_GPT_RUN_OUTER_HELD_WEIGHTS_H
#define TRAIN_GPT_RUN_OUTER_HELD_WEIGHTS_H

#include "run/config/config.h"
#include "run/outer/messages.h"

typedef struct {
    FrameType type;          /* type of the values of a change */
    int64_t   first, elems;  /* range of the model that this server holds */
    int64_t   fetched;       /* elements of x that were sent, each counted once */
    float    *x;             /* [elems] x as the island holds it; owned. NULL if nothing is recorded: the fields above
                              * mean nothing */
} HeldWeights;

/* Returns the type of the values of a change, or FRAME_F32 if islands do not fetch changes of this kind. */
FrameType held_type(const Config *c);
size_t    held_bytes(const Config *c, size_t elems); /* Returns the bytes of the record of one island. */

/* Begins an empty record of the server's part. Returns 0 if there is no memory. */
int  held_begin(HeldWeights *h, FrameType type, Fragment part);
void held_forget(HeldWeights *h);

/* Records that these elements of x were sent unchanged. */
void held_fetch(HeldWeights *h, int64_t offset, const float *x, int64_t elems);
int  held_is_whole(const HeldWeights *h);
/* Writes the change of these elements of x to payload [frame_value_bytes] and records it. Overwrites x [elems]. */
void held_change(HeldWeights *h, int64_t offset, float *x, int64_t elems, void *payload);

#endif
