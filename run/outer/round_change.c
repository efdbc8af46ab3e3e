/* round_change.c - see round_change.h. */
#include "run/outer/round_change.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "run/outer/outer_rule.h"

FrameType round_change_type(const Config *c) {
    switch (c->outer.compress) {
        case COMPRESS_BF16: return FRAME_BF16;
        case COMPRESS_INT8: return FRAME_INT8;
        default: return FRAME_F32;
    }
}

int round_change_is_kept(const Config *c) {
    return round_change_type(c) != FRAME_F32 && c->outer.wait == WAIT_ALL;
}

/* Returns the bytes of so many elements in blocks. All blocks but the last are full, so the value is also the place of
 * the block that begins after them. */
static size_t packed_bytes(FrameType type, int64_t elems) { return (size_t)frame_value_bytes(type, elems); }

size_t round_change_bytes(const Config *c, size_t elems) {
    return round_change_is_kept(c) ? sizeof(float) * elems + packed_bytes(round_change_type(c), (int64_t)elems) : 0;
}

RoundChange round_change_create(const Config *c, const ServerWeights *w) {
    RoundChange made = {.type = FRAME_F32, .first = w->first, .elems = w->elems, .round = -1};
    if (!round_change_is_kept(c)) return made;
    made.type = round_change_type(c);
    made.rest = xcalloc((size_t)w->elems, sizeof *made.rest, "the change of a round (outer.compress)");
    made.packed = xmalloc(packed_bytes(made.type, w->elems), "the change of a round (outer.compress)");
    return made;
}

void round_change_destroy(RoundChange *c) {
    free(c->rest);
    free(c->packed);
    *c = (RoundChange){0};
}

static char  *payload_at(const RoundChange *c, int64_t offset) { return c->packed + packed_bytes(c->type, offset - c->first); }
static float *rest_at(const RoundChange *c, int64_t offset) { return c->rest + (offset - c->first); }

/* Before the step: x += rest, and rest = x as it was. */
static void begin_frame(RoundChange *c, const ServerWeights *w, Fragment f, float *x) {
    int64_t elems = f.end - f.first, offset = f.first;
    float  *rest = rest_at(c, offset);
    server_weights_read(w, WEIGHTS_X, offset, elems, x);
    for (int64_t i = 0; i < elems; i++) {
        float was = x[i];
        x[i] = was + rest[i], rest[i] = was;
    }
    server_weights_write(w, WEIGHTS_X, offset, elems, x);
}

/* After the step: change = rounded(x - was); x = was + change; rest = what x has lost by that. */
static void end_frame(RoundChange *c, const ServerWeights *w, Fragment f, float *x, float *change) {
    int64_t elems = f.end - f.first, offset = f.first;
    float  *was = rest_at(c, offset);
    char   *payload = payload_at(c, offset);
    server_weights_read(w, WEIGHTS_X, offset, elems, x);
    for (int64_t i = 0; i < elems; i++) change[i] = x[i] - was[i];
    frame_pack(c->type, payload, change, elems);
    frame_unpack(c->type, change, payload, elems); /* change = what arrives at an island */
    round_change_add(was, change, elems);
    server_weights_write(w, WEIGHTS_X, offset, elems, was);
    for (int64_t i = 0; i < elems; i++) was[i] = x[i] - was[i];
}

static void each_frame(RoundChange *c, const ServerWeights *w, Fragment all, int ends) {
    #pragma omp parallel for
    for (int64_t at = all.first; at < all.end; at += MESSAGE_ELEMS) {
        Fragment f = fragment_within(all, at, at + MESSAGE_ELEMS);
        float   *x = xmalloc(2 * sizeof *x * (size_t)(f.end - f.first), "the change of a round (outer.compress)");
        if (ends) end_frame(c, w, f, x, x + (f.end - f.first));
        else      begin_frame(c, w, f, x);
        free(x);
    }
}

void round_change_begin(RoundChange *c, const ServerWeights *w, Fragment f) {
    if (c->type != FRAME_F32) each_frame(c, w, f, 0);
}

void round_change_end(RoundChange *c, const ServerWeights *w, Fragment f, int64_t round) {
    if (c->type == FRAME_F32) return;
    each_frame(c, w, f, 1);
    c->round = round;
}

void round_change_owe(RoundChange *c, const float *d, double share) { outer_rest(c->rest, d, share, c->elems); }

void round_change_settle(RoundChange *c, const ServerWeights *w) {
    round_change_begin(c, w, server_weights_all(w));
    if (c->rest) memset(c->rest, 0, sizeof *c->rest * (size_t)c->elems);
}

const void *round_change_frame(const RoundChange *c, int64_t offset, int64_t elems) {
    int64_t from = offset - c->first, end = from + elems;
    if (c->type == FRAME_F32 || from < 0 || elems <= 0 || end > c->elems || from % INT8_BLOCK) return NULL;
    return end % INT8_BLOCK && end != c->elems ? NULL : payload_at(c, offset);
}

void round_change_add(float *x, const float *change, int64_t elems) {
    for (int64_t i = 0; i < elems; i++) x[i] += change[i];
}
