/* stage.c - memory and inputs for the tests of ops (stage.h). */
#include "test/ref/stage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/simd.h"

enum { GUARD_BYTES = 64, GUARD = 0xA5, MAX_BLOCKS = 512 };

struct StageBlock { char *memory; size_t bytes; };

/* Streams of the stages that exist. A GPU may still run their work when a test wants to read a result. */
enum { MAX_STAGES = 64 };
static Stream live[MAX_STAGES];
static int    lives;

void stage_settle(void) {
    for (int i = 0; i < lives; i++) device_sync(&live[i]);
}
void stage_watch(Stream s) {
    CHECK(lives < MAX_STAGES, "too many stages");
    live[lives++] = s;
}
void stage_forget(Stream s) {
    for (int i = 0; i < lives; i++)
        if (live[i].queue == s.queue) {
            live[i] = live[--lives];
            return;
        }
}

static int is_backend(const char *name) { return strcmp(device_backend(), name) == 0; }
int        stage_is_slow(void) { return is_backend("emu"); }

int        stage_act_types(void) { return is_backend("cpu") ? 2 : 3; }

/* Returns the bytes of a guard behind each tensor. The emulator needs none, because it knows the end of every
 * allocation and also notices reads after it. */
static size_t guard_bytes(void) { return stage_is_slow() ? 0 : GUARD_BYTES; }

Stage stage_create(size_t scratch_bytes) {
    Stage stage;
    device_open(0, device_threads());
    stage.stream = stream_create(scratch_bytes);
    stage.block = malloc(sizeof *stage.block * MAX_BLOCKS);
    stage.blocks = 0;
    CHECK(stage.block, "no memory");
    stage_watch(stage.stream);
    return stage;
}

void stage_destroy(Stage *stage) {
    device_sync(&stage->stream);
    stage_forget(stage->stream);
    for (int b = 0; b < stage->blocks; b++) {
        for (size_t i = 0; i < guard_bytes(); i++)
            CHECK((unsigned char)stage->block[b].memory[stage->block[b].bytes + i] == GUARD,
                  "byte %zu after tensor %d was overwritten", i, b);
        device_free_shared(stage->block[b].memory);
    }
    CHECK(stage->stream.scratch.used_bytes == 0, "scratch not given back");
    stream_destroy(&stage->stream);
    free(stage->block);
}

static void *guarded(Stage *stage, size_t bytes) {
    CHECK(stage->blocks < MAX_BLOCKS, "too many tensors");
    char *memory = (char *)device_alloc_shared(bytes + guard_bytes());
    memset(memory + bytes, GUARD, guard_bytes());
    stage->block[stage->blocks++] = (struct StageBlock){memory, bytes};
    return memory;
}

Arena stage_arena(const char *name, size_t bytes) {
    device_open(0, device_threads());
    Arena arena = arena_dry(name);
    arena.capacity_bytes = bytes;
    arena.base = (char *)device_alloc_shared(bytes);
    return arena;
}
void stage_arena_destroy(Arena *arena) {
    device_free_shared(arena->base);
    arena->base = NULL;
}

Tensor stage_tensor(Stage *stage, DType type, int dims, int64_t a, int64_t b) {
    Tensor t = tensor_of(NULL, type, dims, a, b, 1, 1);
    t.data = guarded(stage, tensor_bytes(t));
    memset(t.data, 0xff, tensor_bytes(t)); /* fills the memory with NaN of every float type */
    return t;
}

Tensor stage_fresh(Stage *stage, int64_t a, int64_t b) {
    Tensor t = stage_tensor(stage, F32, 2, a, b);
    t.is_fresh = 1;
    return t;
}

Tensor stage_random(Stage *stage, DType type, int dims, int64_t a, int64_t b, uint64_t seed, double spread, double centre) {
    Tensor t = stage_tensor(stage, type, dims, a, b);
    for (int64_t i = 0; i < tensor_elems(t); i++) tensor_set(t, i, (float)(centre + spread * random_value(seed, i)));
    return t;
}

Tensor stage_tokens(Stage *stage, int dims, int64_t a, int64_t b, uint64_t seed, int32_t below) {
    Tensor t = stage_tensor(stage, I32, dims, a, b);
    for (int64_t i = 0; i < tensor_elems(t); i++) ((int32_t *)t.data)[i] = (int32_t)(fabs(random_value(seed, i)) * below);
    return t;
}

Tensor stage_record(Stage *stage, const Record *r, DType type) {
    Tensor t = stage_tensor(stage, type, r->head.dims, r->head.dim[0], r->head.dim[1]);
    CHECK(tensor_elems(t) == r->elems, "%s has more than two dimensions", r->head.name);
    for (int64_t i = 0; i < r->elems; i++) {
        if (type == I32) ((int32_t *)t.data)[i] = (int32_t)record_value(r, i);
        else tensor_set(t, i, (float)record_value(r, i));
    }
    return t;
}

Tensor stage_copy(Stage *stage, Tensor t) {
    Tensor copy = stage_tensor(stage, t.type, t.dims, t.dim[0], t.dim[1]);
    stage_settle();
    memcpy(copy.data, t.data, tensor_bytes(t));
    return copy;
}

double *stage_doubles(Stage *stage, int64_t n) {
    double *x = (double *)guarded(stage, (size_t)n * sizeof(double));
    memset(x, 0, (size_t)n * sizeof(double));
    return x;
}

double *stage_widen(Stage *stage, Tensor t) {
    double *x = stage_doubles(stage, tensor_elems(t));
    stage_settle();
    for (int64_t i = 0; i < tensor_elems(t); i++) x[i] = (double)tensor_get(t, i);
    return x;
}

double *stage_random_doubles(Stage *stage, int64_t n, uint64_t seed, double spread, double centre) {
    double *x = stage_doubles(stage, n);
    for (int64_t i = 0; i < n; i++) x[i] = centre + spread * random_value(seed, i);
    return x;
}

/* the mixing function of splitmix64, Steele et al., OOPSLA 2014 */
double random_value(uint64_t seed, int64_t i) {
    uint64_t z = (seed << 32) + ((uint64_t)i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return ((double)(z >> 12) + 0.5) / (double)(1ull << 51) - 1.0;
}

double round_to(DType type, double x) {
    if (type == F32) return (double)(float)x;
    return type == BF16 ? (double)bf16_to_f32(bf16_from_f32((float)x)) : (double)f16_to_f32(f16_from_f32((float)x));
}

int stage_main(char **argv, int (*tests)(void)) {
    static const struct { Isa isa; const char *name, *threads; } runs[] = {
        {ISA_BASE, "sse2", "1"}, {ISA_AVX2, "avx2", "3"}, {ISA_AVX512, "avx512", "2"}, {ISA_AVX512_BF16, "avx512bf16", "2"}};
    if (getenv("TRAIN_GPT_ISA") || !is_backend("cpu")) return tests() != 0;
    int failed = 0;
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
        if (runs[i].isa > simd_isa()) continue;
        pid_t child = fork();
        if (child == 0) {
            setenv("TRAIN_GPT_ISA", runs[i].name, 1);
            setenv("OMP_NUM_THREADS", runs[i].threads, 1);
            setenv("OMP_WAIT_POLICY", "passive", 1);
            execv("/proc/self/exe", argv);
            _exit(127);
        }
        int status = 1;
        waitpid(child, &status, 0);
        if (status != 0) fprintf(stderr, "failed with TRAIN_GPT_ISA=%s OMP_NUM_THREADS=%s\n", runs[i].name, runs[i].threads);
        failed |= status != 0;
    }
    return failed;
}
