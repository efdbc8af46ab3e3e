/* experts.c - see experts.h. */
#include "model/experts.h"

#include "layers/layers.h"
#include "model/expert_ranks.h"

static RouterWeights weights_of(const BlockRun *r) { return r->shape.norm_top_k ? WEIGHTS_NORMED : WEIGHTS_PLAIN; }

/* gate, up and down of an expert, each padded to whole packs. */
int64_t expert_stride(const BlockRun *r) {
    int64_t elems = r->shape.n_expert_inner * r->shape.n_embd;
    return 3 * ((elems + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN);
}

Tensor expert_gate_up(const ExpertParams *w) {
    Tensor both = w->gate;
    both.dim[0] *= 2;
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
        rows_dispatch(r->s, x->rows, norm, x->order);
    }
    if (r->experts) {
        expert_ranks_forward(r, x, w, pass);
        return;
    }
    if (pass != EXPERTS_LIGHT) expert_linear_forward(r->s, x->gate_up, x->rows, expert_gate_up(w), expert_stride(r), x->first);
    expert_swiglu_forward(r->s, x->swiglu, x->gate_up, x->weight, x->order);
}

void experts_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w) {
    if (r->experts) expert_ranks_output(r, x, w);
    else expert_linear_forward(r->s, x->out, x->swiglu, w->down, expert_stride(r), x->first);
    rows_combine(r->s, r->update, x->out, x->place);
}

/* Turns x->out from the gradient of the experts' output into the gradient of x->rows, their input. */
static void mlps_backward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, const ExpertParams *d) {
    int64_t stride = expert_stride(r);
    expert_linear_backward(r->s, x->dswiglu, d->down, x->out, x->swiglu, w->down, stride, x->first);
    expert_swiglu_backward(r->s, x->gate_up, x->dweight, x->dswiglu, x->gate_up, x->weight, x->order);
    expert_linear_backward(r->s, x->out, expert_gate_up(d), x->gate_up, x->rows, expert_gate_up(w), stride, x->first);
}

void experts_backward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, const ExpertParams *d) {
    Tensor none = tensor_none();
    int    has_loss = r->shape.balance == BALANCE_SWITCH;
    rows_dispatch(r->s, x->out, r->dresidual, x->order);
    rows_dispatch(r->s, x->rows, norm, x->order);
    if (r->experts) expert_ranks_backward(r, x, w, d);
    else mlps_backward(r, x, w, d);
    rows_combine(r->s, r->dbranch, x->out, x->place);
    if (has_loss) router_count(r->s, x->counts, none, x->expert);
    router_backward(r->s, x->logits, x->dweight, x->probability, x->expert, x->weight, weights_of(r), has_loss ? x->counts : none,
                    has_loss ? r->balance : none);
    head_backward(r->s, x->dnorm, d->router, x->logits, norm, w->router);
    residual_forward(r->s, r->dbranch, r->dbranch, x->dnorm);
}
