/* gemm_hopper.cu - an own matrix product for GPT-2's shapes on compute capability 9.0, see gemm_hopper.cuh.
 *
 * A block per multiprocessor stays for the whole product and computes tiles of 128 x 128 of c one after another. One
 * thread loads operands by TMA into a ring of 4 stages of 64 values of k. Two warpgroups multiply alternately
 * (ping-pong): while one stores its tile, the other has the tensor cores. With k = 768 a tile takes 12 stages of 512
 * clocks at best, and its store a third of that [calculated].
 *   cluster  two blocks with neighbouring tiles along m load each half of their tile of b, for both (multicast)
 *   parts    few tiles and a long k, as of weights' gradients: slices of k are summed separately, a second kernel adds
 *            them in order
 * Tiles, slices and orders of additions follow from the shape and the stored way alone, so a run repeats its bits.
 *
 * Shared memory: 128 KiB of stages, 64 KiB of panels of c before they are stored (gemm_hopper_store.cuh), barriers, of
 * 227 KiB. Registers: 128 accumulators a thread, of 232.
 *
 * Bound: tensor cores, 128 x 128 x 64 in 512 clocks. A stage reads 48 KiB of shared memory for products (64 KiB could
 * be read in that time) and 24 KiB of L2, 32 without a cluster. Not measured on a GPU yet.
 */
#include "layers/gemm_hopper.cuh"

#include <stdlib.h>
#include <string.h>

#include "layers/bias.cuh"
#include "layers/gemm_hopper_store.cuh"

enum { MOST_PARTS = 32, LEAST_STEPS = 8 /* least steps of a slice of k, because its sums are written and read again */ };

#ifdef PTX_HOPPER
/* The work of a math warpgroup: every second work item of the block. */
template <typename T, typename C, bool a_by_lines, bool b_by_lines, int epilogue>
DEVICE void multiply_all(GemmShared *s, const GemmCall &g, const T *bias, int group) {
    int   warp = (int)threadIdx.x / WARP, stride = work_stride(g);
    float acc[2][ACCUMULATORS];
    Slots slots = {s->slot[warp], 0};
    if (group == 1) named_barrier_arrive(TURN, 2 * WARPGROUP);
    for (int i = first_work(g), turn = 0, step = 0; i < g.works; i += stride, turn++) {
        Work w = work_of(g, i);
        int  steps = w.end - w.first;
        if (turn % 2 == group) {
            if (reads_aux(epilogue)) load_aux(s, g, w, warp);
            named_barrier_sync(TURN + group, 2 * WARPGROUP); /* the other warpgroup's products are issued, so its stages
                                                              * come first */
            multiply<T, a_by_lines, b_by_lines>(acc, s, step, steps, g.cluster);
            if (i + stride < g.works) named_barrier_arrive(TURN + 1 - group, 2 * WARPGROUP);
            wgmma_wait<0>(acc[0], acc[1]);
            release_stage(s, (step + steps - 1) % STAGES, g.cluster);
            if (reads_aux(epilogue)) mbarrier_wait(&s->read[warp], turn / 2 & 1);
            if constexpr (std::is_same<C, float>::value) store_sums(acc, g, w);
            else store_tile<T, epilogue>(s, acc, slots, g, bias, w);
        }
        step += steps;
    }
    if (threadIdx.x % WARP == 0) bulk_wait_read<0>(); /* shared memory must outlast its stores */
}
#endif

/* Two warpgroups multiply, the third one loads. grid: blocks that fit at once, block GEMM_THREADS, GemmShared. */
template <typename T, typename C, bool a_by_lines, bool b_by_lines, int epilogue>
KERNEL __launch_bounds__(GEMM_THREADS, 1) gemm_hopper_kernel(const __grid_constant__ GemmCall g, const T *__restrict__ bias) {
#ifdef PTX_HOPPER
    SMEM_DYN(GemmShared, s);
    tiles_aligned(s);
    if (threadIdx.x == 0) barriers_init(s, g.cluster);
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait(); /* the barriers exist in both blocks */
    int group = (int)threadIdx.x / WARPGROUP;
    if (group == MATH_GROUPS) {
        registers_lower<LOAD_REGISTERS>();
        if (__shfl_sync(0xffffffffu, (int)threadIdx.x % WARPGROUP, 0) == 0 && elect_one()) load_all<a_by_lines, b_by_lines>(s, g);
        __syncwarp(); /* the cluster's barrier needs whole warps */
    } else {
        registers_raise<MATH_REGISTERS>();
        multiply_all<T, C, a_by_lines, b_by_lines, epilogue>(s, g, bias, group);
    }
    cluster_arrive();
    cluster_wait(); /* no block ends while the other one may access its shared memory */
#else
    device_check(g.m < 0 && bias); /* gemm_hopper_fits has refused this GPU */
#endif
}

/* c = or += the sum of slices [parts,m,n], in order. Thread: 4 elements. grid ceil(m n / (4 THREADS)), no shared
 * memory. Bound: reading the slices once. */
enum { THREADS = 256, WIDE = 4 };
KERNEL parts_total_kernel(float *__restrict__ c, int64_t ld, const float *__restrict__ part, int parts, int64_t m, int64_t n, int add) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * WIDE;
    if (i >= m * n) return;
    float              *to = c + i / n * ld + i % n;
    Pack<float, WIDE> sum = {};
    for (int p = 0; p < parts; p++) {
        Pack<float, WIDE> x = pack_load<float, WIDE>(part + p * m * n + i);
        for (int j = 0; j < WIDE; j++) sum.v[j] += x.v[j];
    }
    if (add) pack_add(to, sum);
    else pack_store(to, sum);
}

/* --- which products, in which ways ---------------------------------------------------------------------------------- */

/* HAS_SM90A: gpu.mk compiles for that architecture. In code for another architecture the kernel is empty, also if the
 * driver compiles its PTX for this GPU. */
#ifdef CUDA_EMU
enum { IS_EMULATED = 1, IS_COMPILED = 1 };
#elif defined(HAS_SM90A)
enum { IS_EMULATED = 0, IS_COMPILED = 1 };
#else
enum { IS_EMULATED = 0, IS_COMPILED = 0 };
#endif

GemmAsked gemm_asked(void) {
    const char *asked = getenv("TRAIN_GPT_GEMM");
    if (!asked) return IS_EMULATED ? GEMM_CUBLASLT : GEMM_TIMED;
    if (strcmp(asked, "own") == 0) return GEMM_OWN;
    if (strcmp(asked, "cublaslt") == 0) return GEMM_CUBLASLT;
    if (strcmp(asked, "timed") == 0) return GEMM_TIMED;
    fail(EXIT_CONFIG, "TRAIN_GPT_GEMM is \"%s\": own, cublaslt or timed", asked);
}

static int is_aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }
/* Returns whether TMA can read the matrix: rows are multiples of 16 bytes apart, and no coordinate overflows. */
static int view_fits(const Matrix *x) { return x->ld % 8 == 0 && x->ld < 1 << 30 && is_aligned(x->data, 16); }

int gemm_hopper_fits(const Matmul *p, Epilogue epilogue, const void *aux, int head) {
    if (!IS_COMPILED || strncmp(device_isa(), "sm_90", 5)) return 0;
    if ((p->a.type != BF16 && p->a.type != F16) || p->b.type != p->a.type) return 0;
    int64_t most = 1 << 30;
    if (!view_fits(&p->a) || !view_fits(&p->b) || !view_fits(&p->c) || p->n % 8 || p->m >= most || p->n >= most || p->k >= most) return 0;
    if (p->m < 1 || p->n < 1 || p->k < 1 || !is_aligned(p->bias, 4) || !is_aligned(aux, 16)) return 0;
    if (p->c.type == F32) return p->a.order == TRANSPOSED && p->b.order == PLAIN && !p->bias && epilogue == EPILOGUE_NONE;
    if (p->a.order != PLAIN || p->write == MATMUL_ADD) return 0;
    return epilogue == EPILOGUE_NONE || (epilogue == EPILOGUE_GELU && p->b.order == PLAIN) ||
           (epilogue == EPILOGUE_GELU_BACKWARD && p->b.order == TRANSPOSED && !p->bias) ||
           (epilogue == EPILOGUE_RESIDUAL && aux != p->c.data) ||
           (epilogue == EPILOGUE_DELTA && p->b.order == TRANSPOSED && !p->bias && (head == SIDE || head == TILE));
}

static int64_t tiles_along(int64_t x) { return blocks_for(x, TILE); }
static int64_t steps_of(const Matmul *p) { return blocks_for(p->k, DEPTH); }
static int64_t works_of(const Matmul *p, GemmWay way) { return blocks_for(tiles_along(p->m), way.cluster) * tiles_along(p->n) * way.parts; }

int gemm_hopper_has_way(const Matmul *p, size_t workspace_bytes, GemmWay way) {
    if ((way.cluster != 1 && way.cluster != 2) || way.parts < 1 || way.parts > MOST_PARTS || way.parts > steps_of(p)) return 0;
    return way.parts == 1 || (p->c.type == F32 && (size_t)(way.parts * p->m * p->n) * sizeof(float) <= workspace_bytes);
}

size_t gemm_hopper_sums_bytes(const Matmul *p) { return (size_t)(tiles_along(p->m) * p->n) * sizeof(float); }

/* Returns the share of the multiprocessors' time in which they have work, if all work items take equally long. */
static double filled(const Matmul *p, GemmWay way) {
    int64_t clusters = device_resident_blocks() / way.cluster, works = works_of(p, way);
    return (double)works / (double)(blocks_for(works, clusters) * clusters);
}

/* Writes ways for the numbers of slices that fill the GPU better than all smaller numbers, the largest ones; with pairs
 * of blocks, then without. */
int gemm_hopper_ways(const Matmul *p, size_t workspace_bytes, GemmWay ways[GEMM_WAYS]) {
    int    count = 0;
    double best = 0.0;
    for (int parts = 1; parts <= MOST_PARTS; parts++) {
        GemmWay way = {tiles_along(p->m) > 1 ? 2 : 1, parts};
        double  share = filled(p, way);
        int     is_long = parts == 1 || steps_of(p) / parts >= LEAST_STEPS;
        /* a small product fills under 2 % */
        if (!is_long || !gemm_hopper_has_way(p, workspace_bytes, way) || (count > 0 && share < best + 0.02)) continue;
        best = share;
        count = count < GEMM_WAYS / 2 ? count + 1 : GEMM_WAYS / 2;
        memmove(&ways[1], ways, (size_t)(count - 1) * sizeof *ways);
        ways[0] = way;
    }
    for (int i = 0, pairs = count; i < pairs; i++)
        if (ways[i].cluster == 2) ways[count++] = {1, ways[i].parts};
    return count;
}

/* --- the launch ---------------------------------------------------------------------------------------------------- */

/* Returns the TMA map of an operand's squares. */
template <typename T> static TensorMap operand_map(const Matrix &x, int64_t rows, int64_t columns) {
    if (x.order == TRANSPOSED) return tensor_map_2d((const T *)x.data, columns, rows, SIDE, SIDE, x.ld);
    return tensor_map_2d((const T *)x.data, rows, columns, SIDE, SIDE, x.ld);
}
template <typename T> static TensorMap panel_map(const void *x, const Matmul *p) {
    return tensor_map_2d((const T *)x, p->m, p->n, PANEL_ROWS, SIDE, p->c.ld);
}

template <typename T> static GemmCall call_of(const Matmul *p, const void *aux, GemmWay way, void *workspace) {
    GemmCall g = {};
    g.a = operand_map<T>(p->a, p->m, p->k), g.b = operand_map<T>(p->b, p->k, p->n);
    g.m = (int)p->m, g.n = (int)p->n, g.steps = (int)steps_of(p);
    g.cluster = way.cluster, g.parts = way.parts, g.works = (int)works_of(p, way);
    g.tiles_m = (int)blocks_for(tiles_along(p->m), way.cluster), g.tiles_n = (int)tiles_along(p->n);
    if (p->c.type != F32) g.c = panel_map<T>(p->c.data, p);
    else if (way.parts == 1) g.sums = (float *)p->c.data, g.ld = p->c.ld, g.add = p->write == MATMUL_ADD;
    else g.sums = (float *)workspace, g.ld = p->n, g.part_elems = p->m * p->n;
    if (aux) g.aux = panel_map<T>(aux, p);
    return g;
}

template <typename T, typename C, bool a_by_lines, bool b_by_lines, int epilogue>
static void launch(Stream *s, const GemmCall &g, const void *bias = NULL) {
    int clusters = device_resident_blocks() / g.cluster, blocks = (g.works < clusters ? g.works : clusters) * g.cluster;
    LAUNCH_CLUSTER((unsigned)g.cluster, (gemm_hopper_kernel<T, C, a_by_lines, b_by_lines, epilogue>), (unsigned)blocks, GEMM_THREADS,
                   sizeof(GemmShared), s, g, (const T *)bias);
}

template <typename T>
static void queue(Stream *s, const Matmul *p, Epilogue epilogue, const void *aux, float *sums, int head, GemmWay way, void *workspace) {
    GemmCall g = call_of<T>(p, aux, way, workspace);
    int      has_column_sums = sums && epilogue == EPILOGUE_GELU_BACKWARD;
    if (has_column_sums) g.column_sums = (float *)workspace;
    if (epilogue == EPILOGUE_DELTA) g.delta = sums, g.head = head;
    if (p->c.type == F32) launch<T, float, false, false, EPILOGUE_NONE>(s, g);
    else if (epilogue == EPILOGUE_GELU) launch<T, T, true, false, EPILOGUE_GELU>(s, g, p->bias);
    else if (epilogue == EPILOGUE_GELU_BACKWARD) launch<T, T, true, true, EPILOGUE_GELU_BACKWARD>(s, g);
    else if (epilogue == EPILOGUE_DELTA) launch<T, T, true, true, EPILOGUE_DELTA>(s, g);
    else if (epilogue == EPILOGUE_RESIDUAL && p->b.order == PLAIN) launch<T, T, true, false, EPILOGUE_RESIDUAL>(s, g, p->bias);
    else if (epilogue == EPILOGUE_RESIDUAL) launch<T, T, true, true, EPILOGUE_RESIDUAL>(s, g, p->bias);
    else if (p->b.order == PLAIN) launch<T, T, true, false, EPILOGUE_NONE>(s, g, p->bias);
    else launch<T, T, true, true, EPILOGUE_NONE>(s, g, p->bias);
    if (has_column_sums) column_sums(s, sums, workspace, F32, tiles_along(p->m), tiles_along(p->m), p->n, MATMUL_SET);
    if (way.parts == 1) return;
    LAUNCH(parts_total_kernel, blocks_for(p->m * p->n, WIDE * THREADS), THREADS, 0, s, (float *)p->c.data, p->c.ld, g.sums, way.parts, p->m,
           p->n, p->write == MATMUL_ADD);
}

void gemm_hopper(Stream *s, const Matmul *p, Epilogue epilogue, const void *aux, float *sums, int head, GemmWay way, void *workspace) {
    if (p->a.type == BF16) queue<bf16>(s, p, epilogue, aux, sums, head, way, workspace);
    else queue<half>(s, p, epilogue, aux, sums, head, way, workspace);
}
