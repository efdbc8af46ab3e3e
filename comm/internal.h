/* internal.h - what the files of comm/ share; nobody else includes it.
 *
 * comm.c holds the queue of started collectives and the clock; ring.c and collectives_mpi.c move one of them along, on host memory, to and
 * from which staging.cu brings what lies on a GPU; nccl.cu has a queue of its own, on the GPU. world.c knows the launcher's side of MPI
 * and the small blocking things. In a build without MPI, no_mpi.c stands in for ring.c, collectives_mpi.c and world.c; in one without
 * CUDA, staging.c and nccl.c for the .cu files.
 */
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
#include "comm/tree.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    WINDOW = 4,      /* receives posted ahead per collective, and chunk buffers of the communicator               */
    SENDS = 64,      /* sends posted ahead: what a rank that polls seldom leaves for its neighbour to fetch       */
    TRACES = 128,
    HOST_CHARS = 64
};
/* Measured on two AVX-512 cores, Open MPI 4.1.4, 2 and 4 ranks: a chunk to be summed should still lie in the L2 cache after it has come;
 * a piece that is passed on should have four, so that neighbours work at once; one that is only copied gains from fewer messages. */
static const int64_t CHUNK_BYTES = 256 << 10, LEAST_CHUNK_BYTES = 64 << 10, COPY_CHUNK_BYTES = 1 << 20;

typedef enum { OP_REDUCE_SCATTER, OP_ALL_GATHER, OP_ALL_REDUCE, OP_TREE_SUM } OpKind;
static const char *const OP_NAMES[] = {"reduce-scatter", "all-gather", "all-reduce", "tree-sum"};

/* One started collective; of an all-gather, one of the two ways round. Its messages are numbered in the order they travel: message i is
 * chunk i % chunks of ring step i / chunks. */
typedef struct {
    OpKind   kind;
    CommKind by;
    Tensor   bucket;       /* borrowed until the end */
    Tensor   x;            /* the bucket, or its copy in host memory */
    int      staged;       /* that copy's number in staging.cu; -1: none */
    int64_t  sequence;
    double   first_send_ms;
    int64_t  piece_bytes, chunk_bytes, chunks;
    int      way;          /* 1: to the right, to rank r+1; -1: to the left                                              */
    int      first_step;   /* the ring's steps: W-1 that sum, then W-1 that copy; an all-gather enters at the second half */
    int64_t  messages, sums; /* of them, the first `sums` are added to x, the others copied into it                       */
    int64_t  to_send;        /* messages; a sum in the order of the tree counts what it receives in chunks of all ranks      */
    float   *node[TREE_MOST]; /* that sum's nodes in host memory, x the last                                              */
    int      node_staged[TREE_MOST];
    int64_t  received, receives, sent, sends; /* messages received and receives posted, sent and sends posted             */
    MPI_Request receive[WINDOW], send[SENDS];  /* message i in place i % size; COMM_MPI uses send[0]                       */
} Op;

struct Comm {
    int      rank, size, local_rank, local_size;
    CommKind kind;
    char   (*host)[HOST_CHARS]; /* owned, by rank                                        */
    pid_t   *neighbour;         /* owned [local_size]: this host's ranks, by local rank; NULL where they do not see each other */
    int      launched;          /* MPI is initialised                                    */
    int      yields;            /* waiting hands the core over at once                   */
    MPI_Comm world, ring, local; /* all ranks; the ring's own copy; the ranks of this host */

    void   (*watch)(void *ctx);  /* told of progress in waits; NULL: nobody */
    void    *watch_ctx;
    double   watched_ms;

    Op      *op;                /* owned; in flight, in start order                      */
    int      ops, op_room;
    int      begun;            /* so many of them, the oldest; the others wait for their bytes to reach the host */
    int64_t  started;           /* collectives over buckets so far                       */
    int64_t  calls;             /* collectives of all kinds                              */
    CommCall blocking;          /* the small one that the main thread is in, or was in last */
    char    *chunk;             /* owned [WINDOW][CHUNK_BYTES]; NULL before first use    */
    int64_t  chunk_owner;       /* sequence of the collective that receives into them, or -1 */

    Stream         *followed;   /* borrowed; NULL: buckets lie in host memory            */
    struct Tree    *tree;       /* owned by tree_sum.c; NULL before comm_tree_open         */
    struct Staging *staging;    /* owned by staging.cu; NULL before first use            */
    struct Nccl    *nccl;       /* owned by nccl.cu; NULL without                        */

    double    busy_since_ms;    /* when the first of those begun did, after a time without */
    CommTimes times;            /* of collectives over buckets                           */
    CommTimes waits;            /* of the small blocking calls                           */
    CommTrace trace[TRACES];    /* sequence s in place s % TRACES                        */
};

/* An error that a peer or the network has caused: says so with rank, host and collective, and ends the job. */
NORETURN void comm_failed(const Comm *c, const char *why);

/* launch.c: of a process that no launcher started, a warning where SLURM has tasks for more. */
void launch_explain_alone(void);

/* threads.c: the processors that this host's ranks may use between them. */
int threads_host_processors(Comm *c);

/* world.c */
void        world_expect(Launch launch);
void        world_start(Comm *c, Launch launch);
void        world_stop(Comm *c);
void        world_local_all_gather(Comm *c, const void *mine, void *all, size_t bytes);
const char *world_library(void);
void        world_barrier(Comm *c);
void        world_broadcast(Comm *c, void *data, size_t bytes, int root);
void        world_all_reduce_f64(Comm *c, double *values, int count, CommReduce op);
void        world_all_reduce_i64(Comm *c, int64_t *values, int count, CommReduce op);
char       *world_gather(Comm *c, const void *data, size_t bytes, int root, size_t **bytes_of_rank);

/* staging: brings a bucket in device memory to the host for a collective, and the result back. */
int    staging_in(Comm *c, OpKind kind, Tensor *x); /* starts the copy and turns *x into it; -1: *x is host memory itself */
int    staging_is_in(Comm *c, int staged);
void   staging_out(Comm *c, int staged, OpKind kind, Tensor bucket);
void   staging_finish(Comm *c);                    /* the followed stream waits for what staging_out has started */
void   staging_drop(Comm *c, int staged);          /* nothing of it goes back */
int    staging_stream_is_idle(Comm *c);            /* the followed stream has done everything it was given */
void   staging_close(Comm *c);

/* nccl */
void nccl_open(Comm *c);
void nccl_close(Comm *c);
void nccl_start(Comm *c, OpKind kind, Tensor x, const Tensor *nodes); /* nodes: of OP_TREE_SUM, all but the last */
void nccl_poll(Comm *c);
void nccl_wait(Comm *c, int64_t sequence);
void nccl_abandon(Comm *c, double wait_ms);
void nccl_read_times(Comm *c); /* adds what has ended meanwhile to times and trace */

/* ring.c and collectives_mpi.c: op->kind, x, sequence and piece_bytes are set. Progress returns whether something moved. */
int  ring_ways(const Comm *c, OpKind kind);      /* into how many Ops a collective is split */
void ring_start(Comm *c, Op *op, int way);       /* 0, ... */
int  ring_progress(Comm *c, Op *op);
void collectives_mpi_start(Comm *c, Op *op);
int  collectives_mpi_progress(Comm *c, Op *op);
static inline int op_is_done(const Op *op) { return op->received == op->messages && op->sent == op->to_send; }
void ring_add(float *x, const float *y, int64_t n); /* x += y, on the host */

/* tree_sum.c: the nodes of all ranks in order of their leaves. */
typedef struct { int rank, index; /* of the rank's own */ TreeNode node; } TreePart;
struct Tree {
    int64_t   leaves;
    TreePart *part;      /* owned */
    int       parts, mine;
    int64_t   owner;     /* sequence of the sum that receives into buffer, or -1 */
    char     *buffer;    /* owned [2][parts][TREE_CHUNK_BYTES]; NULL before first use */
    float   **at;        /* owned [parts]: where a chunk of each lies */
    MPI_Request *receive; /* owned [2][parts] */
};
enum { TREE_CHUNK_BYTES = 128 << 10, NCCL_TREE_CHUNK_BYTES = 4 << 20 };
typedef void TreeAdd(void *ctx, float *x, const float *y, int64_t n); /* x += y */
/* Adds at[parts] [n] in the order of the tree; returns which of them holds the sum. */
float *tree_fold(const struct Tree *t, float **at, int64_t n, TreeAdd *add, void *ctx);
void tree_close(Comm *c);
void tree_sum_start(Comm *c, Op *op);
int  tree_sum_progress(Comm *c, Op *op);

#ifndef NO_MPI
NORETURN void mpi_failed(const Comm *c, const char *call, int code, const char *file, int line);
#define MPI_CHECK(c, call)                                                              \
    do {                                                                                \
        int mpi_code = (call);                                                          \
        if (mpi_code != MPI_SUCCESS) mpi_failed(c, #call, mpi_code, __FILE__, __LINE__); \
    } while (0)
#endif

#ifdef __cplusplus
}
#endif
#endif
