/* evaluate.c - see evaluate.h. */
#include "run/evaluate.h"

#include "core/clock.h"
#include "core/terminal.h"

int eval_is_due(const Run *r, int64_t step) {
    const Config *c = r->config;
    return r->val.shards > 0 && c->eval.every > 0 && (step % c->eval.every == 0 || step == c->run.steps);
}

int eval_is_pending(Run *r, int64_t step) {
    if (!eval_is_due(r, step) || step > r->config->run.steps) return 0;
    int64_t pending = run_is_rank0(r) && metrics_lack_eval(r->config->run.dir, step);
    comm_broadcast(r->comm, &pending, sizeof pending, 0);
    return (int)pending;
}

/* Validation sequences [first, first + count) as one batch, count <= batch.micro_batch. */
static Batch eval_batch(Run *r, int64_t first, int64_t count) {
    ContextPart part = context_part(r->groups.context);
    int64_t     whole = r->config->batch.seq_len, T = whole / part.ranks, B = r->config->batch.micro_batch;
    int32_t    *inputs = r->eval_tokens, *targets = inputs + B * T, *sample = targets + B * T;
    for (int64_t i = 0; i < count; i++) {
        dataset_sample(&r->val, first + i, sample, sample + whole);
        context_take(inputs + i * T, sample, part, T);
        context_take(targets + i * T, sample + whole, part, T);
    }
    Batch batch = {tensor_2d(r->eval_batch.inputs.data, I32, count, T), tensor_2d(r->eval_batch.targets.data, I32, count, T)};
    device_from_host(&r->model->stream, batch.inputs, inputs);
    device_from_host(&r->model->stream, batch.targets, targets);
    return batch;
}

/* Returns 0 where it was cut short. */
static int mean_loss(Run *r, double *loss) {
    const Config *c = r->config;
    int64_t T = c->batch.seq_len, B = c->batch.micro_batch, ranks = r->groups.datas, rank = r->groups.data;
    int64_t samples = c->eval.tokens > 0 ? c->eval.tokens / T : r->val.samples;
    if (samples < 1) samples = 1;
    if (samples > r->val.samples) samples = r->val.samples;

    /* ranks: that compute different batches. parallel.deterministic: the number of ranks may not change a bit. A row's bits depend on the number of rows in
     * its batch, so the ranks share out whole batches. */
    int64_t share = c->parallel.deterministic ? B : 1, shares = (samples + share - 1) / share;
    int64_t first = shares * rank / ranks * share, end = shares * (rank + 1) / ranks * share;
    if (end > samples) end = samples;
    int64_t most = (shares + ranks - 1) / ranks * share; /* of any rank: all ask equally often whether to stop */
    Model *m = r->model;
    step_sums_zero(&m->sums, &m->stream);
    requests_begin(&r->requests);
    for (int64_t i = first; i < first + most; i += B) {
        watchdog_tick(r->watchdog, "an evaluation");
        if (requests_agree(&r->requests)) return 0;
        if (run_is_rank0(r)) say_part("validation", i - first, most);
        if (i >= end && !shards_gathers(m->shards)) break;
        Batch batch = i < end ? eval_batch(r, i, end - i < B ? end - i : B) : eval_batch(r, 0, 1);
        pipeline_forward(&m->pipeline, &m->stream, batch);
        if (i < end) pipeline_loss(&m->pipeline, &m->stream, batch);
    }
    Exact sum = step_sums_fetch(&m->sums, &m->stream).sum[SUM_LOSS];
    comm_all_reduce_i64(r->comm, sum.word, EXACT_WORDS, COMM_SUM);
    *loss = exact_value(&sum) / ((double)samples * (double)T);
    return 1;
}

int evaluate(Run *r, int64_t step) {
    shards_need_all(r->model->shards);
    double start_ms = clock_ms(), loss;
    int    whole = mean_loss(r, &loss);
    shards_rewind(r->model->shards, &r->model->stream);
    if (!run_is_rank0(r)) return whole;
    if (!whole) {
        progress_note("the evaluation after step %lld waits until the run goes on", (long long)step);
        return 0;
    }
    ProgressEval shown = {.loss = loss, .bytes_per_token = r->bytes_per_token, .ms = clock_ms() - start_ms};
    metrics_evals(r->metrics, &shown.last, &shown.best);
    metrics_eval(r->metrics, step, loss);
    metrics_draw(r->metrics);
    progress_eval(&r->progress, step, &shown);
    return 1;
}
