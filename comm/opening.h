/* opening.h - how two sides of a connection prove the key to each other (comm/channel.h), as a machine over bytes: no
 * sockets, no clock, no memory of its own. */
#ifndef TRAIN_GPT_COMM_OPENING_H
#define TRAIN_GPT_COMM_OPENING_H

#include "comm/key.h"

enum {
    OPENING_HEAD_BYTES = 8,                                                      /* magic, protocol */
    OPENING_CLIENT_BYTES = OPENING_HEAD_BYTES + NONCE_BYTES,
    OPENING_SERVER_BYTES = OPENING_HEAD_BYTES + NONCE_BYTES + SEAL_BYTES,
    OPENING_MOST_BYTES = OPENING_SERVER_BYTES,
    OPENING_FAULT_BYTES = 240
};

typedef enum { OPENING_NONCE, OPENING_PROOF, OPENING_DONE } OpeningStage; /* the bytes that it waits for */

typedef struct {
    Side         side;          /* this one */
    OpeningStage stage;
    Key          key;
    Nonce        mine, theirs;
} Opening;

typedef struct { uint8_t bytes[OPENING_MOST_BYTES]; size_t length; } OpeningReply;

/* The bytes to send first are in reply: the server sends none. */
Opening opening_begin(Side side, const Key *key, OpeningReply *reply);

/* Bytes of the stage that it is in; 0: done. */
size_t opening_wants(const Opening *o);

/* bytes [length]: those of this stage that have come. Returns 1: the stage is over; 0: more must come; -1: refused, the
 * rest of a sentence is in fault, *code is EXIT_CONFIG (another key or protocol) or EXIT_PEER. In all cases the bytes
 * to send are in reply: also of a refusal, so that the peer sees the reason. */
int opening_take(Opening *o, const uint8_t *bytes, size_t length, OpeningReply *reply, int *code,
                 char fault[OPENING_FAULT_BYTES]);

/* The keys of the frames to the peer and from it; when done. */
void opening_keys(const Opening *o, Key *out, Key *in);

#endif
