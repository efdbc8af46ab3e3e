/* begin.h - a tokenizer whose tokens are the 256 bytes, and that puts the token <s>, with id 256, before each text. */
#ifndef TRAIN_GPT_TEST_RUN_LIB_BEGIN_H
#define TRAIN_GPT_TEST_RUN_LIB_BEGIN_H

#include "data/tokenizer.h"

static inline Tokenizer begin_tokenizer(void) {
    Tokenizer t = {TOKENIZER_BPE,
                   257,
                   {.bpe = bpe_create(), .begin = {256}, .begins = 1, .start = -1, .adds_start = -1, .end_of_text = -1}};
    char      fault[SPLIT_FAULT_CHARS];
    for (int byte = 0; byte < 256; byte++) bpe_add(t.file.bpe, byte, &(char){(char)byte}, 1);
    bpe_add_special(t.file.bpe, 256, "<s>", 3);
    split_create(&t.file.split, NULL, 0, "begin", SPLIT_BY_CONSTRUCTS, fault);
    return t;
}

#endif
