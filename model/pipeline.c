/* pipeline.c - see pipeline.h. */
#include "model/pipeline.h"

#include <stdlib.h>

#include "core/error.h"

/* --- the order of work -------------------------------------------------------------------------------------------- */

/* Assigns a tape, a buffer for the activations of a micro-batch, to each item of work. A forward uses the lowest free
 * tape of its part. The backward of the same micro-batch frees it. */
static void give_tapes(WorkList *w, int parts, int64_t micro_batches) {
    int *tape_of = xmalloc(sizeof *tape_of * (size_t)(parts * micro_batches), "a list of works");
    char *taken = xcalloc((size_t)(parts * micro_batches), 1, "a list of works");
    int64_t begun = 0, ended = 0;
    for (int64_t i = 0; i < w->count; i++) {
        Work *one = &w->work[i];
        char *mine = taken + one->part * micro_batches;
        int  *tape = &tape_of[one->part * micro_batches + one->micro];
        if (one->kind == WORK_FORWARD) {
            for (*tape = 0; mine[*tape]; ++*tape) {}
            mine[*tape] = 1;
            if (*tape >= w->tapes[one->part]) w->tapes[one->part] = *tape + 1;
            if (one->part == 0 && one->micro >= begun) begun = one->micro + 1;
        } else {
            mine[*tape] = 0;
            /* part 0 has a micro-batch's last backward on this stage; micro-batches end in order */
            if (one->part == 0) ended = one->micro + 1;
        }
        one->tape = *tape;
        if (begun - ended > w->micros) w->micros = begun - ended;
        if (i + 1 < w->count && begun + 1 - ended > w->micros && w->work[i + 1].kind == WORK_FORWARD &&
            w->work[i + 1].part == 0)
            w->micros = begun + 1 - ended;
    }
    free(tape_of);
    free(taken);
}

WorkList work_list(int stages, int parts, int64_t micro_batches, int stage) {
    CHECK(stages > 0 && parts > 0 && stage >= 0 && stage < stages && (parts == 1 || micro_batches % stages == 0),
          "stage %d of %d with %d parts, %lld micro-batches",
          stage, stages, parts, (long long)micro_batches);
    int64_t  all = micro_batches * parts, forwards = 0, backwards = 0, P = stages, V = parts;
    /* how many forwards the stage computes before its first backward */
    int64_t  ahead = V == 1 ? P - 1 - stage : 2 * (P - stage - 1) + (V - 1) * P;
    WorkList w = {.count = 2 * all};
    w.work = xmalloc(sizeof *w.work * (size_t)(2 * all + 1), "a list of works");
    w.tapes = xcalloc((size_t)parts, sizeof *w.tapes, "a list of works");
    /* Each part in order computes the forwards of P micro-batches. Then the first part computes the next P. Backwards
     * have the same order, with the parts from last to first. */
    for (int64_t i = 0; i < w.count; i++) {
        int     is_forward = forwards < all && forwards <= backwards + ahead;
        int64_t k = is_forward ? forwards++ : backwards++;
        int     part = (int)(k % (P * V) / P);
        w.work[i].kind = is_forward ? WORK_FORWARD : WORK_BACKWARD;
        w.work[i].part = is_forward ? part : parts - 1 - part;
        w.work[i].micro = V == 1 ? k : k / (P * V) * P + k % P;
    }
    give_tapes(&w, parts, micro_batches);
    return w;
}

void work_list_free(WorkList *w) {
    free(w->work);
    free(w->tapes);
    *w = (WorkList){0};
}

double work_idle(int stages, int parts, int64_t micro_batches) {
    double idle = stages - 1, busy = (double)micro_batches * parts;
    return idle / (busy + idle);
}

BlockRange work_blocks(int64_t blocks, int parts, double head_blocks, int part) {
    CHECK(parts > 0 && parts <= blocks && part >= 0 && part < parts, "part %d of %d of %lld blocks", part, parts,
          (long long)blocks);
    if (parts == 1) return (BlockRange){0, blocks};
    int64_t last = (int64_t)((double)(blocks + head_blocks) / parts - head_blocks + 0.5), most = blocks - (parts - 1);
    last = last < 1 ? 1 : last > most ? most : last;
    int64_t others = parts - 1, rest = blocks - last;
    if (part == parts - 1) return (BlockRange){rest, blocks};
    return (BlockRange){rest * part / others, rest * (part + 1) / others};
}

/* --- which blocks ------------------------------------------------------------------------------------------------- */

static BlockRange blocks_of(ModelShape shape, PipelineSpec s, int part) {
    /* FLOPs for a row: 2 V C in the head (vocabulary V, width C), 24 C^2 in a block without its attention */
    double head_blocks = (double)shape.vocab_size / (12.0 * (double)shape.n_embd);
    return work_blocks(shape.n_layer, s.stages * s.parts, head_blocks, part * s.stages + s.stage);
}

GptPartSpec *pipeline_parts(ModelShape shape, PipelineSpec s) {
    GptPartSpec *part = xmalloc(sizeof *part * (size_t)s.parts, "the parts of a model");
    WorkList     list = work_list(s.stages, s.parts, s.micro_batches, s.stage);
    for (int p = 0; p < s.parts; p++) {
        BlockRange r = blocks_of(shape, s, p);
        part[p] = (GptPartSpec){r.first, r.end, list.tapes[p]};
    }
    work_list_free(&list);
    return part;
}

BucketHold *pipeline_holds(ModelShape shape, PipelineSpec s) {
    int         last = (int)shape.n_layer + 1;
    BucketHold *hold = xmalloc(sizeof *hold * (size_t)(last + 1), "a table of buckets");
    for (int b = 0; b <= last; b++) hold[b] = BUCKET_ELSEWHERE;
    for (int p = 0; p < s.parts; p++) {
        BlockRange r = blocks_of(shape, s, p);
        for (int64_t l = r.first; l < r.end; l++) hold[1 + l] = BUCKET_OWN;
    }
    if (s.stage == s.stages - 1) hold[0] = BUCKET_TWIN, hold[last] = BUCKET_OWN;
    if (s.stage == 0) hold[0] = BUCKET_OWN;
    return hold;
}

static int are_alike(ModelShape shape, PipelineSpec s, int a, int b) {
    int last = s.stages - 1;
    if (a == 0 || b == 0 || a == last || b == last) return a == b;
    for (int p = 0; p < s.parts; p++) {
        s.stage = a;
        BlockRange x = blocks_of(shape, s, p);
        s.stage = b;
        BlockRange y = blocks_of(shape, s, p);
        if (x.end - x.first != y.end - y.first) return 0;
    }
    return 1;
}

int *pipeline_alike(ModelShape shape, PipelineSpec s) {
    int *like = xmalloc(sizeof *like * (size_t)s.stages, "a table of stages");
    for (int a = 0; a < s.stages; a++)
        for (like[a] = 0; !are_alike(shape, s, a, like[a]);) like[a]++;
    return like;
}

int64_t pipeline_batches(PipelineSpec s) {
    WorkList list = work_list(s.stages, s.parts, s.micro_batches, s.stage);
    int64_t  batches = list.micros;
    work_list_free(&list);
    return batches;
}

Pipeline pipeline_create(PipelineSpec spec, Gpt *gpt) {
    WorkList list = work_list(spec.stages, spec.parts, spec.micro_batches, spec.stage);
    return (Pipeline){.spec = spec, .gpt = gpt, .list = list};
}

/* Waits until all messages that this stage has started to send are sent. */
static void finish_sends(const Pipeline *p) {
    if (p->spec.forward_out) comm_finish(p->spec.forward_out);
    if (p->spec.backward_out) comm_finish(p->spec.backward_out);
}

void pipeline_destroy(Pipeline *p) {
    finish_sends(p);
    work_list_free(&p->list);
}

void pipeline_set_micro_batches(Pipeline *p, int64_t micro_batches) {
    CHECK(p->spec.stages == 1, "%d stages", p->spec.stages);
    p->spec.micro_batches = micro_batches;
    work_list_free(&p->list);
    p->list = work_list(1, p->spec.parts, micro_batches, 0);
}

/* --- messages ----------------------------------------------------------------------------------------------------- */

/* takes() returns the pair of ranks over which an item of work receives its input. gives() returns the pair over which
 * it sends its output. They return NULL if there is no such message. */
static Comm *takes(const Pipeline *p, Work w) {
    const GptPart *part = &p->gpt->part[w.part];
    if (w.kind == WORK_FORWARD) return part->embeds ? NULL : p->spec.forward_in;
    return part->classifies ? NULL : p->spec.backward_in;
}
static Comm *gives(const Pipeline *p, Work w) {
    const GptPart *part = &p->gpt->part[w.part];
    if (w.kind == WORK_FORWARD) return part->classifies ? NULL : p->spec.forward_out;
    return part->embeds ? NULL : p->spec.backward_out;
}

/* Returns the part of the buffer `room` that holds the message for a micro-batch, which may be smaller than the
 * largest. */
static Tensor message(Tensor room, const Gpt *g, Batch batch) {
    int64_t ranks = g->tensor ? comm_size(g->tensor) : 1;
    return tensor_slice(room, 0, tensor_elems(batch.inputs) / ranks * g->shape.n_embd);
}

static void post(const Pipeline *p, Work w) {
    Comm *from = takes(p, w);
    if (from) comm_receive_start(from, tensor_flat(w.kind == WORK_FORWARD ? p->gpt->forward_in : p->gpt->backward_in));
}

/* --- a step ------------------------------------------------------------------------------------------------------- */

static void take(const Pipeline *p, Stream *s, Work w, Batch batch) {
    Comm *from = takes(p, w);
    ledger_mark(s->ledger, w.kind == WORK_FORWARD ? "forward" : "backward", w.part);
    if (from) comm_finish(from);
    if (from && w.kind == WORK_FORWARD) gpt_take_forward(p->gpt, s, w.part, w.tape, batch);
    if (from && w.kind == WORK_BACKWARD) gpt_take_backward(p->gpt, s, batch);
}

/* Computes an item of work. First waits until the previous message is sent, because the result overwrites the send
 * buffer. */
static void compute(const Pipeline *p, Stream *s, Work w, Batch batch, float grad_scale) {
    MicroBatch which = w.micro == p->spec.micro_batches - 1 ? MICRO_LAST : MICRO_EARLIER;
    if (gives(p, w)) comm_finish(gives(p, w));
    if (w.kind == WORK_FORWARD) gpt_part_forward(p->gpt, s, w.part, w.tape, batch);
    else gpt_part_backward(p->gpt, s, w.part, w.tape, batch, grad_scale, which);
}

void pipeline_step(Pipeline *p, Stream *s, float grad_scale, Batch (*next)(void *ctx), void *ctx) {
    const WorkList *list = &p->list;
    Batch          *batch = xmalloc(sizeof *batch * (size_t)list->micros, "a table of batches");
    post(p, list->work[0]);
    for (int64_t i = 0; i < list->count; i++) {
        Work w = list->work[i];
        if (w.kind == WORK_FORWARD && w.part == 0) batch[w.micro % list->micros] = next(ctx);
        take(p, s, w, batch[w.micro % list->micros]);
        if (i + 1 < list->count) post(p, list->work[i + 1]);
        compute(p, s, w, batch[w.micro % list->micros], grad_scale);
        Tensor result = w.kind == WORK_FORWARD ? p->gpt->forward_out : p->gpt->backward_out;
        if (gives(p, w)) comm_send_start(gives(p, w), tensor_flat(result));
    }
    finish_sends(p);
    free(batch);
}

/* --- before the first message ------------------------------------------------------------------------------------- */

/* Returns whether the work list has a backward of this part with this tape (buffer for activations). adds: 1 for a
 * backward that adds to gradients, 0 for one that sets them. */
static int has_backward(const WorkList *list, int part, int tape, int adds) {
    for (int64_t i = 0; i < list->count; i++) {
        Work w = list->work[i];
        if (w.kind == WORK_BACKWARD && w.part == part && w.tape == tape && (w.micro > 0) == adds) return 1;
    }
    return 0;
}

/* The operations of each CUDA graph run twice here, because a graph is recorded when its operations run for the second
 * time. */
void pipeline_warm_up(Pipeline *p, Stream *s, Batch batch) {
    const WorkList *list = &p->list;
    Gpt            *g = p->gpt;
    int             uses_own = g->fp8.uses_own;
    device_sync(s); /* waits for the device, and ends the gather of the weights */
    /* records the graphs as for steps whose fp8 scales are known; they are known in all steps but the first */
    g->fp8.uses_own = 0;
    gpt_set_offline(g, 1);
    for (int part = 0; part < g->parts; part++)
        for (int tape = 0; tape < g->part[part].tapes; tape++)
            for (int i = 0; i < 2; i++) gpt_part_forward(g, s, part, tape, batch);
    for (int adds = 0; adds < 2; adds++)
        for (int part = g->parts; part-- > 0;)
            for (int tape = 0; tape < g->part[part].tapes; tape++)
                for (int i = 0; i < 2 && has_backward(list, part, tape, adds); i++) {
                    if (!adds) shards_empty(g->shards, s);
                    gpt_part_backward(g, s, part, tape, batch, 1.0f, MICRO_EARLIER);
                }
    gpt_set_offline(g, 0);
    g->fp8.uses_own = uses_own;
    device_sync(s);
}

/* --- forward alone ------------------------------------------------------------------------------------------------ */

void pipeline_forward(Pipeline *p, Stream *s, Batch batch) {
    for (int part = 0; part < p->spec.parts; part++) {
        Work  w = {WORK_FORWARD, part, 0, 0};
        Comm *from = takes(p, w), *to = gives(p, w);
        if (from) comm_receive_start(from, message(p->gpt->forward_in, p->gpt, batch));
        take(p, s, w, batch);
        compute(p, s, w, batch, 0.0f);
        if (to) comm_send_start(to, message(p->gpt->forward_out, p->gpt, batch));
    }
}

static int has_head(const Pipeline *p) { return p->spec.stage == p->spec.stages - 1; }

void pipeline_loss(Pipeline *p, Stream *s, Batch batch) {
    if (has_head(p)) gpt_loss(p->gpt, s, batch);
}

int pipeline_token_losses(Pipeline *p, Stream *s, Batch batch, float *out) {
    if (has_head(p)) gpt_token_losses(p->gpt, s, batch, out);
    return has_head(p);
}

void pipeline_logits(Pipeline *p, Stream *s, Batch batch, int64_t row, float *out) {
    if (has_head(p)) gpt_logits(p->gpt, s, batch, row, out);
    if (p->spec.all && !s->ledger)
        comm_broadcast(p->spec.all, out, sizeof *out * (size_t)p->gpt->shape.vocab_size, p->spec.stages - 1);
}

void pipeline_token_logits(Pipeline *p, Stream *s, Batch batch, int64_t past, float *out) {
    p->gpt->past = past;
    pipeline_forward(p, s, batch);
    pipeline_logits(p, s, batch, batch.inputs.dim[1] - 1, out);
    p->gpt->past = 0;
}
