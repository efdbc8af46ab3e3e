/* fragments.h - streaming (outer.stream; Streaming DiLoCo, arXiv 2501.18512): the model in fragments, which travel in
 * turns under compute. Where each lies, when its turn is, and one that comes from the ranks of an island. No sockets.
 *
 * A fragment is a range of global offsets (core/layout.h). Of F fragments number f is sent after step
 * ceil((f + 1) L / (F + A)) of a round of L steps, A = FRAGMENTS_AHEAD, or L - F where that is less. Its new x is taken
 * at the turn of number f + A at the latest, or at the round's end: F + A equal spells, the first without a fragment on
 * its way, and after the last turn as many as a fragment has. So nothing travels between two rounds.
 */
#ifndef TRAIN_GPT_RUN_OUTER_FRAGMENTS_H
#define TRAIN_GPT_RUN_OUTER_FRAGMENTS_H

#include <stdint.h>

enum { FRAGMENTS_AHEAD = 3 /* under way at a time: one goes up, one comes down, one waits */ };
enum { FRAGMENTS_MOST = 16, FRAGMENT_UNIT = 4096 /* its ends are multiples of it, but for the model's */ };

typedef struct { int64_t first, end; } Fragment; /* elements [first, end) */

/* F of a model of `elems` parameters and rounds of `every` steps: 1 to FRAGMENTS_MOST, a step of a spell at least. */
int      fragments_count(int64_t elems, int64_t every);
/* Number f of `count`; f == count: the whole model. */
Fragment fragment_of(int64_t elems, int count, int f);
/* Completed steps of a round of `steps` at its turn. */
int64_t  fragment_step(int64_t steps, int count, int f);
/* The part of it in [first, end); empty: first == end. */
Fragment fragment_within(Fragment of, int64_t first, int64_t end);

/* Values of a fragment that come from the ranks of an island; all zero: none. */
typedef struct {
    Fragment range;
    float   *values;    /* owned [range] */
    char    *said;      /* owned [ranks]: that have sent all of theirs */
    int      done;      /* ranks that have */
    int64_t  elems;     /* that have come */
    int64_t  tokens;    /* that the island has trained on since it sent this fragment last */
} Arriving;

/* 0: no memory. */
int  arriving_begin(Arriving *a, Fragment range, int ranks);
void arriving_forget(Arriving *a);
/* Returns 1: all ranks have said so, and all has come; 0: others are missing; -1: some of it never came. */
int  arriving_end(Arriving *a, int rank, int ranks);
/* It has been begun, and all ranks have said that theirs has come. */
int  arriving_is_whole(const Arriving *a, int ranks);

#endif
