/* checkpoint_refuse.c - see checkpoint_refuse.h; and checkpoint_foresee() of checkpoint.h, which tells at once what would be told later. */
#include "run/checkpoint_refuse.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/io.h"
#include "core/json.h"
#include "core/memory_file.h"
#include "run/checkpoint.h"
#include "run/checkpoint_folders.h"
#include "run/options.h"
#include "run/weights_file.h"

void refuse_used_folder(const char *run_dir, int checkpoints) {
    struct stat st;
    Path        metrics = path_of("%s/metrics.jsonl", run_dir);
    int         logged = stat(metrics.text, &st) == 0 && st.st_size > 0;
    if (!logged && checkpoints == 0) return;
    fail(EXIT_CONFIG, "%s holds a run already (%s) and run.resume is \"never\": choose another run.dir, or run.resume=auto to continue it",
         run_dir, checkpoints ? "checkpoints" : "metrics.jsonl");
}

void refuse_no_checkpoint(const char *checkpoints) { fail(EXIT_DATA, "run.resume is \"must\" but there is no checkpoint in %s", checkpoints); }

/* --- may it continue --------------------------------------------------------------------------------------------------------------------- */

static int may_change_data(const Config *config) {
    for (int i = 0; i < config->run.allow_change.count; i++)
        if (strcmp(config->run.allow_change.item[i], "data.train") == 0 || strcmp(config->run.allow_change.item[i], "data") == 0) return 1;
    return 0;
}

/* Names the first training shard that differs, by name without folder, size and token count: 1, or 0 if all are the same. */
static int compare_data(const Dataset *now, const Manifest *m, FILE *out) {
    int shards = m->data_files < now->shards ? m->data_files : now->shards;
    for (int i = 0; i < shards; i++) {
        const Shard        *s = &now->shard[i];
        const ManifestData *d = &m->data[i];
        if (strcmp(shard_name(s), d->name) == 0 && s->file_bytes == d->bytes && s->header.tokens == d->tokens) continue;
        fprintf(out, "data.train: shard %d is %s (%" PRIu64 " bytes, %" PRId64 " tokens), in the checkpoint %s (%" PRIu64 " bytes, %" PRId64
                " tokens)", i, shard_name(s), s->file_bytes, s->header.tokens, d->name, d->bytes, d->tokens);
        return 1;
    }
    if (m->data_files != now->shards) fprintf(out, "data.train: %d shards, in the checkpoint %d", now->shards, m->data_files);
    return m->data_files != now->shards;
}

void refuse_other_settings(const Config *config, const Dataset *train, const char *folder, const Manifest *m) {
    char  *data = NULL, *settings = config_compare(config, m->config);
    size_t bytes = 0;
    FILE  *out = memory_file_open(&data, &bytes);
    if (!out) fail(EXIT_MEMORY, "no memory to compare settings with %s", folder);
    if (train && !may_change_data(config) && compare_data(train, m, out))
        fprintf(out, " (give the same files in the same order, name data.train in run.allow_change, or take another run.dir)");
    if (fclose(out) != 0) fail(EXIT_MEMORY, "no memory to compare settings with %s", folder);
    if (settings || bytes) fail(EXIT_CONFIG, "%s: %s%s%s", folder, settings ? settings : "", settings && bytes ? "; " : "", data);
    free(data);
}

/* --- weights to start from ----------------------------------------------------------------------------------------------------------------- */

NORETURN static void refuse_key(const char *path, const cJSON *value, const char *ours) {
    char theirs[SHOWN_BYTES];
    fail(EXIT_DATA, "%s: %s is %s; %s (the shapes of weights do not show it)", path, value->string, value_text(value, theirs), ours);
}

static int is_one_of(const cJSON *value, const char *a, const char *b) {
    return cJSON_IsString(value) && (strcmp(value->valuestring, a) == 0 || strcmp(value->valuestring, b) == 0);
}

void refuse_other_model(const char *folder, const Config *config) {
    char      ours[80], *text;
    Json      json;
    JsonFault fault;
    Path      path = path_of("%s/config.json", folder);
    int64_t   bytes = io_read_file(path.text, JSON_LIMIT, &text);
    if (bytes == -ENOENT) return; /* weights alone are as good */
    if (bytes == -ENOMEM) fail(EXIT_MEMORY, "no memory to read %s", path.text);
    if (bytes < 0) fail(EXIT_IO, "%s cannot be read: %s", path.text, strerror((int)-bytes));
    if (!json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault)) fail(EXIT_DATA, "%s:%d:%d: %s", path.text, fault.at.line, fault.at.column, fault.text);
    const cJSON *type = json_member(json.root, "model_type"), *heads = json_member(json.root, "n_head");
    const cJSON *activation = json_member(json.root, "activation_function"), *epsilon = json_member(json.root, "layer_norm_epsilon");
    const cJSON *by_layer = json_member(json.root, "scale_attn_by_inverse_layer_idx"), *scaled = json_member(json.root, "scale_attn_weights");
    snprintf(ours, sizeof ours, "model.n_head is %" PRId64, config->model.n_head);
    if (type && !is_one_of(type, "gpt2", "gpt2")) refuse_key(path.text, type, "models of type gpt2 are trained here");
    if (heads && number_value(heads) != (double)config->model.n_head) refuse_key(path.text, heads, ours);
    if (activation && !is_one_of(activation, "gelu_new", "gelu_pytorch_tanh")) refuse_key(path.text, activation, "gelu_new, by tanh, is computed here");
    if (epsilon && fabs(number_value(epsilon) - 1e-5) > 1e-11) refuse_key(path.text, epsilon, "1e-5 is used here");
    if (by_layer && cJSON_IsTrue(by_layer)) refuse_key(path.text, by_layer, "attention is not scaled so here");
    if (scaled && cJSON_IsFalse(scaled)) refuse_key(path.text, scaled, "attention is scaled here");
    json_free(&json);
    free(text);
}

/* --- at once ------------------------------------------------------------------------------------------------------------------------------- */

static void foresee_source(const char *path, const Config *config) {
    struct stat st;
    int         is_folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    if (is_folder) refuse_other_model(path, config);
    WeightsFile w = weights_open(path_of(is_folder ? "%s/model.safetensors" : "%s", path).text);
    weights_close(&w);
}

/* The settings of the newest, if its manifest can be read: whether it verifies is seen later. */
static void foresee_settings(const Config *config, const Dataset *train, const StepFolder *newest) {
    Manifest m;
    char    *text, fault[MANIFEST_FAULT_BYTES];
    Path     folder = path_of("%s/checkpoints/%s", config->run.dir, newest->name);
    int64_t  bytes = io_read_file(path_of("%s/" MANIFEST_NAME, folder.text).text, MANIFEST_LIMIT, &text);
    if (bytes < 0) return;
    if (manifest_parse(text, (size_t)bytes, &m, fault) == MANIFEST_GOOD) {
        if (m.step == newest->step) refuse_other_settings(config, train, folder.text, &m);
        manifest_free(&m);
    }
    free(text);
}

void checkpoint_foresee(const Config *config, const Dataset *train) {
    StepFolder *list = NULL;
    Path        checkpoints = path_of("%s/checkpoints", config->run.dir);
    int         count = folders_list(checkpoints.text, &list);
    if (count < 0) return; /* told when the folder is ours */
    if (config->run.resume == RESUME_NEVER) refuse_used_folder(config->run.dir, count);
    if (config->run.resume == RESUME_MUST && count == 0) refuse_no_checkpoint(checkpoints.text);
    if (count > 0) foresee_settings(config, train, &list[0]);
    else if (config->model.init_from[0]) foresee_source(config->model.init_from, config);
    free(list);
}
