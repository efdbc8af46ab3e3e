/* shard.h - token files, memory-mapped: llm.c shards (magic 20240520 v1 uint16, 20240801 v7 uint32) and headerless uint16 (nanoGPT).
 *
 * The header parser is a pure function over bytes and length. Sizes, counts, magic and every token's range are checked before use.
 */
#ifndef TRAIN_GPT_DATA_SHARD_H
#define TRAIN_GPT_DATA_SHARD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int     token_bytes;   /* 2 or 4 */
    size_t  data_offset;   /* of the first token */
    int64_t tokens;
} ShardHeader;

/* Reads the header of a file of file_bytes bytes whose first `bytes` are given. Returns NULL and fills *header, or the fault as a
 * phrase ("holds 9 bytes after its last token"), static text. */
const char *shard_parse_header(const uint8_t *data, size_t bytes, uint64_t file_bytes, ShardHeader *header);

typedef struct {
    char          *path;      /* owned */
    const uint8_t *map;       /* owned mapping of file_bytes */
    uint64_t       file_bytes;
    ShardHeader    header;
} Shard;

/* Maps a file; exit 65 naming path and fault, 74 on I/O. */
Shard    shard_open(const char *path);
void     shard_close(Shard *shard);
uint32_t shard_token(const Shard *shard, int64_t i);
/* Index of the first token >= vocab_size, -1 if none. */
int64_t  shard_find_foreign(const Shard *shard, int64_t vocab_size);

/* Writer of llm.c shards: v1 for vocabularies up to 65536, v7 above. */
typedef struct ShardWriter ShardWriter;
ShardWriter *shard_writer_create(const char *path, int64_t vocab_size);   /* exit 74 naming the path */
void         shard_writer_put(ShardWriter *w, const uint32_t *tokens, int64_t count);
void         shard_writer_finish(ShardWriter *w);                        /* header, fsync, rename into place; frees w */

#ifdef __cplusplus
}
#endif
#endif
