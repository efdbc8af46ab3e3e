/* tokenizer.c - see tokenizer.h. */
#include "data/tokenizer.h"

#include <stdio.h>

#include "core/error.h"

Tokenizer tokenizer_create(const char *folder, int64_t vocab_size) {
    if (*folder)
        fail(EXIT_CONFIG,
             "data.tokenizer: %s: BPE tokenizers are not built in yet; leave data.tokenizer empty (bytes for model.vocab_size "
             "256, else token ids only)",
             folder);
    return (Tokenizer){vocab_size == 256 ? TOKENIZER_BYTES : TOKENIZER_IDS, vocab_size};
}

int64_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int32_t *ids) {
    if (t->kind != TOKENIZER_BYTES) return -1;
    for (size_t i = 0; i < bytes; i++) ids[i] = (unsigned char)text[i];
    return (int64_t)bytes;
}

int tokenizer_decode(const Tokenizer *t, int32_t id, char *out) {
    if (t->kind != TOKENIZER_BYTES || id < 0 || id > 255) return snprintf(out, TOKENIZER_TEXT_CHARS, "<%d>", id);
    if ((id < 0x20 && id != '\n' && id != '\t') || id == 0x7f) return snprintf(out, TOKENIZER_TEXT_CHARS, "\\x%02x", id);
    out[0] = (char)id;
    out[1] = 0;
    return 1;
}
