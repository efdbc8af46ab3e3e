/* attention_pack.h - shared by forward and backward of attention: the shape, per-thread scratch, packing of head
 * slices. CPU only; included in every pass of core/simd_each.h, after act_simd.h, transpose_simd.h and tile_simd.h.
 *
 * A head's q, k, v and dy are copied to f32 tiles of TILE positions, with rows padded with zeros to 16 floats. So the
 * products see aligned, whole vectors for any head size and type. Copying costs T*D where the products cost T*T*D.
 */
#ifndef TRAIN_GPT_LAYERS_ATTENTION_PACK_H
#define TRAIN_GPT_LAYERS_ATTENTION_PACK_H

#include <math.h>
#include <omp.h>

#include "layers/act_simd.h"
#include "layers/layers.h"
#include "layers/tile_simd.h"

typedef struct {
    DType   type;
    int64_t B, T, C, H, D;        /* C = H*D: columns of y               */
    int64_t group;        /* query heads that share a head of keys */
    int64_t columns;      /* columns of qkv */
    int64_t wide;         /* D rounded up to 16: floats of a packed row */
    int64_t tiles;        /* tiles of TILE positions in a sequence, on this rank */
    int64_t key_tiles;    /* tiles of a sequence on all context ranks */
    float   scale;        /* 1/sqrt(D), folded into q                   */
    const void *qkv, *dy; /* borrowed; dy [N,C] in backward only        */
    const void *keys;     /* borrowed; NULL: the keys are in qkv */
    const int32_t *starts; /* borrowed, [B,T] position of the first key that a query sees; NULL: 0 for all */
    ContextPart context;
} Heads;

/* A thread's share of the work: items [first, end). */
typedef struct { int64_t first, end; } Share;

static inline Share attention_share(int64_t items, int thread, int threads) {
    Share s = {items * thread / threads, items * (thread + 1) / threads};
    return s;
}

/* Returns the i-th tile in the order 0, n-1, 1, n-2, ... Tile i has work for i + 1, or n - i, other tiles, so any run
 * of this order has an equal share of it. */
static inline int64_t attention_tile(int64_t i, int64_t tiles) { return i % 2 == 0 ? i / 2 : tiles - 1 - i / 2; }

static inline int64_t attention_rows(int64_t tile, int64_t T) { return T - tile * TILE < TILE ? T - tile * TILE : TILE; }

enum { ATTENTION_AHEAD = 8 }; /* rows that prefetch is ahead */

/* Returns the next `floats` of a thread's scratch, from a multiple of 64 bytes on. Returns NULL if base is NULL, to
 * compute the size. */
static inline float *attention_carve(float *base, int64_t *used, int64_t floats) {
    int64_t at = *used;
    *used += tile_round(floats);
    return base ? base + at : NULL;
}

static inline Heads attention_heads(Tensor lse, Tensor qkv, Tensor keys, Tensor starts, ContextPart context, HeadShape h) {
    int64_t T = lse.dim[1];
    Heads   heads = {.type = qkv.type, .B = lse.dim[0] / h.query, .T = T, .C = h.query * h.size, .H = h.query, .D = h.size,
                     .group = h.query / h.key, .columns = heads_columns(h), .qkv = qkv.data, .keys = keys.data,
                     .starts = (const int32_t *)starts.data, .context = context};
    heads.wide = tile_round(heads.D);
    heads.tiles = (T + TILE - 1) / TILE;
    heads.key_tiles = context.ranks * heads.tiles;
    heads.scale = 1.0f / sqrtf((float)heads.D);
    return heads;
}

/* The two halves of a row of keys. In a row of qkv they follow q. */
typedef enum { PART_K, PART_V } KeyPart;

/* Returns the element of qkv at which a tile of a head's queries begins. */
static inline int64_t attention_query_at(const Heads *h, int64_t head, int64_t tile) {
    return (head / h->H * h->T + tile * TILE) * h->columns + head % h->H * h->D;
}
/* Returns the number of a tile of queries among the tiles of its sequence, which are numbered like those of keys. */
static inline int64_t attention_place(const Heads *h, int64_t tile) {
    Positions p = positions_of(h->context, h->T);
    return POSITION_OF(p, tile * TILE) / TILE;
}

/* Returns the position of the first key that the query in this row of a head's sequence sees. It never falls from row
 * to row. */
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
    return (const char *)(h->keys ? h->keys : h->qkv) + (size_t)attention_key_at(h, part, head, tile) * dtype_bytes(h->type);
}

#define pack_turned SIMD(pack_turned)
#define attention_masked SIMD(attention_masked)

#endif

#ifdef SIMD_PASS
/* Prefetches the D elements at x[i], which a later iteration reads. Rows are pages apart, where no hardware prefetcher
 * reaches. */
SIMD_INLINE void SIMD(prefetch_head)(const void *x, int64_t i, const Heads *h) {
    size_t elem = h->type == BF16 ? 2 : 4, bytes = (size_t)h->D * elem;
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)x + (size_t)i * elem + at);
}

/* Sets y [tile_round(rows), wide] = scale * x [rows, D], zero elsewhere. x has rows of x_step elements. */
SIMD_INLINE void SIMD(pack_rows_of)(DType type, float *y, const void *x, int64_t x_step, int64_t rows, const Heads *h,
                                    float scale) {
    int64_t whole = h->D / LANES * LANES;
    for (int64_t r = 0; r < rows; r++) {
        if (r + ATTENTION_AHEAD < rows) SIMD(prefetch_head)(x, (r + ATTENTION_AHEAD) * x_step, h);
        for (int64_t d = 0; d < whole; d += LANES) f32x16_store(y + r * h->wide + d, scale * act16_load(x, r * x_step + d, type));
        if (whole < h->D)
            f32x16_store(y + r * h->wide + whole,
                         scale * act16_load_part(x, r * x_step + whole, h->D - whole, type, 0.0f));
    }
    memset(y + rows * h->wide, 0, (size_t)((tile_round(rows) - rows) * h->wide) * sizeof(float));
}
ACT_KERNEL(pack_rows, (DType type, float *y, const void *x, int64_t x_step, int64_t rows, const Heads *h, float scale),
           y, x, x_step, rows, h, scale)

/* Sets y [D, TILE] to x transposed: column r is row r of x, and columns rows to tile_round(rows) are zero. */
static void pack_turned(float *y, const void *x, int64_t x_step, int64_t rows, const Heads *h) {
    for (int64_t r = 0; r < rows; r++) SIMD(prefetch_head)(x, r * x_step, h);
    if (rows % LANES)
        for (int64_t d = 0; d < h->D; d++) f32x16_store(y + d * TILE + rows / LANES * LANES, f32x16_all(0.0f));
    transpose(y, TILE, x, x_step, rows, h->D, h->type, 1.0f);
}

/* Sets lanes above `last` to -infinity; last is 0 to 15. */
SIMD_INLINE f32x16 attention_masked(f32x16 v, int64_t last) {
    static const float edge[2 * LANES] = {[LANES] = -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
                                          -INFINITY,           -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY,
                                          -INFINITY,           -INFINITY, -INFINITY, -INFINITY};
    return v + f32x16_load(edge + LANES - 1 - last);
}
#endif
