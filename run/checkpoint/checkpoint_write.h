/* checkpoint_write.h - one save: its files, their hashed runs, its manifest. For checkpoint_save.c, whose thread calls
 * this; knows nothing of threads, and of other ranks only that they write other pieces of the same files.
 *
 * Rank 0 makes the folder step_N.tmp; then every rank, in any order, opens the files and writes its own pieces at their
 * global offsets, each run hashed in memory before the write; rank 0 also writes headers and
 * config.json. When all have, rank 0 writes the manifest from all ranks' runs, reads all of it back, and renames. A
 * fault is kept in `fault`, and nothing more is written after it. Only save_prepare ends the job here: all ranks agree
 * on a fault first.
 *
 * A copy in memory (memory_copy.h) is the runs alone, hashed and not written: save_hash_pieces. A rescue writes those of
 * copies: save_open, save_put, save_close in place of save_write_pieces.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_WRITE_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_WRITE_H

#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/exchange.h"

typedef struct {
    uint32_t    file; /* ManifestFileKind */
    uint32_t    pad;
    ManifestExtent extent;
} WrittenExtent;

typedef struct {
    const CheckpointState *state;           /* borrowed */
    int64_t      step;
    TrainState   train_state;               /* as it was when the save began */
    Position     position;                  /* after this step */
    const Manifest *rescued;                /* borrowed: the state is this one's, not the run's; NULL: no rescue */
    cJSON       *config;                    /* owned */
    cJSON       *gemm;                      /* owned: the table of matrix-product algorithms, on a GPU */
    cJSON       *fp8;                       /* owned: the history of scales, in fp8 */
    Path         run_dir, checkpoints, tmp, final;
    char         name[32];
    char        *header[2];                 /* owned: of FILE_MODEL and FILE_OPTIMIZER, the same on every rank */
    size_t       header_bytes[2];
    uint64_t     file_bytes[MANIFEST_FILES];
    int          fd[2];                     /* of the two, -1 = closed */
    const float *host_copy;                    /* borrowed: masters, then m, then v of these runs, one after another */
    const FileRuns *runs;                   /* borrowed */
    size_t       from;                      /* the run that waits: `pending` bytes of host_copy from byte `from` on belong at `offset` of `file` */
    size_t       pending;
    int          file;
    uint64_t     offset;
    _Atomic int64_t progress;               /* runs written, and read back, so far */
    WrittenExtent  *written;                   /* owned: the runs this rank wrote */
    size_t       written_count, written_room;
    char         fault[MANIFEST_FAULT_BYTES];
    int          not_finite;                /* the fault: the state holds a NaN or an infinity */
    int          is_bad;                    /* rank 0: a folder with the name of this step exists and does not verify */
    int          there;                     /* rank 0: this run has saved this step already, and it verifies */
} Save;

Save save_prepare(const CheckpointState *state, int64_t step, const float *host_copy, const FileRuns *runs); /* ends the job when there is no memory */
void save_release(Save *s);
void save_make_folder(Save *s);                                    /* rank 0, first; checks the room */
void save_write_pieces(Save *s);                                   /* every rank */
void save_hash_pieces(Save *s);                                    /* fills `written`; a state that is not finite is a fault */
char *save_head(Save *s, size_t *bytes);                           /* the manifest without files: malloc'ed, or NULL and a fault */
void save_open(Save *s);                                           /* every rank; rank 0 writes the headers */
void save_put(Save *s, WrittenExtent at, const void *bytes);       /* a run whose hash is that of the bytes */
void save_close(Save *s);                                          /* every rank; rank 0 writes the small files */
void save_commit(Save *s, WrittenExtent *all, size_t count);          /* rank 0, last: all ranks' runs, which it sorts */
void save_drop(Save *s);                                           /* rank 0, after a fault: removes the folder */

#endif
