/* model_rules.c - the rules of model.arch: options that a kind of model needs, and options that it does not have. */
#include <inttypes.h>

#include "model/block.h"
#include "model/params.h"
#include "run/config/config_load.h"

/* Adds a fault about the key. Later rules that need the key are skipped. */
#define REFUSE(load, name, ...)                                                         \
    do {                                                                                \
        Keys keys_ = {name, "model.arch", NULL};                                        \
        if (!rule_usable(load, keys_)) break;                                           \
        faults_add(&(load)->faults, rule_where(load, keys_), __VA_ARGS__);              \
        config_given(load, name)->faulty = 1;                                           \
    } while (0)

/* Refuses values of keys that the kind does not read. */
static void rules_of_unread(ConfigLoad *load, ModelShape s, const BlockKind *kind) {
    if (!(kind->keys & READS_N_KV_HEAD) && shape_kv_heads(s) != s.n_head)
        REFUSE(load, "model.n_kv_head", "model.n_kv_head = %" PRId64 ": the heads of model.arch = \"%s\" share no keys; leave it out, or "
               "model.arch = \"llama\"", s.n_kv_head, kind->name);
    if (!(kind->keys & READS_HEAD_DIM) && s.head_dim && (s.n_embd % s.head_dim || s.n_embd / s.head_dim != s.n_head))
        REFUSE(load, "model.head_dim", "model.head_dim = %" PRId64 ": a head of model.arch = \"%s\" has model.n_embd / model.n_head = %" PRId64
               "; leave it out, or model.arch = \"llama\"", s.head_dim, kind->name, s.n_embd / s.n_head);
    if (!(kind->keys & READS_N_INNER) && !kind->has_experts && s.n_inner && s.n_inner != 4 * s.n_embd)
        REFUSE(load, "model.n_inner", "model.n_inner = %" PRId64 ": model.arch = \"%s\" has 4 x model.n_embd = %" PRId64
               "; leave it out, or model.arch = \"llama\"", s.n_inner, kind->name, 4 * s.n_embd);
    if (!(kind->keys & READS_TIED) && !s.tie_embeddings)
        REFUSE(load, "model.tie_embeddings", "model.tie_embeddings = false: the head of model.arch = \"%s\" is its embedding; "
               "leave it out, or model.arch = \"llama\"", kind->name);
    if (!(kind->keys & READS_NORM_EPS) && s.norm_eps != 1e-5)
        REFUSE(load, "model.norm_eps", "model.norm_eps = %g: model.arch = \"%s\" has 1e-5; leave it out, or model.arch = \"llama\"", s.norm_eps,
               kind->name);
    if (!kind->has_rope && (s.rope_theta != 10000.0 || s.rope_factor != 0.0))
        REFUSE(load, s.rope_factor != 0.0 ? "model.rope_factor" : "model.rope_theta",
               "model.arch = \"%s\" has no rotary positions: leave model.rope_theta and model.rope_factor out, or model.arch = \"llama\"", kind->name);
}

static void rules_of_scaling(ConfigLoad *load, ModelShape s) {
    if (s.rope_factor == 0.0) return;
    if (s.rope_factor < 1.0)
        REFUSE(load, "model.rope_factor", "model.rope_factor = %g must be 0, for none, or at least 1", s.rope_factor);
    else if (s.rope_low_freq_factor <= 0.0 || s.rope_low_freq_factor >= s.rope_high_freq_factor)
        REFUSE(load, "model.rope_low_freq_factor",
               "model.rope_low_freq_factor = %g must be more than 0 and less than model.rope_high_freq_factor = %g; Llama 3 has 1 and 4",
               s.rope_low_freq_factor, s.rope_high_freq_factor);
}

static void rules_of_rope(ConfigLoad *load, ModelShape s) {
    if (s.head_dim % 2)
        REFUSE(load, "model.head_dim", "model.head_dim = %" PRId64 " must be even: rotary positions turn pairs; %" PRId64, s.head_dim, s.head_dim + 1);
    else if (!s.head_dim && s.n_embd % s.n_head == 0 && s.n_embd / s.n_head % 2)
        REFUSE(load, "model.n_embd", "model.n_embd / model.n_head = %" PRId64 " channels of a head must be even: rotary positions turn pairs; "
               "model.n_embd = %" PRId64, s.n_embd / s.n_head, s.n_embd + s.n_head);
    rules_of_scaling(load, s);
}

/* Refuses keys of experts for a kind without experts. */
static void rules_of_no_experts(ConfigLoad *load, ModelShape s) {
    struct { const char *key; int64_t value; } of[] = {{"moe.experts", s.n_experts}, {"moe.top_k", s.top_k},
                                                       {"moe.n_inner", s.n_expert_inner}};
    for (int i = 0; i < 3; i++)
        if (of[i].value)
            REFUSE(load, of[i].key, "%s = %" PRId64 ": model.arch = \"%s\" has no experts; leave it out, or model.arch = \"qwen3-moe\"",
                   of[i].key, of[i].value, block_kind(s)->name);
    if (s.balance == BALANCE_BIAS)
        REFUSE(load, "moe.balance", "moe.balance = \"bias\": model.arch = \"%s\" has no experts; leave it out, or model.arch = "
               "\"qwen3-moe\"", block_kind(s)->name);
    if (load->config->parallel.expert > 1)
        REFUSE(load, "parallel.expert", "parallel.expert = %" PRId64 ": model.arch = \"%s\" has no experts; leave it out, or model.arch = "
               "\"qwen3-moe\"", load->config->parallel.expert, block_kind(s)->name);
}

/* Checks parallel.expert, which divides the experts among ranks. */
static void rules_of_expert_ranks(ConfigLoad *load, ModelShape s) {
    const Config *c = load->config;
    int64_t       e = c->parallel.expert, below = e;
    if (e == 1) return;
    while (s.n_experts % below) below--;
    if (s.n_experts % e)
        REFUSE(load, "parallel.expert", "parallel.expert = %" PRId64 " must divide moe.experts = %" PRId64 ": parallel.expert = %" PRId64,
               e, s.n_experts, below);
    if (c->parallel.zero_stage == 0)
        REFUSE(load, "parallel.zero_stage", "parallel.zero_stage = 0 with parallel.expert = %" PRId64 ": no rank has all experts "
               "to update; parallel.zero_stage = 1", e);
    if (c->outer.server && *c->outer.server)
        REFUSE(load, "parallel.expert", "parallel.expert = %" PRId64 " with outer.server: an island's ranks send rounds of whole blocks; "
               "parallel.expert = 1", e);
}

static void rules_of_experts(ConfigLoad *load, ModelShape s) {
    const Config *c = load->config;
    struct { const char *key, *what; int64_t value; } of[] = {{"moe.experts", "experts of a block", s.n_experts},
                                                              {"moe.top_k", "experts of a token", s.top_k},
                                                              {"moe.n_inner", "width of an expert's MLP", s.n_expert_inner}};
    for (int i = 0; i < 3; i++)
        if (!of[i].value)
            REFUSE(load, of[i].key, "missing key \"%s\": %s, which model.arch = \"qwen3-moe\" needs", of[i].key, of[i].what);
    if (s.top_k > s.n_experts && s.n_experts)
        REFUSE(load, "moe.top_k", "moe.top_k = %" PRId64 " is more than moe.experts = %" PRId64 ": at most %" PRId64, s.top_k, s.n_experts,
               s.n_experts);
    if (s.n_inner)
        REFUSE(load, "model.n_inner", "model.n_inner = %" PRId64 ": the MLPs of model.arch = \"qwen3-moe\" are those of experts, of width "
               "moe.n_inner; leave it out", s.n_inner);
    int64_t unit = LAYOUT_ALIGN; /* gate and up of an expert are read as one matrix */
    while (unit % 2 == 0 && s.n_embd % 2 == 0 && unit > 1) unit /= 2, s.n_embd /= 2;
    if (s.n_expert_inner % unit)
        REFUSE(load, "moe.n_inner", "moe.n_inner = %" PRId64 " times model.n_embd must be a multiple of %d: moe.n_inner = %" PRId64,
               s.n_expert_inner, LAYOUT_ALIGN, (s.n_expert_inner / unit + 1) * unit);
    if (s.mup_base_n_embd)
        REFUSE(load, "model.mup_base_n_embd", "model.mup_base_n_embd = %" PRId64 ": muP's factors are those of a width, and experts "
               "have two (model.arch = \"qwen3-moe\"); leave it out", s.mup_base_n_embd);
    if (c->parallel.tensor > 1)
        REFUSE(load, "parallel.tensor", "parallel.tensor = %" PRId64 ": no matrix of an expert is divided (model.arch = \"qwen3-moe\"); "
               "parallel.tensor = 1, and parallel.zero_stage = 3 divides weights, parallel.expert the experts", c->parallel.tensor);
    if (s.n_experts) rules_of_expert_ranks(load, s);
    if (c->parallel.context > 1 && s.balance == BALANCE_SWITCH)
        REFUSE(load, "moe.balance", "moe.balance = \"switch\" is a loss of whole sequences, which parallel.context = %" PRId64
               " divides: moe.balance = \"bias\" or \"none\"", c->parallel.context);
    if (c->outer.server && *c->outer.server && c->outer.send == SEND_GRADIENTS && s.balance == BALANCE_BIAS)
        REFUSE(load, "moe.balance", "moe.balance = \"bias\": with outer.send = \"gradients\" no island sees all assignments; "
               "moe.balance = \"switch\" or \"none\", or outer.send = \"deltas\"");
}

static void rules_of_read(ConfigLoad *load, ModelShape s, const BlockKind *kind) {
    if (kind->keys & READS_N_INNER && s.n_inner == 0)
        REFUSE(load, "model.n_inner", "missing key \"model.n_inner\": width of the MLP, which model.arch = \"%s\" needs; often 8/3 of "
               "model.n_embd, here %" PRId64, kind->name, (s.n_embd * 8 / 3 + 63) / 64 * 64);
    if (kind->keys & READS_N_KV_HEAD && s.n_head % s.n_kv_head) {
        int64_t below = s.n_kv_head < s.n_head ? s.n_kv_head : s.n_head;
        while (s.n_head % below) below--;
        REFUSE(load, "model.n_kv_head", "model.n_kv_head = %" PRId64 " must divide model.n_head = %" PRId64 ": %" PRId64, s.n_kv_head,
               s.n_head, below);
    }
    if (kind->has_rope) rules_of_rope(load, s);
}

static void rules_of_mup(ConfigLoad *load, ModelShape s) {
    if (s.mup_base_head_dim == 0) return;
    if (s.mup_base_n_embd == 0)
        REFUSE(load, "model.mup_base_head_dim",
               "model.mup_base_head_dim = %" PRId64 " is of muP: give model.mup_base_n_embd, too, the width of the model whose "
               "heads have that size, or leave it out", s.mup_base_head_dim);
    else if (s.n_head > 0 && s.mup_base_head_dim != shape_head_dim(s) && !mup_knows_attention(s))
        REFUSE(load, "model.mup_base_head_dim",
               "model.mup_base_head_dim = %" PRId64 ": the heads of this model.arch must have that size, not %" PRId64, s.mup_base_head_dim,
               shape_head_dim(s));
}

void rules_of_model(ConfigLoad *load) {
    ModelShape s = load->config->model.shape;
    Keys       sizes = {"model.arch", "model.n_head", "model.n_embd", "model.head_dim", NULL};
    if (!rule_usable(load, sizes)) return;
    const BlockKind *kind = block_kind(s);
    if (kind->has_experts) rules_of_experts(load, s);
    else rules_of_no_experts(load, s);
    rules_of_unread(load, s, kind);
    rules_of_read(load, s, kind);
    rules_of_mup(load, s);
}
