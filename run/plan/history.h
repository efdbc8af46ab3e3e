/* history.h - a step of one pipeline stage as a list of durations, from the ledger of a dry run. For
 * run/plan/simulate.c. */
#ifndef TRAIN_GPT_RUN_PLAN_HISTORY_H
#define TRAIN_GPT_RUN_PLAN_HISTORY_H

#include "model/pipeline.h"
#include "run/plan/cluster.h"
#include "run/plan/plan.h"

typedef enum {
    PASSAGE_COMPUTE,  /* operations of `seconds` */
    PASSAGE_BLOCKS,   /* a collective of `seconds` that keeps the rank from computing */
    PASSAGE_START,    /* starts a collective of `seconds` that runs beside the operations */
    PASSAGE_WAIT      /* waits for the end of the collective on its line that started `back` before the latest */
} PassageKind;
/* The lines of collectives, which a wait counts along: one for each axis, and one for the ranks that share the state of
 * the same experts. */
enum { LINE_OF_EXPERTS = AXES, LINES };
typedef struct {
    PassageKind kind;
    Axis        axis;
    double      seconds, sent; /* duration; bytes sent */
    int64_t     back; /* PASSAGE_WAIT: how many collectives before the latest */
    int         line; /* line of the collective: an axis, or LINE_OF_EXPERTS */
} Passage;

/* A work of the work list, or another section of a step. */
typedef struct {
    Passage *passage;         /* owned */
    int      passages;        /* length of passage */
    double   message_bytes;   /* size of the message to another stage; 0 if none */
    double   weights_s;       /* time of the gradients of matrices among its operations: they can be computed later */
} Chapter;

/* The micro-batches of a step have three histories: the first, the last, and all between. */
enum { MICRO_FIRST, MICRO_BETWEEN, MICRO_AT_END, MICRO_KINDS };

typedef struct {
    Chapter  begin, finish, update; /* before the works; after them; the optimizer's update */
    Chapter *work;            /* [works] owned: [parts][WORK_BACKWARD + 1][MICRO_KINDS], or, with each_work, one for
                               * each work of the list */
    int64_t  works;           /* length of work */
    int      parts, each_work; /* parts of the stage; 1 if every work has a history of its own */
    size_t   scratch_bytes;   /* scratch memory of the dry run */
} History;

typedef struct {
    const Cluster *cluster;
    double         flops;     /* FLOP/s of matrix products in this precision */
    size_t         element_bytes; /* bytes of an activation */
    Reach          reach[AXES], all, twins; /* for collectives: by axis (AXIS_SHARD: the ranks that share a state), of
                                             * all ranks; for messages: first stage to last */
    Reach          experts, expert_state;   /* for collectives of the ranks that divide the experts, and of those that
                                             * share the state of the same experts */
} Durations;

Durations durations_of(const Cluster *cluster, Mesh mesh, int expert_ranks, DType act, double flops);

/* Returns 1 if each work needs a history of its own: ZeRO stage 3 with a pipeline, or stage 2 with interleave. The
 * blocks in their slots depend on the works before. */
int     history_is_of_list(const ModelSpec *stage);
History history_of(ModelSpec stage, int64_t micro_batches, const Durations *d);
void    history_free(History *h);
const Chapter *history_work(const History *h, const WorkList *list, int64_t at, int64_t micro_batches);

#endif
