/* history.h - a step of one stage as a list of durations, from the ledger of a dry run. For run/plan/simulate.c. */
#ifndef TRAIN_GPT_RUN_PLAN_HISTORY_H
#define TRAIN_GPT_RUN_PLAN_HISTORY_H

#include "model/work.h"
#include "run/plan/cluster.h"
#include "run/plan/plan.h"

typedef enum {
    PASSAGE_COMPUTE,  /* seconds of operations                                          */
    PASSAGE_BLOCKS,   /* seconds of a collective that keeps the rank from computing     */
    PASSAGE_START,    /* a collective of so many seconds starts beside the operations   */
    PASSAGE_WAIT      /* until the collective has ended that started `back` of its line before the last */
} PassageKind;
/* Collectives that a wait counts together: of each axis, and of the ranks that share the state of the same experts. */
enum { LINE_OF_EXPERTS = AXES, LINES };
typedef struct {
    PassageKind kind;
    Axis        axis;
    double      seconds, sent;
    int64_t     back;
    int         line;
} Passage;

/* A work, or another part of a step. */
typedef struct {
    Passage *passage;         /* owned */
    int      passages;
    double   message_bytes;   /* that it sends to another stage, 0: none */
    double   weights_s;       /* of its operations, gradients of matrices: they can wait */
} Chapter;

/* Micro-batches of a step have three histories: the first, the last, and all others. */
enum { MICRO_FIRST, MICRO_BETWEEN, MICRO_AT_END, MICRO_KINDS };

typedef struct {
    Chapter  begin, finish, update;
    Chapter *work;            /* owned [works]: [parts][WORK_BACKWARD + 1][MICRO_KINDS], or each_work: of the work list */
    int64_t  works;
    int      parts, each_work;
    size_t   scratch_bytes;
} History;

typedef struct {
    const Cluster *cluster;
    double         flops;     /* of matrix products in this precision */
    size_t         element_bytes;
    Reach          reach[AXES], all, twins; /* collectives of each axis; of shard: of the ranks that share a state; of all ranks;
                                               messages between the first stage and the last */
    Reach          experts, expert_state;   /* of ranks that divide the experts; of those that share the state of the same ones */
} Durations;

Durations durations_of(const Cluster *cluster, Mesh mesh, int expert_ranks, DType act, double flops);

/* ZeRO stage 3 with a pipeline, stage 2 with one whose parts take turns: which blocks are in the slots depends on the works
 * before, so each work has a history of its own. */
int     history_is_of_list(const ModelSpec *stage);
History history_of(ModelSpec stage, int64_t micro_batches, const Durations *d);
void    history_free(History *h);
const Chapter *history_work(const History *h, const WorkList *list, int64_t at, int64_t micro_batches); /* of list->work[at] */

#endif
