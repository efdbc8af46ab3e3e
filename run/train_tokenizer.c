/* train_tokenizer.c - the verb `train-tokenizer`: a byte-pair vocabulary learnt from text, as the tokenizer.json that `tokenize`,
 * training and Hugging Face tokenizers read. The same texts, in the same order, give the same file.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/memory_file.h"
#include "data/bpe_train.h"
#include "data/encoder.h"
#include "data/shard.h"
#include "run/verbs.h"

#define USAGE "./train_gpt train-tokenizer TEXT... out=FOLDER vocab_size=N [pattern=gpt2] [memory=2GiB]"

enum { CHUNK_BYTES = 1 << 16, MOST_IDS = 1 << 20, COUNTED_PART = 8 /* of the memory: the rest is for pairs */ };
static const char END_OF_TEXT[] = "<|endoftext|>";

typedef struct {
    const char *out, *pattern; /* a name of split_named, or a regular expression */
    int32_t     vocab_size;
    double      memory_bytes;
    char      **text;          /* borrowed, of argv */
    int         texts;
} Asked;

const VerbKey TRAIN_TOKENIZER_KEYS[] = {
    {"out", "datasets/bpe", NULL, "the folder of tokenizer.json; made if need be"},
    {"vocab_size", "8000", NULL,
     "ids in all: the bytes, the merges and <|endoftext|>; 8000 for a small text, 50304 for a large one"},
    {"pattern", "cl100k_base", "gpt2",
     "where words begin: gpt2, cl100k_base, o200k_base, llama3, qwen, or a regular expression"},
    {"memory", "8GiB", "2GiB", "for counting words; rare ones that do not fit are left out"},
    {.name = NULL},
};

static void take_option(Asked *a, const char *word) {
    const char *value = strchr(word, '=') + 1;
    char       *end;
    if (strncmp(word, "out=", 4) == 0 && *value) {
        a->out = value;
    } else if (strncmp(word, "pattern=", 8) == 0 && *value) {
        a->pattern = value;
    } else if (strncmp(word, "vocab_size=", 11) == 0) {
        long n = strtol(value, &end, 10);
        if (end == value || *end || n < 257 || n > MOST_IDS)
            fail(EXIT_CONFIG,
                 "train-tokenizer: vocab_size=%s: a whole number from 257 (the bytes and %s) to %d is meant", value,
                 END_OF_TEXT, MOST_IDS);
        a->vocab_size = (int32_t)n;
    } else if (strncmp(word, "memory=", 7) == 0) {
        a->memory_bytes = strtod(value, &end) * 1073741824.0;
        if (end == value || (strcmp(end, "GiB") != 0 && strcmp(end, "G") != 0) ||
            !(a->memory_bytes >= 1e6 && a->memory_bytes < 1e15))
            fail(EXIT_CONFIG, "train-tokenizer: memory=%s: a size is meant, as in memory=2GiB", value);
    } else {
        fail(EXIT_CONFIG,
             "train-tokenizer: unknown option %s: there are out=, vocab_size=, pattern= and memory= (a file of that name is given as ./%s)",
             word, word);
    }
}

static Asked take_arguments(int argc, char **argv) {
    Asked a = {.pattern = "gpt2", .memory_bytes = 2.0 * 1073741824.0, .text = argv + 1};
    for (int i = 1; i < argc; i++) {
        size_t key = strspn(argv[i], "abcdefghijklmnopqrstuvwxyz_");
        if (key > 0 && argv[i][key] == '=') take_option(&a, argv[i]);
        else a.text[a.texts++] = argv[i];
    }
    if (a.texts == 0) fail(EXIT_CONFIG, "train-tokenizer: no text to read; usage: " USAGE);
    if (!a.out) fail(EXIT_CONFIG, "train-tokenizer: out=FOLDER is missing; usage: " USAGE);
    if (!a.vocab_size)
        fail(EXIT_CONFIG,
             "train-tokenizer: vocab_size=N is missing, 8000 for a small text, 50304 for a large one; usage: " USAGE);
    return a;
}

/* --- counting ----------------------------------------------------------------------------------------------------- */

typedef struct { Split *split; BpeTrainer *trainer; } Counting;

static void count_word(void *with, const char *word, size_t bytes) { bpe_trainer_add((BpeTrainer *)with, word, bytes); }
static void count_part(void *with, const char *text, size_t bytes) {
    Counting *c = (Counting *)with;
    split_text(c->split, text, bytes, count_word, c->trainer);
}

static int64_t read_text(const char *name, Counting *counting) {
    char        chunk[CHUNK_BYTES];
    struct stat st;
    const char *path = strcmp(name, "-") == 0 ? "/dev/stdin" : name;
    int         fd = io_open(path, IO_READ);
    int64_t     total = 0;
    Cutter      cutter = {.sink = count_part, .with = counting};
    if (fd < 0) fail(EXIT_DATA, "train-tokenizer: cannot read %s: %s", path, strerror(-fd));
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        fail(EXIT_DATA, "train-tokenizer: %s is a folder; name the text files in it", path);
    for (ssize_t n; (n = read(fd, chunk, sizeof chunk)) != 0;) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail(EXIT_IO, "train-tokenizer: cannot read %s: %s", path, strerror(errno));
        const char *kind = total == 0 ? shard_text_kind((const uint8_t *)chunk, (size_t)n) : NULL;
        if (kind && strcmp(kind, "UTF-8 text") != 0 && strcmp(kind, "JSON") != 0)
            fail(EXIT_DATA, "train-tokenizer: %s is %s, not text: unpack it first", path, kind);
        cutter_put(&cutter, chunk, (size_t)n);
        total += n;
    }
    cutter_end(&cutter);
    cutter_free(&cutter);
    io_close(fd);
    return total;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* The characters that stand for a token's bytes, as JSON. */
static void put_token(FILE *f, const int32_t *left, const int32_t *right, int32_t id) {
    char character[4];
    if (id >= 256) {
        put_token(f, left, right, left[id - 256]);
        put_token(f, left, right, right[id - 256]);
        return;
    }
    bpe_character(id, character);
    if (*character == '"' || *character == '\\') fputc('\\', f);
    fputs(character, f);
}

static void put_json_text(FILE *f, const char *text) {
    size_t room = json_quote(NULL, 0, text) + 1;
    char  *quoted = (char *)malloc(room);
    if (!quoted) fail(EXIT_MEMORY, "no memory for a tokenizer");
    json_quote(quoted, room, text);
    fputs(quoted, f);
    free(quoted);
}

static char *tokenizer_json(const char *pattern, const int32_t *left, const int32_t *right, int32_t merges, size_t *bytes) {
    char *text = NULL;
    FILE *f = memory_file_open(&text, bytes);
    if (!f) fail(EXIT_MEMORY, "no memory for a tokenizer");
    fprintf(f,
            "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [\n    {\"id\": %d, \"content\": \"%s\", "
            "\"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}\n  ],\n  \"normalizer\": null,\n",
            256 + merges, END_OF_TEXT);
    fprintf(f,
            "  \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", \"pattern\": {\"Regex\": ");
    put_json_text(f, pattern);
    fprintf(f,
            "}, \"behavior\": \"Isolated\", \"invert\": false},\n    {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
            "\"use_regex\": false}\n  ]},\n  \"post_processor\": null,\n  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": true, "
            "\"use_regex\": true},\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n    "
            "\"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n    \"byte_fallback\": false,\n    "
            "\"ignore_merges\": false,\n    \"vocab\": {");
    for (int32_t id = 0; id < 256 + merges; id++) {
        fputs(id ? ",\n      \"" : "\n      \"", f);
        put_token(f, left, right, id);
        fprintf(f, "\": %d", id);
    }
    fprintf(f, ",\n      \"%s\": %d\n    },\n    \"merges\": [", END_OF_TEXT, 256 + merges);
    for (int32_t i = 0; i < merges; i++) {
        fputs(i ? ",\n      \"" : "\n      \"", f);
        put_token(f, left, right, left[i]);
        fputc(' ', f);
        put_token(f, left, right, right[i]);
        fputc('"', f);
    }
    fprintf(f, "\n    ]\n  }\n}\n");
    if (fclose(f) != 0) fail(EXIT_MEMORY, "no memory for a tokenizer");
    return text;
}

int verb_train_tokenizer(int argc, char **argv) {
    Asked       a = take_arguments(argc, argv);
    const char *pattern = split_named(a.pattern) ? split_named(a.pattern) : a.pattern;
    char        fault[SPLIT_FAULT_CHARS], path[4200];
    Counting    counting = {.trainer = bpe_trainer_create((size_t)(a.memory_bytes / COUNTED_PART))};
    int64_t     bytes = 0;
    size_t      json_bytes;
    if (!split_create(&counting.split, &pattern, 1, fault)) fail(EXIT_CONFIG, "train-tokenizer: pattern=%s: %s", a.pattern, fault);
    for (int i = 0; i < a.texts; i++) bytes += read_text(a.text[i], &counting);
    if (bytes == 0)
        fail(EXIT_DATA, "train-tokenizer: %s%s", a.text[0],
             a.texts > 1 ? " and the other texts are empty" : " is empty");

    int32_t  most = a.vocab_size - 257;
    int32_t *left = (int32_t *)malloc(2 * sizeof *left * (size_t)(most + 1)), *right = left + most + 1;
    if (!left) fail(EXIT_MEMORY, "no memory for a vocabulary of %d", a.vocab_size);
    int32_t merges = bpe_trainer_learn(counting.trainer, most, left, right);
    char   *json = tokenizer_json(pattern, left, right, merges, &json_bytes);
    int     rc = io_mkdirs(a.out);
    snprintf(path, sizeof path, "%s/tokenizer.json", a.out);
    if (rc == 0) rc = io_replace_file(path, json, json_bytes);
    if (rc < 0) fail(EXIT_IO, "train-tokenizer: cannot write %s: %s", path, strerror(-rc));

    printf("train-tokenizer: %lld bytes of text, a vocabulary of %d: the bytes, %d merges, %s\n", (long long)bytes,
           257 + merges, merges, END_OF_TEXT);
    if (merges < most) printf("  no other two neighbours are there twice: vocab_size=%d takes more text\n", a.vocab_size);
    if (bpe_trainer_forgotten(counting.trainer))
        printf("  %lld rare words did not fit in memory and were left out; memory=%gGiB has room for more\n",
               (long long)bpe_trainer_forgotten(counting.trainer), 2.0 * a.memory_bytes / 1073741824.0);
    printf("  %s; next: ./train_gpt tokenize TEXT out=FOLDER tokenizer=%s, and model.vocab_size=%d\n", path, a.out,
           (257 + merges + 63) / 64 * 64);
    free(json), free(left);
    split_destroy(counting.split);
    bpe_trainer_destroy(counting.trainer);
    return EXIT_DONE;
}
