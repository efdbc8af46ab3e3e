/* grad_order.h - parallel.deterministic: adds a step's gradients in the order of comm/comm.h, for any number of ranks.
 *
 * The gradients of each micro-batch are complete before they are added to anything. Sums that wait for their other half
 * are kept in buffers apart from the model's gradients. The last micro-batch's gradients stay in the model's gradients,
 * and its buckets are exchanged between the ranks as backward completes them.
 */
#ifndef TRAIN_GPT_MODEL_GRAD_ORDER_H
#define TRAIN_GPT_MODEL_GRAD_ORDER_H

#include "comm/comm.h"
#include "core/layout.h"
#include "layers/layers.h"

typedef struct {
    int64_t   leaves;              /* micro-batches of a step over all ranks; 0: not in this mode    */
    int64_t   leaf;                /* the micro-batch whose gradients are computed next              */
    TreeNodes nodes;               /* sums of this rank's earlier micro-batches; node i is in buffer i */
    Tensor    grads;               /* [memory_elems] f32, borrowed: the model's gradients            */
    Tensor    buffer[TREE_MOST];   /* [memory_elems] f32 each: sums that wait                        */
    int       buffers;
} GradOrder;

/* Carves as many buffers as the rank that needs most. */
GradOrder grad_order_create(const Layout *layout, int64_t leaves, Tensor grads, Arena *arena);

void grad_order_begin(GradOrder *t, int64_t first_leaf);
/* Call it after a micro-batch that is not this rank's last. Adds its gradients to the sum they belong to, or moves them
 * to a buffer. grads is free again. */
void grad_order_keep(GradOrder *t, Stream *s);
/* For each bucket of the last micro-batch. grad_order_join adds the sums of this rank to grads. grad_order_share starts
 * the sum over the ranks, which leaves the whole sum in this rank's piece of grads. With one rank, or comm NULL, the
 * sum is complete at once. */
void grad_order_join(const GradOrder *t, Stream *s, Bucket bucket);
void grad_order_share(const GradOrder *t, Stream *s, Bucket bucket, Comm *comm);

#endif
