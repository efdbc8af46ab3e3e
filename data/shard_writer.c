/* shard_writer.c - see shard.h: writes llm.c shards in constant memory. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"
#include "data/shard.h"

enum { BUFFER_BYTES = 1 << 20 };

struct ShardWriter {
    char   *path, *tmp;      /* owned; tmp = path.tmp, NULL once renamed */
    int     fd;              /* descriptor of tmp; -1 once closed */
    int     token_bytes;
    int64_t tokens, vocab_size;
    size_t  used_bytes;      /* bytes of `buffer` that are used */
    uint8_t buffer[BUFFER_BYTES];
};

int shard_writer_create(ShardWriter **out, const char *path, int64_t vocab_size) {
    ShardWriter *w = calloc(1, sizeof *w);
    if (!w) return -ENOMEM;
    w->fd = -1;
    w->token_bytes = vocab_size <= 65536 ? 2 : 4;
    w->vocab_size = vocab_size;
    /* a header of zeros until the end, so a shard whose writer died has no tokens */
    w->used_bytes = SHARD_HEADER_BYTES;
    w->path = strdup(path);
    if (asprintf(&w->tmp, "%s.tmp", path) < 0) w->tmp = NULL;
    int rc = w->path && w->tmp ? io_open(w->tmp, IO_CREATE) : -ENOMEM;
    if (rc < 0) {
        shard_writer_destroy(w);
        return rc;
    }
    w->fd = rc;
    *out = w;
    return 0;
}

static int flush(ShardWriter *w) {
    int rc = io_write(w->fd, w->buffer, w->used_bytes);
    w->used_bytes = 0;
    return rc;
}

int shard_writer_put(ShardWriter *w, const int32_t *tokens, int64_t count) {
    if (count > INT32_MAX - w->tokens) return -EFBIG;
    for (int64_t i = 0; i < count; i++) {
        CHECK(tokens[i] >= 0 && tokens[i] < w->vocab_size, "token %d of a vocabulary of %lld", tokens[i], (long long)w->vocab_size);
        memcpy(w->buffer + w->used_bytes, &tokens[i], (size_t)w->token_bytes); /* little-endian: the low bytes come first */
        w->used_bytes += (size_t)w->token_bytes;
        if (w->used_bytes == BUFFER_BYTES) {
            int rc = flush(w);
            if (rc < 0) return rc;
        }
    }
    w->tokens += count;
    return 0;
}

int shard_writer_finish(ShardWriter *w) {
    CHECK(w->tokens > 0, "a shard without tokens: %s", w->path);
    const int32_t header[3] = {w->token_bytes == 2 ? 20240520 : 20240801, w->token_bytes == 2 ? 1 : 7, (int32_t)w->tokens};
    int           rc = flush(w);
    if (rc == 0) rc = io_pwrite(w->fd, header, sizeof header, 0);
    if (rc == 0) rc = io_fsync(w->fd);
    if (rc == 0) {
        rc = io_close(w->fd);
        w->fd = -1;
    }
    if (rc == 0) rc = io_rename(w->tmp, w->path);
    if (rc == 0) free(w->tmp), w->tmp = NULL;
    shard_writer_destroy(w);
    return rc;
}

void shard_writer_destroy(ShardWriter *w) {
    if (!w) return;
    if (w->fd >= 0) io_close(w->fd);
    if (w->tmp) io_unlink(w->tmp);
    free(w->path);
    free(w->tmp);
    free(w);
}
