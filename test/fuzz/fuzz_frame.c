/* fuzz_frame.c - any bytes as the header of a frame. A header is refused, or its fields are within their bounds and
 * give the same bytes when written again. Any payload of an accepted frame can be converted to values. */
#include <stdlib.h>
#include <string.h>

#include "run/outer/messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void unpack(const FrameHeader *h, const uint8_t *payload) {
    float *values = malloc(4 * (size_t)h->elems + 1);
    if (!values) return;
    frame_unpack((FrameType)h->type, values, payload, h->elems);
    free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char        fault[FRAME_FAULT_BYTES] = "", why[MESSAGE_FAULT_BYTES] = "";
    uint8_t     again[FRAME_HEADER_BYTES];
    FrameHeader h;
    const int64_t most = 1 << 21;
    if (!frame_parse_header(data, bytes, most, &h, fault)) {
        if (!fault[0] || !memchr(fault, 0, sizeof fault)) abort();
        return 0;
    }
    frame_write_header(&h, again);
    if (memcmp(again, data, sizeof again) != 0) abort();
    if (h.kind == 0 || h.round < 0 || h.offset < 0) abort();
    if (h.elems < 0 || h.elems > most || h.offset > most - h.elems) abort();
    if (h.payload_bytes > FRAME_PAYLOAD_LIMIT) abort();
    for (int from = FROM_SERVER; from <= FROM_ISLAND; from++)
        if (!message_check(&h, (MessageFrom)from, why) && (!why[0] || !memchr(why, 0, sizeof why))) abort();
    if (h.type == FRAME_BYTES) return 0;
    if (frame_value_bytes((FrameType)h.type, h.elems) != h.payload_bytes) abort();
    if (bytes - FRAME_HEADER_BYTES >= h.payload_bytes) unpack(&h, data + FRAME_HEADER_BYTES);
    return 0;
}
