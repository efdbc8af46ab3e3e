/* channel.h - one TCP connection between a server and a rank of an island, the training job of one site. It delivers
 * frames that are whole and in order, or breaks with a sentence that says why. No MPI.
 *
 * The connection is TLS 1.3 with the shared key (comm/tls.h). Until a peer has proven the key in the handshake, only
 * OpenSSL reads what it sends, with one exception. Connections of protocol 2 and less began with "TGO1" and a u32
 * protocol. The server recognises these 8 bytes and answers with its own, so that an old island names both protocols.
 *
 * All calls but channel_connect, channel_wait and channel_flush return at once. A channel breaks if its peer closes it
 * or does not complete the handshake in time. It also breaks if the peer sends bytes that are not TLS with this key,
 * not a frame, or a frame out of order. It then stays broken. A call never ends the program and never raises SIGPIPE.
 * One thread uses a channel at a time.
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
    CHANNEL_PROTOCOL = 3, /* version of the protocol between training jobs (islands) and their server. Raise it when a
                           * frame or a message changes. Version 3 is the first with TLS */
    CHANNEL_OPENING_MS = 5000, /* time in ms in which a peer must finish the TLS handshake, or close after
                                * channel_end */
    CHANNEL_RETRY_MS = 1000,   /* pause in ms between two tries to connect */
    CHANNEL_FRAME_BYTES = FRAME_HEADER_BYTES + FRAME_PAYLOAD_LIMIT,
    CHANNEL_OUT_BYTES = 2 * CHANNEL_FRAME_BYTES,
    CHANNEL_MOST_UNSENT = 8 * CHANNEL_OUT_BYTES, /* most unsent bytes; a peer that lets more wait is dropped */
    CHANNEL_BYTES = CHANNEL_FRAME_BYTES + CHANNEL_OUT_BYTES, /* bytes of buffers that an open channel takes;
                                                              * channel_queue may make the out buffer larger */
    CHANNEL_PEER_BYTES = 80
};

typedef struct Channel Channel;

/* Why a call failed: the program's exit code, and a sentence that names the address. */
typedef struct {
    int  code;      /* EXIT_CONFIG: not an address, or another key or protocol; EXIT_PEER: no answer, or lost;
                     * EXIT_LOCKED: port in use; EXIT_IO, EXIT_MEMORY: a fault of this machine */
    char text[512];
} ChannelFault;

/* Connects to "host:port", "192.0.2.1:port" or "[2001:db8::1]:port", and completes the TLS handshake. Retries every
 * CHANNEL_RETRY_MS until patience_ms have passed; 0 means one try. A peer with another key or protocol ends the retries
 * at once. `between` (may be NULL) is called several times a second with `argument`; if it returns 1 the waiting ends.
 * Returns NULL with *fault set on failure. */
Channel *channel_connect(const char *host_port, const Key *key, double patience_ms,
                         int (*between)(void *), void *argument, ChannelFault *fault);

/* Listens on the address host_port only. With port 0 the system chooses a port. Returns a descriptor, to be closed with
 * close(), or -1 with *fault set. */
int channel_listen(const char *host_port, ChannelFault *fault);
/* Writes the address on which the descriptor listens, as "192.0.2.1:port" or "[2001:db8::1]:port". */
void channel_listening(int listening, char out[CHANNEL_PEER_BYTES]);

/* Returns the next waiting connection, or NULL if there is none. The handshake is not complete then: it progresses
 * inside later calls, until channel_is_open returns 1. */
Channel *channel_accept(int listening, const Key *key);
/* Makes a channel over a connected socket, which the channel then owns. Returns NULL if memory runs out. */
Channel *channel_over(int fd, Side side, const Key *key);

/* Copies a frame into the out buffer and starts to send it. The caller sets kind, type, round, offset, elems and
 * payload_bytes in h; the channel sets the counter. A header that frame_parse_header would refuse is a bug of the
 * caller. A frame for a channel that is broken, not open yet, or at its end is dropped.
 *
 * channel_send returns 1 if the frame was taken, 0 if the out buffer is too full now, the channel is not open, or
 * channel_end was called, -1 if the channel is broken. A channel with nothing unsent takes any frame. channel_queue
 * takes the frame however full the buffer is: the buffer grows. If CHANNEL_MOST_UNSENT bytes are unsent, it drops the
 * peer instead. It is for short messages; streams of values use channel_send, or ask channel_has_space before. */
int  channel_send(Channel *c, FrameHeader h, const void *payload);
void channel_queue(Channel *c, FrameHeader h, const void *payload);
int  channel_has_space(const Channel *c); /* returns 1 if the out buffer has space for a frame of any size */

/* Receives and sends what is possible now, but receives at most one frame ahead. Returns 0, or -1 if the channel is
 * broken and nothing sent from now on will arrive. channel_next still returns frames that arrived whole before that. */
int channel_progress(Channel *c);

/* Makes progress and returns the next whole frame whose counter is right. Returns 1 with *h and *payload
 * (16-byte aligned, borrowed until the next channel_next or channel_close), 0 if no frame is complete yet, -1 if the
 * channel is broken and every frame that arrived has been returned. */
int channel_next(Channel *c, FrameHeader *h, const void **payload);

/* Waits at most ms until one of the channels (NULLs are skipped) or the listening descriptor (-1 if there is none) has
 * something to do, or a signal arrives. In the middle of a frame that means that the rest of the frame, or 32 KiB more
 * of it, has arrived. Returns 1 if there is something to do, otherwise 0. */
int channel_wait(Channel *const *c, int count, int listening, double ms);

/* Sends what is in the out buffer, for at most ms. Returns 1 if the system has taken all of it, 0 if the time has
 * passed, -1 if the channel is broken. */
int channel_flush(Channel *c, double ms);

/* Ends sending: the out buffer is still sent, then this direction is closed, and everything that arrives is dropped. So
 * the peer can read the last frames even if it is still sending. channel_next then returns 0 until the peer has closed
 * too or CHANNEL_OPENING_MS have passed, and after that -1. Then call channel_close. */
void channel_end(Channel *c);

/* Limits frames from the peer: from now on a frame with offset + elems above most_elems breaks the channel. */
void channel_limit(Channel *c, int64_t most_elems);

int         channel_is_open(const Channel *c);     /* returns 1 if the peer has proven the key, so that frames can be
                                                    * sent */
int         channel_is_broken(const Channel *c);
size_t      channel_unsent(const Channel *c);      /* returns the number of bytes in the out buffer that are not sent
                                                    * yet */
double      channel_silent_ms(const Channel *c);   /* returns the ms since the last byte was read; call channel_progress
                                                    * first, so that bytes that have arrived count */
const char *channel_peer(const Channel *c);        /* returns the address of the peer: "192.0.2.1:port" or
                                                    * "[2001:db8::1]:port" */
/* Returns why the channel is broken: a sentence that begins with the peer's address, and a code. The code is
 * EXIT_CONFIG for another key or protocol, EXIT_MEMORY, or EXIT_PEER. If the channel is not broken the code is 0 and
 * the text "". */
const ChannelFault *channel_fault(const Channel *c);
/* Return the bytes sent and received so far, including those that TLS adds. */
uint64_t    channel_sent_bytes(const Channel *c);
uint64_t    channel_received_bytes(const Channel *c);

/* Closes at once and frees the channel. Bytes not yet sent are lost; see channel_flush and channel_end. c may be
 * NULL. */
void channel_close(Channel *c);

#endif
