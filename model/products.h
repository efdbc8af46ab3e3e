/* products.h - the four products of a block, and the ops on either side of them: those of layers.h in the run's type, or in fp8 with the
 * block's scales. In fp8 the ops before a product write what it multiplies at once (layers.h, "outputs in fp8"), where nothing else
 * reads it: the norms, but for tensor ranks, which gather rows; GELU and SwiGLU; their gradients, and attention's. A run's first step, whose scales
 * are not known, and micro-batches of a number of rows that is no multiple of 16 cast.
 */
#ifndef TRAIN_GPT_MODEL_PRODUCTS_H
#define TRAIN_GPT_MODEL_PRODUCTS_H

#include "model/block.h"

/* linear_forward, linear_gelu_forward, linear_backward, linear_delta_backward (delta may be none), head_forward and head_backward; x is
 * what an op below has written. */
void product_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w, Tensor b);
void product_gelu_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b);
void product_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w);
void product_delta_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w);
void product_head_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w);
void product_head_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w);
/* linear_gelu_backward of PRODUCT_DOWN; returns the dy of PRODUCT_UP: dpre, or in fp8 codes of it in the memory of x. */
Tensor product_gelu_backward(const BlockRun *r, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor pre,
                             Tensor w);

/* attend_backward of PRODUCT_QKV's output; returns its dy: dqkv, or in fp8 codes in that memory. *dbias becomes none where it has been
 * added to; else the product adds to it. */
Tensor product_attend_backward(const BlockRun *r, Tensor *dbias, Tensor dqkv, Tensor dy, Tensor y, Tensor lse, Tensor delta, Tensor qkv);

/* The last product of a branch, product_forward or product_head_forward into r->update; tensor ranks add theirs. Returns the rows that are
 * still to join `before`, or none where the product has joined them: then `after` holds the stream. */
Tensor product_join(const BlockRun *r, BlockProduct p, Tensor after, Tensor before, Tensor x, Tensor w, Tensor b);
Tensor product_head_join(const BlockRun *r, BlockProduct p, Tensor after, Tensor before, Tensor x, Tensor w);
/* The norm before product p, of the stream: of before + update, which `stream` becomes; update none: of what stream holds. */
void product_layernorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor mean, Tensor rstd, Tensor stream, Tensor before, Tensor update,
                       Tensor w, Tensor b, float eps);
void product_rmsnorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor rstd, Tensor stream, Tensor before, Tensor update, Tensor w, float eps);
/* gelu_forward and swiglu_forward before PRODUCT_DOWN. */
void product_gelu(const BlockRun *r, Tensor y, Tensor x);
void product_swiglu(const BlockRun *r, Tensor y, Tensor gate_up);
/* swiglu_backward, and head_backward of PRODUCT_UP; gate_up may become its gradient. */
void product_swiglu_backward(const BlockRun *r, Tensor dx, Tensor dw, Tensor dswiglu, Tensor gate_up, Tensor x, Tensor w);

#endif
