/* island_link.h - one rank's connection to one server, and everything that travels over it. With several servers a rank
 * has one Link to each, for that server's part of the model. For island.c.
 *
 * link_keep moves everything that can move now: it reads frames, requests x, sends deltas, sends PINGs. It never waits.
 * The other fields of a Link are flags, on which the ranks agree (island.c).
 */
#ifndef TRAIN_GPT_RUN_OUTER_ISLAND_LINK_H
#define TRAIN_GPT_RUN_OUTER_ISLAND_LINK_H

#include "run/outer/messages.h"
#include "run/outer/round_copy.h"

/* x or moments that are being fetched: the server's part or a fragment, in chunks of MESSAGE_ELEMS elements. Rank n %
 * ranks fetches chunk n. */
typedef struct {
    MessageKind get;      /* GET, GET_CHANGE, GET_M or GET_V */
    Fragment    range;    /* what is fetched: elements of the model */
    int64_t round, pieces; /* round of the request; chunks of range */
    int64_t turn;         /* the chunk that all ranks wait for; -1 while they wait for another server */
    int64_t asked, had;   /* chunks of this rank that were requested, and that have arrived */
    float  *piece;        /* [MESSAGE_ELEMS] the chunk that arrived last; owned */
    int     has_piece;    /* 1 while `piece` holds a chunk that nobody has used; no frame is read until then */
    int     is_given_up;  /* 1 if chunks that still arrive are dropped */
    float  *store;        /* where chunks of a fragment are stored; borrowed. NULL: `piece` holds one at a time */
} LinkFetch;

/* Deltas or moments that are being sent: the part of a range that this server has, then one last message. */
typedef struct {
    int         is_on;    /* 1 while something is being sent */
    Fragment    range;    /* what is sent: elements of the model */
    MessageKind kind, last; /* kind of the values; kind of the last message, MESSAGE_KINDS for none */
    int64_t     round;    /* round of the messages */
    int64_t     run, at;  /* the next element: range `run` of RoundCopy's runs, and its offset in that */
    int64_t     gone;     /* elements before it in all runs */
    size_t      bytes;    /* length of text */
    char        text[MESSAGE_TEXT]; /* JSON of the last message */
} LinkSend;

/* outer.stream: a fragment that was sent, until its new x is in the masters. */
enum { LINK_TURNS = FRAGMENTS_AHEAD };
typedef struct {
    Turn     turn;        /* the TURN that was sent */
    Fragment range;       /* elements of the fragment */
    float   *store;       /* buffer for this rank's chunks of the new x, one after another; borrowed */
    int      has_turned;  /* TURNED has arrived, so the new x can be fetched */
    int      has_x;       /* this rank's chunks of the new x have arrived */
} LinkTurn;

typedef struct {
    Channel   *server;    /* owned; NULL if not connected */
    int        rank, ranks; /* this rank and the ranks of the island */
    int64_t    elems;     /* parameters of the model */
    int        part, parts; /* part of the model that the server has */
    int64_t    first, end; /* range of the model that the server has */
    double     patience_ms; /* silence after which the link breaks */
    RoundCopy *copy;      /* borrowed */
    LinkFetch  fetch;     /* what is being fetched */
    LinkSend   send;      /* what is being sent */
    LinkTurn   turn[LINK_TURNS]; /* fragments that were sent and are not back, oldest first */
    int        turns;     /* fragments in turn */
    char      *payload;   /* [FRAME_PAYLOAD_LIMIT] a frame of deltas, or another rank's chunk of x; owned */
    int        is_broken; /* 1 if the connection is unusable; fault has the reason. refuse.code is not 0 if the server
                           * refused the island */
    char       fault[1024]; /* why the connection broke; "" if it did not */
    Refuse     refuse;    /* the server's REFUSE, if code is not 0 */
    int        has_welcome, has_open, has_closed, has_moments; /* 1 if that message has arrived */
    int        is_put_off; /* MOMENTS had "later": the OPEN before it no longer holds */
    Welcome    welcome;
    Open       open;
    Closed     closed;
    Moments    moments;
    int64_t    pings, answers; /* PINGs sent; PINGs answered */
    double     pinged_ms; /* when the last PING was sent */
    double     silent_ms; /* since when PINGs are unanswered */
} Link;

Link link_create(RoundCopy *copy, int64_t elems, int rank, int ranks, double patience_seconds, int part, int parts);
void link_destroy(Link *l);

/* Clears everything of the old connection and uses the new one, which it then owns. NULL: no connection. */
void link_take(Link *l, Channel *server);
void link_keep(Link *l);
/* Calls link_keep on all links until all are is_ready or one breaks, for at most ms. */
void  links_wait(Link *l, int links, int (*is_ready)(const Link *), double ms);
int   links_are_ready(const Link *l, int links, int (*is_ready)(const Link *));
/* Returns a broken link, preferably one that was refused; NULL if none is broken. */
Link *links_broken(Link *l, int links);

/* Sends a message. Waits until the channel's buffer has space for it. */
void link_say(Link *l, MessageKind kind, int64_t round, const char *text, size_t bytes);
void link_ping(Link *l);

void    link_fetch(Link *l, MessageKind get, int64_t round); /* begins to request chunks of the server's part */
void    link_give_up(Link *l);                             /* drops the chunks that still arrive */
int64_t link_piece_begin(const Link *l, int64_t piece);
int64_t link_piece_elems(const Link *l, int64_t piece);
int     link_owns(const Link *l, int64_t piece);
void    link_send(Link *l, End end);                       /* begins to send the deltas of copy, then END */
void    link_send_moments(Link *l, MessageKind kind);      /* begins to send M or V, which lies in the delta buffer */
/* For outer.stream. link_send_end begins to send END without deltas. link_send_rest begins to send the deltas of the
 * whole model, then TURN. link_send_fragment begins to send the deltas of a fragment, then TURN. store
 * [link_store_elems] will receive the chunks of its new x. */
void     link_send_end(Link *l, End end);
void     link_send_rest(Link *l, Turn turn);
void     link_send_fragment(Link *l, Turn turn, Fragment range, float *store);
int      link_may_turn(const Link *l); /* nothing is being sent, and one more fragment may travel */
int      link_has_x(const Link *l);    /* the new x of the oldest fragment has arrived */
int      link_is_idle(const Link *l);  /* everything is sent, and every new x has arrived */
void     link_end_turn(Link *l);       /* removes the oldest fragment from the list */
int64_t  link_store_elems(int64_t fragment_elems, int ranks); /* most elements of one fragment that a rank stores */
int      link_takes_changes(const Link *l); /* 1 if the server sends a fragment's new x as a change: both have
                                             * outer.compress */
/* Returns the elements of chunk n of a range. Rank n % ranks fetches it. */
Fragment link_piece(Fragment range, int64_t n);

#endif
