/* run_log.h - what a run has logged, read back from its folder: every point of metrics.jsonl, and its config.json. For
 * the verbs that look at runs; nothing is changed. */
#ifndef TRAIN_GPT_RUN_LOG_RUN_LOG_H
#define TRAIN_GPT_RUN_LOG_RUN_LOG_H

#include <cjson/cJSON.h>
#include <stdint.h>

typedef struct {
    int64_t step, tokens;                          /* tokens -1: not known */
    double  time, hours, loss, lr, grad_norm, bpb; /* NaN: not known       */
} LogPoint;

typedef struct {
    const char *dir;               /* borrowed */
    char        name[256];         /* the folder's */
    LogPoint   *train, *eval;      /* owned; steps ascend. An evaluation has tokens and hours of the step before it */
    int64_t     trains, evals;
    cJSON      *config;            /* owned; NULL: there is none that can be read */
} RunLog;

/* Exit 65 where dir holds no log of a run, 74 where it cannot be read; `verb` begins the message. */
RunLog run_log_read(const char *verb, const char *dir);
void   run_log_free(RunLog *log);

/* RUN/config.json; NULL: there is none that can be read. */
cJSON *run_log_config(const char *dir);
void   run_log_name(const char *dir, char name[256]); /* the last part of its path */

#endif
