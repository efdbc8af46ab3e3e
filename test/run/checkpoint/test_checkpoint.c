/* test_checkpoint.c - save and resume in one process: the same bits, the right refusals, the right folders kept. */
#include "test/run/lib/child.h"

#include "run/checkpoint/safetensors.h"

#include "test/run/lib/own_folder.h"

/* Saves a checkpoint of each step in a list that ends with 0. */
static void save_steps(const int64_t *steps, const char *extra, DType act) {
    Fixture f;
    fixture_create(&f, comm, dir, act, 1, extra);
    for (; *steps; steps++) {
        fixture_fill(&f, *steps);
        checkpoint_save(&f.state, *steps);
    }
    fixture_destroy(&f);
}
#define SAVE(...) save_steps((const int64_t[]){__VA_ARGS__, 0}, "", F32)

static int exists(const char *name) {
    struct stat st;
    return lstat(path_of("%s/%s", dir, name).text, &st) == 0;
}

/* Returns the names in checkpoints/, sorted and separated by spaces. */
static const char *listing(void) {
    static char text[2048];
    char        command[128];
    snprintf(command, sizeof command, "ls -A '%s/checkpoints' | tr '\\n' ' '", dir);
    FILE  *out = popen(command, "r");
    size_t n = fread(text, 1, sizeof text - 1, out);
    pclose(out);
    text[n] = 0;
    return text;
}

static void flip_bit(const char *name, long at) {
    FILE *f = fopen(path_of("%s/checkpoints/%s", dir, name).text, "r+");
    assert_non_null(f);
    fseek(f, at, at < 0 ? SEEK_END : SEEK_SET);
    int c = fgetc(f);
    fseek(f, -1, SEEK_CUR);
    fputc(c ^ 4, f);
    fclose(f);
}

/* --- round trips -------------------------------------------------------------------------------------------------- */

static void round_trip(DType act, int stage_saved, int stage_read) {
    Fixture saved, read;
    fixture_create(&saved, comm, dir, act, stage_saved, "");
    Resumed first = checkpoint_resume(&saved.state);
    assert_int_equal(first.step, 0);
    assert_int_equal(strlen(saved.train_state.run_id), 16);
    fixture_fill(&saved, 7);
    assert_true(checkpoint_save(&saved.state, 7) > 0);
    fixture_create(&read, comm, dir, act, stage_read, ",\"resume\":\"must\"");
    Resumed resumed = checkpoint_resume(&read.state);
    assert_int_equal(resumed.step, 7);
    assert_int_equal(resumed.ranks, 1);
    assert_string_equal(resumed.name, "step_00000007");
    assert_string_equal(read.train_state.run_id, saved.train_state.run_id);
    assert_int_equal(fixture_differences(&read, 7), 0);
    assert_true(fixture_differences(&read, 8) > 0);
    fixture_destroy(&saved);
    fixture_destroy(&read);
}
static void test_round_trip_fp32(void **state) { (void)state, round_trip(F32, 1, 1); }
static void test_round_trip_bf16(void **state) { (void)state, round_trip(BF16, 1, 0); }
static void test_round_trip_stage_0(void **state) { (void)state, round_trip(F32, 0, 1); }

static void test_same_weights_same_bytes(void **state) {
    (void)state;
    char *first, *second;
    SAVE(3);
    int64_t bytes = io_read_file(path_of("%s/checkpoints/step_00000003/model.safetensors", dir).text, 64 << 20, &first);
    io_remove_tree(path_of("%s/checkpoints/step_00000003", dir).text);
    save_steps((const int64_t[]){3, 0}, ",\"max_minutes\":5", F32);
    assert_int_equal(io_read_file(path_of("%s/checkpoints/step_00000003/model.safetensors", dir).text, 64 << 20, &second), bytes);
    assert_memory_equal(first, second, bytes);
    Safetensors s;
    char        fault[SAFETENSORS_FAULT_BYTES];
    assert_true(safetensors_parse((uint8_t *)first, (size_t)bytes, (uint64_t)bytes, &s, fault));
    assert_int_equal(s.tensors, FIXTURE_ROWS);
    assert_int_equal(s.data_offset % 8, 0);
    assert_string_equal(s.tensor[0].name, "transformer.wte.weight");
    for (int64_t g = 0; g < 100; g++) {
        uint32_t bits;
        memcpy(&bits, first + s.data_offset + 4 * g, 4);
        assert_int_equal(bits, fixture_bits(3, 0, g));
    }
    safetensors_free(&s);
    free(first);
    free(second);
}

static const char *text_at(const Json *json, const char *name) { return json_member(json->root, name)->valuestring; }

static void test_folder_is_as_described(void **state) {
    (void)state;
    Json      json;
    JsonFault fault;
    char     *text;
    fixture_tokenizer.kind = TOKENIZER_BYTES;
    SAVE(12);
    fixture_tokenizer.kind = TOKENIZER_IDS;
    assert_string_equal(listing(), "step_00000012 ");
    int64_t bytes = io_read_file(path_of("%s/checkpoints/step_00000012/state.json", dir).text, 1 << 20, &text);
    assert_true(json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault));
    assert_string_equal(text_at(&json, "format"), "train_gpt checkpoint");
    assert_string_equal(text_at(&json, "version"), "1.1");
    assert_string_equal(text_at(&json, "run_id"), "0123456789abcdef");
    assert_string_equal(text_at(&json, "step"), "12");
    assert_string_equal(text_at(&json, "samples"), "144");
    assert_string_equal(text_at(&json, "tokens"), "5760");
    assert_string_equal(text_at(&json, "seed"), "1337");
    assert_string_equal(text_at(&json, "precision"), "fp32");
    assert_non_null(json_member(json_member(json.root, "config"), "optimizer"));
    const cJSON *shard = json_member(json.root, "data")->child;
    assert_string_equal(json_member(shard, "name")->valuestring, "train_000.bin");
    assert_string_equal(json_member(shard, "bytes")->valuestring, "3000");
    assert_string_equal(json_member(shard, "tokens")->valuestring, "988");
    json_free(&json);
    free(text);
    bytes = io_read_file(path_of("%s/checkpoints/step_00000012/config.json", dir).text, 1 << 20, &text);
    assert_true(json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault));
    assert_string_equal(text_at(&json, "model_type"), "gpt2");
    assert_int_equal(json_member(json.root, "vocab_size")->valuedouble, FIXTURE_V);
    assert_true(cJSON_IsNull(json_member(json.root, "eos_token_id")) && cJSON_IsNull(json_member(json.root, "bos_token_id")));
    assert_string_equal(text_at(&json, "dtype"), "float32");
    json_free(&json);
    free(text);
    Tokenizer t = tokenizer_create(path_of("%s/checkpoints/step_00000012/tokenizer.json", dir).text, 256);
    assert_int_equal(t.kind, TOKENIZER_BYTES);
    tokenizer_destroy(&t);
    bytes = io_read_file(path_of("%s/checkpoints/step_00000012/tokenizer_config.json", dir).text, 1 << 20, &text);
    assert_true(json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault));
    assert_true(cJSON_IsNull(json_member(json.root, "eos_token")));
    json_free(&json);
    free(text);
}

/* --- which checkpoint --------------------------------------------------------------------------------------------- */

typedef struct { const char *extra; int64_t want; } Attempt;

/* Runs in a child: resumes. Exits with 0 only if that restores the step a->want with all its bits. */
static void resume_piece(void *argument) {
    const Attempt *a = argument;
    Fixture        f;
    fixture_create(&f, comm, dir, F32, 1, a->extra);
    Resumed resumed = checkpoint_resume(&f.state);
    if (resumed.step != a->want) _exit(1);
    if (resumed.step > 0 && fixture_differences(&f, resumed.step) > 0) _exit(2);
    fixture_destroy(&f);
}
static Child resume(const char *extra, int64_t want) { return child_run(resume_piece, &(Attempt){extra, want}); }

static void expect_refusal(const char *extra, int code, const char *word) {
    Child c = resume(extra, -1);
    assert_int_equal(c.code, code);
    if (!strstr(c.said, word)) fail_msg("\"%s\" does not say \"%s\"", c.said, word);
}

static void test_falls_back(void **state) {
    (void)state;
    save_steps((const int64_t[]){1, 2, 3, 0}, "", F32);
    flip_bit("step_00000003/model.safetensors", -5);
    Child c = resume("", 2);
    assert_int_equal(c.code, 0);
    assert_int_equal(child_lines(&c), 1);
    assert_non_null(strstr(c.said, "step_00000003 is passed over: model.safetensors is damaged"));
    flip_bit("step_00000002/optimizer.safetensors", -5);
    /* says "of 2", because checkpoint.keep is 2, so step 1 was deleted */
    expect_refusal("", EXIT_DATA, "undamaged (of 2; step_00000003:");
    flip_bit("step_00000003/model.safetensors", -5);
    assert_int_equal(resume("", 3).code, 0);
}

/* Tries every value of run.resume in folders with different contents: nothing, only a log, a checkpoint, a damaged
 * newest checkpoint, only damaged ones. `due` has the expected exit code, step and message. */
static void test_resume_words(void **state) {
    (void)state;
    static const char *const words[] = {"auto", "never", "must"};
    enum { NOTHING, LOG_ONLY, CHECKPOINT, BROKEN_BEHIND_GOOD, ALL_BROKEN, HOLDINGS };
    static const struct { int code; int64_t step; const char *says;
    } due[HOLDINGS][3] = {
        [NOTHING] = {{0, 0, ""}, {0, 0, ""}, {EXIT_DATA, 0, "no checkpoint"}},
        [LOG_ONLY] = {{0, 0, ""}, {EXIT_CONFIG, 0, "metrics.jsonl"}, {EXIT_DATA, 0, "no checkpoint"}},
        [CHECKPOINT] = {{0, 4, ""}, {EXIT_CONFIG, 0, "holds a run already (checkpoints)"}, {0, 4, ""}},
        [BROKEN_BEHIND_GOOD] = {{0, 4, "step_00000008 is passed over"},
                                {EXIT_CONFIG, 0, "holds a run already"},
                                {0, 4, "step_00000008 is passed over"}},
        [ALL_BROKEN] = {{EXIT_DATA, 0, "no checkpoint in"},
                        {EXIT_CONFIG, 0, "holds a run already"},
                        {EXIT_DATA, 0, "no checkpoint in"}},
    };
    for (int holding = NOTHING; holding < HOLDINGS; holding++) {
        if (holding == LOG_ONLY) assert_int_equal(io_replace_file(path_of("%s/metrics.jsonl", dir).text, "{}\n", 3), 0);
        if (holding == CHECKPOINT) SAVE(4);
        if (holding == BROKEN_BEHIND_GOOD) SAVE(8), flip_bit("step_00000008/model.safetensors", -5);
        if (holding == ALL_BROKEN) flip_bit("step_00000004/optimizer.safetensors", -5);
        for (int w = 0; w < 3; w++) {
            char extra[64];
            snprintf(extra, sizeof extra, ",\"resume\":\"%s\"", words[w]);
            Child c = resume(extra, due[holding][w].step);
            if (c.code != due[holding][w].code || !strstr(c.said, due[holding][w].says))
                fail_msg("%s, %d: exit %d, %s", words[w], holding, c.code, c.said);
        }
    }
}

/* The checkpoints folder was moved away. The run begins again and keeps the old run's metrics under another name. */
static void test_lost_checkpoints(void **state) {
    (void)state;
    static const char LINES[] = "{\"kind\":\"train\",\"step\":4}\n{\"kind\":\"event\",\"event\":\"save\",\"step\":4,\"time\":1.5,\"ms\":2}\n"
                                "{\"kind\":\"train\",\"step\":5}\n";
    Path metrics = path_of("%s/metrics.jsonl", dir);
    SAVE(4);
    assert_int_equal(io_replace_file(metrics.text, LINES, strlen(LINES)), 0);
    assert_int_equal(resume("", 4).code, 0);
    rename(path_of("%s/checkpoints", dir).text, path_of("%s/elsewhere", dir).text);
    Path kept = path_of("%s.passed-over", metrics.text), second = path_of("%s.passed-over-2", metrics.text);
    assert_int_equal(resume("", 0).code, 0);
    assert_int_equal(access(metrics.text, F_OK), -1);
    assert_int_equal(io_file_bytes(kept.text), strlen(LINES));
    /* The second run also loses its checkpoints. Its log must not overwrite metrics.jsonl.passed-over, which keeps the
     * log of the first run. */
    assert_int_equal(io_replace_file(metrics.text, LINES, strlen(LINES)), 0);
    assert_int_equal(resume("", 0).code, 0);
    assert_int_equal(io_file_bytes(kept.text), strlen(LINES));
    assert_int_equal(io_file_bytes(second.text), strlen(LINES));
    rename(path_of("%s/elsewhere", dir).text, path_of("%s/checkpoints", dir).text);
    assert_int_equal(resume("", 4).code, 0);
    rename(path_of("%s/checkpoints", dir).text, path_of("%s/elsewhere", dir).text);
    /* cuts the log to one line of a step, as if the run had been killed before its first checkpoint */
    assert_int_equal(io_replace_file(metrics.text, LINES, strcspn(LINES, "\n") + 1), 0);
    assert_int_equal(resume("", 0).code, 0);
    assert_int_equal(unlink(metrics.text), 0);
    assert_int_equal(resume("", 0).code, 0);
}

/* Replaces the format version in the manifest state.json, and corrects the hash at the end of that file. */
static void set_version(const char *version) {
    char   *text;
    Path    path = path_of("%s/checkpoints/step_00000004/state.json", dir);
    int64_t bytes = io_read_file(path.text, 1 << 20, &text);
    memcpy(strstr(text, "\"version\":\"") + strlen("\"version\":\""), version, 3);
    char   *tail = strstr(text, ",\n\"hash\":\"");
    snprintf(tail + strlen(",\n\"hash\":\""), 17, "%016llx", (unsigned long long)manifest_hash(text, (size_t)(tail - text)));
    text[bytes - 3] = '"'; /* restores the quote that snprintf's NUL has overwritten */
    assert_int_equal(io_replace_file(path.text, text, (size_t)bytes), 0);
    free(text);
}

static void test_versions(void **state) {
    (void)state;
    SAVE(2, 4);
    set_version("1.7"); /* a higher minor version only adds keys, so its checkpoint is read */
    assert_int_equal(resume("", 4).code, 0);
    set_version("2.0");
    /* refuses instead of resuming from step 2, which would undo the work of a newer program */
    Child c = resume("", -1);
    assert_int_equal(c.code, EXIT_DATA);
    assert_int_equal(child_lines(&c), 1);
    assert_non_null(strstr(c.said, "step_00000004: state.json has format version 2.0; this program reads 1.x"));
}

static void test_other_settings(void **state) {
    (void)state;
    SAVE(4);
    expect_refusal(",\"seed\":5", EXIT_CONFIG, "run.seed");
    assert_int_equal(resume(",\"seed\":5,\"allow_change\":[\"run.seed\"]", 4).code, 0);
    assert_int_equal(resume(",\"watchdog_seconds\":50", 4).code, 0);
    expect_refusal("},\"optimizer\":{\"beta2\":0.5},\"schedule\":{\"name\":\"linear\"", EXIT_CONFIG, "optimizer.beta2");
    Child c = resume("},\"optimizer\":{\"beta2\":0.5},\"schedule\":{\"name\":\"linear\"", -1);
    assert_non_null(strstr(c.said, "schedule.name"));
    assert_int_equal(child_lines(&c), 1);
}

typedef struct { Shard shard; int shards, allow; } Data;
static void data_piece(void *argument) {
    const Data *d = argument;
    Fixture     f;
    fixture_create(&f, comm, dir, F32, 1, d->allow ? ",\"allow_change\":[\"data.train\"]" : "");
    f.shard[1] = d->shard;
    f.train.shards = d->shards;
    checkpoint_resume(&f.state);
}

static void test_other_data(void **state) {
    (void)state;
    static const Data same[] = {
        {{.path = "elsewhere/train_001.bin", .file_bytes = 5000, .header = {2, 1024, 1988, 0}}, 2, 0},
        {{.path = "train_001.bin", .file_bytes = 5000, .header = {2, 1024, 1988, 0}}, 2, 0},
    }, other[] = {
        {{.path = "data/train_002.bin", .file_bytes = 5000, .header = {2, 1024, 1988, 0}}, 2, 0},
        {{.path = "data/train_001.bin", .file_bytes = 5002, .header = {2, 1024, 1988, 0}}, 2, 0},
        {{.path = "data/train_001.bin", .file_bytes = 5000, .header = {2, 1024, 1987, 0}}, 2, 0},
        {{.path = "data/train_001.bin", .file_bytes = 5000, .header = {2, 1024, 1988, 0}}, 1, 0},
    };
    SAVE(4);
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) assert_int_equal(child_run(data_piece, (void *)&same[i]).code, 0);
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        Data  allowed = other[i];
        Child c = child_run(data_piece, (void *)&other[i]);
        assert_int_equal(c.code, EXIT_CONFIG);
        assert_non_null(strstr(c.said, "data.train"));
        allowed.allow = 1;
        assert_int_equal(child_run(data_piece, &allowed).code, 0);
    }
}

/* --- which folders stay ------------------------------------------------------------------------------------------- */

static void test_keeps_the_newest(void **state) {
    (void)state;
    SAVE(1, 2, 3, 4, 5);
    assert_string_equal(listing(), "step_00000004 step_00000005 ");
    save_steps((const int64_t[]){6, 7, 8, 0}, "},\"checkpoint\":{\"keep\":4", F32);
    assert_string_equal(listing(), "step_00000005 step_00000006 step_00000007 step_00000008 ");
    /* at least two checkpoints are kept, although checkpoint.keep is 1 */
    save_steps((const int64_t[]){9, 0}, "},\"checkpoint\":{\"keep\":1", F32);
    assert_string_equal(listing(), "step_00000008 step_00000009 ");
}

static void test_milestones_stay(void **state) {
    (void)state;
    static const char every_3[] = "},\"checkpoint\":{\"every\":1,\"keep\":2,\"keep_every\":3";
    save_steps((const int64_t[]){1, 2, 3, 4, 5, 6, 7, 8, 0}, every_3, F32);
    assert_string_equal(listing(), "step_00000003 step_00000006 step_00000007 step_00000008 ");
    /* a milestone (a multiple of checkpoint.keep_every) among the newest checkpoints counts as one of them */
    save_steps((const int64_t[]){9, 10, 0}, every_3, F32);
    assert_string_equal(listing(), "step_00000003 step_00000006 step_00000009 step_00000010 ");
    SAVE(11); /* milestones are no longer kept, because SAVE does not set checkpoint.keep_every */
    assert_string_equal(listing(), "step_00000010 step_00000011 ");
}

static void save_with_best(int64_t step, int64_t best) {
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    fixture_fill(&f, step);
    f.state.best_step = best;
    checkpoint_save(&f.state, step);
    fixture_destroy(&f);
}

static void test_the_best_stays(void **state) {
    (void)state;
    save_with_best(1, 1), save_with_best(2, 2), save_with_best(3, 2), save_with_best(4, 2), save_with_best(5, 2);
    assert_string_equal(listing(), "step_00000002 step_00000004 step_00000005 ");
    save_with_best(6, 6);
    assert_string_equal(listing(), "step_00000005 step_00000006 ");
    save_with_best(7, 6), save_with_best(8, 6), save_with_best(9, -1);
    assert_string_equal(listing(), "step_00000008 step_00000009 ");
}

/* The power fails after a save, before old checkpoints are deleted. No checkpoint that should be kept is missing. The
 * next save also deletes what the interrupted one should have deleted. */
static void test_a_prune_that_never_came(void **state) {
    (void)state;
    static const char all[] = "},\"checkpoint\":{\"keep\":9", every_3[] = "},\"checkpoint\":{\"every\":1,\"keep\":2,\"keep_every\":3";
    save_steps((const int64_t[]){2, 3, 4, 5, 0}, all, F32);
    save_steps((const int64_t[]){7, 0}, every_3, F32);
    assert_string_equal(listing(), "step_00000003 step_00000005 step_00000007 ");
}

static void test_never_prunes_below_what_verifies(void **state) {
    (void)state;
    SAVE(1, 2);
    flip_bit("step_00000002/model.safetensors", -5);
    SAVE(3);
    /* step 2 is damaged, so step 1 stays: a resume uses it if step 3 is damaged later */
    assert_string_equal(listing(), "step_00000001 step_00000002.passed-over step_00000003 ");
    SAVE(4);
    assert_string_equal(listing(), "step_00000002.passed-over step_00000003 step_00000004 ");
}

/* A checkpoint may be damaged after it was written. So every save reads again the older checkpoint that a resume would
 * fall back to. */
static void test_an_older_one_breaks_while_the_run_goes_on(void **state) {
    (void)state;
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    Saver *s = saver_create(&f.state);
    for (int64_t step = 1; step <= 4; step++) {
        fixture_fill(&f, step);
        saver_start(s, step, NULL);
        saver_finish(s);
        if (step == 2) flip_bit("step_00000002/model.safetensors", -5);
        if (step == 3) assert_string_equal(listing(), "step_00000001 step_00000002.passed-over step_00000003 ");
    }
    assert_string_equal(listing(), "step_00000002.passed-over step_00000003 step_00000004 ");
    saver_destroy(s);
    fixture_destroy(&f);
}

static void test_leftovers_go_and_strangers_stay(void **state) {
    (void)state;
    SAVE(1);
    mkdir(path_of("%s/checkpoints/step_00000009.tmp", dir).text, 0777);
    mkdir(path_of("%s/checkpoints/step_00000002.tmp", dir).text, 0777);
    fclose(fopen(path_of("%s/checkpoints/step_00000002.tmp/model.safetensors", dir).text, "w"));
    mkdir(path_of("%s/checkpoints/.trash-step_00000001", dir).text, 0777);
    mkdir(path_of("%s/checkpoints/best", dir).text, 0777);
    mkdir(path_of("%s/checkpoints/step_1", dir).text, 0777);
    mkdir(path_of("%s/checkpoints/step_00000001.old", dir).text, 0777);
    assert_int_equal(resume("", 1).code, 0);
    SAVE(2, 3);
    assert_string_equal(listing(), "best step_00000001.old step_00000002 step_00000003 step_1 ");
}

/* An interrupted save leaves a folder step_XXXXXXXX.tmp. From it only files that a save writes are deleted; other files
 * are kept. */
static void test_files_of_others_stay(void **state) {
    (void)state;
    char  *text;
    SAVE(1);
    mkdir(path_of("%s/checkpoints/step_00000002.tmp", dir).text, 0777);
    fclose(fopen(path_of("%s/checkpoints/step_00000002.tmp/model.safetensors", dir).text, "w"));
    assert_int_equal(io_replace_file(path_of("%s/checkpoints/step_00000002.tmp/mine", dir).text, "my", 2), 0);
    SAVE(2);
    assert_string_equal(listing(), "step_00000001 step_00000002 step_00000002.tmp.passed-over ");
    assert_int_equal(access(path_of("%s/checkpoints/step_00000002.tmp.passed-over/model.safetensors", dir).text, F_OK), -1);
    assert_int_equal(io_read_file(path_of("%s/checkpoints/step_00000002.tmp.passed-over/mine", dir).text, 9, &text), 2);
    free(text);
    assert_int_equal(symlink("step_00000001", path_of("%s/checkpoints/step_00000003.tmp", dir).text), 0);
    SAVE(3);
    assert_string_equal(listing(), "step_00000002 step_00000002.tmp.passed-over step_00000003 step_00000003.tmp.passed-over ");
    assert_int_equal(resume("", 3).code, 0);
}

/* After a run fell back to an older checkpoint, the damaged one that it skipped is kept and never used again. */
static void test_passed_over_steps_go_out_of_the_way(void **state) {
    (void)state;
    SAVE(10, 20);
    flip_bit("step_00000020/model.safetensors", -5);
    SAVE(15);
    assert_string_equal(listing(), "step_00000010 step_00000015 step_00000020.passed-over ");
    SAVE(20);
    assert_int_equal(resume("", 20).code, 0);
    flip_bit("step_00000020/model.safetensors", -5);
    SAVE(21);
    assert_string_equal(listing(), "step_00000015 step_00000020.passed-over step_00000020.passed-over-2 step_00000021 ");
}

/* A checkpoint under the name of another step, and a link to one, were made by the user, so they are kept. */
static void test_renamed_and_linked_steps_stay(void **state) {
    (void)state;
    struct stat st;
    SAVE(4);
    save_steps((const int64_t[]){6, 0}, "", F32);
    rename(path_of("%s/checkpoints/step_00000006", dir).text, path_of("%s/checkpoints/step_00000008", dir).text);
    assert_int_equal(symlink("step_00000004", path_of("%s/checkpoints/step_00000010", dir).text), 0);
    Child c = resume("", 4);
    assert_int_equal(c.code, 0);
    assert_non_null(strstr(c.said, "step_00000010 is passed over: it is not a folder; a later save renames it to step_00000010.passed-over"));
    assert_non_null(strstr(c.said, "step_00000008 is passed over: state.json is that of step 6"));
    SAVE(8);
    assert_string_equal(listing(), "step_00000004 step_00000008 step_00000008.passed-over step_00000010.passed-over ");
    assert_true(lstat(path_of("%s/checkpoints/step_00000010.passed-over", dir).text, &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(resume("", 8).code, 0);
    assert_int_equal(symlink("step_00000004", path_of("%s/checkpoints/step_00000010", dir).text), 0);
    SAVE(10);
    assert_string_equal(listing(), "step_00000008 step_00000008.passed-over step_00000010 step_00000010.passed-over step_00000010.passed-over-2 ");
    assert_int_equal(access(path_of("%s/checkpoints/step_00000008.passed-over/state.json", dir).text, F_OK), 0);
}

static void test_saving_a_step_again(void **state) {
    (void)state;
    struct stat before, after;
    SAVE(10, 20);
    Path file = path_of("%s/checkpoints/step_00000020/model.safetensors", dir);
    stat(file.text, &before);
    SAVE(20);
    stat(file.text, &after);
    /* model.safetensors is not written again, because step 20 was saved already and is undamaged */
    assert_int_equal(before.st_ino, after.st_ino);
    flip_bit("step_00000020/model.safetensors", -5);
    SAVE(20);
    stat(file.text, &after);
    assert_string_equal(listing(), "step_00000010 step_00000020 step_00000020.passed-over ");
    assert_int_equal(resume("", 20).code, 0);
}

/* After a rollback the same step number is reached with other data, so its checkpoint has other contents. */
static void test_saving_a_step_after_a_rollback(void **state) {
    (void)state;
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    fixture_fill(&f, 20);
    checkpoint_save(&f.state, 20);
    fixture_fill(&f, 21); /* fills the state for step 20 again, with other values than in its checkpoint */
    f.train_state.start.samples += 12;
    checkpoint_save(&f.state, 20);
    assert_int_equal(checkpoint_resume(&f.state).step, 20);
    assert_int_equal(fixture_differences(&f, 21), 0);
    fixture_destroy(&f);
}

static void roll_back_piece(void *argument) {
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    int64_t step = checkpoint_roll_back(&f.state).step;
    fixture_destroy(&f);
    if (step != *(int64_t *)argument) _exit(1);
}

/* A rollback returns to the weights of step 0 only if the run has never saved a checkpoint. */
static void test_rolling_back(void **state) {
    (void)state;
    int64_t none = 0, one = 1;
    assert_int_equal(child_run(roll_back_piece, &none).code, 0);
    SAVE(1, 2);
    flip_bit("step_00000002/model.safetensors", -5);
    assert_int_equal(child_run(roll_back_piece, &one).code, 0);
    flip_bit("step_00000001/model.safetensors", -5);
    Child c = child_run(roll_back_piece, &none);
    assert_int_equal(c.code, EXIT_DATA);
    assert_non_null(strstr(c.said, "undamaged (of 2; step_00000002:"));
}

static void test_find(void **state) {
    (void)state;
    Path out;
    assert_int_equal(folder_find(dir, &out, NULL), 0);
    SAVE(1, 2);
    assert_int_equal(folder_find(dir, &out, NULL), 1);
    assert_string_equal(out.text, path_of("%s/checkpoints/step_00000002", dir).text);
    rename(out.text, path_of("%s/best", dir).text);
    /* a copied checkpoint may have any name */
    assert_int_equal(folder_find(path_of("%s/best", dir).text, &out, NULL), 1);
    assert_string_equal(out.text, path_of("%s/best", dir).text);
    assert_int_equal(folder_find(dir, &out, NULL), 1);
    assert_string_equal(out.text, path_of("%s/checkpoints/step_00000001", dir).text);
    assert_int_equal(folder_find("/nonexistent", &out, NULL), 0);
    assert_false(exists("checkpoints/step_00000002"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(test_round_trip_fp32),
        CASE(test_round_trip_bf16),
        CASE(test_round_trip_stage_0),
        CASE(test_same_weights_same_bytes),
        CASE(test_folder_is_as_described),
        CASE(test_falls_back),
        CASE(test_resume_words),
        CASE(test_versions),
        CASE(test_other_settings),
        CASE(test_other_data),
        CASE(test_keeps_the_newest),
        CASE(test_milestones_stay),
        CASE(test_the_best_stays),
        CASE(test_a_prune_that_never_came),
        CASE(test_never_prunes_below_what_verifies),
        CASE(test_an_older_one_breaks_while_the_run_goes_on),
        CASE(test_lost_checkpoints), CASE(test_leftovers_go_and_strangers_stay),
        CASE(test_files_of_others_stay), CASE(test_renamed_and_linked_steps_stay), CASE(test_passed_over_steps_go_out_of_the_way),
        CASE(test_saving_a_step_again),
        CASE(test_saving_a_step_after_a_rollback),
        CASE(test_rolling_back),
        CASE(test_find),
    };
    return RUN_ALONE(tests);
}
