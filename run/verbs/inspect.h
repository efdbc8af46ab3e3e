/* inspect.h - how the verbs `inspect` and `diff` find out what a path is, and show its values. */
#ifndef TRAIN_GPT_RUN_VERBS_INSPECT_H
#define TRAIN_GPT_RUN_VERBS_INSPECT_H

#include "run/checkpoint/manifest.h"

typedef enum {
    PATH_FILE,
    PATH_CHECKPOINT,  /* a checkpoint folder (step_...), recognized by its state.json */
    PATH_RUN,         /* a folder with config.json and metrics or checkpoints  */
    PATH_WEIGHTS,     /* a folder with .safetensors files                      */
    PATH_SHARDS,      /* a folder with token files                             */
    PATH_TOKENIZER,   /* a folder with files of a tokenizer                    */
    PATH_FOLDER       /* a folder that has none of these: checkpoint, run, weights, token files, tokenizer */
} PathKind;
PathKind path_kind(const char *path); /* returns what the path is; exit 65 if it does not exist, 74 if it cannot be
                                       * read */

/* Parses a JSON file of at most 256 MiB. The caller deletes the result. Returns NULL if the file is no JSON. Exit 74 if
 * it cannot be read. */
cJSON *inspect_read_json(const char *path);
/* Reads the manifest of a step folder without verifying files. Returns 0 with a fault [MANIFEST_FAULT_BYTES] if it is
 * damaged. Exit 74 if it cannot be read. */
int    inspect_read_manifest(const char *folder, Manifest *m, char *fault);

/* Writes a JSON value as text, cut to REPORT_VALUE bytes. Writes "-" for NULL. Returns out. */
enum { REPORT_VALUE = 64 };
char  *report_value(const cJSON *value, char out[REPORT_VALUE]);

#endif
