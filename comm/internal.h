/* internal.h - types and functions that the files of comm/ share; no other file includes it.
 *
 *   launch.c   what the launcher gave this process: its rank, and its cores
 *   world.c    this process as a rank of the job
 *   comm.c     groups and their small blocking calls
 *   queue.c    the started collectives of all groups, and their clock
 *   collectives.c  the progress of one started collective, or of a message between two ranks, on host memory
 *   tree.c     the order of TreeNodes (a binary tree), and a group's tables for sums in it
 *   mpi.c      start and end of MPI, communicators, and the small blocking calls over MPI
 *   staging.cu copies of GPU memory to the host memory of collectives.c, and back
 *   nccl.cu    collectives by NCCL, queued on the GPU
 *
 * In a build without MPI, no_mpi.c replaces collectives.c and mpi.c. In a build without CUDA, staging.c and nccl.c
 * replace the .cu files. */
#ifndef TRAIN_GPT_COMM_INTERNAL_H
#define TRAIN_GPT_COMM_INTERNAL_H

#ifdef NO_MPI
typedef int MPI_Comm;
typedef int MPI_Request;
#else
#include <mpi.h>
#endif

#include <sys/types.h>

#include "comm/comm.h"
#include "core/failpoints.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    WINDOW = 4,      /* number of receives that a collective posts ahead, and of a group's buffers for received
                      * chunks */
    SENDS = 64,      /* number of sends that a collective posts ahead: a neighbour can fetch them even while this rank
                      * does not poll */
    TRACES = 128,
    HOST_CHARS = 64
};
/* Sizes of the chunks that a piece is sent in, measured on two AVX-512 cores, Open MPI 4.1.4, 2 and 4 ranks:
 *   a chunk to be summed should still lie in the L2 cache after its arrival
 *   a piece that is passed on should have four chunks, so that neighbours work at once
 *   a piece that is only copied gains from fewer messages */
static const int64_t CHUNK_BYTES = 256 << 10, LEAST_CHUNK_BYTES = 64 << 10, COPY_CHUNK_BYTES = 1 << 20;

enum { NOT_STAGED = -2 };
typedef enum {
    OP_REDUCE_SCATTER, OP_ALL_GATHER, OP_ALL_REDUCE, OP_ALL_MAX, OP_TREE_SUM, OP_SEND, OP_RECEIVE, OP_EXCHANGE
} OpKind;
/* Returns whether a queue entry (Op) is a message between two ranks. An exchange is queued as its single messages. */
static inline int op_is_message(OpKind kind) { return kind == OP_SEND || kind == OP_RECEIVE; }
static inline int op_is_all_reduce(OpKind kind) { return kind == OP_ALL_REDUCE || kind == OP_ALL_MAX; }

/* One started collective in the queue; of an all-gather, one of its two directions around the ring. Messages are
 * numbered in the order they travel: message i is chunk i % chunks of ring step i / chunks. */
typedef struct {
    Comm    *comm;         /* the group that started this collective; borrowed */
    OpKind   kind;
    CommKind by;           /* who performs the collective: COMM_MPI if MPI's own collectives do, otherwise COMM_RING */
    Tensor   bucket;       /* the caller's tensor, in host or device memory; borrowed until the collective ends */
    Tensor   x;            /* the bucket if it is in host memory, otherwise the bucket's copy in host memory */
    Comm    *after;        /* group to wait for: this collective begins after those of group `after` with numbers below
                            * after_number; NULL: begins at once */
    int64_t  after_number;
    int      peer;         /* the other rank of a message, as a number in the group */
    int      is_begun;     /* 0 as long as the collective waits for its bytes to reach the host, or for group `after` */
    int      staged;       /* number of the copy to host memory in staging.cu; -1: no copy is needed; NOT_STAGED: not
                            * started yet */
    int64_t  sequence;     /* number among this process's collectives over buckets; it determines the place in
                            * World.trace */
    int64_t  number;       /* number among the group's collectives, the same on all ranks of the group */
    int64_t  total_bytes, piece_bytes, chunk_bytes, chunks; /* sizes of the bucket, of a rank's piece of it, and of a
                                                             * chunk; chunks in a piece. In an all-reduce of any length
                                                             * the last pieces are shorter or empty */
    int      way;          /* direction around the ring: 1 to rank r+1, -1 to rank r-1 */
    int      first_step;   /* number of the first ring step. With W ranks, steps 0 to W-2 add and the next W-1 copy; an
                            * all-gather begins at step W-1 */
    int64_t  messages, sums; /* messages to receive in all; the first `sums` are added to x, the others copied into
                              * it */
    int64_t  to_send;        /* number of messages to send. A tree sum sends every chunk of each of its nodes to every
                              * other rank. For it the field `messages` counts the chunks of a piece, each received from
                              * all ranks */
    float   *node[TREE_MOST]; /* [partial sums of this rank] addresses in host memory, for a tree sum; the last is that
                               * of x */
    int      node_staged[TREE_MOST];
    int64_t  received, receives, sent, sends; /* counts so far: messages received, receives posted, messages sent, sends
                                               * posted */
    MPI_Request receive[WINDOW], send[SENDS];  /* MPI requests; the one of message i is at index i % array size; MPI's
                                                * own collectives (COMM_MPI) use send[0] */
} Op;

struct World {
    int      rank, size, local_rank, local_size;
    char   (*host)[HOST_CHARS]; /* [size] host name of each rank; owned */
    pid_t   *neighbour;         /* [local_size] process id of each rank of this host, by local rank; owned; NULL if the
                                 * ranks cannot see each other's processes */
    struct Masks *masks;        /* [local_size] processors of each rank of this host (launch.c); owned */
    int      launched;          /* 1: a launcher started this process and MPI is initialised */
    Ledger  *ledger;            /* ledger of a dry world (a plan of ranks that do not exist), whose collectives only
                                 * note their cost; NULL in a real one; borrowed */
    int      yields;            /* 1: a wait without progress yields the core at once, because ranks outnumber
                                 * processors */
    MPI_Comm local;             /* communicator of the ranks of this host                */
    Comm    *all;               /* the group of all ranks; owned                         */
    Comm    *groups;            /* list of all groups, the newest first; any thread may read it */

    void   (*watch)(void *ctx);  /* function that world_watch has set; called when a wait makes progress; may be NULL */
    void    *watch_ctx;
    double   watched_ms;

    Op      *op;                /* [ops] the queue: collectives in flight of all groups, in start order; owned */
    int      ops, op_room;
    int64_t  started;           /* number of collectives over buckets that this process has started so far */
    int64_t  stalled;           /* for tests: collectives from this sequence number on never begin; INT64_MAX without a
                                 * test */
    CommTrace blocking;         /* the small blocking call that the main thread is in, or was in last */
    CommTrace trace[TRACES];    /* the last collectives; the one with sequence s is at s % TRACES */

    Stream         *followed;   /* compute stream (world_follow), whose device memory holds the buckets; borrowed; NULL:
                                 * buckets are in host memory */
    struct Staging *staging;    /* state of staging.cu, which owns it; NULL before first use */
    void           *nccl_queue; /* CUDA stream that all groups share, owned by nccl.cu; NULL without NCCL */
};

struct Comm {
    World   *world;             /* the world that the group belongs to; borrowed */
    Comm    *next;              /* next group in the world's list of groups */
    char     name[COMM_NAME_CHARS];
    int      rank, size;
    int     *member;            /* [size] number that each rank of the group has among all ranks of the job; owned */
    CommKind kind;
    MPI_Comm small, ring;       /* MPI communicators: `small` for the small blocking calls, `ring` for messages and
                                 * started collectives. A group of one has neither */

    int      is_offline, is_inline, is_pair, is_on_host; /* is_offline: collectives do nothing (comm_set_offline);
                                                          * is_inline: NCCL uses the compute stream (comm_set_inline);
                                                          * is_pair: two ranks that send messages (comm_pair);
                                                          * is_on_host: buckets are in host memory (comm_set_on_host) */
    int      exchanges;         /* 1: the group will exchange messages between any two ranks (comm_set_exchanges) */
    /* ops: number of this group's collectives in the queue of the process (World.op); begun: how many of them have
     * begun */
    int      ops, begun;
    int      is_held;           /* 1: the group's next collective may not begin yet, so later ones wait as well */
    int64_t  started;           /* number of collectives over buckets that this group has started so far */
    int64_t  calls;             /* number of collectives of all kinds that this group has started, small ones
                                 * included */
    int64_t  sent;              /* bytes sent by collectives over buckets since the last comm_times */
    char    *chunk;             /* [WINDOW][CHUNK_BYTES] buffers for received chunks; owned; NULL before first use */
    int64_t  chunk_owner;       /* sequence number of the collective that receives into `chunk`, or -1 */
    struct Tree *tree;          /* tables for sums in tree order, owned by tree.c; NULL before comm_tree_open */
    struct Nccl *nccl;          /* NCCL communicator and its state, owned by nccl.cu; NULL without NCCL */

    double    busy_since_ms;    /* clock_ms() from which the time of the collectives in flight is not yet counted in
                                 * times.comm_ms */
    CommTimes times;            /* times of collectives over buckets since the last comm_times */
    CommTimes waits;            /* times of small blocking calls since the last comm_times */
};

/* launch.c: sets w->masks to the processors that each rank of this host, and its launcher, may use. Returns the number
 * of processors that the ranks may use together. */
int launch_read_masks(World *w);

/* world.c: reports an error of a peer or the network, with rank, host and collective, and ends the job. */
NORETURN void world_failed(const World *w, const char *why);
/* Computes new numbers for the ranks so that ranks of one host are neighbours. Hosts, and the ranks of a host, keep
 * their order. So neighbours in a grid share a host however the launcher places its ranks. Rank 0 stays rank 0. number
 * [size] is indexed by the former rank. */
void        world_numbers(char (*host)[HOST_CHARS], int size, int *number);
void        world_renumber(World *w); /* gives the ranks the new numbers that world_numbers computes: changes w->rank
                                       * and the order of w->host */
/* returns the trace of the collective with this sequence number, or NULL if later collectives have overwritten it */
CommTrace  *world_trace_of(World *w, int64_t sequence);
void        world_list(World *w, Comm *c); /* adds a group to the world's list of groups */
void        world_unlist(World *w, Comm *c);

Comm *comm_make(World *w, const char *name); /* comm.c: makes a group that contains only this rank */
/* Returns the ms of collectives over buckets since the last comm_times, including those in flight. */
double comm_counted_ms(const Comm *c, double now);
/* Adds a wait that began at begin_ms to `times`. All of it counts as exposed_ms. It also counts as comm_ms, except for
 * the time in which collectives in flight are counted already. counted_ms is comm_counted_ms at begin_ms. */
void  comm_count_wait(Comm *c, CommTimes *times, double begin_ms, double counted_ms);
void  comm_make_dry(Comm *c, int size, int rank); /* makes c the group of ranks 0 to size - 1 of a dry world, in which
                                                   * they do not exist */
/* Returns 1 if a collective has nothing to do, because the group has one rank or the world is dry (a plan of ranks that
 * do not exist). In a dry world it notes in the ledger the collective and the `sent` bytes that this rank would
 * send. */
int   comm_note_sent(Comm *c, const char *name, int64_t elems, double sent);
void  comm_drop(Comm *c);

/* mpi.c: functions that start and end MPI, and make groups. group_all makes c the group of all ranks, group_split a
 * subgroup of parent. */
void world_start(World *w, Launch launch);
void world_stop(World *w);
void world_local_all_gather(World *w, const void *mine, void *all, size_t bytes);
void group_all(Comm *c);
void group_split(Comm *c, Comm *parent, int color, int key);
void group_free(Comm *c);
/* mpi.c: blocking calls. Started collectives of all groups progress meanwhile. */
void  group_barrier(Comm *c);
void  group_broadcast(Comm *c, void *data, size_t bytes, int root);
void  group_all_reduce(Comm *c, void *values, int count, DType type, CommReduce op); /* reduces `count` values of type
                                                                                      * F64 or I64 over the ranks; every
                                                                                      * rank gets the result */
void  group_all_to_all(Comm *c, const char *send, const size_t *bytes, char *receive);
char *group_gather(Comm *c, const void *data, size_t bytes, int root, size_t **bytes_of_rank);

Failpoint queue_obey_test(World *w, const char *point); /* queue.c: applies a test's rule for `point`, the name of a
                                                         * place where a test may break a collective */
/* queue.c: one iteration of a wait. It makes progress with every collective in flight. *moved_ms is the time of the
 * last progress; the caller sets it to clock_ms() at first. */
void queue_turn(World *w, double *moved_ms);

/* staging.cu: copies a bucket in device memory to host memory for a collective, and the result back. */
int    staging_in(Comm *c, OpKind kind, Tensor *x); /* starts the copy of *x to host memory and makes *x the copy;
                                                     * returns its number, or -1 if *x is in host memory already */
int    staging_is_in(World *w, int staged);
void   staging_out(Comm *c, int staged, OpKind kind, Tensor bucket);
void   staging_finish(World *w);                   /* makes the compute stream (world_follow) wait for the copies back
                                                    * to the GPU that staging_out has queued */
void   staging_drop(World *w, int staged);         /* frees a copy in host memory that need not be copied back to the
                                                    * GPU */
int    staging_stream_is_idle(World *w);           /* returns 1 if the compute stream (world_follow) has finished all
                                                    * its work */
void   staging_close(World *w);

/* Most multiprocessors that NCCL's kernels hold: of a group, and of a pair. A pair gets few, because a receive that is
 * posted ahead spins until its sender arrives. */
enum { NCCL_BLOCKS = 16, NCCL_PAIR_BLOCKS = 2 };
int  comm_max_blocks(int chosen); /* comm.c: returns NCCL_MAX_CTAS if it is set, because NCCL obeys it before any
                                   * configuration; otherwise `chosen` */
void nccl_open(Comm *c);
void nccl_close(Comm *c);
void nccl_tree_open(Comm *c); /* allocates device memory for the partial sums that other ranks send for sums in tree
                               * order (c->tree) */
void nccl_leave(World *w); /* destroys the CUDA stream of all groups; called after the last nccl_close */
void nccl_start(Comm *c, OpKind kind, Tensor x, const Tensor *nodes); /* starts a collective over x by NCCL; nodes: for
                                                                       * OP_TREE_SUM, all of this rank's partial sums
                                                                       * but the last, which is x */
void nccl_exchange(Comm *c, const CommMessage *message, int count);
void nccl_join(Comm *c, GatherOrder order); /* makes the collectives started until nccl_join_end one call of NCCL */
void nccl_join_end(Comm *c);
void nccl_poll(Comm *c);
void nccl_wait(Comm *c, int64_t number);
/* adds the times of collectives that have ended to c->times and to their entries in the trace */
void nccl_read_times(Comm *c);

/* collectives.c: start a queued collective (Op) and make progress with it. The caller of op_start sets op->comm, kind,
 * by, x, sequence, number, total_bytes, piece_bytes, way and peer. op_progress returns whether anything has
 * progressed. */
void op_start(Op *op);
int  op_progress(Op *op);
/* Returns the MPI tag of a collective's messages. Messages between two ranks keep their order, so tags differ only
 * among messages in flight. Every MPI allows tags up to 32767. */
static inline int op_tag(const Op *op) { return (int)(op->number % 16384 * 2 + (op->way < 0)); }
static inline int op_is_done(const Op *op) { return op->received == op->messages && op->sent == op->to_send; }

/* A node (partial sum) of a sum in tree order (comm_tree_sum_start), and the rank that holds it. A Tree lists the nodes
 * of all ranks in the order of their leaves. */
typedef struct {
    int      rank, index; /* index: number of the node among those that rank `rank` holds */
    TreeNode node;
} TreePart;
struct Tree {
    int64_t   leaves;
    TreePart *part;      /* [parts] nodes (partial sums) of all ranks, in the order of their leaves; owned */
    int       parts, mine;
    int64_t   owner;     /* sequence number of the sum that receives into `buffer`, or -1 */
    char     *buffer;    /* [2][parts][TREE_CHUNK_BYTES] receive buffers for two chunks; owned; NULL before first use */
    float   **at;        /* [parts] address of each node's values for the chunk that is added now; owned */
    MPI_Request *receive; /* [2][parts] MPI requests of the receives; owned */
};
enum { TREE_CHUNK_BYTES = 128 << 10, NCCL_TREE_CHUNK_BYTES = 4 << 20 };
typedef void TreeAdd(void *ctx, float *x, const float *y, int64_t n); /* adds y [n] to x [n] */
/* Adds the partial sums at[parts], n values each, in the order of the tree (TreeNodes in comm.h). Returns the address
 * that then holds the sum. */
float *tree_fold(const struct Tree *t, float **at, int64_t n, TreeAdd *add, void *ctx);
void tree_close(Comm *c);

#ifndef NO_MPI
enum { MPI_MOST_BYTES = 1 << 30 }; /* most bytes of one MPI message, because MPI counts with int */
int           mpi_is_done(const Comm *c, MPI_Request *request); /* returns whether the request is complete */
NORETURN void mpi_failed(const World *w, const char *call, int code, const char *file, int line);
#define MPI_CHECK(w, call)                                                              \
    do {                                                                                \
        int mpi_code = (call);                                                          \
        if (mpi_code != MPI_SUCCESS) mpi_failed(w, #call, mpi_code, __FILE__, __LINE__); \
    } while (0)
#endif

#ifdef __cplusplus
}
#endif
#endif
