/* collectives.c - the progress of one started collective on host memory, over non-blocking point-to-point messages:
 * around a ring of ranks, a sum in the order of a tree, a message between two ranks; or by MPI's own collectives.
 *
 * Ring. There are W ranks. At step s rank r sends piece r-1-s to its right neighbour and receives piece r-2-s from its
 * left one. In the first W-1 steps it adds the received piece to x: rank r then holds the whole sum of piece r. In the
 * next W-1 steps it copies the received piece, so that every piece reaches all ranks. A piece travels in chunks: a
 * chunk is sent as soon as it is summed, while later chunks are still arriving. The order of the additions depends on W
 * alone, so the bits are the same every time. In an all-gather no order matters, so it uses both directions at once:
 * half as many steps, each a wait for a neighbour. An all-reduce takes any length: its last pieces are shorter, or
 * empty.
 *
 * Tree. Every rank sends piece p of each of its nodes (partial sums) to rank p. Rank p adds the nodes of all ranks in
 * the order of tree.c. With one node on each of W ranks a rank sends W-1 pieces, as in any reduce-scatter. The chunks
 * of all ranks for one place in the piece are received together. Two places are received ahead: one is summed while
 * the next arrives.
 *
 * Message. It is one piece that travels one step, in chunks of MPI_MOST_BYTES.
 *
 * No function of this file waits. Sends that depend on nothing are posted at start, so a neighbour can fetch
 * them whenever it polls.
 */
#ifndef NO_MPI
#include <limits.h>
#include <string.h>

#include "comm/internal.h"
#include "core/format.h"
#include "core/thread.h"
#include "core/simd.h"
#include "core/error.h"

SIMD_INLINE void add_body(float *restrict x, const float *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}
SIMD_KERNEL(void, add, (float *restrict x, const float *restrict y, int64_t n), (x, y, n))
static void add_part(void *unused, float *x, const float *y, int64_t n) { (void)unused, add(x, y, n); }

SIMD_INLINE void add_bf16_body(uint16_t *restrict x, const uint16_t *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = bf16_from_f32(bf16_to_f32(x[i]) + bf16_to_f32(y[i]));
}
SIMD_KERNEL(void, add_bf16, (uint16_t *restrict x, const uint16_t *restrict y, int64_t n), (x, y, n))

static void add_f16(uint16_t *x, const uint16_t *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = f16_from_f32(f16_to_f32(x[i]) + f16_to_f32(y[i]));
}

SIMD_INLINE void take_larger_body(float *restrict x, const float *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] = y[i] > x[i] || y[i] != y[i] ? y[i] : x[i]; /* a NaN in x or y stays NaN */
}
SIMD_KERNEL(void, take_larger, (float *restrict x, const float *restrict y, int64_t n), (x, y, n))

/* --- a ring's chunks, and those of a message ---------------------------------------------------------------------- */

/* A part of x that one message carries: its address and bytes, and the rank at the other end of the message. */
typedef struct { char *at; int bytes, peer; } Chunk;

/* Returns the chunk of message i. At step 0 it is in the piece `back` places before this rank's: SENT = 1 for a message
 * that this rank sends, RECEIVED = 2 for one that it receives. A chunk beyond the end of x is empty, and is sent as an
 * empty message. */
enum { SENT = 1, RECEIVED = 2 };
static Chunk chunk_of(const Op *op, int64_t i, int back) {
    int     rank = op->comm->rank, size = op->comm->size;
    int64_t step = op->first_step + i / op->chunks, at = i % op->chunks * op->chunk_bytes;
    int64_t piece = op_is_message(op->kind) ? 0 : (rank - op->way * (back + step) + 3 * size) % size;
    int64_t from = smaller_of(piece * op->piece_bytes + at, op->total_bytes);
    int64_t bytes = smaller_of(op->chunk_bytes, smaller_of(op->piece_bytes - at, op->total_bytes - from));
    int     to = (rank + op->way + size) % size, by = (rank - op->way + size) % size;
    return (Chunk){(char *)op->x.data + from, (int)bytes,
                   op_is_message(op->kind) ? op->peer : back == SENT ? to : by};
}

static char *buffer(const Comm *c, int64_t i) { return c->chunk + i % WINDOW * CHUNK_BYTES; }

static void post_receives(Op *op) {
    Comm *c = op->comm;
    for (; op->receives < op->messages && op->receives < op->received + WINDOW; op->receives++) {
        int64_t i = op->receives;
        Chunk   chunk = chunk_of(op, i, RECEIVED);
        if (i < op->sums) {
            if (c->chunk_owner < 0) c->chunk_owner = op->sequence;
            if (c->chunk_owner != op->sequence) return; /* waits: an older collective of the group uses the receive
                                                         * buffers, and can end without this one */
            chunk.at = buffer(c, i);
        } else if (op->sums > 0 && op->sent <= i - op->sums) {
            return; /* waits: in an all-reduce the chunk of x to receive into may still be on its way to a neighbour */
        }
        MPI_CHECK(c->world, MPI_Irecv(chunk.at, chunk.bytes, MPI_BYTE, chunk.peer, op_tag(op), c->ring,
                                      &op->receive[i % WINDOW]));
    }
}

/* Takes the oldest posted message if it has arrived, and adds it to x if it belongs to a summing step. Returns 1 if it
 * has arrived. */
static int take_message(Op *op) {
    Comm   *c = op->comm;
    int64_t i = op->received;
    if (i == op->receives || !mpi_is_done(c, &op->receive[i % WINDOW])) return 0;
    if (i < op->sums) {
        Chunk       chunk = chunk_of(op, i, RECEIVED);
        void       *x = chunk.at;
        const void *y = buffer(c, i);
        if (op->kind == OP_ALL_MAX) take_larger(x, y, chunk.bytes / 4);
        else if (op->x.type == F32) add(x, y, chunk.bytes / 4);
        else if (op->x.type == BF16) add_bf16(x, y, chunk.bytes / 2);
        else add_f16(x, y, chunk.bytes / 2);
    }
    if (++op->received == op->sums) c->chunk_owner = -1;
    return 1;
}

static int64_t chunk_bytes(const Op *op) {
    if (op_is_message(op->kind)) return MPI_MOST_BYTES;
    if (op->kind == OP_ALL_GATHER) return COPY_CHUNK_BYTES;
    int64_t quarter = round_up(op->piece_bytes / 4, 256);
    if (op->comm->size == 2) return CHUNK_BYTES;
    return smaller_of(CHUNK_BYTES, larger_of(LEAST_CHUNK_BYTES, quarter));
}

static void plan_chunks(Op *op) {
    Comm *c = op->comm;
    op->chunk_bytes = chunk_bytes(op);
    op->chunks = (op->piece_bytes + op->chunk_bytes - 1) / op->chunk_bytes;
    if (op->kind == OP_SEND) op->to_send = op->chunks;
    if (op->kind == OP_RECEIVE) op->messages = op->chunks;
    if (op_is_message(op->kind)) return;
    if (!c->chunk) c->chunk = xaligned((size_t)(WINDOW * CHUNK_BYTES), "the ring");
    int around = c->size - 1, steps = around;
    if (op_is_all_reduce(op->kind)) steps = 2 * around;
    if (op->kind == OP_ALL_GATHER) steps = op->way > 0 ? around - around / 2 : around / 2;
    op->first_step = op->kind == OP_ALL_GATHER ? around : 0;
    op->messages = op->to_send = steps * op->chunks;
    op->sums = op->kind == OP_ALL_GATHER ? 0 : around * op->chunks;
}

/* --- a tree's chunks ---------------------------------------------------------------------------------------------- */

static int tree_chunk_bytes(const Op *op, int64_t chunk) {
    return (int)smaller_of(op->piece_bytes - chunk * TREE_CHUNK_BYTES, TREE_CHUNK_BYTES);
}

/* Returns the chunk that the i-th send of a tree sum carries. Sends are ordered by chunk, then by receiving rank (this
 * rank + 1 first), then by node (partial sum of this rank). */
static Chunk tree_chunk_of(const Op *op, int64_t i) {
    const Comm *c = op->comm;
    int64_t     mine = c->tree->mine, chunk = i / ((c->size - 1) * mine), rest = i % ((c->size - 1) * mine);
    int         to = (int)((c->rank + 1 + rest / mine) % c->size);
    char       *node = (char *)op->node[rest % mine];
    return (Chunk){node + to * op->piece_bytes + chunk * TREE_CHUNK_BYTES, tree_chunk_bytes(op, chunk), to};
}

/* Returns the address of a chunk of node i (partial sum) of the tree: in this rank's own node, or in the receive
 * buffer. */
static char *tree_chunk_at(const Op *op, int64_t chunk, int i) {
    const Comm        *c = op->comm;
    const struct Tree *t = c->tree;
    if (t->part[i].rank != c->rank) return t->buffer + (chunk % 2 * t->parts + i) * TREE_CHUNK_BYTES;
    return (char *)op->node[t->part[i].index] + c->rank * op->piece_bytes + chunk * TREE_CHUNK_BYTES;
}

static void tree_post_receives(Op *op) {
    Comm        *c = op->comm;
    struct Tree *t = c->tree;
    for (; op->receives < op->messages && op->receives < op->received + 2; op->receives++) {
        if (t->owner < 0) t->owner = op->sequence;
        if (t->owner != op->sequence) return; /* waits: an older sum uses the receive buffer, and can end without this
                                               * one */
        for (int i = 0; i < t->parts; i++) {
            MPI_Request *request = &t->receive[op->receives % 2 * t->parts + i];
            *request = MPI_REQUEST_NULL;
            if (t->part[i].rank != c->rank)
                MPI_CHECK(c->world,
                          MPI_Irecv(tree_chunk_at(op, op->receives, i), tree_chunk_bytes(op, op->receives), MPI_BYTE,
                                    t->part[i].rank, op_tag(op), c->ring, request));
        }
    }
}

/* Adds the partial sums of all ranks for the oldest chunk, in tree order, if all have arrived. Returns 1 if they
 * have. */
static int tree_take_chunk(Op *op) {
    Comm        *c = op->comm;
    struct Tree *t = c->tree;
    int64_t      chunk = op->received;
    int          done;
    if (chunk == op->receives) return 0;
    MPI_CHECK(c->world, MPI_Testall(t->parts, &t->receive[chunk % 2 * t->parts], &done, MPI_STATUSES_IGNORE));
    if (!done) return 0;
    for (int i = 0; i < t->parts; i++) t->at[i] = (float *)(void *)tree_chunk_at(op, chunk, i);
    char  *out = (char *)op->x.data + c->rank * op->piece_bytes + chunk * TREE_CHUNK_BYTES;
    float *sum = tree_fold(t, t->at, tree_chunk_bytes(op, chunk) / 4, add_part, NULL);
    if ((char *)sum != out) memcpy(out, sum, (size_t)tree_chunk_bytes(op, chunk));
    if (++op->received == op->messages) t->owner = -1;
    return 1;
}

static void plan_tree(Op *op) {
    Comm        *c = op->comm;
    struct Tree *t = c->tree;
    if (!t->buffer)
        t->buffer = xaligned(comm_tree_bytes(COMM_RING, c->size, t->leaves),
                             "the gradients of other ranks, which parallel.deterministic adds in order");
    op->messages = (op->piece_bytes + TREE_CHUNK_BYTES - 1) / TREE_CHUNK_BYTES;
    op->to_send = op->messages * (c->size - 1) * t->mine;
}

/* --- parallel.comm = mpi: the library's own collectives, for comparison with the ring ----------------------------- */

static int int_count(int64_t count) {
    if (count > INT_MAX)
        fail(EXIT_CONFIG, "parallel.comm = \"mpi\" sends at most %d elements at once, but a part of this model has "
             "%lld: set parallel.comm = \"ring\"",
             INT_MAX, (long long)count);
    return (int)count;
}

/* Starts one of MPI's own collectives. MPI leaves the result of an in-place reduce-scatter at the front of x.
 * op_progress() moves it to this rank's piece at the end. */
static void mpi_start(Op *op) {
    Comm *c = op->comm;
    void *x = op->x.data;
    int   piece = int_count(op->piece_bytes / (int64_t)dtype_bytes(op->x.type));
    op->messages = 1;
    op->sent = op->to_send = 1;
    switch (op->kind) {
        case OP_REDUCE_SCATTER:
            MPI_CHECK(c->world,
                      MPI_Ireduce_scatter_block(MPI_IN_PLACE, x, piece, MPI_FLOAT, MPI_SUM, c->ring, &op->send[0]));
            break;
        case OP_ALL_GATHER: /* copies any type as 16- or 32-bit integers; counting elements instead of bytes keeps the
                             * counts within an int */
            MPI_CHECK(c->world,
                      MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, piece,
                                     dtype_bytes(op->x.type) == 4 ? MPI_INT32_T : MPI_INT16_T, c->ring, &op->send[0]));
            break;
        case OP_ALL_REDUCE:
        case OP_ALL_MAX:
            MPI_CHECK(c->world, MPI_Iallreduce(MPI_IN_PLACE, x, int_count(tensor_elems(op->x)), MPI_FLOAT,
                                               op->kind == OP_ALL_MAX ? MPI_MAX : MPI_SUM, c->ring, &op->send[0]));
            break;
        default: CHECK(0, "MPI adds in an order of its own, and messages have two ends");
    }
}

/* --- every op ----------------------------------------------------------------------------------------------------- */

static void post(Op *op) {
    Comm *c = op->comm;
    int   is_tree = op->kind == OP_TREE_SUM;
    if (is_tree) tree_post_receives(op);
    else post_receives(op);
    /* The chunks of a tree sum, of a message, and of a ring's first step can be sent at the start. A chunk of a later
     * ring step can be sent once it has been received. */
    int64_t ready = is_tree ? op->to_send : smaller_of(op->to_send, op->received + op->chunks);
    for (; op->sends < ready && op->sends < op->sent + SENDS; op->sends++) {
        Chunk chunk = is_tree ? tree_chunk_of(op, op->sends) : chunk_of(op, op->sends, SENT);
        MPI_CHECK(c->world, MPI_Isend(chunk.at, chunk.bytes, MPI_BYTE, chunk.peer, op_tag(op), c->ring,
                                      &op->send[op->sends % SENDS]));
        c->times.sends++;
    }
}

void op_start(Op *op) {
    if (op->by == COMM_MPI) {
        mpi_start(op);
        return;
    }
    if (op->kind == OP_TREE_SUM) plan_tree(op);
    else plan_chunks(op);
    post(op);
}

/* Tests sends only when they block progress. A test of an MPI request that is not complete costs a pass of MPI's
 * progress engine, and a yield if MPI is set to yield. */
int op_progress(Op *op) {
    Comm *c = op->comm;
    if (op->by == COMM_MPI) {
        if (!mpi_is_done(c, &op->send[0])) return 0;
        char *x = (char *)op->x.data;
        if (op->kind == OP_REDUCE_SCATTER && c->rank > 0)
            memcpy(x + c->rank * op->piece_bytes, x, (size_t)op->piece_bytes);
        op->received = 1;
        return 1;
    }
    for (int moved = 0;; moved = 1) {
        post(op);
        int sends_matter = op->received == op->receives || op->sends == op->sent + SENDS;
        if (op->kind == OP_TREE_SUM ? tree_take_chunk(op) : take_message(op)) continue;
        if (!sends_matter || op->sent == op->sends || !mpi_is_done(c, &op->send[op->sent % SENDS])) return moved;
        op->sent++;
    }
}
#endif
