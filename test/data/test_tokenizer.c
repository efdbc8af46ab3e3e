/* test_tokenizer.c - texts to ids and back, printing ids to a terminal, and one tokenizer in several kinds of files. */
#include "data/tokenizer.h"

#include "core/error.h"
#include "test/data/files.h"

static const char *decoded(const Tokenizer *t, const int32_t *ids, int64_t count) {
    static char text[4096];
    FILE       *out = fmemopen(text, sizeof text, "w");
    for (int64_t i = 0; i < count; i++) tokenizer_decode(t, ids[i], out);
    fputc(0, out);
    fclose(out);
    return text;
}

static void bytes_go_round(void **state) {
    (void)state;
    Tokenizer t = tokenizer_create("", 256);
    char      text[256];
    int32_t   ids[256];
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    assert_int_equal(tokenizer_encode(&t, text, 256, ids), 256);
    for (int i = 0; i < 256; i++) assert_int_equal(ids[i], i);
    assert_int_equal(tokenizer_encode(&t, "", 0, ids), 0);

    const char *line = "\tIn the beginning\n\xc3\xa9 \xf0\x9f\x98\x80~";
    int64_t     n = tokenizer_encode(&t, line, strlen(line), ids);
    assert_string_equal(decoded(&t, ids, n), line);
}

static void control_characters_are_spelled_out(void **state) {
    (void)state;
    Tokenizer t = tokenizer_create("", 256);
    static const struct { int32_t id; const char *text; } known[] = {
        {0, "\\x00"}, {27, "\\x1b"}, {13, "\\x0d"}, {127, "\\x7f"}, {31, "\\x1f"}, {256, "<256>"}, {-1, "<-1>"},
        {INT32_MIN, "<-2147483648>"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) assert_string_equal(decoded(&t, &known[i].id, 1), known[i].text);
}

static void other_vocabularies_know_ids_only(void **state) {
    (void)state;
    Tokenizer t = tokenizer_create("", 50257);
    int32_t   id = 65;
    assert_int_equal(t.kind, TOKENIZER_IDS);
    assert_int_equal(tokenizer_encode(&t, "a", 1, &id), -1);
    assert_string_equal(decoded(&t, &id, 1), "<65>");
}

/* --- one tokenizer in several kinds of files ---------------------------------------------------------------------- */

/* A tokenizer to make: its ids are the bytes, then "ab", "bc", "abc", "bcd", <|endoftext|>, "pq", "qr". swaps: "qr" is
 * merged before "pq". takes_whole: bpe_take_whole is called. lone: "xyz" is a token that no merges make. ends_as_text:
 * <|endoftext|> is an ordinary token, not a special one. has_no_end: there is no <|endoftext|>. */
typedef struct { int swaps, takes_whole, lone, ends_as_text, has_no_end; const char *pattern; } Made;

static Bpe *made(const Made *m) {
    Bpe *b = bpe_create();
    for (int i = 0; i < 256; i++) bpe_add(b, i, &(char){(char)i}, 1);
    bpe_add(b, 256, "ab", 2), bpe_add(b, 257, "bc", 2), bpe_add(b, 258, "abc", 3), bpe_add(b, 259, "bcd", 3);
    bpe_add(b, 261, "pq", 2), bpe_add(b, 262, "qr", 2);
    bpe_add_merge(b, 'a', 'b', 0, 256), bpe_add_merge(b, 'b', 'c', 1, 257);
    bpe_add_merge(b, 256, 'c', 2, 258), bpe_add_merge(b, 257, 'd', 3, 259);
    bpe_add_merge(b, 'p', 'q', m->swaps ? 5 : 4, 261), bpe_add_merge(b, 'q', 'r', m->swaps ? 4 : 5, 262);
    if (m->ends_as_text) bpe_add(b, 260, "<|endoftext|>", 13);
    else if (!m->has_no_end) bpe_add_special(b, 260, "<|endoftext|>", 13);
    if (m->lone) bpe_add(b, 263, "xyz", 3);
    if (m->takes_whole) bpe_take_whole(b);
    return b;
}

/* The pattern of GPT-2, except that each digit is a piece. */
static const char DIGITS_ONE_BY_ONE[] = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
#define GPT2 "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static uint64_t print_of(const char *path, const Made *m) {
    size_t bytes;
    if (m) {
        Bpe  *b = made(m);
        char *text = tokenizer_json_of(b, m->pattern, &bytes);
        write_file(path, text, bytes);
        free(text), bpe_destroy(b);
    }
    Tokenizer t = tokenizer_create(path, 50000);
    uint64_t  print = tokenizer_fingerprint(&t);
    tokenizer_destroy(&t);
    return print;
}

static void write_vocabulary_and_merges(void) {
    FILE *vocab = fopen("vocab.json", "w"), *merges = fopen("merges.txt", "w");
    fputc('{', vocab);
    for (int i = 0; i < 256; i++) {
        char c[4];
        bpe_character(i, c);
        fprintf(vocab, "\"%s%s\":%d,", *c == '"' || *c == '\\' ? "\\" : "", c, i);
    }
    fputs("\"ab\":256,\"bc\":257,\"abc\":258,\"bcd\":259,\"<|endoftext|>\":260,\"pq\":261,\"qr\":262}", vocab);
    fputs("#version: 0.2\na b\nb c\nab c\nbc d\np q\nq r\n", merges);
    fclose(vocab), fclose(merges);
}

/* Writes a file in OpenAI's .tiktoken format: tokens and their ranks, without merges. Every pair of tokens that joins
 * to a token is a merge, so "abc" comes from ab + c and from a + bc. */
static void write_ranks(const char *path) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 256; i++) fprintf(f, "%c%c== %d\n", DIGITS[i >> 2], DIGITS[(i & 3) << 4], i);
    fputs("YWI= 256\nYmM= 257\nYWJj 258\nYmNk 259\ncHE= 261\ncXI= 262\n", f);
    fclose(f);
}

static void a_tokenizer_is_the_same_in_any_files(void **state) {
    (void)state;
    /* matches the same pieces as GPT-2's pattern, but is written in another order */
    static const char LIKE_GPT2[] = "'(?:[sdmt]|ll|re|ve)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{N}\\p{L}]+|\\s+(?!\\S)|\\s+";
    const Made plain = {.pattern = GPT2};
    uint64_t   print = print_of("t.json", &plain);
    assert_true(print != 0);
    write_vocabulary_and_merges();
    assert_true(print_of("vocab.json", NULL) == print);
    assert_true(print_of("again.json", &(Made){.pattern = LIKE_GPT2}) == print);
    /* encoding whole tokens without merges (ignore_merges) changes nothing here, because merges can make each token */
    assert_true(print_of("whole.json", &(Made){.pattern = GPT2, .takes_whole = 1}) == print);

    static const Made others[] = {{.pattern = DIGITS_ONE_BY_ONE}, {.pattern = GPT2, .swaps = 1}, {.pattern = GPT2, .ends_as_text = 1}, {.pattern = GPT2, .lone = 1}};
    uint64_t seen[5] = {print};
    for (int i = 0; i < 4; i++) {
        seen[i + 1] = print_of("other.json", &others[i]);
        for (int k = 0; k <= i; k++) assert_true(seen[i + 1] != seen[k]);
    }
    assert_true(print_of("other.json", &(Made){.pattern = GPT2, .lone = 1, .takes_whole = 1}) != seen[4]);

    write_ranks("gpt2.tiktoken");
    Tokenizer ranks = tokenizer_create("gpt2.tiktoken", 50000);
    char     *text;
    size_t    bytes;
    assert_int_equal(ranks.kind, TOKENIZER_BPE);
    /* this file lists every pair of tokens that joins to a token as a merge */
    text = tokenizer_json_of(ranks.file.bpe, GPT2, &bytes);
    write_file("of_ranks.json", text, bytes);
    free(text);
    assert_true(print_of("of_ranks.json", NULL) == tokenizer_fingerprint(&ranks));
    /* a file without the merge a + bc gives the same ids for every text, so its fingerprint is equal */
    assert_true(print_of("without.json", &(Made){.pattern = GPT2, .has_no_end = 1}) == tokenizer_fingerprint(&ranks));
    tokenizer_destroy(&ranks);
}

/* A special token of 900 bytes, longer than any buffer for a line, is written whole. */
static void long_special_tokens_are_written_whole(void **state) {
    (void)state;
    char       token[1000] = "", *text;
    size_t     bytes;
    const Made plain = {.pattern = GPT2};
    Bpe       *b = made(&plain);
    while (strlen(token) < 900) strcat(token, "<|\xe2\x82\xac>");
    bpe_add_special(b, 263, token, strlen(token));
    text = tokenizer_json_of(b, GPT2, &bytes);
    assert_non_null(strstr(text, token));
    free(text), bpe_destroy(b);
}

static void what_differs_is_said(void **state) {
    (void)state;
    static const struct { Made made; const char *why; } CASES[] = {
        {{.pattern = GPT2}, NULL}, {{.pattern = GPT2, .swaps = 1}, "their merges differ"},
        {{.pattern = DIGITS_ONE_BY_ONE}, "they divide text at other places"}, {{.pattern = GPT2, .ends_as_text = 1}, "their added tokens differ"},
        {{.pattern = GPT2, .lone = 1}, "from id 263 on they differ"}};
    print_of("a.json", &CASES[0].made);
    Tokenizer a = tokenizer_create("a.json", 50000), bytes = tokenizer_create("", 256), ids = tokenizer_create("", 263);
    char      why[TOKENIZER_WHY_CHARS];
    for (int i = 0; i < 5; i++) {
        print_of("b.json", &CASES[i].made);
        Tokenizer b = tokenizer_create("b.json", 50000);
        assert_int_equal(tokenizer_difference(&a, &b, why), CASES[i].why != NULL);
        if (CASES[i].why && !strstr(why, CASES[i].why)) fail_msg("case %d: %s", i, why);
        tokenizer_destroy(&b);
    }
    assert_int_equal(tokenizer_difference(&a, &bytes, why), 1);
    assert_string_equal(why, "from id 256 on they differ");
    assert_int_equal(tokenizer_difference(&a, &ids, why), 0);
    tokenizer_destroy(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_go_round),
        cmocka_unit_test(control_characters_are_spelled_out),
        cmocka_unit_test(other_vocabularies_know_ids_only),
        cmocka_unit_test_setup_teardown(a_tokenizer_is_the_same_in_any_files, enter_folder, leave_folder),
        cmocka_unit_test(long_special_tokens_are_written_whole),
        cmocka_unit_test_setup_teardown(what_differs_is_said, enter_folder, leave_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
