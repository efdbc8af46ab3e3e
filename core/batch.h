/* batch.h - the unit of work: B sequences of T tokens, and the next token of each. */
#ifndef TRAIN_GPT_CORE_BATCH_H
#define TRAIN_GPT_CORE_BATCH_H

#include "core/tensor.h"

typedef struct {
    Tensor inputs;  /* [B,T] I32                                      */
    Tensor targets; /* [B,T] I32: inputs shifted by one token         */
} Batch;

#endif
