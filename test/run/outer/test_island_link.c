/* test_island_link.c - the connection of one rank to a server that the test simulates: fetched weights, and messages
 * that arrive after them. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "run/outer/island_link.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "test/comm/line.h"

/* Makes both ends of an open connection. */
static void meet(Channel **island, Channel **server) {
    int ends[2];
    tcp_pair(ends);
    *island = channel_over(ends[0], SIDE_CLIENT, &KEY), *server = channel_over(ends[1], SIDE_SERVER, &KEY);
    while (!channel_is_open(*island) || !channel_is_open(*server)) channel_progress(*island), channel_progress(*server);
}

/* Reads on the server's side what has arrived, and answers each PING. *asked is set to a GET if one has arrived. */
static void answer(Channel *server, FrameHeader *asked) {
    FrameHeader h;
    const void *payload;
    while (channel_next(server, &h, &payload) > 0)
        if (h.kind == MESSAGE_PING) message_send(server, MESSAGE_PING, 0, NULL);
        else *asked = h;
}

/* Lets both ends of a connection send and receive five times: the link of an island (training job), and the server. */
static void talk(Link *l, Channel *server, FrameHeader *asked) {
    for (int i = 0; i < 5; i++) link_keep(l), answer(server, asked), channel_wait(&l->server, 1, -1, 10);
    link_keep(l);
}

static void send_chunk(Channel *server, FrameHeader asked) {
    static float values[MESSAGE_ELEMS];
    FrameHeader  h = {.kind = MESSAGE_X, .type = FRAME_F32, .round = asked.round, .offset = asked.offset, .elems = asked.elems,
                      .payload_bytes = (uint32_t)(4 * asked.elems)};
    for (int64_t i = 0; i < asked.elems; i++) values[i] = (float)(asked.offset + i);
    assert_int_equal(channel_send(server, h, values), 1);
}

/* An island (a training job) that is asked to stop gives up fetching the server's weights in the middle. It must still
 * receive the answer to its last PING, which arrives after a chunk of weights. */
static void what_is_given_up_hides_nothing(void **state) {
    enum { ELEMS = 3000 };
    static RoundCopy copy;
    Channel         *island, *server;
    FrameHeader      asked = {0};
    Link             l = link_create(&copy, ELEMS, 0, 1, 60.0, 0, 1);
    (void)state;
    meet(&island, &server);
    link_take(&l, island);
    link_fetch(&l, MESSAGE_GET, 7);
    talk(&l, server, &asked);
    assert_true(asked.kind == MESSAGE_GET && asked.round == 7 && asked.offset == 0 && asked.elems == ELEMS);
    send_chunk(server, asked);
    for (int i = 0; !l.fetch.has_chunk && i < 100; i++) talk(&l, server, &asked);
    assert_true(l.fetch.has_chunk && l.fetch.chunk[ELEMS - 1] == ELEMS - 1);
    int64_t answers = l.answers;
    link_ping(&l);
    talk(&l, server, &asked);
    assert_true(l.answers == answers && l.answers < l.pings);
    link_give_up(&l);
    for (int i = 0; l.answers < l.pings && i < 100; i++) talk(&l, server, &asked);
    assert_true(l.answers == l.pings && !l.is_broken);
    link_fetch(&l, MESSAGE_GET, 8); /* a fetch that is given up before anything arrives */
    for (int i = 0; asked.round != 8 && i < 100; i++) talk(&l, server, &asked);
    link_give_up(&l);
    send_chunk(server, asked);
    link_ping(&l);
    for (int i = 0; l.answers < l.pings && i < 100; i++) talk(&l, server, &asked);
    assert_true(l.answers == l.pings && !l.fetch.has_chunk && !l.is_broken);
    link_destroy(&l);
    channel_close(server);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_is_given_up_hides_nothing)};
    return cmocka_run_group_tests_name("island_link", tests, NULL, NULL);
}
