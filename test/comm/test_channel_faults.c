/* test_channel_faults.c - connections that cut, flip, repeat and reorder bytes, and peers without the key. A channel
 * never returns a frame that was not sent at that place. It breaks with a message, and no side hangs.
 *
 *   test_channel_faults SEED SECONDS    random faults instead, for make soak: prints how many frames were carried
 * Timed: a silent peer must be noticed in time.
 */
#include "comm/channel.h" /* before cmocka.h, which defines fail() as a macro */
#include "core/thread.h"
#include "core/error.h"

#include <fcntl.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "test/comm/line.h"

static const char *the_client_of(const Line *l, char out[CHANNEL_PEER_BYTES]) {
    strcpy(out, channel_peer(l->server));
    return out;
}

/* Asserts that the server's channel is broken, with a reason that contains these words and names the peer's address. */
static void assert_broken(Line *l, int code, const char *words) {
    char        peer[CHANNEL_PEER_BYTES];
    FrameHeader h;
    const void *payload;
    assert_int_equal(next_frame(l->server, &h, &payload), -1);
    assert_int_equal(channel_progress(l->server), -1);
    assert_true(channel_is_broken(l->server));
    assert_int_equal(channel_send(l->server, bytes_frame(0), NULL), -1);
    const char *fault = channel_fault(l->server)->text;
    the_client_of(l, peer);
    if (strncmp(fault, peer, strlen(peer)) != 0 || !strstr(fault, words)) fail_msg("\"%s\", not \"%s\"", fault, words);
    assert_int_equal(channel_fault(l->server)->code, code);
}

/* Lets the client's channel send a frame with this text, and writes the encrypted bytes to out. Returns their
 * number. */
static size_t sent_frame(Line *l, const char *text, uint8_t *out) {
    size_t bytes = strlen(text);
    assert_int_equal(channel_send(l->client, bytes_frame(bytes), text), 1);
    line_read(l->at_client, out, FRAME_HEADER_BYTES + bytes + RECORD_ADDS);
    return FRAME_HEADER_BYTES + bytes + RECORD_ADDS;
}

static void assert_next(Line *l, const char *text) {
    FrameHeader h;
    const void *payload;
    assert_int_equal(next_frame(l->server, &h, &payload), 1);
    assert_int_equal(h.payload_bytes, strlen(text));
    assert_memory_equal(payload, text, strlen(text));
}

/* --- frames ------------------------------------------------------------------------------------------------------- */

static void a_frame_cut_at_every_byte(void **state) {
    (void)state;
    uint8_t bytes[128];
    for (size_t cut = 0, length = 1; cut <= length; cut++) {
        Line l = line_make(&KEY, &KEY);
        line_open(&l);
        length = sent_frame(&l, "{}", bytes);
        line_write(l.at_server, bytes, cut);
        line_cut(&l.at_server);
        /* a whole frame must be returned before the error; of a frame that is cut nothing is returned */
        if (cut == length) assert_next(&l, "{}");
        assert_broken(&l, EXIT_PEER, cut == 0 || cut == length ? "closed the connection" : "within a frame");
        line_free(&l);
    }
}

static void a_frame_with_any_bit_flipped(void **state) {
    (void)state;
    uint8_t bytes[128];
    for (size_t bit = 0, length = 1; bit < 8 * length; bit++) {
        Line l = line_make(&KEY, &KEY);
        line_open(&l);
        length = sent_frame(&l, "{}", bytes);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        line_write(l.at_server, bytes, length);
        line_cut(&l.at_server);
        /* the channel breaks, because TLS refuses the bytes or because some are missing */
        assert_broken(&l, EXIT_PEER, "");
        line_free(&l);
    }
}

static void frames_repeated_reordered_and_lost(void **state) {
    (void)state;
    static const int ORDER[][2] = {{0, 0}, {1, 0}, {0, 2}};
    for (int i = 0; i < 3; i++) {
        Line    l = line_make(&KEY, &KEY);
        uint8_t bytes[3][128];
        line_open(&l);
        size_t length = sent_frame(&l, "a", bytes[0]);
        sent_frame(&l, "b", bytes[1]), sent_frame(&l, "c", bytes[2]);
        for (int f = 0; f < 2; f++) line_write(l.at_server, bytes[ORDER[i][f]], length);
        if (ORDER[i][0] == 0) assert_next(&l, "a");
        assert_broken(&l, EXIT_PEER, "bad record mac");
        line_free(&l);
    }
}

/* A server must refuse its own frames sent back to it, and frames of another connection with the same key. */
static void frames_of_other_ways(void **state) {
    (void)state;
    uint8_t bytes[128];
    Line    l = line_make(&KEY, &KEY), other = line_make(&KEY, &KEY);
    line_open(&l), line_open(&other);
    assert_int_equal(channel_send(l.server, bytes_frame(2), "{}"), 1);
    line_read(l.at_server, bytes, FRAME_HEADER_BYTES + 2 + RECORD_ADDS);
    line_write(l.at_server, bytes, FRAME_HEADER_BYTES + 2 + RECORD_ADDS);
    assert_broken(&l, EXIT_PEER, "bad record mac");
    size_t length = sent_frame(&l, "{}", bytes);
    line_write(other.at_server, bytes, length);
    assert_broken(&other, EXIT_PEER, "bad record mac");
    line_free(&l), line_free(&other);
}

/* A peer that has the key sends valid TLS records whose content no channel sends: repeated or missing frames, bytes
 * that are no frame, half a frame. */
static void a_hostile_peer_with_the_key(void **state) {
    (void)state;
    static const struct { int counter[2]; const char *why; } CASES[] = {
        {{0, 0}, "frame 0 where 1 was due"}, {{1, 2}, "frame 1 where 0 was due"}, {{0, 2}, "frame 2 where 1 was due"},
        {{-1, 0}, "bytes that are no message"}, {{0, -2}, "within a frame"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        int         s[2];
        uint8_t     bytes[2][FRAME_HEADER_BYTES + 1];
        FrameHeader h = bytes_frame(1);
        tcp_pair(s);
        Line l = {.server = channel_over(s[0], SIDE_SERVER, &KEY), .at_client = -1, .at_server = s[1]};
        Tls *peer = tls_create(s[1], SIDE_CLIENT, &KEY);
        for (int n = 0; n < 1000 && (tls_open(peer) != 1 || !channel_is_open(l.server)); n++) {
            channel_wait(&l.server, 1, -1, 1);
            channel_progress(l.server);
        }
        for (int f = 0; f < 2; f++) {
            h.counter = (uint64_t)CASES[i].counter[f];
            frame_write_header(&h, bytes[f]);
            bytes[f][FRAME_HEADER_BYTES] = 'a';
            if (CASES[i].counter[f] == -1) memcpy(bytes[f], "GET ", 4);
            size_t length = CASES[i].counter[f] == -2 ? FRAME_HEADER_BYTES / 2 : sizeof bytes[f];
            assert_int_equal(tls_write(peer, bytes[f], length), length);
        }
        tls_end(peer);
        line_cut(&l.at_server);
        if (CASES[i].counter[0] == 0) assert_next(&l, "a");
        const char *fault;
        assert_int_equal(channel_next(l.server, &h, (const void **)&fault) > 0, 0);
        for (int n = 0; n < 100 && !channel_is_broken(l.server); n++) channel_wait(&l.server, 1, -1, 10), channel_progress(l.server);
        assert_true(channel_is_broken(l.server));
        if (!strstr(channel_fault(l.server)->text, CASES[i].why)) fail_msg("\"%s\", not \"%s\"", channel_fault(l.server)->text, CASES[i].why);
        tls_free(peer);
        line_free(&l);
    }
}

static void values_beyond_the_model(void **state) {
    (void)state;
    Line        l = line_make(&KEY, &KEY);
    float       x[4] = {1, 2, 3, 4};
    uint8_t     bytes[128];
    FrameHeader h = {.kind = 1, .type = FRAME_F32, .offset = 96, .elems = 4, .payload_bytes = 16}, got;
    const void *payload;
    line_open(&l);
    channel_limit(l.server, 100);
    for (; h.offset <= 97; h.offset++) {
        assert_int_equal(channel_send(l.client, h, x), 1);
        line_read(l.at_client, bytes, 64 + RECORD_ADDS), line_write(l.at_server, bytes, 64 + RECORD_ADDS);
        if (h.offset > 96) break;
        assert_int_equal(next_frame(l.server, &got, &payload), 1);
        assert_memory_equal(payload, x, sizeof x);
        assert_int_equal((uintptr_t)payload % 16, 0);
    }
    assert_broken(&l, EXIT_PEER, "more than the 100 expected");
    line_free(&l);
}

/* The peer's system resets the connection while the last frame is still in the reader's buffer. The reader must get the
 * frame first, then the error. */
static void a_reset_after_a_whole_frame(void **state) {
    (void)state;
    Line        l = line_make(&KEY, &KEY);
    uint8_t     bytes[128];
    FrameHeader h;
    const void *payload;
    line_open(&l);
    size_t length = sent_frame(&l, "last", bytes);
    line_write(l.at_server, bytes, length);
    setsockopt(l.at_server, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    channel_wait(&l.server, 1, -1, 1000);
    close(l.at_server), l.at_server = -1;
    while (channel_send(l.server, bytes_frame(0), NULL) == 1) {} /* sends until the channel notices the reset */
    int got = next_frame(l.server, &h, &payload);
    if (got == 1) assert_memory_equal(payload, "last", 4);
    assert_broken(&l, EXIT_PEER, "");
    assert_int_equal(got, 1);
    line_free(&l);
}

/* --- openings ----------------------------------------------------------------------------------------------------- */

/* Passes the client's handshake on to the server, with bit number `bit` flipped (-1: none) and cut off after `cut`
 * bytes. Then ends the connection in this direction. */
static void carry_opening(Line *l, int bit, size_t cut) {
    size_t carried = 0;
    for (int idle = 0; idle < 3 && carried < cut && !channel_is_broken(l->server); idle++) {
        uint8_t bytes[2048];
        ssize_t n = recv(l->at_client, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n > 0) {
            size_t flipped = (size_t)bit / 8 - carried;
            if (bit >= 0 && flipped < (size_t)n) bytes[flipped] ^= (uint8_t)(1 << bit % 8);
            line_write(l->at_server, bytes, (size_t)n < cut - carried ? (size_t)n : cut - carried);
            carried += (size_t)n;
        }
        if (n > 0 || line_carry(l->at_server, l->at_client) > 0) idle = -1;
        Channel *both[2] = {l->client, l->server};
        channel_wait(both, 2, -1, 1);
        channel_progress(l->client), channel_progress(l->server);
    }
    line_carry(l->at_server, l->at_client); /* carries the server's TLS alert to the client */
    line_cut(&l->at_server);
}

/* Returns the number of bytes that a client sends in the handshake. Sets *hello to that of its first message. */
static size_t opening_bytes(size_t *hello) {
    Line l = line_make(&KEY, &KEY);
    *hello = (size_t)channel_sent_bytes(l.client);
    line_open(&l);
    size_t all = (size_t)channel_sent_bytes(l.client);
    line_free(&l);
    return all;
}

static void openings_cut_at_every_byte(void **state) {
    (void)state;
    size_t hello, all = opening_bytes(&hello);
    for (size_t cut = 0; cut < all; cut++) {
        Line l = line_make(&KEY, &KEY);
        carry_opening(&l, -1, cut);
        assert_broken(&l, EXIT_PEER, "before it proved the key");
        assert_false(channel_is_open(l.server));
        line_free(&l);
    }
}

static void openings_with_any_bit_flipped(void **state) {
    (void)state;
    FrameHeader h;
    const void *payload;
    size_t      hello, all = opening_bytes(&hello);
    for (size_t bit = 0; bit < 8 * all; bit++) {
        /* a byte of the version in the first TLS record's header, which receivers must ignore (RFC 8446) */
        if (bit / 8 == 2) continue;
        Line l = line_make(&KEY, &KEY);
        carry_opening(&l, (int)bit, all);
        assert_int_equal(next_frame(l.server, &h, &payload), -1);
        assert_false(channel_is_open(l.server));
        /* only if the first message is damaged, the client never accepts the server */
        if (bit < 8 * hello) assert_false(channel_is_open(l.client));
        line_free(&l);
    }
}

static void another_key(void **state) {
    (void)state;
    Line l = line_make(&OTHER_KEY, &KEY);
    carry_opening(&l, -1, SIZE_MAX);
    assert_broken(&l, EXIT_CONFIG, "another key (outer.key)");
    channel_wait(&l.client, 1, -1, 1000), channel_progress(l.client);
    assert_true(channel_is_broken(l.client) && !channel_is_open(l.client) && !channel_is_open(l.server));
    assert_non_null(strstr(channel_fault(l.client)->text, "another key (outer.key)"));
    assert_int_equal(channel_fault(l.client)->code, EXIT_CONFIG);
    line_free(&l);
}

/* A server without the key uses a certificate that it made for itself. Its TLS is valid, but the client must refuse
 * it. */
static void a_server_with_a_certificate(void **state) {
    (void)state;
    int       s[2];
    SSL_CTX  *context = SSL_CTX_new(TLS_server_method());
    EVP_PKEY *own = EVP_EC_gen("P-256");
    X509     *certificate = X509_new();
    tcp_pair(s);
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0), X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, own);
    assert_true(X509_sign(certificate, own, EVP_sha256()) > 0);
    assert_true(SSL_CTX_use_certificate(context, certificate) == 1 && SSL_CTX_use_PrivateKey(context, own) == 1);
    SSL     *server = SSL_new(context);
    Channel *client = channel_over(s[0], SIDE_CLIENT, &KEY);
    fcntl(s[1], F_SETFL, O_NONBLOCK);
    SSL_set_fd(server, s[1]);
    for (int n = 0; n < 1000 && !channel_is_broken(client); n++) {
        SSL_accept(server);
        channel_wait(&client, 1, -1, 1), channel_progress(client);
    }
    assert_false(channel_is_open(client));
    assert_non_null(strstr(channel_fault(client)->text, "does not prove the key: it shows a certificate instead"));
    assert_int_equal(channel_fault(client)->code, EXIT_PEER);
    channel_close(client);
    SSL_free(server), SSL_CTX_free(context), EVP_PKEY_free(own), X509_free(certificate);
    close(s[1]);
}

static void other_protocols(void **state) {
    (void)state;
    uint8_t bytes[40] = {'T', 'G', 'O', '1', 2, 0, 0, 0};
    for (size_t sent = 8; sent <= sizeof bytes; sent += sizeof bytes - 8) {
        Line l = line_make(&KEY, &KEY);
        line_write(l.at_server, bytes, sent);
        assert_broken(&l, EXIT_CONFIG, "speaks protocol 2, this program protocol 3");
        line_read(l.at_server, bytes, 8); /* a client of the older protocol 2 gets its refusal in that protocol */
        assert_memory_equal(bytes, "TGO1\3\0\0\0", 8);
        bytes[4] = 2;
        line_free(&l);
    }
    Line l = line_make(&KEY, &KEY);
    for (int i = 0; i < 8; i++) { /* the bytes arrive one by one */
        assert_int_equal(channel_progress(l.server), 0);
        line_write(l.at_server, bytes + i, 1);
    }
    assert_broken(&l, EXIT_CONFIG, "speaks protocol 2");
    line_free(&l);
    static const char *const OTHERS[] = {"GET / HTTP/1.1\r\n", "TG\n", "SSH-2.0-x\r\n"};
    for (int i = 0; i < 3; i++) {
        l = line_make(&KEY, &KEY);
        line_write(l.at_server, OTHERS[i], strlen(OTHERS[i]));
        assert_broken(&l, EXIT_PEER, "is no island");
        line_free(&l);
    }
    /* simulates a server of the older protocol 2, which reads no TLS and closes the connection */
    l = line_make(&KEY, &KEY);
    line_cut(&l.at_client);
    channel_wait(&l.client, 1, -1, 1000);
    assert_int_equal(channel_progress(l.client), -1);
    assert_non_null(strstr(channel_fault(l.client)->text, "a train_gpt of another version does so"));
    assert_int_equal(channel_fault(l.client)->code, EXIT_PEER);
    line_free(&l);
}

/* ahead_ms: milliseconds that the test adds to the monotonic clock; jump_ms: those that it adds to the other clocks. */
static double ahead_ms, jump_ms;
int __real_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t);
int __wrap_clock_gettime(clockid_t clock, struct timespec *t) {
    int rc = __real_clock_gettime(clock, t);
    t->tv_sec += (time_t)((clock == CLOCK_MONOTONIC ? ahead_ms : jump_ms) / 1000);
    return rc;
}

static void a_peer_that_says_nothing(void **state) {
    (void)state;
    Line l = line_make(&KEY, &KEY), open = line_make(&KEY, &KEY);
    line_open(&open);
    line_write(l.at_server, "\x16\x03\x01", 3);
    jump_ms = 86400e3; /* another program sets the machine's clock a day ahead, which must not matter */
    assert_int_equal(channel_progress(l.server), 0);
    assert_true(channel_silent_ms(open.server) < 3000);
    jump_ms = 0;
    ahead_ms = CHANNEL_OPENING_MS + 1000;
    assert_broken(&l, EXIT_PEER, "did not prove the key within 5 s");
    /* an open channel may be silent for any time without breaking */
    assert_int_equal(channel_progress(open.server), 0);
    assert_true(channel_silent_ms(open.server) > CHANNEL_OPENING_MS);
    ahead_ms = 0;
    line_free(&l), line_free(&open);
}

/* Bytes of the largest allocation so far. */
static size_t largest;
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) {
    if (bytes > largest) largest = bytes;
    return __real_malloc(bytes);
}
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes) {
    if (count * bytes > largest) largest = count * bytes;
    return __real_calloc(count, bytes);
}

static void memory_comes_with_the_proof(void **state) {
    (void)state;
    Line l = line_make(&OTHER_KEY, &KEY);
    largest = 0;
    carry_opening(&l, -1, SIZE_MAX);
    assert_broken(&l, EXIT_CONFIG, "another key");
    line_free(&l);
    l = line_make(&KEY, &KEY);
    /* a peer that has not proved the key makes the server allocate only OpenSSL's buffers of one TLS record */
    assert_true(largest > 0 && largest < 65536);
    line_open(&l);
    assert_true(largest >= CHANNEL_FRAME_BYTES);
    line_free(&l);
}

/* --- random faults ------------------------------------------------------------------------------------------------ */

enum { FRAMES = 12, TEXT = 200, RAW = FRAMES * (FRAME_HEADER_BYTES + TEXT + RECORD_ADDS) };

static uint64_t random_state;
static uint32_t draw(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* Adds one random fault to `bytes`, *length bytes of FRAMES frames; frame i begins at at[i]. Returns the number of
 * bytes before the fault. */
static size_t harm(uint8_t *bytes, size_t *length, const size_t *at) {
    uint32_t frame = draw(FRAMES - 1), other = draw(FRAMES);
    size_t   place = draw((uint32_t)*length), from = at[frame], size = at[frame + 1] - from;
    uint8_t  held[FRAME_HEADER_BYTES + TEXT + RECORD_ADDS];
    switch (draw(6)) {
    case 0: /* flips a bit */
        bytes[place] ^= (uint8_t)(1 << draw(8));
        return place;
    case 1: /* cuts the end */
        *length = place;
        return place;
    case 2: /* removes a byte */
        memmove(bytes + place, bytes + place + 1, *length - place - 1), (*length)--;
        return place;
    case 3: /* repeats a frame */
        memcpy(held, bytes + from, size);
        memmove(bytes + from + size, bytes + from, *length - from - size);
        memcpy(bytes + from, held, size);
        return from + size;
    case 4: /* exchanges two frames */
        size = at[frame + 2] - at[frame + 1];
        memcpy(held, bytes + at[frame + 1], size);
        memmove(bytes + from + size, bytes + from, at[frame + 1] - from);
        memcpy(bytes + from, held, size);
        return from;
    default: /* overwrites bytes by a copy of others */
        for (size_t i = 0; i < 16 && place + i < *length; i++) bytes[place + i] = bytes[(at[other] + i) % *length];
        return place;
    }
}

/* Sends FRAMES frames over a connection; if is_harmed, one random fault is added. The server must receive exactly the
 * frames before the fault, and then break. Returns their number, or -1 if one was wrong or missing. */
static int carry_frames(int is_harmed) {
    static uint8_t bytes[RAW + 1], good[RAW + 1];
    char           texts[FRAMES][TEXT];
    size_t         at[FRAMES + 1] = {0}, length, whole, sent = 0;
    int            given = 0, due = 0;
    FrameHeader    h;
    const void    *payload;
    Line           l = line_make(&KEY, &KEY);
    line_open(&l);
    for (int f = 0; f < FRAMES; f++) {
        uint32_t n = draw(TEXT);
        memset(texts[f], 'a' + f, n), texts[f][n] = 0;
        at[f + 1] = at[f] + sent_frame(&l, texts[f], bytes + at[f]);
    }
    length = whole = at[FRAMES];
    memcpy(good, bytes, whole);
    if (is_harmed) {
        size_t intact = harm(bytes, &length, at);
        /* bytes after the fault may be equal by chance */
        while (intact < whole && intact < length && bytes[intact] == good[intact]) intact++;
        whole = intact;
    }
    while (due < FRAMES && at[due + 1] <= whole) due++;
    while (sent < length) { /* sends the bytes in pieces of random size */
        size_t part = 1 + draw(700);
        if (part > length - sent) part = length - sent;
        line_write(l.at_server, bytes + sent, part), sent += part;
        for (int got; (got = channel_next(l.server, &h, &payload)) > 0; given++)
            if (given >= due || strlen(texts[given]) != h.payload_bytes ||
                memcmp(payload, texts[given], h.payload_bytes) != 0)
                return -1;
    }
    line_cut(&l.at_server);
    while (next_frame(l.server, &h, &payload) > 0)
        given += given < due && strlen(texts[given]) == h.payload_bytes ? 1 : FRAMES;
    int is_broken = channel_is_broken(l.server);
    line_free(&l);
    return given == due && is_broken ? given : -1;
}

static void random_faults(void **state) {
    (void)state;
    random_state = 7;
    assert_int_equal(carry_frames(0), FRAMES);
    for (int i = 0; i < 150; i++) assert_true(carry_frames(1) >= 0);
}

static int soak(uint64_t seed, double seconds) {
    int64_t frames = 0, failed = 0;
    random_state = seed;
    for (double until = clock_ms() + 1e3 * seconds; clock_ms() < until; frames += FRAMES) {
        uint64_t began = random_state;
        if (carry_frames(1) >= 0) continue;
        failed++;
        printf("not ok: a channel gave another frame than was sent, or hung: state %llu\n", (unsigned long long)began);
    }
    printf("%lld frames, %lld failed\n", (long long)frames, (long long)failed);
    return failed > 0;
}

int main(int count, char **words) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_cut_at_every_byte),
        cmocka_unit_test(a_frame_with_any_bit_flipped),
        cmocka_unit_test(frames_repeated_reordered_and_lost),
        cmocka_unit_test(frames_of_other_ways),
        cmocka_unit_test(a_hostile_peer_with_the_key),
        cmocka_unit_test(values_beyond_the_model),
        cmocka_unit_test(a_reset_after_a_whole_frame),
        cmocka_unit_test(openings_cut_at_every_byte),
        cmocka_unit_test(openings_with_any_bit_flipped),
        cmocka_unit_test(another_key),
        cmocka_unit_test(a_server_with_a_certificate),
        cmocka_unit_test(other_protocols),
        cmocka_unit_test(a_peer_that_says_nothing),
        cmocka_unit_test(memory_comes_with_the_proof),
        cmocka_unit_test(random_faults),
    };
    if (count == 3) return soak(strtoull(words[1], NULL, 10), atof(words[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
