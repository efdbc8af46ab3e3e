/* tokens_json.h - tokens.json, the notes that `tokenize` leaves beside its shards: the ids that they may have, and how
 * many bytes of text a token stands for. With that a loss becomes bits per byte, which vocabularies of any size share.
 */
#ifndef TRAIN_GPT_DATA_TOKENS_JSON_H
#define TRAIN_GPT_DATA_TOKENS_JSON_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The largest tokens.json, in bytes. Older programs refuse a larger one, so a long list of inputs goes to a file
 * beside it. */
enum { TOKENS_JSON_BYTES = 1 << 16 };
#define TOKENS_INPUTS_NAME "tokens.inputs.jsonl"

/* The place of the notes of a shard, or of a glob of them. */
void    tokens_json_path(const char *shard, char *path, size_t capacity);
/* Returns whether two shards lie in one folder, so that they share notes and tokenizer. */
int     tokens_json_is_same(const char *a, const char *b);
/* NaN and 0: there is no such file, or it does not have the number. */
double  tokens_json_bytes_per_token(const char *shard);
int64_t tokens_json_vocab_size(const char *shard);

/* Of a mean loss in nats per token; NaN where bytes_per_token is. */
double bits_per_byte(double loss, double bytes_per_token);

#ifdef __cplusplus
}
#endif
#endif
