/* metrics_line.c - see metrics_line.h. */
#include "run/log/metrics_line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* Returns the closing quote of the string whose opening quote is at `at`, or NULL. */
static const char *string_end(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++)
        if (*at == '\\') at++;
    return at < end ? at : NULL;
}

/* Returns the first byte after the value that begins at `at`, or NULL. Skips nested values. */
static const char *value_end(const char *at, const char *end) {
    int depth = 0;
    for (; at < end; at++) {
        if (*at == '"' && !(at = string_end(at, end))) return NULL;
        if (depth == 0 && (*at == ',' || *at == '}')) return at;
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
    }
    return NULL;
}

static int is_text(const char *from, const char *to, const char *text) {
    return (size_t)(to - from) == strlen(text) && memcmp(from, text, strlen(text)) == 0;
}

static int read_number(const char *from, const char *to, double *number) {
    char *end;
    *number = NAN;
    if (is_text(from, to, "null")) return 1;
    double value = strtod(from, &end);
    if (end != to || end == from) return 0;
    *number = value;
    return 1;
}

static int read_count(const char *from, const char *to, int64_t *count) {
    char *end;
    *count = strtoll(from, &end, 10);
    return end == to && end != from && *count >= 0;
}

static LineKind kind_of(const char *from, const char *to) {
    static const char *const KINDS[] =
        {[LINE_TRAIN] = "\"train\"", [LINE_EVAL] = "\"eval\"", [LINE_TASK] = "\"task\"", [LINE_EVENT] = "\"event\"",
         [LINE_OUTER] = "\"outer\""};
    for (int k = LINE_TRAIN; k <= LINE_OUTER; k++)
        if (is_text(from, to, KINDS[k])) return (LineKind)k;
    return LINE_OTHER;
}

static int read_event(const char *from, const char *to, char event[16]) {
    size_t bytes = (size_t)(to - from);
    if (bytes < 3 || bytes - 2 >= 16 || *from != '"') return 0;
    memcpy(event, from + 1, bytes - 2);
    event[bytes - 2] = 0;
    return 1;
}

/* Reads one key and its value. Skips keys that MetricsLine does not have. Returns 0 if the value is not valid. */
static int take(MetricsLine *out, const char *key, const char *key_end, const char *from, const char *to) {
    struct { const char *key; double *number; } numbers[] = {
        {"loss", &out->loss}, {"lr", &out->lr},     {"grad_norm", &out->grad_norm}, {"tokens_per_s", &out->tokens_per_s},
        {"mfu", &out->mfu},   {"ms", &out->ms},     {"time", &out->time},           {"hours", &out->hours},
        {"epoch", &out->epoch}, {"bpb", &out->bpb}};
    if (is_text(key, key_end, "kind")) return (out->kind = kind_of(from, to)) != LINE_OTHER;
    if (out->kind == LINE_OTHER) return 0; /* "kind" must be first */
    if (is_text(key, key_end, "step")) return read_count(from, to, &out->step);
    if (is_text(key, key_end, "tokens")) return read_count(from, to, &out->tokens);
    if (is_text(key, key_end, "round")) return read_count(from, to, &out->round);
    if (is_text(key, key_end, "event")) return read_event(from, to, out->event);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (is_text(key, key_end, numbers[i].key)) return read_number(from, to, numbers[i].number);
    return 1;
}

static int is_whole(const MetricsLine *m, int has_loss) {
    return m->step >= 0 && (m->kind == LINE_EVENT ? m->event[0] != 0 : m->kind == LINE_TASK || has_loss);
}

LineKind metrics_line_parse(const char *line, size_t bytes, MetricsLine *out) {
    *out = (MetricsLine){.step = -1, .tokens = -1, .round = -1, .loss = NAN, .lr = NAN, .grad_norm = NAN, .tokens_per_s = NAN,
                         .mfu = NAN, .ms = NAN, .time = NAN, .hours = NAN, .epoch = NAN, .bpb = NAN};
    int has_loss = 0;
    if (bytes < 3 || line[0] != '{' || line[bytes - 1] != '\n' || memchr(line, 0, bytes)) return LINE_OTHER;
    const char *at = line + 1, *end = line + bytes - 1;
    if (end[-1] == '\r') end--; /* an editor may have written this line end */
    for (;;) {
        const char *key_end = at < end && *at == '"' ? string_end(at, end) : NULL;
        if (!key_end || key_end + 1 >= end || key_end[1] != ':') return LINE_OTHER;
        const char *value = key_end + 2, *after = value_end(value, end);
        if (!after || !take(out, at + 1, key_end, value, after)) return LINE_OTHER;
        has_loss |= is_text(at + 1, key_end, "loss");
        if (*after == '}') return after + 1 == end && is_whole(out, has_loss) ? out->kind : LINE_OTHER;
        at = after + 1;
    }
}

LineKind metrics_line_next(FILE *f, MetricsLine *out) {
    char  line[METRICS_LINE_BYTES];
    off_t at = ftello(f);
    int   is_start = 1;
    while (fgets(line, sizeof line, f)) {
        off_t  end = ftello(f);
        size_t bytes = (size_t)(end - at); /* the line may contain NULs */
        if (at < 0 || end <= at) break;    /* a pipe or device has no position */
        if (is_start && bytes < sizeof line && metrics_line_parse(line, bytes, out) != LINE_OTHER) return out->kind;
        is_start = bytes < sizeof line && line[bytes - 1] == '\n', at = end;
    }
    return LINE_OTHER;
}

int metrics_line_find(FILE *f, LineKind kind, MetricsLine *out) {
    LineKind found;
    while ((found = metrics_line_next(f, out)) != LINE_OTHER)
        if (found == kind) return 1;
    return 0;
}
