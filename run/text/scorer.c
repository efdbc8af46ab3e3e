/* scorer.c - the mean loss of a model over data, and its answers to the questions of a task: see scorer.h. */
#include "run/text/scorer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/format.h"
#include "core/terminal.h"

/* --- the loss over data ------------------------------------------------------------------------------------------- */

/* Puts samples [first, first + count) of the data into a batch on the device. host: space for three batches of this
 * rank and three whole samples. */
static Batch batch_of(const Scorer *s, const Dataset *d, int64_t first, int64_t count, int32_t end_of_text,
                      int32_t *host) {
    ContextPart part = context_part(s->model->gpt.context);
    int64_t     whole = d->seq_len, T = whole / part.ranks, B = s->room.inputs.dim[0];
    int32_t    *inputs = host, *targets = inputs + B * T, *starts = targets + B * T, *sample = starts + B * T;
    Stream     *stream = &s->model->stream;
    for (int64_t i = 0; i < count; i++) {
        dataset_sample(d, first + i, sample, sample + whole);
        context_take(inputs + i * T, sample, part, T);
        context_take(targets + i * T, sample + whole, part, T);
        document_starts(sample + 2 * whole, sample, whole, end_of_text);
        context_take(starts + i * T, sample + 2 * whole, part, T);
    }
    Batch batch = {tensor_2d(s->room.inputs.data, I32, count, T), tensor_2d(s->room.targets.data, I32, count, T),
                   end_of_text >= 0 ? tensor_2d(s->room.starts.data, I32, count, T) : tensor_none()};
    device_from_host(stream, batch.inputs, inputs);
    device_from_host(stream, batch.targets, targets);
    if (end_of_text >= 0) device_from_host(stream, batch.starts, starts);
    return batch;
}

int scorer_loss(const Scorer *s, const Dataset *d, int64_t wanted, int32_t end_of_text, int is_exact, double *loss) {
    Model  *m = s->model;
    int64_t T = d->seq_len, B = s->room.inputs.dim[0], own = T / context_part(m->gpt.context).ranks;
    int64_t samples = dataset_first_samples(d, wanted), ranks = larger_of(s->datas, 1);

    /* The bits of a row's loss depend on the number of rows in its batch. If the number of ranks must not change any
     * bit, each group of ranks that compute different batches gets whole batches. */
    int64_t share = is_exact ? B : 1, shares = (samples + share - 1) / share;
    int64_t first = shares * s->data / ranks * share, end = shares * (s->data + 1) / ranks * share;
    if (end > samples) end = samples;
    int64_t most = (shares + ranks - 1) / ranks * share, rounds = 0;
    /* All ranks must call stop() equally often. So each makes `rounds` rounds: as many as the rank with the most
     * batches has. */
    for (int64_t few = most - share; few <= most; few++) {
        int64_t batches = 0;
        for (int64_t left = few; left > 0; left -= model_batch(B, left)) batches++;
        if (batches > rounds) rounds = batches;
    }
    int32_t *host = xmalloc(sizeof *host * (size_t)(3 * (B * own + T)), "a batch of tokens");
    int      goes_on = 1;
    step_sums_zero(&m->sums, &m->stream);
    for (int64_t i = first, count = 0; rounds-- > 0; i += count) {
        watchdog_tick(s->watchdog, "an evaluation");
        goes_on = !(s->stop && s->stop(s->ctx));
        if (goes_on && s->says) say_part("validation", i - first, most);
        if (!goes_on || (i >= end && !shards_gathers(m->shards))) break;
        /* a rank whose samples are done computes the first one, because ranks that gather weights must compute equally
         * often */
        count = i < end ? model_batch(B, end - i) : 0;
        Batch batch = count ? batch_of(s, d, i, count, end_of_text, host) : batch_of(s, d, 0, 1, end_of_text, host);
        pipeline_forward(&m->pipeline, &m->stream, batch);
        if (count) pipeline_loss(&m->pipeline, &m->stream, batch);
    }
    free(host);
    if (!goes_on) return 0;
    Exact sum = step_sums_fetch(&m->sums, &m->stream).sum[SUM_LOSS];
    if (s->all) comm_all_reduce_i64(s->all, sum.word, EXACT_WORDS, COMM_SUM);
    *loss = exact_value(&sum) / ((double)samples * (double)T);
    return 1;
}

/* --- batches of a task -------------------------------------------------------------------------------------------- */

/* A text of a question, with its length in tokens as a row of a batch. */
typedef struct {
    int64_t question, text, length;
} Row;

/* A batch: rows [first, first + count), of T tokens each. */
typedef struct {
    int64_t first, count, T;
} Rows;

typedef struct {
    Row     *row;   /* owned [rows]: the texts to score, sorted by length */
    Rows    *batch; /* owned [batches]: the batches of rows */
    int64_t  rows, batches, B;
    int32_t *inputs, *targets, *scored; /* owned, on the host: [B,T] of this rank; scored: 1 if the target counts */
    int32_t *sequence;                  /* owned: space for a text and three sequences */
    /* owned [3][B T]: losses, largest logits and logits of targets (gpt_token_losses) */
    float   *losses;
} Plan;

static int by_length(const void *a, const void *b) {
    const Row *x = (const Row *)a, *y = (const Row *)b;
    if (x->length != y->length)
        return x->length < y->length ? 1 : -1; /* the longest first, so that missing memory shows early */
    return (x->text > y->text) - (x->text < y->text);
}

static int64_t whole_length(const Gpt *g) { return context_part(g->context).ranks * g->T; }

static void *memory(int64_t count, size_t element) { return xcalloc((size_t)count, element, "the rows of a task"); }

static Plan plan_of(const Scorer *s, const Task *t) {
    const Gpt *g = &s->model->gpt;
    int64_t    B = s->room.inputs.dim[0], N = B * g->T, whole = whole_length(g);
    Plan       p = {.rows = t->texts, .B = B};
    p.row = memory(t->texts, sizeof *p.row);
    p.batch = memory(t->texts, sizeof *p.batch);
    for (int64_t q = 0, i = 0; q < t->questions; q++)
        for (int k = 0; k < t->question[q].texts; k++, i++)
            p.row[i] = (Row){q, i, gpt_scored_length(g, (int64_t)t->text[i].shared + t->text[i].own - 1)};
    qsort(p.row, (size_t)p.rows, sizeof *p.row, by_length);
    for (int64_t i = 0; i < p.rows; i += p.batch[p.batches++].count) {
        int64_t count = 1;
        while (count < B && i + count < p.rows && p.row[i + count].length == p.row[i].length) count++;
        p.batch[p.batches] = (Rows){i, count, p.row[i].length};
    }
    p.inputs = memory(N, sizeof(int32_t)), p.targets = memory(N, sizeof(int32_t));
    p.scored = memory(N, sizeof(int32_t)), p.sequence = memory(4 * whole + 1, sizeof(int32_t));
    p.losses = memory(3 * N, sizeof(float));
    return p;
}

/* Fills a batch on the device. It always has B rows, so that the bits of a row do not depend on the number of rows.
 * Rows without a text are zero. */
static Batch fill(const Scorer *s, const Task *t, Plan *p, const Rows *rows) {
    const Gpt  *g = &s->model->gpt;
    ContextPart part = context_part(g->context);
    int64_t     whole = whole_length(g), T = rows->T, own = T / part.ranks;
    int32_t    *text = p->sequence, *input = text + whole + 1, *target = input + whole, *scored = target + whole;
    for (int64_t i = 0; i < p->B; i++) {
        memset(input, 0, sizeof *input * (size_t)(3 * whole));
        if (i < rows->count) {
            const Row *row = &p->row[rows->first + i];
            int64_t    count = task_text(t, &t->question[row->question], row->text, text) - 1;
            memcpy(input, text, sizeof *text * (size_t)count);
            memcpy(target, text + 1, sizeof *text * (size_t)count);
            for (int64_t k = count - t->text[row->text].scored; k < count; k++) scored[k] = 1;
        }
        context_take(p->inputs + i * own, input, part, own);
        context_take(p->targets + i * own, target, part, own);
        context_take(p->scored + i * own, scored, part, own);
    }
    Batch batch = {tensor_2d(s->room.inputs.data, I32, p->B, own), tensor_2d(s->room.targets.data, I32, p->B, own),
                   tensor_none()};
    device_from_host(&s->model->stream, batch.inputs, p->inputs);
    device_from_host(&s->model->stream, batch.targets, p->targets);
    return batch;
}

/* Adds the losses of a batch on this rank to the sums of its texts. Of ranks with equal losses only one adds. */
static void add_sums(const Scorer *s, const Plan *p, const Rows *rows, int64_t own, double *log_p, double *missed) {
    if (!is_counting(s->model->gpt.tensor)) return;
    const float *loss = p->losses, *largest = loss + p->B * own, *target = largest + p->B * own;
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t text = p->row[rows->first + i].text;
        for (int64_t k = i * own; k < (i + 1) * own; k++) {
            if (!p->scored[k]) continue;
            log_p[text] -= (double)loss[k];
            missed[text] += !(target[k] >= largest[k]);
        }
    }
}

int task_sums(const Scorer *s, const Task *t, double *log_p, double *missed) {
    enum { AT_ONCE = 1 << 20 };
    Model  *m = s->model;
    Plan    p = plan_of(s, t);
    int64_t datas = larger_of(s->datas, 1), rounds = (p.batches + datas - 1) / datas;
    int     goes_on = 1;
    memset(log_p, 0, sizeof *log_p * (size_t)t->texts);
    memset(missed, 0, sizeof *missed * (size_t)t->texts);
    for (int64_t i = 0; i < rounds && goes_on; i++) {
        int64_t mine = i * datas + s->data, is_mine = mine < p.batches;
        watchdog_tick(s->watchdog, "a batch of a task");
        if (s->says) say_part("scoring a task", i, rounds);
        goes_on = !(s->stop && s->stop(s->ctx));
        if (!goes_on || (!is_mine && !shards_gathers(m->shards))) continue;
        /* a rank without a batch computes the first one, because ranks that gather weights must compute equally
         * often */
        const Rows *rows = &p.batch[is_mine ? mine : 0];
        Batch batch = fill(s, t, &p, rows);
        pipeline_forward(&m->pipeline, &m->stream, batch);
        if (is_mine && pipeline_token_losses(&m->pipeline, &m->stream, batch, p.losses))
            add_sums(s, &p, rows, batch.inputs.dim[1], log_p, missed);
    }
    free(p.row), free(p.batch), free(p.inputs), free(p.targets), free(p.scored), free(p.sequence), free(p.losses);
    for (int64_t at = 0; s->all && goes_on && at < t->texts; at += AT_ONCE) {
        int count = (int)(t->texts - at < AT_ONCE ? t->texts - at : AT_ONCE);
        comm_all_reduce_f64(s->all, log_p + at, count, COMM_SUM);
        comm_all_reduce_f64(s->all, missed + at, count, COMM_SUM);
    }
    return goes_on;
}

/* --- scores ------------------------------------------------------------------------------------------------------- */

/* Returns the text of a question with the largest sum of log probabilities, the first if several are equal. divided: 1
 * divides each sum by the length of its text. Ignores NaN; returns -1 if all sums are NaN. */
static int32_t likeliest(const Task *t, const Question *q, const double *log_p, int divided) {
    int32_t best = -1;
    double  most = 0;
    for (int32_t i = 0; i < q->texts; i++) {
        double value = log_p[q->first + i] / (divided ? t->text[q->first + i].length : 1);
        if (!isnan(value) && (best < 0 || value > most)) best = i, most = value;
    }
    return best;
}

/* Returns the standard error of a mean of n zeros and ones: the sample standard deviation, with n - 1, over the root of
 * n. */
static double standard_error(double mean, int64_t n) { return n > 1 ? sqrt(mean * (1 - mean) / (double)(n - 1)) : NAN; }

int task_score(const Scorer *s, const Task *t, TaskScores *out) {
    double *log_p = memory(2 * t->texts, sizeof *log_p), *missed = log_p + t->texts, sum = 0;
    int     whole = task_sums(s, t, log_p, missed), has_choices = t->kind != TASK_CONTINUATION;
    int64_t right = 0, right_norm = 0, n = t->questions;
    for (int64_t i = 0; i < n; i++) {
        const Question *q = &t->question[i];
        sum += log_p[q->first];
        right += has_choices ? likeliest(t, q, log_p, 0) == q->gold : missed[q->first] == 0;
        right_norm += has_choices && likeliest(t, q, log_p, 1) == q->gold;
    }
    free(log_p);
    double acc = (double)right / (double)n, norm = has_choices ? (double)right_norm / (double)n : NAN;
    *out = (TaskScores){.name = t->name,
                        .kind = t->kind,
                        .questions = n,
                        .cut = t->cut,
                        .acc = acc,
                        .acc_stderr = standard_error(acc, n),
                        .acc_norm = norm,
                        .acc_norm_stderr = standard_error(norm, n),
                        .perplexity = has_choices ? NAN : exp(-sum / (double)n),
                        .centered = t->is_core ? ((has_choices ? norm : acc) - t->baseline) / (1 - t->baseline) : NAN};
    return whole;
}

double task_core(const TaskScores *scores, int tasks) {
    double sum = 0;
    int    count = 0;
    for (int i = 0; i < tasks; i++)
        if (!isnan(scores[i].centered)) sum += scores[i].centered, count++;
    return count ? sum / count : NAN;
}
