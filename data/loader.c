/* loader.c - see loader.h. One thread fills a ring of host buffers in order; the training thread copies the oldest to the device.
 * The thread reads shards only: it knows no MPI and no device.
 */
#include "data/loader.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread.h"

enum { RING = 4 }; /* micro-batches ahead: enough to cover a page fault or a slow disk read, little memory */

struct Loader {
    const Dataset  *dataset;    /* borrowed */
    LoaderPlan      plan;
    int64_t         T;
    Batch           batch;      /* device memory, from the arena */
    int32_t        *inputs;     /* owned [RING,B,T] */
    int32_t        *targets;    /* owned [RING,B,T] */
    int32_t        *sample;     /* owned [T+1], the thread's */
    pthread_t       thread;
    pthread_mutex_t lock;       /* guards filled, taken and stop; slots taken..filled-1 are the trainer's, the others the thread's */
    pthread_cond_t  changed;
    int64_t         filled, taken; /* micro-batches since the start */
    int64_t         handed;        /* micro-batches given to the trainer: taken, or one more whose copy may still run */
    Event           copied;        /* after the latest copy to the device */
    int             stop;
};

static Batch take_batch(Arena *arena, int64_t B, int64_t T) {
    Batch batch;
    batch.inputs = arena_tensor(arena, I32, 2, B, T, 1);
    batch.targets = arena_tensor(arena, I32, 2, B, T, 1);
    return batch;
}

size_t loader_bytes(int64_t B, int64_t T) {
    Arena dry = arena_dry("batches");
    take_batch(&dry, B, T);
    return dry.peak_bytes;
}

/* Global index of the first row of this rank's n-th micro-batch. */
static int64_t first_index(const LoaderPlan *p, int64_t n) {
    int64_t rank_samples = p->step_samples / p->ranks, micro_steps = rank_samples / p->micro_batch;
    return p->first_sample + n / micro_steps * p->step_samples + p->rank * rank_samples + n % micro_steps * p->micro_batch;
}

static void fill_slot(Loader *l, int64_t n) {
    int64_t B = l->plan.micro_batch, T = l->T, first = first_index(&l->plan, n), slot = n % RING;
    for (int64_t row = 0; row < B; row++) {
        dataset_sample(l->dataset, dataset_order(l->dataset, l->plan.order, first + row), l->sample);
        memcpy(l->inputs + (slot * B + row) * T, l->sample, (size_t)T * sizeof *l->sample);
        memcpy(l->targets + (slot * B + row) * T, l->sample + 1, (size_t)T * sizeof *l->sample);
    }
}

static void *fill_ahead(void *loader) {
    Loader *l = loader;
    for (int64_t n = 0;; n++) {
        pthread_mutex_lock(&l->lock);
        while (!l->stop && n - l->taken >= RING) pthread_cond_wait(&l->changed, &l->lock);
        int stop = l->stop;
        pthread_mutex_unlock(&l->lock);
        if (stop) return NULL;

        fill_slot(l, n);

        pthread_mutex_lock(&l->lock);
        l->filled = n + 1;
        pthread_cond_signal(&l->changed);
        pthread_mutex_unlock(&l->lock);
    }
}

static void stop_thread(Loader *l) {
    pthread_mutex_lock(&l->lock);
    l->stop = 1;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    l->stop = 0;
}

Loader *loader_create(const Dataset *dataset, LoaderPlan plan, Arena *arena) {
    CHECK(plan.ranks > 0 && plan.rank >= 0 && plan.rank < plan.ranks, "rank %d of %d", plan.rank, plan.ranks);
    CHECK(plan.micro_batch > 0 && plan.step_samples > 0 && plan.step_samples % (plan.micro_batch * plan.ranks) == 0,
          "%lld samples a step over %d ranks in micro-batches of %lld", (long long)plan.step_samples, plan.ranks,
          (long long)plan.micro_batch);
    int64_t B = plan.micro_batch, T = dataset->seq_len;
    Loader *l = calloc(1, sizeof *l);
    if (!l) fail(EXIT_MEMORY, "no memory for the data loader");
    l->dataset = dataset;
    l->plan = plan;
    l->T = T;
    l->batch = take_batch(arena, B, T);
    l->inputs = device_alloc_host((size_t)(RING * B * T) * sizeof *l->inputs, "batches");
    l->targets = device_alloc_host((size_t)(RING * B * T) * sizeof *l->targets, "batches");
    l->copied = event_create();
    l->sample = calloc((size_t)(T + 1), sizeof *l->sample);
    if (!l->sample) fail(EXIT_MEMORY, "no memory for a sample of %lld tokens (batch.seq_len)", (long long)T);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    l->thread = thread_start(fill_ahead, l, "the data loader");
    return l;
}

void loader_destroy(Loader *l) {
    if (!l) return;
    stop_thread(l);
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    event_wait(l->copied);
    event_destroy(&l->copied);
    device_free_host(l->inputs);
    device_free_host(l->targets);
    free(l->sample);
    free(l);
}

/* The copy of the batch handed out last is over: its slot goes back to the thread. */
static void release_slot(Loader *l) {
    if (l->handed == l->taken) return;
    event_wait(l->copied);
    pthread_mutex_lock(&l->lock);
    l->taken = l->handed;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

Batch loader_next(Loader *l, Stream *s, double *wait_ms) {
    release_slot(l);
    double start_ms = clock_ms();
    pthread_mutex_lock(&l->lock);
    while (l->filled == l->handed) pthread_cond_wait(&l->changed, &l->lock);
    pthread_mutex_unlock(&l->lock);
    if (wait_ms) *wait_ms = clock_ms() - start_ms;

    int64_t at = l->handed++ % RING * l->plan.micro_batch * l->T; /* only this thread writes handed and taken */
    device_from_host_queued(s, l->batch.inputs, l->inputs + at);
    device_from_host_queued(s, l->batch.targets, l->targets + at);
    event_record(l->copied, s);
    return l->batch;
}

void loader_seek(Loader *l, int64_t first_sample) {
    stop_thread(l);
    event_wait(l->copied);
    l->plan.first_sample = first_sample;
    l->filled = l->taken = l->handed = 0;
    l->thread = thread_start(fill_ahead, l, "the data loader");
}
