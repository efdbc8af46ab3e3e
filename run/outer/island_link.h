/* island_link.h - one rank's connection to the server, and all that is on its way over it. For island.c.
 *
 * link_keep moves everything that can move now: it reads frames, asks for pieces of x, sends deltas, says that it is
 * alive. It never waits. The rest of a Link is flags, which the ranks agree on (island.c).
 */
#ifndef TRAIN_GPT_RUN_OUTER_ISLAND_LINK_H
#define TRAIN_GPT_RUN_OUTER_ISLAND_LINK_H

#include "run/outer/messages.h"
#include "run/outer/round_copy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* x or moments on their way: pieces of MESSAGE_ELEMS, which ranks fetch in turn. */
typedef struct {
    MessageKind get;      /* GET, GET_M, GET_V */
    int64_t round, pieces;
    int64_t turn;         /* the piece that the ranks wait for */
    int64_t asked, had;   /* pieces of this rank: asked for, and come */
    float  *piece;        /* owned [MESSAGE_ELEMS]: the one that came last */
    int     has_piece;    /* and waits to be taken */
} LinkFetch;

/* Deltas on their way, from piece `at` of run `run` on; then the END. Or moments, M or V: without an END. */
typedef struct {
    int     is_on;
    MessageKind kind;
    int64_t run, at;      /* elements of the run that have gone */
    int64_t gone;         /* of all runs */
    End     end;
} LinkSend;

typedef struct {
    Channel   *server;    /* owned; NULL: not connected */
    int        rank, ranks;
    int64_t    elems;     /* of the model */
    double     patience_ms;
    RoundCopy *copy;      /* borrowed */
    LinkFetch  fetch;
    LinkSend   send;
    char      *payload;   /* owned [FRAME_PAYLOAD_LIMIT]: of a frame of deltas; another rank's piece of x */
    int        is_broken; /* and fault says why; of a server that has refused this island, refuse.code is not 0 */
    char       fault[1024];
    Refuse     refuse;
    int        has_welcome, has_open, has_closed, has_moments;
    int        is_put_off; /* MOMENTS said so: the OPEN before it holds no more */
    Welcome    welcome;
    Open       open;
    Closed     closed;
    Moments    moments;
    int64_t    pings, answers;
    double     pinged_ms; /* of the last PING; silent_ms: since when one has had no answer */
    double     silent_ms;
} Link;

Link link_create(RoundCopy *copy, int64_t elems, int rank, int ranks, double patience_seconds);
void link_destroy(Link *l);

/* Forgets all that the last connection has left, and takes this one; NULL: none. */
void link_take(Link *l, Channel *server);
void link_keep(Link *l);
/* The same, until is_ready or the connection breaks, for at most ms. */
void link_wait(Link *l, int (*is_ready)(const Link *), double ms);

/* Waits until the channel has room for it. */
void link_say(Link *l, MessageKind kind, int64_t round, const char *text, size_t bytes);
void link_ping(Link *l);

void    link_fetch(Link *l, MessageKind get, int64_t round); /* begins to ask for x: GET, or moments: GET_M, GET_V */
int64_t link_piece_elems(const Link *l, int64_t piece);
int     link_owns(const Link *l, int64_t piece);
void    link_send(Link *l, End end);                       /* begins to send the deltas of copy, then END */
void    link_send_moments(Link *l, MessageKind kind);      /* of moments in the deltas' place: M or V, no END */

#ifdef __cplusplus
}
#endif
#endif
