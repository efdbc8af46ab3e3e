/* encoder.c - see encoder.h.
 *
 * The steps are those of Hugging Face tokenizers. Added tokens are found in the text. The text between them is
 * normalized. Added tokens marked `normalized` are found in that. The rest is split into pieces. */
#include "data/encoder.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

/* --- text in parts ------------------------------------------------------------------------------------------------ */

static size_t chunk_of(const Cutter *c) { return c->chunk ? c->chunk : ENCODER_CHUNK; }

static void take(Cutter *c, SplitEnd end) {
    size_t taken = c->bytes ? c->take(c->with, c->text, c->bytes, end) : 0;
    if (taken < c->bytes) memmove(c->text, c->text + taken, c->bytes - taken);
    c->bytes -= taken;
    c->enough = c->bytes <= chunk_of(c) / 2 ? chunk_of(c) : 2 * c->bytes;
}

void cutter_put(Cutter *c, const char *text, size_t bytes) {
    if (!c->enough) c->enough = chunk_of(c);
    for (size_t n; bytes > 0; text += n, bytes -= n) {
        if (c->enough > ENCODER_LONGEST)
            fail(EXIT_DATA,
                 "the tokenizer's pattern needs over %d MiB of a document at once. Divide the text into several "
                 "documents, or use a pattern that ends a piece sooner",
                 ENCODER_LONGEST >> 20);
        if (c->enough > c->room) {
            c->text = xrealloc(c->text, c->room = c->enough, "the text that a tokenizer's pattern needs at once");
        }
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

/* --- ids ---------------------------------------------------------------------------------------------------------- */

/* Returns the place for `more` further ids, enlarging the buffer. */
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

static void put_id(Encoder *e, int32_t id) { *room_for(e, 1) = id, e->count++; }

static void put_piece(void *with, const char *piece, size_t bytes) {
    Encoder *e = (Encoder *)with;
    if (bytes > ENCODER_LONGEST_PIECE)
        fail(EXIT_DATA,
             "the tokenizer's pattern matches %zu bytes of text as one piece; the limit is %d MiB. Use a pattern that "
             "ends a piece sooner",
             bytes, ENCODER_LONGEST_PIECE >> 20);
    int32_t *ids = room_for(e, bytes);
    e->count += bpe_encode_piece(e->tokenizer->file.bpe, piece, bytes, ids);
}

/* Consumes a text without added tokens, or its beginning. Returns the bytes consumed. */
typedef size_t PlainTake(Encoder *e, const char *text, size_t bytes, SplitEnd end);

static size_t take_split(Encoder *e, const char *text, size_t bytes, SplitEnd end) {
    return split_text(e->tokenizer->file.split, text, bytes, end, put_piece, e);
}

/* Encodes the added tokens of a form as their ids, and the text between them by plain(). */
static size_t take_between(Encoder *e, BpeForm form, PlainTake *plain, const char *text, size_t bytes, SplitEnd end) {
    size_t  at, own, done = 0;
    int32_t id;
    while (bpe_next_special(e->tokenizer->file.bpe, form, text + done, bytes - done, end, &at, &own, &id)) {
        if (form == BPE_VERBATIM) split_place(e->tokenizer->file.split, e->begun + (int64_t)done);
        if (at > 0 || e->normal.bytes > 0) plain(e, text + done, at, SPLIT_END);
        put_id(e, id);
        done += at + own;
    }
    if (end == SPLIT_END) at = bytes - done;
    if (form == BPE_VERBATIM) split_place(e->tokenizer->file.split, e->begun + (int64_t)done);
    return done + (at > 0 || e->normal.bytes > 0 ? plain(e, text + done, at, end) : 0);
}

static size_t take_normal(void *with, const char *text, size_t bytes, SplitEnd end) {
    return take_between((Encoder *)with, BPE_NORMALIZED, take_split, text, bytes, end);
}

static int is_ascii(const char *text, size_t bytes) {
    unsigned char all = 0;
    for (size_t i = 0; i < bytes; i++) all |= (unsigned char)text[i];
    return all < 0x80;
}

/* Normalizes text up to its last ASCII character. No normal form joins an ASCII character with the text before it. */
static size_t take_plain(Encoder *e, const char *text, size_t bytes, SplitEnd end) {
    const BpeFile *f = &e->tokenizer->file;
    size_t         cut = bytes, invalid;
    if (f->normal_forms == 0) return take_normal(e, text, bytes, end);
    while (end == SPLIT_MORE && cut > 0 && (unsigned char)text[--cut] >= 0x80) {}
    if (e->normal.bytes == 0 && is_ascii(text, cut)) return take_normal(e, text, cut, end);
    e->normal.take = take_normal, e->normal.with = e, e->normal.chunk = e->cutter.chunk;
    for (size_t at = 0, n, made; at < cut; at += n + invalid) {
        n = split_valid(text + at, cut - at, SPLIT_END, &invalid);
        char *normal = n ? bpe_file_normalized(f, text + at, n, &made) : NULL;
        cutter_put(&e->normal, normal ? normal : text + at, normal ? made : invalid);
        free(normal);
    }
    if (end == SPLIT_END) cutter_end(&e->normal);
    return cut;
}

static int64_t invalid_bytes(const char *text, size_t bytes) {
    int64_t sum = 0;
    for (size_t at = 0, invalid; at < bytes; at += invalid) {
        at += split_valid(text + at, bytes - at, SPLIT_END, &invalid);
        sum += (int64_t)invalid;
    }
    return sum;
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
    e->invalid += invalid_bytes(text, taken);
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

/* --- a whole text ------------------------------------------------------------------------------------------------- */

size_t tokenizer_most(const Tokenizer *t, size_t bytes) {
    int is_normalized = t->kind == TOKENIZER_BPE && t->file.normal_forms > 0;
    return is_normalized ? 11 * bytes : bytes; /* UAX #15: NFKC and NFKD take at most 11 times the bytes */
}

int64_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int32_t *ids) {
    Encoder e = {.tokenizer = t, .ids = ids, .room = tokenizer_most(t, bytes)};
    if (t->kind == TOKENIZER_IDS) return -1;
    if (bytes > 0) take_text(&e, text, bytes, SPLIT_END);
    cutter_free(&e.normal);
    return (int64_t)e.count;
}
