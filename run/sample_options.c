/* sample_options.c - see sample_options.h. */
#include "run/sample_options.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "run/config/nearest.h"
#include "run/verbs.h"

static const char USAGE[] =
    "./train_gpt sample RUN_OR_CHECKPOINT [prompt=TEXT|@FILE|-] [tokens=256] [temperature=0.8] [top_k=0] [top_p=1] [min_p=0] [n=1] "
    "[seed=1337] [stop=TEXT] [eot=true] [tokenizer=FOLDER_OR_FILE]; "
    "under mpirun [parallel.tensor=1] [parallel.context=1] [parallel.pipeline=1]";

typedef enum { OF_TEXT, OF_COUNT, OF_NUMBER, OF_BOOL, OF_STOP } Kind;
typedef struct {
    const char *name;
    Kind        kind;
    size_t      field;
    double      least, most;
} Row;

const VerbKey SAMPLE_KEYS[] = {
    {"prompt", "'Once upon'", "", "the text goes on from this; @FILE: from a file's, -: from standard input's"},
    {"tokens", "400", "256", "tokens after the prompt"},
    {"temperature", "0.5", "0.8", "lower is more predictable; 0: the likeliest token each time"},
    {"top_k", "50", "0", "draw among the k likeliest tokens; 0: all"},
    {"top_p", "0.9", "1", "draw among the likeliest tokens that together have this probability"},
    {"min_p", "0.05", "0", "draw among tokens of at least this part of the likeliest one's probability"},
    {"n", "3", "1", "so many texts, with seeds that follow each other"},
    {"seed", "42", "1337", "another seed gives another text"},
    {"stop", "THE", "", "ends before this text; several: a JSON list, or the key again"},
    {"eot", "false", "true", "the end-of-text token ends the text"},
    {"tokenizer", "datasets/bpe", "the run's", "a tokenizer's folder or file"},
    {"parallel.tensor", "2", "1", "under mpirun: ranks that divide every matrix"},
    {"parallel.context", "2", "1", "under mpirun: ranks that share the text"},
    {"parallel.pipeline", "2", "1", "under mpirun: ranks that share the blocks"},
    {.name = NULL},
};

#define FIELD(member) offsetof(SampleOptions, member)
static const Row ROWS[] = {
    {"prompt", OF_TEXT, FIELD(prompt), 0, 0},
    {"tokens", OF_COUNT, FIELD(tokens), 0, 1e7},
    {"temperature", OF_NUMBER, FIELD(rule.temperature), 0, 1000},
    {"top_k", OF_COUNT, FIELD(rule.top_k), 0, 1e9},
    {"top_p", OF_NUMBER, FIELD(rule.top_p), 0, 1},
    {"min_p", OF_NUMBER, FIELD(rule.min_p), 0, 1},
    {"n", OF_COUNT, FIELD(texts), 1, 1e6},
    {"seed", OF_COUNT, FIELD(seed), 0, 9007199254740992.0},
    {"stop", OF_STOP, FIELD(stop), 0, 0},
    {"eot", OF_BOOL, FIELD(ends_at_eot), 0, 0},
    {"tokenizer", OF_TEXT, FIELD(tokenizer), 0, 0},
    {"parallel.tensor", OF_COUNT, FIELD(tensor), 1, 1024},
    {"parallel.context", OF_COUNT, FIELD(context), 1, 1024},
    {"parallel.pipeline", OF_COUNT, FIELD(stages), 1, 1024},
};
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };

static const Row *find_row(const char *name) {
    const char *names[ROW_COUNT + 1] = {NULL};
    for (int i = 0; i < ROW_COUNT; i++) {
        if (strcmp(ROWS[i].name, name) == 0) return &ROWS[i];
        names[i] = ROWS[i].name;
    }
    Nearest near = nearest_word(name, names);
    fail(EXIT_CONFIG, "sample: unknown option \"%s\"%s%s%s; usage: %s", name, near.sure ? ", did you mean \"" : "",
         near.sure ? near.word : "", near.sure ? "\"?" : "", USAGE);
}

static double number_of(const Row *row, const char *text) {
    char  *end;
    double value = strtod(text, &end);
    if (end == text || *end || isnan(value))
        fail(EXIT_CONFIG, "sample: %s=%s: a number from %g to %.17g is expected", row->name, text, row->least,
             row->most);
    if (value < row->least || value > row->most)
        fail(EXIT_CONFIG, "sample: %s=%s: a number from %g to %.17g is expected; the nearest is %.17g", row->name, text,
             row->least, row->most, value < row->least ? row->least : row->most);
    return value;
}

static int64_t count_of(const Row *row, const char *text) {
    double value = number_of(row, text);
    if (value != floor(value))
        fail(EXIT_CONFIG, "sample: %s=%s: a whole number is expected: %.17g or %.17g", row->name, text, floor(value),
             ceil(value));
    return (int64_t)value;
}

static int bool_of(const Row *row, const char *text) {
    if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
        fail(EXIT_CONFIG, "sample: %s=%s: true or false is expected", row->name, text);
    return *text == 't';
}

static void add_stop(SampleOptions *o, const char *text) {
    if (!*text)
        fail(EXIT_CONFIG, "sample: stop= is an empty text, before which every text ends: name one, or leave stop out");
    o->stop = realloc(o->stop, sizeof *o->stop * (size_t)(o->stops + 1));
    if (!o->stop || !(o->stop[o->stops++] = strdup(text)))
        fail(EXIT_MEMORY, "no memory for a stop text of %zu bytes", strlen(text));
}

/* A text, or a JSON list of texts. */
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

static void take_argument(SampleOptions *o, const char *argument) {
    const char *value = strchr(argument, '=');
    char        name[64];
    snprintf(name, sizeof name, "%.*s", (int)(value ? value - argument : (ptrdiff_t)strlen(argument)), argument);
    const Row *row = find_row(name);
    void      *field = (char *)o + row->field;
    if (!value) fail(EXIT_CONFIG, "sample: %s needs a value: %s=...", name, name);
    value++;
    switch (row->kind) {
        case OF_TEXT: *(const char **)field = value; break;
        case OF_COUNT: *(int64_t *)field = count_of(row, value); break;
        case OF_NUMBER: *(double *)field = number_of(row, value); break;
        case OF_BOOL: *(int *)field = bool_of(row, value); break;
        case OF_STOP: take_stop(o, value); break;
    }
}

/* The weights' file of a checkpoint stands for its folder. */
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
    SampleOptions o = {.prompt = "", .rule = {.temperature = 0.8, .top_p = 1}, .tokens = 256, .texts = 1, .seed = 1337,
                       .tensor = 1, .context = 1, .stages = 1, .ends_at_eot = 1};
    if (argc < 2) fail(EXIT_CONFIG, "sample needs a run folder or a checkpoint: %s", USAGE);
    take_path(&o, argv[1]);
    for (int i = 2; i < argc; i++) take_argument(&o, argv[i]);
    return o;
}

void sample_options_free(SampleOptions *o) {
    for (int i = 0; i < o->stops; i++) free(o->stop[i]);
    free(o->stop);
}
