/* checkpoint_refuse.h - refuses checkpoints, folders and weights that a run may not use. For checkpoint_*.c.
 *
 * Each refusal ends the program: exit 64 if config and folder do not fit each other, 65 for a wrong or missing file.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_REFUSE_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_REFUSE_H

#include "data/dataset.h"
#include "run/config/config.h"
#include "run/checkpoint/manifest.h"

/* Refuses a folder that has checkpoints, or lines of metrics, with run.resume = "never". checkpoints: their number. */
void refuse_used_folder(const char *run_dir, int checkpoints);

/* Ends the program because there is no checkpoint with run.resume = "must". */
NORETURN void refuse_no_checkpoint(const char *checkpoints);

/* Rank 0. If a run folder has no checkpoints, but its metrics show that some were saved, renames metrics.jsonl to
 * metrics.jsonl.passed-over (or -2 and so on) and warns. So a run that starts from step 0 replaces no lines. */
void keep_lost_metrics(const char *run_dir);

/* Refuses keys or training shards that differ from those of the checkpoint and may not change. Prints each with both
 * values. */
void refuse_other_settings(const Config *config, const Dataset *train, const char *folder, const Manifest *m);
/* Exit 65 if t, the tokenizer of the data (NULL if not known), is not that of the checkpoint. Allowed if
 * run.allow_change names data.train. */
void refuse_other_tokenizer(const Config *config, const Tokenizer *t, const char *folder);

#endif
