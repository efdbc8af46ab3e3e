/* work.h - the order in which a stage of a pipeline computes its parts of the model for the micro-batches. The order is
 * a list, which the program runs and a plan simulates. Pure functions.
 *
 * There are P stages with V parts of the model each. Virtual stage v P + p is part v of stage p. The model's blocks are
 * cut into P V ranges, one for each virtual stage. With V = 1 the order is 1F1B (Narayanan et al., "PipeDream",
 * arXiv:1806.03377), with V > 1 its interleaved form (Narayanan et al., arXiv:2104.04473). A stage begins with some
 * forwards. Then each forward is followed by a backward, so that few micro-batches are in flight. A stage is idle for
 * (P - 1)/(M V) of the time that M micro-batches take.
 */
#ifndef TRAIN_GPT_MODEL_WORK_H
#define TRAIN_GPT_MODEL_WORK_H

#include <stdint.h>

typedef enum { WORK_FORWARD, WORK_BACKWARD } WorkKind;
typedef struct {
    WorkKind kind;
    int      part;  /* number of the part in this stage */
    int      tape;  /* place where the part keeps this micro-batch's activations; free again after its backward */
    int64_t  micro;
} Work;

typedef struct {
    Work   *work;    /* owned: the work in order */
    int64_t count;
    int    *tapes;   /* owned [parts]: most micro-batches that each part has in flight */
    int64_t micros;  /* most micro-batches in flight on the stage, from the first forward to the last backward */
} WorkList;

/* Returns the list of `stage` for a step of micro_batches. With several parts, micro_batches is a multiple of
 * stages. */
WorkList work_list(int stages, int parts, int64_t micro_batches, int stage);
void     work_list_free(WorkList *w);

/* Returns the share of a step in which a stage is idle if all items of work take equally long: (P - 1)/(M V + P -
 * 1). */
double   work_idle(int stages, int parts, int64_t micro_batches);

/* work_blocks returns the blocks of virtual stage `part` of `parts`. Each has at least one block. head_blocks is the
 * cost of the head in blocks; the last virtual stage has that many fewer. */
typedef struct { int64_t first, end; } BlockRange;
BlockRange work_blocks(int64_t blocks, int parts, double head_blocks, int part);

#endif
