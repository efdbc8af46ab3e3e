/* island_state.h - what the files of an island share: island.c joins, exchanges rounds and leaves, island_turns.c
 * exchanges fragments in between, island_moments.c gives and takes moments. Nobody else includes this.
 */
#ifndef TRAIN_GPT_RUN_OUTER_ISLAND_STATE_H
#define TRAIN_GPT_RUN_OUTER_ISLAND_STATE_H

#include "run/checkpoint/checkpoint_folders.h"
#include "run/outer/island.h"
#include "run/outer/link_pump.h"

/* outer.stream: there is one server. */
typedef struct {
    int      is_on;                  /* outer.stream is true: else nothing below is */
    int      count, next;            /* fragments; the one whose turn is next in this round */
    int      has_rest;               /* steps that no turn has sent may be in the masters */
    int64_t  tokens;                 /* of this island's rounds that are over, since it joined */
    int64_t  sent_at[FRAGMENTS_MOST]; /* such tokens, and its round's, when each was sent last */
    int64_t  before[2];              /* bytes when the round began: sent, received */
    double   waited_ms;              /* of this round */
    float   *store[LINK_TURNS];      /* owned: this rank's pieces of the new x of the fragments under way, or of its change */
    float   *was[LINK_TURNS];        /* owned: outer.compress: x of the fragments under way before; else NULL */
    LinkPump pump;
} IslandTurns;

struct Island {
    IslandParts    parts;
    Key            key;
    Link          *link;               /* owned [links]: one to each server, of which the first leads */
    int            links;
    RoundCopy      copy;
    int            has_lease, is_over; /* steps of this round may be sent; the server has no more rounds */
    int64_t        used;               /* samples of the lease that the server knows of */
    int64_t        updates;            /* that the moments have seen */
    int64_t        peer_updates;       /* the same of those taken since the last join or exchange; 0: none */
    IslandExchange ended;
    IslandTurns    turns;
    char           lost[MANIFEST_FAULT_BYTES];
};

typedef enum {
    MET,
    STOPPED,                           /* a rank is asked to stop */
    BROKEN,                            /* a rank's connection is */
    LATER                              /* the lease is taken back, and another will come */
} Awaited;

/* --- island.c ----------------------------------------------------------------------------------------------------- */

/* Collective, while the pump is off. Until every link of every rank is_ready, one breaks, or where it may_stop a rank
 * is asked to. */
Awaited island_await(Island *s, int (*is_ready)(const Link *), int may_stop);
int     island_has_sent(const Link *l);
/* Collective. All parts of x (GET), m (GET_M) or v (GET_V) to the round's copy; GET_CHANGE: x from servers that have no
 * changes. */
Awaited island_fetch(Island *s, MessageKind get, int64_t round);
/* Bytes up and down so far, of all ranks: collective. */
void    island_count_bytes(Island *s, int64_t bytes[2]);

/* --- island_moments.c --------------------------------------------------------------------------------------------- */

/* It has none of its own, and outer.moments is "peer". */
int     island_wants_moments(const Island *s);
/* Collective, after an OPEN that says so. The second returns LATER where another island is to be asked. */
Awaited island_give_moments(Island *s);
Awaited island_take_moments(Island *s);

/* --- island_turns.c: only where turns.is_on, but for create, destroy and halt ----------------------------------- */

size_t turns_bytes(const Config *config, const Layout *layout);
void   turns_create(Island *s);
void   turns_destroy(Island *s);
/* The link is this thread's again; what travels stays where it is. */
void   turns_halt(Island *s);
/* A round begins, with the server's x where is_whole, else with what the masters hold. */
void   turns_begin_round(Island *s, int is_whole);
/* Collective. Takes back the fragments that are under way. */
Awaited turns_finish(Island *s);
/* Collective. The steps that no turn has sent: before the END of the last round, or of an island that leaves. */
Awaited turns_send_rest(Island *s);

#endif
