/* channel_connect.c - channel_connect() of channel.h: tries, each with its opening, until patience is over. */
#include <poll.h>

#include "comm/socket.h"
#include "core/thread.h"
#include "core/error.h"

/* Waits until the peer has proven the key or the channel is broken. The channel's own deadline ends the wait. */
static Channel *open_whole(Channel *c, const char *host_port, Between between, ChannelFault *fault) {
    if (!c) return channel_fault_set(fault, EXIT_MEMORY, "%s: no memory to connect", host_port), NULL;
    while (!channel_is_open(c) && channel_progress(c) == 0 && !between_stops(between))
        channel_wait(&c, 1, -1, BETWEEN_MS);
    if (channel_is_open(c)) return c;
    if (channel_is_broken(c)) channel_fault_set(fault, channel_fault_code(c), "%s", channel_fault(c));
    else channel_fault_set(fault, EXIT_PEER, "%s: not yet connected", host_port);
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
