/* opening.h - how two sides of a connection prove the key to each other (comm/channel.h), as a machine over bytes: no
 * sockets, no clock, no memory of its own. */
#ifndef TRAIN_GPT_COMM_OPENING_H
#define TRAIN_GPT_COMM_OPENING_H

#include "comm/key.h"

enum {
    OPENING_HEAD_BYTES = 8,                                                      /* magic and protocol */
    OPENING_CLIENT_BYTES = OPENING_HEAD_BYTES + NONCE_BYTES,
    OPENING_SERVER_BYTES = OPENING_HEAD_BYTES + NONCE_BYTES + SEAL_BYTES,
    OPENING_MOST_BYTES = OPENING_SERVER_BYTES,
    OPENING_FAULT_BYTES = 240
};

typedef enum { OPENING_NONCE, OPENING_PROOF, OPENING_DONE } OpeningStage; /* the bytes that the opening waits for */

typedef struct {
    Side         side;          /* the side of this process */
    OpeningStage stage;
    Key          key;
    Nonce        mine, theirs;
} Opening;

typedef struct { uint8_t bytes[OPENING_MOST_BYTES]; size_t length; } OpeningReply;

/* Begins an opening. The bytes to send first are in reply; the server sends none. */
Opening opening_begin(Side side, const Key *key, OpeningReply *reply);

/* Returns how many bytes the current stage needs; 0 if the opening is done. */
size_t opening_wants(const Opening *o);

/* Takes bytes [length], those of the current stage that have arrived. Returns 1 if the stage is complete, 0 if more
 * must arrive, -1 if the peer is refused. Then the rest of a sentence is in fault, and *code is EXIT_CONFIG (another
 * key or protocol) or EXIT_PEER. In all cases reply has the bytes to send, also after a refusal, so that the peer sees
 * the reason. */
int opening_take(Opening *o, const uint8_t *bytes, size_t length, OpeningReply *reply, int *code,
                 char fault[OPENING_FAULT_BYTES]);

/* Writes the keys of the frames to the peer (out) and from it (in), after the opening is done. */
void opening_keys(const Opening *o, Key *out, Key *in);

#endif
