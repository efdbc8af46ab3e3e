/* test_fragments.c - outer.stream: fragments cover the model once, take their turns in order, come whole or not at all,
 * and change the server's weights as float64 does. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "model/params.h"
#include "run/outer/server_weights.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void fragments_cover_the_model_once(void **state) {
    (void)state;
    static const int64_t ELEMS[] = {1, 4095, 4096, 4097, 55356, 1 << 20, 124439808, 1234567890123};
    static const int64_t EVERY[] = {2, 3, 4, 16, 17, 50, 500};
    for (size_t i = 0; i < sizeof ELEMS / sizeof *ELEMS; i++)
        for (size_t j = 0; j < sizeof EVERY / sizeof *EVERY; j++) {
            int64_t elems = ELEMS[i], units = (elems + FRAGMENT_UNIT - 1) / FRAGMENT_UNIT, at = 0;
            int     count = fragments_count(elems, EVERY[j]);
            assert_true(count >= 1 && count <= FRAGMENTS_MOST && count < EVERY[j] && count <= units);
            assert_true(count == FRAGMENTS_MOST || count == EVERY[j] - 1 || count == units);
            for (int f = 0; f < count; f++) {
                Fragment of = fragment_of(elems, count, f);
                int64_t  own = (of.end - of.first + FRAGMENT_UNIT - 1) / FRAGMENT_UNIT;
                assert_true(of.first == at && of.end > at && of.first % FRAGMENT_UNIT == 0);
                assert_true(own == units / count || own == units / count + 1);
                at = of.end;
            }
            assert_true(at == elems);
            Fragment all = fragment_of(elems, count, count);
            assert_true(all.first == 0 && all.end == elems);
        }
}

/* Fragments follow each other in equal intervals, up to a step. A lease that is shorter than the others has all
 * fragments, too. */
static void turns_share_a_round(void **state) {
    (void)state;
    for (int count = 1; count <= FRAGMENTS_MOST; count++)
        for (int64_t steps = 1; steps < 60; steps++)
            for (int f = 0; f < count; f++) {
                int64_t step = fragment_step(steps, count, f), before = f ? fragment_step(steps, count, f - 1) : 0;
                assert_true(step >= 1 && step <= steps && step >= before);
                int64_t ahead = steps > count + 3 ? 3 : steps > count ? steps - count : 1;
                assert_true(fabs((double)(step - before) - (double)steps / (double)(count + ahead)) < 1.0);
                if (f == count - 1 && steps > count) assert_true((steps - step + 1) * (count + ahead) > ahead * steps);
                if (steps > count) assert_true(step > before && step < steps);
            }
}

static void a_fragment_comes_whole(void **state) {
    (void)state;
    Arriving a = {0};
    assert_false(arriving_is_whole(&a, 2));
    assert_true(arriving_begin(&a, (Fragment){8, 18}, 2));
    a.elems = 10;
    assert_int_equal(arriving_end(&a, 1, 2), 0);
    assert_false(arriving_is_whole(&a, 2));
    assert_int_equal(arriving_end(&a, 0, 2), 1);
    assert_true(arriving_is_whole(&a, 2) && a.said[0] && a.said[1]);
    arriving_forget(&a);
    assert_true(!a.values && !arriving_is_whole(&a, 2));
    assert_true(arriving_begin(&a, (Fragment){8, 18}, 1));
    a.elems = 9;
    assert_int_equal(arriving_end(&a, 0, 1), -1);
    arriving_forget(&a);
    assert_false(arriving_begin(&a, (Fragment){0, INT64_C(1) << 55}, 1)); /* there is not enough memory for it */
    Fragment f = fragment_within((Fragment){8, 18}, 10, 12), none = fragment_within((Fragment){8, 18}, 20, 30);
    assert_true(f.first == 10 && f.end == 12 && none.first == none.end);
}

/* --- the server's weights ----------------------------------------------------------------------------------------- */

typedef struct {
    Shards    shards;
    Optimizer o;
    float    *memory;
} Held;

static Held serve(void) {
    Held    s = {.shards = {.layout = model_layout((ModelShape)GPT2_SHAPE(3, 12, 84, 41, 389), (LayoutPlace){1, 1, 0, NULL, 1, 0})}};
    Layout *l = &s.shards.layout;
    s.memory = calloc((size_t)(3 * l->memory_elems), sizeof *s.memory);
    s.shards.span = calloc((size_t)l->params, sizeof *s.shards.span);
    for (int b = 0; b < l->buckets; b++) s.shards.spans += layout_spans(l, b, 0, s.shards.span + s.shards.spans);
    s.o.kind = &OPTIMIZER_ADAMW;
    s.o.master = tensor_1d(s.memory, F32, l->memory_elems);
    for (int k = 0; k < 2; k++) s.o.state[k] = tensor_1d(s.memory + (k + 1) * l->memory_elems, F32, l->memory_elems);
    return s;
}
static void put(Held *s, int64_t element, float x, float v) {
    for (int i = 0; i < s->shards.spans; i++) {
        Span    span = s->shards.span[i];
        int64_t at = element - layout_extent(&s->shards.layout, &span, 0).offset;
        if (at < 0 || at >= span.elems) continue;
        ((float *)optimizer_tensor(&s->o, WEIGHTS_X, span).data)[at] = x;
        ((float *)optimizer_tensor(&s->o, WEIGHTS_MOMENTUM, span).data)[at] = v;
    }
}
static double x_of(int64_t e) { return (float)sin((double)e); }
static double v_of(int64_t e) { return (float)cos((double)e * 0.7); }
static double d_of(int64_t e, int island) { return (float)(1e-2 * sin((double)e * (island + 2))); }

/* The mean by tokens of three islands, with Nesterov, on one fragment of five; then the last fragment, of one of three
 * islands. */
static void a_turn_is_as_in_float64(void **state) {
    (void)state;
    Held      s = serve();
    Step      step = {.rule = STEP_NESTEROV, .learning_rate = 0.7, .momentum = 0.9};
    int64_t   elems = s.shards.layout.elems;
    Fragment  f = fragment_of(elems, 5, 2);
    float    *now = malloc(sizeof *now * (size_t)elems), *d[3];
    float    *then = malloc(sizeof *then * (size_t)elems);
    double    weight[3] = {480, 960, 480};
    s.o.shards = &s.shards;
    ServerWeights w = server_weights_of(&s.o, 0, elems);
    for (int64_t e = 0; e < elems; e++) put(&s, e, (float)x_of(e), (float)v_of(e));
    for (int k = 0; k < 3; k++) {
        d[k] = malloc(sizeof *d[k] * (size_t)elems);
        for (int64_t e = 0; e < f.end - f.first; e++) d[k][e] = (float)d_of(f.first + e, k);
    }
    outer_mean(d[0], (const float *const *)d, weight, 3, f.end - f.first);
    server_weights_step(&w, &step, f, d[0], NULL);
    server_weights_read(&w, WEIGHTS_X, 0, elems, now);
    server_weights_read(&w, WEIGHTS_MOMENTUM, 0, elems, then);
    for (int64_t e = 0; e < elems; e++) {
        int    is_in = e >= f.first && e < f.end;
        double mean = 0.25 * d_of(e, 0) + 0.5 * d_of(e, 1) + 0.25 * d_of(e, 2), v = 0.9 * v_of(e) + mean;
        assert_true(fabs(then[e] - (is_in ? v : v_of(e))) <= 2e-7);
        assert_true(fabs(now[e] - (is_in ? x_of(e) - 0.7 * (mean + 0.9 * v) : x_of(e))) <= 2e-7);
    }
    for (int64_t e = 0; e < elems; e++) d[1][e] = (float)d_of(e, 1);
    server_weights_rest(&w, d[1], 1.0 / 3);
    server_weights_read(&w, WEIGHTS_X, 0, elems, then);
    for (int64_t e = 0; e < elems; e++) assert_true(fabs(then[e] - (now[e] - d_of(e, 1) / 3)) <= 2e-7);
    for (int k = 0; k < 3; k++) free(d[k]);
    server_weights_destroy(&w);
    free(now), free(then), free(s.memory), free(s.shards.span);
    layout_destroy(&s.shards.layout);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fragments_cover_the_model_once), cmocka_unit_test(turns_share_a_round),
        cmocka_unit_test(a_fragment_comes_whole), cmocka_unit_test(a_turn_is_as_in_float64)};
    return cmocka_run_group_tests_name("fragments", tests, NULL, NULL);
}
