/* algorithms.h - the table of the algorithm that computes each matrix product. With it a run on a GPU repeats its bits.
 *
 * At the first product of a shape matmul.cu times cuBLASLt's candidates and the kernel of gemm_hopper.cu, and adds the
 * fastest to this table. Another algorithm sums in another order and gives other bits, so a resumed run needs
 * its table.
 * run/checkpoint/algorithms_file.c stores the records, sets them before the first step of the next process, and gives
 * those of rank 0 to every rank. On the CPU the table stays empty.
 */
#ifndef TRAIN_GPT_LAYERS_ALGORITHMS_H
#define TRAIN_GPT_LAYERS_ALGORITHMS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    ALGORITHM_KEY_ROOM = 192,
    ALGORITHM_FIRST    = -1, /* value of MatmulAlgorithm.id: the algorithm that cuBLASLt itself suggests first */
    ALGORITHM_NONE     = -2, /* value of MatmulAlgorithm.id: no fused algorithm, because a plain product and separate
                              * kernels are faster */
    ALGORITHM_OWN      = -3  /* value of MatmulAlgorithm.id: the kernel of gemm_hopper.cu; MatmulAlgorithm.state holds
                              * its parameters, a GemmWay */
};

/* cuBLASLt's algorithms are 64 opaque bytes, which may be stored and later restored for the same version of the library
 * (cublasLt.h at cublasLtMatmulAlgo_t). */
enum { ALGORITHM_WORDS = 16 };
typedef struct {
    char     key[ALGORITHM_KEY_ROOM]; /* the product: types, sizes, transpositions, epilogue; one line of text */
    int32_t  id;                      /* cuBLASLt's number of the algorithm, or one of the ALGORITHM_ constants */
    uint32_t state[ALGORITHM_WORDS];
} MatmulAlgorithm;

/* Returns the library of the products and its version: "cuBLASLt 13.0.2", "oneDNN 2.6.0". Algorithms recorded with one
 * version are not valid for another. */
const char *matmul_library(void);

/* The table of algorithms. Only the main thread uses it. While it is frozen it stays unchanged: a product whose key is
 * missing uses the library's first choice, without timing and without a record. Otherwise ranks that time by themselves
 * would choose differently. */
typedef struct {
    MatmulAlgorithm *record;   /* [count] chosen algorithms, in the order of first use; owned */
    int              count;
    int              frozen;   /* 1: the table stays unchanged: products that it lacks are neither timed nor recorded */
    uint64_t         version;  /* number that every change of the table changes, so that caches of its entries can be
                                * refreshed */
} MatmulAlgorithms;
extern MatmulAlgorithms matmul_algorithms;

/* Adds the algorithm to the table, or replaces the one with the same key. Later products use it. */
void matmul_algorithms_set(MatmulAlgorithm a);
/* Empties the table and unfreezes it: later products may again be timed and recorded. */
void matmul_algorithms_clear(void);
/* Returns the index in the table of the algorithm with this key, or -1. */
int  matmul_algorithms_find(const char *key);

#ifdef __cplusplus
}
#endif
#endif
