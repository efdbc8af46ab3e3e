/* option_help.c - prints the option table. For people: `help config`, help for one section or key, and docs/config.md.
 * For editors: JSON Schema. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/terminal.h"
#include "run/config/options.h"

enum { KEY_WIDTH = 27, DEFAULT_WIDTH = 11, PAGE_WIDTH = 120, ROW_BYTES = 1024 };

/* Writes the allowed values of an option in short: "ring | mpi", "integer, 1 to 8", or nothing if any string is
 * allowed. */
static void range_short(const Option *o, char out[ALLOWED_BYTES]) {
    char low[SHOWN_BYTES], high[SHOWN_BYTES];
    int  used = 0;
    *out = '\0';
    if (o->words) {
        for (int i = 0; o->words[i] && used < ALLOWED_BYTES; i++)
            if (*o->words[i])
                used += snprintf(out + used, (size_t)(ALLOWED_BYTES - used), "%s%s", used ? " | " : "", o->words[i]);
    } else if (o->type == OPTION_FLAG) {
        snprintf(out, SHOWN_BYTES, "true | false");
    } else if (o->type == OPTION_INTEGER || o->type == OPTION_REAL) {
        const char *kind = o->type == OPTION_INTEGER ? "integer" : "number";
        number_text(o->min, low);
        number_text(o->max, high);
        if (o->max >= 2147483647.0) snprintf(out, SHOWN_BYTES, "%s, at least %.30s", kind, low);
        else snprintf(out, SHOWN_BYTES, "%s, %.30s to %s%.30s", kind, low, o->half_open ? "below " : "", high);
    }
}

/* Writes a default as it is typed on a command line, without quotes. Returns out. */
static const char *bare(const char *text, char out[SHOWN_BYTES]) {
    size_t bytes = strlen(text);
    if (bytes > 2 && text[0] == '"') snprintf(out, SHOWN_BYTES, "%.*s", (int)bytes - 2, text + 1);
    else                             snprintf(out, SHOWN_BYTES, "%s", text);
    return out;
}

static void print_row(FILE *out, const Option *o, int columns) {
    char        row[ROW_BYTES], range[ALLOWED_BYTES], shown[SHOWN_BYTES], gap[64];
    int         at = 2 + KEY_WIDTH + DEFAULT_WIDTH;
    const char *value = bare(option_default_text(o), shown);
    range_short(o, range);
    /* the text after a long default begins on the next line */
    if ((int)strlen(value) < DEFAULT_WIDTH) snprintf(gap, sizeof gap, "%*s", DEFAULT_WIDTH - (int)strlen(value), "");
    else                                    snprintf(gap, sizeof gap, "\n%*s", at, "");
    snprintf(row, sizeof row, "  " BOLD "%s" RESET "%*s%s%s%s%s%s%s", o->key, KEY_WIDTH - (int)strlen(o->key), "",
             value, gap, o->help, *range ? DIM " (" : "", range, *range ? ")" RESET : "");
    terminal_fold(out, row, columns, at);
}

static void print_heading(FILE *out, int columns) {
    char row[ROW_BYTES];
    snprintf(row, sizeof row, DIM "  %-*s%-*s%s" RESET, KEY_WIDTH, "key", DEFAULT_WIDTH, "default", "meaning");
    terminal_fold(out, row, columns, 0);
}

void config_print_help(FILE *out, int columns) {
    const char *section = "";
    print_heading(out, columns);
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (!*option_home(&OPTIONS[i]) || option_home(&OPTIONS[i]) != section) fprintf(out, "\n");
        section = option_home(&OPTIONS[i]);
        print_row(out, &OPTIONS[i], columns);
    }
}

/* Prints everything about one key of the option table. */
static void print_key(FILE *out, const Option *o, int columns) {
    char        row[ROW_BYTES], allowed[ALLOWED_BYTES], shown[SHOWN_BYTES];
    const char *value = o->example ? o->example : o->fallback ? bare(o->fallback, shown) : "...";
    struct { const char *label, *text; } rows[] = {
        {"meaning", o->help},
        {"default", option_default_text(o)},
        {"allowed", option_allowed(o, allowed)},
        {"resume", o->fixed ? "must stay, unless run.allow_change names it" : "may change"},
    };
    fprintf(out, BOLD "%s" RESET "\n", o->key);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        snprintf(row, sizeof row, DIM "  %-10s" RESET "%s", rows[i].label, rows[i].text);
        terminal_fold(out, row, columns, 12);
    }
    if (o->type != OPTION_IGNORED) {
        snprintf(row, sizeof row, DIM "  %-10s" RESET "./train_gpt config.json %s=%s", "example", o->key,
                 *value ? value : "\"\"");
        terminal_fold(out, row, columns, 12);
    }
}

int config_print_topic(FILE *out, const char *topic, int columns) {
    const Option *o = option_find(topic);
    int           found = 0;
    if (o) print_key(out, o, columns);
    for (int i = 0; !o && i < OPTION_COUNT; i++) {
        if (!option_in_section(&OPTIONS[i], topic)) continue;
        if (!found++) print_heading(out, columns);
        print_row(out, &OPTIONS[i], columns);
    }
    return o || found;
}

/* --- docs/config.md ----------------------------------------------------------------------------------------------- */

static void print_item(FILE *out, const Option *o) {
    char row[ROW_BYTES], range[ALLOWED_BYTES];
    range_short(o, range);
    int  is_required = !o->fallback && o->need != NEED_DERIVED;
    char otherwise[SHOWN_BYTES];
    snprintf(otherwise, sizeof otherwise, is_required ? "%s" : "default `%s`", option_default_text(o));
    if (!*range) otherwise[0] = (char)toupper((unsigned char)otherwise[0]);
    snprintf(row, sizeof row, "- `%s`: %s. %s%s%s%s%s.", o->key, o->help, *range ? "Allowed: " : "", range,
             *range ? "; " : "", otherwise, o->fixed ? "; fixed on resume" : "");
    terminal_fold(out, row, PAGE_WIDTH, 2);
}

void config_print_markdown(FILE *out) {
    fputs("# Config\n\n"
          "This page lists every key of a config, the JSON file that describes a run. The command\n"
          "`./train_gpt help config markdown` prints it.\n\n"
          "1. Find every fault of a config:\n\n"
          "       ./train_gpt check config.json\n\n"
          "2. Print the meaning of one key:\n\n"
          "       ./train_gpt help config run.steps\n\n"
          "3. Change keys on the command line, as `run.steps=100` or `--run.steps=100`. If a key is given twice there, "
          "the\n"
          "   last one counts:\n\n"
          "       ./train_gpt config.json run.steps=100 optimizer.learning_rate=1e-3\n\n"
          "The mark *fixed on resume* means: a run resumes only with the same value of this key, unless "
          "`run.allow_change`\n"
          "names the key. In the config `\"$comment\"` is allowed in every section, and ignored.\n\n"
          "## Top level\n\n",
          out);
    for (int i = 0; i < OPTION_COUNT; i++)
        if (!*option_home(&OPTIONS[i])) print_item(out, &OPTIONS[i]);
    for (int k = 0; option_section(k); k++) {
        fprintf(out, "\n## %s\n\n", option_section(k));
        for (int i = 0; i < OPTION_COUNT; i++)
            if (option_in_section(&OPTIONS[i], option_section(k))) print_item(out, &OPTIONS[i]);
    }
}

/* --- JSON Schema 2020-12, for editors ----------------------------------------------------------------------------- */

/* Adds an item to an object, and returns it. */
static cJSON *add(cJSON *object, const char *name, cJSON *item) {
    cJSON_AddItemToObject(object, name, item);
    return item;
}

static void add_text(cJSON *object, const char *name, const char *text) { add(object, name, cJSON_CreateString(text)); }
static void add_number(cJSON *object, const char *name, double value) { add(object, name, number_json(value)); }
static void add_comment(cJSON *properties) {
    add_text(add(properties, "$comment", cJSON_CreateObject()), "description", "for readers, of any type; ignored");
}

static cJSON *typed(const char *type) {
    cJSON *schema = cJSON_CreateObject();
    add_text(schema, "type", type);
    return schema;
}

/* The JSON Schema of a blend, a list of data sources with weights (data.train). */
static const char BLEND_SCHEMA[] =
    "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{"
    "\"path\":{\"type\":\"string\",\"minLength\":1},"
    "\"weight\":{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":1},"
    "\"until_tokens\":{\"type\":\"integer\",\"minimum\":1},"
    "\"$comment\":{\"description\":\"for readers, of any type; ignored\"}},"
    "\"required\":[\"path\",\"weight\"]}}";

static cJSON *option_schema(const Option *o) {
    cJSON *schema = cJSON_CreateObject();
    add_text(schema, "description", o->help);
    switch (o->type) {
    case OPTION_IGNORED: add_text(schema, "type", "string"); break;
    case OPTION_FLAG:    add_text(schema, "type", "boolean"); break;
    case OPTION_TEXT:
        add_text(schema, "type", "string");
        if (o->min > 0) add_number(schema, "minLength", o->min);
        break;
    case OPTION_LIST:
    case OPTION_SOURCES: {
        cJSON *either = add(schema, "anyOf", cJSON_CreateArray()), *one = typed("string"), *many = typed("array");
        if (o->min > 0) add_number(one, "minLength", o->min);
        add_number(add(many, "items", typed("string")), "minLength", 1);
        if (o->min > 0) add_number(many, "minItems", o->min);
        cJSON_AddItemToArray(either, one);
        cJSON_AddItemToArray(either, many);
        if (o->type == OPTION_SOURCES) cJSON_AddItemToArray(either, cJSON_Parse(BLEND_SCHEMA));
        break;
    }
    case OPTION_WORD:
    case OPTION_CHOICE: {
        cJSON *words = add(schema, "enum", cJSON_CreateArray());
        for (int i = 0; o->words[i]; i++) cJSON_AddItemToArray(words, cJSON_CreateString(o->words[i]));
        break;
    }
    case OPTION_INTEGER:
    case OPTION_REAL:
        add_text(schema, "type", o->type == OPTION_INTEGER ? "integer" : "number");
        add_number(schema, "minimum", o->min);
        add_number(schema, o->half_open ? "exclusiveMaximum" : "maximum", o->max);
        break;
    }
    if (o->fallback) add(schema, "default", cJSON_Parse(o->fallback));
    return schema;
}

/* Returns the JSON Schema of one section. *needed: 1 if a config must have the section. */
static cJSON *section_schema(const char *section, int *needed) {
    cJSON *schema = typed("object"), *required = cJSON_CreateArray(), *sizes = cJSON_CreateArray();
    add(schema, "additionalProperties", cJSON_CreateFalse());
    cJSON *properties = add(schema, "properties", cJSON_CreateObject());
    add_comment(properties);
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        if (!option_in_section(o, section)) continue;
        add(properties, option_name(o), option_schema(o));
        if (o->need == NEED_ALWAYS) cJSON_AddItemToArray(required, cJSON_CreateString(option_name(o)));
        if (o->need == NEED_MODEL) cJSON_AddItemToArray(sizes, cJSON_CreateString(option_name(o)));
    }
    *needed = required->child || sizes->child;
    if (required->child) add(schema, "required", required);
    else cJSON_Delete(required);
    /* the section "model" must have a preset, or all sizes of a model */
    if (sizes->child) {
        cJSON *any = add(schema, "anyOf", cJSON_CreateArray()), *all = cJSON_CreateObject();
        cJSON_AddItemToArray(any, cJSON_Parse("{\"properties\":{\"preset\":{\"minLength\":1}},"
                                              "\"required\":[\"preset\"]}"));
        add(all, "required", sizes);
        cJSON_AddItemToArray(any, all);
    } else cJSON_Delete(sizes);
    return schema;
}

void config_print_schema(FILE *out) {
    cJSON *schema = cJSON_CreateObject(), *properties = cJSON_CreateObject();
    add_text(schema, "$schema", "https://json-schema.org/draft/2020-12/schema");
    add_text(schema, "title", "Run config of train_gpt");
    add_text(schema, "type", "object");
    add(schema, "additionalProperties", cJSON_CreateFalse());
    cJSON *required = add(schema, "required", cJSON_CreateArray());
    add(schema, "properties", properties);
    add_comment(properties);
    for (int i = 0; i < OPTION_COUNT; i++)
        if (!*option_home(&OPTIONS[i])) add(properties, OPTIONS[i].key, option_schema(&OPTIONS[i]));
    for (int k = 0; option_section(k); k++) {
        int needed;
        add(properties, option_section(k), section_schema(option_section(k), &needed));
        if (needed) cJSON_AddItemToArray(required, cJSON_CreateString(option_section(k)));
    }
    char *text = cJSON_Print(schema);
    fprintf(out, "%s\n", text);
    free(text);
    cJSON_Delete(schema);
}
