/* test_cluster.c - cluster files. Loading prints every fault with its line and column. Durations of operations and
 * collectives equal their formulas. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "model/precision.h"
#include "run/plan/cluster.h"
#include "test/run/plan/bad_files.h"

#define GPU "\"gpu\": {\"name\": \"G\", \"memory_bytes\": 8e10, \"flops\": {\"bf16\": 1e15}, \"bytes_per_s\": 2e12}"
#define LINKS "\"links\": [{\"ranks\": 8, \"bytes_per_s\": 4e11, \"latency_s\": 8e-6}, {\"ranks\": 0, \"bytes_per_s\": 5e10, \"latency_s\": 2e-5}]"
#define RATES "\"efficiency\": {\"product\": 0.5, \"memory\": 0.8, \"link\": 0.8}"
#define GOOD "{\"gpus_per_node\": 8, " GPU ", " LINKS ", " RATES "}"

static Cluster good(void) {
    write_file(GOOD);
    Cluster c = cluster_load(path);
    unlink(path);
    return c;
}

static void the_keys_of_the_documents_are_enough(void **state) {
    (void)state;
    Cluster c = good();
    assert_int_equal(c.links, 2);
    assert_string_equal(c.gpu, "G");
    assert_true(c.attention == c.product && c.ramp == 64 && c.overlaps == 1 && c.messages_overlap == 1 &&
                c.attention_passes == 0 && c.fp8_casts == 0 && c.bf16 == 1e15 && c.fp32 == 0);
    assert_true(cluster_flops(&c, BF16, PRECISION_BF16) == 1e15 && cluster_flops(&c, F32, PRECISION_FP32) == 0 &&
                cluster_flops(&c, F32, PRECISION_TF32) == 0);
    static const char *const names[] = {"dgx-a100", "dgx-h100", "grand-teton"};
    for (int i = 0; i < 3; i++) assert_string_equal(cluster_load(names[i]).name, names[i]);
}

static void load(void *name) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    cluster_load((const char *)name);
}

static void faults_are_told(void **state) {
    (void)state;
    static const BadFile cases[] = {
        {"{", "1:2", 1},
        {"[1]", "object", 1},
        {"{\"gpus_per_node\": 0, " GPU ", " LINKS ", " RATES "}", "gpus_per_node = 0: a whole number from 1", 1},
        {"{\"gpus_per_node\": 8.5, " GPU ", " LINKS ", " RATES "}", "gpus_per_node = 8.5", 1},
        {"{\"gpus_per_node\": 8, " LINKS ", " RATES "}", "gpu.memory_bytes is missing", 3},
        {"{\"gpus_per_node\": 8, \"gpu\": {\"name\": \"\", \"memory_bytes\": 1, \"flops\": {\"bf16\": 1}, \"bytes_per_s\": 1}, " LINKS ", " RATES "}", "gpu.name = ", 1},
        {"{\"gpus_per_node\": 8, \"gpu\": {\"name\": \"G\", \"memory_bytes\": 1, \"bytes_per_s\": 1}, " LINKS ", " RATES "}", "gpu.flops needs a rate", 1},
        {"{\"gpus_per_node\": 8, " GPU ", \"links\": [], " RATES "}", "links must be a list of 1 to 4", 1},
        {"{\"gpus_per_node\": 8, " GPU ", \"links\": [{\"ranks\": 8, \"bytes_per_s\": 1, \"latency_s\": 0}], " RATES "}", "links[0].ranks must be 0", 1},
        {"{\"gpus_per_node\": 8, " GPU ", \"links\": [{\"ranks\": 8, \"bytes_per_s\": 1, \"latency_s\": 0}, {\"ranks\": 4, \"bytes_per_s\": 1, \"latency_s\": 0}, "
         "{\"ranks\": 0, \"bytes_per_s\": 1, \"latency_s\": 0}], " RATES "}", "links[1].ranks must grow", 1},
        {"{\"gpus_per_node\": 8, " GPU ", \"links\": [{\"ranks\": 0, \"bytes_per_s\": -1}], " RATES "}", "links[0].latency_s is missing", 2},
        {"{\"gpus_per_node\": 8, " GPU ", " LINKS ", \"efficiency\": {\"product\": 1.5, \"memory\": 0.8, \"link\": 0.8}}", "efficiency.product = 1.5", 1},
        {"{\"gpus_per_node\": 8, " GPU ", " LINKS ", \"efficiency\": {\"product\": 0.5, \"memory\": 0.8, \"link\": 0.8, \"atention\": 0.5}}", "the nearest is efficiency.attention", 1},
        {"{\"gpus_per_node\": 8, " GPU ", " LINKS ", " RATES ", \"overlap\": {\"messages\": 1}}", "overlap.messages = 1: true or false", 1}};
    expect_refusals(cases, sizeof cases / sizeof *cases, load);
    Child none = child_run(load, (void *)"no-such");
    assert_int_equal(none.code, EXIT_CONFIG);
    assert_non_null(strstr(none.said, "dgx-h100"));
    Child gone = child_run(load, (void *)"./gone.json");
    assert_int_equal(gone.code, EXIT_CONFIG);
}

static int is_near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

static void operations_take_their_time(void **state) {
    (void)state;
    Cluster     c = good();
    LedgerEntry product = {.op = "matmul", .dim = {4096, 4096, 1024}, .flops = 2.0 * 4096 * 4096 * 1024, .bytes = 1e6};
    assert_true(is_near(cluster_op_seconds(&c, &product, 1e15, 2), product.flops / (1e15 * 0.5 * 1024 / (1024 + 64))));
    product.bytes = 1e12;
    assert_true(is_near(cluster_op_seconds(&c, &product, 1e15, 2), 1e12 / (2e12 * 0.8)));
    /* 32 x 16 output tiles keep 100 processors busy in 6 rounds, the last one with only 12 tiles */
    product.bytes = 0, c.processors = 100;
    assert_true(is_near(cluster_op_seconds(&c, &product, 1e15, 2),
                        product.flops / (1e15 * 0.5 * sqrt(512.0 / 600) * 1024 / (1024 + 64))));
    LedgerEntry gelu = {.op = "activation_forward", .dim = {10, 10}, .flops = 1e30, .bytes = 1e9};
    assert_true(is_near(cluster_op_seconds(&c, &gelu, 1e15, 2), 1e9 / (2e12 * 0.8)));
    LedgerEntry attention = {.op = "attention_forward", .dim = {2, 1024, 16, 64}, .flops = 1e13, .bytes = 1e3};
    c.attention = 0.25;
    assert_true(is_near(cluster_op_seconds(&c, &attention, 1e15, 2), 1e13 / (1e15 * 0.25)));
    c.attention_passes = 3;
    assert_true(is_near(cluster_op_seconds(&c, &attention, 1e15, 2),
                        2e13 / (1e15 * 0.5) + 3 * 2.0 * 16 * 1024 * 1024 * 2 / (2e12 * 0.8)));
    c.op_s = 1e-3;
    assert_true(is_near(cluster_op_seconds(&c, &gelu, 1e15, 2), 1e-3 + 1e9 / (2e12 * 0.8)));
}

static void groups_reach_over_links(void **state) {
    (void)state;
    Cluster c = good();
    /* 128 ranks: 8 tensor ranks x 8 shards (ZeRO) x 2 pipeline stages */
    Mesh    m = mesh_of(128, (MeshSizes){8, 1, 2, 1});
    Reach   tensor = cluster_reach(&c, m, WITH_TENSOR), shard = cluster_reach(&c, m, WITH_STATE),
          stage = cluster_reach(&c, m, WITH_STAGE), one = cluster_reach(&c, m, WITH_REPLICA);
    assert_true(tensor.ranks == 8 && tensor.farthest == 0 && is_near(tensor.latency_s, 7 * 8e-6));
    assert_true(shard.ranks == 8 && shard.farthest == 1 && is_near(shard.latency_s, 7 * 2e-5));
    assert_true(stage.ranks == 2 && stage.farthest == 1 && one.ranks == 1);
    Reach both = cluster_reach(&c, m, WITH_TENSOR | WITH_STATE);
    assert_true(both.ranks == 64 && is_near(both.latency_s, 7 * 2e-5 + 56 * 8e-6));
    assert_true(is_near(cluster_collective_seconds(&c, tensor, 1e9, 1), 1e9 / (4e11 * 0.8) + 7 * 8e-6));
    assert_true(is_near(cluster_collective_seconds(&c, shard, 1e9, 1), 1e9 / (5e10 * 0.8) + 7 * 2e-5));
    /* An all-reduce (last argument 2) passes over the links of a tree of 8 ranks, up and down: 2 x 3 latencies. A ring
     * would need more. */
    assert_true(is_near(cluster_collective_seconds(&c, shard, 1e9, 2), 1e9 / (5e10 * 0.8) + 2 * 3 * 2e-5));
    assert_true(cluster_collective_seconds(&c, one, 1e9, 2) == 0.0);
    Reach near = cluster_pair_reach(&c, 9, 15), far = cluster_pair_reach(&c, 7, 8);
    assert_true(near.farthest == 0 && near.latency_s == 8e-6 && far.farthest == 1 && far.latency_s == 2e-5);
    assert_true(is_near(cluster_message_seconds(&c, stage, 1e9), 1e9 / (5e10 * 0.8) + 2e-5));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_keys_of_the_documents_are_enough),
        cmocka_unit_test(faults_are_told),
        cmocka_unit_test(operations_take_their_time),
        cmocka_unit_test(groups_reach_over_links),
    };
    return cmocka_run_group_tests_name("cluster", tests, NULL, NULL);
}
