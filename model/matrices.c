/* matrices.c - see matrices.h. */
#include "model/matrices.h"

#include <stdlib.h>

#include "core/error.h"
#include "layers/layers.h"

/* --- owners ------------------------------------------------------------------------------------------------------- */

/* A matrix and the cost of its update. The cost is stored here because the compare function of qsort has no other
 * access to it. */
typedef struct { int param; double cost; } Priced;
static int dearest_first(const void *a, const void *b) {
    const Priced *x = (const Priced *)a, *y = (const Priced *)b;
    return x->cost != y->cost ? (x->cost < y->cost ? 1 : -1) : x->param - y->param;
}

/* Returns how many elements of memory a slice of a matrix takes. Slices begin at multiples of LAYOUT_ALIGN elements,
 * for NCCL. */
static int64_t room_of(int64_t elems) { return (elems + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN; }
static int     is_cut(const Matrices *m, const Param *p) { return m->tensor > 1 && p->cut != CUT_NONE; }
/* Returns whether the slices of all tensor ranks, one after another in memory, are the whole matrix. */
static int     parts_are_whole(const Matrices *m, const Param *p) {
    return !is_cut(m, p) || (p->cut == CUT_ROWS && p->local_elems == room_of(p->local_elems));
}

/* Returns a Matrices without matrices: only the ranks among which they will be divided, and the index of this rank. */
static Matrices matrices_among(const Shards *z, MatricesOf of) {
    int      replicas = z->spec.replicas > 1 ? z->spec.replicas : 1, ranks = z->layout.ranks;
    int      experts = z->layout.expert_ranks;
    Matrices m = {.shards = z, .comm = z->spec.matrices, .tensor = z->layout.tensor_ranks};
    if (of == MATRICES_OF_EXPERTS)
        return (Matrices){.shards = z, .comm = z->spec.expert_state, .copies = 1, .pieces = ranks / experts,
                          .tensor = 1, .rank = z->spec.rank / experts};
    m.pieces = z->stage ? ranks : 1;
    m.copies = z->stage ? replicas : replicas * ranks;
    m.rank = (z->spec.replica * ranks + z->spec.rank) * m.tensor + z->layout.tensor_rank;
    return m;
}

Matrices matrices_create(const Shards *z, MatricesOf of) {
    Matrices m = matrices_among(z, of);
    Priced  *priced = xmalloc(sizeof *priced * (size_t)z->layout.params, "a table of matrices");
    int      ranks = m.copies * m.pieces * m.tensor;
    CHECK(!m.comm || (ranks == comm_size(m.comm) && m.rank == comm_rank(m.comm)),
          "rank %d of %d shares matrices among %d", m.rank, ranks, m.comm ? comm_size(m.comm) : 1);
    for (int i = 0; i < z->layout.params; i++) {
        const Param *p = &z->layout.param[i];
        if (p->group != GROUP_MATRIX || z->layout.bucket[p->bucket].hold != BUCKET_OWN || p->local_elems == 0) continue;
        if (layout_is_of_experts(&z->layout, p->bucket) != (of == MATRICES_OF_EXPERTS)) continue;
        /* FLOPs of a Newton-Schulz iteration, up to a factor that is the same for all matrices */
        double parts = layout_parts(p), R = (double)p->dim[0], M = (double)p->dim[1] / parts;
        double k = R < M ? R : M, l = R < M ? M : R;
        priced[m.count++] = (Priced){i, parts * (4.0 * k * k * l + 2.0 * k * k * k)};
        if (room_of(p->local_elems) > m.part_elems) m.part_elems = room_of(p->local_elems);
        if (!parts_are_whole(&m, p) && p->elems > m.whole_elems) m.whole_elems = p->elems;
    }
    m.matrix = xmalloc(sizeof *m.matrix * (size_t)(m.count + 1), "a table of matrices");
    /* memory for the messages of a round: this rank's own matrix with all ranks, and its slice of each other rank's
     * matrix */
    m.message = xmalloc(sizeof *m.message * (size_t)(2 * ranks * MATRIX_FIELDS), "a table of matrices");
    qsort(priced, (size_t)m.count, sizeof *priced, dearest_first);
    /* assigns each matrix, from the most expensive on, to the rank with the least work so far, which then owns it */
    double *load = xcalloc((size_t)ranks, sizeof *load, "a table of ranks");
    int    *turns = xcalloc((size_t)ranks, sizeof *turns, "a table of ranks");
    for (int i = 0; i < m.count; i++) {
        int owner = 0;
        for (int r = 1; r < ranks; r++)
            if (load[r] < load[owner]) owner = r;
        load[owner] += priced[i].cost;
        m.matrix[i] = (WholeMatrix){priced[i].param, owner, turns[owner]++};
        if (turns[owner] > m.turns) m.turns = turns[owner];
    }
    free(load);
    free(turns);
    free(priced);
    return m;
}

void matrices_destroy(Matrices *m) {
    free(m->matrix);
    free(m->message);
    m->matrix = NULL, m->message = NULL;
}

/* --- a round ------------------------------------------------------------------------------------------------------ */

/* Finds the elements of this rank's slice of a matrix that are in ZeRO piece number `piece` of its bucket. Returns 0 if
 * there are none. */
static int span_of(const Matrices *m, int param, int piece, Span *out) {
    const Param  *p = &m->shards->layout.param[param];
    const Bucket *b = &m->shards->layout.bucket[p->bucket];
    int64_t       size = m->shards->stage ? b->piece_elems : b->elems, begin = b->memory + piece * size;
    int64_t       from = p->memory > begin ? p->memory : begin, end = p->memory + p->local_elems;
    if (end > begin + size) end = begin + size;
    *out = (Span){from, b->shard + (from - begin), from - p->memory, end - from, param, p->group};
    return from < end;
}

/* Buffers of a round, in which each rank updates at most one matrix. There is one for each field of its elements, such
 * as gradient and momentum. parts: the slices of the matrix, one after another; whole: the joined matrix. */
typedef struct { Tensor parts[MATRIX_FIELDS], whole[MATRIX_FIELDS]; } Desk;

typedef enum { TO_OWNER, FROM_OWNER } Way;

/* Adds the messages for one matrix between its owner and the rank `holder`, which has the elements `span` of slice
 * number `part`. If the owner is the holder, copies them instead. */
static void add_message(Matrices *m, Stream *s, const Desk *d, MatrixWork w, Way way, const WholeMatrix *x, int holder,
                        int part, Span span) {
    int     is_mine = x->owner == m->rank;
    int64_t at = part * room_of(m->shards->layout.param[span.param].local_elems) + span.first;
    if (!is_mine && holder != m->rank) return;
    for (int f = 0; f < w.fields; f++) {
        Tensor here = is_mine ? tensor_slice(d->parts[f], at, span.elems) : w.of(w.ctx, f, span);
        if (holder == x->owner) {
            Tensor own = w.of(w.ctx, f, span);
            if (way == TO_OWNER) cast_forward(s, here, own);
            else cast_forward(s, own, here);
        } else {
            ExchangeSide side = is_mine == (way == FROM_OWNER) ? EXCHANGE_SEND : EXCHANGE_RECEIVE;
            m->message[m->messages++] = (CommMessage){side, is_mine ? holder : x->owner, here};
        }
    }
}

/* Lists the messages that carry the pieces of one matrix to the rank that owns it, or back. Several ranks may hold
 * copies of a piece. Only those in the owner's copy of the state send, and all receive. If no tensor rank cuts the
 * matrix, all tensor ranks hold the same piece. Then only the one with the owner's tensor index sends. */
static void list_matrix(Matrices *m, Stream *s, const Desk *d, MatrixWork w, Way way, const WholeMatrix *x) {
    int  cut = is_cut(m, &m->shards->layout.param[x->param]), own_copy = x->owner / (m->pieces * m->tensor);
    Span span;
    for (int copy = 0; copy < m->copies; copy++) {
        if (way == TO_OWNER && copy != own_copy) continue;
        for (int piece = 0; piece < m->pieces; piece++) {
            if (!span_of(m, x->param, piece, &span)) continue;
            for (int i = 0; i < m->tensor; i++)
                if (way == FROM_OWNER || cut || i == x->owner % m->tensor)
                    add_message(m, s, d, w, way, x, (copy * m->pieces + piece) * m->tensor + i, cut ? i : 0, span);
        }
    }
}

/* Starts the messages of round `turn`, in one collective. Returns the number of this collective. */
static int64_t travel(Matrices *m, Stream *s, const Desk *d, MatrixWork w, Way way, int turn) {
    int64_t number = comm_next(m->comm);
    m->messages = 0;
    for (int i = 0; i < m->count; i++)
        if (m->matrix[i].turn == turn) list_matrix(m, s, d, w, way, &m->matrix[i]);
    comm_exchange_start(m->comm, m->message, m->messages);
    return number;
}

/* Copies the slices of a matrix into the whole matrix, or back. Slices by rows are adjacent in the whole matrix. Of
 * slices by columns, q, k and v are each cut on their own. */
static void join(const Matrices *m, Stream *s, const Param *p, Tensor whole, Tensor parts, Way way) {
    int64_t of = layout_parts(p), width = p->local[1] / of;
    for (int i = 0; i < m->tensor; i++) {
        Tensor part = tensor_slice(parts, i * room_of(p->local_elems), p->local_elems);
        if (p->cut == CUT_ROWS) {
            Tensor rows = tensor_slice(tensor_1d(whole.data, F32, p->elems), i * p->local_elems, p->local_elems);
            cast_forward(s, way == TO_OWNER ? rows : part, way == TO_OWNER ? part : rows);
            continue;
        }
        part = tensor_of(part.data, F32, 2, p->local[0], p->local[1], 1, 1);
        for (int64_t k = 0; k < of; k++) {
            if (way == TO_OWNER) copy_columns(s, whole, (k * m->tensor + i) * width, part, k * width, width);
            else copy_columns(s, part, k * width, whole, (k * m->tensor + i) * width, width);
        }
    }
}

static void compute(const Matrices *m, Stream *s, const Desk *d, MatrixWork w, int turn) {
    for (int i = 0; i < m->count; i++) {
        const Param *p = &m->shards->layout.param[m->matrix[i].param];
        Tensor       whole[MATRIX_FIELDS];
        if (m->matrix[i].turn != turn || m->matrix[i].owner != m->rank) continue;
        for (int f = 0; f < w.fields; f++) {
            Tensor room = parts_are_whole(m, p) ? d->parts[f] : d->whole[f];
            whole[f] = tensor_of(room.data, F32, 2, p->dim[0], p->dim[1], 1, 1);
            if (!parts_are_whole(m, p)) join(m, s, p, whole[f], d->parts[f], TO_OWNER);
        }
        w.work(w.ctx, s, m->matrix[i].param, whole);
        for (int f = 0; f < w.fields && !parts_are_whole(m, p); f++) join(m, s, p, whole[f], d->parts[f], FROM_OWNER);
    }
}

void matrices_each(Matrices *m, Stream *s, MatrixWork w) {
    if (!m->comm || comm_size(m->comm) == 1) { /* works in place, because this rank has all matrices whole */
        for (int i = 0; i < m->count; i++) {
            const Param *p = &m->shards->layout.param[m->matrix[i].param];
            Tensor       whole[MATRIX_FIELDS];
            Span         span;
            CHECK(span_of(m, m->matrix[i].param, 0, &span) && span.elems == p->elems, "%s is not whole", p->name);
            for (int f = 0; f < w.fields; f++)
                whole[f] = tensor_of(w.of(w.ctx, f, span).data, F32, 2, p->dim[0], p->dim[1], 1, 1);
            w.work(w.ctx, s, m->matrix[i].param, whole);
        }
        return;
    }
    Desk    desk[2];
    int64_t came[2] = {-1, -1}, left[2] = {-1, -1};
    size_t  mark = arena_mark(&s->scratch);
    for (int k = 0; k < 2; k++)
        for (int f = 0; f < w.fields; f++) {
            desk[k].parts[f] = arena_tensor(&s->scratch, F32, 1, m->part_elems * m->tensor, 1, 1);
            desk[k].whole[f] =
                m->whole_elems ? arena_tensor(&s->scratch, F32, 1, m->whole_elems, 1, 1) : desk[k].parts[f];
        }
    for (int turn = -1; turn < m->turns; turn++) {
        int now = turn & 1, next = !now;
        if (turn + 1 < m->turns) {
            /* waits until the result of an earlier round is sent, before its buffers are used again */
            if (left[next] >= 0) comm_wait(m->comm, left[next]);
            came[next] = travel(m, s, &desk[next], w, TO_OWNER, turn + 1);
        }
        if (turn < 0) continue;
        comm_wait(m->comm, came[now]);
        compute(m, s, &desk[now], w, turn);
        left[now] = travel(m, s, &desk[now], w, FROM_OWNER, turn);
    }
    comm_finish(m->comm);
    arena_release(&s->scratch, mark);
}
