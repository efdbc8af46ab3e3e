/* experts.h - the MLP half of a block with experts. A router chooses top_k of E small MLPs for each token, and the
 * token's output is their weighted sum. Shazeer et al., arXiv:1701.06538, in the form of Qwen3 (Yang et al.,
 * arXiv:2505.09388). The blocks of llama.c use it.
 *
 * Every assignment of a token to an expert is computed, none is dropped. There is a row for each assignment. The rows
 * are sorted by expert, and one product runs over the rows of all experts (layers.h).
 *
 * Ranks can divide the experts (parallel.expert): Lepikhin et al., "GShard", arXiv:2006.16668. `ranks` adjacent ranks
 * hold E/ranks experts each. In forward a row is sent to the rank of its expert, and the output is sent back. In
 * backward the row and the gradient of its output are sent there, and the gradient of the row is sent back. The ranks
 * first exchange how many rows each has for each expert, so every rank knows all messages.
 *
 * A rank computes `room` rows at once; more rows take further rounds. The rows sent to a rank are sorted by expert, and
 * for one expert by sending rank. Round k computes rows [k room, (k+1) room) of this order. Backward uses the
 * activations of round 0 that forward has left, and computes the other rounds again. */
#ifndef TRAIN_GPT_MODEL_EXPERTS_H
#define TRAIN_GPT_MODEL_EXPERTS_H

#include "model/block.h"

/* Parameters of the experts of a block. gate, up and down belong to this rank's first expert. The matrices of its other
 * experts follow at equal distances. */
typedef struct {
    /* [E,C] [E], for E experts; bias is added to the router's scores only to choose experts, with BALANCE_BIAS */
    Tensor router, bias;
    Tensor gate, up, down;           /* [FE,C] [FE,C] [C,FE]: matrices of an expert of width FE */
} ExpertParams;

/* Activations of the experts of a block. There are R = N*top_k rows, one for each assignment of a token to an expert,
 * sorted by expert. X is the number of rows that this rank's experts compute at once: R, or ExpertRanks.room if ranks
 * divide the experts. */
typedef struct {
    Tensor probability;              /* [N,E] f32: the router's probability of each expert */
    /* [N,top_k] i32, f32: the experts chosen for each token, and the weights of their outputs */
    Tensor expert, weight;
    /* [R] [R] [E+1] i32, for R assignments of tokens to E experts: assignment of each sorted row, row of each
     * assignment, first row of each expert (experts_sort) */
    Tensor order, place, first;
    /* [X,2FE] of the activation type, for the X rows that this rank's experts compute at once: outputs of gate and up;
     * in backward their gradients */
    Tensor gate_up;
    /* [X,FE] of the activation type, for the X rows that this rank's experts compute at once: output of SwiGLU, already
     * multiplied by the weight of the expert; the input of down */
    Tensor swiglu;
    Tensor counts;                   /* [B,E] i32: number of assignments of each sequence to each expert */
    Tensor logits;                   /* [N,E] of the activation type: the router's logits; in backward their gradient */
    /* [R,C] of the activation type, for R assignments of tokens to experts: input and output of the experts; in
     * backward the gradients of these */
    Tensor rows, out;
    /* Gradients. dswiglu [X,FE] of the activation type: gradient of swiglu, for the X rows that this rank's experts
     * compute at once. dweight [N,top_k] f32: gradient of weight. dnorm [N,C] of the activation type: what the router
     * adds to the gradient of the norm's output. */
    Tensor dswiglu, dweight, dnorm;
    /* Ranks can divide the experts. The tensors from first_here on then hold rows that all of these ranks have sent for
     * this rank's experts, sorted by expert. Otherwise they have no elements. */
    /* [E+1] i32: index of the first row of each of this rank's experts; only E/ranks + 1 are used */
    Tensor first_here;
    Tensor weight_here, dweight_here; /* [X] f32, for the X rows that this rank's experts compute at once: weights of
                                       * their outputs, and the gradients of these weights */
    /* [R] f32, for R assignments of tokens to experts: weights of the experts' outputs, or their gradients, in the
     * order of `rows` */
    Tensor weight_rows;
    /* [X,C] of the activation type, for the X rows that this rank's experts compute at once: their input and output; in
     * backward the gradients of these */
    Tensor rows_here, out_here;
} ExpertActs;

/* How much of the forward of the experts is computed. EXPERTS_ALL: all of it. EXPERTS_AGAIN: what backward needs,
 * computed again. EXPERTS_LIGHT: only swiglu again, because the rest was kept. */
typedef enum { EXPERTS_ALL, EXPERTS_AGAIN, EXPERTS_LIGHT } ExpertPass;

/* Computes the first half of the forward of the experts: from `norm`, the norm's output [N,C], to x->swiglu. Adds the
 * numbers of assignments to r->expert_counts, which is none when backward computes the forward again. */
void experts_forward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, ExpertPass pass);
/* Computes the second half of the forward of the experts: from x->swiglu to the weighted sum of their outputs in
 * r->update. */
void experts_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w);
/* Computes the backward of the experts: from r->dresidual, the gradient of the residual stream, to r->dbranch, the
 * gradient of the norm's output. */
void experts_backward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w,
                      const ExpertParams *d);

/* --- ranks that divide the experts -------------------------------------------------------------------------------- */

typedef struct ExpertRanks {
    Comm        *comm;              /* borrowed: the ranks that divide the experts */
    int64_t      experts, room;     /* number of experts; rows that a rank's experts compute in a round */
    CommMessage *message;           /* owned: the messages of one exchange */
    int          messages;
    int32_t     *first;             /* owned [E+1]: index of the first row of each expert, in host memory */
    int          is_offline;        /* 1: this rank computes without communication (gpt_set_offline) */
    int          rounds;            /* largest number of rounds that a backward needed since the caller last set this to
                                     * 0; a round computes at most `room` rows */
} ExpertRanks;

/* Returns how many rows a rank's experts compute at once. It is `capacity` times the even share of rows, but at most
 * the rows that all `ranks` ranks can send. */
int64_t      expert_room(int64_t even, double capacity, int64_t ranks);
/* Makes the state of the ranks that divide the experts. rows: how many rows (assignments of tokens to experts) one rank
 * has. ExpertRanks.room becomes `capacity` times `rows`, as expert_room computes it. */
ExpertRanks *expert_ranks_create(Comm *comm, int64_t experts, int64_t rows, double capacity);
void         expert_ranks_destroy(ExpertRanks *p); /* frees the struct and what it owns; does nothing if p is NULL */

#endif
