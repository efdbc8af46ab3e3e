/* bpe_file.h - the files that byte-pair tokenizers are published in: vocab.json with merges.txt (GPT-2),
 * tokenizer.json (Hugging Face tokenizers, byte-level BPE), NAME.tiktoken (OpenAI tiktoken; the split pattern follows
 * from NAME).
 */
#ifndef TRAIN_GPT_DATA_BPE_FILE_H
#define TRAIN_GPT_DATA_BPE_FILE_H

#include "data/bpe.h"
#include "data/split.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { BPE_MOST_FORMS = 8, BPE_MOST_BEGIN = 8 };
typedef struct {
    Bpe    *bpe;
    Split  *split;
    char   *json;       /* owned: the text of a tokenizer.json that bpe_file_read has read; NULL: of another file */
    char   *pattern;    /* owned: what splits text, for a file that does not say so itself; else NULL */
    int     normal_form[BPE_MOST_FORMS], normal_forms; /* text is brought into these first: options of utf8proc_map */
    int32_t begin[BPE_MOST_BEGIN], begins; /* ids that the post_processor puts before each text */
    int32_t start;      /* the id that bos_token names in the files beside; -1: none */
    char   *start_from; /* owned: the file and member that begin or start comes from; NULL: neither is there */
    char   *notes;      /* owned: members that are not used, a line each; NULL: none */
    int32_t end_of_text; /* the id of <|endoftext|>, or of what the file has in its place; -1: none */
} BpeFile;

/* A file in memory: text [bytes], and a NUL behind it. Parsing changes it. The name of a .tiktoken file says how it
 * splits. */
typedef struct { const char *path; char *text; size_t bytes; } BpeText;
typedef enum { BPE_TOKENIZER_JSON, BPE_VOCAB_AND_MERGES, BPE_TIKTOKEN } BpeKind;
enum { BPE_FAULT_CHARS = 4096 };

/* Parses the file, or vocabulary and merges. Returns 1, or 0 and a sentence in fault that begins with the path; then
 * nothing is owned. */
int     bpe_file_parse(BpeKind kind, const BpeText text[2], BpeFile *f, char fault[BPE_FAULT_CHARS]);
/* Reads a file, or the one in a folder, and the tokenizer_config.json and special_tokens_map.json beside it. Warns
 * of members that are not used. Exit 65 naming the file and what is not understood, 74 if it cannot be read. */
BpeFile bpe_file_read(const char *path);
void    bpe_file_free(BpeFile *f);

/* Returns the normal form of text that is UTF-8, malloc'ed, and its length. */
char   *bpe_file_normalized(const BpeFile *f, const char *text, size_t bytes, size_t *made);

/* The character, as UTF-8, that stands for a byte in these files. */
void bpe_character(int byte, char out[4]);

#ifdef __cplusplus
}
#endif
#endif
