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
    PEERS_UNPROVEN = 64,     /* most peers that have not proven the key: anybody can open a connection */
    PEER_HELLO_MS = 30000,   /* from connection to HELLO */
    PEER_GETS_MOST = 1 << 20,
    PEER_LEADER = -1         /* `part` of the leader, on a follower */
};

typedef struct PeerMessage PeerMessage;
typedef struct { MessageKind kind; /* kind of the answer */ int64_t round, offset, elems; } PeerGet;

typedef struct {
    Channel  *channel;      /* owned */
    Member   *member;       /* borrowed; NULL before HELLO */
    int       rank;         /* rank in the island */
    int       part;         /* part of a follower, or PEER_LEADER; 0 for an island */
    int       has_answer;   /* follower: it has answered the last STEP */
    Exact     squares;      /* follower: sum of squares in that answer */
    double    since_ms;     /* when it connected */
    int       is_ending;    /* REFUSE is sent, or waits to be sent: no more frames are read */
    PeerMessage *first, *last; /* control messages that wait to be sent, in order; owned */
    PeerGet  *get;          /* requests; those from `got` on are not answered completely; owned */
    int64_t   gets, got;    /* requests in get; those answered completely */
} Peer;

typedef struct {
    Peer    **peer;         /* [count] list and peers; owned */
    int       count;
    Channel **channel;      /* [count + 1] for channel_wait; owned */
} Peers;

void  peers_destroy(Peers *p);
Peer *peers_add(Peers *p, Channel *c, double now_ms);
/* Accepts connections that wait. The newest peers without the key have the PEERS_UNPROVEN places. When a place is
 * needed, a peer that has sent nothing is dropped first, and of these the oldest. If the newest were refused instead,
 * whoever opened 64 connections would keep islands out. */
void  peers_accept(Peers *p, int listening, const Key *key, int64_t most_elems);
void  peers_wait(Peers *p, int listening, double ms);

/* Sends a message, or lets it wait for space. m is the struct of its kind; NULL for an empty payload. */
void  peer_say(Peer *p, MessageKind kind, int64_t round, const void *m);
/* Sends what the channel has space for: messages that wait, then values that were requested. Frames of values have the
 * round of their GET. */
void  peer_send(Server *s, Peer *p);

/* --- the server --------------------------------------------------------------------------------------------------- */

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
    Member    **counted;                 /* [counts] the islands whose deltas the next step applies; owned list */
    double     *weight;                  /* [counts] their weights; owned */
    int         counts;                  /* length of counted and weight */
    int64_t     had;                     /* values of STATE that have arrived */
    int         is_dismissed, code;      /* the leader has sent, or this follower has received, OVER with this code */
    int         lingers;                 /* the run is over and saved: server_linger */
    double      pinged_ms, made_ms;      /* when the leader was last pinged; when the server was created */
    ServerRound over;                    /* the round that ended last */
    int         is_over;                 /* 1 until server_turn has returned over */
};

static inline int server_leads(const Server *s) { return s->parts.part == 0; }

/* --- server.c */

/* Refuses a member now if the norm of its delta is not finite. Its squares are known. */
void server_judge_early(Server *s, Member *m);
/* Adds the delta of an island to those that the next step applies. */
void server_count(Server *s, Member *m, double weight);
/* Applies the step to this server's part, with the deltas that were counted. Adds to *squares as server_weights_step
 * does. */
void server_step_part(Server *s, const Step *step, Exact *squares);

/* --- server_peers.c */

/* Refuses an island. All its connections end with this sentence, and what it has sent does not count. */
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
/* Returns the connection of the island's rank 0, or NULL. */
Peer *server_first_rank(const Server *s, const Member *m);
/* Compares another program's config with this server's. Returns 1 if they differ where they must agree, with the
 * differences in why [bytes]. */
int  server_config_differs(const Server *s, const cJSON *there, char *why, size_t bytes);

/* --- server_parts.c: the leader of several servers */

/* Messages of a follower. server_take_follow takes the FOLLOW of a new connection: it returns 1, or 0 if the peer is
 * refused, with the reason in fault [MESSAGE_FAULT_BYTES]. server_take_of_follower takes everything after that, and
 * returns the same. */
int  server_take_follow(Server *s, Peer *p, const void *payload, size_t bytes, char *fault);
int  server_take_of_follower(Server *s, Peer *p, const FrameHeader *h, const void *payload, char *fault);
/* Ends the program, because a part of the model is lost. */
void server_lose_follower(const Peer *p, const char *why);
void server_look_at_followers(Server *s);
int  server_is_whole(const Server *s);
/* Sends a message to all followers, without waiting for an answer. */
void server_tell(Server *s, MessageKind kind, const void *m);
/* Applies the step to all parts. Waits until all followers have done it, and adds their sums of squares to *squares. */
void server_order(Server *s, const Step *step, Exact *squares);

/* --- server_parts.c: a follower */

/* Returns 1 if the values of its part have arrived. */
int  server_has_part(const Server *s);
/* Takes a frame of the leader. Returns 1, or 0 with the reason in fault. */
int  server_take_of_leader(Server *s, const FrameHeader *h, const void *payload, char *fault);
/* Sends PART_IN for an island of which all ranks have sent END. */
void server_part_is_in(Server *s, Member *m);

#endif
