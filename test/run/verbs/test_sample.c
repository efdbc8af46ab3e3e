/* test_sample.c - texts from a model. Sampling with kept keys and values is compared with computing whole windows. Also
 * stop texts, and the faults that `sample` reports. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "model/model.h"
#include "run/text/sample.h"
#include "run/verbs/verbs.h"
#include "test/run/lib/begin.h"
#include "test/run/lib/child.h"

/* --- text, from a small model with random weights ----------------------------------------------------------------- */

typedef struct {
    Model    *model;
    Arena     tokens;
    Tensor    window;
    Tokenizer tokenizer;
} Writer;

static void writer_create(Writer *w, int64_t vocab_size, int64_t T, GptUse use) {
    device_open(0, 1);
    Model *m = w->model = model_create((ModelSpec){
        .shards = {.shape = GPT2_SHAPE(2, 2, 28, 40, vocab_size), .ranks = 1, .act = F32, .use = use}, .B = 2, .T = T});
    w->tokens = arena_create("tokens", sizeof(int32_t) * (size_t)T);
    w->window = arena_tensor(&w->tokens, I32, 1, T, 1, 1);
    /* sets weights with ten times the usual spread, so that logits are far apart */
    for (int p = 0; p < m->shards->layout.params; p++) {
        const Param *row = &m->shards->layout.param[p];
        rng_normal((float *)m->shards->params.data + row->memory, row->elems, 5, (uint64_t)row->offset, row->init_mean, 0.2f);
    }
    w->tokenizer = tokenizer_create("", vocab_size);
}
static void writer_destroy(Writer *w) {
    arena_destroy(&w->tokens);
    model_destroy(w->model);
}

typedef struct { char text[8192]; size_t bytes; } Page;

static void put(void *page, const char *text, size_t bytes) {
    Page *p = page;
    assert_true(p->bytes + bytes < sizeof p->text);
    memcpy(p->text + p->bytes, text, bytes);
    p->bytes += bytes;
}

/* Returns a plan that samples the most likely token each time; tests change it. */
static SamplePlan plan_of(int64_t tokens) { return (SamplePlan){.tokens = tokens, .rule = {.top_p = 1}, .put = put}; }

static char *text_of(Writer *m, const char *prompt, SamplePlan plan) {
    Page page = {.bytes = 0};
    plan.ctx = &page;
    plan.window = m->window;
    plan.prompt = prompt_create(&m->tokenizer, prompt, strlen(prompt), tokenizer_start(&m->tokenizer));
    sample_stream(&m->model->pipeline, &m->model->stream, &m->tokenizer, &plan);
    prompt_free(&plan.prompt);
    return strdup(page.text);
}

/* Appends `tokens` ids, each the most likely one, to the first `count` of ids. No keys and values are kept, so each id
 * needs a forward pass over the whole window. A full window loses its first half. */
static void greedy_ids(Writer *m, int32_t *ids, int64_t count, int64_t tokens) {
    int64_t vocab = m->model->gpt.shape.vocab_size;
    float  *logits = malloc(sizeof *logits * (size_t)vocab);
    double *weight = malloc(sizeof *weight * (size_t)vocab);
    for (int64_t from = 0; tokens-- > 0; count++) {
        while (count - from > m->model->gpt.T) from += m->model->gpt.T / 2;
        Tensor window = tensor_2d(ids + from, I32, 1, count - from);
        gpt_forward(&m->model->gpt, &m->model->stream, (Batch){window, window, tensor_none()});
        gpt_logits(&m->model->gpt, &m->model->stream, (Batch){window, window, tensor_none()}, count - from - 1, logits);
        ids[count] = draw_token(logits, vocab, (DrawRule){0, 0, 1, 0}, 0, weight);
    }
    free(logits);
    free(weight);
}

/* Samples more than two windows of 37 tokens, once with kept keys and values and once by computing whole windows. Both
 * texts must be that of greedy_ids, which always computes whole windows. */
static void text_follows_the_model(void **state) {
    (void)state;
    enum { TOKENS = 100 };
    for (int use = GPT_INFERENCE; use <= GPT_SAMPLING; use++) {
        Writer m;
        writer_create(&m, 389, 37, (GptUse)use);
        assert_int_equal(gpt_keeps_past(&m.model->gpt), use == GPT_SAMPLING);
        int32_t ids[TOKENS + 1] = {0};
        greedy_ids(&m, ids, 1, TOKENS);
        char expected[TOKENS * 16] = "";
        for (int i = 1; i <= TOKENS; i++) sprintf(expected + strlen(expected), "%s<%d>", i > 1 ? " " : "", ids[i]);
        char *text = text_of(&m, "", plan_of(TOKENS));
        assert_string_equal(text, expected);
        free(text);
        writer_destroy(&m);
    }
}

/* Computes the logits of one token after another from kept keys and values. They must equal those of a forward pass
 * over all tokens so far. */
static void kept_keys_give_the_same_logits(void **state) {
    (void)state;
    enum { T = 37, V = 389 };
    Writer  kept, whole;
    int32_t ids[T];
    float   logits[V], expected[V];
    writer_create(&kept, V, T, GPT_SAMPLING);
    writer_create(&whole, V, T, GPT_INFERENCE);
    for (int i = 0; i < T; i++) ids[i] = (i * 101 + 7) % V;
    Tensor prompt = tensor_2d(ids, I32, 1, 5);
    pipeline_forward(&kept.model->pipeline, &kept.model->stream, (Batch){prompt, prompt, tensor_none()});
    for (int64_t past = 5; past < T; past++) {
        Tensor one = tensor_2d(ids + past, I32, 1, 1), all = tensor_2d(ids, I32, 1, past + 1);
        pipeline_token_logits(&kept.model->pipeline, &kept.model->stream, (Batch){one, one, tensor_none()}, past, logits);
        gpt_forward(&whole.model->gpt, &whole.model->stream, (Batch){all, all, tensor_none()});
        gpt_logits(&whole.model->gpt, &whole.model->stream, (Batch){all, all, tensor_none()}, past, expected);
        double most = 0;
        for (int v = 0; v < V; v++) most = fmax(most, fabs((double)expected[v]));
        for (int v = 0; v < V; v++) assert_true(fabs((double)logits[v] - (double)expected[v]) <= 1e-5 * most);
    }
    writer_destroy(&kept);
    writer_destroy(&whole);
}

/* A model in training can sample with the keys and values in its activations. It samples an equal text with every value
 * of memory.recompute. */
static void training_keeps_what_its_activations_keep(void **state) {
    (void)state;
    char *first = NULL;
    for (Recompute r = RECOMPUTE_NONE; r <= RECOMPUTE_BLOCK; r++) {
        Writer m;
        writer_create(&m, 256, 40, GPT_TRAINING);
        Model *training = model_create((ModelSpec){
            .shards = m.model->spec.shards, .optimizer = &OPTIMIZER_ADAMW, .B = 2, .T = 40, .recompute = r});
        memcpy(training->shards->params.data, m.model->shards->params.data, tensor_bytes(training->shards->params));
        model_destroy(m.model);
        m.model = training;
        assert_int_equal(gpt_keeps_past(&m.model->gpt), r != RECOMPUTE_BLOCK);
        char *text = text_of(&m, "In the beginning", plan_of(60));
        if (first) assert_string_equal(text, first);
        else first = strdup(text);
        free(text);
        writer_destroy(&m);
    }
    free(first);
}

static void the_same_seed_gives_the_same_text(void **state) {
    (void)state;
    static const char prompt[] = "In the beginning",
                      long_one[] = "a prompt that is much longer than the forty positions which this model has";
    Writer m;
    writer_create(&m, 256, 40, GPT_SAMPLING);
    SamplePlan plan = plan_of(60);
    plan.rule.temperature = 1.0, plan.seed = 1337;
    char *first = text_of(&m, prompt, plan), *again = text_of(&m, prompt, plan);
    assert_string_equal(first, again);
    assert_int_equal(strncmp(first, prompt, strlen(prompt)), 0);
    plan.seed = 1338;
    char *other = text_of(&m, prompt, plan);
    assert_string_not_equal(first, other);
    char *prompt_only = text_of(&m, prompt, plan_of(0));
    assert_string_equal(prompt_only, prompt);
    char *long_prompt = text_of(&m, long_one, plan_of(5));
    assert_int_equal(strncmp(long_prompt, long_one, strlen(long_one)), 0);
    char *texts[] = {first, again, other, prompt_only, long_prompt};
    for (int i = 0; i < 5; i++) free(texts[i]);
    writer_destroy(&m);
}

/* A text ends before the first occurrence of a stop text. */
static void a_stop_text_ends_it(void **state) {
    (void)state;
    Writer m;
    writer_create(&m, 389, 37, GPT_SAMPLING);
    char *whole = text_of(&m, "", plan_of(20)), third[16] = "", *at = whole;
    for (int i = 0; i < 2; i++) at = strchr(at, ' ') + 1;
    memcpy(third, at, (size_t)(strchr(at, ' ') - at));
    const char *stop[] = {third};
    SamplePlan  plan = plan_of(20);
    plan.stop = stop, plan.stops = 1;
    char *text = text_of(&m, "", plan);
    assert_int_equal(strlen(text), strstr(whole, third) - whole);
    assert_int_equal(strncmp(whole, text, strlen(text)), 0);
    free(whole);
    free(text);
    writer_destroy(&m);
}

/* Whatever bytes the model produces, a terminal gets no control characters and only complete UTF-8 sequences. */
static void text_is_printable(void **state) {
    (void)state;
    Writer m;
    writer_create(&m, 256, 40, GPT_SAMPLING);
    SamplePlan plan = plan_of(500);
    plan.rule.temperature = 100, plan.seed = 1;
    char *text = text_of(&m, "caf\xc3\xa9 \xff\x1b[2J \xe2\x82 \xc2\x9b", plan);
    assert_int_equal(strncmp(text, "caf\xc3\xa9 \xef\xbf\xbd\\x1b[2J \xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd", 28), 0);
    for (const unsigned char *at = (unsigned char *)text; *at; at++) assert_true(*at >= 0x20 || *at == '\n' || *at == '\t');
    free(text);
    writer_destroy(&m);
}

/* --- the verb's faults -------------------------------------------------------------------------------------------- */

typedef struct { int argc; char **argv; } Arguments;
static void run_verb(void *arguments) {
    const Arguments *a = arguments;
    _exit(verb_run(&SAMPLE_VERB, a->argc, a->argv));
}

static void the_verb_refuses(void **state) {
    (void)state;
    static const struct { const char *argument; int code; const char *says; } cases[] = {
        {NULL, EXIT_DATA, "/nowhere/at/all"},
        {"tokens=ten", EXIT_CONFIG, "tokens=ten"},
        {"tokens=-1", EXIT_CONFIG, "tokens=-1"},
        {"tokens=1.5", EXIT_CONFIG, "whole number"},
        {"temperature=nan", EXIT_CONFIG, "temperature=nan"},
        {"temperature=-0.1", EXIT_CONFIG, "temperature"},
        {"top_k=", EXIT_CONFIG, "top_k="},
        {"temprature=1", EXIT_CONFIG, "did you mean \"temperature\"?"},
        {"seed", EXIT_CONFIG, "seed needs a value"},
        {"tokens=-3", EXIT_CONFIG, "from 0 to 10000000 is expected"},
        {"top_p=1.5", EXIT_CONFIG, "from 0 to 1 is expected"},
        {"min_p=-1", EXIT_CONFIG, "from 0 to 1 is expected"},
        {"n=0", EXIT_CONFIG, "from 1 to 1000000 is expected"},
        {"tokens=2.5", EXIT_CONFIG, "2 or 3"},
        {"eot=maybe", EXIT_CONFIG, "true or false"},
        {"stop=", EXIT_CONFIG, "stop="},
        {"stop=[\"a\", 1]", EXIT_CONFIG, "a JSON list of strings"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *argv[] = {"sample", "/nowhere/at/all", (char *)cases[i].argument};
        Child c = child_run(run_verb, &(Arguments){cases[i].argument ? 3 : 2, argv});
        assert_int_equal(c.code, cases[i].code);
        assert_non_null(strstr(c.said, cases[i].says));
        assert_int_equal(child_lines(&c), 1);
    }
    char *argv[] = {"sample"};
    Child c = child_run(run_verb, &(Arguments){1, argv});
    assert_int_equal(c.code, EXIT_CONFIG);
    assert_non_null(strstr(c.said, "./train_gpt sample RUN_OR_CHECKPOINT"));
}

/* The begin token of the tokenizer is put before every prompt and is not printed. */
static void prompts_follow_the_begin_token(void **state) {
    (void)state;
    static const struct { const char *text; int32_t ids[4], count; } CASES[] = {
        /* a text gets a begin token even if it has one itself, as in Hugging Face's tokenizers */
        {"", {256}, 1}, {"ab", {256, 'a', 'b'}, 3}, {"<s>a", {256, 256, 'a'}, 3}};
    Tokenizer t = begin_tokenizer();
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        Prompt p = prompt_create(&t, CASES[i].text, strlen(CASES[i].text), tokenizer_start(&t));
        assert_int_equal(p.count, CASES[i].count);
        assert_memory_equal(p.id, CASES[i].ids, sizeof *p.id * (size_t)p.count);
        assert_int_equal(p.hidden, 1);
        prompt_free(&p);
    }
    tokenizer_destroy(&t);
    t = tokenizer_create("", 256);
    Prompt p = prompt_create(&t, "ab", 2, '\n'), empty = prompt_create(&t, "", 0, 't');
    assert_true(p.count == 2 && p.hidden == 0 && empty.count == 1 && empty.hidden == 1 && empty.id[0] == 't');
    prompt_free(&p), prompt_free(&empty);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_follows_the_model),
        cmocka_unit_test(kept_keys_give_the_same_logits),
        cmocka_unit_test(training_keeps_what_its_activations_keep),
        cmocka_unit_test(the_same_seed_gives_the_same_text),
        cmocka_unit_test(a_stop_text_ends_it),
        cmocka_unit_test(text_is_printable),
        cmocka_unit_test(prompts_follow_the_begin_token),
        cmocka_unit_test(the_verb_refuses),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
