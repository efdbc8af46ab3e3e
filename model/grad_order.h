/* grad_order.h - parallel.deterministic: a step's gradients are added in the order of comm/tree.h, whatever the number
 * of ranks.
 *
 * The gradients of each micro-batch are complete before they are added to anything. Sums that wait for their other half
 * lie in buffers beside the model's own gradients. Those of the last micro-batch stay in the gradients; its buckets go
 * between the ranks as backward completes them.
 */
#ifndef TRAIN_GPT_MODEL_GRAD_ORDER_H
#define TRAIN_GPT_MODEL_GRAD_ORDER_H

#include "comm/comm.h"
#include "comm/tree.h"
#include "core/layout.h"
#include "layers/layers.h"

typedef struct {
    int64_t   leaves;              /* micro-batches of a step, of all ranks; 0: not in this mode     */
    int64_t   leaf;                /* the one whose gradients come next                              */
    TreeNodes nodes;               /* of this rank's before it; node i lies in buffer i              */
    Tensor    grads;               /* [memory_elems] f32, borrowed: the model's gradients            */
    Tensor    buffer[TREE_MOST];   /* like it                                                        */
    int       buffers;
} GradOrder;

/* Carves the buffers of the most that any rank needs. */
GradOrder grad_order_create(const Layout *layout, int64_t leaves, Tensor grads, Arena *arena);

void grad_order_begin(GradOrder *t, int64_t first_leaf);
/* After a micro-batch that is not this rank's last: its gradients join the half they belong to, or wait in a buffer.
 * grads is free again. */
void grad_order_keep(GradOrder *t, Stream *s);
/* For each bucket of the last micro-batch. join adds the halves on this rank to grads. share starts the sum between
 * ranks, which leaves the whole sum in this rank's piece of grads (one rank, or comm NULL: at once). */
void grad_order_join(const GradOrder *t, Stream *s, Bucket bucket);
void grad_order_share(const GradOrder *t, Stream *s, Bucket bucket, Comm *comm);

#endif
