/* inspect.h - parts of the verb `inspect`, one for each family of files. Private to run/verbs/inspect*.c and run/verbs/diff.c.
 *
 * Each puts its lines into the report. Memory does not grow with the files.
 */
#ifndef TRAIN_GPT_RUN_VERBS_INSPECT_H
#define TRAIN_GPT_RUN_VERBS_INSPECT_H

#include "run/checkpoint/checkpoint_folders.h"
#include "run/verbs/report.h"

typedef struct {
    Report report;
    int    lists_tensors;
} Inspect;

typedef enum {
    PATH_FILE,
    PATH_CHECKPOINT,  /* a step folder, by its state.json                      */
    PATH_RUN,         /* a folder with config.json and metrics or checkpoints  */
    PATH_WEIGHTS,     /* a folder with .safetensors files                      */
    PATH_SHARDS,      /* a folder with token files                             */
    PATH_TOKENIZER,   /* a folder with a tokenizer's files                     */
    PATH_FOLDER       /* any other                                             */
} PathKind;
PathKind path_kind(const char *path); /* exit 65 where there is nothing, 74 where it cannot be looked at */

/* A JSON file of at most 256 MiB, for the caller to delete; NULL where it is none. Exit 74 where it cannot be read. */
cJSON *inspect_read_json(const char *path);

/* inspect_tokens.c */
void inspect_shard(Inspect *in, const char *path);
void inspect_shards(Inspect *in, const char *folder);
/* inspect_weights.c: a file, or all of a folder */
void inspect_weights(Inspect *in, const char *path);
void inspect_weights_line(Inspect *in, const char *key, const char *path); /* its totals in one line */
void inspect_states(Inspect *in, const char *path);                        /* a line for each tensor, under its name */
/* inspect_run.c: exit code */
/* The manifest of a step folder, unverified; 0 and the fault [MANIFEST_FAULT_BYTES] where it is damaged. */
int  inspect_read_manifest(const char *folder, Manifest *m, char *fault);
int  inspect_checkpoint(Inspect *in, const char *folder);
int  inspect_run(Inspect *in, const char *folder);
void inspect_config(Inspect *in, const cJSON *config); /* the keys that differ from the defaults */
void inspect_metrics(Inspect *in, const char *path);
/* inspect_files.c: exit code */
int  inspect_json(Inspect *in, const char *path, const cJSON *json);
int  inspect_lines(Inspect *in, const char *path); /* JSON Lines */
int  inspect_other(Inspect *in, const char *path);

#endif
