/* layernorm.cuh - what layernorm.cu and layernorm_backward.cu have in common. */
#ifndef TRAIN_GPT_LAYERS_LAYERNORM_CUH
#define TRAIN_GPT_LAYERS_LAYERNORM_CUH

#include "layers/layers.h"

static inline void layernorm_contract(Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor w, Tensor b) {
    int64_t N = x.dim[0], C = x.dim[1];
    EXPECT2(x, x.type, N, C);
    EXPECT2(y, x.type, N, C);
    EXPECT1(w, x.type, C);
    EXPECT1(b, x.type, C);
    EXPECT1(mean, F32, N);
    EXPECT1(rstd, F32, N);
}

#endif
