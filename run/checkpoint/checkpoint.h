/* checkpoint.h - checkpoints: the step folders under run.dir/checkpoints, written whole or not at all, verified before
 * use.
 *
 * All ranks write into step_00001000.tmp. Each rank writes the parts of the parameters that it owns, at their offsets
 * in the whole model. So any number of ranks can read the files. The files are fsynced. state.json, the manifest, is
 * written last, with hashes taken from memory. Then the folder is renamed to step_00001000, and its parent is fsynced.
 * A resume uses the newest checkpoint that verifies.
 */
#ifndef TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_H
#define TRAIN_GPT_RUN_CHECKPOINT_CHECKPOINT_H

#include "comm/comm.h"
#include "data/dataset.h"
#include "data/tokenizer.h"
#include "model/precision.h"
#include "model/optimizer.h"
#include "run/checkpoint/manifest.h"
#include "run/config/config.h"
#include "run/guard/lock.h"
#include "run/guard/watchdog.h"

/* --- the state of a run ------------------------------------------------------------------------------------------- */

/* Position of a run after `step` optimizer steps. tokens: number of tokens in these steps. samples: global index of the
 * next sample. After a rollback it is larger than the number of samples in the steps. */
typedef struct { int64_t step, tokens, samples; } Position;

/* The position and counters of a run: everything that a resume restores besides weights and optimizer. The run owns
 * it. */
typedef struct {
    Position  start;       /* position at which this process began; a rollback changes it */
    int64_t   missed;      /* optimizer steps that the Adam moments have not seen, minus steps they saw twice; 0 except
                            * in a job that trains through a server (run/outer) */
    Guard     guard;
    LossScale loss_scale;  /* scaling factor of the loss; a resume restores its exact bits */
    Fp8History *fp8;       /* scales of fp8; a resume restores their exact bits. Borrowed; NULL without fp8 */
    char      run_id[40];  /* random name of the run, made at the first start; resumes keep it, copies of the folder get
                            * a new one */
    RunParent parent;      /* the run whose folder was copied to make this one */
} TrainState;

/* Returns the position (steps, tokens, next sample) after `step` steps of a run that was at position p. */
static inline Position position_after(Position p, const Config *c, int64_t step) {
    int64_t own = step - p.step, tokens = c->batch.global_tokens, samples = tokens / c->batch.seq_len;
    return (Position){step, p.tokens + own * tokens, p.samples + own * samples};
}

/* --- checkpoints -------------------------------------------------------------------------------------------------- */

/* Everything that a checkpoint saves or needs. All pointers are borrowed. */
typedef struct {
    const Config    *config;
    Comm            *comm;
    Optimizer       *optimizer;    /* optimizer with its shards, their layout and the shape of the model */
    Stream          *stream;
    const Dataset   *train;
    const Tokenizer *tokenizer;    /* tokenizer of the data; its files go into every checkpoint */
    Watchdog        *watchdog;     /* ticked while files are read and written; NULL: no watchdog */
    RunLock         *lock;         /* rank 0: lock of the run folder. If another job has taken it over, nothing is
                                    * written. NULL: lock is not checked */
    const char      *log;          /* rank 0: path of a file that is synced before a checkpoint gets its final name;
                                    * NULL: none */
    int              log_fd;       /* file descriptor of `log` */
    int64_t          best_step;    /* rank 0: step whose checkpoint is never pruned; -1: none. Set before saver_start */
    const char      *precision;    /* name of the precision: "fp32", "bf16", "tf32", "fp16", "fp8" */
    int              threads;
    TrainState      *train_state;
} CheckpointState;

static inline const Layout *checkpoint_layout(const CheckpointState *k) { return &k->optimizer->shards->layout; }

typedef struct {
    int64_t step;                  /* completed optimizer steps                                      */
    int     ranks;                 /* number of ranks that saved the checkpoint; 0: no checkpoint, the run is new */
    char    name[64];              /* name of the checkpoint's folder: "step_00001000" */
    char    grid[MESH_TEXT];       /* how the ranks that saved the checkpoint divided the model: "tensor 2 x shard 4";
                                    * "": only data parallel */
    int     is_copy;               /* 1 if the folder was copied from the folder of another run, which is now called the
                                    * parent of this run */
} Resumed;

/* Checks the weights that the run will start from if it has no checkpoint. Called before MPI starts, so that faults
 * show early. If the config does not set model.activation, sets it to the activation of these weights, or of the newest
 * checkpoint of the run. Changes no other key. Exit 65 if model.init_from is missing, if its config.json is of another
 * model, or if its tokenizer is not t, the tokenizer of the data. */
void     checkpoint_precheck_source(Config *config, const Tokenizer *t);
/* Returns a hash (XXH3) of the files of model.init_from: of their sizes, and of some of their bytes. Returns 0 if that
 * key is not set, or if the run starts from a checkpoint instead. */
uint64_t checkpoint_source_fingerprint(const Config *config);
/* Ends the job with exit 64 or 65 if run.resume does not allow the content of the run folder. Called after this job has
 * locked the folder. */
void     checkpoint_precheck(const Config *config);

/* Ends the job with exit 64 if config keys or training shards that may not change differ from those of a checkpoint.
 * The message has each of them with both values. folder: name of the checkpoint in the message. */
void     checkpoint_refuse_settings(const Config *config, const Dataset *train, const char *folder, const Manifest *m);

/* Collective. Returns a random number from the system, equal on all ranks. */
uint64_t checkpoint_random(Comm *c);

/* Collective. Resumes from the newest checkpoint that verifies, and warns of newer ones that do not. Checks that config
 * and data agree with it: exit 64 naming each key with both values. Reads the masters (fp32 weights) and moments, and
 * sets the weights of all ranks from the masters. Obeys run.resume. In a copied folder the run gets a new run_id and a
 * parent. */
Resumed checkpoint_resume(CheckpointState *state);

/* Collective, during a run and with no save in flight. Goes back to the newest checkpoint that verifies, without the
 * checks that checkpoint_resume makes of settings, data and run.resume. Keeps the run_id. Returns step 0 if no
 * checkpoint exists, not even a broken one; then nothing was read. */
Resumed checkpoint_roll_back(CheckpointState *state);

/* Returns the most checkpoints that are on the disk at once with these settings, including one that is being
 * written. */
int64_t checkpoint_most(const Config *config);
/* Returns the approximate bytes of one checkpoint on the disk. */
size_t checkpoint_disk_bytes(const Layout *layout, const OptimizerKind *optimizer);

/* Makes run.dir/checkpoints and removes the leftovers of interrupted saves. Called once before the first step, when
 * this job has locked the run folder. Exit 74 (rank 0) if it cannot write there, or if space for the checkpoints of
 * this run is missing; the message names both sizes. */
void checkpoint_make_room(const CheckpointState *state);

/* A saver saves checkpoints while training continues. It has memory for a copy of the state of this rank, and a thread
 * that writes the copy. All calls except saver_ready are collective.
 *
 * A save that fails on any rank (full disk, quota, file-size limit, write error) loses that checkpoint, but the run
 * continues. The files of the failed save are removed, older checkpoints stay, and a warning names the path. The next
 * save is tried when it is due. A third failure in a row, or a failure of the last save of a run, ends the job with
 * exit 74. A state that is not finite is never written: exit 76. */
typedef struct Saver Saver;
enum { SAVER_TRIES = 3 };
/* creates the object that saves checkpoints of `state`, which is borrowed */
Saver *saver_create(CheckpointState *state);
void   saver_destroy(Saver *s);                /* frees a saver; waits only for the phase in flight, so call
                                                * saver_finish first */
size_t saver_bytes(const Layout *layout, const OptimizerKind *optimizer); /* returns the bytes of host memory that a
                                                                           * saver needs for its copy of the state */

/* Waits for a save still in flight, then copies the state and starts to write step_%08d. fault: a reason why the state
 * must not be saved; NULL: none. */
void   saver_start(Saver *s, int64_t step, const char *fault);
/* Returns 1 if this rank has finished its phase of the save in flight. The phases of a save: make the folder, write the
 * data, write the manifest. The all-reduce of the next training step tells all ranks whether every rank has finished.
 * Then all of them call saver_next. */
int    saver_ready(Saver *s);
/* Begins the next phase of the save and returns 0. If the save is complete, and the folder has its final name, returns
 * the milliseconds of the save. They include the copy, and the slowest rank in each phase, but no training steps. */
double saver_next(Saver *s);
double saver_finish(Saver *s);                 /* waits until the save is complete; returns its milliseconds, or 0 if
                                                * none was in flight */
double saver_finish_last(Saver *s);            /* waits until the last save of the run is complete; returns its
                                                * milliseconds, or 0 if none was in flight; exit 74 if it failed */
int64_t saver_step(const Saver *s);            /* returns the step of the save that was started last; -1: none */
double saver_stall_ms(const Saver *s);         /* returns the ms that training waited for the copy of the state and for
                                                * other ranks */

/* Reads the weights of a checkpoint folder or a .safetensors file with the names of Hugging Face, with or without the
 * prefix "transformer.". Fills params (in the type of activations) by the layout. says: 1 if this rank shows the
 * progress. Exit 65 naming file, tensor, found and expected shape. */
void checkpoint_read_weights(const char *path, const Layout *layout, Tensor params, Stream *s, int says);

/* Reads the weights of model.init_from into the masters (fp32 weights) of this rank. Exit 65 naming file, tensor, found
 * and expected shape. */
void checkpoint_init_from(const char *path, CheckpointState *state);

#endif
