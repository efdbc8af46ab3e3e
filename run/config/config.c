/* config.c - see config.h: the config file and the overrides become a Config, or a list of all their faults. */
#include "run/config/config.h"

#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json.h"
#include "core/format.h"
#include "core/error.h"
#include "model/block.h"
#include "run/config/config_load.h"

/* Reads at most limit + 1 bytes, so that a longer file is recognized. Returns 0 or an error code of core/io.h. */
static int read_file(const char *path, IoOpen how, size_t limit, char **text, size_t *bytes) {
    FILE *file = io_open_stream(path, how);
    if (!file && errno != ENOMEM) return errno;
    if (!file) fail(EXIT_MEMORY, "out of memory while reading %s", path);
    *text = xmalloc(limit + 1, "reading the config");
    *bytes = fread(*text, 1, limit + 1, file);
    int error = ferror(file) ? errno : 0;
    fclose(file);
    if (error) free(*text);
    return error;
}

/* Returns 1 for the config.json of a model of Hugging Face: it names a kind of model, and no key of a config. */
static int is_model_config(const cJSON *root) {
    for (const cJSON *one = root->child; one; one = one->next)
        for (int i = 0; i < OPTION_COUNT; i++)
            if (strcspn(OPTIONS[i].key, ".") == strlen(one->string) && strncmp(OPTIONS[i].key, one->string, strlen(one->string)) == 0) return 0;
    return json_member(root, "architectures") || json_member(root, "model_type");
}

/* Adds a fault with the command to type to train from the model whose config.json was given. */
static void tell_model_config(ConfigLoad *load, Where where) {
    const char *slash = where.file ? strrchr(where.file, '/') : NULL;
    char        folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - where.file) : 1, slash ? where.file : ".");
    ShellWord word = shell_word(folder);
    faults_add(&load->faults, where,
               "this describes a model of Hugging Face, not a run: give the config of a run that begins with its weights, as in "
               "./train_gpt configs/own.json model.init_from=%s, or sample from it, ./train_gpt sample %s", word.text, word.text);
}

/* Sets the options from the text of a config file. Returns 1 if it could be read. A syntax fault is the only fault. */
static int load_text(ConfigLoad *load, const char *text, size_t bytes, Json *json) {
    JsonFault fault;
    Where     where = load->file;
    if (!json_parse_all(text, bytes, JSON_LIMIT, "", json, &fault)) {
        char text_of_fault[sizeof fault.text + PATH_MAX];
        where.at = fault.at;
        snprintf(text_of_fault, sizeof text_of_fault, "%s", fault.text);
        if (where.file) shell_name_file(text_of_fault, sizeof text_of_fault, where.file);
        faults_add(&load->faults, where, "%s", text_of_fault);
        return 0;
    }
    Places places = {json, 0, 0};
    int    object = cJSON_IsObject(json->root);
    if (object && is_model_config(json->root)) {
        tell_model_config(load, where);
        return 0;
    }
    if (object) {
        config_walk(load, json->root, "", where, &places);
    } else if (!json->softs || json->root->child) { /* a lone faulty number has no value to show */
        char got[SHOWN_BYTES];
        faults_add(&load->faults, where, "a config is an object, { \"run\": {...}, ... }, not %s", value_text(json->root, got));
    }
    config_tell_rest(load, where, &places);
    return object;
}

static size_t shape_field_bytes(const Option *o) {
    return o->type == OPTION_INTEGER ? sizeof(int64_t) : o->type == OPTION_REAL ? sizeof(double) : sizeof(int);
}

/* Sets the options of the preset that the config does not set. Presets of gpt2 set only the sizes that every model
 * needs. Other presets set all options of a shape. */
static void resolve_preset(ConfigLoad *load) {
    Config       *c = load->config;
    const Preset *preset = preset_find(c->model.preset);
    if (!preset) return;
    for (int i = 0; i < OPTION_COUNT; i++) {
        size_t at = OPTIONS[i].offset - offsetof(Config, model.shape); /* offset of the field in a shape */
        Given *given = &load->given[i];
        if (at >= sizeof preset->shape || OPTIONS[i].type == OPTION_IGNORED || given->given) continue;
        if (preset->shape.arch == ARCH_GPT2 && OPTIONS[i].need != NEED_MODEL) continue;
        memcpy((char *)c + OPTIONS[i].offset, (const char *)&preset->shape + at, shape_field_bytes(&OPTIONS[i]));
        given->given = 1;
        given->where = config_given(load, "model.preset")->where;
    }
}

/* Sets options that the config does not set to the defaults of the kind of model. */
static void resolve_kind(ConfigLoad *load) {
    ModelShape      *shape = &load->config->model.shape;
    const BlockKind *kind = block_kind(*shape);
    if (kind->keys & READS_TIED && !config_given(load, "model.tie_embeddings")->given) shape->tie_embeddings = 0;
    if (kind->norm_eps != 0.0 && !config_given(load, "model.norm_eps")->given) shape->norm_eps = kind->norm_eps;
    if (kind->keys & READS_N_KV_HEAD) shape->n_kv_head = shape_kv_heads(*shape);
}

/* Sets data.document_mask. It is on by default for every kind but gpt2. The config.json of a run has the resolved
 * value, which counts as a default. */
static void resolve_documents(ConfigLoad *load, int is_saved) {
    Config *c = load->config;
    if (!config_given(load, "data.document_mask")->given && c->model.shape.arch != ARCH_GPT2)
        c->data.document_mask = DOCUMENT_MASK_DEFAULT;
    if (is_saved && c->data.document_mask) c->data.document_mask = DOCUMENT_MASK_DEFAULT;
}

/* Returns the default run.dir: "runs/demo" for "configs/demo.json". */
static const char *default_dir(Config *c, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    char        dir[4096 + 8];
    int         length = dot && dot != name ? (int)(dot - name) : (int)strlen(name);
    snprintf(dir, sizeof dir, "runs/%.*s", length, name);
    return config_keep(c, dir);
}

static void resolve(ConfigLoad *load, int is_saved) {
    Config *c = load->config;
    resolve_preset(load);
    resolve_kind(load);
    c->model.shape.init_std = c->init.std;
    resolve_documents(load, is_saved);
    c->schedule.warmup_given = config_given(load, "schedule.warmup_steps")->given;
    if (!config_given(load, "run.dir")->given) {
        c->run.dir = default_dir(c, c->path);
        if (!json_reads_as(c->run.dir, c->run.dir))
            faults_add(&load->faults, load->file, "run.dir is not given, and the name of this file, which it would have, is "
                       "not UTF-8: add run.dir=runs/NAME");
    }
    Given *seq_len = config_given(load, "batch.seq_len"), *positions = config_given(load, "model.n_positions");
    if (!seq_len->given && !seq_len->faulty) {
        c->batch.seq_len = c->model.shape.n_positions;
        *seq_len = (Given){0, !positions->given || positions->faulty, positions->where};
    }
}

static void refuse_missing(ConfigLoad *load, const Json *json) {
    char allowed[ALLOWED_BYTES];
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        Given        *given = &load->given[i];
        if ((o->need != NEED_ALWAYS && o->need != NEED_MODEL) || given->given || given->faulty) continue;
        given->faulty = 1;
        if (o->need == NEED_MODEL && config_given(load, "model.preset")->faulty) continue;
        const JsonEntry *entry = json ? json_entry(json, option_home(o)) : NULL;
        Where            where = load->file;
        if (entry) where.at = entry->value;
        faults_add(&load->faults, where, "missing key \"%s\": %s%s (%s)", o->key, o->help,
                   o->need == NEED_MODEL ? "; or choose a model.preset" : "", option_allowed(o, allowed));
    }
}

static void load_start(ConfigLoad *load, Config *config, Where file) {
    memset(config, 0, sizeof *config);
    *load = (ConfigLoad){.config = config, .file = file};
    load->given = xcalloc((size_t)OPTION_COUNT, sizeof *load->given, "reading the config");
    for (int i = 0; i < OPTION_COUNT; i++)
        if (OPTIONS[i].type != OPTION_IGNORED) option_set_default(&OPTIONS[i], config);
}

static char *load_end(ConfigLoad *load) {
    free(load->given);
    return faults_take(&load->faults);
}

/* Overrides ("key=value") and the job that the config is for. run_dir NULL: run.dir of the text. */
typedef struct { char *const *overrides; int count, ranks, is_elsewhere; const char *run_dir; } Reading;

/* Sets run.dir to the folder of config.json, because the folder may have been moved since it was written. */
static void override_dir(ConfigLoad *load, const char *dir) {
    char   text[2 * 4096];
    cJSON *value = cJSON_CreateString(dir);
    char  *quoted = value ? cJSON_PrintUnformatted(value) : NULL;
    if (!quoted) fail(EXIT_MEMORY, "out of memory while reading the config");
    snprintf(text, sizeof text, "run.dir=%s", quoted);
    cJSON_free(quoted);
    cJSON_Delete(value);
    config_override(load, text);
}

static char *parse(const char *path, const char *text, size_t bytes, Reading with, Config *config) {
    ConfigLoad load;
    Json       json = {.root = NULL};
    load_start(&load, config, (Where){path, NULL, {1, 1}});
    load.is_elsewhere = with.is_elsewhere;
    snprintf(config->path, sizeof config->path, "%s", path);
    if (load_text(&load, text, bytes, &json)) {
        if (with.run_dir) override_dir(&load, with.run_dir);
        for (int i = 0; i < with.count; i++) config_override(&load, with.overrides[i]);
        resolve(&load, with.run_dir != NULL);
        refuse_missing(&load, &json);
        config_rules(&load, with.ranks);
    }
    json_free(&json);
    return load_end(&load);
}

char *config_parse(const char *path, const char *text, size_t bytes, char *const *overrides, int override_count,
                   int ranks, Config *config) {
    return parse(path, text, bytes, (Reading){overrides, override_count, ranks, 0, NULL}, config);
}

static char *cannot_read(const char *path, int error, Config *config) {
    ConfigLoad load;
    load_start(&load, config, (Where){path, NULL, {0, 1}});
    faults_add(&load.faults, load.file, "cannot read: %s", io_error_text(error));
    return load_end(&load);
}

static char *read_and_parse(const char *path, Reading with, Config *config) {
    char inside[sizeof config->path];
    if (snprintf(inside, sizeof inside, "%s/config.json", path) < (int)sizeof inside && access(inside, R_OK) == 0) {
        with.run_dir = path;
        char *faults = read_and_parse(inside, with, config);
        snprintf(config->path, sizeof config->path, "%s", path);
        return faults;
    }
    char  *text = NULL;
    size_t bytes = 0;
    int    error = strlen(path) >= sizeof config->path ? ENAMETOOLONG : read_file(path, with.run_dir ? IO_READ : IO_READ_ANY, JSON_LIMIT, &text, &bytes);
    if (error) return cannot_read(path, error, config);
    char *faults = parse(path, text, bytes, with, config);
    free(text);
    return faults;
}

char *config_load(const char *path, char *const *overrides, int override_count, int ranks, Config *config) {
    return read_and_parse(path, (Reading){overrides, override_count, ranks, 0, NULL}, config);
}

char *config_load_elsewhere(const char *path, char *const *overrides, int override_count, int ranks, Config *config) {
    return read_and_parse(path, (Reading){overrides, override_count, ranks, 1, NULL}, config);
}

/* Takes the shape of a file. Fields that its kind does not have are not set in it, and keep their defaults. */
static void take_shape(Config *c, ModelShape shape) {
    ModelShape defaults = c->model.shape;
    c->model.shape = shape;
    if (shape.n_kv_head == 0) c->model.shape.n_kv_head = shape.n_head;
    if (shape.arch != ARCH_GPT2) return;
    c->model.shape.tie_embeddings = defaults.tie_embeddings, c->model.shape.norm_eps = defaults.norm_eps;
    c->model.shape.rope_theta = defaults.rope_theta, c->model.shape.rope_low_freq_factor = defaults.rope_low_freq_factor;
    c->model.shape.rope_high_freq_factor = defaults.rope_high_freq_factor;
    c->model.shape.rope_original_positions = defaults.rope_original_positions;
}

char *config_check_shape(ModelShape shape) {
    Config     config;
    ConfigLoad load;
    char       fault[ALLOWED_BYTES + SHOWN_BYTES + 80];
    int        element;
    load_start(&load, &config, (Where){NULL, NULL, {0, 0}});
    take_shape(&config, shape);
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        size_t        at = o->offset - offsetof(Config, model.shape);
        if (o->type == OPTION_IGNORED || o->offset < offsetof(Config, model.shape) || at >= sizeof config.model.shape)
            continue;
        cJSON *value = option_to_json(o, &config);
        if (!option_set(o, &config, value, fault, sizeof fault, &element)) {
            faults_add(&load.faults, load.file, "%s", fault);
            load.given[i].faulty = 1;
        }
        cJSON_Delete(value);
    }
    config_rules_of_shape(&load);
    char *text = load_end(&load);
    config_free(&config);
    if (text) text[strcspn(text, "\n")] = '\0'; /* keeps the first line only */
    return text;
}

char *config_from_json(const cJSON *json, Config *config) {
    ConfigLoad load;
    Places     places = {NULL, 0, 0};
    load_start(&load, config, (Where){NULL, NULL, {0, 0}});
    if (cJSON_IsObject(json)) {
        config_walk(&load, json, "", load.file, &places);
        resolve(&load, 1);
        refuse_missing(&load, NULL);
    } else {
        faults_add(&load.faults, load.file, "a config is an object");
    }
    char *text = load_end(&load);
    if (text) text[strcspn(text, "\n")] = '\0'; /* keeps the first line only, because a program wrote the JSON */
    return text;
}
