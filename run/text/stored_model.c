/* stored_model.c - see stored_model.h. */
#include "run/text/stored_model.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json.h"
#include "data/dataset.h"
#include "model/hf_gpt2.h"
#include "run/checkpoint/weights_set.h"
#include "run/config/config.h"

ModelShape stored_shape(const char *checkpoint) {
    char      path[4200], *text;
    Json      json;
    JsonFault fault;
    snprintf(path, sizeof path, "%s/config.json", checkpoint);
    int64_t bytes = io_read_file(path, JSON_LIMIT, &text);
    if (bytes < 0)
        fail(bytes == -ENOMEM                    ? EXIT_MEMORY
             : bytes == -EIO || bytes == -EACCES ? EXIT_IO
                                                 : EXIT_DATA,
             "%s cannot be read: %s", path, strerror((int)-bytes));
    if (!json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault))
        fail(EXIT_DATA, "%s:%d:%d: %s", path, fault.at.line, fault.at.column, fault.text);
    ModelShape shape = hf_config_shape(json.root, path);
    hf_config_expect(json.root, path, shape);
    json_free(&json);
    free(text);
    return shape;
}

/* data.tokenizer of the run's config.json, or the one beside its shards, for the caller to free; NULL where there is none. */
static char *tokenizer_of_run(const char *run) {
    char path[4200], *text = NULL;
    snprintf(path, sizeof path, "%s/config.json", run);
    int64_t bytes = io_read_file(path, JSON_LIMIT, &text);
    if (bytes < 0) return NULL;
    cJSON       *json = cJSON_ParseWithLength(text, (size_t)bytes);
    const cJSON *item = json_member(json_member(json, "data"), "tokenizer");
    char        *found = cJSON_IsString(item) && item->valuestring[0] ? strdup(item->valuestring) : NULL;
    const cJSON *train = json_member(json_member(json, "data"), "train");
    IoPaths      files = {NULL, 0};
    for (const cJSON *one = cJSON_IsArray(train) ? train->child : train; one; one = cJSON_IsArray(train) ? one->next : NULL) {
        const cJSON *name = cJSON_IsObject(one) ? json_member(one, "path") : one; /* an entry of a blend */
        if (cJSON_IsString(name)) dataset_files(name->valuestring, &files);
    }
    for (size_t i = 0; i < files.count && !found; i++)
        if (tokenizer_beside(files.path[i], path, sizeof path)) found = strdup(path);
    io_paths_free(&files);
    cJSON_Delete(json);
    free(text);
    return found;
}

static Tokenizer take_asked(const char *asked, const char *weights, int64_t vocab_size) {
    Tokenizer t = tokenizer_create(asked, vocab_size);
    tokenizer_refuse_other(&t, asked, weights, "the model", "leave tokenizer= out");
    return t;
}

Tokenizer stored_tokenizer(const char *asked, const char *run, const char *checkpoint, int64_t vocab_size) {
    char path[4200], beside[4200], *of_run = NULL;
    snprintf(beside, sizeof beside, "%s/" WEIGHTS_SINGLE, checkpoint);
    if (asked) return take_asked(asked, beside, vocab_size);
    if (tokenizer_beside(beside, path, sizeof path)) return tokenizer_create(path, vocab_size);
    of_run = tokenizer_of_run(run);
    if (of_run && access(of_run, R_OK) != 0) {
        warn("%s was trained with the tokenizer %s, which is not there any more: tokenizer=FOLDER_OR_FILE says where it is",
             run, of_run);
        free(of_run), of_run = NULL;
    }
    Tokenizer t = tokenizer_create(of_run ? of_run : "", vocab_size);
    free(of_run);
    return t;
}

void stored_say_begin(const char *verb, const Tokenizer *t) {
    int32_t id[BPE_MOST_BEGIN];
    int64_t count = tokenizer_begin(t, id);
    if (count == 0) return;
    fprintf(stderr, "%s: each text begins with", verb);
    for (int64_t i = 0; i < count; i++) {
        char *text = tokenizer_special_text(t, id[i]);
        fprintf(stderr, "%s %d %s", i ? "," : "", id[i], text);
        free(text);
    }
    fprintf(stderr, " (%s)\n", t->file.start_from);
}

void stored_refuse_grid(const char *verb, ModelShape shape, int64_t T, MeshSizes grid, int ranks) {
    Config c = {.optimizer = {.name = "adamw"}};
    c.model.shape = shape;
    c.parallel.tensor = grid.tensor, c.parallel.context = grid.context, c.parallel.pipeline = grid.stages,
    c.parallel.interleave = c.parallel.replicas = c.parallel.expert = 1;
    c.batch.micro_batch = 1, c.batch.seq_len = T, c.batch.global_tokens = T;
    int64_t wanted = (int64_t)grid.tensor * grid.context * grid.stages;
    if (wanted != ranks)
        fail(EXIT_CONFIG,
             "%s: parallel.tensor (%d) x context (%d) x pipeline (%d) = %lld ranks share the model, and there %s %d: mpirun -np %lld",
             verb, grid.tensor, grid.context, grid.stages, (long long)wanted, ranks == 1 ? "is" : "are", ranks,
             (long long)wanted);
    char *fault = config_check_changed(&c, ranks);
    if (fault) fail(EXIT_CONFIG, "%s: %s", verb, fault);
}

ModelSpec stored_spec(GptUse use, ModelShape shape, int64_t B, int64_t T, const Groups *g) {
    ModelSpec spec = {.shards = {.shape = shape, .ranks = 1, .act = F32, .use = use}, .B = B, .T = T};
    if (!g) return spec;
    spec.shards.ranks = g->mesh.size[AXIS_CONTEXT], spec.shards.tensor_ranks = g->mesh.size[AXIS_TENSOR],
    spec.context_ranks = g->mesh.size[AXIS_CONTEXT];
    spec.pipeline = (PipelineSpec){.stages = g->mesh.size[AXIS_STAGE], .parts = 1, .micro_batches = 1};
    model_take_groups(&spec, g);
    return spec;
}
