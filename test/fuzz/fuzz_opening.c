/* fuzz_opening.c - any bytes as a peer's opening, in parts of any size: none opens it without the key. No mutation
 * finds a proof: the first byte of the input may ask for the right one, so that the way to the end is tried, too. */
#include <stdlib.h>
#include <string.h>

#include "comm/opening.h"
#include "core/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Replaces the proof in the bytes of this stage by the right one. */
static void prove(const Opening *o, uint8_t *stage) {
    Nonce theirs = o->theirs;
    if (o->stage == OPENING_NONCE) memcpy(theirs.bytes, stage + OPENING_HEAD_BYTES, NONCE_BYTES);
    Seal   proof = o->side == SIDE_CLIENT ? key_proof(&o->key, SIDE_SERVER, &o->mine, &theirs)
                                          : key_proof(&o->key, SIDE_CLIENT, &theirs, &o->mine);
    size_t at = o->stage == OPENING_NONCE ? OPENING_SERVER_BYTES - SEAL_BYTES : 0;
    memcpy(stage + at, proof.bytes, SEAL_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    OpeningReply reply;
    char         fault[OPENING_FAULT_BYTES] = "";
    const Key    key = {{1}};
    int          code = 0;
    if (bytes < 2) return 0;
    int     is_proven = data[0] & 1, part = 1 + (data[0] >> 2);
    Side    side = data[0] & 2 ? SIDE_SERVER : SIDE_CLIENT;
    Opening o = opening_begin(side, &key, &reply);
    memset(&o.mine, 7, sizeof o.mine);
    data++, bytes--;
    for (size_t wants; (wants = opening_wants(&o)) > 0;) {
        uint8_t stage[OPENING_MOST_BYTES];
        size_t  got = wants < bytes ? wants : bytes;
        int     has_proof = o.stage == OPENING_PROOF || side == SIDE_CLIENT, taken = 0;
        if (wants > sizeof stage) abort();
        memcpy(stage, data, got);
        if (is_proven && has_proof && got == wants) prove(&o, stage);
        for (size_t length = 0; taken == 0 && length < got;) {
            length = length + (size_t)part < got ? length + (size_t)part : got;
            taken = opening_take(&o, stage, length, &reply, &code, fault);
            if (reply.length > sizeof reply.bytes) abort();
            if (taken == 1 && length < wants) abort();
        }
        if (taken == 1 && o.stage == OPENING_DONE && !is_proven) abort();
        if (taken < 0 && (!fault[0] || !memchr(fault, 0, sizeof fault))) abort();
        if (taken < 0 && code != EXIT_CONFIG && code != EXIT_PEER) abort();
        if (taken < 1) return 0;
        data += got, bytes -= got;
    }
    return 0;
}
