/* test_guard.c - how spikes of the loss are recognized, and what happens to bad steps. The losses are simulated series,
 * unbroken or resumed in the middle. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "run/guard/guard.h"
#include "run/checkpoint/manifest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#undef fail
#include <cmocka.h>

#define COUNT(array) ((int)(sizeof array / sizeof *array))

static Config config_of(int on_nonfinite, int on_spike) {
    Config c = {.run = {.on_nonfinite = on_nonfinite, .on_spike = on_spike, .spike_threshold = 10, .max_skips = 3},
                .schedule = {.warmup_steps = 10}, .batch = {.global_tokens = 480}};
    return c;
}

/* --- the median's window ------------------------------------------------------------------------------------------ */

static void test_limit(void **state) {
    (void)state;
    Spikes s = {0};
    assert_true(isnan(spikes_median(&s)) && isinf(spikes_limit(&s, 10)));
    for (int i = 0; i < SPIKES_LEAST - 1; i++) spikes_add(&s, i % 2 ? 3.0 : 3.2);
    assert_true(isinf(spikes_limit(&s, 10)));
    /* losses that are not finite are ignored */
    for (int i = 0; i < 100; i++) spikes_add(&s, i % 3 ? NAN : INFINITY), spikes_add(&s, -INFINITY);
    assert_true(isinf(spikes_limit(&s, 10)));
    spikes_add(&s, 3.0);
    assert_true(fabs(spikes_median(&s) - 3.1) < 0.11 && fabs(spikes_limit(&s, 10) - (3.1 + 14.826 * 0.1)) < 1e-9);
    assert_true(isinf(spikes_limit(&s, 0)));
    /* outliers are fewer than half of the losses, so the median is not one of them */
    for (int i = 0; i < SPIKES_LEAST / 2 - 1; i++) spikes_add(&s, 1e30);
    assert_true(spikes_median(&s) <= 3.2);
    /* Only the last SPIKES_WINDOW losses count. Without any noise the limit for spikes is 0.2, the least rise, above
     * the median. */
    for (int i = 0; i < SPIKES_WINDOW; i++) spikes_add(&s, 2.0);
    assert_true(s.count == SPIKES_WINDOW && spikes_median(&s) == 2.0 && fabs(spikes_limit(&s, 10) - 2.2) < 1e-12);
    spikes_add(&s, 9.0);
    assert_true(s.count == SPIKES_WINDOW && s.loss[SPIKES_WINDOW - 1] == 9.0 && s.loss[0] == 2.0);
}

/* --- series of losses --------------------------------------------------------------------------------------------- */

/* Returns the loss of a step, counted from 0: it falls and has noise between batches, as in training. */
static double falling(int64_t step, double noise) {
    double u = 0;
    /* a sum of twelve uniform numbers is about normally distributed */
    for (uint64_t k = 0; k < 12; k++) u += rng_uniform(5, RNG_TEST, 12 * (uint64_t)step + k);
    return 2.0 + 3.5 * exp(-(double)step / 25.0) + noise * (u - 6.0);
}

typedef struct { int64_t at; double loss; StepJudgement due; } Special;

/* Losses of some of 400 steps, and how the guard must judge each. Every other step has an ordinary loss and is fine. */
static const Special specials[] = {
    /* judged fine, because there are too few losses yet */
    {3, 50.0, STEP_FINE}, {20, 9.0, STEP_FINE},
    {5, NAN, STEP_NOT_FINITE}, {60, NAN, STEP_NOT_FINITE}, {61, INFINITY, STEP_NOT_FINITE},
    {150, 9.0, STEP_SPIKE}, {151, 1e30, STEP_SPIKE}, {152, -INFINITY, STEP_NOT_FINITE}, {153, 9.0, STEP_SPIKE},
    /* a sudden fall of the loss is not a spike */
    {200, 0.5, STEP_FINE},
    {250, 3.4, STEP_SPIKE}, {300, NAN, STEP_NOT_FINITE}, {399, 4.0, STEP_SPIKE},
};

static double series(int64_t step, StepJudgement *due) {
    *due = STEP_FINE;
    for (int i = 0; i < COUNT(specials); i++)
        if (specials[i].at == step) return *due = specials[i].due, specials[i].loss;
    return falling(step, 0.03);
}

/* Returns the guard as a resume restores it: written into the manifest of a checkpoint and read back. */
static Guard resumed(const Guard *g) {
    cJSON        *config = cJSON_Parse("{}");
    ManifestExtent   run = {0, 9, 1};
    ManifestData  data = {"a.bin", 1, 1};
    Manifest         m = {.run_id = "0123456789abcdef",
                          .backend = "cpu",
                          .precision = "fp32",
                          .step = 1,
                          .ranks = 1,
                          .threads = 1,
                          .loss_scale = 1,
                          .guard = *g,
                          .config = config,
                          .data = &data,
                          .data_files = 1,
                          .file = {{9, &run, 1}, {9, &run, 1}, {9, &run, 1}}},
             back;
    size_t        bytes;
    char          fault[MANIFEST_FAULT_BYTES] = "", *text = manifest_write(&m, &bytes);
    if (manifest_parse(text, bytes, &back, fault) != MANIFEST_GOOD) fail_msg("%s", fault);
    Guard read = back.guard;
    manifest_free(&back);
    free(text);
    cJSON_Delete(config);
    return read;
}

static void test_series(void **state) {
    (void)state;
    Config c = config_of(ON_TROUBLE_SKIP, ON_TROUBLE_WARN);
    c.run.max_skips = 1000;
    /* `broken` is saved and resumed after every seventh step; it must judge and act like `whole` */
    Guard whole = {0}, broken = {0};
    for (int64_t step = 0; step < 400; step++) {
        StepJudgement due, judged = guard_judge(&whole, &c, step, series(step, &due), 1.0);
        double        loss = series(step, &due);
        if (judged != due) fail_msg("step %lld, loss %g: judged %d, not %d", (long long)step, loss, judged, due);
        assert_int_equal(guard_judge(&broken, &c, step, loss, 1.0), due);
        assert_int_equal(guard_judge(&whole, &c, step, loss, NAN), STEP_NOT_FINITE);
        assert_int_equal(guard_act(&broken, &c, step, loss, due), guard_act(&whole, &c, step, loss, due));
        if (step % 7 == 6) broken = resumed(&broken);
        assert_memory_equal(&broken, &whole, sizeof whole);
    }
    c.run.spike_threshold = 0;
    assert_int_equal(guard_judge(&whole, &c, 400, 1e30, 1.0), STEP_FINE);
}

/* In 100,000 steps of a normal falling loss, with five levels of noise, the guard reports no spike. */
static void test_no_false_alarm(void **state) {
    (void)state;
    static const double noise[] = {0, 1e-3, 0.02, 0.1, 0.5};
    for (int i = 0; i < COUNT(noise); i++) {
        Config c = config_of(ON_TROUBLE_STOP, ON_TROUBLE_STOP);
        Guard  g = {0};
        for (int64_t step = 0; step < 20000; step++) {
            double loss = falling(step, noise[i]);
            assert_int_equal(guard_judge(&g, &c, step, loss, 1.0), STEP_FINE);
            assert_int_equal(guard_act(&g, &c, step, loss, STEP_FINE), GUARD_UPDATE);
        }
    }
}

/* --- the fate of a step ------------------------------------------------------------------------------------------- */

/* Each digit of `steps` is a judgement (0 fine, 1 not finite, 2 a spike). Each letter of `acts` is the expected action:
 * u update, s skip, x exit. */
static void test_acts(void **state) {
    (void)state;
    static const struct { int on_nonfinite, on_spike; int64_t max_skips; const char *steps, *acts; } table[] = {
        {ON_TROUBLE_STOP, ON_TROUBLE_WARN, 3, "02021", "uuuux"},
        {ON_TROUBLE_SKIP, ON_TROUBLE_WARN, 3, "0111011121111", "usssusssusssx"},
        {ON_TROUBLE_SKIP, ON_TROUBLE_SKIP, 2, "120120122", "ssussussx"},
        {ON_TROUBLE_SKIP, ON_TROUBLE_STOP, 3, "1012", "susx"},
        {ON_TROUBLE_SKIP, ON_TROUBLE_SKIP, 0, "01", "ux"},
        {ON_TROUBLE_STOP, ON_TROUBLE_SKIP, 3, "2221", "sssx"},
    };
    static const char letters[] = {[GUARD_UPDATE] = 'u', [GUARD_SKIP] = 's', [GUARD_ROLLBACK] = 'r', [GUARD_STOP] = 'x'};
    for (int i = 0; i < COUNT(table); i++) {
        Config c = config_of(table[i].on_nonfinite, table[i].on_spike);
        Guard  g = {0};
        c.run.max_skips = table[i].max_skips;
        for (int64_t step = 0; table[i].steps[step]; step++) {
            char got = letters[guard_act(&g, &c, step, 3.0, (StepJudgement)(table[i].steps[step] - '0'))];
            if (got != table[i].acts[step]) fail_msg("row %d, step %lld: %c, not %c", i, (long long)step, got, table[i].acts[step]);
        }
    }
}

/* Rollbacks are counted until the run has passed the bad step from which it rolled back last. Then the count begins
 * again. */
static void test_rollbacks(void **state) {
    (void)state;
    Config c = config_of(ON_TROUBLE_ROLLBACK, ON_TROUBLE_WARN);
    Guard  g = {0};
    c.run.max_skips = 2;
    assert_int_equal(guard_act(&g, &c, 20, NAN, STEP_NOT_FINITE), GUARD_ROLLBACK);
    for (int64_t step = 10; step < 18; step++) guard_act(&g, &c, step, 3.0, STEP_FINE);
    assert_int_equal(guard_act(&g, &c, 18, NAN, STEP_NOT_FINITE), GUARD_ROLLBACK);
    for (int64_t step = 10; step <= 20; step++) guard_act(&g, &c, step, 3.0, STEP_FINE);
    /* both rollbacks still count: step 20 was reached again, but not passed */
    assert_true(g.rollbacks == 2 && g.furthest == 20);
    Guard stuck = g;
    assert_int_equal(guard_act(&stuck, &c, 20, NAN, STEP_NOT_FINITE), GUARD_STOP);
    guard_act(&g, &c, 21, 3.0, STEP_FINE);
    assert_int_equal(guard_act(&g, &c, 22, NAN, STEP_NOT_FINITE), GUARD_ROLLBACK);
    assert_true(g.rollbacks == 1 && g.furthest == 22);
}

/* guard_hash_due says in which steps the ranks compare hashes of their weights. A rank with at least 10,000 tokens a
 * step compares in every step. With fewer tokens it compares less often, down to every tenth step. With zero_stage 0
 * hashes read more bytes, so five times as many tokens are needed. One rank has nothing to compare. */
static void test_hash_due(void **state) {
    (void)state;
    static const struct {
        int64_t tokens;
        int     ranks, due;
    } table[] = {{480, 3, 10}, {3000, 3, 10}, {6000, 3, 5}, {29999, 3, 2}, {30000, 3, 1}, {1 << 19, 8, 1}};
    for (int i = 0; i < COUNT(table); i++) {
        Config c = {.batch = {.global_tokens = table[i].tokens}, .parallel = {.zero_stage = 1}},
               whole = {.batch = {.global_tokens = 5 * table[i].tokens}};
        int    found = 0;
        for (int64_t step = 0; step < 10; step++) {
            found += guard_hash_due(&c, table[i].ranks, step);
            assert_int_equal(guard_hash_due(&whole, table[i].ranks, step), guard_hash_due(&c, table[i].ranks, step));
            assert_int_equal(guard_hash_due(&c, 1, step), 0);
        }
        assert_int_equal(found, 10 / table[i].due);
        assert_int_equal(guard_hash_due(&c, table[i].ranks, 9), 1);
    }
}

static void test_verify_due(void **state) {
    (void)state;
    Config never = {0}, third = {.run = {.verify_every = 3}};
    for (int64_t step = 0; step < 9; step++)
        assert_true(!guard_verify_due(&never, step) && guard_verify_due(&third, step) == (step % 3 == 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit), cmocka_unit_test(test_series), cmocka_unit_test(test_no_false_alarm),
        cmocka_unit_test(test_acts), cmocka_unit_test(test_rollbacks), cmocka_unit_test(test_hash_due),
        cmocka_unit_test(test_verify_due),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
