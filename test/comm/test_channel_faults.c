/* test_channel_faults.c - a line that cuts, flips, repeats and reorders, and peers without the key: a channel never
 * gives a frame that was not sent in its place, it breaks with a sentence, and nobody hangs.
 *
 *   test_channel_faults SEED SECONDS    random faults instead, for make soak: prints how many frames were carried
 * Timed: a silent peer must be noticed in time.
 */
#include "comm/channel.h" /* before cmocka.h, which defines fail() as a macro */
#include "core/clock.h"
#include "core/error.h"

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
    const char *fault = channel_fault(l->server);
    the_client_of(l, peer);
    if (strncmp(fault, peer, strlen(peer)) != 0 || !strstr(fault, words)) fail_msg("\"%s\", not \"%s\"", fault, words);
    assert_int_equal(channel_fault_code(l->server), code);
}

/* Writes the bytes of a frame with this text, as the client sends it. */
static size_t sent_frame(Line *l, const char *text, uint8_t *out) {
    size_t bytes = strlen(text);
    assert_int_equal(channel_send(l->client, bytes_frame(bytes), text), 1);
    line_read(l->at_client, out, FRAME_HEADER_BYTES + bytes + SEAL_BYTES);
    return FRAME_HEADER_BYTES + bytes + SEAL_BYTES;
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
        if (cut == length) assert_next(&l, "{}"); /* frames that are whole are returned first */
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
        assert_broken(&l, EXIT_PEER, ""); /* refused by the header, by the seal, or because bytes are missing */
        line_free(&l);
    }
}

static void frames_repeated_reordered_and_lost(void **state) {
    (void)state;
    static const struct { int order[3]; const char *why; } CASES[] = {
        {{0, 0}, "frame 0 where 1 was due"}, {{1, 0}, "frame 1 where 0 was due"}, {{0, 2}, "frame 2 where 1 was due"}};
    for (int i = 0; i < 3; i++) {
        Line    l = line_make(&KEY, &KEY);
        uint8_t bytes[3][128];
        line_open(&l);
        size_t length = sent_frame(&l, "a", bytes[0]);
        sent_frame(&l, "b", bytes[1]), sent_frame(&l, "c", bytes[2]);
        for (int f = 0; f < 2; f++) line_write(l.at_server, bytes[CASES[i].order[f]], length);
        if (CASES[i].order[0] == 0) assert_next(&l, "a");
        assert_broken(&l, EXIT_PEER, CASES[i].why);
        line_free(&l);
    }
}

/* Sends a server its own frame, and a frame of another connection with the same key. */
static void frames_of_other_ways(void **state) {
    (void)state;
    uint8_t bytes[128];
    Line    l = line_make(&KEY, &KEY), other = line_make(&KEY, &KEY);
    line_open(&l), line_open(&other);
    assert_int_equal(channel_send(l.server, bytes_frame(2), "{}"), 1);
    line_read(l.at_server, bytes, 82);
    line_write(l.at_server, bytes, 82);
    assert_broken(&l, EXIT_PEER, "wrong seal");
    size_t length = sent_frame(&l, "{}", bytes);
    line_write(other.at_server, bytes, length);
    assert_broken(&other, EXIT_PEER, "wrong seal");
    line_free(&l), line_free(&other);
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
        line_read(l.at_client, bytes, 96), line_write(l.at_server, bytes, 96);
        if (h.offset > 96) break;
        assert_int_equal(next_frame(l.server, &got, &payload), 1);
        assert_memory_equal(payload, x, sizeof x);
        assert_int_equal((uintptr_t)payload % 16, 0);
    }
    assert_broken(&l, EXIT_PEER, "beyond the 100 there are");
    line_free(&l);
}

/* The peer's system resets the connection, while the last frame is still in the buffer. */
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
    while (channel_send(l.server, bytes_frame(0), NULL) == 1) {} /* the channel notices the reset here */
    int got = next_frame(l.server, &h, &payload);
    if (got == 1) assert_memory_equal(payload, "last", 4);
    assert_broken(&l, EXIT_PEER, "");
    assert_int_equal(got, 1);
    line_free(&l);
}

/* --- openings ----------------------------------------------------------------------------------------------------- */

/* Carries the client's opening of 40 + 32 bytes, with one bit flipped (-1: none) and cut after `cut` bytes. */
static void carry_opening(Line *l, int bit, size_t cut) {
    uint8_t bytes[72], back[72];
    line_read(l->at_client, bytes, 40);
    if (bit >= 0 && bit < 320) bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    line_write(l->at_server, bytes, cut < 40 ? cut : 40);
    if (cut >= 40) {
        for (int i = 0; i < 20 && channel_received_bytes(l->server) < 40 && !channel_is_broken(l->server); i++)
            channel_wait(&l->server, 1, -1, 100), channel_progress(l->server);
        if (!channel_is_broken(l->server)) {
            line_read(l->at_server, back, 72), line_write(l->at_client, back, 72);
            while (channel_received_bytes(l->client) < 72)
                channel_wait(&l->client, 1, -1, 100), channel_progress(l->client);
            line_read(l->at_client, bytes + 40, 32);
            if (bit >= 320) bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            line_write(l->at_server, bytes + 40, cut - 40);
        }
    }
    line_cut(&l->at_server);
}

static void openings_cut_at_every_byte(void **state) {
    (void)state;
    for (size_t cut = 0; cut < 72; cut++) {
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
    for (int bit = 0; bit < 8 * 72; bit++) {
        Line l = line_make(&KEY, &KEY);
        carry_opening(&l, bit, 72);
        assert_int_equal(next_frame(l.server, &h, &payload), -1);
        assert_false(channel_is_open(l.server));
        /* refused, because the proof is for another nonce */
        if (bit >= 64 && bit < 320) assert_false(channel_is_open(l.client));
        line_free(&l);
    }
}

static void another_key(void **state) {
    (void)state;
    Line l = line_make(&OTHER_KEY, &KEY);
    carry_opening(&l, -1, 72);
    assert_broken(&l, EXIT_CONFIG, "another key (outer.key)");
    assert_true(channel_is_broken(l.client) && !channel_is_open(l.client) && !channel_is_open(l.server));
    assert_non_null(strstr(channel_fault(l.client), "another key (outer.key)"));
    assert_int_equal(channel_fault_code(l.client), EXIT_CONFIG);
    line_free(&l);
}

static void other_protocols(void **state) {
    (void)state;
    uint8_t bytes[72] = {'T', 'G', 'O', '1', 3, 0, 0, 0};
    Line    l = line_make(&KEY, &KEY);
    line_write(l.at_server, bytes, 8);
    assert_broken(&l, EXIT_CONFIG, "speaks protocol 3, this program protocol 2");
    line_free(&l);
    bytes[4] = 1; /* an older version with the same beginning of its opening */
    l = line_make(&KEY, &KEY);
    line_write(l.at_server, bytes, 72);
    assert_broken(&l, EXIT_CONFIG, "speaks protocol 1, this program protocol 2");
    line_read(l.at_server, bytes, 8); /* tells the client */
    assert_memory_equal(bytes, "TGO1\2\0\0\0", 8);
    bytes[4] = 3, bytes[5] = 1;
    line_write(l.at_client, bytes, 8);
    channel_wait(&l.client, 1, -1, 1000);
    assert_int_equal(channel_progress(l.client), -1);
    assert_non_null(strstr(channel_fault(l.client), "speaks protocol 259, this program protocol 2"));
    assert_int_equal(channel_fault_code(l.client), EXIT_CONFIG);
    line_free(&l);
    l = line_make(&KEY, &KEY);
    line_write(l.at_server, "GET / HTTP/1.1\r\n", 16);
    assert_broken(&l, EXIT_PEER, "is no island");
    line_free(&l);
}

/* Moves the monotonic clock, and the others, ahead as far as a test wants. */
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
    line_write(l.at_server, "TGO1", 4);
    jump_ms = 86400e3; /* another program sets the machine's clock */
    assert_int_equal(channel_progress(l.server), 0);
    assert_true(channel_silent_ms(open.server) < 3000);
    jump_ms = 0;
    ahead_ms = CHANNEL_OPENING_MS + 1000;
    assert_broken(&l, EXIT_PEER, "did not prove the key within 5 s");
    assert_int_equal(channel_progress(open.server), 0); /* an open channel may be silent for any time */
    assert_true(channel_silent_ms(open.server) > CHANNEL_OPENING_MS);
    ahead_ms = 0;
    line_free(&l), line_free(&open);
}

/* The largest allocation so far. */
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
    carry_opening(&l, -1, 72);
    assert_broken(&l, EXIT_CONFIG, "another key");
    line_free(&l);
    l = line_make(&KEY, &KEY);
    assert_true(largest > 0 && largest < 4096);
    line_open(&l);
    assert_true(largest >= CHANNEL_FRAME_BYTES);
    line_free(&l);
}

/* --- random faults ------------------------------------------------------------------------------------------------ */

enum { FRAMES = 12, TEXT = 200, RAW = FRAMES * (FRAME_HEADER_BYTES + TEXT + SEAL_BYTES) };

static uint64_t random_state;
static uint32_t draw(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

/* Adds one fault to the bytes [*length] of FRAMES frames, which begin at `at`. Returns the number of unchanged bytes at
 * the start. */
static size_t harm(uint8_t *bytes, size_t *length, const size_t *at) {
    uint32_t frame = draw(FRAMES - 1), other = draw(FRAMES);
    size_t   place = draw((uint32_t)*length), from = at[frame], size = at[frame + 1] - from;
    uint8_t  held[FRAME_HEADER_BYTES + TEXT + SEAL_BYTES];
    switch (draw(6)) {
    case 0: /* a flipped bit */
        bytes[place] ^= (uint8_t)(1 << draw(8));
        return place;
    case 1: /* a cut end */
        *length = place;
        return place;
    case 2: /* a byte lost */
        memmove(bytes + place, bytes + place + 1, *length - place - 1), (*length)--;
        return place;
    case 3: /* a repeated frame */
        memcpy(held, bytes + from, size);
        memmove(bytes + from + size, bytes + from, *length - from - size);
        memcpy(bytes + from, held, size);
        return from + size;
    case 4: /* two frames exchanged */
        size = at[frame + 2] - at[frame + 1];
        memcpy(held, bytes + at[frame + 1], size);
        memmove(bytes + from + size, bytes + from, at[frame + 1] - from);
        memcpy(bytes + from, held, size);
        return from;
    default: /* bytes replaced by those of another place */
        for (size_t i = 0; i < 16 && place + i < *length; i++) bytes[place + i] = bytes[(at[other] + i) % *length];
        return place;
    }
}

/* Sends frames over a line, some of them damaged. The server receives exactly the frames before the damage. Returns
 * their number, or -1 if one was wrong or missing. */
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
    while (sent < length) { /* sends in parts of any size */
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
        cmocka_unit_test(values_beyond_the_model),
        cmocka_unit_test(a_reset_after_a_whole_frame),
        cmocka_unit_test(openings_cut_at_every_byte),
        cmocka_unit_test(openings_with_any_bit_flipped),
        cmocka_unit_test(another_key),
        cmocka_unit_test(other_protocols),
        cmocka_unit_test(a_peer_that_says_nothing),
        cmocka_unit_test(memory_comes_with_the_proof),
        cmocka_unit_test(random_faults),
    };
    if (count == 3) return soak(strtoull(words[1], NULL, 10), atof(words[2]));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
