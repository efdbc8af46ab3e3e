/* tensor.cpp - emulates the functions of core/ptx.cuh for matrices of a warp: ldmatrix, stmatrix, mma.sync; and
 * cp.async.
 *
 * The fragment layouts are those of the PTX ISA manual, as core/ptx.cuh quotes them. Products are exact in fp32; their sums are in order
 * of k, which differs from the hardware's in the last bits.
 */
#include "engine.h"

namespace emu {

/* --- ldmatrix: lane 8 i + r names row r of tile i ----------------------------------------------------------------- */

struct Ldmatrix {
    uint32_t   *r;
    int         tiles;
    const void *row;
    bool        transposed;
};

static void load_tiles(void **argument, unsigned) {
    const Ldmatrix &first = *(Ldmatrix *)argument[0];
    uint32_t        out[4][WARP_LANES];
    for (int i = 0; i < first.tiles; i++) {
        uint16_t tile[8][8];
        for (int r = 0; r < 8; r++) memcpy(tile[r], ((Ldmatrix *)argument[8 * i + r])->row, sizeof tile[r]);
        for (int l = 0; l < WARP_LANES; l++) {
            int g = l / 4, t = l % 4 * 2;
            out[i][l] = first.transposed ? tile[t][g] | (uint32_t)tile[t + 1][g] << 16 : tile[g][t] | (uint32_t)tile[g][t + 1] << 16;
        }
    }
    for (int l = 0; l < WARP_LANES; l++)
        for (int i = 0; i < first.tiles; i++) ((Ldmatrix *)argument[l])->r[i] = out[i][l];
}

void ldmatrix(uint32_t *r, int tiles, const void *row, bool transposed, const char *file, int line) {
    if ((int)lane() < 8 * tiles) {
        if ((uintptr_t)row % 16) fail_at(file, line, "ldmatrix: the row at %p is not aligned to 16 bytes", row);
        shared_offset(row, 16, "ldmatrix", file, line);
        note_read(row, 16);
    }
    Ldmatrix x = {r, tiles, row, transposed};
    warp_collective(LDMATRIX, "ldmatrix", ~0u, &x, load_tiles, file, line);
}

/* --- stmatrix: as ldmatrix, the other way ------------------------------------------------------------------------- */

struct Stmatrix {
    const uint32_t *r;
    int             tiles;
    void           *row;
    bool            transposed;
};

static void store_tiles(void **argument, unsigned) {
    const Stmatrix &first = *(Stmatrix *)argument[0];
    for (int i = 0; i < first.tiles; i++) {
        uint16_t tile[8][8];
        for (int l = 0; l < WARP_LANES; l++) {
            uint32_t pair = ((Stmatrix *)argument[l])->r[i];
            for (int e = 0; e < 2; e++) {
                int row = l / 4, column = l % 4 * 2 + e;
                (first.transposed ? tile[column][row] : tile[row][column]) = (uint16_t)(pair >> 16 * e);
            }
        }
        for (int r = 0; r < 8; r++) memcpy(((Stmatrix *)argument[8 * i + r])->row, tile[r], sizeof tile[r]);
    }
}

void stmatrix(void *row, const uint32_t *r, int tiles, bool transposed, const char *file, int line) {
    if ((int)lane() < 8 * tiles) {
        if ((uintptr_t)row % 16) fail_at(file, line, "stmatrix: the row at %p is not aligned to 16 bytes", row);
        shared_offset(row, 16, "stmatrix", file, line);
        note_write(row, 16);
    }
    Stmatrix x = {r, tiles, row, transposed};
    warp_collective(STMATRIX, "stmatrix", ~0u, &x, store_tiles, file, line);
}

/* --- mma.m16n8k16 ------------------------------------------------------------------------------------------------- */

struct Mma {
    float          *d;
    const uint32_t *a, *b;
    MmaType         type;
};

static void multiply(void **argument, unsigned) {
    /* Eight: eight columns of a row of b, or of a row of sums. Each sum adds in the order of k. */
    typedef float Eight __attribute__((vector_size(32)));
    float a[16][16];
    Eight b[16], sums[16] = {};
    for (int l = 0; l < WARP_LANES; l++) {
        const Mma &x = *(Mma *)argument[l];
        int        g = l / 4, t = l % 4 * 2;
        for (int i = 0; i < 4; i++) {
            int row = g + (i & 1) * 8, k = t + (i >> 1) * 8;
            a[row][k] = operand_to_f32(x.a[i], 0, x.type);
            a[row][k + 1] = operand_to_f32(x.a[i], 1, x.type);
        }
        for (int i = 0; i < 2; i++) {
            int k = t + i * 8;
            b[k][g] = operand_to_f32(x.b[i], 0, x.type);
            b[k + 1][g] = operand_to_f32(x.b[i], 1, x.type);
        }
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++) sums[row] += a[row][k] * b[k];
    for (int l = 0; l < WARP_LANES; l++) {
        const Mma &x = *(Mma *)argument[l];
        for (int i = 0; i < 4; i++) x.d[i] += sums[l / 4 + (i >> 1) * 8][l % 4 * 2 + (i & 1)];
    }
}

void mma_m16n8k16(float *d, const uint32_t *a, const uint32_t *b, MmaType type, const char *file, int line) {
    Mma x = {d, a, b, type};
    warp_collective(MMA, "mma.m16n8k16", ~0u, &x, multiply, file, line);
}

/* --- cp.async: groups of one thread's copies ---------------------------------------------------------------------- */

static void copy_now(const CopyAsync &c) {
    race_async_read(c.from, (size_t)c.source_bytes, current->index, race_stamp(), c.file, c.line);
    race_async_write(c.to, (size_t)c.bytes, current->index, race_stamp(), c.file, c.line);
    memcpy(c.to, c.from, (size_t)c.source_bytes);
    memset((char *)c.to + c.source_bytes, 0, (size_t)(c.bytes - c.source_bytes));
}

void cp_async(void *shared, const void *global, int bytes, int source_bytes, const char *file, int line) {
    if ((uintptr_t)shared % (uintptr_t)bytes || (uintptr_t)global % (uintptr_t)bytes)
        fail_at(file, line, "cp.async: %p <- %p is not aligned to %d bytes", shared, global, bytes);
    if (source_bytes < 0 || source_bytes > bytes) fail_at(file, line, "cp.async: %d source bytes of %d", source_bytes, bytes);
    shared_offset(shared, (size_t)bytes, "cp.async", file, line);
    if (!current->awaited) fail_at(file, line, "cp.async before await_kernels of an early launch");
    CopyAsync c = {shared, global, bytes, source_bytes, file, line};
    if (settings.async_early) return copy_now(c);
    race_pending(shared, (size_t)bytes, file, line);
    current->is_async = true;
    if (current->copies.empty()) current->copies.emplace_back();
    current->copies.back().push_back(c);
}
void cp_async_commit() {
    current->is_async = true;
    if (current->copies.empty()) current->copies.emplace_back();
    current->copies.emplace_back();
}
void cp_async_wait(int pending) {
    Groups<CopyAsync> &groups = current->copies;
    while ((int)groups.size() - 1 > pending) {
        for (const CopyAsync &c : groups.front()) copy_now(c);
        groups.pop_front();
    }
}

}  // namespace emu
