/* test_sample.c - drawing tokens and text: the right distribution, top-k, odd logits, the window, and the verb's
 * faults. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h: its macro fail() would spoil ours */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "model/model.h"
#include "run/sample.h"
#include "run/verbs.h"
#include "test/run/lib/child.h"

/* --- one token ---------------------------------------------------------------------------------------------------- */

static void greedy_takes_the_first_largest(void **state) {
    (void)state;
    static const float logits[] = {0.5f, -1, 3, 3, 2.9f};
    for (int i = 0; i <= 10; i++) {
        assert_int_equal(sample_token(logits, 5, 0.0, 0, i / 11.0), 2);
        assert_int_equal(sample_token(logits, 5, 0.7, 1, 0.0), 2);
    }
}

/* Over a fine grid of u every token gets its share of the softmax, in order. */
static void assert_shares(const float *logits, int64_t vocab, double temperature, int64_t top_k, const double *share) {
    enum { GRID = 20000, VOCAB_MAX = 16 };
    int count[VOCAB_MAX] = {0}, last = -1;
    for (int i = 0; i < GRID; i++) {
        int32_t token = sample_token(logits, vocab, temperature, top_k, (double)i / GRID);
        assert_true(token >= 0 && token < vocab);
        assert_true(token >= last); /* the inverse of the cumulative distribution */
        last = token;
        count[token]++;
    }
    for (int64_t v = 0; v < vocab; v++) assert_true(fabs((double)count[v] / GRID - share[v]) < 2.0 / GRID);
}

static void softmax_with_temperature(const float *logits, const int *in, int vocab, double temperature, double *share) {
    double total = 0;
    for (int v = 0; v < vocab; v++) total += share[v] = in[v] ? exp((double)logits[v] / temperature) : 0;
    for (int v = 0; v < vocab; v++) share[v] /= total;
}

static void shares_are_the_softmax(void **state) {
    (void)state;
    static const float logits[] = {1.5f, -0.25f, 0, 2.25f, 1.5f, -3};
    static const int   all[] = {1, 1, 1, 1, 1, 1}, three[] = {1, 0, 0, 1, 1, 0}, four[] = {1, 0, 1, 1, 1, 0};
    double share[6], temperatures[] = {0.3, 0.8, 1.0, 2.5};
    for (int i = 0; i < 4; i++) {
        double t = temperatures[i];
        softmax_with_temperature(logits, all, 6, t, share);
        assert_shares(logits, 6, t, 0, share);
        assert_shares(logits, 6, t, 6, share);
        assert_shares(logits, 6, t, 100, share);
        softmax_with_temperature(logits, three, 6, t, share);
        assert_shares(logits, 6, t, 3, share);
        assert_shares(logits, 6, t, 2, share); /* equals of the second largest stay together */
        softmax_with_temperature(logits, four, 6, t, share);
        assert_shares(logits, 6, t, 4, share);
    }
}

/* top_k against sorting, over random logits of either sign and size. */
static int descending(const void *a, const void *b) {
    return (*(const float *)a < *(const float *)b) - (*(const float *)a > *(const float *)b);
}
static void top_k_is_the_k_largest(void **state) {
    (void)state;
    enum { VOCAB = 1001 };
    float logits[VOCAB], sorted[VOCAB];
    for (int trial = 0; trial < 50; trial++) {
        rng_normal(logits, VOCAB, 7, (uint64_t)trial * VOCAB, trial % 3 ? 0.0f : -40.0f, trial % 2 ? 1.0f : 30.0f);
        memcpy(sorted, logits, sizeof logits);
        qsort(sorted, VOCAB, sizeof *sorted, descending);
        for (int i = 0; i < 100; i++) {
            int64_t k = 1 + i * 10;
            int32_t token = sample_token(logits, VOCAB, 1000.0, k, i / 100.0);
            assert_true(logits[token] >= sorted[k - 1]);
        }
    }
}

static void odd_logits(void **state) {
    (void)state;
    float logits[] = {NAN, -INFINITY, 1, NAN, 2};
    double share[] = {0, 0, 1 / (1 + exp(1)), 0, exp(1) / (1 + exp(1))};
    assert_shares(logits, 5, 1.0, 0, share);
    assert_shares(logits, 5, 1.0, 4, share);
    assert_int_equal(sample_token(logits, 5, 1.0, 0, 1.0), 4); /* a u that should not be: the last of those in play */
    logits[3] = INFINITY;
    assert_int_equal(sample_token(logits, 5, 1.0, 0, 0.2), 3);
    for (int v = 0; v < 5; v++) logits[v] = NAN;
    assert_int_equal(sample_token(logits, 5, 1.0, 2, 0.5), 0);
    float one = -7;
    assert_int_equal(sample_token(&one, 1, 0.8, 0, 0.99), 0);
    float wide[] = {-3e38f, 3e38f};
    assert_int_equal(sample_token(wide, 2, 1e-3, 0, 0.999), 1);
}

/* --- text, from a small model with random weights ----------------------------------------------------------------- */

typedef struct {
    Model    *model;
    Arena     tokens;
    Tensor    window;
    Tokenizer tokenizer;
} Writer;

static void writer_create(Writer *w, int64_t vocab_size, int64_t T) {
    device_open(0, 1);
    Model *m = w->model = model_create(
        (ModelSpec){.shards = {.shape = {2, 2, 28, 40, vocab_size}, .ranks = 1, .act = F32, .use = GPT_INFERENCE},
                    .B = 2,
                    .T = T});
    w->tokens = arena_create("tokens", sizeof(int32_t) * (size_t)T);
    w->window = arena_tensor(&w->tokens, I32, 1, T, 1, 1);
    for (int p = 0; p < m->shards->layout.params; p++) { /* ten times the usual spread: logits far apart */
        const Param *row = &m->shards->layout.param[p];
        rng_normal((float *)m->shards->params.data + row->memory, row->elems, 5, (uint64_t)row->offset, row->init_mean, 0.2f);
    }
    w->tokenizer = tokenizer_create("", vocab_size);
}
static void writer_destroy(Writer *w) {
    arena_destroy(&w->tokens);
    model_destroy(w->model);
}

static char *text_of(Writer *m, SamplePlan plan) {
    plan.window = m->window;
    return sample_text(&m->model->pipeline, &m->model->stream, &m->tokenizer, plan);
}

/* As sample_text, but token by token over batches of exactly the window's length, not padded ones. */
static void greedy_ids(Writer *m, int32_t *ids, int64_t count, int64_t tokens) {
    float *logits = malloc(sizeof *logits * (size_t)m->model->gpt.shape.vocab_size);
    for (int64_t from = 0; tokens-- > 0; count++) {
        while (count - from > m->model->gpt.T) from += m->model->gpt.T / 2;
        Tensor window = tensor_2d(ids + from, I32, 1, count - from);
        gpt_forward(&m->model->gpt, &m->model->stream, (Batch){window, window});
        gpt_logits(&m->model->gpt, &m->model->stream, (Batch){window, window}, count - from - 1, logits);
        ids[count] = sample_token(logits, m->model->gpt.shape.vocab_size, 0, 0, 0);
    }
    free(logits);
}

static void text_follows_the_model(void **state) {
    (void)state;
    enum { TOKENS = 100 }; /* more than two windows of 37 */
    Writer m;
    writer_create(&m, 389, 37);
    int32_t ids[TOKENS + 1] = {0};
    greedy_ids(&m, ids, 1, TOKENS);
    char expected[TOKENS * 16] = "";
    for (int i = 1; i <= TOKENS; i++) sprintf(expected + strlen(expected), "%s<%d>", i > 1 ? " " : "", ids[i]);
    char *text = text_of(&m, (SamplePlan){.prompt = "", .tokens = TOKENS, .temperature = 0});
    assert_string_equal(text, expected);
    free(text);
    writer_destroy(&m);
}

static void the_same_seed_gives_the_same_text(void **state) {
    (void)state;
    Writer m;
    writer_create(&m, 256, 40);
    SamplePlan plan = {.prompt = "In the beginning", .tokens = 60, .temperature = 1.0, .seed = 1337};
    char      *first = text_of(&m, plan), *again = text_of(&m, plan);
    assert_string_equal(first, again);
    assert_int_equal(strncmp(first, plan.prompt, strlen(plan.prompt)), 0);
    plan.seed = 1338;
    char *other = text_of(&m, plan);
    assert_string_not_equal(first, other);
    plan.tokens = 0;
    char *prompt_only = text_of(&m, plan);
    assert_string_equal(prompt_only, plan.prompt);
    plan.prompt = "a prompt that is much longer than the forty positions which this model has";
    plan.tokens = 5;
    char *long_prompt = text_of(&m, plan);
    assert_int_equal(strncmp(long_prompt, plan.prompt, strlen(plan.prompt)), 0);
    char *texts[] = {first, again, other, prompt_only, long_prompt};
    for (int i = 0; i < 5; i++) free(texts[i]);
    writer_destroy(&m);
}

/* For any bytes of the model, a terminal gets no control characters and only whole UTF-8 sequences. */
static void text_is_printable(void **state) {
    (void)state;
    Writer m;
    writer_create(&m, 256, 40);
    char *text = text_of(&m, (SamplePlan){.prompt = "caf\xc3\xa9 \xff\x1b[2J \xe2\x82 \xc2\x9b",
                                          .tokens = 500,
                                          .temperature = 100,
                                          .seed = 1});
    assert_int_equal(strncmp(text, "caf\xc3\xa9 \xef\xbf\xbd\\x1b[2J \xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd", 28), 0);
    for (const unsigned char *at = (unsigned char *)text; *at; at++) assert_true(*at >= 0x20 || *at == '\n' || *at == '\t');
    free(text);
    writer_destroy(&m);
}

/* --- the verb's faults -------------------------------------------------------------------------------------------- */

typedef struct { int argc; char **argv; } Arguments;
static void run_verb(void *arguments) {
    const Arguments *a = arguments;
    _exit(verb_sample(a->argc, a->argv));
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
        {"--tokens=3", EXIT_CONFIG, "unknown option \"--tokens\""},
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_largest),
        cmocka_unit_test(shares_are_the_softmax),
        cmocka_unit_test(top_k_is_the_k_largest),
        cmocka_unit_test(odd_logits),
        cmocka_unit_test(text_follows_the_model),
        cmocka_unit_test(the_same_seed_gives_the_same_text),
        cmocka_unit_test(text_is_printable),
        cmocka_unit_test(the_verb_refuses),
    };
    return cmocka_run_group_tests_name("sample", tests, NULL, NULL);
}
