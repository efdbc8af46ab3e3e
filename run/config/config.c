/* config.c - makes a Config from the config file and the overrides, or a list of all their faults: see config.h. An
 * unknown key gets a fault with the nearest valid key. */
#include "run/config/config.h"

#include <ctype.h>
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

enum { QUOTED = 128, PATH = JSON_PATH_BYTES + 32 };

static int takes_text(const Option *o) {
    return o->type == OPTION_TEXT || o->type == OPTION_LIST || o->type == OPTION_SOURCES;
}

/* Position of a walk over the values of a config file. json_parse_all() lists the values, and the soft faults (values
 * that parse but are not valid), in the order of the file. `next` and `listed` are the positions in these two lists.
 * json NULL: the places in the file are not known. */
typedef struct {
    const Json *json;
    int         next; /* index in json->entry of the next value; 0: the root */
    int         listed; /* number of soft faults (values that parse but are not valid) already added to the list of
                         * faults */
} Places;

/* --- unknown keys ------------------------------------------------------------------------------------------------- */

typedef struct { const char *name[40]; } Names; /* a list of names that ends with NULL */

/* Returns the valid names in a section. section "": the top level. */
static Names taken_names(const char *section) {
    Names names;
    int   count = 0;
    for (int i = 0; !*section && option_section(i); i++) names.name[count++] = option_section(i);
    for (int i = 0; i < OPTION_COUNT; i++)
        if (!strcmp(option_home(&OPTIONS[i]), section)) names.name[count++] = option_name(&OPTIONS[i]);
    CHECK(count < (int)(sizeof names.name / sizeof *names.name), "%d keys in one section", count);
    names.name[count] = NULL;
    return names;
}

/* Writes the names that a section allows: "optimizer takes name, learning_rate, ...". Returns out. */
static char *taken_text(const char *section, char *out, size_t capacity) {
    Names  names = taken_names(section);
    size_t used = (size_t)snprintf(out, capacity, "%s takes", *section ? section : "the top level");
    for (int i = 0; names.name[i]; i++)
        used += (size_t)snprintf(out + used, capacity - used, "%s %s", i ? "," : "", names.name[i]);
    return out;
}

/* Returns 1 if the key belongs to an option that the program no longer has. Adds a fault unless the value is the former
 * default. */
static int take_left(ConfigLoad *load, const char *path, const cJSON *value, Where where) {
    const char *left = option_left(path);
    char        got[SHOWN_BYTES];
    if (!left) return 0;
    cJSON *fallback = cJSON_Parse(left);
    if (!config_same_value(value, fallback))
        faults_add(&load->faults, where, "%s must be %s, not %s: the program no longer has this option; leave it out",
                   path, left, value_text(value, got));
    cJSON_Delete(fallback);
    return 1;
}

/* Adds a fault for an unknown key. If the key holds an object, returns the section that the user probably meant.
 * Otherwise returns NULL. */
static const char *refuse_unknown(ConfigLoad *load, const char *path, const char *section, const cJSON *value,
                                  Where where) {
    char typed[QUOTED], takes[512];
    int  as_section = !strchr(path, '.') && cJSON_IsObject(value);
    if (load->faults.count >= FAULTS_SHOWN) { /* later faults are only counted, so that a hostile file does not cost
                                               * a search per key */
        faults_add(&load->faults, where, "unknown key");
        return NULL;
    }
    Nearest nearest = nearest_key(path, as_section ? NEAREST_SECTION : NEAREST_OPTION);
    json_quote_short(typed, sizeof typed, path);
    if (nearest.sure) {
        faults_add(&load->faults, where, "unknown key %s; did you mean \"%s\"?", typed, nearest.word);
    } else {
        Names names = taken_names(section);
        faults_add(&load->faults, where, "unknown key %s; %s; the nearest is \"%s%s%s\"", typed,
                   taken_text(section, takes, sizeof takes), section, *section ? "." : "",
                   nearest_word(path + (*section ? strlen(section) + 1 : 0), names.name).word);
    }
    if (nearest.sure && as_section) return nearest.word;
    /* the user meant this key, so the check for missing keys does not report it again */
    if (nearest.sure) config_given(load, nearest.word)->faulty = 1;
    return NULL;
}

/* --- soft faults of the text: numbers that cannot be stored, duplicate keys --------------------------------------- */

static const JsonPlace END = {INT_MAX, INT_MAX};

/* Adds the soft faults (numbers that cannot be stored, duplicate keys) up to the place `end` that are not yet in the
 * list. */
static void tell_until(ConfigLoad *load, Where where, Places *places, JsonPlace end) {
    for (const Json *json = places->json; json && places->listed < json->softs; places->listed++) {
        const JsonFault *soft = &json->soft[places->listed];
        if (soft->at.line > end.line || (soft->at.line == end.line && soft->at.column > end.column)) return;
        if (!where.override) where.at = soft->at;
        faults_add(&load->faults, where, "%s", soft->text);
    }
}

static int count_below(const cJSON *value) {
    int count = 0;
    for (const cJSON *child = value->child; child; child = child->next) count += 1 + count_below(child);
    return count;
}

/* Returns 1 if a soft fault (such as a number that cannot be stored) is about this value or a value in it. Then the
 * value must not be read. places->next is already behind the entry of the value. */
static int is_spoilt(const cJSON *value, const Places *places) {
    if (!places->json || !places->json->softs) return 0;
    if (places->next == 0) return 1;
    int end = places->next + count_below(value);
    for (int i = places->next - 1; i < end; i++)
        if (places->json->entry[i].faulty) return 1;
    return 0;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static void set_option(ConfigLoad *load, const Option *o, const cJSON *value, Where where, const Places *places) {
    OptionFault fault;
    Given      *given = &load->given[o - OPTIONS];
    /* If the key is twice in the file, its section is twice in it, too, which is already a fault. No rule may use the
     * value then. */
    if (given->given && !given->where.override && !where.override) given->faulty = 1;
    given->given = 1;
    given->where = where;
    if (is_spoilt(value, places)) {
        given->faulty = 1;
        return;
    }
    if (option_set(o, load->config, value, &fault)) return;
    given->faulty = 1;
    if (fault.element >= 0 && places->json && !where.override) {
        /* at: index of the first element's entry in json->entry, because places->next is behind the entry of the list.
         * An element takes one entry, and one more for each value inside it. */
        const cJSON *item = value->child;
        int          at = places->next;
        for (int i = 0; i < fault.element; i++, item = item->next) at += 1 + count_below(item);
        where.at = places->json->entry[at].value;
    }
    if (o->words && cJSON_IsString(value)) {
        Nearest nearest = nearest_word(value->valuestring, o->words);
        faults_add(&load->faults, where, nearest.sure && *nearest.word ? "%s; did you mean \"%s\"?" : "%s", fault.text,
                   nearest.word);
    } else if (where.override && takes_text(o) && !value->child && !cJSON_IsString(value)) {
        faults_add(&load->faults, where, "%s (to give text that reads as JSON: '%s=\"...\"')", fault.text, o->key);
    } else {
        faults_add(&load->faults, where, "%s", fault.text);
    }
}

static void walk(ConfigLoad *load, const cJSON *object, const char *section, Where where, Places *places);

static void set_section(ConfigLoad *load, const char *section, const cJSON *value, Where where, Places *places) {
    char takes[512], got[SHOWN_BYTES];
    if (cJSON_IsObject(value)) {
        walk(load, value, section, where, places);
        return;
    }
    if (!is_spoilt(value, places))
        faults_add(&load->faults, where, "%s must be an object, not %s; %s", section, value_text(value, got),
                   taken_text(section, takes, sizeof takes));
    for (int i = 0; i < OPTION_COUNT; i++) load->given[i].faulty |= option_in_section(&OPTIONS[i], section);
}

static void walk_member(ConfigLoad *load, const cJSON *value, const char *section, Where key, Where place,
                        Places *places) {
    char          path[PATH], typed[QUOTED];
    const char   *name = value->string;
    if (strcmp(name, "$comment") == 0) return; /* "$comment" is allowed in any section with any value */
    const Option *dotted = strchr(name, '.') ? option_find(name) : NULL;
    snprintf(path, sizeof path, "%s%s%s", section, *section ? "." : "", name);
    const Option *o = strchr(name, '.') ? NULL : option_find(path);
    if (dotted) {
        int length = (int)strcspn(name, ".");
        faults_add(&load->faults, key, "unknown key %s; in a file dots are nesting: \"%.*s\": {\"%s\": ...}",
                   json_quote_short(typed, sizeof typed, path), length, name, option_name(dotted));
        load->given[dotted - OPTIONS].faulty = 1;
    } else if (o) {
        set_option(load, o, value, place, places);
    } else if (!*section && option_is_section(name)) {
        set_section(load, name, value, place, places);
    } else if (!take_left(load, path, value, place)) {
        const char *meant = refuse_unknown(load, path, section, value, key);
        if (meant) walk(load, value, meant, place, places);
    }
}

/* Sets every option in the JSON object of a section ("" for the root). Adds faults to the list. */
static void walk(ConfigLoad *load, const cJSON *object, const char *section, Where where, Places *places) {
    for (const cJSON *value = object->child; value; value = value->next) {
        Where key = where, place = where;
        if (places->json) {
            const JsonEntry *entry = &places->json->entry[places->next++];
            if (!where.override) {
                key.at = entry->key;
                place.at = entry->value;
            }
            tell_until(load, where, places, entry->key);
        }
        int after = places->next + count_below(value);
        walk_member(load, value, section, key, place, places);
        places->next = after;
    }
}

/* --- overrides ---------------------------------------------------------------------------------------------------- */

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"

/* Returns 1 if the value of an override, which is no JSON, counts as a bare word (a string without quotes). A text that
 * begins like JSON does not. If the option is a number, only a text of letters does, because it cannot be a mistyped
 * number. */
static int is_bare_word(const Option *o, const char *text) {
    int is_word = *text && text[strspn(text, LETTERS)] == 0;
    if (*text && strchr("{[\"", *text) && access(text, F_OK) != 0) return 0;
    /* True and False are left to the JSON parser, whose message suggests true and false */
    if (o && o->type == OPTION_FLAG) return is_word && strcmp(text, "True") && strcmp(text, "False");
    return !o || (o->type != OPTION_INTEGER && o->type != OPTION_REAL) || is_word;
}

/* Applies one override, "key=value". */
static void override(ConfigLoad *load, const char *argument) {
    Where       where = {NULL, argument, {0, 0}};
    const char *equals = strchr(argument, '=');
    char        key[PATH];
    Json        json;
    JsonFault   fault;
    if (!equals || equals == argument) {
        faults_add(&load->faults, where, "expected key=value%s, as in optimizer.learning_rate=3e-4",
                   *argument == '-' ? " in one word" : "");
        return;
    }
    snprintf(key, sizeof key, "%.*s", equals - argument < PATH ? (int)(equals - argument) : PATH, argument);
    const Option *o = option_find(key);
    const char   *text = equals + 1;
    const char   *foreign = text; /* first byte of `text` that is not UTF-8, or its end */
    for (int length; *foreign && (length = utf8_bytes(foreign, strlen(foreign))); foreign += length) {}
    if (*foreign) {
        if (o) config_given(load, key)->faulty = 1;
        faults_add(&load->faults, where, "byte 0x%02x of the value is not UTF-8, and a config holds nothing else: give "
                   "another name, or rename that file or folder", (unsigned char)*foreign);
        return;
    }
    int           known = o || option_is_section(key);
    int           parsed = json_parse_all(text, strlen(text), JSON_LIMIT, known ? key : "", &json, &fault);
    int           bare = (!parsed || json.softs) && is_bare_word(o, text);
    if (!parsed && !bare) {
        if (o) config_given(load, key)->faulty = 1;
        faults_add(&load->faults, where, o && takes_text(o) && *text ? "at character %d of the value: %s (quote a name "
                   "that begins like this: '%s=\"...\"')" : "at character %d of the value: %s", fault.at.column,
                   *text ? fault.text : "there is none", key);
        return;
    }
    cJSON *value = bare ? cJSON_CreateString(text) : json.root;
    Places places = {bare ? NULL : &json, 0, 0};
    if (o)          set_option(load, o, value, where, &places);
    else if (known) set_section(load, key, value, where, &places);
    else if (!take_left(load, key, value, where)) {
        char section[PATH];
        snprintf(section, sizeof section, "%.*s", (int)strcspn(key, "."), key);
        refuse_unknown(load, key, strchr(key, '.') && option_is_section(section) ? section : "", value, where);
    }
    /* adds the remaining soft faults (such as duplicate keys); those inside the value of an unknown key do not
     * matter */
    if (known) tell_until(load, where, &places, END);
    if (bare) cJSON_Delete(value);
    json_free(&json);
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Refuses the config.json of a Hugging Face model, which names a kind of model and has no key of a config of this
 * program. Returns 1 if the file is one. The fault has the command that trains from that model. */
static int refuse_model_config(ConfigLoad *load, const cJSON *root) {
    const char *file = load->file.file, *slash = file ? strrchr(file, '/') : NULL;
    char        folder[PATH_MAX];
    for (const cJSON *one = root->child; one; one = one->next)
        if (option_is_section(one->string) || option_find(one->string)) return 0;
    if (!json_member(root, "architectures") && !json_member(root, "model_type")) return 0;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".");
    ShellWord word = shell_word(folder);
    faults_add(&load->faults, load->file, "this describes a model of Hugging Face, not a run: give the config of a run "
               "that begins with its weights, as in ./train_gpt configs/own.json model.init_from=%s, or sample from "
               "it, ./train_gpt sample %s", word.text, word.text);
    return 1;
}

/* Returns 1 if a text [bytes] begins as YAML or TOML does: with a letter, with -, or with [ and a letter. Copies its
 * first word, cut to SHOWN_WORD - 1 bytes. */
enum { SHOWN_WORD = 40 };
static int is_other_language(const char *text, size_t bytes, char word[SHOWN_WORD]) {
    size_t at = 0, n = 0;
    while (at < bytes && isspace((unsigned char)text[at])) at++;
    while (at + n < bytes && n < SHOWN_WORD - 1 && !isspace((unsigned char)text[at + n])) n++;
    snprintf(word, SHOWN_WORD, "%.*s", (int)n, text + at);
    return isalpha((unsigned char)*word) || *word == '-' || (*word == '[' && isalpha((unsigned char)word[1]));
}

/* Sets the options from the text of a config file. Returns 1 if the text could be parsed. Otherwise its syntax fault is
 * the only fault. */
static int load_text(ConfigLoad *load, const char *text, size_t bytes, Json *json) {
    JsonFault fault;
    Where     where = load->file;
    if (!json_parse_all(text, bytes, JSON_LIMIT, "", json, &fault)) {
        char text_of_fault[sizeof fault.text + PATH_MAX], word[SHOWN_WORD];
        where.at = fault.at;
        if ((strncmp(fault.text, "unknown word", 12) == 0 || strncmp(fault.text, "expected", 8) == 0) &&
            is_other_language(text, bytes, word))
            snprintf(text_of_fault, sizeof text_of_fault, "a config is an object of JSON, { \"run\": {...}, ... }; "
                     "this file begins with \"%s\": write it in JSON, as configs/own.json is", word);
        else snprintf(text_of_fault, sizeof text_of_fault, "%s", fault.text);
        if (where.file) shell_name_file(text_of_fault, sizeof text_of_fault, where.file);
        faults_add(&load->faults, where, "%s", text_of_fault);
        return 0;
    }
    Places places = {json, 0, 0};
    int    object = cJSON_IsObject(json->root);
    if (object && refuse_model_config(load, json->root)) return 0;
    if (object) {
        walk(load, json->root, "", where, &places);
    /* A file that is only a number which cannot be stored already has a fault, and no value to show. */
    } else if (!json->softs || json->root->child) {
        char got[SHOWN_BYTES];
        faults_add(&load->faults, where, "a config is an object, { \"run\": {...}, ... }, not %s",
                   value_text(json->root, got));
    }
    tell_until(load, where, &places, END);
    return object;
}

/* Sets the options that the preset has and the config does not set. */
static void resolve_preset(ConfigLoad *load) {
    const char *name = load->config->model.preset, *text = preset_text(name);
    char        key[128];
    OptionFault fault;
    Json        json;
    JsonFault   wrong;
    if (!text) return;
    CHECK(json_parse(text, strlen(text), JSON_LIMIT, &json, &wrong), "configs/presets/%s.json:%d:%d: %s", name,
          wrong.at.line, wrong.at.column, wrong.text);
    for (const cJSON *section = json.root->child; section; section = section->next)
        for (const cJSON *value = section->child; value; value = value->next) {
            snprintf(key, sizeof key, "%s.%s", section->string, value->string);
            Given *given = config_given(load, key);
            if (given->given) continue;
            CHECK(option_set(option_find(key), load->config, value, &fault), "configs/presets/%s.json: %s", name,
                  fault.text);
            given->given = 1;
            given->where = config_given(load, "model.preset")->where;
        }
    json_free(&json);
}

/* Sets the options that follow from other options. is_saved: 1 if the config is the config.json of a run. */
static void resolve(ConfigLoad *load, int is_saved) {
    Config     *c = load->config;
    ModelShape *shape = &c->model.shape;
    resolve_preset(load);
    /* defaults of the kind of model (model.arch) */
    const BlockKind *kind = block_kind(*shape);
    if (kind->keys & READS_TIED && !config_given(load, "model.tie_embeddings")->given) shape->tie_embeddings = 0;
    if (kind->norm_eps != 0.0 && !config_given(load, "model.norm_eps")->given) shape->norm_eps = kind->norm_eps;
    c->model.activation_given = config_given(load, "model.activation")->given;
    if (!c->model.activation_given) shape->activation = (int)kind->activation;
    if (kind->keys & READS_N_KV_HEAD) shape->n_kv_head = shape_kv_heads(*shape);
    shape->init_std = c->init.std;
    /* The document mask (attention stays within one document) is on by default for every kind of model except gpt2. The
     * config.json of a run has the resolved value, which counts as a default. */
    if (!config_given(load, "data.document_mask")->given && shape->arch != ARCH_GPT2)
        c->data.document_mask = DOCUMENT_MASK_DEFAULT;
    if (is_saved && c->data.document_mask) c->data.document_mask = DOCUMENT_MASK_DEFAULT;
    c->schedule.warmup_given = config_given(load, "schedule.warmup_steps")->given;
    /* the default of run.dir comes from the name of the config file: "runs/demo" for "configs/demo.json" */
    if (!config_given(load, "run.dir")->given) {
        const char *name = basename(c->path), *dot = strrchr(name, '.');
        char        dir[sizeof c->path + 8];
        snprintf(dir, sizeof dir, "runs/%.*s", dot && dot != name ? (int)(dot - name) : (int)strlen(name), name);
        c->run.dir = config_keep(c, dir);
        if (!json_reads_as(c->run.dir, c->run.dir))
            faults_add(&load->faults, load->file, "run.dir is not given, and the name of this file, which it would "
                       "have, is not UTF-8: add run.dir=runs/NAME");
    }
    Given *seq_len = config_given(load, "batch.seq_len"), *positions = config_given(load, "model.n_positions");
    if (!seq_len->given && !seq_len->faulty) {
        c->batch.seq_len = shape->n_positions;
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

/* Arguments of a load: `count` overrides ("key=value"), and the job that the config is for, with its number of ranks.
 * is_elsewhere: 1 if the job runs on another machine. run_dir: folder of the run; NULL: run.dir of the config. */
typedef struct { char *const *overrides; int count, ranks, is_elsewhere; const char *run_dir; } Reading;

static char *parse(const char *path, const char *text, size_t bytes, Reading with, Config *config) {
    ConfigLoad load;
    Json       json = {.root = NULL};
    char       run_dir[2 * sizeof config->path];
    load_start(&load, config, (Where){path, NULL, {1, 1}});
    load.is_elsewhere = with.is_elsewhere;
    snprintf(config->path, sizeof config->path, "%s", path);
    if (load_text(&load, text, bytes, &json)) {
        /* run.dir becomes the folder that the config was read from, which may have been moved since its config.json was
         * written */
        if (with.run_dir) {
            cJSON *value = cJSON_CreateString(with.run_dir);
            char  *quoted = cJSON_PrintUnformatted(value);
            snprintf(run_dir, sizeof run_dir, "run.dir=%s", quoted);
            free(quoted);
            cJSON_Delete(value);
            override(&load, run_dir);
        }
        for (int i = 0; i < with.count; i++) override(&load, with.overrides[i]);
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

static char *read_and_parse(const char *path, Reading with, Config *config) {
    char inside[sizeof config->path];
    if (snprintf(inside, sizeof inside, "%s/config.json", path) < (int)sizeof inside && access(inside, R_OK) == 0) {
        with.run_dir = path;
        char *faults = read_and_parse(inside, with, config);
        snprintf(config->path, sizeof config->path, "%s", path);
        return faults;
    }
    char   *text = NULL;
    int64_t bytes = strlen(path) >= sizeof config->path ? -ENAMETOOLONG
                    : with.run_dir                      ? io_read_file(path, JSON_LIMIT, &text)
                                                        : io_read_input(path, JSON_LIMIT, &text);
    if (bytes == -ENOMEM) fail(EXIT_MEMORY, "no memory to read %s; free memory on this host", path);
    if (bytes < 0) {
        ConfigLoad load;
        load_start(&load, config, (Where){path, NULL, {0, 1}});
        faults_add(&load.faults, load.file, "cannot read: %s%s", bytes == -EFBIG ? "the file is larger than 1 MiB, the "
                   "most that a config may have" : io_error_text((int)bytes),
                   bytes == -EISDIR && !with.run_dir ? ", and no run folder, because it has no config.json: give a "
                   "config, with run.dir= if a run lies here" : "");
        return load_end(&load);
    }
    char *faults = parse(path, text, (size_t)bytes, with, config);
    free(text);
    return faults;
}

char *config_load(const char *path, char *const *overrides, int override_count, int ranks, Config *config) {
    return read_and_parse(path, (Reading){overrides, override_count, ranks, 0, NULL}, config);
}

char *config_load_elsewhere(const char *path, char *const *overrides, int override_count, int ranks, Config *config) {
    return read_and_parse(path, (Reading){overrides, override_count, ranks, 1, NULL}, config);
}

char *config_check_shape(ModelShape shape) {
    Config      config;
    ConfigLoad  load;
    OptionFault fault;
    load_start(&load, &config, (Where){NULL, NULL, {0, 0}});
    ModelShape defaults = config.model.shape;
    config.model.shape = shape;
    if (shape.n_kv_head == 0) config.model.shape.n_kv_head = shape.n_head;
    /* a config.json of a gpt2 model does not have these fields, so they keep their defaults */
    if (shape.arch == ARCH_GPT2) {
        config.model.shape.tie_embeddings = defaults.tie_embeddings;
        config.model.shape.norm_eps = defaults.norm_eps;
        config.model.shape.rope_theta = defaults.rope_theta;
        config.model.shape.rope_low_freq_factor = defaults.rope_low_freq_factor;
        config.model.shape.rope_high_freq_factor = defaults.rope_high_freq_factor;
        config.model.shape.rope_original_positions = defaults.rope_original_positions;
    }
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        size_t        at = o->offset - offsetof(Config, model.shape);
        if (o->type == OPTION_IGNORED || o->offset < offsetof(Config, model.shape) || at >= sizeof config.model.shape)
            continue;
        cJSON *value = option_to_json(o, &config);
        if (!option_set(o, &config, value, &fault)) {
            faults_add(&load.faults, load.file, "%s", fault.text);
            load.given[i].faulty = 1;
        }
        cJSON_Delete(value);
    }
    config_rules_of_shape(&load);
    char *text = load_end(&load);
    config_free(&config);
    if (text) text[strcspn(text, "\n")] = '\0'; /* keeps only the first line of the faults */
    return text;
}

char *config_from_json(const cJSON *json, Config *config) {
    ConfigLoad load;
    Places     places = {NULL, 0, 0};
    load_start(&load, config, (Where){NULL, NULL, {0, 0}});
    if (cJSON_IsObject(json)) {
        walk(&load, json, "", load.file, &places);
        resolve(&load, 1);
        refuse_missing(&load, NULL);
    } else {
        faults_add(&load.faults, load.file, "a config is an object");
    }
    char *text = load_end(&load);
    /* keeps only the first line of the faults: a program wrote the JSON, so nobody corrects it fault by fault */
    if (text) text[strcspn(text, "\n")] = '\0';
    return text;
}
