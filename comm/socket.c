/* socket.c - see socket.h, and channel_listen() of channel.h. */
#include "comm/socket.h"

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

#include "core/thread.h"
#include "core/error.h"

int channel_fault_set(ChannelFault *fault, int code, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault->text, sizeof fault->text, fmt, args);
    va_end(args);
    fault->code = code;
    return -1;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

int address_parse(const char *host_port, Address *a, ChannelFault *fault) {
    const char *from = host_port, *end = strrchr(host_port, ':'), *port = end ? end + 1 : "";
    if (*from == '[' && end && end > from && end[-1] == ']') from++, end--;
    else if (end && memchr(from, ':', (size_t)(end - from)))
        return channel_fault_set(fault, EXIT_CONFIG,
                                 "\"%s\" is no address: IPv6 stands in brackets, as in \"[::1]:7070\"", host_port);
    size_t digits = strspn(port, "0123456789");
    int    is_port = digits > 0 && digits <= 5 && !port[digits] && atoi(port) <= 65535;
    if (!end || end == from || (size_t)(end - from) >= HOST_BYTES || !is_port)
        return channel_fault_set(fault, EXIT_CONFIG,
                                 "\"%s\" is no address: it must be host:port, as in \"10.0.0.1:7070\"", host_port);
    snprintf(a->host, sizeof a->host, "%.*s", (int)(end - from), from);
    snprintf(a->port, sizeof a->port, "%d", atoi(port));
    return 0;
}

int channel_check_address(const char *host_port, ChannelFault *fault) {
    Address a;
    return address_parse(host_port, &a, fault) == 0;
}

/* Returns the addresses of a host, to be freed with freeaddrinfo(), or NULL with *fault set. */
static struct addrinfo *look_up(const char *host_port, ChannelFault *fault) {
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_protocol = IPPROTO_TCP, .ai_flags = AI_NUMERICSERV};
    struct addrinfo      *found = NULL;
    Address               a;
    if (address_parse(host_port, &a, fault) < 0) return NULL;
    int rc = getaddrinfo(a.host, a.port, &want, &found);
    if (rc == 0 && found) return found;
    int passes = rc == EAI_AGAIN || rc == EAI_MEMORY || rc == EAI_SYSTEM;
    channel_fault_set(fault, passes ? EXIT_PEER : EXIT_CONFIG, "%s: the host's address cannot be found: %s", host_port,
                      rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    return NULL;
}

static void name_of(const struct sockaddr_storage *at, socklen_t bytes, char out[CHANNEL_PEER_BYTES]) {
    char host[64] = "?", port[PORT_BYTES] = "?";
    getnameinfo((const struct sockaddr *)at, bytes, host, sizeof host, port, sizeof port,
                NI_NUMERICHOST | NI_NUMERICSERV);
    snprintf(out, CHANNEL_PEER_BYTES, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

void socket_peer(int fd, char out[CHANNEL_PEER_BYTES]) {
    struct sockaddr_storage at;
    socklen_t               bytes = sizeof at;
    if (getpeername(fd, (struct sockaddr *)&at, &bytes) != 0) bytes = 0;
    name_of(&at, bytes, out);
}

void channel_listening(int listening, char out[CHANNEL_PEER_BYTES]) {
    struct sockaddr_storage at;
    socklen_t               bytes = sizeof at;
    if (getsockname(listening, (struct sockaddr *)&at, &bytes) != 0) bytes = 0;
    name_of(&at, bytes, out);
}

/* --- sockets ------------------------------------------------------------------------------------------------------ */

static void set(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

/* Sets options. Small frames are sent at once, and a host that is gone is noticed after some 25 s without traffic. */
static int with_options(int fd) {
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    return fd;
}

/* Returns whether a connection on this machine is with itself: the free port that the system chose may be the very one
 * it connects to. */
static int is_own(int fd) {
    char here[CHANNEL_PEER_BYTES], there[CHANNEL_PEER_BYTES];
    channel_listening(fd, here);
    socket_peer(fd, there);
    return strcmp(here, there) == 0;
}

/* Waits until the connection is complete. Returns 0, or an errno if it fails or `until` passes. */
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
    if (*error == 0 && is_own(fd)) *error = ECONNREFUSED;
    if (*error == 0) return with_options(fd);
    close(fd);
    return -1;
}

int socket_connect(const char *host_port, double ms, Between between, ChannelFault *fault) {
    struct addrinfo *found = look_up(host_port, fault);
    int              fd = -1, error = 0, addresses = 0;
    if (!found) return -1;
    for (const struct addrinfo *at = found; at; at = at->ai_next) addresses++;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next)
        fd = connect_one(at, clock_ms() + ms / addresses, between, &error);
    freeaddrinfo(found);
    if (fd >= 0) return fd;
    int is_ours = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
    return channel_fault_set(fault, is_ours ? EXIT_IO : EXIT_PEER, "%s: %s", host_port,
                             error == ECONNREFUSED ? "nobody listens there" : strerror(error));
}

static int listen_on(const struct addrinfo *at, int *error) {
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0) return *error = errno, -1;
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1); /* after a restart the last connections may still linger */
    if (at->ai_family == AF_INET6) set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    *error = errno;
    close(fd);
    return -1;
}

/* Listens on the first address of the host that this machine has. A name may have several addresses. */
int channel_listen(const char *host_port, ChannelFault *fault) {
    struct addrinfo *found = look_up(host_port, fault);
    int              fd = -1, error = 0;
    if (!found) return -1;
    for (const struct addrinfo *at = found; at && fd < 0 && error != EADDRINUSE; at = at->ai_next)
        fd = listen_on(at, &error);
    freeaddrinfo(found);
    if (fd >= 0) return fd;
    if (error == EADDRINUSE)
        return channel_fault_set(fault, EXIT_LOCKED, "%s: the port is in use: stop the other program, or take another",
                                 host_port);
    if (error == EADDRNOTAVAIL)
        return channel_fault_set(fault, EXIT_CONFIG, "%s: this machine has no such address: take one of its own",
                                 host_port);
    if (error == EACCES)
        return channel_fault_set(fault, EXIT_CONFIG, "%s: the system keeps low ports for itself: take one over 1023",
                                 host_port);
    return channel_fault_set(fault, EXIT_IO, "%s: cannot listen: %s", host_port, strerror(error));
}

int socket_accept(int listening) {
    int fd;
    do fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    return fd < 0 ? -1 : with_options(fd);
}
