/* test_schedule.c - the learning rate of every schedule at selected steps, compared with values computed by hand from
 * the formulas. */
#include "run/config/config.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static Config config_of(ScheduleKind kind, int64_t steps, int64_t warmup, double f, double decay) {
    Config c;
    memset(&c, 0, sizeof c);
    c.run.steps = steps;
    c.optimizer.learning_rate = 1e-3;
    c.schedule.name = kind;
    c.schedule.warmup_steps = warmup;
    c.schedule.final_lr_fraction = f;
    c.schedule.decay_fraction = decay;
    return c;
}

static void expect_lr(const Config *c, int64_t s, double lr) {
    double got = schedule_lr(c, s);
    if (fabs(got - lr) > 1e-15 + 1e-12 * lr) fail_msg("step %lld: %.17g, expected %.17g", (long long)s, got, lr);
}

static void warm_up_is_linear_from_one(void **state) {
    (void)state;
    Config c = config_of(SCHEDULE_COSINE, 100, 10, 0.1, 0.2);
    expect_lr(&c, 0, 1e-4);
    expect_lr(&c, 4, 5e-4);
    expect_lr(&c, 9, 1e-3);
    expect_lr(&c, 10, 1e-3);
}

static void cosine(void **state) {
    (void)state;
    Config c = config_of(SCHEDULE_COSINE, 100, 0, 0.1, 0.2);
    expect_lr(&c, 0, 1e-3);
    expect_lr(&c, 50, 1e-3 * 0.55);
    expect_lr(&c, 25, 1e-3 * (0.1 + 0.45 * (1.0 + sqrt(0.5))));
    expect_lr(&c, 100, 1e-4);
}

static void linear(void **state) {
    (void)state;
    Config c = config_of(SCHEDULE_LINEAR, 110, 10, 0.2, 0.2);
    expect_lr(&c, 10, 1e-3);
    expect_lr(&c, 60, 1e-3 * 0.6);
    expect_lr(&c, 110, 2e-4);
}

static void constant(void **state) {
    (void)state;
    Config c = config_of(SCHEDULE_CONSTANT, 10, 2, 0.0, 0.2);
    expect_lr(&c, 0, 5e-4);
    expect_lr(&c, 9, 1e-3);
}

static void warmup_stable_decay(void **state) {
    (void)state;
    /* ceil(20.2) = 21 steps of decay, so the decay begins at step s0 = 80 */
    Config c = config_of(SCHEDULE_WSD, 101, 5, 0.0, 0.2);
    expect_lr(&c, 4, 1e-3);
    expect_lr(&c, 79, 1e-3);
    expect_lr(&c, 80, 1e-3);
    expect_lr(&c, 81, 1e-3 * (1.0 - sqrt(1.0 / 21.0)));
    c.schedule.final_lr_fraction = 0.5;
    expect_lr(&c, 100, 1e-3 * (0.5 + 0.5 * (1.0 - sqrt(20.0 / 21.0))));
}

static void a_decay_may_be_linear(void **state) {
    (void)state;
    Config c = config_of(SCHEDULE_WSD, 100, 5, 0.0, 0.2); /* the decay begins at step s0 = 80 */
    c.schedule.decay = DECAY_LINEAR;
    expect_lr(&c, 79, 1e-3);
    expect_lr(&c, 80, 1e-3);
    expect_lr(&c, 81, 1e-3 * 0.95);
    expect_lr(&c, 99, 1e-3 * 0.05);
    c.schedule.final_lr_fraction = 0.5;
    expect_lr(&c, 90, 1e-3 * 0.75);
}

/* A resume with another number of steps may end the stable phase of a WSD schedule (warmup, stable, decay) at any step.
 * Steps before the decay keep the learning rates of the original run. */
static void a_decay_may_begin_at_any_checkpoint(void **state) {
    (void)state;
    Config trunk = config_of(SCHEDULE_WSD, 1000, 10, 0.0, 0.2), branch = config_of(SCHEDULE_WSD, 750, 10, 0.0, 0.2);
    for (int64_t s = 0; s <= 600; s++) expect_lr(&branch, s, schedule_lr(&trunk, s));
    expect_lr(&branch, 675, 1e-3 * (1.0 - sqrt(0.5)));
}

static void expect_decay(const Config *c, int64_t s, double decay) {
    double got = schedule_weight_decay(c, s);
    if (fabs(got - decay) > 1e-15 + 1e-12 * decay) fail_msg("step %lld: %.17g, expected %.17g", (long long)s, got, decay);
}

static void weight_decay(void **state) {
    (void)state;
    Config c = config_of(SCHEDULE_LINEAR, 110, 10, 0.2, 0.2);
    c.optimizer.weight_decay = 0.1;
    /* constant by default, so equal to optimizer.weight_decay without any rounding */
    assert_true(schedule_weight_decay(&c, 60) == 0.1);
    c.optimizer.weight_decay_schedule = WEIGHT_DECAY_LR;
    expect_decay(&c, 0, 0.01);
    expect_decay(&c, 10, 0.1);
    expect_decay(&c, 60, 0.06);
    c.optimizer.learning_rate = 0.0; /* the weight decay cannot follow a learning rate of 0, so it is constant */
    expect_decay(&c, 60, 0.1);
    c.optimizer.weight_decay_schedule = WEIGHT_DECAY_LINEAR;
    expect_decay(&c, 0, 0.1);
    expect_decay(&c, 55, 0.05);
    expect_decay(&c, 110, 0.0);
}

static void warm_up_may_be_the_whole_run(void **state) {
    (void)state;
    Config c = config_of(SCHEDULE_COSINE, 10, 10, 0.0, 0.2);
    expect_lr(&c, 9, 1e-3);
}

static void the_last_step(void **state) {
    (void)state;
    Config c = {.run = {.steps = 100}};
    assert_int_equal(schedule_last_step(&c), 100);
    c.run.stop_step = 40;
    assert_int_equal(schedule_last_step(&c), 40);
    c.run.stop_step = 101;
    assert_int_equal(schedule_last_step(&c), 100);
}

static void clipping(void **state) {
    (void)state;
    assert_true(clip_scale(0.5, 1.0) == 1.0);
    assert_true(clip_scale(1.0, 1.0) == 1.0);
    assert_true(clip_scale(4.0, 1.0) == 0.25);
    assert_true(clip_scale(4.0, 0.0) == 1.0);
    assert_true(clip_scale(0.0, 1.0) == 1.0);
}

int main(void) {
    const struct CMUnitTest cases[] = {
        cmocka_unit_test(warm_up_is_linear_from_one),
        cmocka_unit_test(cosine),
        cmocka_unit_test(linear),
        cmocka_unit_test(constant),
        cmocka_unit_test(warmup_stable_decay),
        cmocka_unit_test(a_decay_may_be_linear),
        cmocka_unit_test(a_decay_may_begin_at_any_checkpoint),
        cmocka_unit_test(weight_decay),
        cmocka_unit_test(warm_up_may_be_the_whole_run),
        cmocka_unit_test(the_last_step),
        cmocka_unit_test(clipping),
    };
    return cmocka_run_group_tests_name("schedule", cases, NULL, NULL);
}
