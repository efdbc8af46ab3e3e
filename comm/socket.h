/* socket.h - TCP sockets for comm/channel.c: addresses, connecting, listening. None blocks, none raises SIGPIPE. */
#ifndef TRAIN_GPT_COMM_SOCKET_H
#define TRAIN_GPT_COMM_SOCKET_H

#include "comm/channel.h"
#include "comm/tls.h"
#include "core/error.h"

enum { HOST_BYTES = 256, PORT_BYTES = 6 };

typedef struct { char host[HOST_BYTES], port[PORT_BYTES]; } Address;

/* Sets *fault and returns -1. */
int channel_fault_set(ChannelFault *fault, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);

/* Parses "host:port" or "[host]:port". Returns 0, or -1. */
int address_parse(const char *host_port, Address *a, ChannelFault *fault);

/* A function that waiting calls call several times a second. They stop waiting if it returns 1. stop may be NULL. */
typedef struct { int (*stop)(void *); void *argument; } Between;
enum { BETWEEN_MS = 100 };
static inline int between_stops(Between b) { return b.stop && b.stop(b.argument); }

/* Connects to the first address of the host that answers within ms. Returns a descriptor, or -1. */
int socket_connect(const char *host_port, double ms, Between between, ChannelFault *fault);
/* Returns the next waiting connection, or -1 if there is none. */
int socket_accept(int listening);
/* Writes the address of the socket's other end. */
void socket_peer(int fd, char out[CHANNEL_PEER_BYTES]);

/* --- channel.c, for channel_connect.c: a channel over a connected socket, which it owns; NULL if memory runs out
 * --- */
Channel *channel_over(int fd, Side side, const Key *key);

#endif
