/* split.h - divides text into the pieces that a byte-pair tokenizer encodes one by one: words with the space before
 * them, numbers, punctuation, white space. The tokenizer's own regular expressions define the pieces.
 *
 * The patterns in a tokenizer.json have the default syntax of Oniguruma, in UTF-8, because Hugging Face tokenizers
 * reads them so. PCRE2 compiles a pattern to machine code if all its constructs mean the same to both. libonig matches
 * all others.
 */
#ifndef TRAIN_GPT_DATA_SPLIT_H
#define TRAIN_GPT_DATA_SPLIT_H

#include <stddef.h>
#include <stdint.h>

/* Pattern that splits text into pieces for GPT-2, as in its published encoder. */
extern const char SPLIT_GPT2[];
/* Returns the pattern that splits text for a published vocabulary, by its name ("gpt2", "cl100k_base" ...). Returns
 * NULL if the name is unknown. */
const char *split_named(const char *name);

/* Treatment of a match of the pattern, as in Hugging Face tokenizers. SPLIT_ISOLATED: it is a piece of its own.
 * SPLIT_REMOVED: it is removed. SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT: it joins the text before or after it.
 * SPLIT_CONTIGUOUS: adjacent matches are one piece. */
typedef enum { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_WITH_PREVIOUS, SPLIT_WITH_NEXT, SPLIT_CONTIGUOUS } SplitBehavior;
typedef struct {
    char         *pattern;
    SplitBehavior behavior;
    int           is_inverted; /* 1: the behavior applies to the text between matches */
} SplitRule;

typedef struct Split Split;
enum { SPLIT_RULES = 8, SPLIT_FAULT_CHARS = 400 };
typedef enum { SPLIT_BY_CONSTRUCTS, SPLIT_BY_ONIGURUMA } SplitEngine;

/* Compiles the rules. Each rule splits the pieces of the rule before it. name is the path of the tokenizer's file, for
 * messages. With SPLIT_BY_CONSTRUCTS the constructs of each pattern decide whether PCRE2 or Oniguruma matches it. Only
 * tests force Oniguruma. Returns 1, or 0 with the reason in fault if a pattern cannot be used. */
int  split_create(Split **split, const SplitRule *rule, int rules, const char *name, SplitEngine engine,
                  char fault[SPLIT_FAULT_CHARS]);
void split_destroy(Split *split);
/* Returns SPLIT_BY_ONIGURUMA if Oniguruma matches one of the rules, otherwise SPLIT_BY_CONSTRUCTS. */
SplitEngine split_engine(const Split *split);
uint64_t split_hash(const Split *split); /* returns a hash of the patterns and behaviors of the rules */
int  split_removes(const Split *split); /* returns 1 if a rule removes some of the text */

/* split_text splits a text: it calls piece(with, begin, bytes) for each piece, in order. Adjacent bytes that are not
 * UTF-8 are one piece. The text before them and the text after them are split as two texts.
 *
 * SPLIT_MORE: more text follows. Only pieces that later text cannot change are passed to piece(). Returns the number of
 * bytes in them. The caller passes the remaining bytes again, before the text that follows. SPLIT_END: all bytes are
 * split.
 *
 * Exits with 65 if a pattern needs over SPLIT_SECONDS of processor time for SPLIT_STRETCH bytes. split_place() sets the
 * byte of the text at which the next call begins, for the message of that exit. Not for two threads at once. */
enum { SPLIT_SECONDS = 3, SPLIT_STRETCH = 1 << 16 };
typedef enum { SPLIT_MORE, SPLIT_END } SplitEnd;
typedef void SplitPiece(void *with, const char *begin, size_t bytes);
size_t split_text(Split *split, const char *text, size_t bytes, SplitEnd end, SplitPiece *piece, void *with);
void   split_place(Split *split, int64_t byte);

/* Returns how many bytes of valid UTF-8 the text begins with. If it begins with other bytes, returns 0 and their number
 * in *invalid. With SPLIT_MORE a character that the end of the text cuts is neither valid nor invalid: both numbers are
 * 0. */
size_t  utf8_valid(const char *text, size_t bytes, SplitEnd end, size_t *invalid);
/* Returns 1 if these bytes are the beginning of a UTF-8 character whose end is missing. */
int     utf8_is_cut(const char *text, size_t bytes);
int64_t utf8_invalid(const char *text, size_t bytes); /* returns the number of bytes of a text that are not UTF-8 */

#endif
