/* rope.c - CPU side of rope in layers.h. A work item is a place in the sequence: its cosines and sines are
 * computed once, and rotate that row of every sequence. */
#include <math.h>
#include <omp.h>

#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/rope_angle.h"

/* Rotates channels i and i + half of each head, from element `at` of x on, by the angle of cosine c[i] and sine
 * s[i]. */
SIMD_INLINE void rope_row_of(DType type, void *x, int64_t at, const float *c, const float *s, int64_t heads,
                             int64_t half) {
    for (int64_t head = 0; head < heads; head++, at += 2 * half)
        for (int64_t i = 0; i < half; i += LANES) {
            int64_t n = act16_count(i, half);
            f32x16  low = act16_load_n(x, at + i, n, type), high = act16_load_n(x, at + half + i, n, type),
                    cosine = f32x16_load(c + i), sine = f32x16_load(s + i);
            act16_store_n(x, at + i, n, type, low * cosine - high * sine);
            act16_store_n(x, at + half + i, n, type, high * cosine + low * sine);
        }
}
ACT_KERNEL(rope_row, (DType type, void *x, int64_t at, const float *c, const float *s, int64_t heads, int64_t half), x,
           at, c, s, heads, half)

#if SIMD_HOST
void rope(Stream *s, Tensor qkv, Tensor frequencies, HeadShape h, int64_t T, int64_t first, ContextPart context,
          RopeDirection direction) {
    EXPECT_ACT(qkv);
    int          is_dry = rope_contract(s, qkv, frequencies, h, T, first, direction);
    int64_t      half = h.size / 2, padded = (half + LANES - 1) / LANES * LANES;
    const float *frequency = (const float *)frequencies.data;
    Positions    at = positions_of(context, T);
    size_t       mark = arena_mark(&s->scratch);
    float *tables = (float *)arena_take(&s->scratch, (size_t)(omp_get_max_threads() * 2 * padded) * sizeof(float));
    #pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < (is_dry ? 0 : T); t++) {
        int64_t position = first + POSITION_OF(at, t);
        float  *cosine = tables + omp_get_thread_num() * 2 * padded, *sine = cosine + padded;
        for (int64_t i = 0; i < half; i++) {
            float angle = ROPE_RADIANS(ROPE_TURNS(position, frequency[i]));
            cosine[i] = cosf(angle);
            sine[i] = (float)direction * sinf(angle);
        }
        for (int64_t row = t; row < qkv.dim[0]; row += T)
            rope_row(qkv.type, qkv.data, row * qkv.dim[1], cosine, sine, h.query + h.key, half);
    }
    arena_release(&s->scratch, mark);
}
#endif
