/* island_link.h - one rank's connection to a server, and all that is on its way over it: of several servers each has a
 * link, and a part of the model. For island.c.
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

/* x of the server's part on its way: pieces of MESSAGE_ELEMS, which ranks fetch in turn. */
typedef struct {
    int64_t round, pieces;
    int64_t turn;         /* the piece that the ranks wait for; -1: of another server's */
    int64_t asked, had;   /* pieces of this rank: asked for, and come */
    float  *piece;        /* owned [MESSAGE_ELEMS]: the one that came last */
    int     has_piece;    /* and waits to be taken */
} LinkFetch;

/* Deltas of the server's part on their way, from piece `at` of run `run` on; then the END. */
typedef struct {
    int     is_on;
    int64_t run, at;      /* elements of the run that have gone, or are another server's */
    int64_t before;       /* elements of the runs before it */
    End     end;
} LinkSend;

typedef struct {
    Channel   *server;    /* owned; NULL: not connected */
    int        rank, ranks;
    int64_t    elems;     /* of the model */
    int        part, parts;
    int64_t    first, end; /* elements of the server's part */
    double     patience_ms;
    RoundCopy *copy;      /* borrowed */
    LinkFetch  fetch;
    LinkSend   send;
    char      *payload;   /* owned [FRAME_PAYLOAD_LIMIT]: of a frame of deltas; another rank's piece of x */
    int        is_broken; /* and fault says why; of a server that has refused this island, refuse.code is not 0 */
    char       fault[1024];
    Refuse     refuse;
    int        has_welcome, has_open, has_closed;
    Welcome    welcome;
    Open       open;
    Closed     closed;
    int64_t    pings, answers;
    double     pinged_ms; /* of the last PING; silent_ms: since when one has had no answer */
    double     silent_ms;
} Link;

Link link_create(RoundCopy *copy, int64_t elems, int rank, int ranks, double patience_seconds, int part, int parts);
void link_destroy(Link *l);

/* Forgets all that the last connection has left, and takes this one; NULL: none. */
void link_take(Link *l, Channel *server);
void link_keep(Link *l);
/* The same with all of them, until all are is_ready or one breaks, for at most ms. */
void  links_wait(Link *l, int links, int (*is_ready)(const Link *), double ms);
int   links_are_ready(const Link *l, int links, int (*is_ready)(const Link *));
/* One that is broken, first of all one that was refused; NULL: none. */
Link *links_broken(Link *l, int links);

/* Waits until the channel has room for it. */
void link_say(Link *l, MessageKind kind, int64_t round, const char *text, size_t bytes);
void link_ping(Link *l);

void    link_fetch(Link *l, int64_t round);                /* begins to ask for x */
int64_t link_piece_begin(const Link *l, int64_t piece);
int64_t link_piece_elems(const Link *l, int64_t piece);
int     link_owns(const Link *l, int64_t piece);
void    link_send(Link *l, End end);                       /* begins to send the deltas of copy, then END */

#ifdef __cplusplus
}
#endif
#endif
