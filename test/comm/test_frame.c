/* test_frame.c - the header of a frame (a message with values) of any bytes, values as bf16 and int8, and the file with
 * the key. */
#include "comm/frame.h" /* before cmocka.h, which defines fail() as a macro */
#include "comm/key.h"
#include "core/error.h"
#include "core/io.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* --- headers ------------------------------------------------------------------------------------------------------ */

static const FrameHeader SAMPLE = {.kind = 7, .type = FRAME_BF16, .round = 3, .offset = 1000, .elems = 24,
                                   .counter = 0x0102030405060708u, .payload_bytes = 48};

static int parse(const uint8_t *bytes, size_t length, int64_t most, FrameHeader *h) {
    char fault[FRAME_FAULT_BYTES] = "";
    int  is_good = frame_parse_header(bytes, length, most, h, fault);
    assert_int_equal(is_good, !fault[0]);
    return is_good;
}

static int parses_as(FrameHeader h, int64_t most) {
    uint8_t     bytes[FRAME_HEADER_BYTES];
    FrameHeader read;
    frame_write_header(&h, bytes);
    if (!parse(bytes, sizeof bytes, most, &read)) return 0;
    assert_true(read.kind == h.kind && read.type == h.type && read.round == h.round && read.offset == h.offset &&
                read.elems == h.elems && read.counter == h.counter && read.payload_bytes == h.payload_bytes);
    return 1;
}

/* Compares the bytes of a header with the documented format, on which other programs may rely. */
static void the_bytes_are_those_of_the_format(void **state) {
    (void)state;
    static const uint8_t expected[FRAME_HEADER_BYTES] = {
        'T', 'G', 'F', '1', 7, 2, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0xe8, 3, 0, 0, 0, 0, 0, 0,
        24, 0, 0, 0, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 48, 0, 0, 0, 0, 0, 0, 0};
    uint8_t bytes[FRAME_HEADER_BYTES];
    frame_write_header(&SAMPLE, bytes);
    assert_memory_equal(bytes, expected, sizeof bytes);
    assert_true(parses_as(SAMPLE, INT64_MAX));
}

static void headers_out_of_range_are_refused(void **state) {
    (void)state;
    FrameHeader h = SAMPLE;
    assert_true(parses_as(h, 1024));
    /* refused: the values of this frame would reach beyond the end of a model of 1023 values */
    assert_false(parses_as(h, 1023));
#define REFUSED(field, value) (h = SAMPLE, h.field = (value), assert_false(parses_as(h, INT64_MAX)))
    REFUSED(kind, 0);
    REFUSED(type, FRAME_TYPES);
    REFUSED(type, FRAME_F32); /* refused: 24 values of 4 bytes are not 48 bytes */
    REFUSED(round, -1);
    REFUSED(offset, -1);
    REFUSED(offset, INT64_MAX - 23);
    REFUSED(elems, -24);
    REFUSED(elems, INT64_MAX);
    REFUSED(payload_bytes, 47);
    REFUSED(payload_bytes, FRAME_PAYLOAD_LIMIT + 1);
    h = (FrameHeader){.kind = 1, .type = FRAME_BYTES, .elems = INT64_MAX, .payload_bytes = FRAME_PAYLOAD_LIMIT};
    /* allowed: FRAME_BYTES carries no values, so `elems` need not agree with the length. A request (GET) uses it for
     * the number of values that it wants. */
    assert_true(parses_as(h, INT64_MAX));
    h.payload_bytes++;
    assert_false(parses_as(h, INT64_MAX));
    /* refused: 2^62 values of 4 bytes are 2^64 bytes, which would be 0 in 64-bit arithmetic */
    h = (FrameHeader){.kind = 1, .type = FRAME_F32, .elems = (int64_t)1 << 62, .payload_bytes = 0};
    assert_false(parses_as(h, INT64_MAX));
}

/* Cuts a header at every byte, and flips each of its bits. The header is refused, or only the flipped field has another
 * value. */
static void cut_and_flipped_headers(void **state) {
    (void)state;
    uint8_t     bytes[FRAME_HEADER_BYTES], again[FRAME_HEADER_BYTES];
    FrameHeader h;
    frame_write_header(&SAMPLE, bytes);
    for (size_t length = 0; length < sizeof bytes; length++) assert_false(parse(bytes, length, INT64_MAX, &h));
    for (int bit = 0; bit < 8 * FRAME_HEADER_BYTES; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (parse(bytes, sizeof bytes, INT64_MAX, &h)) {
            frame_write_header(&h, again);
            assert_memory_equal(again, bytes, sizeof bytes);
        }
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

/* --- values ------------------------------------------------------------------------------------------------------- */

enum { VALUES = 2 * INT8_BLOCK + 77 };

static void fill(float *x, int64_t n) {
    uint32_t r = 12345;
    for (int64_t i = 0; i < n; i++) {
        r = r * 1664525u + 1013904223u;
        x[i] = ldexpf((float)(int32_t)r, -40 + (int)(i / 999)); /* each block of 999 values has another magnitude */
    }
}

/* Returns x rounded to bf16: the nearer of the two neighbours, at a tie the even one. This plain version is the
 * reference. */
static float nearest_bf16(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    uint32_t below = u & 0xffff0000u, above = below + 0x10000u, picked;
    float    a, b;
    memcpy(&a, &below, 4), memcpy(&b, &above, 4);
    double down = fabs((double)x - a), up = fabs((double)b - x);
    picked = down < up || (down == up && !(below >> 16 & 1)) ? below : above;
    memcpy(&a, &picked, 4);
    return a;
}

static void values_as_bf16(void **state) {
    (void)state;
    static float x[VALUES], back[VALUES];
    uint8_t      payload[2 * VALUES];
    fill(x, VALUES);
    x[0] = 0, x[1] = 1.00390625f /* a tie, rounded down to 1 */, x[2] = 1.01171875f /* a tie, rounded up to 1.015625 */;
    assert_int_equal(frame_value_bytes(FRAME_BF16, VALUES), sizeof payload);
    frame_pack(FRAME_BF16, payload, x, VALUES);
    frame_unpack(FRAME_BF16, back, payload, VALUES);
    for (int i = 0; i < VALUES; i++) assert_true(back[i] == nearest_bf16(x[i]));
    assert_true(back[1] == 1 && back[2] == 1.015625f);
}

static void values_as_int8(void **state) {
    (void)state;
    static float   x[VALUES], back[VALUES];
    static uint8_t payload[VALUES + 3 * 4];
    fill(x, VALUES);
    assert_int_equal(frame_value_bytes(FRAME_INT8, VALUES), sizeof payload);
    frame_pack(FRAME_INT8, payload, x, VALUES);
    frame_unpack(FRAME_INT8, back, payload, VALUES);
    for (int from = 0; from < VALUES; from += INT8_BLOCK) {
        int    to = from + INT8_BLOCK < VALUES ? from + INT8_BLOCK : VALUES;
        double most = 0;
        for (int i = from; i < to; i++) most = fmax(most, fabs((double)x[i]));
        float scale;
        memcpy(&scale, payload + from + 4 * (from / INT8_BLOCK), 4);
        assert_true(fabs(scale - most / 127) <= 1e-7 * most);
        for (int i = from; i < to; i++) assert_true(fabs((double)x[i] - back[i]) <= most / 127 * 0.50001);
    }
}

static void odd_values_as_int8(void **state) {
    (void)state;
    float   x[4] = {1, -2, INFINITY, 3}, back[4];
    uint8_t payload[8];
    /* an infinite or undefined value must stay recognizable for the receiver, also in int8 */
    for (int i = 0; i < 2; i++, x[2] = NAN) {
        frame_pack(FRAME_INT8, payload, x, 4);
        frame_unpack(FRAME_INT8, back, payload, 4);
        assert_true(isnan(back[0]) && isnan(back[2]));
    }
    x[0] = 0, x[1] = -0.0f, x[2] = 1e-45f, x[3] = 0;
    frame_pack(FRAME_INT8, payload, x, 4);
    frame_unpack(FRAME_INT8, back, payload, 4);
    for (int i = 0; i < 4; i++) assert_true(back[i] == 0);
    x[0] = 3.4e38f, x[1] = -3.4e38f, x[2] = 0, x[3] = 1;
    frame_pack(FRAME_INT8, payload, x, 4);
    frame_unpack(FRAME_INT8, back, payload, 4);
    assert_true(fabsf(back[0] - 3.4e38f) < 1e33f && back[1] == -back[0] && back[2] == 0 && back[3] == 0);
    assert_true(frame_value_bytes(FRAME_INT8, 0) == 0 && frame_value_bytes(FRAME_INT8, INT8_BLOCK) == INT8_BLOCK + 4);
}

/* --- the key ------------------------------------------------------------------------------------------------------ */

static void write_file(const char *path, const char *text, mode_t mode) {
    io_unlink(path);
    assert_int_equal(io_replace_file(path, text, strlen(text)), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static int key_fault_names(const char *path, const char *cure) {
    char fault[KEY_FAULT_BYTES] = "";
    Key  key;
    int  code = key_read(path, &key, fault);
    assert_non_null(strstr(fault, path));
    assert_non_null(strstr(fault, "outer.key"));
    assert_non_null(strstr(fault, cure));
    return code;
}

static void a_key_file_is_made_once(void **state) {
    (void)state;
    char        folder[] = "/tmp/train_gpt_key_XXXXXX", fault[KEY_FAULT_BYTES] = "";
    struct stat st;
    Key         first, second;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(key_fault_names("k", "scp"), EXIT_CONFIG);
    assert_int_equal(key_make("k", fault), 0);
    assert_int_equal(stat("k", &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(st.st_size, 65);
    assert_int_equal(key_read("k", &first, fault), 0);
    assert_int_equal(key_make("k", fault), 0);
    assert_int_equal(key_read("k", &second, fault), 0);
    assert_memory_equal(&first, &second, sizeof first);
    assert_int_equal(key_make("l", fault), 0);
    assert_int_equal(key_read("l", &second, fault), 0);
    assert_memory_not_equal(&first, &second, sizeof first);
    assert_int_equal(key_make("not/there", fault), EXIT_IO);
    assert_non_null(strstr(fault, "not/there"));
    io_unlink("k"), io_unlink("l");
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(rmdir(folder), 0); /* no temporary file is left */
}

static void files_that_are_no_keys(void **state) {
    (void)state;
    static const char digits[] = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    char              folder[] = "/tmp/train_gpt_key_XXXXXX", fault[KEY_FAULT_BYTES] = "", text[128];
    Key               key;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    write_file("k", digits, 0600);
    assert_int_equal(key_read("k", &key, fault), 0);
    for (int i = 0; i < KEY_BYTES; i++) assert_int_equal(key.bytes[i], i);
    static const int modes[] = {0640, 0620, 0604, 0602, 0644, 0666};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod("k", (mode_t)modes[i]), 0);
        assert_int_equal(key_fault_names("k", "chmod 600 k"), EXIT_CONFIG);
    }
    static const char *const tails[] = {"0\n", "\n\n", " ", "\r\n"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        snprintf(text, sizeof text, "%s%s", digits, tails[i]);
        write_file("k", text, 0600);
        assert_int_equal(key_fault_names("k", "copy"), EXIT_CONFIG);
    }
    write_file("k", "", 0600);
    assert_int_equal(key_fault_names("k", "copy"), EXIT_CONFIG);
    snprintf(text, sizeof text, "%.63sg\n", digits);
    write_file("k", text, 0600);
    assert_int_equal(key_fault_names("k", "copy"), EXIT_CONFIG);
    io_unlink("k");
    assert_int_equal(key_fault_names(folder, "is a directory, not a file"), EXIT_CONFIG);
    assert_int_equal(chdir("/"), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_are_those_of_the_format),
        cmocka_unit_test(headers_out_of_range_are_refused),
        cmocka_unit_test(cut_and_flipped_headers),
        cmocka_unit_test(values_as_bf16),
        cmocka_unit_test(values_as_int8),
        cmocka_unit_test(odd_values_as_int8),
        cmocka_unit_test(a_key_file_is_made_once),
        cmocka_unit_test(files_that_are_no_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
