/* attention_backward.c - CPU side of attention_backward in layers.h.
 *
 * With p = exp(q.k - lse) recomputed tile by tile, delta_i = dy_i.y_i and ds_ij = p_ij (dy_i.v_j - delta_i):
 *     dv_j = sum_i p_ij dy_i      dk_j = sum_i ds_ij q_i      dq_i = sum_j ds_ij k_j        (q carries the scale)
 * If there are enough heads to occupy the threads, a work item is a head of keys with the query heads of its group, one
 * after another: five products a tile. Otherwise it is a tile of keys (dk, dv), then a tile of queries (dq): seven
 * products, but as many items as there are tiles. No two threads add to one place either way, and both ways add in the
 * same order.
 */
#include "layers/act_simd.h"
#include "layers/transpose_simd.h"
#include "layers/tile_simd.h"
#include "layers/attention_pack.h"
#include "layers/contracts.h"

typedef struct {
    Heads       heads;
    void       *dqkv;   /* borrowed, as qkv     */
    void       *dkeys;  /* borrowed; gradients of the context ranks' keys; NULL: they are in dqkv */
    const void *y;      /* borrowed, [N,C] act  */
    const float *lse;   /* borrowed, [B*H,T]    */
    const float *delta; /* borrowed, [H,N]; NULL: computed from dy and y */
} Backward;

/* A thread's memory. q to delta cover the sequence of one head, in tiles of TILE positions. */
typedef struct {
    float *q, *dy, *dq;         /* [tiles][TILE,wide]                     */
    float *lse, *delta;         /* [tiles][TILE]                          */
    float *k;                   /* [TILE,wide]                            */
    float *dk, *dv;             /* [backward_sums][TILE,wide]             */
    float *k_turned, *v_turned; /* [D,TILE]                               */
    float *p, *ds;              /* [TILE,TILE] queries by keys            */
} BackwardScratch;

/* The kinds of work items. */
typedef enum { BY_HEAD, BY_KEYS, BY_QUERIES } BackwardItem;

/* Returns the number of tiles of dk and dv that a thread keeps: all if several heads of a group add to them. */
static inline int64_t backward_sums(const Heads *h) { return h->group > 1 ? h->key_tiles : 1; }

static int64_t backward_carve(BackwardScratch *w, float *base, const Heads *h) {
    int64_t used = 0;
    int64_t whole = h->tiles * TILE * h->wide, tile = TILE * h->wide;
    w->q = attention_carve(base, &used, whole);
    w->dy = attention_carve(base, &used, whole);
    w->dq = attention_carve(base, &used, whole);
    w->lse = attention_carve(base, &used, h->tiles * TILE);
    w->delta = attention_carve(base, &used, h->tiles * TILE);
    w->k = attention_carve(base, &used, tile);
    w->dk = attention_carve(base, &used, backward_sums(h) * tile);
    w->dv = attention_carve(base, &used, backward_sums(h) * tile);
    w->k_turned = attention_carve(base, &used, TILE * h->D);
    w->v_turned = attention_carve(base, &used, TILE * h->D);
    w->p = attention_carve(base, &used, TILE * TILE);
    w->ds = attention_carve(base, &used, TILE * TILE);
    return used;
}

#define SIMD_FILE "layers/attention_backward_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, backward_share, (const Backward *job, BackwardScratch w, Share share, BackwardItem item), (job, w, share, item))
SIMD_DISPATCH(void, delta_row,
              (DType type, float *delta, int64_t step, const void *dy, const void *y, int64_t row, int64_t heads, int64_t D),
              (type, delta, step, dy, y, row, heads, D))

static void backward_items(const Backward *job, float *memory, int64_t floats, BackwardItem item) {
    const Heads *h = &job->heads;
    int64_t      heads = h->B * h->H, key_heads = heads / h->group;
    int64_t      items = item == BY_HEAD ? key_heads : item == BY_KEYS ? key_heads * h->key_tiles : heads * h->tiles;
    #pragma omp parallel
    {
        BackwardScratch w;
        backward_carve(&w, memory + (int64_t)omp_get_thread_num() * floats, h);
        backward_share(job, w, attention_share(items, omp_get_thread_num(), omp_get_num_threads()), item);
    }
}

static void backward(Stream *s, Backward job, int is_dry) {
    BackwardScratch size;
    int64_t         threads = omp_get_max_threads(), floats = backward_carve(&size, NULL, &job.heads),
            heads = job.heads.B * job.heads.H / job.heads.group;
    size_t          mark = arena_mark(&s->scratch);
    float          *memory = (float *)arena_take(&s->scratch, (size_t)(threads * floats) * sizeof(float));
    int64_t         rounds = (heads + threads - 1) / threads;
    if (is_dry) {
        /* nothing runs */
    } else if (8 * heads >= 5 * rounds * threads) { /* threads idle for less time than the two extra products cost */
        backward_items(&job, memory, floats, BY_HEAD);
    } else {
        backward_items(&job, memory, floats, BY_KEYS);
        backward_items(&job, memory, floats, BY_QUERIES);
    }
    arena_release(&s->scratch, mark);
}

int attention_backward(Stream *s, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta, Tensor qkv, Tensor starts,
                       HeadShape h) {
    EXPECT_ACT(qkv);
    int      is_dry = attention_backward_contract(s, dqkv, dbias, dy, y, lse, delta, qkv, starts, h);
    Backward job = {.heads = attention_heads(lse, qkv, tensor_none(), starts, WHOLE_SEQUENCE, h), .dqkv = dqkv.data,
                    .y = y.data, .lse = (const float *)lse.data, .delta = (const float *)delta.data};
    job.heads.dy = dy.data;
    backward(s, job, is_dry);
    return 0;
}

void attention_context_backward(Stream *s, Tensor dqkv, Tensor dkeys, Tensor dy, Tensor y, Tensor lse, Tensor delta, Tensor qkv,
                                Tensor keys, Tensor starts, ContextPart context, HeadShape h) {
    EXPECT_ACT(qkv);
    int      is_dry = attention_context_backward_contract(s, dqkv, dkeys, dy, y, lse, delta, qkv, keys, starts, context, h);
    Backward job = {.heads = attention_heads(lse, qkv, keys, starts, context, h), .dqkv = dqkv.data, .dkeys = dkeys.data, .y = y.data,
                    .lse = (const float *)lse.data, .delta = (const float *)delta.data};
    job.heads.dy = dy.data;
    backward(s, job, is_dry);
}

void attention_delta(Stream *s, Tensor delta, Tensor dy, Tensor y) {
    EXPECT_ACT(y);
    if (attention_delta_contract(s, delta, dy, y)) return;
    int64_t H = delta.dim[0], N = y.dim[0];
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < N; i++) delta_row(y.type, (float *)delta.data + i, N, dy.data, y.data, i, H, y.dim[1] / H);
}
