/* split.h - text into the pieces that a byte-pair tokenizer then encodes one by one: words with the space before them,
 * numbers, punctuation, white space, as the tokenizer's own regular expressions say.
 *
 * A tokenizer.json's patterns are Oniguruma's (its default syntax, UTF-8), because Hugging Face tokenizers reads
 * them so. Patterns of constructs that mean the same to PCRE2 are compiled to machine code by it; all others are
 * matched by libonig.
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
/* Returns the pattern of a published vocabulary by its name ("gpt2", "cl100k_base" ...), or NULL if the name is
 * unknown. */
const char *split_named(const char *name);

/* What becomes of a match, as in Hugging Face tokenizers: it is a piece; it is left out; it joins the text before
 * it, or the text behind it; matches side by side are one piece. */
typedef enum { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT, SPLIT_CONTIGUOUS } SplitBehavior;
typedef struct {
    char         *pattern;
    SplitBehavior behavior;
    int           is_inverted; /* matches and the text between them change roles */
} SplitRule;

typedef struct Split Split;
enum { SPLIT_RULES = 8, SPLIT_FAULT_CHARS = 400 };
typedef enum { SPLIT_BY_CONSTRUCTS, SPLIT_BY_ONIGURUMA } SplitEngine;

/* Compiles the rules; each splits the pieces that the one before it returns. name: the tokenizer's file, for
 * messages. The engine is SPLIT_BY_CONSTRUCTS except in tests. Returns 1, or 0 and the reason in fault if a pattern
 * cannot be used. */
int  split_create(Split **split, const SplitRule *rule, int rules, const char *name, SplitEngine engine,
                  char fault[SPLIT_FAULT_CHARS]);
void split_destroy(Split *split);
/* SPLIT_BY_ONIGURUMA if one of the rules needs it. */
SplitEngine split_engine(const Split *split);
uint64_t split_hash(const Split *split); /* of the rules as they are written */
int  split_removes(const Split *split); /* some text may become no piece */

/* Calls piece(with, begin, bytes) for each piece of text, in order. A run of bytes that are not UTF-8 is one piece; the
 * text before it and the text behind it are split as two texts.
 *
 * SPLIT_MORE: more text follows, and only pieces that no text behind these bytes can change are passed on. Returns how
 * many bytes the pieces took; the rest comes again, in front of what follows. SPLIT_END: takes all bytes.
 *
 * Exit 65 if a pattern takes over SPLIT_SECONDS of processor time for SPLIT_STRETCH bytes. split_place() sets the
 * byte of the text at which the next call begins, for that message. Not for two threads at once. */
enum { SPLIT_SECONDS = 3, SPLIT_STRETCH = 1 << 16 };
typedef enum { SPLIT_MORE, SPLIT_END } SplitEnd;
typedef void SplitPiece(void *with, const char *begin, size_t bytes);
size_t split_text(Split *split, const char *text, size_t bytes, SplitEnd end, SplitPiece *piece, void *with);
void   split_place(Split *split, int64_t byte);

/* Returns how many bytes of UTF-8 the text begins with, or 0 with the length of the run of other bytes in *invalid.
 * A character that the end of the text cuts is neither where more text follows: both are 0. */
size_t split_valid(const char *text, size_t bytes, SplitEnd end, size_t *invalid);

#ifdef __cplusplus
}
#endif
#endif
