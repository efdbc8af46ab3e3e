/* channel.c - connections between servers and islands, the training jobs of several sites (channel.h): sockets, frames
 * over TLS, and waiting for several connections at once. */
#include "comm/channel.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/tls.h"
#include "core/thread.h"
#include "core/error.h"
#include "core/format.h"

enum { HOST_BYTES = 256, PORT_BYTES = 6, BETWEEN_MS = 100 };

typedef struct { char host[HOST_BYTES], port[PORT_BYTES]; } Address;

/* A function of the caller that may end a wait. It is called every BETWEEN_MS, and the wait ends when it returns 1.
 * stop may be NULL. */
typedef struct { int (*stop)(void *); void *argument; } Between;
static int between_stops(Between b) { return b.stop && b.stop(b.argument); }

/* Sets *fault to this code and sentence. Returns -1. */
static int channel_fault_set(ChannelFault *fault, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
static int channel_fault_set(ChannelFault *fault, int code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault->text, sizeof fault->text, fmt, args);
    va_end(args);
    fault->code = code;
    return -1;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

/* Splits "host:port" or "[host]:port" into *a. Returns 0, or -1 with *fault set. */
static int address_parse(const char *host_port, Address *a, ChannelFault *fault) {
    const char *from = host_port, *end = strrchr(host_port, ':'), *port = end ? end + 1 : "";
    if (*from == '[' && end && end > from && end[-1] == ']') from++, end--;
    else if (end && memchr(from, ':', (size_t)(end - from)))
        return channel_fault_set(fault, EXIT_CONFIG,
                                 "\"%s\" is no address of the form host:port: write an IPv6 address in brackets, as in "
                                 "\"[::1]:7070\"", host_port);
    size_t digits = strspn(port, "0123456789");
    int    is_port = digits > 0 && digits <= 5 && !port[digits] && atoi(port) <= 65535;
    if (!end || end == from || (size_t)(end - from) >= HOST_BYTES || !is_port)
        return channel_fault_set(fault, EXIT_CONFIG,
                                 "\"%s\" is no address: it must be host:port, as in \"10.0.0.1:7070\"", host_port);
    snprintf(a->host, sizeof a->host, "%.*s", (int)(end - from), from);
    snprintf(a->port, sizeof a->port, "%d", atoi(port));
    return 0;
}

/* Resolves the host. Returns its addresses, to be freed with freeaddrinfo(), or NULL with *fault set. */
static struct addrinfo *look_up(const char *host_port, ChannelFault *fault) {
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_protocol = IPPROTO_TCP, .ai_flags = AI_NUMERICSERV};
    struct addrinfo      *found = NULL;
    Address               a;
    if (address_parse(host_port, &a, fault) < 0) return NULL;
    int rc = getaddrinfo(a.host, a.port, &want, &found);
    if (rc == 0 && found) return found;
    int passes = rc == EAI_AGAIN || rc == EAI_MEMORY || rc == EAI_SYSTEM;
    channel_fault_set(fault, passes ? EXIT_PEER : EXIT_CONFIG,
                      "%s: the host has no known address (%s): check its name in outer.server or listen=", host_port,
                      rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    return NULL;
}

typedef enum { THIS_END, OTHER_END } SocketEnd;

/* Writes the address of one end of a socket as "host:port". */
static void write_address(int fd, SocketEnd end, char out[CHANNEL_PEER_BYTES]) {
    char                    host[64] = "?", port[PORT_BYTES] = "?";
    struct sockaddr_storage at;
    socklen_t               bytes = sizeof at;
    struct sockaddr        *address = (struct sockaddr *)&at;
    int error = end == THIS_END ? getsockname(fd, address, &bytes) : getpeername(fd, address, &bytes);
    getnameinfo(address, error ? 0 : bytes, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, CHANNEL_PEER_BYTES, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

void channel_listening(int listening, char out[CHANNEL_PEER_BYTES]) { write_address(listening, THIS_END, out); }

/* --- sockets ------------------------------------------------------------------------------------------------------ */

static void set(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

/* Sets the options of a connected socket and returns it. Small frames are sent at once. A host that is gone is noticed
 * after some 25 s without traffic. */
static int with_options(int fd) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    return fd;
}

/* Waits until the TCP connection is complete. Returns 0, or an errno if it fails, if `until` (a time of clock_ms)
 * passes, or if `between` ends the wait. */
static int await_connection(int fd, double until, Between between) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int           error = 0;
    socklen_t     bytes = sizeof error;
    for (;;) {
        if (between_stops(between)) return ECANCELED;
        int ready = poll(&p, 1, BETWEEN_MS);
        if (ready > 0) break;
        if (ready < 0 && errno != EINTR) return errno;
        if (clock_ms() > until) return ETIMEDOUT;
    }
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    return error;
}

static int connect_one(const struct addrinfo *at, double until, Between between, int *error) {
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0) return *error = errno, -1;
    *error = connect(fd, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (*error == EINPROGRESS || *error == EINTR) *error = await_connection(fd, until, between);
    if (*error == 0) {
        /* Refuses a TCP connection to itself. On one machine the free port that the system chose for this end may be
         * the very port to which it connects. */
        char here[CHANNEL_PEER_BYTES], there[CHANNEL_PEER_BYTES];
        write_address(fd, THIS_END, here);
        write_address(fd, OTHER_END, there);
        if (strcmp(here, there) != 0) return with_options(fd);
        *error = ECONNREFUSED;
    }
    close(fd);
    return -1;
}

/* Connects to the first address of the host that answers, within ms. Returns a descriptor, or -1 with *fault set. */
static int socket_connect(const char *host_port, double ms, Between between, ChannelFault *fault) {
    struct addrinfo *found = look_up(host_port, fault);
    int              fd = -1, error = 0, addresses = 0;
    if (!found) return -1;
    for (const struct addrinfo *at = found; at; at = at->ai_next) addresses++;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next)
        fd = connect_one(at, clock_ms() + ms / addresses, between, &error);
    freeaddrinfo(found);
    if (fd >= 0) return fd;
    int is_ours = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
    static const char REFUSED[] = "nobody listens there: start the server (train_gpt serve), or correct outer.server";
    return channel_fault_set(fault, is_ours ? EXIT_IO : EXIT_PEER, "%s: %s", host_port,
                             error == ECONNREFUSED ? REFUSED : strerror(error));
}

static int listen_on(const struct addrinfo *at, int *error) {
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0) return *error = errno, -1;
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1); /* lets a restarted server bind the port while old connections are in
                                           * TIME_WAIT */
    if (at->ai_family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    *error = errno;
    close(fd);
    return -1;
}

/* Listens on the first address of host_port that this machine has. A name may have several addresses. Returns a
 * descriptor, or -1 with *fault set. */
int channel_listen(const char *host_port, ChannelFault *fault) {
    struct addrinfo *found = look_up(host_port, fault);
    int              fd = -1, error = 0;
    if (!found) return -1;
    for (const struct addrinfo *at = found; at && fd < 0 && error != EADDRINUSE; at = at->ai_next)
        fd = listen_on(at, &error);
    freeaddrinfo(found);
    if (fd >= 0) return fd;
    if (error == EADDRINUSE)
        return channel_fault_set(fault, EXIT_LOCKED,
                                 "%s: the port is in use: stop the program that uses it, or name another port",
                                 host_port);
    if (error == EADDRNOTAVAIL)
        return channel_fault_set(fault, EXIT_CONFIG,
                                 "%s: this machine has no such address: name an address of this machine, or all of "
                                 "them by listen=0.0.0.0:PORT",
                                 host_port);
    if (error == EACCES)
        return channel_fault_set(fault, EXIT_CONFIG, "%s: this system gives ports of this range to its administrator "
                                 "alone: name a port above 1023",
                                 host_port);
    return channel_fault_set(fault, EXIT_IO, "%s: cannot listen: %s", host_port, strerror(error));
}

/* --- a channel ---------------------------------------------------------------------------------------------------- */

enum {
    DROPS = 64, DROP_BYTES = 1 << 16, /* limits for dropping bytes that arrive after channel_end: most reads in a call,
                                       * and bytes of each read */
    WAKE_BYTES = 1 << 15,
    RECORD_BYTES = 16640,             /* most bytes of a TLS 1.3 record, the unit that TLS encrypts */
    OLD_HEAD_BYTES = 8,               /* bytes with which a connection of protocol 2 or older begins */
    TLS_HANDSHAKE = 22                /* first byte of a TLS handshake */
};

typedef enum {
    CHANNEL_WHOLE,
    CHANNEL_MUTE,  /* the peer reads no more bytes from us, but bytes that it has already sent may still be read here */
    CHANNEL_BROKEN
} ChannelState;

struct Channel {
    int          fd;
    ChannelState state;
    char         peer[CHANNEL_PEER_BYTES];
    ChannelFault fault;
    Tls         *tls;
    int          is_tls;                 /* 1: the peer speaks TLS. A server sees that in the first byte; a client
                                          * assumes it */
    uint8_t      old_head[OLD_HEAD_BYTES];  /* [old_bytes] first bytes from a peer that does not speak TLS */
    size_t       old_bytes;
    int          is_open;
    int          is_ending, is_shut;     /* is_ending: channel_end was called; is_shut: the sending direction is
                                          * closed */
    double       until;                  /* deadline (clock_ms) for the handshake; after channel_end, for the peer's
                                          * close */
    double       heard;
    uint64_t     counter_in, counter_out;
    int64_t      most_elems;
    uint8_t     *in;                     /* [CHANNEL_FRAME_BYTES] frame that is being received; NULL until the channel
                                          * is open */
    size_t       in_bytes;
    int          wakes_at;               /* SO_RCVLOWAT: channel_wait returns when the socket holds this many bytes */
    FrameHeader  header;                 /* header of the frame in `in`, once all of it has arrived */
    int          is_ready, is_given;     /* is_ready: the frame in `in` is complete and in order; is_given: channel_next
                                          * has returned it */
    uint8_t     *out;                    /* [out_bytes] frames to send; bytes from out_from to out_to are unsent */
    size_t       out_bytes, out_from, out_to;
};

/* --- its end ------------------------------------------------------------------------------------------------------ */

/* Marks the channel as broken, and records the fault unless an earlier one is recorded. */
static void break_channel(Channel *c, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
static void break_channel(Channel *c, int code, const char *fmt, ...) {
    char    text[sizeof c->fault.text - CHANNEL_PEER_BYTES - 1];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (c->state == CHANNEL_WHOLE) channel_fault_set(&c->fault, code, "%s %s", c->peer, text);
    c->state = CHANNEL_BROKEN;
}

void channel_close(Channel *c) {
    uint8_t dropped[4096];
    if (!c) return;
    /* Reads what has arrived. If bytes stayed unread, close() would reset the connection and drop bytes that are still
     * to be sent. */
    shutdown(c->fd, SHUT_WR);
    for (int i = 0; i < DROPS && recv(c->fd, dropped, sizeof dropped, MSG_DONTWAIT) > 0; i++) {}
    tls_free(c->tls);
    close(c->fd);
    free(c->in), free(c->out);
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
        int64_t n = tls_write(c->tls, c->out + c->out_from, c->out_to - c->out_from);
        if (n == TLS_LATER) return;
        if (n < 0) break_channel(c, EXIT_PEER, "is lost: %s", n == TLS_MUTE ? strerror(errno) : c->tls->why);
        else c->out_from += (size_t)n;
        if (n == TLS_MUTE) c->state = CHANNEL_MUTE;
    }
    c->out_from = c->out_to = 0;
    if (c->is_ending && !c->is_shut) c->is_shut = 1, tls_end(c->tls), shutdown(c->fd, SHUT_WR);
}

void channel_queue(Channel *c, FrameHeader h, const void *payload) {
    char        fault[FRAME_FAULT_BYTES] = "";
    FrameHeader parsed;
    if (c->state != CHANNEL_WHOLE || !c->is_open || c->is_ending) return;
    /* makes room at the end of the out buffer, which grows if the frame does not fit */
    size_t bytes = FRAME_HEADER_BYTES + (size_t)h.payload_bytes, unsent = channel_unsent(c), least = unsent + bytes;
    if (c->out_to + bytes > c->out_bytes) {
        memmove(c->out, c->out + c->out_from, unsent);
        c->out_from = 0, c->out_to = unsent;
    }
    if (least > c->out_bytes) {
        size_t   most = CHANNEL_MOST_UNSENT, room = 2 * least < most ? 2 * least : most;
        uint8_t *longer = least <= most ? realloc(c->out, room) : NULL;
        if (!longer) {
            break_channel(c, EXIT_PEER, "reads too slowly: %zu bytes wait to be sent", unsent);
            return;
        }
        c->out = longer, c->out_bytes = room;
    }
    uint8_t *at = c->out + c->out_to;
    c->out_to += bytes;
    h.counter = c->counter_out++;
    frame_write_header(&h, at);
    CHECK(frame_parse_header(at, FRAME_HEADER_BYTES, INT64_MAX, &parsed, fault), "this side %s", fault);
    if (h.payload_bytes > 0) memcpy(at + FRAME_HEADER_BYTES, payload, h.payload_bytes);
    write_out(c);
}

int channel_send(Channel *c, FrameHeader h, const void *payload) {
    if (c->state != CHANNEL_WHOLE) return -1;
    if (!c->is_open || c->is_ending) return 0;
    if (channel_unsent(c) + FRAME_HEADER_BYTES + h.payload_bytes > CHANNEL_OUT_BYTES) return 0;
    channel_queue(c, h, payload);
    return c->state == CHANNEL_WHOLE ? 1 : -1;
}

/* --- the opening -------------------------------------------------------------------------------------------------- */

static const char CLOSED_EARLY[] =
    "closed the connection before it proved the key; a train_gpt of another version does so";

/* Looks at the first byte of a connection to a server. Returns 1 if it begins a TLS handshake, which TLS then reads.
 * Otherwise returns 0 and reads the 8 bytes that begin a connection of protocol 2 or older. Breaks the channel once all
 * 8 are there, or once one of them is wrong. */
static int is_tls(Channel *c) {
    static const uint8_t MINE[OLD_HEAD_BYTES] = {'T', 'G', 'O', '1', CHANNEL_PROTOCOL};
    uint8_t             *head = c->old_head;
    if (c->old_bytes == 0 && recv(c->fd, head, 1, MSG_PEEK | MSG_DONTWAIT) == 1 && head[0] == TLS_HANDSHAKE) return 1;
    ssize_t n = recv(c->fd, head + c->old_bytes, OLD_HEAD_BYTES - c->old_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
    if (n == 0) return break_channel(c, EXIT_PEER, "%s", CLOSED_EARLY), 0;
    if (n < 0) return break_channel(c, EXIT_PEER, "is lost: %s", strerror(errno)), 0;
    c->old_bytes += (size_t)n, c->heard = clock_ms();
    if (memcmp(head, MINE, c->old_bytes < 4 ? c->old_bytes : 4) != 0)
        break_channel(c, EXIT_PEER, "is no island: its first bytes are not those of our protocol");
    else if (c->old_bytes == OLD_HEAD_BYTES) {
        if (send(c->fd, MINE, sizeof MINE, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {} /* a failed send is ignored, because the
                                                                                 * channel breaks with the same fault in
                                                                                 * any case */
        break_channel(c, EXIT_CONFIG,
                      "speaks protocol %u, this program protocol %d: use the same train_gpt on both sides",
                      (unsigned)little_endian(head + 4, 4), CHANNEL_PROTOCOL);
    }
    return 0;
}

/* Continues the TLS handshake. Allocates the channel's buffers after the peer has proven the key. */
static void open_channel(Channel *c) {
    if (!c->is_tls && !(c->is_tls = is_tls(c))) return;
    uint64_t before = c->tls->received;
    int      result = tls_open(c->tls);
    if (c->tls->received > before) c->heard = clock_ms();
    switch (result) {
    case 1: break;
    case TLS_LATER: return;
    case TLS_OTHER_KEY:
        break_channel(c, EXIT_CONFIG, "has another key (outer.key): copy the server's key file to the islands");
        return;
    case TLS_ENDED: break_channel(c, EXIT_PEER, "%s", CLOSED_EARLY); return;
    case TLS_MUTE: break_channel(c, EXIT_PEER, "is lost: %s", strerror(errno)); return;
    default: break_channel(c, EXIT_PEER, "does not prove the key: %s", c->tls->why); return;
    }
    c->in = malloc(CHANNEL_FRAME_BYTES), c->out = malloc(CHANNEL_OUT_BYTES);
    c->out_bytes = CHANNEL_OUT_BYTES;
    if (c->in && c->out) c->is_open = 1;
    else break_channel(c, EXIT_MEMORY, "cannot be served: no memory for %d MiB of buffers", CHANNEL_BYTES >> 20);
}

/* --- in ----------------------------------------------------------------------------------------------------------- */

/* Returns the number of bytes of the current frame that the buffer `in` must hold before the next check: the header,
 * or, once the header is complete, the whole frame. */
static size_t wants(const Channel *c) {
    return FRAME_HEADER_BYTES + (c->in_bytes < FRAME_HEADER_BYTES ? 0 : c->header.payload_bytes);
}

/* Receives up to `bytes` bytes into `at`. Returns their number. Returns 0 if none have arrived yet or the connection
 * has ended. */
static size_t receive(Channel *c, void *at, size_t bytes) {
    uint64_t before = c->tls->received;
    int64_t  n = tls_read(c->tls, at, bytes);
    if (c->tls->received > before) c->heard = clock_ms();
    if (n > 0) return (size_t)n;
    if (n == TLS_ENDED)
        break_channel(c, EXIT_PEER, "closed the connection%s",
                      c->in_bytes > 0 || tls_lacks(c->tls) > 0 ? " within a frame" : "");
    else if (n < 0 && n != TLS_MUTE) break_channel(c, EXIT_PEER, "is lost: %s", c->tls->why);
    else if (c->state == CHANNEL_MUTE) c->state = CHANNEL_BROKEN; /* the peer accepts no more bytes, and all bytes that
                                                                   * it has sent are read */
    return 0;
}

static void read_in(Channel *c) {
    if (!c->is_open) open_channel(c);
    if (!c->is_open) return;
    if (c->is_ending) {
        uint8_t dropped[DROP_BYTES];
        for (int i = 0; i < DROPS && receive(c, dropped, sizeof dropped) > 0; i++) {}
        return;
    }
    char fault[FRAME_FAULT_BYTES];
    while (c->state != CHANNEL_BROKEN && !c->is_ready) {
        size_t n = receive(c, c->in + c->in_bytes, wants(c) - c->in_bytes);
        if (n == 0) return;
        c->in_bytes += n;
        if (c->in_bytes == FRAME_HEADER_BYTES &&
            !frame_parse_header(c->in, c->in_bytes, c->most_elems, &c->header, fault))
            break_channel(c, EXIT_PEER, "%s", fault);
        else if (c->in_bytes < wants(c)) continue;
        else if (c->header.counter != c->counter_in)
            break_channel(c, EXIT_PEER, "sent frame %llu where %llu was due: one was repeated, lost or moved",
                          (unsigned long long)c->header.counter, (unsigned long long)c->counter_in);
        else c->is_ready = 1, c->counter_in++;
    }
}

/* --- progress ----------------------------------------------------------------------------------------------------- */

/* Returns whether a deadline runs, either for the handshake or, after channel_end, for the peer's close. */
static int has_deadline(const Channel *c) { return !c->is_open || c->is_ending; }

int channel_progress(Channel *c) {
    if (c->state == CHANNEL_WHOLE) read_in(c);
    if (c->state == CHANNEL_WHOLE) write_out(c);
    if (c->state == CHANNEL_WHOLE && has_deadline(c) && clock_ms() > c->until)
        break_channel(c, EXIT_PEER, "did not %s within %d s", c->is_ending ? "close the connection" : "prove the key",
                      CHANNEL_OPENING_MS / 1000);
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

static int reads(const Channel *c) { return !c->is_ready || c->is_given; }

/* Returns the socket and the events for which poll() waits. A handshake waits only to read, because the few bytes that
 * this side sends in it fit the empty buffer of a new socket. */
static struct pollfd interest(const Channel *c) {
    int writes = c->out_from < c->out_to;
    return (struct pollfd){.fd = c->fd, .events = (short)((reads(c) ? POLLIN : 0) | (writes ? POLLOUT : 0))};
}

/* Sets when channel_wait returns in the middle of a frame: at the end of the frame or of a TLS record, or after
 * WAKE_BYTES. It does not return at each packet, because a frame of 4 MiB has thousands. The system also ends the wait
 * when the connection ends. WAKE_BYTES is used only if at least one more TLS record is missing, because OpenSSL may
 * hold a record that has already left the socket. */
static void set_wakes_at(Channel *c) {
    int    is_read = c->is_open && !c->is_ending && !c->is_ready;
    size_t left = is_read && c->in_bytes >= FRAME_HEADER_BYTES ? wants(c) - c->in_bytes : 0, at = 1;
    if (left >= WAKE_BYTES + RECORD_BYTES) at = WAKE_BYTES;
    else if (is_read && tls_lacks(c->tls) > 0) at = tls_lacks(c->tls);
    else if (left > 0) at = left < WAKE_BYTES ? left : WAKE_BYTES;
    if ((int)at == c->wakes_at) return;
    c->wakes_at = (int)at;
    setsockopt(c->fd, SOL_SOCKET, SO_RCVLOWAT, &c->wakes_at, sizeof c->wakes_at);
}

/* Rounds milliseconds up for poll(). Rounded down, a wait would end just before its deadline and begin again. */
static int whole_ms(double ms) { return ms <= 0 ? 0 : ms > 1e6 ? 1000000 : (int)ms + 1; }

int channel_wait(Channel *const *c, int count, int listening, double ms) {
    struct pollfd *p = xmalloc(sizeof *p * (size_t)(count + 1), "the list of connections to wait for");
    int            polled = 0, now = 0;
    double         began = clock_ms();
    for (int i = 0; i < count; i++) {
        if (!c[i]) continue;
        if (c[i]->state != CHANNEL_WHOLE || (c[i]->is_ready && !c[i]->is_given)) now = 1;
        if (reads(c[i]) && tls_buffered(c[i]->tls) > 0) now = 1;
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
        if (c->is_ready) p.events = POLLOUT; /* no more is read until the caller takes the ready frame with
                                              * channel_next */
        poll(&p, 1, whole_ms(left < BETWEEN_MS ? left : BETWEEN_MS));
    }
}

/* --- making and asking -------------------------------------------------------------------------------------------- */

Channel *channel_over(int fd, Side side, const Key *key) {
    Channel *c = calloc(1, sizeof *c);
    Tls     *tls = c ? tls_create(fd, side, key) : NULL;
    if (!tls) {
        free(c);
        close(fd);
        return NULL;
    }
    c->fd = fd, c->tls = tls, c->is_tls = side == SIDE_CLIENT;
    c->most_elems = INT64_MAX, c->wakes_at = 1;
    c->heard = clock_ms(), c->until = c->heard + CHANNEL_OPENING_MS;
    write_address(fd, OTHER_END, c->peer);
    if (side == SIDE_CLIENT) open_channel(c); /* sends the first bytes of the TLS handshake, which the client begins */
    return c;
}

Channel *channel_accept(int listening, const Key *key) {
    int fd;
    do fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    return fd < 0 ? NULL : channel_over(with_options(fd), SIDE_SERVER, key);
}

void        channel_limit(Channel *c, int64_t most_elems) { c->most_elems = most_elems; }
int         channel_is_open(const Channel *c) { return c->is_open; }
int         channel_is_broken(const Channel *c) { return c->state != CHANNEL_WHOLE; }
size_t      channel_unsent(const Channel *c) { return c->out_to - c->out_from; }
int         channel_has_space(const Channel *c) {
    return channel_unsent(c) + CHANNEL_FRAME_BYTES <= CHANNEL_OUT_BYTES;
}
double      channel_silent_ms(const Channel *c) { return clock_ms() - c->heard; }
const char *channel_peer(const Channel *c) { return c->peer; }
const ChannelFault *channel_fault(const Channel *c) { return &c->fault; }
uint64_t    channel_sent_bytes(const Channel *c) { return c->tls->sent; }
uint64_t    channel_received_bytes(const Channel *c) { return c->tls->received; }

/* --- connecting --------------------------------------------------------------------------------------------------- */

/* Waits until the peer has proven the key or the channel is broken. The channel's own deadline limits the wait. Returns
 * c, or NULL with *fault set. */
static Channel *open_whole(Channel *c, const char *host_port, Between between, ChannelFault *fault) {
    if (!c) return channel_fault_set(fault, EXIT_MEMORY, "%s: no memory to connect to this address; free memory on "
                                     "this host", host_port), NULL;
    while (!c->is_open && channel_progress(c) == 0 && !between_stops(between))
        channel_wait(&c, 1, -1, BETWEEN_MS);
    if (c->is_open) return c;
    if (channel_is_broken(c)) *fault = c->fault;
    else channel_fault_set(fault, EXIT_PEER, "%s: no server at this address had answered when this job was asked to "
                           "stop", host_port);
    channel_close(c);
    return NULL;
}

Channel *channel_connect(const char *host_port, const Key *key, double patience_ms, int (*between)(void *),
                         void *argument, ChannelFault *fault) {
    Between b = {between, argument};
    double  until = clock_ms() + patience_ms;
    for (;;) {
        int      fd = socket_connect(host_port, CHANNEL_OPENING_MS, b, fault);
        Channel *c = fd < 0 ? NULL : open_whole(channel_over(fd, SIDE_CLIENT, key), host_port, b, fault);
        double   next = clock_ms() + CHANNEL_RETRY_MS;
        if (c || fault->code == EXIT_CONFIG || next > until) return c;
        while (clock_ms() < next) {
            if (between_stops(b)) return NULL;
            poll(NULL, 0, BETWEEN_MS);
        }
    }
}
