/* config_saved.c - writes the resolved config for the run and its checkpoints, and compares it at a resume. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/json.h"
#include "core/memory_file.h"
#include "run/config/config_diff.h"
#include "run/config/options.h"
#include "run/config/sources.h"

/* Returns the object with the value of an option, or NULL if its section is missing. */
static cJSON *home_of(const cJSON *root, const Option *o) {
    const char *home = option_home(o);
    return *home ? json_member(root, home) : (cJSON *)root;
}

cJSON *config_to_json(const Config *config) {
    cJSON *root = cJSON_CreateObject();
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        if (o->type == OPTION_IGNORED) continue;
        cJSON *section = home_of(root, o), *value = option_to_json(o, config);
        if (!section) section = cJSON_AddObjectToObject(root, option_home(o));
        if (!cJSON_AddItemToObject(section, option_name(o), value)) fail(EXIT_MEMORY, "out of memory while writing the config");
    }
    return root;
}

int config_is_saved(const char *text, size_t bytes) {
    enum { FIRST_VERSION_OPTIONS = 51 }; /* all versions write these; people write half as many */
    Json      json;
    JsonFault fault;
    int       count = 0, only_options = 1;
    if (!json_parse(text, bytes, JSON_LIMIT, &json, &fault)) return 0;
    for (const cJSON *top = json.root->child; top; top = top->next)
        for (const cJSON *value = cJSON_IsObject(top) ? top->child : top; value; value = cJSON_IsObject(top) ? value->next : NULL) {
            char          key[128];
            const Option *o;
            if (value == top) snprintf(key, sizeof key, "%s", top->string);
            else              snprintf(key, sizeof key, "%.60s.%.60s", top->string, value->string);
            o = option_find(key);
            if (o && o->type != OPTION_IGNORED) count++;
            else only_options = 0;
        }
    only_options &= cJSON_IsObject(json.root);
    json_free(&json);
    return only_options && count >= FIRST_VERSION_OPTIONS;
}

/* Leaves out the paths of data, weights and run folder, which may differ between hosts. */
uint64_t config_fingerprint(const Config *config) {
    cJSON *root = config_to_json(config), *data = json_member(root, "data");
    char  *blend = sources_text(json_member(data, "train"));
    cJSON_DeleteItemFromObjectCaseSensitive(data, "train");
    cJSON_DeleteItemFromObjectCaseSensitive(data, "val");
    cJSON_DeleteItemFromObjectCaseSensitive(data, "tokenizer");
    cJSON_DeleteItemFromObjectCaseSensitive(json_member(root, "model"), "init_from");
    cJSON_DeleteItemFromObjectCaseSensitive(json_member(root, "run"), "dir");
    char *text = cJSON_PrintUnformatted(root);
    if (!text) fail(EXIT_MEMORY, "out of memory while comparing configs");
    uint64_t hash = XXH3_64bits_withSeed(text, strlen(text), XXH3_64bits(blend, strlen(blend)));
    free(blend);
    cJSON_free(text);
    cJSON_Delete(root);
    return hash;
}

static int is_allowed(const StringList *allow, const Option *o) {
    for (int i = 0; i < allow->count; i++)
        if (!strcmp(allow->item[i], o->key) || option_in_section(o, allow->item[i])) return 1;
    return 0;
}

/* Returns the former value of an option that was not saved, which is its default. */
static cJSON *default_value(const Option *o) { return o->fallback ? cJSON_Parse(o->fallback) : cJSON_CreateNull(); }

int config_compare_blends(const cJSON *a, const cJSON *b, BlendDiffers *tell, void *ctx) {
    char *ours = sources_text(json_member(json_member(a, "data"), "train"));
    char *theirs = sources_text(json_member(json_member(b, "data"), "train"));
    int   differ = strcmp(ours, theirs) != 0;
    if (differ) tell(ctx, *ours ? ours : "no blend", *theirs ? theirs : "no blend");
    free(ours);
    free(theirs);
    return differ;
}

typedef struct { FILE *out; int before; } Said;

static void say_blends(void *ctx, const char *ours, const char *theirs) {
    const Said *said = ctx;
    fprintf(said->out, "%sdata.train is %s, in the checkpoint %s", said->before ? "; " : "", ours, theirs);
}

/* Compares weights and stages of data.train. checkpoint_resume.c compares the files. */
static int blends_differ(const Config *now, const cJSON *saved, FILE *out, int before) {
    if (is_allowed(&now->run.allow_change, option_find("data.train"))) return 0;
    Said   said = {out, before};
    cJSON *here = config_to_json(now);
    int    differ = config_compare_blends(here, saved, say_blends, &said);
    cJSON_Delete(here);
    return differ;
}

static void add_key(cJSON *changed, const char *key) {
    if (changed && !cJSON_AddItemToArray(changed, cJSON_CreateString(key))) fail(EXIT_MEMORY, "out of memory while comparing configs");
}

char *config_compare(const Config *now, const cJSON *saved, cJSON *changed) {
    char  *text = NULL, shown_now[SHOWN_BYTES], shown_saved[SHOWN_BYTES];
    size_t bytes = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    int    differ = 0;
    if (!out) fail(EXIT_MEMORY, "out of memory while comparing configs");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        if (!o->fixed || is_allowed(&now->run.allow_change, o)) continue;
        const cJSON *then = json_member(home_of(saved, o), option_name(o)); /* NULL if the option is newer */
        cJSON       *absent = then ? NULL : default_value(o), *value = option_to_json(o, now);
        if (!then) then = absent;
        if (!then) fail(EXIT_MEMORY, "out of memory while comparing configs");
        if (!config_same_value(value, then)) {
            fprintf(out, "%s%s is %s, in the checkpoint %s", differ++ ? "; " : "", o->key, value_text(value, shown_now),
                    value_text(then, shown_saved));
            add_key(changed, o->key);
        }
        cJSON_Delete(absent);
        cJSON_Delete(value);
    }
    if (blends_differ(now, saved, out, differ)) {
        differ++;
        add_key(changed, "data.train");
    }
    if (fclose(out) != 0) fail(EXIT_MEMORY, "out of memory while comparing configs");
    if (differ) return text;
    free(text);
    return NULL;
}
