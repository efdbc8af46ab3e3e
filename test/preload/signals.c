/* signals.c - preloaded into a program; installs handlers for its signals as libraries do: in a constructor like UCX,
 * and in MPI_Init_thread like NCCL 2.14. Its sigaction() ignores requests for SIGHUP and the signals of faults, as UCX
 * 1.10 does. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

static const int taken[] = {SIGHUP, SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV};

static void on_signal(int signal_number) {
    static const char line[] = "the library has the signal\n";
    (void)signal_number;
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0) _exit(1);
    _exit(9);
}

typedef int (*Sigaction)(int, const struct sigaction *, struct sigaction *);
static Sigaction real(void) { return (Sigaction)dlsym(RTLD_NEXT, "sigaction"); }

static void take(int signal_number) {
    struct sigaction action = {.sa_handler = on_signal};
    real()(signal_number, &action, NULL);
}

__attribute__((constructor)) static void take_all(void) {
    for (unsigned i = 0; i < sizeof taken / sizeof *taken; i++) take(taken[i]);
}

int sigaction(int signal_number, const struct sigaction *action, struct sigaction *before) {
    int is_ours = signal_number == SIGHUP || signal_number == SIGILL || signal_number == SIGBUS || signal_number == SIGFPE ||
                  signal_number == SIGSEGV;
    return real()(signal_number, is_ours ? NULL : action, before);
}

int MPI_Init_thread(int *argc, char ***argv, int wanted, int *provided) {
    int (*init)(int *, char ***, int, int *) = (int (*)(int *, char ***, int, int *))dlsym(RTLD_NEXT, "MPI_Init_thread");
    int rc = init(argc, argv, wanted, provided);
    take(SIGUSR1);
    return rc;
}
