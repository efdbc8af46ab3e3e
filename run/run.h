/* run.h - everything that one training run needs, and its creation.
 *
 * run_create() makes a model from a config that is ready for its next step. It opens and checks inputs, joins the
 * ranks, locks the folder, allocates memory, and initialises or resumes the weights. main() and train_step() in
 * train_gpt.cu then use the run.
 */
#ifndef TRAIN_GPT_RUN_RUN_H
#define TRAIN_GPT_RUN_RUN_H

/* Config, ranks, lock, watchdog and requests are declared in headers that the following ones include. */
#include "data/loader.h"
#include "model/model.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/memory_copies.h"
#include "run/log/progress.h"
#include "run/outer/island.h"
#include "run/pace.h"
#include "run/plan/plan.h"
#include "run/step_numbers.h"

/* Requests of the user and facts about the ranks, agreed by all ranks in the all-reduce of a step. main() reads them
 * after the step. */
typedef struct {
    int    stop, save;  /* 1 if any rank got a request to stop, or to save; both stay set while a step is computed
                         * again */
    /* 1 if all ranks have finished the present phase of a save that runs while training continues */
    int    written;
    int    fed;         /* 1 if all ranks have the batches of the next step             */
    int    lost;        /* 1 if the connection of any rank to outer.server is broken    */
    double began_ms;    /* when the step began, on clock_ms()                           */
} Between;

/* Work that an island (a job with outer.server) has done so far in its round: on the samples that the server
 * assigned. */
typedef struct {
    int64_t steps;
    double  losses;     /* sum of the losses of the steps of this round */
    double  began_ms;
} RoundWork;

struct Run {
    const Config *config;           /* borrowed */
    double        started_ms;       /* clock_ms() when the run began */

    /* The next fields, train to bytes_per_token, are the inputs of the run. */
    Dataset       train, val;       /* val.shards is 0 if there is no validation loss */
    Tokenizer     tokenizer;
    int32_t       end_of_text;      /* token that divides documents (run_documents); -1 if there is none */
    Task         *task;             /* [tasks] the tasks of eval.tasks; owned */
    int           tasks;
    double        bytes_per_token;  /* mean bytes of text that a token encodes; NaN: not known */

    /* The next fields, comm to device_sharers, are the ranks of the job, the user's requests to stop or save, and what
     * the ranks agreed to do about them. */
    Comm         *comm;             /* owned */
    Groups        groups;           /* owned */
    Watchdog     *watchdog;         /* owned */
    RunLock      *lock;             /* owned; NULL on all ranks except 0 */
    Requests      requests;
    Between       between;
    /* owned [groups.datas]: micro-batches that each group of ranks computes in a step */
    int64_t      *shares;
    int           device_sharers;   /* number of ranks that compute on the GPU of this rank; 0 on the CPU */

    /* The next fields, numerics to fp8, are the model and its memory. */
    Numerics      numerics;
    Plan          plan;
    char         *memory_advice;    /* owned: text that a failed allocation prints */
    Model        *model;            /* owned */
    Arena         batch_arena;
    Loader       *loader;
    /* batch of an evaluation, on the device: [micro_batch, tokens of seq_len on this rank] */
    Batch         eval_batch;
    ExpertLoad    experts;          /* load of each expert (tokens sent to it) in the last step */
    Fp8Steps      fp8;              /* scales of fp8; owned; empty in other precisions */

    /* The next fields, state to resumed, are the training state and the objects that save it. */
    TrainState    state;
    CheckpointState checkpoint;     /* pointers to parts of this run, for saving and resuming */
    Saver        *saver;            /* owned */
    MemoryCopies *copies;           /* owned; NULL if no checkpoints are copied in memory (checkpoint.memory_every) */
    Resumed       resumed;

    /* The next fields, island to server_is_lost, are the state of a job that trains together with other jobs (an
     * island). Used only with outer.server. */
    Island       *island;           /* owned; NULL if outer.server is not set */
    RoundWork     round;
    int           server_is_lost;   /* 1 if the server does not answer; the run then saves and ends */

    /* The next fields, metrics to measured_step, are logs and measured rates. progress and slowness are used on rank 0
     * only. */
    Metrics      *metrics;          /* owned; NULL on all ranks except 0 */
    GpuMeter     *gpu;              /* owned, on rank 0; NULL elsewhere, or if no GPU can be read */
    Progress      progress;
    Slowness      slowness;
    Stragglers    stragglers;
    double        matmul_flops;     /* measured FLOP/s of all ranks together */
    int64_t       measured_step;    /* step at which matmul_flops was measured again; 0 if never */
};

/* Creates a run. Collective. Ends the job with a message if the run cannot start. Sets model.activation of the config
 * if the weights of model.init_from decide it. */
void run_create(Run *r, Config *config, Launch launch);
void run_destroy(Run *r);

int  run_is_rank0(const Run *r);    /* returns 1 on rank 0, which writes logs */
/* Starts what is needed only if steps are left to train: saver, loader, metrics. Writes config.json. */
void run_begin(Run *r);

/* Returns the MFU (model FLOP/s utilization) of a step at tokens_per_s: its share of the measured rate of matrix
 * products. Returns NaN if the share is above 1, because other programs then slowed the measurement. A job of one
 * process on the CPU measures again in that case, at most every 20 steps. */
double run_mfu(Run *r, int64_t step, double tokens_per_s);

/* Returns the position of the run after `step` steps: the step, the tokens trained so far and the next sample of the
 * data. */
Position run_position(const Run *r, int64_t step);

/* Returns the hash of that part of the present state that all ranks hold equally (optimizer_hash_replicas). Waits for
 * the stream. */
int64_t run_hash_replicas(Run *r);
/* Collective. Returns a number that the ranks compare to find a rank with wrong weights (guard_compare). It is equal on
 * all ranks if no rank differs. replicas: hash of this rank's weights. If all ranks hold the whole weights, returns
 * `replicas`. If ranks hold different slices, returns the sum of two numbers. 1 if the rows that tensor ranks do not
 * cut differ from the rows of most peers, otherwise 0. 2 if the slice differs, otherwise 0. Overwrites the sums of the
 * step on the device, such as the loss. */
int64_t run_with_parts(Run *r, int64_t replicas);
/* hash of this rank's pieces (ZeRO shards) of the state; equal on all ranks of r->groups.replicas */
int64_t run_hash_pieces(Run *r);

/* Every rank calls this. From step `step` on, each group of ranks computes the number of micro-batches that r->shares
 * has for it. */
void run_take_share(Run *r, int64_t step);

/* Collective. Waits until every rank has the batches of its next step. Returns 0 if a rank received a request to stop
 * while waiting; the step then does not begin. If data never arrive, the watchdog ends the job. */
int run_await_batches(Run *r);

/* Collective. No save may be in flight. Goes back to the newest checkpoint that verifies, or to the first weights if
 * there is none. The data continues after `step`, so the batches after the checkpoint are not trained again. Returns
 * the number of completed steps. */
int64_t run_roll_back(Run *r, int64_t step);

#endif
