/* world.h - this process among all: MPI's life, the hosts, the cores, the queue of started collectives. One per
 * process.
 *
 * A dry world plans for ranks that do not exist. Groups of ranks, and their collectives, are in comm.h. Only the main
 * thread calls these functions (MPI_THREAD_FUNNELED), except those with "any thread" in their comment. Only comm/
 * includes mpi.h. A program that no launcher started never calls MPI_Init.
 */
#ifndef TRAIN_GPT_COMM_WORLD_H
#define TRAIN_GPT_COMM_WORLD_H

#include <stddef.h>
#include <stdint.h>

#include "core/device.h"
#include "core/ledger.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rank and size before MPI_Init, from the launcher's OMPI_COMM_WORLD_*, PMI_*, PMIX_*; SLURM_* only inside a step (in
 * a batch script every rank of mpirun inherits the shell's SLURM_PROCID=0). */
typedef struct {
    int launched;   /* a launcher started this process, so MPI_Init is needed */
    int rank, size; /* size is 0 if launched, but not known before MPI_Init (srun --mpi=pmix) */
    int manager;    /* a process manager of MPI is there; srun without --mpi=pmix has none, exit 69 */
} Launch;
Launch launch_detect(void);
/* Returns 1 if mpirun started the processes, which are then one job. Returns 0 if srun did, because its tasks may have
 * different arguments. */
int    launch_is_mpirun(Launch launch);
/* Warns of a launcher's variables if that launcher does not run. */
void   launch_explain_alone(void);
/* Warns of SLURM tasks that a training of one process leaves idle. Other verbs need one process. */
void   launch_explain_tasks(void);
/* Returns the id of the Open MPI launcher on this host that started this process, maybe through scripts, with its name
 * in name [16]; 0 if there is none. */
long   launch_process(char *name);

typedef struct World World;
typedef struct Comm  Comm;
enum { COMM_NAME_CHARS = 16 }; /* characters of a group's name, the last 0 */

/* Prepares for faults before world_join, while the config is read: rank 0 alone reports a fault, and it ends the whole
 * job. Costs nothing unless something fails. Exit 69 if the launcher's processes cannot find each other. */
void world_expect(Launch launch);

/* Joins the job: calls MPI_Init_thread if launched, and error_set_rank(). Exit 69 if the MPI library cannot start. From
 * then on an error of MPI ends the job with 77, naming rank, host and collective. All ranks call it together, and
 * world_leave too. */
World *world_join(Launch launch);
/* Returns a world for a plan, as if this process were `rank` of `size`, alone on its host. Collectives of its groups
 * move nothing and do not wait. Each notes its name, its group, the elements and the bytes that this rank would send.
 * ledger is borrowed. Uses no MPI; several such worlds may live at once. */
World *world_dry(int size, int rank, Ledger *ledger);
Comm  *world_all(World *w);   /* the group of all ranks; its kind is COMM_RING at first. Owned by w */
void   world_leave(World *w); /* all other groups must be freed before; barrier, MPI_Finalize */

int         world_rank(const World *w);
int         world_size(const World *w);
int         world_local_rank(const World *w);  /* number among the ranks of this host */
int         world_local_size(const World *w);
const char *world_host(const World *w, int rank);
/* Returns the state of the process of this host's rank `local`; PROCESS_RUNS if it cannot be seen. Any thread may call
 * it. */
typedef enum { PROCESS_RUNS, PROCESS_STOPPED, PROCESS_GONE } ProcessState;
ProcessState world_neighbour(const World *w, int local);
int          world_neighbour_is_gone(const World *w); /* 1 if any process of this host is gone */
/* Tells the other ranks of this host that this one ends the job after an error that it has reported. SIGCONT carries
 * its local rank. */
void         world_tell_neighbours(void);
const char *world_library(void);               /* "Open MPI 4.1.4", "MPICH 4.0.2" or "none" */
const char *world_nccl(void);                  /* "NCCL 2.27.3" or "none" */

/* Returns the number of cores that this rank should use, before OMP_NUM_THREADS is read. Widens a binding that leaves
 * other cores of this host without a rank (Open MPI binds -np 1 to one core), and divides the rest. Prints one line of
 * advice if it cannot widen, or if SLURM gave each rank one core of many. */
int world_threads(World *w);

/* Makes collectives over buckets, of all groups, work on s's device memory from now on. They wait for the work queued
 * on s before their start. Work queued on s after comm_finish() waits for them (the host need not). On a GPU,
 * collectives that follow no stream work on host memory. */
void world_follow(World *w, Stream *s);

void world_poll(World *w); /* moves started collectives of all groups along; cheap; never blocks */

/* Sets a function that is called now and then while a wait for a collective, or for NCCL's start or end, makes
 * progress: such a long wait is no hang. progress may be NULL. */
void world_watch(World *w, void (*progress)(void *ctx), void *ctx);
void world_moved(World *w); /* calls the function of world_watch, for progress elsewhere */

/* A collective: the one that this rank is in, otherwise the oldest in flight, otherwise the last one. Any thread may
 * call world_last_call, also while the main thread hangs in the collective. Ranks of a group at the same point return
 * the same number. -1 and "" if there was none yet. */
typedef struct {
    const char *name;      /* name: "all-reduce", "barrier", ... */
    int64_t     number;    /* number in the group, from 0 */
    double      since_ms;  /* clock_ms() at its begin */
    int         has_ended; /* NCCL: 0 until comm_times has seen the end */
    char        group[COMM_NAME_CHARS]; /* name of the group; "all" is the group of all ranks */
} CommCall;
CommCall world_last_call(const World *w);
/* Writes "all-reduce 12" for the group of all ranks, or "tensor all-reduce 12" for another. Returns text. */
enum { CALL_CHARS = 96 };
const char *world_call_text(const char *name, int64_t number, const char *group, char text[CALL_CHARS]);
/* Aborts NCCL's collectives of every group when this rank is lost. Called from any thread. An abort may hang, so this
 * returns after at most wait_ms. */
void world_abandon(World *w, double wait_ms);

#ifdef __cplusplus
}
#endif
#endif
