/* memory_copies.c - keeps copies of the state of a run in host memory, and rescues the state from them; see
 * memory_copies.h.
 *
 * Each rank has two slots, which are mapped files. state_copy writes into one of them. The thread then hashes the
 * extents (ranges of bytes) and writes the head (manifest), which seals the copy: it is then whole on this host. With
 * several hosts the data is sent to the neighbour, a rank of the next host, as soon as it is copied. Everything before
 * the data is sent once it is sealed. The neighbour gets the same file, byte by byte. A slot begins with a zero until
 * it is sealed. No rank starts the next copy before this one is whole on all ranks, so one of the two slots is always
 * whole.
 *
 * After a loss the ranks of a host divide the files in its folder, and hash those of this run. Rank 0 gathers a list of
 * the copies that are whole. It chooses the newest step of one session (job) that has copies of all its ranks. The
 * ranks that hold these copies write their extents to the checkpoint. Grid and number of ranks may have changed since.
 */
#include "run/checkpoint/memory_copies.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/failpoints.h"
#include "core/format.h"
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

/* Returns the first rank after those of the host of rank `first`. */
static int host_end(Comm *c, int first) {
    int end = first;
    while (end < comm_size(c) && strcmp(comm_host(c, end), comm_host(c, first)) == 0) end++;
    return end;
}

/* Returns the place of a rank among the hosts. Assumes that the ranks of a host have consecutive numbers, as
 * comm/world.c gives them. */
MemoryHost memory_host(Comm *c, int rank) {
    MemoryHost h = {.next = -1};
    for (int first = 0, end; first < comm_size(c); first = end) {
        end = host_end(c, first);
        h.hosts++;
        if (rank < first || rank >= end) continue;
        int next = end < comm_size(c) ? end : 0;
        h.ranks = end - first, h.place = rank - first;
        if (h.ranks < comm_size(c)) h.next = next + h.place % (host_end(c, next) - next);
    }
    return h;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

int memory_parse(const char *bytes, uint64_t count, uint64_t file_bytes, MemoryCopy *copy, char *fault) {
    char     why[MANIFEST_FAULT_BYTES];
    uint64_t data_bytes = 0;
    memset(copy, 0, sizeof *copy);
    fault[0] = 0;
    if (count > 0 && bytes[0] == 0) return 0;
    copy->text_bytes = strnlen(bytes, count);
    if (manifest_parse_copy(bytes, copy->text_bytes, &copy->manifest, why) != MANIFEST_GOOD)
        return manifest_fault(fault, "its head is damaged: %.900s", why);
    for (int f = 0; f < MANIFEST_FILES; f++)
        for (int64_t i = 0; i < copy->manifest.file[f].extents; i++)
            data_bytes += copy->manifest.file[f].extent[i].bytes;
    copy->data_offset = file_bytes - data_bytes;
    if (copy->text_bytes == count || data_bytes > file_bytes || copy->data_offset <= copy->text_bytes ||
        copy->data_offset % MEMORY_PAGE != 0) {
        memory_free(copy);
        return manifest_fault(fault, "it has %" PRIu64 " bytes, and its head lists %" PRIu64 " bytes of data",
                              file_bytes, data_bytes);
    }
    copy->text = xstrndup(bytes, copy->text_bytes, "the head of a copy in memory");
    return 1;
}

/* Reads the head of a copy in memory from its file. Refuses a file that belongs to another user, because the folder may
 * be writable for everybody. */
int memory_read(const char *path, MemoryCopy *copy, char *fault) {
    struct stat st;
    int         fd = io_open(path, IO_READ), good = 0;
    if (fd < 0) return manifest_fault(fault, "cannot read it: %s", io_error_text(fd));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
        manifest_fault(fault, "the file belongs to another user");
    } else {
        uint64_t count = (uint64_t)smaller_of(st.st_size, MANIFEST_LIMIT + 1);
        char    *bytes = xmalloc(count, "the head of a copy in memory");
        int      error = io_pread(fd, bytes, count, 0);
        if (error) manifest_fault(fault, "cannot read it: %s", io_error_text(error));
        else good = memory_parse(bytes, count, (uint64_t)st.st_size, copy, fault);
        free(bytes);
    }
    io_close(fd);
    return good;
}

void memory_free(MemoryCopy *copy) {
    free(copy->text);
    manifest_free(&copy->manifest);
    memset(copy, 0, sizeof *copy);
}

int memory_each_extent(const char *path, const MemoryCopy *copy, Save *save, char *fault) {
    uint64_t at = copy->data_offset, most = 0;
    char    *bytes = NULL;
    int      fd = io_open(path, IO_READ), error = fd < 0 ? fd : 0;
    fault[0] = 0;
    for (int f = 0; f < MANIFEST_FILES; f++)
        for (int64_t i = 0; !error && !fault[0] && i < copy->manifest.file[f].extents; i++) {
            ManifestExtent e = copy->manifest.file[f].extent[i];
            if (e.bytes > most) bytes = xrealloc(bytes, most = e.bytes, "an extent of a copy in memory");
            error = io_pread(fd, bytes, e.bytes, at);
            if (!error && manifest_hash(bytes, e.bytes) != e.hash)
                manifest_fault(fault, "it is damaged: the hash of bytes %" PRIu64 " to %" PRIu64 " does not match", at,
                               at + e.bytes - 1);
            else if (!error && save) save_put(save, f, e, bytes);
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

/* HEAD_SPARE: bytes by which the head of a copy (its manifest) may grow, for losses and maxima of fp8. EXTENT_CHARS:
 * most bytes of the head's text about one extent (a range of file bytes). */
enum { HEAD_SPARE = 256 << 10, EXTENT_CHARS = 64 };
static const double PAUSE_MS = 100.0;

/* The two slots (mapped files) of one rank for copies of its state. meta: bytes of a file before the state. data: bytes
 * of the state. slot: the mapped memory, owned. */
typedef struct { uint64_t meta, data; char *slot[MEMORY_SLOTS]; int is_pinned[MEMORY_SLOTS]; } Slots;
/* The connection between a rank and the rank of the next host that receives its copies. */
typedef struct {
    Comm *pair;       /* communicator of the two ranks; owned */
    int   from;       /* number of the rank that sends */
    Slots in;         /* mapped files of the receiving rank, into which the copies arrive */
} Link;

struct MemoryCopies {
    const CheckpointState *state;  /* the run whose state is copied; borrowed */
    Path       folder;
    MemoryHost host;
    FileExtents extents;  /* ranges of the files that this rank copies; owned */
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
                                            * sent. warned: number of failed copies so far */
    int        is_whole;  /* 1 if the copy in flight is hashed and complete; used by the worker thread while it is
                           * busy */
    char       fault[MANIFEST_FAULT_BYTES]; /* reason why the copy in flight is not usable; "": none */
    double     begin_ms;
    MemoryCopied now, done; /* now: the copy of the state in flight. done: the last copy that is complete (step -1: none
                             * to report) */
};

/* Returns a save whose manifest becomes the head of a copy in memory. */
static Save prepare(const MemoryCopies *m, int64_t step) {
    Save s = save_prepare(m->state, step);
    s.manifest.session = m->session, s.manifest.rank = comm_rank(m->state->comm);
    return s;
}

static void seal(void *copies) {
    MemoryCopies *m = (MemoryCopies *)copies;
    Save         *s = &m->save;
    size_t        bytes;
    char         *slot = m->own.slot[m->at];
    save_pieces(s, (const float *)(const void *)(slot + m->own.meta), &m->extents, 0);
    char *text = manifest_write(&s->manifest, &bytes);
    if (bytes >= m->own.meta)
        manifest_fault(s->fault, "its manifest has %zu bytes, and the file has place for %" PRIu64, bytes, m->own.meta);
    m->is_whole = !s->fault[0];
    if (m->is_whole) { /* the first byte, which is 0 so far, is written last */
        memcpy(slot + 1, text + 1, bytes);
        slot[0] = text[0];
    }
    free(text);
}

/* Collective. Makes the connections over which this rank sends its copies to another host and receives those of others.
 * Every rank tells the others two sizes: the bytes before the data of its copy, and the bytes of the data. */
static void link_hosts(MemoryCopies *m) {
    Comm    *c = m->state->comm;
    int      ranks = comm_size(c), rank = comm_rank(c);
    int64_t *bytes = xcalloc((size_t)(2 * ranks), sizeof *bytes, "a table of ranks");
    m->link = xcalloc((size_t)ranks, sizeof *m->link, "a table of ranks");
    bytes[2 * rank] = (int64_t)m->own.meta, bytes[2 * rank + 1] = (int64_t)m->own.data;
    if (m->host.hosts > 1) comm_all_reduce_i64(c, bytes, 2 * ranks, COMM_SUM);
    for (int r = 0; m->host.hosts > 1 && r < ranks; r++) {
        Comm *pair = comm_pair(c, r, memory_host(c, r).next, "copies");
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

/* Collective. Unmaps the files of the copies on all ranks. Then the first rank of each host removes the files. Frees
 * m. */
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
 * HEAD_SPARE more. The ranges that are hashed have at least 1 MiB, except the last one in each range of a file that
 * this rank copies. */
static uint64_t meta_bytes(const MemoryCopies *m) {
    size_t   head_bytes = 0;
    Save     s = prepare(m, 0);
    int64_t  most = m->extents.extents + 4 * m->extents.elems / MANIFEST_EXTENT_BYTES + 2;
    free(manifest_write(&s.manifest, &head_bytes));
    save_release(&s);
    return (uint64_t)round_up(optimizer_tensors(m->state->optimizer->kind) * most * EXTENT_CHARS +
                              2 * (int64_t)head_bytes + HEAD_SPARE, MEMORY_PAGE);
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

static Tensor words(void *data, uint64_t bytes) { return tensor_1d(data, I32, (int64_t)(bytes / 4)); }

static void send(MemoryCopies *m, char *data, uint64_t bytes) {
    for (int i = 0; i < m->links; i++)
        if (!receives(&m->link[i])) comm_send_start(m->link[i].pair, words(data, bytes));
}

static void clear(MemoryCopies *m, int slot) {
    m->own.slot[slot][0] = 0;
    for (int i = 0; i < m->links; i++)
        if (receives(&m->link[i])) m->link[i].in.slot[slot][0] = 0;
}

/* Sends the bytes before the data of a copy to the next host once the worker thread has hashed it. A copy that could
 * not be completed is sent unchanged. It begins with a zero, so it is never used. */
static void send_sealed(MemoryCopies *m) {
    if (m->is_sent || worker_is_busy(&m->worker)) return;
    memcpy(m->fault, m->save.fault, sizeof m->fault);
    save_release(&m->save);
    send(m, m->own.slot[m->at], m->own.meta);
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
        warn("the copy in memory of step %" PRId64 " is of no use: %s; training continues, and checkpoints on disk "
             "stay", m->now.step, m->fault);
    m->fault[0] = 0;
    failpoint_done(failpoint("memory.copy"));
    m->at = !m->at;
    clear(m, m->at);
    /* The beginning of a received file arrives last, so a copy that is not complete begins with a zero. */
    for (int i = 0; i < m->links; i++) {
        Slots *in = &m->link[i].in;
        if (!receives(&m->link[i])) continue;
        comm_receive_start(m->link[i].pair, words(in->slot[m->at] + in->meta, in->data));
        comm_receive_start(m->link[i].pair, words(in->slot[m->at], in->meta));
    }
    char *data = m->own.slot[m->at] + m->own.meta;
    state_copy(m->state, &m->extents, (float *)(void *)data, m->scratch);
    m->save = prepare(m, step);
    m->in_flight = 1, m->is_sent = 0;
    worker_begin(&m->worker);
    send(m, data, m->own.data);
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
    MemoryCopy copy;         /* head (manifest) of a copy's file; owned */
    Path       path;
} Found;

/* A copy in memory of the state of rank `rank`, from a job of `ranks` ranks. It is entry `index` of the list `found` of
 * rank `holder`, whose host has the file. */
typedef struct { int64_t step; uint64_t session; int32_t rank, ranks, holder, index; } Offer;

typedef struct {
    const CheckpointState *state; /* the run whose state is rescued; borrowed */
    Comm   *comm;
    char    run_id[40];
    int64_t newest;
    Found  *found;           /* [count] whole copies in the folder of this host that this rank has read; owned */
    int     count;
    Offer  *offer;           /* owned, rank 0: list of the copies that all ranks have found, the newest first */
    int     offers;
    Offer  *chosen;          /* owned [ranks]: the copy of each rank of the lost job that is used; equal on all ranks */
    int     ranks;
} Rescue;

/* Reads and hashes the file of a copy in memory. Adds it to r->found if it is a whole copy of this run that is newer
 * than the newest checkpoint on the disk. Writes a line to `damaged` if it is damaged. */
static void look_at(Rescue *r, const char *path, FILE *damaged) {
    char       fault[MANIFEST_FAULT_BYTES];
    MemoryCopy copy;
    int        is_whole = memory_read(path, &copy, fault);
    if (is_whole && (strcmp(copy.manifest.run_id, r->run_id) != 0 || copy.manifest.step <= r->newest)) {
        memory_free(&copy);
        return;
    }
    watchdog_tick(r->state->watchdog, "checking copies in memory");
    if (is_whole && memory_each_extent(path, &copy, NULL, fault)) {
        r->found = xgrow(r->found, r->count, sizeof *r->found, "a list of copies in memory");
        r->found[r->count++] = (Found){copy, path_of("%s", path)};
        return;
    }
    if (is_whole) memory_free(&copy);
    if (fault[0]) fprintf(damaged, "the copy in memory %s is passed over: %s\n", path, fault);
}

/* Collective. Looks for copies in memory in the folder of this host. The ranks of the host divide the files. Rank 0
 * warns of the damaged ones. */
static void look(Rescue *r) {
    MemoryHost own = memory_host(r->comm, comm_rank(r->comm));
    IoPaths    files = {NULL, 0};
    char      *text;
    size_t     bytes, count;
    FILE      *damaged = memory_file_open(&text, &bytes);
    io_match(path_of("%s/rank_*", memory_folder(r->state).text).text, &files);
    for (size_t i = 0; i < files.count; i++)
        if ((int)i % own.ranks == own.place && memory_is_name(basename(files.path[i])))
            look_at(r, files.path[i], damaged);
    io_paths_free(&files);
    fclose(damaged);
    char *all = comm_gather_bytes(r->comm, text, bytes, &count);
    for (char *at = all, *end; all && at < all + count; at = end + 1) {
        end = (char *)memchr(at, '\n', (size_t)(all + count - at));
        warn("%.*s", (int)(end - at), at);
    }
    free(all);
    free(text);
}

/* Orders offers (copies in memory): the newest step first, then by session (job), then by rank. */
static int by_age(const void *a, const void *b) {
    const Offer *x = (const Offer *)a, *y = (const Offer *)b;
    if (x->step != y->step) return x->step > y->step ? -1 : 1;
    if (x->session != y->session) return x->session < y->session ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Collects copies in memory of the same step and session (job), from index `from` of r->offer on, into chosen: one for
 * each rank. *next is the index after them. Returns the number of ranks. */
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

/* Collective. Sets r->chosen to the copies in memory of the newest step of which the copies of all ranks were found.
 * Sets r->ranks to 0 if there is no such step. */
static void choose(Rescue *r) {
    int64_t ranks = 0, room;
    size_t  bytes;
    Offer  *mine = xcalloc((size_t)r->count, sizeof *mine, "a list of copies in memory");
    for (int i = 0; i < r->count; i++) {
        const Manifest *m = &r->found[i].copy.manifest;
        mine[i] = (Offer){m->step, m->session, m->rank, m->ranks, comm_rank(r->comm), i};
    }
    r->offer = (Offer *)(void *)comm_gather_bytes(r->comm, mine, sizeof *mine * (size_t)r->count, &bytes);
    r->offers = (int)(bytes / sizeof *r->offer);
    free(mine);
    if (r->offers > 1) qsort(r->offer, (size_t)r->offers, sizeof *r->offer, by_age);
    room = r->offers;
    comm_broadcast(r->comm, &room, sizeof room, 0);
    r->chosen = xmalloc(sizeof *r->chosen * (size_t)room, "a list of copies in memory");
    for (int at = 0, next; at < r->offers && ranks == 0; at = next) {
        ranks = take_group(r, at, &next, r->chosen);
        if (ranks < r->chosen[0].ranks) ranks = 0;
    }
    comm_broadcast(r->comm, &ranks, sizeof ranks, 0);
    comm_broadcast(r->comm, r->chosen, sizeof *r->chosen * (size_t)ranks, 0);
    r->ranks = (int)ranks;
}

/* Sends the head (manifest) of the copy of rank 0 from the rank that holds it to all ranks, and parses it. */
static void read_head(Rescue *r, Manifest *m) {
    const Offer      *o = &r->chosen[0];
    const MemoryCopy *copy = o->holder == comm_rank(r->comm) ? &r->found[o->index].copy : NULL;
    char              fault[MANIFEST_FAULT_BYTES];
    int64_t           bytes = copy ? (int64_t)copy->text_bytes : 0;
    comm_broadcast(r->comm, &bytes, sizeof bytes, o->holder);
    char *text = xmalloc((size_t)bytes, "the head of a copy in memory");
    if (copy) memcpy(text, copy->text, (size_t)bytes);
    comm_broadcast(r->comm, text, (size_t)bytes, o->holder);
    CHECK(manifest_parse_copy(text, (size_t)bytes, m, fault) == MANIFEST_GOOD, "%s", fault);
    free(text);
}

/* Ends the job if the save has a fault on any rank. */
static void expect_written(Rescue *r, Save *s) {
    if (!comm_any_fault(r->comm, s->fault)) return;
    if (comm_rank(r->comm) == 0) save_drop(s);
    fail(EXIT_IO,
         "the copies in memory of step %" PRId64
         " cannot be written as a checkpoint: %s; the copies are kept: remove this fault and start the same command "
         "again, or give checkpoint.memory_every=0 to continue from the newest checkpoint on disk",
         s->manifest.step, s->fault);
}

/* Writes the copies in memory in r->chosen as a checkpoint. m: the manifest of one of them. */
static void write_checkpoint(Rescue *r, Manifest *m, StepFolder *at) {
    char fault[MANIFEST_FAULT_BYTES];
    Save s = save_prepare(r->state, m->step);
    save_describe_as(&s, m);
    if (comm_rank(r->comm) == 0) save_make_folder(&s);
    expect_written(r, &s);
    save_open(&s);
    for (int k = 0; k < r->ranks; k++) {
        if (r->chosen[k].holder != comm_rank(r->comm)) continue;
        const Found *f = &r->found[r->chosen[k].index];
        watchdog_tick(r->state->watchdog, "writing copies in memory to the disk");
        if (!memory_each_extent(f->path.text, &f->copy, &s, fault) && !s.fault[0])
            manifest_fault(s.fault, "%.200s: %.700s", f->path.text, fault);
    }
    save_close(&s);
    expect_written(r, &s);
    save_gather(&s);
    if (comm_rank(r->comm) == 0) save_commit(&s);
    expect_written(r, &s);
    at->step = s.manifest.step;
    snprintf(at->name, sizeof at->name, "%s", s.name);
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
    look(&r);
    choose(&r);
    if (r.ranks > 0) {
        read_head(&r, &m);
        Path name = path_of("the copy in memory of step %" PRId64, m.step);
        checkpoint_refuse_settings(state->config, state->train, name.text, &m);
        write_checkpoint(&r, &m, at);
        if (comm_rank(r.comm) == 0)
            say(stdout, 0, "step %" PRId64 " is taken from the copies in memory of %d rank%s\n", at->step, r.ranks,
                plural(r.ranks));
    } else if (comm_rank(r.comm) == 0 && r.offers > 0) {
        int next, ranks = take_group(&r, 0, &next, r.chosen);
        warn("the copies in memory of step %" PRId64
             " are not used, because only those of %d of %d ranks were found; the run continues from the newest "
             "checkpoint on disk",
             r.offer[0].step, ranks, r.offer[0].ranks);
    }
    for (int i = 0; i < r.count; i++) memory_free(&r.found[i].copy);
    free(r.found);
    free(r.offer);
    free(r.chosen);
    return r.ranks > 0;
}
