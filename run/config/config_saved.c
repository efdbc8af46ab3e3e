/* config_saved.c - writes the config of a run with every option, for its folder and checkpoints, and compares it at a
 * resume. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/json.h"
#include "core/io.h"
#include "model/block.h"
#include "run/config/options.h"

/* Returns the JSON object of a config that holds the value of an option, or NULL if its section is missing. */
static cJSON *home_of(const cJSON *root, const Option *o) {
    const char *home = option_home(o);
    return *home ? json_member(root, home) : (cJSON *)root;
}

/* Returns the value, as JSON, of a key that a saved config lacks, because it is older than the key. Returns NULL if the
 * key has no default. root: the config, whose kind of model decides model.activation. The caller deletes the value. */
static cJSON *missing_value(const char *key, const cJSON *root) {
    const Option *o = option_find(key), *arch = option_find("model.arch");
    const char   *text = o ? o->fallback : option_left(key);
    const cJSON  *kind = json_member(home_of(root, arch), option_name(arch));
    ModelShape    shape = {.arch = ARCH_GPT2};
    if (strcmp(key, "model.activation") != 0) return text ? cJSON_Parse(text) : NULL;
    for (int i = 0; cJSON_IsString(kind) && arch->words[i]; i++)
        if (strcmp(arch->words[i], kind->valuestring) == 0) shape.arch = i;
    return cJSON_CreateString(ACTIVATION_NAMES[block_kind(shape)->activation]);
}

cJSON *config_to_json(const Config *config) {
    cJSON *root = cJSON_CreateObject();
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        if (o->type == OPTION_IGNORED) continue;
        cJSON *section = home_of(root, o), *value = option_to_json(o, config);
        if (!section) section = cJSON_AddObjectToObject(root, option_home(o));
        cJSON_AddItemToObject(section, option_name(o), value);
    }
    return root;
}

int config_is_saved(const char *text, size_t bytes) {
    enum { FIRST_VERSION_OPTIONS = 51 }; /* all versions of the program write at least these; people write half as
                                          * many */
    Json      json;
    JsonFault fault;
    int       count = 0, only_options = 1;
    if (!json_parse(text, bytes, JSON_LIMIT, &json, &fault)) return 0;
    for (const cJSON *top = json.root->child; top; top = top->next)
        for (const cJSON *value = cJSON_IsObject(top) ? top->child : top; value;
             value = cJSON_IsObject(top) ? value->next : NULL) {
            char          key[128];
            const Option *o;
            if (value == top) snprintf(key, sizeof key, "%s", top->string);
            else              snprintf(key, sizeof key, "%.60s.%.60s", top->string, value->string);
            o = option_find(key);
            if (o && o->type != OPTION_IGNORED) count++;
            else if (!option_left(key)) only_options = 0;
        }
    only_options &= cJSON_IsObject(json.root);
    json_free(&json);
    return only_options && count >= FIRST_VERSION_OPTIONS;
}

/* Returns a hash of the options. Leaves out the paths of data, weights and run folder, which may differ between
 * hosts. */
uint64_t config_fingerprint(const Config *config) {
    cJSON *root = config_to_json(config), *data = json_member(root, "data");
    char  *blend = sources_text(json_member(data, "train"));
    cJSON_DeleteItemFromObjectCaseSensitive(data, "train");
    cJSON_DeleteItemFromObjectCaseSensitive(data, "val");
    cJSON_DeleteItemFromObjectCaseSensitive(data, "tokenizer");
    cJSON_DeleteItemFromObjectCaseSensitive(json_member(root, "model"), "init_from");
    cJSON_DeleteItemFromObjectCaseSensitive(json_member(root, "run"), "dir");
    char *text = cJSON_PrintUnformatted(root);
    uint64_t hash = XXH3_64bits_withSeed(text, strlen(text), XXH3_64bits(blend, strlen(blend)));
    free(blend);
    free(text);
    cJSON_Delete(root);
    return hash;
}

static int is_allowed(const StringList *allow, const Option *o) {
    for (int i = 0; i < allow->count; i++)
        if (!strcmp(allow->item[i], o->key) || option_in_section(o, allow->item[i])) return 1;
    return 0;
}

int config_compare_blends(const cJSON *a, const cJSON *b, BlendDiffers *tell, void *ctx) {
    char *ours = sources_text(json_member(json_member(a, "data"), "train"));
    char *theirs = sources_text(json_member(json_member(b, "data"), "train"));
    int   differ = strcmp(ours, theirs) != 0;
    if (differ) tell(ctx, *ours ? ours : "no blend", *theirs ? theirs : "no blend");
    free(ours);
    free(theirs);
    return differ;
}

typedef struct { FILE *out; int differ; } Said;

static void say_blends(void *ctx, const char *ours, const char *theirs) {
    Said *said = ctx;
    fprintf(said->out, "%sdata.train is %s, in the checkpoint %s", said->differ++ ? "; " : "", ours, theirs);
}

static void add_key(cJSON *changed, const char *key) {
    if (changed) cJSON_AddItemToArray(changed, cJSON_CreateString(key));
}

char *config_compare(const Config *now, const cJSON *saved, cJSON *changed) {
    char  *text = NULL, shown_now[SHOWN_BYTES], shown_saved[SHOWN_BYTES];
    size_t bytes = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    cJSON *here = config_to_json(now);
    Said   said = {out, 0};
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        if (!o->fixed || is_allowed(&now->run.allow_change, o)) continue;
        const cJSON *value = json_member(home_of(here, o), option_name(o));
        const cJSON *then = json_member(home_of(saved, o), option_name(o));
        cJSON       *usual = NULL; /* the default, if the saved config is older than the option */
        if (!then) then = usual = missing_value(o->key, saved);
        if (!then) then = usual = cJSON_CreateNull();
        if (!config_same_value(value, then)) {
            fprintf(out, "%s%s is %s, in the checkpoint %s", said.differ++ ? "; " : "", o->key,
                    value_text(value, shown_now), value_text(then, shown_saved));
            add_key(changed, o->key);
        }
        cJSON_Delete(usual);
    }
    /* compares weights and stages of the blend; run/checkpoint compares the files */
    int is_free = is_allowed(&now->run.allow_change, option_find("data.train"));
    if (!is_free && config_compare_blends(here, saved, say_blends, &said)) add_key(changed, "data.train");
    cJSON_Delete(here);
    fclose(out);
    if (said.differ) return text;
    free(text);
    return NULL;
}

/* --- two configs as JSON trees, so that configs of newer and older programs can be compared ----------------------- */

typedef struct {
    const cJSON   *a, *b;
    ConfigDiffers *tell;
    void          *ctx;
    int            count;
} Walk;

/* Compares two values of options. Compares numbers exactly, because libcjson has a tolerance, and close seeds must
 * differ. */
int config_same_value(const cJSON *a, const cJSON *b) {
    if (!a || !b) return a == b;
    double x = number_value(a), y = number_value(b);
    return isnan(x) && isnan(y) ? cJSON_Compare(a, b, 1) : x == y;
}

static int is_place(const char *path) {
    return strcmp(path, "run.dir") == 0 || strcmp(path, "$schema") == 0 || strstr(path, "$comment") != NULL;
}

static void compare(Walk *walk, const char *path, const cJSON *a, const cJSON *b) {
    const Option *o = option_find(path);
    const cJSON  *lacking = a || !walk->a ? walk->b : walk->a; /* the config without the key */
    int           is_missing = !a || !b;
    cJSON        *usual = is_missing ? missing_value(path, lacking ? lacking : walk->a) : NULL;
    const cJSON *x = a ? a : usual, *y = b ? b : usual;
    int          is_lone = is_missing && o && !o->fallback; /* 1 if only one config has the key and its option has no
                                                             * default, because it is required or derived */
    if (is_lone || !config_same_value(x, y)) {
        if (walk->tell) walk->tell(walk->ctx, path, x, y);
        walk->count++;
    }
    cJSON_Delete(usual);
}

/* Compares the members of object a with b. A member that is in both is compared only on the first walk. */
static void walk_side(Walk *walk, const char *home, const cJSON *a, const cJSON *b, int is_second) {
    for (const cJSON *item = a ? a->child : NULL; item; item = item->next) {
        char         path[256];
        const cJSON *other = cJSON_IsObject(b) ? json_member(b, item->string) : NULL;
        snprintf(path, sizeof path, "%s%s%s", home, *home ? "." : "", item->string ? item->string : "");
        if (cJSON_IsObject(item)) walk_side(walk, path, item, other, is_second);
        if (cJSON_IsObject(other)) other = NULL; /* the walk over the other config compares these members */
        if (cJSON_IsObject(item) || is_place(path) || (is_second && other)) continue;
        compare(walk, path, is_second ? other : item, is_second ? item : other);
    }
}

int config_diff(const cJSON *a, const cJSON *b, ConfigDiffers *tell, void *ctx) {
    Walk walk = {a, b, tell, ctx, 0};
    walk_side(&walk, "", a, b, 0);
    if (b) walk_side(&walk, "", b, a, 1);
    return walk.count;
}
