/* run_log.c - reads metrics.jsonl, line by line or whole: see run_log.h. */
#include "run/log/run_log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "run/checkpoint/checkpoint_folders.h"

/* --- a line ------------------------------------------------------------------------------------------------------- */

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

/* Reads one key and its value. Skips keys that MetricsLine does not have. Returns 0 if the value is not valid. */
static int take(MetricsLine *out, const char *key, const char *key_end, const char *from, const char *to) {
    static const char *const KINDS[] = {[LINE_TRAIN] = "\"train\"", [LINE_EVAL] = "\"eval\"", [LINE_TASK] = "\"task\"",
                                        [LINE_EVENT] = "\"event\"", [LINE_OUTER] = "\"outer\""};
    struct { const char *key; int64_t *count; double *number; } fields[] = {
        {"step", &out->step}, {"tokens", &out->tokens}, {"round", &out->round},
        {"loss", NULL, &out->loss}, {"lr", NULL, &out->lr}, {"grad_norm", NULL, &out->grad_norm},
        {"tokens_per_s", NULL, &out->tokens_per_s}, {"mfu", NULL, &out->mfu}, {"ms", NULL, &out->ms},
        {"time", NULL, &out->time}, {"hours", NULL, &out->hours}, {"epoch", NULL, &out->epoch},
        {"bpb", NULL, &out->bpb}};
    if (is_text(key, key_end, "kind")) {
        out->kind = LINE_OUTER;
        while (out->kind != LINE_OTHER && !is_text(from, to, KINDS[out->kind])) out->kind--;
        return out->kind != LINE_OTHER;
    }
    if (out->kind == LINE_OTHER) return 0; /* the line is refused, because "kind" must be its first key */
    if (is_text(key, key_end, "event")) {
        size_t bytes = (size_t)(to - from);
        if (bytes < 3 || bytes - 2 >= sizeof out->event || *from != '"') return 0;
        snprintf(out->event, sizeof out->event, "%.*s", (int)bytes - 2, from + 1);
        return 1;
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (is_text(key, key_end, fields[i].key))
            return fields[i].count ? read_count(from, to, fields[i].count) : read_number(from, to, fields[i].number);
    return 1;
}

LineKind metrics_line_parse(const char *line, size_t bytes, MetricsLine *out) {
    *out = (MetricsLine){.step = -1, .tokens = -1, .round = -1, .loss = NAN, .lr = NAN, .grad_norm = NAN,
                         .tokens_per_s = NAN, .mfu = NAN, .ms = NAN, .time = NAN, .hours = NAN, .epoch = NAN,
                         .bpb = NAN};
    int has_loss = 0;
    if (bytes < 3 || line[0] != '{' || line[bytes - 1] != '\n' || memchr(line, 0, bytes)) return LINE_OTHER;
    const char *at = line + 1, *end = line + bytes - 1;
    if (end[-1] == '\r') end--; /* an editor may have ended the line by CR and LF */
    for (;;) {
        const char *key_end = at < end && *at == '"' ? string_end(at, end) : NULL;
        if (!key_end || key_end + 1 >= end || key_end[1] != ':') return LINE_OTHER;
        const char *value = key_end + 2, *after = value_end(value, end);
        if (!after || !take(out, at + 1, key_end, value, after)) return LINE_OTHER;
        has_loss |= is_text(at + 1, key_end, "loss");
        if (*after == '}') {
            int is_whole = out->kind == LINE_EVENT ? out->event[0] != 0 : out->kind == LINE_TASK || has_loss;
            return after + 1 == end && out->step >= 0 && is_whole ? out->kind : LINE_OTHER;
        }
        at = after + 1;
    }
}

LineKind metrics_line_after(FILE *f, MetricsLine *out, int64_t *strangers) {
    char  line[METRICS_LINE_BYTES];
    off_t at = ftello(f);
    int   is_start = 1;
    while (fgets(line, sizeof line, f)) {
        off_t  end = ftello(f);
        size_t bytes = (size_t)(end - at); /* computed from positions, because the line may contain NULs */
        if (at < 0 || end <= at) break;    /* a pipe or device, which has no position */
        if (is_start && bytes < sizeof line && metrics_line_parse(line, bytes, out) != LINE_OTHER) return out->kind;
        is_start = bytes < sizeof line && line[bytes - 1] == '\n', at = end;
        *strangers += is_start && line[0];
    }
    return LINE_OTHER;
}

LineKind metrics_line_next(FILE *f, MetricsLine *out) {
    int64_t strangers = 0;
    return metrics_line_after(f, out, &strangers);
}

int metrics_line_find(FILE *f, LineKind kind, MetricsLine *out) {
    LineKind found;
    while ((found = metrics_line_next(f, out)) != LINE_OTHER)
        if (found == kind) return 1;
    return 0;
}

/* --- the log of a run --------------------------------------------------------------------------------------------- */

void run_log_name(const char *dir, char name[256]) {
    size_t end = strlen(dir);
    while (end > 1 && dir[end - 1] == '/') end--;
    size_t start = end;
    while (start > 0 && dir[start - 1] != '/') start--;
    snprintf(name, 256, "%.*s", (int)(end - start), dir + start);
}

cJSON *run_log_config(const char *dir) {
    char     *text;
    Json      json;
    JsonFault fault;
    Path      path = path_of("%s/config.json", dir);
    int64_t   bytes = io_read_file(path.text, JSON_LIMIT, &text);
    cJSON    *config = NULL;
    io_expect_file(path.text, bytes);
    if (bytes < 0) return NULL;
    if (json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault)) {
        config = json.root, json.root = NULL;
        json_free(&json);
    }
    free(text);
    return config;
}

static void append(LogPoint **list, int64_t *count, LogPoint p) {
    *list = xgrow(*list, *count, sizeof p, "the log of a run");
    (*list)[(*count)++] = p;
}

static void keep_line(RunLog *log, const MetricsLine *l) {
    LogPoint  p = {l->step, l->tokens, l->time, l->hours, l->loss, l->lr, l->grad_norm, l->bpb};
    LogPoint *last = log->trains ? &log->train[log->trains - 1] : NULL;
    int       is_step = l->kind == LINE_TRAIN || l->kind == LINE_OUTER; /* a round of a server counts as a step */
    if (is_step && (!last || p.step > last->step)) append(&log->train, &log->trains, p);
    if (l->kind != LINE_EVAL) return;
    p.tokens = last ? last->tokens : 0, p.hours = last ? last->hours : 0;
    append(&log->eval, &log->evals, p);
}

RunLog run_log_read(const char *verb, const char *dir) {
    RunLog      log = {.dir = dir};
    MetricsLine line;
    Path        path = path_of("%s/metrics.jsonl", dir);
    FILE       *f = io_open_stream(path.text, IO_READ);
    if (!f && (errno == ENOENT || errno == ENOTDIR))
        fail(EXIT_DATA, "%s: %s is not the folder of a run: there is no %s", verb, dir, path.text);
    if (!f) fail(EXIT_IO, "%s: cannot read %s: %s", verb, path.text, io_error_text(errno));
    while (metrics_line_next(f, &line) != LINE_OTHER) keep_line(&log, &line);
    int error = ferror(f) ? errno : 0;
    fclose(f);
    if (error) fail(EXIT_IO, "%s: cannot read %s: %s", verb, path.text, io_error_text(error));
    if (log.trains + log.evals == 0) fail(EXIT_DATA, "%s: %s holds no step and no evaluation yet", verb, path.text);
    run_log_name(dir, log.name);
    log.config = run_log_config(dir);
    return log;
}

void run_log_free(RunLog *log) {
    free(log->train);
    free(log->eval);
    cJSON_Delete(log->config);
}
