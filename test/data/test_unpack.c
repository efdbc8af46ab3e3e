/* test_unpack.c - unpacking gzip, zstd and xz in parts of any size. Every kind of damage gives a message. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include <cmocka.h>

#include "data/text_file.h"

/* step: most bytes that one read of the packed data returns */
typedef struct { const char *data; size_t bytes, step; } Packed;
typedef struct { char data[1 << 17]; size_t bytes; } Bytes;

static int64_t give(void *with, char *data, size_t bytes, char fault[TEXT_FILE_FAULT_CHARS]) {
    Packed *p = (Packed *)with;
    (void)fault;
    size_t n = bytes < p->step ? bytes : p->step;
    if (n > p->bytes) n = p->bytes;
    memcpy(data, p->data, n);
    p->data += n, p->bytes -= n;
    return (int64_t)n;
}

/* Unpacks all of `in` into `out`, at most `step` bytes at a time. Returns 0 or an exit code. */
static int unpack(const Bytes *in, size_t step, Bytes *out, char fault[TEXT_FILE_FAULT_CHARS]) {
    Packed  packed = {in->data, in->bytes, step};
    Unpack *u = unpack_create(unpack_kind(in->data, in->bytes), give, &packed);
    int64_t n;
    out->bytes = 0;
    while ((n = unpack_read(u, out->data + out->bytes,
                            step < sizeof out->data - out->bytes ? step : sizeof out->data - out->bytes, fault)) > 0)
        out->bytes += (size_t)n;
    if (n == 0) assert_int_equal(unpack_read(u, out->data, 1, fault), 0); /* after the end, more calls return 0 again */
    unpack_destroy(u);
    return (int)-n;
}

static void append(Bytes *to, const void *data, size_t bytes) {
    memcpy(to->data + to->bytes, data, bytes);
    to->bytes += bytes;
}

static void append_gzip(Bytes *to, const char *text, size_t bytes) {
    z_stream z = {.next_in = (Bytef *)text,
                  .avail_in = (uInt)bytes,
                  .next_out = (Bytef *)to->data + to->bytes,
                  .avail_out = (uInt)(sizeof to->data - to->bytes)};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    to->bytes += z.total_out;
    deflateEnd(&z);
}

static void append_zstd(Bytes *to, const char *text, size_t bytes) {
    size_t n = ZSTD_compress(to->data + to->bytes, sizeof to->data - to->bytes, text, bytes, 3);
    assert_false(ZSTD_isError(n));
    to->bytes += n;
}

static const char FIRST[] = "It was the best of times, it was the worst of times, it was the age of wisdom.\n",
                  SECOND[] = "And a second part.\n";

static void two_parts(Packing packing, Bytes *out) {
    out->bytes = 0;
    void (*append_one)(Bytes *, const char *, size_t) = packing == PACKED_GZIP ? append_gzip : append_zstd;
    append_one(out, FIRST, sizeof FIRST - 1);
    append_one(out, SECOND, sizeof SECOND - 1);
}

static Bytes in, out, whole; /* static, because they are too large for the stack */

static void assert_whole(size_t step, const char *what) {
    char fault[TEXT_FILE_FAULT_CHARS] = "";
    int  exit_code = unpack(&in, step, &out, fault);
    if (exit_code) fail_msg("%s, %zu bytes at a time: exit %d: %s", what, step, exit_code, fault);
    assert_int_equal(out.bytes, sizeof FIRST + sizeof SECOND - 2);
    assert_memory_equal(out.data, FIRST, sizeof FIRST - 1);
    assert_memory_equal(out.data + sizeof FIRST - 1, SECOND, sizeof SECOND - 1);
}

static void assert_fault(int exit_code, const char *phrase) {
    for (size_t step = 1; step < 100; step += 49) {
        char fault[TEXT_FILE_FAULT_CHARS] = "";
        int  found = unpack(&in, step, &out, fault);
        if (found != exit_code || !strstr(fault, phrase))
            fail_msg("exit %d and \"%s\" are due, not %d and: %s", exit_code, phrase, found, fault);
    }
}

static void parts_follow_each_other(void **state) {
    (void)state;
    static const char EMPTY[] = "\x50\x2a\x4d\x18\0\0\0\0", SKIPPED[] = "\x5f\x2a\x4d\x18\3\0\0\0abc";
    for (Packing packing = PACKED_GZIP; packing <= PACKED_ZSTD; packing++)
        for (size_t step = 1; step < 300; step = 3 * step + 1)
            two_parts(packing, &in), assert_whole(step, PACKINGS[packing].name);
    in.bytes = 0;
    append(&in, SKIPPED, sizeof SKIPPED - 1);
    append_zstd(&in, FIRST, sizeof FIRST - 1);
    append(&in, EMPTY, sizeof EMPTY - 1);
    append_zstd(&in, SECOND, sizeof SECOND - 1);
    append(&in, SKIPPED, sizeof SKIPPED - 1);
    assert_whole(1, "skippable frames"), assert_whole(1000, "skippable frames");
    in.bytes = 0;
    append_gzip(&in, "", 0);
    append_gzip(&in, FIRST, sizeof FIRST - 1);
    append_gzip(&in, SECOND, sizeof SECOND - 1);
    assert_whole(7, "an empty member first");
}

/* Compressed data that are cut anywhere, except between two gzip members or zstd frames, are reported as cut off. */
static void a_cut_is_called_one(void **state) {
    (void)state;
    for (Packing packing = PACKED_GZIP; packing <= PACKED_ZSTD; packing++) {
        two_parts(packing, &whole);
        in.bytes = 0;
        if (packing == PACKED_GZIP) append_gzip(&in, FIRST, sizeof FIRST - 1);
        else append_zstd(&in, FIRST, sizeof FIRST - 1);
        size_t first = in.bytes;
        for (size_t bytes = packing == PACKED_GZIP ? 2 : 4; bytes < whole.bytes; bytes++) {
            if (bytes == first) continue;
            memcpy(in.data, whole.data, in.bytes = bytes);
            assert_fault(EXIT_DATA, "was cut off");
        }
    }
}

/* A complete xz stream. If bytes follow it, the message must say that they are no xz. If the beginning of a second
 * stream follows, it must say that the file was cut off. */
static const char XZ_STREAM[] =
    "\xfd\x37\x7a\x58\x5a\x00\x00\x01\x69\x22\xde\x36\x02\x00\x21\x01\x16\x00\x00\x00\x74\x2f\xe5\xa3"
    "\x01\x00\x0b\x65\x6c\x65\x76\x65\x6e\x20\x77\x6f\x72\x64\x73\x00\x23\xd9\xec\xd6\x00\x01\x20\x0c"
    "\xa2\xdd\xb4\xbc\x90\x42\x99\x0d\x01\x00\x00\x00\x00\x01\x59\x5a";
static void bytes_behind_xz_are_no_cut(void **state) {
    (void)state;
    static const char *const BEHIND[] = {"\n", "junk", "eleven more"};
    in.bytes = 0;
    append(&in, XZ_STREAM, sizeof XZ_STREAM - 1);
    assert_int_equal(unpack(&in, 7, &out, (char[TEXT_FILE_FAULT_CHARS]){0}), 0);
    assert_true(out.bytes == 12 && memcmp(out.data, "eleven words", 12) == 0);
    for (size_t i = 0; i < sizeof BEHIND / sizeof *BEHIND; i++) {
        in.bytes = sizeof XZ_STREAM - 1;
        append(&in, BEHIND[i], strlen(BEHIND[i]));
        assert_fault(EXIT_DATA, "holds bytes that are no xz behind its last stream");
    }
    for (size_t bytes = 6; bytes < sizeof XZ_STREAM - 1; bytes++) {
        in.bytes = bytes;
        assert_fault(EXIT_DATA, "was cut off");
        in.bytes = sizeof XZ_STREAM - 1;
        append(&in, XZ_STREAM, bytes);
        assert_fault(EXIT_DATA, "was cut off");
    }
}

static void damage_is_seen(void **state) {
    (void)state;
    two_parts(PACKED_GZIP, &whole);
    in.bytes = 0;
    append_gzip(&in, FIRST, sizeof FIRST - 1);
    size_t first = in.bytes;
    /* skips the header, in which the bytes for time and system may have any value */
    for (size_t at = 10; at < whole.bytes; at++) {
        if (at >= first + 4 && at < first + 10) continue;
        in = whole;
        in.data[at] ^= 0x21;
        char fault[TEXT_FILE_FAULT_CHARS] = "";
        if (unpack(&in, 50, &out, fault) != EXIT_DATA) fail_msg("no fault with byte %zu changed", at);
    }
    in = whole, in.data[first - 8] ^= 1;
    assert_fault(EXIT_DATA, "incorrect data check");
    in = whole, in.data[first - 4] ^= 1;
    assert_fault(EXIT_DATA, "incorrect length check");
    in = whole, in.data[first] = 'x';
    assert_fault(EXIT_DATA, "bytes after gzip member 1");
    in = whole, append(&in, "more", 4);
    assert_fault(EXIT_DATA, "bytes after gzip member 2");
    /* refused: gzip -dc would ignore this zero, and all members after it */
    in = whole, append(&in, "\0", 1);
    assert_fault(EXIT_DATA, "bytes after gzip member 2");
    two_parts(PACKED_ZSTD, &in);
    append(&in, "more", 4);
    assert_fault(EXIT_DATA, "bytes after zstd frame 2");
    in.bytes = 0;
    append(&in, "\x50\x2a\x4d\x18\0\0\0\0\x04\x22\x4d\x18 and so on", 22);
    assert_fault(EXIT_DATA, "packed by lz4");
}

/* Makes a zstd frame of one uncompressed block, with a window of 2^log bytes. */
static void put_window(int log) {
    char frame[] = "\x28\xb5\x2f\xfd\0w\x19\0\0hi\n";
    frame[5] = (char)((log - 10) << 3);
    in.bytes = 0;
    append(&in, frame, sizeof frame - 1);
}

static void windows_are_no_damage(void **state) {
    (void)state;
    char fault[TEXT_FILE_FAULT_CHARS];
    for (int log = 10; log <= 28; log++) {
        put_window(log);
        assert_int_equal(unpack(&in, 100, &out, fault), 0);
        assert_int_equal(out.bytes, 3);
        assert_memory_equal(out.data, "hi\n", 3);
    }
    put_window(32);
    assert_fault(EXIT_DATA, "a window of 4096 MiB; the limit is 2048 MiB (zstd --long=31)");
    put_window(41);
    assert_fault(EXIT_DATA, "a window of 2097152 MiB");
    /* a single segment, as zstd --long=31 writes of a file: the window is the text, here of 2^33 bytes */
    in.bytes = 0;
    append(&in, "\x28\xb5\x2f\xfd\xe0\0\0\0\0\2\0\0\0\x19\0\0hi\n", 19);
    assert_fault(EXIT_DATA, "a window of 8192 MiB; the limit is 2048 MiB");
}

static void kinds_are_told_by_their_first_bytes(void **state) {
    (void)state;
    static const struct { const char *start; size_t bytes; Packing packing; } CASES[] = {
        {"\x1f\x8b\x08", 3, PACKED_GZIP}, {"\x1f\x8b", 2, PACKED_GZIP}, {"\x1f", 1, PACKED_NOT}, {"\x1f\x8b\x07", 3, PACKED_NOT},
        {"\x28\xb5\x2f\xfd", 4, PACKED_ZSTD}, {"\x5a\x2a\x4d\x18", 4, PACKED_ZSTD}, {"\x60\x2a\x4d\x18", 4, PACKED_NOT}, {"(\xb5/", 3, PACKED_NOT},
        {"\xfd" "7zXZ\0", 6, PACKED_XZ}, {"\xfd" "7zXZ", 5, PACKED_NOT}, {"text", 4, PACKED_NOT}, {"", 0, PACKED_NOT}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++)
        assert_int_equal(unpack_kind(CASES[i].start, CASES[i].bytes), CASES[i].packing);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_follow_each_other),
        cmocka_unit_test(a_cut_is_called_one),
        cmocka_unit_test(bytes_behind_xz_are_no_cut), cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(windows_are_no_damage),
        cmocka_unit_test(kinds_are_told_by_their_first_bytes),
    };
    return cmocka_run_group_tests_name("unpack", tests, NULL, NULL);
}
