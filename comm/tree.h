/* tree.h - the order in which a step's gradients are added where no number of ranks may change a bit
 * (parallel.deterministic).
 *
 * The step's K micro-batches are the leaves 0..K-1 of a binary tree over K padded to a power of two. A node is the
 * sum of its two halves; a half without leaves is left out. Rank r has the leaves [r K/W, (r+1) K/W) and adds them to
 * whole nodes, as a binary counter carries. The holder of all ranks' nodes goes on adding in the same tree. So the
 * sum does not depend on the rank of an addition.
 */
#ifndef TRAIN_GPT_COMM_TREE_H
#define TRAIN_GPT_COMM_TREE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The leaves [first, first + leaves): leaves is a power of two, first a multiple of it. */
typedef struct { int64_t first, leaves; } TreeNode;

enum { TREE_MOST = 64 }; /* nodes of a run of leaves: sizes rise by powers of two, then fall */

/* Nodes side by side in order of their leaves, none of which are the two halves of another. */
typedef struct { int count; TreeNode node[TREE_MOST]; } TreeNodes;

/* Appends a node and joins the last two as long as they are halves of one. Returns the number of joins: so many times
 * the last sum is added to the last but one. When all leaves are there, the remaining nodes are added from the last
 * to the first: the halves left out lie at the end. */
int tree_push(TreeNodes *nodes, TreeNode node);

/* The nodes of rank's leaves, leaves of all ranks. ranks divides leaves. */
TreeNodes tree_of_rank(int64_t leaves, int ranks, int rank);

/* The most buffers any rank needs to keep nodes in while it computes a leaf: at most ceil(log2 leaves) on one rank and
 * where leaves and ranks are powers of two; on other numbers of ranks, whose runs begin anywhere, at most 2
 * ceil(log2(leaves / ranks)). */
int tree_buffers(int64_t leaves, int ranks);

#ifdef __cplusplus
}
#endif
#endif
