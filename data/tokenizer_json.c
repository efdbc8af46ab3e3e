/* tokenizer_json.c - see tokenizer_json.h. Writes the same fields as Hugging Face tokenizers 0.23. */
#include "data/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "core/io.h"

static void put_json_text(FILE *f, const char *text) {
    size_t room = json_quote(NULL, 0, text) + 1;
    char  *quoted = xmalloc(room, "a tokenizer");
    json_quote(quoted, room, text);
    fputs(quoted, f);
    free(quoted);
}

/* Writes the characters that represent a token's bytes, in quotes. */
static void put_token(FILE *f, const Bpe *b, int32_t id) {
    size_t      bytes;
    const char *text = bpe_bytes(b, id, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        char character[4];
        bpe_character((unsigned char)text[i], character);
        if (*character == '"' || *character == '\\') fputc('\\', f);
        fputs(character, f);
    }
}

static void put_special(FILE *f, const Bpe *b, int32_t id) {
    size_t bytes;
    char   text[256];
    snprintf(text, sizeof text, "%.*s", (int)(bpe_bytes(b, id, &bytes), bytes < 255 ? bytes : 255), bpe_bytes(b, id, &bytes));
    put_json_text(f, text);
}

static void put_added(FILE *f, const Bpe *b) {
    int several = 0;
    fputs("  \"added_tokens\": [", f);
    for (int32_t id = 0; id < bpe_ids(b); id++) {
        if (!bpe_id_is_special(b, id)) continue;
        fprintf(f, "%s\n    {\"id\": %d, \"content\": ", several++ ? "," : "", id);
        put_special(f, b, id);
        fputs(", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}", f);
    }
    fputs(several ? "\n  ],\n" : "],\n", f);
}

static void put_pre_tokenizer(FILE *f, const char *pattern) {
    static const char LEVEL[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": false}";
    fputs("  \"pre_tokenizer\": ", f);
    if (pattern) {
        fputs("{\"type\": \"Sequence\", \"pretokenizers\": [\n    {\"type\": \"Split\", \"pattern\": {\"Regex\": ", f);
        put_json_text(f, pattern);
        fprintf(f, "}, \"behavior\": \"Isolated\", \"invert\": false},\n    %s\n  ]},\n", LEVEL);
    } else {
        fprintf(f, "%s,\n", LEVEL);
    }
}

static void put_model(FILE *f, const Bpe *b) {
    int32_t *pair, several = 0;
    int64_t  merges = bpe_merges(b, &pair);
    fprintf(f,
            "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
            "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
            "    \"byte_fallback\": false,\n    \"ignore_merges\": %s,\n    \"vocab\": {",
            bpe_takes_whole(b) ? "true" : "false");
    for (int32_t id = 0; id < bpe_ids(b); id++) {
        size_t bytes;
        if (!bpe_bytes(b, id, &bytes)) continue;
        fputs(several++ ? ",\n      " : "\n      ", f);
        if (bpe_id_is_special(b, id)) put_special(f, b, id);
        else fputc('"', f), put_token(f, b, id), fputc('"', f);
        fprintf(f, ": %d", id);
    }
    fputs("\n    },\n    \"merges\": [", f);
    for (int64_t i = 0; i < merges; i++) {
        fputs(i ? ",\n      \"" : "\n      \"", f);
        put_token(f, b, pair[2 * i]);
        fputc(' ', f);
        put_token(f, b, pair[2 * i + 1]);
        fputc('"', f);
    }
    fputs(merges ? "\n    ]\n  }\n}\n" : "]\n  }\n}\n", f);
    free(pair);
}

char *tokenizer_json_of(const Bpe *b, const char *pattern, size_t *bytes) {
    char *text = NULL;
    FILE *f = memory_file_open(&text, bytes);
    if (!f) fail(EXIT_MEMORY, "no memory for a tokenizer");
    fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n", f);
    put_added(f, b);
    fputs("  \"normalizer\": null,\n", f);
    put_pre_tokenizer(f, pattern);
    fputs("  \"post_processor\": null,\n  \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
          "\"trim_offsets\": true, \"use_regex\": true},\n",
          f);
    put_model(f, b);
    if (fclose(f) != 0) fail(EXIT_MEMORY, "no memory for a tokenizer");
    return text;
}

static char *json_of_bytes(size_t *bytes) {
    Bpe *b = bpe_create();
    for (int byte = 0; byte < 256; byte++) bpe_add(b, byte, &(char){(char)byte}, 1);
    char *text = tokenizer_json_of(b, NULL, bytes);
    bpe_destroy(b);
    return text;
}

char *tokenizer_json(const Tokenizer *t, size_t *bytes) {
    switch (t->kind) {
        case TOKENIZER_IDS: return NULL;
        case TOKENIZER_BYTES: return json_of_bytes(bytes);
        default: break;
    }
    if (!t->file.json) return tokenizer_json_of(t->file.bpe, t->file.pattern, bytes);
    char *copy = xstrdup(t->file.json, "a tokenizer");
    *bytes = strlen(copy);
    return copy;
}
