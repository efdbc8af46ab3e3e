/* experts.h - the MLP half of a block with experts. A router chooses top_k of E small MLPs for each token, and the
 * token's output is their weighted sum. Shazeer et al., arXiv:1701.06538, in the form of Qwen3 (Yang et al.,
 * arXiv:2505.09388). The blocks of llama.c use it.
 *
 * Every assignment is computed, none is dropped. The rows are sorted by expert, and one product runs over the rows of
 * all experts (layers.h). If ranks divide the experts, rows are sent to the expert's rank and back:
 * model/expert_ranks.h.
 */
#ifndef TRAIN_GPT_MODEL_EXPERTS_H
#define TRAIN_GPT_MODEL_EXPERTS_H

#include "model/block.h"

/* gate, up and down belong to this rank's first expert. Those of the other experts follow at equal distances. */
typedef struct {
    Tensor router, bias;             /* [E,C] [E]: bias is added for the choice only, with BALANCE_BIAS */
    Tensor gate, up, down;           /* [FE,C] [FE,C] [C,FE]                                            */
} ExpertParams;

/* R = N*top_k rows, sorted by expert. X is the number of rows computed here at once: R, or ExpertRanks.room if ranks
 * divide the experts. */
typedef struct {
    Tensor probability;              /* [N,E] f32                                  */
    Tensor expert, weight;           /* [N,top_k] i32, f32                         */
    Tensor order, place, first;      /* [R] [R] [E+1] i32                          */
    Tensor gate_up;                  /* [X,2FE] act; in backward its own gradient */
    Tensor swiglu;                   /* [X,FE] act, weighted                       */
    Tensor counts;                   /* [B,E] i32: assignments of each sequence    */
    Tensor logits;                   /* [N,E] act; in backward its own gradient    */
    Tensor rows, out;                /* [R,C] act: input and output of the experts; in backward the gradients */
    /* [X,FE] act, [N,top_k] f32, [N,C] act: what the router adds to the gradient of norm */
    Tensor dswiglu, dweight, dnorm;
    /* Rows from all expert ranks, in the order of this rank's experts. Without expert ranks these have no elements. */
    Tensor first_here;               /* [E+1] i32, like first; E/ranks + 1 are used */
    Tensor weight_here, dweight_here; /* [X] f32                                   */
    Tensor weight_rows;              /* [R] f32: weight, or the gradient of weight, in the order of rows */
    Tensor rows_here, out_here;      /* [X,C] act: like rows and out               */
} ExpertActs;

/* EXPERTS_ALL: a forward. EXPERTS_AGAIN: computes again what backward needs of an earlier forward. EXPERTS_LIGHT:
 * computes only swiglu again; the rest is still there. */
typedef enum { EXPERTS_ALL, EXPERTS_AGAIN, EXPERTS_LIGHT } ExpertPass;

/* Computes from the norm's output [N,C] to swiglu. Adds to r->expert_counts, which is none in backward. */
void experts_forward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, ExpertPass pass);
/* Computes from swiglu to r->update. */
void experts_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w);
/* Computes from r->dresidual to r->dbranch, the gradient of the norm's output. */
void experts_backward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, const ExpertParams *d);

/* expert_stride returns the elements of memory from one expert's matrices to the next one's. expert_gate_up returns
 * gate and up of the rank's first expert, which are adjacent, as one matrix. */
int64_t expert_stride(const BlockRun *r);
Tensor  expert_gate_up(const ExpertParams *w);

#endif
