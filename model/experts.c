/* experts.c - see experts.h. */
#include "model/experts.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"

enum { MOST_TENSORS = 3 }; /* most tensors of which rows are sent in one exchange */

int64_t expert_room(int64_t even, double capacity, int64_t ranks) {
    double room = ceil(capacity * (double)even);
    return room < (double)(ranks * even) ? (int64_t)room : ranks * even;
}

ExpertRanks *expert_ranks_create(Comm *comm, int64_t experts, int64_t rows, double capacity) {
    ExpertRanks *p = xcalloc(1, sizeof *p, "the ranks that divide the experts");
    *p = (ExpertRanks){.comm = comm, .experts = experts, .room = expert_room(rows, capacity, comm_size(comm))};
    /* for each tensor two lists: messages with this rank's rows for each expert, and with each rank's rows for this
     * rank's experts */
    p->message = xmalloc(sizeof *p->message * (size_t)(MOST_TENSORS * 2 * experts), "the messages of the experts");
    p->first = xmalloc(sizeof *p->first * (size_t)(experts + 1), "the messages of the experts");
    return p;
}

void expert_ranks_destroy(ExpertRanks *p) {
    if (!p) return;
    free(p->message);
    free(p->first);
    free(p);
}

/* --- the experts' products ---------------------------------------------------------------------------------------- */

/* Tensors of one computation of the experts' MLPs, for X rows sorted by expert. order: for each row the index of its
 * weight; none if weights have the order of the rows. */
typedef struct { Tensor rows, gate_up, swiglu, out, dswiglu, weight, dweight, order, first; } ExpertRows;

/* Returns the tensors for all rows, one for each assignment of a token to an expert. For a rank that has all
 * experts. */
static ExpertRows all_rows(const ExpertActs *x) {
    return (ExpertRows){x->rows, x->gate_up, x->swiglu, x->out, x->dswiglu, x->weight, x->dweight, x->order, x->first};
}

/* Returns the distance in memory from the matrices of one expert to those of the next, in elements. An expert has gate,
 * up and down, each padded to a multiple of LAYOUT_ALIGN elements. */
static int64_t expert_stride(const BlockRun *r) {
    int64_t elems = r->shape.n_expert_inner * r->shape.n_embd;
    return 3 * ((elems + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN);
}

/* Returns gate and up of this rank's first expert as one matrix; they are adjacent in memory. */
static Tensor expert_gate_up(const ExpertParams *w) {
    Tensor both = w->gate;
    both.dim[0] *= 2;
    CHECK(!both.data || (char *)both.data + tensor_bytes(w->gate) == (char *)w->up.data,
          "gate and up are no neighbours");
    return both;
}

static void gate_up(const BlockRun *r, ExpertRows e, const ExpertParams *w) {
    expert_linear_forward(r->s, e.gate_up, e.rows, expert_gate_up(w), expert_stride(r), e.first);
}
static void swiglu(const BlockRun *r, ExpertRows e) {
    expert_swiglu_forward(r->s, e.swiglu, e.gate_up, e.weight, e.order);
}
static void down(const BlockRun *r, ExpertRows e, const ExpertParams *w) {
    expert_linear_forward(r->s, e.out, e.swiglu, w->down, expert_stride(r), e.first);
}

/* Backward of the experts' MLPs: turns e.out from the gradient of their output into the gradient of their input e.rows.
 * Sets the gradients d of the matrices, or adds to them. */
static void mlps_backward(const BlockRun *r, ExpertRows e, const ExpertParams *w, const ExpertParams *d) {
    int64_t stride = expert_stride(r);
    expert_linear_backward(r->s, e.dswiglu, d->down, e.out, e.swiglu, w->down, stride, e.first);
    if (e.rows.dim[0]) expert_swiglu_backward(r->s, e.gate_up, e.dweight, e.dswiglu, e.gate_up, e.weight, e.order);
    expert_linear_backward(r->s, e.out, expert_gate_up(d), e.gate_up, e.rows, expert_gate_up(w), stride, e.first);
}

/* --- numbers of rows of each rank for each expert ----------------------------------------------------------------- */

static int64_t experts_each(const ExpertRanks *p) { return p->experts / comm_size(p->comm); }

/* Counts the rows that each rank has for each expert. The host waits for the counts of this rank, then for those of the
 * other ranks. A rank that computes without the others cannot know their counts, and a plan has only even shares. In
 * these two cases all ranks get this rank's counts. */
static void count_rows(const BlockRun *r, const ExpertActs *x) {
    ExpertRanks *p = r->experts;
    int64_t      E = p->experts, ranks = comm_size(p->comm), R = x->order.dim[0];
    int64_t     *own = r->expert_rows + comm_rank(p->comm) * E;
    memset(r->expert_rows, 0, sizeof *r->expert_rows * (size_t)(ranks * E));
    if (!r->s->ledger) device_to_host(r->s, p->first, x->first);
    for (int64_t e = 0; e < E; e++) own[e] = r->s->ledger ? R * (e + 1) / E - R * e / E : p->first[e + 1] - p->first[e];
    if (!p->is_offline) comm_all_reduce_i64(p->comm, r->expert_rows, (int)(ranks * E), COMM_SUM);
    for (int64_t i = 0; (p->is_offline || r->s->ledger) && i < ranks * E; i++) r->expert_rows[i] = own[i % E];
}

/* Returns how many rows the experts of a rank receive in all rounds together. */
static int64_t arriving(const BlockRun *r, int rank) {
    const ExpertRanks *p = r->experts;
    int64_t            each = experts_each(p), all = 0;
    for (int i = 0; i < comm_size(p->comm); i++)
        for (int64_t e = rank * each; e < (rank + 1) * each; e++) all += r->expert_rows[i * p->experts + e];
    return all;
}

static int rounds_of(const BlockRun *r) {
    const ExpertRanks *p = r->experts;
    int64_t            most = 1;
    for (int rank = 0; rank < comm_size(p->comm); rank++)
        if (arriving(r, rank) > most) most = arriving(r, rank);
    return (int)((most + p->room - 1) / p->room);
}

/* Returns how many rows this rank's experts compute in a round. */
static int64_t rows_in(const BlockRun *r, int round) {
    int64_t left = arriving(r, comm_rank(r->experts->comm)) - round * r->experts->room;
    return left < 0 ? 0 : left < r->experts->room ? left : r->experts->room;
}

/* --- one exchange ------------------------------------------------------------------------------------------------- */

/* The two ends of an exchange of one tensor. of_tokens [R,...]: rows of this rank's tokens, sorted by expert.
 * of_experts [X,...]: rows that this rank's experts compute. */
typedef enum { TO_EXPERTS, FROM_EXPERTS } Way;
typedef struct { Tensor of_tokens, of_experts; } Ends;

static Tensor rows_of(Tensor t, int64_t first, int64_t rows) {
    return tensor_slice(t, first * (t.dims > 1 ? t.dim[1] : 1), rows * (t.dims > 1 ? t.dim[1] : 1));
}

/* Adds a message of `rows` rows to the list. Rank `from` has the tokens, rank `to` their expert; one of the two is this
 * rank. token_row and expert_row: index of the first row at either end. If both are this rank, copies the rows
 * instead. */
static void add_message(const BlockRun *r, Ends t, Way way, int from, int to, int64_t token_row, int64_t expert_row,
                        int64_t rows) {
    ExpertRanks *p = r->experts;
    int          rank = comm_rank(p->comm);
    if (from == rank && to == rank) {
        Tensor here = rows_of(t.of_tokens, token_row, rows), there = rows_of(t.of_experts, expert_row, rows);
        cast_forward(r->s, way == TO_EXPERTS ? there : here, way == TO_EXPERTS ? here : there);
        return;
    }
    Tensor part = from == rank ? rows_of(t.of_tokens, token_row, rows) : rows_of(t.of_experts, expert_row, rows);
    p->message[p->messages++] = (CommMessage){(from == rank) == (way == TO_EXPERTS) ? EXCHANGE_SEND : EXCHANGE_RECEIVE,
                                              from == rank ? to : from, part};
}

/* Lists the messages of a round for one tensor. All ranks use the same order: by expert, then by the rank that has the
 * tokens. */
static void list_messages(const BlockRun *r, Ends t, Way way, int round) {
    const ExpertRanks *p = r->experts;
    int64_t            each = experts_each(p), begin = round * p->room, end = begin + p->room, token_row = 0, at = 0;
    int                ranks = comm_size(p->comm), rank = comm_rank(p->comm);
    for (int64_t e = 0; e < p->experts; e++) {
        int to = (int)(e / each);
        if (e % each == 0) at = 0; /* counts the rows that the rank of expert e receives */
        for (int from = 0; from < ranks; from++) {
            int64_t rows = r->expert_rows[from * p->experts + e], first = at > begin ? at : begin,
                    last = at + rows < end ? at + rows : end;
            if (first < last && (from == rank || to == rank))
                add_message(r, t, way, from, to, token_row + first - at, first - begin, last - first);
            at += rows;
        }
        token_row += r->expert_rows[rank * p->experts + e];
    }
}

/* Exchanges the rows of a round for a list of tensors, and waits until this rank's messages have been sent and
 * received. */
static void travel(const BlockRun *r, const Ends *t, int tensors, Way way, int round) {
    ExpertRanks *p = r->experts;
    p->messages = 0;
    for (int i = 0; i < tensors; i++) list_messages(r, t[i], way, round);
    comm_exchange_start(p->comm, p->message, p->messages);
    comm_finish(p->comm);
}

/* --- the experts' work on a round's rows -------------------------------------------------------------------------- */

static Tensor weights_of(Tensor t, int64_t n) { return tensor_2d(t.data, F32, n, 1); }

/* Returns the tensors with the first n rows that this rank computes in a round. */
static ExpertRows rows_here(const BlockRun *r, const ExpertActs *x, int64_t n) {
    return (ExpertRows){.rows = tensor_rows(x->rows_here, 0, n),
                        .gate_up = tensor_rows(x->gate_up, 0, n),
                        .swiglu = tensor_rows(x->swiglu, 0, n),
                        .out = tensor_rows(x->out_here, 0, n),
                        .dswiglu = tensor_rows(x->dswiglu, 0, n),
                        .weight = weights_of(x->weight_here, n),
                        .dweight = weights_of(x->dweight_here, n),
                        .order = tensor_none(),
                        .first = tensor_slice(x->first_here, 0, experts_each(r->experts) + 1)};
}

/* Runs the products for the most rows that a round can have, in a dry run, because they need the most scratch memory.
 * The dry run itself has even shares of rows. */
static void measure_largest(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, const ExpertParams *d) {
    int64_t times = r->s->ledger->times;
    r->s->ledger->times = -1;
    ExpertRows most = rows_here(r, x, r->experts->room);
    if (d) mlps_backward(r, most, w, d);
    else gate_up(r, most, w), down(r, most, w);
    r->s->ledger->times = times;
}

/* Sends the rows and weights of a round to the ranks of their experts. The experts of this rank then compute the round
 * up to SwiGLU. */
static void begin_round(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, int round) {
    ExpertRanks *p = r->experts;
    Ends         ends[] = {{x->rows, x->rows_here}, {x->weight_rows, x->weight_here}};
    int64_t      each = experts_each(p), from = comm_rank(p->comm) * each, at = -round * p->room, n = rows_in(r, round);
    for (int64_t e = 0; e <= each; e++) { /* index of the first row of each expert among the rows of this round */
        p->first[e] = (int32_t)(at < 0 ? 0 : at < n ? at : n);
        for (int i = 0; e < each && i < comm_size(p->comm); i++) at += r->expert_rows[i * p->experts + from + e];
    }
    if (!r->s->ledger) device_from_host(r->s, tensor_slice(x->first_here, 0, each + 1), p->first);
    travel(r, ends, 2, TO_EXPERTS, round);
    if (n == 0) return;
    gate_up(r, rows_here(r, x, n), w);
    swiglu(r, rows_here(r, x, n));
}

static void end_round(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, int round) {
    Ends    ends = {x->out, x->out_here};
    int64_t n = rows_in(r, round);
    if (n) down(r, rows_here(r, x, n), w);
    travel(r, &ends, 1, FROM_EXPERTS, round);
}

/* Copies the weights of assignments from the order of assignments to the order of the sorted rows, or back. index gives
 * the order. */
static void order_weights(const BlockRun *r, Tensor to, Tensor from, Tensor index) {
    int64_t R = index.dim[0];
    rows_dispatch(r->s, weights_of(to, R), weights_of(from, R), index);
}

/* Forward of experts that ranks divide, up to SwiGLU: from x->rows, the rows of this rank's tokens, to x->swiglu of
 * this rank's experts in round 0. With EXPERTS_ALL the other rounds are computed first, and leave their output in
 * x->out. The rounds run from last to first, so that the tensors of round 0 remain for backward. */
static void rounds_forward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, ExpertPass pass) {
    if (pass == EXPERTS_LIGHT) {
        if (rows_in(r, 0)) swiglu(r, rows_here(r, x, rows_in(r, 0)));
        return;
    }
    if (pass == EXPERTS_ALL) count_rows(r, x);
    if (r->s->ledger) measure_largest(r, x, w, NULL);
    order_weights(r, x->weight_rows, x->weight, x->order);
    for (int round = pass == EXPERTS_ALL ? rounds_of(r) - 1 : 0; round >= 0; round--) {
        begin_round(r, x, w, round);
        if (round > 0) end_round(r, x, w, round);
    }
}

/* Backward of experts that ranks divide: turns x->out from the gradient of their output into the gradient of their
 * input x->rows. Sets x->dweight. In each round the gradients of the input overwrite the rows of x->out that were sent
 * in that round. x->weight_rows holds weights for the rounds to come, and gradients of weights for those that are
 * done. */
static void rounds_backward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, const ExpertParams *d) {
    ExpertRanks *p = r->experts;
    int          rounds = rounds_of(r);
    Ends gradient = {x->out, x->out_here}, rows = {x->rows, x->rows_here}, weight = {x->weight_rows, x->dweight_here};
    /* gradients with their is_fresh: the first round sets fresh gradients, even without rows; the others add */
    ExpertParams sums = *d;
    if (rounds > p->rounds) p->rounds = rounds;
    if (r->s->ledger) measure_largest(r, x, w, d);
    order_weights(r, x->weight_rows, x->weight, x->order);
    for (int round = 0; round < rounds; round++) {
        Ends    there[] = {gradient, rows}, back[] = {gradient, weight};
        int64_t n = rows_in(r, round);
        if (round > 0) begin_round(r, x, w, round);
        travel(r, there, round > 0 ? 1 : 2, TO_EXPERTS, round);
        if (n || round == 0) mlps_backward(r, rows_here(r, x, n), w, &sums);
        sums.gate.is_fresh = sums.up.is_fresh = sums.down.is_fresh = 0;
        travel(r, back, 2, FROM_EXPERTS, round);
    }
    order_weights(r, x->dweight, x->weight_rows, x->place);
}

/* --- the half of a block ------------------------------------------------------------------------------------------ */

static RouterWeights weight_kind(const BlockRun *r) { return r->shape.norm_top_k ? WEIGHTS_NORMED : WEIGHTS_PLAIN; }

void experts_forward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w, ExpertPass pass) {
    CHECK(!r->tensor, "experts among tensor ranks");
    if (pass != EXPERTS_LIGHT) {
        linear_forward(r->s, x->logits, norm, w->router, tensor_none(), TRANSPOSED);
        router_forward(r->s, x->probability, x->expert, x->weight, x->logits,
                       r->shape.balance == BALANCE_BIAS ? w->bias : tensor_none(), weight_kind(r));
        if (!tensor_is_none(r->expert_counts)) router_count(r->s, x->counts, r->expert_counts, x->expert);
        experts_sort(r->s, x->order, x->place, x->first, x->expert);
        rows_dispatch(r->s, x->rows, norm, x->order);
    }
    if (r->experts) {
        rounds_forward(r, x, w, pass);
        return;
    }
    if (pass != EXPERTS_LIGHT) gate_up(r, all_rows(x), w);
    swiglu(r, all_rows(x));
}

void experts_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w) {
    if (r->experts) end_round(r, x, w, 0);
    else down(r, all_rows(x), w);
    rows_combine(r->s, r->update, x->out, x->place);
}

void experts_backward(const BlockRun *r, const ExpertActs *x, Tensor norm, const ExpertParams *w,
                      const ExpertParams *d) {
    Tensor none = tensor_none();
    int    has_loss = r->shape.balance == BALANCE_SWITCH;
    rows_dispatch(r->s, x->out, r->dresidual, x->order);
    rows_dispatch(r->s, x->rows, norm, x->order);
    if (r->experts) rounds_backward(r, x, w, d);
    else mlps_backward(r, all_rows(x), w, d);
    rows_combine(r->s, r->dbranch, x->out, x->place);
    if (has_loss) router_count(r->s, x->counts, none, x->expert);
    router_backward(r->s, x->logits, x->dweight, x->probability, x->expert, x->weight, weight_kind(r),
                    has_loss ? x->counts : none, has_loss ? r->balance : none);
    linear_backward(r->s, x->dnorm, d->router, tensor_none(), x->logits, norm, w->router, TRANSPOSED);
    residual_forward(r->s, r->dbranch, r->dbranch, x->dnorm);
}
