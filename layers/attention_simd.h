/* attention_simd.h - the kernels of attention.c: a thread's share of attention's forward tiles. Compiled once per
 * instruction set (core/simd_each.h). */
#include "layers/act_simd.h"
#include "layers/transpose_simd.h"
#include "layers/tile_simd.h"
#include "layers/attention_pack.h"

/* Replaces the scores of a tile by p = exp(score - top) and adds their lanewise sums to w->sum. Sums under a lower
 * maximum shrink. */
static void SIMD(softmax_tile)(ForwardScratch w, int64_t wide, int64_t rows, int64_t columns, TileForm form) {
    for (int64_t row = 0; row < rows; row += LANES) {
        int64_t end = form == TILE_LOWER_RESULT ? row + LANES : columns; /* columns from `end` on are not set */
        float   highest[LANES * LANES], turned[LANES * LANES];
        for (int64_t r = 0; r < LANES; r++) {
            float *p = w.scores + (row + r) * TILE;
            if (form == TILE_LOWER_RESULT) f32x16_store(p + row, attention_masked(f32x16_load(p + row), r));
            f32x16 high = f32x16_load(p);
            for (int64_t c = LANES; c < end; c += LANES) high = f32x16_max(high, f32x16_load(p + c));
            f32x16_store(highest + r * LANES, high);
        }
        transpose(turned, LANES, highest, LANES, LANES, LANES, F32, 1.0f);
        f32x16 before = f32x16_load(w.top + row), top = before;
        for (int64_t r = 0; r < LANES; r++) top = f32x16_max(top, f32x16_load(turned + r * LANES));
        f32x16_store(w.top + row, top);
        f32x16_store(w.shrink + row, f32x16_exp(before - top));
        for (int64_t r = row; r < row + LANES; r++) {
            f32x16 row_top = f32x16_all(w.top[r]), shrink = f32x16_all(w.shrink[r]), sum = f32x16_load(w.sum + r * LANES) * shrink;
            for (int64_t c = 0; c < end; c += LANES) {
                f32x16 p = f32x16_exp(f32x16_load(w.scores + r * TILE + c) - row_top);
                f32x16_store(w.scores + r * TILE + c, p);
                sum += p;
            }
            f32x16_store(w.sum + r * LANES, sum);
            if (w.shrink[r] == 1.0f) continue;
            for (int64_t d = 0; d < wide; d += LANES) f32x16_store(w.y + r * wide + d, f32x16_load(w.y + r * wide + d) * shrink);
        }
    }
}

/* Computes one tile of queries. w.k and w.v hold the head's keys and values. */
static void SIMD(forward_tile)(const Forward *job, ForwardScratch w, int64_t head, int64_t tile) {
    const Heads *h = &job->heads;
    int64_t      rows = attention_rows(tile, h->T), padded = tile_round(rows), last = attention_place(h, tile);
    SIMD(pack_rows)(h->type, w.q, attention_queries(h, head, tile), h->columns, rows, h, h->scale);
    memset(w.y, 0, (size_t)(padded * h->wide) * sizeof(float));
    memset(w.sum, 0, (size_t)(padded * LANES) * sizeof(float));
    for (int64_t r = 0; r < padded; r++) w.top[r] = h->starts ? NO_SCORE : -INFINITY;
    for (int64_t keys = attention_first_tile(h, head, tile); keys <= last; keys++) {
        int64_t  columns = tile_round(attention_rows(keys, h->context.ranks * h->T));
        TileForm form = keys == last ? TILE_LOWER_RESULT : TILE_FULL;
        tile_product((TileProduct){w.scores, w.q, w.k + keys * TILE * h->D, TILE, h->wide, 1, TILE, padded, columns, h->D, TILE_SET,
                                   form});
        attention_mask_documents(w.scores, h, head, tile, keys);
        SIMD(softmax_tile)(w, h->wide, padded, columns, form);
        tile_product((TileProduct){w.y, w.scores, w.v + keys * TILE * h->wide, h->wide, TILE, 1, h->wide, padded, h->wide, columns,
                                   TILE_ADD, keys == last ? TILE_LOWER_FACTOR : TILE_FULL});
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = tile * TILE + r, at = (head / h->H * h->T + t) * h->C + head % h->H * h->D;
        float   sum = f32x16_sum(f32x16_load(w.sum + r * LANES));
        job->lse[head * h->T + t] = w.top[r] + logf(sum);
        for (int64_t d = 0; d < h->D; d += LANES)
            act16_store_n(job->y, at + d, act16_count(d, h->D), h->type, f32x16_load(w.y + r * h->wide + d) / f32x16_all(sum));
    }
}

static void SIMD(forward_share)(const Forward *job, ForwardScratch w, Share share) {
    const Heads *h = &job->heads;
    int64_t      packed = -1;
    for (int64_t item = share.first; item < share.end; item++) {
        int64_t head = item / h->tiles, group = head / h->group; /* heads of a group share the packed keys and values */
        if (group != packed) {
            for (int64_t keys = 0; keys < h->key_tiles; keys++) {
                int64_t rows = attention_rows(keys, h->context.ranks * h->T), step = attention_key_step(h);
                pack_turned(w.k + keys * TILE * h->D, attention_keys(h, PART_K, head, keys), step, rows, h);
                SIMD(pack_rows)(h->type, w.v + keys * TILE * h->wide, attention_keys(h, PART_V, head, keys), step,
                                rows, h, 1.0f);
            }
            packed = group;
        }
        SIMD(forward_tile)(job, w, head, attention_tile(item % h->tiles, h->tiles));
    }
}
