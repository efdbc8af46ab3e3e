/* world.h - this process among all: MPI's life, the hosts, the cores, the queue of started collectives. One per
 * process.
 *
 * A dry world stands for ranks that are not there. Groups of ranks, and the collectives over them, are comm.h's. Only
 * the main thread calls these functions (MPI_THREAD_FUNNELED), but for those with "any thread" in their comment.
 * mpi.h is included nowhere but in comm/. A program that no launcher started never calls MPI_Init.
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
    int launched;   /* a launcher started this process: MPI_Init is needed                             */
    int rank, size; /* size 0 = launched, but not known before MPI_Init (srun --mpi=pmix)              */
    int manager;    /* a process manager of MPI is there; srun without --mpi=pmix has none: exit 69    */
} Launch;
Launch launch_detect(void);
/* Returns 1 if mpirun started the processes, which are then one job. Returns 0 if srun did, because its tasks may have
 * different arguments. */
int    launch_is_mpirun(Launch launch);
/* Warns of a launcher's variables without their launcher. */
void   launch_explain_alone(void);
/* Warns of SLURM tasks that a training of one process leaves idle. Other verbs need one process. */
void   launch_explain_tasks(void);
/* Returns the id of the Open MPI launcher on this host that started this process, maybe through scripts, with its name
 * in name [16]; 0 if there is none. */
long   launch_process(char *name);

typedef struct World World;
typedef struct Comm  Comm;
enum { COMM_NAME_CHARS = 16 }; /* characters of a group's name, the last 0 */

/* For the time before world_join (reading the config): rank 0 alone reports a fault there, and it ends the whole job.
 * Costs nothing unless something fails. Exit 69 if the launcher's processes cannot find each other. */
void world_expect(Launch launch);

/* Calls MPI_Init_thread if launched, and error_set_rank(). Exit 69 when the MPI library cannot start. From then on an
 * error of MPI ends the job with 77, naming rank, host and collective. All ranks call it together, and world_leave
 * too. */
World *world_join(Launch launch);
/* For a plan: as if this process were `rank` of `size`, alone on its host. Collectives of its groups move nothing and
 * wait for nobody; each notes its name, its group, the elements and the bytes that this rank would send. ledger:
 * borrowed. No MPI; several may live at once. */
World *world_dry(int size, int rank, Ledger *ledger);
Comm  *world_all(World *w);   /* the group of all ranks; its kind is COMM_RING at first. Owned by w */
void   world_leave(World *w); /* other groups are freed before. Barrier, MPI_Finalize */

int         world_rank(const World *w);
int         world_size(const World *w);
int         world_local_rank(const World *w);  /* among the ranks of this host */
int         world_local_size(const World *w);
const char *world_host(const World *w, int rank);
/* The process of this host's rank `local`; one that cannot be seen runs. Any thread may ask. */
typedef enum { PROCESS_RUNS, PROCESS_STOPPED, PROCESS_GONE } ProcessState;
ProcessState world_neighbour(const World *w, int local);
int          world_neighbour_is_gone(const World *w); /* any of them */
/* Tells the other ranks of this host that this one ends the job after an error that it has reported. SIGCONT carries
 * its local rank. */
void         world_tell_neighbours(void);
const char *world_library(void);               /* "Open MPI 4.1.4", "MPICH 4.0.2", "none" */
const char *world_nccl(void);                  /* "NCCL 2.27.3", "none" */

/* Cores that this rank should use, before a look at OMP_NUM_THREADS. Widens a binding that leaves this host's other
 * cores without a rank (Open MPI binds -np 1 to one core), and divides the rest. Prints one line of advice if it
 * cannot widen, or if SLURM gave each rank one core of many. */
int world_threads(World *w);

/* From here on collectives over buckets, of all groups, work on s's device memory. They wait for the work queued on s
 * before their start. Work queued on s after comm_finish() waits for them (the host need not). On a GPU, collectives
 * that follow no stream work on host memory. */
void world_follow(World *w, Stream *s);

void world_poll(World *w); /* moves started collectives of all groups along; cheap; never blocks */

/* Calls progress(ctx) now and then while a wait for a collective, or for NCCL's start or end, progresses: a long wait
 * is no hang. NULL: no call. */
void world_watch(World *w, void (*progress)(void *ctx), void *ctx);
void world_moved(World *w); /* calls it for progress elsewhere */

/* The collective that this rank is in, else the oldest in flight, else the last one. Any thread may ask, also while
 * the main thread is stuck in it. Ranks of a group at the same point give the same number; -1 and "": none yet. */
typedef struct {
    const char *name;      /* "all-reduce", "barrier", ...           */
    int64_t     number;    /* the group's 0th, 1st, ...              */
    double      since_ms;  /* clock_ms() of its beginning            */
    int         has_ended; /* NCCL: 0 until comm_times has seen the end */
    char        group[COMM_NAME_CHARS]; /* "all": of all ranks             */
} CommCall;
CommCall world_last_call(const World *w);
/* "all-reduce 12", of a group other than all "tensor all-reduce 12" */
enum { CALL_CHARS = 96 };
const char *world_call_text(const char *name, int64_t number, const char *group, char text[CALL_CHARS]);
/* From any thread, when this rank is lost: aborts NCCL's collectives of every group. An abort may hang, so this
 * returns after wait_ms at most. */
void world_abandon(World *w, double wait_ms);

#ifdef __cplusplus
}
#endif
#endif
