/* simd_ops.h - operations on 16 floats; included by simd_each.h, once per instruction set.
 *
 * Where a vector is longer than a register GCC 12 does + - * / & | << register by register, but compares and converts
 * lane by lane. Such operations are therefore written on registers: SIMD_BYTES long, REGISTERS of them in a vector.
 */
#define REGISTERS ((int)(sizeof(f32x16) / SIMD_BYTES))
typedef float    SIMD(f32reg) __attribute__((vector_size(SIMD_BYTES)));
typedef int32_t  SIMD(i32reg) __attribute__((vector_size(SIMD_BYTES)));
typedef uint32_t SIMD(u32reg) __attribute__((vector_size(SIMD_BYTES)));
#define f32reg SIMD(f32reg)
#define i32reg SIMD(i32reg)
#define u32reg SIMD(u32reg)

SIMD_INLINE f32x16 f32x16_load(const float *p) {
    f32x16 v;
    memcpy(&v, p, sizeof v);
    return v;
}
SIMD_INLINE void   f32x16_store(float *p, f32x16 v) { memcpy(p, &v, sizeof v); }
SIMD_INLINE f32x16 f32x16_all(float x) { return x - (f32x16){0}; } /* x - 0 is x and costs nothing; 0 + x would need an
                                                                    * addition, because of -0 */

/* Return the larger and the smaller of a and b; b if either is NaN or both are zeros. */
SIMD_INLINE f32reg SIMD(reg_max)(f32reg a, f32reg b) {
#if SIMD_BYTES == 64
    return (f32reg)_mm512_max_ps((__m512)a, (__m512)b);
#elif SIMD_BYTES == 32
    return (f32reg)_mm256_max_ps((__m256)a, (__m256)b);
#else
    i32reg above = a > b;
    return (f32reg)(((i32reg)a & above) | ((i32reg)b & ~above));
#endif
}
SIMD_INLINE f32reg SIMD(reg_min)(f32reg a, f32reg b) {
#if SIMD_BYTES == 64
    return (f32reg)_mm512_min_ps((__m512)a, (__m512)b);
#elif SIMD_BYTES == 32
    return (f32reg)_mm256_min_ps((__m256)a, (__m256)b);
#else
    i32reg below = a < b;
    return (f32reg)(((i32reg)a & below) | ((i32reg)b & ~below));
#endif
}
SIMD_INLINE f32x16 f32x16_max(f32x16 a, f32x16 b) {
    f32reg x[REGISTERS], y[REGISTERS];
    memcpy(x, &a, sizeof a);
    memcpy(y, &b, sizeof b);
    for (int k = 0; k < REGISTERS; k++) x[k] = SIMD(reg_max)(x[k], y[k]);
    memcpy(&a, x, sizeof a);
    return a;
}
/* Return the sum and the maximum over lanes, in a fixed order. */
SIMD_INLINE float f32x16_sum(f32x16 v) {
    float x[LANES];
    memcpy(x, &v, sizeof x);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}
SIMD_INLINE float f32x16_top(f32x16 v) {
    float x[LANES];
    memcpy(x, &v, sizeof x);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++) x[i] = x[i] > x[i + half] ? x[i] : x[i + half];
    return x[0];
}
SIMD_INLINE f32x16 f32x16_sqrt(f32x16 v) {
    float x[LANES];
    memcpy(x, &v, sizeof x);
    for (int k = 0; k < LANES; k++) x[k] = sqrtf(x[k]);
    memcpy(&v, x, sizeof v);
    return v;
}

/* Conversions between bf16 in memory and f32 in registers. They round to nearest even; NaN stays NaN. */
SIMD_INLINE f32x16 f32x16_load_bf16(const uint16_t *p) {
#if SIMD_BYTES == 64
    return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif SIMD_BYTES == 32
    __m256i half[2];
    for (int k = 0; k < 2; k++)
        half[k] = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8 * k))), 16);
    f32x16 v;
    memcpy(&v, half, sizeof v);
    return v;
#else
    uint32_t u[LANES];
    for (int k = 0; k < LANES; k++) u[k] = (uint32_t)p[k] << 16;
    f32x16 v;
    memcpy(&v, u, sizeof v);
    return v;
#endif
}
SIMD_INLINE u32reg SIMD(reg_round_bf16)(u32reg u) { /* the result is in the high halves; the low halves are undefined */
#if SIMD_BYTES == 64
    __m512i   x = (__m512i)u, up = _mm512_add_epi32(x, _mm512_set1_epi32(0x7fff));
    __mmask16 is_odd = _mm512_test_epi32_mask(x, _mm512_set1_epi32(0x10000));
    __mmask16 is_nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    up = _mm512_mask_add_epi32(up, is_odd, up, _mm512_set1_epi32(1));
    return (u32reg)_mm512_mask_or_epi32(up, is_nan, x, _mm512_set1_epi32(0x400000));
#else
    u32reg nan = (u32reg)((i32reg)(u & 0x7fffffffu) > 0x7f800000);
    return (u + ((0x7fffu + ((u >> 16) & 1u)) & ~nan)) | (nan & 0x400000u);
#endif
}
SIMD_INLINE u32x16 SIMD(round_bf16)(f32x16 v) {
    u32reg u[REGISTERS];
    memcpy(u, &v, sizeof v);
    for (int k = 0; k < REGISTERS; k++) u[k] = SIMD(reg_round_bf16)(u[k]);
    u32x16 rounded;
    memcpy(&rounded, u, sizeof v);
    return rounded;
}
SIMD_INLINE void f32x16_store_bf16(uint16_t *p, f32x16 v) {
    u32x16 h = SIMD(round_bf16)(v) >> 16;
#if SIMD_BYTES == 64
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)h));
#elif SIMD_BYTES == 32
    __m256i u[2];
    memcpy(u, &h, sizeof h);
    __m256i mixed = _mm256_packus_epi32(u[0], u[1]); /* _mm256_packus_epi32 packs within 128-bit halves */
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(mixed, 0xd8));
#else
    for (int k = 0; k < LANES; k++) p[k] = (uint16_t)h[k];
#endif
}

/* Load and store 32 bf16 without moving lanes: v[0] has the low halves of sixteen 32-bit words, which are every second
 * value, and v[1] the high halves. */
SIMD_INLINE void f32x16_load_bf16_halves(f32x16 v[2], const uint16_t *p) {
    u32x16 words;
    memcpy(&words, p, sizeof words);
    v[0] = (f32x16)(words << 16), v[1] = (f32x16)(words & 0xffff0000u);
}
SIMD_INLINE void f32x16_store_bf16_halves(uint16_t *p, const f32x16 v[2]) {
    u32x16 words = (SIMD(round_bf16)(v[0]) >> 16) | (SIMD(round_bf16)(v[1]) & 0xffff0000u);
    memcpy(p, &words, sizeof words);
}

/* Returns exp(x), relative error under 2 ulp for x in [-87.3, 88.3]. Below that it returns 0, above it exp(88.3); NaN
 * stays NaN. x = n ln2 + r with |r| <= ln2/2. The polynomial is Taylor's up to r^7/7! (remainder below 2^-27). */
SIMD_INLINE f32reg SIMD(reg_exp)(f32reg x) {
    f32reg zero = {0}, low = zero - 87.336544f, high = zero + 88.3762589f;
    f32reg clamped = SIMD(reg_min)(high, SIMD(reg_max)(low, x));
    f32reg magic = zero + 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    f32reg shifted = clamped * 1.44269504f + magic;
    f32reg n = shifted - magic;
    f32reg r = clamped - n * 0.693359375f; /* ln2 as a sum of two constants, the first exact in 10 bits */
    r = r - n * -2.12194440e-4f;
    f32reg p = zero + 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    i32reg power = ((i32reg)shifted << 23) + (127 << 23); /* the low bits of shifted hold n; the constant's bits shift out */
    i32reg below = x < low;
    return (f32reg)((i32reg)(p * (f32reg)power) & ~below);
}
SIMD_INLINE f32x16 f32x16_exp(f32x16 x) {
    f32reg part[REGISTERS];
    memcpy(part, &x, sizeof x);
    for (int k = 0; k < REGISTERS; k++) part[k] = SIMD(reg_exp)(part[k]);
    memcpy(&x, part, sizeof x);
    return x;
}

#undef f32reg
#undef i32reg
#undef u32reg
#undef REGISTERS
