/* loader.c - see loader.h. A thread fills a ring of host buffers in order. The training thread copies the oldest
 * micro-batch to the device. The thread only reads shards, and calls neither MPI nor the device. */
#include "data/loader.h"

#include <stdlib.h>

#include "core/thread.h"
#include "core/failpoints.h"
#include "core/error.h"

/* number of micro-batches that are read beyond those of a step: enough to hide a page fault or a slow disk while the
 * step is computed */
enum { AHEAD = 4 };

static const double PATIENCE_MS = 2000.0;

struct Loader {
    const Dataset  *dataset;    /* borrowed: the samples */
    LoaderPlan      plan;
    int64_t         T;          /* tokens of a sample on this rank, fewer than seq_len with context ranks */
    /* owned [3, seq_len]: inputs, targets and document starts of a whole sample; NULL if this rank has whole samples */
    int32_t        *sample;
    Batch          *batch;      /* owned [plan.batches]: batches in device memory from the arena, used in rotation */
    int64_t         micro_steps;/* micro-batches of a step on this rank */
    int64_t         first_micro;/* index within the step of the first micro-batch of this rank */
    int64_t         ring;       /* number of micro-batches in host memory: those of a step and AHEAD more */
    int32_t        *inputs;     /* owned [ring,B,T]: inputs of the micro-batches in host memory */
    int32_t        *targets;    /* owned [ring,B,T]: targets of the micro-batches in host memory */
    /* owned [ring,B,T]: for each token, the first position of its document; NULL if the plan has no documents */
    int32_t        *starts;
    /* thread that fills the ring; its lock protects filled and taken. The training thread may use slots taken..filled-1
     * of the ring, the loader's thread the others. */
    Thread          thread;
    /* counts since the start: micro-batches that the thread has filled; micro-batches whose copy to the device has
     * ended */
    int64_t         filled, taken;
    /* micro-batches given to the training thread since the start: `taken`, or one more whose copy may still run */
    int64_t         handed;
    Event           copied;        /* event after the latest copy of a micro-batch to the device */
};

static Batch take_batch(Arena *arena, int64_t B, int64_t T, int documents) {
    Batch batch;
    batch.inputs = arena_tensor(arena, I32, 2, B, T, 1);
    batch.targets = arena_tensor(arena, I32, 2, B, T, 1);
    batch.starts = documents ? arena_tensor(arena, I32, 2, B, T, 1) : tensor_none();
    return batch;
}

size_t loader_bytes(int64_t B, int64_t T, int64_t batches, int documents) {
    Arena dry = arena_dry("batches");
    for (int64_t i = 0; i < batches; i++) take_batch(&dry, B, T, documents);
    return dry.peak_bytes;
}

size_t loader_host_bytes(int64_t B, int64_t T, int64_t micro_steps, int documents) {
    return (documents ? 3 : 2) * sizeof(int32_t) * (size_t)((micro_steps + AHEAD) * B * T);
}

/* Reads micro-batch n of this rank, counted from the start, into its slot of the ring. */
static void fill_slot(Loader *l, int64_t n) {
    const LoaderPlan *p = &l->plan;
    const int64_t     whole = l->dataset->seq_len, T = l->T;
    const int64_t     first = p->first_sample + n / l->micro_steps * p->step_samples +
                          /* global index of the micro-batch's first sample */
                          (l->first_micro + n % l->micro_steps) * p->micro_batch;
    failpoint_done(failpoint("data.batch"));
    for (int64_t row = 0; row < p->micro_batch; row++) {
        int64_t at = (n % l->ring * p->micro_batch + row) * T,
                number = dataset_order(l->dataset, p->order, first + row);
        int32_t *inputs = l->inputs + at, *targets = l->targets + at, *starts = l->starts ? l->starts + at : NULL;
        int32_t *all = l->sample ? l->sample : inputs; /* memory for the inputs of the whole sample */
        int32_t *all_targets = l->sample ? l->sample + whole : targets,
                *all_starts = l->sample ? l->sample + 2 * whole : starts;
        dataset_sample(l->dataset, number, all, all_targets);
        if (starts) document_starts(all_starts, all, whole, p->end_of_text);
        if (!l->sample) continue;
        context_take(inputs, all, p->context, T);
        context_take(targets, all_targets, p->context, T);
        if (starts) context_take(starts, all_starts, p->context, T);
    }
}

static void *fill_ahead(void *loader) {
    Loader *l = loader;
    for (int64_t n = 0;; n++) {
        thread_lock(&l->thread);
        while (!l->thread.stop && n - l->taken >= l->ring) thread_wait(&l->thread);
        int stop = l->thread.stop;
        thread_unlock(&l->thread);
        if (stop) return NULL;

        fill_slot(l, n);

        thread_lock(&l->thread);
        l->filled = n + 1;
        thread_changed(&l->thread);
        thread_unlock(&l->thread);
    }
}

static void take_ring(Loader *l) {
    int64_t B = l->plan.micro_batch;
    l->ring = l->micro_steps + AHEAD;
    l->inputs = device_alloc_host(loader_host_bytes(B, l->T, l->micro_steps, l->plan.documents), "batches");
    l->targets = l->inputs + l->ring * B * l->T;
    l->starts = l->plan.documents ? l->targets + l->ring * B * l->T : NULL;
}

Loader *loader_create(const Dataset *dataset, LoaderPlan plan, Arena *arena) {
    CHECK(plan.ranks > 0 && plan.rank >= 0 && plan.rank < plan.ranks, "rank %d of %d", plan.rank, plan.ranks);
    CHECK(plan.micro_batch > 0 && plan.step_samples > 0 && plan.step_samples % (plan.micro_batch * plan.ranks) == 0,
          "%lld samples a step over %d ranks in micro-batches of %lld", (long long)plan.step_samples, plan.ranks,
          (long long)plan.micro_batch);
    if (plan.context.ranks < 1) plan.context = WHOLE_SEQUENCE;
    if (plan.batches < 1) plan.batches = 1;
    int64_t B = plan.micro_batch, T = dataset->seq_len / plan.context.ranks;
    Loader *l = xcalloc(1, sizeof *l, "the data loader");
    if (plan.context.ranks > 1) l->sample = xmalloc(3 * sizeof *l->sample * (size_t)dataset->seq_len, "a sample");
    l->dataset = dataset;
    l->plan = plan;
    l->T = T;
    l->batch = xmalloc(sizeof *l->batch * (size_t)plan.batches, "the data loader");
    for (int64_t i = 0; i < plan.batches; i++) l->batch[i] = take_batch(arena, B, T, plan.documents);
    l->micro_steps = plan.step_samples / plan.ranks / plan.micro_batch;
    l->first_micro = plan.rank * l->micro_steps;
    take_ring(l);
    l->copied = event_create();
    thread_start(&l->thread, fill_ahead, l, "the data loader");
    return l;
}

int loader_destroy(Loader *l) {
    if (!l) return 1;
    if (!thread_try_stop(&l->thread, PATIENCE_MS)) return 0;
    event_wait(l->copied);
    event_destroy(&l->copied);
    device_free_host(l->inputs);
    free(l->sample);
    free(l->batch);
    free(l);
    return 1;
}

/* Waits until the micro-batch that was returned last is copied to the device. The thread may then fill its slot of the
 * ring again. */
static void release_slot(Loader *l) {
    if (l->handed == l->taken) return;
    event_wait(l->copied);
    thread_lock(&l->thread);
    l->taken = l->handed;
    thread_changed(&l->thread);
    thread_unlock(&l->thread);
}

int loader_is_ready(Loader *l, double ms) {
    double until_ms = clock_ms() + ms;
    release_slot(l);
    thread_lock(&l->thread);
    while (l->filled - l->handed < l->micro_steps && clock_ms() < until_ms &&
           thread_wait_for(&l->thread, until_ms - clock_ms())) {}
    int is_ready = l->filled - l->handed >= l->micro_steps;
    thread_unlock(&l->thread);
    return is_ready;
}

Batch loader_next(Loader *l, Stream *s, double *wait_ms) {
    release_slot(l);
    double start_ms = clock_ms();
    thread_lock(&l->thread);
    while (l->filled == l->handed) thread_wait(&l->thread);
    thread_unlock(&l->thread);
    if (wait_ms) *wait_ms = clock_ms() - start_ms;

    Batch   batch = l->batch[l->handed % l->plan.batches];
    /* no lock, because only the training thread writes handed and taken */
    int64_t at = l->handed++ % l->ring * l->plan.micro_batch * l->T;
    device_from_host_queued(s, batch.inputs, l->inputs + at);
    device_from_host_queued(s, batch.targets, l->targets + at);
    if (l->starts) device_from_host_queued(s, batch.starts, l->starts + at);
    event_record(l->copied, s);
    return batch;
}

void loader_seek(Loader *l, int64_t first_sample) { loader_share(l, l->first_micro, l->micro_steps, first_sample); }

void loader_share(Loader *l, int64_t first, int64_t count, int64_t first_sample) {
    CHECK(first >= 0 && count > 0 && (first + count) * l->plan.micro_batch <= l->plan.step_samples,
          "micro-batches %lld to %lld of a step", (long long)first,
          (long long)(first + count));
    thread_stop(&l->thread);
    event_wait(l->copied);
    l->first_micro = first;
    if (count != l->micro_steps) {
        device_free_host(l->inputs);
        l->micro_steps = count;
        take_ring(l);
    }
    l->plan.first_sample = first_sample;
    l->filled = l->taken = l->handed = 0;
    thread_start(&l->thread, fill_ahead, l, "the data loader");
}
