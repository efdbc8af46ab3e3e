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

/* --- a line ------------------------------------------------------------------------------------------------------- */

/* The keys whose values are counts or numbers, and their fields. */
#define COUNT(key)  {#key, offsetof(MetricsLine, key), 1}
#define NUMBER(key) {#key, offsetof(MetricsLine, key), 0}
static const struct { const char *key; size_t field; int is_count; } FIELDS[] = {
    COUNT(step), COUNT(tokens), COUNT(round), NUMBER(loss), NUMBER(lr), NUMBER(grad_norm), NUMBER(tokens_per_s),
    NUMBER(mfu), NUMBER(ms), NUMBER(time), NUMBER(hours), NUMBER(epoch), NUMBER(bpb)};
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

/* Reads one member of a line. Skips keys that MetricsLine does not have. Returns 0 if the value is not valid. */
static int take(MetricsLine *out, const cJSON *item) {
    static const char *const KINDS[] = {[LINE_TRAIN] = "train", [LINE_EVAL] = "eval", [LINE_TASK] = "task",
                                        [LINE_EVENT] = "event", [LINE_OUTER] = "outer"};
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    double      value = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (strcmp(item->string, "kind") == 0) {
        out->kind = LINE_OUTER;
        while (out->kind != LINE_OTHER && strcmp(text, KINDS[out->kind]) != 0) out->kind--;
        return out->kind != LINE_OTHER;
    }
    if (strcmp(item->string, "event") == 0) {
        snprintf(out->event, sizeof out->event, "%s", text);
        return *text && strlen(text) < sizeof out->event;
    }
    for (int i = 0; i < FIELD_COUNT; i++) {
        void *field = (char *)out + FIELDS[i].field;
        if (strcmp(item->string, FIELDS[i].key) != 0) continue;
        if (!FIELDS[i].is_count) {
            *(double *)field = value;
            return cJSON_IsNumber(item) || cJSON_IsNull(item);
        }
        int is_count = value >= 0 && value < 0x1p63 && value == floor(value);
        if (is_count) *(int64_t *)field = (int64_t)value;
        return is_count;
    }
    return 1;
}

LineKind metrics_line_parse(const char *line, size_t bytes, MetricsLine *out) {
    static const char START[] = "{\"kind\":\"";
    const char       *end;
    *out = (MetricsLine){.kind = LINE_OTHER};
    for (int i = 0; i < FIELD_COUNT; i++) {
        void *field = (char *)out + FIELDS[i].field;
        if (FIELDS[i].is_count) *(int64_t *)field = -1;
        else                    *(double *)field = NAN;
    }
    if (bytes < sizeof START || memcmp(line, START, sizeof START - 1) != 0 || line[bytes - 1] != '\n' ||
        memchr(line, 0, bytes))
        return LINE_OTHER;
    cJSON *root = cJSON_ParseWithLengthOpts(line, bytes, &end, 0);
    /* an editor may have ended the line by CR and LF */
    int is_ours = root && (end + 1 == line + bytes || (end + 2 == line + bytes && *end == '\r'));
    for (const cJSON *item = root ? root->child : NULL; item && is_ours; item = item->next) is_ours = take(out, item);
    is_ours &= out->step >= 0 && (out->kind == LINE_EVENT ? out->event[0] != 0
                                                          : out->kind == LINE_TASK || json_member(root, "loss"));
    cJSON_Delete(root);
    return is_ours ? out->kind : LINE_OTHER;
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

RunLog run_log_read(const char *verb, const char *dir) {
    RunLog      log = {.dir = dir};
    MetricsLine line;
    Path        path = path_of("%s/metrics.jsonl", dir);
    FILE       *f = io_open_stream(path.text, IO_READ);
    if (!f && (errno == ENOENT || errno == ENOTDIR))
        fail(EXIT_DATA, "%s: %s is not the folder of a run, because there is no %s: give the run.dir of a run", verb,
             dir, path.text);
    if (!f) fail(EXIT_IO, "%s: cannot read %s: %s", verb, path.text, io_error_text(errno));
    while (metrics_line_next(f, &line) != LINE_OTHER) {
        LogPoint  p = {line.step, line.tokens, line.time, line.hours, line.loss, line.lr, line.grad_norm, line.bpb};
        LogPoint *last = log.trains ? &log.train[log.trains - 1] : NULL;
        int       is_step = line.kind == LINE_TRAIN || line.kind == LINE_OUTER; /* a round of a server is a step */
        if (is_step && (!last || p.step > last->step)) append(&log.train, &log.trains, p);
        if (line.kind != LINE_EVAL) continue;
        p.tokens = last ? last->tokens : 0, p.hours = last ? last->hours : 0;
        append(&log.eval, &log.evals, p);
    }
    int error = ferror(f) ? errno : 0;
    fclose(f);
    if (error) fail(EXIT_IO, "%s: cannot read %s: %s", verb, path.text, io_error_text(error));
    if (log.trains + log.evals == 0)
        fail(EXIT_DATA, "%s: %s holds no step and no evaluation yet: wait until the run has written one", verb,
             path.text);
    run_log_name(dir, log.name);
    log.config = run_log_config(dir);
    return log;
}

void run_log_free(RunLog *log) {
    free(log->train);
    free(log->eval);
    cJSON_Delete(log->config);
}
