/* requests.c - collects requests to stop a run or to save it: see requests.h. The flags of the signals are at file
 * scope because a signal handler has no other access to them. */
#include "run/guard/requests.h"

#include <errno.h>
#include <math.h>
#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/error.h"
#include "core/io.h"
#include "core/terminal.h"

static volatile sig_atomic_t stop_flag, end_flag, save_flag;
static _Atomic double ended_ms = -INFINITY, continued_ms = -INFINITY;
static volatile sig_atomic_t answers;
enum { MOST_NEIGHBOURS = 1024 };
/* 1 at index k if local rank k of this host will end the job after it has printed a message */
static volatile sig_atomic_t has_reported[MOST_NEIGHBOURS];
static volatile pid_t launcher; /* mpirun or its daemon on this host; 0: there is none */
static const double LAUNCHER_MS = 5000.0; /* longest time from the SIGCONT that mpirun sends to its SIGTERM */

/* Prints what the program does about a signal. Only the first signal to stop is answered, but a SIGTERM that mpirun
 * sends after its SIGCONT always is. */
static void answer(int signal_number) {
    int is_launchers = signal_number == SIGTERM && launcher && clock_ms() - continued_ms < LAUNCHER_MS;
    const char *text = "train_gpt: stops after this step and saves\n";
    if (!answers || (signal_number != SIGUSR2 && stop_flag && !is_launchers)) return;
    if (signal_number == SIGUSR2) text = "train_gpt: saves after this step, and goes on\n";
    if (signal_number == SIGINT)
        text = "train_gpt: stops after this step and saves; Ctrl-C again ends it now, unsaved\n";
    if (signal_number == SIGTERM)
        text = "train_gpt: stops after this step and saves; a second signal ends it now, unsaved\n";
    if (is_launchers)
        text = "train_gpt: mpirun kills its ranks 2 s after Ctrl-C, a second from now. The run resumes from its\n"
               "           newest checkpoint, if it has one. kill -USR1 on mpirun, or touch RUN/STOP, leaves time to "
               "save\n";
    say_from_signal(text);
}

/* Handles SIGUSR2, which asks for a save, and the signals that ask for a stop. A scheduler sends USR1 first and TERM
 * when the time is over, so only a second TERM or INT ends the process at once. It then ends by the signal, because
 * exit code 75 would promise a checkpoint. */
static void on_request(int signal_number) {
    answer(signal_number);
    if (signal_number == SIGUSR2) {
        save_flag = 1;
        return;
    }
    if (signal_number == SIGTERM || signal_number == SIGINT) {
        if (end_flag) {
            signal(signal_number, SIG_DFL);
            raise(signal_number);
        }
        end_flag = 1;
        ended_ms = clock_ms();
    }
    stop_flag = 1;
}
/* Handles SIGCONT. When mpirun gets Ctrl-C, TERM or HUP, it sends CONT at once, TERM a second later and KILL after
 * another second. The save starts with the CONT. A CONT from another process only ends a stop by SIGSTOP or a
 * debugger. */
static void on_continue(int signal_number, siginfo_t *info, void *context) {
    (void)signal_number, (void)context;
    if (info->si_code == SI_QUEUE) { /* sent by world_tell_neighbours() in another rank of this host */
        int local = info->si_value.sival_int;
        if (local >= 0 && local < MOST_NEIGHBOURS) has_reported[local] = 1;
        return;
    }
    continued_ms = clock_ms();
    if (launcher && info->si_pid == launcher) stop_flag = 1;
}

/* --- the handlers that libraries install -------------------------------------------------------------------------- */

/* Constructors of shared libraries run before main(). UCX, which Open MPI 5 and MPICH link, installs handlers there for
 * SIGHUP and for the signals of faults. So .preinit_array, which the loader runs before any constructor, records which
 * signals the parent ignores. A constructor of the program, which runs after those of the libraries, restores the
 * actions. start_process() may execute the program again, and the new image inherits them. */
static uint64_t ignored_signals; /* bit n - 1: the parent ignores signal n */

static int is_ignored(int signal_number) { return (int)(ignored_signals >> (signal_number - 1) & 1); }

/* Records which signals the parent process ignores. Sanitizers have not started yet, so their checks must be off
 * here. */
__attribute__((no_sanitize("address", "thread"))) static void record_inherited(void) {
    for (int n = 1; n <= 31; n++) {
        /* the kernel's struct sigaction, with space to spare */
        static struct { void (*handler)(int); unsigned long more[15]; } action;
        if (syscall(SYS_rt_sigaction, n, NULL, &action, sizeof(uint64_t)) == 0 && action.handler == SIG_IGN)
            ignored_signals |= (uint64_t)1 << (n - 1);
    }
}
__attribute__((section(".preinit_array"), used)) static void (*record_first)(void) = record_inherited;

__attribute__((constructor)) static void restore_inherited(void) {
    static const int signals[] = {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE, SIGTERM, SIGCONT, SIGXFSZ,
#if !IS_SANITIZED /* sanitizers use the signals of faults themselves */
                                  SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV,
#endif
    };
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction action = {.sa_handler = is_ignored(signals[i]) ? SIG_IGN : SIG_DFL};
        set_action(signals[i], &action);
    }
}

/* --- the program's handlers --------------------------------------------------------------------------------------- */

static void handle(int signal_number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | SA_ONSTACK};
    set_action(signal_number, &action);
}

void signals_install(void) {
    /* Handlers get a stack of their own on the main thread, which gets the signals of the process. A handler must not
     * run on the stack of a thread that computes. Generated code of oneDNN (seen with 2.6 on AVX-512) changes the stack
     * pointer. In 3 of 50 signals the signal frame of the kernel then overwrote the heap. */
    static char stack[64 << 10]; /* a frame with AVX-512 and AMX state is some 12 KiB */
    stack_t     lent = {.ss_sp = stack, .ss_size = sizeof stack};
    if (sigaltstack(&lent, NULL) != 0)
        warn("cannot give signal handlers a stack of their own (sigaltstack: %s): a signal, such as a request to stop, "
             "may make this run crash; if it does, start the same command again", strerror(errno));
    /* a closed terminal stops the run, but not under nohup */
    handle(SIGHUP, is_ignored(SIGHUP) ? SIG_IGN : on_request);
    handle(SIGUSR1, on_request);
    handle(SIGUSR2, on_request);
    handle(SIGTERM, on_request);
    handle(SIGINT, on_request);
    struct sigaction continues = {.sa_sigaction = on_continue, .sa_flags = SA_RESTART | SA_ONSTACK | SA_SIGINFO};
    set_action(SIGCONT, &continues);
    handle(SIGXFSZ, SIG_IGN); /* a write beyond a file-size limit then fails, with an error that names the path */
    handle(SIGPIPE, SIG_IGN);
}

void signals_answer(Launch launch) {
    char name[16];
    if (launch.launched) launcher = (pid_t)launch_process(name);
    if (launch.rank > 0) return;
    say_prepare();
    answers = 1;
}

/* --- files that a signal must not leave behind -------------------------------------------------------------------- */

enum { MOST_TEMPORARY = 4 };
static const char *volatile temporary[MOST_TEMPORARY];

static void on_end(int signal_number) {
    for (int i = 0; i < MOST_TEMPORARY; i++)
        if (temporary[i]) unlink(temporary[i]);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

void signals_remove(const char *path) {
    static const int ends[] = {SIGHUP, SIGINT, SIGTERM};
    for (int i = 0; i < MOST_TEMPORARY; i++)
        if (!temporary[i]) {
            temporary[i] = path;
            break;
        }
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct sigaction now;
        if (sigaction(ends[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL) handle(ends[i], on_end);
    }
}

void signals_keep(const char *path) {
    for (int i = 0; i < MOST_TEMPORARY; i++)
        if (temporary[i] == path) temporary[i] = NULL;
}

void signals_keep_to_main(void) {
    static const int asks[] = {SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGCONT, SIGHUP};
    sigset_t         requests;
    sigemptyset(&requests);
    for (size_t i = 0; i < sizeof asks / sizeof *asks; i++) sigaddset(&requests, asks[i]);
    #pragma omp parallel
    if (omp_get_thread_num() > 0) pthread_sigmask(SIG_BLOCK, &requests, NULL);
}

int signals_stop(void) { return stop_flag; }

double signals_ended_ms(void) { return ended_ms; }
double signals_continued_ms(void) { return continued_ms; }
int    signals_reported(int local) { return local < MOST_NEIGHBOURS && has_reported[local]; }

int signals_take_save(void) {
    /* save_flag is cleared only if it was set, so that a signal between the test and the clearing is not lost */
    if (!save_flag) return 0;
    save_flag = 0;
    return 1;
}

static const double LOOK_MS = 100.0;        /* wanted time between two exchanges of requests */
/* saves that must fit before a time limit: three, because a disk may become three times slower */
static const double SAVES_KEPT_FREE = 3.0;
/* ms kept free before the end of a SLURM job: for clocks that differ, the end of MPI, and later commands of the
 * script */
static const double SLURM_LEAST_MS = 10e3;
static const double DISK_BYTES_PER_MS = 200e3;

/* --- files -------------------------------------------------------------------------------------------------------- */

typedef enum { STOP, SAVE } RequestFile;

/* Returns 1 if the request file, STOP or SAVE, exists. A folder, link or pipe of that name counts, too. A link is not
 * followed. */
static int is_there(const Requests *q, RequestFile file, char *path, size_t capacity) {
    struct stat st;
    snprintf(path, capacity, "%s/%s", q->dir, file == STOP ? "STOP" : "SAVE");
    return !(q->stuck & 1 << file) && lstat(path, &st) == 0;
}

/* Removes the request file, STOP or SAVE. Returns 1 if it existed and is gone. If it cannot be removed, it would be a
 * request for ever, so it is ignored from then on. */
static int take(Requests *q, RequestFile file) {
    char path[4200];
    if (!is_there(q, file, path, sizeof path)) return 0;
    int error = io_unlink(path);
    if (error == -EISDIR) error = io_rmdir(path);
    if (!error) return 1;
    warn("the request file %s cannot be removed: %s; the run ignores it from now on, so remove it by hand before you "
         "ask again", path, strerror(-error));
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
        warn("SLURM_JOB_END_TIME=%.40s is %s: the run cannot stop by itself before the job ends; set run.max_minutes "
             "to the minutes of the job",
             text, *rest || errno || seconds <= 0 ? "no time in seconds since 1970" : "over already");
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

const char *requests_limit(const Requests *q, double *away_ms, double *kept_ms) {
    const TimeLimit *a = &q->limit[0], *b = &q->limit[1], *first = b->end_ms < a->end_ms ? b : a;
    if (first->end_ms == INFINITY) return NULL;
    *away_ms = first->end_ms - clock_ms();
    *kept_ms = reserve_ms(q, first);
    return first->name;
}

/* --- asking ------------------------------------------------------------------------------------------------------- */

static int is_asked(const Requests *q, double next_ms) {
    char path[4200];
    if (signals_stop()) return 1;
    if (comm_rank(q->comm) != 0) return 0;
    if (q->stop_was_there || is_there(q, STOP, path, sizeof path)) return 1;
    double end_ms = clock_ms() + next_ms;
    for (int i = 0; q->stepped && i < 2; i++)
        if (end_ms >= q->limit[i].end_ms - reserve_ms(q, &q->limit[i])) return 1;
    return 0;
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
    answers = 0; /* no more answers to signals, because the run is saved */
}
