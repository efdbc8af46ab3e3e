/* island_state.h - what the files of an island share: island.c makes it and goes through rounds, island_moments.c gives
 * and takes moments. Nobody else includes this.
 */
#ifndef TRAIN_GPT_RUN_OUTER_ISLAND_STATE_H
#define TRAIN_GPT_RUN_OUTER_ISLAND_STATE_H

#include "run/checkpoint/manifest.h"
#include "run/outer/island.h"
#include "run/outer/island_link.h"

#ifdef __cplusplus
extern "C" {
#endif

struct Island {
    IslandParts    parts;
    Key            key;
    Link           link;
    RoundCopy      copy;
    int            has_lease, is_over; /* steps of this round may be sent; the server has no more rounds */
    int64_t        used;               /* samples of the lease that the server knows of */
    int64_t        updates;            /* that the moments have seen */
    int64_t        gift;               /* the same of those taken since the last join or exchange; 0: none */
    IslandExchange ended;
    char           lost[MANIFEST_FAULT_BYTES];
};

typedef enum {
    MET,
    STOPPED,                           /* a rank is asked to stop */
    BROKEN,                            /* a rank's connection is */
    LATER                              /* the lease is taken back, and another will come */
} Awaited;

/* --- island.c ----------------------------------------------------------------------------------------------------- */

/* Collective. Until every rank's link is_ready, one breaks, or a rank is asked to stop. */
Awaited island_await(Island *s, int (*is_ready)(const Link *));
/* Collective. All of x (GET), m (GET_M) or v (GET_V) to the round's copy: each piece comes to one rank, and from there
 * to all. */
Awaited island_fetch(Island *s, MessageKind get, int64_t round);

/* --- island_moments.c --------------------------------------------------------------------------------------------- */

/* It has none of its own, and outer.moments is "peer". */
int     island_wants_moments(const Island *s);
/* Collective, after an OPEN that says so. The second returns LATER where another island is to be asked. */
Awaited island_give_moments(Island *s);
Awaited island_take_moments(Island *s);

#ifdef __cplusplus
}
#endif
#endif
