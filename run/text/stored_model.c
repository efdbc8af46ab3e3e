/* stored_model.c - opens a checkpoint for verbs that compute with its model: see stored_model.h. */
#include "run/text/stored_model.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json.h"
#include "core/terminal.h"
#include "data/dataset.h"
#include "layers/algorithms.h"
#include "model/block.h"
#include "model/hf.h"
#include "run/checkpoint/checkpoint.h"
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

/* Refuses weights whose names and shapes in the header are not those of the model. */
static void refuse_other_weights(const WeightsSet *set, ModelShape shape, const char *path) {
    int64_t blocks = weights_set_blocks(set);
    if (blocks != shape.n_layer && blocks > 0)
        fail(EXIT_DATA,
             "%s: %s is %lld, but the weights in %s have %lld blocks: correct the number, or use the config.json "
             "of these weights",
             path, hf_member_of(shape.arch, "model.n_layer"), (long long)shape.n_layer, set->path, (long long)blocks);
    Layout layout = model_layout(shape, (LayoutPlace){.ranks = 1, .tensor_ranks = 1});
    WeightsTensor *tensor_of = weights_set_match(set, &layout, (WeightsSizes){path, shape.arch, 1});
    weights_set_check_values(set, &layout, tensor_of);
    free(tensor_of);
    layout_destroy(&layout);
}

static ModelShape stored_shape(const char *checkpoint) {
    char path[sizeof(Path) + 64], plain[HF_NAME_BYTES];
    Json json;
    weights_set_check_json(checkpoint);
    snprintf(path, sizeof path, "%s/config.json", checkpoint);
    read_json(path, 0, &json);
    ModelShape shape = hf_config_shape(json.root, path);
    /* checks the shape against the limits of a config; the message uses the key names of Hugging Face's config.json */
    char *fault = config_check_shape(shape);
    if (fault) {
        char text[1024];
        hf_members_translate(shape.arch, fault, text, sizeof text);
        fail(EXIT_DATA, "%s: %s", path, text);
    }
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

/* Reads a member of a file that is a token id or, if most > 1, a list of up to `most` ids. A negative id means that
 * there is none. Leaves out ids that the vocabulary does not have, with a warning. Returns the number of ids. */
static int read_ids(const cJSON *config, const char *key, int64_t vocab_size, const char *path, int32_t *id, int most) {
    const cJSON *value = json_member(config, key);
    int          is_list = cJSON_IsArray(value) && most > 1, count = 0, has_unknown = 0;
    char         shown[SHOWN_BYTES];
    if (!value || cJSON_IsNull(value)) return 0;
    for (const cJSON *item = is_list ? value->child : value; item; item = is_list ? item->next : NULL) {
        double number = number_value(item);
        if (!cJSON_IsNumber(item) || number != floor(number) || fabs(number) > INT32_MAX)
            fail(EXIT_DATA, "%s: %s is %s: give a token id%s, or null", path, key, value_text(value, shown),
                 most > 1 ? ", a list of token ids" : "");
        has_unknown |= number >= (double)vocab_size;
        if (number < 0 || number >= (double)vocab_size) continue;
        if (count == most) fail(EXIT_DATA, "%s: %s lists more than %d ids", path, key, most);
        id[count++] = (int32_t)number;
    }
    if (has_unknown)
        warn("%s: %s has a token id of %lld or more, which is beyond the model's vocabulary; that id is not used", path,
             key, (long long)vocab_size);
    return count;
}

/* Prints an id and its special text: 50256 "<|endoftext|>". */
static void print_id(const Tokenizer *t, int32_t id, const char *before) {
    char  quoted[80], *text = t->kind == TOKENIZER_BPE ? tokenizer_special_text(t, id) : NULL;
    fprintf(stderr, "%s%d", before, id);
    if (text) fprintf(stderr, " %s", json_quote_short(quoted, sizeof quoted, text));
    free(text);
}

static void read_ends(StoredModel *m, const char *const *given) {
    static const char *const names[] = {"generation_config.json", "config.json"};
    const Tokenizer *tokenizer = &m->tokenizer;
    const char      *verb = m->keys.verb, *begins = "the tokenizer", *ends = NULL;
    char             path[sizeof(Path) + 64], *unused = NULL;
    int64_t          vocab_size = m->shape.vocab_size;
    Json             json;
    int32_t before[BPE_MOST_BEGIN]; /* ids that the tokenizer puts before each text; they override bos_token_id */
    int     befores = (int)tokenizer_begin(tokenizer, before), has_begin = befores > 0, has_settings = 0;
    m->begin = tokenizer_start(tokenizer);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", m->checkpoint, names[i]);
        if (!read_json(path, 1, &json)) continue;
        if (!ends && (m->ends = read_ids(json.root, "eos_token_id", vocab_size, path, m->end, STORED_ENDS)))
            ends = names[i];
        if (!has_begin && (has_begin = read_ids(json.root, "bos_token_id", vocab_size, path, &m->begin, 1)))
            begins = names[i];
        if (given && !has_settings++) unused = hf_generation_unused(json.root, given, i == 0);
        if (unused && m->is_first) print_plain(stderr, "%s: %s: not used: %s\n", verb, path, unused);
        free(unused), unused = NULL;
        json_free(&json);
    }
    int32_t end = tokenizer_end_of_text(tokenizer);
    /* the id must be below vocab_size, because the tokenizer may have more ids than the model */
    if (!ends && end >= 0 && end < vocab_size) m->end[m->ends++] = end, ends = "the tokenizer";
    if (!m->is_first) return;
    fprintf(stderr, befores ? "%s: each text begins with token " : "%s: an empty prompt begins after token ", verb);
    if (!befores) print_id(tokenizer, m->begin, "");
    for (int i = 0; i < befores; i++) print_id(tokenizer, before[i], i ? ", " : "");
    fprintf(stderr, " (%s); ", befores ? tokenizer->file.start_from : begins);
    if (m->ends == 0) fputs("no token ends a text", stderr);
    for (int i = 0; i < m->ends; i++) print_id(tokenizer, m->end[i], i ? ", " : "texts end with token ");
    if (ends) fprintf(stderr, " (%s)", ends);
    fputc('\n', stderr);
}

/* --- tokenizer ---------------------------------------------------------------------------------------------------- */

/* Returns data.tokenizer of the config.json of the run, or the one beside its shards, malloc'ed; NULL if there is
 * none. */
static char *tokenizer_of_run(const char *run) {
    char path[sizeof(Path) + 64];
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

/* --- ranks -------------------------------------------------------------------------------------------------------- */

/* Exit 64 if `ranks` is not the number of ranks of the grid, or they cannot share the model and its sequences. */
static void refuse_grid(const StoredModel *m, int ranks) {
    MeshSizes grid = m->keys.grid;
    Config    c = {.optimizer = {.name = "adamw"}};
    c.model.shape = m->shape;
    c.parallel.tensor = grid.tensor, c.parallel.context = grid.context, c.parallel.pipeline = grid.stages,
    c.parallel.interleave = c.parallel.replicas = c.parallel.expert = 1;
    c.batch.micro_batch = 1, c.batch.seq_len = c.batch.global_tokens = m->positions;
    int64_t wanted = (int64_t)grid.tensor * grid.context * grid.stages;
    if (wanted != ranks)
        fail(EXIT_CONFIG,
             "%s: parallel.tensor (%d) x context (%d) x pipeline (%d) = %lld ranks share the model, and there %s %d: "
             "start the program by mpirun -np %lld",
             m->keys.verb, grid.tensor, grid.context, grid.stages, (long long)wanted, ranks == 1 ? "is" : "are", ranks,
             (long long)wanted);
    char *fault = config_check_changed(&c, ranks);
    if (fault) fail(EXIT_CONFIG, "%s: %s", m->keys.verb, fault);
}

/* --- the model ---------------------------------------------------------------------------------------------------- */

void stored_find(StoredModel *m, const char *path) {
    m->keys.grid.replicas = 1;
    size_t bytes = strlen(path);
    if (has_ending(path, "/" WEIGHTS_SINGLE)) bytes -= strlen("/" WEIGHTS_SINGLE);
    if (bytes >= sizeof m->path)
        fail(EXIT_CONFIG, "%s: the path %s is too long: give a shorter one, for example by a symbolic link",
             m->keys.verb, path);
    snprintf(m->path, sizeof m->path, "%.*s", (int)bytes, strcmp(path, WEIGHTS_SINGLE) == 0 ? "." : path);
    Path folder = weights_set_folder(m->path);
    snprintf(m->checkpoint, sizeof m->checkpoint, "%s", folder.text);
    m->shape = stored_shape(m->checkpoint);
}

void stored_open(StoredModel *m, int64_t positions, int is_of_ranks, const char *const *given) {
    const char *asked = m->keys.tokenizer, *path = asked;
    char        found[4200], *of_run = NULL;
    Path        beside = path_of("%s/" WEIGHTS_SINGLE, m->checkpoint);
    if (m->keys.positions > m->shape.n_positions)
        fail(EXIT_CONFIG, "%s: positions=%lld: this model has %lld positions: give positions=%lld or less",
             m->keys.verb, (long long)m->keys.positions, (long long)m->shape.n_positions,
             (long long)m->shape.n_positions);
    m->positions = m->keys.positions > 0 ? m->keys.positions : positions;
    if (is_of_ranks) {
        m->world = world_join(launch_detect());
        Comm *all = world_all(m->world);
        refuse_grid(m, comm_size(all));
        device_open(world_local_rank(m->world), world_threads(m->world));
        m->groups = groups_create(all, mesh_of(comm_size(all), m->keys.grid), 0);
        groups_set_kind(&m->groups, comm_size(all) > 1 && comm_owns_device(all, device_id()) ? COMM_NCCL : COMM_RING);
    } else device_open(0, omp_get_num_procs());
    m->is_first = !m->world || comm_rank(m->groups.job) == 0;

    if (!asked && tokenizer_beside(beside.text, found, sizeof found)) path = found;
    if (!path) path = of_run = tokenizer_of_run(m->path);
    if (of_run && access(of_run, R_OK) != 0) {
        warn("%s was trained with the tokenizer %s, which is not there any more: name its new place by "
             "tokenizer=FOLDER_OR_FILE",
             m->path, of_run);
        path = NULL;
    }
    /* the tokenizer may have more ids than the model; a prompt or a task that uses them is refused */
    m->tokenizer = tokenizer_create(path ? path : "", path ? BPE_MOST_IDS : m->shape.vocab_size);
    m->tokenizer.vocab_size = m->shape.vocab_size;
    free(of_run);
    if (asked) tokenizer_refuse_other(&m->tokenizer, asked, beside.text, "the model", "leave tokenizer= out");
    read_ends(m, given);
}

int64_t stored_room(const StoredModel *m, int64_t tokens, int is_doubled) {
    Gpt     sizes = {.context = m->groups.context, .tensor = m->groups.tensor};
    sizes.T = m->positions / context_part(sizes.context).ranks;
    if (is_doubled) return gpt_scored_length(&sizes, tokens);
    return smaller_of(round_up(tokens, gpt_sample_step(&sizes)), m->positions);
}

void stored_load(StoredModel *m, GptUse use, int64_t B, int64_t T, int masks) {
    ModelSpec spec = {.shards = {.shape = m->shape, .ranks = 1, .act = F32, .use = use}, .B = B, .T = T};
    if (m->world) {
        const int *size = m->groups.mesh.size;
        spec.shards.ranks = spec.context_ranks = size[AXIS_CONTEXT], spec.shards.tensor_ranks = size[AXIS_TENSOR];
        spec.pipeline = (PipelineSpec){.stages = size[AXIS_STAGE], .parts = 1, .micro_batches = 1};
        model_take_groups(&spec, &m->groups);
    }
    spec.document_mask = masks;
    m->model = model_create(spec);
    int64_t own = T / context_part(m->groups.context).ranks;
    m->memory = arena_create("tokens", 3 * (sizeof(int32_t) * (size_t)(B * own) + ARENA_ALIGN));
    m->room.inputs = arena_tensor(&m->memory, I32, 2, B, own, 1);
    m->room.targets = arena_tensor(&m->memory, I32, 2, B, own, 1);
    m->room.starts = arena_tensor(&m->memory, I32, 2, B, own, 1);
    matmul_algorithms.frozen = 1;
    checkpoint_read_weights(m->checkpoint, &m->model->shards->layout, m->model->shards->params, &m->model->stream,
                            m->is_first);
}

void stored_close(StoredModel *m) {
    tokenizer_destroy(&m->tokenizer);
    arena_destroy(&m->memory);
    model_destroy(m->model);
    if (!m->world) return;
    groups_free(&m->groups);
    world_leave(m->world);
}
