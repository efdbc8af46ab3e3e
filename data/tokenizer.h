/* tokenizer.h - text to token ids and back: bytes (a vocabulary of 256 without files), byte-pair encoding from the
 * files of data/bpe_file.h, or ids alone, which take no text and print as <id>.
 *
 * Decoded text is for people and terminals. Byte tokens that are control characters other than newline and tab could
 * steer a terminal, so they are written as \xNN. Bytes from 0x80 on are written unchanged, so that UTF-8 stays
 * readable.
 */
#ifndef TRAIN_GPT_DATA_TOKENIZER_H
#define TRAIN_GPT_DATA_TOKENIZER_H

#include <stdio.h>

#include "data/bpe_file.h"

typedef enum { TOKENIZER_IDS, TOKENIZER_BYTES, TOKENIZER_BPE } TokenizerKind;
typedef struct {
    TokenizerKind kind;
    int64_t       vocab_size;
    BpeFile       file;      /* the vocabulary and how text is split; only for TOKENIZER_BPE */
} Tokenizer;

/* Reads a tokenizer from a folder or file. Exits with 65 if the file is not supported, with 64 if it has ids that a
 * model of vocab_size lacks. With path "" tokens are bytes if vocab_size is 256. Otherwise only ids are known: no text
 * can be encoded, and tokens print as ids. */
Tokenizer tokenizer_create(const char *path, int64_t vocab_size);
/* Reads the tokenizer of a folder or file, without a check of its size or warnings. Returns 0, or an exit code with a
 * sentence in fault. */
int       tokenizer_try(const char *path, Tokenizer *t, char fault[BPE_FAULT_CHARS]);
/* Returns 1 if the folder of a shard (or of a glob of shards) holds a tokenizer, as `tokenize` writes it there. Its
 * path is then in out [capacity]. Otherwise returns 0. If the shard is a link, the folder of its target is searched
 * next. */
int       tokenizer_beside(const char *shard, char *out, size_t capacity);
/* Returns a hash of all that decides the ids of a text. It covers the vocabulary, added tokens, and the merges that can
 * happen. It also covers the pieces into which patterns split a sample text with every kind of character. The hash does
 * not depend on the file format. It is 0 for TOKENIZER_BYTES and TOKENIZER_IDS. */
uint64_t  tokenizer_fingerprint(const Tokenizer *t);
/* Returns 1 if tokenizers a and b encode text to different ids, with the difference in why: "from id 5 on they differ".
 * Returns 0 if they do not, or if only the number of ids is known of one of them. */
enum { TOKENIZER_WHY_CHARS = 80 };
int       tokenizer_difference(const Tokenizer *a, const Tokenizer *b, char why[TOKENIZER_WHY_CHARS]);
/* Returns the tokenizer of data files: the one at path if path is not empty, otherwise the first one in a folder of the
 * files. If there is none, tokens are bytes if tokens.json in the files' folders says so, or if vocab_size is 256.
 * Otherwise only ids are known. Exits with 65 if a folder of the files has another tokenizer, or a tokens.json with
 * another number of ids. */
Tokenizer tokenizer_of_data(const char *path, const char *const *file, int64_t files, int64_t vocab_size);
/* Exits with 65 if the folder of `file` has another tokenizer than t, or a tokens.json with another number of ids. For
 * the message: `name` is the name of t, `whose` the owner of the file (such as "the checkpoint"), `cure` what to
 * type. */
void      tokenizer_refuse_other(const Tokenizer *t, const char *name, const char *file, const char *whose,
                                 const char *cure);
void      tokenizer_destroy(Tokenizer *t);
/* Writes the text of one token id for people: control bytes as \xNN, an id without text as <id>. */
void      tokenizer_decode(const Tokenizer *t, int32_t id, FILE *out);
/* Returns the id that ends a text, or -1 if there is none. TOKENIZER_IDS with the size of the GPT-2 vocabulary has the
 * id of GPT-2. */
int32_t   tokenizer_end_of_text(const Tokenizer *t);
/* returns the text of a token id, malloc'ed; NULL if the id has no text */
char     *tokenizer_special_text(const Tokenizer *t, int32_t id);
/* Returns the id with which a model begins a new text. It is the first id that the tokenizer puts before each text,
 * else bos_token, else the end of text. It is a newline for TOKENIZER_BYTES, 0 for TOKENIZER_IDS. */
int32_t   tokenizer_start(const Tokenizer *t);
/* Writes the ids that the tokenizer puts before each text (post_processor, add_bos_token) into ids [BPE_MOST_BEGIN].
 * Returns how many. They precede prompts and evaluated texts, not the documents of training data. */
int64_t   tokenizer_begin(const Tokenizer *t, int32_t *ids);

/* --- encoding ----------------------------------------------------------------------------------------------------- */

/* A text is encoded whole or in parts of any size, with the same ids. The encoder keeps back text that the tokenizer
 * may still join with the part that follows. */

/* Limits in bytes. ENCODER_CHUNK: text that is encoded at once. ENCODER_LONGEST: text that is kept back because a
 * pattern must see it whole or matches it as one piece. ENCODER_LONGEST_PIECE: one piece to encode, which needs memory
 * of 60 times its bytes. */
enum { ENCODER_CHUNK = 1 << 20, ENCODER_LONGEST = 1 << 30, ENCODER_LONGEST_PIECE = 1 << 26 };

/* A Cutter passes a text that comes in parts to take(). It keeps what take() did not consume, and passes it again,
 * followed by the next part. Exits with 65 if it would keep over ENCODER_LONGEST bytes. */
typedef struct {
    /* consumes the part of a text that later text cannot change; returns the number of bytes consumed; with SPLIT_END
     * it consumes all */
    size_t (*take)(void *with, const char *text, size_t bytes, SplitEnd end);
    void    *with;
    char    *text;               /* owned [room]: the text that is kept, of `bytes` bytes */
    size_t   bytes, room;
    /* sizes of the kept text: chunk, at which take() is called first (0: ENCODER_CHUNK); enough, at which it is called
     * next */
    size_t   chunk, enough;
} Cutter;
void cutter_put(Cutter *c, const char *text, size_t bytes);
void cutter_end(Cutter *c); /* ends a document: take() gets all text that is kept */
void cutter_free(Cutter *c);

typedef struct {
    const Tokenizer *tokenizer;  /* borrowed; of a kind other than TOKENIZER_IDS */
    void           (*sink)(void *with, const int32_t *ids, int64_t count);
    void            *with;
    Cutter           cutter;     /* owned: keeps back text as it was given */
    Cutter           normal;     /* owned: keeps back normalized text, if the tokenizer normalizes */
    int32_t         *ids;        /* owned [room]: `count` token ids that were not yet passed to sink() */
    size_t           room, count;
    int64_t          begun;      /* bytes of the document that have been encoded */
    int64_t          invalid;    /* bytes of all documents so far that are not UTF-8 */
} Encoder;

void encoder_put(Encoder *e, const char *text, size_t bytes);
void encoder_end(Encoder *e); /* ends a document: encodes all text that was kept back */
void encoder_free(Encoder *e);

/* Returns the largest number of ids to which a text of `bytes` bytes can be encoded. */
size_t  tokenizer_most(const Tokenizer *t, size_t bytes);
/* Encodes a text into ids [tokenizer_most]. Returns their number, or -1 for TOKENIZER_IDS. Added tokens such as
 * <|endoftext|> become their ids. Bytes that are not UTF-8 become tokens of bytes. Not for two threads at once. */
int64_t tokenizer_encode(const Tokenizer *t, const char *text, size_t bytes, int32_t *ids);

/* --- as tokenizer.json -------------------------------------------------------------------------------------------- */

/* Returns the text of a tokenizer.json (byte-level BPE) that Hugging Face tokenizers read, malloc'ed, and its length in
 * *bytes. For a tokenizer that was read from a tokenizer.json it is that file unchanged. For TOKENIZER_BYTES it is a
 * vocabulary of 256, with each byte its own id. For TOKENIZER_IDS it is NULL. */
char *tokenizer_json(const Tokenizer *t, size_t *bytes);

/* Returns the tokenizer.json of a vocabulary and its merges, malloc'ed, and its length in *bytes. pattern is the
 * regular expression that splits text into pieces first; NULL: a text is one piece. */
char *tokenizer_json_of(const Bpe *b, const char *pattern, size_t *bytes);

#endif
