/* fp8_tile.cuh - writes a bf16 tensor as 8-bit codes (core/tensor.h), in row-major order and transposed. The values
 * come from registers: in the cast of fp8.cu, and in its ops with an output in fp8, which then store no bf16 values.
 *
 * A block has a tile of 128 rows and 64 columns, a thread 4 rows of 8 columns: four loads of 16 bytes are in flight at
 * once. Each thread transposes its bytes in registers, four by four. In shared memory the bytes of four threads are
 * then neighbours, 16 rows of a column, and are written there without bank conflicts. From there 128 contiguous bytes
 * of a column are written to global memory at once.
 */
#ifndef TRAIN_GPT_LAYERS_FP8_TILE_CUH
#define TRAIN_GPT_LAYERS_FP8_TILE_CUH

#include <cuda_fp8.h>

#include "core/ptx.cuh"
#include "core/tensor.h"
#include "layers/bias.cuh"

enum {
    TILE_ROWS = 128, TILE_COLUMNS = 64, TILE_THREADS = 256,
    PACK8 = 8, THREAD_ROWS = 4, /* a thread has THREAD_ROWS rows of PACK8 columns of a tile */
    CHUNK = 16,                 /* number of neighbouring rows of a transposed column that are written at once */
    COLUMN_CHUNKS = TILE_ROWS / CHUNK, ROW_PACKS = TILE_COLUMNS / PACK8
};

/* Where a cast writes. plain [R,C] has rows `pitch` apart; turned [C,R_up] is transposed, with zeros in columns from R
 * on. Each of plain, turned, amax and counts may be NULL. If scale is NULL, only the maximum is computed. C and R_up
 * are multiples of 16. */
typedef struct {
    uint8_t            *plain, *turned;
    int64_t             R, C, R_up, pitch;
    const float        *scale;
    int32_t            *amax;
    unsigned long long *counts;
} Fp8Target;

/* --- values as stored --------------------------------------------------------------------------------------------- */

typedef Pack<uint32_t, PACK8 / 2> Pairs8; /* 8 neighbouring bf16 elements, two in a word, because splitting and joining
                                           * halves costs instructions */

DEVICE Pairs8 load_pairs(const bf16 *p) { return pack_load<uint32_t, PACK8 / 2>((const uint32_t *)p); }
DEVICE Pairs8 load_pairs_once(const bf16 *p) { return pack_load_once<uint32_t, PACK8 / 2>((const uint32_t *)p); }
DEVICE Pack<float, PACK8> pairs_to_f32(Pairs8 x) {
    Pack<float, PACK8> y;
    for (int i = 0; i < PACK8 / 2; i++)
        y.v[2 * i] = __uint_as_float(x.v[i] << 16), y.v[2 * i + 1] = __uint_as_float(x.v[i] & 0xffff0000u);
    return y;
}
DEVICE Pairs8 pairs_from_f32(Pack<float, PACK8> x) {
    Pairs8 y;
    for (int i = 0; i < PACK8 / 2; i++) y.v[i] = pack_pair<bf16>(x.v[2 * i], x.v[2 * i + 1]);
    return y;
}
DEVICE __nv_bfloat162 pair_of(uint32_t bits) {
    __nv_bfloat162 pair;
    memcpy((void *)&pair, &bits, sizeof pair);
    return pair;
}

/* --- casting ------------------------------------------------------------------------------------------------------ */

/* Record of a thread about the elements that it cast: bits of the largest |x| of the even and of the odd elements, how
 * many exceeded the type's largest value, how many became zero. */
typedef struct { uint32_t most; int over, vanished; } Seen;

/* Parameters of a cast to fp8 for two elements of bf16 at once; each field holds its value in both halves of a word. s
 * is the scale. |x| above `most` exceeds the type's largest value; |x| up to `least` becomes zero. */
typedef struct { __nv_bfloat162 s, least; uint32_t most; } CastScale;

/* masks and constants for two bf16 in a word, and for four codes in a word */
enum { SIGNLESS = 0x7fff7fff, LARGEST = 0x7f7f7f7f, ONE_EACH = 0x00010001, CODE_NANS = 0x7f7f7f7f };

/* Returns x in both halves of bf16. Exact, because x is a power of two, or 1.75 times one. */
DEVICE uint32_t both_halves(float x) { return __byte_perm(__float_as_uint(x), 0, 0x3232); }

/* Makes the CastScale of scale [FP8_SCALES], which holds 1/s and s, the factor of values before they are rounded. Half
 * of the smallest positive fp8 number is a tie between it and zero, and becomes zero. If scale is NULL nothing exceeds
 * the largest value. */
template <DType type> DEVICE CastScale cast_scale(const float *scale) {
    if (!scale) return {pair_of(both_halves(1.0f)), pair_of(0), SIGNLESS};
    float tie = fp8_power(fp8_bottom(type) - (type == E4M3 ? 3 : 2) - 1);
    return {pair_of(both_halves(scale[FP8_SCALE])), pair_of(both_halves(tie * scale[FP8_INVERSE])),
            both_halves(fp8_largest(type) * scale[FP8_INVERSE])};
}

typedef Pack<uint32_t, PACK8 / 4> Codes8; /* 8-bit codes of 8 neighbouring elements, the first in the lowest byte */

/* Corrects a pack in which some elements exceed the largest value; rare. Finite ones, which are the largest code
 * already, are counted. Infinities and NaN become NaN. */
DEVICE void mend_pack(Codes8 &c, Pairs8 x, uint32_t most, Seen *seen) {
    uint32_t fault[PACK8 / 2], over = 0;
    for (int i = 0; i < PACK8 / 2; i++) {
        __nv_bfloat162 size = pair_of(x.v[i] & SIGNLESS);
        fault[i] = __hgtu2_mask(size, pair_of(LARGEST));
        over += __hgt2_mask(size, pair_of(most)) & ~fault[i] & ONE_EACH;
    }
    seen->over += (over & 0xffff) + (over >> 16);
    for (int i = 0; i < PACK8 / 4; i++) {
        uint32_t bytes = __byte_perm(fault[2 * i], fault[2 * i + 1], 0x6420);
        c.v[i] = (c.v[i] & ~bytes) | (CODE_NANS & bytes);
    }
}

/* Returns x times the scale s, rounded to fp8, two elements at a time. s x is exact in bf16, because s is a power of
 * two, except where the result is 0 or too large anyway. */
template <DType type> DEVICE Codes8 cast_pack(Pairs8 x, const CastScale &by, Seen *seen) {
    Codes8 c = {};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
    device_check(false); /* never runs: a GPU with this code cannot multiply fp8, and the program has refused it
                          * before */
    return c;
#endif
    uint32_t most = 0, vanished = 0;
    #pragma unroll
    for (int i = 0; i < PACK8 / 2; i++) {
        uint32_t size = x.v[i] & SIGNLESS;
        float2   scaled = __bfloat1622float2(__hmul2(pair_of(x.v[i]), by.s));
        c.v[i / 2] |= (uint32_t)__nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, type == E4M3 ? __NV_E4M3 : __NV_E5M2)
                      << i % 2 * 16;
        vanished += __hle2_mask(pair_of(size), by.least) & ~__heq2_mask(pair_of(size), pair_of(0)) & ONE_EACH;
        most = __vmaxu2(most, size);
    }
    seen->most = __vmaxu2(seen->most, most);
    seen->vanished += (vanished & 0xffff) + (vanished >> 16);
    if (__vmaxu2(most, by.most) != by.most) mend_pack(c, x, by.most, seen);
    return c;
}

/* Combines what the lanes of a warp have recorded (Seen) about the values that they cast. Returns the result in each
 * lane. */
DEVICE Seen warp_seen(Seen seen) {
    for (int o = WARP / 2; o > 0; o /= 2) {
        seen.most = __vmaxu2(seen.most, __shfl_xor_sync(0xffffffffu, seen.most, o));
        seen.over += __shfl_xor_sync(0xffffffffu, seen.over, o);
        seen.vanished += __shfl_xor_sync(0xffffffffu, seen.vanished, o);
    }
    return seen;
}
DEVICE int most_seen(Seen seen) {
    uint32_t even = seen.most << 16, odd = seen.most & 0xffff0000u;
    return (int)(even > odd ? even : odd);
}

/* Adds to amax and counts in memory what the threads of a block have recorded (Seen) about the values that they cast. A
 * maximum and sums of integers do not depend on the order. */
DEVICE void note_seen(Seen seen, int32_t *amax, unsigned long long *counts) {
    SMEM(int, all, [3]);
    if (threadIdx.x < 3) all[threadIdx.x] = 0;
    __syncthreads();
    seen = warp_seen(seen);
    if (threadIdx.x % WARP == 0) {
        atomicMax(&all[0], most_seen(seen));
        if (seen.over) atomicAdd(&all[1], seen.over);
        if (seen.vanished) atomicAdd(&all[2], seen.vanished);
    }
    __syncthreads();
    if (threadIdx.x == 0 && amax && all[0]) atomicMax(amax, all[0]);
    if (threadIdx.x == 0 && counts && all[1]) atomicAdd(counts, (unsigned long long)all[1]);
    if (threadIdx.x == 0 && counts && all[2]) atomicAdd(counts + 1, (unsigned long long)all[2]);
}

/* Adds to amax and counts in memory what one warp has recorded (Seen) about the values that it cast. */
DEVICE void note_warp(Seen seen, int32_t *amax, unsigned long long *counts) {
    seen = warp_seen(seen);
    if (threadIdx.x % WARP != 0) return;
    if (amax) atomicMax(amax, most_seen(seen));
    if (counts && seen.over) atomicAdd(counts, (unsigned long long)seen.over);
    if (counts && seen.vanished) atomicAdd(counts + 1, (unsigned long long)seen.vanished);
}

/* --- turning ------------------------------------------------------------------------------------------------------ */

/* Transposes four words of four bytes: byte i of word j becomes byte j of word i. */
DEVICE void turn_words(uint32_t (&w)[4]) {
    uint32_t even = __byte_perm(w[0], w[1], 0x5140),
             odd = __byte_perm(w[0], w[1], 0x7362); /* even: columns 0, 1 of rows 0 and 1; odd: columns 2, 3 */
    uint32_t even_below = __byte_perm(w[2], w[3], 0x5140), odd_below = __byte_perm(w[2], w[3], 0x7362);
    w[0] = __byte_perm(even, even_below, 0x5410), w[1] = __byte_perm(even, even_below, 0x7632);
    w[2] = __byte_perm(odd, odd_below, 0x5410), w[3] = __byte_perm(odd, odd_below, 0x7632);
}

typedef Pack<uint32_t, CHUNK / 4> ColumnChunk;

/* --- a tile ------------------------------------------------------------------------------------------------------- */

/* The first row and the first column that this thread has of a tile. */
typedef struct { int64_t row, column; } TilePlace;
DEVICE TilePlace tile_place(int64_t first_row, int64_t first_column) {
    return {first_row + threadIdx.x / ROW_PACKS * THREAD_ROWS, first_column + threadIdx.x % ROW_PACKS * PACK8};
}

typedef struct { Pairs8 row[THREAD_ROWS]; } TileValues; /* values that one thread has of a tile: 4 rows of 8 columns */

/* Writes the block's tile from first_row and first_column on, with 256 threads. Afterwards the block may write another
 * tile without a barrier in between. */
template <DType type>
DEVICE void write_tile(const Fp8Target &t, int64_t first_row, int64_t first_column, const TileValues &x, Seen *seen) {
    SMEM(ColumnChunk, tile, [TILE_COLUMNS][COLUMN_CHUNKS]);
    TilePlace at = tile_place(first_row, first_column);
    int pack = (int)threadIdx.x % ROW_PACKS, rows = (int)threadIdx.x / ROW_PACKS, chunk = rows / (CHUNK / THREAD_ROWS);
    CastScale by = cast_scale<type>(t.scale);
    Codes8    code[THREAD_ROWS];
    #pragma unroll
    for (int k = 0; k < THREAD_ROWS; k++) {
        code[k] = cast_pack<type>(x.row[k], by, seen);
        if (t.plain && at.row + k < t.R && at.column < t.C)
            pack_store((uint32_t *)(t.plain + (at.row + k) * t.pitch + at.column), code[k]);
    }
    if (!t.turned) return;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t w[4] = {code[0].v[half], code[1].v[half], code[2].v[half], code[3].v[half]};
        turn_words(w);
        for (int j = 0; j < 4; j++)
            tile[pack * PACK8 + half * 4 + j][chunk ^ pack].v[rows % (CHUNK / THREAD_ROWS)] = w[j];
    }
    __syncthreads(); /* after this the transposed tile is complete in shared memory */
    #pragma unroll
    for (int i = (int)threadIdx.x; i < TILE_COLUMNS * COLUMN_CHUNKS; i += TILE_THREADS) {
        int     column = i / COLUMN_CHUNKS, from = i % COLUMN_CHUNKS;
        int64_t c = first_column + column, r = first_row + from * CHUNK;
        if (c < t.C && r < t.R_up)
            pack_store((uint32_t *)(t.turned + c * t.R_up + r),
                       pack_load<uint32_t, CHUNK / 4>(tile[column][from ^ column / PACK8].v));
    }
    __syncthreads(); /* after this the tile may be overwritten */
}

/* --- column sums of the values of tiles, as stored in bf16 -------------------------------------------------------- */

/* Adds a thread's values of a tile to its column sums. A thread has the same 8 columns in each tile. */
DEVICE void add_values(float (&sum)[PACK8], const TileValues &x) {
    for (int k = 0; k < THREAD_ROWS; k++) {
        Pack<float, PACK8> row = pairs_to_f32(x.row[k]);
        for (int j = 0; j < PACK8; j++) sum[j] += row.v[j];
    }
}

/* Writes the sums of the block's 64 columns, in a fixed order, to sums [C]. */
DEVICE void tile_sums(float (&sum)[PACK8], float *sums, int64_t first_column, int64_t C) {
    enum { TILE_WARPS = TILE_THREADS / WARP };
    SMEM(float, part, [TILE_WARPS][TILE_COLUMNS]);
    int warp = (int)threadIdx.x / WARP, pack = (int)threadIdx.x % ROW_PACKS;
    for (int j = 0; j < PACK8; j++) {
        for (int o = WARP / 2; o >= ROW_PACKS; o /= 2) sum[j] += __shfl_xor_sync(0xffffffffu, sum[j], o);
        if ((int)threadIdx.x % WARP < ROW_PACKS) part[warp][pack * PACK8 + j] = sum[j];
    }
    __syncthreads(); /* after this the sums of every warp are complete */
    int column = (int)threadIdx.x;
    if (column >= TILE_COLUMNS || first_column + column >= C) return;
    float total = 0.0f;
    for (int w = 0; w < TILE_WARPS; w++) total += part[w][column];
    sums[first_column + column] = total;
}

/* --- a block's work ----------------------------------------------------------------------------------------------- */

/* Writes the tiles of a block's rows, one below the other, of value(row, column) = 8 values. Writes their column sums
 * to sums [gridDim.y, C] unless that is NULL. grid (ceil(C/64), ceil(R_up/rows_per_block)). */
template <DType type, typename F>
DEVICE void write_stretch(const Fp8Target &t, float *sums, int64_t rows_per_block, F value) {
    int64_t first_column = (int64_t)blockIdx.x * TILE_COLUMNS, first = (int64_t)blockIdx.y * rows_per_block;
    int64_t end = first + rows_per_block < t.R_up ? first + rows_per_block : t.R_up;
    Seen    seen = {0, 0, 0};
    float   sum[PACK8] = {};
    #pragma unroll 1
    for (int64_t first_row = first; first_row < end; first_row += TILE_ROWS) {
        TilePlace  at = tile_place(first_row, first_column);
        TileValues x = {}; /* values stay zero where the tensor has no such row or column */
        #pragma unroll
        for (int k = 0; k < THREAD_ROWS; k++)
            if (at.row + k < t.R && at.column < t.C) x.row[k] = value(at.row + k, at.column);
        if (sums) add_values(sum, x);
        write_tile<type>(t, first_row, first_column, x, &seen);
    }
    if (sums) tile_sums(sum, sums + blockIdx.y * t.C, first_column, t.C);
    if (t.amax || t.counts) note_seen(seen, t.amax, t.counts);
}
template <DType type, typename F> DEVICE void write_block(const Fp8Target &t, F value) {
    write_stretch<type>(t, NULL, TILE_ROWS, value);
}

static inline dim3 tile_grid(int64_t R_up, int64_t C, int64_t rows_per_block) {
    return dim3((unsigned)blocks_for(C, TILE_COLUMNS), (unsigned)blocks_for(R_up, rows_per_block));
}

/* Returns the target by which a cast writes y as 8-bit codes, row-major and transposed, one copy after the other in y's
 * memory. Defined in fp8.cu. */
Fp8Target fp8_target(Tensor y, Fp8 f);

#endif
