/* ends.h - the parameters before and after the blocks, which the model reads by name. Those that a kind of model lacks
 * are tensor_none(). */
#ifndef TRAIN_GPT_MODEL_ENDS_H
#define TRAIN_GPT_MODEL_ENDS_H

#include "core/tensor.h"

typedef struct { Tensor wte, wpe; } EmbeddingParams;            /* [V',C] [P,C]; wpe is none with rotary positions */
typedef struct { Tensor norm_w, norm_b, head; } FinalParams;    /* [C] [C] [V',C]; head is none if wte is the head */

/* The final norm: the stream that it reads, its output and its statistics. Kinds with RMS norms do not set mean. */
typedef struct { Tensor residual, y, mean, rstd; } FinalActs;   /* [n,C] [n,C] act; [n] [n] f32 */

#endif
