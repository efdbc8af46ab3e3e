/* test_checkpoint_resume.c - tests what a resume checks before it uses a checkpoint: settings, data, the model's table
 * of tensors. Also what it returns to the run. */
#include "test/run/lib/child.h"

#include "test/run/lib/own_folder.h"

static void save_one(DType act, LossScale scale) {
    Fixture f;
    fixture_create(&f, comm, dir, act, 1, "");
    fixture_fill(&f, 4);
    f.train_state.loss_scale = scale;
    checkpoint_save(&f.state, 4);
    fixture_destroy(&f);
}

typedef struct {
    const char *extra;                /* JSON text with more keys for the config's section "run" */
    void      (*change)(Fixture *f);  /* changes the config before the start; NULL: no change */
} Start;

/* Runs in a child: exits with 100 + the step from which it resumes. */
static void start_piece(void *argument) {
    const Start *s = argument;
    Fixture      f;
    fixture_create(&f, comm, dir, F32, 1, s->extra);
    if (s->change) s->change(&f);
    _exit(100 + (int)checkpoint_resume(&f.state).step);
}

static void expect_end(const char *extra, void (*change)(Fixture *f), int code, const char *word) {
    Child c = child_run(start_piece, &(Start){extra, change});
    if (c.code != code || !strstr(c.said, word) || child_lines(&c) != (code < 100))
        fail_msg("exit %d, %d due: \"%s\" does not say \"%s\"", c.code, code, c.said, word);
}

static void other_file(Fixture *f) { f->shard[0].path = "data/other.bin"; }
static void less_files(Fixture *f) { f->train.shards = 1; }

/* An empty log does not make a folder a run. Checkpoints do, with or without a log. */
static void test_what_is_a_run(void **state) {
    (void)state;
    fclose(fopen(path_of("%s/metrics.jsonl", dir).text, "w"));
    expect_end(",\"resume\":\"never\"", NULL, 100, "");
    assert_int_equal(unlink(path_of("%s/metrics.jsonl", dir).text), 0);
    save_one(F32, (LossScale){1.0, 0});
    expect_end(",\"resume\":\"never\"", NULL, EXIT_CONFIG, "holds a run already (checkpoints) and run.resume is \"never\"");
}

static void test_data_may_change_when_named(void **state) {
    (void)state;
    save_one(F32, (LossScale){1.0, 0});
    expect_end("", other_file, EXIT_CONFIG,
               "data.train: shard 0 is other.bin (3000 bytes, 988 tokens), in the checkpoint train_000.bin (3000 bytes, 988 tokens)");
    expect_end("", less_files, EXIT_CONFIG,
               "data.train: 1 shards, in the checkpoint 2. Set back what changed, take another run.dir, or go on with the new values: "
               "run.allow_change=data.train");
    expect_end(",\"allow_change\":[\"run.seed\",\"data.shuffle\"]", other_file, EXIT_CONFIG, "data.train: shard 0 is other.bin");
    expect_end(",\"allow_change\":[\"run.seed\",\"data.train\"]", other_file, 104, "");
    expect_end(",\"allow_change\":\"data\"", other_file, 104, "");
    expect_end(",\"seed\":7", other_file, EXIT_CONFIG,
               "run.seed is 7, in the checkpoint 1337; data.train: shard 0");
    expect_end(",\"seed\":7", other_file, EXIT_CONFIG, "new values: 'run.allow_change=[\"run.seed\",\"data.train\"]'");
    expect_end(",\"seed\":7,\"allow_change\":\"optimizer.eps\"", NULL, EXIT_CONFIG,
               "new values: 'run.allow_change=[\"optimizer.eps\",\"run.seed\"]'");
}

static void renamed(Fixture *f) { strcpy(f->shards->layout.param[3].name, "transformer.h.0.ln_1.offset"); }
static void moved(Fixture *f) { f->shards->layout.param[3].offset++; }
static void wider(Fixture *f) { f->shards->layout.param[4].dim[1]++; }
static void deeper(Fixture *f) { f->shards->layout.param[3].dims = 2; }

/* The model's table of tensors differs from that of the checkpoint, which run.allow_change = model permits. No tensor
 * is read into a wrong place. */
static void test_tensors_of_another_model(void **state) {
    (void)state;
    save_one(F32, (LossScale){1.0, 0});
    static const struct { void (*change)(Fixture *f); const char *says; } cases[] = {
        {renamed, "model.safetensors: tensor transformer.h.0.ln_1.offset is not where this model has it"},
        {moved, "model.safetensors: tensor transformer.h.0.ln_1.bias is not where this model has it"},
        {wider, "model.safetensors: tensor transformer.h.0.mlp.c_fc.weight is not where"},
        {deeper, "model.safetensors: tensor transformer.h.0.ln_1.bias is not where"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_end("", cases[i].change, EXIT_DATA, cases[i].says);
    expect_end("", NULL, 104, "");
}

/* A resume uses the loss scale of the checkpoint only if that was saved with the same precision. */
static void test_the_loss_scale_is_its_precisions(void **state) {
    (void)state;
    static const DType types[] = {F32, BF16};
    save_one(BF16, (LossScale){64.0, 17});
    for (int i = 0; i < 2; i++) {
        Fixture f;
        fixture_create(&f, comm, dir, types[i], 1, "");
        assert_int_equal(checkpoint_resume(&f.state).step, 4);
        assert_true(f.train_state.loss_scale.scale == (types[i] == BF16 ? 64.0 : 1.0) &&
                    f.train_state.loss_scale.steps == (types[i] == BF16 ? 17 : 0));
        assert_int_equal(fixture_differences(&f, 4), 0);
        fixture_destroy(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(test_what_is_a_run), CASE(test_data_may_change_when_named), CASE(test_tensors_of_another_model),
        CASE(test_the_loss_scale_is_its_precisions),
    };
    return RUN_ALONE(tests);
}
