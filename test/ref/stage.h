/* stage.h - what a test of an op needs: memory with guards, reproducible inputs, one run per instruction set.
 *
 * Inputs are random but the same in every run, and rounded to the tensor's type before the float64 reference sees them:
 * a comparison then measures only the op's own rounding. Outputs start as NaN, so an element that the op did not set is
 * noticed. Every backend runs the same tests. The host reads results from memory that it shares with the GPU, so
 * launches must be synchronous (CUDA_LAUNCH_BLOCKING=1).
 */
#ifndef TRAIN_GPT_TEST_REF_STAGE_H
#define TRAIN_GPT_TEST_REF_STAGE_H

#include "core/device.h"
#include "test/ref/record.h"

typedef struct {
    Stream  stream;
    struct StageBlock *block; /* owned: list of allocations that host and device can both access */
    int     blocks;
} Stage;

/* bytes of scratch memory of a stage, enough for any op in these tests */
enum { STAGE_SCRATCH = 160 << 20 };
Stage stage_create(size_t scratch_bytes);
/* Waits until the GPU has done the work of all stages. A test that reads or writes a tensor's memory itself calls it
 * first. Comparisons call it themselves. */
void  stage_settle(void);
/* stage_watch adds a stream of a test to those that stage_settle() waits for. stage_forget removes it. */
void  stage_watch(Stream s);
void  stage_forget(Stream s);
/* frees the stage; fails if a guard was overwritten or scratch memory was not released */
void  stage_destroy(Stage *stage);

/* returns a new tensor filled with NaN, or with -1 for I32 */
Tensor  stage_tensor(Stage *stage, DType type, int dims, int64_t a, int64_t b);
/* Returns an f32 tensor [a,b] for a gradient, filled with NaN. The op must set it, and no NaN may reach a sum. */
Tensor  stage_fresh(Stage *stage, int64_t a, int64_t b);
Tensor  stage_random(Stage *stage, DType type, int dims, int64_t a, int64_t b, uint64_t seed, double spread, double centre);
Tensor  stage_tokens(Stage *stage, int dims, int64_t a, int64_t b, uint64_t seed, int32_t below);
/* returns the values of a recorded tensor (test/ref/record.h) as a tensor of its shape */
Tensor  stage_record(Stage *stage, const Record *r, DType type);
Tensor  stage_copy(Stage *stage, Tensor t);
/* returns memory for n float64 values, all zero */
double *stage_doubles(Stage *stage, int64_t n);
/* returns the values of an F32, BF16 or F16 tensor as float64 */
double *stage_widen(Stage *stage, Tensor t);
double *stage_random_doubles(Stage *stage, int64_t n, uint64_t seed, double spread, double centre);

/* returns number i of a sequence, uniform in (-1,1), by a hash of seed and i */
double random_value(uint64_t seed, int64_t i);
double round_to(DType type, double x);         /* returns x rounded as a tensor of this type stores it */

/* Makes an arena in memory that host and device can both access. */
Arena stage_arena(const char *name, size_t bytes);
void  stage_arena_destroy(Arena *arena);

/* Returns how many of F32, BF16, F16 this build's backend can compute in. On the CPU these are the first two. */
int stage_act_types(void);
/* Returns 1 on the emulator, which is slow. Tests then use their smaller sizes. */
int stage_is_slow(void);

/* The main() of an op's test. On the CPU it runs the program again for each instruction set of this processor, with
 * 1, 3 and 2 threads. Each process calls tests(). Returns the exit status. */
int stage_main(char **argv, int (*tests)(void));

#endif
