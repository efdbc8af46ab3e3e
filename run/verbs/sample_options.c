/* sample_options.c - see sample_options.h. */
#include "run/verbs/sample_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "core/xalloc.h"
#include "run/verbs/arguments.h"
#include "run/verbs/verbs.h"

enum {
    PROMPT,
    TOKENS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    MIN_P,
    TEXTS,
    SEED,
    STOP,
    EOT,
    POSITIONS,
    TOKENIZER,
    OUT,
    TENSOR,
    CONTEXT,
    PIPELINE
};
const VerbKey SAMPLE_KEYS[] = {
    [PROMPT] = {"prompt", "'Once upon'", "", "the text goes on from this; @FILE: from a file's, -: from standard input's"},
    [TOKENS] = {"tokens", "400", "256", "tokens after the prompt"},
    [TEMPERATURE] = {"temperature", "0.5", "0.8", "lower is more predictable; 0: the likeliest token each time"},
    [TOP_K] = {"top_k", "50", "0", "draw among the k likeliest tokens; 0: all"},
    [TOP_P] = {"top_p", "0.9", "1", "draw among the likeliest tokens that together have this probability"},
    [MIN_P] = {"min_p", "0.05", "0", "draw among tokens of at least this part of the likeliest one's probability"},
    [TEXTS] = {"n", "3", "1", "so many texts, with seeds that follow each other"},
    [SEED] = {"seed", "42", "1337", "another seed gives another text"},
    [STOP] = {"stop", "THE", "", "ends before this text; several: a JSON list, or the key again", 1},
    [EOT] = {"eot", "false", "true", "an end token of the model's config ends the text"},
    [POSITIONS] = {"positions", "1024", "the model's", "the most tokens that are seen at once; fewer need less memory"},
    [TOKENIZER] = {"tokenizer", "datasets/bpe", "the run's", "a tokenizer's folder or file"},
    [OUT] = {"out", "text.txt", "standard output", "a new file for the text, written whole or not at all"},
    [TENSOR] = {"parallel.tensor", "2", "1", "under mpirun: ranks that divide every matrix"},
    [CONTEXT] = {"parallel.context", "2", "1", "under mpirun: ranks that share the text"},
    [PIPELINE] = {"parallel.pipeline", "2", "1", "under mpirun: ranks that share the blocks"},
    {.name = NULL},
};

static void add_stop(SampleOptions *o, const char *text) {
    if (!*text)
        fail(EXIT_CONFIG, "sample: stop= is an empty text, before which every text ends: name one, or leave stop out");
    o->stop = xrealloc(o->stop, sizeof *o->stop * (size_t)(o->stops + 1), "a stop text");
    o->stop[o->stops++] = xstrdup(text, "a stop text");
}

/* Takes a stop text, or a JSON list of them. */
static void take_stop(SampleOptions *o, const char *text) {
    Json      json;
    JsonFault fault;
    if (*text != '[' || !json_parse(text, strlen(text), JSON_LIMIT, &json, &fault)) {
        add_stop(o, text);
        return;
    }
    for (const cJSON *item = json.root->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            fail(EXIT_CONFIG, "sample: stop=%s: a list of texts is expected, as '[\"a\",\"b\"]'", text);
        add_stop(o, item->valuestring);
    }
    json_free(&json);
}

static void take_value(SampleOptions *o, VerbArgument a) {
    switch (a.row) {
        case PROMPT: o->prompt = a.value; break;
        case TOKENS: o->tokens = verb_count(&a, 0, 10000000); break;
        case TEMPERATURE: o->rule.temperature = verb_number(&a, 0, 1000); break;
        case TOP_K: o->rule.top_k = verb_count(&a, 0, 1000000000); break;
        case TOP_P: o->rule.top_p = verb_number(&a, 0, 1); break;
        case MIN_P: o->rule.min_p = verb_number(&a, 0, 1); break;
        case TEXTS: o->texts = verb_count(&a, 1, 1000000); break;
        case SEED: o->seed = verb_count(&a, 0, INT64_C(1) << 53); break;
        case STOP: take_stop(o, a.value); break;
        case EOT: o->ends_at_eot = verb_flag(&a); break;
        case POSITIONS: o->positions = verb_count(&a, 1, INT32_MAX); break;
        case TOKENIZER: o->tokenizer = verb_text(&a); break;
        case OUT: o->out = verb_text(&a); break;
        case TENSOR: o->tensor = verb_count(&a, 1, 1024); break;
        case CONTEXT: o->context = verb_count(&a, 1, 1024); break;
        default: o->stages = verb_count(&a, 1, 1024);
    }
}

static void take_argument(SampleOptions *o, const char *word) {
    VerbArgument a = verb_key_only("sample", word);
    int          count = 0, most = sizeof o->given / sizeof *o->given;
    while (o->given[count] && strcmp(o->given[count], SAMPLE_KEYS[a.row].name) != 0) count++;
    CHECK(count < most - 1, "%d keys", count);
    o->given[count] = SAMPLE_KEYS[a.row].name;
    take_value(o, a);
}

/* Takes the path. A model.safetensors stands for its folder. */
static void take_path(SampleOptions *o, const char *path) {
    static const char weights[] = "model.safetensors";
    size_t length = strlen(path), own = sizeof weights - 1;
    if (length >= sizeof o->path) fail(EXIT_CONFIG, "sample: the path %s is too long", path);
    strcpy(o->path, path);
    if (length < own || strcmp(path + length - own, weights) != 0) return;
    if (length == own) strcpy(o->path, ".");
    else if (path[length - own - 1] == '/') o->path[length - own - 1] = 0;
}

SampleOptions sample_options(int argc, char **argv) {
    /* the keys whose default is a value; the others stay not set */
    static const int VALUES[] = {PROMPT, TOKENS, TEMPERATURE, TOP_K, TOP_P, MIN_P,
                                 TEXTS, SEED, EOT, TENSOR, CONTEXT, PIPELINE};
    SampleOptions    o = {0};
    for (size_t i = 0; i < sizeof VALUES / sizeof *VALUES; i++) {
        const VerbKey *key = &SAMPLE_KEYS[VALUES[i]];
        take_value(&o, (VerbArgument){"sample", key->name, key->fallback, VALUES[i]});
    }
    if (argc < 2) verb_misused("sample", "it needs a run folder or a checkpoint");
    take_path(&o, argv[1]);
    for (int i = 2; i < argc; i++) take_argument(&o, argv[i]);
    o.lock = verb_take_out("sample", o.out);
    return o;
}

void sample_options_free(SampleOptions *o) {
    for (int i = 0; i < o->stops; i++) free(o->stop[i]);
    free(o->stop);
}
