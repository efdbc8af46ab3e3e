/* watchdog.c - the thread that ends a job without progress: see watchdog.h. Fields that change while both threads run
 * are atomic. The watchdog takes no lock that a hung thread could hold, and writes to stderr without stdio. */
#include "run/guard/watchdog.h"

#include <dirent.h>
#include <errno.h>
#include <execinfo.h>
#include <math.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/terminal.h"
#include "core/error.h"
#include "run/guard/requests.h"

enum { STACK_DEPTH = 64 };
enum { REPORT_SECONDS = 4 /* longest time of a report, because the reader of stderr may be gone */, HOST_CHARS = 64 };
static const double LOOK_MS = 200.0, STACK_MS = 100.0, ABANDON_MS = 1000.0;
/* Times of mpirun (Open MPI) when it ends its ranks: TERM follows CONT after APART_MS, and KILL after ENDING_MS. */
static const double APART_MS = 1000.0, ENDING_MS = 2000.0;
static const double TOGETHER_MS = 500.0;

struct Watchdog {
    Comm *_Atomic     comm;      /* all ranks of the job; borrowed; NULL before watchdog_know */
    Mesh              mesh;      /* places of the ranks in the grid (tensor, pipeline, shard, ...); set together with
                                  * comm */
    Launch            launch;
    long              launcher;      /* process number of the launcher on this host; 0: none */
    char              launcher_name[16];
    char              host[HOST_CHARS];
    double            limit_seconds; /* configured limit of the time without a tick; 0: it follows from the pauses
                                      * seen */
    Thread            thread;
    _Atomic int64_t   last_us;   /* time of the last tick (sign of progress): clock_ms() * 1000 */
    _Atomic int64_t   longest_us;/* longest pause between two ticks, since the first step */
    _Atomic int       started, ends;
    const char *_Atomic phase;
};

static int64_t now_us(void) { return (int64_t)(clock_ms() * 1e3); }

/* --- the main thread's side --------------------------------------------------------------------------------------- */

void watchdog_tick(Watchdog *w, const char *phase) {
    if (!w) return;
    int64_t now = now_us(), pause = now - w->last_us;
    if (pause > w->longest_us) w->longest_us = pause;
    if (phase) w->phase = phase;
    w->last_us = now;
}

void watchdog_forget_start(Watchdog *w) {
    watchdog_tick(w, NULL);
    w->longest_us = 0;
}

void watchdog_started(Watchdog *w) { w->started = 1; }
void watchdog_ends(Watchdog *w) { w->ends = 1; }

/* --- the report --------------------------------------------------------------------------------------------------- */

static void report_line(const char *fmt, ...) PRINTF_LIKE(1, 2);
static void report_line(const char *fmt, ...) {
    char    line[512];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    size_t length = n < (int)sizeof line ? (size_t)n : sizeof line - 1;
    if (write(STDERR_FILENO, line, length) < 0) return; /* the write failed: no process is left that reads stderr */
}

static volatile sig_atomic_t stacks_printed; /* number of stacks printed so far; at file scope for the signal handler */

static void on_stack_signal(int signal_number) {
    (void)signal_number;
    void *frame[STACK_DEPTH];
    int   frames = backtrace(frame, STACK_DEPTH);
    backtrace_symbols_fd(frame, frames, STDERR_FILENO);
    stacks_printed++;
}

static void sleep_ms(double ms) {
    struct timespec t = {(time_t)(ms / 1e3), (long)((ms - 1e3 * (double)(time_t)(ms / 1e3)) * 1e6)};
    nanosleep(&t, NULL);
}

/* Makes each thread print its stack, which only the thread itself can walk. A thread that blocks signals, or that is
 * inside the kernel, prints none. */
static void print_stacks(void) {
    DIR *tasks = opendir("/proc/self/task");
    long own = syscall(SYS_gettid);
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        long thread = strtol(entry->d_name, NULL, 10);
        if (thread <= 0 || thread == own) continue;
        report_line("train_gpt: stack of thread %ld%s:\n", thread, thread == getpid() ? " (main)" : "");
        int before = stacks_printed;
        syscall(SYS_tgkill, getpid(), thread, THREAD_STACK_SIGNAL);
        for (double ms = 0; ms < STACK_MS && stacks_printed == before; ms++) sleep_ms(1.0);
    }
    if (tasks) closedir(tasks);
}

/* Names the ranks of this host whose processes are in this state. The ranks of a host have consecutive numbers. A rank
 * that ended the job with an error has printed its own message and is left out. */
static void name_neighbours(const Watchdog *w, const Comm *comm, ProcessState state, const char *what) {
    const World *world = comm_world(comm);
    int          first = comm_rank(comm) - world_local_rank(world);
    for (int r = 0; r < world_local_size(world); r++) {
        char place[MESH_TEXT];
        if (world_neighbour(world, r) != state || (state == PROCESS_GONE && signals_reported(r))) continue;
        mesh_place_text(w->mesh, first + r, place);
        report_line("train_gpt: rank %d of %d on %s (%s) %s\n", first + r, comm_size(comm), w->host, place, what);
    }
}

static NORETURN void end_job(const Watchdog *w, double silent_seconds, double limit_seconds) {
    char        text[CALL_CHARS], collective[192], report[512];
    Comm       *comm = w->comm;
    const char *phase = w->phase;
    error_end_within(REPORT_SECONDS, EXIT_PEER);
    CommTrace   call = comm ? world_last_call(comm_world(comm)) : (CommTrace){.name = "", .number = -1};
    const char *name = world_call_text(&call, text); /* "barrier 12", or "tensor all-gather 812" for a group */
    if (call.number < 0) snprintf(collective, sizeof collective, "no collective was started");
    else if (call.end_ms > 0)
        snprintf(collective, sizeof collective, "the last collective, %s, has ended", name);
    else
        snprintf(collective, sizeof collective, "collective %s is in flight since %.1f s", name,
                 (clock_ms() - call.start_ms) * 1e-3);
    snprintf(report, sizeof report,
             "train_gpt: rank %d of %d on %s: no progress for %.1f s (limit %.1f s, run.watchdog_seconds) in %s; %s\n",
             comm ? comm_rank(comm) : w->launch.rank, comm ? comm_size(comm) : w->launch.size, w->host, silent_seconds,
             limit_seconds, phase, collective);
    report_line("%s", report);
    if (comm) name_neighbours(w, comm, PROCESS_STOPPED, "is stopped, by SIGSTOP or a debugger");
    print_stacks();
    say_in_log(report); /* last, because the disk of the log may be the cause of the hang */
    if (comm) world_abandon(comm_world(comm), ABANDON_MS);
    _exit(EXIT_PEER);
}

/* --- the watcher -------------------------------------------------------------------------------------------------- */

double watchdog_limit(double configured_seconds, int has_started, double longest_seconds) {
    if (configured_seconds > 0.0) return configured_seconds;
    if (!has_started) return WATCHDOG_STARTING_SECONDS;
    double seen = WATCHDOG_PAUSES * longest_seconds;
    return seen > WATCHDOG_LEAST_SECONDS ? seen : WATCHDOG_LEAST_SECONDS;
}

double watchdog_allows(const Watchdog *w) {
    return watchdog_limit(w->limit_seconds, w->started, (double)w->longest_us * 1e-6);
}

/* Returns 1 if the launcher (mpirun or its daemon) is ending its ranks because one has died. Nothing can be saved then.
 * Any of three signs is enough. A rank of this host is gone. Or a rank of another host died: the two signals of the
 * launcher came a second apart, and this rank made no progress between them. Or a signal came before the ranks knew
 * each other. The signals of SLURM come together, and leave half a minute. */
static int is_bereft(const Watchdog *w) {
    Comm  *comm = w->comm;
    double continued_ms = signals_continued_ms(), ended_ms = signals_ended_ms(), apart_ms = ended_ms - continued_ms;
    if (w->ends || !w->launch.launched || !(isfinite(continued_ms) || isfinite(ended_ms))) return 0;
    if (!comm) return isfinite(ended_ms);
    if (clock_ms() - continued_ms < ENDING_MS && world_neighbour_is_gone(comm_world(comm))) return 1;
    if (world_local_size(comm_world(comm)) == comm_size(comm)) return 0;
    return apart_ms > 0.8 * APART_MS && apart_ms < 1.5 * APART_MS && (double)w->last_us * 1e-3 < continued_ms;
}

/* Ends this rank after another rank has died. The lowest remaining rank of the host prints the report for all. The
 * ranks of the host end at the same moment, so that none mistakes another one that is just ending for the dead one. A
 * rank that is late prints nothing. */
static NORETURN void leave_bereft(const Watchdog *w) {
    Comm  *comm = w->comm;
    double told_ms = fmax(signals_continued_ms(), signals_ended_ms()), left_ms = told_ms + TOGETHER_MS - clock_ms();
    error_end_within(REPORT_SECONDS, EXIT_PEER);
    if (comm && left_ms > 0) {
        World *world = comm_world(comm);
        int    lowest = 0;
        while (lowest < world_local_rank(world) && world_neighbour(world, lowest) == PROCESS_GONE) lowest++;
        if (lowest == world_local_rank(world))
            name_neighbours(w, comm, PROCESS_GONE, "is gone: the job ends, and resumes from its newest checkpoint");
        sleep_ms(left_ms);
    }
    _exit(EXIT_PEER);
}

static NORETURN void leave_orphan(const Watchdog *w) {
    Comm *comm = w->comm;
    char  line[256];
    error_end_within(REPORT_SECONDS, EXIT_PEER);
    snprintf(line, sizeof line,
             "train_gpt: %s, process %ld on %s, is gone: the job ends, and resumes from its newest checkpoint\n",
             w->launcher_name, w->launcher, w->host);
    if (!comm || world_local_rank(comm_world(comm)) == 0) {
        report_line("%s", line);
        say_in_log(line);
    }
    _exit(EXIT_PEER);
}

static void *watch(void *watchdog) {
    Watchdog *w = (Watchdog *)watchdog;
    for (int64_t looked = now_us(); !thread_sleep(&w->thread, LOOK_MS); looked = now_us()) {
        double asleep_ms = (double)(now_us() - looked) * 1e-3;
        /* the whole process was stopped (SIGSTOP or debugger): count its silence from now on */
        if (asleep_ms > 10 * LOOK_MS) w->last_us = now_us();
        if (is_bereft(w)) leave_bereft(w);
        /* 1 if the launcher (mpirun or its daemon) is gone. When Open MPI 5 loses a host, its launcher ends at once
         * with exit code 0. It does not end the ranks of its own host then. */
        int is_orphan = !w->ends && w->launcher && kill((pid_t)w->launcher, 0) < 0 && errno == ESRCH;
        if (is_orphan) leave_orphan(w);
        double silent = (double)(now_us() - w->last_us) * 1e-6, limit = watchdog_allows(w);
        if (silent > limit) end_job(w, silent, limit);
    }
    return NULL;
}

void watchdog_know(Watchdog *w, Comm *comm, Mesh mesh) {
    w->mesh = mesh;
    w->comm = comm;
}

Watchdog *watchdog_create(double limit_seconds, Launch launch) {
    Watchdog *w = xcalloc(1, sizeof *w, "a watchdog");
    w->launch = launch;
    if (launch.launched) w->launcher = launch_process(w->launcher_name);
    w->limit_seconds = limit_seconds;
    gethostname(w->host, sizeof w->host - 1);
    w->last_us = now_us();
    w->phase = "the start of MPI";
    void *frame[1];
    backtrace(frame, 1); /* the first backtrace() loads a library, which the signal handler must not do */
    struct sigaction action = {.sa_handler = on_stack_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    set_action(THREAD_STACK_SIGNAL, &action);
    thread_start(&w->thread, watch, w, "the watchdog");
    return w;
}

void watchdog_destroy(Watchdog *w) {
    thread_stop(&w->thread);
    free(w);
}
