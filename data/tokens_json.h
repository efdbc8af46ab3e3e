/* tokens_json.h - the notes that `tokenize` leaves beside token shards, in tokens.json. */
#ifndef TRAIN_GPT_DATA_TOKENS_JSON_H
#define TRAIN_GPT_DATA_TOKENS_JSON_H

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of text that a token stands for, on average, in the folder of a shard (or of a glob of them); 0: there is no
 * note. */
double tokens_json_bytes_per_token(const char *shard);

#ifdef __cplusplus
}
#endif
#endif
