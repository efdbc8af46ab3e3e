/* island_state.h - the state that the files of an island share. island.c joins, exchanges rounds and leaves.
 * island_turns.c exchanges fragments during a round. island_moments.c gives and takes moments. No other file includes
 * this.
 */
#ifndef TRAIN_GPT_RUN_OUTER_ISLAND_STATE_H
#define TRAIN_GPT_RUN_OUTER_ISLAND_STATE_H

#include "run/checkpoint/checkpoint_folders.h"
#include "run/outer/island.h"
#include "run/outer/link_pump.h"

/* State of outer.stream, which has one server. */
typedef struct {
    int      is_on;                  /* outer.stream is true; if not, the fields below are unused */
    int      count, next;            /* fragments of a round; the next fragment to send in this round */
    int      has_rest;               /* 1 if the masters may have steps that no fragment has sent */
    int64_t  tokens;                 /* tokens of this island's completed rounds since it joined */
    int64_t  sent_at[FRAGMENTS_MOST]; /* [fragment] tokens of the island when it last sent the fragment */
    int64_t  before[2];              /* bytes sent, bytes received, when the round began */
    double   waited_ms;              /* time that fragments kept this round from training */
    float   *store[LINK_TURNS];      /* this rank's chunks of the new x, or of its change, of each fragment under way;
                                      * owned */
    float   *was[LINK_TURNS];        /* outer.compress: the old x of each fragment under way; owned. NULL without
                                      * outer.compress */
    LinkPump pump;                   /* moves the link during training steps */
} IslandTurns;

struct Island {
    IslandParts    parts;
    Key            key;                /* the shared key, from outer.key */
    Link          *link;               /* [links] one connection to each server; the first server leads; owned */
    int            links;              /* number of servers */
    RoundCopy      copy;               /* x of the round, and the deltas */
    int            has_lease, is_over; /* this round has steps to send; the server has no more rounds */
    int64_t        used;               /* samples of the lease that were reported to the server */
    int64_t        updates;            /* optimizer updates behind the moments */
    int64_t        peer_updates;       /* updates behind the moments taken from another island since the last join or
                                        * exchange; 0 if none */
    IslandExchange ended;              /* numbers of the last round that ended */
    IslandTurns    turns;
    char           lost[MANIFEST_FAULT_BYTES]; /* why no server answers: island_lost */
};

typedef enum {
    MET,
    STOPPED,                           /* a rank is requested to stop */
    BROKEN,                            /* the connection of a rank is broken */
    LATER                              /* the server took the lease back and will give another */
} Awaited;

/* --- island.c ----------------------------------------------------------------------------------------------------- */

/* Collective, while the pump is off. Waits until every link of every rank is_ready, until one breaks, or, with
 * may_stop, until a rank is requested to stop. */
Awaited island_await(Island *s, int (*is_ready)(const Link *), int may_stop);
int     island_has_sent(const Link *l);
/* Collective. Fetches all parts of x (GET), m (GET_M) or v (GET_V) into the copy of the round. With GET_CHANGE it
 * fetches all of x from servers that have no changes. */
Awaited island_fetch(Island *s, MessageKind get, int64_t round);
/* Collective. Counts the bytes sent and received so far, summed over all ranks. */
void    island_count_bytes(Island *s, int64_t bytes[2]);

/* --- island_moments.c --------------------------------------------------------------------------------------------- */

/* Returns 1 if the island has no moments and outer.moments is "peer". */
int     island_wants_moments(const Island *s);
/* Collective, after an OPEN that requests it. island_take_moments returns LATER if the server will ask another
 * island. */
Awaited island_give_moments(Island *s);
Awaited island_take_moments(Island *s);

/* --- island_turns.c: only with turns.is_on, except turns_create, turns_destroy and turns_halt ------------------- */

size_t turns_bytes(const Config *config, const Layout *layout);
void   turns_create(Island *s);
void   turns_destroy(Island *s);
/* Stops the pump, so that this thread may use the link. Fragments under way stay under way. */
void   turns_halt(Island *s);
/* Prepares a round that begins with the server's x (is_whole), or with what the masters hold. */
void   turns_begin_round(Island *s, int is_whole);
/* Collective. Waits for all fragments under way and takes their new x. */
Awaited turns_finish(Island *s);
/* Collective. Sends the steps that no fragment has sent: before the END of the last round, or when the island
 * leaves. */
Awaited turns_send_rest(Island *s);

#endif
