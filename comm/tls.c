/* tls.c - TLS connections (tls.h) by means of OpenSSL. */
#include "comm/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "core/error.h"

/* The name of the shared key in a handshake, and the only cipher in use. SHA-256 is the hash that RFC 8446 gives to
 * external keys. */
static const char IDENTITY[] = "train_gpt", CIPHER[] = "TLS_AES_128_GCM_SHA256";
static const unsigned char CIPHER_ID[] = {0x13, 0x01};

/* --- the socket as OpenSSL sees it -------------------------------------------------------------------------------- */

/* Sends bytes for OpenSSL. If the peer accepts no more, sets the flag "full for now" instead of an error, because
 * after an error OpenSSL would not read either. tls_write reports the failure. */
static int socket_write(BIO *b, const char *bytes, int length) {
    Tls    *t = BIO_get_data(b);
    ssize_t n;
    do n = send(t->fd, bytes, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    BIO_clear_retry_flags(b);
    if (n >= 0) return t->sent += (uint64_t)n, (int)n;
    if (errno != EAGAIN && errno != EWOULDBLOCK) t->write_error = errno;
    BIO_set_retry_write(b);
    return -1;
}

/* Counts the bytes read from the socket, to know where each TLS record ends. */
static void note_read(Tls *t, const char *bytes, size_t length) {
    for (size_t n; length > 0; bytes += n, length -= n) {
        if (t->head_bytes < sizeof t->head) {
            n = 1;
            t->head[t->head_bytes++] = (uint8_t)*bytes;
            if (t->head_bytes == sizeof t->head) t->body_left = (size_t)t->head[3] << 8 | t->head[4];
        } else {
            n = length < t->body_left ? length : t->body_left;
            t->body_left -= n;
        }
        if (t->head_bytes == sizeof t->head && t->body_left == 0) t->head_bytes = 0;
    }
}

static int socket_read(BIO *b, char *out, int bytes) {
    Tls    *t = BIO_get_data(b);
    ssize_t n;
    do n = recv(t->fd, out, (size_t)bytes, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    BIO_clear_retry_flags(b);
    t->has_ended = n == 0;
    if (n > 0) note_read(t, out, (size_t)n);
    if (n >= 0) return t->received += (uint64_t)n, (int)n;
    if (errno == EAGAIN || errno == EWOULDBLOCK) BIO_set_retry_read(b);
    else t->read_error = errno;
    return -1;
}

/* Answers OpenSSL's requests about the socket: a flush has nothing to do, and BIO_CTRL_EOF asks if the peer has closed
 * its direction. */
static long socket_control(BIO *b, int command, long number, void *argument) {
    (void)number, (void)argument;
    if (command == BIO_CTRL_EOF) return ((Tls *)BIO_get_data(b))->has_ended;
    return command == BIO_CTRL_FLUSH;
}

/* --- the key ------------------------------------------------------------------------------------------------------ */

/* Returns a session that holds the shared key, which is how OpenSSL takes an external key; NULL if memory runs out. */
static SSL_SESSION *session_of(SSL *ssl) {
    const Tls   *t = SSL_get_app_data(ssl);
    SSL_SESSION *s = SSL_SESSION_new();
    if (s && SSL_SESSION_set1_master_key(s, t->key.bytes, KEY_BYTES) &&
        SSL_SESSION_set_cipher(s, SSL_CIPHER_find(ssl, CIPHER_ID)) &&
        SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION))
        return s;
    SSL_SESSION_free(s);
    return NULL;
}

static int offer_key(SSL *ssl, const EVP_MD *hash, const unsigned char **identity, size_t *length,
                     SSL_SESSION **session) {
    (void)hash; /* unused, because there is one cipher, and so one hash */
    *identity = (const unsigned char *)IDENTITY, *length = sizeof IDENTITY - 1;
    *session = session_of(ssl);
    return *session != NULL;
}

/* Finds the key for the identity that the client names. For an unknown identity *session is NULL. The handshake then
 * fails, because there is no certificate. */
static int find_key(SSL *ssl, const unsigned char *identity, size_t length, SSL_SESSION **session) {
    int is_ours = length == sizeof IDENTITY - 1 && !memcmp(identity, IDENTITY, length);
    *session = is_ours ? session_of(ssl) : NULL;
    return !is_ours || *session != NULL;
}

/* --- a connection ------------------------------------------------------------------------------------------------- */

static SSL_CTX    *context[2]; /* OpenSSL contexts: [SIDE_SERVER] and [SIDE_CLIENT] */
static BIO_METHOD *method;

static void make_contexts(void) {
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "a socket that raises no SIGPIPE");
    int is_made = method && BIO_meth_set_write(method, socket_write) && BIO_meth_set_read(method, socket_read) &&
                  BIO_meth_set_ctrl(method, socket_control);
    for (int side = 0; side < 2 && is_made; side++) {
        SSL_CTX *c = context[side] = SSL_CTX_new(side == SIDE_SERVER ? TLS_server_method() : TLS_client_method());
        is_made = c && SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) &&
                  SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) && SSL_CTX_set_ciphersuites(c, CIPHER) &&
                  SSL_CTX_set_num_tickets(c, 0) && SSL_CTX_set_max_early_data(c, 0);
        if (!is_made) break;
        SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
        SSL_CTX_clear_options(c, SSL_OP_ENABLE_MIDDLEBOX_COMPAT); /* turns off the dummy records that TLS 1.3 sends for
                                                                   * old middleboxes, because nothing here needs them */
        SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
        SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
        SSL_CTX_set_psk_find_session_callback(c, find_key);
        SSL_CTX_set_psk_use_session_callback(c, offer_key);
    }
    if (!is_made)
        fail(EXIT_IO,
             "OpenSSL on this machine refuses TLS 1.3 with the cipher %s, which outer.server and ./train_gpt serve "
             "need: %s; the file openssl.cnf of this machine may forbid the cipher: allow it there",
             CIPHER, ERR_reason_error_string(ERR_peek_error()));
}

Tls *tls_create(int fd, Side side, const Key *key) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_contexts);
    Tls *t = OPENSSL_zalloc(sizeof *t);
    BIO *b = t ? BIO_new(method) : NULL;
    if (b) t->ssl = SSL_new(context[side]);
    if (!b || !t->ssl) {
        BIO_free(b);
        OPENSSL_free(t);
        return NULL;
    }
    t->fd = fd, t->key = *key;
    BIO_set_data(b, t), BIO_set_init(b, 1);
    SSL_set_bio(t->ssl, b, b);
    SSL_set_app_data(t->ssl, t);
    if (side == SIDE_SERVER) SSL_set_accept_state(t->ssl);
    else SSL_set_connect_state(t->ssl);
    return t;
}

void tls_free(Tls *t) {
    if (!t) return;
    SSL_free(t->ssl);
    OPENSSL_clear_free(t, sizeof *t);
}

/* Returns the TlsResult for an OpenSSL call that returned rc <= 0. Writes the reason of TLS_FAILED to t->why. */
static int result_of(Tls *t, int rc) {
    int error = SSL_get_error(t->ssl, rc), reason = ERR_GET_REASON(ERR_peek_error());
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        if (!t->write_error) return TLS_LATER;
        errno = t->write_error;
        return TLS_MUTE;
    }
    if (error == SSL_ERROR_ZERO_RETURN) return TLS_ENDED;
    const char *why = t->read_error ? strerror(t->read_error) : ERR_reason_error_string(ERR_peek_error());
    snprintf(t->why, sizeof t->why, "%s", why ? why : "no reason is known");
    ERR_clear_error();
    if (t->read_error) return TLS_FAILED;
    /* OpenSSL reports one of these reasons if the binder, the client's proof of the key, does not match the key. */
    int is_other_key = reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER ||
                       reason == SSL_R_TLSV1_ALERT_DECRYPT_ERROR;
    return is_other_key && !SSL_is_init_finished(t->ssl) ? TLS_OTHER_KEY : TLS_FAILED;
}

int tls_open(Tls *t) {
    ERR_clear_error();
    int rc = SSL_do_handshake(t->ssl);
    if (rc <= 0) return result_of(t, rc);
    /* OpenSSL counts a handshake with the shared key as a resumed session. If the session is not resumed, the server
     * may have shown any certificate, so the connection is refused. */
    if (SSL_session_reused(t->ssl)) return 1;
    snprintf(t->why, sizeof t->why, "it shows a certificate instead");
    return TLS_FAILED;
}

int64_t tls_read(Tls *t, void *out, size_t bytes) {
    size_t n = 0;
    ERR_clear_error();
    int rc = SSL_read_ex(t->ssl, out, bytes, &n);
    return rc > 0 ? (int64_t)n : result_of(t, rc);
}

int64_t tls_write(Tls *t, const void *bytes, size_t length) {
    size_t n = 0;
    ERR_clear_error();
    int rc = SSL_write_ex(t->ssl, bytes, length, &n);
    return rc > 0 ? (int64_t)n : result_of(t, rc);
}

void tls_end(Tls *t) {
    ERR_clear_error();
    SSL_shutdown(t->ssl);
}

int    tls_buffered(const Tls *t) { return SSL_pending(t->ssl); }
size_t tls_lacks(const Tls *t) { return t->head_bytes == sizeof t->head ? t->body_left : t->head_bytes > 0; }
