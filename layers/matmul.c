/* matmul.c - matrix products by oneDNN, see matmul.h. The one file that knows its API, of 2.x and of 3.x.
 *
 * Three ways, chosen by type, shape and processor only, so that a run repeats its bits:
 *   sgemm       fp32, nearly always: it packs both operands, so no leading dimension hurts it
 *   primitive   bf16 where the processor multiplies it faster than fp32; fp32 with b transposed and k >= n, where it is
 *               ahead of sgemm
 *   panels      bf16 elsewhere: operands are widened panel by panel and multiplied in fp32, the result is rounded once
 * oneDNN 2.6 on two Cascade Lake cores, GFLOP/s, sgemm : primitive, 20 November 2026: 1024 x 3072 x 768 (m n k) 248 :
 * 138, 1024 x 768 x 3072 239 : 120, with b transposed 200 : 248, with a transposed 231 : 125.
 *
 * With Stream.any_threads a product is cut into tiles that its shape alone fixes. Each tile is one such call by one
 * thread.
 *
 * A primitive is made once per shape and kept; its scratchpad comes from the stream. The table of primitives is this
 * file's only state. It belongs to the main thread, like every op.
 */
#include "layers/act_simd.h"
#include "layers/algorithms.h"
#include "layers/layers.h"
#include "layers/matmul.h"
#include "layers/transpose_simd.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"
#include "core/format.h"
#include "core/thread.h"

void SIMD(widen_row)(float *y, const uint16_t *x, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t lanes = act16_count(i, n);
        act16_store_n(y, i, lanes, F32, act16_load_n(x, i, lanes, BF16));
    }
}
SIMD_DISPATCH(void, widen_row, (float *y, const uint16_t *x, int64_t n), (y, x, n))

/* Writes the transpose of x to y, as f32. */
void SIMD(turn)(DType type, float *y, int64_t y_step, const void *x, int64_t x_step, int64_t rows, int64_t columns) {
    if (type == BF16) transpose(y, y_step, x, x_step, rows, columns, BF16);
    else              transpose(y, y_step, x, x_step, rows, columns, F32);
}
SIMD_DISPATCH(void, turn,
              (DType type, float *y, int64_t y_step, const void *x, int64_t x_step, int64_t rows, int64_t columns),
              (type, y, y_step, x, x_step, rows, columns))

/* Sets y = x + bias, rounded to bf16; bias may be NULL. */
void SIMD(narrow_row)(uint16_t *y, const float *x, const uint16_t *bias, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t lanes = act16_count(i, n);
        f32x16  v = act16_load_n(x, i, lanes, F32);
        if (bias) v += act16_load_n(bias, i, lanes, BF16);
        act16_store_n(y, i, lanes, BF16, v);
    }
}
SIMD_DISPATCH(void, narrow_row, (uint16_t *y, const float *x, const uint16_t *bias, int64_t n), (y, x, bias, n))

#if SIMD_HOST
/* Largest panels of operands that are widened to f32: 2048 x 3072 of a, 3072 x 3072 of b, 2048 x 3072 of c. */
enum { PANEL_M = 2048, PANEL_N = 3072, PANEL_K = 3072 };
enum { PRIMITIVES = 256, CODES = 4096 };

typedef struct {
    Matmul           shape;     /* sizes, types and orders of the product; the pointers in it are not valid */
    int              threads;   /* number of threads that the primitive is made for */
    size_t           scratch_bytes;
    dnnl_primitive_t primitive; /* oneDNN's primitive; NULL as long as only the size of its scratch is needed */
} Primitive;

static struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    Primitive     table[PRIMITIVES];
    int           known; /* number of entries made in `table` since the start; a new one replaces the oldest if the
                          * table is full */
    float       **strip; /* [strips] buffer of each thread for the transposed copy of a strip of a, if a is transposed;
                          * made on first use; owned */
    int           strips;
    _Atomic char  has_code[CODES]; /* [place_of_code of a product] 1 once sgemm has generated code for that product */
} onednn;

static NORETURN void onednn_failed(const char *call, dnnl_status_t status, int line) {
    if (status == dnnl_out_of_memory)
        fail(EXIT_MEMORY,
             "no memory for a matrix product: oneDNN has none for %.60s: lower batch.micro_batch, or start fewer "
             "ranks on this host",
             call);
    check_failed(call, __FILE__, line, "oneDNN: status %d", (int)status);
}
#define ONEDNN(call)                                                                     \
    do {                                                                                 \
        dnnl_status_t status_ = (call);                                                  \
        if (status_ != dnnl_success) onednn_failed(#call, status_, __LINE__);            \
    } while (0)

/* Checks that memory for generated code is available: takes that much and gives it back, so that a lack ends the job.
 * oneDNN 2.6 writes the code that it generates even if it got no memory for it. */
enum { CODE_BYTES = 16 << 20 };
static void expect_room_for_code(void) {
    device_free(device_alloc(CODE_BYTES, "the code of a matrix product"), CODE_BYTES);
}

static void onednn_open(void) {
    if (onednn.engine) return;
    if (simd_isa() == ISA_AVX512) ONEDNN(dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core));
    if (simd_isa() == ISA_AVX2) ONEDNN(dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2));
    if (simd_isa() == ISA_BASE) ONEDNN(dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41));
    ONEDNN(dnnl_set_default_fpmath_mode(dnnl_fpmath_mode_strict));
    ONEDNN(dnnl_engine_create(&onednn.engine, dnnl_cpu, 0));
    ONEDNN(dnnl_stream_create(&onednn.stream, onednn.engine, dnnl_stream_default_flags));
}

/* Returns whether oneDNN multiplies bf16 here. TRAIN_GPT_BF16=onednn makes it do so on any AVX-512 processor, for
 * tests, though it is slow. */
static int has_native_bf16(void) {
    const char *asked = getenv("TRAIN_GPT_BF16");
    return simd_has_quick_bf16() || (simd_isa() >= ISA_AVX512 && asked && strcmp(asked, "onednn") == 0);
}

/* --- primitives: the differences between the two APIs ------------------------------------------------------------- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t       Desc;
typedef const_dnnl_memory_desc_t DescView;
#define desc_by_strides dnnl_memory_desc_create_with_strides
static void desc_drop(Desc *desc) { dnnl_memory_desc_destroy(*desc); }
static dnnl_status_t append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
static dnnl_status_t describe(dnnl_primitive_desc_t *made, Desc *a, Desc *b, Desc *bias, Desc *c,
                              dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(made, onednn.engine, *a, *b, bias ? *bias : NULL, *c, attr);
}
#else
typedef dnnl_memory_desc_t        Desc;
typedef const dnnl_memory_desc_t *DescView;
#define desc_by_strides dnnl_memory_desc_init_by_strides
static void desc_drop(Desc *desc) { (void)desc; }
static dnnl_status_t append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f); }
static dnnl_status_t describe(dnnl_primitive_desc_t *made, Desc *a, Desc *b, Desc *bias, Desc *c,
                              dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t product;
    ONEDNN(dnnl_matmul_desc_init(&product, a, b, bias, c));
    return dnnl_primitive_desc_create(made, &product, attr, onednn.engine, NULL);
}
#endif

/* --- primitives: made once per shape ------------------------------------------------------------------------------ */

static int same_matrix(Matrix a, Matrix b) { return a.type == b.type && a.ld == b.ld && a.order == b.order; }

static int same_shape(const Matmul *p, const Matmul *q) {
    return p->m == q->m && p->n == q->n && p->k == q->k && p->write == q->write && !p->bias == !q->bias &&
           same_matrix(p->a, q->a) && same_matrix(p->b, q->b) && same_matrix(p->c, q->c);
}

static Desc desc_of(Matrix x, int64_t rows, int64_t columns) {
    dnnl_dims_t dims = {rows, columns}, strides = {x.order == PLAIN ? x.ld : 1, x.order == PLAIN ? 1 : x.ld};
    Desc        desc;
    ONEDNN(desc_by_strides(&desc, 2, dims, x.type == BF16 ? dnnl_bf16 : dnnl_f32, strides));
    return desc;
}

/* How much of its primitive a product needs: only the size of its scratch, as in a dry run, or all of it. */
typedef enum { SIZE_ONLY, TO_EXECUTE } Need;

/* Describes the primitive of p's shape, which gives the size of its scratchpad. Creates the primitive only if it
 * will be executed (TO_EXECUTE). A dry run goes through every block of a model, but needs only the sizes. */
static void primitive_make(Primitive *made, Matmul p, Need need) {
    onednn_open();
    expect_room_for_code();
    Desc a = desc_of(p.a, p.m, p.k), b = desc_of(p.b, p.k, p.n), c = desc_of(p.c, p.m, p.n);
    Desc bias = desc_of((Matrix){NULL, p.a.type, p.n, PLAIN}, 1, p.n);

    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t       ops;
    ONEDNN(dnnl_primitive_attr_create(&attr));
    ONEDNN(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    ONEDNN(dnnl_post_ops_create(&ops));
    if (p.write == MATMUL_ADD) ONEDNN(append_sum(ops));
    ONEDNN(dnnl_primitive_attr_set_post_ops(attr, ops));
    dnnl_primitive_desc_t description;
    ONEDNN(describe(&description, &a, &b, p.bias ? &bias : NULL, &c, attr));

    DescView scratchpad = dnnl_primitive_desc_query_md(description, dnnl_query_scratchpad_md, 0);
    *made = (Primitive){p, omp_get_max_threads(), dnnl_memory_desc_get_size(scratchpad), NULL};
    if (need == TO_EXECUTE) ONEDNN(dnnl_primitive_create(&made->primitive, description));
    dnnl_primitive_desc_destroy(description);
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    desc_drop(&a), desc_drop(&b), desc_drop(&c), desc_drop(&bias);
}

static const Primitive *primitive_of(Matmul p, Need need) {
    Primitive *slot = NULL;
    for (int i = 0; i < PRIMITIVES && i < onednn.known && !slot; i++)
        if (onednn.table[i].threads == omp_get_max_threads() && same_shape(&onednn.table[i].shape, &p))
            slot = &onednn.table[i];
    if (slot && (slot->primitive || need == SIZE_ONLY)) return slot;
    if (!slot) slot = &onednn.table[onednn.known++ % PRIMITIVES];
    if (slot->primitive) dnnl_primitive_destroy(slot->primitive);
    primitive_make(slot, p, need);
    return slot;
}

/* Computes the product. Threads share the primitive, so each call makes memory objects of its own. */
static void execute(const Primitive *known, Matmul p, void *scratch) {
    enum { BIAS = 1 }; /* index of the bias among the weights of a primitive */
    struct { int which; dnnl_query_t layout; int index; const void *data; } use[] = {
        {DNNL_ARG_SRC, dnnl_query_src_md, 0, p.a.data}, {DNNL_ARG_WEIGHTS, dnnl_query_weights_md, 0, p.b.data},
        {DNNL_ARG_DST, dnnl_query_dst_md, 0, p.c.data}, {DNNL_ARG_SCRATCHPAD, dnnl_query_scratchpad_md, 0, scratch},
        {DNNL_ARG_BIAS, dnnl_query_weights_md, BIAS, p.bias}};
    const_dnnl_primitive_desc_t description;
    dnnl_exec_arg_t             args[5];
    int                         count = p.bias ? 5 : 4;
    ONEDNN(dnnl_primitive_get_primitive_desc(known->primitive, &description));
    for (int i = 0; i < count; i++) {
        DescView desc = dnnl_primitive_desc_query_md(description, use[i].layout, use[i].index);
        args[i].arg = use[i].which;
        ONEDNN(dnnl_memory_create(&args[i].memory, desc, onednn.engine, (void *)use[i].data));
    }
    ONEDNN(dnnl_primitive_execute(known->primitive, onednn.stream, count, args));
    for (int i = 0; i < count; i++) dnnl_memory_destroy(args[i].memory);
}

static void product_by_primitive(Stream *s, Matmul p) {
    size_t           mark = arena_mark(&s->scratch);
    int              is_sized = !s->ledger || !s->ledger->is_elsewhere;
    const Primitive *known = is_sized ? primitive_of(p, s->ledger ? SIZE_ONLY : TO_EXECUTE) : NULL;
    void            *scratch = arena_take(&s->scratch, known ? known->scratch_bytes : 0);
    if (!s->ledger) {
        execute(known, p, scratch);
        ONEDNN(dnnl_stream_wait(onednn.stream));
    }
    arena_release(&s->scratch, mark);
}

/* --- sgemm -------------------------------------------------------------------------------------------------------- */

/* Returns the index of a product in has_code, which says for which products sgemm has generated code. sgemm generates
 * code for a new order of operands, or for a size that it computes in another way. If two products have the same index,
 * code is expected for both after one. */
static uint64_t place_of_code(Matmul p, float add) {
    const int64_t sizes[] =
        {p.m, p.n, p.k, p.a.ld, p.b.ld, p.c.ld, (p.a.order == PLAIN) + 2 * (p.b.order == PLAIN) + 4 * (add != 0.0f)};
    uint64_t      place = 0;
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++)
        place = (place ^ (uint64_t)sizes[i]) * 0x9e3779b97f4a7c15u;
    return (place >> 32) % CODES;
}

static void product_by_sgemm(Matmul p) {
    onednn_open();
    float *c = (float *)p.c.data;
    if (p.bias) {
        #pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < p.m; i++) memcpy(c + i * p.c.ld, p.bias, (size_t)p.n * sizeof(float));
    }
    float add = p.bias || p.write == MATMUL_ADD ? 1.0f : 0.0f;
    _Atomic char *has_code = &onednn.has_code[place_of_code(p, add)];
    if (!atomic_load_explicit(has_code, memory_order_relaxed)) {
        expect_room_for_code();
        atomic_store_explicit(has_code, 1, memory_order_relaxed);
    }
    ONEDNN(dnnl_sgemm(p.a.order == PLAIN ? 'N' : 'T', p.b.order == PLAIN ? 'N' : 'T', p.m, p.n, p.k, 1.0f,
                      (const float *)p.a.data, p.a.ld, (const float *)p.b.data, p.b.ld, add, c, p.c.ld));
}

/* --- tiles: the same bits for any number of threads --------------------------------------------------------------- */

/* TILE_M x TILE_N is the largest tile. STRIP_M x STRIP_K is the largest strip of a transposed a, which is transposed
 * before the product. */
enum { TILE_M = 512, TILE_N = 1024, STRIP_M = 384, STRIP_K = 1024, LEAST_TILE_M = 96, ENOUGH_TILES = 6 };

static int64_t parts_of(int64_t n, int64_t most) { return (n + most - 1) / most; }

typedef struct { int64_t m, n, rows, columns; } Cut; /* how a product is cut: into `rows` x `columns` tiles of at most m
                                                      * x n elements */

/* Returns how a product is cut into tiles of at most m rows. Large tiles are fast, small ones keep many threads
 * busy. */
static Cut cut_of(Matmul p, int64_t m) {
    Cut cut = {m, (parts_of(p.n, parts_of(p.n, TILE_N)) + 15) / 16 * 16, 0, 0};
    cut.columns = parts_of(p.n, cut.n);
    while (cut.m / 2 >= LEAST_TILE_M && parts_of(p.m, cut.m) * cut.columns < ENOUGH_TILES) cut.m /= 2;
    cut.rows = parts_of(p.m, cut.m);
    return cut;
}

/* Returns the view of x that begins at element (row, column). */
static Matrix matrix_from(Matrix x, int64_t row, int64_t column) {
    if (x.data)
        x.data = (char *)x.data +
                 (size_t)(x.order == PLAIN ? row * x.ld + column : column * x.ld + row) * dtype_bytes(x.type);
    return x;
}

static Matmul tile_of(Matmul p, Cut cut, int64_t tile) {
    int64_t i = tile / cut.columns * cut.m, j = tile % cut.columns * cut.n;
    p.c = matrix_from(p.c, i, j), p.a = matrix_from(p.a, i, 0), p.b = matrix_from(p.b, 0, j);
    if (p.bias) p.bias = (const char *)p.bias + (size_t)j * dtype_bytes(p.a.type);
    p.m = smaller_of(p.m - i, cut.m), p.n = smaller_of(p.n - j, cut.n);
    return p;
}

static void turned_tile(Matmul p, float *strip) {
    Matmul q = p;
    for (int64_t l = 0; l < p.k; l += STRIP_K) {
        q.k = smaller_of(p.k - l, STRIP_K);
        turn(F32, strip, q.k, (const float *)p.a.data + l * p.a.ld, p.a.ld, q.k, p.m);
        q.a = (Matrix){strip, F32, q.k, PLAIN};
        q.b = matrix_from(p.b, l, 0);
        q.write = l > 0 ? MATMUL_ADD : p.write;
        product_by_sgemm(q);
    }
}

static void product_by_f32_tiles(Matmul p) {
    int turned = p.a.order == TRANSPOSED && !p.bias, threads = omp_get_max_threads();
    Cut cut = cut_of(p, turned ? STRIP_M : TILE_M);
    onednn_open();
    /* At first use each thread gets a buffer for a transposed copy of a strip of a. sgemm is slow where it packs a
     * narrow strip of a transposed a. */
    if (threads > onednn.strips)
        onednn.strip = xrealloc(onednn.strip, sizeof *onednn.strip * (size_t)threads, "the threads' parts of a matrix");
    for (; onednn.strips < threads; onednn.strips++)
        onednn.strip[onednn.strips] =
            device_alloc_host(sizeof(float) * STRIP_M * STRIP_K, "the threads' parts of a matrix");
    #pragma omp parallel
    {
        omp_set_num_threads(1); /* each oneDNN call inside uses one thread, even if the team is one thread */
        #pragma omp for schedule(dynamic)
        for (int64_t tile = 0; tile < cut.rows * cut.columns; tile++) {
            Matmul q = tile_of(p, cut, tile);
            if (turned) turned_tile(q, onednn.strip[omp_get_thread_num()]);
            else product_by_sgemm(q);
        }
    }
}

/* Returns the largest scratch that one tile of p needs. Also makes the primitives of the tiles if they will be
 * executed. */
static size_t tiles_prepare(Matmul p, Cut cut, Need need) {
    int    threads = omp_get_max_threads();
    size_t most = 0;
    omp_set_num_threads(1);
    for (int64_t tile = 0; tile < cut.rows * cut.columns; tile++) {
        int is_last_row = tile / cut.columns == cut.rows - 1, is_last_column = tile % cut.columns == cut.columns - 1;
        if (tile > 0 && !is_last_row && !is_last_column) continue; /* skips tiles of the same shape as the first one */
        size_t bytes = primitive_of(tile_of(p, cut, tile), need)->scratch_bytes;
        if (bytes > most) most = bytes;
    }
    omp_set_num_threads(threads);
    return (most + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

static void product_by_primitive_tiles(Stream *s, Matmul p) {
    Cut    cut = cut_of(p, TILE_M);
    int    is_sized = !s->ledger || !s->ledger->is_elsewhere;
    size_t mark = arena_mark(&s->scratch);
    size_t bytes = is_sized ? tiles_prepare(p, cut, s->ledger ? SIZE_ONLY : TO_EXECUTE) : 0;
    char  *scratch = (char *)arena_take(&s->scratch, bytes * (size_t)omp_get_max_threads());
    #pragma omp parallel if (!s->ledger)
    if (!s->ledger) {
        omp_set_num_threads(1);
        #pragma omp for schedule(dynamic)
        for (int64_t tile = 0; tile < cut.rows * cut.columns; tile++) {
            Matmul q = tile_of(p, cut, tile);
            execute(primitive_of(q, TO_EXECUTE), q, scratch + bytes * (size_t)omp_get_thread_num());
        }
    }
    arena_release(&s->scratch, mark);
}

/* Computes a product of f32 matrices by sgemm. Does nothing on a dry stream, because sgemm takes no scratch. */
static void product_in_f32(Stream *s, Matmul p) {
    if (s->ledger) return;
    if (s->any_threads) product_by_f32_tiles(p);
    else product_by_sgemm(p);
}

static void product_in_bf16(Stream *s, Matmul p) {
    if (s->any_threads) product_by_primitive_tiles(s, p);
    else product_by_primitive(s, p);
}

/* --- panels ------------------------------------------------------------------------------------------------------- */

/* Writes the rows x columns panel of x at (row, column) to y as f32, in x's order. */
static Matrix widen_panel(float *y, Matrix x, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    int64_t lines = x.order == PLAIN ? rows : columns, first_line = x.order == PLAIN ? row : column;
    int64_t length = x.order == PLAIN ? columns : rows, first = x.order == PLAIN ? column : row;
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < lines; i++)
        widen_row(y + i * length, (const uint16_t *)x.data + (first_line + i) * x.ld + first, length);
    return (Matrix){y, F32, length, x.order};
}

/* Writes a panel like widen_panel, but always PLAIN, because sgemm is fastest with a PLAIN b. */
static Matrix widen_panel_plain(float *y, Matrix x, int64_t row, int64_t column, int64_t rows, int64_t columns) {
    if (x.order == PLAIN) return widen_panel(y, x, row, column, rows, columns);
    #pragma omp parallel for schedule(static)
    for (int64_t j = 0; j < columns; j += LANES)
        turn(BF16, y + j, columns, (const uint16_t *)x.data + (column + j) * x.ld + row, x.ld,
             smaller_of(columns - j, LANES), rows);
    return (Matrix){y, F32, columns, PLAIN};
}

static void product_by_panels(Stream *s, Matmul p) {
    int64_t m = smaller_of(p.m, PANEL_M), n = smaller_of(p.n, PANEL_N), k = smaller_of(p.k, PANEL_K);
    size_t  mark = arena_mark(&s->scratch);
    float  *a = (float *)arena_take(&s->scratch, (size_t)(m * k) * sizeof(float));
    float  *b = (float *)arena_take(&s->scratch, (size_t)(k * n) * sizeof(float));
    float  *c = (float *)arena_take(&s->scratch, (size_t)(p.c.type == BF16 ? m * n : 0) * sizeof(float));
    Matmul  q = {.bias = NULL};
    for (int64_t j = 0; j < p.n && !s->ledger; j += PANEL_N) {
        q.n = smaller_of(p.n - j, PANEL_N);
        for (int64_t i = 0; i < p.m; i += PANEL_M) {
            q.m = smaller_of(p.m - i, PANEL_M);
            q.c = (Matrix){c, F32, q.n, PLAIN};
            if (p.c.type == F32) q.c = (Matrix){(float *)p.c.data + i * p.c.ld + j, F32, p.c.ld, PLAIN};
            for (int64_t l = 0; l < p.k; l += PANEL_K) {
                q.k = smaller_of(p.k - l, PANEL_K);
                q.write = l > 0 ? MATMUL_ADD : p.write;
                q.a = widen_panel(a, p.a, i, l, q.m, q.k);
                if (i == 0 || p.k > PANEL_K) q.b = widen_panel_plain(b, p.b, l, j, q.k, q.n);
                product_in_f32(s, q);
            }
            if (p.c.type == F32) continue;
            const uint16_t *bias = p.bias ? (const uint16_t *)p.bias + j : NULL;
            #pragma omp parallel for schedule(static)
            for (int64_t r = 0; r < q.m; r++)
                narrow_row((uint16_t *)p.c.data + (i + r) * p.c.ld + j, c + r * q.n, bias, q.n);
        }
    }
    arena_release(&s->scratch, mark);
}

/* --- the product -------------------------------------------------------------------------------------------------- */

void matmul(Stream *s, Matmul p) {
    int types_fit = p.a.type == p.b.type && (p.a.type == F32 || p.a.type == BF16) &&
                    (p.c.type == p.a.type || p.c.type == F32);
    CHECK(types_fit && p.c.order == PLAIN && (p.write == MATMUL_SET || (p.c.type == F32 && !p.bias)),
          "a product of %s and %s into %s", dtype_name(p.a.type), dtype_name(p.b.type), dtype_name(p.c.type));
    matmul_note(s, p);
    /* In fp32 oneDNN's primitive is faster than sgemm for these shapes. With any_threads one thread computes a tile,
     * and both are equally fast. */
    int is_ahead = p.b.order == TRANSPOSED && p.k >= p.n && !s->any_threads;
    if (p.a.type == F32 && is_ahead) product_by_primitive(s, p);
    else if (p.a.type == F32) product_in_f32(s, p);
    else if (has_native_bf16()) product_in_bf16(s, p);
    else product_by_panels(s, p);
}

/* Largest piece of a bf16 product whose m or k differs at each call (matmul_ragged). Each size needs a primitive, which
 * is slow to make. So the product is split into pieces of powers of two, whose primitives soon exist. */
enum { RAGGED_PIECE = 512 };

static Matmul ragged_piece(Matmul p, Ragged extent, int64_t at, int64_t piece) {
    if (extent == RAGGED_M) {
        p.a = matrix_from(p.a, at, 0), p.c = matrix_from(p.c, at, 0), p.m = piece;
    } else {
        p.a = matrix_from(p.a, 0, at), p.b = matrix_from(p.b, at, 0), p.k = piece;
        if (at > 0) p.write = MATMUL_ADD;
    }
    return p;
}

void matmul_ragged(Stream *s, Matmul p, Ragged extent) {
    int64_t all = extent == RAGGED_M ? p.m : p.k, at = 0;
    CHECK(!p.bias && (extent == RAGGED_M || p.c.type == F32), "a ragged product into %s", dtype_name(p.c.type));
    if (all == 0 && extent == RAGGED_K && p.write == MATMUL_SET && !s->ledger) /* the sum of no products is zero */
        for (int64_t i = 0; i < p.m; i++) memset((float *)p.c.data + i * p.c.ld, 0, (size_t)p.n * sizeof(float));
    if (all == 0) return;
    if (p.a.type == F32) product_in_f32(s, p);
    else if (!has_native_bf16()) product_by_panels(s, p);
    else
        for (int64_t piece = RAGGED_PIECE; piece > 0; piece /= 2)
            for (; all - at >= piece; at += piece) {
                product_in_bf16(s, ragged_piece(p, extent, at, piece));
                if (s->ledger) break;
            }
}

const char *matmul_library(void) {
    static char            name[32];
    const dnnl_version_t *v = dnnl_version();
    snprintf(name, sizeof name, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return name;
}

/* --- the rate of this machine's products, for mfu and plan -------------------------------------------------------- */

enum { RATE_RUNS = 64 };

int64_t matmul_rate_size(void) { return 1024; }

/* Returns the rate. If bf16 is multiplied in panels, that is the rate of f32. oneDNN has two ways of multiplying plain
 * f32 matrices, and the machine's rate is that of the faster. Allocates and frees its memory, because it runs once,
 * before training. */
double matmul_rate(DType act, MathMode math, int64_t n, double budget_ms) {
    (void)math; /* the CPU has no TF32 */
    DType  type = act == BF16 && has_native_bf16() ? BF16 : F32;
    Matrix shape = {NULL, type, n, PLAIN};
    Matmul p = {shape, shape, shape, n, n, n, MATMUL_SET, NULL};
    size_t matrix_bytes = (size_t)(n * n) * dtype_bytes(type);
    Ledger none = {0};
    Stream dry = stream_dry(&none);
    product_by_primitive(&dry, p);
    Stream own = stream_create(3 * matrix_bytes + dry.scratch.peak_bytes + 4 * ARENA_ALIGN);
    p.a.data = arena_take(&own.scratch, matrix_bytes);
    p.b.data = arena_take(&own.scratch, matrix_bytes);
    p.c.data = arena_take(&own.scratch, matrix_bytes);
    for (int64_t i = 0; i < n * n; i++) {
        Tensor a = tensor_1d(p.a.data, type, n * n), b = tensor_1d(p.b.data, type, n * n);
        tensor_set(a, i, (float)(i % 17 - 8) / 16.0f), tensor_set(b, i, (float)(i % 13 - 6) / 16.0f);
    }
    double best = 0.0;
    for (int by_primitive = type == BF16; by_primitive <= 1; by_primitive++) {
        double ms[RATE_RUNS] = {0}, spent = 0.0, share = type == BF16 ? budget_ms : budget_ms / 2;
        int    runs = 0;
        for (int warm = 0; runs < RATE_RUNS && (runs == 0 || spent < share); warm = 1) {
            double start = clock_ms();
            if (by_primitive) product_by_primitive(&own, p);
            else product_by_sgemm(p);
            double took = clock_ms() - start;
            spent += took;
            if (warm) ms[runs++] = took;
        }
        qsort(ms, (size_t)runs, sizeof ms[0], ascending_doubles);
        double rate = 2.0 * (double)n * (double)n * (double)n / (ms[runs / 2] * 1e-3);
        if (rate > best) best = rate;
    }
    stream_destroy(&own);
    return best;
}
#endif
