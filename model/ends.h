/* ends.h - the parameters before and after the blocks, which the rest of the model works with by name. A kind of model
 * may lack some: they are tensor_none() then. */
#ifndef TRAIN_GPT_MODEL_ENDS_H
#define TRAIN_GPT_MODEL_ENDS_H

#include "core/tensor.h"

typedef struct { Tensor wte, wpe; } EmbeddingParams;            /* [V',C] [P,C]; wpe: none with rotary positions */
typedef struct { Tensor norm_w, norm_b, head; } FinalParams;    /* [C] [C] [V',C]; head: none where wte is the head */

/* The last norm: the stream that it reads, its output and statistics; mean is not set by all kinds. */
typedef struct { Tensor residual, y, mean, rstd; } FinalActs;   /* [n,C] [n,C] act; [n] [n] f32 */

#endif
