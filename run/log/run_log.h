/* run_log.h - reads the log of a run from its folder: every point of metrics.jsonl, and config.json. For the verbs that
 * look at runs. Changes nothing. */
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
    char        name[256];         /* name of the folder */
    LogPoint   *train, *eval;      /* owned; steps ascend. An evaluation has tokens and hours of the last train step */
    int64_t     trains, evals;
    cJSON      *config;            /* owned; NULL: no config.json that can be read */
} RunLog;

/* Exit 65 if dir holds no log of a run, 74 if it cannot be read. The message begins with `verb`. */
RunLog run_log_read(const char *verb, const char *dir);
void   run_log_free(RunLog *log);

/* Returns the parsed config.json of a run folder, or NULL if there is none that can be read. The caller deletes it. */
cJSON *run_log_config(const char *dir);
void   run_log_name(const char *dir, char name[256]); /* the last name of its path */

#endif
