/* encoder.c - see encoder.h. */
#include "data/encoder.h"

#include <stdlib.h>
#include <string.h>

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

static void encode(Encoder *e, size_t bytes) {
    size_t most = tokenizer_most(e->tokenizer, bytes);
    if (most > e->ids_room) {
        free(e->ids);
        e->ids = (int32_t *)malloc(sizeof *e->ids * (e->ids_room = most));
        if (!e->ids) fail(EXIT_MEMORY, "no memory for the tokens of %zu bytes of text", bytes);
    }
    if (bytes > 0) e->sink(e->with, e->ids, tokenizer_encode(e->tokenizer, e->text, bytes, e->ids));
    memmove(e->text, e->text + bytes, e->bytes - bytes);
    e->bytes -= bytes;
}

void encoder_put(Encoder *e, const char *text, size_t bytes) {
    for (size_t n; bytes > 0; text += n, bytes -= n) {
        if (e->bytes == e->room) {
            size_t cut = e->room < ENCODER_CHUNK ? 0 : last_cut(e->text, e->bytes);
            if (cut == 0 && e->room >= ENCODER_LONGEST) cut = last_character(e->text, e->bytes);
            if (cut > 0) encode(e, cut);
            if (cut <= e->room / 2) {
                e->room = e->room ? 2 * e->room : ENCODER_CHUNK;
                e->text = (char *)realloc(e->text, e->room);
                if (!e->text) fail(EXIT_MEMORY, "no memory for %zu bytes of text without a space", e->room);
            }
        }
        n = bytes < e->room - e->bytes ? bytes : e->room - e->bytes;
        memcpy(e->text + e->bytes, text, n);
        e->bytes += n;
    }
}

void encoder_end(Encoder *e) { encode(e, e->bytes); }

void encoder_free(Encoder *e) {
    free(e->text);
    free(e->ids);
    e->text = NULL, e->ids = NULL, e->bytes = e->room = e->ids_room = 0;
}
