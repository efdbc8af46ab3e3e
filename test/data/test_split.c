/* test_split.c - splitting texts into pieces by a pattern. Tests each behavior and construct, the two regex engines
 * against each other, texts in parts, bytes that are not UTF-8, and patterns that backtrack without end. */
#include "data/split.h"

#include "core/error.h"
#include "core/rng.h"
#include "data/tokenizer.h"
#include "test/data/files.h"

static Split *split_of(const char *pattern, SplitBehavior behavior, int is_inverted, SplitEngine engine) {
    char   fault[SPLIT_FAULT_CHARS];
    Split *s;
    if (!split_create(&s, &(SplitRule){(char *)pattern, behavior, is_inverted}, 1, "t.json", engine, fault))
        fail_msg("%s", fault);
    return s;
}

/* The pieces (parts of a text, such as words, to be encoded one by one) that the splitter has passed to put(), with a
 * bar after each. */
static struct { char text[1 << 16]; size_t bytes; } got;
static void put(void *with, const char *piece, size_t bytes) {
    (void)with;
    assert_true(got.bytes + bytes + 1 < sizeof got.text);
    memcpy(got.text + got.bytes, piece, bytes);
    got.bytes += bytes;
    got.text[got.bytes++] = '|';
    got.text[got.bytes] = 0;
}
static const char *pieces(Split *s, const char *text, size_t bytes) {
    got.bytes = 0, got.text[0] = 0;
    assert_int_equal(split_text(s, text, bytes, SPLIT_END, put, NULL), bytes);
    return got.text;
}

/* Each behavior of a Split pre-tokenizer gives the pieces that Hugging Face tokenizers 0.23 gives. */
static void behaviors_are_those_of_hugging_face(void **state) {
    (void)state;
    static const struct {
        const char   *pattern, *text;
        SplitBehavior behavior;
        int           is_inverted;
        const char   *pieces;
    } cases[] = {{"-", "a--b-c-", SPLIT_ISOLATED, 0, "a|-|-|b|-|c|-|"},
                 {"-", "a--b-c-", SPLIT_REMOVED, 0, "a|b|c|"},
                 {"-", "a--b-c-", SPLIT_REMOVED, 1, "-|-|-|-|"},
                 {"-", "-a--b-c-", SPLIT_WITH_PREVIOUS, 0, "-|a-|-|b-|c-|"},
                 {"-", "-a--b-c-", SPLIT_WITH_NEXT, 0, "-a|-|-b|-c|-|"},
                 {"-", "-a--b-c-", SPLIT_CONTIGUOUS, 0, "-|a|--|b|-|c|-|"},
                 {"-", "-ab-c", SPLIT_WITH_PREVIOUS, 1, "-ab|-c|"},
                 {"-", "-ab-c", SPLIT_WITH_NEXT, 1, "-|ab-|c|"},
                 {"(?=b)", "abab", SPLIT_ISOLATED, 0, "a|ba|b|"},
                 {"(?=b)", "abab", SPLIT_CONTIGUOUS, 0, "a|ba|b|"},
                 {"", "ab\xc3\xa9", SPLIT_ISOLATED, 0, "a|b|\xc3\xa9|"},
                 {"x*", "axxb", SPLIT_ISOLATED, 0, "a|xx|b|"},
                 {"$", "a\nb", SPLIT_ISOLATED, 0, "a|\nb|"},
                 {"\\A.|b", "ab", SPLIT_ISOLATED, 0, "a|b|"},
                 {"(?i)ss",
                  "a\xc3\x9f"
                  "b",
                  SPLIT_ISOLATED, 0, "a|\xc3\x9f|b|"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (SplitEngine engine = SPLIT_BY_CONSTRUCTS; engine <= SPLIT_BY_ONIGURUMA; engine++) {
            Split *s = split_of(cases[i].pattern, cases[i].behavior, cases[i].is_inverted, engine);
            if (strcmp(pieces(s, cases[i].text, strlen(cases[i].text)), cases[i].pieces) != 0)
                fail_msg("%s of \"%s\", behavior %d: %s, not %s", cases[i].pattern, cases[i].text, cases[i].behavior,
                         got.text, cases[i].pieces);
            split_destroy(s);
        }
}

/* Adjacent bytes that are not UTF-8 are one piece. The texts before and after them are split on their own. */
static void other_bytes_are_pieces(void **state) {
    (void)state;
    static const char *const texts[][2] = {{"a\xff\xfe" "b", "a|\xff\xfe|b|"},
                                           {"  \xff  b", "  |\xff| | b|"},
                                           {"\xe2\x82", "\xe2\x82|"},
                                           {"a\xed\xa0\x80", "a|\xed\xa0\x80|"},
                                           {"\xc3\xa9\xc3", "\xc3\xa9|\xc3|"},
                                           {"a\xf0\x9f\x98z", "a|\xf0\x9f\x98|z|"}};
    for (SplitEngine engine = SPLIT_BY_CONSTRUCTS; engine <= SPLIT_BY_ONIGURUMA; engine++) {
        Split *s = split_of("\\s+(?!\\S)|\\s*\\S+", SPLIT_ISOLATED, 0, engine),
              *removes = split_of("\\S|\\s", SPLIT_REMOVED, 0, engine);
        for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
            assert_string_equal(pieces(s, texts[i][0], strlen(texts[i][0])), texts[i][1]);
        assert_string_equal(pieces(removes, "a\xff" "b", 3), "\xff|");
        split_destroy(s), split_destroy(removes);
    }
}

static void constructs_choose_the_engine(void **state) {
    (void)state;
    static const char *const both[] = {"gpt2", "cl100k_base", "o200k_base", "qwen"};
    static const char *const common[] =
        {"[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}{1,2}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+",
         "[^\n]+|\n",
         "a{2,}|[-a]|[a-]|b??",
         "(?:ab|c)?d",
         "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]",
         "",
         "a|"};
    static const char *const other[] = {"[a-z&&[^b]]", "[\\p{L}&&\\p{Lu}]", "[ab[cd]]", "\\w",       "\\b",      "\\h",         "a{,2}",
                                        "a{1,3}+",     "$",        "^",         "(?m:.)",   "[[:alpha:]]", "(a)",
                                        "(?:a)+",      "(?i)a",    "(?i:a)",    "\\p{Han}", "\\p{^L}",     "\\v",
                                        "\\x41",       "a{2}?",    "(?<=a)b",   "(?>a)",    "[a-\\s]",     "a**",
                                        "\\pL",        "\\u0041",  "\\R",       "\\A",      "[\\w]",       "a{0}",
                                        "\\N",         "\\O",      "(?=\\S).+x"};
    char   fault[SPLIT_FAULT_CHARS];
    Split *s;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        s = split_of(split_named(both[i]), SPLIT_ISOLATED, 0, SPLIT_BY_CONSTRUCTS);
        assert_int_equal(split_engine(s), SPLIT_BY_CONSTRUCTS);
        split_destroy(s);
    }
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        s = split_of(common[i], SPLIT_ISOLATED, 0, SPLIT_BY_CONSTRUCTS);
        if (split_engine(s) != SPLIT_BY_CONSTRUCTS) fail_msg("%s", common[i]);
        split_destroy(s);
    }
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        if (!split_create(&s, &(SplitRule){(char *)other[i], SPLIT_ISOLATED, 0}, 1, "t.json", SPLIT_BY_CONSTRUCTS, fault))
            continue;
        if (split_engine(s) != SPLIT_BY_ONIGURUMA) fail_msg("%s", other[i]);
        split_destroy(s);
    }
    static const char *const none[] = {"(", "[a", "\\K", "(*FAIL)", "(?{x})", "\\p{Nothing}"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(split_create(&s, &(SplitRule){(char *)none[i], SPLIT_ISOLATED, 0}, 1, "t.json",
                                      SPLIT_BY_CONSTRUCTS, fault),
                         0);
}

/* --- random patterns and texts ------------------------------------------------------------------------------------ */

static uint64_t draws;
static uint32_t draw(uint32_t below) {
    uint32_t r[4];
    rng_words(r, 3, RNG_TEST, draws++);
    return r[0] % below;
}
static char *word(char *to, const char *const *list, size_t count) { return stpcpy(to, list[draw((uint32_t)count)]); }

static const char *const SETS[] = {".",
                                   "\\s",
                                   "\\S",
                                   "\\d",
                                   "\\p{L}",
                                   "\\p{Lu}",
                                   "\\P{N}",
                                   "\\p{M}",
                                   "a",
                                   "b",
                                   "\xc3\xa9",
                                   " ",
                                   "\\n",
                                   "\\.",
                                   "[ab]",
                                   "[^\\n]",
                                   "[^\\s\\p{L}]",
                                   "[\\r\\n]",
                                   "[a-z]",
                                   "[\\p{Lu}\\p{M}]",
                                   "[^a-c\\d]",
                                   "[-a]",
                                   "[\xc3\xa0-\xc3\xb6]",
                                   "[\\S]",
                                   "[^\\S]"};
static const char *const REPEATS[] = {"",   "",   "",   "?",  "*",   "+",     "??",  "*?",
                                      "+?", "?+", "*+", "++", "{2}", "{1,3}", "{2,}"};
#define DRAWN(to, list) word(to, list, sizeof list / sizeof *list)

static char *make_sequence(char *to, int depth) {
    for (uint32_t items = 1 + draw(3); items > 0; items--) {
        uint32_t kind = draw(12);
        if (kind == 0) to = stpcpy(DRAWN(stpcpy(to, draw(2) ? "(?=" : "(?!"), SETS), ")");
        else if (kind == 1) to = stpcpy(to, "(?i:'s|'t|'re|'ve|'m|'ll|'d)");
        else if (kind == 2 && depth > 0)
            to = stpcpy(make_sequence(stpcpy(make_sequence(stpcpy(to, "(?:"), depth - 1), "|"), depth - 1),
                        draw(2) ? ")?" : ")");
        else to = DRAWN(DRAWN(to, SETS), REPEATS);
    }
    return to;
}

static size_t make_text(char *to) {
    static const char *const WORDS[] = {"a",
                                        "b",
                                        "ab",
                                        "aab",
                                        "A",
                                        "E",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "1",
                                        "12",
                                        "\xc2\xb2",
                                        "\xd9\xa3",
                                        "\xe2\x85\xa7",
                                        "\xc3\xa9",
                                        "e\xcc\x81",
                                        "\xcc\x80",
                                        ".",
                                        "-",
                                        "'s",
                                        "'LL",
                                        "'\xc5\xbf",
                                        "\xc3\x9f",
                                        "\xe4\xbd\xa0",
                                        "\xc7\x85",
                                        "\xca\xb0",
                                        "\xe0\xa0\x8e",
                                        "\xe1\xa0\x8e",
                                        "\xe2\x80\xa8",
                                        "\xe3\x80\x80",
                                        "\xc2\x85",
                                        "\xf0\x9f\x98\x80",
                                        "\xe0\xa4\xbe",
                                        "\xe2\x82\xac",
                                        "\xff",
                                        "\xe2\x82",
                                        "z"};
    char *from = to;
    for (uint32_t n = draw(14); n > 0; n--) to = DRAWN(to, WORDS);
    *to = 0;
    return (size_t)(to - from);
}

/* Both regex engines must split a random text by a random pattern into equal pieces, for every behavior. The text is
 * also split in parts, which must give the pieces of the whole text. */
static void engines_and_parts_agree(void **state) {
    (void)state;
    enum { PATTERNS = 3000, TEXTS = 12 };
    static char whole[sizeof got.text];
    char        pattern[2000], text[200], fault[SPLIT_FAULT_CHARS];
    int         fast = 0, cut = 0;
    for (int i = 0; i < PATTERNS; i++) {
        char  *end = make_sequence(pattern, 2);
        Split *a, *b;
        if (draw(2)) make_sequence(stpcpy(end, "|"), 1);
        SplitRule rule = {pattern, (SplitBehavior)draw(5), (int)draw(2)};
        if (!split_create(&a, &rule, 1, "t.json", SPLIT_BY_CONSTRUCTS, fault))
            continue; /* the pattern is left out, because Oniguruma does not repeat a group that may be a look-ahead */
        assert_int_equal(split_create(&b, &rule, 1, "t.json", SPLIT_BY_ONIGURUMA, fault), 1);
        fast += split_engine(a) == SPLIT_BY_CONSTRUCTS;
        for (int k = 0; k < TEXTS; k++) {
            size_t bytes = make_text(text), at = 0;
            strcpy(whole, pieces(b, text, bytes));
            if (strcmp(pieces(a, text, bytes), whole) != 0)
                fail_msg("%s (behavior %d, %d) of \"%s\": %s, by Oniguruma %s", pattern, rule.behavior,
                         rule.is_inverted, text, got.text, whole);
            got.bytes = 0, got.text[0] = 0;
            /* passes the text up to byte n; split_text returns how many of these bytes it has split */
            for (size_t n = 0; n < bytes; n++)
                if (draw(3) == 0) at += split_text(a, text + at, n - at, SPLIT_MORE, put, NULL);
            cut += at > 0;
            split_text(a, text + at, bytes - at, SPLIT_END, put, NULL);
            if (strcmp(got.text, whole) != 0)
                fail_msg("%s (behavior %d, %d) of \"%s\" in parts: %s, whole %s", pattern, rule.behavior,
                         rule.is_inverted, text, got.text, whole);
        }
        split_destroy(a), split_destroy(b);
    }
    assert_true(fast > PATTERNS / 2 && cut > PATTERNS);
}

/* --- long texts, and patterns that run away ----------------------------------------------------------------------- */

typedef struct { Split *split; size_t pieces, longest; } Count;
static void count_piece(void *with, const char *piece, size_t bytes) {
    Count *c = (Count *)with;
    (void)piece;
    c->pieces++;
    if (bytes > c->longest) c->longest = bytes;
}
static size_t count_taken(void *with, const char *text, size_t bytes, SplitEnd end) {
    return split_text(((Count *)with)->split, text, bytes, end, count_piece, with);
}

/* A word of 20 MiB is one piece, also next to other words. So is white space of that length. */
static void no_piece_is_cut(void **state) {
    (void)state;
    enum { PART = 1 << 16, PARTS = 320 };
    static const struct {
        const char *begin, *fill, *end;
        size_t      pieces;
    } cases[] = {{"a b", "b", " a", 3}, {"x", " ", "x", 3}, {"!", "\n", "", 2}};
    static char part[PART];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Count  c = {.split = split_of(SPLIT_GPT2, SPLIT_ISOLATED, 0, SPLIT_BY_CONSTRUCTS)};
        Cutter cutter = {.take = count_taken, .with = &c};
        memset(part, *cases[i].fill, PART);
        cutter_put(&cutter, cases[i].begin, strlen(cases[i].begin));
        for (int k = 0; k < PARTS; k++) cutter_put(&cutter, part, PART);
        cutter_put(&cutter, cases[i].end, strlen(cases[i].end));
        cutter_end(&cutter);
        assert_int_equal(c.pieces, cases[i].pieces);
        assert_true(c.longest >= (size_t)PART * PARTS - 1 && cutter.room >= (size_t)PART * PARTS);
        cutter_free(&cutter);
        split_destroy(c.split);
    }
}

static void run_away(const void *pattern) {
    enum { BYTES = 1 << 19 };
    char *text = malloc(BYTES);
    memset(text, 'a', BYTES);
    got.bytes = 0;
    split_text(split_of((const char *)pattern, SPLIT_REMOVED, 0, SPLIT_BY_CONSTRUCTS), text, BYTES, SPLIT_END, put,
               NULL);
}
static void patterns_that_backtrack_end(void **state) {
    (void)state;
    assert_ends(EXIT_DATA, run_away, "(a+)+b", "t.json: the pattern \"(a+)+b\" backtracks without end at byte 0 of the text", NULL);
}
/* Skipped under ThreadSanitizer, because libc runs the timer's function in a thread that ThreadSanitizer does not
 * know. The pattern hardly backtracks, but takes very long, so only a limit of time can end it. */
static void patterns_that_take_long_end(void **state) {
    (void)state;
#if defined __has_feature
#if __has_feature(thread_sanitizer)
    skip();
#endif
#endif
    assert_ends(EXIT_DATA, run_away, "(?:[^z]*+y|a)*+c|.", "backtracks without end at byte 0", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaviors_are_those_of_hugging_face), cmocka_unit_test(other_bytes_are_pieces),
        cmocka_unit_test(constructs_choose_the_engine),        cmocka_unit_test(engines_and_parts_agree),
        cmocka_unit_test(no_piece_is_cut),                     cmocka_unit_test(patterns_that_backtrack_end),
        cmocka_unit_test(patterns_that_take_long_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
