/* split.c - see split.h. */
#include "data/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* Published with each vocabulary; sources: openai/tiktoken, tiktoken_ext/openai_public.py, and the tokenizer.json of
 * Qwen/Qwen3-0.6B. */
const char *const SPLIT_GPT2 = "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
static const char CL100K[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char QWEN[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
                           "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char O200K[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

const char *split_named(const char *name) {
    static const struct { const char *name, *pattern; } KNOWN[] = {
        {"r50k_base", NULL}, {"p50k_base", NULL}, {"gpt2", NULL}, {"cl100k_base", CL100K}, {"llama3", CL100K},
        {"o200k_base", O200K}, {"qwen", QWEN}};
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (strcmp(name, KNOWN[i].name) == 0) return KNOWN[i].pattern ? KNOWN[i].pattern : SPLIT_GPT2;
    return NULL;
}

struct Split {
    pcre2_code       *code[SPLIT_PATTERNS];
    pcre2_match_data *match[SPLIT_PATTERNS];
    int               patterns;
};

/* U+180E is white space to PCRE2's \s, and has not been to Unicode since 6.3. */
static char *with_unicode_spaces(const char *pattern) {
    char *out = (char *)malloc(20 * strlen(pattern) + 1), *to = out;
    if (!out) fail(EXIT_MEMORY, "no memory for a tokenizer's pattern");
    for (const char *at = pattern; *at; at++) {
        if (*at != '\\' || !at[1]) *to++ = *at;
        else if (at[1] == 's' || at[1] == 'S') to += sprintf(to, "\\%c{White_Space}", *++at == 's' ? 'p' : 'P');
        else *to++ = *at++, *to++ = *at;
    }
    *to = 0;
    return out;
}

int split_create(Split **split, const char *const *pattern, int patterns, char fault[SPLIT_FAULT_CHARS]) {
    Split *s = (Split *)calloc(1, sizeof *s);
    if (!s) fail(EXIT_MEMORY, "no memory for a tokenizer's pattern");
    for (int i = 0; i < patterns && i < SPLIT_PATTERNS; i++) {
        int    error;
        size_t at;
        char  *text = with_unicode_spaces(pattern[i]);
        s->code[i] = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &at, NULL);
        free(text);
        if (!s->code[i]) {
            char why[120];
            pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
            snprintf(fault, SPLIT_FAULT_CHARS, "its pattern is none: %s", why);
            split_destroy(s);
            return 0;
        }
        pcre2_jit_compile(s->code[i], PCRE2_JIT_COMPLETE); /* without it, or where it may not be had: slower */
        s->match[i] = pcre2_match_data_create(1, NULL);
        if (!s->match[i]) fail(EXIT_MEMORY, "no memory for a tokenizer's pattern");
        s->patterns = i + 1;
    }
    *split = s;
    return 1;
}

void split_destroy(Split *s) {
    for (int i = 0; i < s->patterns; i++) {
        pcre2_match_data_free(s->match[i]);
        pcre2_code_free(s->code[i]);
    }
    free(s);
}

static void split_from(const Split *s, int i, const char *text, size_t bytes, SplitPiece *piece, void *with) {
    if (i == s->patterns) {
        if (bytes > 0) piece(with, text, bytes);
        return;
    }
    size_t at = 0;
    for (size_t from = 0; from < bytes;) {
        int found = pcre2_match(s->code[i], (PCRE2_SPTR)text, bytes, from, 0, s->match[i], NULL);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH)
            fail(EXIT_DATA, "a tokenizer's pattern gives up after %zu bytes of text (PCRE2 error %d)", from, found);
        if (found < 0) break;
        const size_t *span = pcre2_get_ovector_pointer(s->match[i]);
        if (span[1] == span[0]) { /* nothing is no piece */
            from = span[1] + 1;
            continue;
        }
        split_from(s, i + 1, text + at, span[0] - at, piece, with);
        split_from(s, i + 1, text + span[0], span[1] - span[0], piece, with);
        from = at = span[1];
    }
    split_from(s, i + 1, text + at, bytes - at, piece, with);
}

void split_text(const Split *s, const char *text, size_t bytes, SplitPiece *piece, void *with) {
    split_from(s, 0, text, bytes, piece, with);
}
