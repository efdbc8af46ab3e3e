/* experts.h - the MLP half of a block with experts: a router gives each token top_k of E small MLPs, and the token's output is their
 * weighted sum; Shazeer et al., arXiv:1701.06538, as Qwen3's (Yang et al., arXiv:2505.09388). For llama.c, whose blocks have it.
 *
 * Every assignment is computed, none is dropped: the rows are sorted by expert, and one product runs over all experts' rows (layers.h).
 */
#ifndef TRAIN_GPT_MODEL_EXPERTS_H
#define TRAIN_GPT_MODEL_EXPERTS_H

#include "model/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* gate, up and down are expert 0's; the others' follow at equal distances. */
typedef struct {
    Tensor router, bias;             /* [E,C] [E]: bias to the choice alone, where balance is one */
    Tensor gate, up, down;           /* [FE,C] [FE,C] [C,FE]                                      */
} ExpertParams;

/* R = N*top_k rows, sorted by expert. */
typedef struct {
    Tensor probability;              /* [N,E] f32                                  */
    Tensor expert, weight;           /* [N,top_k] i32, f32                         */
    Tensor order, place, first;      /* [R] [R] [E+1] i32                          */
    Tensor gate_up;                  /* [R,2FE] act; in backward it becomes its gradient */
    Tensor swiglu;                   /* [R,FE] act, weighted                       */
    Tensor counts;                   /* [B,E] i32: a sequence's assignments        */
    Tensor logits;                   /* [N,E] act; in backward their gradient      */
    Tensor rows, out;                /* [R,C] act: the experts' input; their output, and gradients of both */
    Tensor dswiglu, dweight, dnorm;  /* [R,FE] act, [N,top_k] f32, [N,C] act: the router's part of norm's gradient */
} ExpertActs;

/* EXPERTS_LIGHT: swiglu alone, of the rest as it is. */
typedef enum { EXPERTS_ALL, EXPERTS_LIGHT } ExpertPass;

/* From the norm's output [N,C] to swiglu; adds to r->expert_counts, which backward has none of. */
void experts_forward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, ExpertPass pass);
/* From swiglu to r->update. */
void experts_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w);
/* From r->dresidual to r->dbranch, the gradient of the norm's output. */
void experts_backward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, const ExpertParams *d);

#ifdef __cplusplus
}
#endif
#endif
