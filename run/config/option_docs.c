/* option_docs.c - writes the option table as JSON Schema 2020-12, for editors. option_help.c writes it for people. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "run/config/options.h"

static cJSON *add(cJSON *object, const char *name, cJSON *item) {
    if (!item || !cJSON_AddItemToObject(object, name, item)) fail(EXIT_MEMORY, "out of memory while writing the schema");
    return item;
}

static void append(cJSON *array, cJSON *item) {
    if (!cJSON_AddItemToArray(array, item)) fail(EXIT_MEMORY, "out of memory while writing the schema");
}

static cJSON *add_text(cJSON *object, const char *name, const char *text) { return add(object, name, cJSON_CreateString(text)); }

static void add_length(cJSON *object, const Option *o) {
    if (o->min > 0) add(object, "minLength", number_json(o->min));
}

static void add_comment(cJSON *properties) {
    add_text(add(properties, "$comment", cJSON_CreateObject()), "description", "for readers, of any type; ignored");
}

/* Returns the schema of a list of {"path", "weight", "until_tokens"}. */
static cJSON *blend_schema(void) {
    cJSON *blend = cJSON_CreateObject(), *source = cJSON_CreateObject(), *properties = cJSON_CreateObject(), *required = cJSON_CreateArray();
    cJSON *path = cJSON_CreateObject(), *weight = cJSON_CreateObject(), *until = cJSON_CreateObject();
    add_text(blend, "type", "array");
    add(blend, "minItems", number_json(1));
    add_text(add(blend, "items", source), "type", "object");
    add(source, "additionalProperties", cJSON_CreateFalse());
    add(source, "properties", properties);
    add_text(add(properties, "path", path), "type", "string");
    add(path, "minLength", number_json(1));
    add_text(add(properties, "weight", weight), "type", "number");
    add(weight, "exclusiveMinimum", number_json(0));
    add(weight, "maximum", number_json(1));
    add_text(add(properties, "until_tokens", until), "type", "integer");
    add(until, "minimum", number_json(1));
    add_comment(properties);
    append(required, cJSON_CreateString("path"));
    append(required, cJSON_CreateString("weight"));
    add(source, "required", required);
    return blend;
}

static cJSON *list_schema(const Option *o) {
    cJSON *either = cJSON_CreateArray(), *one = cJSON_CreateObject(), *many = cJSON_CreateObject(), *item = cJSON_CreateObject();
    add_text(one, "type", "string");
    add_length(one, o);
    add_text(many, "type", "array");
    add_text(add(many, "items", item), "type", "string");
    add(item, "minLength", number_json(1));
    if (o->min > 0) add(many, "minItems", number_json(o->min));
    append(either, one);
    append(either, many);
    if (o->type == OPTION_SOURCES) append(either, blend_schema());
    return either;
}

static cJSON *option_schema(const Option *o) {
    cJSON *schema = cJSON_CreateObject();
    add_text(schema, "description", o->help);
    switch (o->type) {
    case OPTION_IGNORED: add_text(schema, "type", "string"); break;
    case OPTION_TEXT:    add_text(schema, "type", "string"); add_length(schema, o); break;
    case OPTION_FLAG:    add_text(schema, "type", "boolean"); break;
    case OPTION_LIST:
    case OPTION_SOURCES: add(schema, "anyOf", list_schema(o)); break;
    case OPTION_WORD:
    case OPTION_CHOICE: {
        cJSON *words = add(schema, "enum", cJSON_CreateArray());
        for (int i = 0; o->words[i]; i++) append(words, cJSON_CreateString(o->words[i]));
        break;
    }
    case OPTION_INTEGER:
    case OPTION_REAL:
        add_text(schema, "type", o->type == OPTION_INTEGER ? "integer" : "number");
        add(schema, "minimum", number_json(o->min));
        add(schema, o->half_open ? "exclusiveMaximum" : "maximum", number_json(o->max));
        break;
    }
    if (o->fallback) add(schema, "default", cJSON_Parse(o->fallback));
    return schema;
}

static cJSON *object_schema(void) {
    cJSON *schema = cJSON_CreateObject();
    add_text(schema, "type", "object");
    add(schema, "additionalProperties", cJSON_CreateFalse());
    add_comment(add(schema, "properties", cJSON_CreateObject()));
    return schema;
}

/* Adds the rule that a model has a preset, or all five sizes. */
static void add_model_rule(cJSON *schema) {
    cJSON *any = add(schema, "anyOf", cJSON_CreateArray());
    cJSON *preset = cJSON_CreateObject(), *sizes = cJSON_CreateObject(), *required = add(sizes, "required", cJSON_CreateArray());
    cJSON *not_empty = add(add(preset, "properties", cJSON_CreateObject()), "preset", cJSON_CreateObject());
    append(add(preset, "required", cJSON_CreateArray()), cJSON_CreateString("preset"));
    add(not_empty, "minLength", number_json(1));
    for (int i = 0; i < OPTION_COUNT; i++)
        if (OPTIONS[i].need == NEED_MODEL) append(required, cJSON_CreateString(option_name(&OPTIONS[i])));
    append(any, preset);
    append(any, sizes);
}

/* Returns the schema of one section. *needed: 1 if a config must have it. */
static cJSON *section_schema(const char *section, int *needed) {
    cJSON *schema = object_schema(), *properties = json_member(schema, "properties"), *required = cJSON_CreateArray();
    int    has_sizes = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        if (!option_in_section(o, section)) continue;
        add(properties, option_name(o), option_schema(o));
        if (o->need == NEED_ALWAYS) append(required, cJSON_CreateString(option_name(o)));
        has_sizes |= o->need == NEED_MODEL;
    }
    *needed = cJSON_GetArraySize(required) > 0 || has_sizes;
    if (cJSON_GetArraySize(required) > 0) add(schema, "required", required);
    else cJSON_Delete(required);
    if (has_sizes) add_model_rule(schema);
    return schema;
}

void config_print_schema(FILE *out) {
    cJSON *schema = cJSON_CreateObject(), *required = cJSON_CreateArray(), *properties = cJSON_CreateObject();
    add_text(schema, "$schema", "https://json-schema.org/draft/2020-12/schema");
    add_text(schema, "title", "Run config of train_gpt");
    add_text(schema, "type", "object");
    add(schema, "additionalProperties", cJSON_CreateFalse());
    add_comment(properties);
    for (int i = 0; i < OPTION_COUNT; i++)
        if (!*option_home(&OPTIONS[i])) add(properties, OPTIONS[i].key, option_schema(&OPTIONS[i]));
    for (int k = 0; option_section(k); k++) {
        int needed;
        add(properties, option_section(k), section_schema(option_section(k), &needed));
        if (needed) append(required, cJSON_CreateString(option_section(k)));
    }
    add(schema, "required", required);
    add(schema, "properties", properties);
    char *text = cJSON_Print(schema);
    if (!text) fail(EXIT_MEMORY, "out of memory while writing the schema");
    fprintf(out, "%s\n", text);
    free(text);
    cJSON_Delete(schema);
}
