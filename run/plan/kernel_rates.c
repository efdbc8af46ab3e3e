/* kernel_rates.c - see kernel_rates.h. */
#include "run/plan/kernel_rates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/json_text.h"
#include "run/config/faults.h"

/* --- the table ---------------------------------------------------------------------------------------------------- */

/* The best kernels reach 3.0 of the data sheet's 3.35 TB/s (QuACK's norms on an H100: 3.01). */
static const double MEMORY = 3.0e12, DATA_SHEET = 3.35e12, PEAK = 989e12;

static const char LIBRARY[] = "est: cuBLASLt on H100 at a step's shapes; llm.c's 140 ms a step leave about 600",
                  PORTABLE[] = "est: FlashAttention-2, of the same instructions: 229 causal at T = 1024, D = 64",
                  EXPERTS[] = "est: mma.sync has 63 % of wgmma's peak",
                  NEAR_MEMORY[] = "est: a plain pass, 32 warps a processor, 16 bytes a load",
                  PARTIALS[] = "est: a barrier a batch of rows, partial sums that go through memory",
                  ROWS[] = "est: two blocks a processor, reading and writing in turns",
                  SCATTER[] = "est: sorted tokens, small kernels";

static const KernelRate TABLE[] = {
    /* The best public rate of a bf16 product of any shape is 794 TFLOP/s (80 %). Here K = 768 is short, and gradients
     * split K. */
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
    {"gelu_forward", FAMILY_POINTWISE, 1, 2.82e12, 3.0e12, 0, NEAR_MEMORY},
    {"gelu_backward", FAMILY_POINTWISE, 1, 2.82e12, 3.0e12, 0, NEAR_MEMORY},
    {"swiglu_forward", FAMILY_POINTWISE, 1, 2.82e12, 3.0e12, 0, NEAR_MEMORY},
    {"swiglu_backward", FAMILY_POINTWISE, 1, 2.82e12, 3.0e12, 0, NEAR_MEMORY},
    {"rope_forward", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"rope_backward", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_cast", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_gelu_forward", FAMILY_POINTWISE, 1, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
    {"fp8_gelu_backward", FAMILY_POINTWISE, 2, 2.6e12, 3.0e12, 0, NEAR_MEMORY},
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
/* Rates of attention on wgmma, used if this program's sources have those kernels. */
#if __has_include("layers/attention_hopper.h")
enum { HAS_WGMMA_ATTENTION = 1 };
#else
enum { HAS_WGMMA_ATTENTION = 0 };
#endif
static const struct { const char *op; double rate; const char *source; } WGMMA[] = {
    {"attention_forward", 265e12, "est: FlashAttention-3, of the same instructions: 265 causal at T = 1024, D = 64"},
    {"attention_backward", 230e12, "est: FlashAttention-3's 363 at T = 1024, D = 64, not causal; here 7 products for 5"},
    {"attention_backward", 300e12, "est: FlashAttention-3's 363 at T = 1024, D = 64, not causal; less 17 %: diagonal, last wave"}};
enum { WGMMA_ROWS = sizeof WGMMA / sizeof *WGMMA, BY_HEADS = WGMMA_ROWS - 1 };

/* Returns 1 if attention's backward computes five products: the condition of attention_by_heads on an H100
 * (layers/attention_hopper_heads.cu). The byte count is the only sign that heads do not share keys: qkv, dqkv and dy
 * have 16 bits a value. */
static int is_by_heads(const LedgerEntry *e) {
    double heads = (double)e->dim[0] * (double)e->dim[2], T = (double)e->dim[1], D = (double)e->dim[3],
           sums = fmin(heads, 132) * 4.0 * ceil(T / 64) * 64 * D;
    return 4 * heads >= 3 * ceil(heads / 132) * 132 && sums <= 40 << 20 && e->bytes >= 7 * 2.0 * D * heads * T;
}

enum { TABLE_ROWS = sizeof TABLE / sizeof *TABLE };
_Static_assert(sizeof TABLE <= sizeof ((KernelRates *)0)->row, "KernelRates has room for all");

const char *kernel_family_name(KernelFamily family) {
    static const char *const names[FAMILIES] = {"products", "attention", "norms", "pointwise", "bias gradients", "classifier",
                                                "embedding", "gradient norm, optimizer", "others"};
    return names[family];
}
int kernel_rate_is_flops(const KernelRate *rate) { return rate->family == FAMILY_PRODUCT || rate->family == FAMILY_ATTENTION; }

/* Returns the row of WGMMA for the entry, or -1 if its kernels are the portable ones or its rate is measured. */
static int place_in_wgmma(const KernelRate *rate, const LedgerEntry *e) {
    int is_wide = e->dim[3] == 64 || e->dim[3] == 128, by_heads = is_by_heads(e);
    for (int i = 0; i < BY_HEADS && HAS_WGMMA_ATTENTION && is_wide && rate->op && !rate->is_measured; i++)
        if (strcmp(WGMMA[i].op, rate->op) == 0) return by_heads && strcmp(rate->op, WGMMA[BY_HEADS].op) == 0 ? BY_HEADS : i;
    return -1;
}
double kernel_rate_now(const KernelRate *rate, const LedgerEntry *e) {
    int i = place_in_wgmma(rate, e);
    return i < 0 ? rate->rate : WGMMA[i].rate;
}
const char *kernel_rate_source(const KernelRate *rate, const LedgerEntry *e) {
    int i = place_in_wgmma(rate, e);
    return i < 0 ? rate->source : WGMMA[i].source;
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

typedef struct { const char *path; Json json; Faults faults; } Reading;

static void add_fault(Reading *r, const char *key, const char *text) {
    const JsonEntry *entry = json_entry(&r->json, key);
    Where            where = {.file = r->path};
    if (entry) where.at = entry->value;
    faults_add(&r->faults, where, "%s %s", key, text);
}

/* Reads a number within limits into *out. Returns 0 if the key is missing, or after it has recorded a fault. */
static int take_number(Reading *r, const char *key, const cJSON *node, double least, double most, double *out) {
    char text[200], shown[SHOWN_BYTES];
    if (!node) return 0;
    double value = cJSON_IsNumber(node) ? number_value(node) : -1.0;
    if (value >= least && value <= most) *out = value;
    else {
        snprintf(text, sizeof text, "= %.80s: a number from %g to %g is expected", value_text(node, shown), least, most);
        add_fault(r, key, text);
    }
    return value >= least && value <= most;
}

static void take_kernel(Reading *r, KernelRates *rates, const cJSON *node) {
    const char *names[RATES_MOST];
    char        key[160], text[160];
    int         count = 0;
    snprintf(key, sizeof key, "kernels.%.120s", node->string);
    for (int i = 0; i < rates->rows - 1; i++) {
        KernelRate *row = &rates->row[i];
        names[count++] = row->op;
        if (strcmp(row->op, node->string) != 0) continue;
        int is_flops = kernel_rate_is_flops(row);
        if (take_number(r, key, node, is_flops ? 1e9 : 1e6, is_flops ? 1e17 : 1e15, &row->rate))
            row->is_measured = 1, row->source = rates->source;
        return;
    }
    names[count] = NULL;
    snprintf(text, sizeof text, "is no operation of the table; the nearest is %s", nearest_word(node->string, names).word);
    add_fault(r, key, text);
}

static void take_key(Reading *r, KernelRates *rates, const cJSON *node) {
    const char *key = node->string;
    if (strcmp(key, "$comment") == 0) return;
    if (strcmp(key, "launch_s") == 0) take_number(r, key, node, 0.0, 1e-3, &rates->launch_s);
    else if (strcmp(key, "host_s") == 0) take_number(r, key, node, 0.0, 1.0, &rates->host_s);
    else if (strcmp(key, "kernels") == 0 && cJSON_IsObject(node)) {
        for (const cJSON *k = node->child; k; k = k->next) take_kernel(r, rates, k);
    } else if (strcmp(key, "kernels") == 0) add_fault(r, key, "must be an object of rates, as {\"attention_forward\": 3e14}");
    else if (strcmp(key, "source") != 0)
        add_fault(r, key, "is no key of a file of rates: source, launch_s, host_s and kernels are");
}

static void take_file(KernelRates *rates, const char *path) {
    Reading   r = {.path = path};
    JsonFault fault;
    char     *text = NULL;
    int64_t   bytes = io_read_input(path, JSON_LIMIT, &text);
    if (bytes < 0) fail(EXIT_CONFIG, "plan: rates=%s cannot be read: %s", path, io_error_text((int)bytes));
    if (!json_parse(text, (size_t)bytes, JSON_LIMIT, &r.json, &fault))
        fail(EXIT_CONFIG, "%s:%d:%d: %s", path, fault.at.line, fault.at.column, fault.text);
    if (!cJSON_IsObject(r.json.root)) fail(EXIT_CONFIG, "%s: a JSON object is expected", path);
    const cJSON *source = json_member(r.json.root, "source");
    if (cJSON_IsString(source) && *source->valuestring && strlen(source->valuestring) < RATES_SOURCE)
        snprintf(rates->source, RATES_SOURCE, "%s", source->valuestring);
    else add_fault(&r, "source", "must say where the rates were measured: card, commit, day; 1 to 127 bytes");
    for (const cJSON *node = r.json.root->child; node; node = node->next) take_key(&r, rates, node);
    if (r.faults.count > 0) fail_lines(EXIT_CONFIG, faults_take(&r.faults));
    json_free(&r.json);
    free(text);
}

KernelRates kernel_rates(const Cluster *cluster, const char *file) {
    KernelRates rates = {.rows = TABLE_ROWS, .launch_s = 1.2e-6, .launch_limit_s = 0.3e-6,
                         .host_s = 1e-4, .host_limit_s = 0.5e-4};
    double      of_h100 = cluster->bytes_per_s / DATA_SHEET;
    if (cluster->bf16 != PEAK || cluster->processors != 132)
        fail(EXIT_CONFIG, "plan: kernels=true has rates of H100 and H200 alone, and %s is another: gpu=h100, gpu=h200", cluster->gpu);
    memcpy(rates.row, TABLE, sizeof TABLE);
    for (int i = 0; i < rates.rows; i++)
        if (!kernel_rate_is_flops(&rates.row[i])) rates.row[i].rate *= of_h100, rates.row[i].limit *= of_h100;
    rates.bytes_per_s = MEMORY * of_h100;
    if (file) take_file(&rates, file);
    return rates;
}
