/* config_walk.c - sets options from a JSON tree or an override. An unknown key gets a fault with the nearest valid
 * key. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/json.h"
#include "run/config/config_diff.h"
#include "run/config/config_load.h"
#include "run/config/nearest.h"

enum { QUOTED = 128, PATH = JSON_PATH_BYTES + 32 };

Given *config_given(ConfigLoad *load, const char *key) {
    const Option *o = option_find(key);
    CHECK(o, "no option is called %s", key);
    return &load->given[o - OPTIONS];
}

static int is_section(const char *name) {
    for (int i = 0; option_section(i); i++)
        if (!strcmp(option_section(i), name)) return 1;
    return 0;
}

typedef struct { const char *name[40]; } Names; /* ends with NULL */

/* Returns the valid names in a section; "" for the top level. */
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

/* Writes "optimizer takes name, learning_rate, ...". Returns out. */
static char *taken_text(const char *section, char *out, size_t capacity) {
    Names  names = taken_names(section);
    size_t used = (size_t)snprintf(out, capacity, "%s takes", *section ? section : "the top level");
    for (int i = 0; names.name[i]; i++) used += (size_t)snprintf(out + used, capacity - used, "%s %s", i ? "," : "", names.name[i]);
    return out;
}

/* Returns 1 if the key is that of an option that the program no longer has. Adds a fault unless the value is its
 * default. */
static int take_left(ConfigLoad *load, const char *path, const cJSON *value, Where where) {
    const char *left = option_left(path);
    char        got[SHOWN_BYTES];
    if (!left) return 0;
    cJSON *fallback = cJSON_Parse(left);
    if (!fallback) fail(EXIT_MEMORY, "out of memory while reading the config");
    if (!config_same_value(value, fallback))
        faults_add(&load->faults, where, "%s must be %s, not %s: the option has left the program", path, left,
                   value_text(value, got));
    cJSON_Delete(fallback);
    return 1;
}

/* Adds a fault for an unknown key. Returns the section that the user probably meant if the key holds an object, else
 * NULL. */
static const char *refuse_unknown(ConfigLoad *load, const char *path, const char *section, const cJSON *value, Where where) {
    char typed[QUOTED], takes[512];
    int  as_section = !strchr(path, '.') && cJSON_IsObject(value);
    if (load->faults.count >= FAULTS_SHOWN) { /* only counted, so that a hostile file does not cost a search per key */
        faults_add(&load->faults, where, "unknown key");
        return NULL;
    }
    Nearest nearest = nearest_key(path, as_section ? NEAREST_SECTION : NEAREST_OPTION);
    json_quote_short(typed, sizeof typed, path);
    if (nearest.sure) faults_add(&load->faults, where, "unknown key %s; did you mean \"%s\"?", typed, nearest.word);
    else {
        Names names = taken_names(section);
        faults_add(&load->faults, where, "unknown key %s; %s; the nearest is \"%s%s%s\"", typed,
                   taken_text(section, takes, sizeof takes), section, *section ? "." : "",
                   nearest_word(path + (*section ? strlen(section) + 1 : 0), names.name).word);
    }
    if (nearest.sure && as_section) return nearest.word;
    if (nearest.sure) config_given(load, nearest.word)->faulty = 1; /* so that it is not reported as missing, too */
    return NULL;
}

/* --- soft faults of the text: numbers that cannot be stored, duplicate keys --------------------------------------- */

static void tell_until(ConfigLoad *load, Where where, Places *places, JsonPlace end) {
    for (const Json *json = places->json; json && places->listed < json->softs; places->listed++) {
        const JsonFault *soft = &json->soft[places->listed];
        if (soft->at.line > end.line || (soft->at.line == end.line && soft->at.column > end.column)) return;
        if (!where.override) where.at = soft->at;
        faults_add(&load->faults, where, "%s", soft->text);
    }
}

void config_tell_rest(ConfigLoad *load, Where where, Places *places) {
    tell_until(load, where, places, (JsonPlace){INT_MAX, INT_MAX});
}

static int count_below(const cJSON *value) {
    int count = 0;
    for (const cJSON *child = value->child; child; child = child->next) count += 1 + count_below(child);
    return count;
}

/* Returns 1 if a soft fault is about this value or a value in it. It must then not be read. places is after its
 * entry. */
static int is_spoilt(const cJSON *value, const Places *places) {
    if (!places->json || !places->json->softs) return 0;
    if (places->next == 0) return 1;
    int end = places->next + count_below(value);
    for (int i = places->next - 1; i < end; i++)
        if (places->json->entry[i].faulty) return 1;
    return 0;
}

/* Returns the place of an element of a list. places is after the entry of the list. Each element has an entry, and one
 * for each value in it. */
static JsonPlace place_of_element(const cJSON *list, int element, const Places *places) {
    const cJSON *item = list->child;
    int          at = places->next;
    for (int i = 0; i < element; i++, item = item->next) at += 1 + count_below(item);
    return places->json->entry[at].value;
}

/* --- values ------------------------------------------------------------------------------------------------------- */

static void set_option(ConfigLoad *load, const Option *o, const cJSON *value, Where where, const Places *places) {
    char   fault[ALLOWED_BYTES + 2 * SHOWN_BYTES];
    int    element;
    Given *given = &load->given[o - OPTIONS];
    /* If it is twice in the file, its section is, too, which is a listed fault. No rule may use a value then. */
    if (given->given && !given->where.override && !where.override) given->faulty = 1;
    given->given = 1;
    given->where = where;
    if (is_spoilt(value, places)) {
        given->faulty = 1;
        return;
    }
    if (option_set(o, load->config, value, fault, sizeof fault, &element)) return;
    given->faulty = 1;
    if (element >= 0 && places->json && !where.override) where.at = place_of_element(value, element, places);
    if (o->words && cJSON_IsString(value)) {
        Nearest nearest = nearest_word(value->valuestring, o->words);
        faults_add(&load->faults, where, nearest.sure && *nearest.word ? "%s; did you mean \"%s\"?" : "%s", fault, nearest.word);
    } else if (where.override && (o->type == OPTION_TEXT || o->type == OPTION_LIST || o->type == OPTION_SOURCES) && !value->child && !cJSON_IsString(value)) {
        faults_add(&load->faults, where, "%s (to give text that reads as JSON: '%s=\"...\"')", fault, o->key);
    } else {
        faults_add(&load->faults, where, "%s", fault);
    }
}

static void set_section(ConfigLoad *load, const char *section, const cJSON *value, Where where, Places *places) {
    char takes[512], got[SHOWN_BYTES];
    if (cJSON_IsObject(value)) {
        config_walk(load, value, section, where, places);
        return;
    }
    if (!is_spoilt(value, places))
        faults_add(&load->faults, where, "%s must be an object, not %s; %s", section, value_text(value, got),
                   taken_text(section, takes, sizeof takes));
    for (int i = 0; i < OPTION_COUNT; i++) load->given[i].faulty |= option_in_section(&OPTIONS[i], section);
}

static void walk_member(ConfigLoad *load, const cJSON *value, const char *section, Where key, Where place, Places *places) {
    char          path[PATH], typed[QUOTED];
    const char   *name = value->string;
    if (strcmp(name, "$comment") == 0) return; /* allowed in any section with any value */
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
    } else if (!*section && is_section(name)) {
        set_section(load, name, value, place, places);
    } else if (!take_left(load, path, value, place)) {
        const char *meant = refuse_unknown(load, path, section, value, key);
        if (meant) config_walk(load, value, meant, place, places);
    }
}

void config_walk(ConfigLoad *load, const cJSON *object, const char *section, Where where, Places *places) {
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

/* Returns the first byte that is no UTF-8, or NULL. */
static const char *find_foreign(const char *text) {
    for (int length; *text; text += length)
        if ((length = utf8_bytes(text, strlen(text))) == 0) return text;
    return NULL;
}

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"

/* Returns 1 if a value that is no JSON counts as a bare word. It does not if it begins like JSON. For a number only
 * letters count, because they are no mistyped number. */
static int is_bare_word(const Option *o, const char *text) {
    int is_word = *text && text[strspn(text, LETTERS)] == 0;
    if (*text && strchr("{[\"", *text) && access(text, F_OK) != 0) return 0;
    /* The JSON parser suggests the right word for True and False. */
    if (o && o->type == OPTION_FLAG) return is_word && strcmp(text, "True") && strcmp(text, "False");
    return !o || (o->type != OPTION_INTEGER && o->type != OPTION_REAL) || is_word;
}

void config_override(ConfigLoad *load, const char *argument) {
    Where       where = {NULL, argument, {0, 0}};
    const char *equals = strchr(argument, '=');
    char        key[PATH];
    Json        json;
    JsonFault   fault;
    if (!equals || equals == argument) {
        faults_add(&load->faults, where, "expected key=value%s, as in optimizer.learning_rate=3e-4", *argument == '-' ? " in one word" : "");
        return;
    }
    snprintf(key, sizeof key, "%.*s", equals - argument < PATH ? (int)(equals - argument) : PATH, argument);
    const Option *o = option_find(key);
    const char   *text = equals + 1;
    const char   *foreign = find_foreign(text);
    if (foreign) {
        if (o) config_given(load, key)->faulty = 1;
        faults_add(&load->faults, where, "byte 0x%02x of the value is not UTF-8, and a config holds nothing else: give another "
                   "name, or rename that file or folder", (unsigned char)*foreign);
        return;
    }
    int           known = o || is_section(key);
    int           parsed = json_parse_all(text, strlen(text), JSON_LIMIT, known ? key : "", &json, &fault);
    int           bare = (!parsed || json.softs) && is_bare_word(o, text);
    if (!parsed && !bare) {
        if (o) config_given(load, key)->faulty = 1;
        int is_text = o && (o->type == OPTION_TEXT || o->type == OPTION_LIST || o->type == OPTION_SOURCES) && *text;
        faults_add(&load->faults, where,
                   is_text ? "at character %d of the value: %s (quote a name that begins like this: '%s=\"...\"')"
                           : "at character %d of the value: %s",
                   fault.at.column, *text ? fault.text : "there is none", key);
        return;
    }
    cJSON *value = bare ? cJSON_CreateString(text) : json.root;
    if (!value) fail(EXIT_MEMORY, "out of memory while reading the config");
    Places places = {bare ? NULL : &json, 0, 0};
    if (o)          set_option(load, o, value, where, &places);
    else if (known) set_section(load, key, value, where, &places);
    else if (!take_left(load, key, value, where)) {
        char section[PATH];
        snprintf(section, sizeof section, "%.*s", (int)strcspn(key, "."), key);
        refuse_unknown(load, key, strchr(key, '.') && is_section(section) ? section : "", value, where);
    }
    if (known) config_tell_rest(load, where, &places); /* skips faults inside an unknown key */
    if (bare) cJSON_Delete(value);
    json_free(&json);
}
