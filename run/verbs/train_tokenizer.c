/* train_tokenizer.c - the verb `train-tokenizer`: learns a byte-pair vocabulary from text, and writes the
 * tokenizer.json that `tokenize`, training and Hugging Face tokenizers read. Equal texts in equal order give equal
 * files.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/io.h"
#include "core/format.h"
#include "core/terminal.h"
#include "data/bpe.h"
#include "data/documents.h"
#include "data/tokenizer.h"
#include "run/guard/lock.h"
#include "run/verbs/verbs.h"

enum { LEAST_IDS = 257 /* the 256 bytes and <|endoftext|> */, MOST_IDS = 1 << 20, LEAST_MEMORY = 1000000 };
enum { COUNTED_PART = 8 /* 1/8 of the memory is for words; the rest is for pairs of tokens */ };
static const char END_OF_TEXT[] = "<|endoftext|>";

static struct {
    const char *out, *pattern; /* pattern: a name that split_named knows, or a regular expression */
    int         vocab_size;
    int64_t     memory_bytes;
} asked;
static const VerbKey TRAIN_TOKENIZER_KEYS[] = {
    {"out", "datasets/bpe", NULL, "the folder of tokenizer.json; made if need be", .text = &asked.out},
    {"vocab_size", "8000", NULL,
     "ids in all: the bytes, the merges and <|endoftext|>; 8000 for a small text, 50304 for a large one",
     .whole = &asked.vocab_size, .least = LEAST_IDS, .most = MOST_IDS},
    INPUT_KEYS,
    {"pattern", "cl100k_base", "gpt2",
     "where words begin: gpt2, cl100k_base, o200k_base, llama3, qwen, or a regular expression (Oniguruma's)",
     .text = &asked.pattern},
    {"memory", "8GiB", "2GiB", "for counting words; rare ones that do not fit are left out",
     .bytes = &asked.memory_bytes, .least = LEAST_MEMORY},
    {.name = NULL},
};

/* --- counting ----------------------------------------------------------------------------------------------------- */

typedef struct {
    Split      *split;
    BpeTrainer *trainer;
    Cutter      cutter;
    int64_t     bytes, begun; /* bytes of all texts; bytes of the present document that were counted */
} Counting;

static void count_word(void *with, const char *word, size_t bytes) { bpe_trainer_add((BpeTrainer *)with, word, bytes); }
static size_t count_part(void *with, const char *text, size_t bytes, SplitEnd end) {
    Counting *c = (Counting *)with;
    split_place(c->split, c->begun);
    size_t taken = split_text(c->split, text, bytes, end, count_word, c->trainer);
    c->begun += (int64_t)taken;
    return taken;
}

static void begin_document(void *with, int is_row) { (void)with, (void)is_row; }
static void take_text(void *with, const char *text, size_t bytes) {
    Counting *c = (Counting *)with;
    c->bytes += (int64_t)bytes;
    cutter_put(&c->cutter, text, bytes);
}
static void end_document(void *with) {
    Counting *c = (Counting *)with;
    cutter_end(&c->cutter);
    c->begun = 0;
}

/* Reads the texts and counts their words. Returns the reader of the documents, for the caller to free. */
static Documents *count_texts(char **text, int texts, Counting *c) {
    char       fault[DOCUMENT_FAULT_CHARS];
    Documents *documents;
    int        exit_code = documents_find(&documents, text, texts, &verb_inputs, fault);
    c->cutter.take = count_part, c->cutter.with = c;
    DocumentSink sink = {begin_document, take_text, end_document, c};
    if (exit_code == 0) exit_code = documents_read(documents, sink, fault);
    if (exit_code) fail(exit_code, "train-tokenizer: %s", fault);
    if (c->bytes == 0)
        fail(EXIT_DATA, "train-tokenizer: %s%s", documents_input_name(text[0]),
             texts > 1 ? " and the other texts are empty" : " is empty");
    cutter_free(&c->cutter);
    return documents;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Returns the text of tokenizer.json. Ids 0 to 255 are the bytes. The merges follow, and the last id is the end of a
 * text. */
static char *vocabulary_json(const char *pattern, const int32_t *left, const int32_t *right, int32_t merges,
                             size_t *bytes) {
    Bpe   *b = bpe_create();
    size_t room = 256;
    char  *token = xmalloc(room, "a tokenizer");
    for (int byte = 0; byte < 256; byte++) bpe_add(b, byte, &(char){(char)byte}, 1);
    for (int32_t i = 0; i < merges; i++) {
        size_t      first, second;
        const char *text;
        bpe_bytes(b, left[i], &first), bpe_bytes(b, right[i], &second);
        if (first + second > room) {
            free(token);
            token = xmalloc(room = 2 * (first + second), "a tokenizer");
        }
        text = bpe_bytes(b, left[i], &first), memcpy(token, text, first);
        text = bpe_bytes(b, right[i], &second), memcpy(token + first, text, second);
        CHECK(bpe_add(b, 256 + i, token, first + second), "merge %d makes a token that is there", i);
        bpe_add_merge(b, left[i], right[i], i, 256 + i);
    }
    bpe_add_special(b, 256 + merges, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    char *json = tokenizer_json_of(b, pattern, bytes);
    bpe_destroy(b);
    free(token);
    return json;
}

static int verb_train_tokenizer(int texts, char **text) {
    RunLock    *lock = lock_output("train-tokenizer", "out", asked.out, LOCK_INTO);
    /* Refuses a folder that has one of these files. Token shards are useless with another tokenizer, and a vocabulary
     * cannot be made again without its text. */
    static const char *const NAMES[] = {"tokenizer.json", "vocab.json", "merges.txt", "tokens.json"};
    for (int i = 0; i < 4; i++) {
        Path        there = path_of("%s/%s", asked.out, NAMES[i]);
        struct stat st;
        if (lstat(there.text, &st) == 0 && (!S_ISREG(st.st_mode) || st.st_size > 0))
            fail(EXIT_CONFIG,
                 "train-tokenizer: %s is there already, and a tokenizer beside it would change what it means: take "
                 "another out=, or move it away",
                 there.text);
    }
    verb_inputs.out = asked.out;
    const char *pattern = split_named(asked.pattern) ? split_named(asked.pattern) : asked.pattern;
    char        fault[SPLIT_FAULT_CHARS];
    Path        path = path_of("%s/tokenizer.json", asked.out);
    Counting    counting = {.trainer = bpe_trainer_create((size_t)(asked.memory_bytes / COUNTED_PART))};
    size_t      json_bytes;
    SplitRule   rule = {(char *)pattern, SPLIT_ISOLATED, 0};
    if (!split_create(&counting.split, &rule, 1, "train-tokenizer", SPLIT_BY_CONSTRUCTS, fault))
        fail(EXIT_CONFIG, "train-tokenizer: pattern=%s: %s", asked.pattern, fault);
    Documents *documents = count_texts(text, texts, &counting);

    int32_t  most = asked.vocab_size - 257;
    int32_t *left = xmalloc(2 * sizeof *left * (size_t)(most + 1), "a vocabulary");
    int32_t *right = left + most + 1;
    int32_t merges = bpe_trainer_learn(counting.trainer, most, left, right);
    char   *json = vocabulary_json(pattern, left, right, merges, &json_bytes);
    verb_put("train-tokenizer", path.text, lock, json, json_bytes);

    printf("train-tokenizer: %lld bytes of text, a vocabulary of %d: the bytes, %d merges, %s\n",
           (long long)counting.bytes, 257 + merges, merges, END_OF_TEXT);
    documents_print(documents, stdout);
    documents_free(documents);
    free(verb_inputs.skip);
    if (merges < most)
        printf("  no other two neighbours are there twice: vocab_size=%d takes more text\n", asked.vocab_size);
    if (bpe_trainer_forgotten(counting.trainer))
        printf("  %lld rare words did not fit in memory and were left out; memory=%gGiB has room for more\n",
               (long long)bpe_trainer_forgotten(counting.trainer), 2.0 * (double)asked.memory_bytes / 1073741824.0);
    int entries = 257 + merges, whole = (entries + 63) / 64 * 64;
    print_plain(stdout, "  %s; next: ./train_gpt tokenize TEXT out=FOLDER tokenizer=%s, and model.vocab_size=%d%s\n",
                path.text, shell_word(asked.out).text, whole, whole > entries ? ", the next multiple of 64" : "");
    free(json), free(left);
    split_destroy(counting.split);
    bpe_trainer_destroy(counting.trainer);
    return EXIT_DONE;
}

const Verb TRAIN_TOKENIZER_VERB = {
    "train-tokenizer", "TEXT... out=FOLDER vocab_size=N", "a byte-pair vocabulary learnt from text",
    "Learns a byte-pair vocabulary and writes FOLDER/tokenizer.json, which tokenize, training and Hugging Face "
    "tokenizers read. The same texts in the same order give the same file.",
    TRAIN_TOKENIZER_KEYS, "./train_gpt train-tokenizer mytext.txt out=datasets/bpe vocab_size=8000",
    verb_train_tokenizer, {1, INT_MAX, "a text to read: a file, a folder, or -"},
};
