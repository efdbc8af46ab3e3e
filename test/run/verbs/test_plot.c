/* test_plot.c - the average that `plot` draws, and the words that tell its runs apart. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "run/verbs/plot.h"

/* Against the definition: the k-th last loss weighs (1 - 2/(span + 1))^k; a step without a loss changes nothing. */
static void the_average_is_as_defined(void **state) {
    (void)state;
    enum { N = 60 };
    LogPoint train[N] = {0};
    double   smooth[N];
    for (int i = 0; i < N; i++) train[i].loss = i % 17 == 3 ? NAN : 3.0 + sin(i) + 5.0 / (i + 1);
    train[0].loss = NAN;
    plot_smooth(train, N, 9, smooth);
    assert_true(isnan(smooth[0]));
    for (int i = 1; i < N; i++) {
        double sum = 0, weights = 0, weight = 1;
        for (int j = i; j >= 0; j--) {
            if (!isfinite(train[j].loss)) continue;
            sum += weight * train[j].loss, weights += weight;
            weight *= 0.8;
        }
        assert_true(fabs(smooth[i] - sum / weights) < 1e-12);
    }
    plot_smooth(train, N, 1, smooth);
    assert_true(smooth[5] == train[5].loss);
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
    assert_string_equal(run[0].name, "runs/a/"); /* two are called a */
    assert_string_equal(run[1].name, "b");
    assert_string_equal(run[2].name, "old/a");
    assert_string_equal(run[0].differs, " · learning_rate=0.001 · eval.every=1 · schedule.every=-");
    assert_string_equal(run[1].differs, " · learning_rate=0.002 · eval.every=2 · schedule.every=-");
    assert_string_equal(run[2].differs, " · learning_rate=0.001 · eval.every=- · schedule.every=x");
    for (int i = 0; i < 3; i++) run_log_free(&run[i].log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_average_is_as_defined),
        cmocka_unit_test(labels_have_what_differs),
    };
    return cmocka_run_group_tests_name("plot", tests, NULL, NULL);
}
