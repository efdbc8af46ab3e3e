/* island_link.h - what one rank of an island (a job that trains one model with other jobs) has for the exchange with
 * the servers: a copy of the weights x that the round began with, and a connection to each server. Used by island.c. */
#ifndef TRAIN_GPT_RUN_OUTER_ISLAND_LINK_H
#define TRAIN_GPT_RUN_OUTER_ISLAND_LINK_H

#include "model/optimizer.h"
#include "run/checkpoint/exchange.h"
#include "run/config/config.h"
#include "run/outer/messages.h"

/* --- the copy of x -------------------------------------------------------------------------------------------------
 * x are the weights that a round begins with. They arrive from the servers in chunks, in ascending order of the model's
 * flat order (core/layout.h). Each rank keeps x of the masters (fp32 weights) that it updates. At the end of the round
 * a rank sends the delta, x - master, of the ranges that it would write to a checkpoint's file (exchange.h). All ranks
 * together send each element once.
 *
 * If deltas are rounded to fewer bytes, the rounding error of each is kept and added to the next one (error
 * feedback). */

typedef struct {
    Optimizer *optimizer;  /* holds the masters (fp32 weights) that new weights are copied to; borrowed */
    Stream    *stream;     /* stream of copies between GPU and host; borrowed */
    FrameType  type;       /* type in which the values of deltas (weight changes) are sent */
    FileExtents runs;      /* ranges of parameter elements whose deltas (weight changes) this rank sends to the server;
                            * owned */
    float     *x;          /* [shards_state_elems] weights x that the round began with, in the order of the masters
                            * (fp32 weights); from device_alloc_host; owned */
    /* [runs.elems] deltas: the weights at the beginning of the round (x) minus the masters (fp32 weights) at its end,
     * in the order of `runs`. Behind it in memory, a buffer in which tensor ranks exchange values */
    float     *delta;
    float     *rest;       /* [runs.elems] rounding errors of the deltas (weight changes) sent so far, which the next
                            * deltas add; NULL if deltas are sent in fp32 */
    int64_t   *taken;      /* [spans] number of elements that have arrived of each span (part of a parameter that this
                            * rank holds); owned */
} RoundCopy;

RoundCopy round_copy_create(Optimizer *optimizer, Stream *stream, FrameType type);
void      round_copy_destroy(RoundCopy *c);
/* returns the bytes of host memory that a RoundCopy needs */
size_t    round_copy_bytes(const Layout *layout, int zero_stage, FrameType type);

/* Functions that load new weights from the server. Call round_copy_begin, then round_copy_take for all elements of the
 * model in chunks, then round_copy_publish, which writes the masters and working copies of all ranks. Until then the
 * model is unchanged. begin and publish are collective. */
typedef enum { ROUND_X, ROUND_CHANGE } RoundValues; /* values that round_copy_take gets: the new weights, or their
                                                     * change from the weights that RoundCopy.x holds */
void round_copy_begin(RoundCopy *c);
void round_copy_take(RoundCopy *c, RoundValues kind, int64_t offset, const float *values, int64_t elems);
void round_copy_publish(RoundCopy *c);

/* Collective. Fills c->delta with the weights at the beginning of the round minus the masters at its end. With
 * outer.send=gradients it copies the gradients that shards_finish has completed. Returns the sum of the squares of the
 * values that this rank sends. */
double round_copy_gather(RoundCopy *c, OuterSend send);
/* Packs elements [at, at + elems) of the deltas (weight changes) as a payload of type c->type, with elems <=
 * FRAME_PAYLOAD_LIMIT / 4. Pack each element only once, because packing also records the rounding errors. */
void   round_copy_pack(RoundCopy *c, int64_t at, int64_t elems, void *payload);
/* Clears the rounding errors that the next deltas would add. Called if the deltas from which the errors came did not
 * count. */
void   round_copy_forget(RoundCopy *c);

/* --- the connection to one server ----------------------------------------------------------------------------------
 * A Link is the connection of a rank to one server. With several servers a rank has one Link to each, for that server's
 * part of the model.
 *
 * link_keep does everything that can be done now: it reads frames, requests weights, sends deltas, sends PINGs. It
 * never waits. What has arrived is in the fields of the Link, on which the ranks then agree (island.c). */

/* A fetch of the weights x from one server: its part of the model, in chunks of MESSAGE_ELEMS elements. Rank n % ranks
 * fetches chunk n. */
typedef struct {
    MessageKind get;      /* kind of the request: GET (all weights) or GET_CHANGE (their change) */
    int64_t round, chunks; /* number of the round whose weights are fetched; number of chunks of the server's part */
    int64_t awaited;      /* index of the chunk that all ranks wait for; -1 while they wait for another server */
    int64_t requested, had; /* chunks of this rank: those that were requested, and those that have arrived */
    float  *chunk;        /* [MESSAGE_ELEMS] the chunk of weights that arrived last; owned */
    int     has_chunk;    /* 1 while `chunk` holds weights that island.c has not copied; until it has, no more frames
                           * are read */
    int     is_given_up;  /* 1 if the fetch was given up: chunks that still arrive are dropped */
} LinkFetch;

/* A delivery of deltas to one server: the part of the model that this server has, then an END message. */
typedef struct {
    int     is_on;        /* 1 while deltas (weight changes) or the END message are being sent */
    int64_t run, at;      /* next element to send: `run` is the index of its range in RoundCopy.runs, `at` its offset in
                           * that range */
    int64_t gone;         /* number of elements already sent or skipped, in all ranges of this rank; elements of other
                           * servers are skipped */
    End     end;          /* the END message that follows the deltas; end.round is the round of the deltas */
} LinkSend;

typedef struct {
    Channel   *server;    /* owned; NULL if not connected */
    int        rank, ranks; /* number of this rank; number of ranks of the training job */
    int64_t    elems;     /* number of parameters of the model */
    int        part, parts; /* index of the server's part of the model; number of parts */
    int64_t    first, end; /* the server's part has elements [first, end) of the model */
    double     patience_ms; /* ms without an answer after which the connection counts as broken */
    RoundCopy *copy;      /* copy of the weights that the round began with; borrowed */
    LinkFetch  fetch;     /* the weights that are being fetched */
    LinkSend   send;      /* deltas (weight changes) that are being sent */
    /* [FRAME_PAYLOAD_LIMIT] buffer for a frame of deltas, or for a chunk of the weights that another rank fetched;
     * owned */
    char      *payload;
    int        is_broken; /* 1 if the connection is unusable; fault has the reason. refuse.code is not 0 if the server
                           * refused the training job */
    char       fault[1024]; /* why the connection broke; "" if it did not */
    Refuse     refuse;    /* the server's REFUSE message, if code is not 0 */
    int        has_welcome, has_open, has_closed; /* 1 if a message WELCOME, OPEN or CLOSED has arrived */
    Welcome    welcome;
    Open       open;
    Closed     closed;
    int64_t    pings, answers; /* numbers of PINGs sent, and of PINGs that the server answered */
    double     pinged_ms; /* time by clock_ms() when the last PING was sent */
    double     silent_ms; /* time by clock_ms() of the last answer to a PING, or of the first PING sent after all were
                           * answered */
} Link;

Link link_create(RoundCopy *copy, int64_t elems, int rank, int ranks, double patience_seconds, int part, int parts);
void link_destroy(Link *l);

/* Clears all state of the old connection and takes over the new one, which the link then owns. server NULL: no
 * connection. */
void link_take(Link *l, Channel *server);
void link_keep(Link *l);
/* Events that a rank of an island (training job) waits for. LINK_WELCOME: a WELCOME has arrived. LINK_OPENED: OPEN has
 * arrived, with the samples of a round, or a CLOSED that ends the run. LINK_CLOSED: CLOSED has also arrived, which ends
 * a round. Only rank 0 waits for OPEN, and only the first server sends OPEN and CLOSED. LINK_CHUNK: the awaited chunk
 * of weights has arrived, if this rank fetches it. LINK_SENT: deltas and END are sent. LINK_ANSWERED: all PINGs are
 * answered. */
typedef enum { LINK_WELCOME, LINK_OPENED, LINK_CLOSED, LINK_CHUNK, LINK_SENT, LINK_ANSWERED } LinkEvent;
int   links_have(const Link *l, int links, LinkEvent event); /* returns 1 if the event has happened on all links */
/* Calls link_keep on all links until the event has happened on each or one breaks, for at most ms. */
void  links_wait(Link *l, int links, LinkEvent event, double ms);
/* Returns a broken link, preferably one whose server refused the island. Returns NULL if none is broken. */
Link *links_broken(Link *l, int links);

void link_ping(Link *l);

void    link_fetch(Link *l, MessageKind get, int64_t round); /* begins to request the chunks of the server's part of the
                                                              * weights */
void    link_give_up(Link *l);                             /* drops the chunks of weights that still arrive */
int64_t link_chunk_begin(const Link *l, int64_t chunk);
int64_t link_chunk_elems(const Link *l, int64_t chunk);
int     link_owns(const Link *l, int64_t chunk);
void    link_send(Link *l, End end);                       /* begins to send the deltas of l->copy (weight changes),
                                                            * then the message END */

#endif
