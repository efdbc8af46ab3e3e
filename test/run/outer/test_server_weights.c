/* test_server_weights.c - a step of the server changes the weights and momentum of its part of the model as a float64
 * computation does. The rest of the model stays unchanged. */
#include "core/error.h" /* before cmocka.h, which defines fail() as a macro */
#include "model/params.h"
#include "run/outer/rule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

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
    s.o.kind = &OPTIMIZER_ADAMW, s.o.states = OPTIMIZER_ADAMW.states;
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

/* Applies Nesterov's step to one of three parts of the model. The step uses the mean of three deltas (changes of the
 * weights by training jobs), weighted by tokens. The first server keeps its part in an optimizer. Other servers keep
 * theirs in a block of memory (in_block). */
static void check_part(int part, int in_block) {
    Held    s = serve();
    Step    step = {.rule = STEP_NESTEROV, .learning_rate = 0.7, .momentum = 0.9};
    int64_t P = s.shards.layout.elems, first = outer_part_begin(P, part, 3), elems = outer_part_begin(P, part + 1, 3) - first;
    float  *now = malloc(sizeof *now * (size_t)P), *then = malloc(sizeof *then * (size_t)P), *d[3];
    float  *block = calloc((size_t)(WEIGHTS_TENSORS * elems), sizeof *block);
    double  weight[3] = {480, 960, 480};
    s.o.shards = &s.shards;
    ServerWeights whole = server_weights_create(&s.shards, &s.o, NULL, 0, P);
    ServerWeights w = server_weights_create(&s.shards, in_block ? NULL : &s.o, block, first, elems);
    for (int64_t e = 0; e < P; e++) put(&s, e, (float)x_of(e), (float)v_of(e));
    for (int t = WEIGHTS_X; in_block && t <= WEIGHTS_MOMENTUM; t++) {
        server_weights_read(&whole, t, first, elems, now);
        server_weights_write(&w, t, first, elems, now);
    }
    for (int k = 0; k < 3; k++) {
        d[k] = malloc(sizeof *d[k] * (size_t)elems);
        for (int64_t e = 0; e < elems; e++) d[k][e] = (float)d_of(first + e, k);
    }
    outer_mean(d[0], (const float *const *)d, weight, 3, elems);
    server_weights_step(&w, &step, d[0], NULL);
    for (int t = WEIGHTS_X; in_block && t <= WEIGHTS_MOMENTUM; t++) {
        server_weights_read(&w, t, first, elems, now);
        server_weights_write(&whole, t, first, elems, now);
    }
    server_weights_read(&whole, WEIGHTS_X, 0, P, now);
    server_weights_read(&whole, WEIGHTS_MOMENTUM, 0, P, then);
    for (int64_t e = 0; e < P; e++) {
        int    is_in = e >= first && e < first + elems;
        double mean = 0.25 * d_of(e, 0) + 0.5 * d_of(e, 1) + 0.25 * d_of(e, 2), v = 0.9 * v_of(e) + mean;
        assert_true(fabs(then[e] - (is_in ? v : v_of(e))) <= 2e-7);
        assert_true(fabs(now[e] - (is_in ? x_of(e) - 0.7 * (mean + 0.9 * v) : x_of(e))) <= 2e-7);
    }
    for (int k = 0; k < 3; k++) free(d[k]);
    server_weights_destroy(&w), server_weights_destroy(&whole);
    free(now), free(then), free(block), free(s.memory), free(s.shards.span);
    layout_destroy(&s.shards.layout);
}

static void a_step_is_as_in_float64(void **state) {
    (void)state;
    for (int part = 0; part < 3; part++)
        for (int in_block = 0; in_block < 2; in_block++) check_part(part, in_block);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_is_as_in_float64)};
    return cmocka_run_group_tests_name("server_weights", tests, NULL, NULL);
}
