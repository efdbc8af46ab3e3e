/* products.h - the four products of a block and the ops before and after them, in the run's type or in fp8 with the
 * block's scales. The ops themselves are in layers.h.
 *
 * In fp8 the op before a product writes the product's operand directly in fp8 (layers.h, "outputs in fp8") if nothing
 * else reads it. These ops are the norms, except with tensor ranks, which gather rows; GELU and SwiGLU; and the
 * gradients of GELU, SwiGLU and attention. A separate cast is needed in a run's first step, whose scales are not known,
 * and in micro-batches whose number of rows is not a multiple of 16.
 */
#ifndef TRAIN_GPT_MODEL_PRODUCTS_H
#define TRAIN_GPT_MODEL_PRODUCTS_H

#include "model/block.h"

/* linear_forward, linear_gelu_forward, linear_backward, linear_delta_backward (delta may be none), head_forward and
 * head_backward for product p. x was written by one of the ops below. */
void product_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w, Tensor b);
void product_gelu_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b);
void product_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w);
void product_delta_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w);
void product_head_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w);
void product_head_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w);
/* linear_gelu_backward for PRODUCT_DOWN. Returns the dy of PRODUCT_UP: dpre, or in fp8 its codes in the memory of x. */
Tensor product_gelu_backward(const BlockRun *r, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor pre,
                             Tensor w);

/* attend_backward for the output of PRODUCT_QKV. Returns the dy of PRODUCT_QKV: dqkv, or in fp8 codes in the memory of
 * dqkv. Sets *dbias to none if it has added the bias gradient. Otherwise the product has to add it. */
Tensor product_attend_backward(const BlockRun *r, Tensor *dbias, Tensor dqkv, Tensor dy, Tensor y, Tensor lse, Tensor delta, Tensor qkv);

/* The last product of a branch: product_forward or product_head_forward into r->update, summed over tensor ranks.
 * Returns the rows that must still be added to `before`. Returns none if the product has added them; then `after` holds
 * the stream. */
Tensor product_join(const BlockRun *r, BlockProduct p, Tensor after, Tensor before, Tensor x, Tensor w, Tensor b);
Tensor product_head_join(const BlockRun *r, BlockProduct p, Tensor after, Tensor before, Tensor x, Tensor w);
/* The norm before product p. Sets stream = before + update and normalizes it. If update is none, stream is only
 * read. */
void product_layernorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor mean, Tensor rstd, Tensor stream, Tensor before, Tensor update,
                       Tensor w, Tensor b, float eps);
void product_rmsnorm(const BlockRun *r, BlockProduct p, Tensor y, Tensor rstd, Tensor stream, Tensor before, Tensor update, Tensor w, float eps);
/* gelu_forward and swiglu_forward, the ops before PRODUCT_DOWN. */
void product_gelu(const BlockRun *r, Tensor y, Tensor x);
void product_swiglu(const BlockRun *r, Tensor y, Tensor gate_up);
/* swiglu_backward, then head_backward for PRODUCT_UP. May overwrite gate_up with its gradient. */
void product_swiglu_backward(const BlockRun *r, Tensor dx, Tensor dw, Tensor dswiglu, Tensor gate_up, Tensor x, Tensor w);

#endif
