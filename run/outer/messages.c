/* messages.c - see messages.h. The check of frame headers by kind. The JSON is in messages_json.c and
 * messages_servers.c. */
#include "run/outer/messages.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/error.h"

/* A kind: its name, who may send it, and what its payload holds. */
typedef enum { HOLDS_JSON, HOLDS_NOTHING, HOLDS_VALUES, HOLDS_F32 } Holds;
typedef struct { const char *name; unsigned from; Holds holds; } Kind;

enum { SERVER = 1 << FROM_SERVER, ISLAND = 1 << FROM_ISLAND, FOLLOWER = 1 << FROM_FOLLOWER, LEADER = 1 << FROM_LEADER };
static const char *const SENDERS[] = {"server", "island", "follower", "leader"};

static const Kind KINDS[MESSAGE_KINDS] = {
    [MESSAGE_HELLO] = {"HELLO", ISLAND, HOLDS_JSON},
    [MESSAGE_WELCOME] = {"WELCOME", SERVER, HOLDS_JSON},
    [MESSAGE_REFUSE] = {"REFUSE", SERVER | LEADER, HOLDS_JSON},
    [MESSAGE_OPEN] = {"OPEN", SERVER, HOLDS_JSON},
    [MESSAGE_GET] = {"GET", ISLAND, HOLDS_NOTHING},
    [MESSAGE_X] = {"X", SERVER, HOLDS_F32},
    [MESSAGE_DELTA] = {"DELTA", ISLAND, HOLDS_VALUES},
    [MESSAGE_END] = {"END", ISLAND, HOLDS_JSON},
    [MESSAGE_CLOSED] = {"CLOSED", SERVER, HOLDS_JSON},
    [MESSAGE_PING] = {"PING", SERVER | ISLAND | FOLLOWER | LEADER, HOLDS_NOTHING},
    [MESSAGE_BYE] = {"BYE", ISLAND, HOLDS_JSON},
    [MESSAGE_M] = {"M", SERVER | ISLAND, HOLDS_F32},
    [MESSAGE_V] = {"V", SERVER | ISLAND, HOLDS_F32},
    [MESSAGE_GIVEN] = {"GIVEN", ISLAND, HOLDS_JSON},
    [MESSAGE_MOMENTS] = {"MOMENTS", SERVER, HOLDS_JSON},
    [MESSAGE_GET_M] = {"GET_M", ISLAND, HOLDS_NOTHING},
    [MESSAGE_GET_V] = {"GET_V", ISLAND, HOLDS_NOTHING},
    [MESSAGE_FRAGMENT] = {"FRAGMENT", ISLAND, HOLDS_VALUES},
    [MESSAGE_TURN] = {"TURN", ISLAND, HOLDS_JSON},
    [MESSAGE_TURNED] = {"TURNED", SERVER, HOLDS_JSON},
    [MESSAGE_FOLLOW] = {"FOLLOW", FOLLOWER, HOLDS_JSON},
    [MESSAGE_STATE] = {"STATE", FOLLOWER | LEADER, HOLDS_F32},
    [MESSAGE_PART_IN] = {"PART_IN", FOLLOWER, HOLDS_JSON},
    [MESSAGE_COUNT] = {"COUNT", LEADER, HOLDS_JSON},
    [MESSAGE_DROP] = {"DROP", LEADER, HOLDS_JSON},
    [MESSAGE_STEP] = {"STEP", LEADER, HOLDS_JSON},
    [MESSAGE_STEPPED] = {"STEPPED", FOLLOWER, HOLDS_JSON},
    [MESSAGE_COLLECT] = {"COLLECT", LEADER, HOLDS_NOTHING},
    [MESSAGE_OVER] = {"OVER", LEADER, HOLDS_JSON},
    [MESSAGE_GET_CHANGE] = {"GET_CHANGE", ISLAND, HOLDS_NOTHING},
    [MESSAGE_CHANGE] = {"CHANGE", SERVER, HOLDS_VALUES},
};

const char *message_name(int kind) { return kind > 0 && kind < MESSAGE_KINDS ? KINDS[kind].name : "?"; }

MessageKind message_answer(int kind) {
    switch (kind) {
        case MESSAGE_GET:   return MESSAGE_X;
        case MESSAGE_GET_M: return MESSAGE_M;
        case MESSAGE_GET_V: return MESSAGE_V;
        case MESSAGE_GET_CHANGE: return MESSAGE_CHANGE;
        default:            return (MessageKind)0;
    }
}

static int refuse(char *fault, const char *fmt, ...) PRINTF_LIKE(2, 3);
static int refuse(char *fault, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault, MESSAGE_FAULT_BYTES, fmt, args);
    va_end(args);
    return 0;
}

static int check_values(const FrameHeader *h, const Kind *kind, char *fault) {
    if (h->type == FRAME_BYTES || (kind->holds == HOLDS_F32 && h->type != FRAME_F32))
        return refuse(fault, "sent %s with values of type %d", kind->name, h->type);
    if (h->elems < 1 || h->elems > MESSAGE_ELEMS)
        return refuse(fault, "sent %s with %lld values: 1 to %d are allowed", kind->name, (long long)h->elems,
                      MESSAGE_ELEMS);
    return 1;
}

int message_check(const FrameHeader *h, MessageFrom from, char fault[MESSAGE_FAULT_BYTES]) {
    const Kind *kind = h->kind < MESSAGE_KINDS ? &KINDS[h->kind] : NULL;
    if (!kind || !kind->name || !(kind->from & 1u << from))
        return refuse(fault, "sent a message of kind %d (%s), which no %s sends", h->kind, message_name(h->kind),
                      SENDERS[from]);
    if (kind->holds == HOLDS_VALUES || kind->holds == HOLDS_F32) return check_values(h, kind, fault);
    if (h->type != FRAME_BYTES) return refuse(fault, "sent %s with values of type %d", kind->name, h->type);
    if (kind->holds == HOLDS_JSON && (h->payload_bytes < 2 || h->payload_bytes > MESSAGE_JSON_LIMIT))
        return refuse(fault, "sent %s of %u bytes: 2 to %d are allowed", kind->name, h->payload_bytes,
                      MESSAGE_JSON_LIMIT);
    if (kind->holds == HOLDS_NOTHING && h->payload_bytes != 0)
        return refuse(fault, "sent %s of %u bytes: it holds none", kind->name, h->payload_bytes);
    if (message_answer(h->kind) && h->elems < 1)
        return refuse(fault, "sent %s for %lld values", kind->name, (long long)h->elems);
    if (message_answer(h->kind)) return 1;
    if (h->offset != 0 || h->elems != 0)
        return refuse(fault, "sent %s with offset %lld and %lld values: both must be 0", kind->name,
                      (long long)h->offset, (long long)h->elems);
    return 1;
}

int message_send(Channel *c, MessageKind kind, int64_t round, const char *text, size_t bytes) {
    FrameHeader h = {.kind = (uint8_t)kind, .type = FRAME_BYTES, .round = round};
    h.payload_bytes = text ? (uint32_t)bytes : 0;
    return channel_send(c, h, text);
}
