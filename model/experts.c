/* experts.c - see experts.h. */
#include "model/experts.h"

#include "layers/layers.h"

static RouterWeights weights_of(const BlockRun *r) { return r->shape.norm_top_k ? WEIGHTS_NORMED : WEIGHTS_PLAIN; }

/* Elements of memory from one expert's matrices to the next one's: three rows, each of whole packs. */
static int64_t stride_of(const BlockRun *r) {
    int64_t elems = r->shape.n_expert_inner * r->shape.n_embd;
    return 3 * ((elems + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN);
}

/* Expert 0's gate and up, neighbours in memory, as one matrix. */
static Tensor gate_up_of(const ExpertParams *w) {
    Tensor both = tensor_2d(w->gate.data, w->gate.type, 2 * w->gate.dim[0], w->gate.dim[1]);
    CHECK(!both.data || (char *)both.data + tensor_bytes(w->gate) == (char *)w->up.data, "gate and up are no neighbours");
    return both;
}

void experts_forward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, ExpertPass pass) {
    CHECK(!r->tensor, "experts among tensor ranks");
    if (pass != EXPERTS_LIGHT) {
        head_forward(r->s, x->logits, norm, w->router);
        router_forward(r->s, x->probability, x->expert, x->weight, x->logits,
                       r->shape.balance == BALANCE_BIAS ? w->bias : tensor_none(), weights_of(r));
        if (!tensor_is_none(r->expert_counts)) router_count(r->s, x->counts, r->expert_counts, x->expert);
        experts_sort(r->s, x->order, x->place, x->first, x->expert);
        rows_take(r->s, x->rows, norm, x->order);
        expert_linear_forward(r->s, x->gate_up, x->rows, gate_up_of(w), stride_of(r), x->first);
    }
    expert_swiglu_forward(r->s, x->swiglu, x->gate_up, x->weight, x->order);
}

void experts_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w) {
    expert_linear_forward(r->s, x->out, x->swiglu, w->down, stride_of(r), x->first);
    rows_sum(r->s, r->update, x->out, x->place);
}

void experts_backward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, const ExpertParams *d) {
    Tensor none = tensor_none();
    int    has_loss = r->shape.balance == BALANCE_SWITCH;
    rows_take(r->s, x->out, r->dresidual, x->order);
    expert_linear_backward(r->s, x->dswiglu, d->down, x->out, x->swiglu, w->down, stride_of(r), x->first);
    expert_swiglu_backward(r->s, x->gate_up, x->dweight, x->dswiglu, x->gate_up, x->weight, x->order);
    rows_take(r->s, x->rows, norm, x->order);
    expert_linear_backward(r->s, x->out, gate_up_of(d), x->gate_up, x->rows, gate_up_of(w), stride_of(r), x->first);
    rows_sum(r->s, r->dbranch, x->out, x->place);
    if (has_loss) router_count(r->s, x->counts, none, x->expert);
    router_backward(r->s, x->logits, x->dweight, x->probability, x->expert, x->weight, weights_of(r), has_loss ? x->counts : none,
                    has_loss ? r->balance : none);
    head_backward(r->s, x->dnorm, d->router, x->logits, norm, w->router);
    residual_forward(r->s, r->dbranch, r->dbranch, x->dnorm);
}
