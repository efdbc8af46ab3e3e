/* test_checkpoint_write.c - the files of a save besides the state, a save of a step that is there already, and causes
 * of refusal: another job's lock, a log that cannot be synced, a byte that no rank has written. */
#include "core/failpoints.h"
#include "core/io.h"

#include "run/checkpoint/checkpoint_write.h"
#include "run/guard/lock.h"
#include "test/run/lib/child.h"

#include "test/run/lib/own_folder.h"

static Path step_path(const char *name) { return path_of("%s/checkpoints/step_00000004%s", dir, name); }

static int verifies(Manifest *m) {
    char fault[MANIFEST_FAULT_BYTES];
    return folder_verify(NULL, step_path("").text, 4, NULL, m, fault) == MANIFEST_GOOD;
}

/* A save stores the names of data files without folder and the id of the end-of-text token. A tokenizer of ids only has
 * no file. */
static void test_what_else_is_in_it(void **state) {
    (void)state;
    Fixture  f;
    Manifest m;
    char    *text;
    fixture_create(&f, comm, dir, F32, 1, ",\"watchdog_seconds\":50");
    fixture_fill(&f, 4);
    f.shards->spec.shape.vocab_size = 50257;
    Tokenizer ids_alone = {.kind = TOKENIZER_IDS, .vocab_size = 50257};
    f.state.tokenizer = &ids_alone;
    f.shard[0].path = "here.bin";
    checkpoint_save(&f.state, 4);
    assert_true(verifies(&m));
    assert_string_equal(m.data[0].name, "here.bin");
    assert_string_equal(m.data[1].name, "train_001.bin");
    manifest_free(&m);
    assert_true(io_read_file(step_path("/config.json").text, 1 << 20, &text) > 0);
    assert_non_null(strstr(text, "\"bos_token_id\": 50256,\n  \"eos_token_id\": 50256,"));
    free(text);
    assert_true(io_read_file(step_path("/generation_config.json").text, 1 << 20, &text) > 0);
    assert_non_null(strstr(text, "\"eos_token_id\": 50256"));
    free(text);
    assert_int_not_equal(access(step_path("/tokenizer.json").text, F_OK), 0); /* tokenizer.json is missing, because a
                                                                               * tokenizer of ids only has no file */
    fixture_destroy(&f);
}

/* A save replaces the checkpoint of the same step if that is from another run, or from this run after other data. */
static void test_a_step_of_another_run(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        Fixture  f;
        Manifest m;
        fixture_create(&f, comm, dir, F32, 1, "");
        fixture_fill(&f, 10 + i);
        if (i >= 1) strcpy(f.train_state.run_id, "00000000deadbeef");
        if (i == 2) f.train_state.start.tokens = 480;
        checkpoint_save(&f.state, 4);
        assert_true(verifies(&m));
        assert_string_equal(m.run_id, f.train_state.run_id);
        assert_int_equal(m.tokens, i == 2 ? 5 * 480 : 4 * 480);
        manifest_free(&m);
        if (i == 2) f.train_state.start.tokens = 0;
        assert_int_equal(checkpoint_resume(&f.state).step, 4);
        assert_int_equal(fixture_differences(&f, 10 + i), 0);
        fixture_destroy(&f);
    }
}

/* A network file system may show a new folder only after a while, so opening a file in it is tried again. */
static void test_a_folder_that_shows_late(void **state) {
    (void)state;
    Fixture  f;
    Manifest m;
    fixture_create(&f, comm, dir, F32, 1, "");
    fixture_fill(&f, 4);
    failpoints_reset();
    /* the first open of each of the two large files fails, so the save opens them again */
    setenv("TRAIN_GPT_FAIL", "io.open@1:ENOENT;io.open@3:ENOENT", 1);
    checkpoint_save(&f.state, 4);
    unsetenv("TRAIN_GPT_FAIL");
    assert_true(failpoint_calls("io.open") > 3);
    assert_true(verifies(&m));
    manifest_free(&m);
    fixture_destroy(&f);
}

typedef struct { void (*save)(Fixture *f); } Saving;

static void save_piece(void *saving) {
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    fixture_fill(&f, 4);
    ((const Saving *)saving)->save(&f);
}

static void sign_from_elsewhere(void) {
    LockHolder h = {.host = "elsewhere", .boot = "b9", .process = 5, .started = 1, .job = "none", .nonce = 1, .beat = 1};
    char       text[HOLDER_TEXT];
    int        length = holder_format(&h, text), fd = io_open(path_of("%s/lock", dir).text, IO_SHARED);
    CHECK(fd >= 0 && io_pwrite(fd, text, (size_t)length, 0) == 0 && io_truncate(fd, (uint64_t)length) == 0, "cannot sign");
    io_close(fd);
}

static void lose_before_the_save(Fixture *f) {
    f->state.lock = lock_run_folder(dir, comm, NULL, 1e6);
    lock_sign(f->state.lock);
    sign_from_elsewhere();
    checkpoint_save(&f->state, 4);
}

static void lose_during_the_save(Fixture *f) {
    f->state.lock = lock_run_folder(dir, comm, NULL, 1e6);
    lock_sign(f->state.lock);
    Saver *s = saver_create(&f->state);
    saver_start(s, 4, NULL);
    for (int part = 0;; part++) {
        while (!saver_ready(s)) usleep(1000);
        /* another job takes the lock file between the writing of the tensors and of the manifest */
        if (part == 1) sign_from_elsewhere();
        saver_next(s);
    }
}

/* Once the lock file names another job, nothing more is written. */
static void test_another_job_has_the_folder(void **state) {
    (void)state;
    for (int during = 0; during < 2; during++) {
        Child c = child_run(save_piece, &(Saving){during ? lose_during_the_save : lose_before_the_save});
        if (c.code != EXIT_LOCKED || !strstr(c.said, "was taken over by another job (host elsewhere, process 5)"))
            fail_msg("exit %d: %s", c.code, c.said);
        assert_int_equal(access(path_of("%s/checkpoints", dir).text, F_OK) == 0, during);
        assert_int_not_equal(access(step_path(".tmp/state.json").text, F_OK), 0);
        assert_int_not_equal(access(step_path("").text, F_OK), 0);
        assert_int_equal(unlink(path_of("%s/lock", dir).text), 0);
    }
}

static const char *path_of_log(void) {
    static Path path;
    path = path_of("%s/metrics.jsonl", dir);
    return path.text;
}

static void with_a_log(Fixture *f) {
    f->state.log = path_of_log();
    f->state.log_fd = io_open(f->state.log, IO_CREATE);
    failpoints_reset();
    /* the fifth fsync is that of the log, after two files of tensors and two that describe them */
    setenv("TRAIN_GPT_FAIL", "io.fsync@5:EIO", 1);
    checkpoint_save(&f->state, 4);
}

/* If the log cannot be synced, no checkpoint is saved, because none may be newer than the log. */
static void test_a_log_that_cannot_be_synced(void **state) {
    (void)state;
    Child c = child_run(save_piece, &(Saving){with_a_log});
    assert_int_equal(c.code, EXIT_IO);
    assert_non_null(strstr(c.said, "step 4, the last, is not saved: cannot sync "));
    assert_non_null(strstr(c.said, "metrics.jsonl: Input/output error"));
    assert_int_not_equal(access(step_path("").text, F_OK), 0);
}

/* A save reports a bug if the ranks together left out bytes of a file or wrote some twice. The folder then does not get
 * its final name. */
static void test_runs_that_do_not_cover(void **state) {
    (void)state;
    for (int twice = 0; twice < 2; twice++) {
        Fixture f;
        fixture_create(&f, comm, dir, F32, 1, "");
        float *staged = calloc((size_t)f.shards->layout.elems, 3 * sizeof *staged);
        FileExtents runs = exchange_extents(f.shards);
        Save   s = save_prepare(&f.state, 4);
        save_make_folder(&s);
        save_pieces(&s, staged, &runs, 1);
        assert_string_equal(s.fault, "");
        ManifestFile *model = &s.manifest.file[FILE_MODEL];
        assert_true(model->extents > 1);
        model->extent[1] = twice ? model->extent[0] : model->extent[--model->extents];
        save_commit(&s);
        assert_non_null(strstr(s.fault, "a bug: byte "));
        assert_non_null(strstr(s.fault, " is written by no rank, or twice"));
        assert_int_not_equal(access(step_path("").text, F_OK), 0);
        save_drop(&s);
        assert_int_not_equal(access(step_path(".tmp").text, F_OK), 0);
        save_release(&s);
        free(runs.extent);
        free(staged);
        fixture_destroy(&f);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(test_what_else_is_in_it), CASE(test_a_step_of_another_run),
        CASE(test_a_folder_that_shows_late), CASE(test_another_job_has_the_folder),
        CASE(test_a_log_that_cannot_be_synced), CASE(test_runs_that_do_not_cover),
    };
    return RUN_ALONE(tests);
}
