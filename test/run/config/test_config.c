/* test_config.c - the run config: refusals and their text, defaults, overrides. */
#include <glob.h>

#include "model/precision.h"
#include "run/config/faults.h"
#include "test/run/config/bad_configs.h"
#include "test/run/config/config_fixture.h"
#include "test/run/config/every_value.h"

static int lines(const char *text) {
    int count = 0;
    for (; *text; text++) count += *text == '\n';
    return count;
}

/* Asserts that some line of the messages `faults` begins with `begins` and contains `says` and `also`. `input` is
 * printed if not. */
static void expect_line(const char *faults, const char *begins, const char *says, const char *also, const char *input) {
    if (!faults) fail_msg("accepted: %s", input);
    for (const char *line = faults; *line; line = strchr(line, '\n') + 1) {
        char   one[2048];
        size_t length = strcspn(line, "\n");
        snprintf(one, sizeof one, "%.*s", (int)length, line);
        if (!strncmp(one, begins, strlen(begins)) && strstr(one, says) && strstr(one, also)) return;
    }
    fail_msg("%s\n  gave:\n%s  want: %s ... %s ... %s", input, faults, begins, says, also);
}

/* Writes {"section": { and "name": value}} to text, on two lines, for the key "section.name" (only { on line 1 if
 * the key has no dot). On line 2 the name begins at column 1, and the value at column (length of the name) + 5. */
static void nested(char *text, size_t capacity, const char *key, const char *value) {
    const char *dot = strchr(key, '.');
    if (dot) snprintf(text, capacity, "{\"%.*s\": {\n\"%s\": %s}}", (int)(dot - key), key, dot + 1, value);
    else     snprintf(text, capacity, "{\n\"%s\": %s}", key, value);
}
static int name_length(const char *key) { return (int)strlen(strchr(key, '.') ? strchr(key, '.') + 1 : key); }

static void test_bad_values(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(BAD_VALUES); i++) {
        const BadValue *bad = &BAD_VALUES[i];
        Config config;
        char   text[512], place[96], argument[512];
        nested(text, sizeof text, bad->key, bad->value);
        /* the config has only this key; the fault of the value is reported although required keys are missing */
        if (!strstr(bad->got, "no multiple")) {
            char *faults = load(text, NULL, 0, &config);
            snprintf(place, sizeof place, "%s:2:%d: error: ", file, name_length(bad->key) + 5);
            expect_line(faults, place, bad->allowed, bad->got, text);
            free(faults);
        }
        /* the value as an override of a good config must be the only fault */
        snprintf(argument, sizeof argument, "%s=%s", bad->key, bad->value);
        char *faults = load(GOOD, argument, 0, &config);
        expect_line(faults, "override ", bad->allowed, bad->got, argument);
        if (lines(faults) != 1) fail_msg("%s: one fault, and told:\n%s", argument, faults);
        free(faults);
    }
}

static void test_bad_keys(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(BAD_KEYS); i++) {
        const BadKey *bad = &BAD_KEYS[i];
        Config config;
        char   text[512], place[96], says[256], meant[128], argument[256];
        snprintf(says, sizeof says, "unknown key \"%s\"; ", bad->key);
        snprintf(meant, sizeof meant, "did you mean \"%s\"?", bad->meant);
        snprintf(place, sizeof place, "%s:2:1: error: ", file);
        nested(text, sizeof text, bad->key, "1");
        char *faults = load(text, NULL, 0, &config);
        expect_line(faults, place, says, meant, text);
        free(faults);
        snprintf(argument, sizeof argument, "%s=1", bad->key);
        faults = load(GOOD, argument, 0, &config);
        expect_line(faults, "override ", says, meant, argument);
        assert_int_equal(lines(faults), 1);
        free(faults);
    }
}

static void test_bad_sections(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(BAD_SECTIONS); i++) {
        const BadKey *bad = &BAD_SECTIONS[i];
        Config config;
        char   text[512], place[96], says[256], meant[128];
        snprintf(text, sizeof text, "{\n\"%s\": {\"zzz\": 1}}", bad->key);
        snprintf(says, sizeof says, "unknown key \"%s\"; ", bad->key);
        snprintf(meant, sizeof meant, "did you mean \"%s\"?", bad->meant);
        snprintf(place, sizeof place, "%s:2:1: error: ", file);
        char *faults = load(text, NULL, 0, &config);
        expect_line(faults, place, says, meant, text);
        snprintf(place, sizeof place, "%s:2:%d: error: ", file, (int)strlen(bad->key) + 6);
        snprintf(says, sizeof says, "unknown key \"%s.zzz\"; %s takes ", bad->meant, bad->meant);
        expect_line(faults, place, says, "", text);
        free(faults);
    }
}

static void test_bad_overrides(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(BAD_OVERRIDES); i++) {
        const BadOverride *bad = &BAD_OVERRIDES[i];
        Config config;
        char  *faults = load(GOOD, bad->overrides, bad->ranks, &config);
        expect_line(faults, "", bad->says, bad->also, bad->overrides);
        if (strstr(bad->overrides, "1e999")) assert_int_equal(lines(faults), 1);
        if (!strstr(bad->says, "model.n_layer") && lines(faults) > 3) fail_msg("%s: too much is told:\n%s", bad->overrides, faults);
        free(faults);
    }
}

static void test_bad_files(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(BAD_FILES); i++) {
        const BadFile *bad = &BAD_FILES[i];
        Config config;
        char   place[96];
        snprintf(place, sizeof place, "%s:%s: error: ", file, bad->place);
        char *faults = load(bad->text, NULL, 0, &config);
        expect_line(faults, place, bad->says, "", bad->text);
        free(faults);
    }
}

static void test_all_faults_at_once(void **state) {
    (void)state;
    Config config;
    char   want[1024];
    char  *faults = load("{\"run\": {\"setps\": 600, \"seed\": -1},\n \"model\": {\"preset\": \"gpt2-124m\", \"n_head\": 7},\n"
                         " \"batch\": {\"global_tokens\": 4096, \"micro_batch\": 1}}", "lr=1", 0, &config);
    snprintf(want, sizeof want,
             "%s:1:10: error: unknown key \"run.setps\"; did you mean \"run.steps\"?\n"
             "%s:1:32: error: run.seed must be an integer from 0 to 9007199254740992, not -1\n"
             "override \"lr=1\": error: unknown key \"lr\"; did you mean \"optimizer.learning_rate\"?\n"
             "%s:1:1: error: missing key \"data.train\": token shards (files of tokens) to train on: a name, a glob or a list of these, or a blend: a list of {path, weight, until_tokens}; "
             "a name that exists is that file, even with wildcards in it (a string or a list of strings, or of sources with weights)\n"
             "%s:2:45: error: model.n_embd = 768 must be a multiple of model.n_head = 7; nearest valid widths: 763 and 770\n",
             file, file, file, file);
    assert_string_equal(faults, want);
    free(faults);
    /* a fault of JSON syntax is the only one reported */
    faults = load("{\"run\": {\"setps\": 600, \"seed\": -1},\n oops}", "lr=1", 0, &config);
    snprintf(want, sizeof want, "%s:2:2: error: expected a key in double quotes, found 'o'\n", file);
    assert_string_equal(faults, want);
    free(faults);
}

/* Duplicate keys and numbers out of range do not stop the reading of a config. They are listed with all other faults,
 * and their keys get no second message. */
static void test_soft_faults(void **state) {
    (void)state;
    Config config;
    char   want[2048];
    char  *faults = load("{\"run\": {\"seed\": -1,\n"
                         "  \"seed\": 3, \"steps\": 9007199254740993},\n"
                         " \"model\": {\"preset\": \"gpt2-124m\", \"n_head\": 7},\n"
                         " \"optimizer\": {\"learning_rate\": 1e400, \"bta1\": 0.9,\n"
                         "  \"beta2\": 1.5, \"eps\": true},\n"
                         " \"batch\": {\"global_tokens\": 4097, \"micro_batch\": 1.00000000000000000001}}",
                         "log.every=1e400", 0, &config);
    snprintf(want, sizeof want,
             "%s:2:3: error: duplicate key \"run.seed\", first at line 1\n"
             "%s:2:23: error: run.steps: the integer 9007199254740993 is beyond 2^53 = 9007199254740992 and cannot be kept exactly\n"
             "%s:4:33: error: optimizer.learning_rate: the number 1e400 is too large\n"
             "%s:4:40: error: unknown key \"optimizer.bta1\"; did you mean \"optimizer.beta1\"?\n"
             "%s:5:12: error: optimizer.beta2 must be a number of at least 0 and below 1, not 1.5\n"
             "%s:5:24: error: optimizer.eps must be a number from 1e-30 to 1, not true\n"
             "%s:6:50: error: batch.micro_batch: the number 1.00000000000000000001 cannot be kept exactly; it would be read as 1\n"
             "override \"log.every=1e400\": error: log.every: the number 1e400 is too large\n"
             "%s:1:1: error: missing key \"data.train\": token shards (files of tokens) to train on: a name, a glob or a list of these, or a blend: a list of {path, weight, until_tokens}; "
             "a name that exists is that file, even with wildcards in it (a string or a list of strings, or of sources with weights)\n"
             "%s:3:45: error: model.n_embd = 768 must be a multiple of model.n_head = 7; nearest valid widths: 763 and 770\n",
             file, file, file, file, file, file, file, file, file);
    assert_string_equal(faults, want);
    free(faults);
    /* duplicate keys and numbers out of range are not reported if there is a fault of JSON syntax */
    faults = load("{\"run\": {\"seed\": 1, \"seed\": 1e400},\n oops}", NULL, 0, &config);
    snprintf(want, sizeof want, "%s:2:2: error: expected a key in double quotes, found 'o'\n", file);
    assert_string_equal(faults, want);
    free(faults);
}

/* A config file may give a section twice. Both are read. If they differ in a value, no rule that compares keys uses
 * that value. An override neither hides nor repeats a fault of the file. */
static void test_duplicate_sections(void **state) {
    (void)state;
    Config config;
    char   want[1024], text[2048];
    int    length = (int)(strrchr(GOOD, '}') - GOOD);
    snprintf(text, sizeof text, "%.*s,\n\"batch\": {\"micro_batch\": 5},\n\"run\": {\"sed\": 2, \"seed\": 1e400}}", length, GOOD);
    char *faults = load(text, "run.seed=4", 0, &config);
    snprintf(want, sizeof want,
             "%s:8:1: error: duplicate key \"batch\", first at line 4\n"
             "%s:9:1: error: duplicate key \"run\", first at line 1\n"
             "%s:9:9: error: unknown key \"run.sed\"; did you mean \"run.seed\"?\n"
             "%s:9:27: error: run.seed: the number 1e400 is too large\n", file, file, file, file);
    assert_string_equal(faults, want);
    free(faults);
}

static void test_unreadable(void **state) {
    (void)state;
    Config config;
    char  *faults = config_load("no/such/config.json", NULL, 0, 0, &config);
    free_later(config);
    assert_string_equal(faults, "no/such/config.json: error: cannot read: No such file or directory\n");
    free(faults);
    faults = config_load("/proc", NULL, 0, 0, &config);
    free_later(config);
    assert_string_equal(faults, "/proc: error: cannot read: is a directory, not a file, and no run folder, because it has no "
                                "config.json: give a config, with run.dir= if a run lies here\n");
    free(faults);
    char *name = calloc(1, 5001);
    memset(name, 'a', 5000);
    faults = config_load(name, NULL, 0, 0, &config);
    free_later(config);
    assert_non_null(strstr(faults, "File name too long"));
    free(faults);
    free(name);
}

/* One cause gives one message. A faulty list gets no second message, and "did you mean" never proposes an empty
 * word. */
static void test_one_message(void **state) {
    (void)state;
    Config config;
    char  *faults = load(GOOD, "run.allow_change=[\"zzz\",5]", 0, &config);
    assert_string_equal(faults,
                        "override \"run.allow_change=[\\\"zzz\\\",5]\": error: run.allow_change[1] must be a string, not 5\n");
    free(faults);
    faults = load(GOOD, "model.preset=x", 0, &config);
    assert_int_equal(lines(faults), 1);
    assert_non_null(strstr(faults, "model.preset must be \"\", \"gpt2-124m\""));
    assert_null(strstr(faults, "did you mean"));
    free(faults);
}

static void test_long_texts(void **state) {
    (void)state;
    Config config;
    char  *argument = calloc(1, 80000);
    memset(argument, 'x', 70000);
    memcpy(argument, "sample.prompt=", 14);
    char *faults = load(GOOD, argument, 0, &config);
    assert_int_equal(lines(faults), 1);
    assert_non_null(strstr(faults, "sample.prompt is a string of 69986 bytes; at most 65535 are allowed"));
    free(faults);
    memset(argument, 'k', 400);
    strcpy(argument + 400, "=1");
    faults = load(GOOD, argument, 0, &config);
    assert_int_equal(lines(faults), 1);
    assert_non_null(strstr(faults, "error: unknown key \"kkkk"));
    free(faults);
    free(argument);
}

/* A config with 50,001 unknown keys gets 100 messages and a count of the other faults. */
static void test_many_faults(void **state) {
    (void)state;
    Config config;
    char  *text = malloc(1 << 20), *at = text + sprintf(text, "{\"run\": {");
    for (int i = 0; i < 50000; i++) at += sprintf(at, "\"some_key_%d\":1,", i);
    sprintf(at, "\"x\":1}}");
    char *faults = load(text, NULL, 0, &config);
    assert_int_equal(lines(faults), 101);
    assert_non_null(strstr(faults, "and 499"));
    free(faults);
    free(text);
}

/* The fault in an entry of a list is reported at that entry, whatever precedes it. */
static void test_blend_places(void **state) {
    (void)state;
    Config config;
    char   want[512];
    char  *faults = load("{\"run\": {\"steps\": 1}, \"model\": {\"preset\": \"gpt2-124m\"}, \"batch\": {\"global_tokens\": 1024, \"micro_batch\": 1},\n"
                         "\"data\": {\"train\": [{\"path\": \"a\", \"weight\": 0.5, \"$comment\": [1, 2]},\n"
                         "  {\"path\": \"b\", \"weight\": true}]}}", NULL, 0, &config);
    snprintf(want, sizeof want, "%s:3:3: error: data.train[1].weight must be a number above 0 and at most 1, not true\n", file);
    assert_string_equal(faults, want);
    free(faults);
}

/* A list with more sources than the program's tables can hold is refused. */
static void test_too_many_sources(void **state) {
    (void)state;
    Config config;
    char   text[12000], at_most[64];
    for (int count = BLEND_SOURCES + 1; count <= BLEND_SHARES + 1; count += BLEND_SHARES - BLEND_SOURCES) {
        int used = sprintf(text, "data.train=[");
        for (int i = 0; i < count; i++)
            used += sprintf(text + used, "%s{\"path\":\"s%d\",\"weight\":%.17g}", i ? "," : "", i, 1.0 / count);
        strcpy(text + used, "]");
        char *faults = load(GOOD, text, 0, &config);
        snprintf(at_most, sizeof at_most, "at most %d are allowed", count > BLEND_SHARES ? BLEND_SHARES : BLEND_SOURCES);
        assert_non_null(strstr(faults, at_most));
        assert_int_equal(lines(faults), 1);
        free(faults);
    }
}

/* --- accepted configs --------------------------------------------------------------------------------------------- */

static void test_defaults(void **state) {
    (void)state;
    Config c;
    load_good(GOOD, NULL, 0, &c);
    assert_string_equal(c.path, file);
    assert_string_equal(c.run.dir, "runs/demo");
    assert_true(c.run.steps == 600 && c.run.seed == 1337 && c.run.resume == RESUME_AUTO && c.run.allow_change.count == 0);
    assert_true(c.run.max_minutes == 0 && c.run.on_nonfinite == ON_TROUBLE_STOP && c.run.on_spike == ON_TROUBLE_WARN &&
                c.run.spike_threshold == 10 && c.run.max_skips == 3 && c.run.verify_every == 1000 &&
                c.run.watchdog_seconds == 0);
    assert_true(c.model.shape.n_layer == 4 && c.model.shape.n_head == 6 && c.model.shape.n_embd == 192 &&
                c.model.shape.n_positions == 256);
    assert_true(c.model.shape.vocab_size == 256 && !*c.model.preset && !*c.model.init_from);
    assert_true(c.data.train.count == 1 && c.data.val.count == 1 && c.data.shuffle == 1 && !*c.data.tokenizer);
    assert_string_equal(c.data.train.item[0], "demo/train_*.bin");
    assert_true(c.batch.global_tokens == 12288 && c.batch.micro_batch == 4 && c.batch.seq_len == 256);
    assert_string_equal(c.optimizer.name, "adamw");
    assert_true(c.optimizer.learning_rate == 2e-3 && c.optimizer.beta1 == 0.9 && c.optimizer.beta2 == 0.95 &&
                c.optimizer.eps == 1e-8);
    assert_true(c.optimizer.weight_decay == 0.1 && c.optimizer.grad_clip == 1.0);
    assert_true(c.schedule.name == SCHEDULE_COSINE && c.schedule.warmup_steps == 50 && c.schedule.final_lr_fraction == 0.1);
    assert_true(c.optimizer.weight_decay_schedule == WEIGHT_DECAY_CONSTANT && c.schedule.decay == DECAY_SQRT);
    assert_true(c.schedule.decay_fraction == 0.2 && c.precision == PRECISION_AUTO);
    assert_true(c.parallel.zero_stage == 1 && c.parallel.comm == PARALLEL_AUTO && !c.parallel.deterministic &&
                c.memory.recompute == 0);
    assert_true(c.checkpoint.every == 1000 && c.checkpoint.keep == 2 && c.eval.every == 100 && c.eval.tokens == 0);
    assert_true(c.sample.every == 0 && c.sample.tokens == 128 && !*c.sample.prompt && c.sample.temperature == 0.8 &&
                c.sample.top_k == 0);
    assert_true(c.log.every == 1);
}

static void test_good_values(void **state) {
    (void)state;
    Config c;
    char   dir[96];
    load_good(GOOD,
              "run.steps=6e2|run.seed=9007199254740992|optimizer.learning_rate=3e-4|data.train=[\"a\",\"b b\"]|data.val=|precision=fp32"
              "|optimizer.beta1=0|data.shuffle=false|sample.prompt=In the beginning|optimizer.grad_clip=1e30|$schema=x",
              3, &c);
    assert_true(c.run.steps == 600 && c.run.seed == 9007199254740992 && c.optimizer.learning_rate == 3e-4 &&
                c.optimizer.beta1 == 0);
    assert_true(c.data.train.count == 2 && c.data.val.count == 0 && c.precision == PRECISION_FP32 && !c.data.shuffle);
    assert_string_equal(c.data.train.item[1], "b b");
    assert_string_equal(c.sample.prompt, "In the beginning");
    load_good(GOOD, "optimizer={\"beta1\":0.5,\"beta2\":0.6}|run.steps=1|run.steps=2|schedule.name=\"wsd\"|run.dir=007", 0, &c);
    assert_true(c.optimizer.beta1 == 0.5 && c.optimizer.beta2 == 0.6 && c.optimizer.learning_rate == 2e-3 && c.run.steps == 2);
    assert_true(c.schedule.name == SCHEDULE_WSD);
    assert_string_equal(c.run.dir, "007");
    load_good(GOOD, "data.train=[{\"path\":\"a\",\"weight\":0.33333},{\"path\":\"b\",\"weight\":0.66667}]", 0, &c);
    assert_true(c.data.train.count == 2 && c.data.train.share[1].weight == 0.66667 && c.data.train.share[1].until_tokens == 0);
    load_good(GOOD, "data.train=[{\"path\":\"a\",\"weight\":1,\"until_tokens\":7},{\"path\":\"a\",\"weight\":1}]", 0, &c);
    assert_true(c.data.train.share[0].until_tokens == 7);
    assert_string_equal(c.data.train.item[1], "a");
    load_good(GOOD, "data.train=x", 0, &c);
    assert_null(c.data.train.share);
    /* head size 192 is allowed on the CPU */
    load_good(GOOD, "run.steps=5|run.allow_change=optimizer|model.n_head=1", 0, &c);
    assert_string_equal(c.run.allow_change.item[0], "optimizer");
    load_good("{\"$schema\": \"./s.json\", \"run\": {\"steps\": 1}, \"model\": {\"preset\": \"gpt2-355m\", \"n_layer\": 2},"
              " \"data\": {\"train\": [\"x\"]}, \"batch\": {\"global_tokens\": 4096, \"micro_batch\": 2}}", NULL, 2, &c);
    assert_true(c.model.shape.n_layer == 2 && c.model.shape.n_head == 16 && c.model.shape.n_embd == 1024 &&
                c.model.shape.n_positions == 1024);
    assert_true(c.model.shape.vocab_size == 50257 && c.batch.seq_len == 1024);
    snprintf(dir, sizeof dir, "runs/%s", strrchr(file, '/') + 1);
    assert_string_equal(c.run.dir, dir);
    static const char *const names[][2] = {{"configs/a.b.json", "runs/a.b"},
                                           {"a/.json", "runs/.json"},
                                           {".b", "runs/.b"},
                                           {"c", "runs/c"}};
    static const char        no_dir[] =
        "{\"run\": {\"steps\": 1}, \"model\": {\"preset\": \"gpt2-124m\"}, \"data\": {\"train\": \"x\"},"
        " \"batch\": {\"global_tokens\": 1024, \"micro_batch\": 1}}";
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_null(config_parse(names[i][0], no_dir, strlen(no_dir), NULL, 0, 1, &c));
        assert_string_equal(c.run.dir, names[i][1]);
        config_free(&c);
    }
}

static void test_shipped_configs(void **state) {
    (void)state;
    glob_t found;
    if (glob("configs/*.json", 0, NULL, &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (strstr(found.gl_pathv[i], ".schema.json")) continue;
        Config config;
        char  *faults = config_load(found.gl_pathv[i], NULL, 0, 0, &config);
        free_later(config);
        if (faults) fail_msg("%s", faults);
    }
    globfree(&found);
}

static void test_nearest(void **state) {
    (void)state;
    assert_int_equal(edit_distance("kitten", "sitting"), 3);
    assert_int_equal(edit_distance("trian", "train"), 1);
    assert_int_equal(edit_distance("", "abc"), 3);
    assert_int_equal(edit_distance("A-b", "a_B"), 0);
    char *long_word = calloc(1, 100001);
    memset(long_word, 'x', 100000);
    assert_in_range(edit_distance(long_word, "x"), 63, 63);
    free(long_word);
}

/* Loads a good config in which one value was changed. It is refused with messages that name the file, or it stays a
 * valid config after conversion to JSON and back. */
static void read_changed(char *text, void *good) {
    Config config, again;
    char  *faults = config_parse("changed.json", text, strlen(text), NULL, 0, 2, &config);
    if (!faults) {
        cJSON *json = config_to_json(&config);
        char  *fault = config_from_json(json, &again);
        if (fault) fail_msg("%s: %s", text, fault);
        config_free(&again);
        cJSON_Delete(json);
        ++*(int *)good;
    } else if (!strstr(faults, "changed.json:")) {
        fail_msg("%s: %s", text, faults);
    }
    free(faults);
    config_free(&config);
}

static void test_every_value(void **state) {
    (void)state;
    int good = 0, all = every_value(GOOD, read_changed, &good);
    assert_true(all > 600 && good > 20 && good < all / 2);
    good = 0, all = every_value("{\"run\":{\"steps\":1},\"model\":{\"preset\":\"gpt2-124m\"},\"batch\":{\"global_tokens\":2048,\"micro_batch\":1},"
                                "\"data\":{\"train\":[{\"path\":\"a\",\"weight\":1,\"until_tokens\":9},{\"path\":\"a\",\"weight\":1}]}}",
                                read_changed, &good);
    assert_true(all > 200 && good > 2 && good < all / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_values),    cmocka_unit_test(test_bad_keys),   cmocka_unit_test(test_bad_sections),
        cmocka_unit_test(test_bad_overrides), cmocka_unit_test(test_bad_files),  cmocka_unit_test(test_all_faults_at_once),
        cmocka_unit_test(test_unreadable),    cmocka_unit_test(test_many_faults), cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_good_values),   cmocka_unit_test(test_shipped_configs), cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_soft_faults),   cmocka_unit_test(test_duplicate_sections), cmocka_unit_test(test_every_value),
        cmocka_unit_test(test_blend_places), cmocka_unit_test(test_too_many_sources), cmocka_unit_test(test_one_message),   cmocka_unit_test(test_long_texts),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
