/* held_weights.c - see held_weights.h. */
#include "run/outer/held_weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/outer/round_change.h"

FrameType held_type(const Config *c) { return c->outer.wait == WAIT_NONE ? round_change_type(c) : FRAME_F32; }

size_t held_bytes(const Config *c, size_t elems) { return held_type(c) == FRAME_F32 ? 0 : sizeof(float) * elems; }

int held_begin(HeldWeights *h, FrameType type, Fragment part) {
    int64_t elems = part.end - part.first;
    *h = (HeldWeights){type, part.first, elems, 0, malloc(sizeof *h->x * (size_t)elems)};
    for (int64_t i = 0; h->x && i < elems; i++) h->x[i] = NAN; /* not sent yet: no weight is NaN */
    return h->x != NULL;
}

void held_forget(HeldWeights *h) {
    free(h->x);
    *h = (HeldWeights){0};
}

void held_fetch(HeldWeights *h, int64_t offset, const float *x, int64_t elems) {
    float *held = h->x + (offset - h->first);
    for (int64_t i = 0; i < elems; i++) h->fetched += isnan(held[i]) && !isnan(x[i]);
    memcpy(held, x, sizeof *x * (size_t)elems);
}

int held_is_whole(const HeldWeights *h) { return h->x && h->fetched >= h->elems; }

void held_change(HeldWeights *h, int64_t offset, float *x, int64_t elems, void *payload) {
    float *held = h->x + (offset - h->first);
    for (int64_t i = 0; i < elems; i++) x[i] -= held[i];
    frame_pack(h->type, payload, x, elems);
    frame_unpack(h->type, x, payload, elems); /* x = the change that arrives */
    round_change_add(held, x, elems);
}
