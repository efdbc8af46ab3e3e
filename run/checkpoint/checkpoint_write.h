/* checkpoint_write.h - one save of a checkpoint: its files, their hashed extents (ranges of bytes), its manifest. For
 * checkpoint_save.c and memory_copies.c, whose threads call this. A save knows nothing of threads. It assumes of other
 * ranks only that they write other ranges of the same files.
 *
 * A save fills a manifest. save_prepare describes the run in it. Then rank 0 makes the folder step_N.tmp. Every rank,
 * in any order, opens the files and writes the parts of the parameters that it owns, at their offsets in the whole
 * model. Each extent is hashed in memory before the write, and added to the manifest. Rank 0 also writes headers and
 * config.json. When all ranks are done, rank 0 gathers the extents of all ranks, writes the manifest, reads everything
 * back, and renames the folder. A fault is kept in `fault`, and nothing more is written after it. Only save_prepare may
 * end the job, because all ranks must agree on a fault before any of them ends.
 *
 * A copy in memory (memory_copies.h) holds only the extents, hashed and not written. A rescue turns such copies into a
 * checkpoint. It takes the manifest of a copy, and writes the extents with save_open, save_put and save_close in place
 * of save_pieces.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_WRITE_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_WRITE_H

#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/exchange.h"

typedef struct {
    const CheckpointState *state;           /* the run whose state is saved; borrowed */
    /* owned: description of the run at the step of the save, and the extents (ranges of file bytes) that this rank has
     * written; after save_gather, on rank 0, the extents of all ranks */
    Manifest     manifest;
    Path         checkpoints, tmp, final;
    char         name[32];
    char        *header[2];                 /* owned: headers of the weights file and the optimizer file, equal on
                                             * all ranks */
    size_t       header_bytes[2];
    int          fd[2];                     /* descriptors of the weights file and the optimizer file; -1: closed */
    _Atomic int64_t progress;               /* number of extents (ranges of file bytes) written and read back so far */
    char         fault[MANIFEST_FAULT_BYTES];
    int          not_finite;                /* 1 if the fault is a NaN or an infinity in the state */
    int          is_bad;                    /* rank 0: 1 if a folder for this step exists and does not verify */
    int          is_saved;                  /* rank 0: 1 if this run has already saved this step and that checkpoint
                                             * verifies */
} Save;

/* Returns a new save of the state of a run after `step` steps, with its memory allocated. Exit 71 without memory. */
Save save_prepare(const CheckpointState *state, int64_t step);
void save_release(Save *s);
/* Makes m the manifest of a save, which then saves the state that m describes instead of the state of the run. The save
 * then owns m. The lists of extents (ranges of file bytes) in m are freed. */
void save_describe_as(Save *s, Manifest *m);
void save_make_folder(Save *s);                                    /* makes the folder of the checkpoint and checks free
                                                                    * space; called first, on rank 0 only */
/* Hashes the part of the state that this rank writes, and adds its extents (ranges of file bytes) to the manifest.
 * Writes them if `writes` is 1. Called by every rank. An infinity or NaN is a fault. values: the masters (fp32 weights)
 * in all `extents`, then each optimizer state in all `extents`. */
void save_pieces(Save *s, const float *values, const FileExtents *extents, int writes);
void save_open(Save *s);                                           /* opens the files; every rank calls it; rank 0
                                                                    * writes headers */
/* Writes one extent (a range of file bytes), whose hash is in e. file: FILE_MODEL or FILE_OPTIMIZER. */
void save_put(Save *s, int file, ManifestExtent e, const void *bytes);
void save_close(Save *s);                                          /* closes the files; rank 0 also writes the JSON
                                                                    * files of model and tokenizer */
/* collective: rank 0 gets the lists of extents (ranges of file bytes) that the ranks wrote */
void save_gather(Save *s);
/* completes a save once all ranks have written their ranges of the files: writes the manifest, verifies all files,
 * gives the folder its final name; called last, on rank 0 only */
void save_commit(Save *s);
void save_drop(Save *s);                                           /* removes the folder of a failed save; rank 0 */

#endif
