/* test_plan.c - the sizes that `plan` computes, compared with the tables and memory arenas that a run uses. They are
 * equal to the byte. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/io.h"
#include "data/shard.h"
#include "data/loader.h"
#include "run/plan/plan.h"
#include "run/outer/rule.h"
#include "run/verbs/verbs.h"
#include "test/run/lib/child.h"

static PlanRanks ranks_of(int count) { return (PlanRanks){count, COMM_RING, 0, 1, 1}; }

static Config small_config(void) {
    Config c = {.optimizer = {.name = "adamw"}};
    c.model.shape.n_layer = 3, c.model.shape.n_head = 2, c.model.shape.n_embd = 28, c.model.shape.n_positions = 40,
    c.model.shape.vocab_size = 389;
    c.batch.global_tokens = 4800, c.batch.micro_batch = 2, c.batch.seq_len = 40;
    c.parallel.zero_stage = 1, c.parallel.replicas = 1, c.parallel.tensor = 1, c.parallel.context = 1,
    c.parallel.pipeline = 1, c.parallel.interleave = 1;
    c.run.steps = 100, c.run.dir = "runs/plan";
    return c;
}
/* With several servers, the first server needs memory for all weights and for its part of the deltas (changes of the
 * weights). Each other server needs memory for its part of both. */
static void several_servers_are_counted(void **state) {
    (void)state;
    Config c = small_config();
    c.outer.least_islands = 3, c.outer.server = "a:1,b:1";
    size_t       P = (389 + 40) * 28 + 3 * (12 * 28 * 28 + 13 * 28) + 2 * 28, first = (size_t)outer_part_begin((int64_t)P, 1, 2);
    ServeBytes   lead = serve_bytes(&c, 0), part = serve_bytes(&c, 1);
    ServeWeights w = serve_weights_create(&c, 1);
    assert_true(w.part && w.params.capacity_bytes == 0);
    for (size_t i = 0; i < 3 * (P - first); i++) assert_true(w.part[i] == 0.0f);
    serve_weights_destroy(&w);
    assert_int_equal(part.weights, 12 * (P - first));
    assert_int_equal(part.deltas, 3 * 4 * (P - first));
    assert_int_equal(part.all, part.weights + part.deltas);
    assert_int_equal(lead.deltas, 3 * 4 * first);
    Plan plan = plan_make(&c, F32, ranks_of(1));
    assert_int_equal(plan.server_bytes, lead.all);
    assert_int_equal(plan.follower_bytes, part.all);
    c.outer.server = "a:1";
    ServeBytes alone = serve_bytes(&c, 0);
    assert_int_equal(alone.all - alone.deltas, lead.all - lead.deltas);
    assert_int_equal(plan_make(&c, F32, ranks_of(1)).follower_bytes, 0);
}

/* The memory that is planned for a server (`serve`) equals what it allocates, to the byte. */
static void a_server_is_counted(void **state) {
    (void)state;
    Config c = small_config();
    c.outer.least_islands = 3, c.outer.server = "a:1";
    size_t       P = (389 + 40) * 28 + 3 * (12 * 28 * 28 + 13 * 28) + 2 * 28;
    ServeBytes   own = serve_bytes(&c, 0);
    ServeWeights w = serve_weights_create(&c, 0);
    assert_int_equal(own.weights, w.params.used_bytes + w.grads.used_bytes + w.state.used_bytes + w.sums.used_bytes);
    assert_int_equal(w.params.used_bytes, w.params.capacity_bytes);
    size_t held = (size_t)shards_state_elems(w.shards); /* the P parameters and the padding that aligns their rows */
    assert_int_equal(w.state.used_bytes, 8 * held);
    assert_true(held >= P && own.weights >= 12 * held && own.weights < 12 * held + 4096);
    serve_weights_destroy(&w);
    assert_int_equal(own.copy, 12 * held);
    assert_int_equal(own.deltas, 3 * 4 * P);
    assert_int_equal(own.all, own.weights + own.copy + 12 * P);
    assert_int_equal(plan_make(&c, F32, ranks_of(1)).server_bytes, own.all);
    /* bf16 changes of P weights need 6 P bytes: 4 for what rounding took from each, 2 for the change */
    c.outer.compress = COMPRESS_BF16;
    assert_int_equal(serve_bytes(&c, 0).changes, 6 * P);
    assert_int_equal(serve_bytes(&c, 0).all, own.all + 6 * P);
    /* if rounds do not wait for all islands (training jobs), the server also keeps the weights that each of the 3
     * has */
    c.outer.wait = WAIT_NONE;
    assert_int_equal(serve_bytes(&c, 0).changes, 3 * 4 * P);
    c.outer.server = "";
    assert_int_equal(plan_make(&c, F32, ranks_of(1)).server_bytes, 0);
}

static void counts(void **state) {
    (void)state;
    Config  c = small_config();
    Plan    p = plan_make(&c, F32, ranks_of(3));
    int64_t C = 28, block = 12 * C * C + 13 * C;
    assert_int_equal(p.parameters, (389 + 40) * C + 3 * block + 2 * C);
    assert_int_equal(p.tokens_per_step, 4800);
    assert_int_equal(p.micro_steps, 20);
    assert_true(p.flops_per_token == 6.0 * (double)p.parameters + 6.0 * 3 * 28 * 40);
    assert_true(p.checkpoint_bytes >= 12 * (size_t)p.parameters);
    assert_true(p.checkpoint_bytes < 12 * (size_t)p.parameters + (1 << 20));

    Config gpt2 = small_config(); /* sizes of the published GPT-2 with 124M parameters */
    gpt2.model.shape.n_layer = 12, gpt2.model.shape.n_head = 12, gpt2.model.shape.n_embd = 768,
    gpt2.model.shape.n_positions = 1024, gpt2.model.shape.vocab_size = 50257;
    gpt2.batch.micro_batch = 4, gpt2.batch.seq_len = 256, gpt2.batch.global_tokens = 1024;
    p = plan_make(&gpt2, BF16, ranks_of(1));
    assert_int_equal(p.parameters, 124439808);
    assert_true(p.params_bytes >= 2 * 124439808u && p.params_bytes < 1.01 * 2 * 124439808);
    assert_true(p.grads_bytes >= 4 * 124439808u && p.grads_bytes < 1.01 * 4 * 124439808);
    assert_true(p.optimizer_bytes >= 12 * 124439808u && p.optimizer_bytes < 1.01 * 12 * 124439808);
}

static size_t bytes_with(Config c, int64_t micro_batch) {
    c.batch.micro_batch = micro_batch;
    return plan_make(&c, BF16, ranks_of(2)).device_bytes;
}

/* plan_largest_micro_batch returns a micro-batch that fits in the given memory while one more sequence does not. It may
 * be larger than the one for which the memory was computed: a library may need less scratch memory for 16 sequences
 * than for 15. */
static void largest_micro_batch(void **state) {
    (void)state;
    Config c = small_config();
    for (int64_t want = 1; want < 100; want += 7) {
        c.batch.micro_batch = want;
        Plan p = plan_make(&c, BF16, ranks_of(2));
        int64_t most = plan_largest_micro_batch(&c, &p, p.device_bytes),
                fewer = plan_largest_micro_batch(&c, &p, p.device_bytes - 1);
        assert_true(most >= want && bytes_with(c, most) <= p.device_bytes && bytes_with(c, most + 1) > p.device_bytes);
        assert_true(fewer != want && bytes_with(c, fewer + 1) > p.device_bytes - 1);
        assert_true(fewer == 0 || bytes_with(c, fewer) <= p.device_bytes - 1);
        assert_int_equal(plan_largest_micro_batch(&c, &p, 1000), 0);
    }
}

/* Asserts that a model and its optimizer fill memory arenas of the planned sizes exactly. */
static void assert_plan_is_what_is_carved(const Config *c, DType act, int rank, int ranks) {
    Plan   p = plan_make(c, act, ranks_of(ranks));
    ModelSpec spec = config_model_spec(c, act, ranks, 0, NULL);
    spec.shards.rank = rank;
    Arena     params = arena_create("weights", p.params_bytes), grads = arena_create("gradients", p.grads_bytes);
    Arena     optimizer = arena_create("optimizer", p.optimizer_bytes),
          activations = arena_create("activations", p.activation_bytes);
    StepSums  sums = step_sums_create(&activations, 0, 0);
    Shards   *z = shards_create(spec.shards, model_layout(c->model.shape, (LayoutPlace){ranks, 1, 0, NULL, 1, 0}), sums, &params, &grads);
    Gpt       g = gpt_create(z, (GptSpec){spec.B, spec.T, NULL, NULL, 1, spec.recompute, spec.document_mask, NULL, 0.0, spec.fp8, SIZES_HERE},
                             &activations);
    Optimizer o = optimizer_create(spec.optimizer, z, spec.offload, &optimizer);
    if (c->parallel.deterministic) assert_true(z->order.buffers >= 3 && p.gradient_buffers == z->order.buffers);
    Arena *all[] = {&params, &grads, &optimizer, &activations};
    size_t planned[] = {p.params_bytes, p.grads_bytes, p.optimizer_bytes, p.activation_bytes};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(all[i]->peak_bytes, planned[i]);
        arena_destroy(all[i]);
    }
    assert_int_equal(p.scratch_bytes, model_dry(spec, p.micro_steps, NULL).scratch);
    assert_int_equal(p.device_bytes, p.params_bytes + p.grads_bytes + p.optimizer_bytes + p.activation_bytes +
                                         p.scratch_bytes + p.batch_bytes + p.library_bytes + p.reserve_bytes +
                                         p.host_bytes);
    assert_int_equal(p.host_bytes, p.comm_bytes + p.host_copy_bytes +
                                       loader_host_bytes(c->batch.micro_batch, c->batch.seq_len, p.micro_steps, 0));
    optimizer_destroy(&o);
    gpt_destroy(&g);
    shards_destroy(z);
}

/* Each rank keeps two in-memory copies of its share of the masters (fp32 weights) and both moments: 2 x 12 bytes a
 * parameter. With several hosts it also keeps the copies of a rank of another host, so twice that. */
static void copies_in_memory_are_counted(void **state) {
    (void)state;
    device_open(0, 2);
    Config    c = small_config();
    PlanRanks two = ranks_of(2);
    Plan      none = plan_make(&c, F32, two);
    c.checkpoint.memory_every = 10;
    Plan one_host = plan_make(&c, F32, two);
    two.hosts = 2;
    Plan two_hosts = plan_make(&c, F32, two);
    assert_true(none.copies_bytes == 0 && one_host.copies_bytes >= 24 * (size_t)none.parameters / 2);
    assert_true(one_host.copies_bytes < 27 * (size_t)none.parameters / 2 && two_hosts.copies_bytes == 2 * one_host.copies_bytes);
    assert_true(one_host.device_bytes == none.device_bytes + one_host.copies_bytes && one_host.host_bytes == none.host_bytes);
}

static void the_plan_is_what_is_carved(void **state) {
    (void)state;
    device_open(0, 2);
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int zero_stage = 0; zero_stage <= 1; zero_stage++)
            for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_BLOCK; recompute++)
                for (int act = F32; act <= BF16; act++) {
                    Config c = small_config();
                    c.parallel.zero_stage = zero_stage;
                    c.memory.recompute = recompute;
                    c.parallel.deterministic = act == BF16;
                    assert_plan_is_what_is_carved(&c, (DType)act, ranks - 1, ranks);
                    Plan adamw = plan_make(&c, (DType)act, ranks_of(ranks));
                    if (zero_stage > 1) continue;
                    c.optimizer.name = "muon";
                    Plan muon = plan_make(&c, (DType)act, ranks_of(ranks));
                    assert_plan_is_what_is_carved(&c, (DType)act, ranks - 1, ranks);
                    assert_true(muon.scratch_bytes >= adamw.scratch_bytes && muon.optimizer_bytes < adamw.optimizer_bytes);
                }
}

/* Muon's matrix products and passes over memory add 0.3 % to 3 % to the FLOPs of a step of 524,288 tokens with 124M
 * parameters. */
static void muon_is_a_small_part_of_a_step(void **state) {
    (void)state;
    Config c = small_config();
    c.model.shape.n_layer = 12, c.model.shape.n_head = 12, c.model.shape.n_embd = 768, c.model.shape.n_positions = 1024;
    c.model.shape.vocab_size = 50257;
    c.batch.global_tokens = 524288, c.batch.micro_batch = 8, c.batch.seq_len = 1024;
    double adamw = plan_make(&c, BF16, ranks_of(1)).step_flops;
    c.optimizer.name = "muon", c.optimizer.muon_momentum = 0.95;
    double share = plan_make(&c, BF16, ranks_of(1)).step_flops / adamw - 1.0;
    print_message("muon adds %.2f %% to the FLOPs of a step\n", 100.0 * share);
    assert_true(share > 0.003 && share < 0.03);
}

static void what_saves_memory_does(void **state) {
    (void)state;
    Config c = small_config();
    c.model.shape.n_embd = 280;
    Plan one = plan_make(&c, BF16, ranks_of(1)), four = plan_make(&c, BF16, ranks_of(4)), three = plan_make(&c, BF16, ranks_of(3));
    assert_true(four.optimizer_bytes < one.optimizer_bytes / 3.5);
    assert_true(three.micro_steps == one.micro_steps / 3);
    assert_int_equal(one.comm_bytes, 0);
    assert_true(four.comm_bytes > 0);
    c.memory.recompute = RECOMPUTE_BLOCK;
    assert_true(plan_make(&c, BF16, ranks_of(1)).activation_bytes < one.activation_bytes);
    c = small_config();
    c.model.shape.n_embd = 280;
    c.parallel.zero_stage = 0;
    assert_true(plan_make(&c, BF16, ranks_of(4)).optimizer_bytes >= one.optimizer_bytes);
}

/* A run without enough memory prints advice: a table of what the memory is for, and changes of the config. Each
 * proposed change must really need less memory. */
static void the_advice_takes_less(void **state) {
    (void)state;
    Config c = small_config();
    c.batch.micro_batch = 64;
    Plan  p = plan_make(&c, F32, ranks_of(2));
    char *advice = plan_memory_advice(&c, &p), *half = strstr(advice, "batch.micro_batch = 32 takes "),
         *block = strstr(advice, "memory.recompute = \"block\" takes ");
    assert_non_null(strstr(advice, "exchange between ranks, by the ring"));
    assert_non_null(half), assert_non_null(block);
    double all = (double)p.device_bytes / 1048576.0, with_half = strtod(strstr(half, "takes ") + 6, NULL),
           with_block = strtod(strstr(block, "takes ") + 6, NULL);
    assert_true(with_half > 0 && with_half < all - 1 && with_block > 0 && with_block < all - 1);
    free(advice);
    c.batch.micro_batch = 1, c.memory.recompute = RECOMPUTE_BLOCK;
    p = plan_make(&c, F32, ranks_of(2));
    advice = plan_memory_advice(&c, &p);
    assert_null(strstr(advice, "batch.micro_batch")), assert_null(strstr(advice, "memory.recompute"));
    assert_non_null(strstr(advice, "more ranks"));
    free(advice);
}

static void fail_for_memory(void *code) {
    error_set_memory_advice("the table\n");
    (fail)(*(int *)code, "no memory for a test");
}
/* A program that ends for lack of memory prints the advice set by error_set_memory_advice, then the fault. One that
 * ends for another cause prints only the fault. */
static void a_lack_of_memory_is_told_with_the_advice(void **state) {
    (void)state;
    int   memory = EXIT_MEMORY, data = EXIT_DATA;
    Child c = child_run(fail_for_memory, &memory);
    assert_int_equal(c.code, EXIT_MEMORY);
    assert_string_equal(c.said, "the table\ntrain_gpt: no memory for a test\n");
    c = child_run(fail_for_memory, &data);
    assert_string_equal(c.said, "train_gpt: no memory for a test\n");
}

/* --- the verb ----------------------------------------------------------------------------------------------------- */

static char dir[64], config_path[96];

static int make_dir(void **state) {
    (void)state;
    strcpy(dir, "/tmp/test_plan.XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(config_path, sizeof config_path, "%s/config.json", dir);
    char text[1024];
    int  bytes = snprintf(text, sizeof text,
                          "{\"run\": {\"steps\": 100, \"dir\": \"%s/not/made/yet\"},"
                          " \"model\": {\"n_layer\": 2, \"n_head\": 2, \"n_embd\": 28, \"n_positions\": 40, \"vocab_size\": 256},"
                          " \"data\": {\"train\": \"%s/train_*.bin\"},"
                          " \"batch\": {\"global_tokens\": 480, \"micro_batch\": 2, \"seq_len\": 40}}\n", dir, dir);
    return io_replace_file(config_path, text, (size_t)bytes);
}
static int remove_dir(void **state) {
    (void)state;
    return io_remove_tree(dir);
}

typedef struct { int argc; char **argv; } Arguments;
static void run_verb(void *arguments) {
    const Arguments *a = arguments;
    dup2(STDERR_FILENO, STDOUT_FILENO);
    int code = verb_run(&PLAN_VERB, a->argc, a->argv);
    fflush(stdout);
    _exit(code);
}
/* Returns the output of `plan` with these arguments, from both streams, and its exit code. */
static Child plan(int argc, char **argv) { return child_run(run_verb, &(Arguments){argc, argv}); }

static void write_shard(const char *name, int64_t tokens) {
    char         path[128];
    ShardWriter *w;
    int32_t      zeros[1000] = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(shard_writer_create(&w, path, 256), 0);
    for (; tokens > 0; tokens -= 1000) assert_int_equal(shard_writer_put(w, zeros, tokens < 1000 ? tokens : 1000), 0);
    assert_int_equal(shard_writer_finish(w), 0);
}

static void the_verb_needs_no_data(void **state) {
    (void)state;
    char *argv[] = {"plan", config_path, "ranks=2", "run.steps=1000"};
    Child c = plan(4, argv);
    assert_int_equal(c.code, EXIT_DONE);
    static const char *says[] = {"2 ranks",
                                 "parameters   27888",
                                 "total",
                                 "is not there yet",
                                 "480 tokens a step: 2 ranks x 3 micro-batches x 2 sequences of 40",
                                 "1000 steps, 480 k tokens",
                                 "free under",
                                 "FLOP a token",
                                 "an estimate",
                                 "each rank sends "};
    for (size_t i = 0; i < sizeof says / sizeof *says; i++)
        if (!strstr(c.said, says[i])) fail_msg("\"%s\" is not in:\n%s", says[i], c.said);
}

static void epochs_are_counted(void **state) {
    (void)state;
    write_shard("train_0.bin", 2001);
    /* Each file has 50 samples of 40 tokens. A 51st would need 2041 tokens, because the target of a token is the next
     * one. Tokens after the last sample are not read. */
    write_shard("train_1.bin", 2040);
    char *argv[] = {"plan", config_path};
    Child c = plan(2, argv);
    assert_int_equal(c.code, EXIT_DONE);
    if (!strstr(c.said, "2 files, 4041 tokens, 100 samples of 40: 12.00 epochs; never read: 39 tokens after the last samples of files")) fail_msg("no epochs in:\n%s", c.said);
}

static void the_verb_refuses(void **state) {
    (void)state;
    char *arguments[][3] = {{"plan"}, {"plan", "/nowhere.json"}, {"plan", config_path, "ranks=0"}, {"plan", config_path, "ranks=7"},
                               {"plan", config_path, "memory=80GB of it"}};
    static const char *says[] = {"plan config.json", "/nowhere.json", "ranks=0", "batch.global_tokens", "memory=80GB of it"};
    static const int   counts_of[] = {1, 2, 3, 3, 3};
    for (int i = 0; i < 5; i++) {
        Child c = plan(counts_of[i], arguments[i]);
        assert_int_equal(c.code, EXIT_CONFIG);
        assert_non_null(strstr(c.said, says[i]));
        assert_int_equal(child_lines(&c), 1);
    }
}

/* An island (a training job of a server) that sends gradients has no moments. With fp32 weights it has no optimizer
 * state at all. With other weights it has their fp32 masters. */
static void an_island_of_gradients_has_no_moments(void **state) {
    (void)state;
    Config c = small_config();
    c.outer.server = "a:1", c.outer.every = 1;
    Plan deltas = plan_make(&c, F32, ranks_of(1)), halves = plan_make(&c, BF16, ranks_of(1));
    c.outer.send = SEND_GRADIENTS;
    Plan gradients = plan_make(&c, F32, ranks_of(1)), half_gradients = plan_make(&c, BF16, ranks_of(1));
    assert_true(deltas.optimizer_bytes > 0);
    assert_int_equal(gradients.optimizer_bytes + gradients.offload_bytes, 0);
    assert_int_equal(deltas.device_bytes - gradients.device_bytes, deltas.optimizer_bytes);
    assert_int_equal(3 * half_gradients.optimizer_bytes, halves.optimizer_bytes);
    c.outer.server = ""; /* without a server the run is an ordinary job with all of its state */
    assert_int_equal(plan_make(&c, F32, ranks_of(1)).optimizer_bytes, deltas.optimizer_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts), cmocka_unit_test(an_island_of_gradients_has_no_moments),
        cmocka_unit_test(a_server_is_counted), cmocka_unit_test(several_servers_are_counted),
        cmocka_unit_test(largest_micro_batch),
        cmocka_unit_test(the_plan_is_what_is_carved), cmocka_unit_test(muon_is_a_small_part_of_a_step),
        cmocka_unit_test(copies_in_memory_are_counted),
        cmocka_unit_test(what_saves_memory_does),
        cmocka_unit_test(the_advice_takes_less),
        cmocka_unit_test(a_lack_of_memory_is_told_with_the_advice),
        cmocka_unit_test_setup_teardown(the_verb_needs_no_data, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(epochs_are_counted, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_verb_refuses, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
