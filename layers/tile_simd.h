/* tile_simd.h - small matrix products on packed f32 tiles, the inner loops of attention. CPU only; included in every
 * pass of core/simd_each.h.
 *
 * A block of c is held in registers while the depth runs: TILE_ROWS rows by up to TILE_WIDTH registers, chosen so that
 * accumulators, a row of b and one broadcast value of a fit the register file (32 in AVX-512, else 16). Triangular
 * tiles skip known zeros.
 */
#ifndef TRAIN_GPT_LAYERS_TILE_SIMD_H
#define TRAIN_GPT_LAYERS_TILE_SIMD_H

#include "core/simd.h"

enum { TILE = 64 }; /* queries, and keys, of a tile: 16 KiB of scores */

typedef enum { TILE_SET, TILE_ADD } TileWrite;
typedef enum {
    TILE_FULL,
    TILE_LOWER_RESULT, /* only columns <= row of c are needed */
    TILE_LOWER_FACTOR, /* a(i,p) is zero for p > i                            */
    TILE_UPPER_FACTOR  /* a(i,p) is zero for p < i                            */
} TileForm;

/* c = or += a b. a(i,p) is at a[i * a_row + p * a_step], so that either order of storage fits. b has `depth` rows of
 * b_step floats, c has `rows` rows of c_step floats. */
typedef struct {
    float       *c;
    const float *a, *b;
    int64_t      c_step, a_row, a_step, b_step;
    int64_t      rows, columns, depth; /* rows and columns are multiples of 16 */
    TileWrite    write;
    TileForm     form;
} TileProduct;

#define tile_product SIMD(tile_product)

static inline int64_t tile_round(int64_t n) { return (n + LANES - 1) / LANES * LANES; }

#endif

#ifdef SIMD_PASS
typedef float SIMD(TileRegister) __attribute__((vector_size(SIMD_BYTES)));
#define TILE_FLOATS (SIMD_BYTES / 4)
#define TILE_ROWS 4
#define TILE_WIDTH (SIMD_BYTES == 64 ? 4 : 3)
#ifdef __clang__ /* GCC's pragma comes too late in clang for acc to leave memory: 26 instead of 86 GFLOP/s */
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Computes `width` registers by `rows` rows of c from (row, column) on. Both are constants, so acc stays in
 * registers. */
SIMD_INLINE void SIMD(tile_block)(const TileProduct *t, const int rows, const int width, int64_t row, int64_t column, int64_t first,
                                  int64_t last) {
    SIMD(TileRegister) acc[2 * TILE_ROWS][TILE_WIDTH], b[TILE_WIDTH];
    float *c = t->c + row * t->c_step + column;
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int k = 0; k < width; k++) {
            if (t->write == TILE_ADD) memcpy(&acc[i][k], c + i * t->c_step + k * TILE_FLOATS, SIMD_BYTES);
            else                      acc[i][k] = (SIMD(TileRegister)){0};
        }
    }
    const float *from_a = t->a + row * t->a_row + first * t->a_step, *from_b = t->b + first * t->b_step + column;
    const int64_t a_row = t->a_row, a_step = t->a_step, b_step = t->b_step;
    for (int64_t p = first; p < last; p++, from_a += a_step, from_b += b_step) {
        UNROLL for (int k = 0; k < width; k++) memcpy(&b[k], from_b + k * TILE_FLOATS, SIMD_BYTES);
        UNROLL for (int i = 0; i < rows; i++) {
            /* a in every lane; x - 0 is free, 0 + x is an addition */
            SIMD(TileRegister) a = from_a[i * a_row] - (SIMD(TileRegister)){0};
            UNROLL for (int k = 0; k < width; k++) acc[i][k] += a * b[k];
        }
    }
    UNROLL for (int i = 0; i < rows; i++) {
        UNROLL for (int k = 0; k < width; k++) memcpy(c + i * t->c_step + k * TILE_FLOATS, &acc[i][k], SIMD_BYTES);
    }
}

/* Computes all columns of `rows` rows of c from `row` on. `rows` is a constant. */
SIMD_INLINE void SIMD(tile_rows)(const TileProduct *t, const int rows, int64_t row) {
    int64_t columns = t->form == TILE_LOWER_RESULT && tile_round(row + 1) < t->columns ? tile_round(row + 1) : t->columns;
    int64_t first = t->form == TILE_UPPER_FACTOR ? row : 0;
    int64_t last = t->form == TILE_LOWER_FACTOR && row + rows < t->depth ? row + rows : t->depth;
    int64_t column = 0, widths = columns / TILE_FLOATS;
    if (rows == TILE_ROWS)
        for (; widths >= TILE_WIDTH; widths -= TILE_WIDTH, column += TILE_WIDTH * TILE_FLOATS)
            SIMD(tile_block)(t, rows, TILE_WIDTH, row, column, first, last);
    if (rows == TILE_ROWS && widths == 3) SIMD(tile_block)(t, rows, 3, row, column, first, last);
    if (widths == 2) SIMD(tile_block)(t, rows, 2, row, column, first, last);
    if (widths == 1) SIMD(tile_block)(t, rows, 1, row, column, first, last);
}

/* Computes c = or += a b. Narrow results take twice the rows where registers allow it. */
static void tile_product(TileProduct t) {
    if (SIMD_BYTES == 64 && t.columns <= 2 * TILE_FLOATS)
        for (int64_t row = 0; row < t.rows; row += 2 * TILE_ROWS) SIMD(tile_rows)(&t, 2 * TILE_ROWS, row);
    else
        for (int64_t row = 0; row < t.rows; row += TILE_ROWS) SIMD(tile_rows)(&t, TILE_ROWS, row);
}
#undef TILE_FLOATS
#undef TILE_WIDTH
#undef TILE_ROWS
#undef UNROLL
#endif
