/* tokenizer_json.h - a tokenizer as the tokenizer.json that Hugging Face tokenizers read (byte-level BPE). */
#ifndef TRAIN_GPT_DATA_TOKENIZER_JSON_H
#define TRAIN_GPT_DATA_TOKENIZER_JSON_H

#include "data/tokenizer.h"

/* The file's text, malloc'ed, *bytes of it. Of a tokenizer.json it is that file as it was read; of bytes a vocabulary of 256
 * with each byte its own id. NULL for TOKENIZER_IDS. */
char *tokenizer_json(const Tokenizer *t, size_t *bytes);

/* Of a vocabulary and its merges; pattern splits text first, NULL: text is one piece. */
char *tokenizer_json_of(const Bpe *b, const char *pattern, size_t *bytes);

#endif
