/* no_mpi.c - the build without MPI (make MPI=0): one process. Calls that need a second rank are never reached. */
#ifdef NO_MPI
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/internal.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

static NORETURN void needs_mpi(void) {
    fail(EXIT_NODEVICE, "this build has no MPI: rebuild with make MPI=ompi-c or MPI=mpich");
}

const char *world_library(void) { return "none"; }

/* Ends processes that a launcher started, because without MPI they cannot find each other. Otherwise each would train
 * alone in the same run folder. */
void world_expect(Launch launch) {
    if (!launch.launched) return;
    if (launch.rank > 0 && (launch.manager || !getenv("SLURM_STEP_ID"))) _exit(EXIT_NODEVICE);
    if (launch.rank > 0)
        fail(EXIT_NODEVICE, "SLURM_PROCID=%d says that srun started this process beside others, and this build has no "
             "MPI; in a shell without srun, type: unset SLURM_STEP_ID", launch.rank);
    needs_mpi();
}
void world_start(World *w, Launch launch) { world_expect(launch); }
void world_stop(World *w) {}
void world_local_all_gather(World *w, const void *mine, void *all, size_t bytes) { memcpy(all, mine, bytes); }

void  group_all(Comm *c) { needs_mpi(); }
void  group_split(Comm *c, Comm *parent, int color, int key) { needs_mpi(); }
void  group_free(Comm *c) { needs_mpi(); }
void  group_barrier(Comm *c) { needs_mpi(); }
void  group_broadcast(Comm *c, void *data, size_t bytes, int root) { needs_mpi(); }
void  group_all_reduce(Comm *c, void *values, int count, DType type, CommReduce op) { needs_mpi(); }
void  group_all_to_all(Comm *c, const char *send, const size_t *bytes, char *receive) { needs_mpi(); }
char *group_gather(Comm *c, const void *data, size_t bytes, int root, size_t **of) { needs_mpi(); }

void op_start(Op *op) { needs_mpi(); }
int  op_progress(Op *op) { needs_mpi(); }
#endif
