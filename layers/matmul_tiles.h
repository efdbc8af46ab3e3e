/* matmul_tiles.h - how the CPU cuts a product into tiles that its shape alone fixes, so that any number of threads
 * gives the same bits. */
#ifndef TRAIN_GPT_LAYERS_MATMUL_TILES_H
#define TRAIN_GPT_LAYERS_MATMUL_TILES_H

#include "layers/matmul.h"

/* TILE_M x TILE_N is the largest tile. STRIP_M x STRIP_K is the largest strip of a transposed a, which is transposed
 * before the product. */
enum { TILE_M = 512, TILE_N = 1024, STRIP_M = 384, STRIP_K = 1024, LEAST_TILE_M = 96, ENOUGH_TILES = 6 };

static inline int64_t at_most(int64_t x, int64_t bound) { return x < bound ? x : bound; }
static inline int64_t parts_of(int64_t n, int64_t most) { return (n + most - 1) / most; }

typedef struct { int64_t m, n, rows, columns; } Cut; /* tiles of at most m x n; `rows` x `columns` of them */

/* Returns the cut. Large tiles are fast, small ones keep many threads busy. */
static inline Cut cut_of(Matmul p, int64_t m) {
    Cut cut = {m, (parts_of(p.n, parts_of(p.n, TILE_N)) + 15) / 16 * 16, 0, 0};
    cut.columns = parts_of(p.n, cut.n);
    while (cut.m / 2 >= LEAST_TILE_M && parts_of(p.m, cut.m) * cut.columns < ENOUGH_TILES) cut.m /= 2;
    cut.rows = parts_of(p.m, cut.m);
    return cut;
}

/* Returns x from (row, column) on. */
static inline Matrix matrix_from(Matrix x, int64_t row, int64_t column) {
    if (x.data)
        x.data = (char *)x.data +
                 (size_t)(x.order == PLAIN ? row * x.ld + column : column * x.ld + row) * dtype_bytes(x.type);
    return x;
}

static inline Matmul tile_of(Matmul p, Cut cut, int64_t tile) {
    int64_t i = tile / cut.columns * cut.m, j = tile % cut.columns * cut.n;
    p.c = matrix_from(p.c, i, j), p.a = matrix_from(p.a, i, 0), p.b = matrix_from(p.b, 0, j);
    if (p.bias) p.bias = (const char *)p.bias + (size_t)j * dtype_bytes(p.a.type);
    p.m = at_most(p.m - i, cut.m), p.n = at_most(p.n - j, cut.n);
    return p;
}

#endif
