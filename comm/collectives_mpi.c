/* collectives_mpi.c - parallel.comm = mpi: the library's own collectives, for comparison with the ring.
 *
 * MPI leaves an in-place reduce-scatter at the front of the memory; it is moved to this rank's piece at the end.
 */
#ifndef NO_MPI
#include <limits.h>
#include <string.h>

#include "comm/internal.h"
#include "core/thread.h"

static int int_count(int64_t count) {
    if (count > INT_MAX)
        fail(EXIT_CONFIG, "parallel.comm: \"mpi\" counts up to %d elements, this bucket has %lld; use \"ring\"",
             INT_MAX, (long long)count);
    return (int)count;
}

void collectives_mpi_start(Op *op) {
    Comm *c = op->comm;
    void *x = op->x.data;
    int   piece = int_count(op->piece_bytes / (int64_t)dtype_bytes(op->x.type));
    op->messages = 1;
    op->sent = op->to_send = 1;
    op->first_send_ms = clock_ms();
    switch (op->kind) {
        case OP_REDUCE_SCATTER:
            MPI_CHECK(c->world, MPI_Ireduce_scatter_block(MPI_IN_PLACE, x, piece, MPI_FLOAT, MPI_SUM, c->ring, &op->send[0]));
            break;
        case OP_ALL_GATHER: /* any type's bytes; a piece counted in elements of the type keeps counts small */
            MPI_CHECK(c->world,
                      MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, piece,
                                     dtype_bytes(op->x.type) == 4 ? MPI_INT32_T : MPI_INT16_T, c->ring, &op->send[0]));
            break;
        case OP_ALL_REDUCE:
        case OP_ALL_MAX:
            MPI_CHECK(c->world, MPI_Iallreduce(MPI_IN_PLACE, x, int_count(tensor_elems(op->x)), MPI_FLOAT,
                                               op->kind == OP_ALL_MAX ? MPI_MAX : MPI_SUM, c->ring, &op->send[0]));
            break;
        case OP_TREE_SUM:
        case OP_SEND:
        case OP_RECEIVE:
        case OP_EXCHANGE: CHECK(0, "MPI adds in an order of its own, and messages are pair.c's");
    }
}

int collectives_mpi_progress(Op *op) {
    Comm *c = op->comm;
    int   done;
    MPI_CHECK(c->world, MPI_Test(&op->send[0], &done, MPI_STATUS_IGNORE));
    if (!done) return 0;
    char *x = (char *)op->x.data;
    if (op->kind == OP_REDUCE_SCATTER && c->rank > 0) memcpy(x + c->rank * op->piece_bytes, x, (size_t)op->piece_bytes);
    op->received = 1;
    return 1;
}

void comm_mpi_reduce_scatter(Comm *c, float *out, const float *x, int64_t piece_elems) {
    MPI_CHECK(c->world, MPI_Reduce_scatter_block(x, out, int_count(piece_elems), MPI_FLOAT, MPI_SUM, c->small));
}
void comm_mpi_all_gather(Comm *c, float *x, int64_t piece_elems) {
    MPI_CHECK(c->world, MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, x, int_count(piece_elems), MPI_FLOAT, c->small));
}
void comm_mpi_all_reduce(Comm *c, float *x, int64_t piece_elems) {
    MPI_CHECK(c->world, MPI_Allreduce(MPI_IN_PLACE, x, int_count(piece_elems * c->size), MPI_FLOAT, MPI_SUM, c->small));
}
#endif
