/* lineage.h - whose checkpoints these are: a run folder that was copied, and is continued, is a run of its own.
 *
 * state.json names the folder that wrote it, as an absolute path. A checkpoint was copied when that folder is still
 * there, is another one than this, and holds a checkpoint of the same run: the copy then takes a new run_id, and names
 * its parent. Where it is gone the run was moved, and stays the same; a folder that is seen under two paths is one
 * folder. Not told from a move: a copy whose original is gone or out of sight, such as on another machine.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_LINEAGE_H
#define TRAIN_GPT_RUN_CHECKPOINT_LINEAGE_H

/* Whether the folder `from` is another than run_dir, and holds the run `run_id`. from: as state.json names it; 0 where
 * that is NULL or "". */
int lineage_is_copy(const char *run_dir, const char *from, const char *run_id);

#endif
