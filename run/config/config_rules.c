/* config_rules.c - the rules between options. A rule with a faulty option is skipped, so that one cause has one
 * message. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/device.h"
#include "core/json.h"
#include "model/block.h"
#include "model/precision.h"
#include "run/config/config_load.h"
#include "run/config/nearest.h"
#include "run/config/sources.h"

/* Multiplies count factors. Returns 0 if the product does not fit. */
static int multiply(int64_t *product, int count, const int64_t *factor) {
    *product = 1;
    for (int i = 0; i < count; i++)
        if (__builtin_mul_overflow(*product, factor[i], product)) return 0;
    return 1;
}

/* --- the batch and the ranks -------------------------------------------------------------------------------------- */

/* Returns a text, malloc'ed. */
static char *sentence(const char *fmt, ...) PRINTF_LIKE(1, 2);
static char *sentence(const char *fmt, ...) {
    char   *text;
    va_list args;
    va_start(args, fmt);
    if (vasprintf(&text, fmt, args) < 0) fail(EXIT_MEMORY, "out of memory while reading the config");
    va_end(args);
    return text;
}

typedef struct { const char *key; int64_t size; } AxisSize;

/* Refuses grids that change the order of sums with parallel.deterministic. A pipeline without interleave keeps it. */
static char *check_order(const Config *c) {
    AxisSize one[] = {{"tensor", c->parallel.tensor}, {"context", c->parallel.context},
                      {"interleave", c->parallel.interleave}, {"expert", c->parallel.expert}, {"replicas", c->parallel.replicas}};
    if (!c->parallel.deterministic) return NULL;
    for (int i = 0; i < 5; i++)
        if (one[i].size > 1)
            return sentence("parallel.deterministic = true adds gradients in one order, with parallel.%s = %" PRId64
                            " it cannot: parallel.%s = 1",
                            one[i].key, one[i].size, one[i].key);
    if (c->parallel.zero_stage <= 1) return NULL;
    return sentence("parallel.deterministic = true adds gradients in one order, with parallel.zero_stage = %" PRId64
                    " it cannot: at most 1",
                    c->parallel.zero_stage);
}

/* Writes the divisors of `of` that are nearest to value from below and above, such as "4 or 6", or the only one. */
static void nearest_divisors(char *out, size_t room, int64_t value, int64_t of) {
    int64_t below = value < of ? value : of, above = value;
    while (of % below) below--;
    while (above < of && of % above) above++;
    if (above >= of && of % above) snprintf(out, room, "%" PRId64, below);
    else snprintf(out, room, "%" PRId64 " or %" PRId64, below, above);
}

/* Checks matrices that are neighbours in memory and read as one: q, k and v; gate and up. Each must fill a multiple of
 * LAYOUT_ALIGN elements, so that the next one follows without a gap. */
static char *check_neighbours(const Config *c) {
    ModelShape s = c->model.shape;
    int64_t    t = c->parallel.tensor, C = s.n_embd;
    uint64_t   keys = (uint64_t)(dim_size(DIM_KV, s) / t) * (uint64_t)C;
    uint64_t   inner = s.arch == ARCH_QWEN3_MOE ? 0 : (uint64_t)(dim_size(DIM_FC, s) / t) * (uint64_t)C;
    int64_t    heads = s.head_dim ? 1 : 2 * s.n_head; /* the width is a multiple of this */
    int64_t    unit = heads / common_divisor(LAYOUT_ALIGN, heads) * LAYOUT_ALIGN;
    if (!block_kind(s)->joins_matrices || (keys % LAYOUT_ALIGN == 0 && inner % LAYOUT_ALIGN == 0)) return NULL;
    return sentence("model.n_embd = %" PRId64 " times the %s per tensor rank is %" PRIu64
                    ", which must be a multiple of %d with model.arch = \"%s\": model.n_embd = %" PRId64,
                    C, keys % LAYOUT_ALIGN ? "columns of keys" : "model.n_inner", keys % LAYOUT_ALIGN ? keys : inner, LAYOUT_ALIGN,
                    block_kind(s)->name, (C / unit + 1) * unit);
}

static char *check_tensor(const Config *c) {
    struct {
        const char *key;
        int64_t     size;
    } of[] = {{"model.n_head", c->model.shape.n_head},
              {"model.n_embd", c->model.shape.n_embd},
              {"model.n_kv_head", shape_kv_heads(c->model.shape)},
              {"model.n_inner", dim_size(DIM_FC, c->model.shape)},
              {"batch.seq_len / parallel.context", c->batch.seq_len / c->parallel.context}};
    int64_t t = c->parallel.tensor, all = 0;
    char    nearest[64];
    for (int i = 0; i < 5; i++) all = common_divisor(all, of[i].size);
    nearest_divisors(nearest, sizeof nearest, t, all);
    for (int i = 0; i < 5; i++)
        if (of[i].size % t)
            return sentence("parallel.tensor = %" PRId64 " must divide %s = %" PRId64 ": %s", t, of[i].key, of[i].size, nearest);
    return check_neighbours(c);
}

/* Checks that each context rank has whole tiles of attention. */
static char *check_context(const Config *c) {
    int64_t unit = 128 * c->parallel.context, T = c->batch.seq_len, below = T - T % unit;
    if (c->parallel.context == 1 || T % unit == 0) return NULL;
    if (below == 0)
        return sentence("batch.seq_len = %" PRId64 " with parallel.context = %" PRId64 " must be a multiple of %" PRId64
                        ": %" PRId64,
                        T, c->parallel.context, unit, unit);
    return sentence("batch.seq_len = %" PRId64 " with parallel.context = %" PRId64 " must be a multiple of %" PRId64
                    ": %" PRId64 " or %" PRId64,
                    T, c->parallel.context, unit, below, below + unit);
}

/* Checks that each part of the pipeline has a layer. Returns NULL or a sentence such as "parallel.pipeline (4) x
 * interleave (4) = 16 parts of 12 layers: at most 12; interleave = 3 or pipeline = 3". */
static char *check_pipeline(const Config *c) {
    int64_t P = c->parallel.pipeline, V = c->parallel.interleave, L = c->model.shape.n_layer;
    if (V > 1 && P == 1)
        return sentence("parallel.interleave = %" PRId64
                        " needs stages: parallel.pipeline = 2 or more, or parallel.interleave = 1",
                        V);
    if (P * V <= L) return NULL;
    if (V == 1 || P > L)
        return sentence("parallel.pipeline (%" PRId64 ") x interleave (%" PRId64 ") = %" PRId64 " parts of %" PRId64
                        " layer%s: at most %" PRId64 "; pipeline = %" PRId64,
                        P, V, P * V, L, L == 1 ? "" : "s", L, V == 1 || L < V ? L : L / V);
    char pipeline[48] = ""; /* pipeline = 1 cannot be interleaved */
    if (L / V > 1) snprintf(pipeline, sizeof pipeline, " or pipeline = %" PRId64, L / V);
    return sentence("parallel.pipeline (%" PRId64 ") x interleave (%" PRId64 ") = %" PRId64 " parts of %" PRId64
                    " layers: at most %" PRId64 "; interleave = %" PRId64 "%s",
                    P, V, P * V, L, L, L / P, pipeline);
}

/* Checks the number of micro-batches. Interleaved stages need a multiple of the number of stages. */
static char *check_micro_batches(const Config *c, int ranks) {
    int64_t P = c->parallel.pipeline,
            unit = c->batch.micro_batch * c->batch.seq_len * (ranks > 0 ? config_datas(c, ranks) : 1), group = unit * P;
    int64_t total = c->batch.global_tokens, below = total - total % group;
    if (c->parallel.interleave == 1 || ranks <= 0 || total % unit || total % group == 0) return NULL;
    char nearest[80];
    snprintf(nearest, sizeof nearest, below > 0 ? "%" PRId64 " or %" PRId64 : "%" PRId64, below > 0 ? below : group,
             below + group);
    return sentence("%" PRId64 " micro-batches a step with interleave = %" PRId64
                    " must be a multiple of pipeline = %" PRId64 ": global_tokens = %s",
                    total / unit, c->parallel.interleave, P, nearest);
}

/* Refuses parallel.balance with settings that it breaks. Uneven shares change the order of sums, and ranks that gather
 * for each micro-batch need equally many. */
static char *check_balance(const Config *c) {
    if (!c->parallel.balance) return NULL;
    if (c->parallel.deterministic)
        return sentence(
            "parallel.balance = true changes the order of sums, which parallel.deterministic = true keeps: set one of them to false");
    if (c->parallel.zero_stage > 1)
        return sentence("parallel.balance = true with parallel.zero_stage = %" PRId64
                        ": its ranks exchange in every micro-batch, and need equally many: at most 1",
                        c->parallel.zero_stage);
    if (c->parallel.expert > 1)
        return sentence("parallel.balance = true with parallel.expert = %" PRId64
                        ": its ranks exchange in every micro-batch, and need equally many: parallel.expert = 1",
                        c->parallel.expert);
    if (c->parallel.pipeline > 1)
        return sentence("parallel.balance = true with parallel.pipeline = %" PRId64
                        ": stages are given their share by their layers: parallel.pipeline = 1",
                        c->parallel.pipeline);
    return NULL;
}

/* Returns 1 if the model can be divided by an axis of this size, for any number of ranks. */
static int divides_model(const Config *c, int axis, int64_t size) {
    Config other = *c;
    *(int64_t *[]){&other.parallel.tensor, &other.parallel.context, &other.parallel.pipeline, &other.parallel.replicas}[axis] = size;
    char *fault = check_context(&other);
    if (!fault) fault = check_tensor(&other);
    if (!fault) fault = check_pipeline(&other);
    free(fault);
    return !fault;
}

/* Writes the nearest sizes of an axis that give whole grids, such as ", or tensor = 2 or 4", or "" if there are
 * none. */
static void other_sizes(char out[100], const Config *c, int axis, const char *name, int64_t size, int64_t of) {
    int64_t below = size < of ? size - 1 : of, above = size + 1;
    while (below > 0 && (of % below || !divides_model(c, axis, below))) below--;
    while (above <= of && (of % above || !divides_model(c, axis, above))) above++;
    int is_above = above <= of;
    if (below > 0 && is_above) snprintf(out, 100, ", or %s = %" PRId64 " or %" PRId64, name, below, above);
    else if (below > 0 || is_above) snprintf(out, 100, ", or %s = %" PRId64, name, is_above ? above : below);
}

/* Checks that parallel.expert divides the ranks that share one state and compute different micro-batches. shared: ranks
 * that compute one micro-batch. */
static char *check_expert_ranks(const Config *c, int ranks, int64_t shared) {
    int64_t shards = ranks / shared;
    char nearest[64];
    if (shards % c->parallel.expert == 0) return NULL;
    nearest_divisors(nearest, sizeof nearest, c->parallel.expert, common_divisor(shards, c->model.shape.n_experts));
    if (shards == 1)
        return sentence("parallel.expert = %" PRId64 " divides the experts among ranks that share the state, and there is one: "
                        "mpirun -np %" PRId64 ", or parallel.expert = 1", c->parallel.expert, ranks * c->parallel.expert);
    return sentence("parallel.expert = %" PRId64 " must divide the %" PRId64 " ranks that share the state: parallel.expert = %s",
                    c->parallel.expert, shards, nearest);
}

/* Checks that the grid divides the ranks; 0 if their number is not known. Returns NULL or a sentence such as "8 ranks
 * are no multiple of parallel.tensor (3) x context (1) x pipeline (1): start 6 or 9 ranks, or tensor = 2 or 4". */
static char *check_grid(const Config *c, int ranks) {
    AxisSize axis[] = {{"tensor", c->parallel.tensor}, {"context", c->parallel.context},
                       {"pipeline", c->parallel.pipeline}, {"replicas", c->parallel.replicas}};
    int      splits_model = axis[0].size * axis[1].size * axis[2].size > 1, used = 0, first = -1;
    int64_t  product = 1;
    char     names[200], other[100] = "";
    for (int i = 0; i < 4; i++) {
        product *= axis[i].size;
        if (i < 3 ? !splits_model : axis[i].size == 1) continue;
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s (%" PRId64 ")", used ? " x " : "parallel.",
                         axis[i].key, axis[i].size);
        if (first < 0 && axis[i].size > 1) first = i;
    }
    if (ranks > 0 && ranks % product == 0) return check_expert_ranks(c, ranks, product);
    if (ranks <= 0) return NULL;
    int64_t rest = product / axis[first].size, below = ranks - ranks % product, start = below > 0 ? below : product;
    if (ranks % rest == 0 && ranks > rest) other_sizes(other, c, first, axis[first].key, axis[first].size, ranks / rest);
    return sentence("%d rank%s no multiple of %s: start %" PRId64 " or %" PRId64 " ranks%s", ranks,
                    ranks == 1 ? " is" : "s are", names, start, start + product, other);
}

static void add_fault(ConfigLoad *load, const Keys keys, char *text) {
    if (text) faults_add(&load->faults, rule_where(load, keys), "%s", text);
    free(text);
}

static const Keys GRID_KEYS = {"parallel.tensor", "parallel.context", "parallel.pipeline", "parallel.replicas", "parallel.expert",
                               "moe.experts", NULL};

static void rule_grid(ConfigLoad *load, int ranks) {
    Keys order = {"parallel.tensor", "parallel.context", "parallel.interleave", "parallel.expert", "parallel.replicas",
                  "parallel.zero_stage", "parallel.deterministic", NULL};
    Keys pipeline = {"parallel.pipeline", "parallel.interleave", "model.n_layer", NULL};
    Keys balance = {"parallel.balance", "parallel.deterministic", "parallel.zero_stage", "parallel.pipeline", "parallel.expert", NULL};
    Keys tensor = {"parallel.tensor", "parallel.context", "model.n_head", "model.n_embd", "model.n_kv_head", "model.head_dim",
                   "model.n_inner", "batch.seq_len", NULL},
         context = {"parallel.context", "batch.seq_len", NULL};
    if (rule_usable(load, order)) add_fault(load, order, check_order(load->config));
    if (rule_usable(load, context)) add_fault(load, context, check_context(load->config));
    if (rule_usable(load, tensor)) add_fault(load, tensor, check_tensor(load->config));
    if (rule_usable(load, balance)) add_fault(load, balance, check_balance(load->config));
    if (rule_usable(load, pipeline)) add_fault(load, pipeline, check_pipeline(load->config));
    if (rule_usable(load, GRID_KEYS)) add_fault(load, GRID_KEYS, check_grid(load->config, ranks));
}

Mesh config_mesh(const Config *c, int ranks) {
    return mesh_of(ranks, (MeshSizes){(int)c->parallel.tensor, (int)c->parallel.context, (int)c->parallel.pipeline,
                                      (int)c->parallel.replicas});
}
int config_datas(const Config *c, int ranks) {
    return ranks / (int)(c->parallel.tensor * c->parallel.context * c->parallel.pipeline);
}

/* Writes "; or start N ranks" with the most ranks, fewer than `ranks`, that divide batch.global_tokens, or nothing. */
static char *fewer_ranks(char out[64], const Config *c, int ranks) {
    int     grid = (int)(c->parallel.tensor * c->parallel.context * c->parallel.pipeline);
    int64_t samples = c->batch.global_tokens / c->batch.seq_len, turns = c->parallel.interleave > 1 ? c->parallel.pipeline : 1;
    *out = 0;
    if (c->batch.global_tokens % c->batch.seq_len) return out;
    for (int datas = ranks / grid - 1; datas > 0 && !*out; datas--) {
        int64_t each = c->batch.micro_batch * datas;
        if (samples % each == 0 && samples / each % turns == 0 && datas % c->parallel.replicas == 0)
            snprintf(out, 64, "; or start %d rank%s", datas * grid, datas * grid == 1 ? "" : "s");
    }
    return out;
}

static char *check_batch(const Config *c, int ranks) {
    int64_t unit, total = c->batch.global_tokens;
    char    product[200], fewer[64], *text = NULL;
    int     used = snprintf(product, sizeof product, "batch.micro_batch (%" PRId64 ") x batch.seq_len (%" PRId64 ")",
                            c->batch.micro_batch, c->batch.seq_len);
    int     datas = ranks > 0 ? config_datas(c, ranks) : 1, printed = 0;
    if (ranks > 0 && datas == ranks) snprintf(product + used, sizeof product - (size_t)used, " x ranks (%d)", ranks);
    else if (ranks > 0)
        snprintf(product + used, sizeof product - (size_t)used, " x ranks / (tensor x context x pipeline) (%d)", datas);
    if (!multiply(&unit, 3, (int64_t[]){c->batch.micro_batch, c->batch.seq_len, datas})) {
        printed = asprintf(&text, "%s does not fit in 64 bits", product);
    } else if (total % unit) {
        /* Interleaved stages need a multiple of `pipeline` micro-batches. */
        int64_t step = c->parallel.interleave > 1 && unit <= INT64_MAX / c->parallel.pipeline ? unit * c->parallel.pipeline : unit;
        int64_t below = total - total % step, first = below > 0 ? below : step;
        printed = asprintf(&text,
                           "batch.global_tokens = %" PRId64 " is %s %s = %" PRId64 "%s; nearest valid values: %" PRId64
                           " and %" PRId64 "%s",
                           total, total > unit ? "no multiple of" : "less than", product, unit,
                           total > unit ? "" : "; it must be a multiple of that", first, first + step, fewer_ranks(fewer, c, ranks));
    }
    if (printed < 0) fail(EXIT_MEMORY, "out of memory while reading the config");
    return text;
}

static void rule_batch(ConfigLoad *load, int ranks) {
    const Config *c = load->config;
    Keys          keys = {"batch.global_tokens", "batch.micro_batch", "batch.seq_len", NULL};
    if (!rule_usable(load, keys)) return;
    if (!rule_usable(load, GRID_KEYS)) return;
    char *unequal = check_grid(c, ranks); /* has a message of its own */
    char *batch = unequal ? NULL : check_batch(c, ranks);
    if (!unequal) add_fault(load, keys, batch ? batch : check_micro_batches(c, ranks));
    free(unequal);
}

char *config_check_ranks(const Config *c, int ranks) {
    char *text = check_grid(c, ranks);
    if (!text) text = check_batch(c, ranks);
    return text ? text : check_micro_batches(c, ranks);
}

char *config_check_changed(const Config *c, int ranks) {
    char *text = check_order(c);
    if (!text) text = check_context(c);
    if (!text) text = check_tensor(c);
    if (!text) text = check_balance(c);
    if (!text) text = check_pipeline(c);
    if (!text && optimizer_fault(c)) text = sentence("%s", optimizer_fault(c));
    return text ? text : config_check_ranks(c, ranks);
}

static void rule_seq_len(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          keys = {"batch.seq_len", "model.n_positions", NULL};
    if (!rule_usable(load, keys) || c->batch.seq_len <= c->model.shape.n_positions) return;
    faults_add(&load->faults, rule_where(load, keys), "batch.seq_len = %" PRId64 " must be at most model.n_positions = %" PRId64,
               c->batch.seq_len, c->model.shape.n_positions);
    config_given(load, "batch.seq_len")->faulty = 1;
}

/* --- products ----------------------------------------------------------------------------------------------------- */

/* Refuses runs whose tokens may overflow. A resumed run adds the tokens of its steps to those of a checkpoint, which
 * are at most MANIFEST_COUNT_LIMIT. 64 bits hold both. */
static void rule_tokens(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          keys = {"run.steps", "batch.global_tokens", NULL};
    int64_t       tokens;
    if (!rule_usable(load, keys) ||
        (multiply(&tokens, 2, (int64_t[]){c->run.steps, c->batch.global_tokens}) && tokens <= INT64_MAX / 2))
        return;
    faults_add(&load->faults, rule_where(load, keys), "run.steps = %" PRId64 " x batch.global_tokens = %" PRId64 " is not below 2^62",
               c->run.steps, c->batch.global_tokens);
}

/* Refuses a matrix of 2^31 columns or more. */
static void rule_sizes(ConfigLoad *load) {
    ModelShape s = load->config->model.shape;
    Keys       heads = {"model.n_head", "model.head_dim", "model.n_kv_head", NULL}, inner = {"model.n_inner", NULL},
               width = {"model.n_embd", NULL};
    if (rule_usable(load, heads) && rule_usable(load, width) &&
        shape_head_dim(s) > INT32_MAX / (s.n_head + 2 * shape_kv_heads(s))) {
        faults_add(&load->faults, rule_where(load, heads),
                   "model.n_head = %" PRId64 " and 2 x %" PRId64 " heads of keys and values, each of "
                   "%" PRId64 " channels (model.head_dim, or model.n_embd / model.n_head), are more than 2^31 columns: "
                   "make one of them smaller",
                   s.n_head, shape_kv_heads(s), shape_head_dim(s));
        config_given(load, "model.n_head")->faulty = 1;
    }
    if (rule_usable(load, inner) && s.n_inner > INT32_MAX / 2) {
        faults_add(&load->faults, rule_where(load, inner), "model.n_inner = %" PRId64 ": at most %d", s.n_inner,
                   INT32_MAX / 2);
        config_given(load, "model.n_inner")->faulty = 1;
    }
}

static void rule_parameters(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          keys = {"model.n_embd", "model.n_layer", "model.n_positions", "model.vocab_size", "model.n_kv_head",
                          "model.head_dim", "model.n_inner", "model.n_head", NULL};
    int64_t       parameters, bytes;
    /* 64 bytes for each parameter: more than weight, master, moments and gradients need, with padding */
    if (!rule_usable(load, keys) ||
        (model_parameters(c->model.shape, &parameters) && multiply(&bytes, 2, (int64_t[]){parameters, 64})))
        return;
    ModelShape s = c->model.shape;
    char       more[100] = "";
    if (s.n_inner) snprintf(more, sizeof more, ", model.n_inner = %" PRId64, s.n_inner);
    if (s.n_experts) snprintf(more, sizeof more, ", moe.experts = %" PRId64 ", moe.n_inner = %" PRId64, s.n_experts, s.n_expert_inner);
    faults_add(&load->faults, rule_where(load, keys),
               "a model of model.n_layer = %" PRId64 ", model.n_embd = %" PRId64 "%s, model.n_positions = %" PRId64
               ", model.vocab_size = %" PRId64 " does not fit in 64 bits of address",
               s.n_layer, s.n_embd, more, s.n_positions, s.vocab_size);
}

/* Refuses more tensors than the header of a weights file can list. A model that does not fit into memory already has a
 * message. */
static void rule_rows(ConfigLoad *load) {
    ModelShape s = load->config->model.shape;
    Keys       layers = {"model.n_layer",
                         "model.n_head",
                         "model.n_embd",
                         "model.n_positions",
                         "model.vocab_size",
                         "moe.experts",
                         NULL},
         others = {"model.n_kv_head", "model.head_dim", "model.n_inner", NULL};
    int64_t    parameters;
    if (!rule_usable(load, layers) || !rule_usable(load, others) || !model_parameters(s, &parameters) ||
        parameters > INT64_MAX / 64)
        return;
    if (model_rows(s) > MODEL_MOST_ROWS) {
        faults_add(&load->faults, rule_where(load, layers),
                   "model.n_layer = %" PRId64 "%s%.0" PRId64 " make a model of %" PRId64
                   " tensors; a file of weights holds at most %d",
                   s.n_layer, s.n_experts ? ", moe.experts = " : "", s.n_experts, model_rows(s), MODEL_MOST_ROWS);
        config_given(load, "model.n_layer")->faulty = 1;
    }
}

static void rule_activations(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          keys = {"batch.micro_batch", "batch.seq_len", "model.n_embd", "model.n_layer", "model.vocab_size", "model.n_inner", "model.head_dim",
                          "model.n_head", NULL};
    if (!rule_usable(load, keys)) return;
    int64_t       bytes, inner = c->model.shape.n_inner, width = dim_size(DIM_Q, c->model.shape);
    if (width < c->model.shape.n_embd) width = c->model.shape.n_embd;
    if (width < inner) width = inner;
    if (c->model.shape.arch == ARCH_QWEN3_MOE) {
        if (width < c->model.shape.n_expert_inner) width = c->model.shape.n_expert_inner;
        width *= c->model.shape.top_k;
    }
    /* 128 bytes per token, channel and block: twice the floats that fp32 keeps for backward */
    int fits = multiply(&bytes, 5,
                        (int64_t[]){c->batch.micro_batch, c->batch.seq_len, width,
                                    c->model.shape.n_layer, 128}) &&
               multiply(&bytes, 4, (int64_t[]){c->batch.micro_batch, c->batch.seq_len, c->model.shape.vocab_size, 8});
    if (fits) return;
    faults_add(&load->faults, rule_where(load, keys), "activations of batch.micro_batch = %" PRId64 " x batch.seq_len = %" PRId64
               " do not fit in 64 bits of address with model.n_embd = %" PRId64 ", model.n_layer = %" PRId64 ", model.vocab_size = %" PRId64,
               c->batch.micro_batch, c->batch.seq_len, c->model.shape.n_embd, c->model.shape.n_layer, c->model.shape.vocab_size);
}

/* --- the model and the build -------------------------------------------------------------------------------------- */

static void rule_heads(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          keys = {"model.n_head", "model.n_embd", "model.head_dim", NULL};
    int64_t       C = c->model.shape.n_embd, H = c->model.shape.n_head;
    if (!rule_usable(load, keys)) return;
    if (!c->model.shape.head_dim && C % H) {
        int64_t below = C - C % H;
        char    values[64];
        snprintf(values, sizeof values, "%" PRId64 "%s%" PRId64, below ? below : H, " and ", below ? below + H : 2 * H);
        faults_add(&load->faults, rule_where(load, keys), "model.n_embd = %" PRId64 " must be a multiple of model.n_head = %" PRId64
                   "; nearest valid widths: %s", C, H, values);
        config_given(load, "model.n_embd")->faulty = 1;
    } else if (shape_head_dim(c->model.shape) > 128 && strcmp(device_backend(), "cpu")) {
        faults_add(&load->faults, rule_where(load, keys),
                   "heads of %s = %" PRId64 " channels: more than 128 run on the CPU only (make BACKEND=cpu)",
                   c->model.shape.head_dim ? "model.head_dim" : "model.n_embd / model.n_head", shape_head_dim(c->model.shape));
    }
}

static void rule_build(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          precision = {"precision", NULL}, comm = {"parallel.comm", NULL};
    if (load->is_elsewhere) return;
    if (!strcmp(device_backend(), "cpu") && (c->precision == PRECISION_TF32 || c->precision == PRECISION_FP16))
        faults_add(&load->faults, rule_where(load, precision),
                   "precision \"%s\" needs a GPU, and this is the CPU build: \"auto\", \"fp32\" or "
                   "\"bf16\"",
                   c->precision == PRECISION_TF32 ? "tf32" : "fp16");
    if (!strcmp(device_backend(), "cpu") && c->parallel.comm == PARALLEL_NCCL)
        faults_add(&load->faults, rule_where(load, comm),
                   "parallel.comm \"nccl\" needs the CUDA build; this one has \"auto\", \"ring\" or \"mpi\"");
}

static void rule_milestones(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          keys = {"checkpoint.keep_every", "checkpoint.every", NULL};
    int64_t       N = c->checkpoint.keep_every, every = c->checkpoint.every;
    char          values[64];
    if (!rule_usable(load, keys) || N == 0) return;
    if (every == 0)
        faults_add(&load->faults, rule_where(load, keys),
                   "checkpoint.keep_every = %" PRId64 " has nothing to keep: checkpoint.every = 0 saves at the end alone", N);
    else if (N % every)
        faults_add(&load->faults, rule_where(load, keys),
                   "checkpoint.keep_every = %" PRId64 " must be a multiple of checkpoint.every = %" PRId64 "; nearest valid values: %s", N, every,
                   nearest_multiples(values, N, every));
}

/* Checks that checkpoint.keep_best has evaluated checkpoints to choose from. */
static void rule_best(ConfigLoad *load) {
    const Config *c = load->config;
    Keys          keys = {"checkpoint.keep_best", "eval.every", "checkpoint.every", "data.val", NULL};
    int64_t       every = c->checkpoint.every;
    char          values[64];
    if (!rule_usable(load, keys) || !c->checkpoint.keep_best) return;
    if (c->data.val.count == 0 || c->eval.every == 0)
        faults_add(&load->faults, rule_where(load, keys), "checkpoint.keep_best needs validation losses: %s",
                   c->eval.every == 0 ? "set eval.every above 0" : "set data.val");
    else if (every % c->eval.every)
        faults_add(&load->faults, rule_where(load, keys),
                   "checkpoint.keep_best needs an evaluation at each checkpoint: checkpoint.every = %" PRId64
                   " must be a multiple of eval.every = %" PRId64 "; nearest valid values: %s",
                   every, c->eval.every, nearest_multiples(values, every, c->eval.every));
}

static void rule_blend(ConfigLoad *load) {
    const StringList *train = &load->config->data.train;
    Keys              keys = {"data.train", NULL};
    char              fault[512];
    if (rule_usable(load, keys) && train->share && !sources_check("data.train", train, fault, sizeof fault))
        faults_add(&load->faults, rule_where(load, keys), "%s", fault);
}

static void rule_allow_change(ConfigLoad *load) {
    const StringList *list = &load->config->run.allow_change;
    Keys              keys = {"run.allow_change", NULL};
    for (int i = 0; i < list->count && rule_usable(load, keys); i++) {
        int  known = option_find(list->item[i]) != NULL;
        char typed[SHOWN_BYTES];
        for (int k = 0; option_section(k); k++) known |= !strcmp(option_section(k), list->item[i]);
        if (!known)
            faults_add(&load->faults, rule_where(load, keys),
                       "run.allow_change names keys or sections of this config, and the string %s is neither; the nearest "
                       "key is \"%s\"",
                       json_quote_short(typed, sizeof typed, list->item[i]),
                       nearest_key(list->item[i], NEAREST_OPTION).word);
    }
}

/* Returns the position in a path of text that a shell replaces, ~ at its beginning or $NAME, or NULL if there is
 * none. */
static const char *shell_part(const char *path) {
    if (*path == '~') return path;
    for (const char *c = strchr(path, '$'); c; c = strchr(c + 1, '$'))
        if (c[1] == '{' || c[1] == '_' || (c[1] >= 'A' && c[1] <= 'Z') || (c[1] >= 'a' && c[1] <= 'z')) return c;
    return NULL;
}

/* Refuses a path with text that a shell should have replaced, unless a file or folder with this name exists. */
static void rule_path(ConfigLoad *load, const char *key, const char *path) {
    Keys        keys = {key, NULL};
    char        typed[SHOWN_BYTES];
    const char *part = path ? shell_part(path) : NULL;
    char        begin[4096];
    int         bytes = part ? (int)(part - path) + (int)strcspn(part, "/") : 0; /* up to the end of that name */
    if (!part || !rule_usable(load, keys)) return;
    if (snprintf(begin, sizeof begin, "%.*s", bytes, path) < (int)sizeof begin && access(begin, F_OK) == 0) return;
    faults_add(&load->faults, rule_where(load, keys), "%s is %s, and only a shell expands %s, outside of quotes: write the whole path%s", key,
               json_quote_short(typed, sizeof typed, path), *part == '~' ? "~" : "$NAME",
               *part == '~' ? ", or ./~ for a name that begins so" : "");
}

static void rule_paths(ConfigLoad *load) {
    const Config *c = load->config;
    const struct { const char *key, *path; } paths[] = {{"run.dir", config_given(load, "run.dir")->given ? c->run.dir : NULL},
                                                        {"model.init_from", c->model.init_from},
                                                        {"data.tokenizer", c->data.tokenizer},
                                                        {"outer.key", c->outer.key},
                                                        {"checkpoint.memory_dir", c->checkpoint.memory_dir}};
    const struct { const char *key; const StringList *list; } lists[] = {
        {"data.train", &c->data.train}, {"data.val", &c->data.val}, {"eval.tasks", &c->eval.tasks}};
    Keys keys = {"run.dir", NULL};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) rule_path(load, paths[i].key, paths[i].path);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        for (int k = 0; k < lists[i].list->count; k++) rule_path(load, lists[i].key, lists[i].list->item[k]);
    if (!c->run.dir || !rule_usable(load, keys)) return;
    if (*c->run.dir && c->run.dir[strspn(c->run.dir, "/")] == 0)
        faults_add(&load->faults, rule_where(load, keys), "run.dir is the root of the file system: name a folder for this run alone, as runs/mine");
    if (strchr(c->run.dir, '\n') && access(c->run.dir, F_OK) != 0)
        faults_add(&load->faults, rule_where(load, keys), "run.dir holds a newline, which scripts that read a line at a time cut: write it without");
}

void config_rules_of_shape(ConfigLoad *load) {
    rule_heads(load);
    rule_sizes(load);
    rules_of_model(load);
    rule_parameters(load);
    rule_rows(load);
}

void config_rules(ConfigLoad *load, int ranks) {
    rule_allow_change(load);
    rule_paths(load);
    rule_blend(load);
    config_rules_of_shape(load);
    rule_seq_len(load);
    rule_grid(load, ranks);
    rule_batch(load, ranks);
    rule_tokens(load);
    rule_milestones(load);
    rule_best(load);
    rule_activations(load);
    rule_build(load);
    rules_of_optimizer(load);
    rules_of_outer(load);
    rules_of_fp8(load);
}
