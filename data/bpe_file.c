/* bpe_file.c - see bpe_file.h. */
#include "data/bpe_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"

enum { PATH_ROOM = 4400, FILE_LIMIT = 1 << 28, SHOWN = 60 };
static const char END_OF_TEXT[] = "<|endoftext|>";

/* --- bytes as characters ------------------------------------------------------------------------------------------ */

/* Files of text cannot hold any byte: the 188 printable ones of Latin-1 stand for themselves, the others, in order, for
 * U+0100 and on (openai/gpt-2, encoder.py). */
static int is_printable(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

static int byte_of(unsigned character) {
    unsigned next = 256;
    if (character < 256) return is_printable((int)character) ? (int)character : -1;
    for (int byte = 0; byte < 256; byte++)
        if (!is_printable(byte) && next++ == character) return byte;
    return -1;
}

void bpe_character(int byte, char out[4]) {
    unsigned character = (unsigned)byte;
    if (!is_printable(byte)) {
        character = 256;
        for (int b = 0; b < byte; b++) character += !is_printable(b);
    }
    if (character < 0x80) snprintf(out, 4, "%c", (int)character);
    else snprintf(out, 4, "%c%c", (int)(0xC0 | character >> 6), (int)(0x80 | (character & 0x3F)));
}

/* The bytes that characters stand for, in place; -1 where one stands for none. */
static int64_t to_bytes(char *text, size_t count) {
    static int16_t table[512];
    if (table['a'] == 0)
        for (unsigned c = 0; c < 512; c++) table[c] = (int16_t)byte_of(c);
    unsigned char *at = (unsigned char *)text, *to = at, *end = at + count;
    while (at < end) {
        unsigned c = *at++;
        if (c >= 0x80) {
            if (c >= 0xE0 || at == end) return -1; /* over U+07FF */
            c = (c & 0x1F) << 6 | (*at++ & 0x3F);
        }
        if (c >= 512 || table[c] < 0) return -1;
        *to++ = (unsigned char)table[c];
    }
    return to - (unsigned char *)text;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef struct {
    char   path[PATH_ROOM];
    Bpe   *bpe;
    const char *pattern[SPLIT_PATTERNS];
    int    patterns, is_nfc;
} Reading;

static char *read_text(const char *path, size_t *bytes) {
    char   *text;
    int64_t n = io_read_file(path, FILE_LIMIT, &text);
    if (n == -ENOENT) fail(EXIT_DATA, "the tokenizer's file %s is not there", path);
    if (n < 0) fail(n == -EFBIG ? EXIT_DATA : EXIT_IO, "the tokenizer's file %s cannot be read: %s", path, strerror((int)-n));
    *bytes = (size_t)n;
    return text;
}

static cJSON *read_json(const char *path) {
    size_t bytes;
    char  *text = read_text(path, &bytes);
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    if (!json || !cJSON_IsObject(json)) {
        int line = 1;
        for (const char *c = text; end && c < end; c++) line += *c == '\n';
        fail(EXIT_DATA, "%s:%d: not the JSON object of a tokenizer", path, line);
    }
    free(text);
    return json;
}

static const cJSON *member(const cJSON *object, const char *name) { return cJSON_GetObjectItemCaseSensitive(object, name); }
static const char  *word_of(const cJSON *object, const char *name) {
    const cJSON *item = member(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}
static int is_set(const cJSON *object, const char *name) { /* neither absent, null, false nor "" */
    const cJSON *item = member(object, name);
    return item && !cJSON_IsNull(item) && !cJSON_IsFalse(item) && !(cJSON_IsString(item) && !item->valuestring[0]);
}

static int32_t id_of(const Reading *r, const cJSON *item, const char *what) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < BPE_MOST_IDS) ||
        item->valuedouble != (double)(int32_t)item->valuedouble)
        fail(EXIT_DATA, "%s: %.*s has no id from 0 to %d", r->path, SHOWN, what, BPE_MOST_IDS - 1);
    return (int32_t)item->valuedouble;
}

NORETURN static void refuse_part(const Reading *r, const char *part, const char *what) {
    fail(EXIT_DATA,
         "%s: its %s, %s, is none that is built in; byte-level BPE is read, split by ByteLevel, Split and Digits, as it is or in NFC",
         r->path, part, what);
}

static void add_pattern(Reading *r, const char *pattern) {
    if (r->patterns == SPLIT_PATTERNS) refuse_part(r, "pre_tokenizer", "of so many parts");
    char *own = strdup(pattern);
    if (!own) fail(EXIT_MEMORY, "no memory for a tokenizer's pattern");
    r->pattern[r->patterns++] = own;
}

/* {"!": 0, "\"": 1, ...} */
static void take_vocabulary(Reading *r, const cJSON *vocab) {
    if (!cJSON_IsObject(vocab)) fail(EXIT_DATA, "%s: no vocabulary, an object of tokens and their ids", r->path);
    for (cJSON *item = vocab->child; item; item = item->next) {
        int32_t id = id_of(r, item, item->string);
        size_t  own;
        if (bpe_bytes(r->bpe, id, &own) && bpe_find_special(r->bpe, item->string) == id) continue;
        char    shown[SHOWN + 1];
        snprintf(shown, sizeof shown, "%s", item->string);
        int64_t count = to_bytes(item->string, strlen(item->string));
        if (count < 0) fail(EXIT_DATA, "%s: the token \"%s\" is not of byte-level BPE", r->path, shown);
        if (!bpe_add(r->bpe, id, item->string, (size_t)count))
            fail(EXIT_DATA, "%s: the token \"%s\", or its id %d, stands twice", r->path, shown, id);
    }
    int missing = bpe_missing_byte(r->bpe);
    if (missing >= 0)
        fail(EXIT_DATA, "%s: no token is the byte 0x%02x alone, so not every text could be encoded", r->path, missing);
}

static void take_merge(const Reading *r, char *left, char *right, int32_t rank) {
    char    joined[4096], shown[2 * SHOWN + 2];
    snprintf(shown, sizeof shown, "%.*s %.*s", SHOWN, left, SHOWN, right);
    int64_t l = to_bytes(left, strlen(left)), n = to_bytes(right, strlen(right));
    int32_t a = l > 0 ? bpe_find(r->bpe, left, (size_t)l) : -1, b = n > 0 ? bpe_find(r->bpe, right, (size_t)n) : -1, id = -1;
    if (a >= 0 && b >= 0 && (size_t)(l + n) <= sizeof joined) {
        memcpy(joined, left, (size_t)l), memcpy(joined + l, right, (size_t)n);
        id = bpe_find(r->bpe, joined, (size_t)(l + n));
    }
    if (id < 0)
        fail(EXIT_DATA,
             "%s: merge %d, \"%s\", makes no token of the vocabulary: vocabulary and merges are of two tokenizers",
             r->path, rank, shown);
    bpe_add_merge(r->bpe, a, b, rank, id);
}

/* --- vocab.json and merges.txt ------------------------------------------------------------------------------------ */

static void read_merges(Reading *r, const char *path) {
    size_t  bytes;
    char   *text = read_text(path, &bytes), *line = text;
    int32_t rank = 0;
    snprintf(r->path, sizeof r->path, "%s", path);
    for (char *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end) *end++ = 0;
        line[strcspn(line, "\r")] = 0;
        char *space = strchr(line, ' ');
        if (!*line || strncmp(line, "#version", 8) == 0) continue;
        if (!space || strchr(space + 1, ' '))
            fail(EXIT_DATA, "%s: merge %d is not two tokens with a space between: \"%.*s\"", path, rank, SHOWN, line);
        *space = 0;
        take_merge(r, line, space + 1, rank++);
    }
    free(text);
}

static void read_pair(Reading *r, const char *vocab, const char *merges) {
    snprintf(r->path, sizeof r->path, "%s", vocab);
    cJSON       *json = read_json(vocab);
    const cJSON *end = member(json, END_OF_TEXT);
    if (end) bpe_add_special(r->bpe, id_of(r, end, END_OF_TEXT), END_OF_TEXT, sizeof END_OF_TEXT - 1);
    take_vocabulary(r, json);
    cJSON_Delete(json);
    read_merges(r, merges);
    add_pattern(r, SPLIT_GPT2);
}

/* --- tokenizer.json ----------------------------------------------------------------------------------------------- */

static void take_split(Reading *r, const cJSON *part) {
    const char *pattern = word_of(member(part, "pattern"), "Regex"), *behaviour = word_of(part, "behavior");
    int         inverted = cJSON_IsTrue(member(part, "invert"));
    if (!*pattern) refuse_part(r, "pre_tokenizer", "Split by a plain string");
    if (!(strcmp(behaviour, "Isolated") == 0 || (strcmp(behaviour, "Removed") == 0 && inverted)))
        refuse_part(r, "pre_tokenizer", "Split with another behavior than Isolated");
    add_pattern(r, pattern);
}

/* Returns whether it maps bytes to characters, as the last part must. */
static int take_pre_tokenizer(Reading *r, const cJSON *part) {
    const char *type = word_of(part, "type");
    if (strcmp(type, "Sequence") == 0) {
        int          is_bytes = 0;
        const cJSON *one;
        cJSON_ArrayForEach(one, member(part, "pretokenizers")) is_bytes |= take_pre_tokenizer(r, one);
        return is_bytes;
    }
    if (strcmp(type, "Split") == 0) {
        take_split(r, part);
        return 0;
    }
    if (strcmp(type, "Digits") == 0) {
        add_pattern(r, cJSON_IsTrue(member(part, "individual_digits")) ? "\\p{N}" : "\\p{N}+");
        return 0;
    }
    if (strcmp(type, "ByteLevel") != 0) refuse_part(r, "pre_tokenizer", *type ? type : "null");
    if (cJSON_IsTrue(member(part, "add_prefix_space"))) refuse_part(r, "pre_tokenizer", "ByteLevel with add_prefix_space");
    if (!cJSON_IsFalse(member(part, "use_regex"))) add_pattern(r, SPLIT_GPT2);
    return 1;
}

static void take_normalizer(Reading *r, const cJSON *part) {
    const char  *type = word_of(part, "type");
    const cJSON *one;
    if (!part || cJSON_IsNull(part)) return;
    if (strcmp(type, "Sequence") == 0) {
        cJSON_ArrayForEach(one, member(part, "normalizers")) take_normalizer(r, one);
    } else if (strcmp(type, "NFC") == 0) {
        r->is_nfc = 1;
    } else {
        refuse_part(r, "normalizer", type);
    }
}

static void take_added(Reading *r, const cJSON *list) {
    static const char *const WIDENING[] = {"single_word", "lstrip", "rstrip"};
    const cJSON *one;
    cJSON_ArrayForEach(one, list) {
        const char *content = word_of(one, "content");
        int32_t     id = id_of(r, member(one, "id"), content);
        for (int i = 0; i < 3; i++)
            if (is_set(one, WIDENING[i]))
                fail(EXIT_DATA, "%s: the added token \"%.*s\" with %s is not built in", r->path, SHOWN, content,
                     WIDENING[i]);
        if (!bpe_add_special(r->bpe, id, content, strlen(content)))
            fail(EXIT_DATA, "%s: the added token \"%.*s\" is empty, or its id %d another token's", r->path, SHOWN, content, id);
    }
}

static void take_merges(Reading *r, const cJSON *list) {
    int32_t rank = 0;
    if (!cJSON_IsArray(list)) fail(EXIT_DATA, "%s: no list of merges", r->path);
    for (cJSON *one = list->child; one; one = one->next, rank++) {
        cJSON *left = cJSON_IsArray(one) ? one->child : NULL;
        char  *space = cJSON_IsString(one) ? strchr(one->valuestring, ' ') : NULL;
        if (space) {
            *space = 0;
            take_merge(r, one->valuestring, space + 1, rank);
        } else if (cJSON_IsString(left) && cJSON_IsString(left->next) && !left->next->next) {
            take_merge(r, left->valuestring, left->next->valuestring, rank);
        } else {
            fail(EXIT_DATA, "%s: merge %d is no pair of tokens", r->path, rank);
        }
    }
}

static void read_tokenizer_json(Reading *r, const char *path) {
    static const char *const OTHER[] = {"byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout"};
    snprintf(r->path, sizeof r->path, "%s", path);
    cJSON       *json = read_json(path);
    const cJSON *model = member(json, "model");
    const char  *type = word_of(model, "type");
    if (*type ? strcmp(type, "BPE") != 0 : !member(model, "merges")) refuse_part(r, "model", *type ? type : "of no type");
    for (int i = 0; i < 4; i++)
        if (is_set(model, OTHER[i])) refuse_part(r, "model", OTHER[i]);
    take_normalizer(r, member(json, "normalizer"));
    if (!take_pre_tokenizer(r, member(json, "pre_tokenizer"))) refuse_part(r, "pre_tokenizer", "without ByteLevel");
    take_added(r, member(json, "added_tokens"));
    take_vocabulary(r, member(model, "vocab"));
    take_merges(r, member(model, "merges"));
    if (cJSON_IsTrue(member(model, "ignore_merges"))) bpe_take_whole(r->bpe);
    cJSON_Delete(json);
}

/* --- NAME.tiktoken ------------------------------------------------------------------------------------------------ */

static int sextet(char c) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(DIGITS, c) : NULL;
    return at ? (int)(at - DIGITS) : -1;
}

/* In place; -1: it is no base64. */
static int64_t from_base64(char *text, size_t count) {
    char    *to = text;
    unsigned bits = 0;
    int      held = 0;
    while (count > 0 && text[count - 1] == '=') count--;
    for (size_t i = 0; i < count; i++) {
        int six = sextet(text[i]);
        if (six < 0) return -1;
        bits = bits << 6 | (unsigned)six, held += 6;
        if (held >= 8) held -= 8, *to++ = (char)(bits >> held & 0xFF);
    }
    return to - text;
}

static void read_tiktoken(Reading *r, const char *path) {
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    char        name[64];
    size_t      bytes;
    snprintf(r->path, sizeof r->path, "%s", path);
    snprintf(name, sizeof name, "%.*s", (int)(strlen(base) - strlen(".tiktoken")), base);
    const char *pattern = split_named(name);
    if (!pattern)
        fail(EXIT_DATA,
             "%s holds no split pattern, and \"%s\" names none: gpt2, r50k_base, p50k_base, cl100k_base, llama3, o200k_base or qwen, "
             "each with .tiktoken after it",
             path, name);
    char *text = read_text(path, &bytes), *line = text;
    for (int number = 1; *line; number++) {
        char *end = line + strcspn(line, "\n"), *next = *end ? end + 1 : end,
             *space = memchr(line, ' ', (size_t)(end - line)), *digits;
        long  id = space ? strtol(space + 1, &digits, 10) : -1;
        int64_t count = space ? from_base64(line, (size_t)(space - line)) : -1;
        if (end > line && (count <= 0 || digits == space + 1 || digits > end || id < 0 || id >= BPE_MOST_IDS ||
                           !bpe_add(r->bpe, (int32_t)id, line, (size_t)count)))
            fail(EXIT_DATA, "%s:%d: a token in base64 and its rank are expected, each once", path, number);
        line = next;
    }
    free(text);
    int missing = bpe_missing_byte(r->bpe);
    if (missing >= 0) fail(EXIT_DATA, "%s: no token is the byte 0x%02x alone, so not every text could be encoded", path, missing);
    bpe_merge_all(r->bpe);
    bpe_take_whole(r->bpe);
    add_pattern(r, pattern);
}

/* --- which of them ------------------------------------------------------------------------------------------------ */

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

static int is_named(const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    return strcmp(slash ? slash + 1 : path, name) == 0;
}

static void read_any(Reading *r, const char *path) {
    struct stat st;
    char        json[PATH_ROOM], vocab[PATH_ROOM], merges[PATH_ROOM];
    int         is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    int         folder = (int)(is_folder ? strlen(path) : strrchr(path, '/') ? (size_t)(strrchr(path, '/') - path) : 0);
    const char *at = folder ? path : ".";
    if (folder == 0) folder = 1;
    snprintf(json, sizeof json, "%.*s/tokenizer.json", folder, at);
    snprintf(vocab, sizeof vocab, "%.*s/vocab.json", folder, at);
    snprintf(merges, sizeof merges, "%.*s/merges.txt", folder, at);
    if (ends_with(path, ".tiktoken") && !is_folder) read_tiktoken(r, path);
    else if (!is_folder && !is_named(path, "vocab.json") && !is_named(path, "merges.txt")) read_tokenizer_json(r, path);
    else if (is_folder && access(json, F_OK) == 0) read_tokenizer_json(r, json);
    else if (access(vocab, F_OK) == 0 && access(merges, F_OK) == 0) read_pair(r, vocab, merges);
    else fail(EXIT_DATA, "%s holds no tokenizer: tokenizer.json, or vocab.json and merges.txt, or name a file NAME.tiktoken", path);
}

BpeFile bpe_file_read(const char *path) {
    static const char *const ENDS[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    Reading r = {.bpe = bpe_create()};
    BpeFile f = {.bpe = r.bpe, .end_of_text = -1};
    char    fault[SPLIT_FAULT_CHARS];
    read_any(&r, path);
    if (!split_create(&f.split, r.pattern, r.patterns, fault)) fail(EXIT_DATA, "%s: %s", r.path, fault);
    for (int i = 0; i < r.patterns; i++) free((char *)r.pattern[i]);
    f.is_nfc = r.is_nfc;
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS && f.end_of_text < 0; i++) f.end_of_text = bpe_find_special(f.bpe, ENDS[i]);
    return f;
}

void bpe_file_free(BpeFile *f) {
    bpe_destroy(f->bpe);
    split_destroy(f->split);
}
