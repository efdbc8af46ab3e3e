/* checkpoint_save.c - saving beside the training; see checkpoint.h.
 *
 * The state is copied to staging memory, which is all that training waits for; a thread of each rank then writes and fsyncs. The thread
 * knows no MPI: the main threads learn from a step's own reduction that all ranks have got as far, and then take the save through its
 * parts together: pieces written by all -> manifest and rename by rank 0 -> done. A fault on any rank removes the .tmp, leaves the older
 * checkpoints alone and ends the job, exit 74. A step that exists already and verifies stays as it is (this run saved it).
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/io.h"
#include "run/checkpoint.h"
#include "run/checkpoint_write.h"

enum { PAUSE_MS = 100 };
static const double SYNC_MS = 600e3; /* a disk that takes ten minutes to sync one file is lost */

typedef enum { PART_NONE, PART_PIECES, PART_COMMIT } Part;

struct Saver {
    CheckpointState *state;       /* borrowed */
    float           *staged;      /* owned [3, own elements], from device_alloc_host */
    Save             save;        /* the thread's while busy, the main thread's otherwise */
    WrittenRun      *all;         /* owned: rank 0, all ranks' runs */
    size_t           all_count;
    Part             part;        /* which the save is in; PART_NONE: there is none */
    double           began_ms;
    int64_t          step;
    int64_t          committed;   /* the last step that this process has put in place, written by itself; -1: none yet */
    pthread_t        thread;
    pthread_mutex_t  lock;        /* guards busy and stop */
    pthread_cond_t   changed;
    int              busy, stop;
};

/* --- the thread ------------------------------------------------------------------------------------------------------------------------ */

static void work(Saver *s) {
    if (s->part == PART_PIECES) {
        save_write_pieces(&s->save);
        return;
    }
    save_commit(&s->save, s->all, s->all_count);
    if (!s->save.fault[0]) folders_prune(NULL, s->save.checkpoints.text, s->save.step, s->state->config->checkpoint.keep, s->committed);
}

static void *write_when_told(void *saver) {
    Saver *s = (Saver *)saver;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->busy && !s->stop) pthread_cond_wait(&s->changed, &s->lock);
        if (!s->busy) break;
        pthread_mutex_unlock(&s->lock);
        work(s);
        pthread_mutex_lock(&s->lock);
        s->busy = 0;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void begin_part(Saver *s, Part part, int has_work) {
    pthread_mutex_lock(&s->lock);
    s->part = part;
    s->busy = has_work;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static int is_busy(Saver *s) {
    pthread_mutex_lock(&s->lock);
    int busy = s->busy;
    pthread_mutex_unlock(&s->lock);
    return busy;
}

/* --- making and ending ------------------------------------------------------------------------------------------------------------------- */

size_t saver_bytes(const Layout *layout) { return 3 * sizeof(float) * (size_t)layout->shard_elems; }

Saver *saver_create(CheckpointState *state) {
    Saver *s = (Saver *)calloc(1, sizeof *s);
    if (!s) fail(EXIT_MEMORY, "no memory to save checkpoints");
    s->state = state;
    s->committed = -1;
    s->staged = (float *)device_alloc_host(saver_bytes(state->layout), "staging checkpoints");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    sigset_t all, before;
    sigfillset(&all); /* requests from outside are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&s->thread, NULL, write_when_told, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) fail(EXIT_MEMORY, "cannot start the thread that saves checkpoints: %s", strerror(error));
    return s;
}

void saver_destroy(Saver *s) {
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    save_release(&s->save);
    free(s->all);
    device_free_host(s->staged);
    free(s);
}

/* --- the parts, all ranks together --------------------------------------------------------------------------------------------------------- */

/* Ends the job when any rank has met a fault, after the last write of all of them. */
static void agree(Saver *s) {
    CheckpointState *state = s->state;
    if (!any_fault(state->comm, s->save.fault)) return;
    for (int f = 0; f < 2; f++)
        if (s->save.fd[f] >= 0) io_close(s->save.fd[f]), s->save.fd[f] = -1;
    comm_barrier(state->comm);
    if (comm_rank(state->comm) == 0) io_remove_tree(s->save.tmp.text);
    comm_barrier(state->comm);
    fail(EXIT_IO, "checkpoint %s: %s", s->save.name, s->save.fault);
}

static int saved_already(const CheckpointState *state, const Save *s) {
    Manifest    m;
    struct stat st;
    char        fault[MANIFEST_FAULT_BYTES];
    int64_t     exists = comm_rank(state->comm) == 0 && lstat(s->final.text, &st) == 0;
    comm_broadcast(state->comm, &exists, sizeof exists, 0);
    if (!exists || folder_verify(state->comm, s->final.text, s->step, &m, fault) != MANIFEST_GOOD) return 0;
    int ours = strcmp(m.run_id, state->run_id) == 0;
    manifest_free(&m);
    return ours;
}

static float *stage(Saver *s, float *to, Tensor (*view)(const Optimizer *, Span), Span *spans) {
    const CheckpointState *state = s->state;
    for (int b = 0; b < state->layout->buckets; b++) {
        int count = layout_spans(state->layout, b, comm_rank(state->comm), spans);
        for (int i = 0; i < count; to += spans[i++].elems) device_to_host_queued(state->stream, to, view(state->optimizer, spans[i]));
    }
    return to;
}

static void stage_state(Saver *s) {
    Span *spans = (Span *)malloc(sizeof *spans * (size_t)s->state->layout->params);
    if (!spans) fail(EXIT_MEMORY, "no memory for the spans of a checkpoint");
    float *m = stage(s, s->staged, optimizer_master, spans), *v = stage(s, m, optimizer_m, spans);
    stage(s, v, optimizer_v, spans);
    device_sync(s->state->stream);
    free(spans);
}

double saver_start(Saver *s, int64_t step) {
    CHECK(step > 0, "step %" PRId64, step);
    saver_finish(s);
    double           begin = clock_ms();
    CheckpointState *state = s->state;
    s->began_ms = begin;
    s->step = step;
    s->save = save_prepare(state, step, s->staged);
    if (saved_already(state, &s->save)) {
        save_release(&s->save);
        return clock_ms() - begin;
    }
    if (comm_rank(state->comm) == 0) save_make_folder(&s->save);
    agree(s);
    stage_state(s);
    begin_part(s, PART_PIECES, 1);
    return clock_ms() - begin;
}

/* Until the thread is done, PAUSE_MS at most. */
static void pause_for_thread(Saver *s) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + PAUSE_MS * 1000000;
    until.tv_sec += ns / 1000000000, until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&s->lock);
    if (s->busy) pthread_cond_timedwait(&s->changed, &s->lock, &until);
    else         usleep(1000); /* this rank's is done, another's is not */
    pthread_mutex_unlock(&s->lock);
}

int64_t saver_step(const Saver *s) { return s->step; }

int saver_ready(Saver *s) { return s->part != PART_NONE && !is_busy(s); }

/* Rank 0 gets what all have written. */
static void gather_runs(Saver *s) {
    size_t *bytes_of_rank = NULL, bytes = 0;
    Save   *save = &s->save;
    char   *all = comm_gather(s->state->comm, save->written, save->written_count * sizeof *save->written, 0, &bytes_of_rank);
    if (comm_rank(s->state->comm) != 0) return;
    for (int r = 0; r < comm_size(s->state->comm); r++) bytes += bytes_of_rank[r];
    free(bytes_of_rank);
    s->all = (WrittenRun *)(void *)all;
    s->all_count = bytes / sizeof *s->all;
}

double saver_next(Saver *s) {
    agree(s);
    if (s->part == PART_PIECES) {
        gather_runs(s);
        begin_part(s, PART_COMMIT, comm_rank(s->state->comm) == 0);
        return 0.0;
    }
    s->part = PART_NONE;
    s->committed = s->step;
    save_release(&s->save);
    free(s->all);
    s->all = NULL;
    return clock_ms() - s->began_ms;
}

/* All ranks' threads, until each has done its part. Runs written anywhere are progress; so is, for SYNC_MS, nothing: a sync tells of none. */
static void wait_for_threads(Saver *s) {
    int64_t seen = -1;
    double  moved = clock_ms();
    for (;;) {
        int64_t sums[2] = {saver_ready(s), s->save.progress};
        comm_all_reduce_i64(s->state->comm, sums, 2, COMM_SUM);
        if (sums[0] == comm_size(s->state->comm)) return;
        if (sums[1] != seen) seen = sums[1], moved = clock_ms();
        if (clock_ms() - moved < SYNC_MS) watchdog_tick(s->state->watchdog, "waiting for a checkpoint to be written");
        pause_for_thread(s);
    }
}

double saver_finish(Saver *s) {
    double took_ms = 0.0;
    while (s->part != PART_NONE) {
        wait_for_threads(s);
        took_ms = saver_next(s);
    }
    return took_ms;
}

double checkpoint_save(CheckpointState *state, int64_t step) {
    double begin = clock_ms();
    Saver *s = saver_create(state);
    saver_start(s, step);
    saver_finish(s);
    saver_destroy(s);
    return clock_ms() - begin;
}
