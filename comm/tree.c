/* tree.c - sums in the order of TreeNodes, a binary tree over a step's micro-batches (comm.h). comm_tree_sum_start is a
 * reduce-scatter whose additions follow that order, over non-blocking point-to-point messages.
 *
 * Every rank sends piece p of each of its nodes to rank p. Rank p adds the nodes of all ranks in the tree's order. With
 * one node on each of W ranks a rank sends W-1 pieces, as in any reduce-scatter. Pieces travel in chunks. The chunks of
 * all ranks for one place in the piece are received together. Two places are received ahead: one is summed while the
 * next arrives. No function of this file waits.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"
#include "core/format.h"
#include "core/thread.h"
#include "core/error.h"

static int are_halves(TreeNode a, TreeNode b) {
    return a.leaves == b.leaves && a.first + a.leaves == b.first && a.first % (2 * a.leaves) == 0;
}

int tree_push(TreeNodes *t, TreeNode node) {
    CHECK(t->count < TREE_MOST, "more than %d nodes", TREE_MOST);
    int joined = 0;
    t->node[t->count++] = node;
    for (; t->count > 1 && are_halves(t->node[t->count - 2], t->node[t->count - 1]); joined++)
        t->node[--t->count - 1].leaves *= 2;
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

#ifndef NO_MPI
static int chunk_bytes(const Op *op, int64_t chunk) {
    return (int)smaller_of(op->piece_bytes - chunk * TREE_CHUNK_BYTES, TREE_CHUNK_BYTES);
}

/* Returns the address of a chunk of node i (partial sum) of the tree: in this rank's own node, or in the receive
 * buffer. */
static char *chunk_at(const Op *op, int64_t chunk, int i) {
    const Comm        *c = op->comm;
    const struct Tree *t = c->tree;
    if (t->part[i].rank != c->rank) return t->buffer + (chunk % 2 * t->parts + i) * TREE_CHUNK_BYTES;
    return (char *)op->node[t->part[i].index] + c->rank * op->piece_bytes + chunk * TREE_CHUNK_BYTES;
}

static void post_receives(Op *op) {
    Comm        *c = op->comm;
    struct Tree *t = c->tree;
    for (; op->receives < op->messages && op->receives < op->received + 2; op->receives++) {
        if (t->owner < 0) t->owner = op->sequence;
        if (t->owner != op->sequence) return; /* an older sum uses the receive buffer, and can end without this one */
        for (int i = 0; i < t->parts; i++) {
            MPI_Request *request = &t->receive[op->receives % 2 * t->parts + i];
            *request = MPI_REQUEST_NULL;
            if (t->part[i].rank != c->rank)
                MPI_CHECK(c->world, MPI_Irecv(chunk_at(op, op->receives, i), chunk_bytes(op, op->receives), MPI_BYTE,
                                              t->part[i].rank, op_tag(op), c->ring, request));
        }
    }
}

/* Posts sends, ordered by chunk, then by receiving rank (this rank + 1 first), then by node. */
static void post_sends(Op *op) {
    Comm              *c = op->comm;
    const struct Tree *t = c->tree;
    for (; op->sends < op->to_send && op->sends < op->sent + SENDS; op->sends++) {
        int64_t chunk = op->sends / ((c->size - 1) * t->mine), rest = op->sends % ((c->size - 1) * t->mine);
        int     to = (int)((c->rank + 1 + rest / t->mine) % c->size);
        char   *at = (char *)op->node[rest % t->mine] + to * op->piece_bytes + chunk * TREE_CHUNK_BYTES;
        if (op->sends == 0) op->first_send_ms = clock_ms();
        MPI_CHECK(c->world, MPI_Isend(at, chunk_bytes(op, chunk), MPI_BYTE, to, op_tag(op), c->ring,
                                      &op->send[op->sends % SENDS]));
        c->times.sends++;
    }
}

/* Adds the oldest chunk in tree order if all ranks' parts of it have arrived. Returns 1 if they have. */
static int take_chunk(Op *op) {
    Comm        *c = op->comm;
    struct Tree *t = c->tree;
    int64_t      chunk = op->received;
    int          done;
    if (chunk == op->receives) return 0;
    MPI_CHECK(c->world, MPI_Testall(t->parts, &t->receive[chunk % 2 * t->parts], &done, MPI_STATUSES_IGNORE));
    if (!done) return 0;
    for (int i = 0; i < t->parts; i++) t->at[i] = (float *)(void *)chunk_at(op, chunk, i);
    char *out = (char *)op->x.data + c->rank * op->piece_bytes + chunk * TREE_CHUNK_BYTES;
    float *sum = tree_fold(t, t->at, chunk_bytes(op, chunk) / 4, ring_add, NULL);
    if ((char *)sum != out) memcpy(out, sum, (size_t)chunk_bytes(op, chunk));
    if (++op->received == op->messages) t->owner = -1;
    return 1;
}

int tree_sum_progress(Op *op) {
    for (int moved = 0;; moved = 1) {
        post_receives(op);
        post_sends(op);
        if (take_chunk(op)) continue;
        if (op->sent == op->sends || !mpi_is_done(op->comm, &op->send[op->sent % SENDS])) return moved;
        op->sent++;
    }
}

void tree_sum_start(Op *op) {
    Comm        *c = op->comm;
    struct Tree *t = c->tree;
    if (!t->buffer)
        t->buffer = xaligned(comm_tree_bytes(COMM_RING, c->size, t->leaves),
                             "the gradients of other ranks, which parallel.deterministic adds in order");
    op->messages = (op->piece_bytes + TREE_CHUNK_BYTES - 1) / TREE_CHUNK_BYTES;
    op->to_send = op->messages * (c->size - 1) * t->mine;
    post_receives(op);
    post_sends(op);
}
#endif
