/* checkpoint.h - step folders under run.dir/checkpoints: written whole or not at all, verified before use.
 *
 * step_00001000.tmp is filled by all ranks (each its own pieces, by global offset, so that any number of ranks reads
 * them), fsynced, state.json (the manifest with hashes taken from memory) last, renamed to step_00001000, parent
 * fsynced. The newest that verifies counts.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_H

#include "comm/comm.h"
#include "data/dataset.h"
#include "data/tokenizer.h"
#include "model/optimizer.h"
#include "run/config/config.h"
#include "run/checkpoint/state.h"
#include "run/guard/lock.h"
#include "run/guard/watchdog.h"

/* The parts of a checkpoint; all borrowed. */
typedef struct {
    const Config    *config;
    Comm            *comm;
    Optimizer       *optimizer;    /* and by it the shards, their layout and the model's shape */
    Stream          *stream;
    const Dataset   *train;
    const Tokenizer *tokenizer;    /* of the data: its files go into every checkpoint */
    Watchdog        *watchdog;     /* ticked while files are read and written; NULL: none */
    RunLock         *lock;         /* rank 0: nothing is written when the folder is another job's; NULL: not asked */
    const char      *log;          /* rank 0: a file whose lines are on the disk before a checkpoint gets its name; NULL: none */
    int              log_fd;
    int64_t          best_step;    /* rank 0: this checkpoint stays whatever comes; -1: none. Set before saver_start */
    const char      *precision;    /* "fp32", "bf16", "tf32", "fp16" */
    int              threads;
    TrainState      *train_state;
} CheckpointState;

static inline const Layout *checkpoint_layout(const CheckpointState *k) { return &k->optimizer->shards->layout; }

typedef struct {
    int64_t step;                  /* completed optimizer steps                                      */
    int     ranks;                 /* that saved it; 0 = there was none, a new run                   */
    char    name[64];              /* "step_00001000"                                                */
    char    grid[MESH_TEXT];       /* that saved it; "": data alone                                  */
    int     is_copy;               /* of another run's folder: a run of its own, with a parent       */
} Resumed;

/* Before MPI, in one process that changes nothing: finds faults early in the weights to start from, where there is
 * no checkpoint. Exit 65 if model.init_from is missing, its config.json is of another model, or the tokenizer beside it
 * is not t, the tokenizer of the data. */
void     checkpoint_precheck_source(const Config *config, const Tokenizer *t);
/* Of size and samples of that file; 0: there is none, or a checkpoint wins over it. Source: XXH3. */
uint64_t checkpoint_source_fingerprint(const Config *config);
/* Refuses a folder that run.resume does not allow, once it is ours: exit 64 or 65. */
void     checkpoint_precheck(const Config *config);

/* Collective. Finds the newest checkpoint that verifies (warns of those it passes over), checks that config and data
 * agree (exit 64 naming each key with both values), reads masters and moments, publishes the working copy. Honours
 * run.resume. In a folder that was copied the run gets a new run_id, and a parent (lineage.h). */
Resumed checkpoint_resume(CheckpointState *state);

/* Collective, in mid-run and with no save in flight. Goes back to the newest checkpoint that verifies, without
 * checkpoint_resume's checks of settings, data and run.resume; run_id stays. step 0: there is none, not even a broken
 * one, and nothing was read. */
Resumed checkpoint_roll_back(CheckpointState *state);

/* The most checkpoints that this run's settings leave on the disk at once, and one that is being written. */
int64_t checkpoint_most(const Config *config);
/* Bytes of one checkpoint on the disk, about. */
size_t checkpoint_disk_bytes(const Layout *layout, const OptimizerKind *optimizer);

/* Once, before the first step, in a folder that is this job's: makes run.dir/checkpoints and removes the leftovers of
 * cut-off saves. Exit 74 (rank 0) where it cannot write, or lacks the room for this run's checkpoints: names both
 * sizes. */
void checkpoint_make_room(const CheckpointState *state);

/* Saves while training goes on: memory for a copy of this rank's state, and a thread that writes it. All calls but
 * saver_ready are collective.
 *
 * A save that fails on any rank (full disk, quota, file-size limit, write error) costs that checkpoint, not the run.
 * Its files are removed, older checkpoints stay, a warning names the path, and the next one is tried at its time. The
 * third in a row, or the last of a run, ends the job: exit 74. State that is not finite is never written: exit 76. */
typedef struct Saver Saver;
enum { SAVER_TRIES = 3 };
Saver *saver_create(CheckpointState *state);   /* state is borrowed */
void   saver_destroy(Saver *s);                /* finishes the part in flight, not the save: saver_finish first */
size_t saver_bytes(const Layout *layout, const OptimizerKind *optimizer); /* host memory it takes */

/* Waits for a save still in flight, then copies the state and starts to write step_%08d. */
void   saver_start(Saver *s, int64_t step, const char *fault); /* fault: a reason why it must not be saved; NULL: none */
/* 1: this rank has done its part of the save in flight. When all have (by a step's reduction), all call saver_next. */
int    saver_ready(Saver *s);
/* Returns 0, or when this was the last part, and the folder stands under its name, the milliseconds that the save has
 * taken: the copy and the slowest rank's part of each kind of work, not the steps of the training between them. */
double saver_next(Saver *s);
double saver_finish(Saver *s);                 /* waits; returns as saver_next, 0 when nothing was in flight, or it failed */
double saver_finish_last(Saver *s);            /* the same at the end of a run; exit 74 when the save that was started last has failed */
int64_t saver_step(const Saver *s);            /* of the save that was started last; -1: none was */
double saver_stall_ms(const Saver *s);         /* how long training has waited for it: the copy, and agreeing with other ranks */

/* Collective. All of it at once: writes step_%08d and prunes to checkpoint.keep; exit 74 if that fails. Returns the
 * milliseconds it took. */
double checkpoint_save(CheckpointState *state, int64_t step);

/* Newest verifying checkpoint folder of a run folder, or the folder itself if it is one: path into out [capacity]; 0 if
 * none. */
int checkpoint_find(const char *run_or_checkpoint, char *out, size_t capacity);

/* Weights of a checkpoint folder or a .safetensors file in Hugging Face GPT-2 names, with or without "transformer.":
 * fills params (act type) by the layout. says: this rank shows how far it is. Exit 65 naming file, tensor, found and
 * expected shape. */
void checkpoint_read_weights(const char *path, const Layout *layout, Tensor params, Stream *s, int says);

/* The same into this rank's masters (model.init_from). */
void checkpoint_init_from(const char *path, CheckpointState *state);

#endif
