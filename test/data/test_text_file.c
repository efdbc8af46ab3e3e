/* test_text_file.c - reading any file as valid UTF-8 text: byte-order marks, encodings, invalid bytes, and files that
 * are not text. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include <cmocka.h>

#include "data/text_file.h"
#include "test/data/files.h"

/* Writes a file of these bytes and reads it as UTF-8, `step` bytes at a time. Returns 0 or an exit code, the text in
 * *text (malloc'ed), and in *invalid the number of bytes that were not UTF-8. */
static int read_as(const void *data, size_t bytes, TextEncoding encoding, size_t step, char **text, size_t *length,
                   int64_t *invalid, char *fault) {
    TextFile *f;
    int64_t   n = 0, first;
    write_file("f", data, bytes);
    *text = malloc(3 * bytes + 64), *length = 0, *invalid = 0;
    int exit_code = text_file_open(&f, "f", IO_READ, encoding, fault);
    if (exit_code) return exit_code;
    while ((n = text_file_read(f, *text + *length, step, fault)) > 0) *length += (size_t)n;
    *invalid = text_file_invalid(f, &first);
    text_file_close(f);
    return (int)-n;
}

static const char TEXT[] = "Gr\xc3\xbc\xc3\x9f" "e, \xe6\x97\xa5\xe6\x9c\xac \xf0\x9f\x98\x80!\r\nA second line.\n";

/* Writes TEXT to out, `repeat` times, in an encoding, with or without a byte-order mark. Returns the number of
 * bytes. */
static size_t encode(TextEncoding e, int has_mark, size_t repeat, unsigned char *out) {
    size_t used = 0;
    for (size_t r = 0; r < repeat; r++)
        for (size_t at = 0; at < sizeof TEXT - 1;) {
            utf8proc_int32_t c = 0xFEFF;
            if (r > 0 || at > 0 || !has_mark)
                at += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)TEXT + at, -1, &c);
            else has_mark = 0;
            uint32_t unit[2] = {(uint32_t)c, 0};
            int units = 1, width = e >= ENCODING_UTF32LE ? 4 : 2,
                is_little = e == ENCODING_UTF16LE || e == ENCODING_UTF32LE;
            if (width == 2 && c > 0xFFFF)
                unit[0] = 0xD800 + (uint32_t)((c - 0x10000) >> 10),
                unit[1] = 0xDC00 + (uint32_t)((c - 0x10000) & 0x3FF), units = 2;
            for (int u = 0; u < units; u++)
                for (int b = 0; b < width; b++)
                    out[used++] = (unsigned char)(unit[u] >> 8 * (is_little ? b : width - 1 - b));
        }
    return used;
}

static void assert_text(const void *data, size_t bytes, TextEncoding e, size_t step, size_t repeat) {
    char   *text, fault[TEXT_FILE_FAULT_CHARS] = "";
    size_t  length;
    int64_t invalid;
    int     exit_code = read_as(data, bytes, e, step, &text, &length, &invalid, fault);
    if (exit_code) fail_msg("exit %d: %s", exit_code, fault);
    assert_int_equal(length, repeat * (sizeof TEXT - 1));
    for (size_t r = 0; r < repeat; r++) assert_memory_equal(text + r * (sizeof TEXT - 1), TEXT, sizeof TEXT - 1);
    assert_int_equal(invalid, 0);
    free(text);
}

static void every_encoding_becomes_utf8(void **state) {
    (void)state;
    static unsigned char data[1 << 19];
    for (TextEncoding e = ENCODING_UTF16LE; e <= ENCODING_UTF32BE; e++)
        for (size_t step = 8; step < 200000; step = 40 * step + 3) {
            /* the text is longer than TEXT_FILE_START, the bytes that are read first to recognize an encoding */
            size_t repeat = 2500, bytes = encode(e, 1, repeat, data);
            assert_text(data, bytes, ENCODING_FOUND, step, repeat);
            assert_text(data, bytes, e, step, repeat);
            bytes = encode(e, 0, repeat, data);
            assert_text(data, bytes, e, step, repeat);
        }
    char marked[sizeof TEXT + 2] = "\xef\xbb\xbf";
    memcpy(marked + 3, TEXT, sizeof TEXT - 1);
    assert_text(marked, sizeof TEXT + 2, ENCODING_FOUND, 100, 1);
    assert_text(marked, sizeof TEXT + 2, ENCODING_UTF8, 100, 1);
    assert_text(TEXT, sizeof TEXT - 1, ENCODING_FOUND, 100, 1);

    char   *text, fault[TEXT_FILE_FAULT_CHARS] = "";
    size_t  length;
    int64_t invalid;
    assert_int_equal(read_as("caf\xe9 \x93x\x94", 8, ENCODING_LATIN1, 9, &text, &length, &invalid, fault), 0);
    assert_int_equal(length, 11);
    assert_memory_equal(text, "caf\xc3\xa9 \xc2\x93x\xc2\x94", 11);
    assert_int_equal(invalid, 2);
    free(text);
}

static void assert_refused(const char *data, size_t bytes, TextEncoding e, const char *phrase) {
    char   *text, fault[TEXT_FILE_FAULT_CHARS] = "";
    size_t  length;
    int64_t invalid;
    int     exit_code = read_as(data, bytes, e, 50, &text, &length, &invalid, fault);
    if (exit_code != EXIT_DATA || !strstr(fault, phrase))
        fail_msg("exit 65 and \"%s\" are due, not %d and: %s", phrase, exit_code, fault);
    free(text);
}

static void what_contradicts_an_encoding_is_a_fault(void **state) {
    (void)state;
    unsigned char data[1000];
    static const char *const NAMES[] = {"utf-16le", "utf-16be", "utf-32le", "utf-32be"};
    for (TextEncoding e = ENCODING_UTF16LE; e <= ENCODING_UTF32BE; e++) {
        char cure[40];
        snprintf(cure, sizeof cure, "encoding=%s reads it", NAMES[e - ENCODING_UTF16LE]);
        size_t bytes = encode(e, 0, 3, data);
        assert_refused((char *)data, bytes, ENCODING_FOUND, cure);
        assert_refused((char *)data, bytes - 1, e, ", from byte ");
        bytes = encode(e, 1, 3, data);
        assert_refused((char *)data, bytes, ENCODING_UTF8, "begins with the byte-order mark of");
        assert_refused((char *)data, bytes, ENCODING_LATIN1, "begins with the byte-order mark of");
    }
    assert_refused("\xef\xbb\xbfx", 4, ENCODING_UTF16LE, "begins with the byte-order mark of utf-8");
    assert_refused("a\0\0\xd8" "b\0", 6, ENCODING_UTF16LE, "0xD800 at byte 2 is half of a surrogate pair");
    assert_refused("a\0\0\xdc" "b\0", 6, ENCODING_UTF16LE, "0xDC00 at byte 2 is half of a");
    assert_refused("a\0\0\xd8\0\xe0", 6, ENCODING_UTF16LE, "0xD800 at byte 2 is half of a");
    assert_refused("\0a\xd8\0", 4, ENCODING_UTF16BE, "bytes, from byte 2 on");
    assert_refused("a\0\0\0\0\xd8\0\0", 8, ENCODING_UTF32LE, "0x0000D800 at byte 4 is half");
    assert_refused("a\0\0\0\0\0\x11\0", 8, ENCODING_UTF32LE, "0x00110000 at byte 4 is not a character");
}

/* Counts bytes that are not UTF-8. In an incomplete character each byte counts, wherever one read ends and the next
 * begins. */
static void bytes_that_are_no_utf8_are_counted(void **state) {
    (void)state;
    srand(5);
    for (int round = 0; round < 400; round++) {
        static const char *const PARTS[] = {"a",
                                            "plain words ",
                                            "\xc3\xa9",
                                            "\xe6\x97\xa5",
                                            "\xf0\x9f\x98\x80",
                                            "\xc3",
                                            "\xe6\x97",
                                            "\xf0\x9f\x98",
                                            "\x80",
                                            "\xff",
                                            "\xed\xa0\x80",
                                            "\xc0\x80",
                                            "\xf4\x90\x80\x80",
                                            "\xe0\x80\x80"};
        /* 50 plain characters first; otherwise the bytes after them could be taken for UTF-16 */
        char *text, data[400] = "12345678901234567890123456789012345678901234567890",
                    fault[TEXT_FILE_FAULT_CHARS];
        size_t  bytes = 50, length;
        int64_t invalid, due = 0;
        for (int parts = rand() % 12; parts > 0; parts--)
            bytes += (size_t)snprintf(data + bytes, sizeof data - bytes, "%s", PARTS[rand() % 14]);
        for (size_t at = 0; at < bytes;) {
            utf8proc_int32_t c;
            utf8proc_ssize_t n =
                utf8proc_iterate((const utf8proc_uint8_t *)data + at, (utf8proc_ssize_t)(bytes - at), &c);
            due += n <= 0, at += n > 0 ? (size_t)n : 1;
        }
        assert_int_equal(read_as(data, bytes, ENCODING_UTF8, 8 + (size_t)(rand() % 30), &text, &length, &invalid,
                                 fault),
                         0);
        assert_int_equal(length, bytes);
        assert_memory_equal(text, data, bytes);
        if (invalid != due)
            fail_msg("round %d: %lld bytes are due, not %lld", round, (long long)due, (long long)invalid);
        free(text);
    }
}

static TextKind kind_of(const char *data, size_t bytes, char *what, size_t room) {
    TextFile   *f;
    const char *found;
    char        fault[TEXT_FILE_FAULT_CHARS];
    write_file("f", data, bytes);
    if (text_file_open(&f, "f", IO_READ, ENCODING_FOUND, fault)) return snprintf(what, room, "%s", fault), TEXT_BINARY;
    TextKind kind = text_file_kind(f, &found);
    snprintf(what, room, "%s", found ? found : "");
    text_file_close(f);
    return kind;
}

static void what_is_no_text_has_a_name(void **state) {
    (void)state;
    static const struct { const char *start; size_t bytes; TextKind kind; const char *what; } CASES[] = {
        {"\x89PNG\r\n\x1a\n", 8, TEXT_OTHER, "PNG"}, {"GIF89a\1\0\1\0\0\0\0;", 14, TEXT_OTHER, "GIF"}, {"\xff\xd8\xff\xe0", 4, TEXT_OTHER, "JPEG"},
        {"%PDF-1.7\n", 9, TEXT_OTHER, "PDF"}, {"\x7f" "ELF\2\1\1", 7, TEXT_OTHER, "ELF"}, {"MZ\x90\0\3\0\0\0", 8, TEXT_OTHER, "Windows"},
        {"PK\3\4", 4, TEXT_OTHER, "unzip FILE"}, {"Rar!\x1a\7\1\0", 8, TEXT_OTHER, "unrar x FILE"}, {"\x37\x7a\xbc\xaf\x27\x1c", 6, TEXT_OTHER, "7z x FILE"},
        {"BZh91AY&SY", 10, TEXT_PACKED, "$ bzip2 -dc < FILE"}, {"\x04\x22\x4d\x18", 4, TEXT_PACKED, "$ lz4 -dc < FILE"}, {"\x80\4\x95", 3, TEXT_OTHER, "pickle"},
        {"SQLite format 3\0", 16, TEXT_OTHER, "SQLite"}, {"GGUF\3\0\0\0", 8, TEXT_OTHER, "GGUF"}, {"ORC\n\1\2\3", 7, TEXT_OTHER, "ORC"},
        {"\x40\0\0\0\0\0\0\0{\"a\"", 12, TEXT_OTHER, "safetensors"}, {"\x93NUMPY\1\0", 8, TEXT_OTHER, "NumPy"}, {"PAR1\x15\0", 6, TEXT_PARQUET, ""},
        {"a\1b\2c\3d\4e", 9, TEXT_BINARY, "over 1 % of its first bytes"}, {"\x88\xd8\x34\x01", 4, TEXT_SHARD, "shard of tokens"},
        {"BM is a start, as MZ, OTTO, ORC, FORM and ID3 are", 49, TEXT_PLAIN, ""}, {"RIFF of a guitar, WAVE", 22, TEXT_PLAIN, ""},
        {"ORCs\xe9", 5, TEXT_PLAIN, ""}, {"\x1b$B8@8l\x1b(B", 10, TEXT_ENCODED, "iconv -f ISO-2022-JP"}, {"\xff\xfe" "BM\0\0", 6, TEXT_PLAIN, ""}, {"", 0, TEXT_PLAIN, ""}, {"\x1b[1mbold\x1b[0m\ttab\f", 17, TEXT_BINARY, "colours of a terminal"}, {"N\bNA\bAM\bM", 9, TEXT_BINARY, "$ col -bx < FILE"}};
    char what[TEXT_FILE_FAULT_CHARS];
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        TextKind kind = kind_of(CASES[i].start, CASES[i].bytes, what, sizeof what);
        if (kind != CASES[i].kind || !strstr(what, CASES[i].what))
            fail_msg("case %zu: kind %d, %s", i, (int)kind, what);
    }
    char tar[1024] = "name", random[3000], text[20000];
    unsigned sum = 8 * ' ';
    memcpy(tar + 100, "0000644", 7);
    for (int i = 0; i < 148; i++) sum += (unsigned char)tar[i];
    snprintf(tar + 148, 8, "%06o", sum);
    assert_int_equal(kind_of(tar, sizeof tar, what, sizeof what), TEXT_OTHER);
    assert_non_null(strstr(what, "$ tar -xf PACKED"));
    tar[0] = 'N'; /* makes the checksum in tar's header wrong */
    assert_int_equal(kind_of(tar, sizeof tar, what, sizeof what), TEXT_BINARY);
    srand(9);
    for (size_t i = 0; i < sizeof random; i++) random[i] = (char)rand();
    random[0] = 'x';
    assert_int_equal(kind_of(random, sizeof random, what, sizeof what), TEXT_BINARY);
    memset(text, 'x', sizeof text);
    text[100] = 0, text[5000] = 1; /* a text with a few control bytes is not taken for a program */
    assert_int_equal(kind_of(text, sizeof text, what, sizeof what), TEXT_PLAIN);
    memset(text, 1, 100); /* a file that begins with 100 control bytes is a program, even if text follows */
    assert_int_equal(kind_of(text, sizeof text, what, sizeof what), TEXT_BINARY);
}

static void a_file_in_memory_is_cleaned(void **state) {
    (void)state;
    char  fault[TEXT_FILE_FAULT_CHARS] = "", *text = strdup("\xef\xbb\xbf#version: 0.2\r\n");
    size_t bytes = strlen(text);
    assert_int_equal(text_clean(&text, &bytes, 100, "x.txt", fault), 0);
    assert_int_equal(bytes, 15);
    assert_string_equal(text, "#version: 0.2\r\n");
    unsigned char *wide = malloc(4000);
    bytes = encode(ENCODING_UTF16BE, 1, 20, wide);
    free(text), text = (char *)wide;
    assert_int_equal(text_clean(&text, &bytes, 4000, "x.txt", fault), 0);
    assert_int_equal(bytes, 20 * (sizeof TEXT - 1));
    assert_int_equal(text[bytes], 0);
    assert_int_equal(text_clean(&text, &bytes, 100, "x.txt", fault), EXIT_DATA);
    assert_non_null(strstr(fault, "the most that is read"));
    assert_memory_equal(text, TEXT, sizeof TEXT - 1); /* if text_clean fails, the text stays unchanged */
    memcpy(text, "\x89PNG", 4);
    assert_int_equal(text_clean(&text, &bytes, 4000, "x.txt", fault), EXIT_DATA);
    assert_non_null(strstr(fault, "is a PNG picture"));
    bytes = encode(ENCODING_UTF16LE, 0, 20, (unsigned char *)text);
    assert_int_equal(text_clean(&text, &bytes, 4000, "x.txt", fault), EXIT_DATA);
    assert_non_null(strstr(fault, "without a byte-order mark: iconv -f utf-16le -t utf-8 < x.txt > NEW"));
    free(text);
    text = strdup(""), bytes = 0;
    assert_int_equal(text_clean(&text, &bytes, 0, "x.txt", fault), 0);
    assert_int_equal(bytes, 0);
    assert_int_equal(text[0], 0);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, enter_folder, leave_folder)
        IN_FOLDER(every_encoding_becomes_utf8),        IN_FOLDER(what_contradicts_an_encoding_is_a_fault),
        IN_FOLDER(bytes_that_are_no_utf8_are_counted), IN_FOLDER(what_is_no_text_has_a_name),
        IN_FOLDER(a_file_in_memory_is_cleaned),
    };
    return cmocka_run_group_tests_name("text_file", tests, NULL, NULL);
}
