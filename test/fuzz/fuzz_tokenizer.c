/* fuzz_tokenizer.c - any bytes as a tokenizer file. The first byte chooses the kind: j is tokenizer.json, t is
 * NAME.tiktoken, p is vocab.json, a zero byte, and merges.txt. An accepted tokenizer gives each text ids that decode to
 * the same text. */
#include <stdlib.h>
#include <string.h>

#include "data/bpe_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void encode(Bpe *b, const char *text) {
    int32_t ids[64];
    size_t  count = bpe_encode_piece(b, text, strlen(text), ids), at = 0, own;
    for (size_t i = 0; i < count; i++, at += own) {
        const char *token = bpe_bytes(b, ids[i], &own);
        if (!token || own == 0 || own > strlen(text) - at || memcmp(token, text + at, own) != 0) abort();
    }
    if (at != strlen(text)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char    fault[BPE_FAULT_CHARS] = "";
    BpeFile f;
    if (bytes == 0) return 0;
    BpeKind kind = data[0] == 't' ? BPE_TIKTOKEN : data[0] == 'p' ? BPE_VOCAB_AND_MERGES : BPE_TOKENIZER_JSON;
    char   *text = malloc(bytes); /* a copy of the input without its first byte, and a NUL */
    if (!text) return 0;
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = 0;
    size_t first = kind == BPE_VOCAB_AND_MERGES ? strlen(text) : bytes - 1;
    /* where merges.txt begins: after the zero byte; without one it is empty */
    size_t second = first < bytes - 1 ? first + 1 : first;
    BpeText file[2] = {{"gpt2.tiktoken", text, first, NULL}, {"merges.txt", text + second, bytes - 1 - second, NULL}};
    if (bpe_file_parse(kind, file, &f, fault)) {
        if (bpe_missing_byte(f.bpe) >= 0 || f.end_of_text >= bpe_ids(f.bpe)) abort();
        encode(f.bpe, "hello the lot");
        encode(f.bpe, "\xff\xc3\xa9 hellhellhell\n");
        bpe_file_free(&f);
    } else if (!fault[0] || !memchr(fault, 0, sizeof fault)) {
        abort();
    }
    free(text);
    return 0;
}
