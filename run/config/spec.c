/* spec.c - makes the description of a rank's model (ModelSpec) from a config: see spec.h. */
#include "run/config/spec.h"

#include "core/device.h"
#include "model/precision.h"

Mesh config_mesh(const Config *c, int ranks) {
    return mesh_of(ranks, (MeshSizes){(int)c->parallel.tensor, (int)c->parallel.context, (int)c->parallel.pipeline,
                                      (int)c->parallel.replicas});
}

int config_datas(const Config *c, int ranks) {
    return ranks / (int)(c->parallel.tensor * c->parallel.context * c->parallel.pipeline);
}

int config_server_updates(const Config *c) {
    return c->outer.server && *c->outer.server && c->outer.send == SEND_GRADIENTS;
}

const OptimizerKind *config_optimizer(const Config *c) {
    return optimizer_kind(c->optimizer.name, c->optimizer.normuon);
}

ModelSpec config_model_spec(const Config *c, DType act, int ranks, int stage, const Groups *groups) {
    int64_t    B = c->batch.micro_batch, T = c->batch.seq_len;
    int64_t    micro_batches = c->batch.global_tokens / (B * T * config_datas(c, ranks));
    Mesh       mesh = config_mesh(c, ranks);
    int        is_idle = config_server_updates(c);
    ShardsSpec shards = {.shape = c->model.shape, .ranks = mesh.size[AXIS_CONTEXT] * mesh.size[AXIS_SHARD],
                         .replicas = mesh.size[AXIS_REPLICA], .tensor_ranks = mesh.size[AXIS_TENSOR],
                         .expert_ranks = (int)c->parallel.expert, .zero_stage = (int)c->parallel.zero_stage,
                         .micro_batches = c->parallel.deterministic ? micro_batches : 0, .act = act,
                         .use = GPT_TRAINING};
    PipelineSpec pipeline = {.stages = mesh.size[AXIS_STAGE], .stage = stage, .parts = (int)c->parallel.interleave,
                             .micro_batches = micro_batches};
    ModelSpec spec = {.shards = shards, .capacity = c->moe.capacity, .context_ranks = mesh.size[AXIS_CONTEXT],
                      .pipeline = pipeline,
                      .optimizer = is_idle ? &OPTIMIZER_IDLE : config_optimizer(c),
                      .optimizer_settings = {c->optimizer.muon_momentum, (NewtonKind)c->optimizer.newton_schulz},
                      .B = B, .T = T, .recompute = (Recompute)c->memory.recompute,
                      .document_mask = c->data.document_mask != 0,
                      .offload = device_is_host() ? MEMORY_DEVICE
                                 : is_idle        ? MEMORY_HOST
                                                  : (OptimizerMemory)c->memory.offload,
                      .fp8 = c->precision == PRECISION_FP8, .any_threads = c->parallel.deterministic};
    if (groups) model_take_groups(&spec, groups);
    return spec;
}
