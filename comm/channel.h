/* channel.h - one TCP connection between an island's rank and a server: frames that are whole, sealed and in order, or
 * a broken channel and a sentence. No MPI.
 *
 * Opening, before any frame; a peer gets no more memory than a small buffer until it has proven the key:
 *   client: "TGO1" u32 protocol, nonce_c[32]
 *   server: "TGO1" u32 protocol, nonce_s[32], proof[32]
 *   client: proof[32]
 * The first 8 bytes are the same in every protocol to come: so each side can say which one the other speaks.
 *
 * All calls but channel_connect, channel_wait and channel_flush return at once. A channel breaks once and stays broken:
 * its peer closed it, was silent in the opening, or sent bytes that are no frame, a frame with a wrong seal, or one out
 * of order. A call never ends the program and never raises SIGPIPE. One thread uses a channel at a time.
 *
 * A loop over channels:
 *   channel_wait(all, count, listening, 100);
 *   while ((c = channel_accept(listening, &key))) ...
 *   for each: while ((got = channel_next(c, &h, &payload)) > 0) ...     got < 0: channel_fault(c), channel_close(c)
 */
#ifndef TRAIN_GPT_COMM_CHANNEL_H
#define TRAIN_GPT_COMM_CHANNEL_H

#include "comm/frame.h"
#include "comm/key.h"

enum {
    CHANNEL_PROTOCOL = 2, /* 2: WELCOME says whether the server has changes. Raise it when a frame or a message changes */
    CHANNEL_OPENING_MS = 5000, /* a peer has this long for its opening */
    CHANNEL_RETRY_MS = 1000,   /* between two tries to connect */
    CHANNEL_FRAME_BYTES = FRAME_HEADER_BYTES + FRAME_PAYLOAD_LIMIT + SEAL_BYTES,
    CHANNEL_OUT_BYTES = 2 * CHANNEL_FRAME_BYTES,
    CHANNEL_BYTES = CHANNEL_FRAME_BYTES + CHANNEL_OUT_BYTES, /* the most memory that an open channel takes */
    CHANNEL_PEER_BYTES = 80
};

typedef struct Channel Channel;

/* Why a call did not do it: a sentence that names the address, and the exit code that fits. */
typedef struct {
    int  code;      /* EXIT_CONFIG: an address that is none, another key or protocol; EXIT_PEER: nobody there, or lost;
                     * EXIT_LOCKED: port in use; EXIT_IO, EXIT_MEMORY: this machine's */
    char text[512];
} ChannelFault;

/* Connects to "host:port", "192.0.2.1:port" or "[2001:db8::1]:port", and opens. It tries again each CHANNEL_RETRY_MS
 * until patience_ms are over; 0: one try. Another key or protocol ends it at once. between (may be NULL) is called
 * several times a second with its argument; when it returns 1 the waiting ends. Returns NULL with *fault set. */
Channel *channel_connect(const char *host_port, const Key *key, double patience_ms,
                         int (*between)(void *), void *argument, ChannelFault *fault);

/* Whether "host:port" can be an address: 1, or 0 with *fault set. Looks nothing up. */
int channel_check_address(const char *host_port, ChannelFault *fault);

/* Listens on that address and on no other; port 0: the system picks one. Returns a descriptor, for close(), or -1. */
int channel_listen(const char *host_port, ChannelFault *fault);
/* The address that it listens on, as "192.0.2.1:port" or "[2001:db8::1]:port". */
void channel_listening(int listening, char out[CHANNEL_PEER_BYTES]);

/* The next connection that waits; NULL: none. Its opening goes on inside the other calls; see channel_is_open. */
Channel *channel_accept(int listening, const Key *key);

/* Copies a frame into the out buffer and starts to send it. h: kind, type, round, offset, elems, payload_bytes; the
 * channel counts. Returns 1, 0: the out buffer has no room for it now, or the opening is not over, -1: broken. A
 * channel with nothing unsent takes any frame. A header that frame_parse_header would refuse is a bug of the caller. */
int channel_send(Channel *c, FrameHeader h, const void *payload);

/* Reads and writes what is possible now; at most one frame is read ahead. Returns 0, or -1: broken, and nothing that
 * is sent will arrive. Frames that arrived whole before that are still given by channel_next. */
int channel_progress(Channel *c);

/* The next whole frame, its seal and counter right. 1: *h and *payload (16-byte aligned, borrowed until the next
 * channel_next or channel_close); 0: none yet; -1: broken, and all that arrived has been given. It makes progress. */
int channel_next(Channel *c, FrameHeader *h, const void **payload);

/* Waits for at most ms until one of the channels (NULLs are passed over) or the listening descriptor (-1: none) has
 * something to do, or a signal comes. Within a frame that is its rest, or 32 KiB of it. Returns 1: something to do, 0:
 * none. */
int channel_wait(Channel *const *c, int count, int listening, double ms);

/* Sends what is in the out buffer, for at most ms. Returns 1: all has gone to the system, 0: time is up, -1: broken. */
int channel_flush(Channel *c, double ms);

/* The last words are said: what is in the out buffer is still sent, then this direction ends, and all that arrives is
 * dropped. So the peer reads them even while it sends. Then channel_next returns 0 until the peer has closed, too, or
 * CHANNEL_OPENING_MS have passed, and then -1: time for channel_close. */
void channel_end(Channel *c);

/* From now on a frame with offset + elems over most_elems breaks the channel. */
void channel_limit(Channel *c, int64_t most_elems);

int         channel_is_open(const Channel *c);     /* the peer has proven the key */
int         channel_is_broken(const Channel *c);
size_t      channel_unsent(const Channel *c);      /* bytes in the out buffer */
double      channel_silent_ms(const Channel *c);   /* since a byte was read last; make progress before you judge */
const char *channel_peer(const Channel *c);        /* "192.0.2.1:port", "[2001:db8::1]:port" */
int         channel_fault_code(const Channel *c);  /* of a broken one: EXIT_CONFIG: key, protocol; else EXIT_PEER */
const char *channel_fault(const Channel *c);       /* a sentence that begins with the peer's address; "": not broken */
/* Bytes that went through it, openings and seals counted. */
uint64_t    channel_sent_bytes(const Channel *c);
uint64_t    channel_received_bytes(const Channel *c);

/* Closes at once: what was not sent is lost (channel_flush, channel_end). NULL is fine. */
void channel_close(Channel *c);

#endif
