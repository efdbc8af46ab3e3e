/* run.h - everything that one training run needs, and its creation.
 *
 * run_create() makes a model that is ready for its next step from a config. It opens and checks inputs, joins the
 * ranks, locks the folder, allocates memory, and initialises or resumes the weights. main() and train_step() in
 * train_gpt.cu then use the run.
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
#include "run/step_numbers.h"
#include "run/log/metrics.h"
#include "run/outer/island.h"
#include "run/plan/plan.h"
#include "run/log/progress.h"
#include "run/pace.h"
#include "run/text/tasks.h"
#include "run/guard/requests.h"
#include "run/guard/watchdog.h"

/* The requests and facts on which all ranks agreed, for the time after the step. main() reads them. */
typedef struct {
    int    stop, save;  /* any rank got the request; both stay set while a step is computed again */
    int    written;     /* all ranks have finished the phase of the save in flight            */
    int    fed;         /* all ranks have the batches of the next step                        */
    int    lost;        /* the connection of a rank to outer.server is broken                 */
    double began_ms;    /* when the step began, on clock_ms()                                 */
} Between;

/* The work that an island has done on its lease so far. */
typedef struct {
    int64_t steps;
    double  losses;     /* sum of the losses of these steps */
    double  began_ms;
} RoundWork;

struct Run {
    const Config *config;           /* borrowed */
    Comm         *comm;             /* owned    */
    Groups        groups;           /* owned    */
    Watchdog     *watchdog;         /* owned    */
    RunLock      *lock;             /* owned; NULL but on rank 0 */
    Numerics      numerics;
    int           device_sharers;    /* ranks that compute on the GPU of this rank; 0 on the CPU */
    Plan          plan;
    char         *memory_advice;    /* owned: text that a failed allocation prints */
    Model        *model;            /* owned */
    Arena         batch_arena;
    Dataset       train, val;       /* val.shards 0: no validation loss */
    Tokenizer     tokenizer;
    int32_t       end_of_text;      /* token that divides documents (run_documents); -1: none */
    Task         *task;             /* owned [tasks]: eval.tasks */
    int           tasks;
    double        bytes_per_token;  /* mean bytes of text that a token encodes; NaN: not known */
    Loader       *loader;
    Batch         eval_batch;       /* on the device: [micro_batch, tokens of seq_len on this rank] */
    int32_t      *eval_tokens;      /* owned, on the host: space for three batches and three whole sequences */
    TrainState    state;
    CheckpointState checkpoint;     /* borrowed parts of this run, for checkpoint.h */
    Saver        *saver;            /* owned */
    MemoryCopies *copies;           /* owned; NULL: no copies in memory */
    Resumed       resumed;
    Metrics      *metrics;          /* owned; rank 0; NULL elsewhere */
    GpuMeter     *gpu;              /* owned; rank 0; NULL: no GPU can be read */
    Progress      progress;         /* rank 0 */
    Stragglers    stragglers;
    Slowness      slowness;         /* rank 0 */
    Requests      requests;
    Between       between;
    ExpertLoad    experts;          /* loads in the last step                  */
    Fp8Steps      fp8;              /* owned; empty in other precisions        */
    Island       *island;           /* owned; NULL: outer.server is not set */
    RoundWork     round;
    int           server_is_lost;   /* the run then saves and ends */
    int64_t      *shares;           /* owned [groups.datas]: micro-batches of a step for each of these groups */
    double        matmul_flops;     /* measured FLOP/s of all ranks together */
    int64_t       measured_step;    /* step at which matmul_flops was measured again; 0: never */
    double        started_ms;       /* clock_ms() when the run began   */
};

/* Collective. Ends the job with a message if the run cannot start. */
void run_create(Run *r, const Config *config, Launch launch);
void run_destroy(Run *r);

int  run_is_rank0(const Run *r);    /* returns 1 on rank 0, which writes logs */
/* Starts what only a run with steps left needs: saver, loader, metrics, config.json. */
void run_begin(Run *r);

/* Returns the share of the measured rate of matrix products that a step with tokens_per_s reaches. Returns NaN if it is
 * above 1, because other programs then slowed the measurement. A job of one process on the CPU measures again in
 * that case, at most every 20 steps. */
double run_mfu(Run *r, int64_t step, double tokens_per_s);

/* Returns the position of the run after `step` steps. */
Position run_position(const Run *r, int64_t step);

/* Returns the hash of the present state that must be equal on all ranks (optimizer_hash_replicas). Waits for the
 * stream. */
int64_t run_hash_replicas(Run *r);
/* Collective. Returns a number that is equal on all ranks if no rank differs, for guard_compare. If all ranks hold the
 * whole weights, it is `replicas`. If ranks hold different slices, it is 0, plus 1 if the rows that tensor ranks do not
 * cut differ from those of most peers, plus 2 if the slice differs. Overwrites the sums of the step. */
int64_t run_with_parts(Run *r, int64_t replicas);
int64_t run_hash_pieces(Run *r); /* hash of optimizer_hash_pieces, equal on all ranks of r->groups.replicas */

/* Every rank calls this. Applies r->shares from step `step` on. */
void run_take_share(Run *r, int64_t step);

/* Collective. Waits until every rank has the batches of its next step. Returns 0 if a rank was asked to stop before
 * that; the step then does not begin. The watchdog handles data that never arrive. */
int run_await_batches(Run *r);

/* Collective, with no save in flight. Goes back to the newest checkpoint that verifies, or to the first weights if
 * there is none. The data continues after `step`, so the batches that led here are left out. Returns the number of
 * completed steps. */
int64_t run_roll_back(Run *r, int64_t step);

#endif
