/* grad_order.c - see grad_order.h. */
#include "model/grad_order.h"

GradOrder grad_order_create(const Layout *layout, int64_t leaves, Tensor grads, Arena *arena) {
    GradOrder t = {.leaves = leaves, .grads = grads, .buffers = tree_buffers(leaves, layout->ranks)};
    for (int i = 0; i < t.buffers; i++) t.buffer[i] = arena_tensor(arena, F32, 1, layout->memory_elems, 1, 1);
    return t;
}

void grad_order_begin(GradOrder *t, int64_t first_leaf) {
    t->leaf = first_leaf;
    t->nodes.count = 0;
}

/* Either half's memory may hold the sum, because a + b has the bits of b + a. */
void grad_order_keep(GradOrder *t, Stream *s) {
    if (t->buffers == 0) return; /* a step has one micro-batch, and this one only times products */
    int at = t->nodes.count, joined = tree_push(&t->nodes, (TreeNode){t->leaf++, 1});
    if (joined == 0) cast_forward(s, t->buffer[at], t->grads);
    for (Tensor sum = t->grads; joined > 0; joined--, sum = t->buffer[at]) add_forward(s, t->buffer[--at], sum);
}

static Tensor of_bucket(Tensor flat, Bucket bucket) { return tensor_slice(flat, bucket.memory, bucket.elems); }

/* Returns the number of nodes that still wait in buffers after the last micro-batch has been added to its halves. */
static int waiting(const GradOrder *t) {
    TreeNodes nodes = t->nodes;
    return t->nodes.count - tree_push(&nodes, (TreeNode){t->leaf, 1});
}

void grad_order_join(const GradOrder *t, Stream *s, Bucket bucket) {
    for (int at = t->nodes.count - 1; at >= waiting(t); at--)
        add_forward(s, of_bucket(t->grads, bucket), of_bucket(t->buffer[at], bucket));
}

void grad_order_share(const GradOrder *t, Stream *s, Bucket bucket, Comm *comm) {
    Tensor x = of_bucket(t->grads, bucket), node[TREE_MOST];
    int    count = waiting(t);
    for (int i = 0; i < count; i++) node[i] = of_bucket(t->buffer[i], bucket);
    if (comm && comm_size(comm) > 1) comm_tree_sum_start(comm, x, node, count);
    else
        for (int i = count - 1; i >= 0; i--) add_forward(s, x, node[i]);
}
