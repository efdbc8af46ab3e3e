/* test_simulate.c - the simulator compared with sums by hand where possible: bytes as plan counts them, operations of
 * one rank, collectives that block, the idle time of a pipeline. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "run/plan/simulate.h"
#include "run/plan/plan_cluster.h"

static Config config_of(int tensor, int context, int pipeline, int interleave, int replicas, int zero_stage) {
    Config c = {.optimizer = {.name = "adamw"}};
    c.model.shape.n_layer = 8, c.model.shape.n_head = 8, c.model.shape.n_embd = 256, c.model.shape.n_positions = 512,
    c.model.shape.vocab_size = 512;
    c.batch.micro_batch = 1, c.batch.seq_len = 512, c.batch.global_tokens = 512 * 64;
    c.parallel.tensor = tensor, c.parallel.context = context, c.parallel.pipeline = pipeline,
    c.parallel.interleave = interleave, c.parallel.replicas = replicas, c.parallel.expert = 1;
    c.parallel.zero_stage = zero_stage;
    c.run.steps = 100, c.run.dir = "runs/simulate";
    return c;
}

/* Returns a cluster whose links take no time. */
static Cluster free_links(void) {
    Cluster c = {.gpus_per_node = 8, .memory_bytes = 8e10, .fp32 = 1e13, .bytes_per_s = 1e12,
                 .link = {{8, 1e18, 0}, {0, 1e18, 0}}, .links = 2,
                 .product = 0.5, .attention = 0.5, .memory = 0.5, .link_efficiency = 1.0, .overlaps = 1, .messages_overlap = 1};
    return c;
}
static Cluster slow_links(void) {
    Cluster c = free_links();
    c.link[0] = (Link){8, 1e10, 0}, c.link[1] = (Link){0, 1e9, 0};
    return c;
}

static int is_near(double a, double b, double by) { return fabs(a - b) <= by * fabs(b); }

static void bytes_are_those_of_plan(void **state) {
    (void)state;
    static const int grids[][6] = {{1, 1, 1, 1, 1, 0}, {1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 2}, {1, 1, 1, 1, 1, 3},
                                   {1, 1, 1, 1, 2, 2}, {2, 1, 1, 1, 1, 1}, {2, 2, 1, 1, 1, 1}, {2, 2, 2, 1, 1, 3},
                                   {1, 1, 4, 2, 1, 2}, {1, 1, 2, 2, 1, 3}, {1, 2, 1, 1, 1, 3}, {2, 1, 4, 1, 1, 0},
                                   {1, 1, 2, 1, 2, 1}, {1, 1, 2, 2, 2, 2}, {1, 1, 8, 1, 1, 3}};
    Cluster cluster = slow_links();
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++)
        for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_BLOCK; recompute++) {
            Config c = config_of(grids[i][0], grids[i][1], grids[i][2], grids[i][3], grids[i][4], grids[i][5]);
            c.memory.recompute = recompute;
            Plan      p = plan_make(&c, F32, (PlanRanks){8, COMM_RING, -1, 1, 0});
            Simulated s = simulate(&c, (Target){F32, 8, &cluster});
            for (int a = 0; a < AXES; a++)
                if (s.sent[a] != p.sent[a])
                    fail_msg("grid %zu, %s: %.0f bytes simulated, %.0f planned", i, mesh_axis_name((Axis)a), s.sent[a],
                             p.sent[a]);
        }
}

/* With parallel.deterministic, gradients are added in a fixed binary tree over the micro-batches. The simulator must
 * still count as many bytes as `plan`. */
static void bytes_of_ordered_sums_are_those_of_plan(void **state) {
    (void)state;
    Cluster cluster = slow_links();
    Config  c = config_of(1, 1, 1, 1, 1, 1);
    c.parallel.deterministic = 1;
    Plan      p = plan_make(&c, F32, (PlanRanks){8, COMM_RING, -1, 1, 0});
    Simulated s = simulate(&c, (Target){F32, 8, &cluster});
    assert_true(s.sent[AXIS_SHARD] == p.sent[AXIS_SHARD]);
}

static void one_rank_computes(void **state) {
    (void)state;
    Config    c = config_of(1, 1, 1, 1, 1, 1);
    Cluster   cluster = free_links();
    Simulated s = simulate(&c, (Target){F32, 1, &cluster});
    Ledger    step = {.is_elsewhere = 1};
    double    sum = 0.0;
    model_dry(config_model_spec(&c, F32, 1, 0, NULL), 64, &step);
    for (int i = 0; i < step.entries; i++)
        sum += cluster_op_seconds(&cluster, &step.entry[i], cluster.fp32, 4) * (double)step.entry[i].count;
    ledger_free(&step);
    assert_true(is_near(s.step_s, sum, 1e-9));
    assert_true(is_near(s.compute_s, sum, 1e-9));
    assert_true(is_near(s.tokens_per_s, 512 * 64 / sum, 1e-9));
    assert_true(is_near(s.mfu, model_flops_per_token(c.model.shape, 512) * 512 * 64 / sum / 1e13, 1e-9));
    assert_true(simulate_least_s(&c, (Target){F32, 1, &cluster}) < s.step_s);
}

static void free_links_leave_the_operations(void **state) {
    (void)state;
    Cluster cluster = free_links();
    for (int zero = 0; zero <= 3; zero++) {
        Config    c = config_of(1, 1, 1, 1, 1, zero);
        Simulated s = simulate(&c, (Target){F32, 8, &cluster});
        assert_true(is_near(s.step_s, s.compute_s, 1e-3));
        assert_true(s.exposed_s[AXIS_SHARD] < 1e-3 * s.step_s);
    }
}

/* Checks the bytes sent along the tensor axis. For t tensor ranks, L layers, M micro-batches of N tokens, C channels
 * and A bytes an element, the blocks send 10 L M (t-1)/t N C A. Embedding and head send 2 M (t-1)/t N C A each. The
 * sums of the softmax send 24 M (t-1)/t N. docs/parallel-inside.md derives these. */
static void tensor_collectives_block(void **state) {
    (void)state;
    Config    c = config_of(2, 1, 1, 1, 1, 1);
    Cluster   cluster = slow_links();
    Simulated s = simulate(&c, (Target){F32, 2, &cluster});
    double    M = 64, N = 512, C = 256, bytes = 0.5 * M * N * (10 * 8 * C * 4 + 4 * C * 4 + 24);
    /* The upper bound allows for gradients of parameters that all tensor ranks have in full. They are sent once a
     * step. */
    assert_true(s.sent[AXIS_TENSOR] >= bytes && s.sent[AXIS_TENSOR] < 1.001 * bytes);
    assert_true(is_near(s.exposed_s[AXIS_TENSOR], s.sent[AXIS_TENSOR] / 1e10, 1e-6));
    assert_true(is_near(s.step_s, s.compute_s + s.exposed_s[AXIS_TENSOR] + s.exposed_s[AXIS_SHARD], 1e-6));
}

/* Communication that runs beside computation adds no time to a step until it takes longer than the computation. */
static void gathers_hide_under_compute(void **state) {
    (void)state;
    Cluster   cluster = slow_links();
    Config    c = config_of(1, 1, 1, 1, 1, 3);
    cluster.fp32 = 2e12;
    Simulated s = simulate(&c, (Target){F32, 2, &cluster});
    assert_true(s.exposed_s[AXIS_SHARD] < 0.5 * s.sent[AXIS_SHARD] / 1e10);
    /* gradients of the last bucket (parameters summed together) are summed when no computation is left that could hide
     * it */
    Config one = config_of(1, 1, 1, 1, 1, 1);
    assert_true(simulate(&one, (Target){F32, 2, &cluster}).exposed_s[AXIS_SHARD] >= (512 + 512) * 256 * 4 / 2 / 1e10);
    cluster.overlaps = 0;
    Simulated blocked = simulate(&c, (Target){F32, 2, &cluster});
    assert_true(is_near(blocked.exposed_s[AXIS_SHARD], s.sent[AXIS_SHARD] / 1e10, 1e-6));
    assert_true(blocked.step_s > s.step_s && is_near(blocked.step_s, blocked.compute_s + blocked.exposed_s[AXIS_SHARD], 1e-6));
    /* computation takes almost no time, so it can hide no communication */
    cluster.overlaps = 1, cluster.fp32 = 1e16, cluster.bytes_per_s = 1e18;
    s = simulate(&c, (Target){F32, 2, &cluster});
    assert_true(s.step_s > 0.95 * s.sent[AXIS_SHARD] / 1e10);
}

/* Checks the share of a step in which pipeline ranks are idle. With P stages of V parts each and M micro-batches it is
 * (P - 1)/(M V + P - 1). The 8 blocks cost the same; head and embedding cost almost nothing. */
static void the_bubble_is_the_formula_s(void **state) {
    (void)state;
    static const int cases[][2] = {{2, 1}, {4, 1}, {8, 1}, {2, 2}, {4, 2}, {2, 4}};
    Cluster cluster = free_links();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int    P = cases[i][0], V = cases[i][1];
        Config c = config_of(1, 1, P, V, 1, 1);
        c.model.shape.vocab_size = 16, c.model.shape.n_embd = 1024, c.batch.global_tokens = 512 * 32;
        Simulated s = simulate(&c, (Target){F32, P, &cluster});
        double    formula = work_idle(P, V, 32);
        if (fabs(s.bubble - formula) > 0.012) fail_msg("P %d, V %d: bubble %.4f, formula %.4f", P, V, s.bubble, formula);
    }
}

static void messages_cost_where_nothing_hides_them(void **state) {
    (void)state;
    Config    c = config_of(1, 1, 2, 1, 1, 1);
    Cluster   cluster = slow_links();
    Simulated hidden = simulate(&c, (Target){F32, 2, &cluster});
    cluster.messages_overlap = 0;
    Simulated blocked = simulate(&c, (Target){F32, 2, &cluster});
    assert_true(blocked.step_s > hidden.step_s);
}

/* One micro-batch passes through four pipeline stages on two nodes, forward and back. Of its six messages four stay
 * within a node. */
static void messages_take_the_link_between_their_stages(void **state) {
    (void)state;
    Config  c = config_of(1, 1, 4, 1, 1, 1);
    Cluster near = slow_links(), far;
    c.batch.global_tokens = 512;
    near.link[0].ranks = 2, near.messages_overlap = 0;
    far = near, far.link[0].bytes_per_s = far.link[1].bytes_per_s;
    double message = 512 * 256 * 4, less = 4 * (message / 1e9 - message / 1e10);
    assert_true(is_near(simulate(&c, (Target){F32, 4, &far}).step_s - simulate(&c, (Target){F32, 4, &near}).step_s, less, 1e-9));
}

/* A step has more micro-batches than the simulator computes one by one. It extrapolates from two shorter steps: bytes
 * exactly, time nearly. */
static void long_steps_go_on_as_shorter_ones(void **state) {
    (void)state;
    Cluster cluster = slow_links();
    for (int V = 1; V <= 2; V++)
        for (int zero = 1; zero <= 3; zero++) {
            Config c = config_of(1, 1, 4, V, 1, zero);
            /* twice as many micro-batches as are simulated one by one, on each of two data ranks */
            c.batch.global_tokens = 512 * (V == 1 ? 16384 : 8192);
            Plan      p = plan_make(&c, F32, (PlanRanks){8, COMM_RING, -1, 1, 0});
            Simulated whole = simulate(&c, (Target){F32, 8, &cluster});
            for (int a = 0; a < AXES; a++) assert_true(whole.sent[a] == p.sent[a]);
            c.batch.global_tokens /= 2; /* all micro-batches of this step are simulated one by one */
            Simulated half = simulate(&c, (Target){F32, 8, &cluster});
            double    ends = 0.004 * half.step_s;
            assert_true(fabs(whole.step_s - 2 * half.step_s) < ends && fabs(whole.compute_s - 2 * half.compute_s) < ends);
        }
}

static void the_fullest_stage_is_found(void **state) {
    (void)state;
    Config    c = config_of(1, 1, 4, 1, 1, 1);
    Cluster   cluster = free_links();
    Simulated s = simulate(&c, (Target){F32, 4, &cluster}), alone = simulate_memory(&c, (Target){F32, 4, &cluster});
    /* pipeline stage 0 needs the most memory: it keeps the activations of the most micro-batches */
    assert_int_equal(s.fullest, 0);
    Config uneven = config_of(1, 1, 5, 1, 1, 1); /* 8 blocks are divided among 5 pipeline stages as 1 2 2 2 1 */
    uneven.batch.global_tokens = 512 * 5, uneven.memory.recompute = RECOMPUTE_NONE;
    Simulated u = simulate_memory(&uneven, (Target){F32, 5, &cluster});
    Plan      planned = plan_make(&uneven, F32, (PlanRanks){5, COMM_RING, -1, 1, 0});
    assert_int_equal(u.fullest, planned.ranks.stage);
    assert_int_equal(u.fullest, 1);
    assert_true(s.memory_bytes >= alone.memory_bytes && alone.memory_bytes > 0);
    cluster.reserved_bytes = 1e9;
    assert_true(is_near(simulate_memory(&c, (Target){F32, 4, &cluster}).memory_bytes, alone.memory_bytes + 1e9, 1e-12));
    c.memory.offload = MEMORY_HOST;
    assert_true(simulate_memory(&c, (Target){F32, 4, &cluster}).memory_bytes < alone.memory_bytes + 1e9);
}

static void the_search_finds_the_quickest(void **state) {
    (void)state;
    Config  c = config_of(1, 1, 1, 1, 1, 1);
    Cluster cluster = slow_links();
    Found   f = search(&c, (Target){F32, 8, &cluster}, 0);
    assert_true(f.count == SEARCH_BEST && f.allowed >= f.count);
    for (int i = 1; i < f.count; i++) assert_true(f.best[i].step_s >= f.best[i - 1].step_s);
    /* the best grid is at least as fast as any grid of tensor, pipeline and data ranks alone */
    for (int tensor = 1; tensor <= 8; tensor *= 2)
        for (int pipeline = 1; tensor * pipeline <= 8; pipeline *= 2) {
            Config one = config_of(tensor, 1, pipeline, 1, 1, 1);
            assert_true(simulate(&one, (Target){F32, 8, &cluster}).step_s >= f.best[0].step_s);
            assert_true(simulate_least_s(&one, (Target){F32, 8, &cluster}) < simulate(&one, (Target){F32, 8, &cluster}).step_s);
        }
    Config best = search_config(&c, &f.best[0]);
    assert_true(simulate(&best, (Target){F32, 8, &cluster}).step_s == f.best[0].step_s);
    char *held[] = {"parallel.tensor=4", "memory.recompute=block", "run.steps=7"};
    assert_int_equal(search_held(held, 3), HOLD_TENSOR | HOLD_RECOMPUTE);
    Config ordered = c;
    /* deterministic sums do not work with tensor ranks and with ZeRO above 1, so the search must not propose these */
    ordered.parallel.deterministic = 1;
    f = search(&ordered, (Target){F32, 8, &cluster}, 0);
    for (int i = 0; i < f.count; i++) assert_true(f.best[i].zero_stage <= 1 && f.best[i].mesh.size[AXIS_TENSOR] == 1);
    c.parallel.tensor = 4, c.memory.recompute = RECOMPUTE_BLOCK;
    f = search(&c, (Target){F32, 8, &cluster}, search_held(held, 3));
    for (int i = 0; i < f.count; i++) assert_true(f.best[i].mesh.size[AXIS_TENSOR] == 4 && f.best[i].recompute == RECOMPUTE_BLOCK);
    cluster.memory_bytes = 1e3;
    assert_int_equal(search(&c, (Target){F32, 8, &cluster}, 0).count, 0);
}

static void fits_are_the_largest(void **state) {
    (void)state;
    Config c = config_of(2, 1, 2, 1, 1, 1);
    assert_int_equal(search_fit(&c, 16), 16);
    /* returns the largest number of ranks up to 15 that the grid allows; 12 would need 3 data ranks, which do not
     * divide 64 micro-batches */
    assert_int_equal(search_fit(&c, 15), 8);
    assert_int_equal(search_fit(&c, 3), 0);
}

/* Checks the best interval between checkpoints by Young's formula: sqrt(2 x seconds of a save x seconds between
 * failures). Goodput is the share of time that trains. */
static void goodput_is_young_s(void **state) {
    (void)state;
    Goodput g = goodput_of(2.0, 10.0, 60.0, 3600.0);
    assert_true(is_near(g.interval_s, sqrt(2 * 2.0 * 3600), 1e-12));
    assert_true(is_near(g.goodput, (1 - 2.0 / (g.interval_s + 2.0)) * (1 - (g.interval_s / 2 + 10 + 60) / 3600), 1e-12));
    assert_true(goodput_of(2.0, 500.0, 60.0, 3600.0).interval_s == 500.0);
    assert_true(goodput_of(2.0, 10.0, 1e6, 3600.0).goodput == 0.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_plan),
        cmocka_unit_test(bytes_of_ordered_sums_are_those_of_plan),
        cmocka_unit_test(one_rank_computes),
        cmocka_unit_test(free_links_leave_the_operations),
        cmocka_unit_test(tensor_collectives_block),
        cmocka_unit_test(gathers_hide_under_compute),
        cmocka_unit_test(the_bubble_is_the_formula_s),
        cmocka_unit_test(messages_cost_where_nothing_hides_them),
        cmocka_unit_test(messages_take_the_link_between_their_stages),
        cmocka_unit_test(long_steps_go_on_as_shorter_ones),
        cmocka_unit_test(the_fullest_stage_is_found),
        cmocka_unit_test(the_search_finds_the_quickest),
        cmocka_unit_test(fits_are_the_largest),
        cmocka_unit_test(goodput_is_young_s),
    };
    return cmocka_run_group_tests_name("simulate", tests, NULL, NULL);
}
