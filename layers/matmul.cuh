/* matmul.cuh - the GPU's matrix products: epilogues, products in fp8, and the kernel of gemm_hopper.cu.  An epilogue
 * is work on the output of a product, or on its operands, that the kernel of the product does as well. It saves a
 * pass over a large tensor, but may make the product slower by more than that, depending on shape and GPU. So each
 * has a separate kernel that does the same, and the first product of a shape times both.  Besides cuBLASLt there is
 * our own kernel of products (gemm_hopper.cu). It takes 16-bit operands, and the orders that linear and head layers
 * use. matmul.cu times it and cuBLASLt's, and keeps the quicker. Where an epilogue of our own kernel uses c (an
 * activation, delta, column sums, the addition to the residual), c is rounded to its type first; only the backward
 * of an activation multiplies before it rounds. */
#ifndef TRAIN_GPT_LAYERS_MATMUL_CUH
#define TRAIN_GPT_LAYERS_MATMUL_CUH
#include <functional>

#include "core/kernel.cuh"
#include "layers/layers.h"
#include "layers/matmul.h"

/* --- epilogues ---------------------------------------------------------------------------------------------------- */

typedef enum {
    EPILOGUE_NONE,
    EPILOGUE_ACTIVATION_BACKWARD, /* c = (a b) * f'(aux), f the function Rest.activation. aux, the input of f, has the
                                   * type, shape and ld of c. cuBLASLt has this epilogue for gelu_new alone */
    EPILOGUE_COLUMN_SUMS,   /* aux[j] = sum over i of b[i,j]    aux [n] f32 out; c is F32         */
    EPILOGUE_ACTIVATION,    /* aux = f(c), of c as stored; aux out has the type, shape and ld of c. Only in
                             * gemm_hopper.cu */
    EPILOGUE_DELTA,         /* computes attention_delta (layers.h) of c as stored and aux, and writes it to Rest.sums.
                             * Only in gemm_hopper.cu */
    EPILOGUE_RESIDUAL       /* c = aux + (a b + bias). The sum in parentheses is rounded first. aux is an input with
                             * the type, shape and ld of c, in other memory. Only in gemm_hopper.cu */
} Epilogue;

/* Kernels that replace an epilogue. `queue` queues the kernel that follows a plain product. `behind` queues what is
 * left to do after the product with the epilogue, or is empty. Timing calls them several times before the product, so
 * they may only write memory that the product or its caller overwrites afterwards. */
struct Rest {
    std::function<void()> queue, behind;
    size_t scratch_bytes = 0; /* bytes of s->scratch that the kernels take */
    float *sums = NULL;       /* [n] output: column sums of c as stored, or NULL. An epilogue that also computes them
                               * writes them here, which saves the work of `behind` */
    int    head = 0;          /* for EPILOGUE_DELTA: number of columns of an attention head; `sums` is then
                               * [n/head,m] */
    void  *apart = NULL;      /* where the product is written if the separate kernels are used instead of the
                               * epilogue; NULL: to c */
    Activation activation = ACTIVATION_GELU_NEW; /* function of EPILOGUE_ACTIVATION and of its backward */
};

/* Computes a product of 8-bit matrices: a PLAIN and b TRANSPOSED, both E4M3, or one of them E5M2; c BF16 or F32, a bias
 * BF16. Values of a are multiplied by *a_inverse, values of b by *b_inverse: f32 in device memory. Needs compute
 * capability 8.9. */
void matmul_fp8(Stream *s, Matmul p, const float *a_inverse, const float *b_inverse);

/* Computes the product, with the epilogue if that is faster. Returns 0 if it was computed without: the caller then
 * calls rest.queue(). Returns 1 if the epilogue has done that work, 2 if it has also written rest.sums. Only
 * EPILOGUE_ACTIVATION and EPILOGUE_RESIDUAL allow a bias. */
int matmul_fused(Stream *s, Matmul p, Epilogue epilogue, void *aux, const Rest &rest);

/* --- an own product for compute capability 9.0, beside cuBLASLt's ------------------------------------------------- */

/* Values of TRAIN_GPT_GEMM, for tests. "own" uses the kernel of gemm_hopper.cu wherever it fits, without timing;
 * "cublaslt" never uses it; "timed" times both, which is a GPU's default. The emulator, where time means nothing, uses
 * cuBLASLt by default. Any other word ends the program with exit code 64. */
typedef enum { GEMM_TIMED, GEMM_OWN, GEMM_CUBLASLT } GemmAsked;
GemmAsked gemm_asked(void);

/* How gemm_hopper.cu computes a product. cluster: number of blocks that share their tiles of b; parts: number of slices
 * of k that are summed separately and then added in order. */
typedef struct { int cluster, parts; } GemmWay;
enum { GEMM_WAYS = 10, GEMM_SUM_ORDER = 1 /* version of the order of additions; raise it when that order changes, so
                                           * that stored ways no longer fit */ };

/* Returns whether gemm_hopper can compute this product and epilogue on this GPU. head: columns of a head, for
 * EPILOGUE_DELTA. */
int  gemm_hopper_fits(const Matmul *p, Epilogue epilogue, const void *aux, int head);
/* Writes the ways of computing the product that are worth timing, best guess first. Returns their number. */
int  gemm_hopper_ways(const Matmul *p, size_t workspace_bytes, GemmWay ways[GEMM_WAYS]);
int  gemm_hopper_has_way(const Matmul *p, size_t workspace_bytes, GemmWay way);
/* Returns the bytes of the workspace for column sums after EPILOGUE_ACTIVATION_BACKWARD. */
size_t gemm_hopper_sums_bytes(const Matmul *p);
/* Queues the product. sums: after EPILOGUE_ACTIVATION_BACKWARD [n] f32, column sums of c as stored, or NULL; after
 * EPILOGUE_DELTA [n/head,m]. */
void gemm_hopper(Stream *s, const Matmul *p, Epilogue epilogue, Activation activation, const void *aux, float *sums,
                 int head, GemmWay way, void *workspace);

#endif
