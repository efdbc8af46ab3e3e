/* split.h - text into the pieces that a byte-pair tokenizer then encodes one by one: words with the space before them,
 * numbers, punctuation, white space, as the tokenizer's own regular expressions say (PCRE2, compiled to machine code).
 */
#ifndef TRAIN_GPT_DATA_SPLIT_H
#define TRAIN_GPT_DATA_SPLIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The pattern of GPT-2, as in its published encoder. */
extern const char *const SPLIT_GPT2;
/* That of a published vocabulary by its name ("gpt2", "cl100k_base" ...); NULL: unknown. */
const char *split_named(const char *name);

typedef struct Split Split;
enum { SPLIT_PATTERNS = 8, SPLIT_FAULT_CHARS = 200 };

/* Compiles the patterns. The second splits the pieces that the first returns, and so on. Text between two matches is a piece,
 * too. Returns 1, or 0 and the reason in fault, where a pattern is none. */
int  split_create(Split **split, const char *const *pattern, int patterns, char fault[SPLIT_FAULT_CHARS]);
void split_destroy(Split *split);

/* Calls piece(with, begin, bytes) for each piece of text, in order; together they are the text. Bytes that are no UTF-8 are
 * pieces by themselves. */
typedef void SplitPiece(void *with, const char *begin, size_t bytes);
void split_text(const Split *split, const char *text, size_t bytes, SplitPiece *piece, void *with);

#ifdef __cplusplus
}
#endif
#endif
