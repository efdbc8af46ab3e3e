/* optimizer.c - see optimizer.h. */
#include "model/optimizer.h"

#include <stdlib.h>
#include <string.h>

#include "core/injection.h"
#include "core/error.h"

enum { PAGE_MOST = 1 << 22, PARTS = 16 };

static void make_pages(Optimizer *o, Arena *arena) {
    /* a small model has several pages, too */
    int64_t elems = (shards_state_elems(o->shards) / PARTS + LAYOUT_ALIGN) / LAYOUT_ALIGN * LAYOUT_ALIGN;
    if (elems > PAGE_MOST) elems = PAGE_MOST;
    for (int k = 0; k < 2; k++) {
        o->grad_page[k] = arena_tensor(arena, F32, 1, elems, 1, 1);
        o->page[k] = arena_tensor(arena, o->shards->params.type, 1, elems, 1, 1);
    }
}

/* Fills left_out. Matrices are left out in whole packs of 64 elements, so that the next span stays aligned. */
static void leave_out_matrices(Optimizer *o) {
    const Shards *z = o->shards;
    o->left_out = xcalloc((size_t)z->spans + 1, sizeof *o->left_out, "the list of spans to update");
    for (int i = 0; i < z->spans; i++)
        o->left_out[i + 1] =
            o->left_out[i] + (z->span[i].group == GROUP_MATRIX ? z->span[i].elems / LAYOUT_ALIGN * LAYOUT_ALIGN : 0);
}

/* Returns the number of the last of this rank's spans that begins at `span` or before it. */
static int number_of(const Shards *z, Span span) {
    int low = 0, high = z->spans;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (shards_state_at(z, z->span[middle]) <= shards_state_at(z, span)) low = middle;
        else high = middle;
    }
    return low;
}

Optimizer optimizer_create(const OptimizerKind *kind, Shards *z, OptimizerMemory memory, Arena *arena) {
    Optimizer o = {.kind = kind, .muon = MUON_DEFAULTS, .shards = z, .on_host = memory == MEMORY_HOST};
    int64_t   elems = shards_state_elems(z);
    leave_out_matrices(&o);
    if (kind->has_matrices) o.matrices = matrices_create(z, MATRICES_OF_ALL), o.expert_matrices = matrices_create(z, MATRICES_OF_EXPERTS);
    for (int k = 0; k < kind->states; k++)
        o.state[k] = kind->is_idle ? tensor_1d(NULL, F32, 0)
                                   : arena_tensor(arena, F32, 1, elems - (kind->no_matrices[k] ? shards_matrix_elems(z) : 0), 1, 1);
    o.master = z->params.type == F32 && !o.on_host ? tensor_1d(NULL, F32, elems) : arena_tensor(arena, F32, 1, elems, 1, 1);
    if (o.on_host) make_pages(&o, arena);
    o.spans = xmalloc(sizeof(AdamWSpan) * (size_t)(z->spans + 1), "the list of spans to update");
    o.own_grad = xmalloc(sizeof(Tensor) * (size_t)(z->spans + 1), "the list of spans to update");
    return o;
}

void optimizer_destroy(Optimizer *o) {
    for (int k = 0; k < 2 && o->grads_in[0].handle; k++) event_destroy(&o->grads_in[k]);
    free(o->spans);
    free(o->own_grad);
    free(o->left_out);
    if (o->kind->has_matrices) matrices_destroy(&o->matrices), matrices_destroy(&o->expert_matrices);
    o->spans = NULL, o->own_grad = NULL, o->left_out = NULL;
}

Tensor optimizer_state(const Optimizer *o, int k, Span span) {
    if (o->kind->is_idle) return tensor_1d(NULL, F32, span.elems);
    if (!o->kind->no_matrices[k]) return shards_state_view(o->shards, o->state[k], span);
    if (span.group == GROUP_MATRIX) return tensor_1d(NULL, F32, span.elems);
    int64_t at = shards_state_at(o->shards, span) - o->left_out[number_of(o->shards, span)];
    return tensor_slice(o->state[k], at, span.elems);
}
Tensor optimizer_master(const Optimizer *o, Span span) {
    return o->master.data ? shards_state_view(o->shards, o->master, span) : shards_weight(o->shards, span);
}
Tensor optimizer_tensor(const Optimizer *o, int which, Span span) {
    return which == 0 ? optimizer_master(o, span) : optimizer_state(o, which - 1, span);
}

void optimizer_put(const Optimizer *o, Stream *s, Tensor part, const float *values) {
    if (!part.data) return;
    if (o->on_host) memcpy(part.data, values, tensor_bytes(part));
    else device_from_host(s, part, values);
}
void optimizer_get_queued(const Optimizer *o, Stream *s, float *to, Tensor part) {
    if (!part.data) memset(to, 0, tensor_bytes(part));
    else if (o->on_host) memcpy(to, part.data, tensor_bytes(part));
    else device_to_host_queued(s, to, part);
}

/* A slice of a span that fits in a page. */
typedef struct { int span; int64_t at, elems; } Part;
static int next_part(const Optimizer *o, Part *p) {
    const Shards *z = o->shards;
    p->at += p->elems;
    while (p->span < z->spans && p->at == z->span[p->span].elems) p->span++, p->at = 0;
    if (p->span == z->spans) return 0;
    int64_t left = z->span[p->span].elems - p->at, most = tensor_elems(o->page[0]);
    p->elems = left < most ? left : most;
    return 1;
}
static Tensor part_of(Tensor span, Part p) { return tensor_slice(span, p.at, p.elems); }

/* Copies a page of the working copy to the device. An fp32 one is copied directly from the master. */
static void send_weights(Optimizer *o, Stream *s, Part p, int turn) {
    Span   span = o->shards->span[p.span];
    Tensor weights = part_of(shards_weight(o->shards, span), p);
    device_from_host_queued(s, weights, weights.type == F32 ? part_of(optimizer_master(o, span), p).data : o->page[turn].data);
}

static void publish_from_host(Optimizer *o, Stream *s) {
    for (Part p = {0}; next_part(o, &p);) {
        Span         span = o->shards->span[p.span];
        const float *from = (const float *)part_of(optimizer_master(o, span), p).data;
        DType        act = o->page[0].type;
        for (int64_t i = 0; act != F32 && i < p.elems; i++)
            ((uint16_t *)o->page[0].data)[i] = act == BF16 ? bf16_from_f32(from[i]) : f16_from_f32(from[i]);
        send_weights(o, s, p, 0);
        device_sync(s);
    }
}

void optimizer_publish(Optimizer *o, Stream *s) {
    const Shards *z = o->shards;
    if (o->on_host) publish_from_host(o, s);
    else if (z->params.type != F32)
        for (int i = 0; i < z->spans; i++) cast_forward(s, shards_weight(z, z->span[i]), optimizer_master(o, z->span[i]));
}

void optimizer_zero_states(const Optimizer *o, Stream *s) {
    for (int k = 0; k < o->kind->states && !o->kind->is_idle; k++) {
        if (o->on_host) memset(o->state[k].data, 0, tensor_bytes(o->state[k]));
        else device_zero(s, o->state[k]);
    }
}

void optimizer_hash_replicas(const Optimizer *o, Stream *s, Tensor hash) {
    if (o->shards->layout.tensor_ranks > 1 || o->shards->layout.expert_ranks > 1) shards_hash_whole(o->shards, s, hash);
    else optimizer_hash_parts(o, s, hash);
}

void optimizer_hash_parts(const Optimizer *o, Stream *s, Tensor hash) {
    shards_hash_weights(o->shards, s, hash);
    if (shards_state_is_shared(o->shards)) optimizer_hash_pieces(o, s, hash);
}

void optimizer_hash_pieces(const Optimizer *o, Stream *s, Tensor hash) {
    if (o->on_host) return;
    for (int k = 0; k < o->kind->states && !o->kind->is_idle; k++) hash_words(s, hash, o->state[k]);
    if (o->master.data) hash_words(s, hash, o->master);
    else shards_hash_pieces(o->shards, s, hash);
}

void optimizer_numbers(const Optimizer *o, Stream *s, int hashes) {
    const Shards *z = o->shards;
    static const char *const points[OPTIMIZER_STATES] = {"guard.m", "guard.v"};
    for (int k = 0; k < o->kind->states && !o->on_host && !o->kind->is_idle; k++) inject_flip(s, points[k], o->state[k]);
    if (hashes & NUMBERS_REPLICAS) optimizer_hash_replicas(o, s, step_hash(&z->sums, HASH_REPLICAS));
    if (hashes & NUMBERS_GRADS) shards_hash_grads(z, s, step_hash(&z->sums, HASH_GRADS));
    int own = 0;
    for (int i = 0; i < z->spans; i++)
        if (shards_is_own(z, z->span[i])) o->own_grad[own++] = shards_grad(z, z->span[i]);
    if (own > 0) norm_squared(s, step_sum(&z->sums, SUM_GRAD_SQUARES), o->own_grad, own);
}

void optimizer_update(Optimizer *o, Stream *s, AdamW h, float grad_scale) { o->kind->update(o, s, h, grad_scale); }

/* --- adamw -------------------------------------------------------------------------------------------------------- */

static float rate_of(const Optimizer *o, Span span) { return o->shards->layout.param[span.param].rate; }

static void fetch_grads(Optimizer *o, Stream *s, Part p, int turn) {
    device_to_host_queued(s, o->grad_page[turn].data, part_of(shards_grad(o->shards, o->shards->span[p.span]), p));
    event_record(o->grads_in[turn], s);
}

/* The gradients of the next slice are copied while this one is updated. Their copy is queued after the copy of the
 * weights from the same page. So once the gradients have arrived, that page may be overwritten. */
static void adamw_on_host(Optimizer *o, Stream *s, AdamW h, float grad_scale) {
    Part p = {0}, next = {0};
    int  more = next_part(o, &next);
    for (int k = 0; k < 2 && !o->grads_in[k].handle; k++) o->grads_in[k] = event_create();
    if (more) fetch_grads(o, s, next, 0);
    for (int turn = 0; more; turn = !turn) {
        p = next;
        more = next_part(o, &next);
        if (more) fetch_grads(o, s, next, !turn);
        Span span = o->shards->span[p.span];
        event_wait(o->grads_in[turn]);
        Part      page = {.elems = p.elems};
        AdamWSpan part = {part_of(optimizer_master(o, span), p), part_of(optimizer_state(o, 0, span), p),
                          part_of(optimizer_state(o, 1, span), p),
                          part_of(o->page[turn], page), part_of(o->grad_page[turn], page), span.group != GROUP_VECTOR, rate_of(o, span)};
        adamw_update_host(part, h, grad_scale);
        send_weights(o, s, p, turn);
    }
}

void optimizer_adamw_on_device(Optimizer *o, Stream *s, AdamW h, float grad_scale, AdamWOf of) {
    const Shards *z = o->shards;
    int           count = 0;
    for (int i = 0; i < z->spans; i++) {
        Span span = z->span[i];
        if (span.group == GROUP_MATRIX && of == ADAMW_BUT_MATRICES) continue;
        o->spans[count++] = (AdamWSpan){optimizer_master(o, span), optimizer_state(o, 0, span), optimizer_state(o, 1, span),
                                        shards_weight(z, span), shards_grad(z, span), span.group != GROUP_VECTOR, rate_of(o, span)};
    }
    adamw_update(s, o->spans, count, h, grad_scale);
}

static void adamw(Optimizer *o, Stream *s, AdamW h, float grad_scale) {
    if (!o->on_host) optimizer_adamw_on_device(o, s, h, grad_scale, ADAMW_ALL);
    else if (!stream_note(s, "adamw_update_host", shards_state_elems(o->shards), 0, 0, 0, 0.0, 0.0))
        adamw_on_host(o, s, h, grad_scale);
}

static void idle(Optimizer *o, Stream *s, AdamW h, float grad_scale) { (void)o, (void)s, (void)h, (void)grad_scale; }

/* --- kinds -------------------------------------------------------------------------------------------------------- */

const OptimizerKind OPTIMIZER_ADAMW = {.name = "adamw", .states = 2, .state = {"m", "v"}, .update = adamw};
const OptimizerKind OPTIMIZER_IDLE = {.name = "adamw", .states = 2, .state = {"m", "v"}, .is_idle = 1, .update = idle};
const OptimizerKind OPTIMIZER_MUON = {
    .name = "muon", .states = 2, .state = {"momentum", "v"}, .no_matrices = {0, 1}, .has_matrices = 1, .update = muon_step};
const OptimizerKind OPTIMIZER_NORMUON = {
    .name = "muon", .states = 2, .state = {"momentum", "v"}, .has_matrices = 1, .is_normuon = 1, .update = muon_step};

const OptimizerKind *optimizer_kind(const char *name, int is_normuon) {
    static const OptimizerKind *const kinds[] = {&OPTIMIZER_ADAMW, &OPTIMIZER_MUON, &OPTIMIZER_NORMUON};
    for (int i = 0; i < 3; i++)
        if (strcmp(name, kinds[i]->name) == 0 && (!kinds[i]->has_matrices || kinds[i]->is_normuon == (is_normuon != 0))) return kinds[i];
    return NULL;
}
