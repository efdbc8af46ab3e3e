/* expert_ranks.h - a block's experts divided among ranks (parallel.expert): Lepikhin et al., "GShard", arXiv:2006.16668. For
 * experts.c.
 *
 * Of `ranks` neighbours each holds E/ranks experts. A row travels to the rank of its expert and its output comes back; in
 * backward the row and its output's gradient travel there, and the row's gradient back. The ranks first exchange how many rows
 * each has for each expert, so all of them know all messages.
 *
 * Nothing is dropped: a rank has room for `room` rows, and where more come they take further rounds. The rows that a rank is
 * sent are in the order of its experts, of one expert in the order of the ranks; round k is rows [k room, (k+1) room) of them.
 * Backward finds round 0 as forward has left it and computes the others again.
 */
#ifndef TRAIN_GPT_MODEL_EXPERT_RANKS_H
#define TRAIN_GPT_MODEL_EXPERT_RANKS_H

#include "model/experts.h"

typedef struct ExpertRanks {
    Comm        *comm;              /* borrowed */
    int64_t      experts, room;     /* E; rows  */
    CommMessage *message;           /* owned: of one exchange */
    int          messages;
    int32_t     *first;             /* owned [E+1] */
    int          is_offline;        /* nothing travels: gpt_set_offline */
    int          rounds;            /* the most that a backward has taken since somebody set it to 0 */
} ExpertRanks;

/* Rows that a rank has room for: capacity of the even share, and never more than all `ranks` can bring. */
int64_t      expert_room(int64_t even, double capacity, int64_t ranks);
/* capacity: the room, of the even share of `rows` rows, which each rank has at most for all experts. */
ExpertRanks *expert_ranks_create(Comm *comm, int64_t experts, int64_t rows, double capacity);
void         expert_ranks_destroy(ExpertRanks *p); /* NULL: nothing */

/* From x->rows, of this rank's tokens, to x->swiglu, of this rank's experts: round 0's. The other rounds of EXPERTS_ALL leave
 * their output in x->out. */
void expert_ranks_forward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, ExpertPass pass);
/* From x->swiglu to x->out, which has all rounds' rows then. */
void expert_ranks_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w);
/* x->out, the gradient of the experts' output, becomes that of x->rows, their input; x->dweight is set. */
void expert_ranks_backward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, const ExpertParams *d);

#endif
