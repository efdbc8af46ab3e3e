/* bpe_file.c - see bpe_file.h. */
#include "data/bpe_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/format.h"
#include "data/text_file.h"

enum {
    PATH_ROOM = 4400,
    FILE_LIMIT = 1 << 26,    /* largest file of a tokenizer in bytes: 256 for each of 262,144 tokens */
    TOKEN_LIMIT = 1 << 10,   /* most bytes of a token, because the time of bpe_merge_all() grows with their square */
    /* most bytes of a pattern that splits text, because split.c needs twenty times as much memory */
    PATTERN_LIMIT = 1 << 14,
    SHOWN = 60
};
static const char END_OF_TEXT[] = "<|endoftext|>";

/* --- bytes as characters ------------------------------------------------------------------------------------------ */

/* Returns whether a byte represents itself in vocab.json and tokenizer.json, as the 188 printable ones of Latin-1 do.
 * The other bytes are represented, in order, by U+0100 and the next characters (openai/gpt-2, encoder.py). */
static int is_printable(int byte) { return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174; }

void bpe_character(int byte, char out[4]) {
    unsigned character = (unsigned)byte;
    if (!is_printable(byte)) {
        character = 256;
        for (int b = 0; b < byte; b++) character += !is_printable(b);
    }
    if (character < 0x80) snprintf(out, 4, "%c", (int)character);
    else snprintf(out, 4, "%c%c", (int)(0xC0 | character >> 6), (int)(0x80 | (character & 0x3F)));
}

/* Replaces characters by the bytes that they represent in vocab.json, in place. Returns the number of bytes, or -1 if a
 * character represents none. */
static int64_t to_bytes(char *text, size_t count) {
    static int16_t table[512]; /* byte that each character represents in vocab.json, -1 if none */
    if (table['a'] == 0) {
        int next = 256;
        memset(table, 0xFF, sizeof table);
        for (int byte = 0; byte < 256; byte++) table[is_printable(byte) ? byte : next++] = (int16_t)byte;
    }
    unsigned char *at = (unsigned char *)text, *to = at, *end = at + count;
    while (at < end) {
        unsigned c = *at++;
        if (c >= 0x80) {
            /* not UTF-8, or a character over U+07FF, which represents no byte */
            if (c < 0xC2 || c > 0xDF || at == end || (*at & 0xC0) != 0x80) return -1;
            c = (c & 0x1F) << 6 | (*at++ & 0x3F);
        }
        if (c >= 512 || table[c] < 0) return -1;
        *to++ = (unsigned char)table[c];
    }
    return to - (unsigned char *)text;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* State of the parser of a tokenizer's files. Its functions return 1, or 0 after refuse() has written a sentence into
 * fault. */
typedef struct {
    const char *path;                    /* borrowed: the file that is parsed, for messages */
    char       *fault;                   /* borrowed [BPE_FAULT_CHARS]: gets the sentence of a fault */
    BpeFile    *f;                       /* borrowed: the tokenizer, as far as it has been read */
    Bpe        *bpe;                     /* owned by f: the vocabulary and its merges */
    SplitRule   rule[SPLIT_RULES];       /* [rules] patterns that split text; the strings of the patterns are owned */
    int         rules, entries;          /* entries: number of tokens in the vocabulary */
    uint8_t    *is_entry; /* owned [BPE_MOST_IDS]: 1 for added tokens that are also in the vocabulary; NULL if none */
    int32_t    *plain;    /* owned [plains]: tokens of is_entry whose text is their bytes, so merges may make them */
    int         plains;
} Reading;

PRINTF_LIKE(2, 3) static int refuse(const Reading *r, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    int used = snprintf(r->fault, BPE_FAULT_CHARS, "%.*s", BPE_FAULT_CHARS / 2, r->path);
    vsnprintf(r->fault + used, (size_t)(BPE_FAULT_CHARS - used), fmt, args);
    va_end(args);
    return 0;
}

#define HELP_JSON \
    "name the tokenizer.json of a byte-level BPE instead, or make a tokenizer by ./train_gpt train-tokenizer TEXT " \
    "out=FOLDER vocab_size=32000"

static int refuse_part(const Reading *r, const char *part, const char *what) {
    return refuse(r, ": its part \"%s\" (%.*s) is not supported; supported is byte-level BPE, split by ByteLevel, "
                  "Split and Digits, without normalization or in NFC, NFD, NFKC or NFKD: " HELP_JSON,
                  part, SHOWN, what);
}

/* Adds a line about something in the tokenizer's file that is not used. The caller prints it as a warning. */
PRINTF_LIKE(2, 3) static void note(const Reading *r, const char *fmt, ...) {
    char    line[400];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    size_t had = r->f->notes ? strlen(r->f->notes) : 0, room = had + strlen(r->path) + strlen(line) + 4;
    r->f->notes = xrealloc(r->f->notes, room, "a tokenizer");
    snprintf(r->f->notes + had, room - had, "%s%s: %s", had ? "\n" : "", r->path, line);
}

static const char *word_of(const cJSON *object, const char *name) {
    const cJSON *item = json_member(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}
/* Returns 1 if the "type" of this object of tokenizer.json is `name`. */
static int is_of_type(const cJSON *part, const char *name) { return strcmp(word_of(part, "type"), name) == 0; }
/* returns 1 unless the member of the object is absent, null, false or "" */
static int is_set(const cJSON *object, const char *name) {
    const cJSON *item = json_member(object, name);
    return item && !cJSON_IsNull(item) && !cJSON_IsFalse(item) && !(cJSON_IsString(item) && !item->valuestring[0]);
}

/* Begins to parse a file of a tokenizer. Messages name this file from now on. */
static int begin(Reading *r, const BpeText *file) {
    r->path = file->path;
    return !memchr(file->text, 0, file->bytes) || refuse(r, " is not text: it holds zero bytes; download it again");
}

/* Refuses text that is not JSON, with the place where a strict parser stops. Returns 0. */
static int refuse_json(const Reading *r, const BpeText *file) {
    Json        json;
    JsonFault   fault;
    size_t      bytes = file->bytes;
    const char *at = file->text;
    if (json_parse_all(file->text, file->bytes, file->bytes + 1, "", &json, &fault)) {
        json_free(&json);
        return refuse(r, ": this file is not the JSON object of a tokenizer: download it again");
    }
    for (int line = 1; line < fault.at.line; line++) at = strchr(at, '\n') + 1;
    while (bytes > 0 && strchr(" \t\r\n", file->text[bytes - 1])) bytes--;
    at += fault.at.column - 1;
    int is_in_string = *at == '"' && !strchr(at + 1, '"'); /* a string without an end is reported where it begins */
    if (at >= file->text + bytes || is_in_string)
        return refuse(r, ":%d: the file ends in the middle of its JSON: it was cut off, download it again",
                      fault.at.line);
    return refuse(r, ":%d: column %d: %s: the file was changed by hand or damaged; correct it there, or download the "
                  "file again",
                  fault.at.line, fault.at.column, fault.text);
}

static cJSON *json_of(Reading *r, const BpeText *file) {
    if (!begin(r, file)) return NULL;
    cJSON *json = json_of_others(file->text, file->bytes);
    if (cJSON_IsObject(json)) return json;
    const char *first = file->text + strspn(file->text, " \t\r\n");
    cJSON_Delete(json);
    if (!*first) refuse(r, " is empty: download it again");
    else if (*first == '<')
        refuse(r, " is a web page, not the JSON of a tokenizer: the download failed, download it again");
    else if (*first == '{') refuse_json(r, file);
    else if (strncmp(first, "[PAD]", 5) == 0 || strstr(first, "\n[UNK]") || strstr(first, "\n[CLS]"))
        refuse(r, " is a vocabulary of WordPiece, as BERT has it, which is not read: " HELP_JSON);
    else refuse(r, ": this file is not the JSON object of a tokenizer: " HELP_JSON);
    return NULL;
}

/* Returns the id of a token in a JSON item. Returns -1 after refusing the item if it is no id. */
static int32_t take_id(const Reading *r, const cJSON *item, const char *what) {
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < BPE_MOST_IDS) ||
        item->valuedouble != (double)(int32_t)item->valuedouble)
        return refuse(r, ": the token \"%.*s\" has no id, which is a whole number from 0 to %d: download the file "
                      "again", SHOWN, what, BPE_MOST_IDS - 1), -1;
    return (int32_t)item->valuedouble;
}

static int add_rule(Reading *r, const char *pattern, SplitBehavior behavior, int is_inverted) {
    if (r->rules == SPLIT_RULES) return refuse_part(r, "pre_tokenizer", "of too many parts");
    if (strlen(pattern) > PATTERN_LIMIT) return refuse_part(r, "pre_tokenizer", "Split with too long a pattern");
    r->rule[r->rules++] = (SplitRule){xstrdup(pattern, "a tokenizer's pattern"), behavior, is_inverted};
    return 1;
}

static int has_all_bytes(const Reading *r) {
    int missing = bpe_missing_byte(r->bpe);
    return missing < 0 ||
           refuse(r, ": no token is the byte 0x%02x alone, so not every text could be encoded: " HELP_JSON, missing);
}

/* Appends to r->plain the id of an added token that the vocabulary also has, if its text is printable ASCII without
 * spaces, which byte-level BPE writes as it is. Enters a token of one character as a special token at once. */
static void take_plain(Reading *r, int32_t id, const char *text) {
    size_t n = strlen(text);
    for (size_t i = 0; i < n; i++)
        if (text[i] < 33 || text[i] > 126) return;
    if (n == 1) bpe_enter_special(r->bpe, id);
    r->plain = xrealloc(r->plain, sizeof *r->plain * (size_t)(r->plains + 1), "a tokenizer");
    r->plain[r->plains++] = id;
}

/* Returns the id of the token with these bytes, or -1. An added token that is also in the vocabulary becomes a token
 * that merges may make when a merge needs it. */
static int32_t find_token(const Reading *r, const char *bytes, size_t count) {
    int32_t id = bpe_find(r->bpe, bytes, count);
    for (int i = 0; id < 0 && i < r->plains; i++) {
        size_t      own;
        const char *text = bpe_bytes(r->bpe, r->plain[i], &own);
        if (own == count && memcmp(text, bytes, count) == 0) bpe_enter_special(r->bpe, id = r->plain[i]);
    }
    return id;
}

/* Reads the vocabulary of a tokenizer, an object such as {"!": 0, "\"": 1}. */
static int take_vocabulary(Reading *r, const cJSON *vocab) {
    if (!cJSON_IsObject(vocab))
        return refuse(r, ": there is no vocabulary (\"vocab\"), an object of tokens and their ids, {\"a\": 64, ...}: "
                      "download the file again");
    for (cJSON *item = vocab->child; item; item = item->next) {
        char    shown[SHOWN + 1];
        int32_t id = take_id(r, item, item->string);
        if (id < 0) return 0;
        r->entries++;
        if (bpe_is_special(r->bpe, id, item->string, strlen(item->string))) {
            if (r->is_entry) r->is_entry[id] = 1;
            take_plain(r, id, item->string);
            continue;
        }
        snprintf(shown, sizeof shown, "%s", item->string);
        int64_t count = to_bytes(item->string, strlen(item->string));
        if (count < 0) return refuse(r, ": the token \"%s\" is not of byte-level BPE: " HELP_JSON, shown);
        if (!bpe_add(r->bpe, id, item->string, (size_t)count))
            return refuse(r, ": the token \"%s\", or its id %d, is in the vocabulary twice: remove one of the two, or "
                          "download the file again",
                          shown, id);
    }
    return has_all_bytes(r);
}

static int take_merge(const Reading *r, char *left, char *right, int32_t rank) {
    char    joined[TOKEN_LIMIT], shown[2 * SHOWN + 2];
    snprintf(shown, sizeof shown, "%.*s %.*s", SHOWN, left, SHOWN, right);
    int64_t l = to_bytes(left, strlen(left)), n = to_bytes(right, strlen(right));
    int32_t a = l > 0 ? find_token(r, left, (size_t)l) : -1, b = n > 0 ? find_token(r, right, (size_t)n) : -1, id = -1;
    if (a >= 0 && b >= 0) {
        if ((size_t)(l + n) > sizeof joined)
            return refuse(r, ": merge %d, \"%s\", makes a token of %lld bytes; the limit is %d: " HELP_JSON, rank,
                          shown, (long long)(l + n), TOKEN_LIMIT);
        memcpy(joined, left, (size_t)l), memcpy(joined + l, right, (size_t)n);
        id = find_token(r, joined, (size_t)(l + n));
    }
    if (id < 0)
        return refuse(r, ": merge %d, \"%s\", makes no token of the vocabulary: vocabulary and merges are of two "
                      "tokenizers; download both from the same place", rank, shown);
    bpe_add_merge(r->bpe, a, b, rank, id);
    return 1;
}

/* Adds a note about tokens that no merge makes, so that no text would ever contain them. A download that was cut off
 * leaves such tokens. */
static void note_unmade(const Reading *r) {
    int32_t *pair, unmade = 0;
    int64_t  merges = bpe_merges(r->bpe, &pair);
    free(pair);
    for (int32_t id = 0; id < bpe_ids(r->bpe); id++) {
        size_t bytes = 0;
        unmade += bpe_bytes(r->bpe, id, &bytes) && bytes > 1 && !bpe_id_is_special(r->bpe, id);
    }
    if (unmade > merges)
        note(r, "%lld merges make at most as many of the %d tokens that are longer than a byte: the others are in no "
             "text; if the file was cut or is empty, download it again", (long long)merges, unmade);
}

/* --- vocab.json and merges.txt ------------------------------------------------------------------------------------ */

static int read_pair(Reading *r, const BpeText *vocab, const BpeText *merges) {
    cJSON       *json = json_of(r, vocab);
    const cJSON *end = json_member(json, END_OF_TEXT);
    int32_t      id = end ? take_id(r, end, END_OF_TEXT) : -1;
    if (id >= 0) bpe_add_special(r->bpe, id, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    int is_good = json && (!end || id >= 0) && take_vocabulary(r, json);
    cJSON_Delete(json);
    if (!is_good || !begin(r, merges)) return 0;
    int32_t rank = 0;
    for (char *line = merges->text, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next) *next++ = 0;
        char *cr = strchr(line, '\r');
        if (cr && cr[1]) {
            refuse(r, " has a carriage return within a line: $ tr '\\r' '\\n' < FILE > NEW makes lines of them");
            shell_read_file(r->fault, BPE_FAULT_CHARS, (ShellFile){.path = r->path, .unpack = merges->unpack});
            return 0;
        }
        if (cr) *cr = 0;
        char *space = strchr(line, ' ');
        if (!*line || strncmp(line, "#version", 8) == 0) continue;
        if (!space || strchr(space + 1, ' '))
            return refuse(r, ": merge %d is not two tokens with a space between: \"%.*s\"; correct the line, or "
                          "download the file again", rank, SHOWN, line);
        *space = 0;
        if (!take_merge(r, line, space + 1, rank++)) return 0;
    }
    note_unmade(r);
    return add_rule(r, SPLIT_GPT2, SPLIT_ISOLATED, 0);
}

/* --- tokenizer.json ----------------------------------------------------------------------------------------------- */

/* Every member that a tokenizer.json may have, in each of its objects. Any other member is refused. Those in `inert`
 * change neither the ids of a text nor the text of an id. The reasons are that a text is never cut or padded, every
 * byte is a token, and offsets are not used. */
static const struct { const char *object, *used[9], *inert[2]; } KNOWN[] = {
    {"the file", {"version", "added_tokens", "normalizer", "pre_tokenizer", "post_processor", "decoder", "model"},
     {"truncation", "padding"}},
    {"an added token", {"id", "content", "normalized", "single_word", "lstrip", "rstrip"}, {"special"}},
    {"BPE", {"type", "vocab", "merges", "ignore_merges", "dropout", "continuing_subword_prefix", "end_of_word_suffix",
             "byte_fallback"}, {"unk_token", "fuse_unk"}},
    {"Sequence", {"type", "pretokenizers", "normalizers", "processors"}, {NULL}},
    {"Split", {"type", "pattern", "behavior", "invert"}, {NULL}},
    {"Digits", {"type", "individual_digits"}, {NULL}},
    {"ByteLevel", {"type", "use_regex", "add_prefix_space"}, {"trim_offsets"}},
    {"NFC", {"type"}, {NULL}}, {"NFD", {"type"}, {NULL}}, {"NFKC", {"type"}, {NULL}}, {"NFKD", {"type"}, {NULL}},
    {"TemplateProcessing", {"type", "single", "special_tokens"}, {"pair"}},
    {"RobertaProcessing", {"type", "cls", "sep"}, {"trim_offsets", "add_prefix_space"}},
    {"BertProcessing", {"type", "cls", "sep"}, {NULL}}};

static int has_known_members(const Reading *r, const cJSON *object, const char *name) {
    const cJSON *one;
    cJSON_ArrayForEach(one, object) {
        const char *own = one->string ? one->string : "";
        int         known = 0;
        for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++) {
            if (strcmp(KNOWN[i].object, name) != 0) continue;
            for (int k = 0; k < 9 && KNOWN[i].used[k]; k++) known |= strcmp(KNOWN[i].used[k], own) == 0;
            for (int k = 0; k < 2 && KNOWN[i].inert[k]; k++) known |= strcmp(KNOWN[i].inert[k], own) == 0;
        }
        if (!known)
            return refuse(r, ": %s has the member \"%.*s\", which is not supported and may change ids. If it has no "
                          "effect, remove it", name, SHOWN, own);
    }
    return 1;
}

static int take_split(Reading *r, const cJSON *part) {
    static const char *const BEHAVIORS[] = {
        [SPLIT_ISOLATED] = "Isolated", [SPLIT_REMOVED] = "Removed", [SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
        [SPLIT_WITH_NEXT] = "MergedWithNext", [SPLIT_CONTIGUOUS] = "Contiguous"};
    const cJSON *pattern = json_member(part, "pattern"), *one = cJSON_IsObject(pattern) ? pattern->child : NULL;
    const char  *behavior = word_of(part, "behavior");
    int          kind = 0, is_text = one && strcmp(one->string, "String") == 0;
    while (kind <= SPLIT_CONTIGUOUS && strcmp(behavior, BEHAVIORS[kind]) != 0) kind++;
    if (kind > SPLIT_CONTIGUOUS) return refuse_part(r, "pre_tokenizer", "Split with an unknown behavior");
    if (!cJSON_IsString(one) || one->next || (!is_text && strcmp(one->string, "Regex") != 0))
        return refuse_part(r, "pre_tokenizer", "Split without a Regex or a String");
    /* escapes characters with a meaning in a regular expression, because a String in tokenizer.json matches
     * literally */
    char *regex = xmalloc(2 * strlen(one->valuestring) + 1, "a tokenizer's pattern"), *to = regex;
    for (const char *from = one->valuestring; *from; *to++ = *from++)
        if (is_text && strchr("\\.+*?()|[]{}^$", *from)) *to++ = '\\';
    *to = 0;
    int is_good = add_rule(r, regex, (SplitBehavior)kind, cJSON_IsTrue(json_member(part, "invert")));
    free(regex);
    return is_good;
}

/* Reads a pre_tokenizer of tokenizer.json. Sets *is_bytes if it maps bytes to characters, which exactly one part of the
 * pre_tokenizer must do. */
static int take_pre_tokenizer(Reading *r, const cJSON *part, int *is_bytes) {
    const char *type = word_of(part, "type");
    int is_sequence = is_of_type(part, "Sequence"), is_split = is_of_type(part, "Split"),
        is_digits = is_of_type(part, "Digits");
    if (!is_sequence && !is_split && !is_digits && !is_of_type(part, "ByteLevel"))
        return refuse_part(r, "pre_tokenizer", *type ? type : "null");
    if (!has_known_members(r, part, type)) return 0;
    if (is_sequence) {
        const cJSON *one;
        cJSON_ArrayForEach(one, json_member(part, "pretokenizers")) if (!take_pre_tokenizer(r, one, is_bytes)) return 0;
        return 1;
    }
    if (*is_bytes) return refuse_part(r, "pre_tokenizer", "with a part after ByteLevel");
    if (is_split) return take_split(r, part);
    if (is_digits)
        return add_rule(r, cJSON_IsTrue(json_member(part, "individual_digits")) ? "\\p{N}" : "\\p{N}+",
                        SPLIT_ISOLATED, 0);
    if (cJSON_IsTrue(json_member(part, "add_prefix_space")))
        return refuse_part(r, "pre_tokenizer", "ByteLevel with add_prefix_space");
    *is_bytes = 1;
    return cJSON_IsFalse(json_member(part, "use_regex")) || add_rule(r, SPLIT_GPT2, SPLIT_ISOLATED, 0);
}

static int take_normalizer(Reading *r, const cJSON *part) {
    static const struct { const char *name; int options; } FORMS[] = {
        {"NFC", UTF8PROC_COMPOSE}, {"NFD", UTF8PROC_DECOMPOSE}, {"NFKC", UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
        {"NFKD", UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
    const char  *type = word_of(part, "type");
    const cJSON *one;
    if (!part || cJSON_IsNull(part)) return 1;
    if (is_of_type(part, "Sequence")) {
        if (!has_known_members(r, part, type)) return 0;
        cJSON_ArrayForEach(one, json_member(part, "normalizers")) if (!take_normalizer(r, one)) return 0;
        return 1;
    }
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
        if (is_of_type(part, FORMS[i].name) && r->f->normal_forms < BPE_MOST_FORMS) {
            r->f->normal_form[r->f->normal_forms++] = UTF8PROC_STABLE | FORMS[i].options;
            return has_known_members(r, part, type);
        }
    return refuse_part(r, "normalizer", type);
}

char *bpe_file_normalized(const BpeFile *f, const char *text, size_t bytes, size_t *made) {
    char *normal = NULL;
    for (int i = 0; i < f->normal_forms; i++) {
        utf8proc_uint8_t *next = NULL;
        utf8proc_ssize_t  n = utf8proc_map((const utf8proc_uint8_t *)(normal ? normal : text), (utf8proc_ssize_t)bytes,
                                           &next, (utf8proc_option_t)f->normal_form[i]);
        if (n < 0) fail(EXIT_MEMORY, "no memory to normalize %zu bytes of text: %s", bytes, utf8proc_errmsg(n));
        free(normal);
        normal = (char *)next, bytes = (size_t)n;
    }
    *made = bytes;
    return normal;
}

static int take_added(Reading *r, const cJSON *list) {
    static const char *const WIDENING[] = {"single_word", "lstrip", "rstrip"};
    const cJSON *one;
    if (cJSON_GetArraySize(list) > 0) r->is_entry = xcalloc(BPE_MOST_IDS, 1, "a tokenizer");
    cJSON_ArrayForEach(one, list) {
        const char *content = word_of(one, "content");
        int32_t     id = take_id(r, json_member(one, "id"), content);
        size_t      made;
        if (id < 0 || !has_known_members(r, one, "an added token")) return 0;
        for (int i = 0; i < 3; i++)
            if (is_set(one, WIDENING[i]))
                return refuse(r, ": the added token \"%.*s\" with %s is not supported: set that to false in this file",
                              SHOWN, content, WIDENING[i]);
        if (!bpe_add_special(r->bpe, id, content, strlen(content)))
            return refuse(r, ": the added token \"%.*s\" is empty, or its id %d belongs to another token: correct the "
                          "token in this file", SHOWN, content, id);
        if (!cJSON_IsTrue(json_member(one, "normalized"))) continue;
        char *form = bpe_file_normalized(r->f, content, strlen(content), &made);
        bpe_match_normalized(r->bpe, id, form ? form : content, form ? made : strlen(content));
        free(form);
    }
    return 1;
}

/* Refuses an added token whose "id" is not the one that Hugging Face tokenizers uses. That library ignores "id": it
 * takes the token's id in the vocabulary, or else the next id after the vocabulary. */
static int has_ids_in_order(const Reading *r, const cJSON *list) {
    int32_t      next = r->entries;
    const cJSON *one;
    cJSON_ArrayForEach(one, list) {
        const char *content = word_of(one, "content");
        int32_t     id = json_member(one, "id")->valueint;
        if (r->is_entry[id]) continue; /* skips a token that is in the vocabulary, or earlier in this list */
        r->is_entry[id] = 1;
        char *bytes = xstrdup(content, "a tokenizer");
        int64_t count = to_bytes(bytes, strlen(bytes));
        int32_t entry = count > 0 ? bpe_find(r->bpe, bytes, (size_t)count) : -1;
        free(bytes);
        if (entry < 0) entry = next++;
        if (entry != id)
            return refuse(r, ": the added token \"%.*s\" has the id %d, but Hugging Face tokenizers gives it %d, %s: "
                          "write that id in this file",
                          SHOWN, content, id, entry,
                          entry < r->entries ? "as the vocabulary does" : "the next one after the vocabulary");
    }
    return 1;
}

/* --- tokens before and after each text ---------------------------------------------------------------------------- */

static int take_begin(Reading *r, const cJSON *ids, int is_behind) {
    const cJSON *id;
    cJSON_ArrayForEach(id, ids) {
        size_t  bytes;
        int32_t own = take_id(r, id, "post_processor");
        if (own < 0) return 0;
        if (!bpe_bytes(r->bpe, own, &bytes))
            return refuse(r, ": its post_processor adds the id %d, which no token has: correct it in this file", own);
        if (is_behind) continue;
        if (r->f->begins == BPE_MOST_BEGIN)
            return refuse(r, ": its post_processor puts over %d tokens before a text, the most that is read: remove "
                          "some in this file", BPE_MOST_BEGIN);
        r->f->begin[r->f->begins++] = own;
    }
    if (is_behind && cJSON_GetArraySize(ids) > 0)
        note(r, "the post_processor puts a token after each text; prompts and evaluated texts go without it, because "
                "more text follows them");
    return 1;
}

static int take_template(Reading *r, const cJSON *part) {
    const cJSON *one, *single = json_member(part, "single");
    int          texts = 0;
    if (!cJSON_IsArray(single))
        return refuse(r, ": its post_processor, TemplateProcessing, has no list \"single\": download the file again");
    cJSON_ArrayForEach(one, single) {
        const cJSON *text = json_member(one, "Sequence"), *token = json_member(one, "SpecialToken");
        const cJSON *ids = json_member(json_member(json_member(part, "special_tokens"), word_of(token, "id")), "ids");
        if (text && strcmp(word_of(text, "id"), "A") == 0) texts++;
        else if (!token || !cJSON_IsArray(ids))
            return refuse(r, ": its post_processor, TemplateProcessing, has a part that is neither Sequence nor "
                             "SpecialToken: correct it in this file");
        else if (!take_begin(r, ids, texts > 0)) return 0;
    }
    return texts == 1 ||
           refuse(r, ": its post_processor, TemplateProcessing, must hold the text (Sequence A) exactly once: correct "
                  "it in this file");
}

static int take_post_processor(Reading *r, const cJSON *part) {
    const char  *type = word_of(part, "type");
    const cJSON *one;
    if (!part || cJSON_IsNull(part)) return 1;
    int is_template = is_of_type(part, "TemplateProcessing"), is_sequence = is_of_type(part, "Sequence"),
        is_fixed = is_of_type(part, "RobertaProcessing") || is_of_type(part, "BertProcessing");
    if (!is_template && !is_sequence && !is_fixed && !is_of_type(part, "ByteLevel"))
        return refuse(r, ": its post_processor, %.*s, is not supported; supported are ByteLevel, TemplateProcessing, "
                      "RobertaProcessing, BertProcessing, and a Sequence of them: change it in this file, or set it to "
                      "null (nothing is then put before a text)", SHOWN, type);
    if (!has_known_members(r, part, type)) return 0;
    if (is_sequence) {
        cJSON_ArrayForEach(one, json_member(part, "processors")) if (!take_post_processor(r, one)) return 0;
        return 1;
    }
    if ((is_template || is_fixed) && r->f->begins > 0)
        return refuse(r, ": two parts of its post_processor put tokens before a text: remove one in this file");
    if (is_template) return take_template(r, part);
    if (!is_fixed) return 1;
    cJSON first = {.type = cJSON_Array, .child = cJSON_GetArrayItem(json_member(part, "cls"), 1)},
          last = {.type = cJSON_Array, .child = cJSON_GetArrayItem(json_member(part, "sep"), 1)};
    return take_begin(r, &first, 0) && take_begin(r, &last, 1);
}

static int take_merges(Reading *r, const cJSON *list) {
    int32_t rank = 0;
    if (!cJSON_IsArray(list)) return refuse(r, ": the list \"merges\" is missing: download the file again");
    for (cJSON *one = list->child; one; one = one->next, rank++) {
        cJSON *left = cJSON_IsArray(one) ? one->child : NULL, *right = left ? left->next : NULL;
        char  *space = cJSON_IsString(one) ? strchr(one->valuestring, ' ') : NULL;
        int    is_pair = cJSON_IsString(left) && cJSON_IsString(right) && !right->next;
        if (!space && !is_pair) return refuse(r, ": merge %d of the list \"merges\" is not a pair of tokens: download "
                                              "the file again", rank);
        if (space) *space = 0;
        if (!take_merge(r, space ? one->valuestring : left->valuestring, space ? space + 1 : right->valuestring, rank))
            return 0;
    }
    return 1;
}

static int read_model(Reading *r, const cJSON *json) {
    static const char *const OTHER[] = {"byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "dropout"};
    static const char *const SHAPING[] = {"truncation", "padding"};
    const cJSON *model = json_member(json, "model"), *added = json_member(json, "added_tokens");
    const cJSON *version = json_member(json, "version"), *decoder = json_member(json, "decoder");
    const char  *type = word_of(model, "type"), *decodes = word_of(decoder, "type");
    int          is_bytes = 0;
    if (!cJSON_IsObject(model))
        return refuse(r, " has no object \"model\": it is no tokenizer.json (a vocabulary alone is read as vocab.json, "
                      "with merges.txt beside it)");
    if (*type ? strcmp(type, "BPE") != 0 : !json_member(model, "merges"))
        return refuse(r, " has a model of %s%.*s, and only a model of type BPE is read: " HELP_JSON,
                      *type ? "type " : "no type", SHOWN, type);
    if (version && strcmp(word_of(json, "version"), "1.0") != 0)
        return refuse(r, ": its version is \"%.*s\"; only 1.0 is supported: save it again with the library tokenizers "
                      "of Hugging Face", SHOWN, word_of(json, "version"));
    if (!has_known_members(r, json, "the file") || !has_known_members(r, model, "BPE")) return 0;
    for (int i = 0; i < 4; i++)
        if (is_set(model, OTHER[i]) &&
            !(cJSON_IsNumber(json_member(model, OTHER[i])) && json_member(model, OTHER[i])->valuedouble == 0))
            return refuse_part(r, "model", OTHER[i]);
    for (int i = 0; i < 2; i++)
        if (is_set(json, SHAPING[i])) note(r, "%s is not used: a text is neither cut nor padded", SHAPING[i]);
    if (!take_normalizer(r, json_member(json, "normalizer")) ||
        !take_pre_tokenizer(r, json_member(json, "pre_tokenizer"), &is_bytes))
        return 0;
    if (!is_bytes) return refuse_part(r, "pre_tokenizer", "without ByteLevel");
    if (cJSON_IsTrue(json_member(model, "ignore_merges"))) bpe_take_whole(r->bpe);
    if (decoder && !cJSON_IsNull(decoder) && strcmp(decodes, "ByteLevel") != 0)
        note(r, "the decoder, %.*s, is not used: an id becomes the bytes of its token", SHOWN,
             *decodes ? decodes : "of no type");
    if (!take_added(r, added) || !take_vocabulary(r, json_member(model, "vocab")) || !has_ids_in_order(r, added) ||
        !take_merges(r, json_member(model, "merges")))
        return 0;
    if (cJSON_GetArraySize(json_member(model, "merges")) == 0 && !bpe_takes_whole(r->bpe)) note_unmade(r);
    return take_post_processor(r, json_member(json, "post_processor"));
}

/* --- NAME.tiktoken ------------------------------------------------------------------------------------------------ */

/* Decodes base64 in place. Returns the number of bytes, -1 if the text is not base64. */
static int64_t from_base64(char *text, size_t count) {
    static const char DIGITS[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char    *to = text;
    unsigned bits = 0;
    int      held = 0;
    while (count > 0 && text[count - 1] == '=') count--;
    for (size_t i = 0; i < count; i++) {
        const char *digit = text[i] ? strchr(DIGITS, text[i]) : NULL;
        if (!digit) return -1;
        bits = bits << 6 | (unsigned)(digit - DIGITS), held += 6;
        if (held >= 8) held -= 8, *to++ = (char)(bits >> held & 0xFF);
    }
    return to - text;
}

size_t bpe_file_tiktoken_name(const char *path) {
    static const char *const ENDINGS[] = {".tiktoken", ".tiktoken.gz", ".tiktoken.zst", ".tiktoken.xz"};
    const char *base = basename(path);
    for (size_t i = 0; i < sizeof ENDINGS / sizeof *ENDINGS; i++)
        if (has_ending(base, ENDINGS[i])) return strlen(base) - strlen(ENDINGS[i]);
    return 0;
}

static int read_tiktoken(Reading *r, const BpeText *file) {
    char name[64];
    if (!begin(r, file)) return 0;
    snprintf(name, sizeof name, "%.*s", (int)bpe_file_tiktoken_name(file->path), basename(file->path));
    const char *pattern = split_named(name);
    if (!pattern)
        return refuse(r, " holds no split pattern, and \"%s\" names none: gpt2, r50k_base, p50k_base, cl100k_base, "
                      "llama3, o200k_base or qwen, each with .tiktoken after it: rename the file to the pattern's name",
                      name);
    int number = 1;
    for (char *line = file->text, *next; *line; line = next, number++) {
        char *end = line + strcspn(line, "\n"), *space = memchr(line, ' ', (size_t)(end - line)), *digits = line;
        next = *end ? end + 1 : end;
        if (end > line && end[-1] == '\r') end--;
        long    id = space ? strtol(space + 1, &digits, 10) : -1;
        int64_t count = space ? from_base64(line, (size_t)(space - line)) : -1;
        if (count > TOKEN_LIMIT)
            return refuse(r, ":%d: this line has a token of %lld bytes; the limit is %d: " HELP_JSON, number,
                          (long long)count,
                          TOKEN_LIMIT);
        if (end > line && (count <= 0 || digits != end || id < 0 || id >= BPE_MOST_IDS ||
                           !bpe_add(r->bpe, (int32_t)id, line, (size_t)count)))
            return refuse(r,
                          ":%d: the line must hold a token in base64, a space and a rank, both not on an earlier line: "
                          "correct it, or download the file again",
                          number);
    }
    if (!has_all_bytes(r)) return 0;
    bpe_merge_all(r->bpe);
    bpe_take_whole(r->bpe);
    return add_rule(r, pattern, SPLIT_ISOLATED, 0);
}

int bpe_file_parse(BpeKind kind, const BpeText text[2], BpeFile *f, char fault[BPE_FAULT_CHARS]) {
    static const char *const ENDS[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    *f = (BpeFile){.bpe = bpe_create(), .end_of_text = -1, .start = -1, .adds_start = -1};
    Reading r = {.fault = fault, .f = f, .bpe = f->bpe};
    char    why[SPLIT_FAULT_CHARS];
    int     is_good = 0;
    cJSON  *json;
    switch (kind) {
    case BPE_TOKENIZER_JSON:
        json = json_of(&r, &text[0]);
        is_good = json && read_model(&r, json);
        cJSON_Delete(json);
        break;
    case BPE_VOCAB_AND_MERGES: is_good = read_pair(&r, &text[0], &text[1]); break;
    case BPE_TIKTOKEN: is_good = read_tiktoken(&r, &text[0]); break;
    }
    if (is_good && !split_create(&f->split, r.rule, r.rules, text[0].path, SPLIT_BY_CONSTRUCTS, why))
        is_good = refuse(&r, ": pre_tokenizer: %s", why);
    /* the pattern that splits text is kept, because tokenizer.json is the only file that holds its own */
    int keeps = is_good && kind != BPE_TOKENIZER_JSON;
    f->pattern = keeps ? r.rule[0].pattern : NULL;
    for (int i = keeps; i < r.rules; i++) free(r.rule[i].pattern);
    free(r.is_entry), free(r.plain);
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS && f->end_of_text < 0; i++)
        f->end_of_text = bpe_find_special(f->bpe, ENDS[i]);
    if (!is_good) bpe_destroy(f->bpe), free(f->notes);
    return is_good;
}

/* --- which of them ------------------------------------------------------------------------------------------------ */

/* Writes a sentence about a fault into `fault`. Its value is exit_code. */
#define FAULT(exit_code, ...) fault_text(fault, BPE_FAULT_CHARS, exit_code, __VA_ARGS__)

/* Reads a file of a tokenizer into *read. Returns 0, or an exit code with a sentence in fault. */
static int read_text(const char *path, BpeText *read, char fault[BPE_FAULT_CHARS]) {
    char    why[TEXT_FILE_FAULT_CHARS];
    int64_t n = io_read_file(path, FILE_LIMIT, &read->text);
    if (n == -ENOENT)
        return FAULT(EXIT_DATA, "the tokenizer's file %s is not there: correct the path, or download the file", path);
    if (n == -EFBIG)
        return FAULT(EXIT_DATA, "the tokenizer's file %s is larger than %d MiB, the most that this program "
                     "reads: " HELP_JSON,
                     path, FILE_LIMIT >> 20);
    if (n < 0) return FAULT(EXIT_IO, "the tokenizer's file %s cannot be read: %s", path, io_error_text((int)n));
    read->path = path, read->bytes = (size_t)n, read->unpack = PACKINGS[unpack_kind(read->text, (size_t)n)].command;
    /* recognises a model of SentencePiece: a protocol buffer whose first field is a token, such as "<unk>", with its
     * score */
    const char *text = read->text;
    if (n > 4 && text[0] == '\n' && text[2] == '\n' && (has_ending(path, ".model") || text[1] < 32)) {
        free(read->text), read->text = NULL;
        return FAULT(EXIT_DATA, "the tokenizer's file %s is a model of SentencePiece, which is not read: " HELP_JSON,
                     path);
    }
    int exit_code = text_clean(&read->text, &read->bytes, FILE_LIMIT, path, why);
    if (!exit_code) return 0;
    free(read->text), read->text = NULL;
    return FAULT(exit_code, "the tokenizer's file %s %s", path, why);
}

/* --- tokenizer_config.json and special_tokens_map.json ------------------------------------------------------------ */

/* Members of tokenizer_config.json that change neither the ids of a text nor the text of an id. The members bos_token
 * and add_bos_token are used. The program warns of all others. */
static const char *const INERT_CONFIG[] = {
    "added_tokens_decoder", "additional_special_tokens", "auto_map", "backend", "chat_template",
    "clean_up_tokenization_spaces", "cls_token", "cls_token_id", "eos_token", "eos_token_id", "bos_token_id",
    "unk_token_id", "pad_token_id", "errors", "extra_special_tokens", "from_slow", "is_local", "legacy", "mask_token",
    "max_length", "max_len", "model_input_names", "model_max_length", "model_specific_special_tokens", "name_or_path",
    "pad_to_multiple_of", "pad_token", "pad_token_type_id", "padding_side", "processor_class",
    "return_token_type_ids", "sep_token", "sp_model_kwargs", "special_tokens_map_file", "stride", "tokenizer_class",
    "tokenizer_file", "transformers_version", "truncation_side", "truncation_strategy", "trust_remote_code",
    "unk_token", "use_default_system_prompt", "use_fast", "vocab_file", "merges_file", "vocab_size"};
/* Members of tokenizer_config.json that would change the ids of a text if they are true. They are not used. `instead`
 * says what the program does. */
static const struct { const char *member, *instead; } ADDS[] = {
    {"add_eos_token", "no token is put after a text"},
    {"add_prefix_space", "no space is put before a text"},
    {"split_special_tokens", "an added token is always one id"},
    {"do_lower_case", "text keeps its case"}};

/* Classes of tokenizers of transformers that divide text as GPT-2 does, without "Fast" at the end. A vocab.json with
 * merges.txt holds no split pattern, so the class alone says which one it is. */
static const char *const GPT2_CLASSES[] = {"GPT2Tokenizer", "GPTNeoXTokenizer", "RobertaTokenizer", "BartTokenizer",
    "CodeGenTokenizer", "WhisperTokenizer", "LongformerTokenizer", "LEDTokenizer", "DebertaTokenizer", "MvpTokenizer",
    "BlenderbotTokenizer"};

static void note_class(const Reading *r, const char *name) {
    size_t n = strlen(name);
    if (has_ending(name, "Fast")) n -= strlen("Fast");
    for (size_t i = 0; i < sizeof GPT2_CLASSES / sizeof *GPT2_CLASSES; i++)
        if (strlen(GPT2_CLASSES[i]) == n && memcmp(GPT2_CLASSES[i], name, n) == 0) return;
    if (n > 0)
        note(r, "tokenizer_class is \"%.60s\", which may divide text in another way than GPT-2, whose split is used: "
             "the tokenizer.json of the model holds its own split", name);
}

/* Adds a note on the first token of added_tokens.json that the tokenizer's own file lacks. */
static void note_added(const Reading *r, const cJSON *json) {
    const cJSON *one;
    cJSON_ArrayForEach(one, json) {
        const char *content = one->string ? one->string : "";
        if (cJSON_IsNumber(one) && bpe_find_special(r->bpe, content) == one->valueint) continue;
        note(r, "the added token \"%.60s\" is not used: it is in added_tokens.json alone; the tokenizer.json of the "
             "model holds it", content);
        return;
    }
}

static void take_config(const Reading *r, const cJSON *json) {
    char         unknown[300] = "";
    const cJSON *one;
    cJSON_ArrayForEach(one, json) {
        const char *name = one->string ? one->string : "";
        int         known = strcmp(name, "bos_token") == 0 || strcmp(name, "add_bos_token") == 0;
        for (size_t i = 0; i < sizeof INERT_CONFIG / sizeof *INERT_CONFIG; i++)
            known |= strcmp(name, INERT_CONFIG[i]) == 0;
        for (size_t i = 0; i < sizeof ADDS / sizeof *ADDS; i++) {
            if (strcmp(name, ADDS[i].member) != 0) continue;
            known = 1;
            if (cJSON_IsTrue(one)) note(r, "%s is not used: %s", name, ADDS[i].instead);
        }
        if (!known && is_set(json, name)) {
            size_t used = strlen(unknown);
            snprintf(unknown + used, sizeof unknown - used, "%s%.60s", used ? ", " : "", name);
        }
    }
    if (*unknown) note(r, "not known and not used: %s", unknown);
    cJSON_ArrayForEach(one, json_member(json, "added_tokens_decoder")) {
        const char *content = word_of(one, "content");
        int32_t     id = one->string ? (int32_t)strtol(one->string, NULL, 10) : -1;
        if (bpe_find_special(r->bpe, content) == id) continue;
        note(r, "added_tokens_decoder has the token \"%.60s\" with the id %d, which is not in the tokenizer's own "
             "file: it is not used", content, id);
        break;
    }
}

static void set_start_from(BpeFile *f, const char *path, const char *member_name) {
    free(f->start_from);
    f->start_from = xformat("a tokenizer", "%s: %s", path, member_name);
}

/* Reads bos_token, the token that begins a text: a string, or an object with the string. As in transformers 5,
 * add_bos_token and add_eos_token override the post_processor. */
static void take_start(const Reading *r, const cJSON *json, const char *path) {
    const cJSON *bos = json_member(json, "bos_token"), *adds = json_member(json, "add_bos_token");
    const char  *text = cJSON_IsString(bos) ? bos->valuestring : word_of(bos, "content");
    BpeFile     *f = r->f;
    if (*text && f->start < 0) {
        f->start = bpe_find_special(r->bpe, text);
        if (f->start < 0)
            note(r, "bos_token, \"%.60s\", is not an added token of the tokenizer's file, and is not used", text);
        else if (f->begins == 0) set_start_from(f, path, "bos_token");
    }
    if (adds && !cJSON_IsBool(adds) && !cJSON_IsNull(adds))
        note(r, "add_bos_token is neither true nor false, and is not used");
    if (cJSON_IsTrue(adds) && f->start < 0)
        note(r, "add_bos_token is not used: bos_token names no token to put before a text");
    else if (cJSON_IsTrue(adds))
        f->begin[0] = f->start, f->begins = f->adds_start = 1, set_start_from(f, path, "add_bos_token");
    else if (cJSON_IsBool(adds) || cJSON_IsBool(json_member(json, "add_eos_token"))) f->begins = f->adds_start = 0;
}

/* Reads tokenizer_config.json and special_tokens_map.json from the folder of `path`, and added_tokens.json if the
 * tokenizer is vocab.json with merges.txt. Returns 0, or an exit code with a sentence in fault. */
static int read_beside(BpeKind kind, BpeFile *f, const char *path, char fault[BPE_FAULT_CHARS]) {
    static const char *const FILES[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
    int is_pair = kind == BPE_VOCAB_AND_MERGES;
    if (f->begins > 0) set_start_from(f, path, "post_processor");
    for (int i = 0; i < (is_pair ? 3 : 2); i++) {
        char beside[PATH_ROOM], why[JSON_FILE_FAULT_CHARS];
        Json json;
        snprintf(beside, sizeof beside, "%.*s%s", (int)(basename(path) - path), path, FILES[i]);
        int exit_code = json_read_file(beside, BPE_CONFIG_LIMIT, 1, &json, why);
        if (exit_code == -ENOENT || io_file_bytes(beside) == -ENOTDIR) continue;
        if (exit_code) return FAULT(exit_code, "%.*s", BPE_FAULT_CHARS - 1, why);
        if (!cJSON_IsObject(json.root)) {
            json_free(&json);
            return FAULT(EXIT_DATA, "%s is not a JSON object, and this program reads %s from it: repair the file, or "
                         "move it away", beside, i == 2 ? "tokens" : "bos_token");
        }
        Reading r = {.path = beside, .f = f, .bpe = f->bpe};
        if (i == 0) take_config(&r, json.root);
        if (i == 0 && is_pair) note_class(&r, word_of(json.root, "tokenizer_class"));
        if (i == 2) note_added(&r, json.root);
        else take_start(&r, json.root, beside);
        json_free(&json);
    }
    return 0;
}

/* Reads and parses the one or two files of a tokenizer. Returns 0, or an exit code with a sentence in fault. */
static int read_files(BpeKind kind, const char *first, const char *second, BpeFile *f, char fault[BPE_FAULT_CHARS]) {
    BpeText text[2] = {{0}};
    char   *as_read = NULL;
    int     exit_code = read_text(first, &text[0], fault);
    if (!exit_code && second) exit_code = read_text(second, &text[1], fault);
    /* a copy of tokenizer.json as it was read, because parsing overwrites the text */
    if (!exit_code && kind == BPE_TOKENIZER_JSON) as_read = xstrdup(text[0].text, "a tokenizer");
    if (!exit_code && !bpe_file_parse(kind, text, f, fault)) exit_code = EXIT_DATA;
    free(text[0].text), free(text[1].text);
    if (exit_code) return free(as_read), exit_code;
    f->json = as_read;
    exit_code = read_beside(kind, f, first, fault);
    if (exit_code) bpe_file_free(f);
    return exit_code;
}

int bpe_file_read(const char *path, BpeFile *f, char fault[BPE_FAULT_CHARS]) {
    char        json[PATH_ROOM], vocab[PATH_ROOM], merges[PATH_ROOM];
    int         is_folder = io_is_folder(path);
    const char *slash = strrchr(path, '/'), *base = basename(path);
    int         folder = (int)(is_folder ? strlen(path) : slash ? (size_t)(slash - path) : 0);
    const char *at = folder ? path : ".";
    if (folder == 0) folder = 1;
    snprintf(json, sizeof json, "%.*s/tokenizer.json", folder, at);
    snprintf(vocab, sizeof vocab, "%.*s/vocab.json", folder, at);
    snprintf(merges, sizeof merges, "%.*s/merges.txt", folder, at);
    if (bpe_file_tiktoken_name(path) > 0 && !is_folder) return read_files(BPE_TIKTOKEN, path, NULL, f, fault);
    if (!is_folder && strcmp(base, "vocab.json") != 0 && strcmp(base, "merges.txt") != 0)
        return read_files(BPE_TOKENIZER_JSON, path, NULL, f, fault);
    if (is_folder && access(json, F_OK) == 0) return read_files(BPE_TOKENIZER_JSON, json, NULL, f, fault);
    if (access(vocab, F_OK) == 0 && access(merges, F_OK) == 0)
        return read_files(BPE_VOCAB_AND_MERGES, vocab, merges, f, fault);
    static const struct { const char *name, *of; } OTHERS[] = {
        {"tokenizer.model", "SentencePiece"}, {"spiece.model", "SentencePiece"},
        {"sentencepiece.bpe.model", "SentencePiece"}, {"vocab.txt", "WordPiece, as BERT has it"},
        {"tekken.json", "Mistral's own kind"}};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        snprintf(json, sizeof json, "%.*s/%s", folder, at, OTHERS[i].name);
        if (access(json, F_OK) == 0)
            return FAULT(EXIT_DATA, "%s holds no tokenizer that this program reads: its %s is a tokenizer of %s; "
                         HELP_JSON, path, OTHERS[i].name, OTHERS[i].of);
    }
    return FAULT(EXIT_DATA, "%s holds no tokenizer: name a folder with tokenizer.json, or with vocab.json and "
                 "merges.txt, or name a file NAME.tiktoken", path);
}

void bpe_file_free(BpeFile *f) {
    bpe_destroy(f->bpe);
    split_destroy(f->split);
    free(f->json), free(f->pattern), free(f->start_from), free(f->notes);
}
