/* island_link.h - what one rank of an island has: its copy of x, the weights that the round began with, and a
 * connection to each server. For island.c.
 */
#ifndef TRAIN_GPT_RUN_OUTER_ISLAND_LINK_H
#define TRAIN_GPT_RUN_OUTER_ISLAND_LINK_H

#include "model/optimizer.h"
#include "run/checkpoint/exchange.h"
#include "run/config/config.h"
#include "run/outer/messages.h"

/* --- the copy of x -------------------------------------------------------------------------------------------------
 * x arrives in chunks, in ascending order of the model's flat order. Each rank keeps the elements of the masters that
 * it updates. At the end of the round a rank sends x - master of the ranges that it would write to a checkpoint's file
 * (exchange.h). All ranks together send each element once.
 *
 * If deltas are sent in fewer bytes, what rounding lost from each is kept and added to the next one (error
 * feedback). */

typedef struct {
    Optimizer *optimizer;  /* borrowed */
    Stream    *stream;     /* borrowed */
    FrameType  type;       /* type of the values of deltas in a frame */
    FileExtents   runs;       /* ranges of the model that this rank sends; owned */
    float     *x;          /* [shards_state_elems] x in the order of the masters, from device_alloc_host; owned */
    float     *delta;      /* [runs.elems] x - master in the order of runs, then a buffer to exchange a span */
    float     *rest;       /* [runs.elems] what rounding lost; NULL if deltas are fp32 */
    int64_t   *taken;      /* [spans] elements of each span that have arrived; owned */
} RoundCopy;

RoundCopy round_copy_create(Optimizer *optimizer, Stream *stream, FrameType type);
void      round_copy_destroy(RoundCopy *c);
size_t    round_copy_bytes(const Layout *layout, int zero_stage, FrameType type); /* host memory */

/* Loads a new x: round_copy_begin, then round_copy_take for all of [0, P) in chunks, then round_copy_publish, which
 * writes the masters and working copies of all ranks. Until then the model is unchanged. begin and publish are
 * collective. */
typedef enum { ROUND_X, ROUND_CHANGE } RoundValues; /* the new x; its change from the x that the copy holds */
void round_copy_begin(RoundCopy *c);
void round_copy_take(RoundCopy *c, RoundValues kind, int64_t offset, const float *values, int64_t elems);
void round_copy_publish(RoundCopy *c);

/* Collective. Fills `delta`: with x - master, or with the gradients of the step that shards_finish has ended
 * (send=gradients). Returns the sum of the squares of what this rank sends. */
double round_copy_gather(RoundCopy *c, OuterSend send);
/* Packs elements [at, at + elems) of the deltas as a payload of c->type. elems <= FRAME_PAYLOAD_LIMIT / 4. Each element
 * is packed once. */
void   round_copy_pack(RoundCopy *c, int64_t at, int64_t elems, void *payload);
/* Clears what rounding lost, because the deltas that it came from did not count. */
void   round_copy_forget(RoundCopy *c);

/* --- the connection to one server ----------------------------------------------------------------------------------
 * Everything that travels to and from one server. With several servers a rank has one Link to each, for that server's
 * part of the model.
 *
 * link_keep moves everything that can move now: it reads frames, requests x, sends deltas, sends PINGs. It never waits.
 * The other fields of a Link are flags, on which the ranks agree (island.c). */

/* x that is being fetched: the server's part, in chunks of MESSAGE_ELEMS elements. Rank n % ranks fetches chunk n. */
typedef struct {
    MessageKind get;      /* GET or GET_CHANGE */
    int64_t round, chunks; /* round of the request; chunks of the part */
    int64_t awaited;      /* the chunk that all ranks wait for; -1 while they wait for another server */
    int64_t requested, had; /* chunks of this rank that were requested, and that have arrived */
    float  *chunk;        /* [MESSAGE_ELEMS] the chunk that arrived last; owned */
    int     has_chunk;    /* 1 while `chunk` holds a chunk that nobody has used; no frame is read until then */
    int     is_given_up;  /* 1 if chunks that still arrive are dropped */
} LinkFetch;

/* Deltas that are being sent: the part of the model that this server has, then END. */
typedef struct {
    int     is_on;        /* 1 while something is being sent */
    int64_t run, at;      /* the next element: range `run` of RoundCopy's runs, and its offset in that */
    int64_t gone;         /* elements before it in all runs */
    End     end;          /* the last message; its round is the round of the deltas */
} LinkSend;

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
    char      *payload;   /* [FRAME_PAYLOAD_LIMIT] a frame of deltas, or another rank's chunk of x; owned */
    int        is_broken; /* 1 if the connection is unusable; fault has the reason. refuse.code is not 0 if the server
                           * refused the island */
    char       fault[1024]; /* why the connection broke; "" if it did not */
    Refuse     refuse;    /* the server's REFUSE, if code is not 0 */
    int        has_welcome, has_open, has_closed; /* 1 if that message has arrived */
    Welcome    welcome;
    Open       open;
    Closed     closed;
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

/* Sends a message: m is the struct of its kind, NULL for an empty payload. Waits until the channel's buffer has space
 * for it. */
void link_say(Link *l, MessageKind kind, int64_t round, const void *m);
void link_ping(Link *l);

void    link_fetch(Link *l, MessageKind get, int64_t round); /* begins to request chunks of the server's part */
void    link_give_up(Link *l);                             /* drops the chunks that still arrive */
int64_t link_chunk_begin(const Link *l, int64_t chunk);
int64_t link_chunk_elems(const Link *l, int64_t chunk);
int     link_owns(const Link *l, int64_t chunk);
void    link_send(Link *l, End end);                       /* begins to send the deltas of copy, then END */

#endif
