/* attention_last.c - CPU side of attention_last_forward in layers.h.
 *
 * A work item is a query of one head. It walks the keys up to its own, KEYS at a time, with a running maximum and sum.
 * An item's sums do not depend on the other items, nor on the threads.
 */
#include "layers/act_simd.h"
#include "layers/contracts.h"

#include <omp.h>

enum { KEYS = 64 }; /* a multiple of 16 */

typedef struct {
    DType       type;
    int64_t     n, T, C, H, D; /* C = H*D: columns of y         */
    int64_t     group;         /* query heads that share a head of keys */
    int64_t     columns;       /* columns of qkv */
    int64_t     wide;  /* D rounded up to 16: floats of a row of scratch */
    float       scale; /* 1/sqrt(D), folded into q                       */
    void       *y;     /* borrowed, [n,C]  */
    const void *qkv;   /* borrowed, [T,columns] */
} Last;

#define SIMD_FILE "layers/attention_last_simd.h"
#include "core/simd_each.h"
SIMD_DISPATCH(void, last_item, (DType type, const Last *job, int64_t item, float *q, float *sums),
              (type, job, item, q, sums))

void attention_last_forward(Stream *s, Tensor y, Tensor qkv, HeadShape h) {
    EXPECT_ACT(qkv);
    int     is_dry = attention_last_forward_contract(s, y, qkv, h);
    int64_t wide = (h.size + LANES - 1) / LANES * LANES;
    Last    job = {.type = qkv.type, .n = y.dim[0], .T = qkv.dim[0], .C = y.dim[1], .H = h.query, .D = h.size,
                   .group = h.query / h.key, .columns = qkv.dim[1], .wide = wide, .scale = 1.0f / sqrtf((float)h.size),
                   .y = y.data, .qkv = qkv.data};
    size_t  mark = arena_mark(&s->scratch);
    float  *memory = (float *)arena_take(&s->scratch, (size_t)(omp_get_max_threads() * 2 * wide) * sizeof(float));
    if (!is_dry) {
        #pragma omp parallel for schedule(static)
        for (int64_t item = 0; item < job.n * h.query; item++) {
            float *q = memory + omp_get_thread_num() * 2 * wide;
            last_item(job.type, &job, item, q, q + wide);
        }
    }
    arena_release(&s->scratch, mark);
}
