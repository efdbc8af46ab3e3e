/* experts.h - the MLP half of a block with experts. A router chooses top_k of E small MLPs for each token, and the
 * token's output is their weighted sum. Shazeer et al., arXiv:1701.06538, in the form of Qwen3 (Yang et al.,
 * arXiv:2505.09388). The blocks of llama.c use it.
 *
 * Every assignment is computed, none is dropped. The rows are sorted by expert, and one product runs over the rows of
 * all experts (layers.h).
 *
 * Ranks can divide the experts (parallel.expert): Lepikhin et al., "GShard", arXiv:2006.16668. `ranks` adjacent ranks
 * hold E/ranks experts each. In forward a row is sent to the rank of its expert, and the output is sent back. In
 * backward the row and the gradient of its output are sent there, and the gradient of the row is sent back. The ranks
 * first exchange how many rows each has for each expert, so every rank knows all messages.
 *
 * A rank computes `room` rows at once; more rows take further rounds. The rows sent to a rank are sorted by expert, and
 * for one expert by sending rank. Round k computes rows [k room, (k+1) room) of this order. Backward uses the
 * activations of round 0 that forward has left, and computes the other rounds again.
 */
#ifndef TRAIN_GPT_MODEL_EXPERTS_H
#define TRAIN_GPT_MODEL_EXPERTS_H

#include "model/block.h"

/* Parameters of the experts. gate, up and down belong to this rank's first expert. The matrices of its other experts
 * follow at equal distances. */
typedef struct {
    /* [E,C] [E], E experts: bias is added only when experts are chosen, with BALANCE_BIAS */
    Tensor router, bias;
    Tensor gate, up, down;           /* [FE,C] [FE,C] [C,FE]                                            */
} ExpertParams;

/* Activations of the experts. R = N*top_k rows, sorted by expert. X is the number of rows computed here at once: R, or
 * ExpertRanks.room if ranks divide the experts. */
typedef struct {
    Tensor probability;              /* [N,E] f32                                  */
    Tensor expert, weight;           /* [N,top_k] i32, f32: the experts chosen for each token, and their weights */
    Tensor order, place, first;      /* [R] [R] [E+1] i32                          */
    /* [X,2FE] of the activation type: outputs of gate and up; in backward their gradient */
    Tensor gate_up;
    /* [X,FE] of the activation type: input of down, already multiplied by the expert's weight */
    Tensor swiglu;
    Tensor counts;                   /* [B,E] i32: assignments of each sequence to each expert */
    Tensor logits;                   /* [N,E] of the activation type: the router's logits; in backward their gradient */
    /* [R,C] of the activation type: input and output of the experts; in backward the gradients */
    Tensor rows, out;
    /* [X,FE] of the activation type, [N,top_k] f32, [N,C] of the activation type: gradients of swiglu and weight; what
     * the router adds to the gradient of norm */
    Tensor dswiglu, dweight, dnorm;
    /* Rows from all expert ranks, in the order of this rank's experts. Without expert ranks these have no elements. */
    Tensor first_here;               /* [E+1] i32: first rows of this rank's experts; E/ranks + 1 are used */
    Tensor weight_here, dweight_here; /* [X] f32                                   */
    Tensor weight_rows;              /* [R] f32: weights, or gradients of weights, in the order of `rows` */
    /* [X,C] of the activation type: input and output of this rank's experts; in backward their gradients */
    Tensor rows_here, out_here;
} ExpertActs;

/* How much of a forward is computed. EXPERTS_ALL: all of it. EXPERTS_AGAIN: computes again what backward needs of an
 * earlier forward. EXPERTS_LIGHT: computes only swiglu again; the rest is still there. */
typedef enum { EXPERTS_ALL, EXPERTS_AGAIN, EXPERTS_LIGHT } ExpertPass;

/* Computes the first half of the experts: from `norm`, the norm's output [N,C], to swiglu. Adds the assignments to
 * r->expert_counts, which is none when backward computes them again. */
void experts_forward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, ExpertPass pass);
/* Computes the second half of the experts: from swiglu to the weighted sum of their outputs in r->update. */
void experts_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w);
/* Computes the backward pass of both halves: from r->dresidual, the gradient of the residual stream, to r->dbranch, the
 * gradient of the norm's output. */
void experts_backward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w,
                      const ExpertParams *d);

/* --- ranks that divide the experts -------------------------------------------------------------------------------- */

typedef struct ExpertRanks {
    Comm        *comm;              /* borrowed */
    int64_t      experts, room;     /* number of experts; rows that a rank computes in a round */
    CommMessage *message;           /* owned: the messages of one exchange */
    int          messages;
    int32_t     *first;             /* owned [E+1]: the first row of each expert, in host memory */
    int          is_offline;        /* 1: this rank computes without communication (gpt_set_offline) */
    int          rounds;            /* largest number of rounds of a backward since the caller set it to 0 */
} ExpertRanks;

/* Returns the rows that a rank computes at once: `capacity` times the even share of rows, but at most the rows that all
 * `ranks` can send. */
int64_t      expert_room(int64_t even, double capacity, int64_t ranks);
/* Makes the state of the ranks that divide the experts. rows: the most rows that one rank has for all experts together.
 * room becomes `capacity` times `rows` (expert_room). */
ExpertRanks *expert_ranks_create(Comm *comm, int64_t experts, int64_t rows, double capacity);
void         expert_ranks_destroy(ExpertRanks *p); /* frees the struct and what it owns; does nothing if p is NULL */

#endif
