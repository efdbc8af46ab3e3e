/* test_task_scores.c - scores of evaluation questions, compared with those computed in float64 from the logits of the
 * model. They are equal for any batch size. */
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
#include "run/text/scorer.h"

enum { VOCAB = 67, POSITIONS = 70, TEXTS_MOST = 4 };

/* --- a small model with random weights, logits far apart ---------------------------------------------------------- */

typedef struct {
    Model *model;
    Arena  room;
    Scorer scorer;
} Judge;

static Judge judge_create(int64_t B) {
    device_open(0, 1);
    Judge  j;
    Model *m = j.model = model_create(
        (ModelSpec){.shards = {.shape = GPT2_SHAPE(2, 2, 28, POSITIONS, VOCAB), .ranks = 1, .act = F32, .use = GPT_INFERENCE},
                    .B = B,
                    .T = POSITIONS});
    for (int p = 0; p < m->shards->layout.params; p++) {
        const Param *row = &m->shards->layout.param[p];
        rng_normal((float *)m->shards->params.data + row->memory, row->elems, 5, (uint64_t)row->offset, row->init_mean,
                   0.2f);
    }
    j.room = arena_create("tokens", 2 * (sizeof(int32_t) * (size_t)(B * POSITIONS) + ARENA_ALIGN));
    j.scorer = (Scorer){.model = m};
    j.scorer.room.inputs = arena_tensor(&j.room, I32, 2, B, POSITIONS, 1);
    j.scorer.room.targets = arena_tensor(&j.room, I32, 2, B, POSITIONS, 1);
    return j;
}
static void judge_destroy(Judge *j) {
    arena_destroy(&j->room);
    model_destroy(j->model);
}

/* --- questions of random tokens ----------------------------------------------------------------------------------- */

static uint64_t drawn;
static int64_t  draw(int64_t below) { return (int64_t)(rng_uniform(11, RNG_SAMPLE, drawn++) * (double)below); }

/* Makes a task with random questions. Texts have 2 to POSITIONS + 1 tokens. If `follows` is not NULL, the continuation
 * of every second question is what that model predicts, so it is scored as right. */
static Task random_task(TaskKind kind, int64_t questions, Judge *follows) {
    Task  t = {.kind = kind, .name = strdup("random")};
    float logits[VOCAB];
    drawn = 0;
    for (int64_t i = 0; i < questions; i++) {
        int32_t tokens[POSITIONS + 1];
        int64_t texts = kind == TASK_CONTINUATION ? 1 : 2 + draw(TEXTS_MOST - 1), context = 1 + draw(POSITIONS - 10);
        for (int64_t k = 0; k < context; k++) tokens[k] = (int32_t)draw(VOCAB);
        task_add_question(&t, (int32_t)draw(texts));
        for (int64_t k = 0; k < texts; k++) {
            int64_t own = 1 + draw(follows ? 3 : POSITIONS + 1 - context);
            for (int64_t n = 0; n < own; n++) {
                tokens[context + n] = (int32_t)draw(VOCAB);
                if (!follows || i % 2) continue;
                Tensor window = tensor_2d(tokens, I32, 1, context + n);
                gpt_forward(&follows->model->gpt, &follows->model->stream, (Batch){window, window, tensor_none()});
                gpt_logits(&follows->model->gpt, &follows->model->stream, (Batch){window, window, tensor_none()}, context + n - 1,
                           logits);
                for (int32_t v = 0; v < VOCAB; v++)
                    if (logits[v] > logits[tokens[context + n]]) tokens[context + n] = v;
            }
            task_add_text(&t, tokens, context + own, own, (double)(1 + draw(9)), POSITIONS + 1);
        }
    }
    return t;
}

/* Computes the log-probability of a text's scored tokens in float64, one row of logits at a time. Sets *missed to the
 * number of tokens that are not the most likely. */
static double reference(Judge *j, const Task *t, const Question *q, int64_t text, double *missed) {
    int32_t tokens[POSITIONS + 1];
    int64_t count = task_text(t, q, text, tokens);
    float   logits[VOCAB];
    double  log_p = 0;
    Tensor  window = tensor_2d(tokens, I32, 1, count - 1);
    gpt_forward(&j->model->gpt, &j->model->stream, (Batch){window, window, tensor_none()});
    *missed = 0;
    for (int64_t k = count - t->text[text].scored; k < count; k++) {
        double sum = 0, most = -INFINITY;
        gpt_logits(&j->model->gpt, &j->model->stream, (Batch){window, window, tensor_none()}, k - 1, logits);
        for (int v = 0; v < VOCAB; v++) sum += exp((double)logits[v]), most = fmax(most, (double)logits[v]);
        log_p += (double)logits[tokens[k]] - log(sum);
        *missed += (double)logits[tokens[k]] < most;
    }
    return log_p;
}

static void sums_are_those_of_the_logits(void **state) {
    (void)state;
    Judge one = judge_create(1), j = judge_create(3);
    Task  tasks[] = {random_task(TASK_CHOICES, 30, NULL), random_task(TASK_CONTINUATION, 40, &one)};
    for (int i = 0; i < 2; i++) {
        const Task *t = &tasks[i];
        double     *log_p = calloc((size_t)t->texts, sizeof *log_p), *missed = calloc((size_t)t->texts, sizeof *missed),
               wrong;
        int64_t greedy = 0;
        assert_int_equal(task_sums(&j.scorer, t, log_p, missed), 1);
        for (int64_t q = 0; q < t->questions; q++)
            for (int64_t k = t->question[q].first; k < t->question[q].first + t->question[q].texts; k++) {
                double expected = reference(&one, t, &t->question[q], k, &wrong);
                assert_true(fabs(log_p[k] - expected) < 2e-5 * (double)t->text[k].scored);
                assert_true(missed[k] == wrong);
                greedy += wrong == 0;
            }
        /* the model predicts some continuations completely, and others not */
        if (i == 1) assert_in_range(greedy, 20, 39);
        free(log_p), free(missed);
    }
    for (int i = 0; i < 2; i++) task_free(&tasks[i]);
    judge_destroy(&one), judge_destroy(&j);
}

/* Checks accuracy, standard error and perplexity against plain formulas on the log-probabilities of the texts: argmax,
 * mean, and sample standard deviation divided by sqrt(n). */
static void scores_follow_from_sums(void **state) {
    (void)state;
    Judge      j = judge_create(4);
    Task       t = random_task(TASK_CHOICES, 37, NULL);
    TaskScores s;
    double    *log_p = calloc((size_t)t.texts, sizeof *log_p), *missed = calloc((size_t)t.texts, sizeof *missed),
           mean[2] = {0, 0}, sd[2] = {0, 0};
    int right[2][37];
    assert_int_equal(task_sums(&j.scorer, &t, log_p, missed), 1);
    assert_int_equal(task_score(&j.scorer, &t, &s), 1);
    for (int64_t i = 0; i < t.questions; i++)
        for (int norm = 0; norm < 2; norm++) {
            const Question *q = &t.question[i];
            int             best = 0;
            for (int k = 1; k < q->texts; k++)
                if (log_p[q->first + k] / (norm ? t.text[q->first + k].length : 1) >
                    log_p[q->first + best] / (norm ? t.text[q->first + best].length : 1))
                    best = k;
            right[norm][i] = best == q->gold;
            mean[norm] += right[norm][i] / 37.0;
        }
    for (int i = 0; i < 37; i++)
        for (int norm = 0; norm < 2; norm++)
            sd[norm] += (right[norm][i] - mean[norm]) * (right[norm][i] - mean[norm]) / 36.0;
    assert_int_equal(s.questions, 37);
    assert_true(fabs(s.acc - mean[0]) < 1e-12 && fabs(s.acc_norm - mean[1]) < 1e-12);
    assert_true(fabs(s.acc_stderr - sqrt(sd[0] / 37)) < 1e-12 && fabs(s.acc_norm_stderr - sqrt(sd[1] / 37)) < 1e-12);
    assert_true(mean[0] != mean[1]); /* acc and acc_norm differ, so the test notices if they are exchanged */
    assert_true(isnan(s.perplexity) && isnan(s.centered) && isnan(task_core(&s, 1)));

    t.is_core = 1, t.baseline = 0.25;
    assert_int_equal(task_score(&j.scorer, &t, &s), 1);
    assert_true(fabs(s.centered - (mean[1] - 0.25) / 0.75) < 1e-12);
    TaskScores two[3] = {{.centered = 0.5}, {.centered = NAN}, {.centered = 0.25}};
    assert_true(task_core(two, 3) == 0.375);
    task_free(&t);

    t = random_task(TASK_CONTINUATION, 5, NULL);
    assert_int_equal(task_sums(&j.scorer, &t, log_p, missed), 1);
    assert_int_equal(task_score(&j.scorer, &t, &s), 1);
    double sum = 0;
    for (int i = 0; i < 5; i++) sum += log_p[i];
    assert_true(fabs(s.perplexity / exp(-sum / 5) - 1) < 1e-12 && isnan(s.acc_norm));
    t.questions = t.texts = 1;
    assert_int_equal(task_score(&j.scorer, &t, &s), 1);
    assert_true(isnan(s.acc_stderr));
    task_free(&t);
    free(log_p), free(missed);
    judge_destroy(&j);
}

static void a_batch_of_any_size_gives_the_same(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 8, 200};
    Task                 t = random_task(TASK_CHOICES, 25, NULL);
    double              *sum[5], *missed = calloc((size_t)t.texts, sizeof *missed);
    for (int i = 0; i < 5; i++) {
        Judge j = judge_create(sizes[i]);
        sum[i] = calloc((size_t)t.texts, sizeof **sum);
        assert_int_equal(task_sums(&j.scorer, &t, sum[i], missed), 1);
        for (int64_t k = 0; k < t.texts; k++) assert_true(fabs(sum[i][k] - sum[0][k]) <= 1e-6 * fabs(sum[0][k]));
        judge_destroy(&j);
    }
    for (int i = 0; i < 5; i++) free(sum[i]);
    free(missed);
    task_free(&t);
}

/* Data ranks divide the batches of questions. The log-probabilities that they compute add up to those of one rank, bit
 * for bit. */
static void shares_add_up(void **state) {
    (void)state;
    Judge   j = judge_create(3);
    Task    t = random_task(TASK_CHOICES, 25, NULL);
    double *one = calloc((size_t)t.texts, sizeof *one), *part = calloc((size_t)t.texts, sizeof *part),
           *all = calloc((size_t)t.texts, sizeof *all), *missed = calloc((size_t)t.texts, sizeof *missed);
    task_sums(&j.scorer, &t, one, missed);
    for (j.scorer.datas = 2; j.scorer.datas < 5; j.scorer.datas++) {
        memset(all, 0, sizeof *all * (size_t)t.texts);
        for (j.scorer.data = 0; j.scorer.data < j.scorer.datas; j.scorer.data++) {
            task_sums(&j.scorer, &t, part, missed);
            for (int64_t k = 0; k < t.texts; k++) all[k] += part[k];
        }
        assert_memory_equal(all, one, sizeof *all * (size_t)t.texts);
    }
    free(one), free(part), free(all), free(missed);
    task_free(&t);
    judge_destroy(&j);
}

static int  stops_at_the_third(void *asked) { return ++*(int *)asked == 3; }
static void a_request_leaves_off(void **state) {
    (void)state;
    Judge      j = judge_create(2);
    Task       t = random_task(TASK_CHOICES, 10, NULL);
    TaskScores s;
    int        asked = 0;
    j.scorer.stop = stops_at_the_third, j.scorer.ctx = &asked;
    assert_int_equal(task_score(&j.scorer, &t, &s), 0);
    assert_int_equal(asked, 3);
    task_free(&t);
    judge_destroy(&j);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_logits),
        cmocka_unit_test(scores_follow_from_sums),
        cmocka_unit_test(a_batch_of_any_size_gives_the_same),
        cmocka_unit_test(shares_add_up),
        cmocka_unit_test(a_request_leaves_off),
    };
    return cmocka_run_group_tests_name("task_scores", tests, NULL, NULL);
}
