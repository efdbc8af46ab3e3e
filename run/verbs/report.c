/* report.c - see report.h. */
#include "run/verbs/report.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "core/terminal.h"

Report report_begin(int as_json) {
    Report r = {as_json ? cJSON_CreateObject() : NULL};
    if (as_json && !r.json) fail(EXIT_MEMORY, "no memory for a report");
    return r;
}

void report_end(Report *r) {
    if (!r->json) return;
    json_print(r->json);
    r->json = NULL;
}

static void print_line(const char *key, const char *fmt, va_list args) {
    char text[8192];
    vsnprintf(text, sizeof text, fmt, args);
    print_plain(stdout, "%-12s %s\n", key, text);
}

cJSON *report_json(double value) { return isfinite(value) ? number_json(value) : cJSON_CreateNull(); }

char *report_value(const cJSON *value, char out[REPORT_VALUE]) {
    char shown[SHOWN_BYTES];
    if (cJSON_IsNumber(value) || cJSON_IsRaw(value)) {
        snprintf(out, REPORT_VALUE, "%.60s", number_text(number_value(value), shown));
        return out;
    }
    char *text = value ? cJSON_PrintUnformatted(value) : NULL;
    if (value && !text) fail(EXIT_MEMORY, "no memory for a report");
    int length = snprintf(out, REPORT_VALUE, "%s", text ? text : "-");
    if (length >= REPORT_VALUE) strcpy(out + REPORT_VALUE - 4, "...");
    cJSON_free(text);
    return out;
}

cJSON *report_copy(const cJSON *value) {
    return cJSON_IsNumber(value) ? report_json(number_value(value)) : cJSON_Duplicate(value, 1);
}

static void add(Report *r, const char *key, cJSON *item) {
    if (!item || !cJSON_AddItemToObject(r->json, key, item)) fail(EXIT_MEMORY, "no memory for a report");
}

void report_text(Report *r, const char *key, const char *fmt, ...) {
    char    text[4096];
    va_list args;
    va_start(args, fmt);
    if (r->json) {
        vsnprintf(text, sizeof text, fmt, args);
        add(r, key, json_string(text));
    } else print_line(key, fmt, args);
    va_end(args);
}

void report_number(Report *r, const char *key, double value, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    if (r->json) add(r, key, report_json(value));
    else print_line(key, fmt, args);
    va_end(args);
}

void report_item(Report *r, const char *key, cJSON *item, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    if (r->json) add(r, key, item);
    else {
        print_line(key, fmt, args);
        cJSON_Delete(item);
    }
    va_end(args);
}

void report_row(const Report *r, const char *fmt, ...) {
    va_list args;
    if (r->json) return;
    va_start(args, fmt);
    char text[8192];
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    print_plain(stdout, "  %s\n", text);
}
