/* transpose_simd.h - transposes matrices and widens them to f32 on their way into a packed tile. CPU only.
 *
 * A block of L x L floats, L to a register, is transposed in log2(L) rounds. Interleaving register i with register i +
 * L/2 rotates the bits of (row, column) by one place. After log2(L) rounds row and column have been exchanged.
 */
#ifndef TRAIN_GPT_LAYERS_TRANSPOSE_SIMD_H
#define TRAIN_GPT_LAYERS_TRANSPOSE_SIMD_H

#include "layers/act_simd.h"

#define REGISTER_FLOATS (SIMD_BYTES / 4)
#if SIMD_BYTES == 64
#define INTERLEAVE_LOW(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define INTERLEAVE_HIGH(a, b)                                                                                          \
    __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif SIMD_BYTES == 32
#define INTERLEAVE_LOW(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define INTERLEAVE_LOW(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define INTERLEAVE_HIGH(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* y[j * y_step + i] = x[i * x_step + j] for i, j < REGISTER_FLOATS, f32. */
SIMD_INLINE void transpose_block(float *y, int64_t y_step, const float *x, int64_t x_step) {
    enum { L = REGISTER_FLOATS };
    f32reg even[L], odd[L];
    for (int i = 0; i < L; i++) memcpy(&even[i], x + i * x_step, SIMD_BYTES);
    for (int round = 1; round < L; round *= 4) {
        for (int i = 0; i < L / 2; i++) {
            odd[2 * i]     = INTERLEAVE_LOW(even[i], even[i + L / 2]);
            odd[2 * i + 1] = INTERLEAVE_HIGH(even[i], even[i + L / 2]);
        }
        /* 1 in the last iteration if the number of rounds is odd. An iteration does two rounds; 8 floats need three */
        int done = 2 * round >= L;
        for (int i = 0; i < L / 2; i++) {
            even[2 * i]     = done ? odd[2 * i] : INTERLEAVE_LOW(odd[i], odd[i + L / 2]);
            even[2 * i + 1] = done ? odd[2 * i + 1] : INTERLEAVE_HIGH(odd[i], odd[i + L / 2]);
        }
    }
    for (int i = 0; i < L; i++) memcpy(y + i * y_step, &even[i], SIMD_BYTES);
}

/* y[c * y_step + r] = x[r * x_step + c] for r < rows, c < columns; x act, y f32. */
static void transpose(float *y, int64_t y_step, const void *x, int64_t x_step, int64_t rows, int64_t columns,
                      DType type) {
    for (int64_t c = 0; c < columns; c += LANES) {
        int64_t wide = act16_count(c, columns);
        for (int64_t r = 0; r < rows; r += LANES) {
            int64_t high = act16_count(r, rows);
            float   block[LANES * LANES];
            for (int64_t i = 0; i < high; i++)
                f32x16_store(block + i * LANES, act16_load_n(x, (r + i) * x_step + c, wide, type));
            for (int64_t i = high; i < LANES; i++) f32x16_store(block + i * LANES, f32x16_all(0.0f));
            float turned[LANES * LANES];
            for (int i = 0; i < LANES; i += REGISTER_FLOATS)
                for (int j = 0; j < LANES; j += REGISTER_FLOATS)
                    transpose_block(turned + j * LANES + i, LANES, block + i * LANES + j, LANES);
            for (int64_t i = 0; i < wide; i++)
                act16_store_n(y, (c + i) * y_step + r, high, F32, f32x16_load(turned + i * LANES));
        }
    }
}

#endif
