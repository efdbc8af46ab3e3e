/* comm.h - this process among all ranks, groups of ranks, and their collectives.
 *
 * A World is this process and its job: the launcher, MPI's start and end, the hosts, the cores, and the queue of
 * started collectives. A process has one. A dry world plans for ranks that do not exist. Only comm/ includes mpi.h. A
 * program that no launcher started never calls MPI_Init.
 *
 * A Comm is a group of ranks. Every collective has one as argument; there is no global one. Only the main thread calls
 * these functions (MPI_THREAD_FUNNELED), except those whose comment says "any thread". Started collectives of all
 * groups of this process progress inside comm_poll() and every wait, because Open MPI moves data only inside its calls.
 * In a group of one every collective does nothing. Ranks start the collectives of one group in the same order.
 * Collectives of different groups may be started in any order, except with NCCL. There all ranks that share two groups
 * start theirs in one order, because a GPU runs them one after another.
 */
#ifndef TRAIN_GPT_COMM_COMM_H
#define TRAIN_GPT_COMM_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "core/device.h"
#include "core/ledger.h"
#include "core/mesh.h"
#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct World World; /* this process and the job that it is a rank of */
typedef struct Comm  Comm;  /* a group of ranks */
enum { COMM_NAME_CHARS = 16 }; /* bytes of a group's name, including the NUL */

/* --- the launcher, and this process among all ranks --------------------------------------------------------------- */

/* Facts that this process reads from the variables of its launcher before MPI_Init: OMPI_COMM_WORLD_*, PMI_* or
 * PMIX_*. SLURM_* count only inside a SLURM step: in a batch script every rank of mpirun inherits the shell's
 * SLURM_PROCID=0. */
typedef struct {
    int launched;   /* 1: a launcher such as mpirun or srun started this process, so MPI_Init is needed */
    int rank, size; /* rank and number of ranks; size is 0 if it is not known before MPI_Init (srun --mpi=pmix) */
    int manager;    /* 1: the launcher has a process manager through which MPI's ranks find each other. srun without
                     * --mpi=pmix has none: exit 69 */
} Launch;
Launch launch_detect(void);
/* Returns 1 if mpirun started the processes, which are then ranks of one job. Returns 0 if srun did, because tasks of
 * srun may have different arguments. */
int    launch_is_mpirun(Launch launch);
/* Warns if the environment has a launcher's variables but that launcher no longer runs. This process then works
 * alone. */
void   launch_explain_alone(void);
/* Warns if SLURM gave the job several tasks but training runs in one process. Only the training command calls it; other
 * commands need one process. */
void   launch_explain_tasks(void);
/* Returns the process id of the Open MPI launcher on this host that started this process, perhaps through scripts, and
 * writes its name to name [16]. Returns 0 if there is none. */
long   launch_process(char *name);

/* Prepares for faults before world_join, while the config is read. Of all ranks only rank 0 then reports a fault, and
 * that ends the whole job. Costs nothing unless something fails. Exit 69 if the launcher's processes cannot find each
 * other. */
void world_expect(Launch launch);

/* Joins the job: calls MPI_Init_thread if launched, and error_set_rank(). Exit 69 if the MPI library cannot start. From
 * then on an error of MPI ends the job with 77, naming rank, host and collective. All ranks call world_join together,
 * and later world_leave together. */
World *world_join(Launch launch);
/* Returns a world for a plan, as if this process were `rank` of `size`, alone on its host. Collectives of its groups
 * move nothing and do not wait. Each notes its name, its group, the elements and the bytes that this rank would send in
 * `ledger`, which is borrowed. Uses no MPI; several such worlds may live at once. */
World *world_dry(int size, int rank, Ledger *ledger);
Comm  *world_all(World *w);   /* returns the group of all ranks, owned by w; its kind is COMM_RING at first */
void   world_leave(World *w); /* waits for all ranks and calls MPI_Finalize; the caller has freed all other groups */

int         world_local_rank(const World *w);  /* returns the number of this rank among the ranks of its host, from 0 */
int         world_local_size(const World *w);
/* Returns the state of another process on this host, that of local rank `local`. Returns PROCESS_RUNS if this process
 * cannot see it. Any thread may call it. */
typedef enum { PROCESS_RUNS, PROCESS_STOPPED, PROCESS_GONE } ProcessState;
ProcessState world_neighbour(const World *w, int local);
int          world_neighbour_is_gone(const World *w); /* returns 1 if any rank's process on this host has ended */
/* Tells the other ranks of this host, by SIGCONT, that this rank ends the job after an error that it has reported. The
 * signal carries its local rank. */
void         world_tell_neighbours(void);
const char *world_library(void);               /* returns the MPI library in use: "Open MPI 4.1.4", "MPICH 4.0.2" or
                                                * "none" */
const char *world_nccl(void);                  /* returns the NCCL library in use: "NCCL 2.27.3" or "none" */

/* Returns the number of cores that this rank should use. OMP_NUM_THREADS, which is read later, may change it. If cores
 * of this host have no rank bound to them (Open MPI binds -np 1 to one core), divides them among the ranks and widens
 * the binding of this process. Prints one line of advice if that fails, or if SLURM gave each rank one core of many. */
int world_threads(World *w);

/* Makes collectives over buckets, of all groups, work on the device memory of stream s from now on. A collective waits
 * for the work that was queued on s before its start. Work queued on s after comm_finish() waits for the collectives
 * (the host need not). On a GPU, collectives work on host memory as long as no stream is followed. */
void world_follow(World *w, Stream *s);

/* Sets the function that reports progress to the watchdog. A wait for a collective calls it when bytes have moved. A
 * wait for NCCL's start or end calls it all the time, at most once in 100 ms. Such waits may be long without being a
 * hang. progress may be NULL. */
void world_watch(World *w, void (*progress)(void *ctx), void *ctx);
void world_moved(World *w); /* calls the function that world_watch has set; also for code outside of comm/ that makes
                             * progress */

/* Record of one collective. Times are those of clock_ms(), in ms. */
typedef struct {
    const char *name;      /* name of the collective: "all-reduce", "barrier", ... */
    int64_t number;        /* number of the collective in its group, from 0 */
    int64_t sequence;      /* number of the collective among all that this process has started over buckets (parameters
                            * that travel together), from 0; not set for small blocking calls */
    double  start_ms;
    double  first_send_ms; /* time when the first message was posted; 0 if none is yet, and for small blocking calls */
    double  end_ms;        /* time when a poll or comm_finish (NCCL: comm_times) found the collective complete; 0 if it
                            * is in flight */
    char    group[COMM_NAME_CHARS]; /* name of the group; "all" is the group of all ranks */
} CommTrace;
/* Returns the collective that this rank is in, otherwise the oldest in flight, otherwise the last one. Any thread may
 * call it, also while the main thread hangs in the collective. Ranks of a group at the same point return the same
 * number. If there was no collective yet, the number is -1 and the name "". */
CommTrace world_last_call(const World *w);
/* Writes a collective's name and number for a message: "all-reduce 12" for the group of all ranks, "tensor all-reduce
 * 12" for the group "tensor". Returns text. */
enum { CALL_CHARS = 96 };
const char *world_call_text(const CommTrace *call, char text[CALL_CHARS]);
/* Aborts NCCL's collectives of every group, because a rank is lost. Any thread may call it. An abort may hang, so this
 * function returns after at most wait_ms. */
void world_abandon(World *w, double wait_ms);

/* --- groups ------------------------------------------------------------------------------------------------------- */

typedef enum { COMM_RING, COMM_MPI, COMM_NCCL } CommKind;
typedef enum { COMM_SUM, COMM_MAX, COMM_MIN } CommReduce;

/* Makes a group of the ranks of `parent` with the same color (0 or more), in order of key, then of rank in parent. All
 * ranks of parent call it together. `name` is copied, up to COMM_NAME_CHARS - 1 characters. The new group's kind is
 * COMM_RING. A group of one takes no resources. */
Comm *comm_split(Comm *parent, int color, int key, const char *name);
/* Makes the group of the ranks that differ from this one only along these axes (WITH_...) of the grid, in rank order.
 * `job` is the group of all ranks of the grid; all of them call it together. */
Comm *comm_group(Comm *job, Mesh mesh, unsigned axes, const char *name);
/* Makes a group of `size` ranks of parent: first, first + stride, first + 2 stride, and so on, this rank included. All
 * ranks of parent call it together, each for its own group. */
Comm *comm_every(Comm *parent, int first, int stride, int size, const char *name);
/* Makes a pair, a group of two for messages. Rank `from` of parent becomes rank 0 and sends, rank `to` becomes rank 1
 * and receives. Messages arrive in the order they are sent. All ranks of parent call it together; on all other ranks it
 * returns NULL. */
Comm *comm_pair(Comm *parent, int from, int to, const char *name);
void  comm_free(Comm *c); /* frees a group; all its ranks call it together. NULL is allowed, the group of world_all() is
                           * not */

World      *comm_world(const Comm *c);
int         comm_rank(const Comm *c); /* returns this rank's number in the group */
int         comm_size(const Comm *c);
const char *comm_host(const Comm *c, int rank); /* returns the host name of rank `rank` of the group */
int         comm_member(const Comm *c, int rank); /* returns the number that rank `rank` of the group has among all
                                                   * ranks of the job */

/* Sets what carries the group's collectives over buckets: the ring, MPI or NCCL. COMM_NCCL creates NCCL's communicator
 * on the GPU of device_open() and connects the ranks, so NCCL allocates all its memory here. All ranks call it
 * together. Exit 69 if that fails, 71 if memory runs out. */
void     comm_set_kind(Comm *c, CommKind kind);
CommKind comm_kind(const Comm *c);
/* Returns the number of ranks that compute on this rank's device, including this one. device_id is the name of this
 * rank's device, the same on every host that sees it. Rank 0 warns of ranks that share a device. Returns 0 if any
 * rank's device_id is "" (on a CPU, which ranks of a host always share). All ranks call it together. */
int comm_device_sharers(Comm *c, const char *device_id);
/* Returns whether every rank computes on a device of its own. All ranks call it together. */
int comm_owns_device(Comm *c, const char *device_id);

/* --- small calls, over MPI for every kind; they block, and started collectives progress meanwhile ----------------- */
void comm_barrier(Comm *c);
void comm_broadcast(Comm *c, void *data, size_t bytes, int root);
void comm_all_reduce_f64(Comm *c, double *values, int count, CommReduce op);
void comm_all_reduce_i64(Comm *c, int64_t *values, int count, CommReduce op);
/* Concatenates the bytes of all ranks, at most INT_MAX in all, on rank `root`, in rank order. Rank `root` gets a
 * malloc'ed buffer and bytes_of_rank[size] (malloc'ed); other ranks get NULL. */
char *comm_gather(Comm *c, const void *data, size_t bytes, int root, size_t **bytes_of_rank);
/* Collective. Rank 0 gets the bytes of all ranks, one after another, malloc'ed, and their number. Others get NULL and
 * 0. */
char *comm_gather_bytes(Comm *c, const void *data, size_t bytes, size_t *total);
/* Returns 1 if any rank has a fault (fault[0] != 0). All ranks then get the text of the lowest such rank. All ranks
 * call it together. With c NULL the function looks at this process only. */
enum { COMM_FAULT_BYTES = 1024 };
int comm_any_fault(Comm *c, char fault[COMM_FAULT_BYTES]);

/* Sends bytes[r] bytes of `send` to each rank r, taken from `send` in order of r. Rank r receives its bytes in order of
 * sending rank. bytes[size] is the same on all ranks, so `receive` holds size * bytes[own rank]. */
void comm_all_to_all(Comm *c, const void *send, const size_t *bytes, void *receive);

/* --- collectives over a bucket of W*q elements, W ranks; piece r is [r*q, (r+1)*q) -------------------------------- */
/* Starts a reduce-scatter, a sum over the ranks. On rank r piece r of x (F32, BF16, F16) becomes the sum, and the other
 * pieces become scratch. Several may be in flight. The memory must stay until comm_finish. 16-bit sums are added in f32
 * and rounded at each addition. */
void comm_reduce_scatter_start(Comm *c, Tensor x);
/* comm_tree_sum_start starts a reduce-scatter that adds in the order of TreeNodes, a binary tree: the bits of the sum
 * are the same for any number of ranks. nodes [count] and x are this rank's partial sums, x the last of them, over its
 * share of the `leaves` (micro-batches) given to comm_tree_open(). Each is F32 and has the bucket's length. All of them
 * become scratch except piece r of x on rank r. */
void comm_tree_open(Comm *c, int64_t leaves); /* sets the number of leaves (micro-batches) of later tree sums, while no
                                               * sum is in flight; allocates small tables */
void comm_tree_sum_start(Comm *c, Tensor x, const Tensor *nodes, int count);
/* Starts an all-gather: piece r of x (any type), which rank r has, is copied to the same place on all ranks. */
void comm_all_gather_start(Comm *c, Tensor x);
/* comm_all_gathers_start starts several all-gathers, in this order, at most GATHERS_MOST. With NCCL they are one call
 * and end together. GATHERS_BEHIND: the pieces to gather were complete before the group's last collective started, so
 * the gathers need not wait for later work on the compute stream (world_follow). */
typedef enum { GATHERS_NOW, GATHERS_BEHIND } GatherOrder;
enum { GATHERS_MOST = 16 };
void comm_all_gathers_start(Comm *c, const Tensor *x, int count, GatherOrder order);
/* Starts an all-reduce: x (F32, BF16, F16; any shape and length) becomes the sum over ranks, with the same bits on all
 * ranks. */
void comm_all_reduce_start(Comm *c, Tensor x);
/* Starts an all-reduce (a sum over ranks) that reads x only after all collectives that `before`, another group of this
 * rank, has started so far. So x may be the result of one of them. */
void comm_all_reduce_after(Comm *c, Tensor x, Comm *before);

/* Runs NCCL's collectives of this group on the compute stream (world_follow) itself, between the work queued before and
 * after them. Meant for collectives whose result is needed at once, and which must not wait behind those of other
 * groups. */
void comm_set_inline(Comm *c);
/* Announces that comm_exchange_start or comm_tree_sum_start will be called on this group, so that NCCL connects every
 * two ranks. Call it before comm_set_kind. */
void comm_set_exchanges(Comm *c);
/* Start a message over a pair: rank 0 sends x, rank 1 receives it, with the same length and type. Each rank waits for
 * its own message (comm_wait, comm_finish) before it uses the memory again. */
void comm_send_start(Comm *pair, Tensor x);
void comm_receive_start(Comm *pair, Tensor x);
/* comm_exchange_start starts messages to and from other ranks of the group, all at once, as one collective. All ranks
 * of the group start it, some perhaps with no message. Messages between two ranks keep their order, and sender and
 * receiver name the same length and type. The caller may free message [count] on return. */
typedef enum { EXCHANGE_SEND, EXCHANGE_RECEIVE } ExchangeSide;
typedef struct { ExchangeSide kind; int peer; Tensor x; /* x: what is sent, or where the message is received; one
                                                         * element or more */ } CommMessage;
void comm_exchange_start(Comm *c, const CommMessage *message, int count);
/* Tells this group that its buckets are in host memory from now on, although world_follow has set a stream on the
 * GPU. */
void comm_set_on_host(Comm *c);

/* While is_offline is 1, this rank's collectives over buckets of this group do nothing and are not counted, so the rank
 * computes without the other ranks. */
void comm_set_offline(Comm *c, int is_offline);

void comm_poll(Comm *c); /* moves started collectives of all groups of the process along; cheap; never blocks */
/* comm_next returns the number of this group's next collective over a bucket. comm_wait waits for all of the group's
 * collectives with numbers up to `sequence`, comm_finish for all. Collectives progress only in such calls, so all ranks
 * of the group must call one of them. */
int64_t comm_next(const Comm *c);
int     comm_is_idle(const Comm *c); /* returns 1 if all collectives over buckets that this group has started are done;
                                      * with NCCL it always returns 1 */
void    comm_wait(Comm *c, int64_t sequence);
void    comm_finish(Comm *c); /* waits for all collectives that this group has started; with NCCL the compute stream
                               * (world_follow) waits, not the host */
/* Blocking forms: each starts the collective over x and waits for it. */
void comm_reduce_scatter(Comm *c, Tensor x);
void comm_all_gather(Comm *c, Tensor x);
void comm_all_reduce(Comm *c, Tensor x);
void comm_all_reduce_max(Comm *c, Tensor x); /* replaces x (F32 only) by the elementwise maximum over ranks */

/* Returns the bytes of the buffers that a group of this kind and size needs for collectives over buckets of any length.
 * They are allocated on first use. The MPI library's own memory is not included. */
size_t comm_buffer_bytes(CommKind kind, int ranks);
size_t comm_tree_bytes(CommKind kind, int ranks, int64_t leaves); /* returns the bytes of the buffers for
                                                                   * comm_tree_sum_start; with NCCL they are in device
                                                                   * memory */
/* Returns the bytes of pinned host memory, in addition to comm_buffer_bytes, for buckets of `elems` elements in flight
 * together: 4 bytes an element, kept for later steps. Ranks on GPUs need it for the ring and MPI. Returns 0 on the CPU
 * and for NCCL. */
size_t comm_staging_bytes(CommKind kind, int ranks, int64_t elems);
/* Purpose of a group's NCCL communicator. It determines how much memory and how many multiprocessors NCCL takes. */
typedef enum {
    COMM_FOR_BUCKETS,  /* collectives that run concurrently with the compute stream (world_follow) */
    COMM_FOR_INLINE,   /* collectives on the compute stream itself (comm_set_inline) */
    COMM_FOR_MESSAGES, /* collectives, and messages between any two ranks (comm_set_exchanges) */
    COMM_FOR_PAIR      /* messages between the two ranks of comm_pair */
} CommUse;
/* Returns an estimate of the GPU memory in bytes that NCCL will take in comm_set_kind, from NCCL's defaults. Returns 0
 * if the kind is not COMM_NCCL. */
size_t comm_library_bytes(CommKind kind, int ranks, CommUse use);
/* Returns how many multiprocessors NCCL's kernels of a group hold at most. Returns 0 if NCCL decides or the kind is not
 * COMM_NCCL. NCCL_MAX_CTAS takes precedence. The GPU must be open. */
int comm_library_blocks(CommKind kind, CommUse use);

/* Times of collectives.
 *   ring, MPI   measured on the host's clock. On a GPU a collective begins when its bucket has arrived in host memory,
 *               or when the compute stream has no other work left while a call waits for the collective, if that is
 *               earlier. exposed_ms counts from the latter moment
 *   NCCL        measured by events on the GPU, read without waiting: a later call counts collectives still in flight
 * So with NCCL the gather of a step's weights, which overlaps later work, mostly counts for the next step. The gather
 * of the last step is not counted. */
typedef struct {
    double  comm_ms;    /* ms from the start of collectives to their end; time in which several collectives of the group
                         * overlap counts once */
    double  exposed_ms; /* part of comm_ms spent inside comm_finish and blocking calls; with NCCL, part in which the
                         * compute stream waited */
    int64_t sent;       /* bytes that this rank sends for collectives over buckets, counted when they start and as the
                         * ring would send them */
    int64_t sends;      /* number of messages that this rank has posted; 0 for COMM_MPI and COMM_NCCL, which do not
                         * count them */
} CommTimes;
CommTimes comm_times(Comm *c); /* returns the times of this group since the last call, and resets them */
/* Makes the next comm_times leave out the time so far. NCCL collectives whose times are not read yet still count. */
void comm_forget_times(Comm *c);

/* --- the order of sums that no number of ranks changes ------------------------------------------------------------ */

/* The order in which a step's gradients are added where no number of ranks may change a bit (parallel.deterministic).
 *
 * The step's K micro-batches are the leaves 0..K-1 of a binary tree over K padded to a power of two. A node is the sum
 * of its two halves; a half without leaves is left out. Of W ranks, rank r has the leaves [r K/W, (r+1) K/W) and adds
 * them to whole nodes, as a binary counter carries. The rank that receives the nodes of all ranks continues in the same
 * tree. So the sum does not depend on which rank makes an addition. */

/* A node of the tree: the sum of the gradients of micro-batches (leaves) number first to first + leaves - 1. `leaves`
 * is a power of two, and `first` a multiple of it. */
typedef struct { int64_t first, leaves; } TreeNode;

enum { TREE_MOST = 64 }; /* most nodes (partial sums) that a range of leaves (micro-batches) needs: node sizes rise by
                          * powers of two, then fall */

/* Nodes (partial sums) that cover a range of leaves (micro-batches), in order and without gaps. No two of them are the
 * two halves of another node. */
typedef struct { int count; TreeNode node[TREE_MOST]; } TreeNodes;

/* Appends a node (partial sum) to the list and joins the last two nodes as long as they are the halves of one node.
 * Returns the number of joins; for each the caller adds the last partial sum to the last but one. When all leaves are
 * there, the remaining nodes are added from the last to the first, because only halves at the end can be missing. */
int tree_push(TreeNodes *nodes, TreeNode node);

/* Returns the nodes (partial sums) that cover the leaves of rank `rank`, if `ranks` ranks divide `leaves` leaves
 * (micro-batches) evenly. */
TreeNodes tree_of_rank(int64_t leaves, int ranks, int rank);

/* Returns how many buffers a rank needs at most for its partial sums (nodes) while it computes a leaf. On one rank, and
 * if leaves and ranks are powers of two, that is at most ceil(log2 leaves). On other numbers of ranks, whose leaves
 * begin anywhere, it is at most 2 ceil(log2(leaves / ranks)). */
int tree_buffers(int64_t leaves, int ranks);

/* For tests: writes the traces of the last collectives over buckets (at most 128) of all groups, oldest first. Returns
 * their number. */
int world_trace(const World *w, CommTrace *out, int max);

#ifdef __cplusplus
}
#endif
#endif
