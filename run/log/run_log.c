/* run_log.c - see run_log.h. */
#include "run/log/run_log.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/log/metrics_line.h"

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

/* Appends to a list whose capacity doubles. */
static void append(LogPoint **list, int64_t *count, LogPoint p) {
    if ((*count & (*count - 1)) == 0) { /* a power of two: the list is full */
        *list = xrealloc(*list, sizeof p * (size_t)(*count ? 2 * *count : 1), "the log of a run");
    }
    (*list)[(*count)++] = p;
}

static void keep(RunLog *log, const MetricsLine *l) {
    LogPoint  p = {l->step, l->tokens, l->time, l->hours, l->loss, l->lr, l->grad_norm, l->bpb};
    LogPoint *last = log->trains ? &log->train[log->trains - 1] : NULL;
    int       is_step = l->kind == LINE_TRAIN || l->kind == LINE_OUTER; /* rounds of a server */
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
    while (metrics_line_next(f, &line) != LINE_OTHER) keep(&log, &line);
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
