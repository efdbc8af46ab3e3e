/* opening.c - see opening.h. */
#include "comm/opening.h"

#include <stdio.h>
#include <string.h>

#include "comm/channel.h"
#include "core/error.h"

static const uint8_t MAGIC[4] = {'T', 'G', 'O', '1'};

static void append(OpeningReply *reply, const void *bytes, size_t length) {
    memcpy(reply->bytes + reply->length, bytes, length);
    reply->length += length;
}

static void append_head(OpeningReply *reply) {
    const uint8_t protocol[4] = {CHANNEL_PROTOCOL};
    append(reply, MAGIC, sizeof MAGIC);
    append(reply, protocol, sizeof protocol);
}

static Seal proof_of(const Opening *o, Side of) {
    return o->side == SIDE_CLIENT ? key_proof(&o->key, of, &o->mine, &o->theirs)
                                  : key_proof(&o->key, of, &o->theirs, &o->mine);
}

static void append_proof(OpeningReply *reply, const Opening *o) {
    Seal proof = proof_of(o, o->side);
    append(reply, proof.bytes, SEAL_BYTES);
}

Opening opening_begin(Side side, const Key *key, OpeningReply *reply) {
    Opening o = {.side = side, .key = *key, .mine = nonce_make()};
    reply->length = 0;
    if (side == SIDE_SERVER) return o;
    append_head(reply);
    append(reply, o.mine.bytes, NONCE_BYTES);
    return o;
}

size_t opening_wants(const Opening *o) {
    if (o->stage == OPENING_DONE) return 0;
    if (o->stage == OPENING_PROOF) return SEAL_BYTES;
    return o->side == SIDE_SERVER ? OPENING_CLIENT_BYTES : OPENING_SERVER_BYTES;
}

/* Judges the peer's proof. If the keys differ the client still sends its proof, so that the server can report it. */
static int judge_proof(Opening *o, const uint8_t *proof, int *code, char *fault) {
    Side side = o->side == SIDE_SERVER ? SIDE_CLIENT : SIDE_SERVER;
    Seal right = proof_of(o, side);
    o->stage = OPENING_DONE;
    if (seal_equal(&right, proof)) return 1;
    *code = EXIT_CONFIG;
    snprintf(fault, OPENING_FAULT_BYTES, "has another key (outer.key): copy the server's key file to the islands");
    return -1;
}

static int judge_head(const Opening *o, const uint8_t *bytes, OpeningReply *reply, int *code, char *fault) {
    unsigned protocol = bytes[4] | (unsigned)bytes[5] << 8 | (unsigned)bytes[6] << 16 | (unsigned)bytes[7] << 24;
    if (memcmp(bytes, MAGIC, sizeof MAGIC) != 0) {
        *code = EXIT_PEER;
        snprintf(fault, OPENING_FAULT_BYTES, "is no %s: its first bytes are not those of our protocol",
                 o->side == SIDE_SERVER ? "island" : "train_gpt server");
        return -1;
    }
    if (protocol == CHANNEL_PROTOCOL) return 1;
    if (o->side == SIDE_SERVER) append_head(reply);
    *code = EXIT_CONFIG;
    snprintf(fault, OPENING_FAULT_BYTES,
             "speaks protocol %u, this program protocol %d: use the same train_gpt on both sides", protocol,
             CHANNEL_PROTOCOL);
    return -1;
}

int opening_take(Opening *o, const uint8_t *bytes, size_t length, OpeningReply *reply, int *code,
                 char fault[OPENING_FAULT_BYTES]) {
    reply->length = 0;
    if (o->stage == OPENING_NONCE) {
        if (length >= OPENING_HEAD_BYTES && judge_head(o, bytes, reply, code, fault) < 0) return -1;
        if (length < opening_wants(o)) return 0;
        memcpy(o->theirs.bytes, bytes + OPENING_HEAD_BYTES, NONCE_BYTES);
        if (o->side == SIDE_SERVER) {
            append_head(reply);
            append(reply, o->mine.bytes, NONCE_BYTES);
            append_proof(reply, o);
            o->stage = OPENING_PROOF;
            return 1;
        }
        append_proof(reply, o);
        return judge_proof(o, bytes + OPENING_HEAD_BYTES + NONCE_BYTES, code, fault);
    }
    if (length < opening_wants(o)) return 0;
    return judge_proof(o, bytes, code, fault);
}

void opening_keys(const Opening *o, Key *out, Key *in) {
    const Nonce *client = o->side == SIDE_CLIENT ? &o->mine : &o->theirs;
    const Nonce *server = o->side == SIDE_CLIENT ? &o->theirs : &o->mine;
    Side         peer = o->side == SIDE_CLIENT ? SIDE_SERVER : SIDE_CLIENT;
    *out = key_direction(&o->key, peer, client, server);
    *in = key_direction(&o->key, o->side, client, server);
}
