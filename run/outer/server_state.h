/* server_state.h - the state that the files of the server share, and its connections. Besides these files only tests
 * include this.
 *   server.c        creates the server, runs its loop, opens and ends rounds
 *   server_peers.c  connections, and the messages of islands
 *   server_parts.c  several servers: the leader's side and a follower's
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_STATE_H
#define TRAIN_GPT_RUN_OUTER_SERVER_STATE_H

#include "run/outer/leases.h"
#include "run/outer/server.h"

/* --- connections -------------------------------------------------------------------------------------------------- */

enum {
    PEERS_MOST = 8192,
    PEERS_UNPROVEN = 64,     /* most connections whose peer has not proven that it has the key; anybody can open one */
    PEER_HELLO_MS = 30000,   /* a peer must send HELLO within this time after it connects */
    PEER_GETS_MOST = 1 << 20,
    PEER_LEADER = -1         /* value of Peer.part on a follower for its connection to the leader (the first server) */
};

/* A request of a peer for weights. kind: kind of the message that answers it. */
typedef struct { MessageKind kind; int64_t round, offset, elems; } PeerGet;

typedef struct {
    Channel  *channel;      /* connection to the peer; owned */
    Member   *member;       /* island that the peer is a rank of; borrowed; NULL before HELLO */
    int       rank;         /* rank of the peer in its island */
    int       part;         /* part of the model, if the peer is a follower (another server); PEER_LEADER for the
                             * leader; 0 for an island */
    int       has_answer;   /* 1 if the peer is a follower (another server) and has answered the last STEP */
    Exact     squares;      /* sum of squares in the follower's answer to a STEP message */
    double    since_ms;     /* time by clock_ms() when the peer connected */
    int       is_ending;    /* 1 after a REFUSE message; no more frames of the peer are read */
    PeerGet  *get;          /* requests of the peer for values; those from index `got` on are not answered
                             * completely; owned */
    int64_t   gets, got;    /* number of requests in `get`; number of requests answered completely */
} Peer;

typedef struct {
    Peer    **peer;         /* [count] connections of the server; list and entries are owned */
    int       count;
    Channel **channel;      /* [count + 1] the channels of all peers, as argument of channel_wait; owned */
} Peers;

void  peers_destroy(Peers *p);
Peer *peers_add(Peers *p, Channel *c);
/* Accepts pending connections. At most PEERS_UNPROVEN peers may have not yet proven that they have the key. If there
 * are more, the oldest peer that has sent nothing is dropped first. If new peers were refused instead, anybody who
 * opened 64 connections would keep islands out. */
void  peers_accept(Peers *p, int listening, const Key *key, int64_t most_elems);
void  peers_wait(Peers *p, int listening, double ms);

/* --- the server --------------------------------------------------------------------------------------------------- */

struct Server {
    ServerParts parts;
    Key         key;
    int         listening;               /* descriptor of the socket that accepts connections */
    Leases      leases;
    Members     members;
    Peers       peers;
    OuterRule   rule;
    int64_t     elems, every, tokens;    /* number of parameters of the model; optimizer steps of a round; tokens of
                                          * completed rounds */
    double      patience_ms, round_began_ms, looked_ms; /* outer.patience_seconds in ms; time when the round began; time
                                                         * when server_turn last ended */
    int64_t     round_tokens, staleness; /* tokens of the deltas that have counted in the open round; their greatest
                                          * age, in rounds */
    double      round_loss;              /* sum of the losses of the counted deltas, each weighted by its tokens */
    double      norm;                    /* outer.send=gradients: norm of the last gradient */
    ServerWeights whole, weights;        /* whole: the whole model, on the first server. weights: the part of this
                                          * server */
    RoundChange change;                  /* outer.compress: rounded change of this server's part of the weights in the
                                          * last round */
    Peer      **follower;                /* first server (leader): [parts] connections to the other servers; NULL if not
                                          * connected, and for part 0; owned list */
    Peer       *leader;                  /* connection of a follower (server other than the first) to the leader (first
                                          * server) */
    Member    **counted;                 /* [counts] the islands whose deltas the next step applies; owned list */
    double     *weight;                  /* [counts] weights of the deltas in `counted`; owned */
    int         counts;                  /* number of entries in each of the lists `counted` and `weight` */
    int64_t     had;                     /* number of values of weights and optimizer state (STATE messages) that have
                                          * arrived */
    int         is_dismissed, code;      /* is_dismissed: 1 once the message OVER was sent or received. code: the exit
                                          * code in it */
    int         lingers;                 /* 1 after server_linger, when the run is over and saved; a server that
                                          * disconnects is then no fault */
    double      pinged_ms, made_ms;      /* time of the last PING to the leader; time when this server was created */
    ServerRound over;                    /* numbers of the round that ended last */
    int         is_over;                 /* 1 from the end of a round until server_turn or server_end_round has returned
                                          * `over` */
};

static inline int server_leads(const Server *s) { return s->parts.part == 0; }

/* --- server.c */

/* Refuses an island if the norm of its delta is not finite. Called as soon as the sum of squares of the delta is
 * known. */
void server_judge_early(Server *s, Member *m);
/* Adds the delta of an island to those that the next step applies, with this weight. */
void server_count(Server *s, Member *m, double weight);
/* Applies a STEP message to this server's part of the model, with the deltas that were counted. Adds the sum of squares
 * that the step computes to *squares. */
void server_step_part(Server *s, const Step *step, Exact *squares);

/* --- server_peers.c */

/* Refuses an island. All its connections end with the sentence `why`, and what it has sent does not count. */
void server_refuse_member(Server *s, Member *m, int code, const char *why);
/* Records that an island has left or is lost. why: the reason, for the log. */
void server_lose_member(Server *s, Member *m, const char *why);
/* Closes the connections of an island that is gone, except the connection `but`. */
void server_drop_connections(Server *s, const Member *m, const Peer *but);
/* Makes the samples of a lease free again. lease -1: does nothing. */
void server_take_back(Server *s, int64_t lease);
void server_say_closed(Server *s, Member *m, int islands, double norm, int64_t staleness);
/* Reads what connection number i has sent, and sends to it. Returns 0 if a connection was removed from the list; the
 * caller must then read the list again. */
int  server_serve_peer(Server *s, int i);
/* Returns the connection of rank 0 of the island, or NULL. */
Peer *server_first_rank(const Server *s, const Member *m);
/* Compares the config of another program with the config of this server. Returns 1 if values that must be equal differ,
 * with the differences in why [bytes]. */
int  server_config_differs(const Server *s, const cJSON *there, char *why, size_t bytes);

/* --- server_parts.c: the leader of several servers */

/* Handle messages of a follower, a server other than the first. server_take_follow handles the FOLLOW message of a new
 * connection. server_take_of_follower handles every later message. Both return 1, or 0 if the message is refused, with
 * the reason in fault [MESSAGE_FAULT_BYTES]. */
int  server_take_follow(Server *s, Peer *p, const void *payload, size_t bytes, char *fault);
int  server_take_of_follower(Server *s, Peer *p, const FrameHeader *h, const void *payload, char *fault);
/* Ends the program because another server, with its part of the model, is lost. */
void server_lose_follower(const Peer *p, const char *why);
void server_look_at_followers(Server *s);
int  server_is_whole(const Server *s);
/* Sends a message to all other servers, without waiting for an answer. */
void server_tell(Server *s, MessageKind kind, const void *m);
/* Applies a step to all parts of the model. Waits until all other servers have done it, and adds their sums of squares
 * to *squares. */
void server_order(Server *s, const Step *step, Exact *squares);

/* --- server_parts.c: a follower */

/* Returns 1 if all values of this server's part have arrived from the first server. */
int  server_has_part(const Server *s);
/* Handles a frame that the first server (the leader) sent. Returns 1, or 0 with the reason in fault. */
int  server_take_of_leader(Server *s, const FrameHeader *h, const void *payload, char *fault);

#endif
