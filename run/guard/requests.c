/* requests.c - see requests.h. */
#include "run/guard/requests.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/thread.h"
#include "core/io.h"
#include "run/guard/signals.h"

static const double LOOK_MS = 100.0;        /* wanted time between two exchanges */
static const double SAVES_KEPT_FREE = 3.0;  /* a disk may become three times slower */
static const double SLURM_LEAST_MS = 10e3;  /* for other clocks, the end of MPI, and later commands of the script */
static const double DISK_BYTES_PER_MS = 200e3;

/* --- files -------------------------------------------------------------------------------------------------------- */

typedef enum { STOP, SAVE } RequestFile;

/* Returns 1 if the file exists. Any kind of file counts, and a link is not followed. */
static int is_there(const Requests *q, RequestFile file, char *path, size_t capacity) {
    struct stat st;
    snprintf(path, capacity, "%s/%s", q->dir, file == STOP ? "STOP" : "SAVE");
    return !(q->stuck & 1 << file) && lstat(path, &st) == 0;
}

/* Removes the file. Returns 1 if it existed and is gone. A file that cannot be removed would be a request for ever, so
 * it is ignored from then on. */
static int take(Requests *q, RequestFile file) {
    char path[4200];
    if (!is_there(q, file, path, sizeof path)) return 0;
    int error = io_unlink(path);
    if (error == -EISDIR) error = io_rmdir(path);
    if (!error) return 1;
    warn("%s cannot be removed: %s; it asks for nothing more", path, strerror(-error));
    q->stuck |= 1 << file;
    return 0;
}

/* --- time --------------------------------------------------------------------------------------------------------- */

/* Returns the end of the job on clock_ms(), or INFINITY. SLURM gives it in seconds of the wall clock, which is read
 * only here. */
static double slurm_end_ms(void) {
    const char *text = getenv("SLURM_JOB_END_TIME");
    char       *rest;
    if (!text || !*text) return INFINITY;
    errno = 0;
    long long seconds = strtoll(text, &rest, 10), left = seconds - (long long)time(NULL);
    if (*rest || errno || seconds <= 0 || left <= 0) {
        warn("SLURM_JOB_END_TIME=%.40s is %s: ignored", text,
             *rest || errno || seconds <= 0 ? "no time in seconds since 1970" : "over already");
        return INFINITY;
    }
    return clock_ms() + (double)left * 1e3;
}

Requests requests_start(Comm *comm, const char *dir, double minutes, double started_ms, double checkpoint_bytes) {
    Requests q = {.comm = comm, .dir = dir, .save_ms = checkpoint_bytes / DISK_BYTES_PER_MS, .left = 1};
    q.limit[0] = (TimeLimit){"run.max_minutes", minutes > 0.0 ? started_ms + minutes * 60e3 : INFINITY, 0.0};
    q.limit[1] = (TimeLimit){"SLURM_JOB_END_TIME", comm_rank(comm) == 0 ? slurm_end_ms() : INFINITY, SLURM_LEAST_MS};
    q.stop_was_there = comm_rank(comm) == 0 && take(&q, STOP);
    return q;
}

static double reserve_ms(const Requests *q, const TimeLimit *limit) {
    double saves_ms = SAVES_KEPT_FREE * q->save_ms;
    return saves_ms > limit->least_ms ? saves_ms : limit->least_ms;
}

static int time_is_up(const Requests *q, double next_ms) {
    double now = clock_ms();
    for (int i = 0; i < 2; i++)
        if (now + next_ms >= q->limit[i].end_ms - reserve_ms(q, &q->limit[i])) return 1;
    return 0;
}

const char *requests_limit(const Requests *q, double *away_ms, double *kept_ms) {
    const TimeLimit *a = &q->limit[0], *b = &q->limit[1], *first = b->end_ms < a->end_ms ? b : a;
    if (first->end_ms == INFINITY) return NULL;
    *away_ms = first->end_ms - clock_ms();
    *kept_ms = reserve_ms(q, first);
    return first->name;
}

void requests_saved(Requests *q, double ms) { q->save_ms = ms; }

/* --- asking ------------------------------------------------------------------------------------------------------- */

static int is_asked(const Requests *q, double next_ms) {
    char path[4200];
    if (signals_stop()) return 1;
    return comm_rank(q->comm) == 0 &&
           (q->stop_was_there || is_there(q, STOP, path, sizeof path) || (q->stepped && time_is_up(q, next_ms)));
}

int requests_stop(Requests *q, double next_ms) {
    q->stepped = 1;
    return is_asked(q, next_ms);
}

int requests_save(Requests *q) {
    int file = comm_rank(q->comm) == 0 && take(q, SAVE);
    return signals_take_save() || file;
}

void requests_begin(Requests *q) {
    q->stride = 0;
    q->left = 1;
    q->asked_ms = clock_ms();
}

int requests_agree(Requests *q) {
    if (q->stop || --q->left > 0) return q->stop;
    double  took_ms = clock_ms() - q->asked_ms;
    int64_t fits = 2.0 * took_ms < LOOK_MS ? 2 * q->stride : (int64_t)(LOOK_MS / took_ms * (double)q->stride);
    int64_t least[2] = {-is_asked(q, 0.0), fits > 1 ? fits : 1};
    comm_all_reduce_i64(q->comm, least, 2, COMM_MIN);
    q->stop = least[0] < 0;
    q->stride = q->left = least[1];
    q->asked_ms = clock_ms();
    return q->stop;
}

void requests_end(Requests *q) {
    if (comm_rank(q->comm) == 0) take(q, STOP), take(q, SAVE);
    signals_answer_end();
}
