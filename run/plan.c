/* plan.c - see plan.h. Nothing here allocates what it counts. */
#include "run/plan.h"

#include <stdio.h>
#include <stdlib.h>

#include "comm/comm.h"
#include "data/loader.h"
#include "layers/optimizer.h"
#include "run/checkpoint.h"


Plan plan_make(const Config *c, DType act, int ranks) {
    GptShape shape = {c->model.n_layer, c->model.n_head, c->model.n_embd, c->model.n_positions, c->model.vocab_size};
    int      rows;
    Param   *table = gpt_params(shape, &rows);
    Layout   layout = layout_create(table, rows, ranks);
    free(table);

    Arena params = arena_dry("weights"), grads = arena_dry("gradients"), optimizer = arena_dry("optimizer");
    Arena activations = arena_dry("activations"), batches = arena_dry("batches");
    int64_t   B = c->batch.micro_batch, T = c->batch.seq_len;
    GptArenas arenas = {&params, &grads, &activations};
    Gpt       g = gpt_create(shape, &layout, act, B, T, (Recompute)c->memory.recompute, GPT_TRAINING, arenas);
    Optimizer o = optimizer_create(&layout, 0, (int)c->parallel.zero_stage, g.params, g.grads, &optimizer);
    arena_tensor(&batches, I32, 2, B, T, 1); /* evaluation's inputs and targets, beside the loader's */
    arena_tensor(&batches, I32, 2, B, T, 1);
    arena_take(&batches, loader_bytes(B, T));

    CommKind kind = c->parallel.comm == PARALLEL_MPI ? COMM_MPI : device_is_host() || c->parallel.comm == PARALLEL_RING ? COMM_RING : COMM_NCCL;

    Plan p = {.parameters = layout.elems,
              .tokens_per_step = c->batch.global_tokens,
              .micro_steps = c->batch.global_tokens / (B * T * ranks),
              .flops_per_token = gpt_flops_per_token(shape, layout.elems, T),
              .params_bytes = params.peak_bytes,
              .grads_bytes = grads.peak_bytes,
              .optimizer_bytes = optimizer.peak_bytes,
              .activation_bytes = activations.peak_bytes,
              .scratch_bytes = gpt_scratch_bytes(&g),
              .batch_bytes = batches.peak_bytes,
              .comm_bytes = comm_buffer_bytes(kind, ranks),
              .comm_staging_bytes = device_is_host() ? 0 : comm_staging_bytes(kind, ranks, layout.memory_elems),
              .library_bytes = device_overhead_bytes(),
              .staging_bytes = saver_bytes(&layout),
              .checkpoint_bytes = checkpoint_disk_bytes(&layout)};
    p.total_bytes = p.params_bytes + p.grads_bytes + p.optimizer_bytes + p.activation_bytes + p.scratch_bytes + p.batch_bytes +
                    p.comm_bytes + p.library_bytes + (device_is_host() ? p.staging_bytes : 0);
    optimizer_destroy(&o);
    gpt_destroy(&g);
    layout_destroy(&layout);
    return p;
}

static size_t total_with(const Config *config, DType act, int ranks, int64_t micro_batch) {
    Config c = *config;
    c.batch.micro_batch = micro_batch;
    return plan_make(&c, act, ranks).total_bytes;
}

int64_t plan_largest_micro_batch(const Config *config, DType act, int ranks, size_t bytes) {
    enum { MOST = 1 << 16 };
    int64_t fits = 0, too_many = 1;
    while (too_many < MOST && total_with(config, act, ranks, too_many) <= bytes) fits = too_many, too_many *= 2;
    while (too_many - fits > 1) {
        int64_t middle = fits + (too_many - fits) / 2;
        if (total_with(config, act, ranks, middle) <= bytes) fits = middle;
        else too_many = middle;
    }
    return fits;
}

/* --- printing ------------------------------------------------------------------------------------------------------------------------- */

PlanText plan_bytes_text(double bytes) {
    PlanText t;
    if (bytes >= 1024.0 * 1024 * 1024) snprintf(t.text, sizeof t.text, "%.2f GiB", bytes / (1024.0 * 1024 * 1024));
    else snprintf(t.text, sizeof t.text, "%.1f MiB", bytes / (1024.0 * 1024));
    return t;
}

void plan_print_memory(FILE *out, const Config *c, const Plan *p, DType act, int ranks) {
    const char *recompute[] = {"", ", light recompute", ", block recompute"};
    char        state[96], activations[96];
    snprintf(state, sizeof state, "optimizer: %s%s", act == F32 ? "m, v" : "m, v, fp32 masters", c->parallel.zero_stage && ranks > 1 ? ", this rank's share" : "");
    snprintf(activations, sizeof activations, "activations%s", recompute[c->memory.recompute]);
    struct { const char *what; size_t bytes; } rows[] = {
        {"weights", p->params_bytes}, {"gradients", p->grads_bytes}, {state, p->optimizer_bytes}, {activations, p->activation_bytes},
        {"scratch", p->scratch_bytes}, {"batches", p->batch_bytes}, {"communication", p->comm_bytes}, {"program and libraries", p->library_bytes},
        {device_is_host() ? "staging of checkpoints" : NULL, p->staging_bytes}, {"total", p->total_bytes},
    };
    fprintf(out, "memory per rank (%s)\n", dtype_name(act));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].what) fprintf(out, "  %-48s %10.1f MiB\n", rows[i].what, (double)rows[i].bytes / 1048576.0);
    if (!device_is_host())
        fprintf(out, "  %-48s %10.1f MiB\n", "host memory: staging of checkpoints and buckets", (double)(p->staging_bytes + p->comm_staging_bytes) / 1048576.0);
}
