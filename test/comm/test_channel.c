/* test_channel.c - channels as training jobs and their server use them: whole conversations over real addresses, a
 * reader that stops reading, the reason that a closing peer sends, and connecting to peers that are not there.
 * Timed: connections and waits have limits of seconds. */
#include "comm/channel.h" /* before cmocka.h, which defines fail() as a macro */
#include "core/thread.h"
#include "core/error.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "test/comm/line.h"

/* --- a server in a thread, which sends each frame back ------------------------------------------------------------ */

typedef struct {
    int       listening;
    char      address[CHANNEL_PEER_BYTES];
    Key       key;
    pthread_t thread;
    int       stop;
    uint64_t  sent, received; /* bytes that the channel that ended last had sent, and had received */
    char      fault[512];     /* reason why the channel that ended last broke */
    int       code;
} Echo;

static void echo_frames(Echo *e, Channel **c) {
    FrameHeader h;
    const void *payload;
    int         got;
    while ((got = channel_next(*c, &h, &payload)) > 0)
        while (channel_send(*c, h, payload) == 0) channel_flush(*c, 100);
    if (got == 0) return;
    e->sent = channel_sent_bytes(*c), e->received = channel_received_bytes(*c), e->code = channel_fault(*c)->code;
    snprintf(e->fault, sizeof e->fault, "%s", channel_fault(*c)->text);
    channel_close(*c);
    *c = NULL;
}

static void *echo_serve(void *argument) {
    Echo    *e = argument;
    Channel *c[4] = {NULL};
    while (!__atomic_load_n(&e->stop, __ATOMIC_RELAXED)) {
        channel_wait(c, 4, e->listening, 20);
        for (int i = 0; i < 4; i++) {
            if (!c[i]) c[i] = channel_accept(e->listening, &e->key);
            if (c[i]) echo_frames(e, &c[i]);
        }
    }
    for (int i = 0; i < 4; i++) channel_close(c[i]);
    return NULL;
}

static int echo_begin(Echo *e, const char *address, const Key *key) {
    ChannelFault fault;
    memset(e, 0, sizeof *e);
    e->key = *key;
    if ((e->listening = channel_listen(address, &fault)) < 0) return 0;
    channel_listening(e->listening, e->address);
    assert_int_equal(pthread_create(&e->thread, NULL, echo_serve, e), 0);
    return 1;
}

static void echo_end(Echo *e) {
    __atomic_store_n(&e->stop, 1, __ATOMIC_RELAXED);
    pthread_join(e->thread, NULL);
    close(e->listening);
}

/* --- whole talks -------------------------------------------------------------------------------------------------- */

static uint8_t *filled(size_t bytes, uint8_t from) {
    uint8_t *x = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++) x[i] = (uint8_t)(from + i * 7 + i / 251);
    return x;
}

static void a_whole_talk(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 2, 3, 79, 4096, 1 << 20, FRAME_PAYLOAD_LIMIT, 5};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    Echo         e;
    ChannelFault fault;
    uint64_t     bytes = 0;
    assert_true(echo_begin(&e, "127.0.0.1:0", &KEY));
    Channel *c = channel_connect(e.address, &KEY, 0, NULL, NULL, &fault);
    assert_non_null(c);
    assert_string_equal(channel_peer(c), e.address);
    assert_true(channel_is_open(c) && !channel_is_broken(c));
    assert_string_equal(channel_fault(c)->text, "");
    for (int i = 0; i < COUNT; i++) {
        uint8_t    *x = filled(sizes[i], (uint8_t)i);
        FrameHeader h = {.kind = (uint8_t)(i + 1), .type = FRAME_BYTES, .round = i, .offset = 10 * i, .elems = 3 * i,
                         .payload_bytes = (uint32_t)sizes[i]};
        FrameHeader back;
        const void *payload;
        assert_int_equal(channel_send(c, h, x), 1);
        assert_int_equal(next_frame(c, &back, &payload), 1);
        assert_true(back.kind == h.kind && back.round == i && back.offset == 10 * i && back.elems == 3 * i &&
                    back.counter == (uint64_t)i && back.payload_bytes == sizes[i]);
        assert_memory_equal(payload, x, sizes[i]);
        bytes += FRAME_HEADER_BYTES + sizes[i];
        free(x);
    }
    uint64_t sent = channel_sent_bytes(c), received = channel_received_bytes(c);
    /* TLS adds 22 bytes to each 16 KiB, and the handshake */
    assert_true(sent > bytes && sent < bytes + bytes / 500 + 2000);
    assert_true(received > bytes && received < bytes + bytes / 500 + 2000);
    channel_close(c);
    for (int i = 0; i < 100 && !e.received; i++) poll(NULL, 0, 10);
    echo_end(&e);
    assert_int_equal(e.received, sent);
    assert_int_equal(e.sent, received);
    assert_non_null(strstr(e.fault, "closed the connection"));
}

/* Sends frames both ways, many of them in flight at once. Each side reads while it writes. */
static void frames_under_way(void **state) {
    (void)state;
    enum { FRAMES = 200, BYTES = 100000 };
    Echo         e;
    ChannelFault fault;
    FrameHeader  h;
    const void  *payload;
    uint8_t     *x = filled(BYTES, 1);
    int          sent = 0, got = 0;
    assert_true(echo_begin(&e, "127.0.0.1:0", &KEY));
    Channel *c = channel_connect(e.address, &KEY, 0, NULL, NULL, &fault);
    for (double until = clock_ms() + 20e3; got < FRAMES && clock_ms() < until;) {
        while (sent < FRAMES && channel_send(c, bytes_frame(BYTES - (size_t)sent), x) == 1) sent++;
        for (; channel_next(c, &h, &payload) == 1; got++) {
            assert_int_equal(h.payload_bytes, BYTES - got);
            assert_memory_equal(payload, x, h.payload_bytes);
        }
        channel_wait(&c, 1, -1, 100);
    }
    assert_int_equal(got, FRAMES);
    channel_close(c);
    echo_end(&e);
    free(x);
}

static void other_families_and_names(void **state) {
    (void)state;
    static const char *const addresses[] = {"[::1]:0", "localhost:0"};
    Echo         e;
    ChannelFault fault;
    int          tried = 0;
    for (int i = 0; i < 2; i++) {
        char name[CHANNEL_PEER_BYTES + 16];
        if (!echo_begin(&e, addresses[i], &KEY)) continue; /* skips the IPv6 address on a machine without IPv6 */
        snprintf(name, sizeof name, "%s%s", i == 0 ? "[::1]" : "localhost", strrchr(e.address, ':'));
        Channel *c = channel_connect(name, &KEY, 0, NULL, NULL, &fault);
        assert_non_null(c);
        assert_string_equal(channel_peer(c), e.address);
        channel_close(c);
        echo_end(&e);
        tried++;
    }
    assert_true(tried > 0);
}

/* --- readers that stop -------------------------------------------------------------------------------------------- */

/* Makes two open channels that are connected to each other. */
static void face(Channel **client, Channel **server) {
    int ends[2];
    tcp_pair(ends);
    *server = channel_over(ends[0], SIDE_SERVER, &KEY);
    *client = channel_over(ends[1], SIDE_CLIENT, &KEY);
    for (int i = 0; i < 1000 && !(channel_is_open(*client) && channel_is_open(*server)); i++) {
        Channel *both[2] = {*client, *server};
        channel_wait(both, 2, -1, 10);
        channel_progress(*client), channel_progress(*server);
    }
}

static void a_reader_that_stops_reading(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    Channel     *client, *server;
    uint8_t     *x = filled(BYTES, 3);
    int          sent = 0, got = 0, full = 0;
    FrameHeader  h;
    const void  *payload;
    face(&client, &server);
    assert_int_equal(channel_flush(server, 0), 1);
    for (int i = 0; i < 100 && !full; i++) {
        int rc = channel_send(server, bytes_frame(BYTES - (size_t)sent), x);
        assert_true(rc >= 0);
        sent += rc == 1, full = rc == 0;
        assert_true(channel_unsent(server) <= CHANNEL_OUT_BYTES);
    }
    assert_true(full); /* sending stops once CHANNEL_OUT_BYTES are unsent, the most that a channel keeps */
    double began = clock_ms();
    assert_int_equal(channel_flush(server, 50), 0);
    assert_true(clock_ms() - began >= 50 && clock_ms() - began < 2000);
    /* a channel with too many unsent bytes is not broken; the caller decides how long to wait */
    assert_int_equal(channel_progress(server), 0);
    assert_false(channel_has_space(server));
    /* channel_queue, which is for short messages, accepts bytes beyond the limit CHANNEL_OUT_BYTES */
    while (channel_unsent(server) <= CHANNEL_OUT_BYTES) {
        channel_queue(server, bytes_frame(BYTES - (size_t)sent), x);
        sent++;
    }
    for (double until = clock_ms() + 20e3; got < sent && clock_ms() < until; channel_progress(server))
        while (channel_next(client, &h, &payload) == 1) {
            assert_int_equal(h.payload_bytes, BYTES - got);
            assert_memory_equal(payload, x, h.payload_bytes);
            got++;
        }
    assert_int_equal(got, sent);
    assert_int_equal(channel_unsent(server), 0);
    /* the client has stopped reading, so the unsent bytes reach the limit at which the channel breaks */
    while (!channel_is_broken(server)) channel_queue(server, bytes_frame(BYTES), x);
    assert_true(channel_unsent(server) <= CHANNEL_MOST_UNSENT);
    assert_int_equal(channel_fault(server)->code, EXIT_PEER);
    assert_non_null(strstr(channel_fault(server)->text, "reads too slowly"));
    channel_close(client), channel_close(server);
    free(x);
}

/* A server sends a reason and closes the channel, while the peer still sends and reads late. The peer must receive the
 * reason. */
static void last_words_reach_a_peer_that_sends(void **state) {
    (void)state;
    enum { BYTES = 1 << 20 };
    Channel     *client, *server;
    uint8_t     *x = filled(BYTES, 3);
    FrameHeader  h;
    const void  *payload;
    face(&client, &server);
    int sent = 0, got = 0;
    for (int i = 0; i < 8; i++) channel_send(client, bytes_frame(BYTES), x);
    for (int i = 0; i < 64 && channel_unsent(server) < 2 * BYTES; i++)
        sent += channel_send(server, bytes_frame(BYTES), x);
    assert_true(channel_unsent(server) >= 2 * BYTES);
    assert_int_equal(channel_send(server, bytes_frame(3), "why"), 1);
    channel_end(server);
    assert_int_equal(channel_send(server, bytes_frame(3), "and"), 0);
    h.payload_bytes = 0;
    for (double until = clock_ms() + 20e3; h.payload_bytes != 3 && clock_ms() < until;) {
        assert_int_equal(channel_next(server, &h, &payload), 0);
        channel_send(client, bytes_frame(BYTES), x);
        while (channel_next(client, &h, &payload) > 0 && h.payload_bytes == BYTES) got++;
    }
    assert_int_equal(got, sent);
    assert_memory_equal(payload, "why", 3);
    assert_int_equal(next_frame(client, &h, &payload), -1);
    assert_non_null(strstr(channel_fault(client)->text, "closed the connection"));
    channel_close(client);
    assert_int_equal(next_frame(server, &h, &payload), -1);
    channel_close(server);
    free(x);
}

/* --- connecting and listening ------------------------------------------------------------------------------------- */

static void wrong_keys_end_the_wait(void **state) {
    (void)state;
    Echo         e;
    ChannelFault fault;
    assert_true(echo_begin(&e, "127.0.0.1:0", &KEY));
    double began = clock_ms();
    assert_null(channel_connect(e.address, &OTHER_KEY, 60e3, NULL, NULL, &fault));
    assert_true(clock_ms() - began < 3000);
    assert_int_equal(fault.code, EXIT_CONFIG);
    assert_non_null(strstr(fault.text, e.address));
    assert_non_null(strstr(fault.text, "outer.key"));
    for (int i = 0; i < 100 && !e.code; i++) poll(NULL, 0, 10);
    echo_end(&e);
    assert_int_equal(e.code, EXIT_CONFIG);
    assert_non_null(strstr(e.fault, "127.0.0.1:"));
    assert_non_null(strstr(e.fault, "another key (outer.key)"));
}

static int count_calls(void *calls) { return ++*(int *)calls > 3; }

/* Writes the address of a port on which nothing listens. */
static void free_port(char out[CHANNEL_PEER_BYTES]) {
    ChannelFault fault;
    int          fd = channel_listen("127.0.0.1:0", &fault);
    channel_listening(fd, out);
    close(fd);
}

static void nobody_there(void **state) {
    (void)state;
    char         address[CHANNEL_PEER_BYTES];
    ChannelFault fault;
    int          calls = 0;
    free_port(address);
    double began = clock_ms();
    assert_null(channel_connect(address, &KEY, 0, NULL, NULL, &fault));
    assert_true(clock_ms() - began < 900);
    assert_int_equal(fault.code, EXIT_PEER);
    assert_non_null(strstr(fault.text, address));
    assert_non_null(strstr(fault.text, "nobody listens there"));
    assert_null(channel_connect(address, &KEY, 60e3, count_calls, &calls, &fault));
    assert_true(calls == 4 && clock_ms() - began < 3000);
}

static void *begin_late(void *e) {
    poll(NULL, 0, 300);
    Echo *echo = e;
    char  address[CHANNEL_PEER_BYTES];
    strcpy(address, echo->address);
    echo_begin(echo, address, &KEY);
    return NULL;
}

static void a_server_that_comes_late(void **state) {
    (void)state;
    Echo         e;
    ChannelFault fault;
    pthread_t    thread;
    char         address[CHANNEL_PEER_BYTES];
    free_port(address);
    strcpy(e.address, address);
    pthread_create(&thread, NULL, begin_late, &e);
    Channel *c = channel_connect(address, &KEY, 10e3, NULL, NULL, &fault);
    pthread_join(thread, NULL);
    assert_non_null(c);
    channel_close(c);
    echo_end(&e);
}

static void a_port_in_use(void **state) {
    (void)state;
    char         address[CHANNEL_PEER_BYTES], other[CHANNEL_PEER_BYTES];
    ChannelFault fault;
    int          fd = channel_listen("127.0.0.1:0", &fault);
    channel_listening(fd, address);
    assert_int_equal(channel_listen(address, &fault), -1);
    assert_int_equal(fault.code, EXIT_LOCKED);
    assert_non_null(strstr(fault.text, address));
    assert_non_null(strstr(fault.text, "in use"));
    /* The server listens only on its own address. The same port of another address of this machine is free. */
    snprintf(other, sizeof other, "127.0.0.2%s", strrchr(address, ':'));
    assert_null(channel_connect(other, &KEY, 0, NULL, NULL, &fault));
    assert_non_null(strstr(fault.text, "nobody listens there"));
    int second = channel_listen(other, &fault);
    assert_true(second >= 0);
    close(fd), close(second);
    /* 192.0.2.1 is reserved for documentation (RFC 5737), so no machine has it */
    assert_int_equal(channel_listen("192.0.2.1:7070", &fault), -1);
    assert_int_equal(fault.code, EXIT_CONFIG);
    assert_non_null(strstr(fault.text, "192.0.2.1:7070"));
}

static void addresses_that_are_none(void **state) {
    (void)state;
    static const char *const bad[] = {"",        ":",       "host",     "host:", ":7070",     "host:port",
                                      "host:-1", "host:1 ", "::1:7070", "[::1]", "[::1]7070", "host:123456",
                                      "host:70707"};
    ChannelFault             fault;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(channel_connect(bad[i], &KEY, 60e3, NULL, NULL, &fault));
        assert_int_equal(channel_listen(bad[i], &fault), -1);
        assert_int_equal(fault.code, EXIT_CONFIG);
        assert_non_null(strstr(fault.text, bad[i]));
        assert_non_null(strstr(fault.text, "is no address"));
    }
    /* valid addresses, although this machine may have none of them */
    static const char *const good[] = {"localhost.localdomain:0", "10.0.0.1:1", "[2001:db8::1]:65535", "localhost:0"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int fd = channel_listen(good[i], &fault);
        assert_true(fd >= 0 || !strstr(fault.text, "is no address"));
        if (fd >= 0) close(fd);
    }
}

/* Sending to a peer that is gone breaks the channel and raises no SIGPIPE. */
static void no_signal_for_a_lost_peer(void **state) {
    (void)state;
    Channel *client, *server;
    assert_true(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
    face(&client, &server);
    channel_close(client);
    for (int i = 0; i < 50 && channel_send(server, bytes_frame(4), "ping") >= 0; i++) poll(NULL, 0, 1);
    assert_true(channel_is_broken(server));
    channel_close(server);
    channel_close(NULL);
}

/* A reader is not woken by each packet of a large frame. It is woken by the frame's header, after every 32 KiB, at the
 * end of the frame, and when the connection ends. */
static void a_large_frame_wakes_seldom(void **state) {
    /* Header and payload together are 6 TLS records of 16 KiB and one of 1744 bytes. */
    enum { BYTES = 100000, RECORDS = 7, ALL = FRAME_HEADER_BYTES + BYTES + RECORDS * RECORD_ADDS };
    static const struct { int bytes, wakes; } PART[] = {
        {1000, 1}, {10000, 0}, {6000, 1}, {30000, 0}, {5000, 1}, {46436, 1}, {1000, 0}, {ALL - 99436, 1}};
    static uint8_t all[ALL], bytes[BYTES];
    FrameHeader    h;
    const void    *payload;
    Line           l = line_make(&KEY, &KEY);
    const uint8_t *at = all;
    (void)state;
    line_open(&l);
    assert_int_equal(channel_send(l.client, bytes_frame(BYTES), bytes), 1);
    line_read(l.at_client, all, ALL);
    for (size_t i = 0; i < sizeof PART / sizeof *PART; at += PART[i++].bytes) {
        line_write(l.at_server, at, (size_t)PART[i].bytes);
        assert_int_equal(channel_wait(&l.server, 1, -1, PART[i].wakes ? 5000 : 50), PART[i].wakes);
        if (PART[i].wakes) assert_int_equal(channel_next(l.server, &h, &payload), at + PART[i].bytes == all + ALL);
    }
    assert_true(at == all + ALL);
    /* the reader is woken by the header of the next frame, before its payload has arrived */
    assert_int_equal(channel_send(l.client, bytes_frame(10), bytes), 1);
    line_read(l.at_client, all, FRAME_HEADER_BYTES + 10 + RECORD_ADDS);
    line_write(l.at_server, all, 60);
    assert_int_equal(channel_wait(&l.server, 1, -1, 5000), 1);
    assert_int_equal(channel_next(l.server, &h, &payload), 0);
    line_cut(&l.at_server);
    assert_int_equal(channel_wait(&l.server, 1, -1, 5000), 1);
    assert_int_equal(channel_next(l.server, &h, &payload), -1);
    line_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_talk),
        cmocka_unit_test(frames_under_way),
        cmocka_unit_test(a_large_frame_wakes_seldom),
        cmocka_unit_test(other_families_and_names),
        cmocka_unit_test(a_reader_that_stops_reading),
        cmocka_unit_test(last_words_reach_a_peer_that_sends),
        cmocka_unit_test(wrong_keys_end_the_wait),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(a_server_that_comes_late),
        cmocka_unit_test(a_port_in_use),
        cmocka_unit_test(addresses_that_are_none),
        cmocka_unit_test(no_signal_for_a_lost_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
