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

/* x or moments on their way, of the server's part or a fragment: pieces of MESSAGE_ELEMS, which ranks fetch in turn. */
typedef struct {
    MessageKind get;      /* GET, GET_CHANGE, GET_M, GET_V */
    Fragment    range;
    int64_t round, pieces;
    int64_t turn;         /* the piece that the ranks wait for; -1: of another server's */
    int64_t asked, had;   /* pieces of this rank: asked for, and come */
    float  *piece;        /* owned [MESSAGE_ELEMS]: the one that came last */
    int     has_piece;    /* and waits to be taken: until then nothing is read */
    int     is_given_up;  /* what still comes is dropped */
    float  *store;        /* borrowed; not NULL: the pieces go to a turn's, and none waits */
} LinkFetch;

/* Deltas or moments of a range on their way, as far as the server has it, from piece `at` of run `run` on; then a last
 * message. */
typedef struct {
    int         is_on;
    Fragment    range;
    MessageKind kind, last; /* last: MESSAGE_KINDS for none */
    int64_t     round;
    int64_t     run, at;  /* elements of the run that have gone, or are not of the range */
    int64_t     gone;     /* of all runs */
    size_t      bytes;    /* of the last message */
    char        text[MESSAGE_TEXT];
} LinkSend;

/* outer.stream: a fragment's way, there and back. */
enum { LINK_TURNS = FRAGMENTS_AHEAD };
typedef struct {
    Turn     turn;
    Fragment range;
    float   *store;       /* borrowed: for this rank's pieces of its x, one after another */
    int      has_turned;  /* x can be fetched */
    int      has_x;       /* and this rank's pieces are there */
} LinkTurn;

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
    LinkTurn   turn[LINK_TURNS]; /* those under way, the oldest first */
    int        turns;
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

void    link_fetch(Link *l, MessageKind get, int64_t round); /* begins to ask for it */
void    link_give_up(Link *l);                             /* nobody will take it: what comes behind it is read */
int64_t link_piece_begin(const Link *l, int64_t piece);
int64_t link_piece_elems(const Link *l, int64_t piece);
int     link_owns(const Link *l, int64_t piece);
void    link_send(Link *l, End end);                       /* begins to send the deltas of copy, then END */
void    link_send_moments(Link *l, MessageKind kind);      /* the same of moments that lie in the deltas' place: M or V */
/* outer.stream: begins to send END alone; the whole model's deltas, then the TURN; a fragment's, whose x then comes to
 * store [link_store_elems]. */
void     link_send_end(Link *l, End end);
void     link_send_rest(Link *l, Turn turn);
void     link_send_fragment(Link *l, Turn turn, Fragment range, float *store);
int      link_may_turn(const Link *l); /* the last is sent, and there is room for one more, or for the oldest's x */
int      link_has_x(const Link *l);    /* of the oldest */
int      link_is_idle(const Link *l);  /* all is sent, and all x are there */
void     link_end_turn(Link *l);       /* the oldest is not under way any more */
int64_t  link_store_elems(int64_t fragment_elems, int ranks); /* at most, on each rank */
int      link_takes_changes(const Link *l); /* a fragment's new x comes by how much it has changed: both sides compress */
/* Piece n of a range: rank n % ranks fetches it. */
Fragment link_piece(Fragment range, int64_t n);

#endif
