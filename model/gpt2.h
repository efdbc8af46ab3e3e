/* gpt2.h - the structs of GPT-2's parameters that the rest of the model works with by name. */
#ifndef TRAIN_GPT_MODEL_GPT2_H
#define TRAIN_GPT_MODEL_GPT2_H

#include "core/tensor.h"

typedef struct { Tensor wte, wpe; } EmbeddingParams;     /* [V',C] [P,C] */
typedef struct { Tensor ln_f_w, ln_f_b; } FinalParams;   /* [C] [C]      */

#define LAYERNORM_EPS 1e-5f /* GPT-2 */

#endif
