/* test_bpe.c - byte-pair encoding with files made here: ids, round trips, texts in parts, and faults of files. */
#include "data/tokenizer.h"

#include "core/error.h"
#include "core/io.h"
#include "core/rng.h"
#include "test/data/files.h"

/* Writes the character by which the vocabulary files of openai/gpt-2 represent a byte. */
static void put_byte(FILE *f, int byte) {
    unsigned c = 256;
    for (int b = 0; b < byte; b++) c += !((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174);
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174) c = (unsigned)byte;
    if (c == '"' || c == '\\') fprintf(f, "\\%c", c);
    else if (c < 0x80) fputc((int)c, f);
    else fprintf(f, "%c%c", 0xC0 | c >> 6, 0x80 | (c & 0x3F));
}

/* The last entries of a vocabulary whose first ids, 0 to 255, are the bytes: he, ll, hell, " t" and the end of text. */
static const char TAIL[] = ",\"he\":256,\"ll\":257,\"hell\":258,\"\xc4\xa0t\":259";
static const char MERGES[] = "[\"h e\",[\"l\",\"l\"],\"he ll\",\"\xc4\xa0 t\"]";
static void       write_tokenizer(const char *path, int bytes, const char *tail, const char *merges, const char *around,
                                  const char *parts) {
          FILE *f = fopen(path, "w");
          fprintf(f,
                  "{\"added_tokens\":[{\"id\":260,\"content\":\"<|endoftext|>\",\"special\":true}],%s\"model\":{%s\"vocab\":{",
                  parts, around);
          for (int b = 0; b < bytes; b++) {
        fputs(b ? ",\"" : "\"", f);
        put_byte(f, b);
        fprintf(f, "\":%d", b);
    }
    fprintf(f, "%s},\"merges\":%s}}", tail, merges);
    fclose(f);
}
static const char PLAIN[] = "\"type\":\"BPE\",", LEVEL[] = "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},";
static const char path[] = "./tokenizer.json";
static Tokenizer tokenizer_of(const char *around, const char *parts) {
    write_tokenizer(path, 256, TAIL, MERGES, around, parts);
    return tokenizer_create(".", 261);
}

static void assert_ids(const Tokenizer *t, const char *text, const int32_t *expected, int64_t count) {
    int32_t ids[64];
    assert_int_equal(tokenizer_encode(t, text, strlen(text), ids), count);
    for (int64_t i = 0; i < count; i++) assert_int_equal(ids[i], expected[i]);
}

static void merges_follow_their_order(void **state) {
    (void)state;
    Tokenizer t = tokenizer_of(PLAIN, LEVEL);
    assert_ids(&t, "hello", (int32_t[]){258, 'o'}, 2);
    assert_ids(&t, "helm", (int32_t[]){256, 'l', 'm'}, 3);
    assert_ids(&t, "lll", (int32_t[]){257, 'l'}, 2); /* "lll" is ll and l, because merges are applied from the left */
    assert_ids(&t, "hell to", (int32_t[]){258, 259, 'o'}, 3);
    assert_ids(&t, "he<|endoftext|>ll", (int32_t[]){256, 260, 257}, 3);
    assert_ids(&t, "\xff\xfe", (int32_t[]){0xff, 0xfe}, 2);
    assert_ids(&t, "", NULL, 0);
    assert_int_equal(tokenizer_start(&t), 260);
    tokenizer_destroy(&t);
}

/* Hugging Face tokenizers and GPT-2's encoder.py read the merges into a table in which a later entry replaces an earlier
 * one of the same pair. */
static void a_pair_has_its_last_rank(void **state) {
    (void)state;
    write_tokenizer(path, 256, ",\"he\":256,\"el\":257,\"ab\":258,\"cd\":259", "[\"h e\",\"e l\",\"h e\"]", PLAIN, LEVEL);
    Tokenizer t = tokenizer_create(path, 261);
    assert_ids(&t, "hel", (int32_t[]){'h', 257}, 2);
    assert_ids(&t, "he", (int32_t[]){256}, 1);
    tokenizer_destroy(&t);
}

/* add_tokens() of Hugging Face gives a word of the vocabulary the id that it has, and lists it as an added token. Merges
 * go on to make it and to join it. */
static void an_added_token_may_be_made_by_merges(void **state) {
    (void)state;
    static const char ADDED[] = "\"added_tokens\":[{\"id\":257,\"content\":\"ll\"},{\"id\":258,\"content\":\"hell\"},"
                                "{\"id\":33,\"content\":\"!\"},{\"id\":260,\"content\":\"<|endoftext|>\"}],";
    write_tokenizer(path, 256, TAIL, MERGES, PLAIN, LEVEL);
    char   *text;
    int64_t bytes = io_read_file(path, 1 << 20, &text);
    FILE   *f = fopen(path, "w");
    fprintf(f, "{%s%.*s", ADDED, (int)bytes, strchr(text, ']') + 2);
    fclose(f), free(text);
    Tokenizer t = tokenizer_create(path, 261);
    assert_ids(&t, "hello he!", (int32_t[]){258, 'o', ' ', 256, '!'}, 5);
    assert_ids(&t, "ball t", (int32_t[]){'b', 'a', 257, 259}, 4);
    assert_ids(&t, "<|endoftext|>", (int32_t[]){260}, 1);
    tokenizer_destroy(&t);
}

static void normal_form_c_comes_first(void **state) {
    (void)state;
    Tokenizer t =
        tokenizer_of(PLAIN,
                     "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},");
    assert_ids(&t, "e\xcc\x81", (int32_t[]){0xc3, 0xa9}, 2);
    assert_ids(&t, "\xff" "e\xcc\x81", (int32_t[]){0xff, 0xc3, 0xa9}, 3);
    tokenizer_destroy(&t);
}

/* The ids that the encoder has passed to take() since count was set to 0. */
static struct { int32_t ids[1 << 22]; int64_t count; } got;
static void take(void *with, const int32_t *ids, int64_t count) {
    (void)with;
    memcpy(got.ids + got.count, ids, sizeof *ids * (size_t)count);
    got.count += count;
}
/* Any bytes decode to themselves. A text gives the same ids as a whole and in parts of any size. */
static void parts_are_the_whole(void **state) {
    (void)state;
    static char    text[1 << 15];
    static int32_t whole[sizeof text];
    Tokenizer      t = tokenizer_of(PLAIN, LEVEL);
    for (int round = 0; round < 20; round++) {
        uint32_t r[4];
        for (size_t i = 0; i < sizeof text; i++) {
            rng_words(r, (uint64_t)round, RNG_TEST, i);
            text[i] = round < 10 ? "hello the lot <|endoftext|>\n\xc3\xa9"[r[0] % 30] : (char)r[0];
        }
        int64_t count = tokenizer_encode(&t, text, sizeof text, whole);
        Encoder e = {.tokenizer = &t, .sink = take};
        got.count = 0;
        for (size_t at = 0, n; at < sizeof text; at += n) {
            rng_words(r, 100, RNG_TEST, at);
            n = 1 + r[0] % 5000 < sizeof text - at ? 1 + r[0] % 5000 : sizeof text - at;
            encoder_put(&e, text + at, n);
        }
        encoder_end(&e);
        encoder_free(&e);
        assert_int_equal(got.count, count);
        assert_memory_equal(got.ids, whole, sizeof *whole * (size_t)count);
        char  *back = NULL;
        size_t bytes = 0;
        FILE  *out = open_memstream(&back, &bytes);
        for (int64_t i = 0; i < count; i++) tokenizer_decode(&t, whole[i], out);
        fclose(out);
        assert_int_equal(bytes, sizeof text);
        assert_memory_equal(back, text, bytes);
        free(back);
    }
    tokenizer_destroy(&t);
}

/* The encoder cuts texts longer than a chunk between words, or between characters if there are none. The ids are those
 * of the whole text. */
static void long_texts_are_cut(void **state) {
    (void)state;
    enum { BYTES = 3 * ENCODER_CHUNK };
    Tokenizer t = tokenizer_of(PLAIN, LEVEL);
    char     *text = malloc(BYTES);
    int32_t  *whole = malloc(sizeof *whole * BYTES);
    for (int i = 0; i < BYTES; i++) text[i] = "hell the toll, the helm\n"[i % 24];
    int64_t count = tokenizer_encode(&t, text, BYTES, whole);
    Encoder e = {.tokenizer = &t, .sink = take};
    got.count = 0;
    for (int i = 0; i < BYTES; i += 4096) encoder_put(&e, text + i, 4096);
    assert_true(e.cutter.room <= 2 * ENCODER_CHUNK && got.count > 0);
    encoder_end(&e);
    assert_int_equal(got.count, count);
    assert_memory_equal(got.ids, whole, sizeof *whole * (size_t)count);
    encoder_free(&e);
    free(text), free(whole);
    tokenizer_destroy(&t);
}

/* An added token with "normalized": true is found only after the text is normalized, and after the other added
 * tokens. */
static void added_tokens_have_an_order(void **state) {
    (void)state;
    static const char ADDED[] =
        "\"added_tokens\":[{\"id\":260,\"content\":\"hel\",\"normalized\":true},{\"id\":261,\"content\":\"lt\",\"normalized\":false},"
        "{\"id\":262,\"content\":\"e\xcc\x81x\",\"normalized\":true},{\"id\":263,\"content\":\"a b\",\"normalized\":false}],";
    for (int is_nfc = 0; is_nfc < 2; is_nfc++) {
        char parts[200], around[1000];
        snprintf(parts, sizeof parts, "%s%s", is_nfc ? "\"normalizer\":{\"type\":\"NFC\"}," : "", LEVEL);
        snprintf(around, sizeof around, "%s", PLAIN);
        write_tokenizer(path, 256, TAIL, MERGES, around, parts);
        char   *text;
        /* moves the list of added tokens to the beginning of the file */
        int64_t bytes = io_read_file(path, 1 << 20, &text);
        FILE   *f = fopen(path, "w");
        fprintf(f, "{%s%.*s", ADDED, (int)bytes, strchr(text, ']') + 2);
        fclose(f), free(text);
        Tokenizer t = tokenizer_create(path, 264);
        assert_ids(&t, "helt", (int32_t[]){256, 261}, 2);
        assert_ids(&t, "hel t", (int32_t[]){260, 259}, 2);
        assert_ids(&t, "xa b", (int32_t[]){'x', 263}, 2);
        if (is_nfc) assert_ids(&t, "\xc3\xa9x", (int32_t[]){262}, 1);
        else assert_ids(&t, "\xc3\xa9x", (int32_t[]){0xc3, 0xa9, 'x'}, 3);
        assert_ids(&t, "e\xcc\x81x", (int32_t[]){262}, 1);
        tokenizer_destroy(&t);
    }
}

#define SPLIT_BY(pattern, behavior, invert)                                                                 \
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{" pattern \
    "},\"behavior\":\"" behavior "\",\"invert\":" invert "},{\"type\":\"ByteLevel\",\"use_regex\":false}]},"

/* The encoder gathers a text that arrives in parts into chunks. Parts and chunks may end anywhere, also inside of an
 * added token, a combining mark or a word that is encoded as one. The ids must be those of the whole text. */
static void cuts_change_no_id(void **state) {
    (void)state;
    static const char *const PARTS[] =
        {LEVEL,
         "\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},",
         "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFKD\"},{\"type\":\"NFC\"}]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},",
         SPLIT_BY("\"Regex\":\"[^\\\\n]+|\\\\n\"", "Isolated", "false"),
         SPLIT_BY("\"Regex\":\"\\\\w+\"", "MergedWithNext", "true"),
         SPLIT_BY("\"String\":\"l\"", "Removed", "false"),
         SPLIT_BY("\"String\":\"hel\"", "MergedWithPrevious", "false"),
         SPLIT_BY("\"Regex\":\"\\\\d{1,3}(?=(\\\\d{3})*\\\\b)\"", "Isolated", "false")};
    static const char *const WORDS[] = {"hell",
                                        "he",
                                        " t",
                                        "l",
                                        "<|endoftext|>",
                                        "<|end",
                                        "e\xcc\x81",
                                        "\xcc\x81",
                                        "\xef\xac\x81",
                                        "\xe1\x84\x80\xe1\x85\xa1",
                                        "\xff",
                                        "\xe2\x82",
                                        " ",
                                        "\n",
                                        "  ",
                                        "1234",
                                        "a",
                                        "\xe4\xbd\xa0",
                                        "oftext|>"};
    static char    text[1 << 14];
    static int32_t whole[11 * sizeof text];
    for (size_t k = 0, draws = 0; k < sizeof PARTS / sizeof *PARTS; k++) {
        Tokenizer t = tokenizer_of(PLAIN, PARTS[k]);
        for (int round = 0; round < 60; round++) {
            uint32_t r[4];
            size_t   bytes = 0;
            rng_words(r, 5, RNG_TEST, draws++);
            for (uint32_t words = r[0] % 200; words > 0; words--) {
                rng_words(r, 5, RNG_TEST, draws++);
                bytes = (size_t)(stpcpy(text + bytes, WORDS[r[0] % (sizeof WORDS / sizeof *WORDS)]) - text);
            }
            int64_t count = tokenizer_encode(&t, text, bytes, whole);
            rng_words(r, 5, RNG_TEST, draws++);
            Encoder e = {.tokenizer = &t, .sink = take, .cutter.chunk = 1 + r[1] % 40};
            got.count = 0;
            for (size_t at = 0, n; at < bytes; at += n) {
                rng_words(r, 5, RNG_TEST, draws++);
                n = 1 + r[0] % 50 < bytes - at ? 1 + r[0] % 50 : bytes - at;
                encoder_put(&e, text + at, n);
            }
            encoder_end(&e);
            encoder_free(&e);
            if (got.count != count || memcmp(got.ids, whole, sizeof *whole * (size_t)count) != 0)
                fail_msg("tokenizer %zu: \"%.*s\"", k, (int)bytes, text);
        }
        tokenizer_destroy(&t);
    }
}

/* Tests which tokens a tokenizer file puts before each text, and which parts of the file are reported as not used. */
static void begin_tokens_are_read(void **state) {
    (void)state;
    static const struct { const char *post; int32_t begin[2], begins; const char *note;
    } cases[] =
        {{"\"post_processor\":null,", {0}, 0, NULL},
         {"\"post_processor\":{\"type\":\"ByteLevel\",\"trim_offsets\":true},", {0}, 0, NULL},
         {"\"post_processor\":{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":["
          "{\"SpecialToken\":{\"id\":\"B\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],"
          "\"special_tokens\":{\"B\":{\"id\":\"B\",\"ids\":[260,7],\"tokens\":[\"x\",\"y\"]}}}]},",
          {260, 7},
          2,
          NULL},
         {"\"post_processor\":{\"type\":\"RobertaProcessing\",\"sep\":[\"</s>\",9],\"cls\":[\"<s>\",260],\"trim_offsets\":true,\"add_prefix_space\":false},",
          {260},
          1,
          "puts a token after each text"},
         {"\"truncation\":{\"max_length\":3},", {0}, 0, "truncation is not used"},
         {"\"decoder\":{\"type\":\"Fuse\"},", {0}, 0, "the decoder, Fuse, is not used"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char parts[1000];
        snprintf(parts, sizeof parts, "%s%s", cases[i].post, LEVEL);
        Tokenizer t = tokenizer_of(PLAIN, parts);
        int32_t   ids[BPE_MOST_BEGIN];
        assert_int_equal(tokenizer_begin(&t, ids), cases[i].begins);
        for (int k = 0; k < cases[i].begins; k++) assert_int_equal(ids[k], cases[i].begin[k]);
        if (cases[i].begins) assert_string_equal(t.file.start_from, "./tokenizer.json: post_processor");
        if (!cases[i].note) assert_null(t.file.notes);
        else assert_non_null(strstr(t.file.notes, cases[i].note));
        tokenizer_destroy(&t);
    }
}

static void files_beside_are_read(void **state) {
    (void)state;
    static const struct { const char *file, *content; int32_t start; const char *note;
    } cases[] = {{"tokenizer_config.json",
                  "{\"bos_token\":\"<|start|>\",\"model_max_length\":8,\"chat_template\":\"x\"}", 261, NULL},
                 {"tokenizer_config.json", "{\"bos_token\":{\"content\":\"<|start|>\"},\"add_bos_token\":false}", 261,
                  NULL},
                 {"special_tokens_map.json", "{\"bos_token\":\"<|start|>\"}", 261, NULL},
                 {"tokenizer_config.json", "{\"bos_token\":null,\"model_max_length\":1000000000000000019884624838656}", 260, NULL},
                 {"tokenizer_config.json", "{\"bos_token\":\"none\"}", 260, "bos_token, \"none\", is not an added token"},
                 {"tokenizer_config.json", "{\"add_bos_token\":true}", 260, "add_bos_token is not used"},
                 {"tokenizer_config.json", "{\"add_bos_token\":true,\"bos_token\":\"<|start|>\"}", 261, NULL},
                 {"tokenizer_config.json", "{\"add_prefix_space\":true,\"add_eos_token\":false}", 260,
                  "add_prefix_space is not used"},
                 {"tokenizer_config.json", "{\"sampling_alpha\":0.1}", 260, "not known and not used: sampling_alpha"},
                 {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"261\":{\"content\":\"<|start|>\"}}}", 260, NULL},
                 {"tokenizer_config.json", "{\"added_tokens_decoder\":{\"300\":{\"content\":\"<|more|>\"}}}", 260,
                  "\"<|more|>\" with the id 300"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_tokenizer(path, 256, TAIL, MERGES, PLAIN, LEVEL);
        char   *text;
        int64_t bytes = io_read_file(path, 1 << 20, &text);
        FILE   *f = fopen(path, "w");
        fprintf(f,
                "{\"added_tokens\":[{\"id\":260,\"content\":\"<|endoftext|>\"},{\"id\":261,\"content\":\"<|start|>\"}],%.*s",
                (int)bytes, strchr(text, ']') + 2);
        fclose(f), free(text);
        write_file(cases[i].file, cases[i].content, strlen(cases[i].content));
        Tokenizer t = tokenizer_create(path, 262);
        assert_int_equal(tokenizer_start(&t), cases[i].start);
        int32_t begin[BPE_MOST_BEGIN] = {cases[i].start};
        assert_int_equal(tokenizer_begin(&t, begin), strstr(cases[i].content, "add_bos_token\":true,") != NULL);
        assert_int_equal(begin[0], cases[i].start);
        if (!cases[i].note) assert_null(t.file.notes);
        else assert_non_null(strstr(t.file.notes, cases[i].note));
        tokenizer_destroy(&t);
        io_unlink(cases[i].file);
    }
}

/* A vocab.json with merges.txt holds neither added tokens nor a split pattern. The files beside them say what is lost. */
static void files_beside_a_pair_are_read(void **state) {
    (void)state;
    static const struct { const char *file, *content, *note; } CASES[] = {
        {"added_tokens.json", "{\"<|more|>\": 256}", "added_tokens.json: the added token \"<|more|>\" is not used"},
        {"added_tokens.json", "{}", NULL},
        {"tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\"}", "tokenizer_class is \"Qwen2Tokenizer\""},
        {"tokenizer_config.json", "{\"tokenizer_class\": \"GPT2TokenizerFast\"}", NULL},
        {"tokenizer_config.json", "{\"tokenizer_class\": null}", NULL}};
    FILE *f = fopen("vocab.json", "w");
    for (int b = 0; b < 256; b++) fputs(b ? ",\"" : "{\"", f), put_byte(f, b), fprintf(f, "\":%d", b);
    fputs("}", f), fclose(f);
    write_file("merges.txt", "#version: 0.2\n", 14);
    io_unlink(path);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        write_file(CASES[i].file, CASES[i].content, strlen(CASES[i].content));
        BpeFile read;
        char    fault[BPE_FAULT_CHARS];
        assert_int_equal(bpe_file_read(".", &read, fault), 0);
        if (!CASES[i].note) assert_null(read.notes);
        else assert_non_null(strstr(read.notes, CASES[i].note));
        bpe_file_free(&read);
        io_unlink(CASES[i].file);
    }
    io_unlink("vocab.json"), io_unlink("merges.txt");
}

static void create_from(const void *tokenizer) { tokenizer_create((const char *)tokenizer, 261); }
static void create_small(const void *tokenizer) { tokenizer_create((const char *)tokenizer, 256); }

static void faults_are_named(void **state) {
    (void)state;
    static const struct { int bytes; const char *tail, *merges, *around, *parts, *says;
    } cases[] =
        {{255, TAIL, MERGES, PLAIN, LEVEL, "no token is the byte 0xff alone"},
         {256, TAIL, "[\"h x\"]", PLAIN, LEVEL, "merge 0, \"h x\", makes no token"},
         {256, TAIL, "[\"hx\"]", PLAIN, LEVEL, "merge 0 of the list"},
         {256, ",\"he\":17", "[]", PLAIN, LEVEL, "the token \"he\", or its id 17, is in the vocabulary twice"},
         {256, ",\"he\":-1", "[]", PLAIN, LEVEL, "\"he\" has no id"},
         {256, ",\"a b\":300", "[]", PLAIN, LEVEL, "\"a b\" is not of byte-level BPE"},
         {256, TAIL, MERGES, "\"type\":\"Unigram\",", LEVEL, "has a model of type Unigram, and only"},
         {256, TAIL, MERGES, "\"type\":\"BPE\",\"byte_fallback\":true,", LEVEL, "its part \"model\" (byte_fallback)"},
         {256, TAIL, MERGES, PLAIN, "", "its part \"pre_tokenizer\" (null)"},
         {256, TAIL, MERGES, PLAIN, "\"pre_tokenizer\":{\"type\":\"Metaspace\"},", "its part \"pre_tokenizer\" (Metaspace)"},
         {256, TAIL, MERGES, PLAIN, "\"normalizer\":{\"type\":\"Lowercase\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},",
          "its part \"normalizer\" (Lowercase)"},
         {256, TAIL, MERGES, PLAIN,
          "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"},"
          "{\"type\":\"ByteLevel\",\"use_regex\":false}]},",
          "pre_tokenizer: the pattern \"(\" is not a regular expression"},
         {256, TAIL, MERGES, PLAIN, "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true},",
          "ByteLevel with add_prefix_space"},
         {256, TAIL, MERGES, PLAIN, "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"trim\":1},",
          "ByteLevel has the member \"trim\", which is not supported"},
         {256, TAIL, MERGES, "\"type\":\"BPE\",\"alpha\":0.5,", LEVEL, "BPE has the member \"alpha\""},
         {256, TAIL, MERGES, PLAIN, "\"chunks\":3,\"pre_tokenizer\":{\"type\":\"ByteLevel\"},",
          "the file has the member \"chunks\""},
         {256, TAIL, MERGES, PLAIN, "\"version\":\"2.0\",\"pre_tokenizer\":{\"type\":\"ByteLevel\"},",
          "its version is \"2.0\""},
         {256, TAIL, MERGES, PLAIN,
          "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},{\"type\":\"Digits\"}]},",
          "with a part after ByteLevel"},
         {256, TAIL, MERGES, PLAIN,
          "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Halved\"},",
          "Split with an unknown behavior"},
         {256, TAIL, MERGES, PLAIN, "\"post_processor\":{\"type\":\"Mine\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},",
          "its post_processor, Mine, is not supported"},
         {256, TAIL, MERGES, PLAIN,
          "\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"x\",999],\"sep\":[\"x\",1]},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},",
          "adds the id 999, which no token has"},
         {256, ",\"he\":257", "[]", PLAIN, LEVEL,
          "the added token \"<|endoftext|>\" has the id 260, but Hugging Face tokenizers gives it 257, the next one"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_tokenizer(path, cases[i].bytes, cases[i].tail, cases[i].merges, cases[i].around, cases[i].parts);
        assert_ends(EXIT_DATA, create_from, path, cases[i].says, NULL);
    }
    Tokenizer t = tokenizer_of(PLAIN, LEVEL);
    tokenizer_destroy(&t);
    static const char *const BROKEN[][2] = {{"{\"bos_token\":\"a\",}", ":1:17: a comma before '}'"},
                                            {"{\"bos_token\":\"a\",\"bos_token\":\"b\"}", "duplicate key \"bos_token\""},
                                            {"\xef\xbb\xbf{}", "tail -c +4 ./tokenizer_config.json > "}};
    for (size_t i = 0; i < sizeof BROKEN / sizeof *BROKEN; i++) {
        write_file("tokenizer_config.json", BROKEN[i][0], strlen(BROKEN[i][0]));
        assert_ends(EXIT_DATA, create_from, path, "tokenizer_config.json", BROKEN[i][1], NULL);
    }
    io_unlink("tokenizer_config.json");
    assert_ends(EXIT_CONFIG, create_small, path, "has ids up to 260, and model.vocab_size is 256", NULL);
    io_unlink(path);
    assert_ends(EXIT_DATA, create_from, ".", "holds no tokenizer", NULL);
    assert_ends(EXIT_DATA, create_from, "none/tokenizer.json", "none/tokenizer.json is not there", NULL);
    static const char BERT[] = "[PAD]\n[UNK]\n[CLS]\nthe\n##s\n";
    write_file("vocab.txt", BERT, sizeof BERT - 1);
    assert_ends(EXIT_DATA, create_from, ".", "its vocab.txt is a tokenizer of WordPiece, as BERT has it", "./train_gpt train-tokenizer TEXT", NULL);
    assert_ends(EXIT_DATA, create_from, "vocab.txt", "is a vocabulary of WordPiece, as BERT has it", "./train_gpt train-tokenizer TEXT", NULL);
    io_unlink("vocab.txt");
    write_file("mine.tiktoken", "", 0);
    assert_ends(EXIT_DATA, create_from, "mine.tiktoken", "\"mine\" names none", NULL);
}

/* Files that are made to use up memory, time or the stack, or that are no tokenizer. Each must be refused at once, with
 * a message. */
static void hostile_files_are_refused(void **state) {
    (void)state;
    enum { MANY = 1 << 20 };
    static const struct { BpeKind kind; const char *begin, *again, *end, *says; } CASES[] = {
        {BPE_TOKENIZER_JSON, "{\"model\":", "[", "", "nested"},
        {BPE_TOKENIZER_JSON, "{\"model\":", "{\"a\":", "", "nested"},
        {BPE_TOKENIZER_JSON, "", "", "", "is empty: download it again"},
        {BPE_TOKENIZER_JSON, " \n<!DOCTYPE html>", "", "", "is a web page, not the JSON of a tokenizer"},
        {BPE_TOKENIZER_JSON, "{\"model\": {\"type\": \"BPE\",\n", "", "", ":2: the file ends in the middle of its JSON"},
        {BPE_TOKENIZER_JSON, "{\"a\": 0, \"b\": 1}", "", "", "has no object \"model\": it is no tokenizer.json"},
        {BPE_TOKENIZER_JSON, "[", "", "]", "is not the JSON object"},
        {BPE_TOKENIZER_JSON, "{\"model\":{}}", "", "\n}", ":2: column 1: expected nothing after the end of the value"},
        {BPE_TOKENIZER_JSON, "{\"model\":{},", "", "\n}\n", ":1: column 12: a comma before '}'"},
        {BPE_TOKENIZER_JSON, "{\"model\":{\n\"a", "", "", ":2: the file ends in the middle of its JSON"},
        {BPE_TOKENIZER_JSON, "{\"model\":{\"type\":\"", "x", "\"}}", "has a model of type xxxxxxxx"},
        {BPE_TOKENIZER_JSON,
         "{\"model\":{\"type\":\"BPE\"},\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\","
         "\"pattern\":{\"Regex\":\"",
         "\\\\s", "\"}}}", "Split with too long a pattern"},
        {BPE_TOKENIZER_JSON,
         "{\"model\":{\"type\":\"BPE\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
         "\"added_tokens\":[{\"content\":\"a\",\"id\":1048576}",
         "", "]}",
         "\"a\" has no id, which is a whole number from 0 to 1048575"},
        {BPE_TIKTOKEN, "", "YWFh", " 0\n", ":1: this line has a token of 3145728 bytes; the limit is 1024"},
        {BPE_TIKTOKEN, "YQ== 0 1\n", "", "", ":1: the line must hold a token in base64"},
        {BPE_TIKTOKEN, "YQ== 1048576\n", "", "", ":1: the line must hold a token in base64"},
        {BPE_TIKTOKEN, "YQ== 1048575\n", "", "", "no token is the byte 0x00 alone"}};
    char  fault[BPE_FAULT_CHARS];
    char *text = malloc(8 * MANY + 1000);
    BpeFile f;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        size_t each = strlen(CASES[i].again), at = (size_t)sprintf(text, "%s", CASES[i].begin);
        for (int k = 0; k < MANY && each > 0; k++, at += each) memcpy(text + at, CASES[i].again, each);
        at += (size_t)sprintf(text + at, "%s", CASES[i].end);
        BpeText file[2] = {{"gpt2.tiktoken", text, at, NULL}, {NULL, NULL, 0, NULL}};
        assert_int_equal(bpe_file_parse(CASES[i].kind, file, &f, fault), 0);
        if (!strstr(fault, CASES[i].says)) fail_msg("\"%s\" is missing in: %s", CASES[i].says, fault);
    }
    static const char *const RETURNS[] = {"#version: 0.2\ra b\rc d\r", "#version: 0.2\na b\rc d\n"};
    /* A carriage return within a line of merges.txt would hide the merges after it, so the file is refused. */
    for (size_t i = 0; i < sizeof RETURNS / sizeof *RETURNS; i++) {
        char vocabulary[8000] = "{", merges[60], c[4];
        for (int byte = 0; byte < 256; byte++) {
            bpe_character(byte, c);
            sprintf(vocabulary + strlen(vocabulary), "\"%s%s\":%d,", *c == '"' || *c == '\\' ? "\\" : "", c, byte);
        }
        strcat(vocabulary, "\"ab\":256,\"cd\":257}");
        strcpy(merges, RETURNS[i]);
        BpeText file[2] = {{"vocab.json", vocabulary, strlen(vocabulary), NULL}, {"merges.txt", merges, strlen(merges), NULL}};
        assert_int_equal(bpe_file_parse(BPE_VOCAB_AND_MERGES, file, &f, fault), 0);
        assert_non_null(strstr(fault, "merges.txt has a carriage return within a line"));
    }
    BpeText zero[2] = {{"vocab.json", memcpy(text, "{}\0", 4), 3, NULL}, {"merges.txt", text, 3, NULL}};
    for (BpeKind kind = BPE_TOKENIZER_JSON; kind <= BPE_TIKTOKEN; kind++) {
        assert_int_equal(bpe_file_parse(kind, zero, &f, fault), 0);
        assert_non_null(strstr(fault, "is not text"));
    }
    free(text);
    write_file(path, "{", 1);
    assert_int_equal(truncate(path, 1ll << 32), 0);
    assert_ends(EXIT_DATA, create_from, path, "is larger than 64 MiB", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(merges_follow_their_order, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(a_pair_has_its_last_rank, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(an_added_token_may_be_made_by_merges, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(normal_form_c_comes_first, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(parts_are_the_whole, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(long_texts_are_cut, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(added_tokens_have_an_order, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(cuts_change_no_id, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(begin_tokens_are_read, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(files_beside_are_read, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(files_beside_a_pair_are_read, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(faults_are_named, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(hostile_files_are_refused, enter_folder, leave_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
