/* tokens_json.h - tokens.json, the notes that `tokenize` writes beside its shards: the number of ids, and the mean
 * bytes of text per token. These turn a loss into bits per byte, which can be compared between vocabularies.
 */
#ifndef TRAIN_GPT_DATA_TOKENS_JSON_H
#define TRAIN_GPT_DATA_TOKENS_JSON_H

#include <stddef.h>
#include <stdint.h>

/* The largest tokens.json, in bytes. Older programs refuse a larger one, so a long list of inputs goes to a file
 * beside it. */
enum { TOKENS_JSON_BYTES = 1 << 16 };
#define TOKENS_INPUTS_NAME "tokens.inputs.jsonl"

/* Writes the folder of a shard (or of a glob of shards), without a slash behind it; with is_target the folder of the
 * file that the shard links to. Returns 0 if the shard is no link, or the folder has too long a name. */
int     tokens_folder(const char *shard, int is_target, char *folder, size_t capacity);
/* Writes the path of the tokens.json of a shard, or of a glob of shards. For a link it is the file beside the link. If
 * there is none, it is the file beside the shard that the link points to. */
void    tokens_json_path(const char *shard, char *path, size_t capacity);
/* Returns 1 if two shards are in one folder and neither is a link, so that they share tokens.json and tokenizer. */
int     tokens_json_is_same(const char *a, const char *b);
/* Return a number in the tokens.json of a shard: the mean bytes of text per token, or the number of ids. NaN and 0:
 * there is no tokens.json, or no such number in it. Exits with 65 if the file is not a JSON object, or a value in it is
 * not a number. Exits with 74 if the disk fails or tokens.json is not a file. */
double  tokens_json_bytes_per_token(const char *shard);
int64_t tokens_json_vocab_size(const char *shard);
/* Exits with 65 if the tokens.json of a shard cannot be read, or if the shards in its folder hold more tokens than it
 * says. Warns if they hold fewer. */
void    tokens_json_check(const char *shard);
/* Returns 1 if the tokens.json of a shard was written by `tokenize`. Then tokens[0] and tokens[1] are the numbers of
 * tokens of the training and the validation shards. */
int     tokens_json_counts(const char *shard, int64_t tokens[2]);

/* Returns a mean loss in nats per token as bits per byte; NaN if bytes_per_token is NaN. */
double bits_per_byte(double loss, double bytes_per_token);

#endif
