/* plan_bound.c - for test/emu/test_plan_bound.sh: prints a line for each of many configs, grids and sizes:
 *   BOUND OWN CONFIG...     bytes of a rank's GPU memory by `plan gpu=`, and by the dry run of this build, without its context
 * BOUND is the same on every build. OWN can be compared with it only if the build has the CUDA kernels of layers/. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "run/config/config.h"
#include "run/plan/plan.h"
#include "run/plan/simulate.h"

enum { WORDS = 12 };
/* Configs to combine with each of SIZES and GRIDS. Combinations that the rules of configs refuse are left out. */
static const char *const BASES[] = {"configs/gpt2-124m.json", "configs/gpt2-774m.json", "configs/llama-160m.json", "configs/qwen3-0.6b.json",
                                    "configs/qwen3-moe-small.json"};
static const struct { int B, T; const char *words; } SIZES[] = {
    {1, 1024, ""}, {7, 320, ""}, {16, 512, ""}, {3, 1024, "precision=fp32"}, {8, 1024, "precision=fp8"},
    {5, 128, "precision=fp8 data.document_mask=true"}};
static const struct { int ranks; const char *words; } GRIDS[] = {
    {1, ""}, {1, "memory.recompute=block"}, {1, "optimizer.name=muon"}, {1, "memory.offload=optimizer"}, {8, "parallel.zero_stage=1"},
    {8, "parallel.zero_stage=3 memory.recompute=light"}, {8, "parallel.deterministic=true"}, {4, "parallel.tensor=2"},
    {8, "parallel.tensor=4 optimizer.name=muon"}, {8, "parallel.tensor=2 parallel.pipeline=2 parallel.zero_stage=2"},
    {8, "parallel.pipeline=4 parallel.interleave=1"}, {4, "parallel.pipeline=2 parallel.interleave=2"},
    {8, "parallel.context=2 parallel.replicas=2"}, {8, "parallel.expert=4"}, {8, "parallel.expert=2 optimizer.name=muon"},
    {16, "parallel.tensor=2 parallel.context=2 parallel.pipeline=2 optimizer.name=muon"}};
#define COUNT(x) (int)(sizeof(x) / sizeof *(x))

static int split(char *text, char *word[WORDS]) {
    int count = 0;
    for (char *at = strtok(text, " "); at && count < WORDS; at = strtok(NULL, " ")) word[count++] = at;
    return count;
}

static int print_line(const char *base, int size, int grid) {
    char   text[512], said[512], *word[WORDS];
    int    ranks = GRIDS[grid].ranks, B = SIZES[size].B, T = SIZES[size].T;
    Config c;
    snprintf(text, sizeof text, "batch.micro_batch=%d batch.seq_len=%d batch.global_tokens=%d %s %s", B, T, ranks * B * T * 4, SIZES[size].words,
             GRIDS[grid].words);
    memcpy(said, text, sizeof said);
    char *faults = config_load_elsewhere(base, word, split(text, word), ranks, &c);
    free(faults);
    if (faults) return 0;
    DType   act = c.precision == PRECISION_FP32 ? F32 : BF16;
    Cluster gpu = {.processors = 132};
    Plan    own = plan_make(&c, act, (PlanRanks){ranks, COMM_NCCL, -1, 0, 0});
    printf("%.0f %zu %s ranks=%d %s\n", simulate_memory(&c, (Target){act, ranks, &gpu}).memory_bytes,
           own.device_bytes - own.library_bytes - device_memory().reserve, base, ranks, said);
    config_free(&c);
    return 1;
}

int main(void) {
    int lines = 0;
    for (int b = 0; b < COUNT(BASES); b++)
        for (int s = 0; s < COUNT(SIZES); s++)
            for (int g = 0; g < COUNT(GRIDS); g++) lines += print_line(BASES[b], s, g);
    return lines == 0;
}
