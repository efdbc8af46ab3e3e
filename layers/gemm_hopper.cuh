/* gemm_hopper.cuh - an own matrix product for compute capability 9.0, beside cuBLASLt's. matmul.cu times both and keeps
 * the quicker; gemm_hopper.cu has the design.
 *
 * It takes 16-bit operands, and the orders that linear and head layers use. Its epilogues work on c as it is stored.
 */
#ifndef TRAIN_GPT_LAYERS_GEMM_HOPPER_CUH
#define TRAIN_GPT_LAYERS_GEMM_HOPPER_CUH

#include "layers/matmul.cuh"

/* Values of TRAIN_GPT_GEMM, for tests. "own" uses this product wherever it fits, without timing; "cublaslt" never;
 * "timed" times both, which is a GPU's default. The emulator, where time means nothing, uses cuBLASLt by default. Any
 * other word: exit 64. */
typedef enum { GEMM_TIMED, GEMM_OWN, GEMM_CUBLASLT } GemmAsked;
GemmAsked gemm_asked(void);

/* How the product is computed: the blocks that share their tiles of b, and the slices of k that are summed separately
 * and then added in order. */
typedef struct { int cluster, parts; } GemmWay;
enum { GEMM_WAYS = 10, GEMM_SUM_ORDER = 1 /* another number when the order of additions changes, so that stored ways no
                                           * longer fit */ };

/* Returns whether the product with this epilogue can be computed here. head: see Rest. */
int  gemm_hopper_fits(const Matmul *p, Epilogue epilogue, const void *aux, int head);
/* Writes the ways worth timing among those that fit, best guess first. Returns their number. */
int  gemm_hopper_ways(const Matmul *p, size_t workspace_bytes, GemmWay ways[GEMM_WAYS]);
int  gemm_hopper_has_way(const Matmul *p, size_t workspace_bytes, GemmWay way);
/* Returns the bytes of the workspace for column sums after EPILOGUE_GELU_BACKWARD. */
size_t gemm_hopper_sums_bytes(const Matmul *p);
/* Queues the product. sums: after EPILOGUE_GELU_BACKWARD [n] f32, column sums of c as stored, or NULL; after
 * EPILOGUE_DELTA [n/head,m]. */
void gemm_hopper(Stream *s, const Matmul *p, Epilogue epilogue, const void *aux, float *sums, int head, GemmWay way, void *workspace);

#endif
