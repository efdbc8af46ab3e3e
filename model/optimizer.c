/* optimizer.c - see optimizer.h. */
#include "model/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/injection.h"

enum { PAGE_MOST = 1 << 22, PARTS = 16 };

static void make_pages(Optimizer *o, Arena *arena) {
    int64_t elems = (shards_state_elems(o->shards) / PARTS + LAYOUT_ALIGN) / LAYOUT_ALIGN * LAYOUT_ALIGN; /* small ones have several, too */
    if (elems > PAGE_MOST) elems = PAGE_MOST;
    for (int k = 0; k < 2; k++) {
        o->grad_page[k] = arena_tensor(arena, F32, 1, elems, 1, 1);
        o->page[k] = arena_tensor(arena, o->shards->params.type, 1, elems, 1, 1);
    }
}

/* Whole packs of 64, so that what follows stays aligned. */
static void leave_out_matrices(Optimizer *o) {
    const Shards *z = o->shards;
    o->left_out = (int64_t *)calloc((size_t)z->spans + 1, sizeof *o->left_out);
    if (!o->left_out) fail(EXIT_MEMORY, "no memory for the list of spans to update");
    for (int i = 0; i < z->spans; i++)
        o->left_out[i + 1] =
            o->left_out[i] + (z->span[i].group == GROUP_MATRIX ? z->span[i].elems / LAYOUT_ALIGN * LAYOUT_ALIGN : 0);
}

/* The last of this rank's spans that begins at the given one or before. */
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
    Optimizer o = {.kind = kind, .shards = z, .on_host = memory == MEMORY_HOST};
    int64_t   elems = shards_state_elems(z);
    leave_out_matrices(&o);
    for (int k = 0; k < kind->states; k++)
        o.state[k] = kind->is_idle ? tensor_1d(NULL, F32, 0)
                                   : arena_tensor(arena, F32, 1, elems - (kind->no_matrices[k] ? shards_matrix_elems(z) : 0), 1, 1);
    o.master = z->params.type == F32 && !o.on_host ? tensor_1d(NULL, F32, elems) : arena_tensor(arena, F32, 1, elems, 1, 1);
    if (o.on_host) make_pages(&o, arena);
    o.spans = (AdamWSpan *)malloc(sizeof(AdamWSpan) * (size_t)(z->spans + 1));
    if (!o.spans) fail(EXIT_MEMORY, "no memory for the list of spans to update");
    return o;
}

void optimizer_destroy(Optimizer *o) {
    for (int k = 0; k < 2 && o->grads_in[0].handle; k++) event_destroy(&o->grads_in[k]);
    free(o->spans);
    free(o->left_out);
    o->spans = NULL, o->left_out = NULL;
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

/* A part of a span that fits in a page. */
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

/* The page of the working copy goes to the device; an fp32 one straight from the master. */
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
    if (o->shards->layout.tensor_ranks > 1) shards_hash_whole(o->shards, s, hash);
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
    for (int i = 0; i < z->spans; i++)
        if (shards_is_own(z, z->span[i])) norm_squared(s, step_sum(&z->sums, SUM_GRAD_SQUARES), shards_grad(z, z->span[i]));
}

void optimizer_update(Optimizer *o, Stream *s, AdamW h, float grad_scale) { o->kind->update(o, s, h, grad_scale); }

/* --- adamw -------------------------------------------------------------------------------------------------------- */

static void fetch_grads(Optimizer *o, Stream *s, Part p, int turn) {
    device_to_host_queued(s, o->grad_page[turn].data, part_of(shards_grad(o->shards, o->shards->span[p.span]), p));
    event_record(o->grads_in[turn], s);
}

/* The gradients of the next part come while this one is updated. They come behind the weights that leave from its page,
 * so whoever has them may write to that page. */
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
                          part_of(o->page[turn], page), part_of(o->grad_page[turn], page), span.group != GROUP_VECTOR};
        adamw_update_host(part, h, grad_scale);
        send_weights(o, s, p, turn);
    }
}

/* Of all spans, or of all but matrices. */
static void adamw_on_device(Optimizer *o, Stream *s, AdamW h, float grad_scale, int with_matrices) {
    const Shards *z = o->shards;
    int           count = 0;
    for (int i = 0; i < z->spans; i++) {
        Span span = z->span[i];
        if (span.group == GROUP_MATRIX && !with_matrices) continue;
        o->spans[count++] = (AdamWSpan){optimizer_master(o, span), optimizer_state(o, 0, span), optimizer_state(o, 1, span),
                                        shards_weight(z, span), shards_grad(z, span), span.group != GROUP_VECTOR};
    }
    adamw_update(s, o->spans, count, h, grad_scale);
}

static void adamw(Optimizer *o, Stream *s, AdamW h, float grad_scale) {
    if (!o->on_host) adamw_on_device(o, s, h, grad_scale, 1);
    else if (!stream_note(s, "adamw_update_host", shards_state_elems(o->shards), 0, 0, 0, 0.0, 0.0))
        adamw_on_host(o, s, h, grad_scale);
}

const OptimizerKind OPTIMIZER_ADAMW = {"adamw", 2, {"m", "v"}, {0, 0}, 0, adamw};

static void idle(Optimizer *o, Stream *s, AdamW h, float grad_scale) { (void)o, (void)s, (void)h, (void)grad_scale; }
const OptimizerKind OPTIMIZER_IDLE = {"adamw", 2, {"m", "v"}, {0, 0}, 1, idle};

/* --- muon --------------------------------------------------------------------------------------------------------- */

static const double MUON_MOMENTUM = 0.95, MUON_SCALE = 0.2; /* AdamW's updates have about this root mean square */

/* Gradients of matrices become directions: with momentum, then orthogonal. That takes whole matrices, so a rank does it
 * for those that its pieces are of. At stage 1 it needs the others' momentum first; at stage 0 all hold that already, and take
 * the directions of each piece from one rank, so that all have the same bits. */
static void muon_directions(Optimizer *o, Stream *s, float grad_scale) {
    Shards *z = o->shards;
    int     last = -1;
    for (int i = 0; i < z->spans; i++)
        if (z->span[i].group == GROUP_MATRIX)
            muon_momentum(s, shards_grad(z, z->span[i]), optimizer_state(o, 0, z->span[i]), MUON_MOMENTUM, grad_scale);
    if (z->stage) shards_share_matrices(z);
    for (int i = 0; i < z->spans; i++) {
        int param = z->span[i].param;
        if (z->span[i].group != GROUP_MATRIX || param == last || !shards_is_own(z, z->span[i])) continue;
        newton_schulz(s, shards_matrix(z, param), layout_parts(&z->layout.param[param]), z->params.type);
        last = param;
    }
    if (!z->stage) shards_share_matrices(z);
}

static void muon(Optimizer *o, Stream *s, AdamW h, float grad_scale) {
    Shards *z = o->shards;
    CHECK(z->stage <= 1 && z->layout.tensor_ranks == 1 && !z->spec.across && !o->on_host,
          "muon has no whole matrices here");
    muon_directions(o, s, grad_scale);
    for (int i = 0; i < z->spans; i++) {
        Span         span = z->span[i];
        const Param *p = &z->layout.param[span.param];
        int64_t      rows = p->dim[0], columns = p->dim[1] / layout_parts(p);
        double       scale = MUON_SCALE * sqrt((double)(rows > columns ? rows : columns));
        if (span.group != GROUP_MATRIX) continue;
        muon_update(s, optimizer_master(o, span), shards_grad(z, span), h.learning_rate * scale,
                    h.learning_rate * h.weight_decay);
        if (z->params.type != F32) cast_forward(s, shards_weight(z, span), optimizer_master(o, span));
    }
    adamw_on_device(o, s, h, grad_scale, 0);
}

const OptimizerKind OPTIMIZER_MUON = {"muon", 2, {"momentum", "v"}, {0, 1}, 0, muon};

const OptimizerKind *optimizer_kind(const char *name) {
    static const OptimizerKind *const kinds[] = {&OPTIMIZER_ADAMW, &OPTIMIZER_MUON};
    for (int i = 0; i < 2; i++)
        if (strcmp(name, kinds[i]->name) == 0) return kinds[i];
    return NULL;
}
