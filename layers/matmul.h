/* matmul.h - matrix products for the ops: by oneDNN in matmul.c, by cuBLASLt or an own kernel in matmul.cu. Internal to
 * layers.
 *
 * c[m,n] = or += a[m,k] b[k,n] (+ bias[n]), with fp32 or 16-bit operands and f32 accumulation. A Matrix is a view of
 * row-major memory with a leading dimension, read as it lies or transposed.
 */
#ifndef TRAIN_GPT_LAYERS_MATMUL_H
#define TRAIN_GPT_LAYERS_MATMUL_H

#include "layers/layers.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { MATMUL_SET, MATMUL_ADD } MatmulWrite; /* MATMUL_SET overwrites c without reading it; MATMUL_ADD adds to
                                                      * c */
/* Returns how a product writes the gradient of a weight matrix. */
static inline MatmulWrite gradient_write(Tensor dw) { return dw.is_fresh ? MATMUL_SET : MATMUL_ADD; }

typedef struct {
    void       *data;  /* address of element (0,0); borrowed; NULL if the stream only counts costs */
    DType       type;  /* F32, BF16 or F16 (the CPU: F32, BF16); for matmul_fp8 (matmul.cuh) E4M3 or E5M2 */
    int64_t     ld;    /* elements from one row in memory to the next                                   */
    MatrixOrder order; /* element (i,j) is at i*ld + j if PLAIN, at j*ld + i if TRANSPOSED */
} Matrix;

static inline Matrix matrix_of(Tensor t, MatrixOrder order) {
    Matrix m = {t.data, t.type, t.dim[1], order};
    return m;
}

/* The product c = a b of one shape. a and b have one type; c has that type, or F32, and only then MATMUL_ADD is
 * allowed. c is PLAIN. bias [n] in a's type, or NULL; it is added before c is rounded, and only with MATMUL_SET. */
typedef struct {
    Matrix      c, a, b;
    int64_t     m, n, k;
    MatmulWrite write;
    const void *bias;  /* [n] added to each row of the product; borrowed; NULL: no bias */
} Matmul;

/* Computes the product. It takes its memory from s->scratch and gives it back. The bits are the same for the same shape
 * and thread count, or the same table of algorithms.h. */
void   matmul(Stream *s, Matmul product);

/* Computes a product whose m, or k, differs at each call; so no algorithm or oneDNN primitive is kept for that size. On
 * a dry stream (one that runs no kernel, but counts memory, FLOPs and bytes for `plan`) it takes the memory of any
 * product up to this size, and counts no FLOPs and bytes. CPU only. */
typedef enum { RAGGED_M, RAGGED_K } Ragged;
void   matmul_ragged(Stream *s, Matmul product, Ragged extent);

/* Notes the FLOPs and bytes of the product if the stream is dry, which means that it only counts costs. Returns whether
 * it is. */
static inline int matmul_note(Stream *s, Matmul p) {
    double operands = (double)(p.m * p.k + p.k * p.n) * (double)dtype_bytes(p.a.type);
    double results = (double)(p.m * p.n) * (double)dtype_bytes(p.c.type) * (p.write == MATMUL_ADD ? 2.0 : 1.0);
    static const char *const names[][2] = {{"matmul", "matmul, fp8"}, {"matmul, set", "matmul, fp8, set"},
                                           {"matmul, added", "matmul, fp8, added"}};
    /* The gradient of a weight is f32 whatever the type of its operands. In fp32 it is the only product that reads its
     * left operand transposed. */
    int is_gradient = p.c.type == F32 && (p.a.type != F32 || p.a.order == TRANSPOSED);
    return stream_note(s, names[p.write == MATMUL_ADD ? 2 : is_gradient][dtype_bytes(p.a.type) == 1], p.m, p.n, p.k, 0,
                       2.0 * (double)p.m * (double)p.n * (double)p.k, operands + results);
}

/* The products of a layer y = x w (+ bias), x [N,K], y [N,M]. `order` says how w and dw are stored: PLAIN is [K,M],
 * TRANSPOSED is [M,K]. */
static inline Matmul forward_product(Tensor y, Tensor x, Tensor w, MatrixOrder order, const void *bias) {
    Matmul p =
        {matrix_of(y, PLAIN), matrix_of(x, PLAIN), matrix_of(w, order), x.dim[0], y.dim[1], x.dim[1], MATMUL_SET, bias};
    return p;
}
static inline Matmul input_gradient(Tensor dx, Tensor dy, Tensor w, MatrixOrder order) {
    Matrix turned = matrix_of(w, order == PLAIN ? TRANSPOSED : PLAIN);
    Matmul p = {matrix_of(dx, PLAIN), matrix_of(dy, PLAIN), turned, dy.dim[0], dx.dim[1], dy.dim[1], MATMUL_SET, NULL};
    return p;
}
static inline Matmul weight_gradient(Tensor dw, Tensor x, Tensor dy, MatrixOrder order) {
    Tensor a = order == PLAIN ? x : dy, b = order == PLAIN ? dy : x;
    Matmul p = {matrix_of(dw, PLAIN), matrix_of(a, TRANSPOSED), matrix_of(b, PLAIN), a.dim[1], b.dim[1], x.dim[0],
                gradient_write(dw), NULL};
    return p;
}

#ifdef __cplusplus
}
#endif
#endif
