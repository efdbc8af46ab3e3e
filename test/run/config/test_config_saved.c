/* test_config_saved.c - the saved copy of a config, changes at a resume, presets, the option table, help and schema. */
#include "core/json.h"
#include "core/terminal.h"
#include "model/model.h"
#include "run/config/options.h"
#include "test/run/config/config_fixture.h"

static void test_presets(void **state) {
    (void)state;
    static const struct { const char *name; int64_t parameters; } want[] = {
        {"gpt2-124m", 124439808}, {"gpt2-355m", 354823168}, {"gpt2-774m", 774030080}, {"gpt2-1558m", 1557611200},
        {"llama-160m", 162417408}, {"llama3-1b", 1235814400}, {"llama3-8b", 8030261248},
        {"qwen3-0.6b", 596049920}, {"qwen3-1.7b", 1720574976}, {"qwen3-4b", 4022468096}, {"qwen3-8b", 8190735360},
        {"qwen3-30b-a3b", 30532122624}, {"qwen3-moe-small", 158493184},
    };
    static const char sizeless[] = "{\"run\": {\"steps\": 1}, \"model\": {}, \"data\": {\"train\": \"x\"},"
                                   " \"batch\": {\"global_tokens\": 8, \"micro_batch\": 1, \"seq_len\": 8}}";
    for (int i = 1; PRESET_NAMES[i]; i++) { /* every file of configs/presets is a valid part of a config */
        Config c;
        char   override[64];
        snprintf(override, sizeof override, "model.preset=%s", PRESET_NAMES[i]);
        load_good(sizeless, override, 0, &c);
        assert_string_equal(c.model.preset, PRESET_NAMES[i]);
    }
    for (size_t i = 0; i < COUNT(want); i++) {
        Config  c;
        char    override[64];
        int64_t parameters, by_table = 0;
        int     rows;
        snprintf(override, sizeof override, "model.preset=%s", want[i].name);
        load_good(sizeless, override, 0, &c);
        assert_true(model_parameters(c.model.shape, &parameters));
        assert_true(parameters == want[i].parameters);
        Param *param = model_params(c.model.shape, &rows);
        for (int r = 0; r < rows; r++) by_table += param[r].dim[0] * (param[r].dims == 2 ? param[r].dim[1] : 1);
        free(param);
        assert_true(parameters == by_table);
    }
    Config  c = {.model = {.shape = GPT2_SHAPE(1, 1, 876706527, 1, 1)}}; /* the model has 12 C^2 + 17 C parameters for
                                                                          * width C, just below 2^63 */
    int64_t parameters;
    assert_true(model_parameters(c.model.shape, &parameters));
    assert_true(parameters == 12 * c.model.shape.n_embd * c.model.shape.n_embd + 17 * c.model.shape.n_embd);
    c.model.shape.n_embd++;
    assert_false(model_parameters(c.model.shape, &parameters));
    /* sizes with the largest values that the config allows: more parameters than 2^63 */
    c.model.shape.n_layer = 65536, c.model.shape.n_embd = c.model.shape.n_positions = c.model.shape.vocab_size = INT32_MAX;
    assert_false(model_parameters(c.model.shape, &parameters));
}

/* --- saved and compared ------------------------------------------------------------------------------------------- */

static cJSON *printed_and_read(cJSON *json) {
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    Json      parsed;
    JsonFault fault;
    if (!json_parse(text, strlen(text), JSON_LIMIT, &parsed, &fault))
        fail_msg("%d:%d: %s\n%s", fault.at.line, fault.at.column, fault.text, text);
    cJSON *root = cJSON_Duplicate(parsed.root, 1);
    json_free(&parsed);
    free(text);
    return root;
}

static void test_round_trip(void **state) {
    (void)state;
    static const char *const overrides[] = {
        NULL,
        "run.seed=9007199254740991|optimizer.learning_rate=0.30000000000000004|optimizer.eps=1.0000000000000002e-8|data.val=|run.max_minutes=0.1",
        "model.preset=gpt2-124m|sample.prompt=\"a\\n\\u0001\\\"\xc3\xa9\"|run.allow_change=[\"model\",\"run.seed\"]|memory.recompute=block"
        "|data.train=[{\"path\":\"a\",\"weight\":0.1,\"until_tokens\":9007199254740992},{\"path\":\"b\",\"weight\":0.9,\"until_tokens\":9007199254740992},{\"path\":\"b\",\"weight\":1}]"
        "|parallel.comm=mpi|precision=bf16|schedule.name=wsd|run.on_nonfinite=rollback|run.resume=must",
    };
    for (size_t i = 0; i < COUNT(overrides); i++) {
        Config a, b;
        load_good(GOOD, overrides[i], 0, &a);
        cJSON *saved = printed_and_read(config_to_json(&a));
        char  *fault = config_from_json(saved, &b);
        free_later(b);
        assert_null(fault);
        char *once = cJSON_Print(saved);
        cJSON *again = config_to_json(&b);
        char  *twice = cJSON_Print(again);
        cJSON *third = printed_and_read(again);
        assert_true(cJSON_Compare(saved, third, 1));
        assert_true(a.run.seed == b.run.seed && a.optimizer.learning_rate == b.optimizer.learning_rate &&
                    a.optimizer.eps == b.optimizer.eps);
        assert_string_equal(a.sample.prompt, b.sample.prompt);
        assert_null(config_compare(&b, saved, NULL));
        /* the saved copy is itself a valid config */
        Config c;
        load_good(twice, NULL, 0, &c);
        assert_string_equal(c.run.dir, a.run.dir);
        cJSON_Delete(saved);
        cJSON_Delete(third);
        free(once);
        free(twice);
    }
}

static void test_from_json_refuses(void **state) {
    (void)state;
    Config a, b;
    load_good(GOOD, NULL, 0, &a);
    cJSON *saved = config_to_json(&a);
    cJSON_DeleteItemFromObjectCaseSensitive(json_member(saved, "run"), "steps");
    char *fault = config_from_json(saved, &b);
    free_later(b);
    assert_non_null(fault);
    assert_non_null(strstr(fault, "missing key \"run.steps\""));
    assert_null(strchr(fault, '\n'));
    free(fault);
    cJSON_AddStringToObject(json_member(saved, "run"), "steps", "x");
    fault = config_from_json(saved, &b);
    free_later(b);
    assert_non_null(fault);
    assert_int_equal(strncmp(fault, "run.steps must be an integer", 28), 0);
    free(fault);
    cJSON_ReplaceItemInObjectCaseSensitive(json_member(saved, "run"), "steps", cJSON_CreateNumber(5));
    cJSON_ReplaceItemInObjectCaseSensitive(json_member(saved, "data"), "train", cJSON_Parse("[\"a\",5]"));
    fault = config_from_json(saved, &b);
    free_later(b);
    assert_string_equal(fault, "data.train[1] must be a string, not 5");
    free(fault);
    cJSON_Delete(saved);
    fault = config_from_json(NULL, &b);
    free_later(b);
    assert_non_null(fault);
    free(fault);
}

/* A change of a fixed option is refused with both values, unless allow_change names it. Other options may change. */
static void test_compare(void **state) {
    (void)state;
    static const struct { const char *overrides, *says; } rows[] = {
        {"run.seed=7", "run.seed is 7, in the checkpoint 1337"},
        {"model.n_layer=5", "model.n_layer is 5, in the checkpoint 4"},
        {"model.vocab_size=300", "model.vocab_size is 300, in the checkpoint 256"},
        {"data.shuffle=false", "data.shuffle is false, in the checkpoint true"},
        {"batch.global_tokens=24576", "batch.global_tokens is 24576, in the checkpoint 12288"},
        {"batch.seq_len=128", "batch.seq_len is 128, in the checkpoint 256"},
        {"optimizer.learning_rate=1e-3", "optimizer.learning_rate is 0.001, in the checkpoint 0.002"},
        {"optimizer.learning_rate=0.30000000000000004", "optimizer.learning_rate is 0.30000000000000004, in the checkpoint 0.002"},
        {"optimizer.grad_clip=0", "optimizer.grad_clip is 0, in the checkpoint 1"},
        {"schedule.name=wsd", "schedule.name is the string \"wsd\", in the checkpoint the string \"cosine\""},
        {"schedule.warmup_steps=1|schedule.decay_fraction=0.5", "schedule.warmup_steps is 1, in the checkpoint 50; schedule.decay_fraction is 0.5"},
        {"optimizer.beta1=0.8|run.allow_change=optimizer.beta2", "optimizer.beta1 is 0.8"},
        {"run.steps=900|run.dir=x|run.resume=must|run.max_minutes=1|run.on_nonfinite=skip|run.max_skips=9|run.verify_every=9|run.watchdog_seconds=9", NULL},
        {"checkpoint.every=1|checkpoint.keep=9|checkpoint.keep_every=5|eval.every=1|eval.tokens=5|sample.every=1|sample.tokens=2|sample.prompt=p|log.every=5|log.tensorboard=false", NULL},
        {"batch.micro_batch=2|parallel.zero_stage=0|parallel.comm=mpi|parallel.deterministic=true|memory.recompute=block|precision=bf16", NULL},
        {"data.val=other|data.tokenizer=tok|model.init_from=w.safetensors|data.train=elsewhere/*.bin", NULL},
        {"optimizer.beta1=0.8|run.allow_change=optimizer.beta1", NULL},
        {"optimizer.beta1=0.8|optimizer.eps=1e-6|run.allow_change=optimizer", NULL},
        {"run.seed=7|schedule.name=linear|run.allow_change=[\"run.seed\",\"schedule\"]", NULL},
    };
    Config first, now;
    load_good(GOOD, NULL, 0, &first);
    cJSON *saved = printed_and_read(config_to_json(&first));
    for (size_t i = 0; i < COUNT(rows); i++) {
        load_good(GOOD, rows[i].overrides, 0, &now);
        char *text = config_compare(&now, saved, NULL);
        if (rows[i].says ? !text || !strstr(text, rows[i].says) : text != NULL)
            fail_msg("%s: %s", rows[i].overrides, text ? text : "accepted");
        free(text);
    }
    /* a preset counts as equal to the same sizes given one by one */
    load_good(GOOD, "model={\"preset\":\"gpt2-124m\"}|model.n_layer=4", 0, &now);
    assert_null(config_compare(&now, saved, NULL));
    cJSON_Delete(saved);
}

/* A blend is a mixture of data sources. At a resume its weights, and the token counts at which they change, must not
 * change; its folders may. */
static void test_compare_blends(void **state) {
    (void)state;
#define SOURCE(path, weight) "{\"path\":\"" path "\",\"weight\":" weight "}"
    static const char blend[] = "data.train=[" SOURCE("a", "0.7") "," SOURCE("b", "0.3") "]";
    static const struct { const char *overrides, *says; } rows[] = {
        {"data.train=[" SOURCE("x", "0.7") "," SOURCE("y", "0.3") "]", NULL},
        {"data.train=[" SOURCE("a", "0.3") "," SOURCE("b", "0.7") "]",
         "data.train is 0.3 of source 0, 0.7 of source 1, in the checkpoint 0.7 of source 0, 0.3 of source 1"},
        {"data.train=[\"a\",\"b\"]", "data.train is no blend, in the checkpoint 0.7 of source 0"},
        {"data.train=[\"a\",\"b\"]|run.allow_change=data.train", NULL},
        {"data.train=[{\"path\":\"a\",\"weight\":1,\"until_tokens\":9}," SOURCE("a", "0.7") "," SOURCE("b", "0.3") "]",
         "data.train is 1 of source 0 until 9, 0.7 of source 0, 0.3 of source 1, in"},
    };
    Config first, now;
    load_good(GOOD, blend, 0, &first);
    cJSON *saved = printed_and_read(config_to_json(&first));
    for (size_t i = 0; i < COUNT(rows); i++) {
        load_good(GOOD, rows[i].overrides, 0, &now);
        char *text = config_compare(&now, saved, NULL);
        if (rows[i].says ? !text || !strstr(text, rows[i].says) : text != NULL)
            fail_msg("%s: %s", rows[i].overrides, text ? text : "accepted");
        free(text);
        assert_int_equal(config_fingerprint(&now) == config_fingerprint(&first), i == 0);
    }
    cJSON_Delete(saved);
}

/* A config saved by an older program lacks newer options. A resume takes their default values for those of that run. */
static void test_compare_with_an_older_one(void **state) {
    (void)state;
    Config first, now;
    load_good(GOOD, NULL, 0, &first);
    cJSON *saved = printed_and_read(config_to_json(&first));
    cJSON_DeleteItemFromObjectCaseSensitive(json_member(saved, "schedule"), "decay_fraction");
    assert_null(config_compare(&first, saved, NULL));
    load_good(GOOD, "schedule.decay_fraction=0.5", 0, &now);
    char *text = config_compare(&now, saved, NULL);
    assert_non_null(strstr(text, "schedule.decay_fraction is 0.5, in the checkpoint 0.2"));
    free(text);
    cJSON_DeleteItemFromObjectCaseSensitive(saved, "schedule");
    cJSON_DeleteItemFromObjectCaseSensitive(json_member(saved, "model"), "n_layer");
    text = config_compare(&first, saved, NULL); /* the message also names an option that has no default */
    assert_non_null(strstr(text, "model.n_layer is 4, in the checkpoint null; schedule.warmup_steps is 50, in the checkpoint 0"));
    free(text);
    cJSON_Delete(saved);
}

/* A saved config from before model.activation existed counts as having the activation of its kind of model. */
static void test_compare_activation(void **state) {
    (void)state;
    static const char *const kinds[] = {"model.arch=gpt2", "model.arch=llama|model.n_inner=512",
                                        "model.arch=qwen3|model.n_inner=512"};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        Config now;
        load_good(GOOD, kinds[i], 0, &now);
        cJSON *saved = printed_and_read(config_to_json(&now)), *here = printed_and_read(config_to_json(&now));
        assert_string_equal(json_member(json_member(saved, "model"), "activation")->valuestring, i ? "silu" : "gelu_new");
        cJSON_DeleteItemFromObjectCaseSensitive(json_member(saved, "model"), "activation");
        assert_null(config_compare(&now, saved, NULL));
        assert_int_equal(config_diff(saved, here, NULL, NULL), 0);
        assert_int_equal(config_diff(here, saved, NULL, NULL), 0);
        cJSON_Delete(saved), cJSON_Delete(here);
    }
    Config first, now;
    load_good(GOOD, "model.activation=relu2", 0, &first);
    cJSON *saved = printed_and_read(config_to_json(&first));
    assert_null(config_compare(&first, saved, NULL));
    load_good(GOOD, NULL, 0, &now);
    char *text = config_compare(&now, saved, NULL);
    assert_non_null(strstr(text, "model.activation is the string \"gelu_new\", in the checkpoint the string \"relu2\""));
    free(text);
    cJSON_DeleteItemFromObjectCaseSensitive(json_member(saved, "model"), "activation");
    text = config_compare(&first, saved, NULL);
    assert_non_null(strstr(text, "model.activation is the string \"relu2\", in the checkpoint the string \"gelu_new\""));
    free(text);
    cJSON_Delete(saved);
}

static void test_check_ranks(void **state) {
    (void)state;
    Config c;
    load_good(GOOD, NULL, 0, &c);
    assert_null(config_check_ranks(&c, 0));
    assert_null(config_check_ranks(&c, 12));
    char *text = config_check_ranks(&c, 7);
    assert_string_equal(text,
                        "batch.global_tokens = 12288 is no multiple of batch.micro_batch (4) x batch.seq_len (256) x ranks (7) = 7168; "
                        "nearest valid values: 7168 and 14336; or start 6 ranks");
    free(text);
    c.batch.micro_batch = INT64_MAX / 2;
    text = config_check_ranks(&c, 7);
    assert_non_null(strstr(text, "does not fit in 64 bits"));
    free(text);
}

/* --- the table, help and schema ----------------------------------------------------------------------------------- */

static const char *one_topic;
static void help_of_80(FILE *out) { config_print_help(out, 80); }
static void help_of_topic(FILE *out) { config_print_topic(out, one_topic, 80); }

static char *printed(void (*print)(FILE *)) {
    char  *text;
    size_t bytes;
    FILE  *out = open_memstream(&text, &bytes);
    print(out);
    fclose(out);
    return text;
}

static void test_table(void **state) {
    (void)state;
    char *help = printed(help_of_80);
    for (int i = 0; i < OPTION_COUNT; i++) {
        const Option *o = &OPTIONS[i];
        assert_true(!*option_home(o) == !strchr(o->key, '.'));
        assert_ptr_equal(option_find(o->key), o);
        assert_true((o->fallback != NULL) == (o->need == NEED_NONE));
        assert_non_null(strstr(help, o->key));
        one_topic = o->key;
        char *key = printed(help_of_topic);
        assert_true(strstr(key, o->key) && strstr(key, option_default_text(o)));
        free(key);
    }
    assert_false(option_in_section(option_find("optimizer.beta1"), "optim"));
    cJSON *ignored = option_to_json(option_find("$schema"), &(Config){.path = ""});
    assert_string_equal(ignored->valuestring, "");
    cJSON_Delete(ignored);
    char *line = help;
    for (char *next; (next = strchr(line, '\n')); line = next + 1) {
        *next = '\0';
        assert_in_range(terminal_width(line), 0, 80);
    }
    free(help);
    one_topic = "optimizer";
    char *section = printed(help_of_topic);
    for (int i = 0; i < OPTION_COUNT; i++)
        assert_true(option_in_section(&OPTIONS[i], "optimizer") == (strstr(section, OPTIONS[i].key) != NULL));
    free(section);
    assert_false(config_print_topic(stdout, "optimizers", 80));
}

static void test_schema(void **state) {
    (void)state;
    char     *text = printed(config_print_schema);
    Json      json;
    JsonFault fault;
    assert_true(json_parse(text, strlen(text), JSON_LIMIT, &json, &fault));
    const cJSON *properties = json_member(json.root, "properties");
    for (int i = 0; i < OPTION_COUNT; i++) {
        const char  *home = option_home(&OPTIONS[i]);
        const cJSON *top = json_member(properties, *home ? home : OPTIONS[i].key);
        const cJSON *one = *home ? json_member(json_member(top, "properties"), option_name(&OPTIONS[i])) : top;
        assert_non_null(one);
        assert_string_equal(json_member(one, "description")->valuestring, OPTIONS[i].help);
        if (one != top) assert_true(cJSON_IsFalse(json_member(top, "additionalProperties")));
    }
    assert_true(cJSON_IsFalse(json_member(json.root, "additionalProperties")));
    json_free(&json);
    char *shipped = NULL;
    size_t bytes = 0;
    FILE *in = fopen("configs/train_gpt.schema.json", "rb");
    if (in) {
        assert_true(getdelim(&shipped, &bytes, '\0', in) > 0);
        fclose(in);
        /* if this fails, renew the file: ./train_gpt schema > configs/train_gpt.schema.json */
        assert_string_equal(shipped, text);
    }
    free(shipped);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presets), cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_from_json_refuses),
        cmocka_unit_test(test_compare), cmocka_unit_test(test_compare_activation), cmocka_unit_test(test_check_ranks), cmocka_unit_test(test_table),
        cmocka_unit_test(test_schema), cmocka_unit_test(test_compare_with_an_older_one), cmocka_unit_test(test_compare_blends),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
