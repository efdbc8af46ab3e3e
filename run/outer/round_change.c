/* round_change.c - see round_change.h. */
#include "run/outer/round_change.h"

#include <stdlib.h>

FrameType round_change_type(const Config *c) {
    switch (c->outer.compress) {
        case COMPRESS_BF16: return FRAME_BF16;
        case COMPRESS_INT8: return FRAME_INT8;
        default: return FRAME_F32;
    }
}

int round_change_is_kept(const Config *c) {
    return round_change_type(c) != FRAME_F32 && c->outer.wait == WAIT_ALL && !c->outer.stream;
}

static int64_t frames_of(int64_t elems) { return (elems + MESSAGE_ELEMS - 1) / MESSAGE_ELEMS; }

/* Frames but the last are full, so each begins where so many elements before it end. */
static size_t packed_bytes(FrameType type, int64_t elems) {
    int64_t full = elems / MESSAGE_ELEMS;
    return (size_t)(full * frame_value_bytes(type, MESSAGE_ELEMS) + frame_value_bytes(type, elems % MESSAGE_ELEMS));
}

size_t round_change_bytes(const Config *c, size_t elems) {
    return round_change_is_kept(c) ? sizeof(float) * elems + packed_bytes(round_change_type(c), (int64_t)elems) : 0;
}

RoundChange round_change_create(const Config *c, const Served *w) {
    RoundChange made = {.type = FRAME_F32, .first = w->first, .elems = w->elems, .round = -1};
    if (!round_change_is_kept(c)) return made;
    made.type = round_change_type(c);
    made.rest = (float *)calloc((size_t)w->elems, sizeof *made.rest);
    made.packed = (char *)malloc(packed_bytes(made.type, w->elems));
    if (!made.rest || !made.packed) fail(EXIT_MEMORY, "no memory for the change of a round (outer.compress)");
    return made;
}

void round_change_destroy(RoundChange *c) {
    free(c->rest);
    free(c->packed);
    *c = (RoundChange){0};
}

static int64_t elems_of(const RoundChange *c, int64_t frame) {
    int64_t left = c->elems - frame * MESSAGE_ELEMS;
    return left < MESSAGE_ELEMS ? left : MESSAGE_ELEMS;
}

static char *payload_of(const RoundChange *c, int64_t frame) {
    return c->packed + (size_t)frame * (size_t)frame_value_bytes(c->type, MESSAGE_ELEMS);
}

/* x += rest, and rest = x as it was. */
static void begin_frame(RoundChange *c, const Served *w, int64_t frame, float *x) {
    int64_t elems = elems_of(c, frame), offset = c->first + frame * MESSAGE_ELEMS;
    float  *rest = c->rest + frame * MESSAGE_ELEMS;
    served_read(w, WEIGHTS_X, offset, elems, x);
    for (int64_t i = 0; i < elems; i++) {
        float was = x[i];
        x[i] = was + rest[i], rest[i] = was;
    }
    served_write(w, WEIGHTS_X, offset, elems, x);
}

/* change = rounded(x - was); x = was + change; rest = what x has lost by that. */
static void end_frame(RoundChange *c, const Served *w, int64_t frame, float *x, float *change) {
    int64_t elems = elems_of(c, frame), offset = c->first + frame * MESSAGE_ELEMS;
    float  *was = c->rest + frame * MESSAGE_ELEMS;
    served_read(w, WEIGHTS_X, offset, elems, x);
    for (int64_t i = 0; i < elems; i++) change[i] = x[i] - was[i];
    frame_pack(c->type, payload_of(c, frame), change, elems);
    frame_unpack(c->type, change, payload_of(c, frame), elems); /* as it arrives */
    round_change_add(was, change, elems);
    served_write(w, WEIGHTS_X, offset, elems, was);
    for (int64_t i = 0; i < elems; i++) was[i] = x[i] - was[i];
}

static void each_frame(RoundChange *c, const Served *w, int ends) {
    #pragma omp parallel for
    for (int64_t frame = 0; frame < frames_of(c->elems); frame++) {
        float *x = (float *)malloc(2 * sizeof *x * MESSAGE_ELEMS);
        if (!x) fail(EXIT_MEMORY, "no memory for the change of a round (outer.compress)");
        if (ends) end_frame(c, w, frame, x, x + MESSAGE_ELEMS);
        else      begin_frame(c, w, frame, x);
        free(x);
    }
}

void round_change_begin(RoundChange *c, const Served *w) {
    if (c->type != FRAME_F32) each_frame(c, w, 0);
}

void round_change_end(RoundChange *c, const Served *w, int64_t round) {
    if (c->type == FRAME_F32) return;
    each_frame(c, w, 1);
    c->round = round;
}

const void *round_change_frame(const RoundChange *c, int64_t offset, int64_t elems) {
    int64_t from = offset - c->first, frame = from / MESSAGE_ELEMS;
    if (c->type == FRAME_F32 || from < 0 || from >= c->elems || from % MESSAGE_ELEMS) return NULL;
    return elems == elems_of(c, frame) ? payload_of(c, frame) : NULL;
}

void round_change_add(float *x, const float *change, int64_t elems) {
    for (int64_t i = 0; i < elems; i++) x[i] += change[i];
}
