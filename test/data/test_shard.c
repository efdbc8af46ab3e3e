/* test_shard.c - data files of tokens (shards): reading, writing, and every fault of a file. */
#include "core/failpoints.h"
#include "core/io.h"

#include "data/shard.h"

#include <math.h>
#include <omp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/error.h"
#include "test/data/files.h"

static const char *parse(const void *data, size_t bytes, uint64_t file_bytes, ShardHeader *header) {
    static char fault[SHARD_FAULT_CHARS];
    /* exactly as long as the data, so that a sanitizer sees a read past the end */
    uint8_t    *exact = malloc(bytes + 1);
    memcpy(exact, data, bytes);
    exact = realloc(exact, bytes ? bytes : 1);
    int rc = shard_parse_header(exact, bytes, file_bytes, 0, header, fault);
    free(exact);
    return rc == 0 ? NULL : fault;
}

static void known_headers_are_read(void **state) {
    (void)state;
    uint8_t     start[1024];
    ShardHeader h;
    put_header(start, 20240520, 1, 100);
    assert_null(parse(start, 1024, 1024 + 200, &h));
    assert_true(h.token_bytes == 2 && h.data_offset == 1024 && h.tokens == 100);
    put_header(start, 20240801, 7, 100);
    assert_null(parse(start, 1024, 1024 + 400, &h));
    assert_true(h.token_bytes == 4 && h.data_offset == 1024 && h.tokens == 100);
    put_header(start, 20240520, 1, INT32_MAX);
    assert_null(parse(start, 1024, 1024 + 2ull * INT32_MAX, &h));
    assert_true(h.tokens == INT32_MAX);
    put_header(start, 20240801, 7, INT32_MAX);
    assert_null(parse(start, 1024, 1024 + 4ull * INT32_MAX, &h));
    memset(start, 1, sizeof start);
    assert_null(parse(start, 1024, 6ull << 30, &h)); /* accepted: a file without a header */
    assert_true(h.token_bytes == 2 && h.data_offset == 0 && h.tokens == 3ll << 30);
}

static void assert_fault(const void *data, size_t bytes, uint64_t file_bytes, const char *phrase) {
    ShardHeader h;
    const char *fault = parse(data, bytes, file_bytes, &h);
    if (!fault || !strstr(fault, phrase)) fail_msg("\"%s\" is due, not \"%s\"", phrase, fault ? fault : "no fault");
}

static void truncation_is_seen_at_every_byte(void **state) {
    (void)state;
    uint8_t file[1024 + 20];
    memset(file, 7, sizeof file);
    put_header(file, 20240520, 1, 10);
    ShardHeader h;
    for (size_t bytes = 0; bytes < sizeof file; bytes++) {
        const char *fault = parse(file, bytes < 1024 ? bytes : 1024, bytes, &h);
        if (!fault) fail_msg("no fault in the first %zu bytes", bytes);
        if (bytes == 0) assert_non_null(strstr(fault, "is empty"));
        else if (bytes < 4) assert_true(strstr(fault, "odd number of bytes") || strstr(fault, "truncated"));
        else assert_non_null(strstr(fault, "is truncated"));
    }
    assert_null(parse(file, 1024, sizeof file, &h));
    assert_fault(file, 1024, 1030, "the file holds 1030 bytes, but its 10 tokens take 1044");
    assert_fault(file, 8, 1044, "is truncated"); /* only the first 8 bytes of a file of 1044 are passed */
    assert_fault(file, 500, 500, "it holds 500 bytes, the header of an llm.c shard alone takes 1024");
    assert_fault(file, 1024, 1045, "holds 1 bytes after its last token");
    assert_fault(file, 1024, 1024 + 40, "20 bytes after its last token: its 10 tokens take 1044 bytes, and the file has 1064");
}

static void foreign_headers_are_refused_by_name(void **state) {
    (void)state;
    static const struct { int32_t magic, version, tokens; const char *phrase; } bad[] = {
        {20240520, 2, 10, "magic 20240520, version 2; only version 1"},
        {20240520, 7, 10, "version 7; only version 1"},
        {20240520, 0, 10, "version 0"},
        {20240520, -1, 10, "version -1"},
        {20240801, 1, 10, "magic 20240801, version 1; only version 7"},
        {20240520, 1, 0, "counts 0 tokens"},
        {20240520, 1, -1, "counts -1 tokens"},
        {20240520, 1, INT32_MIN, "counts -2147483648 tokens"},
        {20240801, 7, -10, "counts -10 tokens"},
        {20240522, 1, 10, "is an llm.c eval file (magic 20240522), not tokens to train on"},
        {20240326, 3, 1024, "llm.c model checkpoint"},
        {20240803, 5, 1024, "llm.c model checkpoint"},
        {20240327, 2, 10, "llm.c debug state"},
        {20240328, 2, 50257, "llm.c tokenizer"},
        {20240527, 1, 10, "llm.c optimizer state"},
    };
    uint8_t start[1024];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put_header(start, bad[i].magic, bad[i].version, bad[i].tokens);
        assert_fault(start, 1024, 1024 + 20, bad[i].phrase);
    }
    assert_fault("BIN.TOK\n........", 16, 16, "llmq");
    assert_fault("MMIDIDX\0\0.......", 16, 16, "Megatron");
    assert_fault("\x93NUMPY\1\0........", 16, 16, "tofile()");
    assert_fault("In the beginning.", 17, 17, "is UTF-8 text, not tokens: text becomes shards by ./train_gpt tokenize");
    assert_fault("\1In the beginning", 17, 17, "odd number of bytes (17)");
    put_header(start, 20240520, 1, INT32_MAX); /* 2 * tokens must not overflow */
    assert_fault(start, 1024, 1024, "its 2147483647 tokens take 4294968318");
}

static const char *kind(const char *bytes, size_t count) {
    const char *found = shard_text_kind((const uint8_t *)bytes, count);
    return found ? found : "tokens";
}

static void text_is_told_from_tokens(void **state) {
    (void)state;
    static const struct { const char *bytes; size_t count; const char *kind; } cases[] = {
        {"a book\n", 7, "UTF-8 text"}, {"Zo\xc3\xab: \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80", 17, "UTF-8 text"},
        {"cut off \xe4\xbd", 10, "UTF-8 text"}, {" \n{\"text\": 1}", 13, "JSON"}, {"[1, 2]", 6, "JSON"},
        {"\x1f\x8b\x08\0\0\0\0\0\0\x03..", 12, "gzip"}, {"\x1f\x8b\x08\xff\0\0\0\0\0\x03..", 12, "tokens"},
        {"\x28\xb5\x2f\xfd....", 8, "zstd"}, {"\xfd" "7zXZ\0..", 8, "xz"}, {"PAR1\x15\0..", 8, "parquet"},
        {"\0a\0b", 4, "tokens"}, {"a\x80", 2, "tokens"}, {"\xc0\x80", 2, "tokens"}, {"\xed\xa0\x80", 3, "tokens"},
        {"\xf4\x90\x80\x80", 4, "tokens"}, {"\xe0\x80\x80", 3, "tokens"}, {"a\x7f", 2, "tokens"}, {"", 0, "tokens"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) assert_string_equal(kind(cases[i].bytes, cases[i].count), cases[i].kind);
    char random[4096]; /* random tokens below GPT-2's vocabulary size */
    srand(3);
    for (size_t i = 0; i < sizeof random; i += 2) {
        uint16_t token = (uint16_t)(rand() % 50257);
        memcpy(random + i, &token, 2);
    }
    for (size_t at = 0; at < sizeof random - 16; at += 2) assert_string_equal(kind(random + at, 16), "tokens");
}

/* Writes an ASCII text with `width` bytes for each character, as in UTF-16 or UTF-32. `shift` is added to letters,
 * which makes them letters of another script. Returns the number of bytes. */
static size_t widen(const char *text, int width, int is_big, int shift, uint8_t *out) {
    size_t n = 0;
    for (; *text; text++, n += (size_t)width) {
        int c = *text + (*text >= 'a' ? shift : 0);
        for (int i = 0; i < width; i++) out[n + (size_t)(is_big ? width - 1 - i : i)] = (uint8_t)(i < 2 ? c >> (8 * i) : 0);
    }
    return n;
}

static const char *parse_for(int64_t vocab_size, const void *data, size_t bytes) {
    static char fault[SHARD_FAULT_CHARS];
    ShardHeader h;
    return shard_parse_header(data, bytes, bytes, vocab_size, &h, fault) == 0 ? "tokens" : fault;
}

static void wide_text_is_told_from_tokens(void **state) {
    (void)state;
    static const char TEXT[] = "it was the best of times, it was the worst of times\nit was the age of wisdom";
    static const struct { int width, is_big, shift; int64_t vocab_size; const char *due; } cases[] = {
        {2, 0, 0, 50257, "text in utf-16le: ./train_gpt tokenize FILE encoding=utf-16le out=FOLDER makes shards of it; if its tokens are bytes"},
        {2, 0, 0, 100000, "text in utf-16le"}, {2, 1, 0, 50257, "text in utf-16be"}, {2, 1, 0, 256, "text in utf-16be"},
        {4, 0, 0, 100000, "text in utf-32le"}, {4, 1, 0, 50257, "text in utf-32be"}, {2, 0, 0x400, 50257, "text in utf-16le"},
        {2, 0, 0x4e00, 256, "text in utf-16le"}, {2, 0, 0, 256, "tokens"}, {2, 0, 0, 0, "tokens"}};
    uint8_t file[4 * sizeof TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t      n = widen(TEXT, cases[i].width, cases[i].is_big, cases[i].shift, file);
        const char *said = parse_for(cases[i].vocab_size, file, n);
        if (!strstr(said, cases[i].due)) fail_msg("case %zu: \"%s\" is due, not \"%s\"", i, cases[i].due, said);
    }
    uint16_t ids[4000];
    srand(5);
    /* accepted: tokens with any share of small numbers, and files with few tokens */
    for (int draw = 0; draw < 500; draw++) {
        int count = draw < 250 ? 4000 : 16 + draw % 64, low = draw % 100;
        for (int i = 0; i < count; i++) ids[i] = (uint16_t)(rand() % 100 < low ? rand() % 700 : rand() % 50257);
        assert_string_equal(parse_for(50257, ids, 2 * (size_t)count), "tokens");
    }
}

static void other_widths_are_refused_with_their_size(void **state) {
    (void)state;
    enum { N = 1000 };
    uint32_t four[N + 1] = {0};
    uint64_t eight[N];
    float    floats[N];
    for (uint32_t i = 0; i < N; i++) four[i] = eight[i] = i * 2654435761u % 50257, floats[i] = (float)four[i];
    assert_non_null(strstr(parse_for(50257, four, 4 * N), "holds uint32 numbers"));
    assert_string_equal(parse_for(100000, four, 4 * N), "tokens");
    for (size_t more = 1; more < 4; more++)
        for (int64_t vocab_size = 0; vocab_size < 150000; vocab_size += 50257) {
            const char *said = parse_for(vocab_size, four, 4 * N + more);
            if (more == 2) assert_non_null(strstr(said, "its 4002 bytes are not a multiple of 4: it was cut, or bytes were added"));
            else assert_true(strstr(said, "bytes") && strstr(said, more == 1 ? "4001" : "4003"));
        }
    for (int64_t vocab_size = 0; vocab_size < 150000; vocab_size += 50257) {
        assert_non_null(strstr(parse_for(vocab_size, eight, sizeof eight), "holds 64-bit numbers"));
        assert_non_null(strstr(parse_for(vocab_size, floats, sizeof floats), "holds float32 numbers"));
    }
}

/* Writes a number as `bytes` bytes in either byte order. */
static void put_bits(uint8_t *out, uint64_t bits, int bytes, int is_big) {
    for (int k = 0; k < bytes; k++) out[is_big ? bytes - 1 - k : k] = (uint8_t)(bits >> 8 * k);
}

static uint64_t float_bits(int64_t id, char form) {
    float    single = (float)id;
    double   wide = (double)id;
    uint64_t bits = 0;
    uint32_t low;
    memcpy(&low, &single, 4);
    if (form == 'd') return memcpy(&bits, &wide, 8), bits;
    if (form == 'b') return low >> 16;
    /* converts to float16: sign, exponent and the ten bits of the mantissa that remain */
    if (form == 'f' || id == 0) return low;
    return (low >> 31) << 15 | ((((low >> 23) & 255) - 112) << 10) | ((low >> 13) & 1023);
}

/* Writes tokens with small numbers more often than large ones, as array of every type. Types other than uint16 are
 * recognized, and the message names the type. With `labels` some numbers are -100, as in labels for training. */
static void other_types_are_refused_by_name(void **state) {
    (void)state;
    static const struct { const char *name; int bytes, is_big; char form; } types[] = {
        {"64-bit", 8, 0, 'i'},  {"big-endian 64-bit", 8, 1, 'i'},  {"uint32", 4, 0, 'i'},   {"big-endian uint32", 4, 1, 'i'},
        {"float64", 8, 0, 'd'}, {"big-endian float64", 8, 1, 'd'}, {"float32", 4, 0, 'f'},  {"big-endian float32", 4, 1, 'f'},
        {"float16", 2, 0, 'h'}, {"big-endian float16", 2, 1, 'h'}, {"bfloat16", 2, 0, 'b'}, {"big-endian bfloat16", 2, 1, 'b'},
        {"of 3 bytes", 3, 0, 'i'}, {"big-endian numbers of 3 bytes", 3, 1, 'i'}, {"big-endian uint16", 2, 1, 'i'}, {"bytes", 1, 0, 'i'}};
    enum { N = 12000 };
    static uint8_t file[8 * N];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (int labels = 0; labels < 2; labels++)
            for (int64_t vocab_size = 50257; vocab_size <= 100514; vocab_size += 15279) {
                srand(11);
                int is_integer = types[i].form == 'i', bytes = types[i].bytes, most = vocab_size > 65536 || bytes < 4 ? 50257 : 65536;
                for (int k = 0; k < N; k++) {
                    int64_t id = rand() % most >> rand() % 12;
                    if (labels && rand() % 7 == 0) id = -100;
                    put_bits(file + k * bytes, is_integer ? (uint64_t)id : float_bits(id, types[i].form), bytes, types[i].is_big);
                }
                if ((labels && bytes < 4 && is_integer) || (!labels && i == 2 && vocab_size > 65536)) continue;
                const char *said = parse_for(vocab_size, file, (size_t)(N * bytes));
                const char *due = labels && i == 2 ? "int32" : types[i].name, *cure = labels ? "labels" : strchr("hb", types[i].form) ? "lost" : "python3";
                if (!strstr(said, due) || !strstr(said, cure) || strlen(said) + 1 >= SHARD_FAULT_CHARS)
                    fail_msg("\"%s\" and \"%s\" are due, not \"%s\"", due, cure, said);
            }
    uint8_t start[1024];
    put_header(start, 20240801, 7, 3);
    for (int i = 0; i < 12; i += 4) put_bits(start + i, (uint64_t)(start[i] | start[i + 1] << 8 | start[i + 2] << 16 | start[i + 3] << 24), 4, 1);
    assert_fault(start, 1024, 1036, "llm.c token shard in big-endian order");
}

/* Files of floats with fractions, such as weights, are refused: normal and uniform numbers of several sizes, some of
 * them 0. */
static void floats_with_fractions_are_refused(void **state) {
    (void)state;
    static const char *const types[] = {"float64", "float32", "float16", "bfloat16"};
    enum { N = 5000 };
    static uint8_t file[8 * N];
    for (int type = 0; type < 4; type++)
        for (int is_big = 0; is_big < 2; is_big++)
            for (int size = 0; size < 3; size++)
                for (int is_uniform = 0; is_uniform < (type < 2 ? 2 : 1); is_uniform++) {
                    srand(11);
                    for (int k = 0; k < N; k++) {
                        double sum = 0, v = (double)rand() / RAND_MAX;
                        for (int i = 0; i < 12; i++) sum += (double)rand() / RAND_MAX;
                        if (!is_uniform) v = sum - 6;
                        v *= size == 0 ? 1 : size == 1 ? 0.02 : 3;
                        if (k % 50 == 0) v = 0;
                        float    single = (float)v;
                        uint32_t low;
                        uint64_t wide;
                        memcpy(&low, &single, 4), memcpy(&wide, &v, 8);
                        uint64_t half = fabs(v) < 0x1p-14 ? 0 : (low >> 31) << 15 | ((((low >> 23) & 255) - 112) << 10) | ((low >> 13) & 1023);
                        put_bits(file + k * (type == 0 ? 8 : type == 1 ? 4 : 2), type == 0 ? wide : type == 1 ? low : type == 2 ? half : low >> 16,
                                 type == 0 ? 8 : type == 1 ? 4 : 2, is_big);
                    }
                    const char *said = parse_for(65536, file, (size_t)N * (type == 0 ? 8 : type == 1 ? 4 : 2));
                    if (!strstr(said, types[type]) || !strstr(said, "with fractions") || (strstr(said, "big-endian") != NULL) != is_big)
                        fail_msg("%s, big %d, size %d, uniform %d: %s", types[type], is_big, size, is_uniform, said);
                }
}

/* Tokens in uint16 must never be taken for another type. Tries vocabularies of every size, with any share of padding,
 * and frequent tokens that have any numbers. */
static void no_uint16_tokens_are_refused(void **state) {
    (void)state;
    static uint16_t ids[20000], name[65536];
    static const int VOCABULARIES[] = {2, 16, 100, 256, 300, 1000, 32000, 50257, 64000, 65536};
    srand(7);
    for (int i = 0; i < 65536; i++) name[i] = (uint16_t)i;
    for (int draw = 0; draw < 600; draw++) {
        int ends = VOCABULARIES[draw % 10], count = draw % 6 ? 16 + rand() % 500 : 20000, padding = draw % 3 ? 0 : rand() % 101, small = rand() % 12;
        for (int i = ends - 1; i > 0 && draw % 2; i--) {
            int      k = rand() % (i + 1);
            uint16_t other = name[k];
            name[k] = name[i], name[i] = other;
        }
        for (int i = 0; i < count; i++) ids[i] = rand() % 100 < padding ? 0 : name[(rand() % ends) >> (small ? rand() % small : 0)];
        const char *said = parse_for(65535, ids, 2 * (size_t)count);
        if (strstr(said, "has no header and")) fail_msg("draw %d of %d ids below %d: %s", draw, count, ends, said);
    }
}

/* A header of random bytes is refused, or the tokens that it describes lie inside of the file. */
static void random_headers_never_point_outside(void **state) {
    (void)state;
    static const int32_t magic[] = {20240520, 20240801, 20240522, 1};
    srand(1);
    for (int i = 0; i < 200000; i++) {
        uint8_t start[1024];
        put_header(start, magic[rand() % 4], rand() % 9, rand() % 4 ? rand() % 64 : (int32_t)((uint32_t)rand() * 2654435761u));
        uint64_t    file_bytes = (uint64_t)(rand() % 2 ? 1024 + rand() % 256 : rand() % 1100);
        ShardHeader h;
        if (parse(start, file_bytes < 1024 ? file_bytes : 1024, file_bytes, &h)) continue;
        assert_true(h.tokens > 0 && h.data_offset + (uint64_t)h.token_bytes * (uint64_t)h.tokens == file_bytes);
    }
}

static void tokens_are_read(void **state) {
    (void)state;
    write_counting_shard("two", 3000, 49000);
    Shard   s = shard_open("two", 0);
    int32_t out[3000];
    for (int64_t i = 0; i < 3000; i++) assert_int_equal(shard_token(&s, i), (49000 + i) % 50000);
    shard_read(&s, 0, 3000, out);
    for (int64_t i = 0; i < 3000; i++) assert_int_equal(out[i], (49000 + i) % 50000);
    shard_read(&s, 2999, 1, out);
    assert_int_equal(out[0], 1999);
    shard_close(&s);

    static const uint16_t raw[] = {65535, 1, 0, 50256};
    write_file("raw", raw, sizeof raw);
    s = shard_open("raw", 0);
    shard_read(&s, 0, 4, out);
    for (int i = 0; i < 4; i++) assert_true(out[i] == raw[i] && shard_token(&s, i) == raw[i]);
    shard_close(&s);

    uint8_t four[1024 + 12];
    put_header(four, 20240801, 7, 3);
    memcpy(four + 1024, (uint32_t[]){128000, 70000, 5}, 12);
    write_file("four", four, sizeof four);
    s = shard_open("four", 0);
    shard_read(&s, 0, 3, out);
    assert_true(out[0] == 128000 && out[1] == 70000 && out[2] == 5 && shard_token(&s, 1) == 70000);
    assert_int_equal(shard_find_foreign(&s, 128001), -1);
    assert_int_equal(shard_find_foreign(&s, 128000), 0);
    shard_close(&s);
}

static void open_shard(const void *path) {
    Shard s = shard_open(path, 0);
    shard_close(&s);
}

static void bad_files_end_the_program_with_a_sentence(void **state) {
    (void)state;
    uint8_t file[1024];
    write_file("empty", "", 0);
    put_header(file, 20240522, 1, 10);
    write_file("eval.bin", file, sizeof file);
    put_header(file, 20240520, 1, 10);
    write_file("short.bin", file, sizeof file);
    assert_int_equal(io_mkdirs("folder"), 0);
    assert_int_equal(mkfifo("fifo", 0600), 0);
    assert_ends(EXIT_DATA, open_shard, "empty", "empty is empty", NULL);
    assert_ends(EXIT_DATA, open_shard, "eval.bin", "eval.bin is an llm.c eval file", NULL);
    assert_ends(EXIT_DATA, open_shard, "short.bin", "short.bin is truncated: the file holds 1024 bytes, but its 10 tokens take 1044", NULL);
    assert_ends(EXIT_DATA, open_shard, "folder", "folder is a folder", "folder/train_*.bin", NULL);
    assert_ends(EXIT_DATA, open_shard, "fifo", "fifo is a FIFO, not a file: name a file of tokens", NULL);
    assert_ends(EXIT_DATA, open_shard, "missing", "missing does not exist", NULL);
    assert_int_equal(symlink("loop", "loop"), 0);
    assert_ends(EXIT_IO, open_shard, "loop", "cannot read loop", NULL);
}

/* Writes a data file of Megatron-LM: NAME.bin with the tokens, and its index NAME.idx with sequences of 2 tokens of
 * `width` bytes. `type` is Megatron's number of the type. */
static void write_megatron(const char *name, uint8_t type, int sequences, const void *tokens, size_t bytes, int width) {
    uint8_t  index[1024] = "MMIDIDX";
    uint64_t version = 1, count = (uint64_t)sequences, bounds = 2, at = 34;
    char     path[PATH_CHARS];
    memcpy(index + 9, &version, 8), memcpy(index + 18, &count, 8), memcpy(index + 26, &bounds, 8);
    index[17] = type;
    for (int i = 0; i < sequences; i++, at += 4) index[at] = 2;
    for (int i = 0; i < sequences; i++, at += 8) index[at] = (uint8_t)(2 * width * i);
    index[at + 8] = (uint8_t)sequences;
    snprintf(path, sizeof path, "%s.idx", name);
    write_file(path, index, at + 16);
    snprintf(path, sizeof path, "%s.bin", name);
    write_file(path, tokens, bytes);
}

static void megatron_files_are_read_with_their_index(void **state) {
    (void)state;
    const uint16_t narrow[] = {7, 65535, 0, 3};
    const int32_t  wide[] = {70000, 0, 1, 2};
    const int64_t  widest[] = {1, 2, 3, 4};
    int32_t        out[4];
    write_megatron("narrow", 8, 2, narrow, sizeof narrow, 2);
    Shard s = shard_open("narrow.bin", 0);
    assert_int_equal(s.header.tokens, 4);
    shard_read(&s, 0, 4, out);
    for (int i = 0; i < 4; i++) assert_int_equal(out[i], narrow[i]);
    shard_close(&s);
    write_megatron("wide", 4, 2, wide, sizeof wide, 4);
    s = shard_open("wide.bin", 0);
    assert_int_equal(s.header.tokens, 4);
    shard_read(&s, 0, 4, out);
    assert_memory_equal(out, wide, sizeof wide);
    assert_int_equal(shard_find_foreign(&s, 70000), 0);
    shard_close(&s);

    /* refused: tokens of 8 bytes cannot be read, and reading them as uint16 would train on wrong tokens */
    write_megatron("widest", 5, 2, widest, sizeof widest, 8);
    assert_ends(EXIT_DATA, open_shard, "widest.bin", "widest.bin holds tokens of type int64", "widest.idx", NULL);
    write_megatron("text", 1, 2, narrow, sizeof narrow, 1);
    assert_ends(EXIT_DATA, open_shard, "text.bin", "text.bin holds tokens of type uint8", NULL);
    write_megatron("none", 9, 2, narrow, sizeof narrow, 2);
    assert_ends(EXIT_DATA, open_shard, "none.bin", "an unknown type", NULL);
    write_megatron("odd", 4, 2, narrow, 6, 4);
    assert_ends(EXIT_DATA, open_shard, "odd.bin", "holds 6 bytes, which is not a whole number of tokens of int32", NULL);
    write_megatron("cut", 8, 2, narrow, 6, 2);
    assert_ends(EXIT_DATA, open_shard, "cut.bin", "cut.idx says that sequence 1 ends at byte 8, and the tokens hold 6 bytes", NULL);
    write_megatron("more", 8, 2, wide, sizeof wide, 2);
    assert_ends(EXIT_DATA, open_shard, "more.bin", "more.idx ends its last sequence at byte 8, and the tokens hold 16 bytes", NULL);
    write_megatron("void", 8, 0, narrow, 6, 2);
    assert_ends(EXIT_DATA, open_shard, "void.bin", "holds no tokens", NULL);
    assert_int_equal(truncate("narrow.idx", 50), 0);
    assert_ends(EXIT_DATA, open_shard, "narrow.bin", "the .idx holds 50 bytes, which do not fit its 2 sequences and 2 ends", NULL);
    assert_int_equal(truncate("narrow.idx", 20), 0);
    assert_ends(EXIT_DATA, open_shard, "narrow.bin", "a truncated index: the .idx holds 20 bytes", NULL);
    assert_ends(EXIT_DATA, open_shard, "wide.idx", "name the .bin beside it", NULL);
    write_file("narrow.idx", "TNTIDX\0\0................", 24);
    assert_ends(EXIT_DATA, open_shard, "narrow.bin", "narrow.bin has an index of an older Megatron (narrow.idx, TNTIDX)", NULL);
    assert_ends(EXIT_DATA, open_shard, "narrow.idx", "index of an older Megatron", NULL);
    static const char *const OTHERS[] = {"a note", "", "MMIDIDX"};
    for (int i = 0; i < 3; i++) {
        write_file("narrow.idx", OTHERS[i], strlen(OTHERS[i]));
        assert_ends(EXIT_DATA, open_shard, "narrow.bin", "narrow.idx lies where a Megatron index of narrow.bin would, and is none", NULL);
    }
}

/* An index with more sequences than are read at once is refused if one of its numbers is wrong. */
static void a_damaged_index_is_refused(void **state) {
    (void)state;
    enum { N = 10000, BYTES = 34 + 12 * N + 16 };
    static uint8_t  index[BYTES];
    static uint16_t tokens[2 * N];
    const uint64_t  one = 1, count = N, two = 2, zero = 0;
    memcpy(index, "MMIDIDX\0\0", 9), memcpy(index + 9, &one, 8), memcpy(index + 18, &count, 8), memcpy(index + 26, &two, 8);
    index[17] = 8;
    for (int32_t i = 0; i < N; i++) {
        /* every second sequence is empty, which is accepted */
        memcpy(index + 34 + 4 * i, &(int32_t){i % 2 ? 4 : 0}, 4);
        memcpy(index + 34 + 4 * N + 8 * i, &(int64_t){8 * (i / 2)}, 8);
    }
    memcpy(index + BYTES - 16, &zero, 8), memcpy(index + BYTES - 8, &count, 8);
    write_file("m.bin", tokens, sizeof tokens);
    write_file("m.idx", index, BYTES);
    assert_ends(0, open_shard, "m.bin", NULL);
    const struct { size_t at; int64_t value; size_t bytes; const char *why; } cases[] = {
        {34 + 4 * 5, -5, 4, "m.idx gives sequence 5 a length of -5"},
        {34 + 4 * 9001, INT32_MAX, 4, "says that sequence 9001 ends at byte"},
        {34 + 4 * 7, 3, 4, "says that sequence 8 begins at byte 32, and the sequences before it end at 30"},
        {34 + 4 * (N - 1), 3, 4, "ends its last sequence at byte 39998, and the tokens hold 40000 bytes"},
        {34 + 4 * N + 8 * 4, 1000000000, 8, "says that sequence 4 begins at byte 1000000000, and the sequences before it end at 16"},
        {34 + 4 * N + 8 * 9000, 0, 8, "says that sequence 9000 begins at byte 0"},
        {34 + 4 * N + 8 * 3, -8, 8, "says that sequence 3 begins at byte -8"},
        {BYTES - 8, N + 1, 8, "has a border of documents at sequence 10001"},
        {BYTES - 16, -1, 8, "has a border of documents at sequence -1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t kept[8];
        memcpy(kept, index + cases[i].at, 8);
        memcpy(index + cases[i].at, &cases[i].value, cases[i].bytes);
        write_file("m.idx", index, BYTES);
        memcpy(index + cases[i].at, kept, 8);
        assert_ends(EXIT_DATA, open_shard, "m.bin", cases[i].why, "copy or make the .bin and the .idx again", NULL);
    }
}

/* Opens a data file while its first read fails with EIO. */
static void open_on_a_bad_disk(const void *path) {
    failpoints_reset();
    setenv("TRAIN_GPT_FAIL", "io.pread@1:EIO", 1);
    open_shard(path);
}

static void open_in_little_memory(const void *path) {
    rlim_t pages = 0;
    FILE  *statm = fopen("/proc/self/statm", "r");
    if (!statm || fscanf(statm, "%lu", &pages) != 1) _exit(1);
    /* leaves 1 MB of address space for a file of 4 MB */
    setrlimit(RLIMIT_AS, &(struct rlimit){pages * (rlim_t)sysconf(_SC_PAGESIZE) + (1 << 20), RLIM_INFINITY});
    open_shard(path);
}

static void files_that_cannot_be_read_are_named(void **state) {
    (void)state;
    write_counting_shard("good.bin", 2000000, 0);
    assert_ends(EXIT_IO, open_on_a_bad_disk, "good.bin", "cannot read good.bin: Input/output error", NULL);
    assert_ends(EXIT_IO, open_in_little_memory, "good.bin", "cannot map good.bin into memory: Cannot allocate memory", NULL);
}

/* The program handles bus errors in its data files. A bus error elsewhere must end the process as if there were no
 * handler. */
static void other_bus_errors_are_not_ours(void **state) {
    (void)state;
    int   status;
    pid_t child = fork();
    write_counting_shard("some.bin", 100, 0);
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        Shard s = shard_open("some.bin", 0);
        raise(SIGBUS);
        raise(SIGBUS); /* the handler has removed itself at the first signal, so this one ends the process */
        shard_close(&s);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

static void foreign_tokens_are_found_wherever_they_are(void **state) {
    (void)state;
    /* Number of tokens. The search for tokens outside the vocabulary goes block by block; these are two blocks and a
     * part of a third. */
    enum { N = 2500000 };
    int64_t at[] = {0, 1, 31, 1048575, 1048576, 1048577, N / 2, 2097151, 2097152, N - 2, N - 1};
    uint8_t *file = malloc(1024 + 2 * N);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        put_header(file, 20240520, 1, N);
        for (int64_t k = 0; k < N; k++) memcpy(file + 1024 + 2 * k, &(uint16_t){(uint16_t)(k % 256)}, 2);
        memcpy(file + 1024 + 2 * at[i], &(uint16_t){i % 2 ? 256 : 65535}, 2);
        /* adds a second token outside the vocabulary at the end; the first one must still be found */
        memcpy(file + 1024 + 2 * (N - 1), &(uint16_t){300}, 2);
        write_file("f", file, 1024 + 2 * N);
        Shard s = shard_open("f", 0);
        assert_int_equal(shard_find_foreign(&s, 256), at[i]);
        assert_int_equal(shard_find_foreign(&s, 65536), -1);
        assert_int_equal(shard_find_foreign(&s, 1ll << 40), -1);
        shard_close(&s);
    }
    free(file);
}

/* Sparse files of more than 4 GiB, because no offset may be a 32-bit number. */
static void offsets_beyond_four_gib_are_right(void **state) {
    (void)state;
    const int64_t n = 1250000000;
    uint8_t       start[1024];
    put_header(start, 20240801, 7, (int32_t)n);
    write_file("big", start, sizeof start);
    int fd = io_open("big", IO_SHARED);
    assert_int_equal(io_truncate(fd, 1024 + 4 * (uint64_t)n), 0);
    const uint32_t end[2] = {70001, 70002};
    assert_int_equal(io_pwrite(fd, end, sizeof end, 1024 + 4 * (uint64_t)(n - 2)), 0);
    io_close(fd);
    struct stat st;
    assert_true(stat("big", &st) == 0 && st.st_blocks * 512 < 1 << 20);
    Shard   s = shard_open("big", 0);
    int32_t out[3];
    shard_read(&s, n - 3, 3, out);
    assert_true(out[0] == 0 && out[1] == 70001 && out[2] == 70002 && shard_token(&s, n - 1) == 70002);
    shard_close(&s);

    assert_int_equal(truncate("big", (5ll << 30) + 2), 0);
    fd = io_open("big", IO_SHARED);
    assert_int_equal(io_pwrite(fd, "\0\0\0\0", 4, 0), 0); /* without the magic number the file has no header */
    assert_int_equal(io_pwrite(fd, "\x39\x30", 2, 5ull << 30), 0);
    io_close(fd);
    s = shard_open("big", 0);
    assert_int_equal(s.header.tokens, (5ll << 29) + 1);
    assert_int_equal(shard_token(&s, 5ll << 29), 12345);
    shard_close(&s);
}

static void zeros_at_the_end_are_counted(void **state) {
    (void)state;
    enum { N = 200000 };
    static const int64_t zeros[] = {0, 1, 65535, 65536, 65537, 131073, N - 1, N};
    static uint16_t      tokens[N];
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros; i++) {
        /* token 256 has a zero as its low byte */
        for (int64_t k = 0; k < N; k++) tokens[k] = (uint16_t)(k < N - zeros[i] ? 256 + k % 3 : 0);
        write_file("z", tokens, sizeof tokens);
        Shard s = shard_open("z", 0);
        assert_int_equal(shard_zero_tail(&s), zeros[i]);
        shard_close(&s);
    }
}

static void put_all(ShardWriter *w, int64_t count, int32_t modulo) {
    for (int64_t i = 0; i < count;) {
        int32_t part[777];
        int64_t n = count - i < 777 ? count - i : 777;
        for (int64_t k = 0; k < n; k++) part[k] = (int32_t)((i + k) % modulo);
        assert_int_equal(shard_writer_put(w, part, n), 0);
        i += n;
    }
}

static void what_is_written_is_read_back(void **state) {
    (void)state;
    static const struct { int64_t vocab, count; int token_bytes; } cases[] = {
        {256, 1, 2}, {65536, 600000, 2}, {65537, 600000, 4}, {50257, 524288 - 512, 2}, {128256, 261888, 4}, {128256, 261889, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ShardWriter *w;
        assert_int_equal(shard_writer_create(&w, "w.bin", cases[i].vocab), 0);
        put_all(w, cases[i].count, (int32_t)cases[i].vocab);
        assert_int_equal(io_file_bytes("w.bin"), -ENOENT); /* the file gets its name only when it is complete */
        assert_int_equal(shard_writer_finish(w), 0);
        assert_int_equal(io_file_bytes("w.bin.tmp"), -ENOENT);
        assert_int_equal(io_file_bytes("w.bin"), 1024 + cases[i].token_bytes * cases[i].count);
        Shard s = shard_open("w.bin", 0);
        assert_int_equal(s.header.tokens, cases[i].count);
        assert_int_equal(s.header.token_bytes, cases[i].token_bytes);
        for (int64_t k = 0; k < cases[i].count; k++) assert_int_equal(shard_token(&s, k), k % cases[i].vocab);
        shard_close(&s);
        assert_int_equal(io_unlink("w.bin"), 0);
    }
    ShardWriter *w;
    assert_int_equal(shard_writer_create(&w, "missing/w.bin", 256), -ENOENT);
    assert_int_equal(shard_writer_create(&w, "dropped.bin", 256), 0);
    put_all(w, 100, 256);
    assert_int_equal(shard_writer_put(w, NULL, INT32_MAX), -EFBIG);
    shard_writer_destroy(w);
    assert_int_equal(io_file_bytes("dropped.bin"), -ENOENT);
    assert_int_equal(io_file_bytes("dropped.bin.tmp"), -ENOENT);
}

/* One call of a writer fails at a time, mostly because the disk is full. The caller gets the error, and no file is
 * left. */
static void a_full_disk_leaves_nothing(void **state) {
    (void)state;
    static const struct { const char *spec; int due_put, due_finish; } cases[] = {
        {"io.write@1:ENOSPC", -ENOSPC, 0}, {"io.write@2:ENOSPC", 0, -ENOSPC}, {"io.pwrite@1:ENOSPC", 0, -ENOSPC},
        {"io.fsync@1:EIO", 0, -EIO},       {"io.close@1:EDQUOT", 0, -EDQUOT}, {"io.rename@1:EACCES", 0, -EACCES}};
    int32_t *tokens = calloc(600000, sizeof *tokens);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ShardWriter *w;
        failpoints_reset();
        setenv("TRAIN_GPT_FAIL", cases[i].spec, 1);
        assert_int_equal(shard_writer_create(&w, "full.bin", 256), 0);
        assert_int_equal(shard_writer_put(w, tokens, 600000), cases[i].due_put);
        if (cases[i].due_put) shard_writer_destroy(w);
        else                  assert_int_equal(shard_writer_finish(w), cases[i].due_finish);
        unsetenv("TRAIN_GPT_FAIL");
        assert_int_equal(io_file_bytes("full.bin"), -ENOENT);
        assert_int_equal(io_file_bytes("full.bin.tmp"), -ENOENT);
    }
    free(tokens);
    shard_writer_destroy(NULL); /* NULL is allowed, as for free() */
}

/* Searches with four threads in a child process. The parent must start no OpenMP threads, because a forked child cannot
 * start them again. */
static void search_on_four_threads(const void *path) {
    omp_set_num_threads(4);
    Shard   s = shard_open(path, 0);
    int64_t at = shard_find_foreign(&s, 256);
    shard_close(&s);
    /* (fail) in parentheses is the program's function; cmocka has a macro of that name */
    (fail)(EXIT_DATA, "found %lld", (long long)at);
}

static void threads_find_the_first(void **state) {
    (void)state;
    write_counting_shard("f", 5000000, 0);
    assert_ends(EXIT_DATA, search_on_four_threads, "f", "found 256", NULL);
}

int main(void) {
    omp_set_num_threads(1);
    const struct CMUnitTest tests[] = {
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, enter_folder, leave_folder)
        cmocka_unit_test(known_headers_are_read),
        cmocka_unit_test(truncation_is_seen_at_every_byte),
        cmocka_unit_test(foreign_headers_are_refused_by_name),
        cmocka_unit_test(text_is_told_from_tokens),
        cmocka_unit_test(wide_text_is_told_from_tokens),
        cmocka_unit_test(other_widths_are_refused_with_their_size),
        cmocka_unit_test(other_types_are_refused_by_name), cmocka_unit_test(floats_with_fractions_are_refused),
        cmocka_unit_test(no_uint16_tokens_are_refused),
        cmocka_unit_test(random_headers_never_point_outside),
        IN_FOLDER(tokens_are_read),
        IN_FOLDER(bad_files_end_the_program_with_a_sentence),
        IN_FOLDER(megatron_files_are_read_with_their_index),
        IN_FOLDER(a_damaged_index_is_refused),
        IN_FOLDER(files_that_cannot_be_read_are_named),
        IN_FOLDER(other_bus_errors_are_not_ours),
        IN_FOLDER(foreign_tokens_are_found_wherever_they_are),
        IN_FOLDER(offsets_beyond_four_gib_are_right),
        IN_FOLDER(zeros_at_the_end_are_counted),
        IN_FOLDER(what_is_written_is_read_back),
        IN_FOLDER(a_full_disk_leaves_nothing),
        IN_FOLDER(threads_find_the_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
