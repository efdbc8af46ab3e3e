/* checkpoint_write.h - one save: its files, their hashed extents, its manifest. For checkpoint_save.c and
 * memory_copies.c, whose threads call this. A save knows nothing of threads. It assumes of other ranks only that they
 * write other pieces of the same files.
 *
 * Rank 0 makes the folder step_N.tmp. Then every rank, in any order, opens the files and writes its own pieces at their
 * offsets in the whole model. Each extent is hashed in memory before the write. Rank 0 also writes headers and
 * config.json. When all ranks are done, rank 0 writes the manifest from the extents of all ranks, reads everything
 * back, and renames the folder. A fault is kept in `fault`, and nothing more is written after it. Only save_prepare may
 * end the job, because all ranks must agree on a fault before any of them ends.
 *
 * A copy in memory (memory_copies.h) holds only the extents, hashed and not written. A rescue turns such copies into a
 * checkpoint. It writes their extents with save_open, save_put and save_close in place of save_pieces.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_WRITE_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_WRITE_H

#include "core/thread.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/exchange.h"

typedef struct {
    uint32_t       file; /* file that the extent belongs to: a ManifestFileKind */
    uint32_t       pad;
    ManifestExtent extent;
} WrittenExtent;

typedef struct {
    const CheckpointState *state;           /* the run whose state is saved; borrowed */
    int64_t      step;
    TrainState   train_state;               /* state of the run when the save began */
    Position     position;                  /* position of the run after the saved step */
    const Manifest *rescued;                /* state rescued from copies in memory, which is saved in place of the
                                             * run's; borrowed; NULL: none */
    cJSON       *config;                    /* owned: the config of the run as JSON */
    cJSON       *gemm;                      /* owned: the table of matrix-product algorithms, on a GPU */
    cJSON       *fp8;                       /* owned: scales of fp8 and the maxima that they come from; NULL in other
                                             * precisions */
    Path         run_dir, checkpoints, tmp, final;
    char         name[32];
    char        *header[2];                 /* owned: headers of the weights file and the optimizer file, equal on
                                             * all ranks */
    size_t       header_bytes[2];
    uint64_t     file_bytes[MANIFEST_FILES];
    int          fd[2];                     /* descriptors of the weights file and the optimizer file; -1: closed */
    const float *host_copy;                 /* borrowed: masters, then m and v, of the elements that this rank
                                             * writes, one after another */
    const FileExtents *extents;             /* borrowed: extents that this rank writes, the same for masters and for
                                             * each state */
    size_t       from;                      /* the extent that waits to be written begins at this byte of host_copy */
    size_t       pending;                   /* bytes of the extent that waits to be written */
    int          file;                      /* file of the waiting extent: FILE_MODEL or FILE_OPTIMIZER */
    uint64_t     offset;                    /* offset of the waiting extent in its file */
    _Atomic int64_t progress;               /* number of extents written and read back so far */
    WrittenExtent *written;                 /* owned: the extents that this rank wrote */
    size_t       written_count;
    char         fault[MANIFEST_FAULT_BYTES];
    int          not_finite;                /* 1 if the fault is a NaN or an infinity in the state */
    int          is_bad;                    /* rank 0: a folder for this step exists and does not verify */
    int          there;                     /* rank 0: 1 if this run has already saved this step and that checkpoint
                                             * verifies */
} Save;

/* Returns a new save with its memory allocated. Exit 71 without memory. */
Save save_prepare(const CheckpointState *state, int64_t step, const float *host_copy, const FileExtents *extents);
void save_release(Save *s);
void save_make_folder(Save *s);                                    /* makes the folder and checks free space; rank 0,
                                                                    * first */
/* Hashes the part of the state that this rank writes, lists its extents in `written`, and writes them if `writes` is 1.
 * Called by every rank. An infinity or NaN is a fault. */
void save_pieces(Save *s, int writes);
char *save_head(Save *s, size_t *bytes);                           /* returns the manifest without its list of files;
                                                                    * malloc'ed */
void save_open(Save *s);                                           /* opens the files; every rank calls it; rank 0
                                                                    * writes headers */
void save_put(Save *s, WrittenExtent at, const void *bytes);       /* writes one extent, whose hash is in `at` */
/* closes the two tensor files; rank 0 also writes config.json and tokenizer files */
void save_close(Save *s);
WrittenExtent *save_gather(const Save *s, size_t *count);          /* collective: rank 0 gets the extents of all
                                                                    * ranks */
void save_commit(Save *s, WrittenExtent *all, size_t count);       /* completes a save from the extents of all ranks;
                                                                    * rank 0, last */
void save_drop(Save *s);                                           /* removes the folder of a failed save; rank 0 */

/* Collective. Rank 0 gets the bytes of all ranks, one after another, malloc'ed, and their number. Others get NULL and
 * 0. */
char *gather_bytes(Comm *c, const void *data, size_t bytes, size_t *total);

/* A thread that calls work(ctx) once for each worker_begin. It uses one processor, because training uses the others.
 * thread_stop() waits for the work that has begun, and ends it. */
typedef struct {
    Thread thread;
    void (*work)(void *ctx);
    void  *ctx;
    int    is_busy;     /* 1 while the thread works; guarded by its lock */
} Worker;

/* what: name of the work, for messages */
void worker_start(Worker *w, void (*work)(void *ctx), void *ctx, const char *what);
void worker_begin(Worker *w);
int  worker_is_busy(Worker *w);
void worker_wait(Worker *w, double ms);   /* waits until the work is done, but at most `ms` milliseconds */

#endif
