/* tokenizer.c - see tokenizer.h. */
#include "data/tokenizer.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

#include "core/error.h"
#include "data/tokens_json.h"

/* A vocabulary of the 256 bytes, each its own id. */
static int is_of_bytes(const Bpe *b) {
    size_t bytes;
    for (int32_t id = 0; id < 256; id++) {
        const char *text = bpe_bytes(b, id, &bytes);
        if (!text || bytes != 1 || (unsigned char)*text != id) return 0;
    }
    return bpe_ids(b) == 256;
}

Tokenizer tokenizer_create(const char *path, int64_t vocab_size) {
    if (!*path) return (Tokenizer){.kind = vocab_size == 256 ? TOKENIZER_BYTES : TOKENIZER_IDS, .vocab_size = vocab_size};
    Tokenizer t = {TOKENIZER_BPE, vocab_size, bpe_file_read(path)};
    if (is_of_bytes(t.file.bpe)) {
        bpe_file_free(&t.file);
        return (Tokenizer){.kind = TOKENIZER_BYTES, .vocab_size = 256};
    }
    if (bpe_ids(t.file.bpe) > vocab_size)
        fail(EXIT_CONFIG,
             "%s has ids up to %d, and model.vocab_size is %lld: %d, or a multiple of 64 above it, has room for all",
             path, bpe_ids(t.file.bpe) - 1, (long long)vocab_size, bpe_ids(t.file.bpe));
    return t;
}

/* The first NAME.tiktoken of a folder by name; 0: none. */
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
    const char *slash = strrchr(shard, '/');
    char        folder[4200];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - shard) : 1, slash ? shard : ".");
    for (int i = 0; i < 2; i++)
        if ((size_t)snprintf(out, capacity, "%s/%s", folder, FILES[i]) < capacity && access(out, F_OK) == 0) return 1;
    return find_tiktoken(folder, out, capacity);
}

static const char *bytes_of(const Tokenizer *t, int32_t id, char *byte, size_t *bytes) {
    if (t->kind == TOKENIZER_BPE) return id < bpe_ids(t->file.bpe) ? bpe_bytes(t->file.bpe, id, bytes) : NULL;
    *byte = (char)id, *bytes = 1;
    return id < 256 ? byte : NULL;
}

int32_t tokenizer_difference(const Tokenizer *a, const Tokenizer *b) {
    int32_t most = 256, a_ids = a->kind == TOKENIZER_BPE ? bpe_ids(a->file.bpe) : 0, b_ids = b->kind == TOKENIZER_BPE ? bpe_ids(b->file.bpe) : 0;
    if (a_ids > most) most = a_ids;
    if (b_ids > most) most = b_ids;
    for (int32_t id = 0; id < most && a->kind != TOKENIZER_IDS && b->kind != TOKENIZER_IDS; id++) {
        size_t      n = 0, m = 0;
        char        x, y;
        const char *in_a = bytes_of(a, id, &x, &n), *in_b = bytes_of(b, id, &y, &m);
        if (!in_a != !in_b || n != m || (in_a && memcmp(in_a, in_b, n) != 0)) return id;
    }
    return -1;
}

Tokenizer tokenizer_of_data(const char *path, const char *shard, int64_t vocab_size) {
    char beside[4200];
    int  is_beside = tokenizer_beside(shard, beside, sizeof beside);
    if (!*path || !is_beside) return tokenizer_create(is_beside ? beside : path, vocab_size);
    Tokenizer t = tokenizer_create(path, vocab_size), of_data = tokenizer_create(beside, BPE_MOST_IDS);
    int32_t   id = tokenizer_difference(&t, &of_data);
    if (id >= 0)
        fail(EXIT_DATA, "data.tokenizer: %s is not the tokenizer of the data, %s: from id %d on they differ; leave data.tokenizer empty", path,
             beside, id);
    tokenizer_destroy(&of_data);
    return t;
}

void tokenizer_refuse_notes(const Tokenizer *t, const char *name, const char *shard) {
    char    notes[4200];
    int64_t ids = tokens_json_vocab_size(shard);
    if (t->kind != TOKENIZER_BPE || ids == 0 || ids == bpe_ids(t->file.bpe)) return;
    tokens_json_path(shard, notes, sizeof notes);
    fail(EXIT_DATA, "%s has %d ids, and the tokens of %s are of %lld: they were made with another tokenizer", name,
         bpe_ids(t->file.bpe), notes, (long long)ids);
}

void tokenizer_destroy(Tokenizer *t) {
    if (t->kind == TOKENIZER_BPE) bpe_file_free(&t->file);
}

size_t tokenizer_most(const Tokenizer *t, size_t bytes) {
    return t->kind == TOKENIZER_BPE && t->file.is_nfc ? 3 * bytes : bytes; /* UAX #15: NFC takes at most three times the bytes */
}

/* --- encoding ----------------------------------------------------------------------------------------------------- */

typedef struct { Bpe *bpe; int32_t *ids; size_t count; } Sink;

static void take_piece(void *with, const char *begin, size_t bytes) {
    Sink *sink = (Sink *)with;
    sink->count += bpe_encode_piece(sink->bpe, begin, bytes, sink->ids + sink->count);
}

static int is_ascii(const char *text, size_t bytes) {
    unsigned char all = 0;
    for (size_t i = 0; i < bytes; i++) all |= (unsigned char)text[i];
    return all < 0x80;
}

/* Valid text at the start, in bytes. */
static size_t valid_bytes(const char *text, size_t bytes) {
    size_t at = 0;
    for (utf8proc_int32_t character; at < bytes;) {
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &character);
        if (n <= 0) break;
        at += (size_t)n;
    }
    return at;
}

/* Text without special parts. */
static void encode_plain(const Tokenizer *t, const char *text, size_t bytes, Sink *sink) {
    if (!t->file.is_nfc || is_ascii(text, bytes)) {
        split_text(t->file.split, text, bytes, take_piece, sink);
        return;
    }
    for (size_t n; bytes > 0; text += n, bytes -= n) {
        utf8proc_uint8_t *composed = NULL;
        n = valid_bytes(text, bytes);
        utf8proc_ssize_t made = n == 0 ? 0
                                       : utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &composed,
                                                      UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (made < 0) fail(EXIT_MEMORY, "no memory to bring %zu bytes of text into NFC: %s", n, utf8proc_errmsg(made));
        split_text(t->file.split, (const char *)composed, (size_t)made, take_piece, sink);
        free(composed);
        if (n == 0) take_piece(sink, text, n = 1); /* no UTF-8 */
    }
}

int64_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int32_t *ids) {
    if (t->kind == TOKENIZER_IDS) return -1;
    for (size_t i = 0; i < bytes && t->kind == TOKENIZER_BYTES; i++) ids[i] = (unsigned char)text[i];
    if (t->kind == TOKENIZER_BYTES) return (int64_t)bytes;
    Sink    sink = {t->file.bpe, ids, 0};
    size_t  at, own;
    int32_t id;
    for (; bpe_next_special(t->file.bpe, text, bytes, &at, &own, &id); text += at + own, bytes -= at + own) {
        encode_plain(t, text, at, &sink);
        sink.ids[sink.count++] = id;
    }
    encode_plain(t, text, bytes, &sink);
    return (int64_t)sink.count;
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
    char       *copy = text ? strndup(text, bytes) : NULL;
    if (text && !copy) fail(EXIT_MEMORY, "no memory for a tokenizer");
    return copy;
}

int32_t tokenizer_start(const Tokenizer *t) {
    if (tokenizer_end_of_text(t) >= 0) return tokenizer_end_of_text(t);
    return t->kind == TOKENIZER_BYTES ? '\n' : 0;
}
