/* trace.h - for tests and benches alone: times of collectives, and MPI's own collectives beside ours. */
#ifndef TRAIN_GPT_COMM_TRACE_H
#define TRAIN_GPT_COMM_TRACE_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the last collectives over buckets (at most 128) of all groups, oldest first, in times of clock_ms(). Returns
 * their number. */
typedef struct {
    const char *name;      /* name of the collective */
    int64_t number;        /* number in its group, as in CommCall */
    int64_t sequence;      /* number among the process's collectives over buckets, from 0 */
    double  start_ms;
    double  first_send_ms; /* 0 if nothing is posted yet */
    double  end_ms;        /* 0 in flight; otherwise when a poll or finish (NCCL: comm_times) saw it end */
    char    group[COMM_NAME_CHARS];
} CommTrace;
int world_trace(const World *w, CommTrace *out, int max);

/* MPI's own blocking collectives on F32, called plainly: the yardstick of bench-comm; needs a launched program. */
void comm_mpi_reduce_scatter(Comm *c, float *out, const float *x, int64_t piece_elems); /* out [q], x [W*q] */
void comm_mpi_all_gather(Comm *c, float *x, int64_t piece_elems);                       /* in place, x [W*q] */
void comm_mpi_all_reduce(Comm *c, float *x, int64_t piece_elems);                       /* in place, x [W*q] */

#ifdef __cplusplus
}
#endif
#endif
