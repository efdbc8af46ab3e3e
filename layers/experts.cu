/* experts.cu - CUDA side of the experts' ops in layers.h: the router, sorting and moving of rows, and products.
 *
 * The products of all experts are one launch. Blocks read on the device how many rows each expert has, so the host
 * never waits, and a graph of launches holds for any routing. A block computes a tile of one expert's product, c[i][j]
 * = sum_r a[i][r] b[r][j]. An operand is read in its order in memory: the index r of the sum is its INNER one,
 * contiguous in memory, or its OUTER one.
 *   forward   y  = x w^T     a = x, b = w: both INNER
 *   input     dx = dy w      a = dy INNER, b = w OUTER
 *   weight    dw = or += dy^T x   a = dy, b = x: both OUTER; the sum is over the expert's rows
 */
#include "core/kernel.cuh"
#include "core/ptx.cuh"
#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/sort_tokens.cuh"

/* --- router: a warp to each token --------------------------------------------------------------------------------- */

enum { WARPS = 8, THREADS = WARPS * WARP };

/* Sets score and expert in all lanes of a warp to the largest score and its expert; the lower expert wins a tie. */
DEVICE void best_of_warp(float &score, int &expert) {
    for (int o = WARP / 2; o > 0; o /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, score, o);
        int   number = __shfl_xor_sync(0xffffffffu, expert, o);
        if (other > score || (other == score && number < expert)) score = other, expert = number;
    }
}

/* Chooses the k experts of each token, and their weights. Each warp takes one token. A lane reads again only what it
 * wrote itself: experts lane, lane + 32, ... grid ceil(N / WARPS), no shared memory. */
template <typename T>
KERNEL router_forward_kernel(float *probability, int32_t *expert, float *weight, const T *logits, const T *bias,
                             int64_t N, int E, int k, bool normed) {
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int     lane = (int)threadIdx.x % WARP;
    if (n >= N) return; /* all lanes of a warp have the same token, and return together */
    const T *x = logits + n * E;
    float   *p = probability + n * E, most = -INFINITY, sum = 0.0f;
    for (int e = lane; e < E; e += WARP) most = fmaxf(most, to_f32(x[e]));
    most = warp_max(most);
    for (int e = lane; e < E; e += WARP) sum += expf(to_f32(x[e]) - most);
    sum = warp_sum(sum);
    for (int e = lane; e < E; e += WARP) p[e] = expf(to_f32(x[e]) - most) / sum;

    float last_score = INFINITY, total = 0.0f;
    int   last = -1;
    for (int j = 0; j < k; j++) {
        float score = -INFINITY;
        int   best = E; /* expert with the largest score so far; E means none */
        for (int e = lane; e < E; e += WARP) {
            float mine = p[e] + (bias ? to_f32(bias[e]) : 0.0f);
            if (isnan(mine)) mine = -INFINITY;
            bool comes_after = mine < last_score || (mine == last_score && e > last);
            if (comes_after && (best == E || mine > score)) score = mine, best = e;
        }
        best_of_warp(score, best);
        last_score = score, last = best;
        float chosen = __shfl_sync(0xffffffffu, best % WARP == lane ? p[best] : 0.0f, best % WARP);
        total += chosen;
        if (lane == 0) expert[n * k + j] = best, weight[n * k + j] = chosen;
    }
    for (int j = 0; normed && lane == 0 && j < k; j++) weight[n * k + j] /= total;
}

void router_forward(Stream *s, Tensor probability, Tensor expert, Tensor weight, Tensor logits, Tensor bias,
                    RouterWeights kind) {
    int64_t N = logits.dim[0];
    if (router_forward_contract(s, probability, expert, weight, logits, bias) || N == 0) return;
    DISPATCH_ACT(logits.type, T,
                 LAUNCH(router_forward_kernel<T>, blocks_for(N, WARPS), THREADS, 0, s, ptr<float>(probability),
                        ptr<int32_t>(expert), ptr<float>(weight), ptr<T>(logits), ptr<T>(bias), N, (int)logits.dim[1],
                        (int)expert.dim[1], kind == WEIGHTS_NORMED));
}

/* Counts the assignments of each sequence by expert. Each block takes one sequence. It sums integers, whose order does
 * not matter, in shared memory, and adds them to the total. grid B, 4 E bytes of shared memory. */
KERNEL router_count_kernel(int32_t *counts, unsigned long long *total, const int32_t *expert, int64_t each, int E) {
    SMEM_DYN(int32_t, count);
    for (int e = (int)threadIdx.x; e < E; e += THREADS) count[e] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < each; i += THREADS) {
        int32_t e = expert[blockIdx.x * each + i];
        device_check(e >= 0 && e < E);
        atomicAdd(&count[e], 1);
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < E; e += THREADS) {
        counts[(int64_t)blockIdx.x * E + e] = count[e];
        if (total && count[e]) atomicAdd(total + e, (unsigned long long)count[e]);
    }
}

void router_count(Stream *s, Tensor counts, Tensor total, Tensor expert) {
    int64_t B = counts.dim[0], E = counts.dim[1];
    if (router_count_contract(s, counts, total, expert)) return;
    LAUNCH(router_count_kernel, B, THREADS, (size_t)E * sizeof(int32_t), s, ptr<int32_t>(counts),
           ptr<unsigned long long>(total), ptr<int32_t>(expert), tensor_elems(expert) / B, (int)E);
}

typedef struct {
    const float   *dweight, *probability, *weight, *balance;
    const int32_t *expert, *counts;
    int64_t        N, each; /* N: tokens in all; each: tokens of a sequence */
    int            E, k;
    bool           normed;
} Backward;

/* Returns dp, the gradient of the probability of expert e for token n: that of the balance loss, and that of the
 * expert's weight if the token chose e. */
DEVICE float dp_of(const Backward &b, int64_t n, int e, float rate, float sum, float mean) {
    float dp = b.counts ? rate * (float)b.counts[n / b.each * b.E + e] : 0.0f;
    for (int j = 0; j < b.k; j++)
        if (b.expert[n * b.k + j] == e) dp += b.normed ? (b.dweight[n * b.k + j] - mean) / sum : b.dweight[n * b.k + j];
    return dp;
}

/* dlogits = p (dp - sum_e p_e dp_e), where dp is the gradient of p. Each warp takes one token. grid ceil(N / WARPS), no
 * shared memory. */
template <typename T> KERNEL router_backward_kernel(T *dlogits, Backward b) {
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    int     lane = (int)threadIdx.x % WARP;
    if (n >= b.N) return; /* all lanes of a warp have the same token, and return together */
    const float *p = b.probability + n * b.E;
    float sum = 0.0f, mean = 0.0f, dot = 0.0f, rate = b.counts ? *b.balance * (float)b.E / (float)(b.k * b.each) : 0.0f;
    for (int j = 0; j < b.k; j++) {
        sum += p[b.expert[n * b.k + j]];
        mean += b.dweight[n * b.k + j] * b.weight[n * b.k + j];
    }
    for (int e = lane; e < b.E; e += WARP) dot += p[e] * dp_of(b, n, e, rate, sum, mean);
    dot = warp_sum(dot);
    for (int e = lane; e < b.E; e += WARP)
        dlogits[n * b.E + e] = from_f32<T>(p[e] * (dp_of(b, n, e, rate, sum, mean) - dot));
}

void router_backward(Stream *s, Tensor dlogits, Tensor dweight, Tensor probability, Tensor expert, Tensor weight,
                     RouterWeights kind, Tensor counts, Tensor balance) {
    int64_t N = dlogits.dim[0];
    if (router_backward_contract(s, dlogits, dweight, probability, expert, weight, counts, balance) || N == 0) return;
    Backward b = {ptr<float>(dweight), ptr<float>(probability), ptr<float>(weight), ptr<float>(balance),
                  ptr<int32_t>(expert), ptr<int32_t>(counts), N, tensor_is_none(counts) ? 1 : N / counts.dim[0],
                  (int)dlogits.dim[1], (int)expert.dim[1], kind == WEIGHTS_NORMED};
    DISPATCH_ACT(dlogits.type, T,
                 LAUNCH(router_backward_kernel<T>, blocks_for(N, WARPS), THREADS, 0, s, ptr<T>(dlogits), b));
}

/* --- sorting and moving rows -------------------------------------------------------------------------------------- */

/* Sets order, place and first from the sorted list. Each thread takes one row of the list and the experts whose rows
 * begin there: those after the expert of the row before. Thread R takes the experts that begin at the end. grid ceil((R
 * + 1) / THREADS). */
KERNEL experts_place_kernel(int32_t *order, int32_t *place, int32_t *first, TokenList list, int64_t R, int E) {
    int64_t r = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (r > R) return;
    int last = r == 0 ? -1 : list.token[r - 1], mine = r == R ? E : list.token[r];
    for (int e = last + 1; e <= mine; e++) first[e] = (int32_t)r;
    if (r == R) return;
    int32_t assignment = list.position[r];
    order[r] = assignment;
    place[assignment] = (int32_t)r;
}

void experts_sort(Stream *s, Tensor order, Tensor place, Tensor first, Tensor expert) {
    int64_t R = order.dim[0], E = first.dim[0] - 1;
    experts_sort_contract(s, order, place, first, expert);
    size_t    mark = arena_mark(&s->scratch);
    TokenList list = sort_tokens(s, ptr<int32_t>(expert), R, E);
    LAUNCH(experts_place_kernel, blocks_for(R + 1, THREADS), THREADS, 0, s, ptr<int32_t>(order), ptr<int32_t>(place),
           ptr<int32_t>(first), list, R, (int)E);
    arena_release(&s->scratch, mark);
}

/* Copies to each row the vector of its token. Each warp takes one row. grid ceil(R / WARPS), no shared memory. Bound by
 * memory: 2 elements of traffic for each element of y. */
template <typename T, int W>
KERNEL rows_dispatch_kernel(T *y, const T *x, const int32_t *order, int64_t R, int64_t k, int64_t C) {
    int64_t r = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (r >= R) return;
    const T *from = x + order[r] / k * C;
    #pragma unroll 4
    for (int64_t c = threadIdx.x % WARP * W; c < C; c += WARP * W) pack_store(y + r * C + c, pack_load<T, W>(from + c));
}

/* Adds up the rows of each token in order. Each warp takes one token. grid ceil(N / WARPS), no shared memory. Bound by
 * memory: k + 1 elements of traffic for each element of y. */
template <typename T, int W>
KERNEL rows_combine_kernel(T *y, const T *x, const int32_t *place, int64_t N, int64_t k, int64_t C) {
    int64_t n = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP;
    if (n >= N) return;
    for (int64_t c = threadIdx.x % WARP * W; c < C; c += WARP * W) {
        Pack<float, W> sum = {};
        #pragma unroll 4
        for (int64_t j = 0; j < k; j++) {
            Pack<float, W> row = pack_to_f32(pack_load<T, W>(x + place[n * k + j] * C + c));
            for (int i = 0; i < W; i++) sum.v[i] += row.v[i];
        }
        pack_store(y + n * C + c, pack_from_f32<T>(sum));
    }
}

void rows_dispatch(Stream *s, Tensor y, Tensor x, Tensor order) {
    int64_t R = y.dim[0], C = y.dim[1];
    if (rows_contract(s, "rows_dispatch", y, x, order) || R == 0) return;
    DISPATCH_ACT(y.type, T, DISPATCH_PACK(T, packs_fit((size_t)C * sizeof(T), {y.data, x.data}), W,
        LAUNCH((rows_dispatch_kernel<T, W>), blocks_for(R, WARPS), THREADS, 0, s, ptr<T>(y), ptr<T>(x),
               ptr<int32_t>(order), R, R / x.dim[0], C)));
}

void rows_combine(Stream *s, Tensor y, Tensor x, Tensor place) {
    int64_t N = y.dim[0], C = y.dim[1];
    if (rows_contract(s, "rows_combine", x, y, place) || N == 0) return;
    DISPATCH_ACT(y.type, T, DISPATCH_PACK(T, packs_fit((size_t)C * sizeof(T), {y.data, x.data}), W,
        LAUNCH((rows_combine_kernel<T, W>), blocks_for(N, WARPS), THREADS, 0, s, ptr<T>(y), ptr<T>(x),
               ptr<int32_t>(place), N, x.dim[0] / N, C)));
}

/* --- products ----------------------------------------------------------------------------------------------------- */

typedef enum { INNER, OUTER } SumIndex;

/* One expert's slice of an operand: element (o, c) is at data[o * ld + c], o < outer, c < inner. Elements outside of
 * these bounds count as zero. */
template <typename T> struct Operand { const T *data; int64_t ld; int outer, inner; };

/* Tile of a product of 16-bit types: 8 warps, each with 64 x 32 elements of the tile. Both operands pass through two
 * stages of shared memory. */
struct Tile16 {
    static constexpr int I = 128, J = 128, R = 32, WARPS_I = 2, WARPS_J = 4, THREADS = WARPS_I * WARPS_J * WARP;
    static constexpr int ATOMS = I / WARPS_I / 16,
                         COLUMNS = J / WARPS_J; /* a warp has ATOMS x 16 rows and COLUMNS columns of the tile */
    static constexpr int PAD = 8;                                       /* elements between rows, which put the eight
                                                                         * rows of a matrix load in different banks */
    static constexpr int OPERAND = I * (R + PAD), STAGE = 2 * OPERAND, SHARED_BYTES = 2 * STAGE * 2;
    static_assert(I == J && R * (I + PAD) <= OPERAND, "room for either order");
};
/* Tile of a product in fp32: a thread has 4 x 4 elements of it. */
struct Tile32 {
    static constexpr int I = 64, J = 64, R = 16, THREADS = 256, EACH = 4, WIDTH = 64 + 1;
    static constexpr int SHARED_BYTES = 2 * R * WIDTH * 4;
};
template <typename T> using TileOf = std::conditional_t<std::is_same_v<T, float>, Tile32, Tile16>;

/* work of a block: an expert, and a tile of the expert's rows */

typedef struct { int expert, tile; } Place;

/* Finds the t-th of all experts' tiles of `size` rows; past the last tile the expert is E. Each warp does this by
 * itself. */
DEVICE Place find_tile(const int32_t *first, int E, int size, int t) {
    int   lane = (int)threadIdx.x % WARP, before = 0;
    Place place = {E, 0};
    for (int base = 0; base < E; base += WARP) {
        int e = base + lane, tiles = e < E ? (first[e + 1] - first[e] + size - 1) / size : 0, upto = tiles;
        for (int o = 1; o < WARP; o *= 2) {
            int left = __shfl_up_sync(0xffffffffu, upto, o);
            if (lane >= o) upto += left;
        }
        unsigned past = __ballot_sync(0xffffffffu, before + upto > t);
        int owner = past ? __ffs((int)past) - 1 : 0, start = __shfl_sync(0xffffffffu, before + upto - tiles, owner);
        if (past && place.expert == E) place.expert = base + owner, place.tile = t - start;
        before += __shfl_sync(0xffffffffu, upto, WARP - 1);
    }
    return place;
}

/* --- 16-bit types: tensor cores ----------------------------------------------------------------------------------- */

/* Loads ROWS x COLUMNS of an operand from (o, c) on. vector: its rows are whole, aligned 16-byte vectors. */
template <typename T, int ROWS, int COLUMNS>
DEVICE void load_operand(T *tile, const Operand<T> &x, int o, int c, bool vector) {
    constexpr int STRIDE = COLUMNS + Tile16::PAD, PACK = PACK_BYTES / (int)sizeof(T), PACKS = COLUMNS / PACK;
    if (vector) {
        #pragma unroll
        for (int k = 0; k < ROWS * PACKS / Tile16::THREADS; k++) {
            int  i = k * Tile16::THREADS + (int)threadIdx.x, row = i / PACKS, column = i % PACKS * PACK;
            bool inside = o + row < x.outer && c + column < x.inner;
            cp_async_16(tile + row * STRIDE + column, inside ? x.data + (o + row) * x.ld + c + column : x.data,
                        inside ? PACK_BYTES : 0);
        }
        return;
    }
    #pragma unroll 1
    for (int i = (int)threadIdx.x; i < ROWS * COLUMNS; i += Tile16::THREADS) {
        int  row = i / COLUMNS, column = i % COLUMNS;
        bool inside = o + row < x.outer && c + column < x.inner;
        tile[row * STRIDE + column] = inside ? x.data[(o + row) * x.ld + c + column] : from_f32<T>(0.0f);
    }
}

/* Loads the tile of an operand that starts at row or column `at` of the product and at term r of its sums. */
template <SumIndex order, typename T> DEVICE void load_side(T *tile, const Operand<T> &x, int at, int r, bool vector) {
    if constexpr (order == INNER) load_operand<T, Tile16::I, Tile16::R>(tile, x, at, r, vector);
    else                          load_operand<T, Tile16::R, Tile16::I>(tile, x, r, at, vector);
}

/* Loads the left fragment of a tensor-core product (core/ptx.cuh): rows i to i + 15 of a, terms r to r + 15 of the
 * sum. */
template <SumIndex order, typename T> DEVICE void left_fragment(uint32_t (&a)[4], const T *tile, int i, int r) {
    int lane = (int)threadIdx.x % WARP;
    if constexpr (order == INNER)
        ldmatrix_x4(a, tile + (i + lane % 16) * (Tile16::R + Tile16::PAD) + r + lane / 16 * 8);
    else
        ldmatrix_x4_transposed(a, tile + (r + lane / 16 * 8 + lane % 8) * (Tile16::I + Tile16::PAD) + i +
                                      lane / 8 % 2 * 8);
}
/* Loads two right fragments of a tensor-core product into b: columns j to j + 15 of the right operand's tile in shared
 * memory, and 16 values of the summed index from r on. */
template <SumIndex order, typename T> DEVICE void right_fragments(uint32_t (&b)[4], const T *tile, int j, int r) {
    int lane = (int)threadIdx.x % WARP;
    if constexpr (order == INNER)
        ldmatrix_x4(b, tile + (j + lane / 16 * 8 + lane % 8) * (Tile16::R + Tile16::PAD) + r + lane / 8 % 2 * 8);
    else
        ldmatrix_x4_transposed(b, tile + (r + lane / 8 % 2 * 8 + lane % 8) * (Tile16::J + Tile16::PAD) + j +
                                      lane / 16 * 8);
}

/* Calls store(i, j, value) for the tile's elements (i, j), counted from its corner. Each block computes the tile at
 * (i0, j0) of a product whose sums have `length` terms. */
template <SumIndex a_order, SumIndex b_order, typename T, typename Store>
DEVICE void tile_product(const Operand<T> &a, const Operand<T> &b, int i0, int j0, int length, bool vector, T *shared,
                         Store store) {
    typedef Tile16 Tile;
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    const int i_warp = warp / Tile::WARPS_J * 16 * Tile::ATOMS, j_warp = warp % Tile::WARPS_J * Tile::COLUMNS;
    float     sum[Tile::ATOMS][Tile::COLUMNS / 8][4] = {};
    auto      load = [&](int stage, int r) {
        T *tile = shared + stage * Tile::STAGE;
        load_side<a_order>(tile, a, i0, r, vector);
        load_side<b_order>(tile + Tile::OPERAND, b, j0, r, vector);
        cp_async_commit();
    };
    if (length > 0) load(0, 0);
    for (int r = 0, stage = 0; r < length; r += Tile::R, stage ^= 1) {
        cp_async_wait<0>();
        __syncthreads(); /* after this the tiles of this stage are in shared memory, and all threads have read the other
                          * stage */
        if (r + Tile::R < length) load(stage ^ 1, r + Tile::R);
        const T *left = shared + stage * Tile::STAGE, *right = left + Tile::OPERAND;
        #pragma unroll
        for (int k = 0; k < Tile::R; k += 16) {
            uint32_t x[Tile::ATOMS][4];
            #pragma unroll
            for (int atom = 0; atom < Tile::ATOMS; atom++) left_fragment<a_order>(x[atom], left, i_warp + atom * 16, k);
            #pragma unroll
            for (int j = 0; j < Tile::COLUMNS; j += 16) {
                uint32_t y[4];
                right_fragments<b_order>(y, right, j_warp + j, k);
                uint32_t low[2] = {y[0], y[1]}, high[2] = {y[2], y[3]};
                #pragma unroll
                for (int atom = 0; atom < Tile::ATOMS; atom++) {
                    mma_m16n8k16<T>(sum[atom][j / 8], x[atom], low);
                    mma_m16n8k16<T>(sum[atom][j / 8 + 1], x[atom], high);
                }
            }
        }
    }
    #pragma unroll
    for (int atom = 0; atom < Tile::ATOMS; atom++)
        #pragma unroll
        for (int n = 0; n < Tile::COLUMNS / 8; n++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                store(i_warp + atom * 16 + lane / 4 + e / 2 * 8, j_warp + n * 8 + lane % 4 * 2 + e % 2,
                      sum[atom][n][e]);
}

/* --- fp32: products by scalar multiply-adds ----------------------------------------------------------------------- */

/* Loads a tile of an fp32 operand as tile[r][at], with zeros beyond the operand. */
template <SumIndex order> DEVICE void load_f32(float *tile, const Operand<float> &x, int at, int r) {
    for (int k = (int)threadIdx.x; k < Tile32::R * Tile32::I; k += Tile32::THREADS) {
        int dr = order == INNER ? k % Tile32::R : k / Tile32::I, da = order == INNER ? k / Tile32::R : k % Tile32::I;
        int o = order == INNER ? at + da : r + dr, c = order == INNER ? r + dr : at + da;
        tile[dr * Tile32::WIDTH + da] = o < x.outer && c < x.inner ? x.data[o * x.ld + c] : 0.0f;
    }
}

template <SumIndex a_order, SumIndex b_order, typename Store>
DEVICE void tile_product(const Operand<float> &a, const Operand<float> &b, int i0, int j0, int length, bool,
                         float *shared, Store store) {
    typedef Tile32 Tile;
    float    *left = shared, *right = shared + Tile::R * Tile::WIDTH, sum[Tile::EACH][Tile::EACH] = {};
    const int i = (int)threadIdx.x / 16 * Tile::EACH, j = (int)threadIdx.x % 16 * Tile::EACH;
    for (int r = 0; r < length; r += Tile::R) {
        load_f32<a_order>(left, a, i0, r);
        load_f32<b_order>(right, b, j0, r);
        __syncthreads(); /* after this both tiles are complete in shared memory */
        for (int k = 0; k < Tile::R; k++)
            for (int di = 0; di < Tile::EACH; di++)
                for (int dj = 0; dj < Tile::EACH; dj++)
                    sum[di][dj] = fmaf(left[k * Tile::WIDTH + i + di], right[k * Tile::WIDTH + j + dj], sum[di][dj]);
        __syncthreads(); /* after this all threads have read both tiles, which may be overwritten */
    }
    for (int di = 0; di < Tile::EACH; di++)
        for (int dj = 0; dj < Tile::EACH; dj++) store(i + di, j + dj, sum[di][dj]);
}

/* --- kernels of the products of experts --------------------------------------------------------------------------- */

/* Computes y of each expert's rows: [.,n] = x [.,k] times w, which is [n,k] (INNER) or [k,n] (OUTER). Each block
 * computes one tile. grid (ceil(n / J), ceil(R / I) + E); some blocks have no work. Each element belongs to one thread,
 * so nothing is atomic. Bound by the tensor cores; with few rows to an expert, by reading w. */
template <typename T, SumIndex w_order>
KERNEL __launch_bounds__(TileOf<T>::THREADS)
    expert_rows_kernel(T *y, const T *x, const T *w, const int32_t *first, int E, int n, int k, int64_t stride,
                       bool vector) {
    typedef TileOf<T> Tile;
    SMEM_DYN(T, shared);
    Place p = find_tile(first, E, Tile::I, (int)blockIdx.y);
    if (p.expert == E) return; /* the whole block returns, so no thread misses a barrier */
    int begin = first[p.expert], rows = first[p.expert + 1] - begin, i0 = p.tile * Tile::I,
        j0 = (int)blockIdx.x * Tile::J;
    Operand<T> a = {x + (int64_t)begin * k, k, rows, k};
    Operand<T> b = {w + p.expert * stride, w_order == INNER ? k : n, w_order == INNER ? n : k,
                    w_order == INNER ? k : n};
    T         *out = y + (int64_t)begin * n;
    tile_product<INNER, w_order>(a, b, i0, j0, k, vector, shared, [=](int i, int j, float value) {
        if (i0 + i < rows && j0 + j < n) out[(int64_t)(i0 + i) * n + j0 + j] = from_f32<T>(value);
    });
}

/* dw_e [m,k] = or += dy^T x over the rows of each expert e. For an expert without rows, dw_e becomes zero, or is
 * unchanged if it would be added to. grid (ceil(k / J), ceil(m / I), E). */
template <typename T>
KERNEL __launch_bounds__(TileOf<T>::THREADS)
    expert_weights_kernel(float *dw, const T *dy, const T *x, const int32_t *first, int m, int k, int64_t stride,
                          bool vector, bool add) {
    typedef TileOf<T> Tile;
    SMEM_DYN(T, shared);
    int e = (int)blockIdx.z, begin = first[e], rows = first[e + 1] - begin;
    if (rows == 0 && add) return; /* the whole block returns, so no thread misses a barrier */
    int        i0 = (int)blockIdx.y * Tile::I, j0 = (int)blockIdx.x * Tile::J;
    Operand<T> a = {dy + (int64_t)begin * m, m, rows, m}, b = {x + (int64_t)begin * k, k, rows, k};
    float     *out = dw + e * stride;
    tile_product<OUTER, OUTER>(a, b, i0, j0, rows, vector, shared, [=](int i, int j, float value) {
        float *to = out + (int64_t)(i0 + i) * k + j0 + j;
        if (i0 + i < m && j0 + j < k) *to = add ? *to + value : value;
    });
}

/* --- host side of expert_linear ----------------------------------------------------------------------------------- */

static bool vectors_fit(Tensor x, Tensor y, Tensor w, int64_t stride) {
    size_t size = dtype_bytes(x.type);
    return packs_fit(((size_t)w.dim[0] | (size_t)w.dim[1] | (size_t)stride) * size, {x.data, y.data, w.data});
}

template <typename T, SumIndex w_order>
static void launch_rows(Stream *s, Tensor y, Tensor x, Tensor w, int64_t stride, Tensor first, int n, int k) {
    typedef TileOf<T> Tile;
    int64_t E = first.dim[0] - 1, tiles = blocks_for(x.dim[0], Tile::I) + E;
    CHECK(tiles < 1 << 16, "%lld tiles of rows", (long long)tiles);
    LAUNCH((expert_rows_kernel<T, w_order>), dim3((unsigned)blocks_for(n, Tile::J), (unsigned)tiles), Tile::THREADS,
           Tile::SHARED_BYTES, s, ptr<T>(y), ptr<T>(x), ptr<T>(w), ptr<int32_t>(first), (int)E, n, k, stride,
           vectors_fit(x, y, w, stride));
}

void expert_linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, int64_t stride, Tensor first) {
    if (expert_linear_forward_contract(s, y, x, w, stride, first) || x.dim[0] == 0) return;
    DISPATCH_ACT(x.type, T, launch_rows<T, INNER>(s, y, x, w, stride, first, (int)w.dim[0], (int)w.dim[1]));
}

void expert_linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, int64_t stride,
                            Tensor first) {
    if (expert_linear_backward_contract(s, dx, dw, dy, x, w, stride, first) || (x.dim[0] == 0 && !dw.is_fresh)) return;
    int M = (int)w.dim[0], K = (int)w.dim[1], E = (int)first.dim[0] - 1;
    CHECK(E < 1 << 16, "%d experts", E);
    DISPATCH_ACT(x.type, T, {
        typedef TileOf<T> Tile;
        if (x.dim[0] > 0) launch_rows<T, OUTER>(s, dx, dy, w, stride, first, K, M);
        dim3 grid((unsigned)blocks_for(K, Tile::J), (unsigned)blocks_for(M, Tile::I), (unsigned)E);
        LAUNCH(expert_weights_kernel<T>, grid, Tile::THREADS, Tile::SHARED_BYTES, s, ptr<float>(dw), ptr<T>(dy),
               ptr<T>(x), ptr<int32_t>(first), M, K, stride, vectors_fit(dy, x, w, stride), !dw.is_fresh);
    });
}
