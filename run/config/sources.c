/* sources.c - see sources.h. */
#include "run/config/sources.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "core/io.h"

static const double SUM_SLACK = 1e-5; /* allows thirds with five digits, which sum to 0.99999 */

int sources_are_blend(const cJSON *value) { return cJSON_IsArray(value) && cJSON_IsObject(value->child); }

/* --- reading ------------------------------------------------------------------------------------------------------ */

typedef struct { char key[128]; char *fault; size_t capacity; } Entry; /* key: "data.train[2]", for messages */

static int refuse(const Entry *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
static int refuse(const Entry *e, const char *fmt, ...) {
    va_list args;
    int     used = snprintf(e->fault, e->capacity, "%s", e->key);
    va_start(args, fmt);
    vsnprintf(e->fault + used, e->capacity - (size_t)used, fmt, args);
    va_end(args);
    return 0;
}

static int refuse_member(const Entry *e, const char *name, const char *allowed, const cJSON *got) {
    char shown[SHOWN_BYTES];
    if (!got) return refuse(e, " lacks \"%s\": %s", name, allowed);
    return refuse(e, ".%s must be %s, not %s", name, allowed, value_text(got, shown));
}

static int refuse_unknown(const Entry *e, const cJSON *entry) {
    static const char *const KNOWN[] = {"path", "weight", "until_tokens", "$comment"};
    for (const cJSON *member = entry->child; member; member = member->next) {
        char quoted[SHOWN_BYTES];
        int  is_known = 0;
        for (int i = 0; i < 4; i++) is_known |= !strcmp(member->string, KNOWN[i]);
        if (!is_known)
            return refuse(e, " has the unknown key %s: a source takes path, weight, until_tokens",
                          json_quote_short(quoted, sizeof quoted, member->string));
    }
    return 1;
}

static int read_entry(const Entry *e, Config *config, const cJSON *entry, double longest, const char **path,
                      BlendShare *share) {
    char shown[SHOWN_BYTES];
    if (!cJSON_IsObject(entry))
        return refuse(e, " must be an object {\"path\", \"weight\"} as those before it, not %s",
                      value_text(entry, shown));
    const cJSON *name = json_member(entry, "path"), *weight = json_member(entry, "weight");
    const cJSON *until = json_member(entry, "until_tokens");
    double       w = number_value(weight), end = until ? number_value(until) : 0;
    if (!refuse_unknown(e, entry)) return 0;
    if (!cJSON_IsString(name) || !*name->valuestring) return refuse_member(e, "path", "a glob of token shards", name);
    if ((double)strlen(name->valuestring) > longest) return refuse(e, ".path has more than %.0f bytes", longest);
    if (!(w > 0 && w <= 1)) return refuse_member(e, "weight", "a number above 0 and at most 1", weight);
    if (until && !(end >= 1 && end <= 0x1p53 && end == floor(end)))
        return refuse_member(e, "until_tokens", "an integer of at least 1", until);
    *path = config_keep(config, name->valuestring);
    *share = (BlendShare){w, (int64_t)end};
    return 1;
}

int sources_set(const Option *o, Config *config, const cJSON *value, StringList *list, char *fault, size_t capacity,
                int *element) {
    int count = cJSON_GetArraySize(value);
    if (count > BLEND_SHARES) {
        snprintf(fault, capacity, "%s is a blend of %d entries; at most %d are allowed", o->key, count, BLEND_SHARES);
        return 0;
    }
    const char **path = config_keep_bytes(config, sizeof *path * (size_t)count);
    BlendShare  *share = config_keep_bytes(config, sizeof *share * (size_t)count);
    const cJSON *entry = value->child;
    for (int i = 0; i < count; i++, entry = entry->next) {
        Entry e = {.fault = fault, .capacity = capacity};
        snprintf(e.key, sizeof e.key, "%s[%d]", o->key, i);
        *element = i;
        if (!read_entry(&e, config, entry, o->max, &path[i], &share[i])) return 0;
    }
    *element = -1;
    *list = (StringList){count, path, share};
    return 1;
}

/* --- rules -------------------------------------------------------------------------------------------------------- */

/* Returns the end of the stage that begins with entry `from`. */
static int stage_end(const StringList *list, int from) {
    int to = from;
    while (to < list->count && list->share[to].until_tokens == list->share[from].until_tokens) to++;
    return to;
}

static void stage_text(const StringList *list, int from, char out[64]) {
    *out = 0;
    if (stage_end(list, 0) < list->count && list->share[from].until_tokens)
        snprintf(out, 64, " until %" PRId64 " tokens", list->share[from].until_tokens);
    else if (stage_end(list, 0) < list->count) snprintf(out, 64, " of the last stage");
}

static int check_stage(const Entry *e, const StringList *list, int from, int to) {
    double sum = 0;
    char   stage[64], quoted[SHOWN_BYTES];
    stage_text(list, from, stage);
    for (int i = from; i < to; i++) {
        sum += list->share[i].weight;
        for (int k = from; k < i; k++)
            if (!strcmp(list->item[k], list->item[i]))
                return refuse(e, " names %s in two entries%s: give it once, with the sum of its weights",
                              json_quote_short(quoted, sizeof quoted, list->item[i]), stage);
    }
    if (fabs(sum - 1.0) <= SUM_SLACK) return 1;
    return refuse(e, ": the weights%s sum to %.6g and must sum to 1: divide each by %.6g", stage, sum, sum);
}

/* Checks that the next stage ends later than this one, or never. */
static int check_order(const Entry *e, const StringList *list, int from, int to) {
    int64_t end = list->share[from].until_tokens, next = to < list->count ? list->share[to].until_tokens : 0;
    if (to == list->count && end)
        return refuse(e, ": until_tokens = %" PRId64 " is the end of the last stage, and nothing follows: leave it out there",
                      end);
    if (to == list->count || (end && (next == 0 || next > end))) return 1;
    if (!end)
        return refuse(e, "[%d] follows entries without until_tokens, which hold to the end of the run: give those an end", to);
    return refuse(e, "[%d].until_tokens = %" PRId64 " follows %" PRId64 ": stages stand in their order", to, next, end);
}

int sources_check(const char *key, const StringList *list, char *fault, size_t capacity) {
    Entry e = {.fault = fault, .capacity = capacity};
    int   sources = blend_sources(list->item, list->count);
    snprintf(e.key, sizeof e.key, "%s", key);
    if (sources > BLEND_SOURCES)
        return refuse(&e, " is a blend of %d sources; at most %d are allowed", sources, BLEND_SOURCES);
    for (int from = 0, to; from < list->count; from = to) {
        to = stage_end(list, from);
        if (!check_order(&e, list, from, to) || !check_stage(&e, list, from, to)) return 0;
    }
    return 1;
}

/* --- writing ------------------------------------------------------------------------------------------------------ */

cJSON *sources_json(const StringList *list) {
    cJSON *array = cJSON_CreateArray();
    int    whole = array != NULL;
    for (int i = 0; whole && i < list->count; i++) {
        cJSON *entry = cJSON_CreateObject();
        whole = entry && cJSON_AddItemToArray(array, entry) && cJSON_AddStringToObject(entry, "path", list->item[i]) &&
                cJSON_AddItemToObject(entry, "weight", number_json(list->share[i].weight)) &&
                (!list->share[i].until_tokens ||
                 cJSON_AddItemToObject(entry, "until_tokens", number_json((double)list->share[i].until_tokens)));
    }
    if (!whole) fail(EXIT_MEMORY, "out of memory while writing the config");
    return array;
}

/* Returns the index of the path of an entry among the different paths. */
static int source_of(const cJSON *train, const cJSON *entry) {
    const char *path[BLEND_SHARES];
    int         count = 0;
    for (const cJSON *item = train->child; item && count < BLEND_SHARES; item = item->next) {
        const cJSON *name = json_member(item, "path");
        path[count++] = cJSON_IsString(name) ? name->valuestring : "";
        if (item == entry) return blend_source(path, count - 1);
    }
    return -1;
}

char *sources_text(const cJSON *train) {
    char  *text = NULL, shown[SHOWN_BYTES];
    size_t bytes = 0;
    FILE  *out = memory_file_open(&text, &bytes);
    if (!out) fail(EXIT_MEMORY, "out of memory while comparing configs");
    for (const cJSON *entry = sources_are_blend(train) ? train->child : NULL; entry; entry = entry->next) {
        const cJSON *until = json_member(entry, "until_tokens"), *weight = json_member(entry, "weight");
        const char  *share = weight ? value_text(weight, shown) : "nothing";
        fprintf(out, "%s%s of source %d", entry == train->child ? "" : ", ", share, source_of(train, entry));
        if (until) fprintf(out, " until %s", value_text(until, shown));
    }
    if (fclose(out) != 0) fail(EXIT_MEMORY, "out of memory while comparing configs");
    return text;
}
