/* checkpoint_fixture.h - shared by the checkpoint tests: a run folder, and a model that is only a parameter table and a
 * state of known bits. The sizes are odd on purpose. Rows are no multiples of 64 elements, and the vocabulary is
 * padded. An extent (the bytes of a file that one hash covers) ends inside a tensor. */
#ifndef TRAIN_GPT_TEST_RUN_CHECKPOINT_FIXTURE_H
#define TRAIN_GPT_TEST_RUN_CHECKPOINT_FIXTURE_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/io.h"
#include "core/rng.h"
#include "core/thread.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"

typedef struct {
    char            dir[512];          /* path of the run folder, run.dir */
    Config          config;
    Arena           params_arena, grads_arena, optimizer_arena, sums_arena;
    Shards         *shards;
    Optimizer       optimizer;
    Shard           shard[2];
    Dataset         train;
    Stream          stream;
    TrainState      train_state;
    CheckpointState state;
} Fixture;

/* Tokenizer of the saved checkpoints. It has only ids and no texts, so a save writes no tokenizer files, which are more
 * files that could fail. A test may replace it by a tokenizer of bytes. */
static Tokenizer fixture_tokenizer = {.kind = TOKENIZER_IDS, .vocab_size = 256};

/* Makes a new folder and writes its path to dir. It is in memory if possible, because the tests sync thousands of
 * files. */
static inline int fixture_folder(char dir[64]) {
    strcpy(dir, access("/dev/shm", W_OK) == 0 ? "/dev/shm/train_gpt_XXXXXX" : "/tmp/train_gpt_XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static inline int fixture_folder_remove(const char *dir) { return system(path_of("rm -rf '%s'", dir).text); }

#ifndef FIXTURE_WIDE
#define FIXTURE_WIDE 700
#endif
enum { FIXTURE_ROWS = 8, FIXTURE_V = 389, FIXTURE_C = 14, FIXTURE_P = 40 };

static inline Param fixture_row(const char *name, int bucket, int64_t rows, int64_t columns, int64_t memory_rows) {
    Param p = {.dims = columns ? 2 : 1, .dim = {rows, columns}, .cut = memory_rows > rows ? CUT_VOCABULARY : CUT_NONE,
               .pad = memory_rows, .bucket = bucket, .group = columns ? GROUP_MATRIX : GROUP_VECTOR};
    snprintf(p.name, sizeof p.name, "transformer.%s", name);
    return p;
}

static inline void fixture_rows(Param rows[FIXTURE_ROWS]) {
    rows[0] = fixture_row("wte.weight", 0, FIXTURE_V, FIXTURE_C, 448);
    rows[1] = fixture_row("wpe.weight", 0, FIXTURE_P, FIXTURE_C, FIXTURE_P);
    rows[2] = fixture_row("h.0.ln_1.weight", 1, FIXTURE_C, 0, FIXTURE_C);
    rows[3] = fixture_row("h.0.ln_1.bias", 1, FIXTURE_C, 0, FIXTURE_C);
    /* this tensor is over 1 MiB, so that its file has several extents, each with its own hash */
    rows[4] = fixture_row("h.0.mlp.c_fc.weight", 1, FIXTURE_WIDE, 401, FIXTURE_WIDE);
    rows[5] = fixture_row("h.0.mlp.c_fc.bias", 1, 401, 0, 401);
    rows[6] = fixture_row("ln_f.weight", 2, FIXTURE_C, 0, FIXTURE_C);
    rows[7] = fixture_row("ln_f.bias", 2, FIXTURE_C, 0, FIXTURE_C);
}

/* Returns the bits of element g of a tensor at step `step`: of the masters (fp32 weights, which = 0), of Adam's m (1)
 * or of v (2). They are a finite number that depends only on these arguments. */
static inline uint32_t fixture_bits(int64_t step, int which, int64_t g) {
    /* the mixing function of splitmix64, Steele et al. 2014 */
    uint64_t x = ((uint64_t)step * 3 + (uint64_t)which) * 0x9e3779b97f4a7c15u + (uint64_t)g;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    /* clears a bit of the exponent, so that the number is never infinite or NaN */
    return (uint32_t)(x >> 32) & 0xbfffffffu;
}

static inline void fixture_config(Fixture *f, const char *extra, int ranks) {
    char path[600], text[2048], *fault;
    snprintf(path, sizeof path, "%s.json", f->dir);
    int   bytes = snprintf(text, sizeof text,
        "{\"run\":{\"steps\":100,\"dir\":\"%s\"%s},\"model\":{\"n_layer\":1,\"n_head\":2,\"n_embd\":14,\"n_positions\":40,\"vocab_size\":389},"
        "\"data\":{\"train\":\"train_*.bin\"},\"batch\":{\"global_tokens\":480,\"micro_batch\":1}}", f->dir, extra);
    FILE *out = fopen(path, "w");
    CHECK(out && fwrite(text, 1, (size_t)bytes, out) == (size_t)bytes && fclose(out) == 0, "cannot write %s", path);
    fault = config_load(path, NULL, 0, ranks, &f->config);
    CHECK(!fault, "%s", fault);
    unlink(path);
}

/* Creates a run in dir for this rank of comm. `extra` is JSON text that is added to the config's section "run", such as
 * ",\"resume\":\"must\"". */
static inline void fixture_create(Fixture *f, Comm *comm, const char *dir, DType act, int zero_stage, const char *extra) {
    Param rows[FIXTURE_ROWS];
    memset(f, 0, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "%s", dir);
    if (comm_rank(comm) == 0) fixture_config(f, extra, comm_size(comm));
    comm_barrier(comm);
    for (int r = 1; r < comm_size(comm); r++) { /* all ranks share this file, so they write it one after another */
        if (comm_rank(comm) == r) fixture_config(f, extra, comm_size(comm));
        comm_barrier(comm);
    }
    fixture_rows(rows);
    Layout     layout = layout_create(rows, FIXTURE_ROWS, (LayoutPlace){comm_size(comm), 1, 0, NULL, 1, 0});
    ShardsSpec spec = {.shape = GPT2_SHAPE(1, 2, FIXTURE_C, FIXTURE_P, FIXTURE_V),
                       .comm = comm,
                       .ranks = comm_size(comm),
                       .rank = comm_rank(comm),
                       .zero_stage = zero_stage,
                       .act = act,
                       .use = GPT_TRAINING};
    f->params_arena = arena_create("parameters", (size_t)layout.memory_elems * 4 + 4096);
    f->grads_arena = arena_create("gradients", (size_t)layout.memory_elems * 4 + 4096);
    f->optimizer_arena = arena_create("optimizer", (size_t)layout.memory_elems * 12 + 4096);
    f->sums_arena = arena_create("sums", 4096);
    f->shards = shards_create(spec, layout, step_sums_create(&f->sums_arena, 0, 0), &f->params_arena, &f->grads_arena);
    f->optimizer = optimizer_create(&OPTIMIZER_ADAMW, f->shards, MEMORY_DEVICE, &f->optimizer_arena);
    f->shard[0] = (Shard){.path = "data/train_000.bin", .file_bytes = 3000, .header = {2, 1024, 988, 0}};
    f->shard[1] = (Shard){.path = "data/train_001.bin", .file_bytes = 5000, .header = {2, 1024, 1988, 0}};
    f->train = (Dataset){.shard = f->shard, .shards = 2, .seq_len = 40, .samples = 73, .tokens = 2976};
    f->state = (CheckpointState){.config = &f->config,
                                 .best_step = -1,
                                 .comm = comm,
                                 .optimizer = &f->optimizer,
                                 .stream = &f->stream,
                                 .train = &f->train,
                                 .tokenizer = &fixture_tokenizer,
                                 .precision = dtype_name(act),
                                 .threads = 1,
                                 .train_state = &f->train_state};
    f->train_state = (TrainState){.loss_scale = {1.0, 0}, .run_id = "0123456789abcdef"};
}

static inline void fixture_destroy(Fixture *f) {
    config_free(&f->config);
    optimizer_destroy(&f->optimizer);
    shards_destroy(f->shards);
    arena_destroy(&f->sums_arena);
    arena_destroy(&f->params_arena);
    arena_destroy(&f->grads_arena);
    arena_destroy(&f->optimizer_arena);
}

/* Collective. Writes a complete checkpoint of `step` and deletes older ones than config checkpoint.keep allows. Ends
 * the program with code 74 if that fails. Returns the milliseconds that it took. */
static inline double checkpoint_save(CheckpointState *state, int64_t step) {
    double begin = clock_ms();
    Saver *s = saver_create(state);
    saver_start(s, step, NULL);
    saver_finish_last(s);
    saver_destroy(s);
    return clock_ms() - begin;
}

/* Sets this rank's fp32 master weights and Adam's moments m and v to the bits that fixture_bits gives for `step`. */
static inline void fixture_fill(Fixture *f, int64_t step) {
    for (int which = 0; which < 3; which++)
        for (int i = 0; i < f->shards->spans; i++) {
            Span      span = f->shards->span[i];
            uint32_t *bits = (uint32_t *)optimizer_tensor(&f->optimizer, which, span).data;
            for (int64_t k = 0; k < span.elems; k++)
                bits[k] = fixture_bits(step, which, f->shards->layout.param[span.param].offset + span.first + k);
        }
}

/* Returns how many elements of this rank's fp32 master weights and Adam's moments differ from the bits that
 * fixture_bits gives for `step`. Elements of bf16 weights that differ from their rounded master weights count as
 * well. */
static inline int64_t fixture_differences(const Fixture *f, int64_t step) {
    int64_t wrong = 0;
    for (int i = 0; i < f->shards->spans; i++) {
        Span span = f->shards->span[i];
        for (int which = 0; which < 3; which++) {
            const uint32_t *bits = (const uint32_t *)optimizer_tensor(&f->optimizer, which, span).data;
            for (int64_t k = 0; k < span.elems; k++)
                wrong +=
                    bits[k] != fixture_bits(step, which, f->shards->layout.param[span.param].offset + span.first + k);
        }
        for (int64_t k = 0; k < span.elems && f->shards->params.type == BF16; k++) {
            float master = tensor_get(optimizer_master(&f->optimizer, span), k);
            wrong += tensor_get(f->shards->params, span.memory + k) != bf16_to_f32(bf16_from_f32(master));
        }
    }
    return wrong;
}

#endif
