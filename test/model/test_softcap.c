/* test_softcap.c - a soft cap of the logits in a whole model. Sampled logits, the losses that evaluation adds up, the
 * losses of single tokens and those of training all use the same capped logits. */
#include "test/ref/test.h"

#include "model/params.h"

enum { T = 40, V = 389 };
static ModelShape  SHAPE = GPT2_SHAPE(2, 3, 42, T, V);
static const char *RECORDS = "test/ref/data/gpt.rec";
#include "test/model/curve_fixture.h"

/* A cap small enough to matter: the logits that it limits reach 0.5. */
static const double CAP = 0.25;

static double loss_of(const float *logits, int32_t target) {
    double sum = 0.0;
    for (int v = 0; v < V; v++) sum += exp((double)logits[v]);
    return log(sum) - (double)logits[target];
}

static void test_logits(void **state) {
    (void)state;
    float  plain[V], capped[V], tokens[3 * T];
    Model *m = model_create(F32, 1, T, RECOMPUTE_NONE, GPT_TRAINING);
    Batch  batch = batch_of(m, 0, 0, 1, T);
    double largest = 0.0, sum = 0.0;
    for (int row = 0; row < T; row++) {
        m->gpt.shape.logit_softcap = 0.0;
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_logits(&m->gpt, &m->stream, batch, row, plain);
        m->gpt.shape.logit_softcap = CAP;
        gpt_logits(&m->gpt, &m->stream, batch, row, capped);
        for (int v = 0; v < V; v++) {
            assert_true(fabs((double)capped[v] - CAP * tanh((double)plain[v] / CAP)) <= 1e-7);
            largest = fmax(largest, fabs((double)plain[v] - (double)capped[v]));
        }
        if (row == 0) gpt_token_losses(&m->gpt, &m->stream, batch, tokens);
        stage_settle();
        double loss = loss_of(capped, ((const int32_t *)batch.targets.data)[row]);
        assert_true(fabs((double)tokens[row] - loss) <= 2e-6);
        sum += loss;
    }
    assert_true(largest > 0.01); /* some logit has changed by more than 0.01, so the cap has an effect */
    for (int with_gradient = 0; with_gradient < 2; with_gradient++) {
        shards_begin(m->shards, &m->stream);
        step_sums_zero(&m->sums, &m->stream);
        gpt_forward(&m->gpt, &m->stream, batch);
        if (with_gradient) gpt_backward(&m->gpt, &m->stream, batch, 1.0f / T, MICRO_EARLIER);
        else               gpt_loss(&m->gpt, &m->stream, batch);
        assert_true(relative(loss_sum(m), sum) <= LOSS_ALLOWED);
    }
    model_destroy(m);
}

static int tests(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_logits)};
    return cmocka_run_group_tests_name("softcap", all, NULL, NULL);
}

int main(int argc, char **argv) {
    (void)argc;
    return stage_main(argv, tests);
}
