/* matmul.cuh - epilogues of the GPU's matrix products: work on the output, or beside it, within the product.
 *
 * Such an epilogue saves a pass over a large tensor and may cost the product more than that, by shape and GPU. So each
 * stands beside a kernel that does the same, and the first product of a shape times both.
 */
#ifndef TRAIN_GPT_LAYERS_MATMUL_CUH
#define TRAIN_GPT_LAYERS_MATMUL_CUH

#include "core/kernel.cuh"
#include "layers/matmul.h"

typedef enum {
    EPILOGUE_NONE,
    EPILOGUE_GELU_BACKWARD, /* c = (a b) * gelu'(aux)           aux as c: type, shape and ld, in  */
    EPILOGUE_COLUMN_SUMS,   /* aux[j] = sum over i of b[i,j]    aux [n] f32 out; c is F32         */
    EPILOGUE_GELU           /* aux = gelu(c), of c as stored    aux as c, out. The own product's alone: gemm_hopper.cuh */
} Epilogue;

/* Queues the kernel that replaces the epilogue, after a plain product; and what is then still to do behind the epilogue, or
 * NULL. Timing calls them several times before the product, so they may only write memory that the product or its caller
 * overwrites afterwards. */
typedef struct {
    void (*queue)(Stream *s, void *ctx);
    void (*behind)(Stream *s, void *ctx);
    void  *ctx;           /* borrowed */
    size_t scratch_bytes; /* that they take of s->scratch */
} Rest;

/* The product, and 1 if the epilogue was done with it; 0 if the caller does the rest. Only EPILOGUE_GELU goes with a bias. */
int matmul_fused(Stream *s, Matmul p, Epilogue epilogue, void *aux, Rest rest);

#endif
