/* optimizer.c - see optimizer.h. */
#include "model/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/injection.h"
#include "core/error.h"

enum { PAGE_MOST = 1 << 22, PARTS = 16 };

/* Returns the index in z->span of this rank's last span (part of a parameter) that begins where `span` begins, or
 * before. */
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
    Optimizer o = {.kind = kind, .settings = kind->settings, .shards = z, .on_host = memory == MEMORY_HOST,
                   .states = kind->update ? kind->states : 0};
    int64_t   elems = shards_state_elems(z);
    o.left_out = xcalloc((size_t)z->spans + 1, sizeof *o.left_out, "the list of spans to update");
    /* left_out counts matrix elements in whole packs of 64. A state without matrices omits these, so that the parameter
     * after them stays aligned. */
    for (int i = 0; i < z->spans; i++)
        o.left_out[i + 1] =
            o.left_out[i] + (z->span[i].group == GROUP_MATRIX ? z->span[i].elems / LAYOUT_ALIGN * LAYOUT_ALIGN : 0);
    if (kind->update_matrices) {
        o.matrices = matrices_create(z, MATRICES_OF_ALL);
        o.expert_matrices = matrices_create(z, MATRICES_OF_EXPERTS);
    }
    for (int k = 0; k < o.states; k++) {
        int64_t without = kind->state[k].no_matrices ? shards_matrix_elems(z) : 0;
        o.state[k] = arena_tensor(arena, F32, 1, elems - without, 1, 1);
    }
    if (z->params.type == F32 && !o.on_host) o.master = tensor_1d(NULL, F32, elems);
    else o.master = arena_tensor(arena, F32, 1, elems, 1, 1);
    /* A page is the number of elements that the host updates at once. It is at most a fraction of all elements, so that
     * a small model has several pages, too. */
    int64_t page = (elems / PARTS + LAYOUT_ALIGN) / LAYOUT_ALIGN * LAYOUT_ALIGN;
    if (page > PAGE_MOST) page = PAGE_MOST;
    for (int k = 0; k < 2 && o.on_host; k++) {
        o.grad_page[k] = arena_tensor(arena, F32, 1, page, 1, 1);
        o.page[k] = arena_tensor(arena, z->params.type, 1, page, 1, 1);
    }
    o.spans = xmalloc(sizeof(OptimizerSpan) * (size_t)(z->spans + 1), "the list of spans to update");
    o.own_grad = xmalloc(sizeof(Tensor) * (size_t)(z->spans + 1), "the list of spans to update");
    return o;
}

void optimizer_destroy(Optimizer *o) {
    for (int k = 0; k < 2 && o->grads_in[0].handle; k++) event_destroy(&o->grads_in[k]);
    free(o->spans);
    free(o->own_grad);
    free(o->left_out);
    if (o->kind->update_matrices) matrices_destroy(&o->matrices), matrices_destroy(&o->expert_matrices);
    o->spans = NULL, o->own_grad = NULL, o->left_out = NULL;
}

/* Returns the part of state number k (such as AdamW's m) that belongs to a span (part of a parameter). Its data is NULL
 * if the state is not kept for the span. */
static Tensor state_of(const Optimizer *o, int k, Span span) {
    int no_matrices = o->kind->state[k].no_matrices;
    if (k >= o->states || (no_matrices && span.group == GROUP_MATRIX)) return tensor_1d(NULL, F32, span.elems);
    if (!no_matrices) return shards_state_view(o->shards, o->state[k], span);
    int64_t at = shards_state_at(o->shards, span) - o->left_out[number_of(o->shards, span)];
    return tensor_slice(o->state[k], at, span.elems);
}
Tensor optimizer_master(const Optimizer *o, Span span) {
    return o->master.data ? shards_state_view(o->shards, o->master, span) : shards_weight(o->shards, span);
}
Tensor optimizer_tensor(const Optimizer *o, int which, Span span) {
    return which == 0 ? optimizer_master(o, span) : state_of(o, which - 1, span);
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

/* A slice of a span (part of a parameter) that fits in a page (Optimizer.page), the buffer for copies between device
 * and host. It begins at element `at` of span number `span`. */
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

/* Copies a slice of updated weights from host memory to the device: from page number `turn`. If weights are fp32, they
 * are copied directly from the master. */
static void send_weights(Optimizer *o, Stream *s, Part p, int turn) {
    Span   span = o->shards->span[p.span];
    Tensor weights = part_of(shards_weight(o->shards, span), p);
    device_from_host_queued(s, weights,
                            weights.type == F32 ? part_of(optimizer_master(o, span), p).data : o->page[turn].data);
}

void optimizer_publish(Optimizer *o, Stream *s) {
    const Shards *z = o->shards;
    DType         act = z->params.type;
    for (int i = 0; i < z->spans && !o->on_host && act != F32; i++)
        cast_forward(s, shards_weight(z, z->span[i]), optimizer_master(o, z->span[i]));
    for (Part p = {0}; o->on_host && next_part(o, &p);) {
        const float *from = (const float *)part_of(optimizer_master(o, z->span[p.span]), p).data;
        for (int64_t i = 0; act != F32 && i < p.elems; i++)
            ((uint16_t *)o->page[0].data)[i] = act == BF16 ? bf16_from_f32(from[i]) : f16_from_f32(from[i]);
        send_weights(o, s, p, 0);
        device_sync(s);
    }
}

void optimizer_zero_states(const Optimizer *o, Stream *s) {
    for (int k = 0; k < o->states; k++) {
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
    for (int k = 0; k < o->states; k++) hash_words(s, hash, o->state[k]);
    if (o->master.data) hash_words(s, hash, o->master);
    else shards_hash_pieces(o->shards, s, hash);
}

void optimizer_numbers(const Optimizer *o, Stream *s, int hashes) {
    const Shards *z = o->shards;
    for (int k = 0; k < o->states && !o->on_host; k++) inject_flip(s, o->kind->state[k].flip, o->state[k]);
    if (hashes & NUMBERS_REPLICAS) optimizer_hash_replicas(o, s, step_hash(&z->sums, HASH_REPLICAS));
    if (hashes & NUMBERS_GRADS) shards_hash_grads(z, s, step_hash(&z->sums, HASH_GRADS));
    int own = 0;
    for (int i = 0; i < z->spans; i++)
        if (shards_is_own(z, z->span[i])) o->own_grad[own++] = shards_grad(z, z->span[i]);
    if (own > 0) norm_squared(s, step_sum(&z->sums, SUM_GRAD_SQUARES), o->own_grad, own);
}

/* --- updates ------------------------------------------------------------------------------------------------------ */

/* Returns the arguments with which the optimizer updates a span (part of a parameter) that is not divided into
 * pages. */
static OptimizerSpan arguments_of(const Optimizer *o, Span span) {
    return (OptimizerSpan){.master = optimizer_master(o, span),
                           .m = state_of(o, 0, span),
                           .v = state_of(o, 1, span),
                           .working = shards_weight(o->shards, span),
                           .grad = shards_grad(o->shards, span),
                           .decays = span.group != GROUP_VECTOR,
                           .rate = o->shards->layout.param[span.param].rate};
}

static void fetch_grads(Optimizer *o, Stream *s, Part p, int turn) {
    device_to_host_queued(s, o->grad_page[turn].data, part_of(shards_grad(o->shards, o->shards->span[p.span]), p));
    event_record(o->grads_in[turn], s);
}

/* Updates the weights on the host, slice by slice. Meanwhile the gradients of the next slice are copied from the
 * device. That copy is queued after the copy of the weights that used the same page two slices before. So once the
 * gradients have arrived, the page may be overwritten. */
static void update_on_host(Optimizer *o, Stream *s, OptimizerStep h, float grad_scale) {
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
        OptimizerSpan part = arguments_of(o, span);
        part.master = part_of(part.master, p), part.m = part_of(part.m, p), part.v = part_of(part.v, p);
        part.working = tensor_slice(o->page[turn], 0, p.elems);
        part.grad = tensor_slice(o->grad_page[turn], 0, p.elems);
        o->kind->update_on_host(part, h, grad_scale);
        send_weights(o, s, p, turn);
    }
}

void optimizer_update(Optimizer *o, Stream *s, OptimizerStep h, float grad_scale) {
    const OptimizerKind *kind = o->kind;
    if (!kind->update) return;
    CHECK(!o->on_host || kind->update_on_host, "optimizer %s in host memory", kind->name);
    if (kind->update_matrices) kind->update_matrices(o, s, h, grad_scale);
    if (o->on_host) {
        if (!stream_note(s, "optimizer_update_host", shards_state_elems(o->shards), 0, 0, 0, 0.0, 0.0))
            update_on_host(o, s, h, grad_scale);
        return;
    }
    int count = 0;
    for (int i = 0; i < o->shards->spans; i++) {
        Span span = o->shards->span[i];
        if (span.group == GROUP_MATRIX && kind->update_matrices) continue;
        o->spans[count++] = arguments_of(o, span);
    }
    kind->update(s, o->spans, count, h, grad_scale);
}

/* --- muon: Muon for the matrices of blocks, AdamW for all other parameters ---------------------------------------- */

/* makes Muon's updates as large as those of AdamW, which have about this root mean square */
static const double MUON_SCALE = 0.2;

typedef struct { const Optimizer *optimizer; double beta2; } MuonWork;

/* Returns one field of the elements in a span (part of a matrix), for matrices_each. Field 0: the gradients, which
 * muon_momentum has replaced by the direction of the momentum. Field 1: NorMuon's second moments. */
static Tensor muon_field(const void *ctx, int field, Span span) {
    const Optimizer *o = ((const MuonWork *)ctx)->optimizer;
    return field == 0 ? shards_grad(o->shards, span) : state_of(o, 1, span);
}

static void muon_direction(const void *ctx, Stream *s, int param, const Tensor whole[MATRIX_FIELDS]) {
    const MuonWork  *w = (const MuonWork *)ctx;
    const Optimizer *o = w->optimizer;
    ModelShape       shape = o->shards->spec.shape;
    const Param     *p = &o->shards->layout.param[param];
    const BlockKind *block = block_kind_at(shape, model_view_bucket(shape, p->bucket) - 1);
    int64_t          parts = layout_parts(p);
    newton_schulz(s, whole[0], parts, o->shards->params.type, o->settings.newton);
    if (o->kind == &OPTIMIZER_NORMUON) normuon(s, whole[0], whole[1], parts, block->neurons, w->beta2);
}

static void muon(Optimizer *o, Stream *s, OptimizerStep h, float grad_scale) {
    Shards  *z = o->shards;
    MuonWork w = {o, h.beta2};
    for (int i = 0; i < z->spans; i++)
        if (z->span[i].group == GROUP_MATRIX)
            muon_momentum(s, shards_grad(z, z->span[i]), state_of(o, 0, z->span[i]), o->settings.momentum,
                          grad_scale);
    MatrixWork work = {o->kind == &OPTIMIZER_NORMUON ? 2 : 1, muon_field, muon_direction, &w};
    matrices_each(&o->matrices, s, work);
    if (o->expert_matrices.count) matrices_each(&o->expert_matrices, s, work);
    for (int i = 0; i < z->spans; i++) {
        Span         span = z->span[i];
        const Param *p = &z->layout.param[span.param];
        int64_t      rows = p->dim[0], columns = p->dim[1] / layout_parts(p);
        double       scale = MUON_SCALE * (double)p->matrix_rate * sqrt((double)(rows > columns ? rows : columns));
        if (span.group != GROUP_MATRIX) continue;
        muon_update(s, optimizer_master(o, span), shards_grad(z, span), h.learning_rate * scale,
                    h.learning_rate * h.weight_decay);
        if (z->params.type != F32) cast_forward(s, shards_weight(z, span), optimizer_master(o, span));
    }
}

/* --- kinds -------------------------------------------------------------------------------------------------------- */

#define ADAMW_STATE_ROWS {{.name = "m", .flip = "guard.m"}, {.name = "v", .flip = "guard.v"}}
const OptimizerKind OPTIMIZER_ADAMW = {
    .name = "adamw", .states = ADAMW_STATES, .state = ADAMW_STATE_ROWS,
    .update = adamw_update, .update_on_host = adamw_update_host, .server_can_update = 1};
const OptimizerKind OPTIMIZER_IDLE = {.name = "adamw", .states = ADAMW_STATES, .state = ADAMW_STATE_ROWS};

#define MUON_SETTINGS {.momentum = 0.95, .newton = NEWTON_QUINTIC}
const OptimizerKind OPTIMIZER_MUON = {
    .name = "muon", .states = 2,
    .state = {{.name = "momentum", .flip = "guard.m"}, {.name = "v", .flip = "guard.v", .no_matrices = 1}},
    .settings = MUON_SETTINGS, .update = adamw_update, .update_matrices = muon, .normuon = &OPTIMIZER_NORMUON};
const OptimizerKind OPTIMIZER_NORMUON = {
    .name = "muon", .states = 2,
    .state = {{.name = "momentum", .flip = "guard.m"}, {.name = "v", .flip = "guard.v"}},
    .settings = MUON_SETTINGS, .update = adamw_update, .update_matrices = muon};

/* The kinds of optimizer that the option optimizer.name can choose. */
static const OptimizerKind *const KINDS[] = {&OPTIMIZER_ADAMW, &OPTIMIZER_MUON};

const OptimizerKind *optimizer_kind(const char *name, int is_normuon) {
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (name && strcmp(name, KINDS[i]->name) == 0)
            return is_normuon && KINDS[i]->normuon ? KINDS[i]->normuon : KINDS[i];
    return NULL;
}

/* --- the bias that balances experts ------------------------------------------------------------------------------- */

/* Writes to out [n] how much elements [first, first + n) of a block's bias change after a step. counts: assignments of
 * tokens to each expert in the step. */
static void steps_of(float *out, const int64_t *counts, ModelShape shape, int64_t first, int64_t n) {
    int64_t all = 0;
    for (int64_t e = 0; e < shape.n_experts; e++) all += counts[e];
    for (int64_t i = 0; i < n; i++) {
        /* number of experts times the amount by which the assignments of expert first + i exceed the mean of all
         * experts */
        __int128 over = (__int128)counts[first + i] * shape.n_experts - all;
        out[i] = (float)shape.balance_rate * (float)((over < 0) - (over > 0));
    }
}

/* Adds `step` to the masters of a span (part of a parameter), and writes the sums, rounded, to the weights. */
static void add_to_masters(Optimizer *o, Stream *s, Span span, const float *step) {
    Tensor weights = shards_weight(o->shards, span), master = optimizer_master(o, span);
    if (o->on_host) {
        if (s->ledger) return;
        Tensor rounded = weights;
        rounded.data = xmalloc(tensor_bytes(weights), "the bias of the experts");
        for (int64_t i = 0; i < span.elems; i++) {
            ((float *)master.data)[i] += step[i];
            tensor_set(rounded, i, ((const float *)master.data)[i]);
        }
        device_from_host(s, weights, rounded.data);
        free(rounded.data);
        return;
    }
    size_t mark = arena_mark(&s->scratch);
    Tensor steps = arena_tensor(&s->scratch, F32, 1, span.elems, 1, 1);
    if (!s->ledger) device_from_host(s, steps, step);
    add_forward(s, master, steps);
    if (weights.type != F32) cast_forward(s, weights, master);
    arena_release(&s->scratch, mark);
}

void experts_balance(Optimizer *o, Stream *s, const int64_t *counts) {
    const Shards *z = o->shards;
    ModelShape    shape = z->spec.shape;
    if (!kind_has(block_kind(shape), shape, HAS_EXPERT_BIAS)) return;
    float *step = xcalloc((size_t)shape.n_experts, sizeof *step, "the bias of the experts");
    for (int i = 0; i < z->spans; i++) {
        Span         span = z->span[i];
        const Param *p = &z->layout.param[span.param];
        if (p->bucket < 1 || p->bucket > shape.n_layer || p->field != block_kind_at(shape, p->bucket - 1)->experts_bias)
            continue;
        if (counts) steps_of(step, counts + (p->bucket - 1) * shape.n_experts, shape, span.first, span.elems);
        add_to_masters(o, s, span, step);
    }
    free(step);
}
