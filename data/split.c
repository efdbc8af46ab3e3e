/* split.c - divides text by the patterns of a tokenizer, with PCRE2 or Oniguruma: see split.h. */
#include "data/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <oniguruma.h>
#include <pcre2.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/json.h"

/* Patterns that were published with vocabularies. Sources: openai/tiktoken, tiktoken_ext/openai_public.py, and the
 * tokenizer.json of Qwen/Qwen3-0.6B. */
const char SPLIT_GPT2[] = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char CL100K[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char QWEN[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char O200K[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char PATTERN[] = "a tokenizer's pattern"; /* purpose of an allocation in the message "no memory for ..." */
/* Two groups that match word endings after an apostrophe. Only these may ignore case where PCRE2 matches. Oniguruma
 * folds one character to several, so with other groups the engines could differ. */
static const char *const APOSTROPHES[] = {"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "(?i:[sdmt]|ll|ve|re)"};

/* Known patterns that split text, with the names of their vocabularies. Matching them takes time linear in the text. So
 * they run without a time limit if PCRE2 has compiled them to machine code. */
static const struct { const char *name, *pattern; } KNOWN[] = {
    {"r50k_base", SPLIT_GPT2}, {"p50k_base", SPLIT_GPT2}, {"gpt2", SPLIT_GPT2}, {"cl100k_base", CL100K},
    {"llama3", CL100K}, {"o200k_base", O200K}, {"qwen", QWEN}, {"", "\\p{N}"}, {"", "\\p{N}+"}, {"", "\\p{N}{1,3}"}};

const char *split_named(const char *name) {
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (*name && strcmp(name, KNOWN[i].name) == 0) return KNOWN[i].pattern;
    return NULL;
}

/* --- constructs that mean the same to both engines ---------------------------------------------------------------- */

/* Each function reads_X reads one construct of a pattern at *p and moves *p after it. It returns 0 for any construct
 * that PCRE2 and Oniguruma may read differently. */
static int reads_alternatives(const char **p);

static int reads_word(const char **p, const char *word) {
    size_t n = strlen(word);
    if (strncmp(*p, word, n) != 0) return 0;
    *p += n;
    return 1;
}

/* Reads \s, \d, a general category such as \p{Lu}, or escaped punctuation at *p. *is_set is 1 if the escape matches
 * several characters. */
static int reads_escape(const char **p, int *is_set) {
    static const char *const CATEGORIES[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",
                                             "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                                             "S",  "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp"};
    const char c = (*p)[1];
    *is_set = c && strchr("sSdDpP", c);
    if (!c || !strchr("sSdDpPrnt\\/-[](){}|.*+?^$\"!#%&,:;=@~", c)) return 0;
    *p += 2;
    if (c != 'p' && c != 'P') return 1;
    for (size_t i = 0; i < sizeof CATEGORIES / sizeof *CATEGORIES; i++) {
        size_t n = strlen(CATEGORIES[i]);
        if (**p == '{' && strncmp(*p + 1, CATEGORIES[i], n) == 0 && (*p)[n + 1] == '}') return *p += n + 2, 1;
    }
    return 0;
}

/* Reads a literal character at *p and moves *p after it. Returns its code point, -1 if the bytes are not UTF-8. */
static int32_t reads_character(const char **p) {
    const unsigned char *s = (const unsigned char *)*p;
    int     n = utf8_bytes(*p, strlen(*p));
    int32_t c = n == 1 ? *s : n == 2 ? *s & 0x1F : n == 3 ? *s & 0x0F : *s & 0x07;
    for (int i = 1; i < n; i++) c = c << 6 | (s[i] & 0x3F);
    *p += n;
    return n ? c : -1;
}

static int reads_class(const char **p) {
    int members = 0;
    if (*++*p == '^') ++*p;
    for (; **p != ']'; members++) {
        int     is_set = 0;
        int32_t first = 0;
        if (!**p || **p == '[' || (**p == '&' && (*p)[1] == '&') ||
            (**p == '-' && (members > 0 || (*p)[1] == '-') && (*p)[1] != ']'))
            return 0;
        if (**p != '\\') first = reads_character(p);
        else if (reads_escape(p, &is_set)) first = INT32_MAX; /* an escape, which cannot begin a range such as a-z */
        else return 0;
        if (first < 0) return 0;
        if (**p != '-' || (*p)[1] == ']') continue;
        ++*p;
        if (!**p || strchr("\\[", **p) || reads_character(p) < first || **p == '-') return 0;
    }
    ++*p;
    return members > 0;
}

/* Reads a construct of a pattern that matches one character: a literal, a class, an escape, or a dot. */
static int reads_one(const char **p) {
    int is_set;
    if (**p == '\\') return reads_escape(p, &is_set);
    if (**p == '[') return reads_class(p);
    if (**p == '.') return ++*p, 1;
    if (!**p || strchr("^$|()?*+{}]", **p)) return 0;
    return reads_character(p) >= 0;
}

/* Reads the repeat of a construct, if there is one: ? * + or {n,m}. A lazy or possessive repeat is read only where both
 * engines give it the same meaning. */
static int reads_repeat(const char **p) {
    if (**p == '{') {
        char *end;
        long  least = strtol(*p + 1, &end, 10), most = least;
        if (end == *p + 1 || !strchr("0123456789", (*p)[1])) return 0;
        if (*end == ',') {
            const char *digits = ++end;
            most = *end == '}' ? 1000 : strtol(digits, &end, 10);
            if (!strchr("0123456789}", *digits)) return 0;
        }
        if (*end != '}' || most < 1 || most < least || most > 1000) return 0;
        *p = end + 1;
    } else if (**p && strchr("?*+", **p)) {
        ++*p;
        if (**p == '?' || **p == '+') ++*p;
    }
    return !(**p && strchr("?*+{", **p));
}

static int reads_item(const char **p) {
    int is_group = reads_word(p, APOSTROPHES[0]) || reads_word(p, APOSTROPHES[1]);
    if (!is_group && (reads_word(p, "(?=") || reads_word(p, "(?!")))
        return reads_one(p) && reads_word(p, ")") && !(**p && strchr("?*+{", **p));
    if (!is_group && reads_word(p, "(?:")) is_group = reads_alternatives(p) && reads_word(p, ")");
    else if (!is_group) return reads_one(p) && reads_repeat(p);
    if (**p == '?') ++*p;
    return is_group && !(**p && strchr("?*+{", **p));
}

static int reads_alternatives(const char **p) {
    while (**p && **p != ')') {
        if (**p == '|') ++*p;
        else if (!reads_item(p)) return 0;
    }
    return 1;
}

/* Returns 1 if a pattern has a look-ahead and a dot. Such a pattern must not go to PCRE2. Oniguruma tries a pattern
 * that begins with .* only at the beginnings of lines. It also does so after a look-ahead, and then misses matches that
 * PCRE2 finds. */
static int looks_ahead_of_any(const char *pattern) {
    int in_class = 0, any = 0;
    for (const char *p = pattern; *p; p += *p == '\\' && p[1] ? 2 : 1) {
        in_class = *p == '[' || (in_class && *p != ']');
        any |= *p == '.' && !in_class;
    }
    return any && (strstr(pattern, "(?=") || strstr(pattern, "(?!"));
}

/* --- constructs that depend on Oniguruma's version ---------------------------------------------------------------- */

/* Returns 1 if libonig is older than 6.9.TEENY, or its version is unknown. Hugging Face tokenizers contains 6.9.10;
 * older libraries read some constructs in another way, or not at all. */
static int oniguruma_is_older(int teeny) {
    int major = 0, minor = 0, own = 0;
    return sscanf(onig_version(), "%d.%d.%d", &major, &minor, &own) != 3 || (major == 6 && minor == 9 && own < teeny);
}

/* Returns a construct of the pattern that the installed libonig may read differently from Hugging Face tokenizers.
 * Returns NULL if there is none. */
static const char *untrusted(const char *pattern) {
    static const char *const BRACKETS[] = {"[:alnum:]", "[:alpha:]", "[:digit:]", "[:space:]", "[:upper:]", "[:lower:]",
                                           "[:word:]", "[:xdigit:]", "[:blank:]", "[:cntrl:]", "[:ascii:]"};
    static const struct { const char *construct; int since; } CHANGED[] = {
        {"\\R", 9}, {"\\X", 10}, {"\\y", 10}, {"\\Y", 10}, {"\\K", 99}, {"(*", 99}, {"(?{", 99}, {"(?(", 9},
        {"(?I", 10}, {"(?L", 10}, {"(?C", 10}, {"\\p{Punct", 9}, {"\\p{punct", 9}, {"\\p{PosixPunct", 9},
        {"\\p{Word", 9}, {"\\p{word", 9}};
    int has_behind = strstr(pattern, "(?<=") || strstr(pattern, "(?<!");
    for (const char *p = pattern; *p; p += *p == '\\' && p[1] ? 2 : 1) {
        for (size_t i = 0; i < sizeof CHANGED / sizeof *CHANGED; i++)
            if (strncmp(p, CHANGED[i].construct, strlen(CHANGED[i].construct)) == 0 &&
                oniguruma_is_older(CHANGED[i].since))
                return CHANGED[i].construct;
        if (has_behind && (*p == '$' || (*p == '\\' && (p[1] == 'z' || p[1] == 'Z'))) && oniguruma_is_older(10))
            return "a look-behind with an anchor at the end";
        int known = strncmp(p, "[:", 2) != 0;
        for (size_t i = 0; !known && i < sizeof BRACKETS / sizeof *BRACKETS; i++)
            known = strncmp(p, BRACKETS[i], strlen(BRACKETS[i])) == 0;
        if (!known && oniguruma_is_older(9)) return "[: :] other than [:alnum:] and its like";
    }
    return NULL;
}

/* --- the split ---------------------------------------------------------------------------------------------------- */

typedef struct {
    char             *pattern;   /* owned: the pattern as it was given */
    SplitBehavior     behavior;
    int               is_inverted;
    pcre2_code       *code;      /* owned: the pattern compiled by PCRE2; NULL: onig is used */
    int               has_jit;
    OnigRegex         onig;      /* owned: the pattern compiled by Oniguruma; used if code is NULL */
} Rule;

struct Split {
    Rule                 rule[SPLIT_RULES];
    int                  rules;
    char                *name;       /* owned: path of the tokenizer's file, for messages */
    pcre2_match_data    *match;      /* owned: memory that PCRE2 needs to match */
    pcre2_match_context *context;    /* owned: settings with which PCRE2 matches, such as its stack */
    pcre2_jit_stack     *stack;      /* owned: stack of PCRE2's machine code */
    OnigRegion          *region;     /* owned: memory of Oniguruma for a match */
    OnigMatchParam      *limits;     /* owned: settings with which Oniguruma matches, such as its limits */
    /* byte of the whole text at which the next call of split_text() begins; for a message */
    int64_t              place;
    /* A clock ends the process if a pattern backtracks without end. Its thread reads the members `at` and `busy`. */
    int                  is_watched, has_clock;
    pthread_t            owner;      /* thread whose processor time the clock counts */
    timer_t              clock;
    const char          *text, *end, *renewed;
    const char *volatile at;
    const Rule *volatile busy;
};

static void compile_constructs(Rule *r) {
    int                    error;
    size_t                 at;
    char                  *text = xmalloc(20 * strlen(r->pattern) + 1, PATTERN), *to = text;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    /* writes \s as the Unicode property White_Space: PCRE2's \s also matches U+180E, which has not been white space in
     * Unicode since 6.3 */
    for (const char *from = r->pattern; *from; from++) {
        if (*from != '\\' || !from[1]) *to++ = *from;
        else if (from[1] == 's' || from[1] == 'S') to += sprintf(to, "\\%c{White_Space}", *++from == 's' ? 'p' : 'P');
        else *to++ = *from++, *to++ = *from;
    }
    *to = 0;
    if (!context) fail(EXIT_MEMORY, "no memory for %s; free memory on this host", PATTERN);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &error, &at, context);
    pcre2_compile_context_free(context);
    free(text);
    if (r->code) r->has_jit = pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
}

static int compile_oniguruma(Rule *r, char *fault) {
    const char   *end = r->pattern + strlen(r->pattern), *construct = untrusted(r->pattern);
    OnigErrorInfo info;
    UChar         why[ONIG_MAX_ERROR_MESSAGE_LEN];
    if (construct)
        return snprintf(fault, SPLIT_FAULT_CHARS, "a pattern has %s, which libonig %s may read in another way than "
                        "Hugging Face tokenizers (libonig 6.9.10): write the pattern without it", construct,
                        onig_version()), 0;
    int error = onig_new(&r->onig, (const UChar *)r->pattern, (const UChar *)end, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                         ONIG_SYNTAX_DEFAULT, &info);
    if (error == ONIG_NORMAL) return 1;
    if (error == ONIGERR_MEMORY) fail(EXIT_MEMORY, "no memory for %s; free memory on this host", PATTERN);
    r->onig = NULL;
    onig_error_code_to_str(why, error, &info);
    return snprintf(fault, SPLIT_FAULT_CHARS, "the pattern \"%.120s\" is not a regular expression (Oniguruma): %s",
                    r->pattern, (const char *)why), 0;
}

int split_create(Split **split, const SplitRule *rule, int rules, const char *name, SplitEngine engine,
                 char fault[SPLIT_FAULT_CHARS]) {
    Split *s = xcalloc(1, sizeof *s, PATTERN);
    CHECK(rules <= SPLIT_RULES, "%d patterns", rules);
    s->name = xstrdup(name, PATTERN);
    onig_initialize((OnigEncoding[]){ONIG_ENCODING_UTF8}, 1);
    s->match = pcre2_match_data_create(1, NULL), s->context = pcre2_match_context_create(NULL);
    s->stack = pcre2_jit_stack_create(1 << 15, 1 << 23, NULL);
    s->region = onig_region_new(), s->limits = onig_new_match_param();
    if (!s->match || !s->context || !s->stack || !s->region || !s->limits)
        fail(EXIT_MEMORY, "no memory for %s; free memory on this host", PATTERN);
    pcre2_jit_stack_assign(s->context, NULL, s->stack);
    onig_initialize_match_param(s->limits);
    while (s->rules < rules) {
        const SplitRule *given = &rule[s->rules];
        Rule            *r = &s->rule[s->rules++];
        *r = (Rule){.pattern = xstrdup(given->pattern, PATTERN),
                    .behavior = given->behavior,
                    .is_inverted = given->is_inverted};
        /* compiled by Oniguruma even if PCRE2 will match, because Oniguruma refuses text that is no valid pattern */
        if (!compile_oniguruma(r, fault)) return split_destroy(s), 0;
        const char *rest = r->pattern;
        int         is_common = reads_alternatives(&rest) && !*rest && !looks_ahead_of_any(r->pattern);
        if (engine == SPLIT_BY_CONSTRUCTS && is_common) compile_constructs(r);
        int is_linear = 0;
        for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) is_linear |= !strcmp(r->pattern, KNOWN[i].pattern);
        s->is_watched |= !r->code || !r->has_jit || !is_linear;
    }
    *split = s;
    return 1;
}

void split_destroy(Split *s) {
    for (int i = 0; i < s->rules; i++) {
        free(s->rule[i].pattern);
        pcre2_code_free(s->rule[i].code);
        if (s->rule[i].onig) onig_free(s->rule[i].onig);
    }
    if (s->has_clock) timer_delete(s->clock);
    pcre2_match_data_free(s->match), pcre2_match_context_free(s->context), pcre2_jit_stack_free(s->stack);
    onig_region_free(s->region, 1), onig_free_match_param(s->limits);
    free(s->name), free(s);
}

SplitEngine split_engine(const Split *s) {
    for (int i = 0; i < s->rules; i++)
        if (!s->rule[i].code) return SPLIT_BY_ONIGURUMA;
    return SPLIT_BY_CONSTRUCTS;
}

uint64_t split_hash(const Split *s) {
    uint64_t hash = (uint64_t)s->rules;
    for (int i = 0; i < s->rules; i++) {
        int32_t kind[2] = {s->rule[i].behavior, s->rule[i].is_inverted};
        hash = XXH3_64bits_withSeed(s->rule[i].pattern, strlen(s->rule[i].pattern), hash);
        hash = XXH3_64bits_withSeed(kind, sizeof kind, hash);
    }
    return hash;
}

int split_removes(const Split *s) {
    for (int i = 0; i < s->rules; i++)
        if (s->rule[i].behavior == SPLIT_REMOVED) return 1;
    return 0;
}

void split_place(Split *s, int64_t byte) { s->place = byte; }

/* --- patterns that run away --------------------------------------------------------------------------------------- */

NORETURN static void ran_away(const Split *s, const Rule *r) {
    fail(EXIT_DATA, "%s: the pattern \"%.120s\" backtracks without end at byte %lld of the text. Give a pattern "
         "without a repeat inside a repeat, or another tokenizer", s->name, r->pattern,
         (long long)(s->place + (s->at - s->text)));
}

static void clock_ran_out(union sigval split) {
    const Split *s = (const Split *)split.sival_ptr;
    const Rule  *r = s->busy;
    if (r) ran_away(s, r);
}

/* Sets the clock that limits the processor time of this thread to `seconds`; 0 stops it. If no clock can be made, only
 * the limits of the engines remain. */
static void set_clock(Split *s, time_t seconds) {
    struct sigevent event = {.sigev_notify = SIGEV_THREAD,
                             .sigev_notify_function = clock_ran_out,
                             .sigev_value.sival_ptr = s};
    if (!s->is_watched || (seconds == 0 && !s->has_clock)) return;
    if (seconds == 0) s->busy = NULL;
    if (s->has_clock && !pthread_equal(s->owner, pthread_self())) timer_delete(s->clock), s->has_clock = 0;
    if (!s->has_clock)
        s->has_clock = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &s->clock) == 0, s->owner = pthread_self();
    struct itimerspec left = {.it_value.tv_sec = seconds};
    if (s->has_clock) timer_settime(s->clock, 0, &left, NULL);
}

/* Restarts the clock of a pattern, which has split the text up to `done`. The clock gets SPLIT_SECONDS, and a second
 * for each 16 MiB of the remaining text, because one search may read all of it. */
static void renew_clock(Split *s, const char *done) {
    s->renewed = done;
    set_clock(s, SPLIT_SECONDS + (time_t)((s->end - done) >> 24));
}

/* --- pieces ------------------------------------------------------------------------------------------------------- */

/* Finds the first match of a pattern at or after byte `from`. Returns 1 with its range in span, 0 if there is none, or
 * -1 if text that follows may change it. */
static int find_match(Split *s, const Rule *r, const char *text, size_t bytes, size_t from, SplitEnd end,
                      size_t span[2]) {
    s->at = text + from, s->busy = r;
    if (r->code) {
        uint32_t  options = end == SPLIT_MORE ? PCRE2_PARTIAL_HARD : 0;
        int found = r->has_jit ? pcre2_jit_match(r->code, (PCRE2_SPTR)text, bytes, from, options, s->match, s->context)
                               : pcre2_match(r->code, (PCRE2_SPTR)text, bytes, from, options | PCRE2_NO_UTF_CHECK,
                                             s->match, s->context);
        if (found == PCRE2_ERROR_PARTIAL) return -1;
        if (found == PCRE2_ERROR_NOMATCH) return end == SPLIT_MORE ? -1 : 0;
        if (found == PCRE2_ERROR_NOMEMORY)
            fail(EXIT_MEMORY, "%s: no memory to match the pattern \"%.120s\"; free memory on this host", s->name,
                 r->pattern);
        if (found < 0) ran_away(s, r);
        memcpy(span, pcre2_get_ovector_pointer(s->match), 2 * sizeof *span);
        return 1;
    }
    const UChar *begin = (const UChar *)text, *last = begin + bytes;
    int          found =
        onig_search_with_param(r->onig, begin, last, begin + from, last, s->region, ONIG_OPTION_NONE, s->limits);
    if (found == ONIG_MISMATCH) return 0;
    if (found == ONIGERR_MEMORY)
        fail(EXIT_MEMORY, "%s: no memory to match the pattern \"%.120s\"; free memory on this host", s->name,
             r->pattern);
    if (found < 0) ran_away(s, r);
    span[0] = (size_t)s->region->beg[0], span[1] = (size_t)s->region->end[0];
    return 1;
}

static size_t split_rule(Split *s, int i, const char *text, size_t bytes, SplitEnd end, SplitPiece *piece, void *with);

/* State of the split by one rule. It receives the matches and the texts between them, in order. It holds the last one
 * back as long as the next one may join it. */
typedef struct {
    Split      *split;
    int         rule;           /* index of the rule in split->rule */
    const char *text;
    SplitPiece *piece;
    void       *with;
    size_t      begin, end;     /* range of the text that is held back if `holds` is 1 */
    int         holds, is_match;
} Spans;

static void pass_on(const Spans *x, size_t begin, size_t end) {
    if (end > begin) split_rule(x->split, x->rule + 1, x->text + begin, end - begin, SPLIT_END, x->piece, x->with);
}

static void pass_held(Spans *x) {
    if (x->holds) pass_on(x, x->begin, x->end);
    x->holds = 0;
}

static void take_span(Spans *x, size_t begin, size_t end, int is_match) {
    const Rule *r = &x->split->rule[x->rule];
    is_match ^= r->is_inverted;
    int is_joined = x->holds && (r->behavior == SPLIT_CONTIGUOUS      ? is_match == x->is_match
                                 : r->behavior == SPLIT_WITH_PREVIOUS ? is_match && !x->is_match
                                                                      : !is_match && x->is_match);
    switch (r->behavior) {
        case SPLIT_ISOLATED: pass_on(x, begin, end); return;
        case SPLIT_REMOVED: if (!is_match) pass_on(x, begin, end); return;
        default: break;
    }
    if (!is_joined) pass_held(x), x->begin = begin;
    x->end = end, x->is_match = is_match, x->holds = 1;
}

/* Splits UTF-8 text by rule i, and the results by the rules after it. Returns the number of bytes that were split. */
static size_t split_rule(Split *s, int i, const char *text, size_t bytes, SplitEnd end, SplitPiece *piece, void *with) {
    const Rule *r = &s->rule[i];
    Spans       x = {.split = s, .rule = i, .text = text, .piece = piece, .with = with};
    size_t      done = 0, last = SIZE_MAX, span[2];
    if (end == SPLIT_MORE && (i == s->rules || !r->code || r->behavior > SPLIT_REMOVED))
        return 0; /* nothing is consumed yet, because this rule must see the whole text */
    if (i == s->rules) {
        /* stops the clock during piece() for a long piece, because that time must not count for the pattern */
        int is_long = bytes >= SPLIT_STRETCH;
        if (is_long) set_clock(s, 0);
        piece(with, text, bytes);
        if (is_long) renew_clock(s, text + bytes);
        return bytes;
    }
    for (size_t from = 0; from <= bytes;) {
        if (s->is_watched && text + from - s->renewed > SPLIT_STRETCH) renew_clock(s, text + from);
        int found = find_match(s, r, text, bytes, from, end, span);
        if (found < 0) return done;
        if (found == 0) break;
        if (span[0] == span[1] && span[1] == last) { /* ignores an empty match directly after a match */
            for (from++; from < bytes && ((unsigned char)text[from] & 0xC0) == 0x80;) from++;
            continue;
        }
        from = last = span[1];
        if (span[0] > done) take_span(&x, done, span[0], 0);
        take_span(&x, span[0], span[1], 1);
        done = span[1];
    }
    if (bytes > done) take_span(&x, done, bytes, 0);
    pass_held(&x);
    return bytes;
}

/* --- bytes that are not UTF-8 ------------------------------------------------------------------------------------- */

int utf8_is_cut(const char *text, size_t bytes) {
    /* the bytes, followed by the least and by the greatest bytes that may continue a character */
    char least[4], most[4];
    if (bytes > 3) return 0;
    memset(least, 0x80, sizeof least), memset(most, 0xBF, sizeof most);
    memcpy(least, text, bytes), memcpy(most, text, bytes);
    return utf8_bytes(least, 4) > (int)bytes || utf8_bytes(most, 4) > (int)bytes;
}

size_t utf8_valid(const char *text, size_t bytes, SplitEnd end, size_t *invalid) {
    size_t   at = 0, n;
    uint64_t eight;
    int      length;
    *invalid = 0;
    while (at < bytes) {
        if (at + 8 <= bytes && (memcpy(&eight, text + at, 8), (eight & 0x8080808080808080u) == 0)) at += 8;
        else if ((length = utf8_bytes(text + at, bytes - at)) > 0) at += (size_t)length;
        else break;
    }
    if (at > 0 || bytes == 0) return at;
    for (n = 0; n < bytes && utf8_bytes(text + n, bytes - n) == 0; n++)
        if (end == SPLIT_MORE && utf8_is_cut(text + n, bytes - n)) return 0;
    *invalid = n < bytes || end == SPLIT_END ? n : 0;
    return 0;
}

int64_t utf8_invalid(const char *text, size_t bytes) {
    int64_t sum = 0;
    for (size_t at = 0, invalid; at < bytes; at += invalid) {
        at += utf8_valid(text + at, bytes - at, SPLIT_END, &invalid);
        sum += (int64_t)invalid;
    }
    return sum;
}

size_t split_text(Split *s, const char *text, size_t bytes, SplitEnd end, SplitPiece *piece, void *with) {
    size_t at = 0, valid, invalid;
    s->text = text, s->end = text + bytes;
    renew_clock(s, text);
    while (at < bytes) {
        valid = utf8_valid(text + at, bytes - at, end, &invalid);
        if (valid == 0 && invalid == 0) break;
        if (invalid > 0) piece(with, text + at, invalid);
        int is_open = end == SPLIT_MORE && (at + valid == bytes || utf8_is_cut(text + at + valid, bytes - at - valid));
        size_t taken =
            valid > 0 ? split_rule(s, 0, text + at, valid, is_open ? SPLIT_MORE : SPLIT_END, piece, with) : invalid;
        at += taken;
        if (taken < valid) break;
    }
    set_clock(s, 0);
    s->place += (int64_t)at;
    return at;
}
