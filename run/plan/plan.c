/* plan.c - see plan.h. Nothing here allocates the memory it counts. */
#include "run/plan/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory_file.h"
#include "data/loader.h"
#include "model/precision.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/memory_copies.h"
#include "run/outer/island.h"
#include "run/outer/server_list.h"
#include "run/plan/serve_memory.h"

/* Returns 1 if islands send gradients: then the server updates the weights, and the islands do not. */
static int server_updates(const Config *c) {
    return c->outer.server && *c->outer.server && c->outer.send == SEND_GRADIENTS;
}

ModelSpec plan_model(const Config *c, DType act, int ranks, int stage, const Groups *groups) {
    int64_t    B = c->batch.micro_batch, T = c->batch.seq_len;
    Mesh       mesh = config_mesh(c, ranks);
    int        is_idle = server_updates(c);
    ShardsSpec shards = {.shape = c->model.shape, .ranks = mesh.size[AXIS_CONTEXT] * mesh.size[AXIS_SHARD],
                         .replicas = mesh.size[AXIS_REPLICA], .tensor_ranks = mesh.size[AXIS_TENSOR],
                         .expert_ranks = (int)c->parallel.expert, .zero_stage = (int)c->parallel.zero_stage,
                         .micro_batches = c->parallel.deterministic ? c->batch.global_tokens / (B * T * config_datas(c, ranks)) : 0,
                         .act = act, .use = GPT_TRAINING};
    PipelineSpec pipeline = {.stages = mesh.size[AXIS_STAGE], .stage = stage, .parts = (int)c->parallel.interleave,
                             .micro_batches = c->batch.global_tokens / (B * T * config_datas(c, ranks))};
    ModelSpec    spec = {.shards = shards, .capacity = c->moe.capacity, .context_ranks = mesh.size[AXIS_CONTEXT], .pipeline = pipeline,
                         .optimizer = is_idle ? &OPTIMIZER_IDLE : optimizer_kind(c->optimizer.name, c->optimizer.normuon),
                         .optimizer_settings = {c->optimizer.muon_momentum, (NewtonKind)c->optimizer.newton_schulz}, .B = B, .T = T,
                         .recompute = (Recompute)c->memory.recompute, .document_mask = c->data.document_mask != 0,
                         .offload = device_is_host() ? MEMORY_DEVICE : is_idle ? MEMORY_HOST : (OptimizerMemory)c->memory.offload,
                         .fp8 = c->precision == PRECISION_FP8, .any_threads = c->parallel.deterministic};
    if (groups) model_take_groups(&spec, groups);
    return spec;
}

static size_t largest_follower(const Config *c) {
    size_t most = 0;
    int    servers = c->outer.server ? outer_servers(c->outer.server) : 1;
    for (int part = 1; part < servers; part++) {
        ServeBytes of = serve_bytes(c, part);
        if (of.all > most) most = of.all;
    }
    return most;
}

static Plan plan_stage(const Config *c, DType act, PlanRanks ranks) {
    int64_t    B = c->batch.micro_batch, T = c->batch.seq_len;
    ModelSpec  spec = plan_model(c, act, ranks.count, ranks.stage, NULL);
    Mesh       mesh = config_mesh(c, ranks.count);
    int64_t    micro_steps = c->batch.global_tokens / (B * T * config_datas(c, ranks.count));
    Ledger     step = {0};
    ModelBytes model = model_dry(spec, micro_steps, &step);
    Layout     layout = model_spec_layout(&spec);
    Arena      batches = arena_dry("batches");
    int64_t    leaves = spec.shards.micro_batches * mesh.size[AXIS_SHARD], batches_kept = pipeline_batches(spec.pipeline);
    int       nodes = 1; /* nodes of the trees of gradients whose buckets travel between ranks */
    for (int r = 0, shards = mesh.size[AXIS_SHARD]; leaves && r < shards; r++)
        if (tree_of_rank(leaves, shards, r).count > nodes) nodes = tree_of_rank(leaves, shards, r).count;
    GroupsUse use = {(int)c->parallel.expert, optimizer_kind(c->optimizer.name, c->optimizer.normuon)->has_matrices, leaves > 0};
    size_t tree_bytes = leaves ? comm_tree_bytes(ranks.comm, mesh.size[AXIS_SHARD], leaves) : 0,
           nccl_bytes = ranks.comm == COMM_NCCL ? tree_bytes : 0;
    int64_t own_T = T / mesh.size[AXIS_CONTEXT];
    arena_tensor(&batches, I32, 2, B, own_T, 1); /* inputs and targets of evaluation, besides the loader's */
    arena_tensor(&batches, I32, 2, B, own_T, 1);
    if (spec.document_mask) arena_tensor(&batches, I32, 2, B, own_T, 1); /* where their documents begin */
    arena_take(&batches, loader_bytes(B, own_T, batches_kept, spec.document_mask));

    Plan p = {.act = act,
              .ranks = ranks,
              .parameters = layout.elems,
              .tokens_per_step = c->batch.global_tokens,
              .micro_steps = micro_steps,
              .flops_per_token = model_flops_per_token(c->model.shape, T),
              .step_flops = ledger_flops(&step),
              .step_bytes = ledger_bytes(&step),
              .step_sent = ledger_sent(&step, NULL),
              .mesh = mesh,
              .parts = (int)c->parallel.interleave,
              .params_bytes = model.params,
              .grads_bytes = model.grads,
              .optimizer_bytes = spec.offload == MEMORY_HOST ? 0 : model.optimizer,
              .offload_bytes = spec.offload == MEMORY_HOST ? model.optimizer : 0,
              .activation_bytes = model.activations,
              .scratch_bytes = model.scratch,
              .batch_bytes = batches.peak_bytes,
              .library_bytes = device_overhead_bytes(),
              .reserve_bytes = device_reserve_bytes() + (ranks.joined ? 0 : groups_library_bytes(mesh, ranks.comm, use)),
              .gradient_buffers = model.gradient_buffers,
              .tree_bytes = nccl_bytes,
              .comm_bytes = groups_buffer_bytes(mesh, ranks.comm, (int)c->parallel.expert) +
                            comm_staging_bytes(ranks.comm, ranks.count, layout.memory_elems * nodes) +
                            comm_staging_bytes(ranks.comm, mesh.size[AXIS_TENSOR], B * own_T * c->model.shape.n_embd) +
                            comm_staging_bytes(ranks.comm, mesh.size[AXIS_STAGE],
                                               4 * B * own_T / mesh.size[AXIS_TENSOR] * c->model.shape.n_embd) +
                            comm_staging_bytes(ranks.comm, mesh.size[AXIS_CONTEXT],
                                               2 * B * T * dim_size(DIM_KV, c->model.shape) / mesh.size[AXIS_TENSOR]) +
                            comm_staging_bytes(ranks.comm, (int)c->parallel.expert,
                                               4 * B * own_T * c->model.shape.top_k * c->model.shape.n_embd) +
                            tree_bytes - nccl_bytes,
              .host_copy_bytes = saver_bytes(&layout, spec.optimizer),
              .ahead_bytes = loader_host_bytes(B, own_T, micro_steps, spec.document_mask),
              .island_bytes = c->outer.server && *c->outer.server ? island_bytes(c, &layout) : 0,
              .copies_bytes = c->checkpoint.memory_every > 0 ? memory_copies_bytes(&layout, spec.optimizer, ranks.hosts) : 0,
              .checkpoint_bytes = checkpoint_disk_bytes(&layout, spec.optimizer),
              .server_bytes = c->outer.server && *c->outer.server ? serve_bytes(c, 0).all : 0,
              .follower_bytes = largest_follower(c)};
    p.host_bytes = p.comm_bytes + p.host_copy_bytes + p.ahead_bytes + p.offload_bytes + p.island_bytes;
    p.device_bytes = p.params_bytes + p.grads_bytes + p.optimizer_bytes + p.activation_bytes + p.scratch_bytes +
                     p.batch_bytes + p.tree_bytes + p.library_bytes + p.reserve_bytes +
                     (device_is_host() ? p.host_bytes + p.copies_bytes : 0);
    p.sent[AXIS_SHARD] = p.step_sent;
    for (int a = 0; a < AXES; a++)
        if (a != AXIS_SHARD) p.sent[AXIS_SHARD] -= p.sent[a] = ledger_sent(&step, mesh_axis_name((Axis)a));
    ledger_free(&step);
    layout_destroy(&layout);
    return p;
}

/* Plans each stage that differs and returns the one with the most memory. Of stages with equally many blocks, the
 * earlier ones keep the activations of more micro-batches. The bytes sent are those of the first stage, as in a run's
 * metrics. */
Plan plan_make(const Config *c, DType act, PlanRanks ranks) {
    Plan most = {0}, first = {0};
    if (ranks.stage >= 0 || c->parallel.pipeline == 1) {
        if (ranks.stage < 0) ranks.stage = 0;
        return plan_stage(c, act, ranks);
    }
    PipelineSpec stages = plan_model(c, act, ranks.count, 0, NULL).pipeline;
    int         *like = pipeline_alike(c->model.shape, stages);
    for (int p = 0; p < stages.stages; p++) {
        if (like[p] != p) continue;
        ranks.stage = p;
        Plan one = plan_stage(c, act, ranks);
        if (p == 0) first = one;
        if (one.device_bytes > most.device_bytes) most = one;
    }
    free(like);
    memcpy(most.sent, first.sent, sizeof most.sent), most.step_sent = first.step_sent;
    return most;
}

static size_t total_with(const Config *config, const Plan *plan, int64_t micro_batch, Recompute recompute) {
    Config c = *config;
    c.batch.micro_batch = micro_batch;
    c.memory.recompute = recompute;
    return plan_make(&c, plan->act, plan->ranks).device_bytes;
}

int64_t plan_largest_micro_batch(const Config *config, const Plan *plan, size_t bytes) {
    enum { MOST = 1 << 16 };
    Recompute recompute = (Recompute)config->memory.recompute;
    int64_t   fits = 0, too_many = 1;
    while (too_many < MOST && total_with(config, plan, too_many, recompute) <= bytes) fits = too_many, too_many *= 2;
    while (too_many - fits > 1) {
        int64_t middle = fits + (too_many - fits) / 2;
        if (total_with(config, plan, middle, recompute) <= bytes) fits = middle;
        else too_many = middle;
    }
    return fits;
}

/* --- printing ----------------------------------------------------------------------------------------------------- */

PlanText plan_bytes_text(double bytes) {
    PlanText t;
    if (bytes >= 1024.0 * 1024 * 1024) snprintf(t.text, sizeof t.text, "%.2f GiB", bytes / (1024.0 * 1024 * 1024));
    else snprintf(t.text, sizeof t.text, "%.1f MiB", bytes / (1024.0 * 1024));
    return t;
}

static void print_row(FILE *out, const char *what, size_t bytes) {
    fprintf(out, "  %-58s %10.1f MiB\n", what, (double)bytes / 1048576.0);
}

void plan_print_memory(FILE *out, const Config *c, const Plan *p) {
    const char *recompute[] = {"", ", light recompute", ", block recompute"}, *comm[] = {"the ring", "MPI", "NCCL"};
    int         shared = c->parallel.zero_stage && p->ranks.count > 1, on_host = device_is_host();
    char        row[96];
    fprintf(out, "memory per rank (%s)\n", c->precision == PRECISION_FP8 ? "bf16, with products in fp8" : dtype_name(p->act));
    print_row(out, "weights", p->params_bytes);
    if (p->gradient_buffers > 0) snprintf(row, sizeof row, "gradients, and %d buffers to add them in order", p->gradient_buffers);
    print_row(out, p->gradient_buffers > 0 ? row : "gradients", p->grads_bytes);
    const OptimizerKind *kind = optimizer_kind(c->optimizer.name, c->optimizer.normuon);
    int                  used = snprintf(row, sizeof row, "optimizer: %s", server_updates(c) ? "the server's" : "");
    for (int k = 0; k < kind->states && !server_updates(c); k++)
        used += snprintf(row + used, sizeof row - (size_t)used, "%s%s", k ? ", " : "", kind->state[k].name);
    snprintf(row + used, sizeof row - (size_t)used, "%s%s", p->act == F32 ? "" : ", fp32 masters",
             shared ? ", this rank's share" : "");
    if (p->offload_bytes == 0) print_row(out, row, p->optimizer_bytes);
    snprintf(row, sizeof row, "activations%s", recompute[c->memory.recompute]);
    print_row(out, row, p->activation_bytes);
    print_row(out, "scratch", p->scratch_bytes);
    print_row(out, "batches", p->batch_bytes);
    if (p->tree_bytes > 0) print_row(out, "what other ranks send to be added in order", p->tree_bytes);
    if (!on_host) {
        print_row(out,
                  device_memory_total() ? "not ours, as measured: context, libraries, other programs"
                                        : "not ours: the context, not measured without a GPU",
                  p->library_bytes);
        print_row(out,
                  p->ranks.joined || p->ranks.count == 1 || p->ranks.comm != COMM_NCCL
                      ? "not ours, an estimate: kernels loaded later, cuBLASLt, graph"
                      : "not ours, an estimate: NCCL, kernels, cuBLASLt, graph",
                  p->reserve_bytes);
        print_row(out, "total, GPU memory", p->device_bytes);
    }
    snprintf(row, sizeof row, "%sexchange between ranks, by %s", on_host ? "" : "host: ", comm[p->ranks.comm]);
    if (p->ranks.count > 1) print_row(out, row, p->comm_bytes);
    if (p->offload_bytes > 0) {
        const char *what = server_updates(c) ? "fp32 masters of the weights, with their pages" : "optimizer, with its pages";
        snprintf(row, sizeof row, "host: %s%s", what, shared ? ", this rank's share" : "");
        print_row(out, row, p->offload_bytes);
    }
    print_row(out, on_host ? "host copy for checkpoints" : "host: copy for checkpoints", p->host_copy_bytes);
    print_row(out, on_host ? "batches read ahead" : "host: batches read ahead", p->ahead_bytes);
    snprintf(row, sizeof row, "%scopy of a round's weights, for outer.server", on_host ? "" : "host: ");
    if (p->island_bytes > 0) print_row(out, row, p->island_bytes);
    if (on_host) print_row(out, "program and libraries", p->library_bytes);
    snprintf(row, sizeof row, "copies in memory, two of this rank%s", p->ranks.hosts > 1 ? " and two of a neighbour" : "");
    if (p->copies_bytes > 0 && on_host) print_row(out, row, p->copies_bytes);
    print_row(out, on_host ? "total" : "total, pinned host memory", on_host ? p->device_bytes : p->host_bytes);
    if (p->copies_bytes > 0 && !on_host) print_row(out, row, p->copies_bytes);
    snprintf(row, sizeof row, "server, where it runs: with the deltas of %lld island%s",
             (long long)c->outer.least_islands, c->outer.least_islands == 1 ? "" : "s");
    if (p->server_bytes > 0) print_row(out, row, p->server_bytes);
    if (p->follower_bytes > 0) print_row(out, "each other server, where it runs: at most", p->follower_bytes);
}

/* The bytes of a block have, for each row: the row and its output, gate and up, swiglu and its gradient, a weight and
 * its gradient. */
char *plan_experts(const Config *c, DType act, char out[240]) {
    ModelShape s = c->model.shape;
    int64_t    e = c->parallel.expert, even = c->batch.micro_batch * (c->batch.seq_len / c->parallel.context) * s.top_k,
            room = expert_room(even, c->moe.capacity, e);
    double bytes = (double)room * ((double)dtype_bytes(act) * (double)(2 * s.n_embd + 4 * s.n_expert_inner) + 8.0);
    out[0] = '\0';
    if (e > 1)
        snprintf(out, 240, "%lld of %lld on each of %lld ranks; room for %lld rows, %lld are the even share: %s a block; "
                 "more take further rounds, computed again in backward",
                 (long long)(s.n_experts / e), (long long)s.n_experts, (long long)e, (long long)room, (long long)even,
                 plan_bytes_text(bytes).text);
    return out;
}

char *plan_memory_advice(const Config *c, const Plan *p) {
    char     *text = NULL;
    size_t    bytes;
    FILE     *out = memory_file_open(&text, &bytes);
    int64_t   B = c->batch.micro_batch;
    Recompute recompute = (Recompute)c->memory.recompute;
    if (!out) fail(EXIT_MEMORY, "no memory for a plan");
    plan_print_memory(out, c, p);
    fprintf(out, "less memory:");
    if (B > 1)
        fprintf(out, " batch.micro_batch = %lld takes %s;", (long long)(B / 2),
                plan_bytes_text((double)total_with(c, p, B / 2, recompute)).text);
    if (recompute != RECOMPUTE_BLOCK)
        fprintf(out, " memory.recompute = \"block\" takes %s;", plan_bytes_text((double)total_with(c, p, B, RECOMPUTE_BLOCK)).text);
    if (B == 1 || recompute == RECOMPUTE_BLOCK)
        fprintf(out, " %s;",
                c->parallel.zero_stage ? "more ranks share the optimizer's part"
                                       : "parallel.zero_stage = 1 shares the optimizer's part among the ranks");
    fprintf(out, " `train_gpt plan` shows each\n");
    if (fclose(out) != 0) fail(EXIT_MEMORY, "no memory for a plan");
    return text;
}
