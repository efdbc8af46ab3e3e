/* island_moments.c - sends the optimizer's moments from one island to another through the server (outer.moments=peer).
 * See island_state.h.
 */
#include "core/error.h"
#include "run/outer/island_state.h"

static const MessageKind SENT[ADAMW_STATES] = {MESSAGE_M, MESSAGE_V};
static const MessageKind ASKED[ADAMW_STATES] = {MESSAGE_GET_M, MESSAGE_GET_V};

static int is_packed(const Link *l) { return !l->send.is_on; }
static int is_answered(const Link *l) { return l->rank > 0 || l->has_moments || l->is_put_off; }

int island_wants_moments(const Island *s) { return s->updates == 0 && s->parts.config->outer.moments == MOMENTS_PEER; }

Awaited island_give_moments(Island *s) {
    Link *l = s->link;
    char  text[MESSAGE_TEXT];
    Given given = {s->updates};
    for (int k = 0; k < ADAMW_STATES; k++) {
        round_copy_state(&s->copy, k);
        link_send_moments(l, SENT[k]);
        Awaited now = island_await(s, is_packed, 1);
        l->send.is_on = 0;
        if (now != MET) return now;
    }
    link_say(l, MESSAGE_GIVEN, l->open.round, text, given_write(&given, text));
    return MET;
}

/* Fetches both moments. If the second fails, the first is cleared too. */
static Awaited fetch_moments(Island *s) {
    for (int k = 0; k < ADAMW_STATES; k++) {
        Awaited now = island_fetch(s, ASKED[k], s->link->open.round);
        if (now != MET) {
            optimizer_zero_states(s->parts.optimizer, s->parts.stream);
            return now;
        }
        round_copy_put_state(&s->copy, k);
    }
    s->updates = s->peer_updates = s->link->moments.updates;
    return MET;
}

Awaited island_take_moments(Island *s) {
    Link   *l = s->link;
    Awaited now = island_await(s, is_answered, 1);
    if (now != MET) return now;
    int64_t is_put_off = l->is_put_off;
    comm_broadcast(s->parts.comm, &is_put_off, sizeof is_put_off, 0);
    l->is_put_off = 0; /* another OPEN and its MOMENTS may arrive after this */
    if (is_put_off) return LATER;
    comm_broadcast(s->parts.comm, &l->moments, sizeof l->moments, 0);
    l->has_moments = 0;
    return l->moments.updates > 0 ? fetch_moments(s) : MET;
}
