/* config_saved.c - writes the config of a run with every option, for its folder and checkpoints, and compares it at a
 * resume. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/json.h"
#include "core/io.h"
#include "model/block.h"
#include "run/config/options.h"

const cJSON *config_value(const cJSON *config, const char *key) {
    const char *dot = strchr(key, '.');
    char        section[128];
    if (!dot) return json_member(config, key);
    snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
    return json_member(json_member(config, section), dot + 1);
}

/* Returns the value, as JSON, of a key that a saved config lacks, because it is older than the key. Returns NULL if the
 * key has no default. root: the config, whose kind of model decides model.activation. The caller deletes the value. */
static cJSON *missing_value(const char *key, const cJSON *root) {
    const Option *o = option_find(key), *arch = option_find("model.arch");
    const char   *text = o ? o->fallback : option_left(key);
    const cJSON  *kind = config_value(root, "model.arch");
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
        const char   *home = option_home(o);
        cJSON        *section = *home ? json_member(root, home) : root;
        if (o->type == OPTION_IGNORED) continue;
        if (!section) section = cJSON_AddObjectToObject(root, home);
        cJSON_AddItemToObject(section, option_name(o), option_to_json(o, config));
    }
    return root;
}

int config_is_saved(const char *text, size_t bytes) {
    /* Options that every version of the program writes to a config.json, at least. A config that a person wrote has
     * about half as many. */
    enum { FIRST_VERSION_OPTIONS = 51 };
    Json      json;
    JsonFault fault;
    int       count = 0, others = 0;
    if (!json_parse(text, bytes, JSON_LIMIT, &json, &fault)) return 0;
    for (int i = 0; i < json.entries; i++) {
        const char   *path = json.entry[i].path;
        const Option *o = option_find(path);
        if (o && o->type != OPTION_IGNORED) count++;
        else if (!strpbrk(path, "[") && !option_is_section(path) && !option_left(path)) others++;
    }
    int is_object = cJSON_IsObject(json.root);
    json_free(&json);
    return is_object && others == 0 && count >= FIRST_VERSION_OPTIONS;
}

char *config_blend(const cJSON *config) {
    const cJSON *train = config_value(config, "data.train");
    const char  *path[BLEND_SHARES];
    char        *text = NULL, shown[SHOWN_BYTES];
    size_t       bytes = 0;
    int          count = 0;
    FILE        *out = memory_file_open(&text, &bytes);
    if (!cJSON_IsArray(train) || !cJSON_IsObject(train->child)) fputs("no blend", out);
    else
        for (const cJSON *entry = train->child; entry; entry = entry->next) {
            const cJSON *until = json_member(entry, "until_tokens"), *weight = json_member(entry, "weight");
            const cJSON *name = json_member(entry, "path");
            int          source = -1; /* index of the entry's path among the different paths of the blend */
            if (count < BLEND_SHARES) {
                path[count++] = cJSON_IsString(name) ? name->valuestring : "";
                source = blend_source(path, count - 1);
            }
            fprintf(out, "%s%s of source %d", entry == train->child ? "" : ", ",
                    weight ? value_text(weight, shown) : "nothing", source);
            if (until) fprintf(out, " until %s", value_text(until, shown));
        }
    fclose(out);
    return text;
}

/* Returns a hash of the options. Leaves out the paths of data, weights and run folder, which may differ between
 * hosts. */
uint64_t config_fingerprint(const Config *config) {
    cJSON *root = config_to_json(config), *data = json_member(root, "data");
    char  *blend = config_blend(root);
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

char *config_compare(const Config *now, const cJSON *saved, cJSON *changed) {
    char  *text = NULL, shown_now[SHOWN_BYTES], shown_saved[SHOWN_BYTES];
    size_t bytes = 0;
    int    differ = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    cJSON *here = config_to_json(now);
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        if (!o->fixed || is_allowed(&now->run.allow_change, o)) continue;
        const cJSON *value = config_value(here, o->key), *then = config_value(saved, o->key);
        cJSON       *usual = NULL; /* default of the option, if the saved config does not have the option */
        if (!then) then = usual = missing_value(o->key, saved);
        if (!then) then = usual = cJSON_CreateNull();
        if (!config_same_value(value, then)) {
            fprintf(out, "%s%s is %s, in the checkpoint %s", differ++ ? "; " : "", o->key,
                    value_text(value, shown_now), value_text(then, shown_saved));
            if (changed) cJSON_AddItemToArray(changed, cJSON_CreateString(o->key));
        }
        cJSON_Delete(usual);
    }
    /* compares the weights and stages of the blend of data sources; run/checkpoint compares the files */
    char *ours = config_blend(here), *theirs = config_blend(saved);
    if (!is_allowed(&now->run.allow_change, option_find("data.train")) && strcmp(ours, theirs)) {
        fprintf(out, "%sdata.train is %s, in the checkpoint %s", differ++ ? "; " : "", ours, theirs);
        if (changed) cJSON_AddItemToArray(changed, cJSON_CreateString("data.train"));
    }
    free(ours), free(theirs);
    cJSON_Delete(here);
    fclose(out);
    if (!differ) free(text), text = NULL;
    return text;
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

/* Compares the members of object a with those of b. is_second: 1 on the second walk, on which a and b have changed
 * places. A member that both objects have is compared only on the first walk. A member that one of them lacks is
 * compared with the default of its option. The two differ if the option has none, because it is required or derived. */
static void walk_side(Walk *walk, const char *home, const cJSON *a, const cJSON *b, int is_second) {
    for (const cJSON *item = a ? a->child : NULL; item; item = item->next) {
        char         path[256];
        const cJSON *other = cJSON_IsObject(b) ? json_member(b, item->string) : NULL;
        snprintf(path, sizeof path, "%s%s%s", home, *home ? "." : "", item->string ? item->string : "");
        if (cJSON_IsObject(item)) walk_side(walk, path, item, other, is_second);
        /* b has a section of this name, whose members are compared by the walk over b */
        if (cJSON_IsObject(other)) other = NULL;
        if (cJSON_IsObject(item) || (is_second && other)) continue;
        if (!strcmp(path, "run.dir") || !strcmp(path, "$schema") || strstr(path, "$comment")) continue;
        const Option *o = option_find(path);
        const cJSON  *lacking = is_second || !walk->b ? walk->a : walk->b; /* the config that lacks the key */
        cJSON        *usual = other ? NULL : missing_value(path, lacking);
        const cJSON  *y = other ? other : usual;
        if ((!other && o && !o->fallback) || !config_same_value(item, y)) {
            if (walk->tell) walk->tell(walk->ctx, path, is_second ? y : item, is_second ? item : y);
            walk->count++;
        }
        cJSON_Delete(usual);
    }
}

int config_diff(const cJSON *a, const cJSON *b, ConfigDiffers *tell, void *ctx) {
    Walk walk = {a, b, tell, ctx, 0};
    walk_side(&walk, "", a, b, 0);
    if (b) walk_side(&walk, "", b, a, 1);
    return walk.count;
}
