/* comm.h - groups of ranks and their collectives. A Comm is a group; every collective takes one, there is no global.
 *
 * Only the main thread calls these (MPI_THREAD_FUNNELED). Started collectives of all groups of this process progress
 * inside comm_poll() and every wait, because Open MPI moves data only inside its calls. In a group of one every
 * collective does nothing. Ranks start the collectives of one group in the same order. Collectives of different groups
 * may be started in any order, except with NCCL. There all ranks that share two groups start theirs in one order,
 * because a GPU runs them one after another.
 */
#ifndef TRAIN_GPT_COMM_COMM_H
#define TRAIN_GPT_COMM_COMM_H

#include "comm/world.h"
#include "core/device.h"
#include "core/mesh.h"
#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { COMM_RING, COMM_MPI, COMM_NCCL } CommKind;
typedef enum { COMM_SUM, COMM_MAX, COMM_MIN } CommReduce;

/* Makes a group of the ranks of `parent` with the same color (0 or more), in order of key, then of rank in parent. All
 * ranks of parent call it together. `name` is copied, up to COMM_NAME_CHARS - 1 characters. The new group's kind is
 * COMM_RING. A group of one takes no resources. */
Comm *comm_split(Comm *parent, int color, int key, const char *name);
/* Makes a group of the ranks that differ from this one only in these axes (WITH_...) of the grid, in rank order. `job`
 * is the whole grid; all its ranks call it together. */
Comm *comm_group(Comm *job, Mesh mesh, unsigned axes, const char *name);
/* Makes a group of the ranks first, first + stride, first + 2 stride, ... of parent: `size` of them, this one included.
 * All ranks of parent call it together, each for its own group. */
Comm *comm_every(Comm *parent, int first, int stride, int size, const char *name);
/* Makes a pair for messages from rank `from` of parent to rank `to`, which become ranks 0 and 1 of it. Messages arrive
 * in the order they are sent. All ranks of parent call it together; it returns NULL on the others. */
Comm *comm_pair(Comm *parent, int from, int to, const char *name);
void  comm_free(Comm *c); /* all ranks of the group call it together; NULL does nothing; not for the group of
                           * world_all() */

World      *comm_world(const Comm *c);
int         comm_rank(const Comm *c); /* this rank's number in the group */
int         comm_size(const Comm *c);
const char *comm_name(const Comm *c);
const char *comm_host(const Comm *c, int rank); /* host of rank `rank` of the group */
int         comm_member(const Comm *c, int rank); /* number, among all ranks, of rank `rank` of the group */

/* Sets how the group's collectives over buckets travel. COMM_NCCL creates its communicator here, on the GPU of
 * device_open(), and connects the ranks: afterwards NCCL has all its memory, and the rest is free. All ranks call it
 * together. Exit 69 if that fails, 71 if memory runs out. */
void     comm_set_kind(Comm *c, CommKind kind);
CommKind comm_kind(const Comm *c);
/* Returns the number of ranks that compute on this rank's device, including this one. device_id is the name of this
 * rank's device, the same on every host that sees it. Rank 0 warns of ranks that share a device. Returns 0 if any
 * rank's device_id is "" (processors are always shared). All ranks call it together. */
int comm_device_sharers(Comm *c, const char *device_id);
/* Returns whether every rank computes on a device of its own. All ranks call it together. */
int comm_owns_device(Comm *c, const char *device_id);

/* --- small calls, over MPI for every kind; they block, and started collectives progress meanwhile ----------------- */
void comm_barrier(Comm *c);
void comm_broadcast(Comm *c, void *data, size_t bytes, int root);
void comm_all_reduce_f64(Comm *c, double *values, int count, CommReduce op);
void comm_all_reduce_i64(Comm *c, int64_t *values, int count, CommReduce op);
/* Concatenates the ranks' bytes on root in rank order. root gets a malloc'ed buffer and bytes_of_rank[size]
 * (malloc'ed); other ranks get NULL. */
char *comm_gather(Comm *c, const void *data, size_t bytes, int root, size_t **bytes_of_rank);

/* Sends bytes[r] bytes of `send` to each rank r, taken from `send` in order of r. Rank r receives them in order of
 * sender. bytes[size] is the same on all ranks, so `receive` holds size * bytes[own rank]. */
void comm_all_to_all(Comm *c, const void *send, const size_t *bytes, void *receive);

/* --- collectives over a bucket [W*q]; piece r is [r*q, (r+1)*q) --------------------------------------------------- */
/* Starts a sum over ranks: piece `rank` of x (F32, BF16, F16) becomes the sum, and the other pieces become scratch.
 * Several may be in flight. The memory must stay until comm_finish. 16-bit sums are added in f32 and rounded at each
 * addition. */
void comm_reduce_scatter_start(Comm *c, Tensor x);
/* Starts the sum of comm_reduce_scatter_start in the order of tree.h: the bits are the same for any number of ranks.
 * nodes [count], and x as the last, are this rank's nodes of the `leaves` given to comm_tree_open(). Each is F32 and
 * has the bucket's length. All of them become scratch except piece `rank` of x. */
void comm_tree_open(Comm *c, int64_t leaves); /* called between sums; allocates small tables */
void comm_tree_sum_start(Comm *c, Tensor x, const Tensor *nodes, int count);
/* Starts a gather: every rank's piece `rank` of x (any type) is copied to the same place on all ranks. */
void comm_all_gather_start(Comm *c, Tensor x);
/* Starts several gathers, in this order, at most GATHERS_MOST. With NCCL they are one call and end together.
 * GATHERS_BEHIND: their pieces have been complete since the group's last collective started, so they need not wait for
 * later work of the followed stream. */
typedef enum { GATHERS_NOW, GATHERS_BEHIND } GatherOrder;
enum { GATHERS_MOST = 16 };
void comm_all_gathers_start(Comm *c, const Tensor *x, int count, GatherOrder order);
/* Starts a sum: x (F32, BF16, F16; any shape and length) becomes the sum over ranks, with the same bits on all of
 * them. */
void comm_all_reduce_start(Comm *c, Tensor x);
/* Starts a maximum: x (F32 only) becomes the maximum over ranks. */
void comm_all_reduce_max_start(Comm *c, Tensor x);
/* Starts an all-reduce like comm_all_reduce_start, but reads x only after everything is done that `before`, another
 * group of this rank, has started so far. So x may be the result of `before`. */
void comm_all_reduce_after(Comm *c, Tensor x, Comm *before);

/* Runs NCCL's collectives of this group on the followed stream itself, between the work before and after them. For
 * collectives whose result is needed at once, and which must not wait behind those of other groups. */
void comm_set_inline(Comm *c);
/* Called before comm_set_kind if comm_exchange_start or comm_tree_sum_start will be called. NCCL then connects every
 * two ranks. */
void comm_set_exchanges(Comm *c);
/* Start a message over a pair: rank 0 sends x, rank 1 receives it, with the same length and type. Each rank waits for
 * its own message (comm_wait, comm_finish) before it uses the memory again. */
void comm_send_start(Comm *pair, Tensor x);
void comm_receive_start(Comm *pair, Tensor x);
/* Starts messages to and from other ranks of the group, all at once, as one collective. All ranks of the group start
 * it, some perhaps with no message. Messages between two ranks keep their order, and both name the same length and
 * type. The caller may free the list on return. */
typedef enum { EXCHANGE_SEND, EXCHANGE_RECEIVE } ExchangeSide;
typedef struct { ExchangeSide kind; int peer; Tensor x; /* one element or more */ } CommMessage;
void comm_exchange_start(Comm *c, const CommMessage *message, int count);
/* Says that this group's buckets are in host memory from now on, although a stream is followed. */
void comm_set_on_host(Comm *c);

/* While is_offline is 1, this rank's collectives of the group over buckets do nothing and are not counted: it computes
 * without the other ranks. */
void comm_set_offline(Comm *c, int is_offline);

void comm_poll(Comm *c); /* moves collectives along: world_poll of the group's world */
/* comm_next returns the number of this group's next collective over a bucket. comm_wait waits for all with numbers up
 * to `sequence`, comm_finish for all. A rank may wait here for its peers, so all of them must also call comm_wait or
 * comm_finish. */
int64_t comm_next(const Comm *c);
int     comm_is_idle(const Comm *c); /* every collective over buckets that this group has started is done; not for
                                      * NCCL */
void    comm_wait(Comm *c, int64_t sequence);
void    comm_finish(Comm *c); /* waits for every collective this group has started; with NCCL the followed stream waits,
                               * not the host */
/* Start the collective and wait for it. */
void comm_reduce_scatter(Comm *c, Tensor x);
void comm_all_gather(Comm *c, Tensor x);
void comm_all_reduce(Comm *c, Tensor x);
void comm_all_reduce_max(Comm *c, Tensor x);

/* Returns the bytes of buffers for the collectives of a group of this kind and size, for buckets of any length. They
 * are allocated on first use. The MPI library's own memory is not included. */
size_t comm_buffer_bytes(CommKind kind, int ranks);
size_t comm_tree_bytes(CommKind kind, int ranks, int64_t leaves); /* bytes of buffers for comm_tree_sum_start; with NCCL
                                                                   * of device memory */
/* Returns the further bytes of pinned host memory for buckets of `elems` elements in flight together, if ranks on GPUs
 * use the ring or MPI: 4 bytes an element, kept for the next step. 0 on the CPU and for NCCL. */
size_t comm_staging_bytes(CommKind kind, int ranks, int64_t elems);
/* Purpose of the communicator of a group. It sets how much memory and how many multiprocessors NCCL takes. */
typedef enum {
    COMM_FOR_BUCKETS,  /* collectives that run beside the followed stream */
    COMM_FOR_INLINE,   /* collectives on the followed stream: comm_set_inline */
    COMM_FOR_MESSAGES, /* also messages between any two ranks: comm_set_exchanges */
    COMM_FOR_PAIR      /* messages of comm_pair */
} CommUse;
/* Returns an estimate of the GPU memory in bytes that NCCL will take in comm_set_kind, from its defaults. 0 for other
 * kinds. */
size_t comm_library_bytes(CommKind kind, int ranks, CommUse use);
/* Returns how many multiprocessors NCCL's kernels of a group hold at most, or 0 if NCCL decides or the kind is another.
 * NCCL_MAX_CTAS takes precedence. The GPU must be open. */
int comm_library_blocks(CommKind kind, CommUse use);

/* Times of collectives.
 *   ring, MPI   measured on the host's clock. On a GPU a collective begins when its bucket has arrived in host memory. If a
 *               call waits and the followed stream's other work ends before that, it begins at that end, and so does
 *               exposed_ms
 *   NCCL        measured by events on the GPU, read without waiting: a later call counts collectives still in flight
 * So with NCCL the gather of a step's weights, which overlaps later work, mostly counts for the next step. The gather of
 * the last step is not counted. */
typedef struct {
    double  comm_ms;    /* from a collective's start to its end; time in which several of the group overlap counts
                         * once */
    double  exposed_ms; /* the share of comm_ms inside comm_finish and blocking calls; NCCL: in which the followed
                         * stream waited */
    int64_t sent;       /* bytes that this rank sends for collectives over buckets, as the ring does; counted at their
                         * start */
    int64_t sends;      /* messages this rank has posted; 0 for COMM_MPI and COMM_NCCL, which do not count them */
} CommTimes;
CommTimes comm_times(Comm *c); /* returns the times of this group since the last call, and resets them */
/* Leaves the time so far out of the next comm_times. Collectives of NCCL that are counted late stay in it. */
void comm_forget_times(Comm *c);

#ifdef __cplusplus
}
#endif
#endif
