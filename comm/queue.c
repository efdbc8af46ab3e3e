/* queue.c - the started collectives of this process, of all its groups, in one queue.
 *
 * Every poll and every wait moves all started collectives along, whichever group they belong to. A collective leaves
 * the queue when it is done. In a group of one nothing is ever queued. nccl.cu queues NCCL's collectives on the GPU
 * instead.
 */
#include <sched.h>
#include <string.h>

#include "comm/internal.h"
#include "core/thread.h"
#include "core/failpoints.h"
#include "core/format.h"
#include "core/layout.h"
#include "core/error.h"

static const double      PATIENCE_MS = 10;
static const char *const OP_NAMES[] = {"reduce-scatter", "all-gather", "all-reduce", "all-reduce", "tree-sum", "send",
                                       "receive", "exchange"};

/* Applies the rule of a test (TRAIN_GPT_FAIL) for the failpoint `point`. The word "stall" in a rule means that this
 * collective and later ones are started but never progress. */
Failpoint queue_obey_test(World *w, const char *point) {
    Failpoint f = failpoint(point);
    if (f.error) world_failed(w, strerror(f.error));
    if (strcmp(f.word, "stall") == 0) w->stalled = w->started;
    return f;
}

static int is_waited_for(const Comm *c, int64_t number) {
    const World *w = c->world;
    for (int i = 0; c->ops > 0 && i < w->ops; i++)
        if (w->op[i].comm == c) return w->op[i].number <= number; /* looks only at the oldest queued collective of the
                                                                   * group, since they end in order */
    return 0;
}

/* Returns whether a collective may begin: its bytes are in host memory, and the collectives of group `after` have
 * ended. If there is such a group, the copy to the host starts only then. */
static int may_begin(World *w, Op *op) {
    if (op->after && is_waited_for(op->after, op->after_number - 1)) return 0;
    if (op->staged == NOT_STAGED) op->staged = staging_in(op->comm, op->kind, &op->x);
    for (int k = 0; op->kind == OP_TREE_SUM && k < op->comm->tree->mine - 1; k++)
        if (op->node_staged[k] >= 0 && !staging_is_in(w, op->node_staged[k])) return 0;
    return op->staged < 0 || staging_is_in(w, op->staged);
}

/* Begins the collectives that may begin, in start order within a group, because messages and MPI's collectives must
 * have the same order on every rank. */
static void begin_those_ready(World *w) {
    for (Comm *c = w->groups; c; c = c->next) c->is_held = 0;
    for (int i = 0; i < w->ops; i++) {
        Op   *op = &w->op[i];
        Comm *c = op->comm;
        if (op->is_begun || c->is_held) continue;
        if (op->sequence >= w->stalled) return;
        if (!may_begin(w, op)) {
            c->is_held = 1;
            continue;
        }
        op->is_begun = 1;
        if (c->begun++ == 0) c->busy_since_ms = clock_ms();
        op_start(op);
        CommTrace *trace = world_trace_of(w, op->sequence);
        int        has_messages = op->messages + op->to_send > 0;
        if (trace && has_messages && trace->first_send_ms == 0) trace->first_send_ms = clock_ms();
    }
}

/* Returns the elements of one rank's piece of x. Pieces are equal, except in an all-reduce whose length is no multiple
 * of the number of ranks. The last pieces are then shorter or empty. */
static int64_t piece_elems(const Comm *c, Tensor x) {
    int64_t elems = tensor_elems(x);
    return elems % c->size == 0 ? elems / c->size : round_up(elems, (int64_t)LAYOUT_ALIGN * c->size) / c->size;
}

/* Returns the bytes that this rank sends around the ring. In the summing steps it sends every piece except its own, in
 * the copying steps every piece except its right neighbour's. With equal pieces each is (W-1)/W of the bytes, the least
 * possible (Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms", 2009). */
static int64_t bytes_sent(const Comm *c, OpKind kind, Tensor x) {
    int64_t all = tensor_elems(x), piece = piece_elems(c, x), sums = 0, copies = 0;
    int64_t own = c->rank * piece, next = (c->rank + 1) % c->size * piece;
    if (kind != OP_ALL_GATHER) sums = all - larger_of(0, smaller_of(all - own, piece));
    if (kind == OP_ALL_GATHER || op_is_all_reduce(kind)) copies = all - larger_of(0, smaller_of(all - next, piece));
    return (kind == OP_TREE_SUM && c->tree ? c->tree->mine * sums : sums + copies) * (int64_t)dtype_bytes(x.type);
}

static void expect_bucket(const Comm *c, OpKind kind, Tensor x) {
    CHECK(!c->is_pair, "%s over %s", OP_NAMES[kind], c->name);
    if (!op_is_all_reduce(kind))
        CHECK(x.dims == 1 && x.dim[0] % c->size == 0, "a bucket of %lld elements among %d ranks", (long long)x.dim[0],
              c->size);
    if (kind == OP_TREE_SUM) CHECK(x.type == F32, "sums in the order of the tree are fp32, not %s", dtype_name(x.type));
    if (kind == OP_ALL_MAX) CHECK(x.type == F32, "no maximum of %s", dtype_name(x.type));
    if (kind != OP_ALL_GATHER)
        CHECK(x.type == F32 || x.type == BF16 || x.type == F16, "no sums of %s", dtype_name(x.type));
}

/* Adds an entry to the queue for the collective that starts now, and sets its common fields. */
static Op *add_op(Comm *c, OpKind kind, Tensor x) {
    World *w = c->world;
    if (w->ops == w->op_room) {
        w->op_room = w->op_room ? 2 * w->op_room : 16;
        w->op = xrealloc(w->op, sizeof(Op) * (size_t)w->op_room, "the collectives in flight");
    }
    Op *op = (Op *)memset(&w->op[w->ops++], 0, sizeof(Op));
    op->comm = c;
    op->kind = kind;
    op->by = COMM_RING;
    op->bucket = op->x = x;
    op->staged = -1;
    op->total_bytes = op->piece_bytes = (int64_t)tensor_bytes(x);
    op->sequence = w->started;
    op->number = c->started;
    c->ops++;
    return op;
}

/* Adds a collective to the queue. Sums of 16-bit floats use the ring even with COMM_MPI, because MPI cannot add
 * them. */
static void enqueue(Comm *c, OpKind kind, Tensor x, const Tensor *nodes, Comm *after) {
    Tensor   bucket = x;
    int      staged = after ? NOT_STAGED : staging_in(c, kind, &x);
    int      is_mpi = c->kind == COMM_MPI && kind != OP_TREE_SUM && (kind == OP_ALL_GATHER || x.type == F32);
    int      ways = !is_mpi && kind == OP_ALL_GATHER && c->size > 2 ? 2 : 1; /* number of directions around the
                                                                                      * ring: 2 for an all-gather of
                                                                                      * three or more ranks */
    for (int way = 0; way < ways; way++) {
        Op *op = add_op(c, kind, x);
        if (is_mpi) op->by = COMM_MPI;
        op->bucket = bucket;
        op->staged = staged;
        op->after = after;
        op->after_number = after ? after->started : 0;
        op->way = way == 0 ? 1 : -1;
        op->piece_bytes = piece_elems(c, x) * (int64_t)dtype_bytes(x.type);
        if (kind != OP_TREE_SUM) continue;
        int last = c->tree->mine - 1;
        for (int k = 0; k < last; k++) {
            Tensor node = nodes[k];
            op->node_staged[k] = staging_in(c, OP_TREE_SUM, &node);
            op->node[k] = (float *)node.data;
        }
        op->node[last] = (float *)op->x.data;
    }
}

/* Counts a collective that sends `sent` bytes. In a dry world, whose ranks do not exist, notes it in the ledger. In a
 * real one adds the bytes to c->sent. Returns 1 if nothing is left to do, because the world is dry or the group has one
 * rank. */
static int note_start(Comm *c, OpKind kind, int64_t elems, int64_t sent) {
    int is_noted = comm_note_sent(c, OP_NAMES[kind], elems, (double)sent);
    if (is_noted && c->world->ledger) c->started++; /* counts the collective, so that collectives have the same numbers
                                                     * in a plan as in training */
    if (!is_noted) c->sent += sent;
    return is_noted;
}

static Failpoint open_trace(Comm *c, OpKind kind) {
    static const char *const points[] = {"comm.reduce_scatter", "comm.all_gather", "comm.all_reduce", "comm.all_reduce",
                                         "comm.tree_sum", "comm.send", "comm.receive", "comm.exchange"};
    World     *w = c->world;
    CommTrace *trace = &w->trace[w->started % TRACES];
    *trace = (CommTrace){OP_NAMES[kind], c->calls++, w->started, clock_ms(), 0, 0, ""};
    memcpy(trace->group, c->name, sizeof trace->group);
    return queue_obey_test(w, points[kind]);
}

static void started(Comm *c, Failpoint f) {
    World *w = c->world;
    w->started++, c->started++;
    if (c->kind != COMM_NCCL) begin_those_ready(w);
    failpoint_done(f);
}

/* Starts a collective over x. For OP_TREE_SUM, x is the last of this rank's nodes (partial sums), and `nodes` the
 * others. after: NULL, or the group whose collectives so far must end before this one begins. */
static void start(Comm *c, OpKind kind, Tensor x, const Tensor *nodes, Comm *after) {
    expect_bucket(c, kind, x);
    if (c->is_offline || note_start(c, kind, tensor_elems(x), bytes_sent(c, kind, x))) return;
    Failpoint f = open_trace(c, kind);
    if (c->kind == COMM_NCCL) nccl_start(c, kind, x, nodes); /* NCCL has its own queue on the GPU, a stream on which
                                                              * collectives of all groups follow each other */
    else enqueue(c, kind, x, nodes, after);
    started(c, f);
}

void comm_all_gathers_start(Comm *c, const Tensor *x, int count, GatherOrder order) {
    int is_one = c->kind == COMM_NCCL && c->size > 1 && !c->is_offline && !c->world->ledger && count > 0;
    CHECK(count <= GATHERS_MOST, "%d gathers at once", count);
    if (is_one) nccl_join(c, order);
    for (int i = 0; i < count; i++) start(c, OP_ALL_GATHER, x[i], NULL, NULL);
    if (is_one) nccl_join_end(c);
}

/* Starts messages to and from other ranks as one collective: OP_EXCHANGE, or the one message of a pair, OP_SEND or
 * OP_RECEIVE. */
static void start_messages(Comm *c, OpKind kind, const CommMessage *message, int count) {
    int64_t sent = 0, elems = 0;
    CHECK(c->is_pair == (kind != OP_EXCHANGE), "%s over %s", OP_NAMES[kind], c->name);
    for (int i = 0; i < count; i++) {
        CommMessage m = message[i];
        CHECK(m.peer >= 0 && m.peer < c->size && m.peer != c->rank && (c->is_pair || tensor_elems(m.x) > 0),
              "%s of %lld elements with rank %d", OP_NAMES[kind], (long long)tensor_elems(m.x), m.peer);
        if (m.kind == EXCHANGE_SEND) sent += (int64_t)tensor_bytes(m.x);
        if (m.kind == EXCHANGE_SEND || c->is_pair) elems += tensor_elems(m.x);
    }
    if (c->is_offline || note_start(c, kind, elems, sent)) return;
    Failpoint f = open_trace(c, kind);
    if (c->kind == COMM_NCCL) nccl_exchange(c, message, count);
    for (int i = 0; i < count && c->kind != COMM_NCCL; i++) {
        Op *op = add_op(c, message[i].kind == EXCHANGE_SEND ? OP_SEND : OP_RECEIVE, message[i].x);
        op->peer = message[i].peer;
        op->staged = staging_in(c, op->kind, &op->x);
    }
    started(c, f);
}

static int is_of(const World *w, int i, int64_t sequence) {
    return i >= 0 && i < w->ops && w->op[i].sequence == sequence;
}

/* Ends an op (queue entry). Copies the result back to the GPU, or frees the copy in host memory. Each message has its
 * own copy in host memory; the two ops of an all-gather share one. */
static void end(World *w, const Op *op, int is_last) {
    CommTrace *trace = world_trace_of(w, op->sequence);
    if (trace && is_last) trace->end_ms = clock_ms();
    if (!is_last && !op_is_message(op->kind)) return;
    for (int k = 0; op->kind == OP_TREE_SUM && k < op->comm->tree->mine - 1; k++)
        if (op->node_staged[k] >= 0) staging_drop(w, op->node_staged[k]);
    if (op->staged >= 0 && op->kind == OP_SEND) staging_drop(w, op->staged);
    else if (op->staged >= 0) staging_out(op->comm, op->staged, op->kind, op->bucket);
}

/* Makes progress with every collective in flight, in start order. Returns whether anything progressed. */
static int progress(World *w) {
    begin_those_ready(w);
    int moved = 0, left = 0;
    for (int i = 0; i < w->ops; i++) {
        Op   *op = &w->op[i];
        Comm *c = op->comm;
        if (op->is_begun) moved |= op_progress(op);
        if (!op->is_begun || !op_is_done(op)) {
            w->op[left++] = *op;
            continue;
        }
        end(w, op, !is_of(w, left - 1, op->sequence) && !is_of(w, i + 1, op->sequence));
        c->ops--;
        if (--c->begun == 0) c->times.comm_ms += clock_ms() - c->busy_since_ms;
    }
    w->ops = left;
    return moved;
}

void comm_poll(Comm *group) {
    World *w = group->world;
    for (Comm *c = w->groups; c; c = c->next)
        if (c->kind == COMM_NCCL && c->nccl) nccl_poll(c);
    if (w->ops > 0) progress(w);
}

/* One iteration of a wait. Without progress it spins, as MPI does, for PATIENCE_MS, because a yield would give the core
 * to other programs. If ranks outnumber processors (w->yields) it yields at once, because the awaited rank may need
 * this core. If Open MPI itself yields in each test, w->yields is 0. */
void queue_turn(World *w, double *moved_ms) {
    if (w->ops > 0 && progress(w)) {
        *moved_ms = clock_ms();
        world_moved(w);
    } else if (w->yields || clock_ms() - *moved_ms > PATIENCE_MS) {
        sched_yield();
    }
}

int64_t comm_next(const Comm *c) { return c->started; }
int     comm_is_idle(const Comm *c) { return c->ops == 0; }

void comm_wait(Comm *c, int64_t sequence) {
    if (c->size == 1) return;
    if (c->world->ledger) {
        int64_t     last = c->started - 1;
        LedgerEntry e = {.kind = LEDGER_WAIT, .op = "wait", .dim = {sequence < last ? last - sequence : 0}};
        memcpy(e.group, c->name, sizeof e.group);
        ledger_note(c->world->ledger, e);
        return;
    }
    if (c->kind == COMM_NCCL) {
        nccl_wait(c, sequence);
        return;
    }
    double begin = 0, counted = 0, moved = clock_ms(); /* begin: time from which the wait counts as exposed, once the
                                                        * compute stream has no more work */
    for (int idle = 0; is_waited_for(c, sequence); queue_turn(c->world, &moved))
        if (!idle && (idle = staging_stream_is_idle(c->world))) begin = clock_ms(), counted = comm_counted_ms(c, begin);
    if (begin > 0) comm_count_wait(c, &c->times, begin, counted);
    if (c->world->staging) staging_finish(c->world);
}

void comm_finish(Comm *c) { comm_wait(c, c->started); }

void comm_reduce_scatter_start(Comm *c, Tensor x) { start(c, OP_REDUCE_SCATTER, x, NULL, NULL); }
void comm_all_gather_start(Comm *c, Tensor x) { start(c, OP_ALL_GATHER, x, NULL, NULL); }
void comm_all_reduce_start(Comm *c, Tensor x) { start(c, OP_ALL_REDUCE, x, NULL, NULL); }
void comm_all_reduce_after(Comm *c, Tensor x, Comm *before) { start(c, OP_ALL_REDUCE, x, NULL, before); }
void comm_tree_sum_start(Comm *c, Tensor x, const Tensor *nodes, int count) {
    CHECK(c->size == 1 || (c->tree && count == c->tree->mine - 1), "%d nodes beside x", count);
    for (int k = 0; k < count; k++) EXPECT1(nodes[k], F32, x.dim[0]);
    start(c, OP_TREE_SUM, x, nodes, NULL);
}
void comm_exchange_start(Comm *c, const CommMessage *m, int count) { start_messages(c, OP_EXCHANGE, m, count); }
void comm_send_start(Comm *pair, Tensor x) {
    start_messages(pair, OP_SEND, &(CommMessage){EXCHANGE_SEND, 1, x}, 1);
}
void comm_receive_start(Comm *pair, Tensor x) {
    start_messages(pair, OP_RECEIVE, &(CommMessage){EXCHANGE_RECEIVE, 0, x}, 1);
}

static void run(Comm *c, OpKind kind, Tensor x) {
    start(c, kind, x, NULL, NULL);
    comm_finish(c);
}

void comm_reduce_scatter(Comm *c, Tensor x) { run(c, OP_REDUCE_SCATTER, x); }
void comm_all_gather(Comm *c, Tensor x) { run(c, OP_ALL_GATHER, x); }
void comm_all_reduce_max(Comm *c, Tensor x) { run(c, OP_ALL_MAX, x); }

/* Sums x over the ranks. With the ring and more than two ranks, a reduce-scatter and an all-gather in both directions
 * are faster; they need equal pieces. With two ranks it is faster to return each chunk as soon as it is summed. The
 * additions, and so the bits, are the same. */
void comm_all_reduce(Comm *c, Tensor x) {
    if (c->kind == COMM_RING && c->size > 2 && x.dims == 1 && x.dim[0] % c->size == 0) {
        comm_reduce_scatter(c, x);
        comm_all_gather(c, x);
    } else run(c, OP_ALL_REDUCE, x);
}
