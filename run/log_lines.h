/* log_lines.h - the lines of a metrics.jsonl, read. Lines of other kinds and unknown fields are passed over. */
#ifndef TRAIN_GPT_RUN_LOG_LINES_H
#define TRAIN_GPT_RUN_LOG_LINES_H

#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { LOG_TRAIN, LOG_EVAL } LogKind;
typedef struct {
    LogKind kind;
    int64_t step;
    double  loss;   /* NaN for null */
} LogLine;

/* The next line of a step or an evaluation; 0 at the end. */
int log_line_next(FILE *f, LogLine *line);
/* The next line of a step. */
int log_step_next(FILE *f, LogLine *line);

#ifdef __cplusplus
}
#endif
#endif
