/* rope.c - CPU side of the rope ops in layers.h. A work item is a place in the sequence: its cosines and sines are
 * computed once, and rotate that row of every sequence. */
#include <math.h>
#include <omp.h>

#include "layers/act_simd.h"
#include "layers/contracts.h"
#include "layers/rope_angle.h"

typedef struct {
    Tensor       qkv;
    const float *frequency;  /* borrowed, [half]          */
    int64_t      half, heads, T, first;
    Positions    at;
    float        direction;  /* 1, or -1 to rotate back */
} Rope;

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
/* Rotates the rows at place t of every sequence. table [2][padded] holds the cosines and sines. */
static void turn(const Rope *r, int64_t t, float *table, int64_t padded) {
    int64_t position = r->first + POSITION_OF(r->at, t);
    float  *sine = table + padded;
    for (int64_t i = 0; i < r->half; i++) {
        float angle = ROPE_RADIANS(ROPE_TURNS(position, r->frequency[i]));
        table[i] = cosf(angle);
        sine[i] = r->direction * sinf(angle);
    }
    for (int64_t row = t; row < r->qkv.dim[0]; row += r->T)
        rope_row(r->qkv.type, r->qkv.data, row * r->qkv.dim[1], table, sine, r->heads, r->half);
}

static void rope(Stream *s, Rope r, int is_dry) {
    int64_t padded = (r.half + LANES - 1) / LANES * LANES;
    size_t  mark = arena_mark(&s->scratch);
    float  *tables = (float *)arena_take(&s->scratch, (size_t)(omp_get_max_threads() * 2 * padded) * sizeof(float));
    if (!is_dry) {
        #pragma omp parallel for schedule(static)
        for (int64_t t = 0; t < r.T; t++) turn(&r, t, tables + omp_get_thread_num() * 2 * padded, padded);
    }
    arena_release(&s->scratch, mark);
}

static Rope rope_of(Tensor qkv, Tensor frequencies, HeadShape h, int64_t T, int64_t first, ContextPart context) {
    return (Rope){.qkv = qkv, .frequency = (const float *)frequencies.data, .half = h.size / 2,
                  .heads = h.query + h.key, .T = T, .first = first, .at = positions_of(context, T),
                  .direction = 1.0f};
}

void rope_forward(Stream *s, Tensor qkv, Tensor frequencies, HeadShape h, int64_t T, int64_t first,
                  ContextPart context) {
    EXPECT_ACT(qkv);
    int is_dry = rope_contract(s, "rope_forward", qkv, frequencies, h, T, first);
    rope(s, rope_of(qkv, frequencies, h, T, first, context), is_dry);
}

void rope_backward(Stream *s, Tensor dqkv, Tensor frequencies, HeadShape h, int64_t T, int64_t first,
                   ContextPart context) {
    EXPECT_ACT(dqkv);
    int  is_dry = rope_contract(s, "rope_backward", dqkv, frequencies, h, T, first);
    Rope r = rope_of(dqkv, frequencies, h, T, first, context);
    r.direction = -1.0f;
    rope(s, r, is_dry);
}
#endif
