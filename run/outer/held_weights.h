/* held_weights.h - outer.wait=none with outer.compress: x as one island holds it, kept by the server.
 *
 * Each island's weights have an age of their own. So the server keeps what it has sent to each: first all of x, then
 * change = rounded(x - held), held += change. The island adds the same change to the same numbers, so both have the
 * same bits. The error of a rounding stays in x - held, so the next change contains it (error feedback). The server does not
 * round x itself.
 *
 * Memory is taken with the first GET of an island that has outer.compress, too. No sockets.
 */
#ifndef TRAIN_GPT_RUN_OUTER_HELD_WEIGHTS_H
#define TRAIN_GPT_RUN_OUTER_HELD_WEIGHTS_H

#include "run/config/config.h"
#include "run/outer/messages.h"

typedef struct {
    FrameType type;          /* of the changes */
    int64_t   first, elems;  /* of the server's part */
    int64_t   fetched;       /* elements of x that have gone, each counted once */
    float    *x;             /* owned [elems]; NULL: nothing is kept, and nothing above is */
} HeldWeights;

/* FRAME_F32: islands do not fetch such changes. */
FrameType held_type(const Config *c);
size_t    held_bytes(const Config *c, size_t elems); /* of one island */

/* Returns 0 without memory. */
int  held_begin(HeldWeights *h, FrameType type, Fragment part);
void held_forget(HeldWeights *h);

/* These elements of x go to the island as they are. */
void held_fetch(HeldWeights *h, int64_t offset, const float *x, int64_t elems);
int  held_is_whole(const HeldWeights *h);
/* These elements of x go as a change: payload [frame_value_bytes]. x [elems] is used up. */
void held_change(HeldWeights *h, int64_t offset, float *x, int64_t elems, void *payload);

#endif
