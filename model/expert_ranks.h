/* expert_ranks.h - the experts of a block, divided among ranks (parallel.expert). Lepikhin et al., "GShard",
 * arXiv:2006.16668. Only experts.c uses this file.
 *
 * `ranks` adjacent ranks hold E/ranks experts each. In forward a row is sent to the rank of its expert, and the output
 * is sent back. In backward the row and the gradient of its output are sent there, and the gradient of the row is sent
 * back. The ranks first exchange how many rows each has for each expert, so every rank knows all messages.
 *
 * No row is dropped. A rank computes `room` rows at once; more rows take further rounds. The rows sent to a rank are
 * sorted by expert, and for one expert by sending rank. Round k computes rows [k room, (k+1) room) of this order.
 * Backward uses the activations of round 0 that forward has left, and computes the other rounds again.
 */
#ifndef TRAIN_GPT_MODEL_EXPERT_RANKS_H
#define TRAIN_GPT_MODEL_EXPERT_RANKS_H

#include "model/experts.h"

typedef struct ExpertRanks {
    Comm        *comm;              /* borrowed */
    int64_t      experts, room;     /* E; rows that a rank computes in a round */
    CommMessage *message;           /* owned: the messages of one exchange */
    int          messages;
    int32_t     *first;             /* owned [E+1]: the first row of each expert, in host memory */
    int          is_offline;        /* no communication, see gpt_set_offline */
    int          rounds;            /* largest number of rounds of a backward since the caller set it to 0 */
} ExpertRanks;

/* Returns the rows that a rank computes at once: `capacity` times the even share, but at most what all `ranks` can
 * send. */
int64_t      expert_room(int64_t even, double capacity, int64_t ranks);
/* rows: the most rows that one rank has for all experts together. room becomes `capacity` times `rows`
 * (expert_room). */
ExpertRanks *expert_ranks_create(Comm *comm, int64_t experts, int64_t rows, double capacity);
void         expert_ranks_destroy(ExpertRanks *p); /* does nothing if p is NULL */

/* Computes from x->rows, the rows of this rank's tokens, to x->swiglu of this rank's experts in round 0. With
 * EXPERTS_ALL the other rounds are computed first and leave their output in x->out. */
void expert_ranks_forward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, ExpertPass pass);
/* Computes from x->swiglu of round 0 to x->out, which then holds the rows of all rounds. */
void expert_ranks_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w);
/* Turns x->out from the gradient of the experts' output into the gradient of x->rows, their input. Sets x->dweight. */
void expert_ranks_backward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, const ExpertParams *d);

#endif
