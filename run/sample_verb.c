/* sample_verb.c - `train_gpt sample RUN_OR_CHECKPOINT [key=value ...]`: text from a checkpoint, to stdout. The
 * checkpoint folder describes the model, so neither the run's config nor its data need be there. Computes in fp32 with
 * the masters' own values. */
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"
#include "layers/algorithms.h"
#include "model/hf_gpt2.h"
#include "model/model.h"
#include "run/checkpoint/checkpoint.h"
#include "run/config/nearest.h"
#include "run/sample.h"
#include "run/verbs.h"

static const char USAGE[] = "./train_gpt sample RUN_OR_CHECKPOINT [prompt=\"...\"] [tokens=256] [temperature=0.8] [top_k=0] [seed=1337]";

/* --- arguments ---------------------------------------------------------------------------------------------------- */

static double number_argument(const char *name, const char *text, double least, double most) {
    char  *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= least && value <= most))
        fail(EXIT_CONFIG, "sample: %s=%s: a number from %g to %g is expected", name, text, least, most);
    return value;
}

static int64_t count_argument(const char *name, const char *text, double least, double most) {
    double value = number_argument(name, text, least, most);
    if (value != floor(value)) fail(EXIT_CONFIG, "sample: %s=%s: a whole number is expected", name, text);
    return (int64_t)value;
}

static void take_argument(SamplePlan *plan, const char *argument) {
    static const char *const names[] = {"prompt", "tokens", "temperature", "top_k", "seed", NULL};
    const char *value = strchr(argument, '=');
    char        name[64];
    snprintf(name, sizeof name, "%.*s", (int)(value ? value - argument : (ptrdiff_t)strlen(argument)), argument);
    int which = 0;
    while (names[which] && strcmp(names[which], name) != 0) which++;
    if (!names[which]) {
        Nearest near = nearest_word(name, names);
        fail(EXIT_CONFIG, "sample: unknown option \"%s\"%s%s%s; usage: %s", name, near.sure ? ", did you mean \"" : "", near.sure ? near.word : "",
             near.sure ? "\"?" : "", USAGE);
    }
    if (!value) fail(EXIT_CONFIG, "sample: %s needs a value: %s=...", name, name);
    value++;
    switch (which) {
        case 0: plan->prompt = value; break;
        case 1: plan->tokens = count_argument(name, value, 0, 1e7); break;
        case 2: plan->temperature = number_argument(name, value, 0, 1000); break;
        case 3: plan->top_k = count_argument(name, value, 0, 1e9); break;
        default: plan->seed = (uint64_t)count_argument(name, value, 0, 9007199254740992.0);
    }
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

/* From the checkpoint's config.json, with Hugging Face's names. */
static ModelShape read_shape(const char *checkpoint) {
    char      path[4200], *text;
    Json      json;
    JsonFault fault;
    snprintf(path, sizeof path, "%s/config.json", checkpoint);
    int64_t bytes = io_read_file(path, JSON_LIMIT, &text);
    if (bytes < 0) fail(bytes == -ENOMEM ? EXIT_MEMORY : bytes == -EIO || bytes == -EACCES ? EXIT_IO : EXIT_DATA, "%s cannot be read: %s", path, strerror((int)-bytes));
    if (!json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault))
        fail(EXIT_DATA, "%s:%d:%d: %s", path, fault.at.line, fault.at.column, fault.text);
    ModelShape shape = hf_config_shape(json.root, path);
    json_free(&json);
    free(text);
    return shape;
}

static void print_sample(const char *checkpoint, SamplePlan plan) {
    ModelShape shape = read_shape(checkpoint);
    Tokenizer  tokenizer = tokenizer_create("", shape.vocab_size);
    if (*plan.prompt && tokenizer.kind == TOKENIZER_IDS)
        fail(EXIT_CONFIG, "sample: the model of %s has token ids only, no tokenizer that takes text: leave the prompt empty", checkpoint);
    device_open(0, omp_get_num_procs());
    Model *m = model_create((ModelSpec){.shards = {.shape = shape, .ranks = 1, .act = F32, .use = GPT_INFERENCE}, .B = 1, .T = shape.n_positions});
    Arena  window = arena_create("tokens", sizeof(int32_t) * (size_t)shape.n_positions);
    plan.window = arena_tensor(&window, I32, 1, shape.n_positions, 1, 1);
    matmul_algorithms_freeze(); /* no product is worth being timed for a text, and the same text comes each time */
    checkpoint_read_weights(checkpoint, &m->shards->layout, m->shards->params, &m->stream);

    char *text = sample_text(&m->pipeline, &m->stream, &tokenizer, plan);
    puts(text);
    free(text);
    arena_destroy(&window);
    model_destroy(m);
}

int verb_sample(int argc, char **argv) {
    if (argc < 2) fail(EXIT_CONFIG, "sample needs a run folder or a checkpoint: %s", USAGE);
    SamplePlan plan = {.prompt = "", .tokens = 256, .temperature = 0.8, .top_k = 0, .seed = 1337};
    for (int i = 2; i < argc; i++) take_argument(&plan, argv[i]);
    char checkpoint[4096];
    if (!checkpoint_find(argv[1], checkpoint, sizeof checkpoint))
        fail(EXIT_DATA, "%s is neither a checkpoint nor a run folder that holds a complete one", argv[1]);
    print_sample(checkpoint, plan);
    return EXIT_DONE;
}
