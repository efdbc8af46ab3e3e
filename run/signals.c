/* signals.c - see signals.h. The flags are file-scope because a signal handler has no other way to reach them. */
#include "run/signals.h"

#include <omp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/io.h"

static volatile sig_atomic_t stop_flag, save_flag;

static void on_stop(int signal_number) {
    if (stop_flag && signal_number != SIGUSR1) { /* 75 would promise a checkpoint: end as the signal ends a program */
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
    stop_flag = 1;
}
static void on_save(int signal_number) { (void)signal_number, save_flag = 1; }

/* A handler must not run on the stack of a thread that computes: where generated code of oneDNN (seen with 2.6 on AVX-512) has the stack
 * pointer, the kernel's signal frame overwrote the heap in 3 of 50 signals. So the main thread, which is the one that gets the signals
 * of a process, lends them a stack of their own. */
static void lend_stack(void) {
    static char stack[64 << 10]; /* a frame with AVX-512 and AMX state is some 12 KiB */
    stack_t     lent = {.ss_sp = stack, .ss_size = sizeof stack};
    if (sigaltstack(&lent, NULL) != 0) warn("signals have no stack of their own");
}

static void handle(int signal_number, void (*handler)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigaction(signal_number, &action, NULL);
}

void signals_install(void) {
    lend_stack();
    handle(SIGUSR1, on_stop);
    handle(SIGTERM, on_stop);
    handle(SIGINT, on_stop);
    handle(SIGUSR2, on_save);
    handle(SIGXFSZ, SIG_IGN); /* a file-size limit is then a write error with a path */
    handle(SIGPIPE, SIG_IGN);
}

void signals_keep_to_main(void) {
    sigset_t requests;
    sigemptyset(&requests);
    sigaddset(&requests, SIGUSR1), sigaddset(&requests, SIGUSR2), sigaddset(&requests, SIGTERM), sigaddset(&requests, SIGINT);
    #pragma omp parallel
    if (omp_get_thread_num() > 0) pthread_sigmask(SIG_BLOCK, &requests, NULL);
}

static int file_is_there(const char *dir, const char *name, char *path, size_t capacity) {
    snprintf(path, capacity, "%s/%s", dir, name);
    return access(path, F_OK) == 0;
}

int stop_requested(const char *dir, double started_ms, double max_minutes) {
    char path[4200];
    if (stop_flag) return 1;
    if (!dir) return 0;
    if (max_minutes > 0.0 && clock_ms() - started_ms >= max_minutes * 60e3) return 1;
    return file_is_there(dir, "STOP", path, sizeof path);
}

int save_requested(const char *dir) {
    char path[4200];
    int  asked = save_flag;
    save_flag = 0;
    if (dir && file_is_there(dir, "SAVE", path, sizeof path)) {
        io_unlink(path);
        asked = 1;
    }
    return asked;
}

void stop_file_clear(const char *dir) {
    char path[4200];
    if (file_is_there(dir, "STOP", path, sizeof path)) io_unlink(path);
}
