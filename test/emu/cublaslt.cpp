/* cublaslt.cpp - the calls of cuBLASLt that layers/matmul.cu makes, on the CPU. The prototypes are NVIDIA's, from cublasLt.h.
 *
 * A product runs as an emulated kernel of one thread, so streams, graphs and the guards around device memory apply to
 * it. Sums are f32, in an order that depends on the algorithm, so the bits of a result show which algorithm ran. There
 * are three algorithms: one for 16-byte accesses, one that splits k and works on any alignment, one that splits k and
 * adds in place. A use documented as not allowed is refused with a line on stderr.
 */
#include "engine.h"

#include <cublasLt.h>
#include <cuda_fp8.h>

#include <string>

namespace {

enum { WIDE = 11, SPLIT = 23, IN_PLACE = 24, TILE = CUBLASLT_MATMUL_TILE_128x128, STAGES = 15, CLUSTER = 3, CHUNK = 64 };

struct Operation {
    cublasComputeType_t compute;
    cudaDataType_t      scale;
    int32_t             trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N, bias_type = -1, aux_type = -1;
    uint32_t            epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void               *bias = nullptr, *aux = nullptr;
    const float        *a_scale = nullptr, *b_scale = nullptr;
    int8_t              fast_accumulation = 0;
    int32_t             multiprocessors = 0; /* multiprocessors that the algorithm may use; 0: all */
    int64_t             aux_ld = 0;
};
struct Layout {
    cudaDataType_t type;
    int64_t        rows, columns, ld;
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK, align_a = 256, align_b = 256, align_c = 256, align_d = 256;
};
struct Algorithm {
    int32_t  id;
    uint32_t tile, stages;
    int32_t  split;
    uint32_t reduction, swizzle, custom;
    uint16_t inner, cluster;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t), "an algorithm travels as 64 bytes");

/* One attribute of a descriptor: its number, the place where its value is stored, and its size in bytes as
 * cublasLt.h states it. */
struct Attribute {
    int    what;
    void  *at;
    size_t bytes;
};
template <size_t N> cublasStatus_t attribute(const Attribute (&all)[N], int what, void *out, const void *in, size_t bytes) {
    for (const Attribute &a : all) {
        if (a.what != what) continue;
        if (bytes != a.bytes || (!in && !out)) return CUBLAS_STATUS_INVALID_VALUE;
        if (in) memcpy(a.at, in, bytes);
        if (out) memcpy(out, a.at, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    emu::fail("cublasLt: attribute %d is not emulated", what);
}
cublasStatus_t algorithm_attribute(Algorithm *a, int what, void *out, size_t bytes) {
    const Attribute all[] = {
        {CUBLASLT_ALGO_CONFIG_ID, &a->id, 4}, {CUBLASLT_ALGO_CONFIG_TILE_ID, &a->tile, 4}, {CUBLASLT_ALGO_CONFIG_STAGES_ID, &a->stages, 4},
        {CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &a->split, 4}, {CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &a->reduction, 4},
        {CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, &a->swizzle, 4}, {CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &a->custom, 4},
        {CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, &a->inner, 2}, {CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &a->cluster, 2}};
    return attribute(all, what, out, nullptr, bytes);
}

/* --- allowed problems --------------------------------------------------------------------------------------------- */

struct Problem {
    Operation op;
    Layout    a, b, c, d;
    int64_t   m, n, k;
};

bool    is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
bool    is_known(cudaDataType_t type) { return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F || is_fp8(type); }
int64_t bytes_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2; }
cudaDataType_t bias_type(const Problem &p) { return is_fp8(p.a.type) ? CUDA_R_16BF : p.d.type; }

const char *fault_of_epilogue(const Problem &p) {
    switch (p.op.epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT: return nullptr;
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_BGRADA:
        if (!p.op.bias) return "no bias vector";
        if ((p.op.bias_type != -1 || bias_type(p) != p.d.type) && p.op.bias_type != (int32_t)bias_type(p))
            return "the bias vector has D's type, with fp8 bf16";
        if ((uintptr_t)p.op.bias % (uintptr_t)bytes_of(bias_type(p))) return "a bias vector between elements";
        if (p.op.epilogue == CUBLASLT_EPILOGUE_BIAS && bytes_of(p.a.type) == 2 && (p.a.ld % 8 || p.b.ld % 8 || p.d.ld % 8))
            return "a bias beside rows of 16-bit numbers that are not aligned to 16 bytes: 13.1 rounds the product before it adds the bias";
        return nullptr;
    case CUBLASLT_EPILOGUE_DGELU:
        if (p.a.type == CUDA_R_32F) return "13.1's GELU gradient is not exact to f32";
        if (!p.op.aux || (uintptr_t)p.op.aux % 16) return "aux is aligned to 16 bytes";
        if (p.op.aux_type != -1 && p.op.aux_type != (int32_t)p.d.type) return "aux has D's type";
        if (p.op.aux_ld % 8 || p.op.aux_ld < p.m) return "the ld of aux is a multiple of 8 and at least D's rows";
        return nullptr;
    default: return "this epilogue is not emulated";
    }
}

/* Returns what is wrong with a product in fp8, by "To use FP8 kernels" of cuBLAS's documentation at cublasLtMatmul, for
 * compute capability 8.9 and 9.0. */
const char *fault_of_fp8(const Problem &p) {
    if (!is_fp8(p.b.type) || (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2)) return "fp8: two of it, at most one E5M2";
    if (p.op.trans_a != CUBLAS_OP_T || p.op.trans_b != CUBLAS_OP_N) return "fp8: A is transposed and B is not";
    if (p.c.type != p.d.type || (p.d.type != CUDA_R_16BF && p.d.type != CUDA_R_32F)) return "fp8: C and D of bf16 or f32 are emulated";
    if (p.op.compute != CUBLAS_COMPUTE_32F) return "fp8: the compute type";
    if (p.op.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.op.epilogue != CUBLASLT_EPILOGUE_BIAS) return "fp8: this epilogue is not emulated";
    if ((uintptr_t)p.op.a_scale % 16 || (uintptr_t)p.op.b_scale % 16) return "fp8: a scale at a multiple of 16 bytes, from 12.9 on";
    if (p.k % 16 || p.m % 16 || p.a.ld % 16 || p.b.ld % 16) return "fp8: m, k and leading dimensions are multiples of 16";
    return nullptr;
}

const char *fault_of(const Problem &p) {
    const Layout *const layouts[] = {&p.a, &p.b, &p.c, &p.d};
    for (const Layout *l : layouts)
        if (!is_known(l->type) || l->rows < 1 || l->columns < 1 || l->ld < l->rows) return "a layout";
    if (is_fp8(p.a.type) || is_fp8(p.b.type)) {
        if (const char *fault = fault_of_fp8(p)) return fault;
    } else if (p.op.a_scale || p.op.b_scale || p.op.fast_accumulation) {
        return "scales and fast accumulation are fp8's";
    } else if (p.a.type != p.b.type || p.c.type != p.d.type || (p.d.type != p.a.type && p.d.type != CUDA_R_32F)) return "types";
    if (p.op.scale != CUDA_R_32F) return "the scale type";
    bool tf32 = p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (!(p.op.compute == CUBLAS_COMPUTE_32F || (tf32 && p.a.type == CUDA_R_32F))) return "the compute type";
    int64_t b_rows = p.op.trans_b == CUBLAS_OP_N ? p.b.rows : p.b.columns, b_columns = p.op.trans_b == CUBLAS_OP_N ? p.b.columns : p.b.rows;
    int64_t a_rows = p.op.trans_a == CUBLAS_OP_N ? p.a.rows : p.a.columns;
    if (a_rows != p.m || b_rows != p.k || b_columns != p.n || p.c.rows != p.m || p.c.columns != p.n) return "the shapes do not fit together";
    return fault_of_epilogue(p);
}

Problem problem_of(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
    Problem p = {*(Operation *)op, *(Layout *)a, *(Layout *)b, *(Layout *)c, *(Layout *)d, 0, 0, 0};
    p.m = p.d.rows, p.n = p.d.columns, p.k = p.op.trans_a == CUBLAS_OP_N ? p.a.columns : p.a.rows;
    return p;
}
cublasStatus_t refuse(const Problem &p, const char *fault) {
    fprintf(stderr, "EMU: cublasLt refuses m %ld n %ld k %ld, lda %ld ldb %ld ldd %ld, epilogue %u: %s\n", (long)p.m, (long)p.n, (long)p.k, (long)p.a.ld,
            (long)p.b.ld, (long)p.d.ld, p.op.epilogue, fault);
    return CUBLAS_STATUS_INVALID_VALUE;
}

/* Returns whether a product meets NVIDIA's conditions for the fastest kernels ("Tensor Core Usage" in cuBLAS's
 * documentation): pointers, leading dimensions and the extents along them are multiples of 16 bytes. */
bool fits_wide(const Layout &l, uintptr_t align) {
    return align % 16 == 0 && l.ld * bytes_of(l.type) % 16 == 0 && l.rows * bytes_of(l.type) % 16 == 0;
}

/* Returns the bytes of workspace that the algorithm needs for this problem. Returns SIZE_MAX if it is not one of the
 * emulator's three algorithms, or if its description is damaged. */
size_t workspace_of(const Algorithm &a, const Problem &p) {
    if (a.tile != TILE || a.stages != STAGES || a.cluster != CLUSTER) return SIZE_MAX;
    if (a.id == WIDE) {
        bool fits = fits_wide(p.a, 16) && fits_wide(p.b, 16) && fits_wide(p.c, 16) && fits_wide(p.d, 16);
        return fits && a.split == 1 && a.reduction == CUBLASLT_REDUCTION_SCHEME_NONE ? 0 : SIZE_MAX;
    }
    uint32_t reduction = a.id == SPLIT ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE : CUBLASLT_REDUCTION_SCHEME_INPLACE;
    return (a.id == SPLIT || a.id == IN_PLACE) && a.split == 2 && a.reduction == reduction ? (size_t)(p.m * p.n) * sizeof(float) : SIZE_MAX;
}

/* --- the product -------------------------------------------------------------------------------------------------- */

float round_tf32(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    if ((u & 0x7f800000u) != 0x7f800000u) u = (u + 0xfffu + ((u >> 13) & 1u)) & ~0x1fffu;
    memcpy(&x, &u, 4);
    return x;
}
__attribute__((no_sanitize("address", "undefined"))) float load(const void *p, cudaDataType_t type, int64_t i) {
    if (type == CUDA_R_32F) return ((const float *)p)[i];
    if (is_fp8(type)) {
        __nv_fp8_storage_t code = ((const __nv_fp8_storage_t *)p)[i];
        return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, type == CUDA_R_8F_E4M3 ? __NV_E4M3 : __NV_E5M2)));
    }
    return type == CUDA_R_16BF ? __bfloat162float(((const __nv_bfloat16 *)p)[i]) : __half2float(((const __half *)p)[i]);
}
__attribute__((no_sanitize("address", "undefined"))) void store(void *p, cudaDataType_t type, int64_t i, float x) {
    if (type == CUDA_R_32F) ((float *)p)[i] = x;
    else if (type == CUDA_R_16BF) ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
    else ((__half *)p)[i] = __float2half_rn(x);
}

/* Returns x as a dense rows x columns array of f32, in row order. transposed: x holds the transpose. */
std::vector<float> widen(const void *x, const Layout &l, bool transposed, bool tf32) {
    int64_t rows = transposed ? l.columns : l.rows, columns = transposed ? l.rows : l.columns;
    std::vector<float> y((size_t)(rows * columns));
    for (int64_t c = 0; c < l.columns; c++) emu::note_read((const char *)x + c * l.ld * bytes_of(l.type), (size_t)(l.rows * bytes_of(l.type)));
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float v = load(x, l.type, transposed ? j + i * l.ld : i + j * l.ld);
            y[(size_t)(i * columns + j)] = tf32 ? round_tf32(v) : v;
        }
    return y;
}

/* acc[i] = sum of a[l,i] b[l] over l in [from, to), for i < m, added in chunks. a is [k,m]. */
__attribute__((no_sanitize("address", "undefined"))) void sum_over(float *acc, const float *a, const float *b, int64_t m, int64_t from, int64_t to) {
    std::vector<float> chunk((size_t)m);
    for (int64_t i = 0; i < m; i++) acc[i] = 0.0f;
    for (int64_t start = from; start < to; start += CHUNK) {
        float *part = chunk.data();
        for (int64_t i = 0; i < m; i++) part[i] = 0.0f;
        for (int64_t l = start; l < to && l < start + CHUNK; l++)
            for (int64_t i = 0; i < m; i++) part[i] += a[l * m + i] * b[l];
        for (int64_t i = 0; i < m; i++) acc[i] += part[i];
    }
}

double gelu_gradient(double x) {
    double u = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), t = std::tanh(u);
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}

struct Product {
    Problem     p;
    Algorithm   algorithm;
    float       alpha, beta;
    const void *a, *b, *c;
    void       *d;
    float      *workspace;
};

float finish(const Product &x, int64_t i, int64_t j, float sum) {
    const Problem &p = x.p;
    float v = x.alpha * sum;
    if (p.op.a_scale) v *= load(p.op.a_scale, CUDA_R_32F, 0);
    if (p.op.b_scale) v *= load(p.op.b_scale, CUDA_R_32F, 0);
    if (x.beta != 0.0f) v += x.beta * load(x.c, p.c.type, i + j * p.c.ld);
    if (p.op.epilogue == CUBLASLT_EPILOGUE_BIAS) v += load(p.op.bias, bias_type(p), i);
    if (p.op.epilogue == CUBLASLT_EPILOGUE_DGELU) v *= (float)gelu_gradient(load(p.op.aux, p.d.type, i + j * p.op.aux_ld));
    return v;
}

void matmul_kernel(const Product *x) {
    const Problem &p = x->p;
    bool tf32 = p.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    /* float copies of the operands: a as [k,m] and b as [n,k], row by row, whichever way the caller stores them */
    std::vector<float> a = widen(x->a, p.a, p.op.trans_a == CUBLAS_OP_N, tf32);
    std::vector<float> b = widen(x->b, p.b, p.op.trans_b == CUBLAS_OP_N, tf32);
    std::vector<float> acc((size_t)p.m);
    int64_t half = x->algorithm.split == 2 ? p.k / 2 : p.k, d_bytes = bytes_of(p.d.type);
    if (p.op.epilogue == CUBLASLT_EPILOGUE_BIAS) emu::note_read(p.op.bias, (size_t)(p.m * bytes_of(bias_type(p))));
    for (const float *scale : {p.op.a_scale, p.op.b_scale})
        if (scale) emu::note_read(scale, sizeof *scale);
    for (int64_t j = 0; j < p.n; j++) {
        if (x->beta != 0.0f) emu::note_read((const char *)x->c + j * p.c.ld * d_bytes, (size_t)(p.m * d_bytes));
        if (p.op.epilogue == CUBLASLT_EPILOGUE_DGELU) emu::note_read((const char *)p.op.aux + j * p.op.aux_ld * d_bytes, (size_t)(p.m * d_bytes));
        emu::note_write((char *)x->d + j * p.d.ld * d_bytes, (size_t)(p.m * d_bytes));
        sum_over(acc.data(), a.data(), b.data() + j * p.k, p.m, 0, half);
        if (half < p.k) {
            float *second = x->workspace + j * p.m;
            emu::note_write(second, (size_t)p.m * sizeof(float));
            sum_over(second, a.data(), b.data() + j * p.k, p.m, half, p.k);
            for (int64_t i = 0; i < p.m; i++) acc[(size_t)i] += load(second, CUDA_R_32F, i);
        }
        for (int64_t i = 0; i < p.m; i++) store(x->d, p.d.type, i + j * p.d.ld, finish(*x, i, j, acc[(size_t)i]));
    }
    if (p.op.epilogue == CUBLASLT_EPILOGUE_BGRADA) {
        std::vector<float> ones((size_t)p.k, 1.0f);
        emu::note_write(p.op.bias, (size_t)(p.m * d_bytes));
        sum_over(acc.data(), a.data(), ones.data(), p.m, 0, p.k);
        for (int64_t i = 0; i < p.m; i++) store(p.op.bias, p.d.type, i, acc[(size_t)i]);
    }
}

void product_kernel(std::shared_ptr<Product> x) { matmul_kernel(x.get()); }

/* Returns whether the matrix at x lies inside one allocation. The loops of a product run without ASan, so this is their
 * only check. */
bool is_inside(const void *x, const Layout &l) {
    const emu::Allocation *a = emu::find_allocation(x);
    return a && (const char *)x + ((l.columns - 1) * l.ld + l.rows) * bytes_of(l.type) <= a->base + a->bytes;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) { return *handle = (cublasLtHandle_t)new char, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return delete (char *)handle, CUBLAS_STATUS_SUCCESS; }
size_t         cublasLtGetVersion(void) { return CUBLAS_VERSION; }
const char    *cublasLtGetStatusString(cublasStatus_t status) {
    static thread_local std::string text;
    return (text = "cublasStatus_t " + std::to_string((int)status) + " (emulated)").c_str();
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *op, cublasComputeType_t compute, cudaDataType_t scale) {
    Operation *o = new Operation;
    o->compute = compute, o->scale = scale;
    return *op = (cublasLtMatmulDesc_t)o, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t op) { return delete (Operation *)op, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what, const void *in, size_t bytes) {
    Operation *o = (Operation *)op;
    const Attribute all[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &o->trans_a, 4}, {CUBLASLT_MATMUL_DESC_TRANSB, &o->trans_b, 4}, {CUBLASLT_MATMUL_DESC_EPILOGUE, &o->epilogue, 4},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &o->bias, 8}, {CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &o->bias_type, 4},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &o->aux, 8}, {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &o->aux_ld, 8},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &o->aux_type, 4}, {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &o->a_scale, 8},
        {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &o->b_scale, 8}, {CUBLASLT_MATMUL_DESC_FAST_ACCUM, &o->fast_accumulation, 1},
        {CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &o->multiprocessors, 4}};
    return attribute(all, what, nullptr, in, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld) {
    return *layout = (cublasLtMatrixLayout_t) new Layout{type, (int64_t)rows, (int64_t)columns, ld}, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return delete (Layout *)layout, CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    return *preference = (cublasLtMatmulPreference_t) new Preference, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return delete (Preference *)preference, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t what, const void *in,
                                                    size_t bytes) {
    Preference *p = (Preference *)preference;
    const Attribute all[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &p->workspace, 8}, {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &p->reductions, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p->align_a, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p->align_b, 4},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p->align_c, 4}, {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p->align_d, 4}};
    return attribute(all, what, nullptr, in, bytes);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t found[], int *count) {
    Problem           p = problem_of(op, a, b, c, d);
    const Preference &q = *(Preference *)preference;
    *count = 0;
    if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (const char *fault = fault_of(p)) return refuse(p, fault), CUBLAS_STATUS_NOT_SUPPORTED;
    const Algorithm all[] = {{WIDE, TILE, STAGES, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0, 0, 0, CLUSTER},
                             {IN_PLACE, TILE, STAGES, 2, CUBLASLT_REDUCTION_SCHEME_INPLACE, 0, 0, 0, CLUSTER},
                             {SPLIT, TILE, STAGES, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 1, 0, 0, CLUSTER}};
    for (const Algorithm &x : all) {
        size_t workspace = workspace_of(x, p);
        bool   aligned = q.align_a % 16 == 0 && q.align_b % 16 == 0 && q.align_c % 16 == 0 && q.align_d % 16 == 0;
        if (*count == wanted || workspace > q.workspace || (x.reduction & ~q.reductions) || (x.id == WIDE && !aligned)) continue;
        cublasLtMatmulHeuristicResult_t *result = &found[(*count)++];
        *result = cublasLtMatmulHeuristicResult_t{};
        memcpy(&result->algo, &x, sizeof x);
        result->workspaceSize = workspace;
    }
    return *count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what, void *out, size_t bytes,
                                                    size_t *written) {
    *written = bytes;
    return algorithm_attribute((Algorithm *)algo, what, out, bytes);
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *result) {
    Problem p = problem_of(op, a, b, c, d);
    if (const char *fault = fault_of(p)) return refuse(p, fault);
    size_t workspace = workspace_of(*(const Algorithm *)algo, p);
    if (workspace == SIZE_MAX) return CUBLAS_STATUS_NOT_SUPPORTED;
    result->workspaceSize = workspace, result->state = CUBLAS_STATUS_SUCCESS, result->wavesCount = 1.0f;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t op, const void *alpha, const void *a, cublasLtMatrixLayout_t a_layout,
                              const void *b, cublasLtMatrixLayout_t b_layout, const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
    Problem          p = problem_of(op, a_layout, b_layout, c_layout, d_layout);
    const Algorithm &x = *(const Algorithm *)algo;
    if (const char *fault = fault_of(p)) return refuse(p, fault);
    if (workspace_of(x, p) > workspace_bytes || (uintptr_t)workspace % 16) return refuse(p, "the algorithm, or its workspace");
    if (p.op.multiprocessors < 0 || p.op.multiprocessors > emu::MULTIPROCESSORS) return refuse(p, "more multiprocessors than there are");
    uintptr_t align = x.id == WIDE || is_fp8(p.a.type) ? 16 : 2;
    for (uintptr_t pointer : {(uintptr_t)a, (uintptr_t)b, (uintptr_t)c, (uintptr_t)d})
        if (pointer % align) return refuse(p, "a pointer is not aligned as the algorithm needs it");
    if (!is_inside(a, p.a) || !is_inside(b, p.b) || !is_inside(d, p.d)) return refuse(p, "a matrix is not inside device memory");
    auto product = std::make_shared<Product>(Product{p, x, *(const float *)alpha, *(const float *)beta, a, b, c, d, (float *)workspace});
    cudaError_t error = emu::launch("cublasLtMatmul", __FILE__, __LINE__, dim3(1), dim3(1), 1, false, 0, stream, product_kernel, product);
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
