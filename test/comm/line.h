/* line.h - for tests of channels: a client's channel and a server's channel. Each is connected to the test, which reads
 * the bytes of one and passes them on to the other, or changes them. */
#ifndef TRAIN_GPT_TEST_COMM_LINE_H
#define TRAIN_GPT_TEST_COMM_LINE_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/channel.h"
#include "comm/tls.h"
#include "core/thread.h"

typedef struct {
    Channel *client, *server;
    /* The test's ends of both connections. From at_client it reads what the client sent, from at_server what the server
     * sent. */
    int      at_client, at_server;
} Line;

/* Bytes that TLS adds to each of its records: 5 of header, 1 of the record's type, 16 of the authentication tag. */
enum { RECORD_ADDS = 22 };

static const Key KEY = {{1, 2, 3}}, OTHER_KEY = {{1, 2, 4}};

/* Makes the two ends of a TCP connection on this machine. ends[0] does not block. */
static inline void tcp_pair(int ends[2]) {
    static int         listening = -1;
    static ChannelFault fault;
    struct sockaddr_in at;
    socklen_t          bytes = sizeof at;
    if (listening < 0) listening = channel_listen("127.0.0.1:0", &fault);
    getsockname(listening, (struct sockaddr *)&at, &bytes);
    ends[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(ends[1], (struct sockaddr *)&at, bytes) != 0) ends[0] = -1;
    else
        while ((ends[0] = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) < 0)
            poll(&(struct pollfd){.fd = listening, .events = POLLIN}, 1, 100);
    setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

static inline Line line_make(const Key *client, const Key *server) {
    int  c[2], s[2];
    Line l;
    tcp_pair(c), tcp_pair(s);
    l.client = channel_over(c[0], SIDE_CLIENT, client), l.at_client = c[1];
    l.server = channel_over(s[0], SIDE_SERVER, server), l.at_server = s[1];
    return l;
}

static inline void line_free(Line *l) {
    channel_close(l->client), channel_close(l->server);
    if (l->at_client >= 0) close(l->at_client);
    if (l->at_server >= 0) close(l->at_server);
}

/* Reads exactly `bytes` bytes, which the channel at the other end has sent. */
static inline void line_read(int end, void *out, size_t bytes) {
    for (size_t got = 0; got < bytes;) {
        ssize_t n = recv(end, (char *)out + got, bytes - got, 0);
        if (n <= 0) return;
        got += (size_t)n;
    }
}

/* Writes bytes to a channel, and lets it read them at once. Does nothing if the channel is closed. */
static inline void line_write(int end, const void *bytes, size_t length) {
    if (length > 0 && send(end, bytes, length, MSG_NOSIGNAL) < 0) return;
}

/* Ends the direction towards a channel: the channel reads the end of its connection. */
static inline void line_cut(int *end) {
    shutdown(*end, SHUT_WR);
    close(*end);
    *end = -1;
}

/* Passes on the bytes that have arrived at end `from` to end `to`. Returns their number; 0 if none have arrived. */
static inline size_t line_carry(int from, int to) {
    uint8_t bytes[4096];
    ssize_t n = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) line_write(to, bytes, (size_t)n);
    return n > 0 ? (size_t)n : 0;
}

/* Passes on the bytes of both handshakes until both channels are open. */
static inline void line_open(Line *l) {
    while (!channel_is_open(l->client) || !channel_is_open(l->server)) {
        Channel *both[2] = {l->client, l->server};
        if (line_carry(l->at_client, l->at_server) + line_carry(l->at_server, l->at_client) == 0) poll(NULL, 0, 1);
        channel_wait(both, 2, -1, 1);
        channel_progress(l->client), channel_progress(l->server);
    }
}

/* Waits up to 2 s for the next frame. Returns 1 if there is one, 0 if not, -1 if the channel is broken. */
static inline int next_frame(Channel *c, FrameHeader *h, const void **payload) {
    int    got;
    double until = clock_ms() + 2000;
    while ((got = channel_next(c, h, payload)) == 0 && clock_ms() < until) channel_wait(&c, 1, -1, 100);
    return got;
}

/* Returns the header of a frame of kind 1 with `bytes` bytes of payload. */
static inline FrameHeader bytes_frame(size_t bytes) {
    return (FrameHeader){.kind = 1, .type = FRAME_BYTES, .round = 7, .payload_bytes = (uint32_t)bytes};
}

#endif
