/* test_plot.c - the average that `plot` draws, and the names by which it distinguishes its runs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/verbs/plot.h"

/* Compares the smoothed loss of plot_smooth with its definition, a centred mean, written out in plain loops. Steps
 * whose loss is not a number are left out. */
static void the_average_is_as_defined(void **state) {
    (void)state;
    enum { N = 130, HALF = N / 40 };
    LogPoint train[N] = {0};
    double   smooth[N];
    for (int i = 0; i < N; i++) train[i] = (LogPoint){.step = 7 + i, .loss = i % 17 == 3 ? NAN : 3.0 + sin(i) + 5.0 / (i + 1)};
    plot_smooth(train, N, smooth);
    for (int i = 0; i < N; i++) {
        int    reach = i < 2 * HALF ? i / 2 : HALF, count = 0;
        double sum = 0;
        for (int j = i - reach; j <= i + reach && j < N; j++)
            if (isfinite(train[j].loss)) sum += train[j].loss, count++;
        if (isfinite(train[i].loss)) assert_true(fabs(smooth[i] - sum / count) < 1e-12);
        else assert_true(isnan(smooth[i]));
    }
}

/* On a loss that falls in a straight line the smoothed curve lies on the line. Only at the end, where later steps are
 * missing, it may be above it by half the window. A mean of past steps alone would be above it everywhere. */
static void it_does_not_lag(void **state) {
    (void)state;
    for (int n = 10; n <= 5000; n = 3 * n + 7) {
        LogPoint *train = calloc((size_t)n, sizeof *train);
        double   *smooth = calloc((size_t)n, sizeof *smooth), most = 0;
        int       stride = 1;
        while (n > 1024 * stride) stride *= 2;
        for (int i = 0; i < n; i++) train[i] = (LogPoint){.step = 1 + i, .loss = 9.0 - 5.0 * i / n};
        plot_smooth(train, n, smooth);
        for (int i = 0; i < n - n / 20 - stride; i++) most = fmax(most, fabs(smooth[i] - train[i].loss));
        assert_true(most <= 5.0 * stride / n);
        assert_true(smooth[n - 1] - train[n - 1].loss <= 5.0 * (n / 40 + stride) / n);
        free(train), free(smooth);
    }
}

static PlotRun run_of(const char *dir, const char *config) {
    PlotRun r = {.log = {.dir = dir, .config = cJSON_Parse(config)}};
    run_log_name(dir, r.log.name);
    return r;
}

static void labels_have_what_differs(void **state) {
    (void)state;
    PlotRun run[3] =
        {run_of("runs/a/",
                "{\"run\": {\"dir\": \"runs/a\", \"steps\": 100}, \"optimizer\": {\"learning_rate\": 0.001, \"beta1\": 0.9}, \"eval\": {\"every\": 1}}"),
         run_of("runs/b",
                "{\"run\": {\"dir\": \"runs/b\", \"steps\": 100}, \"optimizer\": {\"learning_rate\": 0.002, \"beta1\": 0.9}, \"eval\": {\"every\": 2}}"),
         run_of("old/a",
                "{\"run\": {\"dir\": \"old/a\", \"steps\": 100}, \"optimizer\": {\"learning_rate\": 0.001, \"beta1\": 0.9}, \"schedule\": {\"every\": \"x\"}}")};
    plot_label(run, 3);
    /* Two of the runs have folders named a: runs/a and old/a. Their labels show more of the paths. */
    assert_string_equal(run[0].name, "runs/a/");
    assert_string_equal(run[2].name, "old/a");
    assert_string_equal(run[1].name, "b");
    assert_string_equal(run[0].differs, " · learning_rate=0.001 · eval.every=1 · schedule.every=-");
    assert_string_equal(run[1].differs, " · learning_rate=0.002 · eval.every=2 · schedule.every=-");
    assert_string_equal(run[2].differs, " · learning_rate=0.001 · eval.every=- · schedule.every=x");
    for (int i = 0; i < 3; i++) run_log_free(&run[i].log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_average_is_as_defined), cmocka_unit_test(it_does_not_lag),
        cmocka_unit_test(labels_have_what_differs),
    };
    return cmocka_run_group_tests_name("plot", tests, NULL, NULL);
}
