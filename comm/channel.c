/* channel.c - see channel.h; connecting is in channel_connect.c. */
#include "comm/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/opening.h"
#include "comm/socket.h"
#include "core/thread.h"
#include "core/error.h"

enum { DROPS = 64 /* reads of 64 KiB in a call while the channel ends */, DROP_BYTES = 1 << 16, WAKE_BYTES = 1 << 15 };

typedef enum {
    CHANNEL_WHOLE,
    CHANNEL_MUTE,  /* the peer accepts no more; what it has sent may still be read */
    CHANNEL_BROKEN
} ChannelState;

struct Channel {
    int          fd;
    ChannelState state;
    char         peer[CHANNEL_PEER_BYTES];
    ChannelFault fault;
    Opening      opening;
    int          is_open;
    int          is_ending, is_shut;     /* channel_end was called; the sending direction is closed */
    double       until;                  /* deadline of the opening, later of the end */
    double       heard;
    uint64_t     sent, received;
    Key          key_in, key_out;
    uint64_t     counter_in, counter_out;
    int64_t      most_elems;
    uint8_t     *in;                     /* the bytes of one stage of the opening, later of one frame */
    size_t       in_bytes;
    int          wakes_at;               /* a wait ends when the socket holds this many bytes */
    FrameHeader  header;                 /* header of the frame in `in`, set once its header has arrived */
    int          is_ready, is_given;     /* the frame is whole and its seal is right; channel_next has returned it */
    uint8_t     *out;                    /* [out_capacity]: bytes from out_from to out_to are unsent */
    size_t       out_capacity, out_from, out_to;
    /* used before the peer has proven the key */
    uint8_t      small_in[OPENING_MOST_BYTES], small_out[2 * OPENING_MOST_BYTES];
};

/* --- its end ------------------------------------------------------------------------------------------------------ */

/* Breaks the channel and keeps the first fault. Returns -1. */
static int break_channel(Channel *c, ChannelState state, int code, const char *fmt, ...) PRINTF_LIKE(4, 5);
static int break_channel(Channel *c, ChannelState state, int code, const char *fmt, ...) {
    char    text[sizeof c->fault.text - CHANNEL_PEER_BYTES - 1];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (c->state == CHANNEL_WHOLE) channel_fault_set(&c->fault, code, "%s %s", c->peer, text);
    c->state = state;
    return -1;
}

static void free_buffers(Channel *c) {
    if (c->in != c->small_in) free(c->in);
    if (c->out != c->small_out) free(c->out);
}

void channel_close(Channel *c) {
    uint8_t dropped[4096];
    if (!c) return;
    /* If bytes stay unread, the system drops what it still has to send. */
    shutdown(c->fd, SHUT_WR);
    for (int i = 0; i < DROPS && recv(c->fd, dropped, sizeof dropped, MSG_DONTWAIT) > 0; i++) {}
    close(c->fd);
    free_buffers(c);
    explicit_bzero(c, sizeof *c);
    free(c);
}

void channel_end(Channel *c) {
    if (c->is_ending) return;
    c->is_ending = 1, c->is_ready = c->is_given = 0, c->in_bytes = 0;
    c->until = clock_ms() + CHANNEL_OPENING_MS;
    channel_progress(c);
}

/* --- out ---------------------------------------------------------------------------------------------------------- */

static void write_out(Channel *c) {
    while (c->state == CHANNEL_WHOLE && c->out_from < c->out_to) {
        ssize_t n = send(c->fd, c->out + c->out_from, c->out_to - c->out_from, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n < 0) break_channel(c, CHANNEL_MUTE, EXIT_PEER, "is lost: %s", strerror(errno));
        else c->out_from += (size_t)n, c->sent += (uint64_t)n;
    }
    c->out_from = c->out_to = 0;
    if (c->is_ending && !c->is_shut) c->is_shut = 1, shutdown(c->fd, SHUT_WR);
}

/* Returns the place for `bytes` bytes at the end of the out buffer, or NULL if they do not fit. */
static uint8_t *room_out(Channel *c, size_t bytes) {
    size_t unsent = c->out_to - c->out_from;
    if (unsent + bytes > c->out_capacity) return NULL;
    if (c->out_to + bytes > c->out_capacity) {
        memmove(c->out, c->out + c->out_from, unsent);
        c->out_from = 0, c->out_to = unsent;
    }
    uint8_t *at = c->out + c->out_to;
    c->out_to += bytes;
    return at;
}

int channel_send(Channel *c, FrameHeader h, const void *payload) {
    char        fault[FRAME_FAULT_BYTES] = "";
    FrameHeader parsed;
    if (c->state != CHANNEL_WHOLE) return -1;
    if (!c->is_open || c->is_ending) return 0;
    uint8_t *at = room_out(c, FRAME_HEADER_BYTES + (size_t)h.payload_bytes + SEAL_BYTES);
    if (!at) return 0;
    h.counter = c->counter_out++;
    frame_write_header(&h, at);
    CHECK(frame_parse_header(at, FRAME_HEADER_BYTES, INT64_MAX, &parsed, fault), "this side %s", fault);
    if (h.payload_bytes > 0) memcpy(at + FRAME_HEADER_BYTES, payload, h.payload_bytes);
    Seal seal = seal_of(&c->key_out, at, FRAME_HEADER_BYTES, at + FRAME_HEADER_BYTES, h.payload_bytes);
    memcpy(at + FRAME_HEADER_BYTES + h.payload_bytes, seal.bytes, SEAL_BYTES);
    write_out(c);
    return c->state == CHANNEL_WHOLE ? 1 : -1;
}

/* --- the opening -------------------------------------------------------------------------------------------------- */

static void reply(Channel *c, const OpeningReply *r) {
    uint8_t *at = room_out(c, r->length);
    CHECK(at, "an opening of %zu bytes", r->length);
    memcpy(at, r->bytes, r->length);
    write_out(c);
}

/* Allocates the channel's buffers after the peer has proven the key. */
static void open_channel(Channel *c) {
    uint8_t *in = malloc(CHANNEL_FRAME_BYTES), *out = malloc(CHANNEL_OUT_BYTES);
    if (!in || !out) {
        free(in), free(out);
        break_channel(c, CHANNEL_BROKEN, EXIT_MEMORY, "cannot be served: no memory for %d MiB of buffers",
                      CHANNEL_BYTES >> 20);
        return;
    }
    memcpy(out, c->out + c->out_from, c->out_to - c->out_from);
    c->out_to -= c->out_from, c->out_from = 0;
    c->in = in, c->out = out, c->out_capacity = CHANNEL_OUT_BYTES;
    opening_keys(&c->opening, &c->key_out, &c->key_in);
    explicit_bzero(&c->opening.key, sizeof c->opening.key);
    c->is_open = 1;
}

static void take_opening(Channel *c) {
    OpeningReply r;
    char         fault[OPENING_FAULT_BYTES];
    int          code = 0, taken = opening_take(&c->opening, c->in, c->in_bytes, &r, &code, fault);
    reply(c, &r);
    if (taken < 0) break_channel(c, CHANNEL_BROKEN, code, "%s", fault);
    if (taken > 0) c->in_bytes = 0;
    if (taken > 0 && c->opening.stage == OPENING_DONE && c->state != CHANNEL_BROKEN) open_channel(c);
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

/* Returns the bytes that `in` will hold when its stage or frame is whole. */
static size_t wants(const Channel *c) {
    if (!c->is_open) return opening_wants(&c->opening);
    if (c->in_bytes < FRAME_HEADER_BYTES) return FRAME_HEADER_BYTES;
    return FRAME_HEADER_BYTES + c->header.payload_bytes + SEAL_BYTES;
}

static void take_frame(Channel *c) {
    char fault[FRAME_FAULT_BYTES];
    if (c->in_bytes == FRAME_HEADER_BYTES) {
        if (!frame_parse_header(c->in, c->in_bytes, c->most_elems, &c->header, fault))
            break_channel(c, CHANNEL_BROKEN, EXIT_PEER, "%s", fault);
        return;
    }
    const uint8_t *payload = c->in + FRAME_HEADER_BYTES;
    Seal           seal = seal_of(&c->key_in, c->in, FRAME_HEADER_BYTES, payload, c->header.payload_bytes);
    if (!seal_equal(&seal, payload + c->header.payload_bytes))
        break_channel(c, CHANNEL_BROKEN, EXIT_PEER,
                      "sent a frame with a wrong seal: the line or another program changed it");
    else if (c->header.counter != c->counter_in)
        break_channel(c, CHANNEL_BROKEN, EXIT_PEER,
                      "sent frame %llu where %llu was due: one was repeated, lost or moved",
                      (unsigned long long)c->header.counter, (unsigned long long)c->counter_in);
    else c->is_ready = 1, c->counter_in++;
}

static void meet_end(Channel *c, ssize_t n) {
    const char *when = !c->is_open ? " before it proved the key" : c->in_bytes > 0 ? " within a frame" : "";
    if (n < 0) break_channel(c, CHANNEL_BROKEN, EXIT_PEER, "is lost: %s", strerror(errno));
    else break_channel(c, CHANNEL_BROKEN, EXIT_PEER, "closed the connection%s", when);
}

/* Receives up to `bytes` bytes into `at`. Returns how many; 0 if there are none now or the connection has ended. */
static size_t receive(Channel *c, void *at, size_t bytes) {
    ssize_t n;
    do n = recv(c->fd, at, bytes, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        if (c->state == CHANNEL_MUTE) c->state = CHANNEL_BROKEN; /* the peer has nothing more to say */
        return 0;
    }
    if (n <= 0) return meet_end(c, n), 0;
    c->heard = clock_ms(), c->received += (uint64_t)n;
    return (size_t)n;
}

static void drop_in(Channel *c) {
    uint8_t dropped[DROP_BYTES];
    for (int i = 0; i < DROPS && receive(c, dropped, sizeof dropped) > 0; i++) {}
}

static void read_in(Channel *c) {
    if (c->is_ending) {
        drop_in(c);
        return;
    }
    while (c->state != CHANNEL_BROKEN && !c->is_ready) {
        size_t n = receive(c, c->in + c->in_bytes, wants(c) - c->in_bytes);
        if (n == 0) return;
        c->in_bytes += n;
        if (!c->is_open) take_opening(c);
        else if (c->in_bytes == wants(c) || c->in_bytes == FRAME_HEADER_BYTES) take_frame(c);
    }
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

/* Returns whether a deadline runs, for the opening or for the end. */
static int has_deadline(const Channel *c) { return !c->is_open || c->is_ending; }

int channel_progress(Channel *c) {
    if (c->state == CHANNEL_WHOLE) read_in(c);
    if (c->state == CHANNEL_WHOLE) write_out(c);
    if (c->state == CHANNEL_WHOLE && has_deadline(c) && clock_ms() > c->until)
        break_channel(c, CHANNEL_BROKEN, EXIT_PEER, "did not %s within %d s",
                      c->is_ending ? "close the connection" : "prove the key", CHANNEL_OPENING_MS / 1000);
    return c->state == CHANNEL_WHOLE ? 0 : -1;
}

int channel_next(Channel *c, FrameHeader *h, const void **payload) {
    if (c->is_given) c->is_ready = c->is_given = 0, c->in_bytes = 0;
    channel_progress(c);
    if (c->state == CHANNEL_MUTE) read_in(c);
    if (!c->is_ready) return c->state == CHANNEL_WHOLE ? 0 : -1;
    c->is_given = 1;
    *h = c->header;
    *payload = c->in + FRAME_HEADER_BYTES;
    return 1;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static struct pollfd interest(const Channel *c) {
    int reads = !c->is_ready || c->is_given, writes = c->out_from < c->out_to;
    return (struct pollfd){.fd = c->fd, .events = (short)((reads ? POLLIN : 0) | (writes ? POLLOUT : 0))};
}

/* Sets when a wait ends in the middle of a frame: at the frame's end or after WAKE_BYTES of it. Not at each packet,
 * because a frame of 4 MiB has thousands. The system wakes at the end of the connection all the same. */
static void set_wakes_at(Channel *c) {
    int    is_within = c->is_open && !c->is_ending && !c->is_ready && c->in_bytes >= FRAME_HEADER_BYTES;
    size_t left = is_within ? wants(c) - c->in_bytes : 1;
    int    at = left < WAKE_BYTES ? (int)left : WAKE_BYTES;
    if (at == c->wakes_at) return;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &at, sizeof at);
    c->wakes_at = at;
}

/* Rounds up. A wait that ends just before its deadline would begin again. */
static int whole_ms(double ms) { return ms <= 0 ? 0 : ms > 1e6 ? 1000000 : (int)ms + 1; }

int channel_wait(Channel *const *c, int count, int listening, double ms) {
    struct pollfd *p = xmalloc(sizeof *p * (size_t)(count + 1), "the list of connections to wait for");
    int            polled = 0, now = 0;
    double         began = clock_ms();
    for (int i = 0; i < count; i++) {
        if (!c[i]) continue;
        if (c[i]->state != CHANNEL_WHOLE || (c[i]->is_ready && !c[i]->is_given)) now = 1;
        if (has_deadline(c[i]) && c[i]->until - began < ms) ms = c[i]->until - began;
        set_wakes_at(c[i]);
        p[polled++] = interest(c[i]);
    }
    if (listening >= 0) p[polled++] = (struct pollfd){.fd = listening, .events = POLLIN};
    int ready = now ? 0 : poll(p, (nfds_t)polled, whole_ms(ms));
    free(p);
    return now || ready > 0;
}

int channel_flush(Channel *c, double ms) {
    double until = clock_ms() + ms;
    for (;;) {
        if (channel_progress(c) < 0) return -1;
        double left = until - clock_ms();
        if (c->out_from == c->out_to) return 1;
        if (left <= 0) return 0;
        struct pollfd p = interest(c);
        if (c->is_ready) p.events = POLLOUT; /* nothing is read before channel_next */
        poll(&p, 1, whole_ms(left < BETWEEN_MS ? left : BETWEEN_MS));
    }
}

/* --- making and asking -------------------------------------------------------------------------------------------- */

Channel *channel_over(int fd, Side side, const Key *key) {
    OpeningReply first;
    Channel     *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        return NULL;
    }
    c->fd = fd;
    c->in = c->small_in, c->out = c->small_out, c->out_capacity = sizeof c->small_out;
    c->most_elems = INT64_MAX, c->wakes_at = 1;
    c->heard = clock_ms(), c->until = c->heard + CHANNEL_OPENING_MS;
    socket_peer(fd, c->peer);
    c->opening = opening_begin(side, key, &first);
    reply(c, &first);
    return c;
}

Channel *channel_accept(int listening, const Key *key) {
    int fd = socket_accept(listening);
    return fd < 0 ? NULL : channel_over(fd, SIDE_SERVER, key);
}

void        channel_limit(Channel *c, int64_t most_elems) { c->most_elems = most_elems; }
int         channel_is_open(const Channel *c) { return c->is_open; }
int         channel_is_broken(const Channel *c) { return c->state != CHANNEL_WHOLE; }
size_t      channel_unsent(const Channel *c) { return c->out_to - c->out_from; }
double      channel_silent_ms(const Channel *c) { return clock_ms() - c->heard; }
const char *channel_peer(const Channel *c) { return c->peer; }
int         channel_fault_code(const Channel *c) { return c->fault.code; }
const char *channel_fault(const Channel *c) { return c->fault.text; }
uint64_t    channel_sent_bytes(const Channel *c) { return c->sent; }
uint64_t    channel_received_bytes(const Channel *c) { return c->received; }
