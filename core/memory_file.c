/* memory_file.c - see memory_file.h. */
#include "core/memory_file.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    char  **text;
    size_t *bytes, room;
    int     has_lost;
} Cookie;

/* Makes sure that the buffer can hold `more` further bytes and the NUL. Returns 0 if memory runs out. */
static int has_room(Cookie *c, size_t more) {
    size_t need = *c->bytes + more + 1;
    if (need <= c->room) return 1;
    char *grown = realloc(*c->text, 2 * need);
    if (!grown) return 0;
    *c->text = grown;
    c->room = 2 * need;
    return 1;
}

static ssize_t put(void *cookie, const char *data, size_t bytes) {
    Cookie *c = (Cookie *)cookie;
    if (c->has_lost || !has_room(c, bytes)) return c->has_lost = 1, 0;
    memcpy(*c->text + *c->bytes, data, bytes);
    *c->bytes += bytes;
    (*c->text)[*c->bytes] = 0;
    return (ssize_t)bytes;
}

static int end(void *cookie) {
    int has_lost = ((Cookie *)cookie)->has_lost;
    free(cookie);
    return has_lost ? EOF : 0;
}

FILE *memory_file_open(char **text, size_t *bytes) {
    Cookie *c = malloc(sizeof *c);
    FILE   *file = NULL;
    *text = calloc(1, 1);
    *bytes = 0;
    if (c && *text) {
        *c = (Cookie){text, bytes, 1, 0};
        file = fopencookie(c, "w", (cookie_io_functions_t){.write = put, .close = end});
    }
    if (!file) free(c);
    return file;
}
