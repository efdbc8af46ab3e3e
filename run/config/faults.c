/* faults.c - see faults.h. */
#include "run/config/faults.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/error.h"

static void append(Faults *faults, const char *text) {
    size_t more = strlen(text);
    char  *grown = xrealloc(faults->text, faults->bytes + more + 1, "reading the config");
    memcpy(grown + faults->bytes, text, more + 1);
    faults->text = grown;
    faults->bytes += more;
}

void faults_add(Faults *faults, Where where, const char *fmt, ...) {
    if (faults->count++ >= FAULTS_SHOWN) return;
    char    quoted[256], place[64], text[1024];
    va_list args;
    if (where.override) {
        append(faults, "override ");
        append(faults, json_quote_short(quoted, sizeof quoted, where.override));
        append(faults, ": error: ");
    } else if (where.file) {
        if (where.at.line > 0) snprintf(place, sizeof place, ":%d:%d: error: ", where.at.line, where.at.column);
        else                   snprintf(place, sizeof place, ": error: ");
        append(faults, where.file);
        append(faults, place);
    }
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    append(faults, text);
    append(faults, "\n");
}

char *faults_take(Faults *faults) {
    if (faults->count > FAULTS_SHOWN) {
        char text[64];
        snprintf(text, sizeof text, "and %d more faults\n", faults->count - FAULTS_SHOWN);
        append(faults, text);
    }
    char *text = faults->text;
    *faults = (Faults){NULL, 0, 0};
    return text;
}
