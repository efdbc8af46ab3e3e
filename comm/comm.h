/* comm.h - ranks and collectives. A Comm is a group of ranks; every collective takes one, there is no global.
 *
 * Only the main thread calls these (MPI_THREAD_FUNNELED). Started collectives progress inside comm_poll() and finish(): Open MPI moves
 * data only inside its calls. mpi.h is included nowhere but in comm/. With one rank every collective is a no-op, and a program that
 * no launcher started never calls MPI_Init.
 */
#ifndef TRAIN_GPT_COMM_COMM_H
#define TRAIN_GPT_COMM_COMM_H

#include "core/device.h"
#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the launcher says before MPI_Init: rank and size from OMPI_COMM_WORLD_*, PMI_*, PMIX_*; SLURM_* only inside a step (in a batch
 * script every rank of mpirun inherits the shell's SLURM_PROCID=0). */
typedef struct {
    int launched;   /* a launcher started this process: MPI_Init is needed                             */
    int rank, size; /* size 0 = launched, but not known before MPI_Init (srun --mpi=pmix)              */
    int manager;    /* a process manager of MPI is there; srun without --mpi=pmix has none: exit 69    */
} Launch;
Launch launch_detect(void);

typedef enum { COMM_RING, COMM_MPI, COMM_NCCL } CommKind;
typedef enum { COMM_SUM, COMM_MAX, COMM_MIN } CommReduce;
typedef struct Comm Comm;

/* For what comes before comm_create (reading the config): a fault there is told once, by rank 0, and ends the whole job. Costs nothing
 * unless something fails. Exit 69 if the launcher's processes cannot find each other. */
void comm_expect(Launch launch);

/* All ranks of the job. Calls MPI_Init_thread if launched, and error_set_rank(). Exit 69 when the MPI library cannot start. From then on
 * an error of MPI ends the job with 77, naming rank, host and collective. */
Comm *comm_create(Launch launch, CommKind kind);
/* COMM_NCCL makes its communicator here, over the GPU that device_open() chose, and connects the ranks, so that its memory is taken and what
 * is free afterwards is free: all ranks call it together. Exit 69 where that fails, 71 if memory is what lacks. */
void     comm_set_kind(Comm *c, CommKind kind);
CommKind comm_kind(const Comm *c);
void     comm_destroy(Comm *c);   /* barrier, MPI_Finalize */
/* From here on collectives over buckets work on s's device memory: they wait for what s has queued when they are started, and what s queues
 * after comm_finish() waits for them (the host need not). On a GPU, collectives that follow no stream work on host memory. */
void comm_follow(Comm *c, Stream *s);
/* Whether every rank computes on a device of its own, where device_id names this rank's; rank 0 warns of ranks that share one. 0 if
 * device_id is "" (processors are shared anyway). All ranks call it together. */
int  comm_owns_device(Comm *c, const char *device_id);

int         comm_rank(const Comm *c);
int         comm_size(const Comm *c);
int         comm_local_rank(const Comm *c);  /* among the ranks of this host */
int         comm_local_size(const Comm *c);
const char *comm_host(const Comm *c, int rank);
int         comm_neighbour_is_gone(const Comm *c); /* the process of another rank of this host has ended. Any thread may ask */
const char *comm_library(void);              /* "Open MPI 4.1.4", "MPICH 4.0.2", "none" */

/* The collective that this rank is in, or that is the oldest it has in flight; else the last one. Any thread may ask, also while the main
 * thread is stuck in it. Ranks that have come equally far give the same number; -1 and "": there was none yet. */
typedef struct {
    const char *name;      /* "all-reduce", "barrier", ... */
    int64_t     number;
    double      since_ms;  /* clock_ms() of its beginning  */
    int         has_ended; /* NCCL: of what comm_times has not seen to end, nothing is known */
} CommCall;
CommCall comm_last_call(const Comm *c);
/* From any thread, when this rank is lost: NCCL gives up what the GPU waits for, which may take for ever: wait_ms at most are waited. */
void     comm_abandon(Comm *c, double wait_ms);

/* Cores this rank should use: widens a binding that leaves this host's other cores without a rank (Open MPI binds -np 1 to one core),
 * divides the rest; the figure before OMP_NUM_THREADS is looked at. Prints one line of advice if it cannot widen, or if SLURM gave each
 * rank one core of many. */
int comm_threads(Comm *c);

/* --- small things, over MPI whatever the kind; they block ------------------------------------------------------------------------ */
void comm_barrier(Comm *c);
void comm_broadcast(Comm *c, void *data, size_t bytes, int root);
void comm_all_reduce_f64(Comm *c, double *values, int count, CommReduce op);
void comm_all_reduce_i64(Comm *c, int64_t *values, int count, CommReduce op);
/* Concatenates the ranks' bytes on root in rank order; root gets a malloc'ed buffer and bytes_of_rank[size] (malloc'ed), others NULL. */
char *comm_gather(Comm *c, const void *data, size_t bytes, int root, size_t **bytes_of_rank);

/* --- collectives over a bucket [W*q]; piece r is [r*q, (r+1)*q) ------------------------------------------------------------------- */
/* Starts: piece `rank` of x (F32) becomes the sum over ranks, the other pieces become scratch. Several may be in flight; all ranks
 * start them in the same order. The memory must stay until finish. */
void comm_reduce_scatter_start(Comm *c, Tensor x);
/* Starts the same in the order of tree.h, the same bits for any number of ranks: nodes [count] and, as the last, x are this rank's nodes of the
 * `leaves` that comm_tree_open() was told, each with the bucket's length (F32). All of them become scratch but piece `rank` of x. */
void comm_tree_open(Comm *c, int64_t leaves); /* between sums; allocates what is small */
void comm_tree_sum_start(Comm *c, Tensor x, const Tensor *nodes, int count);
/* Starts: every rank's piece `rank` of x (any type) is copied to that place on all ranks. */
void comm_all_gather_start(Comm *c, Tensor x);
/* progress(ctx) is called now and then while a wait for a collective, or for NCCL to start or end, gets on: long ones are no hang. NULL:
 * nobody is told. */
void comm_watch(Comm *c, void (*progress)(void *ctx), void *ctx);
void comm_tell_progress(Comm *c); /* tells it of progress elsewhere */
void comm_poll(Comm *c);       /* lets what was started progress; cheap; never blocks */
/* The number of the collective that is started next; and waits for those up to number `sequence`, as comm_finish for all. A rank may wait
 * for its peers in here: all of them must come to wait for it too, or finish. */
int64_t comm_next(const Comm *c);
void    comm_wait(Comm *c, int64_t sequence);
void comm_finish(Comm *c);     /* waits for everything started; with NCCL the followed stream does, not the host */
/* Start and finish. */
void comm_reduce_scatter(Comm *c, Tensor x);
void comm_all_gather(Comm *c, Tensor x);
void comm_all_reduce(Comm *c, Tensor x); /* F32: reduce-scatter, then all-gather */

/* Bytes of buffers that the collectives of a communicator of this kind and size take, whatever the buckets' length; allocated on first
 * use. (What the MPI library takes for itself is not in it.) */
size_t comm_buffer_bytes(CommKind kind, int ranks);
size_t comm_tree_bytes(CommKind kind, int ranks, int64_t leaves); /* the same of comm_tree_sum_start; NCCL: of device memory */
/* Bytes of pinned host memory that buckets of `elems` elements, in flight together, take beside that where a GPU's ranks use the ring or
 * MPI (each bucket at 4 bytes an element, kept for the next step); 0 on the CPU and for NCCL. */
size_t comm_staging_bytes(CommKind kind, int ranks, int64_t elems);
/* Bytes of GPU memory that NCCL will take for itself in comm_set_kind: an estimate, from its defaults; 0 for the other kinds. */
size_t comm_library_bytes(CommKind kind, int ranks);

/* Ring and MPI are timed on the host's clock; on a GPU from when a bucket has reached host memory, exposed_ms from when the followed stream
 * has nothing else left to do. NCCL is timed by events on the GPU, read without waiting: what has not ended yet is told by a later call. So the
 * gather of a step's weights, which runs on under what follows, mostly counts for the next step, and the last step's for none. */
typedef struct {
    double  comm_ms;    /* from a collective's start to its end, summed over what did not overlap another one */
    double  exposed_ms; /* of it, spent inside comm_finish and blocking calls; NCCL: the followed stream stood still */
    int64_t sends;      /* messages this rank has posted; 0 for COMM_MPI and COMM_NCCL, which do not tell     */
} CommTimes;
CommTimes comm_times(Comm *c); /* since the last call; resets them */
/* Leaves what has passed so far out of the next comm_times; NCCL's collectives, which are told late, stay in it. */
void comm_forget_times(Comm *c);

/* What happened when, on clock_ms(), for the last collectives over buckets (at most 128), oldest first; returns how many. */
typedef struct {
    const char *name;      /* of the collective                                      */
    int64_t number;        /* as in CommCall                                         */
    int64_t sequence;      /* the communicator's 0th, 1st, ... collective over a bucket */
    double  start_ms;
    double  first_send_ms; /* 0: nothing posted yet                                  */
    double  end_ms;        /* 0: in flight; else when a poll or finish (NCCL: comm_times) saw it end */
} CommTrace;
int comm_trace(const Comm *c, CommTrace *out, int max);

/* --- MPI's own blocking collectives on F32, called plainly: the yardstick of bench-comm; needs a launched program --------------- */
void comm_mpi_reduce_scatter(Comm *c, float *out, const float *x, int64_t piece_elems); /* out [q], x [W*q] */
void comm_mpi_all_gather(Comm *c, float *x, int64_t piece_elems);                       /* in place, x [W*q] */
void comm_mpi_all_reduce(Comm *c, float *x, int64_t piece_elems);                       /* in place, x [W*q] */

#ifdef __cplusplus
}
#endif
#endif
