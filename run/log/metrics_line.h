/* metrics_line.h - one line of metrics.jsonl, read back: for the log itself and for all who look at it.
 *
 * Only lines as run/log/metrics.c writes them are read: no blanks, "kind" first. A pure function over (bytes, length).
 */
#ifndef TRAIN_GPT_RUN_LOG_METRICS_LINE_H
#define TRAIN_GPT_RUN_LOG_METRICS_LINE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum { LINE_OTHER, LINE_TRAIN, LINE_EVAL, LINE_TASK, LINE_EVENT, LINE_OUTER } LineKind;

typedef struct {
    LineKind kind;
    int64_t  step;
    int64_t  tokens;     /* since step 0; -1: not there */
    int64_t  round;      /* of LINE_OUTER; -1: not there */
    double   loss, lr, grad_norm, tokens_per_s, mfu, ms, time, hours, epoch, bpb; /* NaN: null, or not there */
    char     event[16];  /* of LINE_EVENT: "resume", "save", "memory", "skip", "rollback", "join" */
} MetricsLine;

enum { METRICS_LINE_BYTES = 2048 }; /* room for the longest line there is, with its end and a NUL */

/* line [bytes] with its '\n'. Returns its kind; LINE_OTHER: it is none of ours, a torn one among them. */
LineKind metrics_line_parse(const char *line, size_t bytes, MetricsLine *out);

/* The next line of ours in the file; LINE_OTHER: there is no other. A torn last line stays unread. */
LineKind metrics_line_next(FILE *f, MetricsLine *out);
/* The next line of a kind; 0: there is no other. */
int      metrics_line_find(FILE *f, LineKind kind, MetricsLine *out);

#endif
