/* memory_copies.c - see memory_copies.h.
 *
 * state_copy writes into the mapped file of a slot. The thread then adds hashes and head, and seals the copy, which is
 * then whole here. With several hosts the data is sent to the neighbour as soon as it is copied. Everything before the
 * data is sent once it is sealed. The neighbour gets the same file, byte by byte. A slot begins with a zero until it is
 * sealed. The next copy starts on no rank before this one is whole on all, so one of the two slots is always whole.
 */
#include "run/checkpoint/memory_copies.h"

#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "core/thread.h"
#include "core/failpoints.h"
#include "core/io.h"
#include "core/error.h"
#include "run/checkpoint/memory_copy.h"
#include "run/checkpoint/state_copy.h"

enum { HEAD_SPARE = 256 << 10 }; /* bytes for growth of a head: losses in the guard, maxima of fp8 */
static const double PAUSE_MS = 100.0;

/* The slots of one rank. meta: bytes before the data. data: bytes of the data. slot: mapped files, owned. */
typedef struct { uint64_t meta, data; char *slot[MEMORY_SLOTS]; int is_pinned[MEMORY_SLOTS]; } Slots;
/* The connection of a sender and a receiver on the next host. */
typedef struct {
    Comm *pair;       /* owned */
    int   from;       /* the rank that sends */
    Slots in;         /* slots of the receiver */
} Link;

struct MemoryCopies {
    const CheckpointState *state;  /* borrowed */
    Path       folder;
    MemoryHost host;
    FileRuns   runs;      /* owned */
    float     *scratch;   /* owned */
    uint64_t   session;
    Slots      own;
    Link      *link;      /* owned, ordered by sender, so that all ranks free them in one order */
    int        links;
    int        at;        /* index of the slot that was filled last */
    Save       save;      /* used by the thread while busy */
    int        in_flight, is_sent, warned; /* is_sent: the thread is done, and its work is being sent */
    int        is_whole;  /* the copy is sealed; used by the thread while busy */
    char       fault[MANIFEST_FAULT_BYTES]; /* why it is not whole */
    double     begin_ms;
    MemoryCopied now, done; /* copy in flight; last one complete (step -1: none to report) */
    Thread     thread;
    int        busy;      /* guarded by the thread's lock */
};

/* --- the thread --------------------------------------------------------------------------------------------------- */

static void seal(MemoryCopies *m) {
    Save        *s = &m->save;
    size_t       head_bytes = 0;
    save_hash_pieces(s);
    char        *head = s->fault[0] ? NULL : save_head(s, &head_bytes);
    MemoryHeader h = {.session = m->session, .step = s->step, .rank = comm_rank(m->state->comm), .ranks = comm_size(m->state->comm),
                      .runs = s->written_count, .head_bytes = head_bytes, .data_offset = m->own.meta, .data_bytes = m->own.data};
    memcpy(h.run_id, s->train_state.run_id, sizeof h.run_id);
    if (head && memory_meta_bytes(h.runs, h.head_bytes) > m->own.meta) manifest_fault(s->fault, "its head takes %zu bytes", head_bytes);
    m->is_whole = !s->fault[0];
    if (m->is_whole) memory_seal(m->own.slot[m->at], h, s->written, head);
    free(head);
}

static void *seal_when_told(void *copies) {
    MemoryCopies *m = (MemoryCopies *)copies;
    omp_set_num_threads(1); /* training uses the other cores */
    thread_lock(&m->thread);
    for (;;) {
        while (!m->busy && !m->thread.stop) thread_wait(&m->thread);
        if (!m->busy) break;
        thread_unlock(&m->thread);
        seal(m);
        thread_lock(&m->thread);
        m->busy = 0;
        thread_changed(&m->thread);
    }
    thread_unlock(&m->thread);
    return NULL;
}

static void tell(MemoryCopies *m) {
    thread_lock(&m->thread);
    m->busy = 1;
    thread_changed(&m->thread);
    thread_unlock(&m->thread);
}

static int is_busy(MemoryCopies *m) {
    thread_lock(&m->thread);
    int busy = m->busy;
    thread_unlock(&m->thread);
    return busy;
}

/* --- making and ending -------------------------------------------------------------------------------------------- */

/* Returns a bound of the number of extents. An extent has at least a MiB, or ends with a file run. */
static uint64_t most_extents(const FileRuns *runs, int tensors) {
    return (uint64_t)tensors * ((uint64_t)runs->runs + 4 * (uint64_t)runs->elems / MANIFEST_EXTENT_BYTES + 2);
}

/* Returns the rank at the same place of the next host, or -1 if there is only one host. */
static int next_of(Comm *c, int rank) {
    MemoryHost own = memory_host(c, rank);
    if (own.hosts == 1) return -1;
    for (int r = 0; r < comm_size(c); r++) {
        MemoryHost h = memory_host(c, r);
        if (h.host == (own.host + 1) % own.hosts && h.place == own.place % h.ranks) return r;
    }
    return -1;
}

/* Collective. Writes the sizes of every rank to bytes [2 * ranks]: bytes before the data, bytes of the data. */
static void share_sizes(const MemoryCopies *m, int64_t *bytes) {
    Comm *c = m->state->comm;
    bytes[2 * comm_rank(c)] = (int64_t)m->own.meta, bytes[2 * comm_rank(c) + 1] = (int64_t)m->own.data;
    comm_all_reduce_i64(c, bytes, 2 * comm_size(c), COMM_SUM);
}

/* Collective. Makes the links to and from this rank. */
static void link_hosts(MemoryCopies *m) {
    Comm    *c = m->state->comm;
    int      ranks = comm_size(c);
    int64_t *bytes = xcalloc((size_t)(2 * ranks), sizeof *bytes, "a table of ranks");
    m->link = xcalloc((size_t)ranks, sizeof *m->link, "a table of ranks");
    if (m->host.hosts > 1) share_sizes(m, bytes);
    for (int r = 0; m->host.hosts > 1 && r < ranks; r++) {
        Comm *pair = comm_pair(c, r, next_of(c, r), "copies");
        if (!pair) continue;
        comm_set_on_host(pair);
        m->link[m->links++] = (Link){pair, r, {(uint64_t)bytes[2 * r], (uint64_t)bytes[2 * r + 1], {NULL, NULL}, {0, 0}}};
    }
    free(bytes);
}

static int receives(const Link *l) { return comm_rank(l->pair) == 1; }

/* Makes the folder of this host, on the first rank of the host. Rank 0 also writes run_id into the run folder. */
static void make_folder(const MemoryCopies *m, char *fault) {
    const CheckpointState *state = m->state;
    int error = comm_rank(state->comm) == 0 ? memory_write_run_id(state->config->run.dir, state->train_state->run_id) : 0;
    if (error < 0) manifest_fault(fault, "cannot write %s/run_id: %s", state->config->run.dir, strerror(-error));
    if (m->host.place > 0) return;
    error = io_remove_tree(m->folder.text);
    if (!error) error = io_mkdirs(state->config->checkpoint.memory_dir);
    if (!error) error = io_mkdir_own(m->folder.text);
    if (error) manifest_fault(fault, "cannot make the folder %s: %s", m->folder.text, strerror(-error));
}

static void map_slots(const MemoryCopies *m, Slots *s, int rank, int is_next, char *fault) {
    for (int i = 0; i < MEMORY_SLOTS && !fault[0]; i++) {
        Path  path = path_of("%s/%s", m->folder.text, memory_name(rank, i, is_next).text);
        void *map;
        int   error = io_map_new(path.text, s->meta + s->data, &map);
        if (!error) s->slot[i] = (char *)map;
        else manifest_fault(fault, "cannot take %.1f MiB for %s: %s", (double)(s->meta + s->data) / 1048576.0, path.text,
                            strerror(-error));
    }
}

static void unmap_slots(Slots *s) {
    for (int i = 0; i < MEMORY_SLOTS; i++) {
        if (s->is_pinned[i]) device_unpin_host(s->slot[i]);
        if (s->slot[i]) io_unmap(s->slot[i], s->meta + s->data);
    }
}

/* Collective. Unmaps the slots on all ranks. Then the first rank of each host removes the files. */
static void remove_all(MemoryCopies *m) {
    unmap_slots(&m->own);
    for (int i = 0; i < m->links; i++) unmap_slots(&m->link[i].in);
    comm_barrier(m->state->comm);
    if (m->host.place == 0) io_remove_tree(m->folder.text);
    for (int i = 0; i < m->links; i++) comm_free(m->link[i].pair);
    free(m->link);
    free(m->runs.run);
    device_free_host(m->scratch);
    free(m);
}

/* Returns the bytes before the data of a copy. The head has its present size and HEAD_SPARE to grow. */
static uint64_t meta_bytes(const MemoryCopies *m) {
    size_t head_bytes = 0;
    Save   s = save_prepare(m->state, 0, NULL, &m->runs);
    char  *head = save_head(&s, &head_bytes);
    if (!head) fail(EXIT_MEMORY, "no memory for the head of a copy in memory");
    free(head);
    save_release(&s);
    return memory_meta_bytes(most_extents(&m->runs, optimizer_tensors(m->state->optimizer->kind)), 2 * head_bytes + HEAD_SPARE);
}

static uint64_t draw_session(Comm *c) {
    uint64_t session = 0;
    if (comm_rank(c) == 0 && getrandom(&session, sizeof session, 0) != sizeof session) fail(EXIT_IO, "the system gives no random bytes");
    comm_broadcast(c, &session, sizeof session, 0);
    return session;
}

MemoryCopies *memory_copies_create(const CheckpointState *state) {
    char fault[MANIFEST_FAULT_BYTES] = "";
    if (state->config->checkpoint.memory_every == 0) return NULL;
    MemoryCopies *m = xcalloc(1, sizeof *m, "copies in memory");
    m->state = state;
    m->folder = memory_folder(state);
    m->host = memory_host(state->comm, comm_rank(state->comm));
    m->runs = exchange_runs(state->optimizer->shards);
    m->scratch = (float *)device_alloc_host(sizeof(float) * (size_t)(exchange_scratch_elems(checkpoint_layout(state)) + 1), "copies in memory");
    m->session = draw_session(state->comm);
    m->own.meta = meta_bytes(m);
    m->own.data = 4 * (uint64_t)optimizer_tensors(state->optimizer->kind) * (uint64_t)m->runs.elems;
    m->done.step = -1;
    link_hosts(m);
    make_folder(m, fault);
    if (!any_fault(state->comm, fault)) {
        map_slots(m, &m->own, comm_rank(state->comm), 0, fault);
        for (int i = 0; i < MEMORY_SLOTS && !fault[0]; i++) /* state is copied from the GPU into these */
            m->own.is_pinned[i] = device_pin_host(m->own.slot[i], m->own.meta + m->own.data);
        for (int i = 0; i < m->links; i++)
            if (receives(&m->link[i])) map_slots(m, &m->link[i].in, m->link[i].from, 1, fault);
    }
    if (any_fault(state->comm, fault)) {
        if (comm_rank(state->comm) == 0) warn("no copies in memory: %s; training goes on without them", fault);
        remove_all(m);
        return NULL;
    }
    thread_start(&m->thread, seal_when_told, m, "copies in memory");
    return m;
}

void memory_copies_sweep(const CheckpointState *state) {
    int is_first = memory_host(state->comm, comm_rank(state->comm)).place == 0;
    if (state->config->checkpoint.memory_every > 0 && is_first) io_remove_tree(memory_folder(state).text);
}

const char *memory_copies_folder(const MemoryCopies *m) { return m->folder.text; }

size_t memory_copies_bytes(const Layout *layout, const OptimizerKind *optimizer, int hosts) {
    return (hosts > 1 ? 2 : 1) * MEMORY_SLOTS * sizeof(float) * (size_t)(optimizer_tensors(optimizer) * exchange_most_elems(layout));
}

/* --- a copy ------------------------------------------------------------------------------------------------------- */

static Tensor flat(void *data, DType type, uint64_t bytes) { return tensor_1d(data, type, (int64_t)(bytes / 4)); }

static void send(MemoryCopies *m, char *data, DType type, uint64_t bytes) {
    for (int i = 0; i < m->links; i++)
        if (!receives(&m->link[i])) comm_send_start(m->link[i].pair, flat(data, type, bytes));
}

/* Starts to receive the copies of neighbours into the same slot. The beginning of a slot arrives last. */
static void await_neighbours(MemoryCopies *m) {
    for (int i = 0; i < m->links; i++) {
        Slots *in = &m->link[i].in;
        if (!receives(&m->link[i])) continue;
        comm_receive_start(m->link[i].pair, flat(in->slot[m->at] + in->meta, F32, in->data));
        comm_receive_start(m->link[i].pair, flat(in->slot[m->at], I32, in->meta));
    }
}

static void clear(MemoryCopies *m, int slot) {
    memset(m->own.slot[slot], 0, sizeof(MemoryHeader));
    for (int i = 0; i < m->links; i++)
        if (receives(&m->link[i])) memset(m->link[i].in.slot[slot], 0, sizeof(MemoryHeader));
}

/* Sends the bytes before the data once the thread is done. A copy that could not be sealed is sent unchanged, and
 * begins with a zero. */
static void send_sealed(MemoryCopies *m) {
    if (m->is_sent || is_busy(m)) return;
    memcpy(m->fault, m->save.fault, sizeof m->fault);
    save_release(&m->save);
    send(m, m->own.slot[m->at], I32, m->own.meta);
    m->is_sent = 1;
}

static int has_arrived(const MemoryCopies *m) {
    for (int i = 0; i < m->links; i++)
        if (!comm_is_idle(m->link[i].pair)) return 0;
    return m->is_sent;
}

static void land(MemoryCopies *m) {
    m->in_flight = 0;
    m->now.ms = clock_ms() - m->begin_ms;
    if (m->is_whole) m->done = m->now;
}

static void finish(MemoryCopies *m) {
    if (!m->in_flight) return;
    while (is_busy(m)) {
        watchdog_tick(m->state->watchdog, "waiting for a copy in memory");
        thread_lock(&m->thread);
        if (m->busy) thread_wait_for(&m->thread, PAUSE_MS);
        thread_unlock(&m->thread);
    }
    send_sealed(m);
    for (int i = 0; i < m->links; i++) comm_finish(m->link[i].pair);
    land(m);
}

void memory_copies_start(MemoryCopies *m, int64_t step) {
    if (!m) return;
    double begin = clock_ms();
    finish(m); /* now the copy before is complete on all ranks */
    if (any_fault(m->state->comm, m->fault) && !m->warned++ && comm_rank(m->state->comm) == 0)
        warn("the copy in memory of step %" PRId64 " is of no use: %s", m->now.step, m->fault);
    m->fault[0] = 0;
    failpoint_done(failpoint("memory.copy"));
    m->at = !m->at;
    clear(m, m->at);
    await_neighbours(m);
    char *data = m->own.slot[m->at] + m->own.meta;
    state_copy(m->state, &m->runs, (float *)(void *)data, m->scratch);
    m->save = save_prepare(m->state, step, (const float *)(const void *)data, &m->runs);
    m->in_flight = 1, m->is_sent = 0;
    tell(m);
    send(m, data, F32, m->own.data);
    m->begin_ms = begin;
    m->now = (MemoryCopied){step, 0.0, clock_ms() - begin};
}

int memory_copies_next(MemoryCopies *m, MemoryCopied *copied) {
    if (!m) return 0;
    if (m->in_flight) send_sealed(m);
    if (m->in_flight && has_arrived(m)) land(m);
    if (m->done.step < 0) return 0;
    *copied = m->done;
    m->done.step = -1;
    return 1;
}

void memory_copies_forget(MemoryCopies *m) {
    if (!m) return;
    finish(m);
    for (int slot = 0; slot < MEMORY_SLOTS; slot++) clear(m, slot);
    m->done.step = -1;
    comm_barrier(m->state->comm);
}

void memory_copies_end(MemoryCopies *m) {
    if (!m) return;
    finish(m);
    thread_stop(&m->thread);
    save_release(&m->save);
    remove_all(m);
}
