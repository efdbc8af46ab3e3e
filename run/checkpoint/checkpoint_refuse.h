/* checkpoint_refuse.h - refuses checkpoints, folders and weights that a run may not use. For checkpoint_*.c.
 *
 * Each refusal ends the program: exit 64 where config and folder do not fit each other, 65 for a wrong or missing file.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_REFUSE_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_REFUSE_H

#include "data/dataset.h"
#include "run/config/config.h"
#include "run/checkpoint/manifest.h"

/* With run.resume = "never": refuses a folder with checkpoints (their number), or with lines of metrics. */
void refuse_used_folder(const char *run_dir, int checkpoints);

/* With run.resume = "must". */
NORETURN void refuse_no_checkpoint(const char *checkpoints);

/* For a run folder without checkpoints whose metrics say that some were saved: renames metrics.jsonl to
 * metrics.jsonl.passed-over (then -2 and so on) and warns, so that the run that begins anew replaces no lines. Rank 0's. */
void keep_lost_metrics(const char *run_dir);

/* Refuses keys or training shards that differ from the checkpoint's and may not change: each with both values. */
void refuse_other_settings(const Config *config, const Dataset *train, const char *folder, const Manifest *m);
/* Exit 65 if t, the tokenizer of the data (NULL if not known), is not that of the checkpoint. Allowed if
 * run.allow_change names data.train. */
void refuse_other_tokenizer(const Config *config, const Tokenizer *t, const char *folder);

#endif
