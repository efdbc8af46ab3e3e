/* tree.c - see tree.h. */
#include "comm/tree.h"

#include "core/error.h"

static int are_halves(TreeNode a, TreeNode b) {
    return a.leaves == b.leaves && a.first + a.leaves == b.first && a.first % (2 * a.leaves) == 0;
}

int tree_push(TreeNodes *t, TreeNode node) {
    CHECK(t->count < TREE_MOST, "more than %d nodes", TREE_MOST);
    int joined = 0;
    t->node[t->count++] = node;
    for (; t->count > 1 && are_halves(t->node[t->count - 2], t->node[t->count - 1]); joined++) t->node[--t->count - 1].leaves *= 2;
    return joined;
}

TreeNodes tree_of_rank(int64_t leaves, int ranks, int rank) {
    CHECK(leaves % ranks == 0, "%lld micro-batches on %d ranks", (long long)leaves, ranks);
    TreeNodes t = {0};
    int64_t   first = leaves / ranks * rank, end = first + leaves / ranks;
    while (first < end) { /* takes the largest node that begins here and ends before `end` */
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
