/* run.h - everything of one training run, and its making.
 *
 * run_create() goes from a config to a model that is ready for its next step: inputs opened and checked, ranks joined,
 * folder locked, memory carved, weights initialised or resumed. main() and train_step() in train_gpt.cu then only use
 * it.
 */
#ifndef TRAIN_GPT_RUN_RUN_H
#define TRAIN_GPT_RUN_RUN_H

#include "comm/comm.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "model/model.h"
#include "model/precision.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/memory_copies.h"
#include "run/config/config.h"
#include "run/guard/lock.h"
#include "run/expert_load.h"
#include "run/fp8_steps.h"
#include "run/log/metrics.h"
#include "run/outer/island.h"
#include "run/plan/plan.h"
#include "run/log/progress.h"
#include "run/slowness.h"
#include "run/stragglers.h"
#include "run/text/tasks.h"
#include "run/guard/requests.h"
#include "run/guard/watchdog.h"

/* The requests all ranks agreed on, for the time after the step; main() reads them. */
typedef struct {
    int    stop, save;  /* asked of any rank; they stay set while a step is computed again    */
    int    written;     /* all ranks have done their part of the checkpoint in flight         */
    int    fed;         /* all ranks have the next step's batches                             */
    int    lost;        /* a rank's connection to outer.server is broken                      */
    int    has_x;       /* outer.stream: on all ranks a fragment has come back                */
    double began_ms;    /* when the step began, on clock_ms()                                 */
} Between;

/* What an island has done of its lease. */
typedef struct {
    int64_t steps;
    double  losses;     /* their sum */
    double  began_ms;
} RoundWork;

typedef struct {
    const Config *config;           /* borrowed */
    Comm         *comm;             /* owned    */
    Groups        groups;           /* owned    */
    Watchdog     *watchdog;         /* owned    */
    RunLock      *lock;             /* owned; rank 0 */
    Numerics      numerics;
    int           device_sharers;    /* ranks that compute on this rank's GPU; 0 on the CPU */
    Plan          plan;
    char         *memory_advice;    /* owned: printed when memory lacks */
    Model        *model;            /* owned */
    Arena         batch_arena;
    Dataset       train, val;       /* val.shards 0: no evaluation */
    Tokenizer     tokenizer;
    int32_t       end_of_text;      /* that divides documents (sample_documents) */
    Task         *task;             /* owned [tasks]: eval.tasks */
    int           tasks;
    double        bytes_per_token;  /* of the text behind the tokens; NaN: not known */
    Loader       *loader;
    Batch         eval_batch;       /* [micro_batch, this rank's tokens of seq_len] */
    int32_t      *eval_tokens;      /* host: the same three times, and a whole sequence three times */
    TrainState    state;
    CheckpointState checkpoint;     /* a view of this run */
    Saver        *saver;            /* owned */
    MemoryCopies *copies;           /* owned; NULL: there are none */
    Resumed       resumed;
    Metrics      *metrics;          /* rank 0; NULL elsewhere */
    GpuMeter     *gpu;              /* owned; rank 0; NULL: nothing can be read */
    Progress      progress;         /* rank 0 */
    Stragglers    stragglers;
    Slowness      slowness;         /* rank 0 */
    Requests      requests;
    Between       between;
    ExpertLoad    experts;          /* of the last step                        */
    Fp8Steps      fp8;              /* owned; empty in other precisions        */
    Island       *island;           /* owned; NULL: outer.server is not set */
    RoundWork     round;
    int           server_is_lost;   /* and all is to be saved before the end */
    int64_t      *shares;           /* owned [groups.datas]: micro-batches of a step that each of them computes */
    double        matmul_flops;     /* measured, all ranks together    */
    int64_t       measured_step;    /* when it was measured again; 0: never */
    double        started_ms;       /* clock_ms() when the run began   */
} Run;

/* Collective. Ends the job with a sentence when the run cannot start. */
void run_create(Run *r, const Config *config, Launch launch);
void run_destroy(Run *r);

int  run_is_rank0(const Run *r);    /* this rank writes logs */
/* Starts the parts that only a run with work left needs: saver, loader, metrics, config.json. */
void run_begin(Run *r);

/* The part of the measured matrix products' rate that a step of so many tokens a second reaches; NaN where it is more:
 * other programs held up the measurement. One process then measures again, at most every 20 steps. */
double run_mfu(Run *r, int64_t step, double tokens_per_s);

/* The run's position after `step` steps. */
Position run_position(const Run *r, int64_t step);

/* The hash that must be the same on all ranks (optimizer_hash_replicas), now. Waits for the stream. */
int64_t run_hash_replicas(Run *r);
/* Collective. Where ranks hold different parts of the weights: 0 on those that hold what the ranks with the same part do,
 * and the same rows that tensor ranks do not cut; that is the same on all then. Overwrites the step's sums. */
int64_t run_with_parts(Run *r, int64_t replicas);
int64_t run_hash_pieces(Run *r); /* the same on all ranks of r->groups.replicas: optimizer_hash_pieces */

/* All ranks, from step `step` on: r->shares as they now are. */
void run_take_share(Run *r, int64_t step);

/* Waits until every rank has the batches of its next step. Collective. Returns 0 when a rank was asked to stop before
 * that: the step is not begun. Data that never come are the watchdog's affair. */
int run_await_batches(Run *r);

/* Collective, with no save in flight: back to the newest checkpoint that verifies, or without one to the first weights.
 * The data goes on after `step`: the batches that led here are left out. Returns the number of completed steps. */
int64_t run_roll_back(Run *r, int64_t step);

#endif
