/* shard.h - token files, memory-mapped. llm.c shards: magic 20240520 v1 uint16, 20240801 v7 uint32. Files without a
 * header: uint16 (nanoGPT), or uint32 for vocabularies over 65,536. Megatron's NAME.bin: tokens without a header, whose
 * type (uint16, int16, int32) NAME.idx beside it gives; nothing separates its documents.
 *
 * The parsers of headers are pure functions over bytes and length. Sizes, counts, magic and every token's range are
 * checked before use. Files are little-endian, as are the machines this runs on.
 */
#ifndef TRAIN_GPT_DATA_SHARD_H
#define TRAIN_GPT_DATA_SHARD_H

#include <stddef.h>
#include <stdint.h>

enum {
    SHARD_HEADER_BYTES = 1024,
    SHARD_START_BYTES = 65536, /* bytes read to find out whether a file without a header is text */
    SHARD_INDEX_BYTES = 34,    /* length of the start of a Megatron index */
    SHARD_FAULT_CHARS = 640
};

typedef struct {
    int     token_bytes;   /* bytes of a token, 2 or 4 */
    size_t  data_offset;   /* bytes before the first token; 0 if there is no header */
    int64_t tokens;
    int64_t sequences;     /* sequences that a Megatron index lists; else 0 */
} ShardHeader;

/* Returns the kind of a file from its first `bytes` (at most SHARD_START_BYTES are read): "UTF-8 text", "JSON", "gzip",
 * "zstd", "xz" or "parquet"; NULL: none of these, so perhaps tokens. */
const char *shard_text_kind(const uint8_t *data, size_t bytes);

/* Reads the header of a file of file_bytes bytes from its first `bytes` (at most SHARD_START_BYTES are looked at).
 * vocab_size of the model sets the width of tokens in a file without a header: uint32 over 65,536, else uint16. If it
 * is 0 (unknown), the bytes decide. Returns 0 and *header, or -1 with reason and remedy in fault, worded to follow the
 * name of the file. */
int shard_parse_header(const uint8_t *data, size_t bytes, uint64_t file_bytes, int64_t vocab_size, ShardHeader *header,
                       char fault[SHARD_FAULT_CHARS]);

/* Returns 1 if this is the start of a file of llm.c: tokens, a model or an evaluation. */
int shard_is_llmc(const uint8_t *data, size_t bytes);
/* Returns 1 if this is the start of a Megatron index. */
int shard_is_index(const uint8_t *data, size_t bytes);
/* Reads the start of an index of index_bytes bytes, for a NAME.bin of file_bytes bytes. Returns 0 and *header, or -1
 * with reason and remedy in fault. Source of the layout: megatron/core/datasets/indexed_dataset.py. */
int shard_parse_index(const uint8_t *data, size_t bytes, uint64_t index_bytes, uint64_t file_bytes, ShardHeader *header,
                      char fault[SHARD_FAULT_CHARS]);

/* The type of the numbers in a file of tokens without a header. Such a file is read as uint16 or uint32. Numbers of any
 * other type would pass as tokens where the vocabulary is large. */
typedef struct {
    const char *name;     /* name of the type for a message: "64-bit numbers" */
    const char *numpy;    /* numpy dtype that reads the numbers; NULL: no ids can be got from them */
    int         bytes;    /* bytes of one number */
    int         is_big;   /* 1 for big-endian numbers */
    int         form;     /* the test in shard.c that detects this type */
} NumberType;

/* Judges numbers by their first bytes. Returns their type, or NULL if they are uint16, or nothing shows that they are
 * not. *has_negatives is 1 if some are negative, as the labels of a loss are. */
const NumberType *number_type_find(const uint8_t *data, size_t bytes, int *has_negatives);

typedef struct {
    char          *path;      /* owned */
    const uint8_t *map;       /* owned: the mapped file, file_bytes bytes */
    uint64_t       file_bytes;
    ShardHeader    header;
} Shard;

/* Reads the header of a token file, or the index beside it. Returns 0, or an exit code (65, 74) with the message in
 * sentence. */
enum { SHARD_SENTENCE_CHARS = 3 * 4352 + 2 * SHARD_FAULT_CHARS };
int      shard_look(const char *path, int64_t vocab_size, ShardHeader *header, char sentence[SHARD_SENTENCE_CHARS]);
/* Maps a file. vocab_size sets the width of tokens in a file without a header; 0: unknown. Exits with 65, naming path
 * and fault (also when there is no such file), 74 when it cannot be read. */
Shard    shard_open(const char *path, int64_t vocab_size);
void     shard_close(Shard *shard);
const char *shard_name(const Shard *shard);      /* returns the last part of the shard's path */
uint32_t shard_token(const Shard *shard, int64_t i);
/* Reads tokens [count] from index first on. Exits with 74, naming file and byte, when the file was cut meanwhile or its
 * disk fails. Leaves the file's pages in the system's cache, not in this process's memory count. */
void     shard_read(const Shard *shard, int64_t first, int64_t count, int32_t *tokens);
/* Returns the index of the first token >= vocab_size, or -1. Reads the whole shard, on all threads. */
int64_t  shard_find_foreign(const Shard *shard, int64_t vocab_size);

/* Returns the number of tokens at the end of the shard that are 0, one after another. Reads no more than these. */
int64_t  shard_zero_tail(const Shard *shard);

/* Writer of llm.c shards: v1 for vocabularies up to 65536, v7 above. Calls return 0 or -errno. */
typedef struct ShardWriter ShardWriter;
/* creates path.tmp, which shard_writer_finish renames to path */
int shard_writer_create(ShardWriter **w, const char *path, int64_t vocab_size);
/* appends tokens; returns -EFBIG if the shard would hold over 2^31-1 tokens */
int shard_writer_put(ShardWriter *w, const int32_t *tokens, int64_t count);
/* writes the header, syncs, renames to path, frees w; after an error no file is left */
int shard_writer_finish(ShardWriter *w);
void shard_writer_destroy(ShardWriter *w);     /* frees w without finishing; no file is left */

#endif
