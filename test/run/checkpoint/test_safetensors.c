/* test_safetensors.c - headers that must be read, headers that must be refused, and the header that the program
 * writes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/rng.h"
#include "run/checkpoint/safetensors.h"
#include "test/run/config/every_value.h"

enum { FILE_ROOM = 1 << 16 };

typedef struct { uint8_t bytes[FILE_ROOM]; size_t size; } File;

/* Makes a file in memory of this header and data_bytes bytes of tensors. claimed: the header length that the file
 * states; -1: the true one. */
static File *file_of(const char *header, size_t data_bytes, int64_t claimed) {
    static File file;
    size_t      n = strlen(header);
    uint64_t    length = claimed < 0 ? n : (uint64_t)claimed;
    memset(&file, 0, sizeof file);
    for (int i = 0; i < 8; i++) file.bytes[i] = (uint8_t)(length >> (8 * i));
    memcpy(file.bytes + 8, header, n);
    file.size = 8 + n + data_bytes;
    assert_true(file.size <= FILE_ROOM);
    return &file;
}

/* Parses a copy of the bytes in an allocation of exactly their size, so that AddressSanitizer notices a read after its
 * end. */
static int parse(const uint8_t *bytes, size_t size, uint64_t file_bytes, Safetensors *out, char *fault) {
    uint8_t *copy = malloc(size ? size : 1);
    memcpy(copy, bytes, size);
    int good = safetensors_parse(copy, size, file_bytes, out, fault);
    free(copy);
    return good;
}

static void read_changed(char *header, void *good) {
    char        fault[SAFETENSORS_FAULT_BYTES] = "";
    Safetensors s;
    File       *f = file_of(header, 38, -1);
    if (!parse(f->bytes, f->size, f->size, &s, fault)) {
        if (!fault[0]) fail_msg("refused without a word: %s", header);
        return;
    }
    for (int t = 0; t < s.tensors; t++)
        assert_true(s.tensor[t].begin <= s.tensor[t].end && s.data_offset + s.tensor[t].end <= f->size);
    safetensors_free(&s);
    ++*(int *)good;
}

/* Replaces each value of a header in turn. Each header is refused, or accepted and consistent. */
static void test_every_value(void **state) {
    (void)state;
    int good = 0;
    int all = every_value("{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                          "\"b\":{\"dtype\":\"BF16\",\"shape\":[7],\"data_offsets\":[24,38]}}", read_changed, &good);
    assert_true(all > 300 && good > 0 && good < all / 4);
}

static void test_reads(void **state) {
    (void)state;
    static const struct { const char *header; size_t data; int tensors; } good[] = {
        {"{}", 0, 0},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0, 0},
        {"{\"__metadata__\":{}}     ", 0, 0},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24, 1},
        {"{\"a\":{\"data_offsets\":[0,24],\"shape\":[2,3],\"dtype\":\"F32\"}}\n\t  ", 24, 1},
        {"{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]},\"a\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[0,2]}}", 6, 2},
        {"{\"scalar\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}", 8, 1},
        {"{\"none\":{\"dtype\":\"F16\",\"shape\":[0,5],\"data_offsets\":[0,0]},\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, 2},
        {"{\"a\":{\"dtype\":\"BOOL\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        Safetensors s;
        char        fault[SAFETENSORS_FAULT_BYTES] = "";
        File       *f = file_of(good[i].header, good[i].data, -1);
        if (!parse(f->bytes, f->size, f->size, &s, fault)) fail_msg("%s: %s", good[i].header, fault);
        assert_int_equal(s.tensors, good[i].tensors);
        assert_int_equal(s.data_offset, 8 + strlen(good[i].header));
        for (int t = 1; t < s.tensors; t++) assert_int_equal(s.tensor[t].begin, s.tensor[t - 1].end);
        safetensors_free(&s);
    }
}

#define ENTRY(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_refuses(void **state) {
    (void)state;
    static const struct { const char *header; size_t data; int64_t claimed; const char *word; } bad[] = {
        {"", 0, -1, "'{'"},
        {"[]", 0, -1, "'{'"},
        {" {}", 0, -1, "'{'"},
        {"\xef\xbb\xbf{}", 0, -1, "'{'"},
        {"{}", 0, 3, "ends inside"},
        {"{}", 0, 100000000, "ends inside"},
        {"{}", 0, 100000001, "claims a header"},
        {"{}", 0, INT64_MAX, "claims a header"},
        {"\3", 0, 0x0000000000088b1f, "is packed by gzip: unpack it by gzip -dc < FILE > FILE.new && mv FILE.new FILE"},
        {"\1", 0, 0x0000000346554747, "is a model of llama.cpp"},
        {"\1", 0, 0x0000000804034b50, "is a zip archive"},
        {"{}", 1, -1, "where its header describes 0"},
        {"{", 0, -1, "damaged header"},
        {"{}x", 0, -1, "damaged header"},
        {"{\"a\":1}", 0, -1, "no object"},
        {"{\"a\":[]}", 0, -1, "no object"},
        {"{\"a\":{}}", 0, -1, "dtype"},
        {"{\"__metadata__\":[]}", 0, -1, "__metadata__"},
        {"{\"__metadata__\":{\"format\":1}}", 0, -1, "__metadata__"},
        {"{" ENTRY("a", "F31", "[1]", "[0,4]") "}", 4, -1, "dtype"},
        {"{" ENTRY("a", "f32", "[1]", "[0,4]") "}", 4, -1, "dtype"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, -1, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, -1, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"offsets\":[0,4]}}", 4, -1, "unknown member"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, -1, "unknown member"},
        {"{" ENTRY("a", "F32", "1", "[0,4]") "}", 4, -1, "shape"},
        {"{" ENTRY("a", "F32", "[-1]", "[0,4]") "}", 4, -1, "shape"},
        {"{" ENTRY("a", "F32", "[0.5]", "[0,2]") "}", 2, -1, "shape"},
        {"{" ENTRY("a", "F32", "[\"1\"]", "[0,4]") "}", 4, -1, "shape"},
        {"{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, -1, "shape"},
        {"{" ENTRY("a", "F32", "[18446744073709551616]", "[0,0]") "}", 0, -1, "damaged header"},
        {"{" ENTRY("a", "F32", "[1e300]", "[0,0]") "}", 0, -1, ""},
        {"{" ENTRY("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, -1, "2^64 bytes"},
        {"{" ENTRY("a", "F32", "[2147483648,2147483648]", "[0,0]") "}", 0, -1, "2^64 bytes"},
        {"{" ENTRY("a", "F64", "[2147483648,1073741824]", "[0,0]") "}", 0, -1, "2^64 bytes"},
        {"{" ENTRY("a", "F32", "[9007199254740992,512]", "[0,0]") "}", 0, -1, "2^64 bytes"},
        {"{" ENTRY("a", "F32", "[2]", "[0,4]") "}", 4, -1, "its shape needs 8"},
        {"{" ENTRY("a", "F16", "[1]", "[0,4]") "}", 4, -1, "its shape needs 2"},
        {"{" ENTRY("a", "F32", "[1]", "[4,0]") "}", 4, -1, "data_offsets"},
        {"{" ENTRY("a", "F32", "[1]", "[0]") "}", 4, -1, "data_offsets"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4,8]") "}", 4, -1, "data_offsets"},
        {"{" ENTRY("a", "F32", "[1]", "[-4,0]") "}", 4, -1, "data_offsets"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4.5]") "}", 4, -1, "data_offsets"},
        {"{" ENTRY("a", "F32", "[1]", "{\"0\":0,\"1\":4}") "}", 4, -1, "data_offsets"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "}", 3, -1, "where its header describes 4"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "}", 5, -1, "where its header describes 4"},
        {"{" ENTRY("a", "F32", "[1]", "[4,8]") "}", 8, -1, "hole"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "F32", "[1]", "[8,12]") "}", 12, -1, "hole"},
        {"{" ENTRY("a", "F32", "[2]", "[0,8]") "," ENTRY("b", "F32", "[1]", "[4,8]") "}", 8, -1, "overlap"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("b", "F32", "[1]", "[0,4]") "}", 4, -1, "overlap"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("a", "F32", "[1]", "[4,8]") "}", 8, -1, "damaged header"},
        {"{" ENTRY("a", "F32", "[1]", "[0,4]") "," ENTRY("\\u0061", "F32", "[1]", "[4,8]") "}", 8, -1, "damaged header"},
        {"{" ENTRY("\xff", "F32", "[1]", "[0,4]") "}", 4, -1, "damaged header"},
        {"{" ENTRY("a\\u0000b", "F32", "[1]", "[0,4]") "}", 4, -1, "damaged header"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Safetensors s;
        char        fault[SAFETENSORS_FAULT_BYTES] = "";
        File       *f = file_of(bad[i].header, bad[i].data, bad[i].claimed);
        if (parse(f->bytes, f->size, f->size, &s, fault)) fail_msg("accepted: %s", bad[i].header);
        if (!strstr(fault, bad[i].word)) fail_msg("%s: \"%s\" does not say \"%s\"", bad[i].header, fault, bad[i].word);
        assert_null(s.tensor);
        assert_null(s.json.root);
    }
    Safetensors s;
    char        fault[SAFETENSORS_FAULT_BYTES];
    uint8_t     none[8] = {0};
    for (size_t n = 0; n < 8; n++) assert_false(parse(none, n, n, &s, fault));
    assert_false(parse(none, 8, 7, &s, fault)); /* refused: more bytes are given than the stated length of the file */
    assert_non_null(strstr(fault, "too short"));
}

/* A header that is one long list of numbers would need a hundred times its size as a JSON tree. It is refused before
 * the tree is built. */
static void test_refuses_costly_header(void **state) {
    (void)state;
    size_t   n = 4u << 20;
    uint8_t *bytes = malloc(8 + n);
    char     fault[SAFETENSORS_FAULT_BYTES] = "";
    Safetensors s;
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)n >> (8 * i));
    memset(bytes + 8, '0', n);
    memcpy(bytes + 8, "{\"a\":[", 6);
    for (size_t i = 7; i < n - 2; i += 2) bytes[8 + i] = ',';
    memcpy(bytes + 8 + n - 2, "]}", 2);
    assert_false(safetensors_parse(bytes, 8 + n, 8 + n, &s, fault));
    assert_non_null(strstr(fault, "values"));
    free(bytes);
}

static char *our_header(size_t *bytes) {
    SafeTensor t[3] = {{.name = "transformer.wte.weight", .type = SAFE_F32, .dims = 2, .dim = {389, 14}},
                       {.name = "transformer.h.0.ln_1.weight", .type = SAFE_F32, .dims = 1, .dim = {14}},
                       {.name = "transformer.h.0.ln_1.bias", .type = SAFE_BF16, .dims = 1, .dim = {14}}};
    return safetensors_header(t, 3, bytes);
}

static void test_writes(void **state) {
    (void)state;
    size_t      bytes, again_bytes;
    char       *text = our_header(&bytes), *again = our_header(&again_bytes), fault[SAFETENSORS_FAULT_BYTES], shape[64];
    uint64_t    data = 4 * 389 * 14 + 4 * 14 + 2 * 14;
    Safetensors s;
    const char *begin = "{\"__metadata__\":{\"format\":\"pt\"},\"transformer.wte.weight\":{\"dtype\":\"F32\",\"shape\":[389,14],"
                        "\"data_offsets\":[0,21784]},";
    assert_int_equal(bytes % 8, 0);
    assert_int_equal(bytes, again_bytes);
    assert_memory_equal(text, again, bytes);
    assert_memory_equal(text + 8, begin, strlen(begin));
    assert_true(parse((uint8_t *)text, bytes, bytes + data, &s, fault));
    assert_int_equal(s.tensors, 3);
    assert_int_equal(s.data_offset, bytes);
    const SafeTensor *t = safetensors_find(&s, "transformer.h.0.ln_1.bias");
    assert_non_null(t);
    assert_int_equal(t->type, SAFE_BF16);
    assert_int_equal(t->end, data);
    assert_null(safetensors_find(&s, "transformer.h.0.ln_1"));
    safetensors_shape(shape, sizeof shape, &s.tensor[0]);
    assert_string_equal(shape, "[389,14]");
    safetensors_shape(shape, 6, &s.tensor[0]); /* does not write past a buffer that is too small for the text */
    assert_string_equal(shape, "[389,");
    safetensors_shape(shape, 4, &s.tensor[0]);
    assert_string_equal(shape, "[38");
    safetensors_shape(shape, sizeof shape, &(SafeTensor){.dims = 0});
    assert_string_equal(shape, "[]");
    safetensors_free(&s);
    /* a file that is cut after n bytes of the header is refused */
    for (size_t n = 0; n < bytes; n++) assert_false(parse((uint8_t *)text, n, n, &s, fault));
    /* refused, because only n bytes of the header are given */
    for (size_t n = 0; n < bytes; n++) assert_false(parse((uint8_t *)text, n, bytes + data, &s, fault));
    free(text);
    free(again);
}

/* For any bytes there is no crash and no leak, and an accepted header is consistent. */
static void test_mutations(void **state) {
    (void)state;
    size_t   bytes;
    char    *text = our_header(&bytes), fault[SAFETENSORS_FAULT_BYTES];
    uint64_t data = 4 * 389 * 14 + 4 * 14 + 2 * 14;
    int      accepted = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        uint32_t    r[4];
        Safetensors s;
        char       *copy = malloc(bytes);
        memcpy(copy, text, bytes);
        for (uint64_t k = 0; k <= i % 3; k++) {
            rng_words(r, 7, RNG_TEST, 3 * i + k);
            size_t at = r[0] % bytes;
            copy[at] = r[1] & 1 ? (char)(copy[at] ^ (1 << (r[2] % 8))) : "{}[],:\"0123456789-e.\\ "[r[2] % 22];
        }
        if (parse((uint8_t *)copy, bytes, bytes + data, &s, fault)) {
            accepted++;
            for (int t = 0; t < s.tensors; t++) assert_int_equal(s.tensor[t].begin, t ? s.tensor[t - 1].end : 0);
            assert_int_equal(s.tensor[s.tensors - 1].end, data);
            safetensors_free(&s);
        }
        free(copy);
    }
    assert_true(accepted > 0); /* some changes keep the header valid, such as one in a name */
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads), cmocka_unit_test(test_refuses), cmocka_unit_test(test_refuses_costly_header),
        cmocka_unit_test(test_writes), cmocka_unit_test(test_mutations), cmocka_unit_test(test_every_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
