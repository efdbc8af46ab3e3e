/* checkpoint_refuse.h - what a run may not continue, or start from. For checkpoint_*.c.
 *
 * All of it ends the program: exit 64 where the config asks for what the folder is not, 65 where files are not what they should be.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_REFUSE_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_REFUSE_H

#include "data/dataset.h"
#include "run/config/config.h"
#include "run/checkpoint/manifest.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With run.resume = "never": checkpoints of so many steps, or lines of metrics, are in the folder. */
void refuse_used_folder(const char *run_dir, int checkpoints);

/* With run.resume = "must". */
NORETURN void refuse_no_checkpoint(const char *checkpoints);

/* Keys, or training shards, that are not those of the checkpoint and may not change: each with both values. */
void refuse_other_settings(const Config *config, const Dataset *train, const char *folder, const Manifest *m);

#ifdef __cplusplus
}
#endif
#endif
