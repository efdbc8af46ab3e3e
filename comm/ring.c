/* ring.c - collectives over non-blocking point-to-point messages: reduce-scatter, all-gather and all-reduce around a
 * ring of ranks, and single messages.
 *
 * There are W ranks. At step s rank r sends piece r-1-s to its right neighbour and receives piece r-2-s from its left
 * one. In the first W-1 steps it adds the received piece to x: rank r then holds the whole sum of piece r. In the next
 * W-1 steps it copies the received piece, so that every piece reaches all ranks. A piece travels in chunks: a chunk is
 * sent as soon as it is summed, while later chunks are still arriving. The order of the additions depends on W alone,
 * so the bits are the same every time.
 *
 * In an all-gather no order matters, so it uses both directions at once: half as many steps, each a wait for a
 * neighbour. An all-reduce takes any length: its last pieces are shorter, or empty.
 *
 * No function of this file waits. Sends that depend on nothing are posted at start, so a neighbour can fetch
 * them whenever it polls.
 */
#ifndef NO_MPI
#include <stdlib.h>

#include "comm/internal.h"
#include "core/format.h"
#include "core/thread.h"
#include "core/simd.h"

SIMD_INLINE void add_body(float *restrict x, const float *restrict y, int64_t n) {
    for (int64_t i = 0; i < n; i++) x[i] += y[i];
}
SIMD_KERNEL(void, add, (float *restrict x, const float *restrict y, int64_t n), (x, y, n))
void ring_add(void *unused, float *x, const float *y, int64_t n) { (void)unused, add(x, y, n); }

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

static void join_bytes(OpKind kind, DType type, void *x, const void *y, int64_t bytes) {
    if (kind == OP_ALL_MAX) take_larger(x, y, bytes / 4);
    else if (type == F32) add(x, y, bytes / 4);
    else if (type == BF16) add_bf16(x, y, bytes / 2);
    else add_f16(x, y, bytes / 2);
}

typedef struct {
    char *at;    /* address of the chunk in op->x */
    int   bytes;
} Chunk;

/* Returns the chunk of message i. At step 0 it is in the piece `back` places before this rank's: SENT = 1 for a message
 * that this rank sends, RECEIVED = 2 for one that it receives. A chunk beyond the end of x is empty, and is sent as an
 * empty message. */
enum { SENT = 1, RECEIVED = 2 };
static Chunk chunk_of(const Op *op, int64_t i, int back) {
    int     rank = op->comm->rank, size = op->comm->size;
    int64_t step = op->first_step + i / op->chunks, at = i % op->chunks * op->chunk_bytes;
    int64_t piece = (rank - op->way * (back + step) + 3 * size) % size;
    int64_t from = smaller_of(piece * op->piece_bytes + at, op->total_bytes);
    int64_t bytes = smaller_of(op->chunk_bytes, smaller_of(op->piece_bytes - at, op->total_bytes - from));
    return (Chunk){(char *)op->x.data + from, (int)bytes};
}

static char *buffer(const Comm *c, int64_t i) { return c->chunk + i % WINDOW * CHUNK_BYTES; }

static int neighbour(const Comm *c, int to) { return (c->rank + to + c->size) % c->size; }

static void post_receives(Op *op) {
    Comm *c = op->comm;
    int   from = neighbour(c, -op->way);
    for (; op->receives < op->messages && op->receives < op->received + WINDOW; op->receives++) {
        int64_t i = op->receives;
        Chunk   chunk = chunk_of(op, i, RECEIVED);
        if (i < op->sums) {
            if (c->chunk_owner < 0) c->chunk_owner = op->sequence;
            if (c->chunk_owner != op->sequence) return; /* an older collective uses the receive buffers, and can end
                                                         * without this one */
            chunk.at = buffer(c, i);
        } else if (op->sums > 0 && op->sent <= i - op->sums) {
            return; /* the place to receive into is still being sent: an all-reduce must wait */
        }
        MPI_CHECK(c->world,
                  MPI_Irecv(chunk.at, chunk.bytes, MPI_BYTE, from, op_tag(op), c->ring, &op->receive[i % WINDOW]));
    }
}

/* Posts sends. Chunks of the first step are ready at the start, those of a later step once they are received. */
static void post_sends(Op *op) {
    Comm *c = op->comm;
    int   to = neighbour(c, op->way);
    for (; op->sends < op->messages && op->sends < op->received + op->chunks && op->sends < op->sent + SENDS;
         op->sends++) {
        Chunk chunk = chunk_of(op, op->sends, SENT);
        if (op->sends == 0) op->first_send_ms = clock_ms();
        MPI_CHECK(c->world,
                  MPI_Isend(chunk.at, chunk.bytes, MPI_BYTE, to, op_tag(op), c->ring, &op->send[op->sends % SENDS]));
        c->times.sends++;
    }
}

/* Takes the oldest posted message if it has arrived, and adds it to x if it belongs to a summing step. Returns 1 if it
 * has arrived. */
static int take_message(Op *op) {
    Comm   *c = op->comm;
    int64_t i = op->received;
    if (i == op->receives || !mpi_is_done(c, &op->receive[i % WINDOW])) return 0;
    if (i < op->sums) {
        Chunk chunk = chunk_of(op, i, RECEIVED);
        join_bytes(op->kind, op->x.type, chunk.at, buffer(c, i), chunk.bytes);
    }
    if (++op->received == op->sums) c->chunk_owner = -1;
    return 1;
}

/* Makes progress with a collective around the ring; returns whether anything progressed. A test of a request that is
 * not complete costs a pass of MPI's progress engine, and where MPI yields also a yield. So sends are tested only when
 * they block progress. */
static int ring_progress(Op *op) {
    for (int moved = 0;; moved = 1) {
        post_receives(op);
        post_sends(op);
        int sends_matter = op->received == op->receives || op->sends == op->sent + SENDS;
        if (take_message(op)) continue;
        if (!sends_matter || op->sent == op->sends || !mpi_is_done(op->comm, &op->send[op->sent % SENDS])) return moved;
        op->sent++;
    }
}

static int64_t chunk_bytes(const Op *op) {
    if (op->kind == OP_ALL_GATHER) return COPY_CHUNK_BYTES;
    int64_t quarter = round_up(op->piece_bytes / 4, 256);
    if (op->comm->size == 2) return CHUNK_BYTES;
    return smaller_of(CHUNK_BYTES, larger_of(LEAST_CHUNK_BYTES, quarter));
}

static void ring_start(Op *op) {
    Comm *c = op->comm;
    if (!c->chunk) c->chunk = xaligned((size_t)(WINDOW * CHUNK_BYTES), "the ring");
    int around = c->size - 1, steps = around;
    if (op_is_all_reduce(op->kind)) steps = 2 * around;
    if (op->kind == OP_ALL_GATHER) steps = op->way > 0 ? around - around / 2 : around / 2;
    op->chunk_bytes = chunk_bytes(op);
    op->chunks = (op->piece_bytes + op->chunk_bytes - 1) / op->chunk_bytes;
    op->first_step = op->kind == OP_ALL_GATHER ? around : 0;
    op->messages = op->to_send = steps * op->chunks;
    op->sums = op->kind == OP_ALL_GATHER ? 0 : around * op->chunks;
    post_receives(op);
    post_sends(op);
}

/* --- messages from one rank to another ---------------------------------------------------------------------------- */

static void pair_start(Op *op) {
    Comm   *c = op->comm;
    int64_t parts = (op->total_bytes + MPI_MOST_BYTES - 1) / MPI_MOST_BYTES;
    CHECK(parts <= SENDS, "a message of %lld bytes", (long long)op->total_bytes);
    op->first_send_ms = clock_ms();
    for (int64_t i = 0; i < parts; i++) {
        char   *at = (char *)op->x.data + i * MPI_MOST_BYTES;
        int64_t left = op->total_bytes - i * MPI_MOST_BYTES;
        int     bytes = (int)smaller_of(left, MPI_MOST_BYTES);
        if (op->kind == OP_SEND)
            MPI_CHECK(c->world, MPI_Isend(at, bytes, MPI_BYTE, op->peer, op_tag(op), c->ring, &op->send[i]));
        else MPI_CHECK(c->world, MPI_Irecv(at, bytes, MPI_BYTE, op->peer, op_tag(op), c->ring, &op->send[i]));
    }
    if (op->kind == OP_SEND) op->to_send = parts, c->times.sends += parts;
    else op->messages = parts;
}

static int pair_progress(Op *op) {
    int moved = 0;
    for (int64_t *ended = op->kind == OP_SEND ? &op->sent : &op->received; !op_is_done(op); moved = 1, ++*ended)
        if (!mpi_is_done(op->comm, &op->send[*ended])) break;
    return moved;
}

/* --- every op ----------------------------------------------------------------------------------------------------- */

void op_start(Op *op) {
    if (op->kind == OP_TREE_SUM) tree_sum_start(op);
    else if (op_is_message(op->kind)) pair_start(op);
    else if (op->by == COMM_RING) ring_start(op);
    else collectives_mpi_start(op);
}

int op_progress(Op *op) {
    if (op->kind == OP_TREE_SUM) return tree_sum_progress(op);
    if (op_is_message(op->kind)) return pair_progress(op);
    return op->by == COMM_RING ? ring_progress(op) : collectives_mpi_progress(op);
}
#endif
