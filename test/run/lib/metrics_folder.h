/* metrics_folder.h - a folder for the tests of metrics.jsonl, steps to log into it, and clocks that stand still. */
#ifndef TRAIN_GPT_TEST_METRICS_FOLDER_H
#define TRAIN_GPT_TEST_METRICS_FOLDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/io.h"
#include "run/log/metrics.h"

static char dir[64], path[96], picture[96];
static MetricsAbout about = {.bytes_per_token = 4.0, .commit = "abc1234"};
static double       passed_s; /* seconds that the simulated clocks have advanced since 1.7e9 s */

int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    *now = (struct timespec){1700000000 + (time_t)passed_s, 250999999};
    return 0;
}

static int make_dir(void **state) {
    (void)state;
    passed_s = 0;
    strcpy(dir, "/tmp/test_metrics.XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    snprintf(picture, sizeof picture, "%s/loss.svg", dir);
    return 0;
}
static int remove_dir(void **state) {
    (void)state;
    return io_remove_tree(dir);
}

/* Not inlined, because gcc 12 would warn that the returned pointer is the address of a local variable. */
static __attribute__((noinline)) char *read_text(const char *from) {
    char *text;
    assert_true(io_read_file(from, 1 << 24, &text) >= 0);
    return text;
}
static void log_steps(Metrics *m, int64_t after, int64_t last) {
    for (int64_t s = after + 1; s <= last; s++) {
        StepMetrics t = {.step = s,
                         .tokens = s * 1024,
                         .loss = 5.5 / (double)s,
                         .lr = 1e-3,
                         .grad_norm = 1.0 / 3,
                         .tokens_per_s = 45123.456,
                         .mfu = 0.632,
                         .ms = 22.7};
        metrics_train(m, &t);
        if (s % 10 == 0) metrics_eval(m, s, 6.0 / (double)s);
    }
}

#endif
