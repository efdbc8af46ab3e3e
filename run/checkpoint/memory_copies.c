/* memory_copies.c - see memory_copies.h.
 *
 * state_copy writes into the mapped file of a slot. The thread then adds hashes and head (manifest without files), and
 * seals the copy, which is then whole on this host. With several hosts the data is sent to the neighbour, a rank of the
 * next host, as soon as it is copied. Everything before the data is sent once it is sealed. The neighbour gets the same
 * file, byte by byte. A slot begins with a zero until it is sealed. No rank starts the next copy before this one is
 * whole on all ranks, so one of the two slots is always whole.
 *
 * After a loss the ranks of a host divide the files in its folder. Rank 0 gathers the copies found, and chooses the
 * newest step of one session (job) that has copies of all its ranks. Then all ranks hash the chosen copies that they
 * hold. If one is damaged, rank 0 chooses again. The ranks that hold the copies write their extents to the checkpoint.
 * Grid and number of ranks may have changed since.
 */
#include "run/checkpoint/memory_copies.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/failpoints.h"
#include "core/io.h"
#include "core/terminal.h"
#include "core/error.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/exchange.h"

/* --- names -------------------------------------------------------------------------------------------------------- */

MemoryName memory_name(int rank, int slot, int is_next) {
    MemoryName name;
    snprintf(name.text, sizeof name.text, "rank_%05d.%d%s", rank, slot, is_next ? ".next" : "");
    return name;
}

int memory_is_name(const char *name) {
    int rank, slot, used = 0;
    return sscanf(name, "rank_%9d.%1d%n", &rank, &slot, &used) == 2 && rank >= 0 && slot >= 0 && slot < MEMORY_SLOTS &&
           (name[used] == 0 || strcmp(name + used, ".next") == 0);
}

Path memory_folder(const CheckpointState *state) {
    char        whole[PATH_MAX];
    const char *dir = state->config->run.dir, *found = realpath(dir, whole) ? whole : dir;
    return path_of("%s/train_gpt-%u-%016" PRIx64 "-%s", state->config->checkpoint.memory_dir, (unsigned)geteuid(),
                   manifest_hash(found, strlen(found)), comm_host(state->comm, comm_rank(state->comm)));
}

/* Returns the host of a rank and its place there. Assumes that the ranks of a host have consecutive numbers, as
 * comm/world.c gives them. */
MemoryHost memory_host(Comm *c, int rank) {
    MemoryHost h = {0};
    for (int r = 0; r < comm_size(c); r++) {
        if (r == 0 || strcmp(comm_host(c, r), comm_host(c, r - 1)) != 0) {
            h.hosts++;
            if (r > rank) continue;
            h.host = h.hosts - 1, h.ranks = 0, h.place = rank - r;
        }
        h.ranks += strcmp(comm_host(c, r), comm_host(c, rank)) == 0;
    }
    return h;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

static const uint64_t HASHED_FROM = offsetof(MemoryHeader, session);

static uint64_t meta_used(uint64_t extents, uint64_t head_bytes) {
    return sizeof(MemoryHeader) + extents * sizeof(WrittenExtent) + head_bytes;
}

uint64_t memory_meta_bytes(uint64_t extents, uint64_t head_bytes) {
    return (meta_used(extents, head_bytes) + MEMORY_PAGE - 1) / MEMORY_PAGE * MEMORY_PAGE;
}

/* Writes everything before the data. base: the mapped file. h: all fields except magic and hash are set, and
 * data_offset leaves enough bytes for extents and head. */
static void write_meta(void *base, MemoryHeader h, const WrittenExtent *extent, const char *head) {
    char *at = (char *)base + sizeof h;
    memcpy(at, extent, h.extents * sizeof *extent);
    memcpy(at + h.extents * sizeof *extent, head, h.head_bytes);
    memcpy(h.magic, MEMORY_MAGIC, sizeof h.magic);
    memcpy(base, &h, sizeof h);
    h.hash = manifest_hash((char *)base + HASHED_FROM, meta_used(h.extents, h.head_bytes) - HASHED_FROM);
    memcpy((char *)base + offsetof(MemoryHeader, hash), &h.hash, sizeof h.hash);
}

/* Returns 1 if all extents are in the weights file or the optimizer file, and their lengths sum to data_bytes. */
static int are_extents(const WrittenExtent *e, uint64_t extents, uint64_t data_bytes) {
    uint64_t left = data_bytes;
    for (uint64_t i = 0; i < extents; i++) {
        if (e[i].file > FILE_OPTIMIZER || e[i].extent.bytes < 1 || e[i].extent.bytes > left ||
            e[i].extent.offset > INT64_MAX)
            return 0;
        left -= e[i].extent.bytes;
    }
    return left == 0;
}

int memory_parse(char *bytes, uint64_t count, uint64_t file_bytes, MemoryCopy *copy, char *fault) {
    static const char zeros[sizeof ((MemoryHeader *)0)->magic] = {0};
    MemoryHeader      h;
    memset(copy, 0, sizeof *copy);
    fault[0] = 0;
    if (count < sizeof h) return manifest_fault(fault, "it is cut short (%" PRIu64 " bytes)", count);
    memcpy(&h, bytes, sizeof h);
    if (memcmp(h.magic, zeros, sizeof zeros) == 0) return 0;
    if (memcmp(h.magic, MEMORY_MAGIC, sizeof h.magic) != 0)
        return manifest_fault(fault, "it is no copy of this program's");
    if (h.data_offset > count || h.data_offset > file_bytes || h.data_bytes != file_bytes - h.data_offset ||
        h.extents > h.data_offset / sizeof(WrittenExtent) || h.head_bytes > h.data_offset ||
        meta_used(h.extents, h.head_bytes) > h.data_offset ||
        h.hash != manifest_hash(bytes + HASHED_FROM, meta_used(h.extents, h.head_bytes) - HASHED_FROM))
        return manifest_fault(fault, "its head is damaged: the hash does not match");
    copy->bytes = bytes;
    copy->header = (const MemoryHeader *)(const void *)bytes;
    copy->extent = (const WrittenExtent *)(const void *)(bytes + sizeof h);
    copy->head = bytes + sizeof h + h.extents * sizeof *copy->extent;
    if (h.step < 0 || h.step > MANIFEST_COUNT_LIMIT || h.rank < 0 || h.rank >= h.ranks ||
        !are_extents(copy->extent, h.extents, h.data_bytes))
        return manifest_fault(fault, "its head is of another program's");
    return 1;
}

/* Refuses a file that belongs to another user, because the folder may be writable for everybody. */
int memory_read(const char *path, MemoryCopy *copy, char *fault) {
    struct stat  st;
    MemoryHeader h;
    int          fd = io_open(path, IO_READ), good = 0;
    memset(copy, 0, sizeof *copy);
    fault[0] = 0;
    if (fd < 0) return manifest_fault(fault, "cannot read it: %s", io_error_text(fd));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
        manifest_fault(fault, "it is another user's");
    } else {
        uint64_t file_bytes = (uint64_t)st.st_size;
        int      error = io_pread(fd, &h, sizeof h, 0);
        int      is_sane = !error && h.data_offset >= sizeof h && h.data_offset <= file_bytes &&
                           h.data_offset <= MEMORY_META_LIMIT;
        uint64_t count = is_sane ? h.data_offset : sizeof h;
        char    *bytes = xmalloc(count, "the head of a copy in memory");
        if (!error) error = io_pread(fd, bytes, count, 0);
        if (error) manifest_fault(fault, "cannot read it: %s", io_error_text(error));
        else good = memory_parse(bytes, count, file_bytes, copy, fault);
        if (!good) free(bytes), memset(copy, 0, sizeof *copy);
    }
    io_close(fd);
    return good;
}

void memory_free(MemoryCopy *copy) {
    free(copy->bytes);
    memset(copy, 0, sizeof *copy);
}

int memory_each_extent(const char *path, const MemoryCopy *copy, Save *save, char *fault) {
    uint64_t at = copy->header->data_offset, most = 1;
    for (uint64_t i = 0; i < copy->header->extents; i++)
        if (copy->extent[i].extent.bytes > most) most = copy->extent[i].extent.bytes;
    char *bytes = xmalloc(most, "an extent of a copy in memory");
    int   fd = io_open(path, IO_READ), error = fd < 0 ? fd : 0;
    fault[0] = 0;
    for (uint64_t i = 0; !error && !fault[0] && i < copy->header->extents; i++) {
        ManifestExtent e = copy->extent[i].extent;
        error = io_pread(fd, bytes, e.bytes, at);
        if (!error && manifest_hash(bytes, e.bytes) != e.hash)
            manifest_fault(fault, "it is damaged: the hash of bytes %" PRIu64 " to %" PRIu64 " does not match", at,
                           at + e.bytes - 1);
        else if (!error && save) save_put(save, copy->extent[i], bytes);
        at += e.bytes;
    }
    if (error) manifest_fault(fault, "cannot read it: %s", io_error_text(error));
    if (fd >= 0) io_close(fd);
    free(bytes);
    return !fault[0];
}

int memory_write_run_id(const char *run_dir, const char *run_id) {
    char line[48];
    int  bytes = snprintf(line, sizeof line, "%s\n", run_id);
    return io_replace_file(path_of("%s/run_id", run_dir).text, line, (size_t)bytes);
}

/* --- taking copies ------------------------------------------------------------------------------------------------ */

enum { HEAD_SPARE = 256 << 10 }; /* bytes by which the head of a copy (its manifest) may grow, for losses and maxima of
                                  * fp8 */
static const double PAUSE_MS = 100.0;

/* The two slots (mapped files) of one rank for copies of its state. meta: bytes before the data. data: bytes of the
 * data. slot: the mapped memory, owned. */
typedef struct { uint64_t meta, data; char *slot[MEMORY_SLOTS]; int is_pinned[MEMORY_SLOTS]; } Slots;
/* The connection between a rank and the rank of the next host that receives its copies. */
typedef struct {
    Comm *pair;       /* communicator of the two ranks; owned */
    int   from;       /* number of the rank that sends */
    Slots in;         /* slots of the receiving rank: files in memory for copies */
} Link;

struct MemoryCopies {
    const CheckpointState *state;  /* the run whose state is copied; borrowed */
    Path       folder;
    MemoryHost host;
    FileExtents extents;  /* extents that this rank copies; owned */
    float     *scratch;   /* buffer of an exchange between tensor ranks; owned */
    uint64_t   session;
    Slots      own;
    Link      *link;      /* [links] connections to ranks of other hosts, sorted by sender, so that all ranks free them
                           * in one order; owned */
    int        links;
    int        at;        /* index of the slot (file) that was filled last */
    Worker     worker;    /* thread that hashes a copy and marks it as complete */
    Save       save;      /* hashing of the copy in flight; used by the worker thread while it is busy */
    int        in_flight, is_sent, warned; /* in_flight: 1 while a copy is taken. is_sent: 1 once it is hashed and being
                                            * sent. warned: failures so far */
    int        is_whole;  /* 1 if the copy is hashed and complete; used by the worker thread while it is busy */
    char       fault[MANIFEST_FAULT_BYTES]; /* reason why the copy in flight is not usable; "": none */
    double     begin_ms;
    MemoryCopied now, done; /* copy in flight; last one that is complete (step -1: none to report) */
};

static void seal(void *copies) {
    MemoryCopies *m = (MemoryCopies *)copies;
    Save        *s = &m->save;
    size_t       head_bytes = 0;
    save_pieces(s, 0);
    char        *head = s->fault[0] ? NULL : save_head(s, &head_bytes);
    MemoryHeader h = {.session = m->session, .step = s->step,
                      .rank = comm_rank(m->state->comm), .ranks = comm_size(m->state->comm),
                      .extents = s->written_count, .head_bytes = head_bytes,
                      .data_offset = m->own.meta, .data_bytes = m->own.data};
    memcpy(h.run_id, s->train_state.run_id, sizeof h.run_id);
    if (head && memory_meta_bytes(h.extents, h.head_bytes) > m->own.meta)
        manifest_fault(s->fault, "its head takes %zu bytes", head_bytes);
    m->is_whole = !s->fault[0];
    if (m->is_whole) write_meta(m->own.slot[m->at], h, s->written, head);
    free(head);
}

/* Returns the rank of the next host that has the same place on its host as this rank. Returns -1 if there is only one
 * host. */
static int next_of(Comm *c, int rank) {
    MemoryHost own = memory_host(c, rank);
    if (own.hosts == 1) return -1;
    for (int r = 0; r < comm_size(c); r++) {
        MemoryHost h = memory_host(c, r);
        if (h.host == (own.host + 1) % own.hosts && h.place == own.place % h.ranks) return r;
    }
    return -1;
}

/* Collective. Makes the connections to and from this rank. Every rank tells the others two sizes: the bytes before the
 * data of its copy, and the bytes of the data. */
static void link_hosts(MemoryCopies *m) {
    Comm    *c = m->state->comm;
    int      ranks = comm_size(c), rank = comm_rank(c);
    int64_t *bytes = xcalloc((size_t)(2 * ranks), sizeof *bytes, "a table of ranks");
    m->link = xcalloc((size_t)ranks, sizeof *m->link, "a table of ranks");
    bytes[2 * rank] = (int64_t)m->own.meta, bytes[2 * rank + 1] = (int64_t)m->own.data;
    if (m->host.hosts > 1) comm_all_reduce_i64(c, bytes, 2 * ranks, COMM_SUM);
    for (int r = 0; m->host.hosts > 1 && r < ranks; r++) {
        Comm *pair = comm_pair(c, r, next_of(c, r), "copies");
        if (!pair) continue;
        comm_set_on_host(pair);
        Slots in = {.meta = (uint64_t)bytes[2 * r], .data = (uint64_t)bytes[2 * r + 1]};
        m->link[m->links++] = (Link){pair, r, in};
    }
    free(bytes);
}

static int receives(const Link *l) { return comm_rank(l->pair) == 1; }

/* Makes the folder for copies of this host; the first rank of the host calls it. Rank 0 also writes run_id into the run
 * folder. */
static void make_folder(const MemoryCopies *m, char *fault) {
    const CheckpointState *state = m->state;
    const char *dir = state->config->run.dir;
    int error = comm_rank(state->comm) == 0 ? memory_write_run_id(dir, state->train_state->run_id) : 0;
    if (error < 0) manifest_fault(fault, "cannot write %s/run_id: %s", dir, strerror(-error));
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
        else manifest_fault(fault, "cannot take %.1f MiB for %s: %s", (double)(s->meta + s->data) / 1048576.0,
                            path.text, strerror(-error));
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
    free(m->extents.extent);
    device_free_host(m->scratch);
    free(m);
}

/* Returns the most bytes before the data of a copy. Its head (manifest) may grow to twice its present size and
 * HEAD_SPARE more. An extent has at least 1 MiB, unless an extent of a file ends there. */
static uint64_t meta_bytes(const MemoryCopies *m) {
    size_t   head_bytes = 0;
    Save     s = save_prepare(m->state, 0, NULL, &m->extents);
    char    *head = save_head(&s, &head_bytes);
    uint64_t tensors = (uint64_t)optimizer_tensors(m->state->optimizer->kind),
             most = (uint64_t)m->extents.extents + 4 * (uint64_t)m->extents.elems / MANIFEST_EXTENT_BYTES + 2;
    free(head);
    save_release(&s);
    return memory_meta_bytes(tensors * most, 2 * head_bytes + HEAD_SPARE);
}

MemoryCopies *memory_copies_create(const CheckpointState *state) {
    char fault[MANIFEST_FAULT_BYTES] = "";
    if (state->config->checkpoint.memory_every == 0) return NULL;
    MemoryCopies *m = xcalloc(1, sizeof *m, "copies in memory");
    m->state = state;
    m->folder = memory_folder(state);
    m->host = memory_host(state->comm, comm_rank(state->comm));
    m->extents = exchange_extents(state->optimizer->shards);
    m->scratch = device_alloc_host(sizeof *m->scratch * (size_t)(exchange_scratch_elems(checkpoint_layout(state)) + 1),
                                   "copies in memory");
    m->session = checkpoint_random(state->comm);
    m->own.meta = meta_bytes(m);
    m->own.data = 4 * (uint64_t)optimizer_tensors(state->optimizer->kind) * (uint64_t)m->extents.elems;
    m->done.step = -1;
    link_hosts(m);
    make_folder(m, fault);
    if (!comm_any_fault(state->comm, fault)) {
        map_slots(m, &m->own, comm_rank(state->comm), 0, fault);
        for (int i = 0; i < MEMORY_SLOTS && !fault[0]; i++) /* the GPU copies the state into these slots, so they are
                                                             * pinned */
            m->own.is_pinned[i] = device_pin_host(m->own.slot[i], m->own.meta + m->own.data);
        for (int i = 0; i < m->links; i++)
            if (receives(&m->link[i])) map_slots(m, &m->link[i].in, m->link[i].from, 1, fault);
    }
    if (comm_any_fault(state->comm, fault)) {
        if (comm_rank(state->comm) == 0)
            warn("checkpoint.memory_every: no copies in memory are made: %s; training continues with checkpoints on "
                 "disk alone",
                 fault);
        remove_all(m);
        return NULL;
    }
    worker_start(&m->worker, seal, m, "copies in memory");
    return m;
}

void memory_copies_sweep(const CheckpointState *state) {
    int is_first = memory_host(state->comm, comm_rank(state->comm)).place == 0;
    if (state->config->checkpoint.memory_every > 0 && is_first) io_remove_tree(memory_folder(state).text);
}

size_t memory_copies_bytes(const Layout *layout, const OptimizerKind *optimizer, int hosts) {
    size_t slot = sizeof(float) * (size_t)(optimizer_tensors(optimizer) * exchange_most_elems(layout));
    return (hosts > 1 ? 2 : 1) * MEMORY_SLOTS * slot;
}

static Tensor flat(void *data, DType type, uint64_t bytes) { return tensor_1d(data, type, (int64_t)(bytes / 4)); }

static void send(MemoryCopies *m, char *data, DType type, uint64_t bytes) {
    for (int i = 0; i < m->links; i++)
        if (!receives(&m->link[i])) comm_send_start(m->link[i].pair, flat(data, type, bytes));
}

/* Starts to receive the copies of neighbours, ranks of another host, into the slot of the same index. The beginning of
 * a slot arrives last. */
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

/* Sends the bytes before the data of a copy to the next host once the worker thread has hashed it. A copy that could
 * not be completed is sent unchanged. It begins with a zero, so it is never used. */
static void send_sealed(MemoryCopies *m) {
    if (m->is_sent || worker_is_busy(&m->worker)) return;
    memcpy(m->fault, m->save.fault, sizeof m->fault);
    save_release(&m->save);
    send(m, m->own.slot[m->at], I32, m->own.meta);
    m->is_sent = 1;
}

static void land(MemoryCopies *m) {
    m->in_flight = 0;
    m->now.ms = clock_ms() - m->begin_ms;
    if (m->is_whole) m->done = m->now;
}

static void finish(MemoryCopies *m) {
    if (!m->in_flight) return;
    while (worker_is_busy(&m->worker)) {
        watchdog_tick(m->state->watchdog, "waiting for a copy in memory");
        worker_wait(&m->worker, PAUSE_MS);
    }
    send_sealed(m);
    for (int i = 0; i < m->links; i++) comm_finish(m->link[i].pair);
    land(m);
}

void memory_copies_start(MemoryCopies *m, int64_t step) {
    if (!m) return;
    double begin = clock_ms();
    finish(m); /* after this call the preceding copy is complete on all ranks */
    if (comm_any_fault(m->state->comm, m->fault) && !m->warned++ && comm_rank(m->state->comm) == 0)
        warn("the copy in memory of step %" PRId64 " is of no use: %s", m->now.step, m->fault);
    m->fault[0] = 0;
    failpoint_done(failpoint("memory.copy"));
    m->at = !m->at;
    clear(m, m->at);
    await_neighbours(m);
    char *data = m->own.slot[m->at] + m->own.meta;
    state_copy(m->state, &m->extents, (float *)(void *)data, m->scratch);
    m->save = save_prepare(m->state, step, (const float *)(const void *)data, &m->extents);
    m->in_flight = 1, m->is_sent = 0;
    worker_begin(&m->worker);
    send(m, data, F32, m->own.data);
    m->begin_ms = begin;
    m->now = (MemoryCopied){step, 0.0, clock_ms() - begin};
}

int memory_copies_next(MemoryCopies *m, MemoryCopied *copied) {
    if (!m) return 0;
    if (m->in_flight) send_sealed(m);
    int has_arrived = m->in_flight;
    for (int i = 0; i < m->links && has_arrived; i++) has_arrived = comm_is_idle(m->link[i].pair);
    if (has_arrived && m->is_sent) land(m);
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
    thread_stop(&m->worker.thread);
    save_release(&m->save);
    remove_all(m);
}

/* --- reading them after a loss ------------------------------------------------------------------------------------ */

typedef struct {
    MemoryCopy copy;         /* header and head of the file; owned */
    char       name[40];
    int        is_checked;   /* 1 if the data match their hashes; -1 if they do not */
} Found;

/* A copy that rank `holder` has in its memory folder, as entry `index` of its list `found`. */
typedef struct { int64_t step; uint64_t session; int32_t rank, ranks, holder, index; } Offer;

typedef struct {
    const CheckpointState *state; /* the run whose state is rescued; borrowed */
    Comm   *comm;
    Path    folder;
    char    run_id[40];
    int64_t newest;
    Found  *found;           /* [count] copies in the folder of this host that this rank has read; owned */
    int     count;
    Offer  *offer;           /* owned, rank 0: copies that any rank holds, the newest first */
    int     offers;
    char   *warnings;        /* owned: lines about damaged copies that this rank holds; NULL: none */
    Offer  *chosen;          /* owned [ranks]: the copy of each rank of the lost job that is used; equal on all ranks */
    int     ranks;
} Rescue;

static Path path_in(const Rescue *r, const char *name) { return path_of("%s/%s", r->folder.text, name); }

static void note(Rescue *r, const Path *path, const char *fault) {
    char *more = xformat("a warning", "%sthe copy in memory %s is passed over: %s\n", r->warnings ? r->warnings : "",
                         path->text, fault);
    free(r->warnings);
    r->warnings = more;
}

/* Collective. Rank 0 prints the warnings that all ranks have collected. */
static void warn_of_all(Rescue *r) {
    size_t count;
    char  *all = gather_bytes(r->comm, r->warnings, r->warnings ? strlen(r->warnings) : 0, &count);
    for (char *at = all, *end; all && at < all + count; at = end + 1) {
        end = (char *)memchr(at, '\n', (size_t)(all + count - at));
        warn("%.*s", (int)(end - at), at);
    }
    free(all);
    free(r->warnings);
    r->warnings = NULL;
}

static void look_at(Rescue *r, const char *name) {
    char       fault[MANIFEST_FAULT_BYTES];
    MemoryCopy copy;
    Path       path = path_in(r, name);
    if (!memory_read(path.text, &copy, fault)) {
        if (fault[0]) note(r, &path, fault);
        return;
    }
    if (strcmp(copy.header->run_id, r->run_id) != 0 || copy.header->step <= r->newest) {
        memory_free(&copy);
        return;
    }
    r->found = xrealloc(r->found, sizeof *r->found * (size_t)(r->count + 1), "a list of copies in memory");
    r->found[r->count] = (Found){.copy = copy};
    snprintf(r->found[r->count++].name, sizeof r->found->name, "%.39s", name);
}

static int is_copy(const struct dirent *entry) { return memory_is_name(entry->d_name); }

/* Looks for copies in the folder of this host. The ranks of the host divide the files. */
static void look(Rescue *r) {
    MemoryHost      own = memory_host(r->comm, comm_rank(r->comm));
    struct dirent **entry = NULL;
    int             count = scandir(r->folder.text, &entry, is_copy, alphasort);
    for (int i = 0; i < count; i++) {
        if (i % own.ranks == own.place) look_at(r, entry[i]->d_name);
        free(entry[i]);
    }
    free(entry);
    warn_of_all(r);
}

/* Orders offers (copies in memory): the newest step first, then by session (job), then by rank. */
static int by_age(const void *a, const void *b) {
    const Offer *x = (const Offer *)a, *y = (const Offer *)b;
    if (x->step != y->step) return x->step > y->step ? -1 : 1;
    if (x->session != y->session) return x->session < y->session ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Collective. Rank 0 gets the list of copies that each rank holds, the newest first. Damaged copies are left out. */
static void gather_offers(Rescue *r) {
    size_t bytes, count = 0;
    Offer *mine = xcalloc((size_t)r->count + 1, sizeof *mine, "a list of copies in memory");
    for (int i = 0; i < r->count; i++) {
        const MemoryHeader *h = r->found[i].copy.header;
        if (r->found[i].is_checked < 0) continue;
        mine[count++] = (Offer){h->step, h->session, h->rank, h->ranks, comm_rank(r->comm), i};
    }
    free(r->offer);
    r->offer = (Offer *)(void *)gather_bytes(r->comm, mine, sizeof *mine * count, &bytes);
    r->offers = (int)(bytes / sizeof *r->offer);
    free(mine);
    if (r->offers > 1) qsort(r->offer, (size_t)r->offers, sizeof *r->offer, by_age);
}

/* Collects the copies from index `from` on that have the same step and session (job) into chosen: one for each rank.
 * *next is the index after them. Returns the number of ranks. */
static int take_group(const Rescue *r, int from, int *next, Offer *chosen) {
    const Offer *first = &r->offer[from];
    int          ranks = 0;
    for (*next = from; *next < r->offers; ++*next) {
        const Offer *o = &r->offer[*next];
        if (o->step != first->step || o->session != first->session || o->ranks != first->ranks) break;
        /* skips a second copy of this rank's state, from the next host */
        if (ranks > 0 && chosen[ranks - 1].rank == o->rank) continue;
        chosen[ranks++] = *o;
    }
    return ranks;
}

/* Collective. Sets r->chosen to the copies of the newest step that has copies of all its ranks. Sets r->ranks to 0 if
 * there is no such step. */
static void choose(Rescue *r) {
    int64_t ranks = 0;
    gather_offers(r);
    if (comm_rank(r->comm) == 0) {
        r->chosen = xrealloc(r->chosen, sizeof *r->chosen * (size_t)(r->offers + 1), "a list of copies in memory");
        for (int at = 0, next; at < r->offers && ranks == 0; at = next) {
            ranks = take_group(r, at, &next, r->chosen);
            if (ranks < r->chosen[0].ranks) ranks = 0;
        }
    }
    comm_broadcast(r->comm, &ranks, sizeof ranks, 0);
    r->ranks = (int)ranks;
    if (comm_rank(r->comm) > 0)
        r->chosen = xrealloc(r->chosen, sizeof *r->chosen * (size_t)(ranks + 1), "a list of copies in memory");
    comm_broadcast(r->comm, r->chosen, sizeof *r->chosen * (size_t)ranks, 0);
}

/* Collective. Hashes the data of the chosen copies. Returns the number of damaged ones. */
static int64_t check(Rescue *r) {
    int64_t damaged = 0;
    char    fault[MANIFEST_FAULT_BYTES];
    for (int k = 0; k < r->ranks; k++) {
        if (r->chosen[k].holder != comm_rank(r->comm)) continue;
        Found *f = &r->found[r->chosen[k].index];
        Path   path = path_in(r, f->name);
        watchdog_tick(r->state->watchdog, "checking copies in memory");
        if (f->is_checked) continue;
        f->is_checked = memory_each_extent(path.text, &f->copy, NULL, fault) ? 1 : -1;
        if (f->is_checked > 0) continue;
        note(r, &path, fault);
        damaged++;
    }
    warn_of_all(r);
    comm_all_reduce_i64(r->comm, &damaged, 1, COMM_SUM);
    return damaged;
}

/* Sends the head (manifest without files) of the copy of rank 0 from the rank that holds it to all ranks. *m owns
 * everything it needs. */
static void read_head(Rescue *r, Manifest *m) {
    const Offer *o = &r->chosen[0];
    const Found *f = o->holder == comm_rank(r->comm) ? &r->found[o->index] : NULL;
    char         fault[MANIFEST_FAULT_BYTES];
    int64_t      bytes = f ? (int64_t)f->copy.header->head_bytes : 0;
    comm_broadcast(r->comm, &bytes, sizeof bytes, o->holder);
    char *text = xmalloc((size_t)bytes + 1, "the head of a copy in memory");
    if (f) memcpy(text, f->copy.head, (size_t)bytes);
    comm_broadcast(r->comm, text, (size_t)bytes, o->holder);
    if (manifest_parse(text, (size_t)bytes, m, fault) != MANIFEST_GOOD)
        fail(EXIT_DATA, "the copies in memory of step %" PRId64 ": %s; checkpoint.memory_every=0 leaves them aside",
             o->step, fault);
    free(text);
}

/* Ends the job if the save has a fault on any rank. */
static void expect_written(Rescue *r, Save *s) {
    if (!comm_any_fault(r->comm, s->fault)) return;
    if (comm_rank(r->comm) == 0) save_drop(s);
    fail(EXIT_IO,
         "the copies in memory of step %" PRId64
         " cannot be written as a checkpoint: %s; the copies are kept: mend that and start again, or give "
         "checkpoint.memory_every=0 to continue from the newest checkpoint on disk",
         s->step, s->fault);
}

static void write_checkpoint(Rescue *r, const Manifest *m, StepFolder *at) {
    char   fault[MANIFEST_FAULT_BYTES];
    size_t count;
    Save   s = save_prepare(r->state, m->step, NULL, NULL);
    s.rescued = m;
    s.position = (Position){m->step, m->tokens, m->samples};
    if (comm_rank(r->comm) == 0) save_make_folder(&s);
    expect_written(r, &s);
    save_open(&s);
    for (int k = 0; k < r->ranks; k++) {
        if (r->chosen[k].holder != comm_rank(r->comm)) continue;
        const Found *f = &r->found[r->chosen[k].index];
        watchdog_tick(r->state->watchdog, "writing copies in memory to the disk");
        if (!memory_each_extent(path_in(r, f->name).text, &f->copy, &s, fault) && !s.fault[0])
            manifest_fault(s.fault, "%s: %.800s", f->name, fault);
    }
    save_close(&s);
    expect_written(r, &s);
    WrittenExtent *all = save_gather(&s, &count);
    if (comm_rank(r->comm) == 0) save_commit(&s, all, count);
    expect_written(r, &s);
    at->step = m->step;
    folder_name(at->name, m->step);
    free(all);
    save_release(&s);
}

/* Collective. Reads the run_id of the run folder. Returns 0 if there is none. */
static int has_run_id(Rescue *r) {
    int64_t there = 0;
    if (comm_rank(r->comm) == 0) {
        char   *text;
        Path    path = path_of("%s/run_id", r->state->config->run.dir);
        int64_t bytes = io_read_file(path.text, 40, &text);
        io_expect_file(path.text, bytes);
        there = bytes > 1 && bytes <= 40 && text[bytes - 1] == '\n' &&
                strspn(text, "0123456789abcdef") == (size_t)bytes - 1;
        if (there) snprintf(r->run_id, sizeof r->run_id, "%.*s", (int)bytes - 1, text);
        if (bytes >= 0) free(text);
    }
    comm_broadcast(r->comm, &there, sizeof there, 0);
    comm_broadcast(r->comm, r->run_id, sizeof r->run_id, 0);
    return (int)there;
}

int memory_rescue(const CheckpointState *state, int64_t newest, StepFolder *at) {
    Rescue   r = {.state = state, .comm = state->comm, .newest = newest};
    Manifest m;
    if (state->config->checkpoint.memory_every == 0 || !has_run_id(&r)) return 0;
    r.folder = memory_folder(state);
    look(&r);
    do choose(&r);
    while (r.ranks > 0 && check(&r) > 0);
    if (r.ranks > 0) {
        read_head(&r, &m);
        Path name = path_of("the copy in memory of step %" PRId64, m.step);
        checkpoint_refuse_settings(state->config, state->train, name.text, &m);
        write_checkpoint(&r, &m, at);
        if (comm_rank(r.comm) == 0)
            say(stdout, 0, "step %" PRId64 " is taken from the copies in memory of %d rank%s\n", m.step, r.ranks,
                r.ranks > 1 ? "s" : "");
        manifest_free(&m);
    } else if (comm_rank(r.comm) == 0 && r.offers > 0) {
        int next, ranks = take_group(&r, 0, &next, r.chosen);
        warn("the copies in memory of step %" PRId64
             " are of no use: %d of %d ranks' are there; the run continues from the newest checkpoint on disk",
             r.offer[0].step, ranks, r.offer[0].ranks);
    }
    for (int i = 0; i < r.count; i++) memory_free(&r.found[i].copy);
    free(r.found);
    free(r.offer);
    free(r.chosen);
    return r.ranks > 0;
}
