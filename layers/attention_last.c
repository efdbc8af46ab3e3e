/* attention_last.c - CPU side of attention_last_forward in layers.h.
 *
 * One item of work is a query of one head. It walks the keys up to its own, KEYS at a time, with a running maximum and
 * sum. An item's sums do not depend on the other items, nor on the threads.
 */
#include "layers/act_simd.h"
#include "layers/contracts.h"

#include <omp.h>

enum { KEYS = 64 }; /* a multiple of 16 */

typedef struct {
    DType       type;
    int64_t     n, T, C, H, D;
    int64_t     wide;  /* D rounded up to 16: floats of a row of scratch */
    float       scale; /* 1/sqrt(D), folded into q                       */
    void       *y;     /* borrowed, [n,C]  */
    const void *qkv;   /* borrowed, [T,3C] */
} Last;

#define SIMD_FILE "layers/attention_last_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, last_item, (DType type, const Last *job, int64_t item, float *q, float *sums),
              (type, job, item, q, sums))

void attention_last_forward(Stream *s, Tensor y, Tensor qkv, int64_t H) {
    EXPECT_ACT(qkv);
    int     is_dry = attention_last_forward_contract(s, y, qkv, H);
    int64_t C = y.dim[1], D = C / H, wide = (D + LANES - 1) / LANES * LANES;
    Last    job = {qkv.type, y.dim[0], qkv.dim[0], C, H, D, wide, 1.0f / sqrtf((float)D), y.data, qkv.data};
    size_t  mark = arena_mark(&s->scratch);
    float  *memory = (float *)arena_take(&s->scratch, (size_t)(omp_get_max_threads() * 2 * wide) * sizeof(float));
    if (!is_dry) {
        #pragma omp parallel for schedule(static)
        for (int64_t item = 0; item < job.n * H; item++) {
            float *q = memory + omp_get_thread_num() * 2 * wide;
            last_item(job.type, &job, item, q, q + wide);
        }
    }
    arena_release(&s->scratch, mark);
}
