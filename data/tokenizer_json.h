/* tokenizer_json.h - a tokenizer as the tokenizer.json that Hugging Face tokenizers read (byte-level BPE). */
#ifndef TRAIN_GPT_DATA_TOKENIZER_JSON_H
#define TRAIN_GPT_DATA_TOKENIZER_JSON_H

#include "data/tokenizer.h"

/* Returns the text of the file, malloc'ed, and its length in *bytes. A tokenizer that was read from a tokenizer.json
 * gives that file unchanged. TOKENIZER_BYTES gives a vocabulary of 256, with each byte its own id. NULL for
 * TOKENIZER_IDS. */
char *tokenizer_json(const Tokenizer *t, size_t *bytes);

/* Returns the file for a vocabulary and its merges, as tokenizer_json does. pattern splits text into pieces first;
 * NULL: all text is one piece. */
char *tokenizer_json_of(const Bpe *b, const char *pattern, size_t *bytes);

#endif
