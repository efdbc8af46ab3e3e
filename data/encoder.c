/* encoder.c - see encoder.h. */
#include "data/encoder.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "core/error.h"

static int is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* The last place to cut, 0: none. */
static size_t last_cut(const char *text, size_t bytes) {
    for (size_t i = bytes > 2 ? bytes - 2 : 0; i > 0; i--)
        if (text[i] == ' ' && is_letter(text[i - 1]) && is_letter(text[i + 1])) return i;
    return 0;
}

/* The last place between two characters of UTF-8. */
static size_t last_character(const char *text, size_t bytes) {
    size_t i = bytes - 1;
    while (i > 0 && bytes - i < 4 && ((unsigned char)text[i] & 0xC0) == 0x80) i--;
    return i > 0 ? i : bytes;
}

static void leave(Cutter *c, size_t bytes) {
    if (bytes > 0) c->sink(c->with, c->text, bytes);
    memmove(c->text, c->text + bytes, c->bytes - bytes);
    c->bytes -= bytes;
}

void cutter_put(Cutter *c, const char *text, size_t bytes) {
    for (size_t n; bytes > 0; text += n, bytes -= n) {
        if (c->bytes == c->room) {
            size_t cut = c->room < ENCODER_CHUNK ? 0 : last_cut(c->text, c->bytes);
            if (cut == 0 && c->room >= ENCODER_LONGEST) cut = last_character(c->text, c->bytes);
            if (cut > 0) leave(c, cut);
            if (cut <= c->room / 2) {
                c->room = c->room ? 2 * c->room : ENCODER_CHUNK;
                c->text = (char *)realloc(c->text, c->room);
                if (!c->text) fail(EXIT_MEMORY, "no memory for %zu bytes of text without a space", c->room);
            }
        }
        n = bytes < c->room - c->bytes ? bytes : c->room - c->bytes;
        memcpy(c->text + c->bytes, text, n);
        c->bytes += n;
    }
}

void cutter_end(Cutter *c) {
    if (c->bytes > 0) leave(c, c->bytes);
}

void cutter_free(Cutter *c) {
    free(c->text);
    c->text = NULL, c->bytes = c->room = 0;
}

/* --- tokens ------------------------------------------------------------------------------------------------------- */

static int64_t invalid_bytes(const char *text, size_t bytes) {
    int64_t             invalid = 0;
    utf8proc_int32_t    character;
    for (size_t at = 0; at < bytes;) {
        uint64_t eight;
        if (at + 8 <= bytes && (memcpy(&eight, text + at, 8), (eight & 0x8080808080808080u) == 0)) {
            at += 8;
            continue;
        }
        utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(bytes - at), &character);
        invalid += n <= 0;
        at += n > 0 ? (size_t)n : 1;
    }
    return invalid;
}

static void encode(void *with, const char *text, size_t bytes) {
    Encoder *e = (Encoder *)with;
    e->invalid += invalid_bytes(text, bytes);
    size_t   most = tokenizer_most(e->tokenizer, bytes);
    if (most > e->ids_room) {
        free(e->ids);
        e->ids = (int32_t *)malloc(sizeof *e->ids * (e->ids_room = most));
        if (!e->ids) fail(EXIT_MEMORY, "no memory for the tokens of %zu bytes of text", bytes);
    }
    e->sink(e->with, e->ids, tokenizer_encode(e->tokenizer, text, bytes, e->ids));
}

void encoder_put(Encoder *e, const char *text, size_t bytes) {
    e->cutter.sink = encode, e->cutter.with = e;
    cutter_put(&e->cutter, text, bytes);
}

void encoder_end(Encoder *e) { cutter_end(&e->cutter); }

void encoder_free(Encoder *e) {
    cutter_free(&e->cutter);
    free(e->ids);
    e->ids = NULL, e->ids_room = 0;
}
