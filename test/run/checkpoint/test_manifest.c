/* test_manifest.c - the manifest state.json: what was written is read back; a text that is cut, changed or invented is
 * refused. */
#include "run/checkpoint/manifest.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#undef fail
#include <cmocka.h>

#include "core/json.h"
#include "test/run/config/every_value.h"

enum { TAIL = 29 }; /* bytes of the last part of a manifest: ,\n"hash":"0123456789abcdef"}\n */

/* Returns the text of a small manifest; the caller frees it. */
static char *sample(size_t *bytes) {
    ManifestExtent model[2] = {{0, 1048576, 0x1111}, {1048576, 500, 0xfedcba9876543210u}}, optimizer[1] = {{0, 77, 3}},
                   config[1] = {{0, 9, 4}}, tokenizer[1] = {{0, 5, 5}};
    ManifestData data[2] = {{"a \"quoted\"\n.bin", 18446744073709551615u, 9223372036854775807, UINT64_MAX}, {"b.bin", 2, 1, 7}};
    cJSON       *json = cJSON_Parse("{\"run\":{\"steps\":5},\"optimizer\":{\"learning_rate\":0.0006}}");
    Manifest     m = {.run_id = "0123456789abcdef",
                      .parent = {"fedcba9876543210", 40},
                      .folder = "/a \"b\"/runs",
                      .backend = "cpu",
                      .precision = "bf16",
                      .step = 1000,
                      .samples = 12000,
                      .tokens = MANIFEST_COUNT_LIMIT,
                      .seed = 9223372036854775807,
                      .ranks = 3,
                      .threads = 2,
                      .loss_scale = 65536.5,
                      .loss_scale_steps = 1234,
                      .missed = 300,
                      .guard = {.spikes = {3, {4.25, 1e-300, -0.1}}, .skips = 2, .rollbacks = 7, .furthest = 991},
                      .config = json,
                      .data = data,
                      .data_files = 2,
                      .file = {{1049076, model, 2}, {77, optimizer, 1}, {9, config, 1}, [FILE_TOKENIZER] = {5, tokenizer, 1}}};
    char        *text = manifest_write(&m, bytes);
    cJSON_Delete(json);
    return text;
}

/* Parses a copy of the text in an allocation of exactly its size, so that AddressSanitizer notices a read after its
 * end. */
static ManifestStatus parse(const char *text, size_t bytes, Manifest *m, char *fault) {
    char *copy = malloc(bytes ? bytes : 1);
    memcpy(copy, text, bytes);
    ManifestStatus status = manifest_parse(copy, bytes, m, fault);
    free(copy);
    return status;
}

static void test_round_trip(void **state) {
    (void)state;
    size_t   bytes;
    char    *text = sample(&bytes), fault[MANIFEST_FAULT_BYTES] = "";
    Manifest m;
    if (parse(text, bytes, &m, fault) != MANIFEST_GOOD) fail_msg("%s", fault);
    assert_string_equal(m.run_id, "0123456789abcdef");
    assert_string_equal(m.precision, "bf16");
    assert_string_equal(m.parent.run_id, "fedcba9876543210");
    assert_int_equal(m.parent.step, 40);
    assert_string_equal(m.folder, "/a \"b\"/runs");
    assert_true(m.step == 1000 && m.samples == 12000 && m.tokens == MANIFEST_COUNT_LIMIT && m.seed == INT64_MAX);
    assert_true(m.ranks == 3 && m.threads == 2 && m.loss_scale == 65536.5 && m.loss_scale_steps == 1234);
    assert_true(m.missed == 300 && strstr(text, "\"updates\":\"700\""));
    assert_true(m.guard.skips == 2 && m.guard.rollbacks == 7 && m.guard.furthest == 991 && m.guard.spikes.count == 3);
    assert_true(m.guard.spikes.loss[0] == 4.25 && m.guard.spikes.loss[1] == 1e-300 && m.guard.spikes.loss[2] == -0.1);
    assert_true(m.data_files == 2 && m.data[0].bytes == UINT64_MAX && m.data[0].tokens == INT64_MAX && m.data[0].ends == UINT64_MAX && m.data[1].ends == 7);
    assert_string_equal(m.data[0].name, "a \"quoted\"\n.bin");
    assert_true(m.file[FILE_MODEL].extents == 2 && m.file[FILE_MODEL].extent[1].hash == 0xfedcba9876543210u);
    assert_true(json_member(json_member(m.config, "optimizer"), "learning_rate")->valuedouble == 0.0006);
    manifest_free(&m);
    free(text);
}

/* Every number that a field of a manifest can hold is written as text and read back unchanged. */
static void test_extreme_numbers(void **state) {
    (void)state;
    static const double VALUES[] = {0.0, 5e-324, 2.2250738585072014e-308, 0.1, 1.0 / 3.0, 9007199254740991.0, 0x1p53, 9007199254740994.0,
                                    1.2345678901234568e16, 99999999999999984.0, 1e17, 1e22, 1.7976931348623157e308};
    enum { VALUE_COUNT = sizeof VALUES / sizeof *VALUES };
    for (int i = 0; i < VALUE_COUNT; i++) {
        ManifestExtent one = {0, 9, 4};
        ManifestData   data = {"a.bin", UINT64_MAX, INT64_MAX, UINT64_MAX};
        cJSON         *config = cJSON_CreateObject();
        cJSON_AddItemToObject(config, "x", number_json(VALUES[i]));
        Manifest m = {.run_id = "0123456789abcdef", .backend = "cpu", .precision = "fp16", .step = MANIFEST_COUNT_LIMIT,
                      .samples = MANIFEST_COUNT_LIMIT, .tokens = MANIFEST_COUNT_LIMIT, .seed = INT64_MAX,
                      .ranks = 1, .threads = 1, .loss_scale = VALUES[i] > 0 ? VALUES[i] : 1, .loss_scale_steps = MANIFEST_COUNT_LIMIT,
                      .config = config, .data = &data, .data_files = 1, .file = {{9, &one, 1}, {9, &one, 1}, {9, &one, 1}}}, again;
        m.guard = (Guard){.skips = MANIFEST_COUNT_LIMIT, .rollbacks = MANIFEST_COUNT_LIMIT, .furthest = MANIFEST_COUNT_LIMIT,
                          .spikes = {2, {VALUES[i], -VALUES[i]}}};
        size_t bytes;
        char  *text = manifest_write(&m, &bytes), fault[MANIFEST_FAULT_BYTES] = "";
        if (parse(text, bytes, &again, fault) != MANIFEST_GOOD) fail_msg("%.17g: %s", VALUES[i], fault);
        assert_true(again.step == m.step && again.samples == m.samples && again.tokens == m.tokens && again.seed == m.seed);
        assert_true(again.loss_scale == m.loss_scale && again.loss_scale_steps == m.loss_scale_steps);
        assert_true(again.guard.skips == m.guard.skips && again.guard.rollbacks == m.guard.rollbacks && again.guard.furthest == m.guard.furthest);
        assert_true(again.guard.spikes.count == 2 && again.guard.spikes.loss[0] == VALUES[i] && again.guard.spikes.loss[1] == -VALUES[i]);
        assert_true(number_value(json_member(again.config, "x")) == VALUES[i]);
        manifest_free(&again);
        cJSON_Delete(config);
        free(text);
    }
}

/* On a GPU the manifest contains the table of algorithms for matrix products, which is kept unchanged. */
static void test_gemm(void **state) {
    (void)state;
    ManifestExtent  one = {0, 9, 4};
    ManifestData data = {"a.bin", 1, 1, 1};
    cJSON       *config = cJSON_CreateObject(), *gemm = cJSON_Parse("{\"device\":\"H100\",\"rows\":[[1,2,\"x\"]]}");
    Manifest        m = {.run_id = "0123456789abcdef",
                         .backend = "cuda",
                         .precision = "bf16",
                         .ranks = 1,
                         .threads = 1,
                         .loss_scale = 1,
                         .config = config,
                         .gemm = gemm,
                         .data = &data,
                         .data_files = 1,
                         .file = {{9, &one, 1}, {9, &one, 1}, {9, &one, 1}}},
             again;
    size_t       bytes;
    char        *text = manifest_write(&m, &bytes), fault[MANIFEST_FAULT_BYTES] = "";
    if (parse(text, bytes, &again, fault) != MANIFEST_GOOD) fail_msg("%s", fault);
    assert_true(cJSON_Compare(again.gemm, gemm, 1));
    manifest_free(&again);
    cJSON_Delete(gemm);
    cJSON_Delete(config);
    free(text);
}

/* A missing or cut file counts as damaged. A file that could not be read does not. */
static void test_unread(void **state) {
    (void)state;
    static const struct { int error; const char *says; } table[] = {
        {ENOENT, "x is missing"}, {ENOTDIR, "x is missing"}, {ENODATA, "x ends too early"}, {EFBIG, "x is too long"},
        {ENOMEM, MANIFEST_UNREADABLE "x: Cannot allocate memory"}, {EIO, MANIFEST_UNREADABLE "x: Input/output error"}, {EACCES, MANIFEST_UNREADABLE "x: Permission denied"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char fault[MANIFEST_FAULT_BYTES];
        assert_int_equal(manifest_unread(fault, "x", table[i].error), 0);
        assert_string_equal(fault, table[i].says);
    }
}

static void test_every_cut_and_every_bit(void **state) {
    (void)state;
    size_t   bytes;
    char    *text = sample(&bytes), fault[MANIFEST_FAULT_BYTES];
    Manifest m;
    for (size_t n = 0; n < bytes; n++) assert_int_equal(parse(text, n, &m, fault), MANIFEST_BROKEN);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        text[bit / 8] ^= (char)(1 << bit % 8);
        assert_int_equal(parse(text, bytes, &m, fault), MANIFEST_BROKEN);
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
    char *longer = malloc(bytes + 1);
    memcpy(longer, text, bytes);
    longer[bytes] = '\n';
    assert_int_equal(parse(longer, bytes + 1, &m, fault), MANIFEST_BROKEN);
    free(longer);
    free(text);
}

/* Checks a manifest in which one value was changed and the hash corrected. It is accepted and consistent, or the
 * message names the faulty part. */
static void read_changed(char *text, void *good) {
    char     fault[MANIFEST_FAULT_BYTES] = "", signed_text[8192];
    Manifest m;
    size_t   end = strlen(text) - 1; /* position of the last brace, where the hash is inserted */
    int      tail = snprintf(signed_text, sizeof signed_text, "%.*s,\n\"hash\":\"%016" PRIx64 "\"}\n", (int)end, text,
                             manifest_hash(text, end));
    assert_in_range(tail, 1, sizeof signed_text - 1);
    if (parse(signed_text, (size_t)tail, &m, fault) != MANIFEST_GOOD) {
        if (!fault[0]) fail_msg("refused without a word: %s", signed_text);
        return;
    }
    for (int f = 0; f < MANIFEST_FILES; f++)
        assert_true(m.file[f].extents > 0 ? m.file[f].extent[0].offset == 0 : f >= FILE_GENERATION && m.file[f].bytes == 0);
    assert_true(m.step >= 0 && m.samples >= 0 && m.tokens >= 0 && m.ranks > 0 && m.config);
    manifest_free(&m);
    ++*(int *)good;
}

static void test_every_value(void **state) {
    (void)state;
    size_t bytes;
    int    good = 0;
    char  *text = sample(&bytes);
    strcpy(text + bytes - TAIL, "}");
    int all = every_value(text, read_changed, &good);
    assert_true(all > 1500 && good > 50 && good < all / 3);
    free(text);
}

/* Returns the sample manifest with the first occurrence of `from` replaced by `to` and its hash corrected. Sets *bytes
 * to its length; the caller frees it. */
static char *forge(const char *from, const char *to, size_t *bytes) {
    size_t old;
    char  *text = sample(&old), *at = memmem(text, old, from, strlen(from)), *out = malloc(old + strlen(to) + TAIL + 1);
    assert_non_null(at);
    size_t before = (size_t)(at - text), body = old - TAIL - strlen(from) + strlen(to);
    memcpy(out, text, before);
    memcpy(out + before, to, strlen(to));
    memcpy(out + before + strlen(to), at + strlen(from), old - TAIL - before - strlen(from));
    *bytes = body + (size_t)sprintf(out + body, ",\n\"hash\":\"%016" PRIx64 "\"}\n", manifest_hash(out, body));
    free(text);
    return out;
}

#define ONES_16 "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"
#define ONES_128 "[" ONES_16 "," ONES_16 "," ONES_16 "," ONES_16 "," ONES_16 "," ONES_16 "," ONES_16 "," ONES_16

static void test_forgeries(void **state) {
    (void)state;
    static const struct { const char *from, *to; ManifestStatus status; const char *word; } table[] = {
        {"\"1.1\"", "\"1.0\"", MANIFEST_GOOD, ""},
        {"\"1.1\"", "\"1.7\",\"more\":[1,2]", MANIFEST_GOOD, ""}, /* a manifest of a later minor version may have more
                                                                   * keys */
        {"\"1.1\"", "\"2.0\"", MANIFEST_FOREIGN, "version 2.0"},
        {"\"1.1\"", "\"10.0\"", MANIFEST_FOREIGN, "version 10.0"},
        {"\"1.1\"", "1.1", MANIFEST_BROKEN, "not of a train_gpt checkpoint"},
        {"train_gpt checkpoint", "train_gpt", MANIFEST_BROKEN, "not of a train_gpt checkpoint"},
        {"\"run_id\"", "\"run_ix\"", MANIFEST_BROKEN, "run_id"},
        {"0123456789abcdef", "../../etc/passwd", MANIFEST_BROKEN, "run_id"},
        {"0123456789abcdef", "0123456789abcdef0123456789abcdef01234567", MANIFEST_BROKEN, "run_id"},
        /* accepted: a run that is not a copy has no "parent", and an earlier version has no "folder" */
        {"\"parent\"", "\"later\"", MANIFEST_GOOD, ""},
        {"\"folder\"", "\"later\"", MANIFEST_GOOD, ""},
        {"fedcba9876543210", "here", MANIFEST_BROKEN, "parent"},
        {"\"step\":\"40\"", "\"step\":40", MANIFEST_BROKEN, "parent"},
        {"\"folder\":\"/a \\\"b\\\"/runs\"", "\"folder\":1", MANIFEST_BROKEN, "folder"},
        {"\"step\":\"1000\"", "\"step\":1000", MANIFEST_BROKEN, "step"},
        {"\"step\":\"1000\"", "\"step\":\"-1\"", MANIFEST_BROKEN, "step"},
        {"\"step\":\"1000\"", "\"step\":\"1e3\"", MANIFEST_BROKEN, "step"},
        {"\"step\":\"1000\"", "\"step\":\"\"", MANIFEST_BROKEN, "step"},
        {"\"step\":\"1000\"", "\"step\":\"9223372036854775808\"", MANIFEST_BROKEN, "step"},
        {"\"step\":\"1000\"", "\"step\":\"99999999999999999999999\"", MANIFEST_BROKEN, "step"},
        {"\"step\":\"1000\"", "\"step\":\"1000\",\"step\":\"1000\"", MANIFEST_BROKEN, "no valid JSON"},
        /* one more than 2^53, the largest number that is allowed */
        {"\"step\":\"1000\"", "\"step\":\"9007199254740993\"", MANIFEST_BROKEN, "step"},
        {"\"samples\":\"12000\"", "\"samples\":\"9223372036854775807\"", MANIFEST_BROKEN, "samples"},
        {"\"tokens\":\"9007199254740992\"", "\"tokens\":\"9007199254740993\"", MANIFEST_BROKEN, "tokens"},
        {"\"skips\":\"2\"", "\"skips\":\"9007199254740993\"", MANIFEST_BROKEN, "guard"},
        {"\"rollbacks\":\"7\"", "\"rollbacks\":\"9223372036854775807\"", MANIFEST_BROKEN, "guard"},
        {"\"furthest\":\"991\"", "\"furthest\":\"9223372036854775807\"", MANIFEST_BROKEN, "guard"},
        {"\"1234\"", "\"9007199254740993\"", MANIFEST_BROKEN, "loss_scale_steps"},
        {"\"ranks\":3", "\"ranks\":0", MANIFEST_BROKEN, "ranks"},
        {"\"ranks\":3", "\"ranks\":1e300", MANIFEST_BROKEN, ""},
        {"\"ranks\":3", "\"ranks\":2.5", MANIFEST_BROKEN, "ranks"},
        {"\"threads\":2", "\"threads\":null", MANIFEST_BROKEN, "threads"},
        {"\"cpu\"", "\"a backend with a long name\"", MANIFEST_BROKEN, "backend"},
        {"65536.5", "-1", MANIFEST_BROKEN, "loss_scale"},
        {"\"1234\"", "1234.5", MANIFEST_BROKEN, "loss_scale_steps"},
        {"\"guard\"", "\"later\"", MANIFEST_GOOD, ""}, /* accepted, because an earlier minor version has no such key */
        {"\"guard\":{", "\"guard\":{},\"x\":{", MANIFEST_BROKEN, "guard"},
        {"\"guard\":{", "\"guard\":[],\"x\":{", MANIFEST_BROKEN, "guard"},
        {"\"skips\":\"2\"", "\"skips\":2", MANIFEST_BROKEN, "guard"},
        {"\"rollbacks\":\"7\"", "\"rollbacks\":\"-7\"", MANIFEST_BROKEN, "guard"},
        {"\"furthest\"", "\"nearest\"", MANIFEST_BROKEN, "guard"},
        {"[4.25,", "[\"4.25\",", MANIFEST_BROKEN, "guard"},
        {"[4.25,", "[null,", MANIFEST_BROKEN, "guard"},
        {"[4.25,", "[[4.25],", MANIFEST_BROKEN, "guard"},
        {"[4.25,", "[1e999,", MANIFEST_BROKEN, ""},
        {"[4.25,", ONES_128 ",", MANIFEST_BROKEN, "guard"}, /* refused: more losses than the spike guard keeps */
        {"\"config\":{", "\"config\":[],\"x\":{", MANIFEST_BROKEN, "config"},
        {"\"name\":\"b.bin\"", "\"name\":7", MANIFEST_BROKEN, "data[1]"},
        {"\"data\":[", "\"data\":[],\"x\":[", MANIFEST_BROKEN, "data"},
        {"\"data\":[", "\"data\":{},\"x\":[", MANIFEST_BROKEN, "data"},
        {"\"tokenizer.json\"", "\"vocab.bin\"", MANIFEST_BROKEN, "a file that no checkpoint has"},
        /* accepted, because a checkpoint may have generation_config.json and may lack tokenizer.json */
        {"\"tokenizer.json\"", "\"generation_config.json\"", MANIFEST_GOOD, ""},
        {"\"model.safetensors\"", "\"../../model.safetensors\"", MANIFEST_BROKEN, "model.safetensors in its place"},
        {"\"model.safetensors\"", "\"/etc/passwd\"", MANIFEST_BROKEN, "model.safetensors in its place"},
        {"\"optimizer.safetensors\"", "\"model.safetensors\"", MANIFEST_BROKEN, "optimizer.safetensors in its place"},
        {"\"files\":[", "\"files\":[{},", MANIFEST_BROKEN, "list model.safetensors in its place"},
        {"\"files\":[", "\"files\":[],\"x\":[", MANIFEST_BROKEN, "list model.safetensors in its place"},
        {"\"files\":[", "\"files\":{},\"x\":[", MANIFEST_BROKEN, "list the files"},
        {"\"1049076\"", "\"1049077\"", MANIFEST_BROKEN, "exactly once"},
        {"\"1049076\"", "\"1049075\"", MANIFEST_BROKEN, "exactly once"},
        {"\"1049076\"", "\"18446744073709551615\"", MANIFEST_BROKEN, "exactly once"},
        {"[\"1048576\",\"500\"", "[\"1048577\",\"499\"", MANIFEST_BROKEN, "exactly once"},
        {"[\"1048576\",\"500\"", "[\"1048575\",\"501\"", MANIFEST_BROKEN, "exactly once"},
        {"[\"1048576\",\"500\"", "[\"0\",\"500\"", MANIFEST_BROKEN, "exactly once"},
        {"[\"1048576\",\"500\"", "[\"1048576\",\"18446744073709551615\"", MANIFEST_BROKEN, "exactly once"},
        {"[\"1048576\",\"500\"", "[\"1048576\",\"0\",\"0000000000000000\"],[\"1048576\",\"500\"", MANIFEST_BROKEN, "exactly once"},
        {"[\"0\",\"1048576\"", "[\"0\",\"1048577\"", MANIFEST_BROKEN, "exactly once"},
        {"\"0000000000001111\"", "\"000000000001111\"", MANIFEST_BROKEN, "exactly once"},
        {"\"0000000000001111\"", "\"000000000000111G\"", MANIFEST_BROKEN, "exactly once"},
        {"\"0000000000001111\"", "\"0000000000001111\",0", MANIFEST_BROKEN, "exactly once"},
        {"\"runs\":[", "\"runs\":{},\"x\":[", MANIFEST_BROKEN, "exactly once"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        size_t   bytes;
        char    *text = forge(table[i].from, table[i].to, &bytes), fault[MANIFEST_FAULT_BYTES] = "";
        Manifest m;
        if (parse(text, bytes, &m, fault) != table[i].status || !strstr(fault, table[i].word))
            fail_msg("%s -> %s: \"%s\"", table[i].from, table[i].to, fault);
        if (table[i].status == MANIFEST_GOOD) manifest_free(&m);
        assert_null(m.json.root);
        free(text);
    }
}

/* A manifest of very many values, with the right hash, is refused before its JSON tree is built, because the tree would
 * be large. */
static void test_costly_text(void **state) {
    (void)state;
    size_t   body = 16u << 20;
    char    *text = malloc(body + TAIL + 1), fault[MANIFEST_FAULT_BYTES] = "";
    Manifest m;
    memset(text, ',', body);
    for (size_t i = 0; i < body; i += 2) text[i] = '0';
    memcpy(text, "{\"a\":[", 6);
    sprintf(text + body, ",\n\"hash\":\"%016" PRIx64 "\"}\n", manifest_hash(text, body));
    assert_int_equal(manifest_parse(text, body + TAIL, &m, fault), MANIFEST_BROKEN);
    assert_non_null(strstr(fault, "values"));
    free(text);
}

/* A manifest with the largest allowed number of extents (ranges of file bytes) is read back. */
static void test_the_largest(void **state) {
    (void)state;
    const int64_t runs = 120000;
    assert_true(manifest_has_room(runs + 3, 2) && !manifest_has_room(runs + 3000, 2));
    ManifestExtent *run = calloc((size_t)runs, sizeof *run);
    for (int64_t i = 0; i < runs; i++) run[i] = (ManifestExtent){(uint64_t)i << 20, 1 << 20, UINT64_MAX - (uint64_t)i};
    ManifestExtent  one = {0, 9, 4};
    ManifestData data[2] = {{"a.bin", 1, 1, 1}, {"b.bin", 2, 1, 1}};
    cJSON       *config = cJSON_CreateObject();
    Manifest        m = {.run_id = "0123456789abcdef",
                         .backend = "cpu",
                         .precision = "bf16",
                         .ranks = 600,
                         .threads = 2,
                         .loss_scale = 1,
                         .config = config,
                         .data = data,
                         .data_files = 2,
                         .file = {{(uint64_t)runs << 20, run, runs}, {9, &one, 1}, {9, &one, 1}}},
             again;
    size_t       bytes;
    char        *text = manifest_write(&m, &bytes), fault[MANIFEST_FAULT_BYTES] = "";
    assert_true(bytes < MANIFEST_LIMIT);
    if (manifest_parse(text, bytes, &again, fault) != MANIFEST_GOOD) fail_msg("%s", fault);
    assert_true(again.file[FILE_MODEL].extents == runs && again.file[FILE_MODEL].extent[runs - 1].hash == run[runs - 1].hash);
    manifest_free(&again);
    cJSON_Delete(config);
    free(run);
    free(text);
}

/* Parses the most expensive text that is still parsed: a key for each value, and a path of 250 bytes. It must take less
 * than 256 MiB. */
static void test_memory(void **state) {
    (void)state;
    char *text = malloc(MANIFEST_LIMIT + 512), fault[MANIFEST_FAULT_BYTES] = "";
    int   at = sprintf(text, "{\"%0240d\":{", 0);
    for (int i = 3; i < MANIFEST_VALUES; i++) at += sprintf(text + at, "\"%06x\":\"%014d\",", i, 0);
    at += sprintf(text + at - 1, "}") - 1;
    at += sprintf(text + at, ",\n\"hash\":\"%016" PRIx64 "\"}\n", manifest_hash(text, (size_t)at));
    Manifest m;
    assert_true(at < MANIFEST_LIMIT);
    assert_int_equal(manifest_parse(text, (size_t)at, &m, fault), MANIFEST_BROKEN);
    /* the text was parsed and then refused by its contents */
    assert_non_null(strstr(fault, "not of a train_gpt checkpoint"));
    free(text);
#ifndef __SANITIZE_ADDRESS__
    struct rusage used;
    const char   *preload = getenv("LD_PRELOAD"); /* the limit is not checked under valgrind, whose own memory would
                                                   * count too */
    getrusage(RUSAGE_SELF, &used);
    if (!preload || !strstr(preload, "vgpreload")) assert_in_range(used.ru_maxrss >> 10, 1, 256);
#endif
}

/* An extent (the bytes of a file that one hash covers) is 1 MiB in files of up to 32 GiB. In larger files extents are
 * longer, so that MANIFEST_EXTENTS of them are enough. */
static void runs_grow_with_their_file(void **state) {
    (void)state;
    assert_int_equal(manifest_extent_bytes(0), 1 << 20);
    assert_int_equal(manifest_extent_bytes(((uint64_t)32 << 30) - 1), 1 << 20);
    assert_int_equal(manifest_extent_bytes((uint64_t)32 << 30), 2 << 20);
    for (uint64_t bytes = 1; bytes < (uint64_t)1 << 50; bytes = bytes * 3 + 1) {
        uint64_t most = manifest_extent_bytes(bytes);
        assert_true(bytes / most < MANIFEST_EXTENTS && most % MANIFEST_EXTENT_BYTES == 0 &&
                    (most == MANIFEST_EXTENT_BYTES || bytes / (most / 2) >= MANIFEST_EXTENTS));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_extreme_numbers),
        cmocka_unit_test(runs_grow_with_their_file),
        cmocka_unit_test(test_every_cut_and_every_bit),
        cmocka_unit_test(test_forgeries),
        cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_costly_text),
        cmocka_unit_test(test_the_largest),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_unread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
