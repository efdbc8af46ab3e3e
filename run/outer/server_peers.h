/* server_peers.h - a server's connections: words that wait for room, weights that were asked for, and last words. For
 * server.c, which knows what the frames mean.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_PEERS_H
#define TRAIN_GPT_RUN_OUTER_SERVER_PEERS_H

#include "run/outer/members.h"
#include "run/outer/round_change.h"

enum {
    PEERS_MOST = 8192,
    PEERS_UNPROVEN = 64,     /* of these, that have not proven the key: anybody can open them */
    PEER_HELLO_MS = 30000,   /* from connection to HELLO */
    PEER_GETS_MOST = 1 << 20,
    PEER_LEADER = -1         /* the part of a server that is followed */
};

typedef struct PeerWord PeerWord;
typedef struct { MessageKind kind; /* of the answer */ int64_t round, offset, elems; } PeerGet;

/* What peers ask for. */
typedef struct {
    const ServerWeights *weights;                   /* borrowed: X */
    float               *moments[OPTIMIZER_STATES]; /* borrowed: M and V [elems]; NULL: there are none */
    const RoundChange   *change;                    /* borrowed: CHANGE */
} PeerValues;

typedef struct {
    Channel  *channel;      /* owned */
    Member   *member;       /* borrowed; NULL: no HELLO yet */
    int       rank;         /* of the island */
    int       part;         /* of a follower, or PEER_LEADER; 0: of an island */
    int       has_answer;   /* of a follower: to what it was told last */
    Exact     squares;      /* in that answer */
    double    since_ms;
    int       is_ending;    /* its last words are said */
    PeerWord *first, *last; /* owned: control messages that wait, in order */
    PeerGet  *get;          /* owned: what it asked for, from got on */
    int64_t   gets, got;
} Peer;

typedef struct {
    Peer    **peer;         /* owned [count], and each */
    int       count;
    Channel **channel;      /* owned [count + 1]: for channel_wait */
} Peers;

void  peers_destroy(Peers *p);
Peer *peers_add(Peers *p, Channel *c, double now_ms);
/* Takes connections that wait. Of those without the key the newest have the PEERS_UNPROVEN places: one that has sent
 * nothing goes first, and of these the oldest. If the newest were refused, whoever opened 64 would keep islands out. */
void  peers_accept(Peers *p, int listening, const Key *key, int64_t most_elems);
void  peers_remove(Peers *p, int i);      /* closes its connection */
void  peers_wait(Peers *p, int listening, double ms);

void  peer_say(Peer *p, MessageKind kind, int64_t round, const char *text, size_t bytes);
/* REFUSE, and the end: what it sends from now on is dropped. */
void  peer_refuse(Peer *p, int code, const char *why);
/* 0: it asks for too much at a time. */
int   peer_ask(Peer *p, PeerGet get);
/* Sends what has room. Frames of values have the GET's round. */
void  peer_send(Peer *p, PeerValues values);

#endif
