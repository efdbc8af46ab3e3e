/* log_lines.c - see log_lines.h. A line longer than its room is no line of ours, and is passed over in pieces. */
#include "run/log_lines.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The value of a key, behind `"key":`; NULL where it is not there. */
static const char *value_of(const char *line, const char *key) {
    char word[32];
    snprintf(word, sizeof word, "\"%s\":", key);
    const char *at = strstr(line, word);
    return at ? at + strlen(word) : NULL;
}

static int parse(const char *line, LogLine *out) {
    const char *kind = value_of(line, "kind"), *step = value_of(line, "step"), *loss = value_of(line, "loss");
    char       *end;
    if (line[0] != '{' || !kind || !step || !loss) return 0;
    if (strncmp(kind, "\"train\"", 7) == 0) out->kind = LOG_TRAIN;
    else if (strncmp(kind, "\"eval\"", 6) == 0) out->kind = LOG_EVAL;
    else return 0;
    out->step = strtoll(step, &end, 10);
    if (end == step) return 0;
    out->loss = strncmp(loss, "null", 4) == 0 ? NAN : strtod(loss, &end);
    return end != loss;
}

int log_line_next(FILE *f, LogLine *line) {
    char text[4096];
    int  is_start = 1;
    while (fgets(text, sizeof text, f)) {
        int is_whole = is_start && strchr(text, '\n') != NULL;
        is_start = strchr(text, '\n') != NULL;
        if (is_whole && parse(text, line)) return 1;
    }
    return 0;
}

int log_step_next(FILE *f, LogLine *line) {
    while (log_line_next(f, line))
        if (line->kind == LOG_TRAIN) return 1;
    return 0;
}
