/* gpt_numbers.c - see gpt_numbers.h. */
#include "model/gpt_numbers.h"

#include <stdlib.h>

#include "core/error.h"

void gpt_take_frequencies(Gpt *g, Stream *s) {
    ModelShape m = g->shape;
    if (!g->kind->has_rope || g->has_frequencies || s->ledger) return;
    float *frequencies = xmalloc(tensor_bytes(g->frequencies), "the table of rotary positions");
    rope_frequencies(frequencies, shape_head_dim(m), m.rope_theta,
                     (RopeScaling){m.rope_factor, m.rope_low_freq_factor, m.rope_high_freq_factor, m.rope_original_positions});
    device_from_host(s, g->frequencies, frequencies);
    free(frequencies);
    g->has_frequencies = 1;
}

void gpt_take_balance(Gpt *g, Stream *s, float grad_scale) {
    float factor = (float)(g->shape.balance_rate * (double)grad_scale);
    if (tensor_is_none(g->balance) || s->ledger || factor == g->balance_there) return;
    device_from_host(s, g->balance, &factor);
    g->balance_there = factor;
}

Tensor gpt_sums_at(const Gpt *g, const GptPart *part, int64_t l) {
    int is_between = l > part->first && (l < part->end || part->classifies);
    return is_between ? g->dresidual_sums : tensor_none();
}
