/* checkpoint_save.c - saves while training continues; see checkpoint.h.
 *
 * Training waits only for a copy of the state to host memory. A thread of each rank, the worker, then writes and
 * fsyncs. It does not use MPI. The reduction of a step tells the main threads that all ranks have finished a phase
 * (Phase). Together they begin the next one. Rank 0 makes the folder, all ranks write the elements that they own, rank
 * 0 writes the manifest and renames the folder. After each phase they agree on its faults, and a fault on any rank ends
 * the save on all. If this run has saved the step before, and that checkpoint verifies, it stays unchanged.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/terminal.h"
#include "core/error.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_write.h"

enum { PAUSE_MS = 100 };
static const double SYNC_MS = 600e3; /* ms that the fsync of one file may take before the watchdog acts, unless
                                      * run.watchdog_seconds is set */

typedef enum { PHASE_NONE, PHASE_FOLDER, PHASE_PIECES, PHASE_COMMIT } Phase;

struct Saver {
    CheckpointState *state;       /* the run whose state is saved; borrowed */
    /* owned: ranges of the files that this rank writes, the same for the masters (fp32 weights) and for each optimizer
     * state */
    FileExtents      extents;
    /* owned, from device_alloc_host: masters (fp32 weights) and optimizer states that this rank writes, then scratch */
    float           *host_copy;
    Save             save;        /* used by the worker thread while it is busy, otherwise by the main thread */
    Phase            phase;       /* phase of the save in flight; PHASE_NONE: no save */
    double           stall_ms;
    double           phase_ms;    /* ms that the worker thread needed for the last phase; written by that thread */
    double           took_ms;     /* ms of the save so far: the copy, and the slowest rank in each phase */
    int64_t          step;
    FoldersKept      kept;        /* which checkpoints stay once the save in flight is complete */
    int              failures;    /* number of saves that failed in a row */
    int              is_last;     /* 1 for the last save of the run, whose fault saver_finish_last reports */
    char             fault[MANIFEST_FAULT_BYTES]; /* reason of the last failed save */
    Worker           worker;
};

/* --- the worker --------------------------------------------------------------------------------------------------- */

static void work(void *saver) {
    Saver *s = (Saver *)saver;
    double begin = clock_ms();
    switch (s->phase) {
        case PHASE_FOLDER: save_make_folder(&s->save); break;
        case PHASE_PIECES: save_pieces(&s->save, s->host_copy, &s->extents, 1); break;
        default:
            save_commit(&s->save);
            if (!s->save.fault[0]) folders_prune(s->save.checkpoints.text, s->step, s->kept, &s->save.progress);
    }
    s->phase_ms = clock_ms() - begin;
}

static void begin_phase(Saver *s, Phase phase, int has_work) {
    s->phase = phase;
    s->phase_ms = 0.0;
    if (has_work) worker_begin(&s->worker);
}

/* --- making and ending -------------------------------------------------------------------------------------------- */

size_t saver_bytes(const Layout *layout, const OptimizerKind *optimizer) {
    int64_t elems = optimizer_tensors(optimizer) * exchange_most_elems(layout) + exchange_scratch_elems(layout);
    return sizeof(float) * (size_t)elems;
}

Saver *saver_create(CheckpointState *state) {
    Saver *s = xcalloc(1, sizeof *s, "saving checkpoints");
    s->state = state;
    s->step = -1;
    s->extents = exchange_extents(state->optimizer->shards);
    s->host_copy = (float *)device_alloc_host(saver_bytes(checkpoint_layout(state), state->optimizer->kind),
                                              "the host copy of checkpoints");
    worker_start(&s->worker, work, s, "checkpoints");
    return s;
}

void saver_destroy(Saver *s) {
    if (!s) return;
    thread_stop(&s->worker.thread);
    save_release(&s->save);
    free(s->extents.extent);
    device_free_host(s->host_copy);
    free(s);
}

/* --- the phases, all ranks together ------------------------------------------------------------------------------- */

static int is_first(const Saver *s) { return comm_rank(s->state->comm) == 0; }

/* Frees the memory of a save after it has finished or failed. */
static void release(Saver *s) {
    s->phase = PHASE_NONE;
    save_release(&s->save);
}

/* Ends a failed save. All ranks call it with the same fault, after their last write. */
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
        warn("step %" PRId64 " is not saved: %s; older checkpoints are kept, and the run tries to save the next "
             "checkpoint when it is due",
             s->step, s->fault);
    else
        fail(EXIT_IO,
             "step %" PRId64
             " is not saved, nor were the %d checkpoints before it: %s; remove this fault (free space, rights, quota) "
             "and start the same command again: the run continues from the newest checkpoint",
             s->step, SAVER_TRIES - 1, s->fault);
}

void saver_start(Saver *s, int64_t step, const char *fault) {
    CHECK(step >= 0, "step %" PRId64, step);
    saver_finish(s);
    double begin = clock_ms();
    s->step = step;
    const Config *c = s->state->config;
    s->kept = (FoldersKept){c->checkpoint.keep, c->checkpoint.keep_every, s->state->best_step};
    s->save = save_prepare(s->state, step);
    if (fault) manifest_fault(s->save.fault, "%s", fault);
    float *scratch = s->host_copy + optimizer_tensors(s->state->optimizer->kind) * s->extents.elems;
    state_copy(s->state, &s->extents, s->host_copy, scratch);
    s->took_ms = s->stall_ms = clock_ms() - begin;
    begin_phase(s, PHASE_FOLDER, is_first(s) && !s->save.fault[0]);
}

int64_t saver_step(const Saver *s) { return s->step; }
double  saver_stall_ms(const Saver *s) { return s->stall_ms; }

int saver_ready(Saver *s) { return s->phase != PHASE_NONE && !worker_is_busy(&s->worker); }

/* Begins the next phase of a save after all ranks have finished one. Returns 1 if that was the last phase and the
 * folder has its final name. */
static int next_phase(Saver *s) {
    CHECK(saver_ready(s), "step %" PRId64 ": a phase of its save is not done yet", s->step);
    if (comm_any_fault(s->state->comm, s->save.fault)) {
        give_up(s);
        return 0;
    }
    if (s->phase == PHASE_FOLDER) {
        int64_t is_saved = s->save.is_saved; /* rank 0 alone knows, and sends it to the others */
        comm_broadcast(s->state->comm, &is_saved, sizeof is_saved, 0);
        if (!is_saved) begin_phase(s, PHASE_PIECES, 1);
        if (!is_saved) return 0;
    }
    if (s->phase == PHASE_PIECES) {
        save_gather(&s->save);
        begin_phase(s, PHASE_COMMIT, is_first(s));
        return 0;
    }
    s->failures = 0;
    release(s);
    return 1;
}

double saver_next(Saver *s) {
    double  begin = clock_ms();
    int64_t phase_us = (int64_t)(s->phase_ms * 1e3);
    comm_all_reduce_i64(s->state->comm, &phase_us, 1, COMM_MAX);
    s->took_ms += (double)phase_us * 1e-3;
    int saved = next_phase(s);
    s->stall_ms += clock_ms() - begin;
    return saved ? s->took_ms : 0.0;
}

/* Waits until the worker thread of each rank has finished its phase of the save. Extents (ranges of bytes) written on
 * any rank count as progress. fsync shows no progress. So the watchdog is ticked without progress, too, for up to
 * `patience` ms. */
static void wait_for_workers(Saver *s) {
    int64_t seen = -1;
    double  moved = clock_ms(), limit = s->state->config->run.watchdog_seconds;
    double  patience = limit > 0.0 ? limit * 1e3 : SYNC_MS;
    for (;;) {
        int64_t sums[2] = {saver_ready(s), s->save.progress};
        comm_all_reduce_i64(s->state->comm, sums, 2, COMM_SUM);
        if (sums[0] == comm_size(s->state->comm)) return;
        if (is_first(s)) say_part("saving", 0, 0);
        if (sums[1] != seen) seen = sums[1], moved = clock_ms();
        if (clock_ms() - moved < patience) watchdog_tick(s->state->watchdog, "waiting for a checkpoint to be written");
        if (worker_is_busy(&s->worker)) worker_wait(&s->worker, PAUSE_MS);
        else                            usleep(1000); /* the worker of another rank is still busy */
    }
}

double saver_finish(Saver *s) {
    double took_ms = 0.0;
    while (s->phase != PHASE_NONE) {
        wait_for_workers(s);
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
             ", the last, is not saved: %s; remove this fault (free space, rights, quota) and start the same command "
             "again: the run continues from the newest checkpoint",
             s->step, s->fault);
    return took_ms;
}
