/* server_peers.h - the connections of a server, its peers. A peer is a rank of an island (training job), or another
 * server. Used by server.c.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_PEERS_H
#define TRAIN_GPT_RUN_OUTER_SERVER_PEERS_H

#include "run/outer/leases.h"

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
    Member   *member;       /* training job that the peer is a rank of; borrowed; NULL before HELLO */
    int       rank;         /* rank of the peer in its training job */
    int       part;         /* part of the model, if the peer is a follower (another server); PEER_LEADER for the
                             * leader; 0 for a training job */
    int       has_answer;   /* 1 if the peer is a follower (another server) and has answered the last STEP */
    Exact     squares;      /* sum of squares of the mean delta on the part of the model of this peer (another server),
                             * from its answer to a STEP message */
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
void  peers_remove(Peers *p, int i); /* closes connection number i and removes it from the list */

/* Sends a peer the message REFUSE, with an exit code for its program and the reason. No message to it follows, and what
 * it sends is dropped. */
void  peer_refuse(Peer *p, int code, const char *why);

#endif
