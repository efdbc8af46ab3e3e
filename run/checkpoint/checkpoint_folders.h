/* checkpoint_folders.h - the folders under run.dir/checkpoints: names, verification, removal. For checkpoint_*.c.
 *
 * step_00000050        a checkpoint: complete, by its name
 * step_00000050.tmp    being written, or left by a save that was cut off
 * .trash-step_00000050 being removed
 * step_00000050.passed-over  a step folder that did not verify, kept for the user
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_FOLDERS_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_FOLDERS_H

#include "comm/comm.h"
#include "run/checkpoint/manifest.h"

typedef struct { char text[4608]; } Path;
Path path_of(const char *fmt, ...) PRINTF_LIKE(1, 2);    /* exit 64 when it is too long */

typedef struct {
    int64_t step;
    char    name[32];
} StepFolder;

void folder_name(char out[32], int64_t step);            /* "step_00000050" */

/* The step folders below `checkpoints`, newest first; malloc'ed. 0 when there are none, -errno when it cannot be
 * read. */
int folders_list(const char *checkpoints, StepFolder **list);
int64_t folder_bytes(const char *checkpoints, const char *name); /* returns the bytes of the files of one checkpoint */

/* Collective over c (NULL: this process alone). Reads and checks the manifest, then every byte, each rank its share.
 * step is the name's, -1 = any. moved counts the pieces checked (NULL: no counter). On MANIFEST_GOOD *m is filled
 * (manifest_free it); else all ranks hold the same fault. */
ManifestStatus folder_verify(Comm *c, const char *folder, int64_t step, _Atomic int64_t *moved, Manifest *m, char *fault);
/* As checkpoint_find, with the manifest of what was found (manifest_free it). */
int folder_find(const char *run_or_checkpoint, Path *out, Manifest *m);
/* Ends a start that meets MANIFEST_UNKNOWN: exit 71 or 74, naming folder and fault. */
NORETURN void folder_fail_unknown(const char *folder, const char *fault);

/* Warnings about one folder after another, perhaps thousands: prints the first few, then the number of the others. */
enum { FOLDER_WARNINGS = 3 };
void folder_warn(int64_t *warned, const char *fmt, ...) PRINTF_LIKE(2, 3);
void folder_warn_rest(int64_t warned, const char *what_happened); /* "3 more folders <what_happened>", or nothing */

/* Out of sight first, then removed: a cut-off removal leaves no half checkpoint under a whole one's name. Returns 0 or
 * -errno. */
int folder_trash(const char *checkpoints, const char *name);

/* Renames a step folder, or a link in its place, to NAME.passed-over; -2 and so on if that is there. *to is the new path.
 * Returns 0 or -errno. */
int folder_set_aside(const char *checkpoints, const char *name, Path *to);
/* Returns 1 for the name of a file that a save writes. */
int folder_is_own_file(const char *name);
/* Removes what a save has written into a folder. Files of other names are kept by folder_set_aside, with a warning.
 * Returns 0 or -errno. */
int folder_drop(const char *checkpoints, const char *name);

/* Removes the leftovers of cut-off saves and removals. Returns 0 or -errno. */
int folders_sweep(const char *checkpoints);

/* After step was saved: keeps it and the newest-1 older ones, at least one. Older ones
 * are verified from the newest down until one passes; those that fail are set aside, and so are those newer than step: the
 * resume that led here found them broken. Removes the rest but for milestones and the best. By one process. */
enum { FOLDERS_LEAST = 2 };
typedef struct {
    int64_t newest;      /* checkpoint.keep */
    int64_t every;       /* checkpoint.keep_every: multiples of it stay; 0: none */
    int64_t best;        /* the step with the best validation loss stays; -1: none */
} FoldersKept;
void folders_prune(const char *checkpoints, int64_t step, FoldersKept kept, _Atomic int64_t *moved);

/* Collective. Whether any rank has a fault (fault[0] != 0). If so all ranks then hold the lowest such rank's text. */
int any_fault(Comm *c, char *fault);

#endif
