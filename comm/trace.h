/* trace.h - for tests and benches alone: times of collectives, and MPI's own collectives beside ours. */
#ifndef TRAIN_GPT_COMM_TRACE_H
#define TRAIN_GPT_COMM_TRACE_H

#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The last collectives over buckets (at most 128) of all groups, oldest first, on clock_ms(); returns their number. */
typedef struct {
    const char *name;      /* of the collective                                      */
    int64_t number;        /* as in CommCall                                         */
    int64_t sequence;      /* the process's 0th, 1st, ... collective over a bucket   */
    double  start_ms;
    double  first_send_ms; /* 0: nothing posted yet                                  */
    double  end_ms;        /* 0: in flight; else when a poll or finish (NCCL: comm_times) saw it end */
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
