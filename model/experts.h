/* experts.h - the MLP half of a block with experts: a router gives each token top_k of E small MLPs, and the token's output is their
 * weighted sum; Shazeer et al., arXiv:1701.06538, as Qwen3's (Yang et al., arXiv:2505.09388). For llama.c, whose blocks have it.
 *
 * Every assignment is computed, none is dropped: the rows are sorted by expert, and one product runs over all experts' rows (layers.h).
 * Where ranks divide the experts, rows travel to their expert's rank and back: model/expert_ranks.h.
 */
#ifndef TRAIN_GPT_MODEL_EXPERTS_H
#define TRAIN_GPT_MODEL_EXPERTS_H

#include "model/block.h"

/* gate, up and down are those of this rank's first expert; the others' follow at equal distances. */
typedef struct {
    Tensor router, bias;             /* [E,C] [E]: bias to the choice alone, where balance is one */
    Tensor gate, up, down;           /* [FE,C] [FE,C] [C,FE]                                      */
} ExpertParams;

/* R = N*top_k rows, sorted by expert. X rows are computed here: the same, or room for those that ranks bring here at once. */
typedef struct {
    Tensor probability;              /* [N,E] f32                                  */
    Tensor expert, weight;           /* [N,top_k] i32, f32                         */
    Tensor order, place, first;      /* [R] [R] [E+1] i32                          */
    Tensor gate_up;                  /* [X,2FE] act; in backward it becomes its gradient */
    Tensor swiglu;                   /* [X,FE] act, weighted                       */
    Tensor counts;                   /* [B,E] i32: a sequence's assignments        */
    Tensor logits;                   /* [N,E] act; in backward their gradient      */
    Tensor rows, out;                /* [R,C] act: the experts' input; their output, and gradients of both */
    Tensor dswiglu, dweight, dnorm;  /* [X,FE] act, [N,top_k] f32, [N,C] act: the router's part of norm's gradient */
    /* Ranks that divide the experts: rows of all of them, in the order of this rank's experts; else of no elements. */
    Tensor first_here;               /* [E+1] i32, as first: E/ranks + 1 are used  */
    Tensor weight_here, dweight_here; /* [X] f32                                   */
    Tensor weight_rows;              /* [R] f32: weight, or its gradient, in the order of rows */
    Tensor rows_here, out_here;      /* [X,C] act: as rows and out                 */
} ExpertActs;

/* EXPERTS_AGAIN: of a forward that was, what backward needs. EXPERTS_LIGHT: swiglu alone, of the rest as it is. */
typedef enum { EXPERTS_ALL, EXPERTS_AGAIN, EXPERTS_LIGHT } ExpertPass;

/* From the norm's output [N,C] to swiglu; adds to r->expert_counts, which backward has none of. */
void experts_forward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, ExpertPass pass);
/* From swiglu to r->update. */
void experts_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w);
/* From r->dresidual to r->dbranch, the gradient of the norm's output. */
void experts_backward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, const ExpertParams *d);

/* Elements of memory from one expert's matrices to the next one's; a rank's first expert's gate and up, neighbours, as one matrix. */
int64_t expert_stride(const BlockRun *r);
Tensor  expert_gate_up(const ExpertParams *w);

#endif
