/* moe_shape.h - MOE_SHAPE, the sizes of the model with experts that test/ref/data/qwen3_moe_*.rec record, with T
 * positions. */
#ifndef TEST_MODEL_MOE_SHAPE_H
#define TEST_MODEL_MOE_SHAPE_H

#include "model/params.h"

enum { T = 40 };
#define MOE_SHAPE(how, rate)                                                                                        \
    {.n_layer = 2, .n_head = 4, .n_embd = 48, .n_positions = T, .vocab_size = 389, .arch = ARCH_QWEN3_MOE,           \
     .n_kv_head = 2, .norm_eps = 1e-6, .rope_theta = 1e6, .head_dim = 16, .n_experts = 6, .top_k = 2,                \
     .n_expert_inner = 20, .norm_top_k = 1, .balance = how, .balance_rate = rate}

#endif
