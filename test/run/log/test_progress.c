/* test_progress.c - the progress lines that a person reads: columns that stay in place within 120 characters, units,
 * the ETA, and what only a terminal gets. */
#include "core/thread.h"
#include "core/error.h"
#include "core/terminal.h"
#include "run/log/progress.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#undef fail
#include <cmocka.h>


static char out[1 << 16];

/* Runs act in a child whose stdout is a terminal with `columns` columns, or a pipe if columns is 0. Its output is in
 * the variable out. */
static void capture(void (*act)(void), int columns) {
    int ends[2];
    if (columns) {
        ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
        assert_true(ends[0] >= 0 && grantpt(ends[0]) == 0 && unlockpt(ends[0]) == 0);
        ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
        struct winsize size = {.ws_col = (unsigned short)columns, .ws_row = 24};
        assert_int_equal(ioctl(ends[1], TIOCSWINSZ, &size), 0);
    } else {
        assert_int_equal(pipe(ends), 0);
    }
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        act();
        fflush(stdout);
        _exit(0);
    }
    close(ends[1]);
    size_t  have = 0;
    ssize_t n;
    /* read() returns -1 (EIO) when the other end of the terminal is closed */
    while ((n = read(ends[0], out + have, sizeof out - 1 - have)) > 0) have += (size_t)n;
    out[have] = 0;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static StepMetrics step(int64_t s) {
    return (StepMetrics){.step = s,
                         .tokens = s * 12288,
                         .loss = 2.10342,
                         .lr = 1.98e-3,
                         .grad_norm = 0.4121,
                         .tokens_per_s = 45123,
                         .mfu = 0.632,
                         .ms = 272,
                         .memory_bytes = 1 << 30};
}

/* Copies the next line of the output, without its end, to `line`. Returns 0 at the end. */
static int next_line(const char **at, char line[512]) {
    const char *end = strchr(*at, '\n');
    if (!end) return 0;
    snprintf(line, 512, "%.*s", (int)(end - *at), *at);
    *at = end + 1;
    return 1;
}

static void one_step(void) {
    Progress    p = progress_start(600, 119, 600, 1);
    StepMetrics s = step(120);
    s.memory_bytes = 332859965;
    progress_step(&p, &s);
}
static void the_line_is_as_documented(void **state) {
    (void)state;
    capture(one_step, 0);
    assert_string_equal(out,
                        "step 120/600  20.0% | loss 2.1034 | lr 1.98e-03 | norm 0.412 | 45.1k tok/s | MFU 63.2% | 0.31 GiB |  272ms | ETA  2m11s\n");
}

static int64_t run_steps;
static void extreme_steps(void) {
       static const double values[] = {0, 1e-9, 0.5, 9.99996, 99.9996, 999.996, 12345.6,
                                       1e7, 1e30, 1e300, INFINITY, -INFINITY, NAN,     -3.7};
       for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
        Progress    p = progress_start(run_steps, 0, run_steps, 1);
        double      x = values[v];
           StepMetrics s = {.step = v % 2 ? run_steps : 1,
                            .loss = x,
                            .lr = fabs(x) < 1 ? x : 1,
                            .grad_norm = x,
                            .tokens_per_s = fabs(x),
                            .mfu = fabs(x) < 1e4 ? fabs(x) : 0,
                            .ms = 1000,
                            .memory_bytes = (int64_t)fmin(isfinite(x) ? fabs(x) * 1e9 : 0, 9e12)};
           progress_step(&p, &s);
    }
}
static void columns_stay_within_120(void **state) {
    (void)state;
    static const int64_t runs[] = {1, 50, 600, 19560, 999999, 1000000, 12345678};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        run_steps = runs[i];
        capture(extreme_steps, 0);
        const char *at = out;
        char        line[512], first[512] = "";
        int         lines = 0;
        for (; next_line(&at, line); lines++) {
            assert_true(strlen(line) <= 120);
            if (!*first) strcpy(first, line);
            for (size_t c = 0; c < strlen(line); c++) assert_int_equal(line[c] == '|', first[c] == '|');
        }
        assert_int_equal(lines, 14);
    }
}

static void log_twelve(void) {
    Progress     p = progress_start(600, 0, 600, 5);
    ProgressEval first = {.loss = 1.75, .last = NAN, .best = NAN, .ms = 100}, e = {.loss = 1.5, .last = 1.75, .best = 1.75, .bytes_per_token = 1, .ms = 12345};
    progress_note("a note of %d", 7);
    progress_eval(&p, 0, &first);
    for (int64_t i = 1; i <= 12; i++) {
        StepMetrics s = step(i);
        progress_step(&p, &s);
    }
    progress_eval(&p, 12, &e);
    progress_sample(12, "In the beginning\n\nGod");
    e.loss = 1.8, e.last = 1.5, e.best = 1.5, e.bytes_per_token = 4.5;
    progress_eval(&p, 13, &e);
}
static void plain_lines_for_a_pipe(void **state) {
    (void)state;
    capture(log_twelve, 0);
    assert_null(strchr(out, '\r'));
    assert_null(strchr(out, '\033'));
    const char *at = out;
    char        line[512];
    static const char *starts[] = {"a note of 7",
                                   "val    0/600   0.0% | loss 1.7500 | perplexity 5.755 | 0.1s",
                                   "step   1/600",
                                   "step   5/600",
                                   "step  10/600",
                                   "val   12/600   2.0% | loss 1.5000 | bits/byte 2.1640 | -0.2500 best | 12s",
                                   "sample at step 12:",
                                   "  | In the beginning",
                                   "  | ",
                                   "  | God",
                                   "val   13/600   2.2% | loss 1.8000 | bits/byte 0.5771 | +0.3000 | 12s"};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++) {
        assert_true(next_line(&at, line));
        assert_int_equal(strncmp(line, starts[i], strlen(starts[i])), 0);
    }
    assert_int_equal(*at, 0);
}

static void a_terminal_sees_every_step(void **state) {
    (void)state;
    unsetenv("NO_COLOR"), unsetenv("FORCE_COLOR"), unsetenv("COLUMNS");
    setenv("TERM", "xterm", 1);
    capture(log_twelve, 100);
    assert_non_null(strstr(out, "\r\033[K" DIM "step" RESET "   4/600"));
    /* the validation is on its own line after that of step 12 */
    assert_non_null(strstr(out, "\r\033[K" DIM "val " RESET "  12/600"));
    assert_non_null(strstr(out, BOLD " 2.1034"));
    assert_non_null(strstr(out, BOLD GREEN " 1.5000"));
    setenv("NO_COLOR", "1", 1);
    capture(log_twelve, 100);
    assert_null(strstr(out, BOLD));
    assert_non_null(strstr(out, "\r\033[Kstep   4/600"));
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    capture(log_twelve, 100);
    assert_null(strchr(out, '\033'));
    setenv("FORCE_COLOR", "1", 1);
    capture(log_twelve, 0);
    assert_non_null(strstr(out, BOLD " 2.1034"));
    assert_null(strchr(out, '\r'));
    unsetenv("FORCE_COLOR");
    setenv("TERM", "xterm", 1);
}

/* Parts that a progress line contains only if the terminal is wide enough, in the order in which they are added. */
static const char *const MORE[] = {"norm 0.412", "MFU 63.2%", "0.31 GiB", "272ms", "GPU  87%  312W  61C"};
static void one_step_on_a_gpu(void) {
    Progress    p = progress_start(600, 119, 600, 1);
    StepMetrics s = step(120);
    s.memory_bytes = 332859965;
    s.gpu = (GpuReading){1u << GPU_USE | 1u << GPU_POWER | 1u << GPU_TEMPERATURE, {0.87, 312.4, 0, 61}};
    progress_step(&p, &s);
}

static void a_line_fits_its_terminal(void **state) {
    (void)state;
    static const struct { int columns, shows; } cases[] = {{60, 0}, {80, 0}, {90, 1}, {100, 2}, {112, 3}, {120, 4}, {141, 4}, {142, 5}, {200, 5}};
    setenv("NO_COLOR", "1", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = out;
        char        line[512];
        capture(one_step_on_a_gpu, cases[i].columns);
        assert_true(next_line(&at, line));
        assert_true((int)strlen(line) <= cases[i].columns);
        assert_non_null(strstr(line, "loss 2.1034"));
        for (int k = 0; k < 5; k++) assert_true((strstr(line, MORE[k]) != NULL) == (k < cases[i].shows));
    }
    unsetenv("NO_COLOR");
}

/* A run whose first step takes 3 s and whose next 99 steps take 100 ms each. Evaluations take another 25 ms for each
 * step. The ETA must use the pace of the later steps, including evaluations. */
static void steps_after_a_slow_start(void) {
    Progress p = progress_start(1000, 0, 1000, 1);
    double   now = clock_ms();
    for (int64_t i = 1; i <= 100; i++) {
        StepMetrics s = step(i);
        s.ms = i == 1 ? 3000 : 100;
        /* moves the start of the run back, to simulate that this time has passed */
        if (i == 1) p.started_ms = now - 3000 - 99 * 100 - 100 * 25;
        if (i < 100) p.log_every = 1000;
        else p.log_every = 1;
        progress_step(&p, &s);
    }
}
static void the_eta_follows_the_pace(void **state) {
    (void)state;
    capture(steps_after_a_slow_start, 0);
    assert_non_null(strstr(out, "step  100/1000"));
    assert_non_null(strstr(strstr(out, "step  100/1000"), "ETA  1m5")); /* 900 remaining steps at 125 ms are 112 s */
}

/* The last of twelve steps is a hundred times slower than the others. The printed rate must be the median, which is
 * that of the other steps. */
static void a_pause_among_steps(void) {
    Progress p = progress_start(1000, 0, 1000, 1);
    for (int64_t i = 1; i <= 12; i++) {
        StepMetrics s = step(i);
        s.ms = i == 12 ? 10000 : 100;
        s.tokens_per_s = 4096 / s.ms * 1e3;
        s.mfu = 50 / s.ms;
        progress_step(&p, &s);
    }
}
static void the_rate_is_a_median(void **state) {
    (void)state;
    capture(a_pause_among_steps, 0);
    assert_non_null(strstr(strstr(out, "step   12/1000"), "| 41.0k tok/s | MFU 50.0% |"));
    assert_non_null(strstr(strstr(out, "step   11/1000"), "| 41.0k tok/s |"));
}

/* MFU is the rate of the last steps relative to the measured rate of matrix products. It is NaN if that rate is
 * unknown, or lower than the rate of a step because other programs disturbed the measurement. The MFU column is then
 * blank, so that the other columns stay in place. */
static void without_and_with_a_part(void) {
    Progress    p = progress_start(100000, 0, 100000, 1);
    StepMetrics s = step(7);
    s.mfu = NAN;
    progress_step(&p, &s);
    s.mfu = 0.228;
    progress_step(&p, &s);
}
static void an_unknown_part_is_blank(void **state) {
    (void)state;
    char line[512];
    capture(without_and_with_a_part, 0);
    const char *at = out;
    assert_true(next_line(&at, line) && !strstr(line, "MFU") && !strstr(line, "nan") && strstr(line, " tok/s |           | "));
    assert_true(next_line(&at, line) && strstr(line, " tok/s | MFU 22.8% | "));
}

/* A run configured for 600 steps, which run.stop_step = 7 ends early. It prints a line every 5 steps and for the last
 * step. The ETA is the time until step 7. */
static void steps_to_an_early_end(void) {
    Progress p = progress_start(600, 0, 7, 5);
    for (int64_t i = 1; i <= 7; i++) {
        StepMetrics s = step(i);
        s.ms = 20000;
        progress_step(&p, &s);
    }
}
static void the_last_step_is_the_one_to_stop_at(void **state) {
    (void)state;
    char line[512];
    capture(steps_to_an_early_end, 0);
    const char *at = out;
    assert_true(next_line(&at, line) && strstr(line, "step   1/600") && strstr(line, " GiB |  20.0s | ETA"));
    assert_true(next_line(&at, line) && strstr(line, "step   5/600") && strstr(line, "ETA    40s"));
    assert_true(next_line(&at, line) && strstr(line, "step   7/600") && strstr(line, "ETA     0s"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_is_as_documented),
        cmocka_unit_test(columns_stay_within_120),
        cmocka_unit_test(plain_lines_for_a_pipe),
        cmocka_unit_test(a_terminal_sees_every_step),
        cmocka_unit_test(a_line_fits_its_terminal),
        cmocka_unit_test(the_eta_follows_the_pace),
        cmocka_unit_test(the_rate_is_a_median),
        cmocka_unit_test(an_unknown_part_is_blank),
        cmocka_unit_test(the_last_step_is_the_one_to_stop_at),
    };
    return cmocka_run_group_tests_name("progress", tests, NULL, NULL);
}
