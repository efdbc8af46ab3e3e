/* stored_model.c - opens a checkpoint for verbs that compute with its model: see stored_model.h. */
#include "run/text/stored_model.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json.h"
#include "core/terminal.h"
#include "data/dataset.h"
#include "model/block.h"
#include "model/hf.h"
#include "run/checkpoint/weights.h"
#include "run/config/config.h"

/* Reads a JSON file of another program. Returns 0 if it does not exist and may_lack allows that. */
static int read_json(const char *path, int may_lack, Json *json) {
    char fault[JSON_FILE_FAULT_CHARS];
    int  exit_code = json_read_file(path, JSON_LIMIT, 0, json, fault);
    if (exit_code == -ENOENT && may_lack) return 0;
    if (exit_code) fail(exit_code == -ENOENT ? EXIT_DATA : exit_code, "%s", fault);
    return 1;
}

/* --- shape -------------------------------------------------------------------------------------------------------- */

/* Checks the shape against the limits of a config. The message uses the key names of Hugging Face's config.json. */
static void refuse_limits(ModelShape shape, const char *path) {
    char  text[1024];
    char *fault = config_check_shape(shape);
    if (!fault) return;
    hf_members_translate(shape.arch, fault, text, sizeof text);
    fail(EXIT_DATA, "%s: %s", path, text);
}

/* Refuses weights whose names and shapes in the header are not those of the model. */
static void refuse_other_weights(const WeightsSet *set, ModelShape shape, const char *path) {
    int64_t blocks = weights_set_blocks(set);
    if (blocks != shape.n_layer && blocks > 0)
        fail(EXIT_DATA,
             "%s: %s is %lld, but the weights in %s have %lld blocks: correct it, or use the config.json of these "
             "weights",
             path, hf_member_of(shape.arch, "model.n_layer"), (long long)shape.n_layer, set->path, (long long)blocks);
    Layout layout = model_layout(shape, (LayoutPlace){.ranks = 1, .tensor_ranks = 1});
    WeightsTensor *tensor_of = weights_set_match(set, &layout, (WeightsSizes){path, shape.arch, 1});
    weights_set_check_values(set, &layout, tensor_of);
    free(tensor_of);
    layout_destroy(&layout);
}

ModelShape stored_shape(const char *checkpoint) {
    char path[4200], plain[HF_NAME_BYTES];
    Json json;
    weights_set_check_json(checkpoint);
    snprintf(path, sizeof path, "%s/config.json", checkpoint);
    read_json(path, 0, &json);
    ModelShape shape = hf_config_shape(json.root, path);
    refuse_limits(shape, path);
    WeightsSet    set = weights_set_open(checkpoint);
    WeightsTensor head = weights_set_find_plain(&set, "lm_head.weight");
    const BlockKind *kind = block_kind(shape);
    char             embedding[120];
    snprintf(embedding, sizeof embedding, "%s%s", kind->prefix, kind->embedding.row[0].name);
    int has_embedding = weights_set_find_plain(&set, hf_plain_name(embedding, plain)).tensor != NULL;
    /* an embedding of another name is refused by refuse_other_weights */
    hf_config_expect(json.root, path, shape, head.tensor != NULL || !has_embedding);
    if (head.tensor && has_embedding && shape.tie_embeddings)
        warn("%s: tie_word_embeddings says that the head is the embedding, but %s is stored and is used; set "
             "tie_word_embeddings to false to silence this line", path, head.tensor->name);
    if (head.tensor && has_embedding) shape.tie_embeddings = 0, shape.own_head = shape.arch == ARCH_GPT2;
    refuse_other_weights(&set, shape, path);
    weights_set_close(&set);
    json_free(&json);
    return shape;
}

/* --- begin and end ------------------------------------------------------------------------------------------------ */

/* Adds an id to the tokens that end a text. Returns 1, or 0 if the vocabulary does not have it. */
static int add_end(StoredEnds *e, const cJSON *id, int64_t vocab_size, const char *path) {
    double value = number_value(id);
    if (!cJSON_IsNumber(id) || value != floor(value) || fabs(value) > INT32_MAX)
        fail(EXIT_DATA, "%s: eos_token_id is neither a token id nor a list of token ids: give whole numbers", path);
    if (value < 0) return 1; /* a negative id means that there is none */
    if (value >= (double)vocab_size) return 0;
    if (e->ends == STORED_ENDS) fail(EXIT_DATA, "%s: eos_token_id lists more than %d ids", path, STORED_ENDS);
    e->end[e->ends++] = (int32_t)value;
    return 1;
}

/* Reads eos_token_id of a file. Returns 1 if it has at least one valid id. */
static int take_ends(StoredEnds *e, const cJSON *config, int64_t vocab_size, const char *path) {
    const cJSON *eos = json_member(config, "eos_token_id"), *item;
    int          known = 1;
    if (!eos || cJSON_IsNull(eos) || (cJSON_IsArray(eos) && !eos->child)) return 0;
    if (!cJSON_IsArray(eos)) known = add_end(e, eos, vocab_size, path);
    else cJSON_ArrayForEach(item, eos) known &= add_end(e, item, vocab_size, path);
    if (!known)
        warn("%s: eos_token_id has an id that is not in the vocabulary of %lld: no text ends with it", path,
             (long long)vocab_size);
    return e->ends > 0;
}

/* Reads bos_token_id of a file. Returns 1 if it is a valid id. */
static int take_begin(StoredEnds *e, const cJSON *config, int64_t vocab_size, const char *path) {
    const cJSON *bos = json_member(config, "bos_token_id");
    if (!bos || cJSON_IsNull(bos)) return 0;
    double value = number_value(bos);
    if (!cJSON_IsNumber(bos) || value != floor(value) || fabs(value) > INT32_MAX)
        fail(EXIT_DATA, "%s: bos_token_id is not a token id: give a whole number, or null", path);
    if (value >= (double)vocab_size)
        warn("%s: bos_token_id is an id that is not in the vocabulary of %lld, and is not used", path,
             (long long)vocab_size);
    if (value < 0 || value >= (double)vocab_size) return 0;
    e->begin = (int32_t)value;
    return 1;
}

/* Prints an id and its special text: 50256 "<|endoftext|>". */
static void print_id(const Tokenizer *t, int32_t id, const char *before) {
    char  quoted[80], *text = t->kind == TOKENIZER_BPE ? tokenizer_special_text(t, id) : NULL;
    fprintf(stderr, "%s%d", before, id);
    if (text) fprintf(stderr, " %s", json_quote_short(quoted, sizeof quoted, text));
    free(text);
}

StoredEnds stored_ends(const char *verb, const char *checkpoint, const Tokenizer *tokenizer, int64_t vocab_size,
                       const char *const *given, int prints) {
    static const char *const names[] = {"generation_config.json", "config.json"};
    StoredEnds  e = {.begin = tokenizer_start(tokenizer)};
    const char *begins = "the tokenizer", *ends = NULL;
    char        path[4200], *unused = NULL;
    Json        json;
    int32_t     before[BPE_MOST_BEGIN]; /* ids that the tokenizer puts before each text; they override bos_token_id */
    int         befores = (int)tokenizer_begin(tokenizer, before), has_begin = befores > 0, has_settings = 0;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", checkpoint, names[i]);
        if (!read_json(path, 1, &json)) continue;
        if (!ends && take_ends(&e, json.root, vocab_size, path)) ends = names[i];
        if (!has_begin && (has_begin = take_begin(&e, json.root, vocab_size, path))) begins = names[i];
        if (given && !has_settings++) unused = hf_generation_unused(json.root, given, i == 0);
        if (unused && prints) print_plain(stderr, "%s: %s: not used: %s\n", verb, path, unused);
        free(unused), unused = NULL;
        json_free(&json);
    }
    int32_t end = tokenizer_end_of_text(tokenizer);
    /* the id must be below vocab_size, because the tokenizer may have more ids than the model */
    if (!ends && end >= 0 && end < vocab_size)
        e.end[e.ends++] = end, ends = "the tokenizer";
    if (!prints) return e;
    fprintf(stderr, befores ? "%s: each text begins with token " : "%s: an empty prompt begins after token ", verb);
    if (!befores) print_id(tokenizer, e.begin, "");
    for (int i = 0; i < befores; i++) print_id(tokenizer, before[i], i ? ", " : "");
    fprintf(stderr, " (%s); ", befores ? tokenizer->file.start_from : begins);
    if (e.ends == 0) fputs("no token ends a text", stderr);
    for (int i = 0; i < e.ends; i++) print_id(tokenizer, e.end[i], i ? ", " : "texts end with token ");
    if (ends) fprintf(stderr, " (%s)", ends);
    fputc('\n', stderr);
    return e;
}

/* --- tokenizer ---------------------------------------------------------------------------------------------------- */

/* Returns data.tokenizer of the config.json of the run, or the one beside its shards, malloc'ed; NULL if there is
 * none. */
static char *tokenizer_of_run(const char *run) {
    char path[4200];
    Json json;
    snprintf(path, sizeof path, "%s/config.json", run);
    if (!read_json(path, 1, &json)) return NULL;
    const cJSON *item = json_member(json_member(json.root, "data"), "tokenizer");
    char        *found = NULL;
    const cJSON *train = json_member(json_member(json.root, "data"), "train");
    IoPaths      files = {NULL, 0};
    if (cJSON_IsString(item) && item->valuestring[0]) found = xstrdup(item->valuestring, "the path of a tokenizer");
    for (const cJSON *one = cJSON_IsArray(train) ? train->child : train; one;
         one = cJSON_IsArray(train) ? one->next : NULL) {
        /* in a blend of data sources an entry of data.train is an object with "path", otherwise a text */
        const cJSON *name = cJSON_IsObject(one) ? json_member(one, "path") : one;
        if (cJSON_IsString(name)) dataset_files(name->valuestring, &files);
    }
    for (size_t i = 0; i < files.count && !found; i++)
        if (tokenizer_beside(files.path[i], path, sizeof path)) found = xstrdup(path, "the path of a tokenizer");
    io_paths_free(&files);
    json_free(&json);
    return found;
}

/* Opens a tokenizer. It may have more ids than the model. A prompt or a task that uses them is refused. */
static Tokenizer tokenizer_of(const char *path, int64_t vocab_size) {
    Tokenizer t = tokenizer_create(path, *path ? BPE_MOST_IDS : vocab_size);
    t.vocab_size = vocab_size;
    return t;
}

Tokenizer stored_tokenizer(const char *asked, const char *run, const char *checkpoint, int64_t vocab_size) {
    char path[4200], beside[4200], *of_run = NULL;
    snprintf(beside, sizeof beside, "%s/" WEIGHTS_SINGLE, checkpoint);
    if (asked) {
        Tokenizer t = tokenizer_of(asked, vocab_size);
        tokenizer_refuse_other(&t, asked, beside, "the model", "leave tokenizer= out");
        return t;
    }
    if (tokenizer_beside(beside, path, sizeof path)) return tokenizer_of(path, vocab_size);
    of_run = tokenizer_of_run(run);
    if (of_run && access(of_run, R_OK) != 0) {
        warn("%s was trained with the tokenizer %s, which is not there any more: tokenizer=FOLDER_OR_FILE says where "
             "it is",
             run, of_run);
        free(of_run), of_run = NULL;
    }
    Tokenizer t = tokenizer_of(of_run ? of_run : "", vocab_size);
    free(of_run);
    return t;
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
             "%s: parallel.tensor (%d) x context (%d) x pipeline (%d) = %lld ranks share the model, and there %s %d: "
             "mpirun -np %lld",
             verb, grid.tensor, grid.context, grid.stages, (long long)wanted, ranks == 1 ? "is" : "are", ranks,
             (long long)wanted);
    char *fault = config_check_changed(&c, ranks);
    if (fault) fail(EXIT_CONFIG, "%s: %s", verb, fault);
}

int64_t stored_positions(const char *verb, int64_t asked, int64_t positions, ModelShape shape) {
    if (asked > shape.n_positions)
        fail(EXIT_CONFIG, "%s: positions=%lld: this model has %lld positions: at most that many", verb,
             (long long)asked, (long long)shape.n_positions);
    return asked > 0 ? asked : positions;
}

int64_t stored_room(int64_t positions, int64_t tokens, int is_doubled, const Groups *g) {
    Gpt     sizes = {.context = g ? g->context : NULL, .tensor = g ? g->tensor : NULL};
    sizes.T = positions / context_part(sizes.context).ranks;
    int64_t step = gpt_sample_step(&sizes), room = (tokens + step - 1) / step * step;
    if (is_doubled) return gpt_scored_length(&sizes, tokens);
    return room < positions ? room : positions;
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
