/* run_log.h - reads the log of a run: the lines of metrics.jsonl, for the log itself and for all programs that read it,
 * and whole logs with their config.json, for the verbs that look at runs. Changes nothing.
 *
 * It reads only lines that begin like those of run/log/metrics.c: {"kind":" without blanks. The parser is a pure
 * function over (bytes, length).
 */
#ifndef TRAIN_GPT_RUN_LOG_RUN_LOG_H
#define TRAIN_GPT_RUN_LOG_RUN_LOG_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum { LINE_OTHER, LINE_TRAIN, LINE_EVAL, LINE_TASK, LINE_EVENT, LINE_OUTER } LineKind;

typedef struct {
    LineKind kind;
    int64_t  step;
    int64_t  tokens;     /* tokens since step 0; -1: missing */
    int64_t  round;      /* number of the round in a line of the kind LINE_OUTER (outer.server); -1: missing */
    /* numbers of a line; NaN: null in the line, or missing */
    double   loss, lr, grad_norm, tokens_per_s, mfu, ms, time, hours, epoch, bpb;
    char     event[16];  /* name of an event (LINE_EVENT): "resume", "save", "memory", "skip", "rollback", "join" */
} MetricsLine;

enum { METRICS_LINE_BYTES = 2048 }; /* the longest line, with its line feed and a NUL */

/* Parses line [bytes], which includes its '\n'. Returns its kind, or LINE_OTHER for a foreign or torn line. */
LineKind metrics_line_parse(const char *line, size_t bytes, MetricsLine *out);

/* Reads the next line that this program wrote. Returns LINE_OTHER if there is none. A torn last line stays unread.
 * strangers grows by the number of whole lines of other programs before it, or before the end of the file. Such bytes
 * may be long, because a power loss can leave gigabytes of NULs, and are read in chunks. */
LineKind metrics_line_after(FILE *f, MetricsLine *out, int64_t *strangers);
/* Reads the next line that this program wrote, and skips lines of other programs. Returns LINE_OTHER if there is
 * none. */
LineKind metrics_line_next(FILE *f, MetricsLine *out);
/* Reads the next line of a kind. Returns 0 if there is none. */
int      metrics_line_find(FILE *f, LineKind kind, MetricsLine *out);

typedef struct {
    int64_t step, tokens;                          /* number of a step, and tokens up to it; -1: not known */
    double  time, hours, loss, lr, grad_norm, bpb; /* numbers at a step; NaN: not known */
} LogPoint;

typedef struct {
    const char *dir;               /* borrowed */
    char        name[256];         /* name of the run's folder */
    LogPoint   *train, *eval;      /* owned; steps ascend. An evaluation has tokens and hours of the last train step */
    int64_t     trains, evals;
    cJSON      *config;            /* owned; NULL: no config.json that can be read */
} RunLog;

/* Reads the log of the run folder dir. Exit 65 if there is no log of a run, 74 if it cannot be read. The message begins
 * with `verb`. */
RunLog run_log_read(const char *verb, const char *dir);
void   run_log_free(RunLog *log);

/* Returns the parsed config.json of a run folder, or NULL if there is none that can be read. The caller deletes it. */
cJSON *run_log_config(const char *dir);
void   run_log_name(const char *dir, char name[256]); /* writes the last name of the folder's path */

#endif
