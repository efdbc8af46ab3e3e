/* shard.h - token files, memory-mapped. llm.c shards have the magic 20240520, version 1, for uint16, or 20240801,
 * version 7, for uint32. Files without a header hold uint16 (nanoGPT), or uint32 for vocabularies over 65,536.
 * Megatron's NAME.bin holds tokens without a header. NAME.idx in the same folder gives their type (uint16, int16,
 * int32); nothing separates documents in it.
 *
 * The parsers of headers are pure functions over bytes and length. Sizes, counts, magic and the range of every token
 * are checked before use. Files are little-endian, as are the machines this program runs on. */
#ifndef TRAIN_GPT_DATA_SHARD_H
#define TRAIN_GPT_DATA_SHARD_H

#include <stddef.h>
#include <stdint.h>

enum {
    SHARD_HEADER_BYTES = 1024,
    SHARD_START_BYTES = 65536, /* most bytes of the start of a file that are read to recognise its format */
    SHARD_INDEX_BYTES = 34,    /* bytes of the fixed part at the start of a Megatron index */
    SHARD_FAULT_CHARS = 640
};

typedef struct {
    int     token_bytes;   /* bytes of a token in the file, 2 or 4 */
    size_t  data_offset;   /* bytes of the file before the first token; 0 if there is no header */
    int64_t tokens;
    int64_t sequences;     /* number of sequences that a Megatron index lists; 0 without such an index */
} ShardHeader;

/* Returns the kind of a file from its first `bytes` (at most SHARD_START_BYTES are read): "UTF-8 text", "JSON", "gzip",
 * "zstd", "xz" or "parquet". Returns NULL if it is none of these, so perhaps tokens. */
const char *shard_text_kind(const uint8_t *data, size_t bytes);

/* Reads the header of a token file of file_bytes bytes from its first `bytes`, of which at most SHARD_START_BYTES are
 * looked at. In a file without a header vocab_size of the model sets the type of tokens: uint32 over 65,536, otherwise
 * uint16. If vocab_size is 0 (unknown), the bytes decide. Returns 0 and *header, or -1 with reason and remedy in fault,
 * worded to follow the name of the file. */
int shard_parse_header(const uint8_t *data, size_t bytes, uint64_t file_bytes, int64_t vocab_size, ShardHeader *header,
                       char fault[SHARD_FAULT_CHARS]);

/* Returns 1 if this is the start of a file of llm.c: tokens, a model or an evaluation. */
int shard_is_llmc(const uint8_t *data, size_t bytes);
/* Returns 1 if this is the start of a Megatron index. */
int shard_is_index(const uint8_t *data, size_t bytes);
/* Reads the start of a Megatron index of index_bytes bytes, whose file of tokens has file_bytes bytes. Returns 0 and
 * *header, or -1 with reason and remedy in fault. Source of the layout: megatron/core/datasets/indexed_dataset.py. */
int shard_parse_index(const uint8_t *data, size_t bytes, uint64_t index_bytes, uint64_t file_bytes, ShardHeader *header,
                      char fault[SHARD_FAULT_CHARS]);

/* A type of numbers that a file of tokens without a header may hold. Such a file is read as uint16 or uint32. Numbers
 * of any other type would pass as tokens if the vocabulary is large. */
typedef struct {
    const char *name;     /* name of the type for a message: "64-bit numbers" */
    const char *numpy;    /* numpy dtype that reads the numbers; NULL: no ids can be got from them */
    int         bytes;    /* bytes of one number */
    int         is_big;   /* 1 for big-endian numbers */
    int         form;     /* number of the test by which shard.c recognizes this type, such as FLOATS */
} NumberType;

/* Judges numbers by their first bytes. Returns their type. Returns NULL if they are uint16, or if nothing shows that
 * they are not. *has_negatives is 1 if some are negative, as the labels of a loss are. */
const NumberType *number_type_find(const uint8_t *data, size_t bytes, int *has_negatives);

typedef struct {
    char          *path;      /* owned: path of the file */
    const uint8_t *map;       /* owned: the mapped file, file_bytes bytes */
    uint64_t       file_bytes;
    ShardHeader    header;
    uint64_t       ends;      /* XXH3 of the first 1,024 tokens and of the last 1,024 */
} Shard;

/* Reads the header of a token file, or its Megatron index if there is one. Returns 0, or an exit code (65, 74) with the
 * message in sentence. */
enum { SHARD_SENTENCE_CHARS = 3 * 4352 + 2 * SHARD_FAULT_CHARS };
int      shard_look(const char *path, int64_t vocab_size, ShardHeader *header, char sentence[SHARD_SENTENCE_CHARS]);
/* Maps a token file into memory. vocab_size sets the type of tokens in a file without a header; 0: unknown. Exits with
 * 65 if the file is missing or wrong, naming path and fault. Exits with 74 if it cannot be read. */
Shard    shard_open(const char *path, int64_t vocab_size);
void     shard_close(Shard *shard);
const char *shard_name(const Shard *shard);      /* returns the last part of the shard's path */
uint32_t shard_token(const Shard *shard, int64_t i);
/* Reads `count` tokens from index `first` on. Exits with 74, naming file and byte, if the file was cut meanwhile or its
 * disk fails. Unmaps the pages that were read, so that they do not count as memory of this process. */
void     shard_read(const Shard *shard, int64_t first, int64_t count, int32_t *tokens);
/* Returns the index of the first token >= vocab_size, or -1 if there is none. Reads the whole shard, on all threads. */
int64_t  shard_find_foreign(const Shard *shard, int64_t vocab_size);

/* Returns how many tokens at the end of the shard are 0, without another between them. Reads hardly more than these. */
int64_t  shard_zero_tail(const Shard *shard);

/* Writer of llm.c shards, of version 1 for vocabularies up to 65,536 and version 7 above. Functions that return int
 * return 0 or -errno. */
typedef struct ShardWriter ShardWriter;
/* creates the file path.tmp, which shard_writer_finish renames to path */
int shard_writer_create(ShardWriter **w, const char *path, int64_t vocab_size);
/* appends tokens to the shard; returns -EFBIG if it would hold over 2^31-1 tokens */
int shard_writer_put(ShardWriter *w, const int32_t *tokens, int64_t count);
/* writes the header, syncs the file, renames it to its final path, frees w; after an error no file is left */
int shard_writer_finish(ShardWriter *w);
void shard_writer_destroy(ShardWriter *w);     /* frees w without finishing the shard; no file is left */

#endif
