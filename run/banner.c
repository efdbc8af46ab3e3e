/* banner.c - see banner.h. */
#include "run/banner.h"

#include <stdio.h>
#include <string.h>

static double mib(size_t bytes) { return (double)bytes / 1048576.0; }

static const char *const KINDS[] = {[COMM_RING] = "own ring over MPI", [COMM_MPI] = "MPI's collectives", [COMM_NCCL] = "NCCL"};

/* "4 on 2 hosts (hostA, ...), NCCL" */
static void print_ranks(const Run *r) {
    int ranks = comm_size(r->comm), hosts = 0;
    for (int i = 0; i < ranks; i++)
        if (i == 0 || strcmp(comm_host(r->comm, i), comm_host(r->comm, i - 1)) != 0) hosts++;
    printf("ranks     %d on %d host%s (%s%s), %s", ranks, hosts, hosts == 1 ? "" : "s", comm_host(r->comm, 0),
           hosts > 1 ? ", ..." : "",
           ranks == 1 ? world_library() : KINDS[comm_kind(r->comm)]);
    char grid[MESH_TEXT];
    if (mesh_ranks(r->groups.mesh) > r->groups.mesh.size[AXIS_SHARD]) printf(": %s", mesh_text(r->groups.mesh, grid));
    printf("\n");
}

static void print_model(const Run *r) {
    printf("model     %s: %.2f M parameters\n", model_shape_text(r->config->model.shape).text, (double)r->plan.parameters * 1e-6);
}

static void print_data(const Run *r) {
    const Config *c = r->config;
    double epochs = (double)c->run.steps * (double)c->batch.global_tokens / ((double)r->train.samples * (double)c->batch.seq_len);
    printf("data      %d shard%s, %lld tokens, %lld samples of %lld: this run is %.2f epochs%s\n", r->train.shards,
           r->train.shards == 1 ? "" : "s", (long long)r->train.tokens, (long long)r->train.samples,
           (long long)c->batch.seq_len, epochs, c->data.shuffle ? "" : ", plain order");
    if (r->val.shards)
        printf("held out  %d shard%s, %lld tokens\n", r->val.shards, r->val.shards == 1 ? "" : "s",
               (long long)r->val.tokens);
}

/* " (tensor 2 x shard 4)", or nothing. */
static const char *in_grid(const char *grid, char out[MESH_TEXT + 4]) {
    snprintf(out, MESH_TEXT + 4, "%s%s%s", grid[0] ? " (" : "", grid, grid[0] ? ")" : "");
    return out;
}

static void print_start(const Run *r) {
    const Config *c = r->config;
    char          now[MESH_TEXT], before[MESH_TEXT + 4], after[MESH_TEXT + 4];
    int           is_grid = mesh_ranks(r->groups.mesh) > r->groups.mesh.size[AXIS_SHARD];
    mesh_text(r->groups.mesh, now);
    if (r->resumed.ranks == 0 && c->model.init_from[0]) printf("start     weights from %s\n", c->model.init_from);
    else if (r->resumed.ranks == 0) printf("start     new weights, seed %lld\n", (long long)c->run.seed);
    else
        printf("resume    %s/checkpoints/%s: at step %lld, saved by %d rank%s%s, now %d%s\n", c->run.dir,
               r->resumed.name, (long long)r->resumed.step, r->resumed.ranks, r->resumed.ranks == 1 ? "" : "s",
               in_grid(r->resumed.grid, before), comm_size(r->comm), in_grid(is_grid ? now : "", after));
    if (r->resumed.is_copy)
        printf("copy      of run %s at step %lld: from here on a run of its own, %s\n", r->state.parent.run_id,
               (long long)r->state.parent.step, r->state.run_id);
}

/* The nearest limit and the stop before it. The scheduler may set a job's end, so the line shows the value as read. */
static void print_limit(const Run *r) {
    double      away_ms, reserve_ms;
    char        away[32], before[32];
    const char *name = requests_limit(&r->requests, &away_ms, &reserve_ms);
    if (!name) return;
    progress_duration(away, away_ms > 0 ? away_ms : 0);
    progress_duration(before, reserve_ms);
    printf("limit     %s in %s: the run stops, saved, %s before\n", name, away, before);
}

void banner_print(const Run *r) {
    if (!run_is_rank0(r)) return;
    const Config *c = r->config;
    const Plan   *p = &r->plan;
    printf("train_gpt %s: %s -> %s\n", device_backend(), c->path, c->run.dir);
    printf("machine   %s (%s), %d thread%s per rank, matrix products %.1f GFLOP/s\n", device_name(), device_isa(), device_threads(),
           device_threads() == 1 ? "" : "s", r->matmul_flops * 1e-9);
    print_ranks(r);
    print_model(r);
    printf("precision %s%s\n", r->numerics.name,
           r->numerics.act == BF16 && !device_has_bf16() ? " by way of f32 tiles: this processor has no bf16 products" : "");
    print_data(r);
    char sharers[64];
    printf("batch     %lld tokens a step: %s x %lld micro-batch%s x %lld sequences of %lld\n", (long long)c->batch.global_tokens,
           plan_sharers(r->groups.datas, comm_size(r->comm), sharers), (long long)r->shares[0], r->shares[0] == 1 ? "" : "es",
           (long long)c->batch.micro_batch, (long long)c->batch.seq_len);
    printf("memory    %.1f MiB per rank: weights %.1f, gradients %.1f, optimizer %.1f, activations %.1f, scratch %.1f, other %.1f\n",
           mib(p->device_bytes), mib(p->params_bytes), mib(p->grads_bytes), mib(p->optimizer_bytes),
           mib(p->activation_bytes), mib(p->scratch_bytes),
           mib(p->batch_bytes + p->library_bytes + p->reserve_bytes + (device_is_host() ? p->host_bytes : 0)));
    print_limit(r);
    print_start(r);
    fflush(stdout);
}
