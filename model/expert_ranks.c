/* expert_ranks.c - see expert_ranks.h. */
#include "model/expert_ranks.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"
#include "layers/layers.h"

enum { MOST_TENSORS = 3 }; /* most tensors of one exchange */

int64_t expert_room(int64_t even, double capacity, int64_t ranks) {
    double room = ceil(capacity * (double)even);
    return room < (double)(ranks * even) ? (int64_t)room : ranks * even;
}

ExpertRanks *expert_ranks_create(Comm *comm, int64_t experts, int64_t rows, double capacity) {
    ExpertRanks *p = xcalloc(1, sizeof *p, "the ranks that divide the experts");
    *p = (ExpertRanks){.comm = comm, .experts = experts, .room = expert_room(rows, capacity, comm_size(comm))};
    /* Messages of one tensor: this rank's rows for each expert, and the rows of each rank for this rank's experts. */
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

/* --- numbers of rows of each rank for each expert ----------------------------------------------------------------- */

static int64_t experts_each(const ExpertRanks *p) { return p->experts / comm_size(p->comm); }

/* Gives all ranks this rank's counts. For a plan, whose own counts are even shares, and for a rank that computes
 * without the others: neither can know the counts. */
static void fill_rows(const ExpertRanks *p, int64_t *rows, const int64_t *own) {
    for (int i = 0; i < comm_size(p->comm); i++)
        for (int64_t e = 0; e < p->experts; e++) rows[i * p->experts + e] = own[e];
}

/* Counts the rows of each rank for each expert. The host waits for this rank's counts, then for those of the others. */
static void count_rows(const BlockRun *r, const ExpertActs *x) {
    ExpertRanks *p = r->experts;
    int64_t      E = p->experts, ranks = comm_size(p->comm), R = x->order.dim[0];
    int64_t     *own = r->expert_rows + comm_rank(p->comm) * E;
    memset(r->expert_rows, 0, sizeof *r->expert_rows * (size_t)(ranks * E));
    if (!r->s->ledger) device_to_host(r->s, p->first, x->first);
    for (int64_t e = 0; e < E; e++) own[e] = r->s->ledger ? R * (e + 1) / E - R * e / E : p->first[e + 1] - p->first[e];
    if (!p->is_offline) comm_all_reduce_i64(p->comm, r->expert_rows, (int)(ranks * E), COMM_SUM);
    if (p->is_offline || r->s->ledger) fill_rows(p, r->expert_rows, own);
}

/* Returns the rows that a rank's experts receive in all rounds. */
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

/* Returns the rows that this rank computes in a round. */
static int64_t rows_in(const BlockRun *r, int round) {
    int64_t left = arriving(r, comm_rank(r->experts->comm)) - round * r->experts->room;
    return left < 0 ? 0 : left < r->experts->room ? left : r->experts->room;
}

/* --- one exchange ------------------------------------------------------------------------------------------------- */

/* The two sides of an exchange of one tensor. of_tokens: rows of this rank's tokens, [R,...], sorted by expert.
 * of_experts: rows of this rank's experts, [X,...]. */
typedef enum { TO_EXPERTS, FROM_EXPERTS } Way;
typedef struct { Tensor of_tokens, of_experts; } Ends;

static Tensor rows_of(Tensor t, int64_t first, int64_t rows) {
    return tensor_slice(t, first * (t.dims > 1 ? t.dim[1] : 1), rows * (t.dims > 1 ? t.dim[1] : 1));
}

/* Adds the message of `rows` rows between rank `from`, which has the tokens, and rank `to`, which has their expert. One
 * of the two is this rank. */
static void add_message(const BlockRun *r, Ends t, Way way, int from, int to, int64_t token_row, int64_t expert_row, int64_t rows) {
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

/* Adds the messages of a round, in the same order on all ranks: by expert, then by rank of tokens. */
static void list_messages(const BlockRun *r, Ends t, Way way, int round) {
    const ExpertRanks *p = r->experts;
    int64_t            each = experts_each(p), begin = round * p->room, end = begin + p->room, token_row = 0, at = 0;
    int                ranks = comm_size(p->comm), rank = comm_rank(p->comm);
    for (int64_t e = 0; e < p->experts; e++) {
        int to = (int)(e / each);
        if (e % each == 0) at = 0; /* place among the rows that this expert's rank receives */
        for (int from = 0; from < ranks; from++) {
            int64_t rows = r->expert_rows[from * p->experts + e], first = at > begin ? at : begin, last = at + rows < end ? at + rows : end;
            if (first < last && (from == rank || to == rank))
                add_message(r, t, way, from, to, token_row + first - at, first - begin, last - first);
            at += rows;
        }
        token_row += r->expert_rows[rank * p->experts + e];
    }
}

/* Exchanges the rows of a round. Ranks wait here for each other. */
static void travel(const BlockRun *r, const Ends *t, int tensors, Way way, int round) {
    ExpertRanks *p = r->experts;
    p->messages = 0;
    for (int i = 0; i < tensors; i++) list_messages(r, t[i], way, round);
    comm_exchange_start(p->comm, p->message, p->messages);
    comm_finish(p->comm);
}

/* --- the experts' work on a round's rows -------------------------------------------------------------------------- */

/* Writes the first row of each of this rank's experts to first_here, for one round. */
static Tensor take_first(const BlockRun *r, const ExpertActs *x, int round) {
    ExpertRanks *p = r->experts;
    int64_t      each = experts_each(p), from = comm_rank(p->comm) * each, at = -round * p->room, n = rows_in(r, round);
    Tensor       first = tensor_slice(x->first_here, 0, each + 1);
    for (int64_t e = 0; e <= each; e++) {
        p->first[e] = (int32_t)(at < 0 ? 0 : at < n ? at : n);
        for (int i = 0; e < each && i < comm_size(p->comm); i++) at += r->expert_rows[i * p->experts + from + e];
    }
    if (!r->s->ledger) device_from_host(r->s, first, p->first);
    return first;
}
static Tensor first_of(const BlockRun *r, const ExpertActs *x) { return tensor_slice(x->first_here, 0, experts_each(r->experts) + 1); }

static Tensor weights_of(Tensor t, int64_t n) { return tensor_2d(t.data, F32, n, 1); }

static void gate_up(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, int64_t n) {
    expert_linear_forward(r->s, tensor_rows(x->gate_up, 0, n), tensor_rows(x->rows_here, 0, n), expert_gate_up(w), expert_stride(r),
                          first_of(r, x));
}
static void swiglu(const BlockRun *r, const ExpertActs *x, int64_t n) {
    expert_swiglu_forward(r->s, tensor_rows(x->swiglu, 0, n), tensor_rows(x->gate_up, 0, n), weights_of(x->weight_here, n), tensor_none());
}
static void down(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, int64_t n) {
    expert_linear_forward(r->s, tensor_rows(x->out_here, 0, n), tensor_rows(x->swiglu, 0, n), w->down, expert_stride(r), first_of(r, x));
}

/* Turns out_here from the gradient of the output into the gradient of rows_here. */
static void mlps_backward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, const ExpertParams *d, int64_t n) {
    Tensor  dswiglu = tensor_rows(x->dswiglu, 0, n), gate_up = tensor_rows(x->gate_up, 0, n), out = tensor_rows(x->out_here, 0, n);
    int64_t stride = expert_stride(r);
    expert_linear_backward(r->s, dswiglu, d->down, out, tensor_rows(x->swiglu, 0, n), w->down, stride, first_of(r, x));
    if (n) expert_swiglu_backward(r->s, gate_up, weights_of(x->dweight_here, n), dswiglu, gate_up, weights_of(x->weight_here, n), tensor_none());
    expert_linear_backward(r->s, out, expert_gate_up(d), gate_up, tensor_rows(x->rows_here, 0, n), expert_gate_up(w), stride,
                           first_of(r, x));
}

/* Runs the products with the most rows in a dry run, because they use the most scratch memory. The dry run itself has
 * even shares. */
static void measure_largest(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, const ExpertParams *d) {
    int64_t times = r->s->ledger->times;
    r->s->ledger->times = -1;
    if (d) mlps_backward(r, x, w, d, r->experts->room);
    else gate_up(r, x, w, r->experts->room), down(r, x, w, r->experts->room);
    r->s->ledger->times = times;
}

/* Sends the rows and weights of a round to their experts, and computes up to swiglu. */
static void begin_round(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, int round) {
    Ends    ends[] = {{x->rows, x->rows_here}, {x->weight_rows, x->weight_here}};
    int64_t n = rows_in(r, round);
    take_first(r, x, round);
    travel(r, ends, 2, TO_EXPERTS, round);
    if (n == 0) return;
    gate_up(r, x, w, n);
    swiglu(r, x, n);
}

static void end_round(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, int round) {
    Ends    ends = {x->out, x->out_here};
    int64_t n = rows_in(r, round);
    if (n) down(r, x, w, n);
    travel(r, &ends, 1, FROM_EXPERTS, round);
}

/* Copies weights from the order of assignments to the order of rows, or back. */
static void order_weights(const BlockRun *r, Tensor to, Tensor from, Tensor index) {
    int64_t R = index.dim[0];
    rows_dispatch(r->s, weights_of(to, R), weights_of(from, R), index);
}

/* The rounds run from last to first, so that the tensors of round 0 remain for backward. */
void expert_ranks_forward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, ExpertPass pass) {
    if (pass == EXPERTS_LIGHT) {
        if (rows_in(r, 0)) swiglu(r, x, rows_in(r, 0));
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

void expert_ranks_output(const BlockRun *r, const ExpertActs *x, const ExpertParams *w) { end_round(r, x, w, 0); }

/* The gradients of a round's rows overwrite the rows of x->out that this round has already sent. weight_rows holds
 * weights for the next rounds and gradients for the previous ones. */
void expert_ranks_backward(const BlockRun *r, const ExpertActs *x, const ExpertParams *w, const ExpertParams *d) {
    ExpertRanks *p = r->experts;
    int          rounds = rounds_of(r);
    Ends         gradient = {x->out, x->out_here}, rows = {x->rows, x->rows_here}, weight = {x->weight_rows, x->dweight_here};
    ExpertParams sums = *d; /* the first round sets fresh gradients, even without rows; the others add */
    if (rounds > p->rounds) p->rounds = rounds;
    if (r->s->ledger) measure_largest(r, x, w, d);
    order_weights(r, x->weight_rows, x->weight, x->order);
    for (int round = 0; round < rounds; round++) {
        Ends    there[] = {gradient, rows}, back[] = {gradient, weight};
        int64_t n = rows_in(r, round);
        if (round > 0) begin_round(r, x, w, round);
        travel(r, there, round > 0 ? 1 : 2, TO_EXPERTS, round);
        if (n || round == 0) mlps_backward(r, x, w, &sums, n);
        sums.gate.is_fresh = sums.up.is_fresh = sums.down.is_fresh = 0;
        travel(r, back, 2, FROM_EXPERTS, round);
    }
    order_weights(r, x->dweight, x->weight_rows, x->place);
}
