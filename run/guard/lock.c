/* lock.c - the lock of a run folder, and of the output of a verb such as export: see lock.h. */
#include "run/guard/lock.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "core/io.h"
#include "core/terminal.h"
#include "run/guard/requests.h"

/* --- this process ------------------------------------------------------------------------------------------------- */

/* Copies the first word of text, at most capacity - 1 visible characters, or `otherwise` if there is none. */
static void copy_word(char *out, size_t capacity, const char *text, const char *otherwise) {
    size_t n = 0;
    for (; text && n + 1 < capacity && isgraph((unsigned char)text[n]); n++) out[n] = text[n];
    out[n] = 0;
    if (n == 0) snprintf(out, capacity, "%s", otherwise);
}

/* Returns the clock ticks from the boot to the start of a process, or 0 if /proc does not show it. *runs: 1 if it still
 * runs. */
static uint64_t start_of(int64_t process, int *runs) {
    char     path[64], *text = NULL, state = 'Z';
    uint64_t started = 0;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", process);
    if (io_read_file(path, 4096, &text) > 0) {
        const char *name_end = strrchr(text, ')'); /* the last ')', because the name of a program may contain one */
        if (!name_end ||
            sscanf(name_end + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %" SCNu64,
                   &state, &started) != 2)
            started = 0;
    }
    free(text);
    *runs = started > 0 && state != 'Z' && state != 'X';
    return started;
}

LockHolder holder_self(const char *host) {
    LockHolder  h = {.process = getpid(), .beat = 1};
    char       *boot = NULL;
    const char *restart = getenv("SLURM_RESTART_COUNT");
    int         runs;
    copy_word(h.host, sizeof h.host, host, "?");
    if (io_read_file("/proc/sys/kernel/random/boot_id", 4096, &boot) < 0) boot = NULL;
    copy_word(h.boot, sizeof h.boot, boot, "?");
    free(boot);
    h.started = start_of(h.process, &runs);
    copy_word(h.job, sizeof h.job, getenv("SLURM_JOB_ID"), "none");
    h.restart = restart ? strtoll(restart, NULL, 10) : 0;
    if (getrandom(&h.nonce, sizeof h.nonce, 0) != sizeof h.nonce)
        fail(EXIT_IO, "getrandom() gives no random bytes: %s; the container or seccomp profile must allow it",
             strerror(errno));
    return h;
}

int holder_lives(const LockHolder *h) {
    int      runs;
    uint64_t started = start_of(h->process, &runs);
    if (started > 0) return runs && (h->started == 0 || h->started == started);
    /* used if /proc is hidden: the process lives if it can be signalled or belongs to another user */
    return kill((pid_t)h->process, 0) == 0 || errno == EPERM;
}

/* --- text --------------------------------------------------------------------------------------------------------- */

int holder_format(const LockHolder *h, char out[HOLDER_TEXT]) {
    return snprintf(out, HOLDER_TEXT,
                    "host %s\nprocess %" PRId64 "\nboot %s\nstarted %" PRIu64 "\njob %s\nrestart %" PRId64
                    "\nnonce %016" PRIx64 "\nbeat %0*" PRIu64 "\n",
                    h->host, h->process, h->boot, h->started, h->job, h->restart, h->nonce, HOLDER_BEAT_DIGITS,
                    h->beat);
}

int holder_parse(const char *text, LockHolder *h) {
    memset(h, 0, sizeof *h);
    return sscanf(text,
                  "host %255s process %" SCNd64 " boot %63s started %" SCNu64 " job %63s restart %" SCNd64
                  " nonce %" SCNx64 " beat %" SCNu64,
                  h->host, &h->process, h->boot, &h->started, h->job, &h->restart, &h->nonce, &h->beat) == 8;
}

/* --- the decision ------------------------------------------------------------------------------------------------- */

LockDecision holder_decide(const char *text, const LockHolder *self, LockSeen seen, double beat_ms) {
    LockHolder h;
    int        is_named = holder_parse(text, &h);
    int        is_here = is_named && strcmp(h.host, self->host) == 0 && strcmp(h.boot, self->boot) == 0;
    if (seen.flocked) return is_here && !seen.lives && seen.still_ms < LOCK_ENDING_MS ? LOCK_WAIT : LOCK_REFUSE;
    /* the file names no holder: the last one gave the folder back, or no job has written its name yet */
    if (!is_named) return LOCK_TAKE;
    if (is_here) {
        if (seen.lives) return LOCK_REFUSE;
        if (!seen.no_flock) return LOCK_TAKE;
    }
    if (strcmp(h.job, "none") != 0 && strcmp(h.job, self->job) == 0 && h.restart < self->restart) return LOCK_TAKE;
    if (seen.moved) return LOCK_REFUSE;
    return seen.still_ms > LOCK_BEATS_MISSED * beat_ms ? LOCK_TAKE : LOCK_WAIT;
}

static const double LOOK_MS = 100.0;
enum { LONGEST_NAME = 250 }; /* longest file name that ".lock" can follow */

struct RunLock {
    char            dir[4096], path[4200];
    char            by[32], key[32];     /* verb and key for messages: "tokenize: " and "out", or "" and "run.dir" */
    int             fd;                  /* descriptor of the lock file, open and flocked as long as the process
                                          * lives */
    LockHolder      self;
    double          beat_ms;
    char            before[HOLDER_TEXT]; /* text of the lock file at this job's first look */
    int             is_signed;
    _Atomic int     lost;                /* 1 if the lock file names another job */
    Thread          beater;
    int             no_flock;            /* 1 if the file system has no flock(2) */
    int             is_output;           /* 1 for the lock of a verb's output; `kind` is then set */
    LockOutput      kind;
    char            made[4096];          /* lock of an output: folder of the lock file; "" is the working directory */
    size_t          there;               /* bytes at the start of made[] that name a folder which existed before */
    char           *unfinished;          /* owned: folder of unfinished output, which is removed with the lock file;
                                          * NULL: none */
    RunLock        *earlier;             /* the lock of an output that this process took before this one */
};

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Reads the present text of the lock file. Opens the file again, because a network file system may keep the old text of
 * an open file. Returns 0, or -errno if the file cannot be read. A text that is too long for a holder counts as
 * empty. */
static int read_now(const RunLock *l, char text[HOLDER_TEXT]) {
    char   *whole = NULL;
    int64_t bytes = io_read_file(l->path, HOLDER_TEXT - 1, &whole);
    snprintf(text, HOLDER_TEXT, "%s", bytes > 0 ? whole : "");
    free(whole);
    return bytes < 0 && bytes != -EFBIG ? (int)bytes : 0;
}

static const char *describe(const char *text, char out[512]) {
    LockHolder h;
    if (!holder_parse(text, &h)) return "it has just begun";
    snprintf(out, 512, "host %s, process %lld%s%s", h.host, (long long)h.process,
             strcmp(h.job, "none") ? ", SLURM job " : "", strcmp(h.job, "none") ? h.job : "");
    return out;
}

/* --- the lock file of an output ----------------------------------------------------------------------------------- */

/* Cuts the last name off a path. Returns the new length. */
static size_t cut_last(char *path) {
    size_t length = strlen(path);
    while (length > 0 && path[length - 1] != '/') length--;
    while (length > 0 && path[length - 1] == '/') length--;
    path[length] = 0;
    return length;
}

/* Removes the folders that this process made for an output, as far as they are empty. */
static void remove_made(RunLock *l) {
    for (size_t length = strlen(l->made); length > l->there && io_rmdir(l->made) == 0;) length = cut_last(l->made);
}

static NORETURN void refuse_output(RunLock *l, const char *what, int error) {
    remove_made(l);
    fail(EXIT_IO, "%scannot write %s: %s: %s; give another %s=", l->by, l->dir, what, io_error_text(error), l->key);
}

/* Opens the lock file of an output. Another process may have removed the file and its folder a moment ago, so it is
 * opened by name until that succeeds. Refuses a file that has this name but holds something else. */
static void open_output(RunLock *l) {
    char      *text = NULL;
    LockHolder h;
    do {
        if (l->fd >= 0) io_close(l->fd);
        if (l->kind != LOCK_WHOLE) {
            char path[sizeof l->made];
            l->there = strlen(strcpy(path, l->made));
            while (l->there > 0 && access(path, F_OK) != 0) l->there = cut_last(path);
            int error = l->made[0] ? io_mkdirs(l->made) : 0;
            if (error < 0) refuse_output(l, l->made, error);
        }
        l->fd = io_open(l->path, IO_SHARED);
        if (l->fd < 0 && (l->fd != -ENOENT || l->kind == LOCK_WHOLE)) refuse_output(l, l->path, l->fd);
    } while (l->fd < 0);
    int is_other = io_read_start(l->path, HOLDER_TEXT - 1, &text) > 0 && *text && !holder_parse(text, &h);
    free(text);
    if (is_other)
        fail(EXIT_CONFIG, "%s%s has the name of a lock of this program but is something else; move it away, or give "
             "another %s=", l->by,
             l->path, l->key);
}

/* Returns 1 if the file that is open still has the name of the lock, and was not removed or replaced. */
static int is_named(const RunLock *l) {
    struct stat opened, named;
    return fstat(l->fd, &opened) == 0 && stat(l->path, &named) == 0 && opened.st_ino == named.st_ino &&
           opened.st_dev == named.st_dev;
}

/* --- taking ------------------------------------------------------------------------------------------------------- */

static LockDecision look(RunLock *l, double first_ms) {
    char       text[HOLDER_TEXT];
    LockHolder holder;
    int        refusal = flock(l->fd, LOCK_EX | LOCK_NB) != 0 ? errno : 0, flocked = refusal == EWOULDBLOCK;
    int        error = read_now(l, text);
    if (error == -ENOENT && l->is_output) return LOCK_WAIT; /* the holder has just removed the lock file of an output */
    if (error) fail(EXIT_IO, "%s: cannot read: %s", l->path, io_error_text(error));
    l->no_flock = refusal && !flocked;
    if (first_ms == 0.0) strcpy(l->before, text);
    int          lives = holder_parse(text, &holder) && holder_lives(&holder);
    LockSeen     seen = {.flocked = flocked,
                         .no_flock = l->no_flock,
                         .lives = lives,
                         .moved = strcmp(text, l->before) != 0,
                         .still_ms = first_ms > 0.0 ? clock_ms() - first_ms : 0.0};
    LockDecision decision = holder_decide(text, &l->self, seen, l->beat_ms);
    char         who[512];
    /* the file may still name a dead job, if the present holder has not written its name yet */
    if (decision == LOCK_REFUSE) {
        int is_stale = flocked && strcmp(holder.host, l->self.host) == 0 && !lives;
        if (is_stale && seen.still_ms >= LOCK_ENDING_MS)
            fail(EXIT_LOCKED, "%s%s is still locked: its last job (%s) has ended, and %d s later a thread of that job "
                 "or a program that it started still holds the lock; wait until that ends, or choose another %s",
                 l->by, l->dir, describe(text, who), LOCK_ENDING_MS / 1000, l->key);
        fail(EXIT_LOCKED, "%s%s is in use by another job (%s); wait for it, or choose another %s", l->by, l->dir,
             is_stale ? "it has just begun" : describe(text, who), l->key);
    }
    if (decision == LOCK_WAIT && first_ms == 0.0 && flocked)
        warn("%s is still locked by a job that has ended (%s): this job waits up to %d s for it", l->dir,
             describe(text, who), LOCK_ENDING_MS / 1000);
    else if (decision == LOCK_WAIT && first_ms == 0.0)
        warn("%s was in use by another job (%s), which may still run: this job takes it over after %.0f s without a "
             "sign of life from it", l->dir, describe(text, who), LOCK_BEATS_MISSED * l->beat_ms * 1e-3);
    return decision;
}

/* Waits for the lock on all ranks. Ticks the watchdog meanwhile, and ends the job after a signal that asks to stop.
 * Rank 0 looks at the lock file. A file STOP in the folder is a request to the holder and is not read here. comm NULL:
 * this process alone waits, for the lock of an output. */
static void take(RunLock *l, Comm *comm, Watchdog *watchdog) {
    for (double first_ms = 0.0;;) {
        struct { int64_t waits, stop; } any = {l && look(l, first_ms) == LOCK_WAIT, signals_stop()};
        if (l && l->is_output && !is_named(l)) {
            open_output(l);
            first_ms = 0.0;
            continue;
        }
        if (comm) comm_all_reduce_i64(comm, &any.waits, 2, COMM_MAX);
        if (!any.waits) return;
        if (l && any.stop) fail(EXIT_STOPPED, "%sasked to stop while waiting for %s: nothing was done", l->by, l->dir);
        if (first_ms == 0.0) first_ms = clock_ms();
        watchdog_tick(watchdog, "waiting for the run folder");
        usleep((useconds_t)(LOOK_MS * 1e3));
    }
}

/* Ends the job unless every rank reads the random number (nonce) that rank 0 wrote to a file. A network file system may
 * show the file some seconds later. */
static void see_one_file_system(const char *dir, Comm *comm) {
    char     path[4200], *text = NULL;
    uint64_t nonce = (uint64_t)(clock_ms() * 1e6) ^ (uint64_t)getpid() << 40, seen = 0;
    comm_broadcast(comm, &nonce, sizeof nonce, 0);
    snprintf(path, sizeof path, "%s/.nonce", dir);
    if (comm_rank(comm) == 0) {
        int error = io_replace_file(path, &nonce, sizeof nonce);
        if (error) fail(EXIT_IO, "%s: cannot write: %s", path, io_error_text(error));
    }
    comm_barrier(comm);
    for (double start = clock_ms(); seen != nonce && clock_ms() - start < 5000.0;) {
        if (io_read_file(path, 64, &text) == sizeof nonce) memcpy(&seen, text, sizeof seen);
        free(text);
        text = NULL;
        if (seen != nonce) usleep(100000);
    }
    /* lowest rank that does not read the random number (nonce) of rank 0 */
    int64_t blind = seen == nonce ? comm_size(comm) : comm_rank(comm);
    comm_all_reduce_i64(comm, &blind, 1, COMM_MIN);
    if (comm_rank(comm) == 0) io_unlink(path);
    if (blind < comm_size(comm) && comm_rank(comm) == 0)
        fail(EXIT_IO,
             "run.dir %s is not one file system: rank %d on %s does not see what rank 0 on %s writes there: choose a "
             "run.dir in a folder that all hosts share",
             dir, (int)blind, comm_host(comm, (int)blind), comm_host(comm, 0));
    comm_barrier(comm);
}

RunLock *lock_run_folder(const char *dir, Comm *comm, Watchdog *watchdog, double beat_ms) {
    static const char *const APPENDED[] = {"lock", "metrics.jsonl", "gemm.json", "log.txt"};
    RunLock *l = NULL;
    if (comm_rank(comm) == 0) {
        l = xcalloc(1, sizeof *l, "the lock of a folder");
        snprintf(l->key, sizeof l->key, "run.dir");
        snprintf(l->dir, sizeof l->dir, "%s", dir);
        snprintf(l->path, sizeof l->path, "%s/lock", dir);
        l->self = holder_self(comm_host(comm, 0));
        l->beat_ms = beat_ms;
        int error = io_mkdirs(l->dir);
        if (error)
            fail(EXIT_IO, "%s: cannot create the run folder: %s; set run.dir to a folder this job may write", l->dir,
                 io_error_text(error));
        if (access(l->dir, W_OK | X_OK) != 0)
            fail(EXIT_IO, "%s: cannot write into the run folder: %s", l->dir, io_error_text(errno));
        /* A name that is no regular file is refused. Links are not followed, and a pipe would block.
         * run_folder_check() checks files that are replaced whole, such as loss.svg. */
        for (size_t i = 0; i < sizeof APPENDED / sizeof *APPENDED; i++) {
            char        path[4200];
            struct stat st;
            snprintf(path, sizeof path, "%s/%s", l->dir, APPENDED[i]);
            if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
                fail(EXIT_IO, "%s %s, where this program needs a plain file; remove it", path,
                     io_error_text(io_kind(st.st_mode)));
        }
        l->fd = io_open(l->path, IO_SHARED);
        if (l->fd < 0)
            fail(EXIT_IO, "%s: cannot create: %s; run.dir must be a folder this job may write", l->path,
                 io_error_text(l->fd));
    }
    take(l, comm, watchdog);
    if (comm_size(comm) > 1) see_one_file_system(dir, comm);
    return l;
}

/* --- holding ------------------------------------------------------------------------------------------------------ */

/* Returns 1 if the lock file still names this job. If the file is gone or cannot be read, this job keeps the lock. Only
 * the name of another job ends the lock. */
int lock_is_held(RunLock *l) {
    char       text[HOLDER_TEXT];
    LockHolder now;
    if (!l || !l->is_signed) return 1;
    if (read_now(l, text) == 0 && holder_parse(text, &now) && now.nonce != l->self.nonce) l->lost = 1;
    return !l->lost;
}

int lock_is_lost(const RunLock *l) { return l && l->lost; }

NORETURN void lock_fail(const RunLock *l) {
    char text[HOLDER_TEXT], who[512];
    read_now(l, text);
    say_end_log();
    fail(EXIT_LOCKED,
         "%s%s was taken over by another job (%s) while this one gave no sign of life (stopped, or its disk hung): "
         "this job ends and writes nothing more there",
         l->by, l->dir, describe(text, who));
}

/* Thread that increases the beat, a number in the lock file that shows that this job lives. Writes only the digits, in
 * place, which needs no space on a full disk. Ignores faults of the disk: a lasting one shows in other writes. */
static void *keep_beating(void *lock) {
    RunLock *l = (RunLock *)lock;
    char     text[HOLDER_TEXT];
    while (!thread_sleep(&l->beater, l->beat_ms)) {
        if (!lock_is_held(l)) continue;
        l->self.beat++;
        /* the text of the lock file ends with the digits of the beat and a line feed */
        int at = holder_format(&l->self, text) - 1 - HOLDER_BEAT_DIGITS;
        io_pwrite(l->fd, text + at, HOLDER_BEAT_DIGITS, (uint64_t)at);
    }
    return NULL;
}

void lock_sign(RunLock *l) {
    char text[HOLDER_TEXT], now[HOLDER_TEXT], who[512];
    if (!l) return;
    int length = holder_format(&l->self, text), error = read_now(l, now);
    /* another host has written its name to the lock file meanwhile, because flock did not exclude it */
    if (!error && strcmp(now, l->before) != 0) {
        l->lost = 1;
        fail(EXIT_LOCKED, "%s%s is in use by another job (%s), which began a moment before this one; wait for it, or "
             "stop one of the two", l->by, l->dir,
             describe(now, who));
    }
    /* the new text is written before the file is cut to its length, because any job may take an empty file */
    if (!error) error = io_pwrite(l->fd, text, (size_t)length, 0);
    if (!error) error = io_truncate(l->fd, (uint64_t)length);
    if (error) fail(EXIT_IO, "%s: cannot write: %s", l->path, io_error_text(error));
    l->is_signed = 1;
    thread_start(&l->beater, keep_beating, l, "the lock's beat");
}

void lock_keep(RunLock *l) {
    if (!lock_is_held(l)) lock_fail(l);
}

/* --- outputs of verbs --------------------------------------------------------------------------------------------- */

/* Removes the lock files of outputs. fail() calls it, too. The file is removed before its flock ends, so a process that
 * waits for the flock finds the file gone and makes another. */
static void remove_outputs(void *lock) {
    for (RunLock *l = (RunLock *)lock; l; l = l->earlier) {
        signals_keep(l->path);
        int is_held = lock_is_held(l);
        if (is_held && l->unfinished) io_remove_tree(l->unfinished);
        if (is_held) io_unlink(l->path);
        remove_made(l);
    }
}

RunLock *lock_output(const char *verb, const char *key, const char *output, LockOutput kind) {
    char     host[256] = "?";
    RunLock *l = xcalloc(1, sizeof *l, "the lock of a folder");
    snprintf(l->by, sizeof l->by, "%s: ", verb), snprintf(l->key, sizeof l->key, "%s", key);
    if ((size_t)snprintf(l->dir, sizeof l->dir, "%s", output) >= sizeof l->dir)
        fail(EXIT_CONFIG, "%sthe path of %s= is too long: give a shorter path", l->by, key);
    size_t folder = (size_t)(basename(output) - output), bytes = strlen(output);
    if (kind != LOCK_INTO && bytes - folder > LONGEST_NAME) bytes = folder + LONGEST_NAME;
    snprintf(l->path, sizeof l->path, kind == LOCK_INTO ? "%.*s/.out.lock" : "%.*s.lock", (int)bytes, output);
    snprintf(l->made, sizeof l->made, "%s", kind == LOCK_WHOLE ? "" : output);
    if (kind == LOCK_WITH_PARENTS && cut_last(l->made) == 0 && *output == '/') strcpy(l->made, "/");
    gethostname(host, sizeof host - 1);
    l->self = holder_self(host);
    l->beat_ms = LOCK_BEAT_MS, l->is_output = 1, l->kind = kind, l->fd = -1;
    open_output(l);
    take(l, NULL, NULL);
    l->earlier = (RunLock *)error_set_end(remove_outputs, l);
    signals_remove(l->path);
    lock_sign(l);
    /* Without flock, two processes that begin at once both find an empty lock file. After this wait the file has the
     * name of the later one. */
    if (l->no_flock) usleep(50000);
    if (!lock_is_held(l))
        fail(EXIT_LOCKED, "%s%s: another job started at the same moment and has it now: wait for that job, or name "
             "another folder or file", l->by, l->dir);
    return l;
}

void lock_unfinished(RunLock *l, const char *folder) { l->unfinished = xstrdup(folder, "the lock of a folder"); }

void lock_release(RunLock *l) {
    if (!l) return;
    if (l->is_signed) thread_stop(&l->beater);
    if (l->is_output) {
        RunLock *earlier = l->earlier;
        l->earlier = NULL;
        remove_outputs(l);
        error_set_end(earlier ? remove_outputs : NULL, earlier);
    } else if (l->is_signed && lock_is_held(l)) {
        io_truncate(l->fd, 0);
    }
    io_close(l->fd);
    free(l->unfinished);
    free(l);
}
