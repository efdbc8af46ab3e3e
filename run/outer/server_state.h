/* server_state.h - the state that the files of the server share. No other file includes this.
 *   server.c            creates the server and runs its loop
 *   server_islands.c    reads what islands send
 *   server_update.c     makes a new x
 *   server_turns.c      makes a new x of a fragment
 *   server_moments.c    hands moments on
 *   server_parts.c      the leader's side of several servers
 *   server_follower.c   a follower's side
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_STATE_H
#define TRAIN_GPT_RUN_OUTER_SERVER_STATE_H

#include "comm/key.h"
#include "run/outer/server.h"

/* The moments of one island, kept while others fetch them (outer.moments=peer). */
typedef struct {
    Member *giver;                       /* the island that gives; borrowed. NULL if none is to give, or all has
                                          * arrived */
    int64_t lease, round;                /* lease and round of the giver when its OPEN was sent */
    int64_t updates;                     /* optimizer updates behind the moments; 0 until they are complete */
    int64_t elems[ADAMW_STATES];     /* elements of m and of v that have arrived */
    int     given;                       /* ranks that have sent GIVEN */
    float  *values[ADAMW_STATES];    /* [elements of the model] owned; NULL while no island takes moments */
    double  heard_ms;                    /* when the last frame of the giver arrived */
} PeerMoments;

struct Server {
    ServerParts parts;
    Key         key;
    int         listening;               /* descriptor that accepts connections */
    Leases      leases;
    Members     members;
    Peers       peers;
    OuterRule   rule;
    int64_t     elems, every, tokens;    /* parameters; steps of a round; tokens of completed rounds */
    double      patience_ms, round_began_ms, looked_ms; /* outer.patience_seconds; when the round began; when the loop
                                                         * last ended */
    int64_t     round_tokens, staleness; /* deltas that have counted in the open round: tokens, greatest staleness */
    double      round_loss;              /* sum of their losses, weighted by tokens */
    double      norm;                    /* send=gradients: norm of the last gradient */
    ServerWeights whole, weights;        /* leader: the whole model; any server: its part */
    RoundChange change;                  /* change of the part */
    Peer      **follower;                /* leader: [parts] NULL for a follower that has not connected, and for [0];
                                          * owned list */
    Peer       *leader;                  /* on a follower: its leader */
    Member    **counted;                 /* follower: [counts] the islands whose deltas the next STEP applies; owned
                                          * list */
    double     *weight;                  /* follower: [counts] their weights; owned */
    int         counts;                  /* length of counted and weight */
    int64_t     had;                     /* values of STATE that have arrived */
    int         is_dismissed, code;      /* the leader has sent, or this follower has received, OVER with this code */
    int         lingers;                 /* the run is over and saved: server_linger */
    double      pinged_ms, made_ms;      /* when the leader was last pinged; when the server was created */
    ServerRound over;                    /* the round that ended last */
    int         is_over;                 /* 1 until server_turn has returned over */
    PeerMoments peer_moments;
    int         streams;                 /* 1 if outer.stream is true */
    int         fragments, turn;         /* the number of fragments; the next one to complete, equal to fragments once
                                          * all are */
    Exact       squares;                 /* sum of squares of the mean fragments of this round */
};

/* --- server_islands.c --------------------------------------------------------------------------------------------- */

/* Refuses a peer. All connections of its island end with this sentence, and what the island has sent does not count. */
void server_refuse_peer(Server *s, Peer *p, int code, const char *fmt, ...) PRINTF_LIKE(4, 5);
void server_refuse_member(Server *s, Member *m, int code, const char *why);
/* Records that an island has left or is lost; `why` has which. */
void server_lose_member(Server *s, Member *m, const char *why);
/* Closes the connections of an island that is gone, except `but`. */
void server_drop_connections(Server *s, const Member *m, const Peer *but);
/* Frees the samples of the lease; -1 is no lease. */
void server_take_back(Server *s, int64_t lease);
void server_say_closed(Server *s, Member *m, int islands, double norm, int64_t staleness);
/* Reads what connection i has sent, and sends. Returns 0 if it or another connection was removed from the list: the
 * caller looks at the list again. */
int  server_serve_peer(Server *s, int i);

/* Writes "island 2 (id, address)" to out and returns out. */
const char *server_name_of(const Server *s, const Member *m, char out[160]);
/* Returns the connection of the island's rank 0, or NULL. */
Peer *server_first_rank(const Server *s, const Member *m);

/* --- server_moments.c --------------------------------------------------------------------------------------------- */

/* Decides who gives moments and who takes them, when a round opens. is_new [members] is 1 for islands with a new
 * lease. */
void        server_open_moments(Server *s, const char *is_new);
OpenMoments server_moments_of(const Server *s, const Member *m); /* for the OPEN of this island */
/* Takes a frame M or V, or a GIVEN, of the island that gives. */
void        server_take_moments(Server *s, Peer *p, const FrameHeader *h, const void *payload);
void        server_take_given(Server *s, Peer *p, const char *text, size_t bytes);
/* Checks a GET_M or GET_V. Returns 1, or 0 after a refusal because the island is not to take moments. */
int         server_may_take(Server *s, Peer *p, const FrameHeader *h);
/* Checks in each iteration that the giver is still connected, and frees the moments when no island takes them any
 * more. */
void        server_keep_moments(Server *s);
void        server_end_moments(Server *s);
PeerValues  server_values(const Server *s);

/* --- server_parts.c: the leader of several servers ---------------------------------------------------------------- */

static inline int server_leads(const Server *s) { return s->parts.part == 0; }
static inline int is_follower(const Peer *p) { return p->part > 0; }
/* Messages of a follower. server_take_follow takes the FOLLOW of a new connection: it returns 0, or the exit code for
 * the peer with the reason in fault. server_take_of_follower takes everything after that: it returns 1, or 0 with the
 * reason. */
enum { SERVER_FAULT_BYTES = 1024 };
int  server_take_follow(Server *s, Peer *p, const char *text, size_t bytes, char *fault);
int  server_take_of_follower(Server *s, Peer *p, const FrameHeader *h, const void *payload, char *fault);
/* Ends the program, because a part of the model is lost. */
void server_lose_follower(const Peer *p, const char *why);
const char *server_fault(const Peer *p);
void server_look_at_followers(Server *s);
int  server_is_whole(const Server *s);
/* Sends a message to all followers, without waiting for an answer. */
void server_tell(Server *s, MessageKind kind, const char *text, size_t bytes);
/* Applies the step on all parts. d is the delta of this server's part. Waits until all followers have done it, and adds
 * their sums of squares to *squares. */
void server_order(Server *s, const Step *step, float *d, Exact *squares);
/* Sends a frame and waits until the channel has taken it. Returns 0 if the channel is broken or nothing moved for
 * outer.patience_seconds. */
int  server_send(Server *s, Peer *p, FrameHeader h, const void *payload);
/* Sends x, m and v of the part, frame by frame. Returns 0 if the peer is lost. */
int  server_send_state(Server *s, Peer *p, const ServerWeights *from, int64_t first, int64_t elems);
/* Takes a frame of STATE of the part; frames arrive in order. Returns 0 with the reason in fault. */
int  server_take_state(Server *s, const FrameHeader *h, const void *payload, const ServerWeights *to, int64_t first,
                       int64_t elems, char *fault);

/* --- server_follower.c -------------------------------------------------------------------------------------------- */

/* Takes a frame of the leader. Returns 1, or 0 with the reason in fault. */
int  server_take_of_leader(Server *s, const FrameHeader *h, const void *payload, char *fault);
/* Sends PART_IN for an island of which all ranks have sent END. */
void server_part_is_in(Server *s, Member *m);

/* --- server_update.c ---------------------------------------------------------------------------------------------- */

/* wait=none: applies each delta that has arrived to x, until a round ends. */
void server_count_arrivals(Server *s);
/* Refuses a member now if the norm of its delta is not finite. Its squares are known. */
void server_judge_early(Server *s, Member *m);
/* wait=all: judges the deltas and makes the new x, when no island trains any more. */
void server_close_round(Server *s);
/* Applies the step on this server's part. round: the round that follows. */
void server_step_part(Server *s, const Step *step, float *d, Exact *squares, int64_t round);

/* --- server_turns.c: only with s->streams ------------------------------------------------------------------------- */

/* Takes a frame FRAGMENT, or DELTA for the steps that no fragment has sent; and a TURN. */
void server_take_part(Server *s, Peer *p, const FrameHeader *h, const void *payload);
void server_take_turn(Server *s, Peer *p, const char *text, size_t bytes);
/* Makes the new x of each fragment that all training islands have sent. */
void server_close_turns(Server *s);
/* Applies the steps that no fragment has sent, of an island that counts as one of `islands`: x -= rest / islands. If
 * islands follow x by changes, the steps are added to the next change. */
void server_count_rest(Server *s, Member *m, int islands);
/* Ends the fragments of a round that `islands` islands count in. Returns the norm of its means. */
double server_end_turns(Server *s, int islands);
/* Returns 1 if the server has the change that a GET_CHANGE requests: of these elements, in that round. */
int    server_has_change(const Server *s, const FrameHeader *h);

#endif
