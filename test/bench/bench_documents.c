/* bench_documents.c - the cost of keeping documents apart (data.document_mask): of attention, and of whole training steps of a GPT-2.
 *
 *   bench_documents fp32|bf16 [T B n_layer TURNS]      default: T 1024, 1 sequence, 3 layers of GPT-2 124M's width, 5 turns
 *
 * Three ways alternate in one process. Plain has no mask. The second has the mask, and each sequence is a single
 * document: all of plain's work, and the mask's. The third has the mask, and documents of 3/8, 1/8, 1/4 and 1/4 of a
 * sequence, so tiles between two documents are skipped. A ratio is the time of a way divided by that of plain in the
 * same round; printed is the median of the rounds. Ratios are by elapsed time, and by processor time over all threads.
 * One line of key=value pairs.
 */
#include <stdio.h>
#include <string.h>

#include "test/bench/training_step.h"

enum { MOST_TURNS = 64, VOCAB = 50304, WIDTH = 768, HEADS = 12, FORWARDS = 16, BACKWARDS = 6 };
typedef enum { BARE, ONE, FOUR, WAYS } Way;
typedef struct {
    Model  *model[WAYS];
    Batch   batch[WAYS];
    Tensor  qkv, y, lse, dy, dqkv;
    Arena   arena;
    Stream  stream;
    int64_t steps;
} Bench;

static Model *model_of(int document_mask, DType act, int64_t T, int64_t B, int64_t layers) {
    Model *m = model_create((ModelSpec){.shards = {.shape = GPT2_SHAPE(layers, HEADS, WIDTH, T, VOCAB), .ranks = 1, .zero_stage = 1,
                                                   .act = act, .use = GPT_TRAINING},
                                        .optimizer = &OPTIMIZER_ADAMW, .B = B, .T = T, .document_mask = document_mask});
    masters_init(&m->optimizer, &m->stream, 1, NULL, NULL);
    return m;
}

static Tensor starts_of(Bench *b, Way way, int64_t T, int64_t B) {
    if (way == BARE) return tensor_none();
    Tensor   t = arena_tensor(&b->arena, I32, 2, B, T, 1);
    int32_t *starts = calloc((size_t)(B * T), sizeof *starts);
    CHECK(starts, "no memory for documents");
    for (int64_t i = 0; way == FOUR && i < B * T; i++) {
        int64_t eighth = i % T * 8 / T;
        starts[i] = (int32_t)((eighth < 3 ? 0 : eighth < 4 ? 3 : eighth < 6 ? 4 : 6) * T / 8);
    }
    device_from_host(&b->stream, t, starts);
    device_sync(&b->stream);
    free(starts);
    return t;
}

static void fill(Bench *b, Tensor t, uint64_t seed) {
    Tensor values = tensor_1d(malloc(tensor_bytes(t)), t.type, tensor_elems(t));
    CHECK(values.data, "no memory");
    for (int64_t i = 0; i < tensor_elems(t); i++) tensor_set(values, i, (float)rng_uniform(seed, RNG_TEST, (uint64_t)i) - 0.5f);
    device_from_host(&b->stream, t, values.data);
    device_sync(&b->stream);
    free(values.data);
}

static Bench bench_create(DType act, int64_t T, int64_t B, int64_t layers) {
    int64_t N = B * T;
    Bench   b = {.model = {model_of(0, act, T, B, layers), model_of(1, act, T, B, layers)}};
    b.model[FOUR] = b.model[ONE];
    b.arena = arena_create("bench", (size_t)(N * WIDTH) * 32 + (size_t)(N * HEADS) * 4 + (1 << 20));
    b.stream = stream_create(64 << 20);
    b.qkv = arena_tensor(&b.arena, act, 2, N, 3 * WIDTH, 1), b.dqkv = arena_tensor(&b.arena, act, 2, N, 3 * WIDTH, 1);
    b.y = arena_tensor(&b.arena, act, 2, N, WIDTH, 1), b.dy = arena_tensor(&b.arena, act, 2, N, WIDTH, 1);
    b.lse = arena_tensor(&b.arena, F32, 2, B * HEADS, T, 1);
    fill(&b, b.qkv, 1), fill(&b, b.dy, 2);
    Batch batch = {arena_tensor(&b.arena, I32, 2, B, T, 1), arena_tensor(&b.arena, I32, 2, B, T, 1), tensor_none()};
    random_tokens(&b.stream, batch.inputs, VOCAB, 1);
    random_tokens(&b.stream, batch.targets, VOCAB, 2);
    for (Way way = BARE; way < WAYS; way++) b.batch[way] = batch, b.batch[way].starts = starts_of(&b, way, T, B);
    return b;
}

static const HeadShape SHAPE = {HEADS, HEADS, WIDTH / HEADS};
static void forward(Bench *b, Way way) {
    for (int i = 0; i < FORWARDS; i++) attention_forward(&b->stream, b->y, b->lse, b->qkv, b->batch[way].starts, SHAPE);
    device_sync(&b->stream);
}
static void backward(Bench *b, Way way) {
    for (int i = 0; i < BACKWARDS; i++)
        attention_backward(&b->stream, b->dqkv, tensor_none(), b->dy, b->y, b->lse, tensor_none(), b->qkv, b->batch[way].starts, SHAPE);
    device_sync(&b->stream);
}
static void step(Bench *b, Way way) { step_ms(b->model[way], b->batch[way], ++b->steps); }

/* Measures one operation (`run`) in three ways: no mask, a mask with one document, a mask with four. Rounds begin with
 * each way in turn. The backward pass reads the lse (log of the sum of exponentials), so a forward pass of that way
 * comes first, not measured. */
static void measure(Bench *b, const char *name, void (*run)(Bench *b, Way way), int launches, int turns) {
    double plain_ms[MOST_TURNS], wall[WAYS][MOST_TURNS], processor[WAYS][MOST_TURNS];
    for (int turn = -1; turn < turns; turn++) {
        double wall_ms[WAYS], own_ms[WAYS];
        for (int k = 0; k < WAYS; k++) {
            Way way = (Way)((k + turn + 1) % WAYS);
            if (run == backward) attention_forward(&b->stream, b->y, b->lse, b->qkv, b->batch[way].starts, SHAPE);
            double start = clock_ms(), own = processor_ms();
            run(b, way);
            wall_ms[way] = clock_ms() - start, own_ms[way] = processor_ms() - own;
        }
        if (turn < 0) continue; /* the first round only warms up */
        plain_ms[turn] = wall_ms[BARE] / launches;
        for (int k = 0; k < WAYS; k++) wall[k][turn] = wall_ms[k] / wall_ms[BARE], processor[k][turn] = own_ms[k] / own_ms[BARE];
    }
    printf(" %s_ms=%.2f %s_one=%.4f %s_one_processor=%.4f %s_four=%.4f %s_four_processor=%.4f", name, median(plain_ms, turns), name,
           median(wall[ONE], turns), name, median(processor[ONE], turns), name, median(wall[FOUR], turns), name,
           median(processor[FOUR], turns));
}

int main(int argc, char **argv) {
    DType   act = argc > 1 && strcmp(argv[1], "bf16") == 0 ? BF16 : F32;
    int64_t n[4] = {1024, 1, 3, 5};
    for (int i = 2; i < argc && i < 6; i++) n[i - 2] = atoll(argv[i]);
    CHECK(n[3] > 0 && n[3] <= MOST_TURNS, "1 to %d turns, not %lld", MOST_TURNS, (long long)n[3]);
    device_open(0, device_threads());
    Bench b = bench_create(act, n[0], n[1], n[2]);
    printf("dtype=%s isa=%s threads=%d T=%lld B=%lld layers=%lld parameters=%lld turns=%lld", dtype_name(act), device_isa(),
           device_threads(), (long long)n[0], (long long)n[1], (long long)n[2], (long long)b.model[BARE]->shards->layout.elems,
           (long long)n[3]);
    measure(&b, "forward", forward, FORWARDS, (int)n[3]);
    measure(&b, "backward", backward, BACKWARDS, (int)n[3]);
    measure(&b, "step", step, 1, (int)n[3]);
    printf("\n");
    model_destroy(b.model[BARE]), model_destroy(b.model[ONE]), arena_destroy(&b.arena);
    return 0;
}
