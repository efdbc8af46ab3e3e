/* comm.c - the communicator: who is in it, the queue of started collectives, and how long they took.
 *
 * A collective is started, moved along by every poll, and leaves the queue when it is done. With one rank nothing is ever queued. NCCL's
 * are queued on the GPU instead, by nccl.cu.
 */
#include "comm/comm.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/internal.h"
#include "core/clock.h"
#include "core/failpoints.h"
#include "core/layout.h"

void comm_expect(Launch launch) {
    if (launch.launched) world_expect(launch);
}

static const double PATIENCE_MS = 10, TELL_EVERY_MS = 100;

static int set_to_one(const char *variable) {
    const char *value = getenv(variable);
    return value && strcmp(value, "1") == 0;
}

/* In containers of their own ranks of one host may not see each other's processes. */
static void meet_neighbours(Comm *c) {
    pid_t mine = getpid();
    c->neighbour = (pid_t *)malloc(sizeof *c->neighbour * (size_t)c->local_size);
    if (!c->neighbour) fail(EXIT_MEMORY, "no memory for a communicator");
    world_local_all_gather(c, &mine, c->neighbour, sizeof mine);
    if (!comm_neighbour_is_gone(c)) return;
    free(c->neighbour);
    c->neighbour = NULL;
}

int comm_neighbour_is_gone(const Comm *c) {
    for (int r = 0; c->neighbour && r < c->local_size; r++)
        if (kill(c->neighbour[r], 0) < 0 && errno == ESRCH) return 1;
    return 0;
}

Comm *comm_create(Launch launch, CommKind kind) {
    Comm *c = (Comm *)calloc(1, sizeof *c);
    if (!c) fail(EXIT_MEMORY, "no memory for a communicator");
    c->size = c->local_size = 1;
    c->chunk_owner = -1;
    c->blocking = (CommCall){"", -1, 0, 1};
    Failpoint f = failpoint("comm.init");
    if (launch.launched) world_start(c, launch);
    else {
        error_set_rank(0, 1, NULL);
        launch_explain_alone();
        c->host = calloc(1, sizeof *c->host);
        if (!c->host) fail(EXIT_MEMORY, "no memory for a communicator");
        gethostname(c->host[0], HOST_CHARS - 1);
    }
    failpoint_done(f);
    meet_neighbours(c);
    c->yields = c->local_size > threads_host_processors(c) && !set_to_one("OMPI_MCA_mpi_oversubscribe") &&
                !set_to_one("OMPI_MCA_mpi_yield_when_idle");
    comm_set_kind(c, kind);
    return c;
}

void comm_set_kind(Comm *c, CommKind kind) {
    CHECK(c->ops == 0, "%d collectives in flight", c->ops);
    if (kind == COMM_NCCL && !c->nccl) nccl_open(c);
    c->kind = kind;
}
CommKind comm_kind(const Comm *c) { return c->kind; }

void comm_follow(Comm *c, Stream *s) {
    CHECK(c->ops == 0, "%d collectives in flight", c->ops);
    c->followed = s;
}

void comm_destroy(Comm *c) {
    comm_finish(c);
    if (c->nccl) nccl_close(c);
    if (c->staging) staging_close(c);
    if (c->tree) tree_close(c);
    Failpoint f = failpoint("comm.finalize");
    if (c->launched) world_stop(c);
    failpoint_done(f);
    free(c->host);
    free(c->neighbour);
    free(c->op);
    free(c->chunk);
    free(c);
}

int         comm_rank(const Comm *c) { return c->rank; }
int         comm_size(const Comm *c) { return c->size; }
int         comm_local_rank(const Comm *c) { return c->local_rank; }
int         comm_local_size(const Comm *c) { return c->local_size; }
const char *comm_host(const Comm *c, int rank) { return c->host[rank]; }
const char *comm_library(void) { return world_library(); }

/* --- what every collective has: a number, and a place where a test may break it --------------------------------------------------- */

#ifdef FAILPOINTS
static int64_t stalled = INT64_MAX;
static void    stall_from(int64_t sequence) { stalled = sequence; }
static int     is_stalled(const Op *op) { return op->sequence >= stalled; }
#else
static void stall_from(int64_t sequence) { (void)sequence; }
static int  is_stalled(const Op *op) { return (void)op, 0; }
#endif

/* A word of its own: "stall" starts, and never gets on. */
static Failpoint obey_test(const Comm *c, const char *name) {
    Failpoint f = failpoint(name);
    if (f.error) comm_failed(c, strerror(f.error));
    if (strcmp(f.word, "stall") == 0) stall_from(c->started);
    return f;
}

CommCall comm_last_call(const Comm *c) {
    CommCall last = c->blocking;
    if (!last.has_ended) return last;
    for (int64_t i = c->started > TRACES ? c->started - TRACES : 0; i <= c->started; i++) { /* number `started` may just be starting */
        const CommTrace *t = &c->trace[i % TRACES];
        if (!t->name || t->sequence != i) continue;
        if (t->end_ms == 0) return (CommCall){t->name, t->number, t->start_ms, 0};
        if (t->number > last.number) last = (CommCall){t->name, t->number, t->start_ms, 1};
    }
    return last;
}

void comm_failed(const Comm *c, const char *why) {
    char     host[HOST_CHARS] = "?", where[64] = "setting up";
    CommCall last = comm_last_call(c);
    gethostname(host, sizeof host - 1);
    if (last.number >= 0) snprintf(where, sizeof where, "%s%s %lld", last.has_ended ? "after " : "", last.name, (long long)last.number);
    fail(EXIT_PEER, "a peer is lost or MPI failed on rank %d, host %s, %s: %s", c->rank, host, where, why);
}

void comm_abandon(Comm *c, double wait_ms) {
    if (c->nccl) nccl_abandon(c, wait_ms);
}

/* --- the queue ------------------------------------------------------------------------------------------------------------------- */

static Op *new_op(Comm *c) {
    if (c->ops == c->op_room) {
        c->op_room = c->op_room ? 2 * c->op_room : 16;
        c->op = (Op *)realloc(c->op, sizeof(Op) * (size_t)c->op_room);
        if (!c->op) fail(EXIT_MEMORY, "no memory for %d collectives in flight", c->op_room);
    }
    return (Op *)memset(&c->op[c->ops++], 0, sizeof(Op));
}

static int is_in(Comm *c, const Op *op) {
    for (int k = 0; op->kind == OP_TREE_SUM && k < c->tree->mine - 1; k++)
        if (op->node_staged[k] >= 0 && !staging_is_in(c, op->node_staged[k])) return 0;
    return op->staged < 0 || staging_is_in(c, op->staged);
}

/* In start order on every rank, since messages between ranks and MPI's collectives keep theirs. */
static void begin_those_ready(Comm *c) {
    for (; c->begun < c->ops; c->begun++) {
        Op *op = &c->op[c->begun];
        if (is_stalled(op) || !is_in(c, op)) return;
        if (c->begun == 0) c->busy_since_ms = clock_ms();
        if (op->kind == OP_TREE_SUM) tree_sum_start(c, op);
        else if (op->by == COMM_RING) ring_start(c, op, op->way);
        else collectives_mpi_start(c, op);
        CommTrace *trace = &c->trace[op->sequence % TRACES];
        if (trace->first_send_ms == 0) trace->first_send_ms = op->first_send_ms;
    }
}

static void stage_nodes(Comm *c, Op *op, const Tensor *nodes) {
    int last = c->tree->mine - 1;
    for (int k = 0; k < last; k++) {
        Tensor node = nodes[k];
        op->node_staged[k] = staging_in(c, OP_TREE_SUM, &node);
        op->node[k] = (float *)node.data;
    }
    op->node[last] = (float *)op->x.data;
}

/* nodes: of OP_TREE_SUM, this rank's but the last, which is x. */
static void start(Comm *c, OpKind kind, Tensor x, const Tensor *nodes) {
    if (c->size == 1) return;
    CHECK(x.dims == 1 && x.dim[0] % (LAYOUT_ALIGN * c->size) == 0, "a bucket of %lld elements among %d ranks", (long long)x.dim[0], c->size);
    CHECK(kind == OP_ALL_GATHER || x.type == F32, "sums are fp32, not %s", dtype_name(x.type));
    static const char *const points[] = {"comm.reduce_scatter", "comm.all_gather", "comm.all_reduce", "comm.tree_sum"};
    c->trace[c->started % TRACES] = (CommTrace){OP_NAMES[kind], c->calls++, c->started, clock_ms(), 0, 0};
    Failpoint f = obey_test(c, points[kind]);
    if (c->kind == COMM_NCCL) {
        nccl_start(c, kind, x, nodes);
        c->started++;
        failpoint_done(f);
        return;
    }
    Tensor bucket = x;
    int    staged = staging_in(c, kind, &x), ways = c->kind == COMM_RING && kind != OP_TREE_SUM ? ring_ways(c, kind) : 1;
    for (int way = 0; way < ways; way++) {
        Op *op = new_op(c);
        op->kind = kind;
        op->by = c->kind;
        op->bucket = bucket;
        op->x = x;
        op->staged = staged;
        op->way = way;
        op->piece_bytes = (int64_t)tensor_bytes(x) / c->size;
        op->sequence = c->started;
        if (kind == OP_TREE_SUM) stage_nodes(c, op, nodes);
    }
    c->started++;
    begin_those_ready(c);
    failpoint_done(f);
}

static int is_of(const Comm *c, int i, int64_t sequence) { return i >= 0 && i < c->ops && c->op[i].sequence == sequence; }

static int move(Comm *c, Op *op) {
    if (op->kind == OP_TREE_SUM) return tree_sum_progress(c, op);
    return op->by == COMM_RING ? ring_progress(c, op) : collectives_mpi_progress(c, op);
}

/* Moves every collective in flight along, in start order; returns whether anything moved. */
static int progress(Comm *c) {
    begin_those_ready(c);
    int moved = 0, left = 0, begun = c->begun;
    for (int i = 0; i < c->ops; i++) {
        Op *op = &c->op[i];
        if (i < begun) moved |= move(c, op);
        if (i >= begun || !op_is_done(op)) {
            c->op[left++] = *op;
            continue;
        }
        c->begun--;
        if (is_of(c, left - 1, op->sequence) || is_of(c, i + 1, op->sequence)) continue;
        c->trace[op->sequence % TRACES].end_ms = clock_ms();
        for (int k = 0; op->kind == OP_TREE_SUM && k < c->tree->mine - 1; k++)
            if (op->node_staged[k] >= 0) staging_drop(c, op->node_staged[k]);
        if (op->staged >= 0) staging_out(c, op->staged, op->kind, op->bucket);
    }
    if (begun > 0 && c->begun == 0) c->times.comm_ms += clock_ms() - c->busy_since_ms;
    c->ops = left;
    return moved;
}

void comm_poll(Comm *c) {
    if (c->kind == COMM_NCCL) nccl_poll(c);
    else if (c->ops > 0) progress(c);
}

void comm_watch(Comm *c, void (*progress)(void *ctx), void *ctx) { c->watch = progress, c->watch_ctx = ctx; }

static void tell_progress(Comm *c, double now_ms) {
    if (!c->watch || now_ms - c->watched_ms < TELL_EVERY_MS) return;
    c->watched_ms = now_ms;
    c->watch(c->watch_ctx);
}
void comm_tell_progress(Comm *c) { tell_progress(c, clock_ms()); }

/* The rank waited for may need this very core: where ranks outnumber processors, yield, unless Open MPI does so in its every test.
 * Elsewhere a yield would only hand the core to strangers: spin as MPI does, though not for ever. While the stream still computes, the
 * time is not the collectives'. */
static void wait_until(Comm *c, int64_t sequence) {
    double begin = 0, moved = clock_ms();
    for (int idle = 0; c->ops > 0 && c->op[0].sequence <= sequence;) { /* in start order */
        if (!idle && (idle = staging_stream_is_idle(c))) begin = clock_ms();
        if (progress(c)) tell_progress(c, moved = clock_ms());
        else if (c->yields || clock_ms() - moved > PATIENCE_MS) sched_yield();
    }
    if (begin > 0) c->times.exposed_ms += clock_ms() - begin;
}

int64_t comm_next(const Comm *c) { return c->started; }

void comm_wait(Comm *c, int64_t sequence) {
    if (c->size == 1) return;
    if (c->kind == COMM_NCCL) {
        nccl_wait(c, sequence);
        return;
    }
    wait_until(c, sequence);
    if (c->staging) staging_finish(c);
}

void comm_finish(Comm *c) { comm_wait(c, c->started); }

void comm_reduce_scatter_start(Comm *c, Tensor x) { start(c, OP_REDUCE_SCATTER, x, NULL); }
void comm_all_gather_start(Comm *c, Tensor x) { start(c, OP_ALL_GATHER, x, NULL); }
void comm_tree_sum_start(Comm *c, Tensor x, const Tensor *nodes, int count) {
    CHECK(c->size == 1 || (c->tree && count == c->tree->mine - 1), "%d nodes beside x", count);
    for (int k = 0; k < count; k++) EXPECT1(nodes[k], F32, x.dim[0]);
    start(c, OP_TREE_SUM, x, nodes);
}
void comm_reduce_scatter(Comm *c, Tensor x) {
    start(c, OP_REDUCE_SCATTER, x, NULL);
    comm_finish(c);
}
void comm_all_gather(Comm *c, Tensor x) {
    start(c, OP_ALL_GATHER, x, NULL);
    comm_finish(c);
}

/* Two ranks of the ring gain from chunks that are handed back as soon as they are summed; more gain from a gather that goes round both
 * ways. */
void comm_all_reduce(Comm *c, Tensor x) {
    if (c->kind == COMM_NCCL || (c->kind == COMM_RING && c->size > 2)) {
        comm_reduce_scatter(c, x);
        comm_all_gather(c, x);
    } else {
        start(c, OP_ALL_REDUCE, x, NULL);
        comm_finish(c);
    }
}

/* Chunks have one size; a bucket of any length goes through the same few. */
size_t comm_buffer_bytes(CommKind kind, int ranks) { return ranks > 1 && kind == COMM_RING ? (size_t)(WINDOW * CHUNK_BYTES) : 0; }

/* What is in flight counts up to now, and from now on for the next. */
static void count_so_far(Comm *c) {
    double now = clock_ms();
    if (c->begun > 0) c->times.comm_ms += now - c->busy_since_ms;
    c->busy_since_ms = now;
}

CommTimes comm_times(Comm *c) {
    if (c->nccl) nccl_read_times(c);
    count_so_far(c);
    CommTimes times = {c->times.comm_ms + c->waits.comm_ms, c->times.exposed_ms + c->waits.exposed_ms, c->times.sends};
    memset(&c->times, 0, sizeof c->times);
    memset(&c->waits, 0, sizeof c->waits);
    return times;
}

void comm_forget_times(Comm *c) {
    count_so_far(c);
    memset(&c->waits, 0, sizeof c->waits);
    if (c->kind != COMM_NCCL) memset(&c->times, 0, sizeof c->times);
}

int comm_trace(const Comm *c, CommTrace *out, int max) {
    int64_t count = c->started < TRACES ? c->started : TRACES;
    if (count > max) count = max;
    for (int64_t i = 0; i < count; i++) out[i] = c->trace[(c->started - count + i) % TRACES];
    return (int)count;
}

/* --- small blocking things, timed ------------------------------------------------------------------------------------------------ */

typedef struct { double begin_ms; Failpoint test; } Blocking;

static Blocking enter(Comm *c, const char *name, const char *point) {
    c->blocking = (CommCall){name, c->calls++, clock_ms(), 0};
    Failpoint test = obey_test(c, point);
    return (Blocking){clock_ms(), test};
}

static void leave(Comm *c, Blocking b) {
    double ms = clock_ms() - b.begin_ms;
    c->waits.exposed_ms += ms;
    if (c->begun == 0) c->waits.comm_ms += ms; /* else a collective in flight counts this time already */
    c->blocking.has_ended = 1;
    failpoint_done(b.test);
}

void comm_barrier(Comm *c) {
    if (c->size == 1) return;
    Blocking b = enter(c, "barrier", "comm.barrier");
    world_barrier(c);
    leave(c, b);
}

void comm_broadcast(Comm *c, void *data, size_t bytes, int root) {
    if (c->size == 1) return;
    Blocking b = enter(c, "broadcast", "comm.broadcast");
    world_broadcast(c, data, bytes, root);
    leave(c, b);
}

void comm_all_reduce_f64(Comm *c, double *values, int count, CommReduce op) {
    if (c->size == 1) return;
    Blocking b = enter(c, "all-reduce of numbers", "comm.all_reduce");
    world_all_reduce_f64(c, values, count, op);
    leave(c, b);
}

void comm_all_reduce_i64(Comm *c, int64_t *values, int count, CommReduce op) {
    if (c->size == 1) return;
    Blocking b = enter(c, "all-reduce of numbers", "comm.all_reduce");
    world_all_reduce_i64(c, values, count, op);
    leave(c, b);
}

static char *gather_from_one(const void *data, size_t bytes, size_t **bytes_of_rank) {
    char *all = (char *)malloc(bytes ? bytes : 1);
    *bytes_of_rank = (size_t *)malloc(sizeof **bytes_of_rank);
    if (!all || !*bytes_of_rank) fail(EXIT_MEMORY, "no memory to gather %zu bytes", bytes);
    if (bytes) memcpy(all, data, bytes);
    (*bytes_of_rank)[0] = bytes;
    return all;
}

char *comm_gather(Comm *c, const void *data, size_t bytes, int root, size_t **bytes_of_rank) {
    if (c->size == 1) return gather_from_one(data, bytes, bytes_of_rank);
    Blocking b = enter(c, "gather", "comm.gather");
    char    *all = world_gather(c, data, bytes, root, bytes_of_rank);
    leave(c, b);
    return all;
}
