/* checkpoint_folders.h - the folders under run.dir/checkpoints: names, verification, removal. For checkpoint_*.c.
 *
 * step_00000050             a complete checkpoint; only the rename at the end of a save gives this name
 * step_00000050.tmp         being written, or left by an interrupted save
 * .trash-step_00000050      being removed
 * step_00000050.passed-over a step folder that did not verify, kept for the user
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_FOLDERS_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_FOLDERS_H

#include "comm/comm.h"
#include "core/io.h"
#include "run/checkpoint/manifest.h"

typedef struct {
    int64_t step;
    char    name[32];
} StepFolder;

void folder_name(char out[32], int64_t step);            /* writes the name of a step's folder: "step_00000050" */

/* Lists the step folders below `checkpoints`, newest first, in a malloc'ed *list; list NULL: only counts them. Returns
 * their number, or -errno if the folder cannot be read. */
int folders_list(const char *checkpoints, StepFolder **list);
int64_t folder_bytes(const char *checkpoints, const char *name); /* returns the bytes of the files of one checkpoint */

/* Verifies a checkpoint. Collective over the ranks of c (NULL: this process alone). Reads and checks the manifest, then
 * every byte of the files; each rank reads its share. step: the step that the manifest must name; -1: any. moved counts
 * the extents (ranges of file bytes) checked; NULL: no counter. On MANIFEST_GOOD *m is filled, to be freed by
 * manifest_free. Otherwise all ranks get the same fault. */
ManifestStatus folder_verify(Comm *c, const char *folder, int64_t step, _Atomic int64_t *moved, Manifest *m,
                             char *fault);
/* Reads and checks the manifest of a checkpoint alone. The files that it lists are not read. On MANIFEST_GOOD *m is
 * filled, to be freed by manifest_free. Otherwise the fault is written to fault [MANIFEST_FAULT_BYTES]. */
ManifestStatus folder_manifest(const char *folder, Manifest *m, char *fault);
/* Finds the newest checkpoint of a run folder that verifies, or takes the folder itself if it is a checkpoint. Writes
 * its path to *out, and its manifest, to be freed by manifest_free, to *m unless m is NULL. Returns 0 if there is
 * none. */
int folder_find(const char *run_or_checkpoint, Path *out, Manifest *m);
/* Ends a job that cannot verify a checkpoint because the disk cannot be read. Exit 74. The message names folder and
 * fault. */
NORETURN void folder_fail_unknown(const char *folder, const char *fault);

/* Functions that warn of many folders, perhaps thousands, in few lines. folder_warn prints the first FOLDER_WARNINGS
 * warnings. folder_warn_rest prints how many others there were. warned: number of warnings so far. */
enum { FOLDER_WARNINGS = 3 };
void folder_warn(int64_t *warned, const char *fmt, ...) PRINTF_LIKE(2, 3);
void folder_warn_rest(int64_t warned, const char *what_happened); /* Prints how many folders folder_warn counted but did
                                                                   * not print: "3 more folders <what_happened>". */

/* Renames a folder to .trash-NAME, then removes it, so that an interrupted removal leaves no half checkpoint under the
 * name of a whole one. Returns 0 or -errno. */
int folder_trash(const char *checkpoints, const char *name);

/* Renames a file or folder to NAME.passed-over, or to NAME.passed-over-2 and so on if that exists. *to gets the new
 * path. Returns 0 or -errno. */
int folder_set_aside(const char *folder, const char *name, Path *to);
/* Returns 1 for the name of a file that a save writes into a step folder. */
int folder_is_own_file(const char *name);
/* Removes the files that a save has written into a folder. If files of other names are left, renames the folder to
 * NAME.passed-over, with a warning. Returns 0 or -errno. */
int folder_drop(const char *checkpoints, const char *name);

/* Removes the leftovers of interrupted saves and removals. Returns 0 or -errno. */
int folders_sweep(const char *checkpoints);

/* The checkpoints that folders_prune keeps when it removes old ones after `step` was saved. They are `step`, the
 * `newest` - 1 checkpoints before it (at least one), milestones and the best one. Older ones are verified from the
 * newest down, until one passes. Those that fail are renamed, not removed. So are checkpoints newer than `step`,
 * because this run did not resume from them. One process calls folders_prune. */
enum { FOLDERS_LEAST = 2 };
typedef struct {
    int64_t newest;      /* value of checkpoint.keep: number of newest checkpoints that stay */
    int64_t every;       /* checkpoint.keep_every: checkpoints at multiples of this step (milestones) stay; 0: none */
    int64_t best;        /* step of the best validation loss, whose checkpoint stays; -1: none */
} FoldersKept;
void folders_prune(const char *checkpoints, int64_t step, FoldersKept kept, _Atomic int64_t *moved);

#endif
