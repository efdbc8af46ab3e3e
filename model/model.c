/* model.c - see model.h. */
#include "model/model.h"

#include <stdlib.h>

#include "core/error.h"

static int at_least_1(int n) { return n > 1 ? n : 1; }

static PipelineSpec pipeline_of(const ModelSpec *spec) {
    PipelineSpec p = spec->pipeline;
    p.stages = at_least_1(p.stages), p.parts = at_least_1(p.parts);
    if (p.micro_batches < 1) p.micro_batches = p.parts > 1 ? p.stages : 1;
    return p;
}

Layout model_spec_layout(const ModelSpec *spec) {
    ShardsSpec  s = spec->shards;
    int         experts = at_least_1(s.expert_ranks), blocks = (int)s.shape.n_layer;
    BucketHold *hold = pipeline_holds(s.shape, pipeline_of(spec));
    if (experts > 1) { /* puts the buckets of experts on the pipeline stage of their block */
        hold = xrealloc(hold, sizeof *hold * (size_t)(model_expert_bucket(s.shape, blocks) + 1),
                        "the tables of the blocks");
        for (int b = 1; b <= blocks; b++) hold[model_expert_bucket(s.shape, b)] = hold[b];
    }
    Layout layout = model_layout(s.shape, (LayoutPlace){s.ranks, at_least_1(s.tensor_ranks), s.tensor_rank, hold,
                                                        experts, s.rank % experts});
    free(hold);
    return layout;
}

/* Makes the groups of ranks for the grid that the spec describes, with simulated ranks. Among the ranks that divide one
 * copy of the optimizer's state, those of one context group are adjacent. */
static Groups dry_groups(const ModelSpec *spec, World **world, Ledger *ledger) {
    ShardsSpec s = spec->shards;
    int        tensor = at_least_1(s.tensor_ranks), context = at_least_1(spec->context_ranks);
    int        replicas = at_least_1(s.replicas);
    int        stages = at_least_1(spec->pipeline.stages), ranks = tensor * s.ranks * replicas * stages;
    Mesh       mesh = mesh_of(ranks, (MeshSizes){tensor, context, stages, replicas});
    MeshPlace  place = {{[AXIS_TENSOR] = s.tensor_rank,
                         [AXIS_CONTEXT] = s.rank % context,
                         [AXIS_SHARD] = s.rank / context,
                         [AXIS_REPLICA] = s.replica,
                         [AXIS_STAGE] = spec->pipeline.stage}};
    *world = world_dry(ranks, mesh_rank(mesh, place), ledger);
    Groups     groups = groups_create(world_all(*world), mesh, at_least_1(spec->pipeline.parts) > 1);
    groups_add_experts(&groups, at_least_1(s.expert_ranks));
    if (spec->optimizer && spec->optimizer->update_matrices) groups_add_matrices(&groups);
    return groups;
}

static int rank_in(const Comm *c) { return c ? comm_rank(c) : 0; }

void model_take_groups(ModelSpec *spec, const Groups *g) {
    ShardsSpec   *s = &spec->shards;
    PipelineSpec *p = &spec->pipeline;
    s->comm = g->state, s->rank = comm_rank(g->state);
    s->across = g->replicas, s->replica = rank_in(g->replicas);
    s->matrices = g->matrices;
    s->expert_state = g->expert_state;
    spec->experts = g->experts;
    s->tensor = g->tensor, s->tensor_rank = rank_in(g->tensor);
    s->twin_up = g->twin_up, s->twin_down = g->twin_down;
    spec->context = g->context, spec->context_rank = rank_in(g->context);
    p->all = g->stages, p->stage = rank_in(g->stages);
    p->forward_in = g->forward_in, p->forward_out = g->forward_out, p->backward_in = g->backward_in,
    p->backward_out = g->backward_out;
}

static void carve(Model *m) {
    const ModelSpec *spec = &m->spec;
    ModelShape shape = spec->shards.shape;
    int        counts = spec->optimizer && block_kind(shape)->traits & HAS_EXPERTS;
    m->sums = step_sums_create(&m->activations_arena, counts ? shape.n_layer * shape.n_experts : 0,
                               spec->fp8 ? shape.n_layer * FP8_BLOCK_CELLS : 0);
    PipelineSpec pipeline = pipeline_of(spec);
    GptPartSpec *part = pipeline_parts(spec->shards.shape, pipeline);
    m->shards = shards_create(spec->shards, model_spec_layout(spec), m->sums, &m->params_arena, &m->grads_arena);
    m->gpt = gpt_create(m->shards,
                        (GptSpec){spec->B, spec->T / at_least_1(spec->context_ranks), spec->context, part,
                                  pipeline.parts, spec->recompute, spec->document_mask, spec->experts, spec->capacity,
                                  spec->fp8, spec->sizes},
                        &m->activations_arena);
    m->pipeline = pipeline_create(pipeline, &m->gpt);
    free(part);
    if (!spec->optimizer) return;
    m->optimizer = optimizer_create(spec->optimizer, m->shards, spec->offload, &m->optimizer_arena);
    m->optimizer.settings = spec->optimizer_settings;
}

static void drop(Model *m) {
    if (m->spec.optimizer) optimizer_destroy(&m->optimizer);
    pipeline_destroy(&m->pipeline);
    gpt_destroy(&m->gpt);
    shards_destroy(m->shards);
}

/* --- dry ---------------------------------------------------------------------------------------------------------- */

static Batch dry_batch(int64_t B, int64_t T) {
    Arena tokens = arena_dry("tokens");
    return (Batch){arena_tensor(&tokens, I32, 2, B, T, 1), arena_tensor(&tokens, I32, 2, B, T, 1), tensor_none()};
}

static Batch same_batch(void *batch) { return *(Batch *)batch; }

/* Runs a training step dry: its sizes and costs are added up and nothing is computed. The micro-batches from the second
 * to the last but one have the same operations, so one of them is run and counted for all. With ordered sums
 * (parallel.deterministic) they differ, and each is run. With several pipeline stages, or for a ledger in order, the
 * work list of the pipeline is run instead. */
static void dry_step(Model *m, int64_t micro_batches) {
    const ModelSpec *spec = &m->spec;
    OptimizerStep    h = {.step = 1};
    Batch            batch = dry_batch(spec->B, spec->T / at_least_1(spec->context_ranks));
    int64_t          ordered = spec->shards.micro_batches, earlier = (ordered ? ordered : micro_batches) - 1;
    int              runs_list = m->pipeline.spec.stages > 1 || m->stream.ledger->in_order;
    /* the ledger counts nothing while `times` is below 0; these gathers belong to the step before */
    m->stream.ledger->times = -1;
    shards_publish(m->shards, &m->stream);
    m->stream.ledger->times = 1;
    step_sums_zero(&m->sums, &m->stream);
    shards_begin(m->shards, &m->stream);
    if (runs_list) {
        pipeline_step(&m->pipeline, &m->stream, 1.0f, same_batch, &batch);
        earlier = 0;
    }
    for (int64_t i = 0, times; i < earlier; i += times) {
        m->stream.ledger->times = times = i == 0 || ordered ? 1 : earlier - 1;
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f, MICRO_EARLIER);
    }
    m->stream.ledger->times = 1;
    if (!runs_list) {
        gpt_forward(&m->gpt, &m->stream, batch);
        gpt_backward(&m->gpt, &m->stream, batch, 1.0f, MICRO_LAST);
    }
    ledger_mark(m->stream.ledger, "finish", 0);
    shards_finish(m->shards, &m->stream);
    optimizer_numbers(&m->optimizer, &m->stream, 0);
    ledger_mark(m->stream.ledger, "update", 0);
    optimizer_update(&m->optimizer, &m->stream, h, 1.0f);
    experts_balance(&m->optimizer, &m->stream, NULL);
    shards_publish(m->shards, &m->stream);
}

int64_t model_batch(int64_t B, int64_t left) {
    int64_t size = 64;
    if (left >= B) return B;
    if (left <= size) return left;
    while (2 * size <= left) size *= 2;
    return size;
}

/* Runs forwards dry with the shapes that batches have in evaluation and sampling, to measure scratch memory. A library
 * may need more scratch memory for fewer rows. */
static void dry_other_batches(Model *m) {
    int64_t B = m->spec.B, ranks = at_least_1(m->spec.context_ranks), T = m->spec.T / ranks;
    for (int64_t b = B; b > 0; b = b > 1 ? model_batch(B, b - 1) : 0) {
        pipeline_forward(&m->pipeline, &m->stream, dry_batch(b, T));
        pipeline_loss(&m->pipeline, &m->stream, dry_batch(b, T));
    }
    for (int64_t t = 0; t < T;) { /* tries each length at which texts are scored */
        t = gpt_scored_length(&m->gpt, t * ranks + 1) / ranks;
        pipeline_forward(&m->pipeline, &m->stream, dry_batch(B, t));
        pipeline_token_losses(&m->pipeline, &m->stream, dry_batch(B, t), NULL);
    }
    for (int64_t t = 0, step = gpt_sample_step(&m->gpt) / ranks; ;) {
        t = t + step < T ? t + step : T;
        pipeline_forward(&m->pipeline, &m->stream, dry_batch(1, t));
        pipeline_logits(&m->pipeline, &m->stream, dry_batch(1, t), 0, NULL);
        if (t == T) break;
    }
    int64_t rows = gpt_token_rows(&m->gpt);
    if (gpt_keeps_past(&m->gpt) && rows < T)
        pipeline_token_logits(&m->pipeline, &m->stream, dry_batch(1, rows), T - rows, NULL);
}

/* Measures the scratch memory of a step with this number of micro-batches; with 0, that of evaluation and sampling. The
 * operations are not counted in the model's ledger. */
static void dry_beside(Model *m, int64_t micro_batches) {
    Ledger beside = {.times = -1}, *step = m->stream.ledger;
    m->stream.ledger = &beside;
    /* this ledger still gets the collectives, and times = -1 keeps it from counting them */
    step->times = -1;
    if (micro_batches) dry_step(m, micro_batches);
    else dry_other_batches(m);
    step->times = 1;
    m->stream.ledger = step;
    ledger_free(&beside);
}

ModelBytes model_dry(ModelSpec spec, int64_t micro_batches, Ledger *step) {
    Ledger own = {0};
    Model  m = {.spec = spec,
                .params_arena = arena_dry("weights"),
                .grads_arena = arena_dry("gradients"),
                .optimizer_arena = arena_dry("optimizer"),
                .activations_arena = arena_dry("activations"),
                .stream = stream_dry(step ? step : &own)};
    World *world;
    Groups groups = dry_groups(&spec, &world, m.stream.ledger);
    model_take_groups(&m.spec, &groups);
    m.stream.math = spec.math;
    m.stream.any_threads = spec.any_threads;
    carve(&m);
    int trains = spec.optimizer && micro_batches > 0;
    /* measures the first step, too, because its fp8 scales are unknown, and its casts use scratch memory */
    m.gpt.fp8.uses_own = spec.fp8;
    if (trains && spec.fp8) dry_beside(&m, micro_batches);
    m.gpt.fp8.uses_own = spec.fp8_casts;
    /* If the ranks' shares of a step change during a run (run/pace.h), a step of this rank may have two micro-batches.
     * Then products also add to gradients. The scratch memory for that is measured here. */
    if (trains && micro_batches == 1 && !m.stream.ledger->is_elsewhere) dry_beside(&m, 2);
    if (trains) dry_step(&m, micro_batches);
    if (!m.stream.ledger->is_elsewhere) dry_beside(&m, 0);
    ModelBytes bytes = {m.params_arena.peak_bytes, m.grads_arena.peak_bytes,
                        m.optimizer_arena.peak_bytes, m.activations_arena.peak_bytes,
                        m.stream.scratch.peak_bytes, m.shards->order.leaves ? m.shards->order.buffers : 0};
    drop(&m);
    groups_free(&groups);
    world_leave(world);
    ledger_free(&own);
    return bytes;
}

/* --- for real ----------------------------------------------------------------------------------------------------- */

Model *model_create(ModelSpec spec) {
    Model *m = xcalloc(1, sizeof *m, "a model");
    m->spec = spec;
    m->bytes = model_dry(spec, 1, NULL);
    m->params_arena = arena_create("parameters", m->bytes.params);
    m->grads_arena = arena_create("gradients", m->bytes.grads);
    m->optimizer_arena =
        (spec.offload == MEMORY_HOST ? arena_create_host : arena_create)("optimizer", m->bytes.optimizer);
    m->activations_arena = arena_create("activations", m->bytes.activations);
    m->stream = stream_create(m->bytes.scratch);
    m->stream.math = spec.math;
    m->stream.any_threads = spec.any_threads;
    if (spec.shards.comm) world_follow(comm_world(spec.shards.comm), &m->stream);
    carve(m);
    return m;
}

void model_destroy(Model *m) {
    if (!m) return;
    drop(m);
    Arena *arenas[] = {&m->params_arena, &m->grads_arena, &m->optimizer_arena, &m->activations_arena};
    for (int i = 0; i < 4; i++) arena_destroy(arenas[i]);
    stream_destroy(&m->stream);
    free(m);
}

void masters_init(Optimizer *o, Stream *s, uint64_t seed, void (*ticks)(void *ctx), void *ctx) {
    enum { BLOCK = 1 << 20 };
    float *values = xmalloc(BLOCK * sizeof *values, "initial weights");
    for (int i = 0; i < o->shards->spans; i++) {
        Span         span = o->shards->span[i];
        const Param *p = &o->shards->layout.param[span.param];
        Tensor       master = optimizer_master(o, span);
        for (int64_t at = 0; at < span.elems; at += BLOCK) {
            int64_t n = span.elems - at < BLOCK ? span.elems - at : BLOCK;
            for (int64_t k = 0, run; k < n; k += run) {
                FileExtent from = layout_extent(&o->shards->layout, &span, at + k);
                run = from.elems < n - k ? from.elems : n - k;
                param_init_values(values + k, p, from.offset, run, seed);
            }
            optimizer_put(o, s, tensor_slice(master, at, n), values);
            if (ticks) ticks(ctx);
        }
    }
    free(values);
    optimizer_publish(o, s);
}
