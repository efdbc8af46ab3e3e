/* text_stream.c - see text_stream.h. */
#include "run/text/text_stream.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

static void append(TextBytes *b, const char *bytes, size_t count) {
    if (b->count + count > b->room) {
        b->room = 2 * (b->count + count) + 64;
        b->bytes = xrealloc(b->bytes, b->room, "a part of a text");
    }
    if (count > 0) memcpy(b->bytes + b->count, bytes, count);
    b->count += count;
}

static void drop_front(TextBytes *b, size_t count) {
    b->count -= count;
    if (b->count > 0) memmove(b->bytes, b->bytes + count, b->count);
}

/* --- printable text ----------------------------------------------------------------------------------------------- */

/* Returns the length of the UTF-8 sequence that begins with this byte, or 0 if none does. */
static size_t sequence_bytes(unsigned char first) {
    return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/* Returns the length of the UTF-8 sequence at s if a terminal can show it, else 0. */
static size_t printable_bytes(const unsigned char *s, size_t left) {
    size_t n = sequence_bytes(*s);
    if (n == 1) return (*s >= 0x20 && *s != 0x7f) || *s == '\n' || *s == '\t';
    if (n > left) return 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    int surrogate = *s == 0xed && s[1] >= 0xa0, overlong = (*s == 0xe0 && s[1] < 0xa0) || (*s == 0xf0 && s[1] < 0x90);
    int control = *s == 0xc2 && s[1] < 0xa0; /* U+0080..U+009F steer terminals too */
    return surrogate || overlong || control || (*s == 0xf4 && s[1] >= 0x90) ? 0 : n;
}

/* Returns 1 if the bytes at the end of the text may begin a UTF-8 sequence. */
static int may_grow(const unsigned char *s, size_t left) {
    if (sequence_bytes(*s) <= left) return 0;
    for (size_t i = 1; i < left; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return 1;
}

/* Passes on the bytes of t->broken. Unless is_end, keeps a sequence that is not whole yet. */
static void put_printable(TextStream *t, int is_end) {
    const unsigned char *s = (const unsigned char *)t->broken.bytes;
    size_t at = 0, good = 0; /* [good, at) is printable and not passed on yet */
    while (at < t->broken.count && (is_end || !may_grow(s + at, t->broken.count - at))) {
        size_t n = printable_bytes(s + at, t->broken.count - at);
        at += n;
        if (n > 0) continue;
        if (at > good) t->put(t->ctx, (const char *)s + good, at - good);
        t->put(t->ctx, "\xef\xbf\xbd", 3);
        good = ++at;
    }
    if (at > good) t->put(t->ctx, (const char *)s + good, at - good);
    drop_front(&t->broken, at);
}

/* --- stop texts --------------------------------------------------------------------------------------------------- */

/* The first place at which a stop text begins. is_whole: all of it is there. At the end only a whole one counts. */
typedef struct { size_t at; int is_whole; } Found;
static Found find_stop(const TextStream *t, int is_end) {
    for (size_t at = 0; at < t->held.count; at++)
        for (int i = 0, begins = 0; i <= t->stops; i++) {
            if (i == t->stops && begins) return (Found){at, 0};
            if (i == t->stops) break;
            size_t length = strlen(t->stop[i]), left = t->held.count - at;
            if (memcmp(t->held.bytes + at, t->stop[i], left < length ? left : length) != 0) continue;
            if (length <= left) return (Found){at, 1};
            begins = !is_end;
        }
    return (Found){t->held.count, 0};
}

/* --- the stream --------------------------------------------------------------------------------------------------- */

TextStream text_stream_create(void (*put)(void *ctx, const char *text, size_t bytes), void *ctx) {
    TextStream t = {.put = put, .ctx = ctx};
    return t;
}

/* Passes on the held bytes up to a stop text. */
static void release(TextStream *t, int is_end) {
    Found found = find_stop(t, is_end);
    append(&t->broken, t->held.bytes, found.at);
    drop_front(&t->held, found.is_whole ? t->held.count : found.at);
    t->is_over = found.is_whole;
    put_printable(t, is_end);
}

void text_stream_add(TextStream *t, const char *bytes, size_t count) {
    if (t->is_over) return;
    append(&t->held, bytes, count);
    release(t, 0);
}

void text_stream_end(TextStream *t) {
    release(t, 1);
    free(t->held.bytes);
    free(t->broken.bytes);
    t->held = t->broken = (TextBytes){0};
}
