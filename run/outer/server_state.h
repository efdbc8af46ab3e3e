/* server_state.h - what the files of the server share: server.c makes it and takes turns, server_islands.c reads what
 * islands send, server_update.c makes a new x, server_turns.c a new x of a fragment, server_moments.c hands moments on;
 * of several servers server_parts.c is the leader's side, server_follower.c the others'. Nobody else includes this.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_STATE_H
#define TRAIN_GPT_RUN_OUTER_SERVER_STATE_H

#include "comm/key.h"
#include "run/outer/server.h"

/* The moments of one island, for those that take them (outer.moments=peer). Memory is held for as long. */
typedef struct {
    Member *giver;                       /* borrowed; NULL: nobody is to give, or all has come */
    int64_t lease, round;                /* of the giver, when it was asked */
    int64_t updates;                     /* that the moments have seen; 0: they are not whole */
    int64_t elems[OPTIMIZER_STATES];     /* that have come */
    int     given;                       /* ranks that have said GIVEN */
    float  *values[OPTIMIZER_STATES];    /* owned [elems of the model]; NULL: nobody takes any */
    double  heard_ms;                    /* since the last frame of it */
} PeerMoments;

struct Server {
    ServerParts parts;
    Key         key;
    int         listening;
    Leases      leases;
    Members     members;
    Peers       peers;
    OuterRule   rule;
    int64_t     elems, every, tokens;
    double      patience_ms, round_began_ms, looked_ms;
    int64_t     round_tokens, staleness; /* of the open round: what counted of it */
    double      round_loss;              /* the same: weighted by tokens */
    double      norm;                    /* send=gradients: of the last one */
    ServerWeights whole, weights;        /* the leader's: of the model; its part */
    RoundChange change;                  /* of the part */
    Peer      **follower;                /* the leader's, owned [parts]: NULLs have not come, and [0] */
    Peer       *leader;                  /* the follower's */
    Member    **counted;                 /* the follower's, owned [counts]: whose deltas the next STEP takes */
    double     *weight;                  /* owned, the same */
    int         counts;
    int64_t     had;                     /* values of STATE that have come */
    int         is_dismissed, code;      /* the run is over */
    int         lingers;                 /* the run is over and saved: server_linger */
    double      pinged_ms, made_ms;
    ServerRound over;
    int         is_over;
    PeerMoments peer_moments;
    int         streams;                 /* outer.stream */
    int         fragments, turn;         /* the next one to be whole; as many as there are: none is left in this round */
    Exact       squares;                 /* of the means of this round's turns */
};

/* --- server_islands.c --------------------------------------------------------------------------------------------- */

/* All its connections end with this sentence; what it has sent does not count. */
void server_refuse_peer(Server *s, Peer *p, int code, const char *fmt, ...) PRINTF_LIKE(4, 5);
void server_refuse_member(Server *s, Member *m, int code, const char *why);
/* It has left, or is lost: `why` says which. */
void server_lose_member(Server *s, Member *m, const char *why);
/* Those of an island that is not there any more, but for one. */
void server_drop_connections(Server *s, const Member *m, const Peer *but);
/* The lease's samples are free again; -1: there is none. */
void server_take_back(Server *s, int64_t lease);
void server_say_closed(Server *s, Member *m, int islands, double norm, int64_t staleness);
/* Reads what connection i has sent, and sends. Returns 0 when it is gone, or others are: the list is looked at again. */
int  server_serve_peer(Server *s, int i);

/* "island 2 (id, address)". */
const char *server_name_of(const Server *s, const Member *m, char out[160]);
/* The connection of its rank 0; NULL: it has none. */
Peer *server_first_rank(const Server *s, const Member *m);

/* --- server_moments.c --------------------------------------------------------------------------------------------- */

/* A round opens for islands whose TRAINS is_new [members]: decides who gives moments, and who takes them. */
void        server_open_moments(Server *s, const char *is_new);
OpenMoments server_moments_of(const Server *s, const Member *m); /* for its OPEN */
/* Frames M and V, and GIVEN, of a giver. */
void        server_take_moments(Server *s, Peer *p, const FrameHeader *h, const void *payload);
void        server_take_given(Server *s, Peer *p, const char *text, size_t bytes);
/* A GET_M or GET_V: 1, or 0: refused, for it is no taker's. */
int         server_may_take(Server *s, Peer *p, const FrameHeader *h);
/* Each turn: whether the giver is still there, and whether anybody still takes. */
void        server_keep_moments(Server *s);
void        server_end_moments(Server *s);
PeerValues  server_values(const Server *s);

/* --- server_parts.c: the leader of several servers ---------------------------------------------------------------- */

static inline int server_leads(const Server *s) { return s->parts.part == 0; }
static inline int is_follower(const Peer *p) { return p->part > 0; }
/* A FOLLOW, from a connection that is nobody's yet: 0, or the exit code for it, with what is wrong in fault. Then all
 * that it sends: 1, or 0 with that. */
enum { SERVER_FAULT_BYTES = 1024 };
int  server_take_follow(Server *s, Peer *p, const char *text, size_t bytes, char *fault);
int  server_take_of_follower(Server *s, Peer *p, const FrameHeader *h, const void *payload, char *fault);
/* Ends the program: a part of the model is gone. */
void server_lose_follower(const Peer *p, const char *why);
const char *server_fault(const Peer *p);
void server_look_at_followers(Server *s);
int  server_is_whole(const Server *s);
/* Without waiting for an answer. */
void server_tell(Server *s, MessageKind kind, const char *text, size_t bytes);
/* The step on all parts; d: of this server's. Waits until it is done everywhere, and adds up what it gives. */
void server_order(Server *s, const Step *step, float *d, Exact *squares);
/* Waits until it has gone to the system; silent_ms: for so long nothing moves, then 0. */
int  server_send(Server *s, Peer *p, FrameHeader h, const void *payload);
/* The part's x, m and v, frame by frame. 0: the peer is lost. */
int  server_send_state(Server *s, Peer *p, const ServerWeights *from, int64_t first, int64_t elems);
/* A frame of the part's STATE, in order. */
int  server_take_state(Server *s, const FrameHeader *h, const void *payload, const ServerWeights *to, int64_t first,
                       int64_t elems, char *fault);

/* --- server_follower.c -------------------------------------------------------------------------------------------- */

/* Returns 0 with what is wrong with it in fault. */
int  server_take_of_leader(Server *s, const FrameHeader *h, const void *payload, char *fault);
/* An island of which all ranks have sent their END. */
void server_part_is_in(Server *s, Member *m);

/* --- server_update.c ---------------------------------------------------------------------------------------------- */

/* wait=none: each delta that has come changes x at once, until the round is over. */
void server_count_arrivals(Server *s);
/* Its squares are known: where they are not finite it is refused now. */
void server_judge_early(Server *s, Member *m);
/* wait=all: nobody trains any more. */
void server_close_round(Server *s);
/* The step on this server's part. round: the one that follows. */
void server_step_part(Server *s, const Step *step, float *d, Exact *squares, int64_t round);

/* --- server_turns.c: where s->streams ----------------------------------------------------------------------------- */

/* FRAGMENT, or DELTA, which is of the rest; TURN. */
void server_take_part(Server *s, Peer *p, const FrameHeader *h, const void *payload);
void server_take_turn(Server *s, Peer *p, const char *text, size_t bytes);
/* Makes the new x of the fragments that all who train have sent. */
void server_close_turns(Server *s);
/* The steps that no turn has had, of an island that counts as one of so many: x -= rest / islands. Where islands follow
 * x by its changes it joins the next one. */
void server_count_rest(Server *s, Member *m, int islands);
/* A round of so many islands is over, whose norms and rests count. Returns the norm of its means. */
double server_end_turns(Server *s, int islands);
/* A GET_CHANGE of what has changed in this round: of all, or of a fragment that has had its turn. */
int    server_has_change(const Server *s, const FrameHeader *h);

#endif
