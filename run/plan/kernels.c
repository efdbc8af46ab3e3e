/* kernels.c - rates of kernels on an H100, and the time of a step kernel by kernel: see kernels.h. */
#include "run/plan/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json.h"
#include "core/terminal.h"
#include "model/precision.h"

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* Memory rate that the best kernels reach: 3.0 of the 3.35 TB/s of the data sheet. QuACK's norms reach 3.01 on an H100.
 * PEAK: FLOP/s of bf16 products. */
static const double MEMORY = 3.0e12, DATA_SHEET = 3.35e12, PEAK = 989e12;

static const char LIBRARY[] = "est: cuBLASLt on H100 at a step's shapes; llm.c's 140 ms a step leave about 600",
                  PORTABLE[] = "est: FlashAttention-2, of the same instructions: 229 causal at T = 1024, D = 64",
                  EXPERTS[] = "est: mma.sync has 63 % of wgmma's peak",
                  NEAR_MEMORY[] = "est: a plain pass, 32 warps a processor, 16 bytes a load",
                  PARTIALS[] = "est: a barrier a batch of rows, partial sums that go through memory",
                  ROWS[] = "est: two blocks a processor, reading and writing in turns",
                  SCATTER[] = "est: sorted tokens, small kernels";

static const KernelRate TABLE[] = {
    /* Rates of matrix products in FLOP/s: now, and at best. The best public rate of a bf16 product of any shape is 794
     * TFLOP/s (80 % of the peak). The rates below are lower, because the inner size K = 768 is short, and products of
     * gradients split K. */
    {"matmul", FAMILY_PRODUCT, 1, 643e12, 755e12, 0, LIBRARY},
    {"matmul, added", FAMILY_PRODUCT, 1, 640e12, 740e12, 0, LIBRARY},
    {"matmul, set", FAMILY_PRODUCT, 1, 640e12, 740e12, 0, LIBRARY},
    {"matmul, fp8", FAMILY_PRODUCT, 1, 1300e12, 1403e12, 0, "est: cuBLASLt's best shape of fp8 on H100 is 1,403"},
    {"matmul, experts", FAMILY_PRODUCT, 1, 400e12, 740e12, 0, EXPERTS},
    {"attention_forward", FAMILY_ATTENTION, 1, 220e12, 400e12, 0, PORTABLE},
    {"attention_backward", FAMILY_ATTENTION, 3, 165e12, 330e12, 0, "est: 7 products for 5, by mma.sync"},
    {"attention_delta", FAMILY_POINTWISE, 1, 2.83e12, 3.0e12, 0, NEAR_MEMORY},
    {"layernorm_forward", FAMILY_NORM, 1, 2.83e12, 3.0e12, 0, NEAR_MEMORY},
    {"residual_layernorm_forward", FAMILY_NORM, 1, 2.83e12, 3.0e12, 0, NEAR_MEMORY},
    {"rmsnorm_forward", FAMILY_NORM, 1, 2.83e12, 3.0e12, 0, NEAR_MEMORY},
    {"residual_rmsnorm_forward", FAMILY_NORM, 1, 2.83e12, 3.0e12, 0, NEAR_MEMORY},
    {"head_norm_forward", FAMILY_NORM, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"layernorm_backward", FAMILY_NORM, 2, 2.25e12, 3.0e12, 0, PARTIALS},
    {"rmsnorm_backward", FAMILY_NORM, 2, 2.25e12, 3.0e12, 0, PARTIALS},
    {"head_norm_backward", FAMILY_NORM, 2, 2.25e12, 3.0e12, 0, PARTIALS},
    {"activation_forward", FAMILY_POINTWISE, 1, 2.82e12, 3.0e12, 0, NEAR_MEMORY},
    {"activation_backward", FAMILY_POINTWISE, 1, 2.82e12, 3.0e12, 0, NEAR_MEMORY},
    {"swiglu_forward", FAMILY_POINTWISE, 1, 2.82e12, 3.0e12, 0, NEAR_MEMORY},
    {"swiglu_backward", FAMILY_POINTWISE, 1, 2.82e12, 3.0e12, 0, NEAR_MEMORY},
    {"rope_forward", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"rope_backward", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_cast", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_activation_forward", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_activation_backward", FAMILY_POINTWISE, 2, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_swiglu_forward", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_swiglu_backward", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_layernorm_forward", FAMILY_NORM, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_rmsnorm_forward", FAMILY_NORM, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"bias_backward", FAMILY_BIAS, 2, 2.57e12, 3.0e12, 0, PARTIALS},
    {"classifier_forward", FAMILY_CLASSIFIER, 1, 2.44e12, 3.0e12, 0, ROWS},
    {"classifier_forward_backward", FAMILY_CLASSIFIER, 1, 2.44e12, 3.0e12, 0, ROWS},
    {"embedding_forward", FAMILY_EMBEDDING, 1, 2.2e12, 3.0e12, 0, SCATTER},
    {"embedding_backward", FAMILY_EMBEDDING, 9, 1.5e12, 3.0e12, 0, SCATTER},
    {"norm_squared", FAMILY_OPTIMIZER, 1, 2.4e12, 3.0e12, 0, NEAR_MEMORY},
    {"adamw_update", FAMILY_OPTIMIZER, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"zero_tensors", FAMILY_OPTIMIZER, 1, 2.8e12, 3.0e12, 0, NEAR_MEMORY},
    {"device_zero", FAMILY_OPTIMIZER, 1, 2.8e12, 3.0e12, 0, "est: cudaMemset"},
    {NULL, FAMILY_OTHER, 1, 2.4e12, 3.0e12, 0, "est: no rate of its own: 80 % of memory's"},
};

/* Returns 1 if the backward of attention on an H100 uses the kernel that computes five matrix products. The condition
 * is that of attention_by_heads (layers/attention_hopper_heads.cu). The byte count is the only sign that heads do not
 * share keys: the tensors qkv, dqkv and dy have seven values of 16 bits for each channel and token. */
static int is_by_heads(const LedgerEntry *e) {
    double heads = (double)e->dim[0] * (double)e->dim[2], T = (double)e->dim[1], D = (double)e->dim[3],
           sums = fmin(heads, 132) * 4.0 * ceil(T / 64) * 64 * D;
    return 4 * heads >= 3 * ceil(heads / 132) * 132 && sums <= 40 << 20 && e->bytes >= 7 * 2.0 * D * heads * T;
}

enum { TABLE_ROWS = sizeof TABLE / sizeof *TABLE };
_Static_assert(sizeof TABLE <= sizeof ((KernelRates *)0)->row, "KernelRates has room for all");

static const char *const FAMILY_NAMES[FAMILIES] = {"products", "attention", "norms", "pointwise", "bias gradients",
                                                   "classifier", "embedding", "gradient norm, optimizer", "others"};

static int is_in_flops(const KernelRate *rate) {
    return rate->family == FAMILY_PRODUCT || rate->family == FAMILY_ATTENTION;
}

KernelRate kernel_rate_for(KernelRate rate, const LedgerEntry *e) {
    int is_wgmma = (e->dim[3] == 64 || e->dim[3] == 128) && rate.op && !rate.is_measured;
    if (is_wgmma && strcmp(rate.op, "attention_forward") == 0) {
        rate.rate = 265e12;
        rate.source = "est: FlashAttention-3, of the same instructions: 265 causal at T = 1024, D = 64";
    } else if (is_wgmma && strcmp(rate.op, "attention_backward") == 0) {
        int by_heads = is_by_heads(e);
        rate.rate = by_heads ? 300e12 : 230e12;
        rate.source =
            by_heads ? "est: FlashAttention-3's 363 at T = 1024, D = 64, not causal; less 17 %: diagonal, last wave"
                     : "est: FlashAttention-3's 363 at T = 1024, D = 64, not causal; here 7 products for 5";
    }
    return rate;
}

const KernelRate *kernel_rate_of(const KernelRates *rates, const char *op) {
    const KernelRate *found = &rates->row[rates->rows - 1];
    size_t            longest = 0;
    for (int i = 0; i < rates->rows - 1; i++) {
        size_t length = strlen(rates->row[i].op);
        if (length > longest && strncmp(rates->row[i].op, op, length) == 0) found = &rates->row[i], longest = length;
    }
    return found;
}

/* --- measured rates ----------------------------------------------------------------------------------------------- */

/* Reads a rate or a time from least to most into *out. Returns 0 if the key is missing, or after it has added a
 * fault. */
static int take_number(PlanFile *r, const char *key, const cJSON *node, double least, double most, double *out) {
    char expected[80];
    snprintf(expected, sizeof expected, "a number from %g to %g", least, most);
    return node && plan_file_number(r, key, node, least, most, 0, expected, out);
}

/* Returns the present name of an operation. Files of measured rates may have its name in older versions of the program,
 * which had no model.activation. */
static const char *name_now(const char *op) {
    static const struct { const char *old, *now; } renamed[] = {
        {"gelu_forward", "activation_forward"},         {"gelu_backward", "activation_backward"},
        {"fp8_gelu_forward", "fp8_activation_forward"}, {"fp8_gelu_backward", "fp8_activation_backward"}};
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (strcmp(renamed[i].old, op) == 0) return renamed[i].now;
    return op;
}

static void take_kernel(PlanFile *r, KernelRates *rates, const cJSON *node) {
    const char *names[RATES_MOST];
    char        key[160];
    int         count = 0;
    snprintf(key, sizeof key, "kernels.%.120s", node->string);
    for (int i = 0; i < rates->rows - 1; i++) {
        KernelRate *row = &rates->row[i];
        names[count++] = row->op;
        if (strcmp(row->op, name_now(node->string)) != 0) continue;
        int is_flops = is_in_flops(row);
        if (take_number(r, key, node, is_flops ? 1e9 : 1e6, is_flops ? 1e17 : 1e15, &row->rate))
            row->is_measured = 1, row->source = rates->source;
        return;
    }
    names[count] = NULL;
    plan_file_fault(r, key, "is no operation of the table; the nearest is %s", nearest_word(node->string, names).word);
}

static void take_file(KernelRates *rates, const char *path) {
    PlanFile     r = plan_file_open("rates=", path);
    const cJSON *source = json_member(r.json.root, "source");
    if (cJSON_IsString(source) && *source->valuestring && strlen(source->valuestring) < RATES_SOURCE)
        snprintf(rates->source, RATES_SOURCE, "%s", source->valuestring);
    else plan_file_fault(&r, "source", "must say where the rates were measured: card, commit, day; 1 to 127 bytes");
    for (const cJSON *node = r.json.root->child; node; node = node->next) {
        const char *key = node->string;
        if (strcmp(key, "$comment") == 0 || strcmp(key, "source") == 0) continue;
        if (strcmp(key, "launch_s") == 0) take_number(&r, key, node, 0.0, 1e-3, &rates->launch_s);
        else if (strcmp(key, "host_s") == 0) take_number(&r, key, node, 0.0, 1.0, &rates->host_s);
        else if (strcmp(key, "kernels") != 0)
            plan_file_fault(&r, key, "is no key of a file of rates: source, launch_s, host_s and kernels are");
        else if (!cJSON_IsObject(node))
            plan_file_fault(&r, key, "must be an object of rates, as {\"attention_forward\": 3e14}");
        else
            for (const cJSON *k = node->child; k; k = k->next) take_kernel(&r, rates, k);
    }
    plan_file_close(&r);
}

KernelRates kernel_rates(const Cluster *cluster, const char *file) {
    KernelRates rates = {.rows = TABLE_ROWS, .launch_s = 1.2e-6, .launch_limit_s = 0.3e-6,
                         .host_s = 1e-4, .host_limit_s = 0.5e-4};
    double      of_h100 = cluster->bytes_per_s / DATA_SHEET;
    if (cluster->bf16 != PEAK || cluster->processors != 132)
        fail(EXIT_CONFIG,
             "plan: kernels=true knows the speeds of H100 and H200 only, not of %s: give gpu=h100 or gpu=h200",
             cluster->gpu);
    memcpy(rates.row, TABLE, sizeof TABLE);
    for (int i = 0; i < rates.rows; i++)
        if (!is_in_flops(&rates.row[i])) rates.row[i].rate *= of_h100, rates.row[i].limit *= of_h100;
    rates.bytes_per_s = MEMORY * of_h100;
    if (file) take_file(&rates, file);
    return rates;
}

/* --- times -------------------------------------------------------------------------------------------------------- */

static double seconds_at(const LedgerEntry *e, const KernelRate *rate, double r, double bytes_per_s) {
    if (!is_in_flops(rate)) return e->bytes / r;
    return fmax(e->flops / r, e->bytes / bytes_per_s);
}

static int longest_first(const void *a, const void *b) {
    double x = ((const KernelTime *)a)->seconds, y = ((const KernelTime *)b)->seconds;
    return x < y ? 1 : x > y ? -1 : 0;
}

StepTimes kernels_times(const Ledger *step, const KernelRates *rates) {
    StepTimes t = {.kernel = xcalloc((size_t)step->entries + 1, sizeof(KernelTime), "a plan of operations")};
    for (int i = 0; i < step->entries; i++) {
        const LedgerEntry *e = &step->entry[i];
        const KernelRate  *rate = kernel_rate_of(rates, e->op);
        double             calls = (double)e->count;
        /* collectives between ranks are left out, because the simulator (run/plan/simulate.h) counts them */
        if (e->kind != LEDGER_OP || *e->group) continue;
        KernelTime k = {e, rate, e->count * rate->launches,
                        calls * seconds_at(e, rate, kernel_rate_for(*rate, e).rate, rates->bytes_per_s),
                        calls * seconds_at(e, rate, rate->limit, rates->bytes_per_s)};
        t.kernel[t.kernels++] = k;
        t.launches += k.launches, t.seconds += k.seconds, t.limit_s += k.limit_s;
    }
    t.gaps_s = (double)t.launches * rates->launch_s + rates->host_s;
    t.gaps_limit_s = (double)t.launches * rates->launch_limit_s + rates->host_limit_s;
    t.seconds += t.gaps_s, t.limit_s += t.gaps_limit_s;
    qsort(t.kernel, (size_t)t.kernels, sizeof *t.kernel, longest_first);
    return t;
}

void kernels_free(StepTimes *t) { free(t->kernel); }

/* --- printing ----------------------------------------------------------------------------------------------------- */

typedef struct { int64_t calls, launches; double seconds, limit_s; } Sum;

static void add_kernel(Sum *sum, const KernelTime *k) {
    sum->calls += k->entry->count, sum->launches += k->launches, sum->seconds += k->seconds, sum->limit_s += k->limit_s;
}

static void print_row(const char *mark, const char *what, const char *sizes, Sum s) {
    printf("%-8s %-28s %-24s %6lld %8lld %9.3f %9.3f %9.3f\n", mark, what, sizes, (long long)s.calls,
           (long long)s.launches, s.seconds * 1e3, s.limit_s * 1e3, (s.seconds - s.limit_s) * 1e3);
}

/* Returns the sizes of an operation as text: "65536 x 2304 x 768". */
static ShortText sizes_text(const LedgerEntry *e) {
    ShortText t = {""};
    size_t   used = 0;
    for (int d = 0; d < LEDGER_DIMS && e->dim[d] && used < sizeof t.text; d++)
        used += (size_t)snprintf(t.text + used, sizeof t.text - used, "%s%lld", d ? " x " : "", (long long)e->dim[d]);
    return t;
}

static void print_kernels(const StepTimes *t) {
    enum { WORTH_A_LINE = 1000 }; /* an operation with less than 1 / 1000 of the step shares a line with others */
    Sum rest = {0}, gaps = {0, t->launches, t->gaps_s, t->gaps_limit_s};
    printf("%-8s %-28s %-24s %6s %8s %9s %9s %9s\n", "", "operation", "sizes", "calls", "launches", "ms", "limit ms",
           "left ms");
    for (int i = 0; i < t->kernels; i++) {
        const KernelTime *k = &t->kernel[i];
        int               is_small = k->seconds * WORTH_A_LINE < t->seconds;
        Sum               one = {0};
        add_kernel(is_small ? &rest : &one, k);
        if (!is_small)
            print_row(k->rate->is_measured ? "measured" : "estimate", k->entry->op, sizes_text(k->entry).text, one);
    }
    if (rest.calls) print_row("estimate", "smaller ones", "", rest);
    print_row("estimate", "gaps, the host's work", "", gaps);
    printf("\n");
    for (int f = 0; f < FAMILIES; f++) {
        Sum all = {0};
        int measured = 1;
        for (int i = 0; i < t->kernels; i++) {
            if ((int)t->kernel[i].rate->family != f) continue;
            add_kernel(&all, &t->kernel[i]);
            measured &= t->kernel[i].rate->is_measured;
        }
        if (all.calls) print_row(measured ? "measured" : "estimate", FAMILY_NAMES[f], "", all);
    }
    print_row("estimate", "gaps, the host's work", "", gaps);
    print_row("estimate", "sum", "", (Sum){0, t->launches, t->seconds, t->limit_s});
}

/* Returns 1 for GPT-2 124M in bf16 on one H100, for which KERNELS_GOAL is defined. */
static int has_goal(const Config *c, const Cluster *cluster, DType act, int ranks) {
    ModelShape s = c->model.shape;
    return ranks == 1 && act == BF16 && strcmp(cluster->name, "dgx-h100") == 0 && s.arch == ARCH_GPT2 &&
           s.n_layer == 12 && s.n_embd == 768 && s.vocab_size == 50257 && c->batch.seq_len == 1024;
}

typedef struct { double tokens, tokens_per_s, limit_tokens_per_s, mfu; } StepRates;

static StepRates rates_of(const Config *c, const Cluster *cluster, DType act, int ranks, const StepTimes *t) {
    StepRates r = {.tokens = (double)c->batch.global_tokens / config_datas(c, ranks)};
    r.tokens_per_s = r.tokens / t->seconds, r.limit_tokens_per_s = r.tokens / t->limit_s;
    r.mfu = model_flops_per_token(c->model.shape, c->batch.seq_len) * r.tokens_per_s / ranks * config_datas(c, ranks) /
            cluster_flops(cluster, act, c->precision);
    return r;
}

static void print_plan(const Config *c, const Cluster *cluster, DType act, int ranks, const KernelRates *rates,
                       const StepTimes *t) {
    StepRates   r = rates_of(c, cluster, act, ranks, t);
    const char *mark = "estimate";
    print_plain(stdout, "plan of %s, one step of one GPU of %s, %s, kernel by kernel: an estimate\n", c->path,
                cluster->gpu, dtype_name(act));
    print_plain(stdout, "rates        %s%s\n\n", *rates->source ? "measured ones: " : "none is measured",
                rates->source);
    print_kernels(t);
    printf("\n%-12s %.0f tokens/s%s, MFU %.1f %%; with every kernel at its limit %.0f\n", mark, r.tokens_per_s,
           ranks > 1 ? " of one GPU, without exchange" : "", 100.0 * r.mfu, r.limit_tokens_per_s);
    if (has_goal(c, cluster, act, ranks)) {
        double goal_ms = r.tokens / KERNELS_GOAL * 1e3, left = t->seconds * 1e3 - goal_ms;
        printf("%-12s this project's goal of %d tokens/s is %.1f ms a step: %.1f ms %s\n", mark, KERNELS_GOAL, goal_ms,
               left < 0 ? -left : left, left > 0 ? "to go" : "below it");
    }
}

static void print_json(const Config *c, const Cluster *cluster, DType act, int ranks, const StepTimes *t) {
    StepRates r = rates_of(c, cluster, act, ranks, t);
    cJSON    *object = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(object, "kernels");
    for (int i = 0; i < t->kernels; i++) {
        const KernelTime *k = &t->kernel[i];
        cJSON            *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "operation", k->entry->op);
        cJSON_AddStringToObject(one, "sizes", sizes_text(k->entry).text);
        cJSON_AddStringToObject(one, "family", FAMILY_NAMES[k->rate->family]);
        cJSON_AddNumberToObject(one, "calls", (double)k->entry->count);
        cJSON_AddNumberToObject(one, "launches", (double)k->launches);
        cJSON_AddItemToObject(one, "ms", number_json(k->seconds * 1e3));
        cJSON_AddItemToObject(one, "limit_ms", number_json(k->limit_s * 1e3));
        cJSON_AddBoolToObject(one, "measured", k->rate->is_measured);
        cJSON_AddStringToObject(one, "source", kernel_rate_for(*k->rate, k->entry).source);
        cJSON_AddItemToArray(list, one);
    }
    cJSON_AddNumberToObject(object, "launches", (double)t->launches);
    cJSON_AddItemToObject(object, "gaps_ms", number_json(t->gaps_s * 1e3));
    cJSON_AddItemToObject(object, "gaps_limit_ms", number_json(t->gaps_limit_s * 1e3));
    cJSON_AddItemToObject(object, "step_ms", number_json(t->seconds * 1e3));
    cJSON_AddItemToObject(object, "limit_ms", number_json(t->limit_s * 1e3));
    cJSON_AddItemToObject(object, "tokens_per_s", number_json(r.tokens_per_s));
    cJSON_AddItemToObject(object, "mfu", number_json(r.mfu));
    if (has_goal(c, cluster, act, ranks)) cJSON_AddNumberToObject(object, "goal_tokens_per_s", KERNELS_GOAL);
    cJSON_AddTrueToObject(object, "estimate");
    json_print(object);
}

void kernels_plan(const Config *c, ClusterPlan asked, const char *rates_file) {
    if (strcmp(device_backend(), "cpu") == 0)
        fail(EXIT_CONFIG, "plan: kernels=true counts the kernels of a GPU, and this program was built for the CPU: "
                          "type make BACKEND=emu (no GPU is needed), then build/emu/train_gpt plan ...");
    int     ranks = asked.ranks;
    Cluster cluster = cluster_of_gpu(asked.gpu, ranks, asked.nodes);
    DType   act = precision_resolve((Precision)c->precision, cluster.bf16 > 0).act;
    if (act == F32)
        fail(EXIT_CONFIG,
             "plan: kernels=true knows the speeds of 16-bit and 8-bit matrix products only: give precision=bf16, fp16 "
             "or fp8");
    KernelRates rates = kernel_rates(&cluster, rates_file);
    ModelSpec   spec = config_model_spec(c, act, ranks, 0, NULL);
    Ledger      step = {.is_elsewhere = 1};
    model_dry(spec, spec.pipeline.micro_batches, &step);
    StepTimes t = kernels_times(&step, &rates);
    if (asked.json) print_json(c, &cluster, act, ranks, &t);
    else print_plan(c, &cluster, act, ranks, &rates, &t);
    kernels_free(&t);
    ledger_free(&step);
}
