/* inspect.h - functions of the verb `inspect` for each family of files. Private to run/verbs/inspect*.c and
 * run/verbs/diff.c.
 *
 * Each puts its lines into the report. Memory does not grow with the files.
 */
#ifndef TRAIN_GPT_RUN_VERBS_INSPECT_H
#define TRAIN_GPT_RUN_VERBS_INSPECT_H

#include "run/checkpoint/checkpoint_folders.h"
#include "run/verbs/report.h"

typedef struct {
    Report report;
    int    lists_tensors; /* 1: a line for each tensor */
} Inspect;

typedef enum {
    PATH_FILE,
    PATH_CHECKPOINT,  /* a step folder, by its state.json                      */
    PATH_RUN,         /* a folder with config.json and metrics or checkpoints  */
    PATH_WEIGHTS,     /* a folder with .safetensors files                      */
    PATH_SHARDS,      /* a folder with token files                             */
    PATH_TOKENIZER,   /* a folder with files of a tokenizer                    */
    PATH_FOLDER       /* any other folder                                      */
} PathKind;
PathKind path_kind(const char *path); /* exit 65 if path does not exist, 74 if it cannot be read */

/* Parses a JSON file of at most 256 MiB, for the caller to delete. Returns NULL if it is no JSON. Exit 74 if it cannot
 * be read. */
cJSON *inspect_read_json(const char *path);

/* inspect_tokens.c */
void inspect_shard(Inspect *in, const char *path);
void inspect_shards(Inspect *in, const char *folder);
/* inspect_weights.c: one file, or all files of a folder */
void inspect_weights(Inspect *in, const char *path);
void inspect_weights_line(Inspect *in, const char *key, const char *path); /* totals of a file in one line */
void inspect_states(Inspect *in, const char *path);                        /* one line for each tensor */
/* inspect_run.c: inspect_checkpoint and inspect_run return an exit code */
/* Reads the manifest of a step folder without verifying files. Returns 0 with a fault [MANIFEST_FAULT_BYTES] if it is
 * damaged. */
int  inspect_read_manifest(const char *folder, Manifest *m, char *fault);
int  inspect_checkpoint(Inspect *in, const char *folder);
int  inspect_run(Inspect *in, const char *folder);
void inspect_config(Inspect *in, const cJSON *config); /* reports the keys that differ from the defaults */
void inspect_metrics(Inspect *in, const char *path);
/* inspect_files.c: each returns an exit code */
int  inspect_json(Inspect *in, const char *path, const cJSON *json);
int  inspect_lines(Inspect *in, const char *path); /* a file of JSON Lines */
int  inspect_other(Inspect *in, const char *path);

#endif
