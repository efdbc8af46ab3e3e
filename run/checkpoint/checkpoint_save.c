/* checkpoint_save.c - saves while training continues; see checkpoint.h.
 *
 * Training waits only for a copy of the state to host memory. A thread of each rank then writes and fsyncs. The thread
 * does not use MPI. The reduction of a step shows the main threads that all ranks have finished a phase (Part).
 * Together they begin the next one: rank 0 makes the folder, all ranks write their pieces, rank 0 writes the manifest
 * and renames the folder. After each phase they agree on its faults, and a fault on any rank ends the save on all. If
 * this run has saved the step before, and that checkpoint verifies, it stays unchanged.
 */
#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/io.h"
#include "core/terminal.h"
#include "core/error.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_write.h"
#include "run/checkpoint/state_copy.h"

enum { PAUSE_MS = 100 };
static const double SYNC_MS = 600e3; /* longest sync of one file, unless run.watchdog_seconds is set */

typedef enum { PART_NONE, PART_FOLDER, PART_PIECES, PART_COMMIT } Part;

struct Saver {
    CheckpointState *state;       /* borrowed */
    FileRuns         runs;        /* owned: file runs that this rank writes of masters and of each state */
    float           *host_copy;      /* owned, from device_alloc_host: masters and states of those runs; then scratch */
    Save             save;        /* used by the thread while busy, else by the main thread */
    WrittenExtent      *all;         /* owned, rank 0: extents of all ranks */
    size_t           all_count;
    Part             part;        /* phase of the save in flight; PART_NONE: no save */
    double           stall_ms;
    double           part_ms;     /* time of the thread in the last phase; guarded like busy */
    double           took_ms;     /* time of the save so far: the copy, and the slowest rank in each phase */
    int64_t          step;
    FoldersKept      kept;        /* what to keep once the save in flight is complete */
    int              failures;    /* saves that failed, in a row */
    int              is_last;     /* last save of the run, whose fault saver_finish_last reports */
    char             fault[MANIFEST_FAULT_BYTES]; /* fault of the last failure */
    Thread           thread;
    int              busy;        /* guarded by the thread's lock */
};

/* --- the thread --------------------------------------------------------------------------------------------------- */

static void work(Saver *s) {
    switch (s->part) {
        case PART_FOLDER: save_make_folder(&s->save); return;
        case PART_PIECES: save_write_pieces(&s->save); return;
        default:
            save_commit(&s->save, s->all, s->all_count);
            if (!s->save.fault[0])
                folders_prune(s->save.checkpoints.text, s->save.step, s->kept, &s->save.progress);
    }
}

static void *write_when_told(void *saver) {
    Saver *s = (Saver *)saver;
    omp_set_num_threads(1); /* training uses the other cores */
    thread_lock(&s->thread);
    for (;;) {
        while (!s->busy && !s->thread.stop) thread_wait(&s->thread);
        if (!s->busy) break;
        thread_unlock(&s->thread);
        double begin = clock_ms();
        work(s);
        thread_lock(&s->thread);
        s->part_ms = clock_ms() - begin;
        s->busy = 0;
        thread_changed(&s->thread);
    }
    thread_unlock(&s->thread);
    return NULL;
}

static void begin_part(Saver *s, Part part, int has_work) {
    thread_lock(&s->thread);
    s->part = part;
    s->part_ms = 0.0;
    s->busy = has_work;
    thread_changed(&s->thread);
    thread_unlock(&s->thread);
}

static int is_busy(Saver *s) {
    thread_lock(&s->thread);
    int busy = s->busy;
    thread_unlock(&s->thread);
    return busy;
}

/* --- making and ending -------------------------------------------------------------------------------------------- */

size_t saver_bytes(const Layout *layout, const OptimizerKind *optimizer) {
    return sizeof(float) * (size_t)(optimizer_tensors(optimizer) * exchange_most_elems(layout) + exchange_scratch_elems(layout));
}

Saver *saver_create(CheckpointState *state) {
    Saver *s = xcalloc(1, sizeof *s, "saving checkpoints");
    s->state = state;
    s->step = -1;
    s->runs = exchange_runs(state->optimizer->shards);
    s->host_copy = (float *)device_alloc_host(saver_bytes(checkpoint_layout(state), state->optimizer->kind),
                                              "the host copy of checkpoints");
    thread_start(&s->thread, write_when_told, s, "checkpoints");
    return s;
}

void saver_destroy(Saver *s) {
    if (!s) return;
    thread_stop(&s->thread);
    save_release(&s->save);
    free(s->all);
    free(s->runs.run);
    device_free_host(s->host_copy);
    free(s);
}

/* --- the parts, all ranks together -------------------------------------------------------------------------------- */

static int is_first(const Saver *s) { return comm_rank(s->state->comm) == 0; }

/* Frees the save after it has finished or failed. */
static void release(Saver *s) {
    s->part = PART_NONE;
    save_release(&s->save);
    free(s->all);
    s->all = NULL;
}

/* Gives the save up. All ranks call it with the same fault, after their last write. */
static void give_up(Saver *s) {
    int64_t not_finite = s->save.not_finite;
    comm_all_reduce_i64(s->state->comm, &not_finite, 1, COMM_MAX);
    if (lock_is_lost(s->state->lock)) lock_fail(s->state->lock);
    if (is_first(s)) save_drop(&s->save);
    s->failures++;
    snprintf(s->fault, sizeof s->fault, "%s", s->save.fault);
    release(s);
    if (not_finite) fail(EXIT_NUMERIC, "%s", s->fault);
    if (s->is_last) return;
    if (s->failures < SAVER_TRIES)
        warn("step %" PRId64 " is not saved: %s; older checkpoints stay, and the next one is tried at its time", s->step, s->fault);
    else
        fail(EXIT_IO,
             "step %" PRId64
             " is not saved, nor were the %d checkpoints before it: %s; mend that, and the same command goes on from the newest "
             "checkpoint there is",
             s->step, SAVER_TRIES - 1, s->fault);
}

void saver_start(Saver *s, int64_t step, const char *fault) {
    CHECK(step >= 0, "step %" PRId64, step);
    saver_finish(s);
    double begin = clock_ms();
    s->step = step;
    const Config *c = s->state->config;
    s->kept = (FoldersKept){c->checkpoint.keep, c->checkpoint.keep_every, s->state->best_step};
    s->save = save_prepare(s->state, step, s->host_copy, &s->runs);
    if (fault) manifest_fault(s->save.fault, "%s", fault);
    state_copy(s->state, &s->runs, s->host_copy, s->host_copy + optimizer_tensors(s->state->optimizer->kind) * s->runs.elems);
    s->took_ms = s->stall_ms = clock_ms() - begin;
    begin_part(s, PART_FOLDER, is_first(s) && !s->save.fault[0]);
}

/* Waits until the thread is done, at most PAUSE_MS. */
static void pause_for_thread(Saver *s) {
    thread_lock(&s->thread);
    if (s->busy) thread_wait_for(&s->thread, PAUSE_MS);
    else         usleep(1000); /* the thread of another rank is not done */
    thread_unlock(&s->thread);
}

int64_t saver_step(const Saver *s) { return s->step; }
double  saver_stall_ms(const Saver *s) { return s->stall_ms; }

int saver_ready(Saver *s) { return s->part != PART_NONE && !is_busy(s); }

/* Collective. Rank 0 gets the extents that all ranks have written. */
static void gather_extents(Saver *s) {
    size_t *bytes_of_rank = NULL, bytes = 0;
    Save   *save = &s->save;
    char   *all = comm_gather(s->state->comm, save->written, save->written_count * sizeof *save->written, 0, &bytes_of_rank);
    if (!is_first(s)) return;
    for (int r = 0; r < comm_size(s->state->comm); r++) bytes += bytes_of_rank[r];
    free(bytes_of_rank);
    s->all = (WrittenExtent *)(void *)all;
    s->all_count = bytes / sizeof *s->all;
}

static int is_there(Saver *s) {
    int64_t there = s->save.there;
    comm_broadcast(s->state->comm, &there, sizeof there, 0);
    return (int)there;
}

/* Begins the next phase after all ranks have finished one. Returns 1 if that was the last, and the checkpoint is in
 * place. */
static int next_part(Saver *s) {
    CHECK(saver_ready(s), "step %" PRId64 ": a part of its checkpoint is not done yet", s->step);
    if (any_fault(s->state->comm, s->save.fault)) {
        give_up(s);
        return 0;
    }
    if (s->part == PART_FOLDER && !is_there(s)) {
        begin_part(s, PART_PIECES, 1);
        return 0;
    }
    if (s->part == PART_PIECES) {
        gather_extents(s);
        begin_part(s, PART_COMMIT, is_first(s));
        return 0;
    }
    s->failures = 0;
    release(s);
    return 1;
}

double saver_next(Saver *s) {
    double  begin = clock_ms();
    int64_t part_us = (int64_t)(s->part_ms * 1e3);
    comm_all_reduce_i64(s->state->comm, &part_us, 1, COMM_MAX);
    s->took_ms += (double)part_us * 1e-3;
    int saved = next_part(s);
    s->stall_ms += clock_ms() - begin;
    return saved ? s->took_ms : 0.0;
}

/* Waits until the thread of each rank has finished the phase. Extents written on any rank are progress. A sync shows no
 * progress, so the watchdog is ticked without progress, too, for `patience`. */
static void wait_for_threads(Saver *s) {
    int64_t seen = -1;
    double  moved = clock_ms(), limit = s->state->config->run.watchdog_seconds, patience = limit > 0.0 ? limit * 1e3 : SYNC_MS;
    for (;;) {
        int64_t sums[2] = {saver_ready(s), s->save.progress};
        comm_all_reduce_i64(s->state->comm, sums, 2, COMM_SUM);
        if (sums[0] == comm_size(s->state->comm)) return;
        if (is_first(s)) say_part("saving", 0, 0);
        if (sums[1] != seen) seen = sums[1], moved = clock_ms();
        if (clock_ms() - moved < patience) watchdog_tick(s->state->watchdog, "waiting for a checkpoint to be written");
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

double saver_finish_last(Saver *s) {
    s->is_last = 1;
    double took_ms = saver_finish(s);
    if (s->failures > 0)
        fail(EXIT_IO,
             "step %" PRId64
             ", the last, is not saved: %s; mend that, and the same command goes on from the newest checkpoint there is",
             s->step, s->fault);
    return took_ms;
}

double checkpoint_save(CheckpointState *state, int64_t step) {
    double begin = clock_ms();
    Saver *s = saver_create(state);
    saver_start(s, step, NULL);
    saver_finish_last(s);
    saver_destroy(s);
    return clock_ms() - begin;
}
