/* work.h - the order in which a stage of a pipeline computes its parts of the micro-batches: lists, which the program
 * runs and a plan replays. Pure functions.
 *
 * P stages, each with V parts of the model: virtual stage v P + p is part v of stage p, and the model's blocks are cut
 * into P V runs, one for each. With V = 1 this is 1F1B (Narayanan et al., "PipeDream", arXiv:1806.03377), with more its
 * interleaved form (Narayanan et al., arXiv:2104.04473): a stage begins with forwards, then each forward is followed by a
 * backward, so that few micro-batches are in flight. Idle is (P - 1)/(M V) of the time that M micro-batches take.
 */
#ifndef TRAIN_GPT_MODEL_WORK_H
#define TRAIN_GPT_MODEL_WORK_H

#include <stdint.h>

typedef enum { WORK_FORWARD, WORK_BACKWARD } WorkKind;
typedef struct {
    WorkKind kind;
    int      part;  /* of this stage */
    int      tape;  /* where the part keeps this micro-batch's activations: free again after its backward */
    int64_t  micro;
} Work;

typedef struct {
    Work   *work;    /* owned: in order */
    int64_t count;
    int    *tapes;   /* owned [parts]: how many each part has in flight at most */
    int64_t micros;  /* micro-batches in flight at most, from the first forward to the last backward */
} WorkList;

/* The list of `stage` for micro_batches of each step; with several parts these are a multiple of the stages. */
WorkList work_list(int stages, int parts, int64_t micro_batches, int stage);
void     work_list_free(WorkList *w);

/* The part of a step in which a stage is idle where all works take equally long: (P - 1)/(M V + P - 1). */
double   work_idle(int stages, int parts, int64_t micro_batches);

/* The blocks of virtual stage `part` of `parts` ones: every one has at least one, and the last has fewer by the cost of
 * the head, in blocks. */
typedef struct { int64_t first, end; } BlockRange;
BlockRange work_blocks(int64_t blocks, int parts, double head_blocks, int part);

#endif
