/* tokenizer.h - text to token ids and back. Bytes (vocabulary 256) today; an id outside the tokenizer prints as <id>.
 *
 * Decoded text is for people and terminals: control characters other than newline and tab, which could steer a
 * terminal, come as \xNN. Bytes from 0x80 on pass, so that UTF-8 reads as it was written.
 */
#ifndef TRAIN_GPT_DATA_TOKENIZER_H
#define TRAIN_GPT_DATA_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TOKENIZER_TEXT_CHARS = 32 };

typedef enum { TOKENIZER_IDS, TOKENIZER_BYTES } TokenizerKind;
typedef struct { TokenizerKind kind; int64_t vocab_size; } Tokenizer;

/* folder "" : bytes if vocab_size is 256, else ids only (no text in, ids out). Exit 64 for a folder: BPE is not built
 * in yet. */
Tokenizer tokenizer_create(const char *folder, int64_t vocab_size);
/* ids [at most bytes] from text; returns how many, -1 when this tokenizer takes no text. */
int64_t   tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int32_t *ids);
/* Text of one id into out [TOKENIZER_TEXT_CHARS], 0 after it; returns its bytes. */
int       tokenizer_decode(const Tokenizer *t, int32_t id, char *out);

#ifdef __cplusplus
}
#endif
#endif
