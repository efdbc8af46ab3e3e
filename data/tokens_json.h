/* tokens_json.h - tokens.json, the notes that `tokenize` leaves beside its shards: how many bytes of text a token stands
 * for. With it a loss becomes bits per byte, which vocabularies of any size share.
 */
#ifndef TRAIN_GPT_DATA_TOKENS_JSON_H
#define TRAIN_GPT_DATA_TOKENS_JSON_H

#ifdef __cplusplus
extern "C" {
#endif

/* Beside a shard (or a glob of them); NaN: there is no such file, or it does not have the number. */
double tokens_json_bytes_per_token(const char *shard);

/* Of a mean loss in nats per token; NaN where bytes_per_token is. */
double bits_per_byte(double loss, double bytes_per_token);

#ifdef __cplusplus
}
#endif
#endif
