/* socket.h - TCP sockets for comm/channel.c: addresses, connecting, listening. None blocks, none raises SIGPIPE. */
#ifndef TRAIN_GPT_COMM_SOCKET_H
#define TRAIN_GPT_COMM_SOCKET_H

#include "comm/channel.h"
#include "core/error.h"

enum { HOST_BYTES = 256, PORT_BYTES = 6 };

typedef struct { char host[HOST_BYTES], port[PORT_BYTES]; } Address;

/* Sets *fault; returns -1. */
int channel_fault_set(ChannelFault *fault, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* "host:port" or "[host]:port". Returns 0, or -1. */
int address_parse(const char *host_port, Address *a, ChannelFault *fault);

/* Calls that wait ask this several times a second whether to go on; NULL: always. */
typedef struct { int (*stop)(void *); void *argument; } Between;
enum { BETWEEN_MS = 100 };
static inline int between_stops(Between b) { return b.stop && b.stop(b.argument); }

/* A connection to the first of the host's addresses that answers, within ms; a descriptor, or -1. */
int socket_connect(const char *host_port, double ms, Between between, ChannelFault *fault);
/* The next connection that waits, or -1: none. */
int socket_accept(int listening);
/* The address of a socket's other end. */
void socket_peer(int fd, char out[CHANNEL_PEER_BYTES]);

/* --- of channel.c, for channel_connect.c: a channel over a connected socket, which it owns; NULL: no memory --- */
Channel *channel_over(int fd, Side side, const Key *key);

#endif
