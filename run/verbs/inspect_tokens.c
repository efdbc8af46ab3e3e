/* inspect_tokens.c - token files for `inspect`: kind, tokens, the most frequent ids, the first tokens as text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"
#include "core/error.h"
#include "data/shard.h"
#include "data/text_file.h"
#include "data/tokenizer.h"
#include "run/verbs/inspect.h"
#include "run/plan/plan.h"

enum { COUNTED = 1 << 20, BLOCK = 1 << 20, COMMONEST = 5, FIRST = 32 };

static const char *kind_of(const ShardHeader *h) {
    if (h->data_offset) return h->token_bytes == 2 ? "llm.c token shard, version 1" : "llm.c token shard, version 7";
    if (h->sequences) return "Megatron tokens, with their index";
    return h->token_bytes == 2 ? "tokens without a header, as nanoGPT's" : "uint32 tokens without a header";
}

/* Counts of ids. count [COUNTED]: of each id below COUNTED; owned. */
typedef struct { int64_t *count; uint32_t largest; } Counts;

static Counts count_ids(const Shard *s) {
    Counts   c = {xcalloc(COUNTED, sizeof *c.count, "the counts of tokens"), 0};
    int32_t *tokens = xmalloc(BLOCK * sizeof *tokens, "the counts of tokens");
    for (int64_t at = 0, n; at < s->header.tokens; at += n) {
        n = s->header.tokens - at < BLOCK ? s->header.tokens - at : BLOCK;
        shard_read(s, at, n, tokens);
        for (int64_t i = 0; i < n; i++) {
            uint32_t id = (uint32_t)tokens[i];
            if (id > c.largest) c.largest = id;
            if (id < COUNTED) c.count[id]++;
        }
    }
    free(tokens);
    return c;
}

/* Returns the text of tokens, quoted and malloc'ed. */
static char *text_of(const Tokenizer *t, const int32_t *id, int64_t count) {
    char  *text = NULL;
    size_t bytes = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    for (int64_t i = 0; out && i < count; i++) tokenizer_decode(t, id[i], out);
    if (!out || fclose(out) != 0) fail(EXIT_MEMORY, "no memory for the text of tokens");
    size_t room = 6 * bytes + 3;
    char  *quoted = xmalloc(room, "the text of tokens");
    json_quote(quoted, room, text);
    free(text);
    return quoted;
}

static void report_commonest(Inspect *in, const Shard *s, const Counts *c, const Tokenizer *t) {
    cJSON *list = cJSON_CreateArray();
    char   line[1024] = "";
    for (int k = 0; k < COMMONEST; k++) {
        int best = 0;
        for (int id = 1; id < COUNTED; id++)
            if (c->count[id] > c->count[best]) best = id;
        if (c->count[best] == 0) break;
        double  share = (double)c->count[best] / (double)s->header.tokens;
        int32_t id = best;
        char   *text = text_of(t, &id, 1);
        cJSON  *one = cJSON_CreateObject();
        cJSON_AddNumberToObject(one, "id", best);
        cJSON_AddItemToObject(one, "share", report_json(share));
        cJSON_AddItemToArray(list, one);
        snprintf(line + strlen(line), sizeof line - strlen(line), "%s%d%s%.60s %.1f %%", k ? ", " : "", best,
                 t->kind == TOKENIZER_IDS ? "" : " ", t->kind == TOKENIZER_IDS ? "" : text, 100.0 * share);
        free(text);
        c->count[best] = 0;
    }
    report_item(&in->report, "commonest", list, "%s", line);
}

/* Returns the tokenizer beside the file. Without one, tokens are bytes if no id is larger. */
static Tokenizer tokenizer_for(const char *path, uint32_t largest) {
    char beside[4200];
    if (tokenizer_beside(path, beside, sizeof beside)) return tokenizer_create(beside, BPE_MOST_IDS);
    return tokenizer_create("", largest < 256 ? 256 : (int64_t)largest + 1);
}

void inspect_shard(Inspect *in, const char *path) {
    Report *r = &in->report;
    Shard   s = shard_open(path, 0);
    TextEncoding encoding = text_wide_encoding(s.map, s.file_bytes < SHARD_START_BYTES ? (size_t)s.file_bytes : SHARD_START_BYTES);
    if (s.header.data_offset || s.header.sequences || encoding == ENCODING_FOUND) report_text(r, "kind", "%s", kind_of(&s.header));
    else report_text(r, "kind", "%s, or text in %s", kind_of(&s.header), TEXT_ENCODINGS[encoding - 1]);
    report_number(r, "bytes", (double)s.file_bytes, "%llu", (unsigned long long)s.file_bytes);
    report_number(r, "tokens", (double)s.header.tokens, "%lld", (long long)s.header.tokens);
    report_number(r, "token_bytes", s.header.token_bytes, "%d", s.header.token_bytes);
    if (s.header.sequences)
        report_number(r, "sequences", (double)s.header.sequences, "%lld", (long long)s.header.sequences);
    Counts c = count_ids(&s);
    report_number(r, "largest_id", c.largest, "%u", c.largest);
    Tokenizer t = tokenizer_for(path, c.largest);
    report_commonest(in, &s, &c, &t);
    int32_t first[FIRST];
    int64_t count = s.header.tokens < FIRST ? s.header.tokens : FIRST;
    shard_read(&s, 0, count, first);
    char *text = text_of(&t, first, count);
    report_text(r, "begins", "%s", text);
    free(text);
    free(c.count);
    tokenizer_destroy(&t);
    shard_close(&s);
}

void inspect_shards(Inspect *in, const char *folder) {
    IoPaths found = {NULL, 0};
    int64_t tokens = 0, files = 0;
    if (io_match(path_of("%s/*.bin", folder).text, &found) < 0 || found.count == 0)
        fail(EXIT_DATA, "%s holds no token file any more", folder);
    report_text(&in->report, "kind", "a folder of token files");
    for (size_t i = 0; i < found.count; i++) {
        Shard s = shard_open(found.path[i], 0);
        report_row(&in->report, "%-40s %14lld tokens, %s", shard_name(&s), (long long)s.header.tokens,
                   kind_of(&s.header));
        tokens += s.header.tokens, files++;
        shard_close(&s);
    }
    io_paths_free(&found);
    report_number(&in->report, "files", (double)files, "%lld", (long long)files);
    report_number(&in->report, "tokens", (double)tokens, "%s", plan_count_text((double)tokens).text);
}
