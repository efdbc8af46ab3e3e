/* fuzz_opening.c - any bytes from a peer without the key, in parts of any size. The bytes never open a channel. The
 * channel ends with a message and an exit code. The first byte chooses the side (client or server) and the size of
 * the parts. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/channel.h"
#include "core/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    const Key key = {{1}};
    uint8_t   answer[4096];
    int       ends[2];
    if (bytes < 2 || bytes > 65536 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return 0;
    size_t   part = 1 + (data[0] >> 1);
    Channel *c = channel_over(ends[0], data[0] & 1 ? SIDE_SERVER : SIDE_CLIENT, &key);
    if (!c) abort();
    data++, bytes--;
    for (size_t from = 0, n; from < bytes && !channel_is_broken(c); from += n) {
        n = bytes - from < part ? bytes - from : part;
        if (send(ends[1], data + from, n, MSG_NOSIGNAL) < 0) break;
        channel_progress(c);
        if (channel_is_open(c)) abort();
        while (recv(ends[1], answer, sizeof answer, 0) > 0) {}
    }
    close(ends[1]);
    for (int i = 0; i < 3 && !channel_is_broken(c); i++) channel_progress(c);
    if (channel_is_open(c) || !channel_is_broken(c)) abort();
    if (!channel_fault(c)->text[0] || (channel_fault(c)->code != EXIT_CONFIG && channel_fault(c)->code != EXIT_PEER)) abort();
    channel_close(c);
    return 0;
}
