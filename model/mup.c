/* mup.c - see mup.h. */
#include "model/mup.h"

#include <math.h>
#include <string.h>

#include "model/block.h"

/* Parameters of blocks that are multiplied by b^power (model/mup.h). */
static const struct { const char *name; int power; } ATTENTION[] = {
    {"attn.c_attn.weight", 1},      {"attn.c_attn.bias", 1},        {"attn.c_proj.weight", -1},
    {"self_attn.q_proj.weight", 1}, {"self_attn.k_proj.weight", 1}, {"self_attn.v_proj.weight", 1},
    {"self_attn.o_proj.weight", -1},
    /* with these norms the sizes of q and k do not matter */
    {"self_attn.q_norm.weight", 1}, {"self_attn.k_norm.weight", 1},
};

static int attention_power(const ParamRow *row) {
    for (size_t i = 0; i < sizeof ATTENTION / sizeof *ATTENTION; i++)
        if (strcmp(row->name, ATTENTION[i].name) == 0) return ATTENTION[i].power;
    return 0;
}

int mup_knows_attention(ModelShape s) {
    const ParamTable *block = &block_kind(s)->block;
    for (int i = 0; i < block->rows; i++)
        if (attention_power(&block->row[i]) > 0) return 1;
    return 0;
}

MupFactors mup_factors(ModelShape s, int bucket, const ParamRow *row) {
    if (s.mup_base_n_embd == 0) return (MupFactors){1.0, 1.0, 1.0};
    double m = (double)s.n_embd / (double)s.mup_base_n_embd, head = (double)shape_head_dim(s);
    double b = s.mup_base_head_dim ? pow((double)s.mup_base_head_dim / head, 0.25) : 1.0;
    int    in_block = bucket > 0 && bucket <= s.n_layer, is_last = bucket > s.n_layer;
    double size = is_last && row->group == GROUP_VECTOR ? 1.0 / m : in_block ? pow(b, attention_power(row)) : 1.0;
    if (row->group != GROUP_MATRIX) return (MupFactors){size, size, size};
    return (MupFactors){size / sqrt(m), size / m, size / sqrt(m)};
}
