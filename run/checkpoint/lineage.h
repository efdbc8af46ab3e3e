/* lineage.h - decides to which run checkpoints belong. A run folder that was copied and is continued becomes a new run.
 *
 * state.json names the folder that wrote it, as an absolute path. A checkpoint was copied if that folder still exists,
 * is another one than this, and holds a checkpoint of the same run. The copy then gets a new run_id and names its
 * parent. If that folder is gone, the run was moved and stays the same. A folder that is seen under two paths is one
 * folder. A copy whose original is gone or not visible, such as on another machine, counts as moved.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_LINEAGE_H
#define TRAIN_GPT_RUN_CHECKPOINT_LINEAGE_H

/* Returns 1 if the folder `from`, which state.json names, is another folder than run_dir and holds the run `run_id`.
 * Returns 0 if `from` is NULL or "". */
int lineage_is_copy(const char *run_dir, const char *from, const char *run_id);

#endif
