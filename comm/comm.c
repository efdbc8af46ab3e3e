/* comm.c - groups of ranks: how they are made, by what (ring, MPI, NCCL) their collectives travel, how long the
 * collectives took. Also the small blocking calls, such as a barrier. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/internal.h"
#include "core/thread.h"
#include "core/failpoints.h"
#include "core/error.h"

/* --- groups ------------------------------------------------------------------------------------------------------- */

Comm *comm_make(World *w, const char *name) {
    Comm *c = xcalloc(1, sizeof *c, "a group of ranks");
    c->member = xmalloc(sizeof *c->member, "a group of ranks");
    snprintf(c->name, sizeof c->name, "%s", name);
    c->world = w;
    c->size = 1;
    c->member[0] = w->rank;
    c->chunk_owner = -1;
    return c;
}

void comm_drop(Comm *c) {
    if (c->nccl) nccl_close(c);
    if (c->tree) tree_close(c);
    free(c->chunk);
    free(c->member);
    free(c);
}

void comm_make_dry(Comm *c, int size, int rank) {
    c->member = xrealloc(c->member, sizeof *c->member * (size_t)size, "a group of ranks");
    for (int r = 0; r < size; r++) c->member[r] = r;
    c->size = size, c->rank = rank;
}

int comm_note_sent(Comm *c, const char *name, int64_t elems, double sent) {
    LedgerEntry e = {.op = name, .dim = {elems}, .bytes = sent};
    if (c->world->ledger && c->size > 1) {
        snprintf(e.group, sizeof e.group, "%s", c->name);
        ledger_note(c->world->ledger, e);
    }
    return c->size == 1 || c->world->ledger;
}

Comm *comm_split(Comm *parent, int color, int key, const char *name) {
    CHECK(color >= 0, "color %d of a group", color);
    CHECK(parent->size == 1 || !parent->world->ledger, "the colors of ranks that are not there");
    Comm *c = comm_make(parent->world, name);
    if (parent->size > 1) group_split(c, parent, color, key);
    world_list(c->world, c);
    return c;
}

/* Makes a group of ranks [size] of parent, in this order. All ranks of parent call it together, each with its own
 * group. */
static Comm *group_of(Comm *parent, const int *ranks, int size, const char *name) {
    int at = 0;
    while (ranks[at] != parent->rank) at++;
    if (!parent->world->ledger) return comm_split(parent, ranks[0], at, name);
    Comm *c = comm_make(parent->world, name);
    comm_make_dry(c, size, at);
    for (int i = 0; i < size; i++) c->member[i] = parent->member[ranks[i]];
    world_list(c->world, c);
    return c;
}

Comm *comm_group(Comm *job, Mesh mesh, unsigned axes, const char *name) {
    CHECK(mesh_ranks(mesh) == job->size, "a grid of %d among %d ranks", mesh_ranks(mesh), job->size);
    int *ranks = xmalloc(sizeof *ranks * (size_t)job->size, "a group of ranks");
    Comm *c = group_of(job, ranks, mesh_group(mesh, job->rank, axes, ranks), name);
    free(ranks);
    return c;
}

Comm *comm_every(Comm *parent, int first, int stride, int size, const char *name) {
    int *ranks = xmalloc(sizeof *ranks * (size_t)size, "a group of ranks"), is_here = 0;
    for (int i = 0; i < size; i++) is_here |= (ranks[i] = first + i * stride) == parent->rank;
    CHECK(is_here && ranks[size - 1] < parent->size, "rank %d of %d in a group from %d on", parent->rank, parent->size,
          first);
    Comm *c = group_of(parent, ranks, size, name);
    free(ranks);
    return c;
}

Comm *comm_pair(Comm *parent, int from, int to, const char *name) {
    Comm *c = NULL;
    if (parent->rank == from || parent->rank == to) {
        c = group_of(parent, (int[]){from, to}, 2, name);
        c->is_pair = 1;
    } else if (!parent->world->ledger) comm_free(comm_split(parent, parent->rank, 0, name));
    return c;
}

void comm_free(Comm *c) {
    if (!c) return;
    CHECK(c != c->world->all, "the group of all ranks ends with world_leave");
    comm_finish(c);
    world_unlist(c->world, c);
    if (c->size > 1 && !c->world->ledger) group_free(c);
    comm_drop(c);
}

World      *comm_world(const Comm *c) { return c->world; }
int         comm_rank(const Comm *c) { return c->rank; }
int         comm_size(const Comm *c) { return c->size; }
int         comm_member(const Comm *c, int rank) { return c->member[rank]; }
const char *comm_host(const Comm *c, int rank) { return c->world->host[c->member[rank]]; }

/* A group of one needs no communicator of NCCL. The group of all ranks opens NCCL even if it has one rank, so that a
 * missing NCCL is reported. */
void comm_set_kind(Comm *c, CommKind kind) {
    CHECK(c->ops == 0, "%d collectives in flight", c->ops);
    if (kind == COMM_NCCL && !c->nccl && !c->world->ledger && (c->size > 1 || c == c->world->all)) nccl_open(c);
    c->kind = kind;
}
void     comm_set_inline(Comm *c) { c->is_inline = 1; }
void     comm_set_exchanges(Comm *c) { c->exchanges = 1; }
void     comm_set_on_host(Comm *c) { c->is_on_host = 1; }
void     comm_set_offline(Comm *c, int is_offline) { c->is_offline = is_offline; }
CommKind comm_kind(const Comm *c) { return c->kind; }

/* --- times, and memory -------------------------------------------------------------------------------------------- */

size_t comm_buffer_bytes(CommKind kind, int ranks) {
    return ranks > 1 && kind == COMM_RING ? (size_t)(WINDOW * CHUNK_BYTES) : 0;
}

/* A channel of NCCL is one of its kernel's blocks. Each has a buffer from and to a neighbour for each protocol:
 *   Simple   NCCL_BUFFSIZE, 4 MiB by default
 *   LL128    120 words for each of 640 threads, 8 times
 *   LL       8 lines of 16 bytes for each of 512 threads, 8 times
 * (src/include/device.h of NCCL 2). For messages it has the same buffers from each rank in an allocation of 10 MiB, and
 * 2 MiB to each rank (src/transport/p2p.cc). 32 channels are the most between GPUs of one host. */
size_t comm_library_bytes(CommKind kind, int ranks, CommUse use) {
    static const int most[] = {[COMM_FOR_BUCKETS] = NCCL_BLOCKS, [COMM_FOR_INLINE] = 32,
                               [COMM_FOR_MESSAGES] = NCCL_BLOCKS, [COMM_FOR_PAIR] = NCCL_PAIR_BLOCKS};
    const size_t simple = 4u << 20, ll128 = 120 * 640 * 8 * 8, ll = 8 * 16 * 512 * 8, message = 12u << 20;
    size_t       channels = (size_t)comm_max_blocks(most[use]);
    size_t       peers = use == COMM_FOR_MESSAGES || use == COMM_FOR_PAIR ? (size_t)ranks - 1 : 0;
    return kind == COMM_NCCL && ranks > 1 ? channels * (2 * (simple + ll128 + ll) + peers * message) : 0;
}

int comm_max_blocks(int chosen) {
    const char *asked = getenv("NCCL_MAX_CTAS");
    return asked && atoi(asked) > 0 ? atoi(asked) : chosen;
}

/* Adds the time of collectives in flight up to now to c->times. The rest of their time counts for the next
 * comm_times. */
static void count_so_far(Comm *c) {
    double now = clock_ms();
    if (c->begun > 0) c->times.comm_ms += now - c->busy_since_ms;
    c->busy_since_ms = now;
}

/* Reads NCCL's times for all groups, because otherwise an ended collective of a group whose times nobody reads would
 * seem in flight. */
CommTimes comm_times(Comm *c) {
    for (Comm *each = c->world->groups; each; each = each->next)
        if (each->nccl) nccl_read_times(each);
    count_so_far(c);
    CommTimes times = {c->times.comm_ms + c->waits.comm_ms, c->times.exposed_ms + c->waits.exposed_ms, c->sent,
                       c->times.sends};
    c->sent = 0;
    memset(&c->times, 0, sizeof c->times);
    memset(&c->waits, 0, sizeof c->waits);
    return times;
}

void comm_forget_times(Comm *c) {
    count_so_far(c);
    c->sent = 0;
    memset(&c->waits, 0, sizeof c->waits);
    if (c->kind != COMM_NCCL) memset(&c->times, 0, sizeof c->times);
}

/* --- small blocking things, timed --------------------------------------------------------------------------------- */

typedef struct { double begin_ms, counted_ms; Failpoint test; } Blocking;

double comm_counted_ms(const Comm *c, double now) {
    return c->times.comm_ms + (c->begun > 0 ? now - c->busy_since_ms : 0);
}

void comm_count_wait(Comm *c, CommTimes *times, double begin_ms, double counted_ms) {
    double now = clock_ms(), ms = now - begin_ms, rest = ms - (comm_counted_ms(c, now) - counted_ms);
    times->exposed_ms += ms;
    if (rest > 0) times->comm_ms += rest;
}

/* Notes a small blocking call in the ledger of a dry run. The bytes are the least that a rank of W can send, as the
 * mean over the ranks: (W-1)/W of the data, `times` over. `times` is 2 for an all-reduce (Patarasu and Yuan, "Bandwidth
 * optimal all-reduce algorithms", 2009). Returns 1 if there is nothing to communicate. */
static int note_or_skip(Comm *c, const char *name, int64_t elems, size_t bytes, int times) {
    return comm_note_sent(c, name, elems, times * (double)bytes * (c->size - 1) / c->size);
}

static Blocking enter(Comm *c, const char *name, const char *point) {
    CommTrace call = {.name = name, .number = c->calls++, .start_ms = clock_ms()};
    memcpy(call.group, c->name, sizeof call.group);
    c->world->blocking = call;
    Failpoint test = queue_obey_test(c->world, point);
    double    now = clock_ms();
    return (Blocking){now, comm_counted_ms(c, now), test};
}

static void leave(Comm *c, Blocking b) {
    comm_count_wait(c, &c->waits, b.begin_ms, b.counted_ms);
    c->world->blocking.end_ms = clock_ms();
    failpoint_done(b.test);
}

void comm_barrier(Comm *c) {
    if (note_or_skip(c, "barrier", 0, 0, 0)) return;
    Blocking b = enter(c, "barrier", "comm.barrier");
    group_barrier(c);
    leave(c, b);
}

void comm_broadcast(Comm *c, void *data, size_t bytes, int root) {
    if (note_or_skip(c, "broadcast", (int64_t)bytes, bytes, 1)) return;
    Blocking b = enter(c, "broadcast", "comm.broadcast");
    group_broadcast(c, data, bytes, root);
    leave(c, b);
}

static void all_reduce(Comm *c, void *values, int count, DType type, CommReduce op) {
    if (note_or_skip(c, "all-reduce of numbers", count, sizeof(double) * (size_t)count, 2)) return;
    Blocking b = enter(c, "all-reduce of numbers", "comm.all_reduce");
    group_all_reduce(c, values, count, type, op);
    leave(c, b);
}

void comm_all_reduce_f64(Comm *c, double *values, int n, CommReduce op) { all_reduce(c, values, n, F64, op); }
void comm_all_reduce_i64(Comm *c, int64_t *values, int n, CommReduce op) { all_reduce(c, values, n, I64, op); }

void comm_all_to_all(Comm *c, const void *send, const size_t *bytes, void *receive) {
    size_t all = 0;
    for (int r = 0; r < c->size; r++) all += bytes[r];
    if (c->size == 1) memcpy(receive, send, all);
    if (note_or_skip(c, "all-to-all", (int64_t)all, all, 1)) return;
    Blocking b = enter(c, "all-to-all", "comm.all_to_all");
    group_all_to_all(c, (const char *)send, bytes, (char *)receive);
    leave(c, b);
}

char *comm_gather(Comm *c, const void *data, size_t bytes, int root, size_t **bytes_of_rank) {
    CHECK(!c->world->ledger, "a gather from ranks that are not there");
    if (c->size == 1) {
        char *all = xmalloc(bytes, "what a rank gathers");
        *bytes_of_rank = xmalloc(sizeof **bytes_of_rank, "what a rank gathers");
        if (bytes) memcpy(all, data, bytes);
        (*bytes_of_rank)[0] = bytes;
        return all;
    }
    Blocking b = enter(c, "gather", "comm.gather");
    char    *all = group_gather(c, data, bytes, root, bytes_of_rank);
    leave(c, b);
    return all;
}

char *comm_gather_bytes(Comm *c, const void *data, size_t bytes, size_t *total) {
    size_t *bytes_of_rank = NULL;
    char   *all = comm_gather(c, data, bytes, 0, &bytes_of_rank);
    *total = 0;
    for (int r = 0; comm_rank(c) == 0 && r < comm_size(c); r++) *total += bytes_of_rank[r];
    free(bytes_of_rank);
    return all;
}

int comm_any_fault(Comm *c, char fault[COMM_FAULT_BYTES]) {
    if (!c || c->size == 1) return fault[0] != 0;
    int64_t who = fault[0] ? c->rank : c->size;
    comm_all_reduce_i64(c, &who, 1, COMM_MIN);
    if (who == c->size) return 0;
    comm_broadcast(c, fault, COMM_FAULT_BYTES, (int)who);
    return 1;
}

/* --- devices that ranks share ------------------------------------------------------------------------------------- */

enum { ID_CHARS = 64, WARNINGS = 8 };

/* Writes "ranks 0, 1 and 2" to text: all ranks whose device id equals that of rank `first`. Returns their number. */
static int name_sharers(const char (*id)[ID_CHARS], int ranks, int first, char *text, size_t room) {
    int count = 0, last = first;
    for (int r = first; r < ranks; r++)
        if (strcmp(id[r], id[first]) == 0) count++, last = r;
    size_t at = (size_t)snprintf(text, room, "ranks %d", first);
    for (int r = first + 1; r <= last && at < room; r++)
        if (strcmp(id[r], id[first]) == 0)
            at += (size_t)snprintf(text + at, room - at, r == last ? " and %d" : ", %d", r);
    return count;
}

/* Warns on rank 0 about ranks that share a GPU. id [ranks] has the device of every rank. */
static void warn_of_sharers(const Comm *c, const char (*id)[ID_CHARS]) {
    int shared = 0;
    for (int r = 0; r < c->size; r++) {
        int is_named = 0;
        for (int earlier = 0; earlier < r && !is_named; earlier++) is_named = strcmp(id[earlier], id[r]) == 0;
        char who[512];
        if (is_named || name_sharers(id, c->size, r, who, sizeof who) == 1) continue;
        if (shared++ < WARNINGS)
            warn("%s share GPU %s on %s: each gets a part of its speed and memory; start as many ranks as there are "
                 "GPUs",
                 who, id[r], comm_host(c, r));
    }
}

int comm_device_sharers(Comm *c, const char *device_id) {
    char    mine[ID_CHARS] = "", (*id)[ID_CHARS] = xcalloc((size_t)c->size, ID_CHARS, "the devices of the ranks");
    size_t *bytes;
    int64_t known = device_id[0] != 0;
    int     sharers = 0;
    comm_all_reduce_i64(c, &known, 1, COMM_MIN);
    if (known) {
        snprintf(mine, sizeof mine, "%s", device_id);
        char *all = comm_gather(c, mine, sizeof mine, 0, &bytes);
        if (all) memcpy(id, all, (size_t)c->size * ID_CHARS);
        free(all), free(bytes);
        if (c->rank == 0) warn_of_sharers(c, (const char (*)[ID_CHARS])id);
        comm_broadcast(c, id, (size_t)c->size * ID_CHARS, 0);
        for (int r = 0; r < c->size; r++) sharers += strcmp(id[r], mine) == 0;
    }
    free(id);
    return sharers;
}

int comm_owns_device(Comm *c, const char *device_id) {
    int64_t most = comm_device_sharers(c, device_id);
    comm_all_reduce_i64(c, &most, 1, COMM_MAX);
    return most == 1;
}
