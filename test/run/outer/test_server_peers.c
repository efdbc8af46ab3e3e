/* test_server_peers.c - connections to a server that have not yet proved to know its key. Only PEERS_UNPROVEN of them
 * are kept, so a flood of strangers does not use up the server's connections. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "run/outer/server_peers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/thread.h"

enum { FLOOD = 300 };
static const Key KEY = {{7}};

/* Makes a connection and sends `bytes`, the beginning of a handshake. */
static int connect_to(int port, const char *bytes) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int                fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    assert_int_equal(write(fd, bytes, strlen(bytes)), strlen(bytes));
    return fd;
}

/* Accepts `more` new connections on the server's listening socket; waits for each. */
static void accept_all(Peers *p, int listening, int more) {
    for (int i = 0; i < more; i++) {
        Channel *none = NULL;
        assert_true(channel_wait(&none, 0, listening, 60e3));
        peers_accept(p, listening, &KEY, 100);
    }
}

static int is_there(const Peers *p, const Peer *peer) {
    for (int i = 0; i < p->count; i++)
        if (p->peer[i] == peer) return 1;
    return 0;
}

static void a_flood_has_its_places(void **state) {
    (void)state;
    ChannelFault fault;
    char         address[CHANNEL_PEER_BYTES];
    Peers        p = {0};
    int          fds[FLOOD], listening = channel_listen("127.0.0.1:0", &fault);
    assert_true(listening >= 0);
    channel_listening(listening, address);
    int port = atoi(strrchr(address, ':') + 1);
    int island = connect_to(port, "\x16\x03\x01");
    accept_all(&p, listening, 1);
    Peer *first = p.peer[0];
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = connect_to(port, "");
        accept_all(&p, listening, 1);
        assert_true(p.count <= PEERS_UNPROVEN && is_there(&p, first));
    }
    assert_int_equal(p.count, PEERS_UNPROVEN);
    for (int i = 0; i < FLOOD; i++) { /* only the newest connections of the flood are still open */
        char byte;
        int  is_open = recv(fds[i], &byte, 1, MSG_DONTWAIT) < 0;
        assert_int_equal(is_open, i >= FLOOD - (PEERS_UNPROVEN - 1));
        close(fds[i]);
    }
    close(island);
    close(listening);
    peers_destroy(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_flood_has_its_places)};
    return cmocka_run_group_tests_name("server_peers", tests, NULL, NULL);
}
