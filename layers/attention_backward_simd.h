/* attention_backward_simd.h - the kernels of attention_backward.c: a thread's share of attention's backward items.
 * Compiled once per instruction set (core/simd_each.h). */
#include "layers/act_simd.h"
#include "layers/transpose_simd.h"
#include "layers/tile_simd.h"
#include "layers/attention_pack.h"

/* Loads the queries [TILE] of a tile, and dy, lse and delta for their rows of p and ds. Rows past the sequence are zero
 * and so add nothing. */
static void SIMD(load_queries)(const Backward *job, BackwardScratch w, int64_t head, int64_t tile) {
    const Heads *h = &job->heads;
    int64_t      rows = attention_rows(tile, h->T), at = (head / h->H * h->T + tile * TILE) * h->C + head % h->H * h->D;
    size_t       at_bytes = (size_t)at * dtype_bytes(h->type);
    float       *dy = w.dy + tile * TILE * h->wide, *lse = w.lse + tile * TILE, *delta = w.delta + tile * TILE;
    SIMD(pack_rows)(h->type, w.q + tile * TILE * h->wide, attention_queries(h, head, tile), h->columns, rows, h, h->scale);
    SIMD(pack_rows)(h->type, dy, (const char *)h->dy + at_bytes, h->C, rows, h, 1.0f);
    const float *given = job->delta ? job->delta + (head % h->H * h->B + head / h->H) * h->T + tile * TILE : NULL;
    for (int64_t r = 0; r < tile_round(rows); r++) {
        f32x16 sum = f32x16_all(0.0f);
        lse[r] = r < rows ? job->lse[head * h->T + tile * TILE + r] : 0.0f;
        if (given) {
            delta[r] = r < rows ? given[r] : 0.0f;
            continue;
        }
        if (r + ATTENTION_AHEAD < rows) SIMD(prefetch_head)(job->y, at + (r + ATTENTION_AHEAD) * h->C, h);
        for (int64_t d = 0; r < rows && d < h->D; d += LANES)
            sum += f32x16_load(dy + r * h->wide + d) * act16_load_n(job->y, at + r * h->C + d, act16_count(d, h->D), h->type);
        delta[r] = f32x16_sum(sum);
    }
}

/* Computes delta of the heads of a row, `step` apart, with load_queries' order of additions. */
SIMD_INLINE void SIMD(delta_row_of)(DType type, float *delta, int64_t step, const void *dy, const void *y, int64_t row, int64_t heads,
                                    int64_t D) {
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
ACT_KERNEL(delta_row, (DType type, float *delta, int64_t step, const void *dy, const void *y, int64_t row, int64_t heads, int64_t D),
           delta, step, dy, y, row, heads, D)

static void SIMD(load_keys)(const Backward *job, BackwardScratch w, int64_t head, int64_t tile) {
    const Heads *h = &job->heads;
    int64_t      rows = attention_rows(tile, h->context.ranks * h->T), step = attention_key_step(h);
    const void  *k = attention_keys(h, PART_K, head, tile), *v = attention_keys(h, PART_V, head, tile);
    SIMD(pack_rows)(h->type, w.k, k, step, rows, h, 1.0f);
    pack_turned(w.k_turned, k, step, rows, h);
    pack_turned(w.v_turned, v, step, rows, h);
}

/* Sets w.p and w.ds of a tile of queries and a tile of keys, both loaded. In a tile on the diagonal, elements above it
 * are zero; past the 16 columns that hold the diagonal they are not set. */
static void SIMD(scores)(const Heads *h, BackwardScratch w, int64_t head, int64_t tile, int64_t keys, int64_t rows, int64_t columns,
                         TileForm form) {
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
static void SIMD(store_rows)(const Heads *h, void *y, int64_t at, int64_t step, int64_t rows, const float *x, float scale) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < h->D; d += LANES)
            act16_store_n(y, at + r * step + d, act16_count(d, h->D), h->type, scale * f32x16_load(x + r * h->wide + d));
}
static void SIMD(store_queries)(const Backward *job, int64_t head, int64_t tile, const float *x) {
    const Heads *h = &job->heads;
    SIMD(store_rows)(h, job->dqkv, attention_query_at(h, head, tile), h->columns, attention_rows(tile, h->T), x,
                     h->scale);
}
static void SIMD(store_keys)(const Backward *job, KeyPart part, int64_t head, int64_t tile, const float *x) {
    const Heads *h = &job->heads;
    SIMD(store_rows)(h, h->keys ? job->dkeys : job->dqkv, attention_key_at(h, part, head, tile), attention_key_step(h),
                     attention_rows(tile, h->context.ranks * h->T), x, 1.0f);
}

/* dq of a tile of queries += ds k of a tile of keys, whose scores are already computed. */
static void SIMD(add_dq)(const Heads *h, BackwardScratch w, int64_t tile, int64_t rows, int64_t columns, int on_diagonal) {
    tile_product((TileProduct){w.dq + tile * TILE * h->wide, w.ds, w.k, h->wide, TILE, 1, h->wide, rows, h->wide, columns, TILE_ADD,
                               on_diagonal ? TILE_LOWER_FACTOR : TILE_FULL});
}

/* Adds what a head contributes to dk and dv of a tile of keys, after its queries are loaded; with item BY_HEAD also to
 * dq. The first head of a group starts the sums at zero, the last one stores them. */
static void SIMD(backward_keys)(const Backward *job, BackwardScratch w, int64_t head, int64_t keys, BackwardItem item) {
    const Heads *h = &job->heads;
    int64_t      columns = tile_round(attention_rows(keys, h->context.ranks * h->T)),
            sums = keys % backward_sums(h) * TILE * h->wide;
    float       *dk = w.dk + sums, *dv = w.dv + sums;
    SIMD(load_keys)(job, w, head, keys);
    if (head % h->group == 0) {
        memset(dk, 0, (size_t)(columns * h->wide) * sizeof(float));
        memset(dv, 0, (size_t)(columns * h->wide) * sizeof(float));
    }
    for (int64_t tile = 0; tile < h->tiles; tile++) {
        int64_t  rows = tile_round(attention_rows(tile, h->T)), at = tile * TILE * h->wide, place = attention_place(h, tile);
        TileForm form = place == keys ? TILE_UPPER_FACTOR : TILE_FULL;
        if (place < keys || attention_first_tile(h, head, tile) > keys) continue;
        SIMD(scores)(h, w, head, tile, keys, rows, columns, place == keys ? TILE_LOWER_RESULT : TILE_FULL);
        tile_product((TileProduct){dv, w.p, w.dy + at, h->wide, 1, TILE, h->wide, columns, h->wide, rows, TILE_ADD, form});
        tile_product((TileProduct){dk, w.ds, w.q + at, h->wide, 1, TILE, h->wide, columns, h->wide, rows, TILE_ADD, form});
        if (item == BY_HEAD) SIMD(add_dq)(h, w, tile, rows, columns, place == keys);
    }
    if (head % h->group < h->group - 1) return;
    SIMD(store_keys)(job, PART_K, head, keys, dk);
    SIMD(store_keys)(job, PART_V, head, keys, dv);
}

/* Computes dq of a tile of queries. */
static void SIMD(backward_queries)(const Backward *job, BackwardScratch w, int64_t head, int64_t tile) {
    const Heads *h = &job->heads;
    int64_t      rows = tile_round(attention_rows(tile, h->T)), last = attention_place(h, tile);
    SIMD(load_queries)(job, w, head, tile);
    memset(w.dq + tile * TILE * h->wide, 0, (size_t)(rows * h->wide) * sizeof(float));
    for (int64_t keys = attention_first_tile(h, head, tile); keys <= last; keys++) {
        int64_t columns = tile_round(attention_rows(keys, h->context.ranks * h->T));
        SIMD(load_keys)(job, w, head, keys);
        SIMD(scores)(h, w, head, tile, keys, rows, columns, last == keys ? TILE_LOWER_RESULT : TILE_FULL);
        SIMD(add_dq)(h, w, tile, rows, columns, last == keys);
    }
    SIMD(store_queries)(job, head, tile, w.dq + tile * TILE * h->wide);
}

/* Computes one query head: dq, and what it adds to dk and dv. Its queries are loaded. */
static void SIMD(backward_head)(const Backward *job, BackwardScratch w, int64_t head) {
    const Heads *h = &job->heads;
    memset(w.dq, 0, (size_t)(h->tiles * TILE * h->wide) * sizeof(float));
    for (int64_t keys = 0; keys < h->key_tiles; keys++) SIMD(backward_keys)(job, w, head, keys, BY_HEAD);
    for (int64_t t = 0; t < h->tiles; t++) SIMD(store_queries)(job, head, t, w.dq + t * TILE * h->wide);
}

static void SIMD(backward_share)(const Backward *job, BackwardScratch w, Share share, BackwardItem item) {
    const Heads *h = &job->heads;
    int64_t      loaded = -1;
    for (int64_t i = share.first; i < share.end; i++) {
        int64_t tiles = item == BY_HEAD ? 1 : item == BY_KEYS ? h->key_tiles : h->tiles,
                tile = attention_tile(i % tiles, tiles);
        if (item == BY_QUERIES) {
            SIMD(backward_queries)(job, w, i / tiles, tile);
            continue;
        }
        for (int64_t head = i / tiles * h->group; head < (i / tiles + 1) * h->group; head++) {
            if (head != loaded)
                for (int64_t t = 0; t < h->tiles; t++) SIMD(load_queries)(job, w, head, t);
            loaded = head;
            if (item == BY_KEYS) SIMD(backward_keys)(job, w, head, tile, item);
            else SIMD(backward_head)(job, w, head);
        }
    }
}
