/* tree.c - the order of TreeNodes, a binary tree over a step's micro-batches (comm.h), and the tables of a group for
 * sums in that order. collectives.c and nccl.cu compute the sums. */
#include <stdlib.h>

#include "comm/internal.h"
#include "core/error.h"

int tree_push(TreeNodes *t, TreeNode node) {
    CHECK(t->count < TREE_MOST, "more than %d nodes", TREE_MOST);
    int joined = 0;
    t->node[t->count++] = node;
    for (; t->count > 1; joined++) {
        TreeNode a = t->node[t->count - 2], b = t->node[t->count - 1];
        int      are_halves = a.leaves == b.leaves && a.first + a.leaves == b.first && a.first % (2 * a.leaves) == 0;
        if (!are_halves) break;
        t->node[--t->count - 1].leaves *= 2;
    }
    return joined;
}

TreeNodes tree_of_rank(int64_t leaves, int ranks, int rank) {
    CHECK(leaves % ranks == 0, "%lld micro-batches on %d ranks", (long long)leaves, ranks);
    TreeNodes t = {0};
    int64_t   first = leaves / ranks * rank, end = first + leaves / ranks;
    while (first < end) { /* takes the largest node that begins at `first` and ends at or before `end` */
        TreeNode node = {first, 1};
        while (first % (2 * node.leaves) == 0 && first + 2 * node.leaves <= end) node.leaves *= 2;
        tree_push(&t, node);
        first += node.leaves;
    }
    return t;
}

int tree_buffers(int64_t leaves, int ranks) {
    int most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        TreeNodes t = {0};
        int64_t   first = leaves / ranks * rank, end = first + leaves / ranks;
        for (int64_t leaf = first; leaf < end; leaf++) {
            if (t.count > most) most = t.count;
            tree_push(&t, (TreeNode){leaf, 1});
        }
    }
    return most;
}

/* --- the sum ------------------------------------------------------------------------------------------------------ */

static int parts_of(int64_t leaves, int ranks) {
    int parts = 0;
    for (int r = 0; r < ranks; r++) parts += tree_of_rank(leaves, ranks, r).count;
    return parts;
}

size_t comm_tree_bytes(CommKind kind, int ranks, int64_t leaves) {
    if (ranks == 1) return 0;
    return (size_t)parts_of(leaves, ranks) *
           (kind == COMM_NCCL ? (size_t)NCCL_TREE_CHUNK_BYTES : 2 * (size_t)TREE_CHUNK_BYTES);
}

void comm_tree_open(Comm *c, int64_t leaves) {
    CHECK(c->ops == 0, "%d collectives in flight", c->ops);
    if (c->tree) tree_close(c);
    if (c->size == 1) return;
    struct Tree *t = c->tree = xcalloc(1, sizeof *t, "a communicator");
    t->leaves = leaves, t->owner = -1, t->parts = parts_of(leaves, c->size);
    t->part = xcalloc((size_t)t->parts, sizeof *t->part, "the sums of a step");
    t->at = xcalloc((size_t)t->parts, sizeof *t->at, "the sums of a step");
    t->receive = xcalloc(2 * (size_t)t->parts, sizeof *t->receive, "the sums of a step");
    for (int r = 0, at = 0; r < c->size; r++) {
        TreeNodes nodes = tree_of_rank(leaves, c->size, r);
        if (r == c->rank) t->mine = nodes.count;
        for (int i = 0; i < nodes.count; i++) t->part[at++] = (TreePart){r, i, nodes.node[i]};
    }
    if (c->nccl) nccl_tree_open(c);
}

void tree_close(Comm *c) {
    struct Tree *t = c->tree;
    free(t->receive);
    free(t->buffer);
    free(t->at);
    free(t->part);
    free(t);
    c->tree = NULL;
}

float *tree_fold(const struct Tree *t, float **at, int64_t n, TreeAdd *add, void *ctx) {
    TreeNodes nodes = {0};
    float    *sum[TREE_MOST];
    for (int i = 0; i < t->parts; i++) {
        sum[nodes.count] = at[i];
        int joined = tree_push(&nodes, t->part[i].node), last = nodes.count + joined - 1;
        for (; joined > 0; joined--, last--) add(ctx, sum[last - 1], sum[last], n);
    }
    for (int last = nodes.count - 1; last > 0; last--) add(ctx, sum[last - 1], sum[last], n);
    return sum[0];
}
