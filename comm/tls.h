/* tls.h - TLS 1.3 over a connected socket, with the key that islands (training jobs of several sites) and their server
 * share: no certificates, no tickets, no early data. Each connection has keys of its own, by Diffie-Hellman (psk_dhe_ke
 * of RFC 8446), so the key file does not open recorded traffic. OpenSSL does all of it. No call blocks, and none raises
 * SIGPIPE.
 */
#ifndef TRAIN_GPT_COMM_TLS_H
#define TRAIN_GPT_COMM_TLS_H

#include <stddef.h>
#include <stdint.h>

#include "comm/key.h"

/* One end of a TLS connection. The caller may read `sent`, `received` and `why`; the other fields belong to tls.c. */
typedef struct {
    struct ssl_st *ssl;       /* OpenSSL's connection; owned */
    int      fd;
    Key      key;
    int      write_error;     /* errno with which the socket refused to take bytes; 0 if it has not */
    int      read_error;
    int      has_ended;       /* 1: the peer has closed its sending direction */
    uint8_t  head[5];         /* [head_bytes] header of the TLS record that is being read */
    /* head_bytes: bytes of `head` read so far. body_left: bytes of the TLS record's body not yet read; valid once
     * `head` is complete */
    size_t   head_bytes, body_left;
    uint64_t sent, received;  /* bytes sent and received on the wire so far, including those that TLS adds */
    char     why[200];        /* why a call returned TLS_FAILED; part of a message */
} Tls;

/* Why a call moved no bytes. After TLS_ENDED and TLS_FAILED only tls_free may follow; after TLS_MUTE
 * tls_read as well. */
typedef enum {
    TLS_LATER = 0,   /* nothing to read, or the socket takes no bytes now: call again later */
    TLS_ENDED = -1,  /* the peer has closed the connection */
    TLS_MUTE = -2,   /* the peer accepts no more bytes; errno is the reason. Bytes that it has sent can still be read */
    TLS_FAILED = -3, /* the connection is lost, or the peer sent bytes that are not TLS with this key */
    TLS_OTHER_KEY = -4 /* the peer's key differs from this side's */
} TlsResult;

/* Makes one end of a connection. The caller keeps the socket, which must not block. Returns NULL if memory runs out. */
Tls *tls_create(int fd, Side side, const Key *key);
void tls_free(Tls *t); /* frees the connection, but not the socket; t may be NULL */

/* Continues the handshake. Returns 1 when the peer has proven the key, otherwise a TlsResult. */
int tls_open(Tls *t);
/* Read and write at most `length` or `bytes` bytes, and return how many, or a TlsResult. A write that returned
 * TLS_LATER must be repeated with the same bytes; more may follow them. */
int64_t tls_read(Tls *t, void *out, size_t bytes);
int64_t tls_write(Tls *t, const void *bytes, size_t length);
void    tls_end(Tls *t); /* sends the TLS alert close_notify, after which this side sends nothing more */

int     tls_buffered(const Tls *t); /* returns the number of bytes that tls_read can return without reading the
                                     * socket */
/* Returns the bytes of a TLS record that the socket must still give before tls_read can go on; at least 1. Returns 0 if
 * the socket's last byte was the last of a record. */
size_t  tls_lacks(const Tls *t);

#endif
