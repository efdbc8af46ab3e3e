/* test_requests.c - the files STOP and SAVE, such files that cannot be removed, and signals at any instant. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/io.h"
#include "run/guard/requests.h"
#include "test/run/lib/child.h"

static char  dir[64];
static Comm *comm;

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/test_requests.XXXXXX");
    comm = world_all(world_join((Launch){0}));
    return mkdtemp(dir) ? 0 : -1;
}
static int remove_dir(void **state) {
    (void)state;
    char path[96];
    snprintf(path, sizeof path, "%s/STOP", dir), io_remove_tree(path);
    snprintf(path, sizeof path, "%s/SAVE", dir), io_remove_tree(path);
    world_leave(comm_world(comm));
    return io_remove_tree(dir);
}

static const char *at(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}
static void put_file(const char *name) {
    int fd = io_open(at(name), IO_CREATE);
    if (fd < 0 || io_close(fd) != 0) abort();
}
static void put_folder(const char *name) {
    if (io_mkdirs(at(name)) != 0) abort();
}
static int is_there(const char *name) { return access(at(name), F_OK) == 0; }

static Requests start(void) { return requests_start(comm, dir, 0.0, clock_ms(), 0.0); }

static void files_ask_once(void **state) {
    (void)state;
    Requests q = start();
    assert_true(!requests_stop(&q, 0.0) && !requests_save(&q));
    put_file("SAVE");
    assert_true(requests_save(&q) && !is_there("SAVE") && !requests_save(&q));
    put_folder("SAVE"); /* a request can also be a folder named SAVE, not only a file */
    assert_true(requests_save(&q) && !is_there("SAVE") && !requests_save(&q));
    put_folder("STOP");
    /* the request is returned again until it has been carried out */
    assert_true(requests_stop(&q, 0.0) && requests_stop(&q, 0.0));
    requests_end(&q);
    assert_false(is_there("STOP"));
    put_file("STOP");
    q = start(); /* a file STOP that existed before the start is a request */
    assert_true(requests_stop(&q, 0.0) && !is_there("STOP"));
}

static void keep_a_save_that_stays(void *unused) {
    (void)unused;
    put_folder("SAVE/full");
    Requests q = start();
    for (int i = 0; i < 3; i++)
        if (requests_save(&q)) _exit(1);
    requests_end(&q);
}
static void keep_a_stop_of_before(void *unused) {
    (void)unused;
    put_folder("STOP/full");
    Requests q = start();
    if (requests_stop(&q, 0.0) || requests_agree(&q)) _exit(1);
    requests_end(&q);
}
static void keep_a_stop_that_comes(void *unused) {
    (void)unused;
    Requests q = start();
    put_folder("STOP/full");
    if (!requests_stop(&q, 0.0)) _exit(1);
    requests_end(&q);
}
static void what_cannot_be_removed_is_told_of_once(void **state) {
    (void)state;
    const struct { void (*piece)(void *); const char *name; } table[] = {
        {keep_a_save_that_stays, "SAVE"}, {keep_a_stop_of_before, "STOP"}, {keep_a_stop_that_comes, "STOP"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        Child c = child_run(table[i].piece, NULL);
        assert_int_equal(c.code, 0);
        assert_int_equal(child_lines(&c), 1);
        assert_non_null(strstr(c.said, at(table[i].name)));
        assert_non_null(strstr(c.said, "cannot be removed"));
        assert_int_equal(io_remove_tree(at(table[i].name)), 0);
    }
}

/* A signal that arrives while the program looks for signals must not be lost. 2000 signals are sent, each as soon as
 * the previous one has been noticed. */
static void no_signal_is_lost(void **state) {
    (void)state;
    enum { SIGNALS = 2000 };
    int taken[2];
    signals_install();
    assert_int_equal(pipe(taken), 0);
    pid_t self = getpid(), sender = fork();
    if (sender == 0) {
        char byte;
        for (int i = 0; i < SIGNALS; i++)
            if (kill(self, SIGUSR2) != 0 || read(taken[0], &byte, 1) != 1) _exit(1);
        _exit(0);
    }
    double begin = clock_ms();
    int    count = 0;
    while (count < SIGNALS && clock_ms() - begin < 20e3)
        for (int i = 0; i < 1000; i++)
            if (signals_take_save() && ++count && write(taken[1], "x", 1) != 1) abort();
    kill(sender, SIGKILL);
    waitpid(sender, NULL, 0);
    assert_int_equal(count, SIGNALS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(files_ask_once, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_cannot_be_removed_is_told_of_once, make_dir, remove_dir),
        cmocka_unit_test(no_signal_is_lost),
    };
    return cmocka_run_group_tests_name("requests", tests, NULL, NULL);
}
