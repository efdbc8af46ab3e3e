/* tokenizer.c - see tokenizer.h. */
#include "data/tokenizer.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "data/tokens_json.h"

/* Returns 1 if the vocabulary is the 256 bytes, each its own id, and the file changes nothing else in a text. */
static int is_of_bytes(const BpeFile *f) {
    const Bpe *b = f->bpe;
    size_t     bytes;
    if (f->normal_forms > 0 || f->begins > 0 || split_removes(f->split)) return 0;
    for (int32_t id = 0; id < 256; id++) {
        const char *text = bpe_bytes(b, id, &bytes);
        if (!text || bytes != 1 || (unsigned char)*text != id) return 0;
    }
    return bpe_ids(b) == 256;
}

/* Makes a tokenizer, which owns the file from now on. */
static Tokenizer of_file(BpeFile file, int64_t vocab_size) {
    if (!is_of_bytes(&file)) return (Tokenizer){TOKENIZER_BPE, vocab_size, file};
    bpe_file_free(&file);
    return (Tokenizer){.kind = TOKENIZER_BYTES, .vocab_size = 256};
}

int tokenizer_try(const char *path, Tokenizer *t, char fault[BPE_FAULT_CHARS]) {
    BpeFile file;
    int     exit_code = bpe_file_try(path, &file, fault);
    if (!exit_code) *t = of_file(file, BPE_MOST_IDS);
    return exit_code;
}

Tokenizer tokenizer_create(const char *path, int64_t vocab_size) {
    if (!*path) return (Tokenizer){.kind = vocab_size == 256 ? TOKENIZER_BYTES : TOKENIZER_IDS, .vocab_size = vocab_size};
    Tokenizer t = of_file(bpe_file_read(path), vocab_size);
    if (t.kind == TOKENIZER_BPE && bpe_ids(t.file.bpe) > vocab_size)
        fail(EXIT_CONFIG,
             "%s has ids up to %d, and model.vocab_size is %lld: %d, or a multiple of 64 above it, has room for all",
             path, bpe_ids(t.file.bpe) - 1, (long long)vocab_size, bpe_ids(t.file.bpe));
    return t;
}

/* Writes the path of the first NAME.tiktoken of a folder, by name, to out. Returns 0 if there is none. */
static int find_tiktoken(const char *folder, char *out, size_t capacity) {
    char           best[256] = "";
    DIR           *d = opendir(folder);
    struct dirent *entry;
    while (d && (entry = readdir(d))) {
        const char *dot = strrchr(entry->d_name, '.');
        if (dot && strcmp(dot, ".tiktoken") == 0 && strlen(entry->d_name) < sizeof best && (!*best || strcmp(entry->d_name, best) < 0))
            strcpy(best, entry->d_name);
    }
    if (d) closedir(d);
    return *best && (size_t)snprintf(out, capacity, "%s/%s", folder, best) < capacity;
}

int tokenizer_beside(const char *shard, char *out, size_t capacity) {
    static const char *const FILES[] = {"tokenizer.json", "vocab.json"};
    char                     folder[4200];
    for (int is_target = 0; is_target < 2 && tokens_folder(shard, is_target, folder, sizeof folder); is_target++) {
        for (int i = 0; i < 2; i++)
            if ((size_t)snprintf(out, capacity, "%s/%s", folder, FILES[i]) < capacity && access(out, F_OK) == 0) return 1;
        if (find_tiktoken(folder, out, capacity)) return 1;
    }
    return 0;
}

static const char *bytes_of(const Tokenizer *t, int32_t id, char *byte, size_t *bytes) {
    if (t->kind == TOKENIZER_BPE) return id < bpe_ids(t->file.bpe) ? bpe_bytes(t->file.bpe, id, bytes) : NULL;
    *byte = (char)id, *bytes = 1;
    return id < 256 ? byte : NULL;
}

/* --- which tokenizer it is ---------------------------------------------------------------------------------------- */

/* Fragments of the sample text: characters of every kind that patterns distinguish, and words that some patterns
 * contain. */
static const char *const FRAGMENTS[] = {
    "a", "b", "Z", "Q", "\xc3\xa9", "\xc3\x89", "\xc7\x85", "\xc2\xaa", "\xca\xb0", "\xe4\xb8\xad", "\xe3\x81\x82", "\xe0\xb8\x81", "\xd7\x90",
    "\xcc\x81", "\xe0\xa4\xbf", "\xe2\x83\x9d", "0", "7", "42", "1234567890123", "\xd9\xa3", "\xe2\x85\xa7", "\xc2\xbd", " ", "  ", "     ", "\t", "\n",
    "\n\n", "\r", "\r\n", "\x0b", "\x0c", "\xc2\x85", "\xc2\xa0", "\xe1\xa0\x8e", "\xe3\x80\x80", "\xe2\x80\x8b", "\xe2\x80\xa8", ".", ",", "!", "?", "/", ":", ";", "'",
    "\xe2\x80\x99", "\"", "(", ")", "[", "]", "{", "}", "_", "-", "#", "$", "%", "&", "*", "+", "=", "<", ">", "@", "\\", "^", "`", "~", "|", "\xe2\x82\xac",
    "\xf0\x9f\x98\x80", "\xe2\x80\x8d", "\xef\xb8\x8f", "'s", "'S", "'t", "'re", "'ve", "'VE", "'m", "'ll", "'LL", "'d", "\x01", "\x7f", "word", "Hello", "WORLD",
    "camelCase", "ALLc", "e\xcc\x81", "...", "http://", "--", "!!", "\xc2\xad", "\xef\xbb\xbf", "\xf0\x9d\x92\x9c", "\xee\x80\x80"};

static void add_length(void *with, const char *begin, size_t bytes) {
    uint64_t *hash = (uint64_t *)with;
    (void)begin;
    *hash = XXH3_64bits_withSeed(&bytes, sizeof bytes, *hash);
}

/* Hashes how the patterns divide a fixed text in which each two fragments are neighbours twice on average. Patterns for
 * Oniguruma are hashed as written, because one might backtrack without end on this text and never on another. */
static uint64_t hash_pieces(const BpeFile *f) {
    enum { COUNT = sizeof FRAGMENTS / sizeof *FRAGMENTS, DRAWN = 2 * COUNT * COUNT, LINE = 64 };
    uint64_t hash = f->normal_forms ? XXH3_64bits(f->normal_form, sizeof *f->normal_form * (size_t)f->normal_forms) : 0;
    uint64_t drawn = 1;
    if (split_engine(f->split) == SPLIT_BY_ONIGURUMA) return hash ^ split_hash(f->split);
    for (int i = 0; i < DRAWN;) {
        char   text[16 * LINE];
        size_t bytes = 0;
        for (int k = 0; k < LINE; k++, i++) {
            drawn = drawn * 6364136223846793005u + 1442695040888963407u;
            const char *one = FRAGMENTS[(drawn >> 33) % COUNT];
            memcpy(text + bytes, one, strlen(one));
            bytes += strlen(one);
        }
        split_text(f->split, text, bytes, SPLIT_END, add_length, &hash);
    }
    return hash;
}

typedef struct { uint64_t texts, added, merges, pieces; } Print;

static Print print_of(const Tokenizer *t) {
    Print p = {0, 0, 0, 0};
    if (t->kind != TOKENIZER_BPE) return p;
    const Bpe *b = t->file.bpe;
    for (int32_t id = 0; id < bpe_ids(b); id++) {
        size_t      bytes = 0;
        const char *text = bpe_bytes(b, id, &bytes);
        uint64_t    own[2] = {(uint64_t)id, text ? XXH3_64bits(text, bytes) : 0};
        if (text) p.texts = XXH3_64bits_withSeed(own, sizeof own, p.texts);
    }
    p.added = bpe_added_hash(b, t->file.normal_forms > 0), p.merges = bpe_merges_hash(t->file.bpe), p.pieces = hash_pieces(&t->file);
    return p;
}

uint64_t tokenizer_fingerprint(const Tokenizer *t) {
    Print p = print_of(t);
    return t->kind == TOKENIZER_BPE ? XXH3_64bits(&p, sizeof p) : 0;
}

/* Returns the first id that has different text in the two, or -1. */
static int32_t other_text(const Tokenizer *a, const Tokenizer *b) {
    int32_t most = 256, a_ids = a->kind == TOKENIZER_BPE ? bpe_ids(a->file.bpe) : 0, b_ids = b->kind == TOKENIZER_BPE ? bpe_ids(b->file.bpe) : 0;
    if (a_ids > most) most = a_ids;
    if (b_ids > most) most = b_ids;
    for (int32_t id = 0; id < most; id++) {
        size_t      n = 0, m = 0;
        char        x, y;
        const char *in_a = bytes_of(a, id, &x, &n), *in_b = bytes_of(b, id, &y, &m);
        if (!in_a != !in_b || n != m || (in_a && memcmp(in_a, in_b, n) != 0)) return id;
    }
    return -1;
}

int tokenizer_difference(const Tokenizer *a, const Tokenizer *b, char why[TOKENIZER_WHY_CHARS]) {
    if (a->kind == TOKENIZER_IDS || b->kind == TOKENIZER_IDS) return 0;
    int32_t id = other_text(a, b);
    if (id >= 0) return snprintf(why, TOKENIZER_WHY_CHARS, "from id %d on they differ", id), 1;
    Print       x = print_of(a), y = print_of(b);
    const char *what = x.added != y.added     ? "their added tokens differ"
                       : x.merges != y.merges ? "their merges differ"
                       : x.pieces != y.pieces ? "they divide text at other places (pattern, normal form)"
                                              : NULL;
    if (what) snprintf(why, TOKENIZER_WHY_CHARS, "%s", what);
    return what != NULL;
}

/* Returns the number of ids of the tokenizer, 0 if not known. */
static int64_t ids_of(const Tokenizer *t) {
    return t->kind == TOKENIZER_BPE ? bpe_ids(t->file.bpe) : t->kind == TOKENIZER_BYTES ? 256 : 0;
}

void tokenizer_refuse_other(const Tokenizer *t, const char *name, const char *file, const char *whose, const char *cure) {
    char    path[4200], why[TOKENIZER_WHY_CHARS];
    int64_t ids = tokens_json_vocab_size(file);
    if (tokenizer_beside(file, path, sizeof path)) {
        Tokenizer there = tokenizer_create(path, BPE_MOST_IDS);
        if (tokenizer_difference(t, &there, why)) fail(EXIT_DATA, "%s is not the tokenizer of %s, %s: %s; %s", name, whose, path, why, cure);
        tokenizer_destroy(&there);
    }
    if (ids_of(t) == 0 || ids == 0 || ids == ids_of(t)) return;
    tokens_json_path(file, path, sizeof path);
    fail(EXIT_DATA, "%s has %lld ids, but by %s the tokens beside it were made with another tokenizer, of %lld ids; %s",
         name, (long long)ids_of(t), path, (long long)ids, cure);
}

/* Refuses data without a tokenizer if the notes of two files show that different ones made them. */
static void refuse_other_notes(const char *file, const char *other) {
    char    notes[4200], others[4200];
    int64_t ids = tokens_json_vocab_size(file), theirs = tokens_json_vocab_size(other);
    if (ids == 0 || theirs == 0 || ids == theirs) return;
    tokens_json_path(file, notes, sizeof notes), tokens_json_path(other, others, sizeof others);
    fail(EXIT_DATA,
         "the data were made with several tokenizers: of %lld ids by %s, of %lld by %s; make the shards of all texts "
         "with one: ./train_gpt tokenize TEXT out=FOLDER tokenizer=FOLDER_OR_FILE",
         (long long)ids, notes, (long long)theirs, others);
}

/* Returns 1 if the notes beside all files say that their tokens are bytes. */
static int are_noted_bytes(const char *const *file, int64_t files) {
    for (int64_t i = 0; i < files; i++)
        if ((i == 0 || !tokens_json_is_same(file[i - 1], file[i])) && tokens_json_vocab_size(file[i]) != 256) return 0;
    return files > 0;
}

/* Checks each folder once if its files are adjacent in the list. */
Tokenizer tokenizer_of_data(const char *path, const char *const *file, int64_t files, int64_t vocab_size) {
    char        beside[4200] = "", name[4300];
    int64_t     from = 0;
    int         is_given = *path != 0;
    const char *cure = is_given ? "leave data.tokenizer empty"
                                : "make the shards of all texts with one tokenizer: ./train_gpt tokenize TEXT out=FOLDER tokenizer=FOLDER_OR_FILE";
    for (; !is_given && from < files && !tokenizer_beside(file[from], beside, sizeof beside);) from++;
    if (!is_given && from == files) *beside = 0;
    Tokenizer t = tokenizer_create(is_given ? path : beside, vocab_size);
    if (t.kind == TOKENIZER_IDS && vocab_size > 256 && are_noted_bytes(file, files)) t.kind = TOKENIZER_BYTES;
    snprintf(name, sizeof name, "%s%s", is_given ? "data.tokenizer: " : *beside ? "" : "a vocabulary of bytes", is_given ? path : beside);
    for (int64_t i = 0, noted = -1; i < files; i++) {
        if (i > 0 && tokens_json_is_same(file[i - 1], file[i])) continue;
        tokens_json_check(file[i]);
        tokenizer_refuse_other(&t, name, file[i], "the data", cure);
        if (t.kind == TOKENIZER_IDS && noted >= 0) refuse_other_notes(file[noted], file[i]);
        if (tokens_json_vocab_size(file[i]) > 0 && noted < 0) noted = i;
    }
    return t;
}

void tokenizer_destroy(Tokenizer *t) {
    if (t->kind == TOKENIZER_BPE) bpe_file_free(&t->file);
}

/* --- decoding ----------------------------------------------------------------------------------------------------- */

void tokenizer_decode(const Tokenizer *t, int32_t id, FILE *out) {
    size_t      bytes = 0;
    const char *text = t->kind == TOKENIZER_BPE ? bpe_bytes(t->file.bpe, id, &bytes) : NULL;
    if (text) fwrite(text, 1, bytes, out);
    else if (t->kind != TOKENIZER_BYTES || id < 0 || id > 255) fprintf(out, "<%d>", id);
    else if ((id < 0x20 && id != '\n' && id != '\t') || id == 0x7f) fprintf(out, "\\x%02x", id);
    else fputc(id, out);
}

int32_t tokenizer_end_of_text(const Tokenizer *t) {
    if (t->kind == TOKENIZER_BPE) return t->file.end_of_text;
    return t->kind == TOKENIZER_IDS && t->vocab_size == 50257 ? 50256 : -1;
}

char *tokenizer_special_text(const Tokenizer *t, int32_t id) {
    size_t      bytes;
    const char *text = t->kind == TOKENIZER_BPE ? bpe_bytes(t->file.bpe, id, &bytes) : NULL;
    return text ? xstrndup(text, bytes, "a tokenizer") : NULL;
}

int32_t tokenizer_start(const Tokenizer *t) {
    if (t->kind == TOKENIZER_BPE && t->file.begins > 0) return t->file.begin[0];
    if (t->kind == TOKENIZER_BPE && t->file.start >= 0) return t->file.start;
    if (tokenizer_end_of_text(t) >= 0) return tokenizer_end_of_text(t);
    return t->kind == TOKENIZER_BYTES ? '\n' : 0;
}

int64_t tokenizer_begin(const Tokenizer *t, int32_t *ids) {
    if (t->kind != TOKENIZER_BPE) return 0;
    memcpy(ids, t->file.begin, sizeof *ids * (size_t)t->file.begins);
    return t->file.begins;
}
