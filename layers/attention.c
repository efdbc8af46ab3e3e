/* attention.c - CPU side of attention_forward in layers.h; backward is attention_backward.c.
 *
 * A work item is a tile of queries of one head. It walks the tiles of keys up to its own with a running maximum and sum
 * per query, so that only one tile of scores exists per thread. Dao, FlashAttention-2, arXiv:2307.08691. With context
 * ranks the keys are those of all ranks, and a tile of queries has another place among them (attention_place).
 */
#include "layers/act_simd.h"
#include "layers/transpose_simd.h"
#include "layers/tile_simd.h"
#include "layers/attention_pack.h"
#include "layers/contracts.h"

typedef struct {
    Heads  heads;
    void  *y;   /* borrowed, [N,C] act   */
    float *lse; /* borrowed, [B*H,T]     */
} Forward;

/* The running maximum before a query has met a key of its document. It is below every score, and finite, so that
 * exp(-infinity - NO_SCORE) is 0. */
static const float NO_SCORE = -1e38f;

/* A thread's memory. k and v hold the whole sequence of one head of keys. */
typedef struct {
    float *k;        /* [key_tiles][D,TILE] transposed keys */
    float *v;        /* [key_tiles][TILE,wide] values */
    float *q, *y;    /* [TILE,wide] scaled queries; sums of p v                      */
    float *scores;   /* [TILE,TILE]                                                  */
    float *sum;      /* [TILE,16]  sums of p, lane by lane                           */
    float *top;      /* [TILE]     running maximum                                   */
    float *shrink;   /* [TILE]     factor of earlier sums when the maximum last rose */
} ForwardScratch;

static int64_t forward_carve(ForwardScratch *w, float *base, const Heads *h) {
    int64_t used = 0;
    w->k = attention_carve(base, &used, h->key_tiles * TILE * h->D);
    w->v = attention_carve(base, &used, h->key_tiles * TILE * h->wide);
    w->q = attention_carve(base, &used, TILE * h->wide);
    w->y = attention_carve(base, &used, TILE * h->wide);
    w->scores = attention_carve(base, &used, TILE * TILE);
    w->sum = attention_carve(base, &used, TILE * LANES);
    w->top = attention_carve(base, &used, TILE);
    w->shrink = attention_carve(base, &used, TILE);
    return used;
}

#define SIMD_FILE "layers/attention_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, forward_share, (const Forward *job, ForwardScratch w, Share share), (job, w, share))

static void forward_tiles(const Forward *job, float *memory, int64_t floats) {
    const Heads *h = &job->heads;
    #pragma omp parallel
    {
        ForwardScratch w;
        forward_carve(&w, memory + (int64_t)omp_get_thread_num() * floats, h);
        forward_share(job, w, attention_share(h->B * h->H * h->tiles, omp_get_thread_num(), omp_get_num_threads()));
    }
}

static void forward(Stream *s, Heads heads, Tensor y, Tensor lse, int is_dry) {
    Forward        job = {.heads = heads, .y = y.data, .lse = (float *)lse.data};
    ForwardScratch size;
    int64_t        floats = forward_carve(&size, NULL, &job.heads);
    size_t         mark = arena_mark(&s->scratch);
    float         *memory = (float *)arena_take(&s->scratch, (size_t)((int64_t)omp_get_max_threads() * floats) * sizeof(float));
    if (!is_dry) forward_tiles(&job, memory, floats);
    arena_release(&s->scratch, mark);
}

void attention_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor starts, HeadShape h) {
    EXPECT_ACT(qkv);
    int is_dry = attention_forward_contract(s, y, lse, qkv, starts, h);
    forward(s, attention_heads(lse, qkv, tensor_none(), starts, WHOLE_SEQUENCE, h), y, lse, is_dry);
}

void attention_context_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Tensor starts, ContextPart context,
                               HeadShape h) {
    EXPECT_ACT(qkv);
    int is_dry = attention_context_forward_contract(s, y, lse, qkv, keys, starts, context, h);
    forward(s, attention_heads(lse, qkv, keys, starts, context, h), y, lse, is_dry);
}

void copy_columns(Stream *s, Tensor to, int64_t to_first, Tensor from, int64_t from_first, int64_t columns) {
    size_t elem = dtype_bytes(from.type), bytes = (size_t)columns * elem;
    if (copy_columns_contract(s, to, to_first, from, from_first, columns)) return;
    #pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < from.dim[0]; n++)
        memcpy((char *)to.data + (size_t)(n * to.dim[1] + to_first) * elem,
               (const char *)from.data + (size_t)(n * from.dim[1] + from_first) * elem, bytes);
}
