/* attention.c - CPU side of the attention ops in layers.h.
 *
 * forward    A work item is a tile of queries of one head. It walks the tiles of keys up to its own with a running
 *            maximum and sum per query, so that only one tile of scores exists per thread. Dao, FlashAttention-2,
 *            arXiv:2307.08691. With context ranks the keys are those of all ranks, and a tile of queries has another
 *            place among them (attention_place).
 * backward   With p = exp(q.k - lse) recomputed tile by tile, delta_i = dy_i.y_i and ds_ij = p_ij (dy_i.v_j - delta_i):
 *                dv_j = sum_i p_ij dy_i    dk_j = sum_i ds_ij q_i    dq_i = sum_j ds_ij k_j       (q carries the scale)
 *            If there are enough heads to occupy the threads, a work item is a head of keys with the query heads of its
 *            group, one after another: five products a tile. Otherwise it is a tile of keys (dk, dv), then a tile of
 *            queries (dq): seven products, but as many items as there are tiles. No two threads add to one place either
 *            way, and both ways add in the same order.
 * last       A work item is a query of one head. It walks the keys up to its own, KEYS at a time, with a running
 *            maximum and sum. An item's sums do not depend on the other items, nor on the threads.
 *
 * Forward and backward copy a head's q, k, v and dy to f32 tiles of TILE positions, with rows padded with zeros to 16
 * floats. So the products see aligned, whole vectors for any head size and type. Copying costs T*D where the products
 * cost T*T*D.
 */
#include <math.h>
#include <omp.h>

#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/transpose_simd.h"

/* --- products of tiles: small matrix products on packed f32 tiles, the inner loops ----------------------------------
 *
 * A block of c is held in registers while the depth runs: TILE_ROWS rows by up to TILE_WIDTH registers, chosen so that
 * accumulators, a row of b and one broadcast value of a fit the register file (32 in AVX-512, else 16). Triangular
 * tiles skip known zeros.
 */
enum { TILE = 64 }; /* number of queries, and of keys, in a tile; their scores take 16 KiB */

typedef enum { TILE_SET, TILE_ADD } TileWrite;
typedef enum {
    TILE_FULL,
    TILE_LOWER_RESULT, /* in c = a b only the columns <= row of c are needed */
    TILE_LOWER_FACTOR, /* in c = a b the element a(i,p) is zero for p > i */
    TILE_UPPER_FACTOR  /* in c = a b the element a(i,p) is zero for p < i */
} TileForm;

/* A product c = or += a b. a(i,p) is at a[i * a_row + p * a_step], so that either order of storage fits. b has `depth`
 * rows of b_step floats, c has `rows` rows of c_step floats. */
typedef struct {
    float       *c;
    const float *a, *b;
    int64_t      c_step, a_row, a_step, b_step;
    int64_t      rows, columns, depth; /* rows and columns are multiples of 16 */
    TileWrite    write;
    TileForm     form;
} TileProduct;

static inline int64_t tile_round(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

#define TILE_ROWS 4
#define TILE_WIDTH (SIMD_BYTES == 64 ? 4 : 3)
#ifdef __clang__ /* clang has its own pragma, because it unrolls for GCC's too late to keep acc in registers: 26 instead
                  * of 86 GFLOP/s */
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Computes a block of c: `rows` rows by `width` vector registers, from (row, column) on. rows and width are
 * compile-time constants, so acc stays in registers. */
SIMD_INLINE void tile_block(const TileProduct *t, const int rows, const int width, int64_t row, int64_t column,
                            int64_t first, int64_t last) {
    f32reg acc[2 * TILE_ROWS][TILE_WIDTH], b[TILE_WIDTH];
    float *c = t->c + row * t->c_step + column;
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int k = 0; k < width; k++) {
            if (t->write == TILE_ADD) memcpy(&acc[i][k], c + i * t->c_step + k * REGISTER_FLOATS, SIMD_BYTES);
            else                      acc[i][k] = (f32reg){0};
        }
    }
    const float *from_a = t->a + row * t->a_row + first * t->a_step, *from_b = t->b + first * t->b_step + column;
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
    for (int64_t p = first; p < last; p++, from_a += a_step, from_b += b_step) {
        UNROLL for (int k = 0; k < width; k++) memcpy(&b[k], from_b + k * REGISTER_FLOATS, SIMD_BYTES);
        UNROLL for (int i = 0; i < rows; i++) {
            /* Copies an element of a into every lane. A compiler drops x - 0, but must keep 0 + x, because x may be
             * -0. */
            f32reg a = from_a[i * a_row] - (f32reg){0};
            UNROLL for (int k = 0; k < width; k++) acc[i][k] += a * b[k];
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int k = 0; k < width; k++) memcpy(c + i * t->c_step + k * REGISTER_FLOATS, &acc[i][k], SIMD_BYTES);
    }
}

/* Computes all columns of `rows` rows of c from `row` on. `rows` is a constant. */
SIMD_INLINE void tile_rows(const TileProduct *t, const int rows, int64_t row) {
    int64_t columns = t->form == TILE_LOWER_RESULT && tile_round(row + 1) < t->columns ? tile_round(row + 1)
                                                                                       : t->columns;
    int64_t first = t->form == TILE_UPPER_FACTOR ? row : 0;
    int64_t last = t->form == TILE_LOWER_FACTOR && row + rows < t->depth ? row + rows : t->depth;
    int64_t column = 0, widths = columns / REGISTER_FLOATS;
    if (rows == TILE_ROWS)
        for (; widths >= TILE_WIDTH; widths -= TILE_WIDTH, column += TILE_WIDTH * REGISTER_FLOATS)
            tile_block(t, rows, TILE_WIDTH, row, column, first, last);
    if (rows == TILE_ROWS && widths == 3) tile_block(t, rows, 3, row, column, first, last);
    if (widths == 2) tile_block(t, rows, 2, row, column, first, last);
    if (widths == 1) tile_block(t, rows, 1, row, column, first, last);
}

/* Computes c = or += a b. For a narrow c it computes twice as many rows at once, if there are enough registers. */
static void tile_product(TileProduct t) {
    if (SIMD_BYTES == 64 && t.columns <= 2 * REGISTER_FLOATS)
        for (int64_t row = 0; row < t.rows; row += 2 * TILE_ROWS) tile_rows(&t, 2 * TILE_ROWS, row);
    else
        for (int64_t row = 0; row < t.rows; row += TILE_ROWS) tile_rows(&t, TILE_ROWS, row);
}

/* --- the shape, and packing of a head's rows ---------------------------------------------------------------------- */

typedef struct {
    DType   type;
    int64_t B, T, C, H, D; /* B sequences of T positions, H query heads of D channels; C = H*D: columns of y */
    int64_t group;        /* number of query heads that share a head of keys */
    int64_t columns;      /* number of columns of qkv */
    int64_t wide;         /* floats of a packed row: D rounded up to a multiple of 16 */
    int64_t tiles;        /* number of tiles of TILE positions in a sequence, on this rank */
    int64_t key_tiles;    /* number of tiles of a sequence on all context ranks */
    float   scale;        /* 1/sqrt(D), folded into q                   */
    const void *qkv, *dy; /* qkv [N,columns]; dy [N,C], the gradient of y, in backward only; borrowed */
    const void *keys;     /* keys and values of all context ranks; borrowed; NULL: they are in qkv */
    const int32_t *starts; /* borrowed, [B,T] position of the first key that a query sees; NULL: 0 for all */
    ContextPart context;
} Heads;

/* Returns the i-th of n tiles in the order 0, n-1, 1, n-2, ... Tile i has work in proportion to i + 1, or to n - i. So
 * sections of this order that have the same length have the same work. */
static inline int64_t attention_tile(int64_t i, int64_t tiles) { return i % 2 == 0 ? i / 2 : tiles - 1 - i / 2; }

static inline int64_t attention_rows(int64_t tile, int64_t T) {
    return T - tile * TILE < TILE ? T - tile * TILE : TILE;
}

enum { ATTENTION_AHEAD = 8 }; /* number of rows by which a prefetch precedes the use of its row */

/* The two halves of a row of the tensor `keys`: all keys, then all values. In a row of qkv they follow q. */
typedef enum { PART_K, PART_V } KeyPart;

/* Returns the element of qkv at which a tile of a head's queries begins. */
static inline int64_t attention_query_at(const Heads *h, int64_t head, int64_t tile) {
    return (head / h->H * h->T + tile * TILE) * h->columns + head % h->H * h->D;
}
/* Returns the index of a tile of queries among all tiles of its sequence, of which a context rank has only some. Tiles
 * of keys are numbered in the same way. */
static inline int64_t attention_place(const Heads *h, int64_t tile) {
    Positions p = positions_of(h->context, h->T);
    return POSITION_OF(p, tile * TILE) / TILE;
}

/* Returns the position of the first key that the query in this row of a head's sequence sees. Later rows never see
 * earlier keys than this. */
static inline int64_t attention_first_key(const Heads *h, int64_t head, int64_t row) {
    return h->starts ? h->starts[head / h->H * h->T + row] : 0;
}
/* Returns the first tile of keys that a tile of queries sees. */
static inline int64_t attention_first_tile(const Heads *h, int64_t head, int64_t tile) {
    return attention_first_key(h, head, tile * TILE) / TILE;
}
/* Masks scores [rows,TILE] of a tile of queries and one of keys: scores of keys before a query's document become
 * -infinity. */
static inline void attention_mask_documents(float *scores, const Heads *h, int64_t head, int64_t tile, int64_t keys) {
    int64_t rows = attention_rows(tile, h->T), first = tile * TILE;
    if (attention_first_key(h, head, first + rows - 1) <= keys * TILE) return;
    for (int64_t r = 0; r < rows; r++) {
        int64_t before = attention_first_key(h, head, first + r) - keys * TILE;
        for (int64_t c = 0; c < before && c < TILE; c++) scores[r * TILE + c] = -INFINITY;
    }
}

/* attention_key_at returns the element, in qkv or in keys, at which a tile of the keys or values of a query head
 * begins. attention_key_step returns the elements from row to row. A tile is in one chunk of one context rank. */
static inline int64_t attention_key_step(const Heads *h) { return h->keys ? h->columns - h->C : h->columns; }
static inline int64_t attention_key_at(const Heads *h, KeyPart part, int64_t head, int64_t tile) {
    int64_t sequence = head / h->H, column = part * (h->columns - h->C) / 2 + head % h->H / h->group * h->D;
    if (!h->keys) return (sequence * h->T + tile * TILE) * h->columns + h->C + column;
    int64_t chunk_tiles = h->tiles / 2, chunk = tile / chunk_tiles, ranks = h->context.ranks,
            owner = chunk < ranks ? chunk : 2 * ranks - 1 - chunk;
    int64_t there = (chunk < ranks ? 0 : chunk_tiles) + tile % chunk_tiles;
    return ((owner * h->B + sequence) * h->T + there * TILE) * attention_key_step(h) + column;
}

static inline const void *attention_queries(const Heads *h, int64_t head, int64_t tile) {
    return (const char *)h->qkv + (size_t)attention_query_at(h, head, tile) * dtype_bytes(h->type);
}
static inline const void *attention_keys(const Heads *h, KeyPart part, int64_t head, int64_t tile) {
    return (const char *)(h->keys ? h->keys : h->qkv) +
           (size_t)attention_key_at(h, part, head, tile) * dtype_bytes(h->type);
}

/* Prefetches the D elements at x[i], which a later iteration reads. Rows are pages apart, where no hardware prefetcher
 * reaches. */
SIMD_INLINE void prefetch_head(const void *x, int64_t i, const Heads *h) {
    size_t elem = h->type == BF16 ? 2 : 4, bytes = (size_t)h->D * elem;
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)x + (size_t)i * elem + at);
}

/* Sets y [tile_round(rows), wide] = scale * x [rows, D], zero elsewhere. x has rows of x_step elements. */
SIMD_INLINE void pack_rows_of(DType type, float *y, const void *x, int64_t x_step, int64_t rows, const Heads *h,
                              float scale) {
    int64_t whole = h->D / LANES * LANES;
    for (int64_t r = 0; r < rows; r++) {
        if (r + ATTENTION_AHEAD < rows) prefetch_head(x, (r + ATTENTION_AHEAD) * x_step, h);
        for (int64_t d = 0; d < whole; d += LANES)
            f32x16_store(y + r * h->wide + d, scale * act16_load(x, r * x_step + d, type));
        if (whole < h->D)
            f32x16_store(y + r * h->wide + whole,
                         scale * act16_load_part(x, r * x_step + whole, h->D - whole, type, 0.0f));
    }
    memset(y + rows * h->wide, 0, (size_t)((tile_round(rows) - rows) * h->wide) * sizeof(float));
}
static void pack_rows(float *y, const void *x, int64_t x_step, int64_t rows, const Heads *h, float scale) {
    if (h->type == BF16) pack_rows_of(BF16, y, x, x_step, rows, h, scale);
    else                 pack_rows_of(F32, y, x, x_step, rows, h, scale);
}

/* Sets y [D, TILE] to x transposed: column r is row r of x, and columns rows to tile_round(rows) are zero. */
static void pack_turned(float *y, const void *x, int64_t x_step, int64_t rows, const Heads *h) {
    for (int64_t r = 0; r < rows; r++) prefetch_head(x, r * x_step, h);
    if (rows % LANES)
        for (int64_t d = 0; d < h->D; d++) f32x16_store(y + d * TILE + rows / LANES * LANES, f32x16_all(0.0f));
    transpose(y, TILE, x, x_step, rows, h->D, h->type);
}

/* Sets the lanes of v above number `last` (0 to 15) to -infinity. */
SIMD_INLINE f32x16 attention_masked(f32x16 v, int64_t last) {
    static const float edge[2 * LANES] = {[LANES] = -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
                                          -INFINITY,           -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
                                          -INFINITY,           -INFINITY, -INFINITY, -INFINITY};
    return v + f32x16_load(edge + LANES - 1 - last);
}

/* --- forward ------------------------------------------------------------------------------------------------------ */

typedef struct {
    Heads  heads;
    void  *y;   /* output; borrowed, [N,C] of the activation type */
    float *lse; /* log of the softmax denominators; borrowed, [B*H,T] */
} Forward;

/* The softmax's running maximum before a query has met a key of its document. It is below every score, and finite, so
 * that exp(-infinity - NO_SCORE) is 0. */
static const float NO_SCORE = -1e38f;

/* Memory of one thread in the forward pass. k and v hold the whole sequence of one head of keys. */
typedef struct {
    float *k;        /* [key_tiles][D,TILE] transposed keys */
    float *v;        /* [key_tiles][TILE,wide] values */
    float *q, *y;    /* [TILE,wide] each; q: scaled queries; y: sums of probabilities times values */
    float *scores;   /* [TILE,TILE] scores of a tile of queries and a tile of keys, then probabilities */
    float *sum;      /* [TILE,16] sums of the probabilities p, lane by lane          */
    float *top;      /* [TILE] running maximum of each query's scores                */
    float *shrink;   /* [TILE] factor by which a rise of the maximum scales down earlier sums */
} ForwardScratch;

/* Replaces the scores of a tile by p = exp(score - top) and adds their lanewise sums to w->sum. If the maximum top
 * rises, scales down the earlier sums. */
static void softmax_tile(ForwardScratch w, int64_t wide, int64_t rows, int64_t columns, TileForm form) {
    for (int64_t row = 0; row < rows; row += LANES) {
        int64_t end = form == TILE_LOWER_RESULT ? row + LANES : columns; /* number of columns whose scores are
                                                                          * computed */
        float   highest[LANES * LANES], turned[LANES * LANES];
        for (int64_t r = 0; r < LANES; r++) {
            float *p = w.scores + (row + r) * TILE;
            if (form == TILE_LOWER_RESULT) f32x16_store(p + row, attention_masked(f32x16_load(p + row), r));
            f32x16 high = f32x16_load(p);
            for (int64_t c = LANES; c < end; c += LANES) high = f32x16_max(high, f32x16_load(p + c));
            f32x16_store(highest + r * LANES, high);
        }
        transpose(turned, LANES, highest, LANES, LANES, LANES, F32);
        f32x16 before = f32x16_load(w.top + row), top = before;
        for (int64_t r = 0; r < LANES; r++) top = f32x16_max(top, f32x16_load(turned + r * LANES));
        f32x16_store(w.top + row, top);
        f32x16_store(w.shrink + row, f32x16_exp(before - top));
        for (int64_t r = row; r < row + LANES; r++) {
            f32x16 row_top = f32x16_all(w.top[r]), shrink = f32x16_all(w.shrink[r]),
                   sum = f32x16_load(w.sum + r * LANES) * shrink;
            for (int64_t c = 0; c < end; c += LANES) {
                f32x16 p = f32x16_exp(f32x16_load(w.scores + r * TILE + c) - row_top);
                f32x16_store(w.scores + r * TILE + c, p);
                sum += p;
            }
            f32x16_store(w.sum + r * LANES, sum);
            if (w.shrink[r] == 1.0f) continue;
            for (int64_t d = 0; d < wide; d += LANES)
                f32x16_store(w.y + r * wide + d, f32x16_load(w.y + r * wide + d) * shrink);
        }
    }
}

/* Computes y and lse of one tile of queries. w.k and w.v hold the head's keys and values. */
static void forward_tile(const Forward *job, ForwardScratch w, int64_t head, int64_t tile) {
    const Heads *h = &job->heads;
    int64_t      rows = attention_rows(tile, h->T), padded = tile_round(rows), last = attention_place(h, tile);
    pack_rows(w.q, attention_queries(h, head, tile), h->columns, rows, h, h->scale);
    memset(w.y, 0, (size_t)(padded * h->wide) * sizeof(float));
    memset(w.sum, 0, (size_t)(padded * LANES) * sizeof(float));
    for (int64_t r = 0; r < padded; r++) w.top[r] = h->starts ? NO_SCORE : -INFINITY;
    for (int64_t keys = attention_first_tile(h, head, tile); keys <= last; keys++) {
        int64_t  columns = tile_round(attention_rows(keys, h->context.ranks * h->T));
        TileForm form = keys == last ? TILE_LOWER_RESULT : TILE_FULL;
        tile_product((TileProduct){w.scores, w.q, w.k + keys * TILE * h->D, TILE, h->wide, 1, TILE, padded, columns,
                                   h->D, TILE_SET, form});
        attention_mask_documents(w.scores, h, head, tile, keys);
        softmax_tile(w, h->wide, padded, columns, form);
        tile_product((TileProduct){w.y, w.scores, w.v + keys * TILE * h->wide, h->wide, TILE, 1, h->wide, padded,
                                   h->wide, columns, TILE_ADD, keys == last ? TILE_LOWER_FACTOR : TILE_FULL});
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = tile * TILE + r, at = (head / h->H * h->T + t) * h->C + head % h->H * h->D;
        float   sum = f32x16_sum(f32x16_load(w.sum + r * LANES));
        job->lse[head * h->T + t] = w.top[r] + logf(sum);
        for (int64_t d = 0; d < h->D; d += LANES)
            act16_store_n(job->y, at + d, act16_count(d, h->D), h->type,
                          f32x16_load(w.y + r * h->wide + d) / f32x16_all(sum));
    }
}

/* Computes the work items [first, end) of attention's forward pass; an item is a tile of queries of one head. */
void SIMD(forward_share)(const Forward *job, ForwardScratch w, int64_t first, int64_t end) {
    const Heads *h = &job->heads;
    int64_t      packed = -1;
    for (int64_t item = first; item < end; item++) {
        int64_t head = item / h->tiles, group = head / h->group; /* heads of a group share the packed keys and values */
        if (group != packed) {
            for (int64_t keys = 0; keys < h->key_tiles; keys++) {
                int64_t rows = attention_rows(keys, h->context.ranks * h->T), step = attention_key_step(h);
                pack_turned(w.k + keys * TILE * h->D, attention_keys(h, PART_K, head, keys), step, rows, h);
                pack_rows(w.v + keys * TILE * h->wide, attention_keys(h, PART_V, head, keys), step, rows, h, 1.0f);
            }
            packed = group;
        }
        forward_tile(job, w, head, attention_tile(item % h->tiles, h->tiles));
    }
}
SIMD_DISPATCH(void, forward_share, (const Forward *job, ForwardScratch w, int64_t first, int64_t end),
              (job, w, first, end))

/* --- backward ----------------------------------------------------------------------------------------------------- */

typedef struct {
    Heads       heads;
    void       *dqkv;   /* output: gradients, in the layout of qkv; borrowed */
    void       *dkeys;  /* output: gradients of the keys and values of all context ranks; borrowed; NULL: they are in
                         * dqkv */
    const void *y;      /* forward's output; borrowed, [N,C] of the activation type */
    const float *lse;   /* forward's lse; borrowed, [B*H,T] */
    const float *delta; /* [H,N] delta of each query (attention_delta in layers.h); borrowed; NULL: computed here from
                         * dy and y */
} Backward;

/* Memory of one thread in the backward pass. q, dy, dq, lse and delta cover the sequence of one head, in tiles of TILE
 * positions. */
typedef struct {
    float *q, *dy, *dq;         /* [tiles][TILE,wide] queries, dy, sums of dq */
    float *lse, *delta;         /* [tiles][TILE]      lse and delta of each query */
    float *k;                   /* [TILE,wide]        keys of one tile        */
    float *dk, *dv;             /* [backward_sums][TILE,wide] sums of dk and dv */
    float *k_turned, *v_turned; /* [D,TILE]           a tile of keys or values, transposed */
    float *p, *ds;              /* [TILE,TILE] probabilities, and gradients of scores: queries by keys */
} BackwardScratch;

/* Kinds of backward's work items: a head of keys with its query heads, a tile of keys, a tile of queries. */
typedef enum { BY_HEAD, BY_KEYS, BY_QUERIES } BackwardItem;

/* Returns the number of tiles of dk and dv that a thread keeps: all if several heads of a group add to them. */
static inline int64_t backward_sums(const Heads *h) { return h->group > 1 ? h->key_tiles : 1; }

/* Loads a tile of queries for the backward pass, with the rows of dy, lse and delta that belong to them. Rows past the
 * end of the sequence are zero and so add nothing. */
static void load_queries(const Backward *job, BackwardScratch w, int64_t head, int64_t tile) {
    const Heads *h = &job->heads;
    int64_t      rows = attention_rows(tile, h->T), at = (head / h->H * h->T + tile * TILE) * h->C + head % h->H * h->D;
    size_t       at_bytes = (size_t)at * dtype_bytes(h->type);
    float       *dy = w.dy + tile * TILE * h->wide, *lse = w.lse + tile * TILE, *delta = w.delta + tile * TILE;
    pack_rows(w.q + tile * TILE * h->wide, attention_queries(h, head, tile), h->columns, rows, h, h->scale);
    pack_rows(dy, (const char *)h->dy + at_bytes, h->C, rows, h, 1.0f);
    const float *given = job->delta ? job->delta + (head % h->H * h->B + head / h->H) * h->T + tile * TILE : NULL;
    for (int64_t r = 0; r < tile_round(rows); r++) {
        f32x16 sum = f32x16_all(0.0f);
        lse[r] = r < rows ? job->lse[head * h->T + tile * TILE + r] : 0.0f;
        if (given) {
            delta[r] = r < rows ? given[r] : 0.0f;
            continue;
        }
        if (r + ATTENTION_AHEAD < rows) prefetch_head(job->y, at + (r + ATTENTION_AHEAD) * h->C, h);
        for (int64_t d = 0; r < rows && d < h->D; d += LANES)
            sum += f32x16_load(dy + r * h->wide + d) *
                   act16_load_n(job->y, at + r * h->C + d, act16_count(d, h->D), h->type);
        delta[r] = f32x16_sum(sum);
    }
}

/* Computes delta (attention_delta in layers.h) of each head of a row, and writes the values `step` elements apart. It
 * adds in the same order as load_queries, so the bits are equal. */
SIMD_INLINE void delta_row_of(DType type, float *delta, int64_t step, const void *dy, const void *y, int64_t row,
                              int64_t heads, int64_t D) {
    for (int64_t head = 0; head < heads; head++) {
        int64_t at = (row * heads + head) * D;
        f32x16  sum = f32x16_all(0.0f);
        for (int64_t d = 0; d < D; d += LANES) {
            int64_t n = act16_count(d, D);
            sum += act16_load_n(dy, at + d, n, type) * act16_load_n(y, at + d, n, type);
        }
        delta[head * step] = f32x16_sum(sum);
    }
}
ACT_KERNEL(delta_row, (DType type, float *delta, int64_t step, const void *dy, const void *y, int64_t row,
                       int64_t heads, int64_t D),
           delta, step, dy, y, row, heads, D)

static void load_keys(const Backward *job, BackwardScratch w, int64_t head, int64_t tile) {
    const Heads *h = &job->heads;
    int64_t      rows = attention_rows(tile, h->context.ranks * h->T), step = attention_key_step(h);
    const void  *k = attention_keys(h, PART_K, head, tile), *v = attention_keys(h, PART_V, head, tile);
    pack_rows(w.k, k, step, rows, h, 1.0f);
    pack_turned(w.k_turned, k, step, rows, h);
    pack_turned(w.v_turned, v, step, rows, h);
}

/* Computes the probabilities w.p, and the gradients of scores w.ds, of a loaded tile of queries and a loaded tile of
 * keys. If the tile lies on the causal diagonal, elements above the diagonal are zero in the 16 columns that hold it,
 * and not set in later columns. */
static void scores(const Heads *h, BackwardScratch w, int64_t head, int64_t tile, int64_t keys, int64_t rows,
                   int64_t columns, TileForm form) {
    const float *q = w.q + tile * TILE * h->wide, *dy = w.dy + tile * TILE * h->wide;
    tile_product((TileProduct){w.p, q, w.k_turned, TILE, h->wide, 1, TILE, rows, columns, h->D, TILE_SET, form});
    tile_product((TileProduct){w.ds, dy, w.v_turned, TILE, h->wide, 1, TILE, rows, columns, h->D, TILE_SET, form});
    attention_mask_documents(w.p, h, head, tile, keys);
    for (int64_t r = 0; r < rows; r++) {
        f32x16  lse = f32x16_all(w.lse[tile * TILE + r]), delta = f32x16_all(w.delta[tile * TILE + r]);
        int64_t diagonal = r / LANES * LANES, end = form == TILE_LOWER_RESULT ? diagonal + LANES : columns;
        for (int64_t c = 0; c < end; c += LANES) {
            f32x16 score = f32x16_load(w.p + r * TILE + c) - lse;
            if (form == TILE_LOWER_RESULT && c == diagonal) score = attention_masked(score, r - diagonal);
            f32x16 p = f32x16_exp(score);
            f32x16_store(w.p + r * TILE + c, p);
            f32x16_store(w.ds + r * TILE + c, p * (f32x16_load(w.ds + r * TILE + c) - delta));
        }
    }
}

/* Writes `rows` rows of a head, from element `at` of y on and `step` elements apart: y = scale * x [rows,wide]. */
static void store_rows(const Heads *h, void *y, int64_t at, int64_t step, int64_t rows, const float *x, float scale) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < h->D; d += LANES)
            act16_store_n(y, at + r * step + d, act16_count(d, h->D), h->type,
                          scale * f32x16_load(x + r * h->wide + d));
}
static void store_queries(const Backward *job, int64_t head, int64_t tile, const float *x) {
    const Heads *h = &job->heads;
    store_rows(h, job->dqkv, attention_query_at(h, head, tile), h->columns, attention_rows(tile, h->T), x, h->scale);
}
static void store_keys(const Backward *job, KeyPart part, int64_t head, int64_t tile, const float *x) {
    const Heads *h = &job->heads;
    store_rows(h, h->keys ? job->dkeys : job->dqkv, attention_key_at(h, part, head, tile), attention_key_step(h),
               attention_rows(tile, h->context.ranks * h->T), x, 1.0f);
}

/* dq of a tile of queries += ds k of a tile of keys, whose scores are already computed. */
static void add_dq(const Heads *h, BackwardScratch w, int64_t tile, int64_t rows, int64_t columns, int on_diagonal) {
    tile_product((TileProduct){w.dq + tile * TILE * h->wide, w.ds, w.k, h->wide, TILE, 1, h->wide, rows, h->wide,
                               columns, TILE_ADD, on_diagonal ? TILE_LOWER_FACTOR : TILE_FULL});
}

/* Adds what a query head, whose queries are loaded, contributes to dk and dv of a tile of keys; with item BY_HEAD also
 * to dq. The first head of a group starts the sums at zero, the last one stores them. */
static void backward_keys(const Backward *job, BackwardScratch w, int64_t head, int64_t keys, BackwardItem item) {
    const Heads *h = &job->heads;
    int64_t      columns = tile_round(attention_rows(keys, h->context.ranks * h->T)),
            sums = keys % backward_sums(h) * TILE * h->wide;
    float       *dk = w.dk + sums, *dv = w.dv + sums;
    load_keys(job, w, head, keys);
    if (head % h->group == 0) {
        memset(dk, 0, (size_t)(columns * h->wide) * sizeof(float));
        memset(dv, 0, (size_t)(columns * h->wide) * sizeof(float));
    }
    for (int64_t tile = 0; tile < h->tiles; tile++) {
        int64_t rows = tile_round(attention_rows(tile, h->T)), at = tile * TILE * h->wide,
                place = attention_place(h, tile);
        TileForm form = place == keys ? TILE_UPPER_FACTOR : TILE_FULL;
        if (place < keys || attention_first_tile(h, head, tile) > keys) continue;
        scores(h, w, head, tile, keys, rows, columns, place == keys ? TILE_LOWER_RESULT : TILE_FULL);
        tile_product(
            (TileProduct){dv, w.p, w.dy + at, h->wide, 1, TILE, h->wide, columns, h->wide, rows, TILE_ADD, form});
        tile_product(
            (TileProduct){dk, w.ds, w.q + at, h->wide, 1, TILE, h->wide, columns, h->wide, rows, TILE_ADD, form});
        if (item == BY_HEAD) add_dq(h, w, tile, rows, columns, place == keys);
    }
    if (head % h->group < h->group - 1) return;
    store_keys(job, PART_K, head, keys, dk);
    store_keys(job, PART_V, head, keys, dv);
}

/* Computes dq, the gradient of the queries, for one tile of queries of a head. */
static void backward_queries(const Backward *job, BackwardScratch w, int64_t head, int64_t tile) {
    const Heads *h = &job->heads;
    int64_t      rows = tile_round(attention_rows(tile, h->T)), last = attention_place(h, tile);
    load_queries(job, w, head, tile);
    memset(w.dq + tile * TILE * h->wide, 0, (size_t)(rows * h->wide) * sizeof(float));
    for (int64_t keys = attention_first_tile(h, head, tile); keys <= last; keys++) {
        int64_t columns = tile_round(attention_rows(keys, h->context.ranks * h->T));
        load_keys(job, w, head, keys);
        scores(h, w, head, tile, keys, rows, columns, last == keys ? TILE_LOWER_RESULT : TILE_FULL);
        add_dq(h, w, tile, rows, columns, last == keys);
    }
    store_queries(job, head, tile, w.dq + tile * TILE * h->wide);
}

/* Computes the work items [first, end) of attention's backward pass, which are of the kind `item`. */
void SIMD(backward_share)(const Backward *job, BackwardScratch w, int64_t first, int64_t end, BackwardItem item) {
    const Heads *h = &job->heads;
    int64_t      loaded = -1;
    for (int64_t i = first; i < end; i++) {
        int64_t tiles = item == BY_HEAD ? 1 : item == BY_KEYS ? h->key_tiles : h->tiles,
                tile = attention_tile(i % tiles, tiles);
        if (item == BY_QUERIES) {
            backward_queries(job, w, i / tiles, tile);
            continue;
        }
        for (int64_t head = i / tiles * h->group; head < (i / tiles + 1) * h->group; head++) {
            if (head != loaded)
                for (int64_t t = 0; t < h->tiles; t++) load_queries(job, w, head, t);
            loaded = head;
            if (item == BY_KEYS) {
                backward_keys(job, w, head, tile, item);
                continue;
            }
            memset(w.dq, 0, (size_t)(h->tiles * TILE * h->wide) * sizeof(float));
            for (int64_t keys = 0; keys < h->key_tiles; keys++) backward_keys(job, w, head, keys, item);
            for (int64_t t = 0; t < h->tiles; t++) store_queries(job, head, t, w.dq + t * TILE * h->wide);
        }
    }
}
SIMD_DISPATCH(void, backward_share,
              (const Backward *job, BackwardScratch w, int64_t first, int64_t end, BackwardItem item),
              (job, w, first, end, item))

/* --- the last queries of a sequence ------------------------------------------------------------------------------- */

enum { KEYS = 64 }; /* number of keys that attention_last_forward processes at once; a multiple of 16 */

typedef struct {
    Heads   heads; /* the heads of one sequence (B = 1) */
    int64_t n;     /* number of queries: those of the last n of the T positions */
    void   *y;     /* output: [n,C] of the activation type; borrowed */
} Last;

/* Writes the scores of `keys` keys from element `at` of qkv on: q . k over the D channels of the head. q is padded with
 * zeros. Scores past the keys are -infinity. Returns the largest. */
SIMD_INLINE float last_scores(DType type, float *score, const Heads *h, const float *q, int64_t at, int64_t keys) {
    f32x16 high = f32x16_all(-INFINITY);
    for (int64_t k = 0; k < KEYS; k++, at += h->columns) {
        f32x16 sum = f32x16_all(0.0f);
        for (int64_t d = 0; k < keys && d < h->D; d += LANES)
            sum += f32x16_load(q + d) * act16_load_n(h->qkv, at + d, act16_count(d, h->D), type);
        score[k] = k < keys ? f32x16_sum(sum) : -INFINITY;
    }
    for (int64_t k = 0; k < KEYS; k += LANES) high = f32x16_max(high, f32x16_load(score + k));
    return f32x16_top(high);
}

SIMD_INLINE void last_item_of(DType type, const Last *job, int64_t item, float *q, float *sums) {
    const Heads *h = &job->heads;
    int64_t row = item / h->H, head = item % h->H, T = h->T - job->n + row + 1, step = h->columns, D = h->D;
    int64_t query = (T - 1) * step + head * D, keys = h->C + head / h->group * D, values = keys + (step - h->C) / 2;
    float   top = -INFINITY, score[KEYS];
    f32x16  total = f32x16_all(0.0f);
    for (int64_t d = 0; d < h->wide; d += LANES) {
        f32x16_store(q + d, f32x16_all(h->scale) * act16_load_n(h->qkv, query + d, act16_count(d, D), type));
        f32x16_store(sums + d, f32x16_all(0.0f));
    }
    for (int64_t first = 0; first < T; first += KEYS) {
        int64_t count = T - first < KEYS ? T - first : KEYS;
        float   high = last_scores(type, score, h, q, keys + first * step, count);
        f32x16  before = f32x16_all(top), now = f32x16_all(high > top ? high : top), shrink = f32x16_exp(before - now);
        top = high > top ? high : top;
        total *= shrink;
        for (int64_t k = 0; k < KEYS; k += LANES) {
            f32x16 p = f32x16_exp(f32x16_load(score + k) - now);
            f32x16_store(score + k, p);
            total += p;
        }
        for (int64_t d = 0; d < D; d += LANES) {
            int64_t elems = act16_count(d, D);
            f32x16  sum = f32x16_load(sums + d) * shrink;
            for (int64_t k = 0; k < count; k++)
                sum += f32x16_all(score[k]) * act16_load_n(h->qkv, values + (first + k) * step + d, elems, type);
            f32x16_store(sums + d, sum);
        }
    }
    f32x16 divisor = f32x16_all(f32x16_sum(total));
    for (int64_t d = 0; d < D; d += LANES)
        act16_store_n(job->y, row * h->C + head * D + d, act16_count(d, D), type, f32x16_load(sums + d) / divisor);
}
ACT_KERNEL(last_item, (DType type, const Last *job, int64_t item, float *q, float *sums), job, item, q, sums)

#if SIMD_HOST
static Heads attention_heads(int64_t B, int64_t T, Tensor qkv, Tensor keys, Tensor starts, ContextPart context,
                             HeadShape h) {
    Heads heads = {.type = qkv.type, .B = B, .T = T, .C = h.query * h.size, .H = h.query, .D = h.size,
                   .group = h.query / h.key, .columns = heads_columns(h), .qkv = qkv.data, .keys = keys.data,
                   .starts = (const int32_t *)starts.data, .context = context};
    heads.wide = tile_round(heads.D);
    heads.tiles = (T + TILE - 1) / TILE;
    heads.key_tiles = context.ranks * heads.tiles;
    heads.scale = 1.0f / sqrtf((float)heads.D);
    return heads;
}

/* Returns the next `floats` of a thread's scratch, from a multiple of 64 bytes on. Returns NULL if base is NULL, to
 * compute the size. */
static float *attention_carve(float *base, int64_t *used, int64_t floats) {
    int64_t at = *used;
    *used += tile_round(floats);
    return base ? base + at : NULL;
}

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

void attention_context_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Tensor starts,
                               ContextPart context, HeadShape h) {
    EXPECT_ACT(qkv);
    int            is_dry = attention_forward_contract(s, y, lse, qkv, keys, starts, context, h);
    Forward        job = {attention_heads(lse.dim[0] / h.query, lse.dim[1], qkv, keys, starts, context, h), y.data,
                          (float *)lse.data};
    ForwardScratch size;
    int64_t        floats = forward_carve(&size, NULL, &job.heads);
    size_t         mark = arena_mark(&s->scratch);
    float *memory = (float *)arena_take(&s->scratch, (size_t)((int64_t)omp_get_max_threads() * floats) * sizeof(float));
    #pragma omp parallel if (!is_dry)
    if (!is_dry) {
        ForwardScratch w;
        int64_t        items = job.heads.B * job.heads.H * job.heads.tiles;
        int64_t        thread = omp_get_thread_num(), threads = omp_get_num_threads();
        forward_carve(&w, memory + thread * floats, &job.heads);
        forward_share(&job, w, items * thread / threads, items * (thread + 1) / threads);
    }
    arena_release(&s->scratch, mark);
}

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

static void backward_items(const Backward *job, float *memory, int64_t floats, BackwardItem item) {
    const Heads *h = &job->heads;
    int64_t      heads = h->B * h->H, key_heads = heads / h->group;
    int64_t      items = item == BY_HEAD ? key_heads : item == BY_KEYS ? key_heads * h->key_tiles : heads * h->tiles;
    #pragma omp parallel
    {
        BackwardScratch w;
        int64_t         thread = omp_get_thread_num(), threads = omp_get_num_threads();
        backward_carve(&w, memory + thread * floats, h);
        backward_share(job, w, items * thread / threads, items * (thread + 1) / threads, item);
    }
}

int attention_context_backward(Stream *s, Tensor dqkv, Tensor dbias, Tensor dkeys, Tensor dy, Tensor y, Tensor lse,
                               Tensor delta, Tensor qkv, Tensor keys, Tensor starts, ContextPart context, HeadShape h) {
    EXPECT_ACT(qkv);
    int is_dry = attention_backward_contract(s, dqkv, dbias, dkeys, dy, y, lse, delta, qkv, keys, starts, context, h);
    Backward job = {attention_heads(lse.dim[0] / h.query, lse.dim[1], qkv, keys, starts, context, h), dqkv.data,
                    dkeys.data, y.data, (const float *)lse.data, (const float *)delta.data};
    job.heads.dy = dy.data;
    BackwardScratch size;
    int64_t         threads = omp_get_max_threads(), floats = backward_carve(&size, NULL, &job.heads),
            heads = job.heads.B * job.heads.H / job.heads.group;
    size_t          mark = arena_mark(&s->scratch);
    float          *memory = (float *)arena_take(&s->scratch, (size_t)(threads * floats) * sizeof(float));
    int64_t         rounds = (heads + threads - 1) / threads;
    if (is_dry) {
        /* a dry stream only counts memory and work, and computes nothing */
    /* With one work item per head some threads idle. That costs less than the two extra products of items by tile if
     * heads fill the threads to 5/8. */
    } else if (8 * heads >= 5 * rounds * threads) {
        backward_items(&job, memory, floats, BY_HEAD);
    } else {
        backward_items(&job, memory, floats, BY_KEYS);
        backward_items(&job, memory, floats, BY_QUERIES);
    }
    arena_release(&s->scratch, mark);
    return 0;
}

void attention_delta(Stream *s, Tensor delta, Tensor dy, Tensor y) {
    EXPECT_ACT(y);
    if (attention_delta_contract(s, delta, dy, y)) return;
    int64_t H = delta.dim[0], N = y.dim[0];
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < N; i++) delta_row(y.type, (float *)delta.data + i, N, dy.data, y.data, i, H, y.dim[1] / H);
}

void attention_last_forward(Stream *s, Tensor y, Tensor qkv, HeadShape h) {
    EXPECT_ACT(qkv);
    int     is_dry = attention_last_forward_contract(s, y, qkv, h);
    Last    job = {attention_heads(1, qkv.dim[0], qkv, tensor_none(), tensor_none(), WHOLE_SEQUENCE, h), y.dim[0],
                   y.data};
    int64_t wide = job.heads.wide;
    size_t  mark = arena_mark(&s->scratch);
    float  *memory = (float *)arena_take(&s->scratch, (size_t)(omp_get_max_threads() * 2 * wide) * sizeof(float));
    if (!is_dry) {
        #pragma omp parallel for schedule(static)
        for (int64_t item = 0; item < job.n * h.query; item++) {
            float *q = memory + omp_get_thread_num() * 2 * wide;
            last_item(qkv.type, &job, item, q, q + wide);
        }
    }
    arena_release(&s->scratch, mark);
}
#endif
