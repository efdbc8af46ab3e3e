/* matmul.h - matrix products for the ops: by oneDNN in matmul.c, by cuBLASLt or an own kernel in matmul.cu. Internal to layers.
 *
 * c[m,n] = or += a[m,k] b[k,n] (+ bias[n]), with fp32 or 16-bit operands and f32 accumulation. A Matrix is a view of
 * row-major memory with a leading dimension, read as it lies or transposed.
 */
#ifndef TRAIN_GPT_LAYERS_MATMUL_H
#define TRAIN_GPT_LAYERS_MATMUL_H

#include "core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { PLAIN, TRANSPOSED } MatrixOrder;
typedef enum { MATMUL_SET, MATMUL_ADD } MatmulWrite; /* SET reads nothing of c, which may hold NaN */
/* Of a matrix' gradient. */
static inline MatmulWrite gradient_write(Tensor dw) { return dw.is_fresh ? MATMUL_SET : MATMUL_ADD; }

typedef struct {
    void       *data;  /* borrowed; NULL in a dry run                                                   */
    DType       type;  /* F32, BF16 or F16 (the CPU: F32, BF16); of matmul_fp8 (matmul.cuh) E4M3, E5M2   */
    int64_t     ld;    /* elements from one row in memory to the next                                   */
    MatrixOrder order; /* element (i,j) lies at i*ld + j when PLAIN, at j*ld + i when TRANSPOSED        */
} Matrix;

static inline Matrix matrix_of(Tensor t, MatrixOrder order) {
    Matrix m = {t.data, t.type, t.dim[1], order};
    return m;
}

/* The product c = a b of one shape. a and b have one type; c is of that type, or F32 and then MATMUL_ADD is allowed. c
 * is PLAIN. bias [n] in a's type, or NULL; added before c is rounded. With MATMUL_SET only. */
typedef struct {
    Matrix      c, a, b;
    int64_t     m, n, k;
    MatmulWrite write;
    const void *bias;  /* borrowed */
} Matmul;

/* Takes its memory from s->scratch and gives it back. Same bits for the same shape and thread count or table of
 * algorithms.h. */
void   matmul(Stream *s, Matmul product);

/* The same for products that come with another m, or another k, each time: nothing is kept for each of them. On a dry stream takes the
 * memory of any up to this one, and notes nothing. The CPU's alone. */
typedef enum { RAGGED_M, RAGGED_K } Ragged;
void   matmul_ragged(Stream *s, Matmul product, Ragged extent);

/* On a dry stream notes the FLOPs and bytes of the product; returns whether the stream is dry. */
static inline int matmul_note(Stream *s, Matmul p) {
    double operands = (double)(p.m * p.k + p.k * p.n) * (double)dtype_bytes(p.a.type);
    double results = (double)(p.m * p.n) * (double)dtype_bytes(p.c.type) * (p.write == MATMUL_ADD ? 2.0 : 1.0);
    static const char *const names[][2] = {{"matmul", "matmul, fp8"}, {"matmul, set", "matmul, fp8, set"},
                                           {"matmul, added", "matmul, fp8, added"}};
    /* A gradient is f32 whatever its operands are. In fp32 it is the one product that reads its left operand transposed. */
    int is_gradient = p.c.type == F32 && (p.a.type != F32 || p.a.order == TRANSPOSED);
    return stream_note(s, names[p.write == MATMUL_ADD ? 2 : is_gradient][dtype_bytes(p.a.type) == 1], p.m, p.n, p.k, 0,
                       2.0 * (double)p.m * (double)p.n * (double)p.k, operands + results);
}

#ifdef __cplusplus
}
#endif
#endif
