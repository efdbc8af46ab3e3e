/* tree.h - the order in which a step's gradients are added where no number of ranks may change a bit
 * (parallel.deterministic).
 *
 * The step's K micro-batches are the leaves 0..K-1 of a binary tree over K padded to a power of two. A node is the sum
 * of its two halves; a half without leaves is left out. Rank r has the leaves [r K/W, (r+1) K/W) and adds them to whole
 * nodes, as a binary counter carries. The rank that receives the nodes of all ranks continues in the same tree. So the
 * sum does not depend on which rank makes an addition.
 */
#ifndef TRAIN_GPT_COMM_TREE_H
#define TRAIN_GPT_COMM_TREE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A node of the tree: leaves [first, first + leaves). leaves is a power of two, first a multiple of it. */
typedef struct { int64_t first, leaves; } TreeNode;

enum { TREE_MOST = 64 }; /* most nodes of a run of leaves: sizes rise by powers of two, then fall */

/* Nodes in the order of their leaves, contiguous; no two of them are the two halves of another node. */
typedef struct { int count; TreeNode node[TREE_MOST]; } TreeNodes;

/* Appends a node and joins the last two as long as they are halves of one. Returns the number of joins: for each, the
 * last sum is added to the last but one. When all leaves are there, the remaining nodes are added from the last to the
 * first, because the halves left out are at the end. */
int tree_push(TreeNodes *nodes, TreeNode node);

/* Returns the nodes of the leaves of `rank`, if `ranks` ranks divide `leaves` leaves. ranks divides leaves. */
TreeNodes tree_of_rank(int64_t leaves, int ranks, int rank);

/* Returns the most buffers any rank needs for its nodes while it computes a leaf. On one rank, and if leaves and ranks
 * are powers of two, that is at most ceil(log2 leaves). On other numbers of ranks, whose leaves begin anywhere, it is
 * at most 2 ceil(log2(leaves / ranks)). */
int tree_buffers(int64_t leaves, int ranks);

#ifdef __cplusplus
}
#endif
#endif
