/* bpe_file.h - the files that byte-pair tokenizers are published in: vocab.json with merges.txt (GPT-2),
 * tokenizer.json (Hugging Face tokenizers, byte-level BPE), NAME.tiktoken (OpenAI tiktoken; the split pattern follows
 * from NAME).
 */
#ifndef TRAIN_GPT_DATA_BPE_FILE_H
#define TRAIN_GPT_DATA_BPE_FILE_H

#include "data/bpe.h"
#include "data/split.h"

enum { BPE_MOST_FORMS = 8, BPE_MOST_BEGIN = 8 };
typedef struct {
    Bpe    *bpe;
    Split  *split;
    char   *json;       /* text of the tokenizer.json that bpe_file_read has read; NULL for other files; owned */
    /* regular expression that splits text, if the tokenizer's file has none; NULL if it has one; owned */
    char   *pattern;
    /* normal forms (NFC and others) to apply in order, as options of utf8proc_map */
    int     normal_form[BPE_MOST_FORMS], normal_forms;
    /* ids that the tokenizer puts before each text, by its post_processor or add_bos_token */
    int32_t begin[BPE_MOST_BEGIN], begins;
    int     adds_start; /* add_bos_token of tokenizer_config.json: 1 or 0 if it overrides the post_processor, else -1 */
    int32_t start;      /* id of bos_token in tokenizer_config.json or special_tokens_map.json; -1 if there is none */
    char   *start_from; /* file and member that set begin or start, for messages; NULL if neither is set; owned */
    /* lines about members of the files that this program does not use; NULL if there are none; owned */
    char   *notes;
    /* id of <|endoftext|>, or of the token that this vocabulary has in its place; -1 if there is none */
    int32_t end_of_text;
} BpeFile;

/* A file of a tokenizer in memory: text [bytes], followed by a NUL. Parsing changes the text. The name of a .tiktoken
 * file selects the pattern that splits text. unpack is the command that has unpacked the file, for messages; NULL if it
 * was not packed. */
typedef struct { const char *path; char *text; size_t bytes; const char *unpack; } BpeText;
typedef enum { BPE_TOKENIZER_JSON, BPE_VOCAB_AND_MERGES, BPE_TIKTOKEN } BpeKind;
enum { BPE_FAULT_CHARS = 4096, BPE_CONFIG_LIMIT = 1 << 26 /* largest tokenizer_config.json, in bytes */ };

/* Parses a tokenizer from text[0], or for BPE_VOCAB_AND_MERGES from the vocabulary text[0] and the merges text[1].
 * Returns 1. On a fault returns 0 with a sentence in fault that begins with the path; *f then owns nothing. */
int     bpe_file_parse(BpeKind kind, const BpeText text[2], BpeFile *f, char fault[BPE_FAULT_CHARS]);
/* Reads the tokenizer at path, a file or a folder. Reads tokenizer_config.json and special_tokens_map.json in the same
 * folder, too. Returns 0, or an exit code with a sentence in fault. 65: the message names the file and the unknown
 * member. 74: the file cannot be read. */
int     bpe_file_read(const char *path, BpeFile *f, char fault[BPE_FAULT_CHARS]);
void    bpe_file_free(BpeFile *f);
/* Returns the length of NAME if the last part of the path is NAME.tiktoken, which may be packed (.gz, .zst, .xz), else
 * 0. */
size_t  bpe_file_tiktoken_name(const char *path);

/* Returns the text in the tokenizer's normal form, malloc'ed, with its length in *made. Returns NULL if the tokenizer
 * does not normalize. text is valid UTF-8. */
char   *bpe_file_normalized(const BpeFile *f, const char *text, size_t bytes, size_t *made);

/* Writes the character, as UTF-8 with a NUL, that represents a byte in vocab.json and tokenizer.json. */
void bpe_character(int byte, char out[4]);

#endif
