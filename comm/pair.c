/* pair.c - a message from rank 0 of a pair to rank 1, or of an exchange, on host memory. MPI keeps their order. */
#ifndef NO_MPI
#include "comm/internal.h"
#include "core/thread.h"

enum { PART_BYTES = 1 << 30 }; /* longest message, because MPI counts with int */

void pair_start(Op *op) {
    Comm   *c = op->comm;
    int64_t parts = (op->total_bytes + PART_BYTES - 1) / PART_BYTES;
    CHECK(parts <= SENDS, "a message of %lld bytes", (long long)op->total_bytes);
    op->first_send_ms = clock_ms();
    for (int64_t i = 0; i < parts; i++) {
        char   *at = (char *)op->x.data + i * PART_BYTES;
        int64_t left = op->total_bytes - i * PART_BYTES;
        int     bytes = (int)(left < PART_BYTES ? left : PART_BYTES);
        if (op->kind == OP_SEND) MPI_CHECK(c->world, MPI_Isend(at, bytes, MPI_BYTE, op->peer, op_tag(op), c->ring, &op->send[i]));
        else MPI_CHECK(c->world, MPI_Irecv(at, bytes, MPI_BYTE, op->peer, op_tag(op), c->ring, &op->send[i]));
    }
    if (op->kind == OP_SEND) op->to_send = parts, c->times.sends += parts;
    else op->messages = parts;
}

int pair_progress(Op *op) {
    int moved = 0;
    for (int64_t *ended = op->kind == OP_SEND ? &op->sent : &op->received; !op_is_done(op); moved = 1, ++*ended) {
        int is_done;
        MPI_CHECK(op->comm->world, MPI_Test(&op->send[*ended], &is_done, MPI_STATUS_IGNORE));
        if (!is_done) break;
    }
    return moved;
}
#endif
