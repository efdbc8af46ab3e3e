/* dump_ids.c - dump_ids TOKENIZER reads texts from standard input, each after its length in bytes and a newline. It
 * prints the ids of each text in a line. test/interop compares them with other tokenizers. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "data/tokenizer.h"

int main(int argc, char **argv) {
    long long bytes;
    if (argc < 2) return 64;
    Tokenizer t = tokenizer_create(argv[1], BPE_MOST_IDS);
    while (scanf("%lld", &bytes) == 1 && getchar() == '\n') {
        char    *text = malloc((size_t)bytes + 1);
        int32_t *ids = malloc(sizeof *ids * (tokenizer_most(&t, (size_t)bytes) + 1));
        if (!text || !ids || fread(text, 1, (size_t)bytes, stdin) != (size_t)bytes) return 65;
        int64_t count = tokenizer_encode(&t, text, (size_t)bytes, ids);
        for (int64_t i = 0; i < count; i++) printf(i ? " %d" : "%d", ids[i]);
        putchar('\n');
        free(text), free(ids);
    }
    tokenizer_destroy(&t);
    return 0;
}
