/* stage.h - the ground of an op's test: memory with guards, reproducible inputs, one run per instruction set.
 *
 * Inputs are random but the same in every run, and rounded to the tensor's type before the float64 reference sees them:
 * a comparison then measures the op's own rounding only. Outputs start as NaN, so that an element the op did not set is
 * seen. Every backend runs the same tests: the host's reads are from memory that both reach (and launches must be
 * synchronous: CUDA_LAUNCH_BLOCKING=1).
 */
#ifndef TRAIN_GPT_TEST_REF_STAGE_H
#define TRAIN_GPT_TEST_REF_STAGE_H

#include "core/device.h"
#include "test/ref/record.h"

typedef struct {
    Stream  stream;
    struct StageBlock *block; /* owned: memory that host and device both reach, one allocation each */
    int     blocks;
} Stage;

enum { STAGE_SCRATCH = 160 << 20 }; /* enough for any op of these tests; test/model/test_planned.c compares with dry runs */
Stage stage_create(size_t scratch_bytes);
/* Waits for all stages: before a test reads or writes a tensor itself. Comparisons do it. */
void  stage_settle(void);
/* A stream of a test's own, for as long as it is there. */
void  stage_watch(Stream s);
void  stage_forget(Stream s);
void  stage_destroy(Stage *stage); /* fails where a guard was overwritten or scratch not given back */

Tensor  stage_tensor(Stage *stage, DType type, int dims, int64_t a, int64_t b); /* NaN, or -1 for I32     */
/* f32 [a,b] of a gradient that holds nothing yet: NaN, which reaches no sum. */
Tensor  stage_fresh(Stage *stage, int64_t a, int64_t b);
Tensor  stage_random(Stage *stage, DType type, int dims, int64_t a, int64_t b, uint64_t seed, double spread, double centre);
Tensor  stage_tokens(Stage *stage, int dims, int64_t a, int64_t b, uint64_t seed, int32_t below);
Tensor  stage_record(Stage *stage, const Record *r, DType type);                  /* a record's values, in its shape      */
Tensor  stage_copy(Stage *stage, Tensor t);
double *stage_doubles(Stage *stage, int64_t n);                                  /* zeros                                */
double *stage_widen(Stage *stage, Tensor t);                                     /* an F32 or BF16 tensor as float64     */
double *stage_random_doubles(Stage *stage, int64_t n, uint64_t seed, double spread, double centre);

double random_value(uint64_t seed, int64_t i); /* uniform in (-1,1), by a counter-based hash */
double round_to(DType type, double x);         /* as a tensor of that type would store it    */

/* An arena in memory that host and device both reach. */
Arena stage_arena(const char *name, size_t bytes);
void  stage_arena_destroy(Arena *arena);

/* How many of F32, BF16, F16 this build's backend computes in: on the CPU the first two. */
int stage_act_types(void);
/* 1 where every instruction is emulated: tests take their smaller sizes. */
int stage_is_slow(void);

/* main() of an op's test: on the CPU runs the program again for each instruction set this processor has, with 1, 3 and
 * 2 threads, and then tests() in each; returns the exit status. */
int stage_main(char **argv, int (*tests)(void));

#endif
