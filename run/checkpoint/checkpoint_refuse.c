/* checkpoint_refuse.c - see checkpoint_refuse.h; also the early checks of checkpoint.h, checkpoint_precheck*(). */
#include "run/checkpoint/checkpoint_refuse.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/io.h"
#include "core/json_file.h"
#include "core/memory_file.h"
#include "core/shell_word.h"
#include "data/tokens_json.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "model/hf.h"
#include "model/optimizer.h"
#include "run/config/schedule.h"
#include "run/checkpoint/weights_set.h"

void refuse_used_folder(const char *run_dir, int checkpoints) {
    struct stat st;
    Path        metrics = path_of("%s/metrics.jsonl", run_dir);
    int         logged = stat(metrics.text, &st) == 0 && st.st_size > 0;
    if (!logged && checkpoints == 0) return;
    fail(EXIT_CONFIG,
         "%s holds a run already (%s) and run.resume is \"never\": choose another run.dir, or run.resume=auto to continue it",
         run_dir, checkpoints ? "checkpoints" : "metrics.jsonl");
}

void refuse_no_checkpoint(const char *checkpoints) {
    fail(EXIT_DATA, "run.resume is \"must\" but there is no checkpoint in %s", checkpoints);
}

void keep_lost_metrics(const char *run_dir) {
    static const char SAVE[] = "{\"kind\":\"event\",\"event\":\"save\",\"step\":";
    Path    metrics = path_of("%s/metrics.jsonl", run_dir);
    FILE   *lines = io_open_stream(metrics.text, IO_READ);
    char   *line = NULL;
    size_t  room = 0;
    int64_t saved = -1;
    while (lines && getline(&line, &room, lines) > 0)
        if (strncmp(line, SAVE, strlen(SAVE)) == 0) saved = strtoll(line + strlen(SAVE), NULL, 10);
    free(line);
    if (lines) fclose(lines);
    if (saved < 0) return;
    struct stat st;
    Path        kept = path_of("%s.passed-over", metrics.text);
    for (int i = 2; lstat(kept.text, &st) == 0; i++) kept = path_of("%s.passed-over-%d", metrics.text, i);
    int error = io_rename(metrics.text, kept.text);
    if (error) fail(EXIT_IO, "%s: cannot be renamed to %s: %s", metrics.text, kept.text, io_error_text(error));
    warn("%s says that step %" PRId64 " was saved, and %s/checkpoints holds no checkpoint: the run begins anew, and the lines so far are kept "
         "in %s. To go on from that step instead, stop this run and put the folders back", metrics.text, saved, run_dir, kept.text);
}

/* --- may it continue ---------------------------------------------------------------------------------------------- */

static int may_change_data(const Config *config) {
    for (int i = 0; i < config->run.allow_change.count; i++)
        if (strcmp(config->run.allow_change.item[i], "data.train") == 0 ||
            strcmp(config->run.allow_change.item[i], "data") == 0)
            return 1;
    return 0;
}

/* Prints the override that allows these keys besides those of the config: run.allow_change=KEY, or a list in quotes. */
static void print_allow(FILE *out, const Config *config, const cJSON *changed) {
    cJSON *keys = cJSON_Duplicate(changed, 1);
    for (int i = config->run.allow_change.count; keys && i-- > 0;)
        if (!cJSON_InsertItemInArray(keys, 0, cJSON_CreateString(config->run.allow_change.item[i]))) fail(EXIT_MEMORY, "no memory for a message");
    char *list = keys ? cJSON_PrintUnformatted(keys) : NULL;
    if (!list) fail(EXIT_MEMORY, "no memory for a message");
    if (cJSON_GetArraySize(keys) == 1) fprintf(out, "run.allow_change=%s", keys->child->valuestring);
    else                               fprintf(out, "'run.allow_change=%s'", list);
    cJSON_free(list);
    cJSON_Delete(keys);
}

/* Returns 1 if weights and optimizer state of the two configs have the same names and shapes. */
static int has_same_tensors(const Config *config, const Manifest *m) {
    Config then;
    char  *fault = config_from_json(m->config, &then);
    free(fault);
    if (fault) return 0; /* config of another version */
    Layout now = model_layout(config->model.shape, (LayoutPlace){.ranks = 1, .tensor_ranks = 1});
    Layout saved = model_layout(then.model.shape, (LayoutPlace){.ranks = 1, .tensor_ranks = 1});
    int    same = now.params == saved.params && optimizer_kind(config->optimizer.name, config->optimizer.normuon) ==
                                                optimizer_kind(then.optimizer.name, then.optimizer.normuon);
    for (int i = 0; same && i < now.params; i++)
        same = strcmp(now.param[i].name, saved.param[i].name) == 0 && now.param[i].dim[0] == saved.param[i].dim[0] &&
               now.param[i].dim[1] == saved.param[i].dim[1];
    layout_destroy(&now), layout_destroy(&saved);
    config_free(&then);
    return same;
}

/* Prints `before` and the first training shard that differs, by name without folder, size and token count. Returns 0 if
 * all are the same. */
static int compare_data(const Dataset *now, const Manifest *m, const char *before, FILE *out) {
    int shards = m->data_files < now->shards ? m->data_files : now->shards;
    for (int i = 0; i < shards; i++) {
        const Shard        *s = &now->shard[i];
        const ManifestData *d = &m->data[i];
        if (json_reads_as(d->name, shard_name(s)) && s->file_bytes == d->bytes && s->header.tokens == d->tokens) continue;
        fprintf(out,
                "%sdata.train: shard %d is %s (%" PRIu64 " bytes, %" PRId64 " tokens), in the checkpoint %s (%" PRIu64
                " bytes, %" PRId64 " tokens)",
                before, i, shard_name(s), s->file_bytes, s->header.tokens, d->name, d->bytes, d->tokens);
        return 1;
    }
    if (m->data_files != now->shards) fprintf(out, "%sdata.train: %d shards, in the checkpoint %d", before, now->shards, m->data_files);
    return m->data_files != now->shards;
}

/* Warns of changed options that a resume allows although they change the learning rate or the validation loss. */
static void warn_of_changes(const Config *config, const Manifest *m) {
    Config then;
    char  *fault = config_from_json(m->config, &then);
    free(fault);
    if (fault) return; /* config of another version */
    double before = schedule_lr(&then, m->step), now = schedule_lr(config, m->step);
    if (config->run.steps != then.run.steps && now != before)
        warn("run.steps is %" PRId64 ", in the checkpoint %" PRId64 ": the learning rate of step %" PRId64 " is %.3e, and was to be %.3e; "
             "run.stop_step ends a run early and leaves the schedule as it is", config->run.steps, then.run.steps, m->step + 1, now, before);
    if (config->eval.tokens != then.eval.tokens)
        warn("eval.tokens is %" PRId64 ", in the checkpoint %" PRId64 ": from step %" PRId64 " on the loss of evaluations is of other tokens, "
             "and not to be compared with that before", config->eval.tokens, then.eval.tokens, m->step);
    config_free(&then);
}

void refuse_other_settings(const Config *config, const Dataset *train, const char *folder, const Manifest *m) {
    char  *text = NULL;
    size_t bytes = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    cJSON *changed = cJSON_CreateArray();
    if (!out || !changed) fail(EXIT_MEMORY, "no memory to compare settings with %s", folder);
    char *settings = config_compare(config, m->config, changed);
    int   keys = cJSON_GetArraySize(changed), is_blend = keys && strcmp(cJSON_GetArrayItem(changed, keys - 1)->valuestring, "data.train") == 0;
    fprintf(out, "%s", settings ? settings : "");
    int other_data = !may_change_data(config) && compare_data(train, m, settings ? "; " : "", out);
    int may_go_on = has_same_tensors(config, m);
    fprintf(out, ". Set back what changed, %stake another run.dir", may_go_on ? "" : "or ");
    if (other_data && !is_blend && !cJSON_AddItemToArray(changed, cJSON_CreateString("data.train")))
        fail(EXIT_MEMORY, "no memory to compare settings with %s", folder);
    if (may_go_on) {
        fprintf(out, ", or go on with the new values: ");
        print_allow(out, config, changed);
    }
    if (fclose(out) != 0) fail(EXIT_MEMORY, "no memory to compare settings with %s", folder);
    if (settings || other_data) fail(EXIT_CONFIG, "%s: %s", folder, text);
    free(text);
    cJSON_Delete(changed);
    warn_of_changes(config, m);
}

void refuse_other_tokenizer(const Config *config, const Tokenizer *t, const char *folder) {
    if (!t || may_change_data(config)) return;
    char  *cure = NULL;
    size_t bytes = 0;
    FILE  *out = memory_file_open(&cure, &bytes);
    cJSON *changed = cJSON_CreateStringArray((const char *const[]){"data.train"}, 1);
    if (!out || !changed) fail(EXIT_MEMORY, "no memory to compare tokenizers with %s", folder);
    fprintf(out, "give the data of the run, use another run.dir, or go on with these data: ");
    print_allow(out, config, changed);
    if (fclose(out) != 0) fail(EXIT_MEMORY, "no memory to compare tokenizers with %s", folder);
    tokenizer_refuse_other(t, "the tokenizer of the data", path_of("%s/tokenizer.json", folder).text, "the checkpoint", cure);
    cJSON_Delete(changed);
    free(cure);
}

/* --- weights to start from ---------------------------------------------------------------------------------------- */

/* Refuses a config.json whose sizes contradict the weights. The weights have the shapes of `ours`. */
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

/* Refuses a Hugging Face folder whose config.json differs from our model in a setting that no tensor shape shows. If
 * `fits`, the weights have the shapes of our model, and other sizes in config.json are refused, too. */
static void refuse_other_model(const char *folder, const Config *config, int has_head, int fits) {
    char fault[JSON_FILE_FAULT_CHARS];
    Json json;
    Path path = path_of("%s/config.json", folder);
    int  exit_code = json_read_file(path.text, JSON_LIMIT, 0, &json, fault);
    if (exit_code == -ENOENT) return; /* config.json is optional */
    if (exit_code) fail(exit_code, "%s", fault);
    if (fits) refuse_other_sizes(json.root, path.text, config->model.shape);
    else hf_config_expect(json.root, path.text, config->model.shape, has_head);
    json_free(&json);
}

/* Returns the path of a tokenizer file beside the weights that this program does not read, or NULL if there is none. */
static const char *unread_tokenizer(const char *weights, char *out, size_t capacity) {
    static const char *const NAMES[] = {"tokenizer.model", "spiece.model", "tekken.json", "vocab.txt"};
    const char *slash = strrchr(weights, '/');
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        snprintf(out, capacity, "%.*s%s", slash ? (int)(slash - weights) + 1 : 0, weights, NAMES[i]);
        if (io_file_bytes(out) > 0) return out;
    }
    return NULL;
}

/* Refuses weights that were trained on tokens of another tokenizer than t, the tokenizer of the data. If t has only
 * ids, compares the notes beside the data. Warns if the tokenizer of the weights is not known. */
static void refuse_other_source(const Config *config, const Tokenizer *t, const WeightsSet *set) {
    const char *weights = set->files > 0 ? set->file[0].path : set->path;
    char        path[4200], name[4300], cure[5000], why[TOKENIZER_WHY_CHARS], fault[BPE_FAULT_CHARS];
    Tokenizer   there;
    if (!tokenizer_beside(weights, path, sizeof path)) {
        if (unread_tokenizer(weights, path, sizeof path))
            warn("model.init_from: %s is not read: whether the data were made with this tokenizer is not known", path);
        return;
    }
    if (tokenizer_try(path, &there, fault)) {
        warn("model.init_from: whether the data were made with the tokenizer of these weights is not known: %s", fault);
        return;
    }
    snprintf(name, sizeof name, "model.init_from: %s", path);
    snprintf(cure, sizeof cure,
             "make the shards with it (./train_gpt tokenize TEXT out=FOLDER tokenizer=%s), or, to train on other tokens "
             "all the same, copy the weights without their tokenizer into a folder of their own",
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
        warn("%s: whether the data were made with it is not known, because no tokenizer is beside them: "
             "data.tokenizer=%s says that they were",
             name, shell_word(path).text);
    }
    tokenizer_destroy(&there);
}

/* --- at once ------------------------------------------------------------------------------------------------------ */

/* Returns 1 if the run starts from model.init_from. If there is a checkpoint, it is used instead, and init_from need
 * not exist any more. */
static int starts_from_source(const Config *config) {
    StepFolder *list = NULL;
    int         count = config->model.init_from[0] ? folders_list(path_of("%s/checkpoints", config->run.dir).text, &list) : 1;
    free(list);
    return count == 0;
}

void checkpoint_precheck_source(const Config *config, const Tokenizer *t) {
    if (!starts_from_source(config)) return;
    WeightsSet set = weights_set_open(config->model.init_from);
    Layout     layout = model_layout(config->model.shape, (LayoutPlace){.ranks = 1, .tensor_ranks = 1});
    char       plain[HF_NAME_BYTES];
    int        has_head = weights_set_find_plain(&set, "lm_head.weight").tensor != NULL;
    int        has_embedding = weights_set_find_plain(&set, hf_plain_name(layout.param[0].name, plain)).tensor != NULL;
    if (set.folder) weights_set_check_json(set.folder);
    /* If the embedding has another name, weights_set_match refuses it. */
    if (set.folder) refuse_other_model(set.folder, config, has_head || !has_embedding, 0);
    /* Checks names and shapes before memory is allocated. */
    WeightsTensor *tensor_of = weights_set_match(&set, &layout, (WeightsSizes){NULL, 0, 0});
    if (set.folder) refuse_other_model(set.folder, config, 0, 1);
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

void checkpoint_precheck(const Config *config) {
    StepFolder *list = NULL;
    Path        checkpoints = path_of("%s/checkpoints", config->run.dir);
    int         count = folders_list(checkpoints.text, &list);
    free(list);
    if (count < 0) return; /* the fault is reported when the folder is read */
    if (config->run.resume == RESUME_NEVER) refuse_used_folder(config->run.dir, count);
    if (config->run.resume == RESUME_MUST && count == 0 && config->checkpoint.memory_every == 0) refuse_no_checkpoint(checkpoints.text);
}
