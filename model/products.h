/* products.h - the four products of a block: those of layers.h in the run's type, or in fp8 with the block's scales. */
#ifndef TRAIN_GPT_MODEL_PRODUCTS_H
#define TRAIN_GPT_MODEL_PRODUCTS_H

#include "model/block.h"

#ifdef __cplusplus
extern "C" {
#endif

/* linear_forward, linear_gelu_forward, linear_backward, linear_delta_backward (delta may be none), linear_gelu_backward, head_forward
 * and head_backward. */
void product_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w, Tensor b);
void product_gelu_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b);
void product_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w);
void product_delta_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w);
void product_gelu_backward(const BlockRun *r, BlockProduct p, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy, Tensor x,
                           Tensor pre, Tensor w);
void product_head_forward(const BlockRun *r, BlockProduct p, Tensor y, Tensor x, Tensor w);
void product_head_backward(const BlockRun *r, BlockProduct p, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w);

#ifdef __cplusplus
}
#endif
#endif
