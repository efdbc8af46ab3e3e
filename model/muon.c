/* muon.c - Muon for the matrices of blocks, AdamW for all other parameters: see optimizer.h. */
#include <math.h>

#include "model/block.h"
#include "model/optimizer.h"

static const double MUON_SCALE = 0.2; /* AdamW's updates have about this root mean square */

typedef struct { const Optimizer *optimizer; double beta2; } MuonWork;

/* Returns field 0, the gradients, which hold the direction of the momentum by now; or field 1, NorMuon's second
 * moments. */
static Tensor muon_field(const void *ctx, int field, Span span) {
    const Optimizer *o = ((const MuonWork *)ctx)->optimizer;
    return field == 0 ? shards_grad(o->shards, span) : optimizer_state(o, 1, span);
}

/* Returns the side of a matrix that has one entry for each neuron. A neuron is an output of the matrix. */
static NeuronSide neurons_of(const Shards *z) { return block_kind(z->spec.shape)->neurons; }

static void muon_direction(const void *ctx, Stream *s, int param, const Tensor whole[MATRIX_FIELDS]) {
    const MuonWork  *w = (const MuonWork *)ctx;
    const Optimizer *o = w->optimizer;
    int64_t          parts = layout_parts(&o->shards->layout.param[param]);
    newton_schulz(s, whole[0], parts, o->shards->params.type, o->muon.newton);
    if (o->kind->is_normuon) normuon(s, whole[0], whole[1], parts, neurons_of(o->shards), w->beta2);
}

void muon_step(Optimizer *o, Stream *s, AdamW h, float grad_scale) {
    Shards  *z = o->shards;
    MuonWork w = {o, h.beta2};
    CHECK(!o->on_host, "muon updates where the products run");
    for (int i = 0; i < z->spans; i++)
        if (z->span[i].group == GROUP_MATRIX)
            muon_momentum(s, shards_grad(z, z->span[i]), optimizer_state(o, 0, z->span[i]), o->muon.momentum, grad_scale);
    MatrixWork work = {o->kind->is_normuon ? 2 : 1, muon_field, muon_direction, &w};
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
    optimizer_adamw_on_device(o, s, h, grad_scale, ADAMW_BUT_MATRICES);
}
