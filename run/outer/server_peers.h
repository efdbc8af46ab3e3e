/* server_peers.h - a server's connections: the messages that wait for space in a channel, the weights that were
 * requested, and the end of a connection. For server.c, which knows what the frames mean.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_PEERS_H
#define TRAIN_GPT_RUN_OUTER_SERVER_PEERS_H

#include "run/outer/members.h"
#include "run/outer/round_change.h"

enum {
    PEERS_MOST = 8192,
    PEERS_UNPROVEN = 64,     /* most peers that have not proven the key: anybody can open a connection */
    PEER_HELLO_MS = 30000,   /* from connection to HELLO */
    PEER_GETS_MOST = 1 << 20,
    PEER_LEADER = -1         /* `part` of the leader, on a follower */
};

typedef struct PeerWord PeerWord;
typedef struct { MessageKind kind; /* kind of the answer */ int64_t round, offset, elems; } PeerGet;

/* The values that peers can request. */
typedef struct {
    const ServerWeights *weights;                   /* source of X; borrowed */
    float               *moments[ADAMW_STATES]; /* [elems] sources of M and V; borrowed. NULL if there are none */
    const RoundChange   *change;                    /* source of CHANGE; borrowed */
} PeerValues;

typedef struct {
    Channel  *channel;      /* owned */
    Member   *member;       /* borrowed; NULL before HELLO */
    int       rank;         /* rank in the island */
    int       part;         /* part of a follower, or PEER_LEADER; 0 for an island */
    int       has_answer;   /* follower: it has answered the last STEP */
    Exact     squares;      /* follower: sum of squares in that answer */
    double    since_ms;     /* when it connected */
    int       is_ending;    /* REFUSE is sent, or waits to be sent: no more frames are read */
    PeerWord *first, *last; /* control messages that wait to be sent, in order; owned */
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
void  peers_remove(Peers *p, int i);      /* closes the connection of peer i */
void  peers_wait(Peers *p, int listening, double ms);

void  peer_say(Peer *p, MessageKind kind, int64_t round, const char *text, size_t bytes);
/* Sends REFUSE, the last message to this peer. Everything that it sends from now on is dropped. */
void  peer_refuse(Peer *p, int code, const char *why);
/* Adds a request. Returns 0 if the peer has too many. */
int   peer_ask(Peer *p, PeerGet get);
/* Sends what the channel has space for. Frames of values have the round of their GET. */
void  peer_send(Peer *p, PeerValues values);

#endif
