/* fp8_rules.c - the rules of precision = "fp8": which models and runs support it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/block.h"
#include "model/precision.h"
#include "run/config/config_load.h"

enum { MULTIPLE = 16 }; /* required divisor of both dimensions of a matrix, by cuBLASLt */

/* Checks both dimensions of the four matrices of a block, per tensor rank. */
static void rule_widths(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          keys = {"model.n_embd", "model.n_inner", "model.n_head", "model.head_dim", "model.n_kv_head",
                          "parallel.tensor", "precision", NULL};
    ModelShape    s = c->model.shape;
    if (!rule_usable(load, keys) || s.n_head < 1 || (!s.head_dim && s.n_embd % s.n_head)) return;
    const struct { const char *what; int64_t all, ranks; } width[] = {
        {"model.n_embd", s.n_embd, 1}, {"the width of the queries, heads x channels,", dim_size(DIM_Q, s), c->parallel.tensor},
        {"the width of queries, keys and values together", dim_size(DIM_QKV, s), c->parallel.tensor},
        {s.n_inner ? "model.n_inner" : "the MLP's width, 4 x model.n_embd,", dim_size(DIM_FC, s), c->parallel.tensor}};
    for (size_t i = 0; i < sizeof width / sizeof *width; i++) {
        char of[64] = "";
        if (width[i].all % width[i].ranks || width[i].all / width[i].ranks % MULTIPLE == 0) continue;
        if (width[i].ranks > 1) snprintf(of, sizeof of, " over parallel.tensor = %" PRId64, width[i].ranks);
        faults_add(&load->faults, rule_where(load, keys),
                   "precision \"fp8\" multiplies matrices whose sides are multiples of %d, and %s%s is %" PRId64
                   ": another width, or \"bf16\"",
                   MULTIPLE, width[i].what, of, width[i].all / width[i].ranks);
        return;
    }
}

void rules_of_fp8(ConfigLoad *load) {
    const Config *c = load->config;
    const struct { const char *key; int is_asked; const char *why; } rows[] = {
        {"model.arch", c->model.shape.arch == ARCH_QWEN3_MOE, "model.arch = \"qwen3-moe\", whose experts' products have no kernel in it"},
        {"outer.server", c->outer.server && *c->outer.server, "outer.server: islands would each have scales of their own"},
    };
    if (c->precision != PRECISION_FP8) return;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Keys keys = {"precision", rows[i].key, NULL};
        if (rule_usable(load, keys) && rows[i].is_asked)
            faults_add(&load->faults, rule_where(load, keys), "precision \"fp8\" is not built for %s: \"bf16\"", rows[i].why);
    }
    rule_widths(load);
}
