/* wgmma.cpp - emulates the functions of core/ptx.cuh for matrix products of a warpgroup. Results arrive in the
 * registers at the wait for the product's group.
 *
 * Until then the accumulators are NaN. Everything that a product still reads or writes must stay as it was at issue:
 * accumulators, registers of a, shared memory. Operands must be visible to the asynchronous proxy (bulk.cpp). Emulated:
 * m64nNkK with the 128-byte swizzle. Products are exact in fp32; their sums are in the order of k. */

#include "engine.h"

#include <cuda_fp8.h>

namespace emu {

enum { WARPGROUP_THREADS = 128, SWIZZLE_128 = 1, ROWS = 64, MOST_COLUMNS = 256, MOST_K = 32 };
enum : uint32_t { POISON = 0x7fadfade }; /* a signalling NaN, which no arithmetic produces or keeps */

static bool is_8_bit(MmaType type) { return type == MMA_E4M3 || type == MMA_E5M2; }
static int  depth(const WgmmaOp &op) { return is_8_bit(op.a_type) ? 32 : 16; }

/* Returns element i of a 32-bit word of 2 or 4 elements. */
static float element(uint32_t word, int i, MmaType type) {
    if (!is_8_bit(type)) return operand_to_f32(word, i, type);
    __half_raw h = __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)(word >> 8 * i), type == MMA_E4M3 ? __NV_E4M3 : __NV_E5M2);
    return __half2float(h);
}

/* --- operands in shared memory, as a descriptor names them: start, leading and stride byte offset in units of 16 bytes -- */

static char *place_of(uint64_t descriptor, int mn, int k, bool mn_major, const WgmmaOp &op) {
    uint32_t start = (uint32_t)(descriptor & 0x3fff) << 4, leading = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t stride = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 != SWIZZLE_128) fail_at(op.file, op.line, "wgmma: only the 128-byte swizzle is emulated");
    if (descriptor >> 49 & 7) fail_at(op.file, op.line, "wgmma: the base offset must be 0");
    int      bytes = is_8_bit(op.a_type) ? 1 : 2;
    uint32_t at = start + mn / 8 * stride + mn % 8 * 128 + k * bytes;
    if (mn_major) at = start + mn / 64 * leading + k / 8 * stride + k % 8 * 128 + mn % 64 * 2;
    char *p = engine.here->arena + swizzled(at, 128);
    shared_offset(p, 16, "wgmma operand", op.file, op.line);
    return p;
}

/* Copies an operand of a product from shared memory to `to`, as rows along k. Shared memory holds units of eight 16-bit
 * words: eight of one row, or one of each of eight rows. Calls f(place, first row) for each unit before it is
 * copied. */
enum { UNIT_WORDS = 8, UNIT_BYTES = 16 };
template <class F> static void gather(uint16_t *to, uint64_t descriptor, int rows, bool mn_major, MmaType type, const WgmmaOp &op, F f) {
    int down = mn_major ? UNIT_WORDS : 1, along = mn_major ? 1 : UNIT_WORDS, step = mn_major ? 16 : 1;
    for (int k = 0; k < 16; k += along) /* a row has 16 words of two bytes; for 8-bit types a word holds two elements */
        for (int r = 0; r < rows; r += down) {
            char    *p = place_of(descriptor, r, is_8_bit(type) ? 2 * k : k, mn_major, op);
            uint16_t word[UNIT_WORDS];
            f(p, r);
            memcpy(word, p, sizeof word);
            for (int i = 0; i < UNIT_WORDS; i++) to[r * 16 + k + i * step] = word[i];
        }
}
template <class F> static std::vector<uint16_t> operands(const WgmmaOp &op, F f) {
    size_t                of_a = op.a_registers ? 0 : ROWS * 16;
    std::vector<uint16_t> words(of_a + (size_t)op.n * 16);
    if (of_a) gather(words.data(), op.a, ROWS, op.a_transposed, op.a_type, op, [&](char *p, int r) { f(p, r / 16); });
    gather(words.data() + of_a, op.b, op.n, op.b_transposed, op.b_type, op, [&](char *p, int) { f(p, -1); });
    return words;
}

/* --- a product ---------------------------------------------------------------------------------------------------- */

static Accumulator *accumulator_at(Fiber &f, const float *d) {
    for (Accumulator &x : f.accumulators)
        if (x.d == d) return &x;
    return nullptr;
}
static void expect_untouched(const Accumulator &x) {
    for (int i = 0; i < x.n; i++)
        if (bits<uint32_t>(x.d[i]) != POISON)
            fail_at(x.file, x.line, "wgmma: its accumulators were changed before a wait covered it");
}

static void unpack(float (*to)[MOST_K], const uint16_t *words, int rows, MmaType type) {
    int per_word = is_8_bit(type) ? 2 : 1;
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < per_word; i++) to[r][k * per_word + i] = element(words[r * 16 + k], i, type);
}
static void a_from_registers(float (*a)[MOST_K], Fiber *threads, size_t i) {
    for (int t = 0; t < WARPGROUP_THREADS; t++) {
        const WgmmaOp &mine = threads[t].wgmma[0][i];
        if (memcmp(mine.a_registers, mine.a_issued, sizeof mine.a_issued))
            fail_at(mine.file, mine.line, "wgmma: its registers of a were changed before a wait covered it");
        int per_word = is_8_bit(mine.a_type) ? 4 : 2;
        for (int e = 0; e < 4 * per_word; e++) {
            int word = e / per_word, row = t / 32 * 16 + t % 32 / 4 + (word & 1) * 8;
            int k = (word >> 1) * 4 * per_word + t % 4 * per_word + e % per_word;
            a[row][k] = element(mine.a_issued[word], e % per_word, mine.a_type);
        }
    }
}

/* Computes product = a b, eight columns at once. Each sum adds in the order of k. */
typedef float Eight __attribute__((vector_size(32)));
static void multiply(Eight (*product)[MOST_COLUMNS / 8], const float (*a)[MOST_K], const float (*b)[MOST_K], int columns, int depth) {
    static Eight b_rows[MOST_K][MOST_COLUMNS / 8];
    for (int c = 0; c < columns; c++)
        for (int k = 0; k < depth; k++) b_rows[k][c / 8][c % 8] = b[c][k];
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < columns / 8; c++) {
            Eight sum = {};
            for (int k = 0; k < depth; k++) sum += a[r][k] * b_rows[k][c];
            product[r][c] = sum;
        }
}

/* Computes the result of operation i of the warpgroup's oldest group in flight. */
static void multiply_now(int warpgroup, size_t i) {
    static float   a[ROWS][MOST_K], b[MOST_COLUMNS][MOST_K];
    static Eight   product[ROWS][MOST_COLUMNS / 8];
    Fiber         *threads = &engine.fibers[warpgroup * WARPGROUP_THREADS];
    const WgmmaOp &op = threads[0].wgmma[0][i];
    auto read = [&](char *p, int) { race_async_read(p, UNIT_BYTES, current->index, race_stamp(), op.file, op.line); };
    if (operands(op, read) != op.issued)
        fail_at(op.file, op.line, "wgmma: an operand in shared memory was changed before a wait covered it");
    const uint16_t *words = op.issued.data();
    if (op.a_registers) a_from_registers(a, threads, i);
    else unpack(a, words, ROWS, op.a_type), words += ROWS * 16;
    unpack(b, words, op.n, op.b_type);
    multiply(product, a, b, op.n, depth(op));
    for (int t = 0; t < WARPGROUP_THREADS; t++) {
        Accumulator &x = *accumulator_at(threads[t], threads[t].wgmma[0][i].d);
        /* in every eight columns a thread holds two adjacent ones of this row, and the same two of row + 8 */
        int          row = t / 32 * 16 + t % 32 / 4;
        const float *above = (const float *)product[row] + t % 4 * 2, *below = (const float *)product[row + 8] + t % 4 * 2;
        float       *value = x.value.data();
        for (int c = 0; c < op.n; c += 8, value += 4) {
            const float sums[4] = {above[c], above[c + 1], below[c], below[c + 1]};
            for (int e = 0; e < 4; e++) value[e] = op.accumulate ? value[e] + sums[e] : sums[e];
        }
        x.in_flight--;
    }
}

/* Notes that a product in flight may read the four registers at a. Adjacent ranges of registers are joined, because
 * a kernel keeps the registers of all steps along k in one array. */
static void hold(Fiber &f, const uint32_t *a) {
    enum { BYTES = sizeof(uint32_t[4]) };
    if (!f.held.empty() && f.held.back().first + f.held.back().second == (const char *)a) f.held.back().second += BYTES;
    else f.held.push_back({(const char *)a, BYTES});
}
static void hold_those_in_flight(Fiber &f) {
    f.held.clear();
    for (const auto &group : f.wgmma)
        for (const WgmmaOp &op : group)
            if (op.a_registers) hold(f, op.a_registers);
}

/* FLOPs of all matrix products so far; tests read it. */
static double products = 0.0;
extern "C" double emu_products(void) { return products; }

/* --- issue -------------------------------------------------------------------------------------------------------- */

static void issued(int warpgroup, void *) {
    Fiber   *threads = &engine.fibers[warpgroup * WARPGROUP_THREADS];
    WgmmaOp &op = threads[0].wgmma.back().back();
    for (int t = 1; t < WARPGROUP_THREADS; t++) {
        const WgmmaOp &other = threads[t].wgmma.back().back();
        if (other.a != op.a || other.b != op.b || other.n != op.n || !other.accumulate != !op.accumulate)
            fail_at(op.file, op.line, "wgmma: the threads of the warpgroup name different operands");
    }
    products += 2.0 * ROWS * op.n * depth(op);
    int first = threads[0].warp;
    op.issued = operands(op, [&](char *p, int quarter) { /* each warp reads its own 16 rows of a, and all of b */
        async_may_read(p, UNIT_BYTES, "wgmma operand", op.file, op.line);
        for (int w = 0; w < 4; w++)
            if (quarter < 0 || quarter == w) race_visible(p, UNIT_BYTES, first + w, NO_THREAD, op.file, op.line);
    });
}

void wgmma_fence() {
    current->is_async = current->wgmma_fenced = true;
    current->written.clear();
}
/* Refuses registers that the program wrote after its last wgmma fence, because the product may not see them yet. */
static void expect_fenced(const void *registers, size_t n, const char *file, int line) {
    for (const auto &w : current->written)
        if (w.first + w.second > (const char *)registers && w.first < (const char *)registers + n)
            fail_at(file, line, "wgmma takes registers that were written after the last wgmma_fence");
}

void wgmma(float *d, int n, MmaType a_type, MmaType b_type, uint64_t a, const uint32_t *a_registers, uint64_t b, int accumulate,
           bool a_transposed, bool b_transposed, const char *file, int line) {
    current->is_async = true;
    Accumulator *x = accumulator_at(*current, d);
    if (!current->wgmma_fenced && (!x || a_registers))
        fail_at(file, line, "wgmma without a wgmma_fence since the program could touch its registers");
    if (a_registers) expect_fenced(a_registers, sizeof(uint32_t[4]), file, line);
    if (x) {
        if (x->n != n / 2) fail_at(file, line, "wgmma: accumulators of another shape are in flight, from %s:%d", x->file, x->line);
        expect_untouched(*x);
    } else {
        expect_fenced(d, (size_t)n / 2 * sizeof *d, file, line);
        current->accumulators.push_back(Accumulator{d, n / 2, 0, std::vector<float>(d, d + n / 2), file, line});
        x = &current->accumulators.back();
        for (int i = 0; i < n / 2; i++) d[i] = bits<float>((uint32_t)POISON);
    }
    x->in_flight++;
    WgmmaOp op = {d, n, accumulate, a_type, b_type, a, b, a_transposed, b_transposed, a_registers, {}, {}, file, line};
    if (a_registers) memcpy(op.a_issued, a_registers, sizeof op.a_issued);
    if (current->wgmma.empty()) current->wgmma.emplace_back();
    current->wgmma.back().push_back(std::move(op));
    if (a_registers) hold(*current, a_registers);
    warpgroup_collective("wgmma", issued, nullptr, file, line);
}
void wgmma_commit() {
    current->is_async = true;
    if (current->wgmma.empty()) current->wgmma.emplace_back();
    current->wgmma.emplace_back();
}

/* --- wait --------------------------------------------------------------------------------------------------------- */

struct Wait {
    int         pending;
    float      *named[3];
    const char *file;
    int         line;
};

/* Writes the results that have arrived to the accumulators. The wait must name exactly the accumulators of those
 * results. */
static void hand_over(Fiber &f, const Wait &w) {
    for (size_t i = 0; i < f.accumulators.size();) {
        Accumulator &x = f.accumulators[i];
        bool         named = x.d == w.named[0] || x.d == w.named[1] || x.d == w.named[2];
        if (x.in_flight && named) fail_at(w.file, w.line, "wgmma_wait<%d> does not cover accumulators that it names", w.pending);
        if (x.in_flight) {
            i++;
            continue;
        }
        if (!named)
            fail_at(w.file, w.line, "wgmma_wait<%d> does not name accumulators that it completes: their uses may be moved before it",
                    w.pending);
        expect_untouched(x);
        memcpy(x.d, x.value.data(), (size_t)x.n * sizeof(float));
        f.accumulators.erase(f.accumulators.begin() + (long)i);
    }
    f.wgmma_fenced = false;
    f.written.clear();
}
static void waited(int warpgroup, void *) {
    Fiber *threads = &engine.fibers[warpgroup * WARPGROUP_THREADS];
    for (int t = 1; t < WARPGROUP_THREADS; t++)
        if (threads[t].wgmma.size() != threads[0].wgmma.size()) fail("wgmma: the threads of the warpgroup committed different groups");
    while ((int)threads[0].wgmma.size() - 1 > ((Wait *)threads[0].argument)->pending) {
        for (size_t i = 0; i < threads[0].wgmma[0].size(); i++) multiply_now(warpgroup, i);
        for (int t = 0; t < WARPGROUP_THREADS; t++) threads[t].wgmma.pop_front();
    }
    for (int t = 0; t < WARPGROUP_THREADS; t++) {
        hand_over(threads[t], *(Wait *)threads[t].argument);
        hold_those_in_flight(threads[t]);
    }
}
void wgmma_wait(int pending, float *d, float *e, float *f, const char *file, int line) {
    Wait w = {pending, {d, e, f}, file, line};
    current->argument = &w;
    warpgroup_collective("wgmma.wait_group", waited, nullptr, file, line);
}

/* Returns which registers of products in flight contain the n bytes at p on the fiber's stack; NULL if none. The race
 * checker calls it. */
const char *wgmma_holds(const Fiber &f, const void *p, size_t n) {
    for (const Accumulator &x : f.accumulators)
        if ((const char *)p + n > (const char *)x.d && (const char *)p < (const char *)(x.d + x.n)) return "accumulators";
    for (const auto &a : f.held)
        if ((const char *)p + n > a.first && (const char *)p < a.first + a.second) return "registers of a";
    return nullptr;
}

}  // namespace emu
