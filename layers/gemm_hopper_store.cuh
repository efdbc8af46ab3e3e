/* gemm_hopper_store.cuh - gemm_hopper.cu's way from accumulators to memory: the epilogues.
 *
 * A warp holds 16 rows of each half of a tile. It rounds 16 x 64 of them and writes them to a slot of shared memory by
 * stmatrix. TMA then writes the slot to c: whole lines, clipped at c's edges. An f32 c is written from registers, whose
 * quads fill sectors of 32 bytes; such products are long.
 *
 * Lane l, g = l / 4, t = l % 4, register i of block q of 16 columns: rows g + 8 (i % 2), columns 16 q + 8 (i / 2) + 2
 * t, + 1.
 */
#ifndef TRAIN_GPT_LAYERS_GEMM_HOPPER_STORE_CUH
#define TRAIN_GPT_LAYERS_GEMM_HOPPER_STORE_CUH

#include "layers/gelu.cuh"
#include "layers/gemm_hopper_tile.cuh"

#ifdef PTX_HOPPER

enum { BLOCKS = SIDE / 16 }; /* blocks of 16 columns in a panel */

/* A warp's slots, used in rotation, and how many panels went through them. */
struct Slots {
    Panel *slot;
    int    used;
};
/* Returns the line that this lane addresses for block q. */
DEVICE unsigned char *line_of(Panel *p, int q) {
    int lane = (int)threadIdx.x % WARP, row = lane % 16, unit = 2 * q + lane / 16;
    return p->byte + row * 128 + (unit ^ row % 8) * 16;
}

/* Stores a panel at (row, column) of the map's matrix. */
DEVICE void put_panel(const TensorMap *map, Slots &s, const uint32_t (&r)[BLOCKS][4], int row, int column) {
    Panel *p = &s.slot[s.used++ % SLOTS];
    int    lane = (int)threadIdx.x % WARP;
    if (lane == 0) bulk_wait_read<SLOTS - 1>();
    __syncwarp(); /* the previous panel in this slot has been stored */
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) stmatrix_x4(line_of(p, q), r[q]);
    fence_proxy_async();
    __syncwarp(); /* the panel is complete */
    if (lane == 0) {
        tma_store_2d(map, p, column, row);
        bulk_commit();
    }
}

DEVICE constexpr bool reads_aux(int epilogue) {
    return epilogue == EPILOGUE_GELU_BACKWARD || epilogue == EPILOGUE_DELTA || epilogue == EPILOGUE_RESIDUAL;
}
/* Loads the tile of aux into this warp's four slots, while the products run. */
DEVICE void load_aux(GemmShared *s, const GemmCall &g, const Work &w, int warp) {
    if ((int)threadIdx.x % WARP) return;
    bulk_wait_read<0>(); /* the slots are free */
    mbarrier_arrive_expect(&s->read[warp], SLOTS * PANEL_BYTES);
    for (int i = 0; i < SLOTS; i++)
        tma_load_2d(&s->slot[warp][i], &g.aux, &s->read[warp], w.column + i % 2 * SIDE, w.row + i / 2 * SIDE + warp % 4 * PANEL_ROWS);
}

/* r = round(acc + bias), for half p of the tile's columns. */
template <typename T>
DEVICE void round_panel(uint32_t (&r)[BLOCKS][4], const float (&acc)[ACCUMULATORS], int p, const T *bias, int column, int n) {
#pragma unroll
    for (int k = 0; k < BLOCKS * 2; k++) { /* eight columns */
        int    c = column + p * SIDE + k * 8 + (int)threadIdx.x % 4 * 2, at = p * 32 + k * 4;
        float2 b = {};
        if (bias && c < n) b = unpack_pair<T>(*(const uint32_t *)(bias + c));
        r[k / 2][k % 2 * 2] = pack_pair<T>(acc[at] + b.x, acc[at + 1] + b.y);
        r[k / 2][k % 2 * 2 + 1] = pack_pair<T>(acc[at + 2] + b.x, acc[at + 3] + b.y);
    }
}

/* r = gelu(r): of c as stored, with gelu.cu's arithmetic. */
template <typename T> DEVICE void gelu_panel(uint32_t (&r)[BLOCKS][4]) {
#pragma unroll
    for (int i = 0; i < BLOCKS * 4; i++) {
        float2 x = unpack_pair<T>(r[i / 4][i % 4]);
        r[i / 4][i % 4] = pack_pair<T>(gelu(x.x), gelu(x.y));
    }
}

/* r = round(r + aux): of c as it would be stored, with residual_forward's arithmetic. aux is in the next slot. */
template <typename T> DEVICE void residual_panel(uint32_t (&r)[BLOCKS][4], Slots &s) {
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) {
        uint32_t aux[4];
        ldmatrix_x4(aux, line_of(&s.slot[s.used % SLOTS], q));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 x = unpack_pair<T>(r[q][i]), stream = unpack_pair<T>(aux[i]);
            r[q][i] = pack_pair<T>(stream.x + x.x, stream.y + x.y);
        }
    }
}

/* r = round(acc gelu'(pre)), with pre in the next slot; sum += r for this thread's columns. */
template <typename T>
DEVICE void gelu_grad_panel(uint32_t (&r)[BLOCKS][4], float (&sum)[SIDE / 4], const float (&acc)[ACCUMULATORS], int p, Slots &s) {
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) {
        ldmatrix_x4(r[q], line_of(&s.slot[s.used % SLOTS], q));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 x = unpack_pair<T>(r[q][i]);
            int    at = p * 32 + q * 8 + i * 2;
            r[q][i] = pack_pair<T>(acc[at] * gelu_grad(x.x), acc[at + 1] * gelu_grad(x.y));
            float2 stored = unpack_pair<T>(r[q][i]);
            sum[q * 4 + i / 2 * 2] += stored.x;
            sum[q * 4 + i / 2 * 2 + 1] += stored.y;
        }
    }
}

/* r = round(acc); delta += r aux for this thread's two rows, with aux in the next slot. */
template <typename T>
DEVICE void delta_panel(uint32_t (&r)[BLOCKS][4], float (&delta)[2], const float (&acc)[ACCUMULATORS], int p, Slots &s) {
#pragma unroll
    for (int q = 0; q < BLOCKS; q++) {
        uint32_t aux[4];
        ldmatrix_x4(aux, line_of(&s.slot[s.used % SLOTS], q));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = p * 32 + q * 8 + i * 2;
            r[q][i] = pack_pair<T>(acc[at], acc[at + 1]);
            float2 stored = unpack_pair<T>(r[q][i]), other = unpack_pair<T>(aux[i]);
            delta[i % 2] = fmaf(stored.x, other.x, delta[i % 2]);
            delta[i % 2] = fmaf(stored.y, other.y, delta[i % 2]);
        }
    }
}

/* Adds delta over the four lanes of a row and stores it. Rows of a head are contiguous, and eight fill a sector. */
DEVICE void store_delta(float (&delta)[2], const GemmCall &g, int row, int column) {
    int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = delta[i];
        for (int o = 1; o < 4; o *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
        int at = row + i * 8 + lane / 4;
        if (lane % 4 == 0 && at < g.m && column < g.n) g.delta[(int64_t)(column / g.head) * g.m + at] = sum;
        delta[i] = 0.0f;
    }
}

/* Stores a row of column_sums: adds over the lanes of a column, then over warps, in order. The named barrier before the
 * next tile protects shared memory from being filled again too early. */
DEVICE void store_column_sums(GemmShared *s, float (&sum)[2][SIDE / 4], const GemmCall &g, const Work &w) {
    int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, group = warp / 4, t = (int)threadIdx.x % WARPGROUP;
#pragma unroll
    for (int i = 0; i < SIDE / 2; i++) {
        float &x = sum[i / (SIDE / 4)][i % (SIDE / 4)];
        for (int o = 4; o < WARP; o *= 2) x += __shfl_xor_sync(0xffffffffu, x, o);
        if (lane < 4) s->sums[warp][i / 2 * 8 + lane * 2 + i % 2] = x;
    }
    named_barrier_sync(SUMS + group, WARPGROUP); /* the sums of the four warps are complete */
    float total = 0.0f;
    for (int i = 0; i < 4; i++) total += s->sums[group * 4 + i][t];
    if (w.row < g.m && w.column + t < g.n) g.column_sums[(int64_t)(w.row / TILE) * g.n + w.column + t] = total;
}

/* Stores a tile of a 16-bit c. */
template <typename T, int epilogue>
DEVICE void store_tile(GemmShared *shared, const float (&acc)[2][ACCUMULATORS], Slots &s, const GemmCall &g, const T *bias, const Work &w) {
    int   row = w.row + (int)threadIdx.x / WARP % 4 * PANEL_ROWS;
    float sum[2][SIDE / 4] = {}, delta[2] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) { /* half i / 2 of the rows, half i % 2 of the columns */
        uint32_t r[BLOCKS][4];
        if constexpr (epilogue == EPILOGUE_GELU_BACKWARD) gelu_grad_panel<T>(r, sum[i % 2], acc[i / 2], i % 2, s);
        else if constexpr (epilogue == EPILOGUE_DELTA) delta_panel<T>(r, delta, acc[i / 2], i % 2, s);
        else round_panel<T>(r, acc[i / 2], i % 2, bias, w.column, g.n);
        if constexpr (epilogue == EPILOGUE_RESIDUAL) residual_panel<T>(r, s);
        if (epilogue == EPILOGUE_DELTA && (g.head == SIDE || i % 2)) store_delta(delta, g, row + i / 2 * SIDE, w.column + i % 2 * SIDE);
        put_panel(&g.c, s, r, row + i / 2 * SIDE, w.column + i % 2 * SIDE);
        if constexpr (epilogue == EPILOGUE_GELU) {
            gelu_panel<T>(r);
            put_panel(&g.aux, s, r, row + i / 2 * SIDE, w.column + i % 2 * SIDE);
        }
    }
    if (epilogue == EPILOGUE_GELU_BACKWARD && g.column_sums) store_column_sums(shared, sum, g, w);
}

/* Stores a tile of an f32 c: c = or += acc. Loads of a row come before its stores, because the compiler could not
 * exchange them. */
DEVICE void store_sums(const float (&acc)[2][ACCUMULATORS], const GemmCall &g, const Work &w) {
    int lane = (int)threadIdx.x % WARP, column = w.column + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; i++) { /* half i / 2 of the tile; the first or last eight of its groups of 16 rows */
        int    row = w.row + i / 2 * SIDE + (int)threadIdx.x / WARP % 4 * PANEL_ROWS + i % 2 * 8 + lane / 4;
        float *line = g.sums + w.part * g.part_elems + row * g.ld + column;
        if (row >= g.m) continue;
        Pack<float, 2> old[TILE / 8] = {};
#pragma unroll
        for (int j = 0; j < TILE / 8; j++)
            if (g.add && column + j * 8 < g.n) old[j] = pack_load<float, 2>(line + j * 8);
#pragma unroll
        for (int j = 0; j < TILE / 8; j++) {
            Pack<float, 2> sum = {{old[j].v[0] + acc[i / 2][j * 4 + i % 2 * 2], old[j].v[1] + acc[i / 2][j * 4 + i % 2 * 2 + 1]}};
            if (column + j * 8 < g.n) pack_store(line + j * 8, sum);
        }
    }
}

#endif
#endif
