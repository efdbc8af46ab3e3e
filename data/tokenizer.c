/* tokenizer.c - see tokenizer.h. */
#include "data/tokenizer.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/json.h"
#include "core/io.h"
#include "data/tokens_json.h"

/* Makes a tokenizer from what was read of its file. The tokenizer owns `file` from now on. If the vocabulary is the 256
 * bytes, each with its own value as id, and the file changes text in no other way, the tokenizer only turns bytes into
 * ids. */
static Tokenizer of_file(BpeFile file, int64_t vocab_size) {
    int is_bytes = file.normal_forms == 0 && file.begins == 0 && !split_removes(file.split) && bpe_ids(file.bpe) == 256;
    for (int32_t id = 0; is_bytes && id < 256; id++) {
        size_t      bytes;
        const char *text = bpe_bytes(file.bpe, id, &bytes);
        is_bytes = text && bytes == 1 && (unsigned char)*text == id;
    }
    if (!is_bytes) return (Tokenizer){TOKENIZER_BPE, vocab_size, file};
    bpe_file_free(&file);
    return (Tokenizer){.kind = TOKENIZER_BYTES, .vocab_size = 256};
}

int tokenizer_try(const char *path, Tokenizer *t, char fault[BPE_FAULT_CHARS]) {
    BpeFile file;
    int     exit_code = bpe_file_read(path, &file, fault);
    if (!exit_code) *t = of_file(file, BPE_MOST_IDS);
    return exit_code;
}

Tokenizer tokenizer_create(const char *path, int64_t vocab_size) {
    char    fault[BPE_FAULT_CHARS];
    BpeFile file;
    if (!*path)
        return (Tokenizer){.kind = vocab_size == 256 ? TOKENIZER_BYTES : TOKENIZER_IDS, .vocab_size = vocab_size};
    int exit_code = bpe_file_read(path, &file, fault);
    if (exit_code) fail(exit_code, "%s", fault);
    for (char *line = file.notes, *end; line && *line; line = end) {
        end = line + strcspn(line, "\n");
        warn("%.*s", (int)(end - line), line);
        end += *end != 0;
    }
    Tokenizer t = of_file(file, vocab_size);
    if (t.kind == TOKENIZER_BPE && bpe_ids(t.file.bpe) > vocab_size)
        fail(EXIT_CONFIG, "%s has ids up to %d, and model.vocab_size is %lld: %d, or a multiple of 64 above it, has "
             "room for all", path, bpe_ids(t.file.bpe) - 1, (long long)vocab_size, bpe_ids(t.file.bpe));
    return t;
}

int tokenizer_beside(const char *shard, char *out, size_t capacity) {
    static const char *const FILES[] = {"tokenizer.json", "vocab.json"};
    char                     folder[4200];
    for (int is_target = 0; is_target < 2 && tokens_folder(shard, is_target, folder, sizeof folder); is_target++) {
        for (int i = 0; i < 2; i++)
            if ((size_t)snprintf(out, capacity, "%s/%s", folder, FILES[i]) < capacity && access(out, F_OK) == 0)
                return 1;
        char best[256] = ""; /* a file NAME.tiktoken in the folder; of several, the first by name */
        DIR *d = opendir(folder);
        for (struct dirent *entry; d && (entry = readdir(d));) {
            const char *name = entry->d_name;
            if (has_ending(name, ".tiktoken") && strlen(name) < sizeof best && (!*best || strcmp(name, best) < 0))
                strcpy(best, name);
        }
        if (d) closedir(d);
        if (*best && (size_t)snprintf(out, capacity, "%s/%s", folder, best) < capacity) return 1;
    }
    return 0;
}

static const char *bytes_of(const Tokenizer *t, int32_t id, char *byte, size_t *bytes) {
    if (t->kind == TOKENIZER_BPE) return id < bpe_ids(t->file.bpe) ? bpe_bytes(t->file.bpe, id, bytes) : NULL;
    *byte = (char)id, *bytes = 1;
    return id < 256 ? byte : NULL;
}

/* --- which tokenizer it is ---------------------------------------------------------------------------------------- */

/* Fragments of the text that the fingerprint of a tokenizer splits: characters of every kind that patterns distinguish,
 * and words that some patterns contain. */
/* clang-format off */
static const char *const FRAGMENTS[] = {
    "a", "b", "Z", "Q", "\xc3\xa9", "\xc3\x89", "\xc7\x85", "\xc2\xaa", "\xca\xb0", "\xe4\xb8\xad", "\xe3\x81\x82", "\xe0\xb8\x81", "\xd7\x90",
    "\xcc\x81", "\xe0\xa4\xbf", "\xe2\x83\x9d", "0", "7", "42", "1234567890123", "\xd9\xa3", "\xe2\x85\xa7", "\xc2\xbd", " ", "  ", "     ", "\t", "\n",
    "\n\n", "\r", "\r\n", "\x0b", "\x0c", "\xc2\x85", "\xc2\xa0", "\xe1\xa0\x8e", "\xe3\x80\x80", "\xe2\x80\x8b", "\xe2\x80\xa8", ".", ",", "!", "?", "/", ":", ";", "'",
    "\xe2\x80\x99", "\"", "(", ")", "[", "]", "{", "}", "_", "-", "#", "$", "%", "&", "*", "+", "=", "<", ">", "@", "\\", "^", "`", "~", "|", "\xe2\x82\xac",
    "\xf0\x9f\x98\x80", "\xe2\x80\x8d", "\xef\xb8\x8f", "'s", "'S", "'t", "'re", "'ve", "'VE", "'m", "'ll", "'LL", "'d", "\x01", "\x7f", "word", "Hello", "WORLD",
    "camelCase", "ALLc", "e\xcc\x81", "...", "http://", "--", "!!", "\xc2\xad", "\xef\xbb\xbf", "\xf0\x9d\x92\x9c", "\xee\x80\x80"};
/* clang-format on */

static void add_length(void *with, const char *begin, size_t bytes) {
    uint64_t *hash = (uint64_t *)with;
    (void)begin;
    *hash = XXH3_64bits_withSeed(&bytes, sizeof bytes, *hash);
}

/* Returns a hash of how the tokenizer's patterns divide a fixed text, in which each two fragments are neighbours twice
 * on average. Patterns that Oniguruma matches are hashed as written. One of them might backtrack without end on this
 * text and never on another. */
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
    p.added = bpe_added_hash(b, t->file.normal_forms > 0), p.merges = bpe_merges_hash(t->file.bpe),
    p.pieces = hash_pieces(&t->file);
    return p;
}

uint64_t tokenizer_fingerprint(const Tokenizer *t) {
    Print p = print_of(t);
    return t->kind == TOKENIZER_BPE ? XXH3_64bits(&p, sizeof p) : 0;
}

/* Returns the number of ids of the tokenizer, 0 if it is not known. */
static int64_t ids_of(const Tokenizer *t) {
    return t->kind == TOKENIZER_BPE ? bpe_ids(t->file.bpe) : t->kind == TOKENIZER_BYTES ? 256 : 0;
}

int tokenizer_difference(const Tokenizer *a, const Tokenizer *b, char why[TOKENIZER_WHY_CHARS]) {
    if (a->kind == TOKENIZER_IDS || b->kind == TOKENIZER_IDS) return 0;
    for (int32_t id = 0; id < 256 || id < ids_of(a) || id < ids_of(b); id++) {
        size_t      n = 0, m = 0;
        char        byte, other_byte;
        const char *text = bytes_of(a, id, &byte, &n), *other = bytes_of(b, id, &other_byte, &m);
        if (!text != !other || n != m || (text && memcmp(text, other, n) != 0))
            return snprintf(why, TOKENIZER_WHY_CHARS, "from id %d on they differ", id), 1;
    }
    Print       x = print_of(a), y = print_of(b);
    const char *what = x.added != y.added     ? "their added tokens differ"
                       : x.merges != y.merges ? "their merges differ"
                       : x.pieces != y.pieces ? "they divide text at other places (pattern, normal form)"
                                              : NULL;
    if (what) snprintf(why, TOKENIZER_WHY_CHARS, "%s", what);
    return what != NULL;
}

void tokenizer_refuse_other(const Tokenizer *t, const char *name, const char *file, const char *whose,
                            const char *cure) {
    char    path[4200], why[TOKENIZER_WHY_CHARS];
    int64_t ids = tokens_json_vocab_size(file);
    if (tokenizer_beside(file, path, sizeof path)) {
        Tokenizer there = tokenizer_create(path, BPE_MOST_IDS);
        if (tokenizer_difference(t, &there, why))
            fail(EXIT_DATA, "%s is not the tokenizer of %s, %s: %s; %s", name, whose, path, why, cure);
        tokenizer_destroy(&there);
    }
    if (ids_of(t) == 0 || ids == 0 || ids == ids_of(t)) return;
    tokens_json_path(file, path, sizeof path);
    fail(EXIT_DATA, "%s has %lld ids, but according to %s the tokens beside that file were made with another "
         "tokenizer, of %lld ids; %s",
         name, (long long)ids_of(t), path, (long long)ids, cure);
}

/* Files of one folder are checked once, if they are adjacent in the list. */
Tokenizer tokenizer_of_data(const char *path, const char *const *file, int64_t files, int64_t vocab_size) {
    char        beside[4200], other[4200], name[4300];
    int         is_given = *path != 0, is_beside = 0;
    const char *cure = is_given ? "leave data.tokenizer empty"
                                : "make the shards of all texts with one tokenizer: ./train_gpt tokenize TEXT "
                                  "out=FOLDER tokenizer=FOLDER_OR_FILE";
    for (int64_t i = 0; !is_given && !is_beside && i < files; i++)
        is_beside = tokenizer_beside(file[i], beside, sizeof beside);
    if (is_beside) path = beside;
    Tokenizer t = tokenizer_create(path, vocab_size);
    /* 1 if the tokens are bytes, because the tokens.json of each file gives 256 ids */
    int are_bytes = t.kind == TOKENIZER_IDS && vocab_size > 256 && files > 0;
    for (int64_t i = 0; are_bytes && i < files; i++)
        if (i == 0 || !tokens_json_is_same(file[i - 1], file[i])) are_bytes = tokens_json_vocab_size(file[i]) == 256;
    if (are_bytes) t.kind = TOKENIZER_BYTES;
    snprintf(name, sizeof name, "%s%s", is_given ? "data.tokenizer: " : *path ? "" : "a vocabulary of bytes", path);
    int64_t noted = -1, noted_ids = 0; /* the first file whose tokens.json gives a number of ids, and this number */
    for (int64_t i = 0; i < files; i++) {
        if (i > 0 && tokens_json_is_same(file[i - 1], file[i])) continue;
        tokens_json_check(file[i]);
        tokenizer_refuse_other(&t, name, file[i], "the data", cure);
        int64_t ids = tokens_json_vocab_size(file[i]);
        /* without the files of a tokenizer, other numbers of ids are the sign of different tokenizers */
        if (t.kind == TOKENIZER_IDS && noted >= 0 && ids > 0 && ids != noted_ids) {
            tokens_json_path(file[noted], beside, sizeof beside), tokens_json_path(file[i], other, sizeof other);
            fail(EXIT_DATA, "the data were made with several tokenizers: one of %lld ids, according to %s, and one of "
                 "%lld ids, according to %s; make the shards of all texts with one tokenizer: ./train_gpt tokenize "
                 "TEXT out=FOLDER tokenizer=FOLDER_OR_FILE", (long long)noted_ids, beside, (long long)ids, other);
        }
        if (noted < 0 && ids > 0) noted = i, noted_ids = ids;
    }
    return t;
}

void tokenizer_destroy(Tokenizer *t) {
    if (t->kind == TOKENIZER_BPE) bpe_file_free(&t->file);
}

/* --- encoding: text in parts -------------------------------------------------------------------------------------- */

static void take(Cutter *c, SplitEnd end) {
    size_t taken = c->bytes ? c->take(c->with, c->text, c->bytes, end) : 0;
    if (taken < c->bytes) memmove(c->text, c->text + taken, c->bytes - taken);
    c->bytes -= taken;
    c->enough = c->bytes <= c->chunk / 2 ? c->chunk : 2 * c->bytes;
}

void cutter_put(Cutter *c, const char *text, size_t bytes) {
    if (!c->chunk) c->chunk = ENCODER_CHUNK;
    if (!c->enough) c->enough = c->chunk;
    for (size_t n; bytes > 0; text += n, bytes -= n) {
        if (c->enough > ENCODER_LONGEST)
            fail(EXIT_DATA, "the tokenizer's pattern needs over %d MiB of a document at once. Divide the text into "
                 "several documents, or use a pattern that ends a piece sooner", ENCODER_LONGEST >> 20);
        if (c->enough > c->room)
            c->text = xrealloc(c->text, c->room = c->enough, "the text that a tokenizer's pattern needs at once");
        n = bytes < c->enough - c->bytes ? bytes : c->enough - c->bytes;
        memcpy(c->text + c->bytes, text, n);
        c->bytes += n;
        if (c->bytes == c->enough) take(c, SPLIT_MORE);
    }
}

void cutter_end(Cutter *c) { take(c, SPLIT_END); }

void cutter_free(Cutter *c) {
    free(c->text);
    c->text = NULL, c->bytes = c->room = c->enough = 0;
}

/* --- encoding: ids ------------------------------------------------------------------------------------------------ */

/* Encodes text in the steps of Hugging Face tokenizers. Added tokens are found in the text. The text between them is
 * normalized. Added tokens marked `normalized` are found in the normalized text. The rest is split into pieces. */

/* Returns the address for `more` further ids in e->ids. If they do not fit, first passes the ids so far to the sink,
 * and enlarges the buffer if needed. */
static int32_t *room_for(Encoder *e, size_t more) {
    enum { LEAST = 1 << 18 };
    if (e->count + more > e->room) {
        if (e->count > 0) e->sink(e->with, e->ids, (int64_t)e->count), e->count = 0;
        if (more > e->room) {
            free(e->ids);
            e->ids = xmalloc(sizeof *e->ids * (e->room = more > LEAST ? more : LEAST), "the tokens of a text");
        }
    }
    return e->ids + e->count;
}

static void put_piece(void *with, const char *piece, size_t bytes) {
    Encoder *e = (Encoder *)with;
    if (bytes > ENCODER_LONGEST_PIECE)
        fail(EXIT_DATA, "the tokenizer's pattern matches %zu bytes of text as one piece; the limit is %d MiB. Use a "
             "pattern that ends a piece sooner", bytes, ENCODER_LONGEST_PIECE >> 20);
    int32_t *ids = room_for(e, bytes);
    e->count += bpe_encode_piece(e->tokenizer->file.bpe, piece, bytes, ids);
}

static size_t take_split(Encoder *e, const char *text, size_t bytes, SplitEnd end) {
    return split_text(e->tokenizer->file.split, text, bytes, end, put_piece, e);
}

/* Encodes a text in which added tokens are searched in one form. Each added token becomes its id. The text between them
 * goes to plain(), which returns how many bytes it has consumed. */
static size_t take_between(Encoder *e, BpeForm form, size_t (*plain)(Encoder *, const char *, size_t, SplitEnd),
                           const char *text, size_t bytes, SplitEnd end) {
    size_t  at, own, done = 0;
    int32_t id;
    while (bpe_next_special(e->tokenizer->file.bpe, form, text + done, bytes - done, end, &at, &own, &id)) {
        if (form == BPE_VERBATIM) split_place(e->tokenizer->file.split, e->begun + (int64_t)done);
        if (at > 0 || e->normal.bytes > 0) plain(e, text + done, at, SPLIT_END);
        *room_for(e, 1) = id, e->count++;
        done += at + own;
    }
    if (end == SPLIT_END) at = bytes - done;
    if (form == BPE_VERBATIM) split_place(e->tokenizer->file.split, e->begun + (int64_t)done);
    return done + (at > 0 || e->normal.bytes > 0 ? plain(e, text + done, at, end) : 0);
}

static size_t take_normal(void *with, const char *text, size_t bytes, SplitEnd end) {
    return take_between((Encoder *)with, BPE_NORMALIZED, take_split, text, bytes, end);
}

/* Normalizes text and passes it on. With SPLIT_MORE it stops before the last ASCII character, because no normal form
 * joins an ASCII character with the text before it. */
static size_t take_plain(Encoder *e, const char *text, size_t bytes, SplitEnd end) {
    const BpeFile *f = &e->tokenizer->file;
    size_t         cut = bytes, invalid;
    /* the bytes of the text, combined by OR; below 0x80 if the text is ASCII, which no normal form changes */
    unsigned char  all = 0;
    if (f->normal_forms == 0) return take_normal(e, text, bytes, end);
    while (end == SPLIT_MORE && cut > 0 && (unsigned char)text[--cut] >= 0x80) {}
    for (size_t i = 0; e->normal.bytes == 0 && i < cut; i++) all |= (unsigned char)text[i];
    if (e->normal.bytes == 0 && all < 0x80) return take_normal(e, text, cut, end);
    e->normal.take = take_normal, e->normal.with = e, e->normal.chunk = e->cutter.chunk;
    for (size_t at = 0, n, made; at < cut; at += n + invalid) {
        n = utf8_valid(text + at, cut - at, SPLIT_END, &invalid);
        char *normal = n ? bpe_file_normalized(f, text + at, n, &made) : NULL;
        cutter_put(&e->normal, normal ? normal : text + at, normal ? made : invalid);
        free(normal);
    }
    if (end == SPLIT_END) cutter_end(&e->normal);
    return cut;
}

static size_t take_text(void *with, const char *text, size_t bytes, SplitEnd end) {
    Encoder *e = (Encoder *)with;
    size_t   taken = bytes;
    if (e->tokenizer->kind == TOKENIZER_BPE) {
        taken = take_between(e, BPE_VERBATIM, take_plain, text, bytes, end);
    } else {
        int32_t *ids = room_for(e, bytes);
        for (size_t i = 0; i < bytes; i++) ids[i] = (unsigned char)text[i];
        e->count += bytes;
    }
    e->invalid += utf8_invalid(text, taken);
    e->begun += (int64_t)taken;
    return taken;
}

void encoder_put(Encoder *e, const char *text, size_t bytes) {
    e->cutter.take = take_text, e->cutter.with = e;
    cutter_put(&e->cutter, text, bytes);
}

void encoder_end(Encoder *e) {
    cutter_end(&e->cutter);
    e->begun = 0;
    if (e->count > 0) e->sink(e->with, e->ids, (int64_t)e->count), e->count = 0;
}

void encoder_free(Encoder *e) {
    cutter_free(&e->cutter), cutter_free(&e->normal);
    free(e->ids);
    e->ids = NULL, e->room = e->count = 0;
}

/* --- encoding: a whole text --------------------------------------------------------------------------------------- */

size_t tokenizer_most(const Tokenizer *t, size_t bytes) {
    int is_normalized = t->kind == TOKENIZER_BPE && t->file.normal_forms > 0;
    return is_normalized ? 11 * bytes : bytes; /* at most 11 times the bytes, for NFKC and NFKD (UAX #15) */
}

int64_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int32_t *ids) {
    Encoder e = {.tokenizer = t, .ids = ids, .room = tokenizer_most(t, bytes)};
    if (t->kind == TOKENIZER_IDS) return -1;
    if (bytes > 0) take_text(&e, text, bytes, SPLIT_END);
    cutter_free(&e.normal);
    return (int64_t)e.count;
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

/* --- as tokenizer.json -------------------------------------------------------------------------------------------- */

/* The functions below write a tokenizer.json. It has the fields that Hugging Face tokenizers 0.23 writes. */

/* Writes the characters that represent a token's bytes in a tokenizer.json. */
static void put_token(FILE *f, const Bpe *b, int32_t id) {
    size_t      bytes;
    const char *text = bpe_bytes(b, id, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        char character[4];
        bpe_character((unsigned char)text[i], character);
        if (*character == '"' || *character == '\\') fputc('\\', f);
        fputs(character, f);
    }
}

static void put_special(FILE *f, const Bpe *b, int32_t id) {
    size_t      bytes;
    const char *token = bpe_bytes(b, id, &bytes);
    char       *text = xstrndup(token, bytes, "a special token");
    json_print_string(f, text);
    free(text);
}

static void put_model(FILE *f, const Bpe *b) {
    int32_t *pair, several = 0;
    int64_t  merges = bpe_merges(b, &pair);
    fprintf(f,
            "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
            "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
            "    \"byte_fallback\": false,\n    \"ignore_merges\": %s,\n    \"vocab\": {",
            bpe_takes_whole(b) ? "true" : "false");
    for (int32_t id = 0; id < bpe_ids(b); id++) {
        size_t bytes;
        if (!bpe_bytes(b, id, &bytes)) continue;
        fputs(several++ ? ",\n      " : "\n      ", f);
        if (bpe_id_is_special(b, id)) put_special(f, b, id);
        else fputc('"', f), put_token(f, b, id), fputc('"', f);
        fprintf(f, ": %d", id);
    }
    fputs("\n    },\n    \"merges\": [", f);
    for (int64_t i = 0; i < merges; i++) {
        fputs(i ? ",\n      \"" : "\n      \"", f);
        put_token(f, b, pair[2 * i]), fputc(' ', f), put_token(f, b, pair[2 * i + 1]), fputc('"', f);
    }
    fprintf(f, "%s]\n  }\n}\n", merges ? "\n    " : "");
    free(pair);
}

char *tokenizer_json_of(const Bpe *b, const char *pattern, size_t *bytes) {
    static const char BYTE_LEVEL[] =
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}";
    char *text = NULL;
    int   several = 0;
    FILE *f = memory_file_open(&text, bytes);
    fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [", f);
    for (int32_t id = 0; id < bpe_ids(b); id++) {
        if (!bpe_id_is_special(b, id)) continue;
        fprintf(f, "%s\n    {\"id\": %d, \"content\": ", several++ ? "," : "", id);
        put_special(f, b, id);
        fputs(", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": "
              "true}", f);
    }
    fprintf(f, "%s],\n  \"normalizer\": null,\n  \"pre_tokenizer\": ", several ? "\n  " : "");
    if (pattern) {
        fputs("{\"type\": \"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", \"pattern\": {\"Regex\": ", f);
        json_print_string(f, pattern);
        fputs("}, \"behavior\": \"Isolated\", \"invert\": false},\n    ", f);
    }
    fprintf(f, "%s%s,\n  \"post_processor\": null,\n  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
            "true, \"trim_offsets\": true, \"use_regex\": true},\n", BYTE_LEVEL, pattern ? "\n  ]}" : "");
    put_model(f, b);
    fclose(f);
    return text;
}

char *tokenizer_json(const Tokenizer *t, size_t *bytes) {
    if (t->kind == TOKENIZER_IDS) return NULL;
    if (t->kind == TOKENIZER_BYTES) {
        Bpe *b = bpe_create();
        for (int byte = 0; byte < 256; byte++) bpe_add(b, byte, &(char){(char)byte}, 1);
        char *text = tokenizer_json_of(b, NULL, bytes);
        bpe_destroy(b);
        return text;
    }
    if (!t->file.json) return tokenizer_json_of(t->file.bpe, t->file.pattern, bytes);
    char *copy = xstrdup(t->file.json, "a tokenizer");
    *bytes = strlen(copy);
    return copy;
}
