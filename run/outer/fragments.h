/* fragments.h - streaming (outer.stream; Streaming DiLoCo, arXiv 2501.18512): the model is cut into fragments, which
 * travel one after another while the islands train. This file computes where each fragment lies and when it is sent. It
 * also collects a fragment that arrives from the ranks of an island. It uses no sockets.
 *
 * A fragment is a range of global offsets (core/layout.h). With F fragments and rounds of L steps, fragment f is sent
 * after step ceil((f + 1) L / (F + A)) of the round. A is FRAGMENTS_AHEAD, or L - F if that is less, and at least 1.
 * The island takes the new x of fragment f no later than at the send of fragment f + FRAGMENTS_AHEAD, or at the end of
 * the round. The round has F + A spells of equal length. No fragment travels in the first spell. The last fragment has
 * A spells to return in, so nothing travels between two rounds.
 */
#ifndef TRAIN_GPT_RUN_OUTER_FRAGMENTS_H
#define TRAIN_GPT_RUN_OUTER_FRAGMENTS_H

#include <stdint.h>

enum { FRAGMENTS_AHEAD = 3 /* fragments that travel at a time: one up, one down, one waiting */ };
enum { FRAGMENTS_MOST = 16, FRAGMENT_UNIT = 4096 /* fragments end at multiples of it, or with the model */ };

typedef struct { int64_t first, end; } Fragment; /* a range of global offsets: elements [first, end) */

/* Returns F, the number of fragments of a model of `elems` parameters with rounds of `every` steps. F is from 1 to
 * FRAGMENTS_MOST, and each spell has at least one step. */
int      fragments_count(int64_t elems, int64_t every);
/* Returns fragment f of `count`, or the whole model if f == count. */
Fragment fragment_of(int64_t elems, int count, int f);
/* Returns after how many steps of a round of `steps` fragment f is sent. */
int64_t  fragment_step(int64_t steps, int count, int f);
/* Returns the overlap of `of` with [first, end). In an empty overlap first == end. */
Fragment fragment_within(Fragment of, int64_t first, int64_t end);

/* Values of one fragment, collected from the ranks of an island. All fields are zero while no fragment is expected. */
typedef struct {
    Fragment range;     /* the fragment; elements [first, end) of the model */
    float   *values;    /* [range] values received so far; owned */
    char    *said;      /* [ranks] 1 for each rank that has sent all its values; owned */
    int      done;      /* number of ranks that have sent all their values */
    int64_t  elems;     /* number of values received */
    int64_t  tokens;    /* tokens that the island has trained on since it last sent this fragment */
} Arriving;

/* Allocates the buffers for a fragment. Returns 0 if there is no memory. */
int  arriving_begin(Arriving *a, Fragment range, int ranks);
void arriving_forget(Arriving *a);
/* Records that `rank` has sent all its values. Returns 1 if every rank has and the fragment is complete, 0 if ranks are
 * missing, -1 if every rank has and values are missing. */
int  arriving_end(Arriving *a, int rank, int ranks);
/* Returns 1 if the fragment was begun and every rank has sent all its values. */
int  arriving_is_whole(const Arriving *a, int ranks);

#endif
