/* checkpoint_weights.c - reads the weights that a run starts from, or that a verb uses, into the model, and checks them
 * before the run; see checkpoint.h. */
#include "run/checkpoint/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"
#include "core/format.h"
#include "core/terminal.h"
#include "core/error.h"
#include "data/tokens_json.h"
#include "model/hf.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/weights.h"

/* --- checks ------------------------------------------------------------------------------------------------------- */

/* Refuses a config.json whose sizes contradict `ours`, the shape that the weights have. */
static void refuse_other_sizes(const cJSON *json, const char *path, ModelShape ours) {
    int is_gpt2 = ours.arch == ARCH_GPT2, is_moe = ours.arch == ARCH_QWEN3_MOE;
    hf_members_expect(json, path, ours.arch, "model.vocab_size", ours.vocab_size);
    hf_members_expect(json, path, ours.arch, "model.n_layer", ours.n_layer);
    hf_members_expect(json, path, ours.arch, "model.n_embd", ours.n_embd);
    if (is_gpt2) hf_members_expect(json, path, ours.arch, "model.n_positions", ours.n_positions);
    if (!is_moe) hf_members_expect(json, path, ours.arch, "model.n_inner", dim_size(DIM_FC, ours));
    if (is_moe) hf_members_expect(json, path, ours.arch, "moe.experts", ours.n_experts);
    if (is_moe) hf_members_expect(json, path, ours.arch, "moe.n_inner", ours.n_expert_inner);
}

/* Refuses weights that were trained on tokens of another tokenizer than t, the tokenizer of the data. If the data have
 * only token ids, compares the number of ids in their tokens.json. Warns if the tokenizer of the weights is not
 * known. */
static void refuse_other_source(const Config *config, const Tokenizer *t, const WeightsSet *set) {
    /* files of tokenizers in formats that this program cannot read */
    static const char *const UNREAD[] = {"tokenizer.model", "spiece.model", "tekken.json", "vocab.txt"};
    const char *weights = set->files > 0 ? set->file[0].path : set->path;
    char        path[4200], name[4300], cure[5000], why[TOKENIZER_WHY_CHARS], fault[BPE_FAULT_CHARS];
    Tokenizer   there;
    if (!tokenizer_beside(weights, path, sizeof path)) {
        for (size_t i = 0; i < sizeof UNREAD / sizeof *UNREAD; i++) {
            snprintf(path, sizeof path, "%.*s%s", (int)(basename(weights) - weights), weights, UNREAD[i]);
            if (io_file_bytes(path) <= 0) continue;
            warn("model.init_from: cannot check that the data were made with the tokenizer %s, because this program "
                 "does not read files of this kind; if the data were made with another tokenizer, the weights are of "
                 "little use", path);
            break;
        }
        return;
    }
    if (tokenizer_try(path, &there, fault)) {
        warn("model.init_from: cannot check that the data were made with the tokenizer of these weights: %s", fault);
        return;
    }
    snprintf(name, sizeof name, "model.init_from: %s", path);
    snprintf(cure, sizeof cure,
             "make the shards with it (./train_gpt tokenize TEXT out=FOLDER tokenizer=%s), or, to train on other "
             "tokens all the same, copy the weights without their tokenizer into a folder of their own",
             shell_word(path).text);
    if (tokenizer_difference(&there, t, why))
        fail(EXIT_DATA, "%s is not the tokenizer of the data: %s; %s", name, why, cure);
    if (t->kind == TOKENIZER_IDS) {
        IoPaths files = {NULL, 0};
        for (int i = 0; i < config->data.train.count; i++) dataset_files(config->data.train.item[i], &files);
        for (size_t i = 0; i < files.count; i++)
            if (i == 0 || !tokens_json_is_same(files.path[i - 1], files.path[i]))
                tokenizer_refuse_other(&there, name, files.path[i], "the data", cure);
        io_paths_free(&files);
        warn("%s: cannot check that the data were made with this tokenizer, because no tokenizer lies beside the data; "
             "if they were made with it, set data.tokenizer=%s",
             name, shell_word(path).text);
    }
    tokenizer_destroy(&there);
}

/* Returns 1 if the run starts from model.init_from. A checkpoint is used instead if there is one; then init_from need
 * not exist. */
static int starts_from_source(const Config *config) {
    return config->model.init_from[0] && folders_list(path_of("%s/checkpoints", config->run.dir).text, NULL) == 0;
}

/* Takes model.activation of a run that began with model.init_from from its newest checkpoint that can be read. Then the
 * folder of the first weights need not exist when the run goes on. */
static void take_activation_of_run(Config *config) {
    StepFolder *list = NULL;
    int         count = folders_list(path_of("%s/checkpoints", config->run.dir).text, &list), is_read = 0;
    for (int i = 0; i < count && !is_read; i++) {
        Path     folder = path_of("%s/checkpoints/%s", config->run.dir, list[i].name);
        char     fault[MANIFEST_FAULT_BYTES];
        Manifest m;
        is_read = folder_manifest(folder.text, &m, fault) == MANIFEST_GOOD;
        if (!is_read) continue;
        const cJSON *word = json_member(json_member(m.config, "model"), "activation");
        for (int kind = 0; cJSON_IsString(word) && kind < ACTIVATION_COUNT; kind++)
            if (strcmp(word->valuestring, ACTIVATION_NAMES[kind]) == 0) config->model.shape.activation = kind;
        manifest_free(&m);
    }
    free(list);
}

void checkpoint_precheck_source(Config *config, const Tokenizer *t) {
    if (!starts_from_source(config)) {
        if (config->model.init_from[0] && !config->model.activation_given) take_activation_of_run(config);
        return;
    }
    WeightsSet set = weights_set_open(config->model.init_from);
    Layout     layout = model_layout(config->model.shape, (LayoutPlace){.ranks = 1, .tensor_ranks = 1});
    char       plain[HF_NAME_BYTES], fault[JSON_FILE_FAULT_CHARS];
    int        has_head = weights_set_find_plain(&set, "lm_head.weight").tensor != NULL;
    int        has_embedding = weights_set_find_plain(&set, hf_plain_name(layout.param[0].name, plain)).tensor != NULL;
    Path       path = path_of("%s/config.json", set.folder ? set.folder : "");
    Json       json;
    if (set.folder) weights_set_check_json(set.folder);
    /* config.json is optional */
    int exit_code = set.folder ? json_read_file(path.text, JSON_LIMIT, 0, &json, fault) : -ENOENT;
    if (exit_code && exit_code != -ENOENT) fail(exit_code, "%s", fault);
    ModelShape *ours = &config->model.shape;
    if (!exit_code && !config->model.activation_given)
        ours->activation = (int)hf_config_activation(json.root, path.text, ours->arch);
    ModelShape shape = *ours;
    /* Refuses a config.json with other settings than this run, where the shapes of tensors do not show the difference.
     * If the embedding has another name, weights_set_match refuses the weights. */
    if (!exit_code) hf_config_expect(json.root, path.text, shape, has_head || !has_embedding);
    /* checks names and shapes of the tensors before memory for the model is allocated */
    WeightsTensor *tensor_of = weights_set_match(&set, &layout, (WeightsSizes){NULL, 0, 0});
    if (!exit_code) {
        refuse_other_sizes(json.root, path.text, shape);
        json_free(&json);
    }
    refuse_other_source(config, t, &set);
    weights_set_check_values(&set, &layout, tensor_of);
    free(tensor_of);
    layout_destroy(&layout);
    weights_set_close(&set);
}

uint64_t checkpoint_source_fingerprint(const Config *config) {
    if (!starts_from_source(config)) return 0;
    WeightsSet set = weights_set_open(config->model.init_from);
    uint64_t   seen = weights_set_fingerprint(&set);
    weights_set_close(&set);
    return seen;
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

/* Returns memory for two blocks of WEIGHTS_BLOCK elements, malloc'ed. */
static float *block_buffer(void) { return xmalloc(2 * sizeof(float) * WEIGHTS_BLOCK, "reading weights"); }

/* Refuses weights with an output head of their own, if the model uses the embedding as its head. values: n elements of
 * the embedding, beginning with element `at` of the span (the elements that this rank holds). */
static void refuse_other_head(WeightsTensor head, const Layout *layout, const Span *span, int64_t at, int64_t n,
                              const float *values) {
    /* a gpt2 always uses the embedding as its output head */
    int                is_gpt2 = strncmp(layout->param[0].name, "transformer.", 12) == 0;
    const WeightsFile *w = head.file;
    float             *theirs = block_buffer();
    CHECK(weights_read_span(w, head.tensor, layout->param[span->param].offset, layout, span, at, theirs) == n,
          "%lld elements", (long long)n);
    if (memcmp(theirs, values, sizeof *values * (size_t)n) != 0)
        fail(EXIT_DATA,
             "%s: %s is not the embedding, but model.tie_embeddings=true makes the embedding the head: %s",
             w->path, head.tensor->name,
             !is_gpt2
                 ? "give model.tie_embeddings=false"
                 : "a gpt2 is trained with one matrix for both; remove that tensor from the file to train from the "
                   "embedding (sample and eval use these weights as they are)");
    free(theirs);
}

/* Reads elements of a span (part of a parameter) as weights_read_span does. Exit 65 if one of them is not finite. */
static int64_t read_finite(WeightsTensor t, const Layout *layout, const Span *span, int64_t at, float *block) {
    int64_t begin = layout->param[span->param].offset;
    int64_t n = weights_read_span(t.file, t.tensor, begin, layout, span, at, block);
    int64_t bad = weights_finite(block, n);
    if (bad < n) weights_refuse_element(t.file, t.tensor, layout_extent(layout, span, at + bad).offset - begin);
    return n;
}

void checkpoint_read_weights(const char *path, const Layout *layout, Tensor params, Stream *s, int says) {
    WeightsSet     set = weights_set_open(path);
    WeightsTensor *tensor_of = weights_set_match(&set, layout, (WeightsSizes){NULL, 0, 0}),
                  head = weights_set_head(&set, layout);
    float         *block = block_buffer();
    uint16_t      *narrow = (uint16_t *)(void *)(block + WEIGHTS_BLOCK); /* the values of block as bf16 */
    CHECK(params.type == F32 || params.type == BF16, "weights as %s", dtype_name(params.type));
    for (int i = 0; i < layout->params; i++) {
        const Param *p = &layout->param[i];
        Span         all = {.elems = p->local_elems, .param = i};
        if (layout->bucket[p->bucket].hold == BUCKET_ELSEWHERE) continue;
        if (says) say_part("loading the weights", i, layout->params);
        for (int64_t at = 0, n; at < p->local_elems; at += n) {
            n = read_finite(tensor_of[i], layout, &all, at, block);
            if (head.tensor && i == 0) refuse_other_head(head, layout, &all, at, n, block);
            for (int64_t k = 0; params.type == BF16 && k < n; k++) narrow[k] = bf16_from_f32(block[k]);
            device_from_host(s, tensor_slice(params, p->memory + at, n),
                             params.type == BF16 ? (const void *)narrow : block);
        }
    }
    if (says) say_no_more();
    free(block);
    free(tensor_of);
    weights_set_close(&set);
}

void checkpoint_init_from(const char *path, CheckpointState *state) {
    WeightsSet       set = weights_set_open(path);
    const Optimizer *o = state->optimizer;
    const Layout    *layout = checkpoint_layout(state);
    WeightsTensor   *tensor_of = weights_set_match(&set, layout, (WeightsSizes){NULL, 0, 1}),
                  head = weights_set_head(&set, layout);
    float           *block = block_buffer();
    for (int i = 0; i < o->shards->spans; i++) {
        Span          span = o->shards->span[i];
        WeightsTensor t = tensor_of[span.param];
        if (comm_rank(state->comm) == 0) say_part("loading the weights", i, o->shards->spans);
        for (int64_t at = 0, n; at < span.elems; at += n) {
            n = read_finite(t, layout, &span, at, block);
            if (head.tensor && span.param == 0) refuse_other_head(head, layout, &span, at, n, block);
            optimizer_put(o, state->stream, tensor_slice(optimizer_master(o, span), at, n), block);
        }
    }
    optimizer_publish(state->optimizer, state->stream);
    free(block);
    free(tensor_of);
    weights_set_close(&set);
}
