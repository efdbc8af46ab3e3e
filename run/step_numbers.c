/* step_numbers.c - see step_numbers.h. */
#include "run/step_numbers.h"

#include <math.h>
#include <string.h>

#include "core/thread.h"
#include "core/injection.h"

/* The numbers that the reduction sends. It adds each of them over the ranks. */
typedef struct { Exact sum[SUMS]; int64_t hash[GUARD_HASH_WORDS], stop, save, written, fed, lost, has_x; } Words;

static Words words_of(Run *r, const StepValues *v, int64_t step) {
    Words  w = {.hash = {0}};
    double took_ms = clock_ms() - r->between.began_ms; /* for the next step, too; twice if verified */
    memcpy(w.sum, v->sum, sizeof w.sum);
    exact_add(&w.sum[SUM_LOSS], inject_loss((double)r->config->batch.global_tokens));
    guard_hash_words(v->hash[HASH_REPLICAS], w.hash);
    w.stop = requests_stop(&r->requests, guard_verify_due(r->config, step + 1) ? 2.0 * took_ms : took_ms);
    w.save = requests_save(&r->requests);
    w.written = saver_ready(r->saver);
    w.fed = loader_is_ready(r->loader, 0.0);
    w.lost = r->island && island_keep(r->island);
    w.has_x = r->island && island_has_x(r->island);
    return w;
}

static int is_suspect(const Words *own, int ranks) {
    int check = ranks > 1 ? SUM_RANK_CHECK : SUM_GRAD_SQUARES;
    return !isfinite(exact_value(&own->sum[SUM_LOSS])) || !isfinite(exact_value(&own->sum[check]));
}

StepNumbers reduce_numbers(Run *r, int64_t step) {
    Model   *m = r->model;
    Between *b = &r->between;
    int    ranks = comm_size(r->comm), verifies = m->shards->hashes_own, compares = guard_hash_due(r->config, ranks, step);
    optimizer_numbers(&m->optimizer, &m->stream, (compares ? NUMBERS_REPLICAS : 0) | (verifies ? NUMBERS_GRADS : 0));
    shards_await(m->shards, &m->stream);
    StepValues v = step_sums_fetch(&m->sums, &m->stream);
    expert_load_take(&r->experts, m, r->comm, step); /* before run_with_parts, which overwrites the sums */
    fp8_steps_take(&r->fp8, m, r->comm);         /* reads the sums, too */
    if (compares) v.hash[HASH_REPLICAS] = run_with_parts(r, v.hash[HASH_REPLICAS]);
    Words      w = words_of(r, &v, step);
    int        suspect = is_suspect(&w, ranks);
    comm_all_reduce_i64(r->comm, w.sum[0].word, sizeof w / sizeof(int64_t), COMM_SUM);
    b->stop |= w.stop > 0, b->save |= w.save > 0, b->lost |= w.lost > 0;
    b->written = w.written == ranks, b->fed = w.fed == ranks, b->has_x = w.has_x == ranks;
    return (StepNumbers){.loss = exact_value(&w.sum[SUM_LOSS]) / (double)r->config->batch.global_tokens,
                         .grad_norm = sqrt(exact_value(&w.sum[SUM_GRAD_SQUARES])) / r->state.loss_scale.scale, .suspect = suspect,
                         .own_grads = v.hash[HASH_OWN_GRADS], .grads = v.hash[HASH_GRADS], .replicas = v.hash[HASH_REPLICAS],
                         .replicas_differ = guard_hashes_differ(w.hash, ranks)};
}
