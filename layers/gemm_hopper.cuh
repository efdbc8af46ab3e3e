/* gemm_hopper.cuh - an own matrix product for compute capability 9.0, beside cuBLASLt's. matmul.cu times both and keeps
 * the quicker; gemm_hopper.cu has the design.
 *
 * It takes 16-bit operands, and the orders that linear and head layers use. Its epilogues work on c as it is stored.
 */
#ifndef TRAIN_GPT_LAYERS_GEMM_HOPPER_CUH
#define TRAIN_GPT_LAYERS_GEMM_HOPPER_CUH

#include "layers/matmul.cuh"

/* TRAIN_GPT_GEMM, for tests: "own" takes it wherever it fits, untimed; "cublaslt" never; "timed" times both, as a GPU does
 * without; the emulator, where time means nothing, leaves products to cuBLASLt. Any other word: exit 64. */
typedef enum { GEMM_TIMED, GEMM_OWN, GEMM_CUBLASLT } GemmAsked;
GemmAsked gemm_asked(void);

/* Blocks that share their tiles of b, and the parts of k that are summed apart and then added in order. */
typedef struct { int cluster, parts; } GemmWay;
enum { GEMM_WAYS = 10, GEMM_SUM_ORDER = 1 /* another number when the order of additions changes: stored ways no longer fit */ };

/* Whether it computes this product with this epilogue here. head: Rest's. */
int  gemm_hopper_fits(const Matmul *p, Epilogue epilogue, const void *aux, int head);
/* Ways worth timing, best guess first; of those that fit. */
int  gemm_hopper_ways(const Matmul *p, size_t workspace_bytes, GemmWay ways[GEMM_WAYS]);
int  gemm_hopper_has_way(const Matmul *p, size_t workspace_bytes, GemmWay way);
/* Of the workspace, for column sums behind EPILOGUE_GELU_BACKWARD. */
size_t gemm_hopper_sums_bytes(const Matmul *p);
/* sums: [n] f32, column sums of c as stored, behind EPILOGUE_GELU_BACKWARD; or NULL. Behind EPILOGUE_DELTA [n/head,m]. */
void gemm_hopper(Stream *s, const Matmul *p, Epilogue epilogue, const void *aux, float *sums, int head, GemmWay way, void *workspace);

#endif
