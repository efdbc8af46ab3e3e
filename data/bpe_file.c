/* bpe_file.c - see bpe_file.h. */
#include "data/bpe_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "data/text_file.h"

enum {
    PATH_ROOM = 4400,
    FILE_LIMIT = 1 << 26,    /* bytes: 256 for each of 262,144 tokens */
    TOKEN_LIMIT = 1 << 10,   /* bytes: bpe_merge_all() takes a time that grows with their square */
    PATTERN_LIMIT = 1 << 14, /* bytes: split.c takes twenty times of it */
    SHOWN = 60
};
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
            if (c < 0xC2 || c > 0xDF || at == end || (*at & 0xC0) != 0x80) return -1; /* no UTF-8, or over U+07FF */
            c = (c & 0x1F) << 6 | (*at++ & 0x3F);
        }
        if (c >= 512 || table[c] < 0) return -1;
        *to++ = (unsigned char)table[c];
    }
    return to - (unsigned char *)text;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* A file in the reading. Functions return 1, or 0 once refuse() has put a sentence into fault. */
typedef struct {
    const char *path;                    /* borrowed */
    char       *fault;                   /* borrowed [BPE_FAULT_CHARS] */
    Bpe        *bpe;                     /* owned */
    char       *pattern[SPLIT_PATTERNS]; /* owned */
    int         patterns, is_nfc;
} Reading;

static int refuse(const Reading *r, const char *fmt, ...) PRINTF_LIKE(2, 3);
static int refuse(const Reading *r, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int used = snprintf(r->fault, BPE_FAULT_CHARS, "%.*s", BPE_FAULT_CHARS / 2, r->path);
    vsnprintf(r->fault + used, (size_t)(BPE_FAULT_CHARS - used), fmt, args);
    va_end(args);
    return 0;
}

static int refuse_part(const Reading *r, const char *part, const char *what) {
    return refuse(r,
                  ": its %s, %.*s, is none that is built in; byte-level BPE is read, split by ByteLevel, Split and "
                  "Digits, as it is or in NFC",
                  part, SHOWN, what);
}

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}
static const char  *word_of(const cJSON *object, const char *name) {
    const cJSON *item = member(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}
static int is_set(const cJSON *object, const char *name) { /* neither absent, null, false nor "" */
    const cJSON *item = member(object, name);
    return item && !cJSON_IsNull(item) && !cJSON_IsFalse(item) && !(cJSON_IsString(item) && !item->valuestring[0]);
}

/* From here on it is this file that is read. */
static int begin(Reading *r, const BpeText *file) {
    r->path = file->path;
    return !memchr(file->text, 0, file->bytes) || refuse(r, " is no text: it holds bytes of zero");
}

static cJSON *json_of(Reading *r, const BpeText *file) {
    const char *end = NULL;
    int         line = 1;
    if (!begin(r, file)) return NULL;
    errno = 0;
    cJSON *json = cJSON_ParseWithLengthOpts(file->text, file->bytes, &end, 0);
    if (cJSON_IsObject(json)) return json;
    if (!json && errno == ENOMEM) fail(EXIT_MEMORY, "no memory for the tokenizer's file %s", file->path);
    for (const char *c = file->text; end && c < end; c++) line += *c == '\n';
    cJSON_Delete(json);
    refuse(r, ":%d: not the JSON object of a tokenizer", line);
    return NULL;
}

/* -1: none, refused. */
static int32_t take_id(const Reading *r, const cJSON *item, const char *what) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < BPE_MOST_IDS) ||
        item->valuedouble != (double)(int32_t)item->valuedouble)
        return refuse(r, ": %.*s has no id from 0 to %d", SHOWN, what, BPE_MOST_IDS - 1), -1;
    return (int32_t)item->valuedouble;
}

static int add_pattern(Reading *r, const char *pattern) {
    if (r->patterns == SPLIT_PATTERNS) return refuse_part(r, "pre_tokenizer", "of so many parts");
    if (strlen(pattern) > PATTERN_LIMIT) return refuse_part(r, "pre_tokenizer", "Split by so long a pattern");
    char *own = strdup(pattern);
    if (!own) fail(EXIT_MEMORY, "no memory for a tokenizer's pattern");
    r->pattern[r->patterns++] = own;
    return 1;
}

static int has_all_bytes(const Reading *r) {
    int missing = bpe_missing_byte(r->bpe);
    return missing < 0 || refuse(r, ": no token is the byte 0x%02x alone, so not every text could be encoded", missing);
}

/* {"!": 0, "\"": 1, ...} */
static int take_vocabulary(Reading *r, const cJSON *vocab) {
    if (!cJSON_IsObject(vocab)) return refuse(r, ": no vocabulary, an object of tokens and their ids");
    for (cJSON *item = vocab->child; item; item = item->next) {
        char    shown[SHOWN + 1];
        int32_t id = take_id(r, item, item->string);
        if (id < 0) return 0;
        if (bpe_is_special(r->bpe, id, item->string, strlen(item->string))) continue;
        snprintf(shown, sizeof shown, "%s", item->string);
        int64_t count = to_bytes(item->string, strlen(item->string));
        if (count < 0) return refuse(r, ": the token \"%s\" is not of byte-level BPE", shown);
        if (!bpe_add(r->bpe, id, item->string, (size_t)count))
            return refuse(r, ": the token \"%s\", or its id %d, stands twice", shown, id);
    }
    return has_all_bytes(r);
}

static int take_merge(const Reading *r, char *left, char *right, int32_t rank) {
    char    joined[TOKEN_LIMIT], shown[2 * SHOWN + 2];
    snprintf(shown, sizeof shown, "%.*s %.*s", SHOWN, left, SHOWN, right);
    int64_t l = to_bytes(left, strlen(left)), n = to_bytes(right, strlen(right));
    int32_t a = l > 0 ? bpe_find(r->bpe, left, (size_t)l) : -1, b = n > 0 ? bpe_find(r->bpe, right, (size_t)n) : -1,
            id = -1;
    if (a >= 0 && b >= 0 && (size_t)(l + n) <= sizeof joined) {
        memcpy(joined, left, (size_t)l), memcpy(joined + l, right, (size_t)n);
        id = bpe_find(r->bpe, joined, (size_t)(l + n));
    }
    if (a >= 0 && b >= 0 && (size_t)(l + n) > sizeof joined)
        return refuse(r, ": merge %d, \"%s\", makes a token of %lld bytes, and %d is the most that is read", rank,
                      shown, (long long)(l + n), TOKEN_LIMIT);
    if (id < 0)
        return refuse(r,
                      ": merge %d, \"%s\", makes no token of the vocabulary: vocabulary and merges are of two "
                      "tokenizers",
                      rank, shown);
    bpe_add_merge(r->bpe, a, b, rank, id);
    return 1;
}

/* --- vocab.json and merges.txt ------------------------------------------------------------------------------------ */

static int read_merges(Reading *r, const BpeText *file) {
    int32_t rank = 0;
    if (!begin(r, file)) return 0;
    for (char *line = file->text, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        if (*end) *end++ = 0;
        line[strcspn(line, "\r")] = 0;
        char *space = strchr(line, ' ');
        if (!*line || strncmp(line, "#version", 8) == 0) continue;
        if (!space || strchr(space + 1, ' '))
            return refuse(r, ": merge %d is not two tokens with a space between: \"%.*s\"", rank, SHOWN, line);
        *space = 0;
        if (!take_merge(r, line, space + 1, rank++)) return 0;
    }
    return 1;
}

static int read_vocabulary(Reading *r, const cJSON *json) {
    const cJSON *end = member(json, END_OF_TEXT);
    int32_t      id = end ? take_id(r, end, END_OF_TEXT) : 0;
    if (id < 0) return 0;
    if (end) bpe_add_special(r->bpe, id, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    return take_vocabulary(r, json);
}

static int read_pair(Reading *r, const BpeText *vocab, const BpeText *merges) {
    cJSON *json = json_of(r, vocab);
    int    is_good = json && read_vocabulary(r, json);
    cJSON_Delete(json);
    return is_good && read_merges(r, merges) && add_pattern(r, SPLIT_GPT2);
}

/* --- tokenizer.json ----------------------------------------------------------------------------------------------- */

static int take_split(Reading *r, const cJSON *part) {
    const char *pattern = word_of(member(part, "pattern"), "Regex"), *behaviour = word_of(part, "behavior");
    int         inverted = cJSON_IsTrue(member(part, "invert"));
    if (!*pattern) return refuse_part(r, "pre_tokenizer", "Split by a plain string");
    if (!(strcmp(behaviour, "Isolated") == 0 || (strcmp(behaviour, "Removed") == 0 && inverted)))
        return refuse_part(r, "pre_tokenizer", "Split with another behavior than Isolated");
    return add_pattern(r, pattern);
}

/* Sets *is_bytes where it maps bytes to characters, as one part must. */
static int take_pre_tokenizer(Reading *r, const cJSON *part, int *is_bytes) {
    const char *type = word_of(part, "type");
    if (strcmp(type, "Sequence") == 0) {
        const cJSON *one;
        cJSON_ArrayForEach(one, member(part, "pretokenizers")) if (!take_pre_tokenizer(r, one, is_bytes)) return 0;
        return 1;
    }
    if (strcmp(type, "Split") == 0) return take_split(r, part);
    if (strcmp(type, "Digits") == 0)
        return add_pattern(r, cJSON_IsTrue(member(part, "individual_digits")) ? "\\p{N}" : "\\p{N}+");
    if (strcmp(type, "ByteLevel") != 0) return refuse_part(r, "pre_tokenizer", *type ? type : "null");
    if (cJSON_IsTrue(member(part, "add_prefix_space")))
        return refuse_part(r, "pre_tokenizer", "ByteLevel with add_prefix_space");
    *is_bytes = 1;
    return cJSON_IsFalse(member(part, "use_regex")) || add_pattern(r, SPLIT_GPT2);
}

static int take_normalizer(Reading *r, const cJSON *part) {
    const char  *type = word_of(part, "type");
    const cJSON *one;
    if (!part || cJSON_IsNull(part)) return 1;
    if (strcmp(type, "Sequence") == 0) {
        cJSON_ArrayForEach(one, member(part, "normalizers")) if (!take_normalizer(r, one)) return 0;
        return 1;
    }
    if (strcmp(type, "NFC") != 0) return refuse_part(r, "normalizer", type);
    r->is_nfc = 1;
    return 1;
}

static int take_added(Reading *r, const cJSON *list) {
    static const char *const WIDENING[] = {"single_word", "lstrip", "rstrip"};
    const cJSON *one;
    cJSON_ArrayForEach(one, list) {
        const char *content = word_of(one, "content");
        int32_t     id = take_id(r, member(one, "id"), content);
        if (id < 0) return 0;
        for (int i = 0; i < 3; i++)
            if (is_set(one, WIDENING[i]))
                return refuse(r, ": the added token \"%.*s\" with %s is not built in", SHOWN, content, WIDENING[i]);
        if (!bpe_add_special(r->bpe, id, content, strlen(content)))
            return refuse(r, ": the added token \"%.*s\" is empty, or its id %d another token's", SHOWN, content, id);
    }
    return 1;
}

static int take_merges(Reading *r, const cJSON *list) {
    int32_t rank = 0;
    if (!cJSON_IsArray(list)) return refuse(r, ": no list of merges");
    for (cJSON *one = list->child; one; one = one->next, rank++) {
        cJSON *left = cJSON_IsArray(one) ? one->child : NULL, *right = left ? left->next : NULL;
        char  *space = cJSON_IsString(one) ? strchr(one->valuestring, ' ') : NULL;
        int    is_pair = cJSON_IsString(left) && cJSON_IsString(right) && !right->next;
        if (!space && !is_pair) return refuse(r, ": merge %d is no pair of tokens", rank);
        if (space) *space = 0;
        if (!take_merge(r, space ? one->valuestring : left->valuestring, space ? space + 1 : right->valuestring, rank))
            return 0;
    }
    return 1;
}

static int read_model(Reading *r, const cJSON *json) {
    static const char *const OTHER[] = {"byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout"};
    const cJSON *model = member(json, "model");
    const char  *type = word_of(model, "type");
    int          is_bytes = 0;
    if (*type ? strcmp(type, "BPE") != 0 : !member(model, "merges"))
        return refuse_part(r, "model", *type ? type : "of no type");
    for (int i = 0; i < 4; i++)
        if (is_set(model, OTHER[i])) return refuse_part(r, "model", OTHER[i]);
    if (!take_normalizer(r, member(json, "normalizer")) ||
        !take_pre_tokenizer(r, member(json, "pre_tokenizer"), &is_bytes))
        return 0;
    if (!is_bytes) return refuse_part(r, "pre_tokenizer", "without ByteLevel");
    if (cJSON_IsTrue(member(model, "ignore_merges"))) bpe_take_whole(r->bpe);
    return take_added(r, member(json, "added_tokens")) && take_vocabulary(r, member(model, "vocab")) &&
           take_merges(r, member(model, "merges"));
}

static int read_tokenizer_json(Reading *r, const BpeText *file) {
    cJSON *json = json_of(r, file);
    int    is_good = json && read_model(r, json);
    cJSON_Delete(json);
    return is_good;
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

static int read_tiktoken(Reading *r, const BpeText *file) {
    const char *base = strrchr(file->path, '/') ? strrchr(file->path, '/') + 1 : file->path;
    char        name[64];
    if (!begin(r, file)) return 0;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(base) - strlen(".tiktoken")), base);
    const char *pattern = split_named(name);
    if (!pattern)
        return refuse(r,
                      " holds no split pattern, and \"%s\" names none: gpt2, r50k_base, p50k_base, cl100k_base, "
                      "llama3, o200k_base or qwen, each with .tiktoken after it",
                      name);
    int number = 1;
    for (char *line = file->text, *next; *line; line = next, number++) {
        char *end = line + strcspn(line, "\n"), *space = memchr(line, ' ', (size_t)(end - line)), *digits = line;
        next = *end ? end + 1 : end;
        if (end > line && end[-1] == '\r') end--;
        long    id = space ? strtol(space + 1, &digits, 10) : -1;
        int64_t count = space ? from_base64(line, (size_t)(space - line)) : -1;
        if (count > TOKEN_LIMIT)
            return refuse(r, ":%d: a token of %lld bytes, and %d is the most that is read", number, (long long)count,
                          TOKEN_LIMIT);
        if (end > line && (count <= 0 || digits != end || id < 0 || id >= BPE_MOST_IDS ||
                           !bpe_add(r->bpe, (int32_t)id, line, (size_t)count)))
            return refuse(r, ":%d: a token in base64 and its rank are expected, each once", number);
    }
    if (!has_all_bytes(r)) return 0;
    bpe_merge_all(r->bpe);
    bpe_take_whole(r->bpe);
    return add_pattern(r, pattern);
}

int bpe_file_parse(BpeKind kind, const BpeText text[2], BpeFile *f, char fault[BPE_FAULT_CHARS]) {
    static const char *const ENDS[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    Reading r = {.fault = fault, .bpe = bpe_create()};
    char    why[SPLIT_FAULT_CHARS];
    int     is_good = 0;
    *f = (BpeFile){.bpe = r.bpe, .end_of_text = -1};
    switch (kind) {
    case BPE_TOKENIZER_JSON:   is_good = read_tokenizer_json(&r, &text[0]); break;
    case BPE_VOCAB_AND_MERGES: is_good = read_pair(&r, &text[0], &text[1]); break;
    case BPE_TIKTOKEN:         is_good = read_tiktoken(&r, &text[0]); break;
    }
    if (is_good && !split_create(&f->split, (const char *const *)r.pattern, r.patterns, why)) is_good = refuse(&r, ": %s", why);
    int keeps = is_good && kind != BPE_TOKENIZER_JSON; /* only a tokenizer.json says it itself */
    f->pattern = keeps ? r.pattern[0] : NULL;
    for (int i = keeps; i < r.patterns; i++) free(r.pattern[i]);
    f->is_nfc = r.is_nfc;
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS && f->end_of_text < 0; i++)
        f->end_of_text = bpe_find_special(f->bpe, ENDS[i]);
    if (!is_good) bpe_destroy(f->bpe);
    return is_good;
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

static BpeText read_text(const char *path) {
    char   *text;
    int64_t n = io_read_file(path, FILE_LIMIT, &text);
    if (n == -ENOENT) fail(EXIT_DATA, "the tokenizer's file %s is not there", path);
    if (n == -EFBIG)
        fail(EXIT_DATA, "the tokenizer's file %s is larger than %d MiB, the most that is read", path, FILE_LIMIT >> 20);
    if (n < 0) fail(EXIT_IO, "the tokenizer's file %s cannot be read: %s", path, strerror((int)-n));
    char   fault[TEXT_FILE_FAULT_CHARS];
    size_t bytes = (size_t)n;
    int    exit_code = text_clean(&text, &bytes, FILE_LIMIT, fault);
    if (exit_code) fail(exit_code, "the tokenizer's file %s %s", path, fault);
    return (BpeText){path, text, bytes};
}

static BpeFile read_files(BpeKind kind, const char *first, const char *second) {
    char    fault[BPE_FAULT_CHARS];
    BpeText text[2] = {read_text(first), {NULL, NULL, 0}};
    BpeFile f;
    if (second) text[1] = read_text(second);
    char *as_read = kind == BPE_TOKENIZER_JSON ? strdup(text[0].text) : NULL; /* parsing writes into it */
    if (kind == BPE_TOKENIZER_JSON && !as_read) fail(EXIT_MEMORY, "no memory for the tokenizer's file %s", first);
    if (!bpe_file_parse(kind, text, &f, fault)) fail(EXIT_DATA, "%s", fault);
    f.json = as_read;
    free(text[0].text), free(text[1].text);
    return f;
}

BpeFile bpe_file_read(const char *path) {
    struct stat st;
    char        json[PATH_ROOM], vocab[PATH_ROOM], merges[PATH_ROOM];
    int         is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    int         folder = (int)(is_folder ? strlen(path) : strrchr(path, '/') ? (size_t)(strrchr(path, '/') - path) : 0);
    const char *at = folder ? path : ".";
    if (folder == 0) folder = 1;
    snprintf(json, sizeof json, "%.*s/tokenizer.json", folder, at);
    snprintf(vocab, sizeof vocab, "%.*s/vocab.json", folder, at);
    snprintf(merges, sizeof merges, "%.*s/merges.txt", folder, at);
    if (ends_with(path, ".tiktoken") && !is_folder) return read_files(BPE_TIKTOKEN, path, NULL);
    if (!is_folder && !is_named(path, "vocab.json") && !is_named(path, "merges.txt"))
        return read_files(BPE_TOKENIZER_JSON, path, NULL);
    if (is_folder && access(json, F_OK) == 0) return read_files(BPE_TOKENIZER_JSON, json, NULL);
    if (access(vocab, F_OK) == 0 && access(merges, F_OK) == 0) return read_files(BPE_VOCAB_AND_MERGES, vocab, merges);
    fail(EXIT_DATA, "%s holds no tokenizer: tokenizer.json, or vocab.json and merges.txt, or name a file NAME.tiktoken",
         path);
}

void bpe_file_free(BpeFile *f) {
    bpe_destroy(f->bpe);
    split_destroy(f->split);
    free(f->json);
    free(f->pattern);
}
