/* tokens_json.h - tokens.json, a file that `tokenize` writes into the folder of its shards. It has the number of ids
 * and the mean bytes of text per token. With these a loss becomes bits per byte, which can be compared between
 * vocabularies. */
#ifndef TRAIN_GPT_DATA_TOKENS_JSON_H
#define TRAIN_GPT_DATA_TOKENS_JSON_H

#include <stddef.h>
#include <stdint.h>

/* Most bytes of a tokens.json. Older programs refuse a larger one, so a long list of inputs goes to the file
 * TOKENS_INPUTS_NAME in the same folder. */
enum { TOKENS_JSON_BYTES = 1 << 16 };
#define TOKENS_INPUTS_NAME "tokens.inputs.jsonl"

/* Writes the folder of a shard (or of a glob of shards), without a slash behind it. With is_target it is the folder of
 * the file to which the shard links; returns 0 if the shard is no link. Returns 0 also if the path of the folder is too
 * long. */
int     tokens_folder(const char *shard, int is_target, char *folder, size_t capacity);
/* Writes the path of the tokens.json that belongs to a shard, or to a glob of shards: the one in its folder. If there
 * is none and the shard is a link, the path is that in the folder of the link's target. */
void    tokens_json_path(const char *shard, char *path, size_t capacity);
/* Returns 1 if two shards are in one folder and neither is a link, so that they share tokens.json and tokenizer. */
int     tokens_json_is_same(const char *a, const char *b);
/* Return a number in the tokens.json that belongs to a shard: the mean bytes of text per token, or the number of ids.
 * Return NaN and 0 if there is no tokens.json, or no such number in it. Exit with 65 if the file is not a JSON object,
 * or a value in it is not a number. Exit with 74 if the disk fails or tokens.json is not a file. */
double  tokens_json_bytes_per_token(const char *shard);
int64_t tokens_json_vocab_size(const char *shard);
/* Checks the tokens.json that belongs to a shard. Exits with 65 if it cannot be read, or if the shards in its folder
 * hold more tokens than it says. Warns if they hold fewer. */
void    tokens_json_check(const char *shard);
/* Returns 1 if the tokens.json that belongs to a shard has all numbers that `tokenize` writes. tokens[0] and tokens[1]
 * are then the numbers of tokens of the training and the validation shards. */
int     tokens_json_counts(const char *shard, int64_t tokens[2]);

/* Returns a mean loss in nats per token as bits per byte; NaN if bytes_per_token is NaN. */
double bits_per_byte(double loss, double bytes_per_token);

#endif
