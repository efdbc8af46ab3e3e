/* plot_label.c - plot_label() of plot.h: sets the labels of runs, their names and the config keys that differ. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/error.h"
#include "run/verbs/plot.h"

enum { MOST_KEYS = 1024, KEY_BYTES = 128, MOST_SHOWN = 40 /* bytes of a value */ };

/* Returns 1 for keys that do not change the trained model, such as those of the folder or the machine. */
static int is_of_no_interest(const char *key) {
    static const char *const SECTIONS[] = {"$schema", "run.", "checkpoint.", "log.", "sample.", NULL};
    if (strcmp(key, "run.steps") == 0 || strcmp(key, "run.seed") == 0) return 0;
    for (int i = 0; SECTIONS[i]; i++)
        if (strncmp(key, SECTIONS[i], strlen(SECTIONS[i])) == 0) return 1;
    return 0;
}

static const cJSON *find(const cJSON *config, const char *key) {
    char        section[KEY_BYTES];
    const char *dot = strchr(key, '.');
    snprintf(section, sizeof section, "%.*s", dot ? (int)(dot - key) : (int)strlen(key), key);
    const cJSON *member = json_member(config, section);
    return dot ? json_member(member, dot + 1) : member;
}

/* Returns 1 if the runs differ in a key. A run without a config differs in each key. */
static int is_different(const PlotRun *run, int runs, const char *key) {
    const cJSON *first = find(run[0].log.config, key);
    for (int i = 1; i < runs; i++)
        if (!cJSON_Compare(first, find(run[i].log.config, key), 1)) return 1;
    return 0;
}

typedef struct {
    char text[KEY_BYTES];
} Key;

static int add_key(Key *key, int keys, const PlotRun *run, int runs, const char *text) {
    if (keys == MOST_KEYS || is_of_no_interest(text) || !is_different(run, runs, text)) return keys;
    for (int k = 0; k < keys; k++)
        if (strcmp(key[k].text, text) == 0) return keys;
    snprintf(key[keys].text, KEY_BYTES, "%s", text);
    return keys + 1;
}

static int keys_that_differ(Key *key, const PlotRun *run, int runs) {
    int keys = 0;
    for (int i = 0; i < runs; i++) {
        const cJSON *section, *member;
        cJSON_ArrayForEach(section, run[i].log.config) {
            if (!cJSON_IsObject(section)) {
                keys = add_key(key, keys, run, runs, section->string);
                continue;
            }
            cJSON_ArrayForEach(member, section) {
                char text[KEY_BYTES];
                if ((size_t)snprintf(text, sizeof text, "%s.%s", section->string, member->string) < sizeof text)
                    keys = add_key(key, keys, run, runs, text);
            }
        }
    }
    return keys;
}

/* Returns the last name of a key, or the whole key if another key that differs has the same last name. */
static const char *short_name(const Key *key, int keys, int which) {
    const char *dot = strchr(key[which].text, '.'), *name = dot ? dot + 1 : key[which].text;
    for (int k = 0; k < keys; k++) {
        const char *other = strchr(key[k].text, '.');
        if (k != which && strcmp(other ? other + 1 : key[k].text, name) == 0) return key[which].text;
    }
    return name;
}

static void put(char *out, size_t room, const char *name, const cJSON *value) {
    char       *text = value ? cJSON_PrintUnformatted(value) : NULL;
    size_t      at = strlen(out);
    const char *shown = cJSON_IsString(value) ? value->valuestring : text ? text : "-";
    snprintf(out + at, room - at, " · %s=%.*s", name, MOST_SHOWN, shown);
    cJSON_free(text);
}

/* Sets the name of a run: that of its folder, or the path if two folders have the same name. */
static void put_name(PlotRun *run, int runs, int which) {
    int is_double = 0;
    for (int i = 0; i < runs; i++) is_double |= i != which && strcmp(run[i].log.name, run[which].log.name) == 0;
    snprintf(run[which].name, sizeof run[which].name, "%s", is_double ? run[which].log.dir : run[which].log.name);
}

void plot_label(PlotRun *run, int runs) {
    Key *key = xmalloc(sizeof *key * MOST_KEYS, "the keys of the configs");
    int keys = runs > 1 ? keys_that_differ(key, run, runs) : 0;
    for (int i = 0; i < runs; i++) {
        put_name(run, runs, i);
        for (int k = 0; k < keys && run[i].log.config; k++)
            put(run[i].differs, sizeof run[i].differs, short_name(key, keys, k), find(run[i].log.config, key[k].text));
    }
    free(key);
}
