/* matmul.cu - matrix products by cuBLASLt or by gemm_hopper.cu, see matmul.h and matmul.cuh. The one file that knows
 * cuBLASLt's API.
 *
 * cuBLASLt is column-major: row-major memory of c[m,n] is its n x m matrix, and c = a b is c^T = b^T a^T. So its A is
 * our b, its B our a, its m our n. A matrix that is PLAIN is its 'N', a TRANSPOSED one its 'T', and a bias along our
 * columns is along its rows.
 *
 * For the first product of a shape this file gets cuBLASLt's candidates and the ways of gemm_hopper.cu. It times each
 * on the real operands and keeps the fastest in the table of algorithms.h; descriptors are kept too. Candidates that
 * add partial sums in the order in which blocks finish are left out, because a run repeats its bits. A record holds the
 * whole algorithm, so that a stored one is the same one.
 *
 * The library's handle and the descriptors are this file's only state. They belong to the main thread, like every op.
 */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "core/error.h"
#include "layers/algorithms.h"
#include "layers/layers.h"
#include "layers/matmul.cuh"

enum { CACHE = 128, LT_CANDIDATES = 16, CANDIDATES = LT_CANDIDATES + GEMM_WAYS, TIMED_RUNS = 3 };
/* AUX_LD_ELEMS: rows of cuBLASLt's aux matrix are a multiple of 8 elements apart, cublasLt.h at
 * CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD. */
enum { AUX_LD_ELEMS = 8, FULL_ALIGN = 16 /* FULL_ALIGN: bytes of the widest access */, BIAS_THREADS = 256 };

/* Key of a product in the cache: everything that the choice of an algorithm may depend on. It has no padding, because
 * keys are compared as bytes. */
typedef struct {
    int64_t m, n, k, a_ld, b_ld, c_ld;
    int32_t type, b_type, c_type, a_order, b_order, write, has_bias, epilogue, activation, math;
    int32_t a_align, b_align, c_align, aux_align;
} Key;

/* An algorithm: a way of gemm_hopper.cu, or one of cuBLASLt's algorithms. */
typedef struct {
    int                  is_own;
    GemmWay              way;
    cublasLtMatmulAlgo_t lt;
} Algorithm;

typedef struct {
    Key                    key;
    cublasLtMatmulDesc_t   product;
    cublasLtMatrixLayout_t a, b, c; /* layouts of our a, b and c, which are cuBLASLt's B, A and C */
    Algorithm              algo;
    MatmulAlgorithm        record;
} Entry;

struct Call {
    Matmul       p;
    Epilogue     epilogue = EPILOGUE_NONE;
    void        *aux = NULL;
    float       *sums = NULL; /* output for column sums or deltas that an epilogue also computes (Rest in matmul.cuh),
                               * or NULL */
    int          head = 0;    /* for EPILOGUE_DELTA: number of columns of an attention head */
    Activation   activation = ACTIVATION_GELU_NEW;    /* function of EPILOGUE_ACTIVATION and of its backward */
    const float *a_inverse = NULL, *b_inverse = NULL; /* inverse scales of fp8 operands; borrowed */
    void        *workspace = NULL;                    /* scratch of cuBLASLt, workspace_bytes() bytes; borrowed */
};

static struct {
    cublasLtHandle_t handle;
    Entry            cache[CACHE];
    int              made;    /* number of cache entries made since the start; a new one replaces the oldest if the
                               * cache is full */
    uint64_t         version; /* version of the table of algorithms (algorithms.h) from which the cache was filled */
} lt;

static void cublas_failed(const char *call, cublasStatus_t status, int line) {
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        fail(EXIT_MEMORY, "%s: out of GPU memory (%s:%d): lower batch.micro_batch, or set memory.recompute=block", call,
             __FILE__, line);
    check_failed(call, __FILE__, line, "cuBLASLt says: %s", cublasLtGetStatusString(status));
}
#define CUBLAS_CHECK(call)                                                                      \
    do {                                                                                        \
        cublasStatus_t cublas_status = (call);                                                  \
        if (cublas_status != CUBLAS_STATUS_SUCCESS) cublas_failed(#call, cublas_status, __LINE__); \
    } while (0)

/* Returns the bytes of the workspace. From Hopper on it is four times NVIDIA's recommendation. The gradient of a weight
 * sums over 65,536 rows, and 32 MiB would hold partial sums of too few slices to keep all multiprocessors busy. Before
 * Hopper it is 4 MiB. Without a GPU it is that of the newest, because `plan` should rather count too much. */
static size_t workspace_bytes(void) {
    int capability = atoi(device_isa() + strcspn(device_isa(), "0123456789"));
    return (size_t)(capability > 0 && capability < 90 ? 4 : 128) << 20;
}

/* --- keys --------------------------------------------------------------------------------------------------------- */

static int32_t align_of(const void *p) {
    int32_t align = FULL_ALIGN;
    while ((uintptr_t)p % (uintptr_t)align) align /= 2;
    return align;
}

static Key key_of(const Stream *s, const Call *c) {
    const Matmul *p = &c->p;
    Key key;
    key.m = p->m, key.n = p->n, key.k = p->k;
    key.a_ld = p->a.ld, key.b_ld = p->b.ld, key.c_ld = p->c.ld;
    key.type = p->a.type, key.b_type = p->b.type;
    key.c_type = p->c.type, key.a_order = p->a.order, key.b_order = p->b.order;
    key.write = p->write, key.has_bias = p->bias != NULL, key.epilogue = c->epilogue, key.activation = c->activation,
    key.math = p->a.type == F32 ? s->math : MATH_STRICT;
    key.a_align = align_of(p->a.data), key.b_align = align_of(p->b.data), key.c_align = align_of(p->c.data);
    /* the smaller alignment of the bias and of aux; a NULL counts as 16 */
    key.aux_align = align_of(p->bias) < align_of(c->aux) ? align_of(p->bias) : align_of(c->aux);
    return key;
}

static int is_fp8(const Key *k) { return dtype_bytes((DType)k->type) == 1; }

/* Writes the text that is a product's key in the table of algorithms (algorithms.h). Epilogues of gelu_new have names
 * without the activation, because stored tables are older than the other activations. */
static void key_text(char text[ALGORITHM_KEY_ROOM], const Key *k) {
    static const char *const epilogues[] = {"", " gelu_backward", " column_sums", " gelu", " delta", " residual"},
                      *const others[] = {"", " activation_backward ", "", " activation ", "", ""};
    int is_other = k->activation != ACTIVATION_GELU_NEW;
    snprintf(text, ALGORITHM_KEY_ROOM,
             "%s%s%s%s to %s%s, m %lld n %lld k %lld, a%s %lld b%s %lld c %lld%s%s%s, align %d %d %d %d",
             dtype_name((DType)k->type), is_fp8(k) ? " x " : "", is_fp8(k) ? dtype_name((DType)k->b_type) : "",
             k->math == MATH_TF32 ? " as tf32" : "", dtype_name((DType)k->c_type),
             k->write == MATMUL_ADD ? " added" : "", (long long)k->m, (long long)k->n, (long long)k->k,
             k->a_order == PLAIN ? "" : "^T", (long long)k->a_ld, k->b_order == PLAIN ? "" : "^T", (long long)k->b_ld,
             (long long)k->c_ld, k->has_bias ? " bias" : "", (is_other ? others : epilogues)[k->epilogue],
             is_other ? ACTIVATION_NAMES[k->activation] : "", k->a_align, k->b_align, k->c_align, k->aux_align);
}

/* --- descriptors -------------------------------------------------------------------------------------------------- */

static cudaDataType_t cuda_type(int32_t type) {
    if (type == E4M3) return CUDA_R_8F_E4M3;
    if (type == E5M2) return CUDA_R_8F_E5M2;
    return type == F32 ? CUDA_R_32F : type == BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

template <typename T> static void describe(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t what, T value) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(product, what, &value, sizeof value));
}
template <typename T>
static void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what, T value) {
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, what, &value, sizeof value));
}

/* Makes cuBLASLt's layout of a matrix of ours, rows x columns, as it lies in memory. */
static cublasLtMatrixLayout_t layout_of(int32_t type, int32_t order, int64_t rows, int64_t columns, int64_t ld) {
    cublasLtMatrixLayout_t layout;
    uint64_t in_memory = (uint64_t)(order == PLAIN ? columns : rows),
             lines = (uint64_t)(order == PLAIN ? rows : columns);
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&layout, cuda_type(type), in_memory, lines, ld));
    return layout;
}

/* Sets the pointers of a cache entry's descriptor, which differ from call to call. cuBLASLt's heuristics depend on
 * their alignment, which is in the key. */
static void point(const Entry *e, const Call *c) {
    if (is_fp8(&e->key)) {
        describe(e->product, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, c->b_inverse);
        describe(e->product, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, c->a_inverse);
    }
    if (c->p.bias) describe(e->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c->p.bias);
    if (c->epilogue == EPILOGUE_COLUMN_SUMS) describe(e->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c->aux);
    if (c->epilogue == EPILOGUE_ACTIVATION_BACKWARD)
        describe(e->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, c->aux);
}

/* Makes a cache entry. The library plans for the multiprocessors that NCCL's kernels leave free, except if any number
 * of ranks must give the same bits. */
static void entry_make(Entry *e, Key key, const Call *c, const Stream *s) {
    memset(e, 0, sizeof *e);
    e->key = key;
    key_text(e->record.key, &key);
    cublasComputeType_t compute = key.math == MATH_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&e->product, compute, CUDA_R_32F));
    describe(e->product, CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)(key.b_order == PLAIN ? CUBLAS_OP_N : CUBLAS_OP_T));
    describe(e->product, CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)(key.a_order == PLAIN ? CUBLAS_OP_N : CUBLAS_OP_T));
    describe(e->product, CUBLASLT_MATMUL_DESC_EPILOGUE,
             (uint32_t)(key.epilogue == EPILOGUE_ACTIVATION_BACKWARD ? CUBLASLT_EPILOGUE_DGELU
                        : key.epilogue == EPILOGUE_COLUMN_SUMS       ? CUBLASLT_EPILOGUE_BGRADA
                        : key.has_bias                               ? CUBLASLT_EPILOGUE_BIAS
                                                                     : CUBLASLT_EPILOGUE_DEFAULT));
    if (is_fp8(&key))
        describe(e->product, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                 /* 0 turns fast accumulation off. With it an H100 would add fp8 products with only some 14 bits of
                  * mantissa (arXiv:2412.19437, section 3.3.2) */
                 (int8_t)0);
    if (key.has_bias)
        describe(e->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)cuda_type(is_fp8(&key) ? BF16 : key.type));
    if (key.epilogue == EPILOGUE_COLUMN_SUMS)
        describe(e->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, (int32_t)CUDA_R_32F);
    if (key.epilogue == EPILOGUE_ACTIVATION_BACKWARD) {
        describe(e->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)key.c_ld);
        describe(e->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, (int32_t)cuda_type(key.c_type));
    }
    if (device_resident_blocks() < device_multiprocessors() && !s->any_threads)
        describe(e->product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, (int32_t)device_resident_blocks());
    e->a = layout_of(key.type, key.a_order, key.m, key.k, key.a_ld);
    e->b = layout_of(key.b_type, key.b_order, key.k, key.n, key.b_ld);
    e->c = layout_of(key.c_type, PLAIN, key.m, key.n, key.c_ld);
    point(e, c);
}

static void entry_drop(Entry *e) {
    if (!e->product) return;
    cublasLtMatmulDescDestroy(e->product);
    cublasLtMatrixLayoutDestroy(e->a);
    cublasLtMatrixLayoutDestroy(e->b);
    cublasLtMatrixLayoutDestroy(e->c);
    e->product = NULL;
}

/* --- algorithms --------------------------------------------------------------------------------------------------- */

/* Returns an attribute of 32 bits of an algorithm, or `missing` if the algorithm does not have it. */
static int32_t algo_attribute(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what,
                              int32_t missing) {
    int32_t        value = 0;
    size_t         written;
    cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(algo, what, &value, sizeof value, &written);
    return status == CUBLAS_STATUS_SUCCESS ? value : missing;
}
static int32_t algo_id(const cublasLtMatmulAlgo_t *algo) {
    return algo_attribute(algo, CUBLASLT_ALGO_CONFIG_ID, ALGORITHM_NONE);
}

/* Copies an algorithm into an entry of the table of algorithms. */
static void algo_store(MatmulAlgorithm *record, const Algorithm *algo) {
    static_assert(sizeof record->state == sizeof algo->lt.data, "all of an algorithm is kept");
    uint32_t own[ALGORITHM_WORDS] = {GEMM_SUM_ORDER, (uint32_t)algo->way.cluster, (uint32_t)algo->way.parts};
    record->id = algo->is_own ? (int32_t)ALGORITHM_OWN : algo_id(&algo->lt);
    memcpy(record->state, algo->is_own ? (const void *)own : algo->lt.data, sizeof record->state);
}

/* Return whether gemm_hopper.cu can compute the call, and whether TRAIN_GPT_GEMM=own demands it. */
static int own_may(const Call *c) {
    return gemm_asked() != GEMM_CUBLASLT && gemm_hopper_fits(&c->p, c->epilogue, c->aux, c->head) &&
           (!c->sums || gemm_hopper_sums_bytes(&c->p) <= workspace_bytes());
}
static int own_must(const Call *c) {
    return gemm_asked() == GEMM_OWN && gemm_hopper_fits(&c->p, EPILOGUE_NONE, NULL, 0);
}

/* Restores the algorithm that an entry of the table holds. Returns 0 if this library or GPU cannot run it. */
static int algo_restore(const Entry *e, const Call *c, const MatmulAlgorithm *record, Algorithm *algo) {
    cublasLtMatmulHeuristicResult_t result;
    algo->is_own = record->id == ALGORITHM_OWN;
    if (algo->is_own) {
        algo->way = {(int)record->state[1], (int)record->state[2]};
        return own_may(c) && record->state[0] == GEMM_SUM_ORDER &&
               gemm_hopper_has_way(&c->p, workspace_bytes(), algo->way);
    }
    memcpy(algo->lt.data, record->state, sizeof record->state);
    return !own_must(c) && algo_id(&algo->lt) == record->id &&
           cublasLtMatmulAlgoCheck(lt.handle, e->product, e->b, e->a, e->c, e->c, &algo->lt, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= workspace_bytes();
}

/* Returns whether an algorithm repeats its bits. It returns 0 for split sums that are added in place, in the order in
 * which blocks finish, or in the output's own type. An algorithm without this attribute has no split sums. */
static int is_reproducible(const cublasLtMatmulAlgo_t *algo) {
    int32_t scheme = algo_attribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_REDUCTION_SCHEME_NONE);
    return scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/* Returns whether cuBLASLt computes the bias exactly. cuBLASLt 13.1 rounds a product of 16-bit numbers before it adds a
 * bias, if rows do not begin at multiples of 16 bytes (seen on an H100). */
static int lt_takes_bias(const Matmul *p) {
    return !p->bias || dtype_bytes(p->a.type) != 2 || (p->a.ld % 8 == 0 && p->b.ld % 8 == 0 && p->c.ld % 8 == 0);
}

/* Writes the candidates of cuBLASLt that repeat their bits, best guess first. Returns their number. */
static int lt_candidates(const Entry *e, Algorithm *found) {
    cublasLtMatmulHeuristicResult_t result[LT_CANDIDATES];
    cublasLtMatmulPreference_t      preference;
    int count = 0, kept = 0;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)workspace_bytes());
    prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)e->key.b_align);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)e->key.a_align);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)e->key.c_align);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)e->key.c_align);
    if (cublasLtMatmulAlgoGetHeuristic(lt.handle, e->product, e->b, e->a, e->c, e->c, preference, LT_CANDIDATES, result,
                                       &count) != CUBLAS_STATUS_SUCCESS)
        count = 0; /* cublasLtMatmulAlgoGetHeuristic also fails if it finds no candidate */
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    for (int i = 0; i < count; i++)
        if (result[i].state == CUBLAS_STATUS_SUCCESS && result[i].workspaceSize <= workspace_bytes() &&
            is_reproducible(&result[i].algo))
            found[kept++] = {0, {}, result[i].algo};
    return kept;
}

/* Returns whether cuBLASLt lacks the call's epilogue. cuBLASLt has the gradient of gelu_new, but of no other
 * activation. */
static int is_own_alone(const Call *c) {
    return c->epilogue == EPILOGUE_ACTIVATION || c->epilogue == EPILOGUE_DELTA || c->epilogue == EPILOGUE_RESIDUAL ||
           (c->epilogue == EPILOGUE_ACTIVATION_BACKWARD && c->activation != ACTIVATION_GELU_NEW);
}

/* Writes cuBLASLt's candidates, then the ways of gemm_hopper.cu. If only gemm_hopper.cu may compute the product, leaves
 * out cuBLASLt's. */
static int candidates(const Entry *e, const Call *c, Algorithm found[CANDIDATES]) {
    GemmWay way[GEMM_WAYS];
    int     count = own_must(c) || is_own_alone(c) || !lt_takes_bias(&c->p) ? 0 : lt_candidates(e, found);
    int     ways = own_may(c) ? gemm_hopper_ways(&c->p, workspace_bytes(), way) : 0;
    for (int i = 0; i < ways; i++) found[count++] = {1, way[i], {}};
    return count;
}

/* --- choosing ----------------------------------------------------------------------------------------------------- */

static cublasStatus_t queue_product(Stream *s, const Entry *e, const Algorithm *algo, const Call *c) {
    if (algo->is_own) {
        gemm_hopper(s, &c->p, c->epilogue, c->activation, c->aux, c->sums, c->head, algo->way, c->workspace);
        return CUBLAS_STATUS_SUCCESS;
    }
    float alpha = 1.0f, beta = c->p.write == MATMUL_ADD ? 1.0f : 0.0f;
    point(e, c);
    return cublasLtMatmul(lt.handle, e->product, &alpha, c->p.b.data, e->b, c->p.a.data, e->a, &beta, c->p.c.data, e->c,
                          c->p.c.data, e->c, &algo->lt, c->workspace, workspace_bytes(), stream_queue(s));
}

static int takes_sums(const Algorithm *algo, const Call *c) { return algo->is_own && c->sums; }

/* Returns the shortest time of a few runs, after one that loads the kernel. */
static double shortest_ms(Stream *s, const std::function<void()> &queue) {
    double best = INFINITY;
    timed_ms(s, queue);
    for (int run = 0; run < TIMED_RUNS; run++) best = std::min(best, timed_ms(s, queue));
    return best;
}

/* Returns the time of a product; infinite if it cannot run. */
static double product_ms(Stream *s, const Entry *e, const Algorithm *algo, const Call *c) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    double         ms = shortest_ms(s, [&] { status = queue_product(s, e, algo, c); });
    return status == CUBLAS_STATUS_SUCCESS ? ms : INFINITY;
}

static Entry *entry_of(Stream *s, const Call *c, const Rest *rest);

static Matmul plain_of(Matmul p, const Rest *rest) {
    if (rest->apart) p.c.data = rest->apart;
    return p;
}

/* Writes the fastest candidate to e, or the one that must be used. Writes ALGORITHM_NONE if the plain product and the
 * separate kernels in `rest` together are faster. Timing would change sums that the product adds to, so they are saved
 * in host memory. */
static void choose(Stream *s, Entry *e, const Call *c, const Rest *rest) {
    Algorithm found[CANDIDATES];
    int count = candidates(e, c, found), untimed = matmul_algorithms.frozen || stream_is_captured(s);
    CHECK(count > 0 || rest, "cuBLASLt has no algorithm for %s", e->record.key);
    e->record.id = ALGORITHM_NONE;
    if (count == 0 || (untimed && rest && !own_must(c))) return;
    e->record.id = ALGORITHM_FIRST, e->algo = found[0];
    if (own_must(c)) algo_store(&e->record, &e->algo);
    if (untimed || own_must(c)) return;

    Tensor sums = tensor_1d(c->p.c.data, c->p.c.type, (c->p.m - 1) * c->p.c.ld + c->p.n);
    void *aside = c->p.write == MATMUL_ADD ? xmalloc(tensor_bytes(sums), "a copy of the sums of a matrix product")
                                           : NULL;
    if (aside) device_to_host(s, aside, sums);
    double best = INFINITY, ms[CANDIDATES], behind_ms = 0.0;
    for (int i = 0; i < count; i++) ms[i] = product_ms(s, e, &found[i], c);
    if (rest && rest->behind) behind_ms = shortest_ms(s, rest->behind);
    for (int i = 0; i < count; i++) {
        if (!takes_sums(&found[i], c)) ms[i] += behind_ms;
        if (ms[i] >= best) continue;
        best = ms[i], e->algo = found[i];
        algo_store(&e->record, &found[i]);
    }
    if (best == INFINITY && !rest)
        warn("all of cuBLASLt's %d algorithms for %s failed when they were timed: its first choice is used", count,
             e->record.key);
    if (rest) {
        Call plain = {plain_of(c->p, rest)};
        plain.workspace = c->workspace;
        Entry *apart = entry_of(s, &plain, NULL);
        if (product_ms(s, apart, &apart->algo, &plain) + shortest_ms(s, rest->queue) <= best)
            e->record.id = ALGORITHM_NONE;
    }
    if (aside) device_from_host(s, sums, aside);
    free(aside);
}

/* Takes over the choice that the table holds for e's key. Returns 0 if it holds none that can run. */
static int adopt(Entry *e, const Call *c, const Rest *rest) {
    int at = matmul_algorithms_find(e->record.key);
    if (at < 0) return 0;
    e->record = matmul_algorithms.record[at];
    Algorithm found[CANDIDATES];
    if (e->record.id == ALGORITHM_NONE && rest) return 1;
    if (e->record.id == ALGORITHM_FIRST && candidates(e, c, found) > 0) return e->algo = found[0], 1;
    if ((e->record.id >= 0 || e->record.id == ALGORITHM_OWN) && algo_restore(e, c, &e->record, &e->algo)) return 1;
    warn("the algorithm for %s that an earlier run stored in gemm.json cannot run with this GPU, cuBLASLt or version "
         "of the program: another one is chosen, and sums may differ in their last bits",
         e->record.key);
    return 0;
}

/* Returns the cache entry of the product, with its algorithm chosen. */
static Entry *entry_of(Stream *s, const Call *c, const Rest *rest) {
    int known = lt.made < CACHE ? lt.made : CACHE;
    if (lt.version != matmul_algorithms.version) {
        for (int i = 0; i < known; i++) entry_drop(&lt.cache[i]);
        known = lt.made = 0;
        lt.version = matmul_algorithms.version;
    }
    Key key = key_of(s, c);
    for (int i = 0; i < known; i++)
        if (memcmp(&lt.cache[i].key, &key, sizeof key) == 0) return &lt.cache[i];
    Entry *e = &lt.cache[lt.made++ % CACHE];
    entry_drop(e);
    entry_make(e, key, c, s);
    if (adopt(e, c, rest)) return e;
    choose(s, e, c, rest);
    if (!matmul_algorithms.frozen) matmul_algorithms_set(e->record), lt.version = matmul_algorithms.version;
    return e;
}

/* --- the product -------------------------------------------------------------------------------------------------- */

/* Writes the bias to each row of c. It moves 16-bit words, so one kernel serves bf16 and fp16. */
KERNEL bias_rows_kernel(uint16_t *c, int64_t ld, int64_t m, int64_t n, const uint16_t *bias) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < m * n) c[i / n * ld + i % n] = bias[i % n];
}

/* Computes the product. Returns 0 without computing it if separate kernels are faster than the epilogue. Otherwise
 * returns 1, or 2 if the epilogue has also written the column sums (rest->sums). */
static int product(Stream *s, Call c, const Rest *rest) {
    Matmul *p = &c.p;
    int types_fit = p->a.type == p->b.type && (p->a.type == F32 || p->a.type == BF16 || p->a.type == F16) &&
                    (p->c.type == p->a.type || p->c.type == F32);
    if (dtype_bytes(p->a.type) == 1)
        types_fit = (p->a.type == E4M3 || p->b.type == E4M3) && dtype_bytes(p->b.type) == 1 && p->a.order == PLAIN &&
                    p->b.order == TRANSPOSED && (p->c.type == BF16 || p->c.type == F32);
    CHECK(types_fit && p->c.order == PLAIN && (p->write == MATMUL_SET || (p->c.type == F32 && !p->bias)) &&
          (!p->bias || dtype_bytes(p->a.type) != 2 || p->c.type == p->a.type),
          "a product of %s and %s into %s", dtype_name(p->a.type), dtype_name(p->b.type), dtype_name(p->c.type));
    size_t mark = arena_mark(&s->scratch);
    c.workspace = arena_take(&s->scratch, workspace_bytes());
    if (matmul_note(s, *p)) {
        arena_release(&s->scratch, mark);
        return 1;
    }
    if (!lt.handle) CUBLAS_CHECK(cublasLtCreate(&lt.handle));
    if (!lt_takes_bias(p) && !own_may(&c)) { /* the bias becomes the start of c, and the product is added to it before
                                              * rounding */
        LAUNCH(bias_rows_kernel, (unsigned)blocks_for(p->m * p->n, BIAS_THREADS), BIAS_THREADS, 0, s,
               (uint16_t *)p->c.data, p->c.ld, p->m, p->n, (const uint16_t *)p->bias);
        p->bias = NULL, p->write = MATMUL_ADD;
    }
    Entry *e = entry_of(s, &c, rest);
    int    done = e->record.id != ALGORITHM_NONE;
    if (done) CUBLAS_CHECK(queue_product(s, e, &e->algo, &c));
    arena_release(&s->scratch, mark);
    return done + (done && takes_sums(&e->algo, &c));
}

void matmul(Stream *s, Matmul p) { product(s, {p}, NULL); }

void matmul_fp8(Stream *s, Matmul p, const float *a_inverse, const float *b_inverse) {
    Call c = {p};
    c.a_inverse = a_inverse, c.b_inverse = b_inverse;
    product(s, c, NULL);
}

int matmul_fused(Stream *s, Matmul p, Epilogue epilogue, void *aux, const Rest &rest) {
    Call c = {p, epilogue, aux, rest.sums, rest.head, rest.activation};
    /* The GELU gradient of cuBLASLt is not exact to fp32. On an H200 its error was three times that allowed for sums in
     * fp32. */
    int fits = is_own_alone(&c) ? own_may(&c)
               : epilogue == EPILOGUE_ACTIVATION_BACKWARD
                   ? p.a.type != F32 && p.c.ld % AUX_LD_ELEMS == 0 && align_of(aux) == FULL_ALIGN
                   : 1;
    int  done = fits && !s->ledger ? product(s, c, &rest) : 0; /* A stream that only counts costs has no table of
                                                                * algorithms. It counts as if separate kernels were
                                                                * faster than the epilogue. */
    if (done) return done;
    size_t mark = arena_mark(&s->scratch);
    if (s->ledger) arena_take(&s->scratch, rest.scratch_bytes); /* takes the separate kernels' scratch in addition to
                                                                 * that of the product, because both are in use while
                                                                 * they are timed */
    matmul(s, plain_of(p, &rest));
    arena_release(&s->scratch, mark);
    return 0;
}

/* Returns the version of the library that is loaded, which may be newer than the header: major * 10000 + minor * 100 +
 * patch. */
const char *matmul_library(void) {
    static char name[32];
    size_t      version = cublasLtGetVersion();
    snprintf(name, sizeof name, "cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100, version % 100);
    return name;
}

/* --- the rate of this GPU's products, for mfu and plan ------------------------------------------------------------ */

enum { RATE_RUNS = 64, RATE_BLOCK = 256 };

/* Fills x with values uniform in (-1,1), by Knuth's multiplicative hash, because a GPU multiplies zeros faster than
 * training's values. One thread per element. */
template <typename T> KERNEL fill_kernel(T *x, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * RATE_BLOCK + threadIdx.x;
    if (i < n) x[i] = from_f32<T>((float)(int32_t)((uint32_t)i * 2654435761u) * 0x1p-31f);
}

int64_t matmul_rate_size(void) { return IS_EMULATED ? 64 : 4096; }

/* Allocates and frees its memory and chooses the algorithm, because it runs once, before training. */
double matmul_rate(DType act, MathMode math, int64_t n, double budget_ms) {
    Matrix shape = {NULL, act, n, PLAIN};
    Matmul p = {shape, shape, shape, n, n, n, MATMUL_SET, NULL};
    size_t matrix_bytes = (size_t)(n * n) * dtype_bytes(act);
    Ledger none = {};
    Stream dry = stream_dry(&none);
    matmul(&dry, p);
    ledger_free(&none);
    Stream own = stream_create(3 * matrix_bytes + dry.scratch.peak_bytes + 4 * ARENA_ALIGN);
    own.math = math;
    p.a.data = arena_take(&own.scratch, matrix_bytes);
    p.b.data = arena_take(&own.scratch, matrix_bytes);
    p.c.data = arena_take(&own.scratch, matrix_bytes);
    DISPATCH_ACT(act, T,
        LAUNCH(fill_kernel<T>, (unsigned)blocks_for(n * n, RATE_BLOCK), RATE_BLOCK, 0, &own, (T *)p.a.data, n * n);
        LAUNCH(fill_kernel<T>, (unsigned)blocks_for(n * n, RATE_BLOCK), RATE_BLOCK, 0, &own, (T *)p.b.data, n * n));
    matmul(&own, p);

    double ms[RATE_RUNS], spent = 0.0;
    int    runs = 0;
    while (runs < RATE_RUNS && (runs == 0 || spent < budget_ms))
        spent += ms[runs++] = timed_ms(&own, [&] { matmul(&own, p); });
    stream_destroy(&own);
    std::sort(ms, ms + runs);
    return 2.0 * (double)n * (double)n * (double)n / (ms[runs / 2] * 1e-3);
}
