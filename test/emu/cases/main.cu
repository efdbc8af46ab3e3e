/* main.cu - cases [NAME [BUG]]: runs all cases, or the one named, with or without a planted fault. nvcc builds it for a
 * GPU.
 *
 * Prints "ok NAME" or "not ok NAME: why" for each case. Exits with 1 if one failed. Sizes are odd on purpose: rows and
 * columns do not fill whole tiles. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <vector>

#include "test/emu/cases/cases.cuh"
#include "test/emu/cases/host.h"

#ifdef CUDA_EMU
int planted;
#endif

/* Replaces the function of the same name in core/device.cu: it prints the failed CUDA call as a failed case. */
void cuda_failed(const char *call, cudaError_t error, const char *file, int line) {
    printf("not ok %s at %s:%d: %s\n", call, file, line, cudaGetErrorString(error));
    exit(1);
}
void launch_prepare(const void *kernel, size_t shared_bytes) {
    if (shared_bytes > 48 << 10)
        CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes));
}
int launches_early(void) {
    int major = 0, driver = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    CUDA_CHECK(cudaDriverGetVersion(&driver));
    /* planted fault 121: launches kernels early although the driver is older than CUDA 12.3, which early launches in
     * graphs need */
    return major >= 9 && (driver >= 12030 || BUG(121));
}
void launch_check(const char *kernel, const char *file, int line) {
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) cuda_failed(kernel, error, file, line);
}

Stream stream;

static uint32_t random_state = 7;
static float    random_float() { /* returns a random number in (-1, 1) */
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(int32_t)random_state / 2147483648.0f;
}
template <typename T> std::vector<T> random_vector(size_t n) {
    std::vector<T> v(n);
    for (T &x : v) set_float(&x, random_float());
    return v;
}

static int  failures;
static void judge(const char *name, double error, double tolerance, double ms) {
    if (error <= tolerance) printf("ok %s (error %.2g, %.1f ms)\n", name, error, ms);
    else printf("not ok %s: error %g, at most %g\n", name, error, tolerance), failures++;
}
static double now_ms() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}
/* Raises *error to |difference| if that is larger. NaN counts as the largest error. */
static void widen(double *error, double difference) {
    if (!(fabs(difference) <= *error)) *error = fabs(difference);
}

static void layernorm_case(int rows, int columns) {
    auto x = random_vector<bf16>((size_t)rows * columns), gain = random_vector<bf16>(columns),
         bias = random_vector<bf16>(columns);
    OnDevice<bf16>  dx(x), dgain(gain), dbias(bias), out((size_t)rows * columns);
    OnDevice<float> mean(rows), rstd(rows);
    double          from = now_ms(), error = 0;
    layernorm(out.p, mean.p, rstd.p, dx.p, dgain.p, dbias.p, rows, columns, &stream);
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int r = 0; r < rows; r++) {
        double sum = 0, squares = 0;
        for (int c = 0; c < columns; c++) {
            double v = as_float(x[(size_t)r * columns + c]);
            sum += v, squares += v * v;
        }
        double m = sum / columns, scale = 1 / sqrt(squares / columns - m * m + 1e-5);
        for (int c = 0; c < columns; c++) {
            size_t i = (size_t)r * columns + c;
            widen(&error, (as_float(x[i]) - m) * scale * as_float(gain[c]) + as_float(bias[c]) - as_float(got[i]));
        }
    }
    judge("layernorm", error, 0.02, ms);
}

static void softmax_case(int rows, int columns) {
    auto            x = random_vector<float>((size_t)rows * columns);
    OnDevice<float> dx(x), out((size_t)rows * columns);
    double          from = now_ms(), error = 0;
    softmax(out.p, dx.p, rows, columns, &stream);
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int r = 0; r < rows; r++) {
        double sum = 0;
        for (int c = 0; c < columns; c++) sum += exp((double)x[(size_t)r * columns + c]);
        for (int c = 0; c < columns; c++) {
            size_t i = (size_t)r * columns + c;
            widen(&error, (exp((double)x[i]) / sum - got[i]) * columns);
        }
    }
    judge("softmax", error, 1e-4, ms);
}

static void column_sums_case() {
    const int       rows = 50, columns = 200;
    auto            x = random_vector<float>(rows * columns);
    OnDevice<float> dx(x), sums(columns);
    CUDA_CHECK(cudaMemset(sums.p, 0, columns * sizeof(float)));
    double from = now_ms(), error = 0;
    column_sums(sums.p, dx.p, rows, columns, &stream);
    auto   got = sums.host();
    double ms = now_ms() - from;
    for (int c = 0; c < columns; c++) {
        double sum = 0;
        for (int r = 0; r < rows; r++) sum += x[r * columns + c];
        widen(&error, sum - got[c]);
    }
    judge("column_sums", error, 1e-4, ms);
}

static void adamw_case(size_t n) {
    auto p = random_vector<float>(n), m = random_vector<float>(n), v = random_vector<float>(n), g = random_vector<float>(n);
    for (float &x : v) x *= x;
    OnDevice<float> dp(p), dm(m), dv(v), dg(g);
    double          from = now_ms(), error = 0;
    adamw(dp.p, dm.p, dv.p, dg.p, n, &stream);
    auto   got = dp.host();
    double ms = now_ms() - from;
    for (size_t i = 0; i < n; i++) {
        double first = 0.9 * m[i] + 0.1 * g[i], second = 0.95 * v[i] + 0.05 * g[i] * g[i];
        widen(&error, (p[i] - 0.01 * (first / (sqrt(second) + 1e-8) + 0.1 * p[i]) - got[i]) * sqrt(second));
    }
    judge("adamw", error, 1e-5, ms);
}

static void reverse_case() {
    const int       n = 256;
    auto            x = random_vector<float>(n);
    OnDevice<float> dx(x), out(n);
    double          from = now_ms(), error = 0;
    reverse_warps(out.p, BUG(29) ? x.data() : dx.p, n, &stream); /* planted fault 29: passes a pointer to host memory */
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int i = 0; i < n; i++) widen(&error, got[i] - x[i ^ 31]);
    judge("reverse", error, 0, ms);
}

static void pairs_case() {
    const int       n = 300;
    auto            x = random_vector<float>(n);
    OnDevice<float> dx(x), out(n);
    double          from = now_ms(), error = 0;
    pairs_of_warps(out.p, dx.p, n, &stream);
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int i = 0; i < n; i++) widen(&error, got[i] - ((i ^ 32) < n ? x[i ^ 32] : 0.0f));
    judge("pairs", error, 0, ms);
}

template <typename T>
static void gemm_case(const char *name, void (*product)(float *, const T *, const T *, int, int, int, Stream *), int m,
                      int n, int k) {
    auto            a = random_vector<T>((size_t)m * k), b = random_vector<T>((size_t)k * n);
    OnDevice<T>     da(a), db(b);
    OnDevice<float> out((size_t)m * n);
    double          from = now_ms(), error = 0;
    product(out.p, da.p, db.p, m, n, k, &stream);
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++) sum += (double)as_float(a[(size_t)i * k + l]) * as_float(b[(size_t)l * n + j]);
            widen(&error, sum - got[(size_t)i * n + j]);
        }
    judge(name, error, 1e-3, ms);
}

static void layernorm_small() { layernorm_case(13, 768); }
static void softmax_small() { softmax_case(5, 1000); }
static void adamw_small() { adamw_case(4112); }
static void gemm_small() {
    gemm_case("gemm 100x72x104", gemm<bf16>, 100, 72, 104);
    gemm_case("gemm 64x64x32 fp16", gemm<half>, 64, 64, 32);
}
static bool has_hopper(const char *name) {
    int major = 0;
    CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
    if (major != 9) printf("skip %s: compute capability %d\n", name, major);
    return major == 9;
}
static void hopper_small() {
    if (!has_hopper("hopper")) return;
    gemm_case("hopper 64x64x64", gemm_hopper<bf16>, 64, 64, 64);
    gemm_case("hopper 100x72x328 fp16", gemm_hopper<half>, 100, 72, 328);
    gemm_case("hopper 128x128x320", gemm_hopper<bf16>, 128, 128, 320);
}
template <typename A, typename B, int N, bool in_registers, int turned> static void product_case(const char *name, int k) {
    auto            a = random_vector<A>((size_t)64 * k);
    auto            b = random_vector<B>((size_t)N * k);
    OnDevice<A>     da(a);
    OnDevice<B>     db(b);
    OnDevice<float> out(64 * N);
    double          from = now_ms(), error = 0;
    product<A, B, N, in_registers, turned>(out.p, da.p, db.p, k, &stream);
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++)
                sum += (double)as_float(a[turned & 2 ? (size_t)l * 64 + i : (size_t)i * k + l]) *
                       as_float(b[turned & 1 ? (size_t)l * N + j : (size_t)j * k + l]);
            widen(&error, sum - got[(size_t)i * N + j]);
        }
    /* the hardware adds fp8 products with fewer bits, hence the larger bound */
    judge(name, error, sizeof(A) == 1 ? 0.02 : 1e-3, ms);
}
static void two_products_case() {
    auto            a = random_vector<bf16>(64 * 64), b = random_vector<bf16>(128 * 64);
    OnDevice<bf16>  da(a), db(b);
    OnDevice<float> out(2 * 64 * 64);
    double          from = now_ms(), error = 0;
    two_products(out.p, da.p, db.p, &stream);
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < 128; j++) {
            double sum = 0;
            for (int l = 0; l < 64; l++) sum += (double)as_float(a[i * 64 + l]) * as_float(b[j * 64 + l]);
            widen(&error, sum - got[j / 64 * 64 * 64 + i * 64 + j % 64]);
        }
    judge("wgmma two in flight", error, 1e-3, ms);
}
static void wgmma_small() {
    if (!has_hopper("wgmma")) return;
    product_case<bf16, bf16, 64, false, 0>("wgmma n64 bf16", 192);
    product_case<bf16, bf16, 128, true, 1>("wgmma n128 bf16 from registers, transposed", 128);
    product_case<half, half, 192, false, 1>("wgmma n192 fp16 transposed", 128);
    product_case<half, half, 256, true, 0>("wgmma n256 fp16 from registers", 128);
    product_case<bf16, bf16, 64, false, 3>("wgmma n64 bf16, both transposed", 128);
    product_case<half, half, 128, false, 2>("wgmma n128 fp16, the left one transposed", 192);
    product_case<e4m3, e4m3, 128, false, 0>("wgmma n128 e4m3", 256);
    product_case<e5m2, e4m3, 256, false, 0>("wgmma n256 e5m2 e4m3", 128);
    product_case<e4m3, e5m2, 64, true, 0>("wgmma n64 e4m3 e5m2 from registers", 256);
    product_case<e5m2, e5m2, 192, true, 0>("wgmma n192 e5m2 from registers", 128);
    two_products_case();
}

template <typename T, bool transposed> static void store_case(const char *name, int rows, int columns) {
    auto        in = random_vector<T>((size_t)rows * columns);
    OnDevice<T> din(in), out((size_t)rows * columns), seen((rows + 63) / 64);
    double      from = now_ms(), error = 0;
    store<T, transposed>(out.p, seen.p, din.p, rows, columns, &stream);
    auto   got = out.host(), first = seen.host();
    double ms = now_ms() - from;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            size_t to = transposed ? (size_t)c * rows + r : (size_t)r * columns + c;
            widen(&error, as_float(in[(size_t)r * columns + c]) - as_float(got[to]));
        }
    for (int r = 0; r < rows; r += 64) widen(&error, as_float(in[(size_t)r * columns]) - as_float(first[r / 64]));
    judge(name, error, 0, ms);
}
template <typename T> static void sum_case(const char *name) {
    const int   rows = 50, columns = 128 / sizeof(T), blocks = 3, rounds = 2;
    OnDevice<T> sum(std::vector<T>((size_t)rows * columns));
    CUDA_CHECK(cudaMemset(sum.p, 0, (size_t)rows * columns * sizeof(T)));
    double from = now_ms(), error = 0;
    sum_of_blocks(sum.p, rows, blocks, rounds, &stream);
    auto   got = sum.host();
    double ms = now_ms() - from;
    for (int i = 0; i < rows * columns; i++) widen(&error, 2 * 6 + blocks * (i % 3) - as_float(got[i]));
    judge(name, error, 0, ms);
}
static void tma_store_small() {
    if (!has_hopper("tma_store")) return;
    store_case<bf16, false>("tma_store 100x136", 100, 136);
    store_case<half, true>("tma_store 88x72 fp16 transposed", 88, 72);
}
static void tma_sum_small() {
    if (!has_hopper("tma_sum")) return;
    sum_case<float>("tma_sum fp32");
    sum_case<bf16>("tma_sum bf16");
}
static void hand_on_small() {
    if (!has_hopper("hand_on")) return;
    const int       n = 5 * 256;
    auto            x = random_vector<float>(n);
    OnDevice<float> dx(x), out(n);
    double          from = now_ms(), error = 0;
    hand_on(out.p, dx.p, n, &stream);
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int i = 0; i < n; i++) widen(&error, x[i] + x[i / 256 * 256 + (i + 128) % 256] - got[i]);
    judge("hand_on", error, 0, ms);
}
static void early_case() {
    const int       n = 512;
    auto            x = random_vector<float>(n);
    OnDevice<float> dx(x), room(n), out(n);
    double          from = now_ms(), error = 0;
    double_often(out.p, room.p, dx.p, n, &stream);
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int i = 0; i < n; i++) widen(&error, got[i] - 8.0 * x[i]);
    judge("early", error, 0, ms);
}
/* Captures the early kernels into a graph under a driver for CUDA 12.2, which records them as ordinary kernels, one
 * after the other. On a GPU the real driver is used. */
static void early_graph_case() {
    const int       n = 512;
    auto            x = random_vector<float>(n);
    OnDevice<float> dx(x), room(n), out(n);
    double          from = now_ms(), error = 0;
    cudaGraph_t     graph;
    cudaGraphExec_t exec;
    setenv("EMU_DRIVER", "12020", 1);
    CUDA_CHECK(cudaStreamBeginCapture(stream_queue(&stream), cudaStreamCaptureModeThreadLocal));
    double_often(out.p, room.p, dx.p, n, &stream);
    CUDA_CHECK(cudaStreamEndCapture(stream_queue(&stream), &graph));
    CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_CHECK(cudaGraphLaunch(exec, stream_queue(&stream)));
    auto got = out.host();
    for (int i = 0; i < n; i++) widen(&error, got[i] - 8.0 * x[i]);
    judge("early_graph", error, 0, now_ms() - from);
    CUDA_CHECK(cudaGraphExecDestroy(exec));
    CUDA_CHECK(cudaGraphDestroy(graph));
    unsetenv("EMU_DRIVER");
}

static void cluster_small() {
    if (!has_hopper("cluster")) return;
    const int       tiles = 5, clusters = 2, n = tiles * 64 * 64;
    auto            x = random_vector<bf16>(n);
    OnDevice<bf16>  dx(x);
    OnDevice<float> out((size_t)2 * clusters * n);
    double          from = now_ms(), error = 0;
    share(out.p, dx.p, tiles, clusters, &stream);
    auto   got = out.host();
    double ms = now_ms() - from;
    for (int b = 0; b < 2 * clusters; b++)
        for (int i = 0; i < n; i++) widen(&error, as_float(x[i]) + (float)b - got[(size_t)b * n + i]);
    judge("cluster", error, 1e-6, ms);
}
/* Runs cases at sizes large enough to measure the speed of the emulator itself; `cases speed` prints the
 * milliseconds. */
static void speed() {
    layernorm_case(256, 768);
    softmax_case(256, 1024);
    adamw_case(262144);
    gemm_case("gemm 256x256x256", gemm<bf16>, 256, 256, 256);
    gemm_case("hopper 256x256x256", gemm_hopper<bf16>, 256, 256, 256);
}

enum When { ALWAYS, ONLY_BY_NAME };
static const struct {
    const char *name;
    void (*run)();
    When when;
} CASES[] = {
    {"layernorm", layernorm_small, ALWAYS},
    {"softmax", softmax_small, ALWAYS},
    {"column_sums", column_sums_case, ALWAYS},
    {"adamw", adamw_small, ALWAYS},
    {"reverse", reverse_case, ALWAYS},
    {"pairs", pairs_case, ALWAYS},
    {"gemm", gemm_small, ALWAYS},
    {"hopper", hopper_small, ALWAYS},
    {"wgmma", wgmma_small, ALWAYS},
    {"tma_store", tma_store_small, ALWAYS},
    {"tma_sum", tma_sum_small, ALWAYS},
    {"hand_on", hand_on_small, ALWAYS},
    {"early", early_case, ALWAYS},
    {"early_graph", early_graph_case, ALWAYS},
    {"cluster", cluster_small, ALWAYS},
    {"managed", managed_case, ALWAYS},
    {"graph", graph_case, ALWAYS},
    {"capture_rules", capture_rules, ALWAYS},
    {"edges", edges_case, ALWAYS},
    {"pinned", pinned_case, ALWAYS},
    {"launched_graph", launched_graph_case, ALWAYS},
    {"nccl_beside", nccl_beside_case, ALWAYS},
    {"nccl_abort", nccl_abort_case, ALWAYS},
    {"counted", counted_case, ALWAYS},
    {"speed", speed, ONLY_BY_NAME},
    {"calibrate", calibrate, ONLY_BY_NAME},
};


void   expect(bool true_one, const char *what) {
    if (true_one) printf("ok %s\n", what);
    else printf("not ok %s\n", what), failures++;
}

int main(int argc, char **argv) {
#ifdef CUDA_EMU
    planted = argc > 2 ? atoi(argv[2]) : 0;
#endif
    setvbuf(stdout, nullptr, _IOLBF, 0);
    cudaStream_t queue;
    CUDA_CHECK(cudaStreamCreate(&queue));
    stream.queue = queue;
    bool found = false;
    for (const auto &c : CASES) {
        if (argc > 1 ? strcmp(argv[1], c.name) != 0 : c.when != ALWAYS) continue;
        found = true;
        c.run();
    }
    if (!found) return fprintf(stderr, "cases: no case is called %s\n", argv[1]), 64;
    CUDA_CHECK(cudaStreamDestroy(queue));
    return failures != 0;
}
