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
    EPILOGUE_GELU,          /* aux = gelu(c), of c as stored    aux as c, out. The own product's alone: gemm_hopper.cuh */
    EPILOGUE_DELTA,         /* layers.h: attention_delta of c as stored and aux, into Rest's sums. The own product's alone, too */
    EPILOGUE_RESIDUAL       /* c = aux + (a b + bias) as rounded   aux as c, in, in other memory. The own product's alone, too */
} Epilogue;

/* Queues the kernel that replaces the epilogue, after a plain product; and what is then still to do behind the epilogue, or
 * NULL. Timing calls them several times before the product, so they may only write memory that the product or its caller
 * overwrites afterwards. */
typedef struct {
    void (*queue)(Stream *s, void *ctx);
    void (*behind)(Stream *s, void *ctx);
    void  *ctx;           /* borrowed */
    size_t scratch_bytes; /* that they take of s->scratch */
    float *sums;          /* [n] out: column sums of c as stored, in the place of `behind`, by an epilogue that has them; or NULL */
    int    head = 0;      /* columns of a head, of EPILOGUE_DELTA: its sums are [n/head,m] */
    void  *apart = NULL;  /* where the product without the epilogue writes c; NULL: the same place */
} Rest;

/* A product of 8-bit matrices: a PLAIN and b TRANSPOSED, both of them E4M3, or one E5M2; c BF16 or F32, a bias BF16. Each
 * value of a counts times *a_inverse, of b times *b_inverse: f32 in device memory. From compute capability 8.9 on. */
void matmul_fp8(Stream *s, Matmul p, const float *a_inverse, const float *b_inverse);

/* The product. 0: the caller does the rest; 1: the epilogue was done with it; 2: and rest.sums, too. Only EPILOGUE_GELU and
 * EPILOGUE_RESIDUAL go with a bias. */
int matmul_fused(Stream *s, Matmul p, Epilogue epilogue, void *aux, Rest rest);

#endif
