/* bpe_file.h - the files that byte-pair tokenizers are published in: vocab.json with merges.txt (GPT-2), tokenizer.json (Hugging
 * Face tokenizers, byte-level BPE), NAME.tiktoken (OpenAI tiktoken; the split pattern follows from NAME).
 */
#ifndef TRAIN_GPT_DATA_BPE_FILE_H
#define TRAIN_GPT_DATA_BPE_FILE_H

#include "data/bpe.h"
#include "data/split.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    Bpe    *bpe;
    Split  *split;
    int     is_nfc;     /* text is brought into Unicode's normal form C first */
    int32_t end_of_text; /* the id of <|endoftext|>, or of what the file has in its place; -1: none */
} BpeFile;

/* Reads a file, or the one in a folder. Exit 65 naming the file and what it is that is not understood, 74 where it cannot
 * be read. */
BpeFile bpe_file_read(const char *path);
void    bpe_file_free(BpeFile *f);

/* The character, as UTF-8, that stands for a byte in these files. */
void bpe_character(int byte, char out[4]);

#ifdef __cplusplus
}
#endif
#endif
