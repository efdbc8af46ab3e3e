/* kernels.c - see kernels.h. */
#include "run/plan/kernels.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/json_text.h"
#include "core/terminal.h"
#include "core/xalloc.h"
#include "model/precision.h"

/* --- times -------------------------------------------------------------------------------------------------------- */

static double longer(double a, double b) { return a > b ? a : b; }

static double seconds_at(const LedgerEntry *e, const KernelRate *rate, double r, double bytes_per_s) {
    if (!kernel_rate_is_flops(rate)) return e->bytes / r;
    return longer(e->flops / r, e->bytes / bytes_per_s);
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
        if (e->kind != LEDGER_OP || *e->group) continue; /* bytes between ranks are left to the simulator */
        KernelTime k = {e, rate, e->count * rate->launches,
                        calls * seconds_at(e, rate, kernel_rate_now(rate, e), rates->bytes_per_s),
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

static void print_row(const char *mark, const char *what, const char *sizes, int64_t calls, int64_t launches, double s,
                      double limit_s) {
    printf("%-8s %-28s %-24s %6lld %8lld %9.3f %9.3f %9.3f\n", mark, what, sizes, (long long)calls, (long long)launches, s * 1e3,
           limit_s * 1e3, (s - limit_s) * 1e3);
}

/* Returns "65536 x 2304 x 768". */
static PlanText sizes_text(const LedgerEntry *e) {
    PlanText t = {""};
    size_t   used = 0;
    for (int d = 0; d < LEDGER_DIMS && e->dim[d] && used < sizeof t.text; d++)
        used += (size_t)snprintf(t.text + used, sizeof t.text - used, "%s%lld", d ? " x " : "", (long long)e->dim[d]);
    return t;
}

static const char *mark_of(const KernelRate *rate) { return rate->is_measured ? "measured" : "estimate"; }

static void print_kernels(const StepTimes *t) {
    enum { WORTH_A_LINE = 1000 }; /* an operation with less than 1 / 1000 of the step shares a line with others */
    int64_t calls = 0, launches = 0;
    double  seconds = 0, limit_s = 0;
    int     rest = 0;
    printf("%-8s %-28s %-24s %6s %8s %9s %9s %9s\n", "", "operation", "sizes", "calls", "launches", "ms", "limit ms", "left ms");
    for (int i = 0; i < t->kernels; i++) {
        const KernelTime *k = &t->kernel[i];
        if (k->seconds * WORTH_A_LINE < t->seconds) {
            calls += k->entry->count, launches += k->launches, seconds += k->seconds, limit_s += k->limit_s, rest++;
            continue;
        }
        print_row(mark_of(k->rate), k->entry->op, sizes_text(k->entry).text, k->entry->count, k->launches, k->seconds, k->limit_s);
    }
    if (rest) print_row("estimate", "smaller ones", "", calls, launches, seconds, limit_s);
    print_row("estimate", "gaps, the host's turn", "", 0, t->launches, t->gaps_s, t->gaps_limit_s);
}

static void print_families(const StepTimes *t) {
    printf("\n");
    for (int f = 0; f < FAMILIES; f++) {
        int64_t calls = 0, launches = 0;
        double  seconds = 0, limit_s = 0;
        int     measured = 1;
        for (int i = 0; i < t->kernels; i++) {
            const KernelTime *k = &t->kernel[i];
            if ((int)k->rate->family != f) continue;
            calls += k->entry->count, launches += k->launches, seconds += k->seconds, limit_s += k->limit_s;
            measured &= k->rate->is_measured;
        }
        if (calls)
            print_row(measured ? "measured" : "estimate", kernel_family_name((KernelFamily)f), "", calls, launches, seconds, limit_s);
    }
    print_row("estimate", "gaps, the host's turn", "", 0, t->launches, t->gaps_s, t->gaps_limit_s);
}

/* Returns 1 for GPT-2 124M in bf16 on one H100, the model and card of the goal. */
static int has_goal(const Config *c, const Cluster *cluster, DType act, int ranks) {
    ModelShape s = c->model.shape;
    return ranks == 1 && act == BF16 && strcmp(cluster->name, "dgx-h100") == 0 && s.arch == ARCH_GPT2 && s.n_layer == 12 &&
           s.n_embd == 768 && s.vocab_size == 50257 && c->batch.seq_len == 1024;
}

typedef struct { double tokens, tokens_per_s, limit_tokens_per_s, mfu; } StepRates;

static StepRates rates_of(const Config *c, const Cluster *cluster, DType act, int ranks, const StepTimes *t) {
    StepRates r = {.tokens = (double)c->batch.global_tokens / config_datas(c, ranks)};
    r.tokens_per_s = r.tokens / t->seconds, r.limit_tokens_per_s = r.tokens / t->limit_s;
    r.mfu = model_flops_per_token(c->model.shape, c->batch.seq_len) * r.tokens_per_s / ranks * config_datas(c, ranks) /
            cluster_flops(cluster, act, c->precision == PRECISION_TF32);
    return r;
}

static void print_plan(const Config *c, const Cluster *cluster, DType act, int ranks, const KernelRates *rates, const StepTimes *t) {
    StepRates   r = rates_of(c, cluster, act, ranks, t);
    const char *mark = "estimate";
    print_plain(stdout, "plan of %s, one step of one GPU of %s, %s, kernel by kernel: an estimate\n", c->path, cluster->gpu, dtype_name(act));
    print_plain(stdout, "rates        %s%s\n\n", *rates->source ? "measured ones: " : "none is measured", rates->source);
    print_kernels(t);
    print_families(t);
    print_row(mark, "sum", "", 0, t->launches, t->seconds, t->limit_s);
    printf("\n%-12s %.0f tokens/s%s, MFU %.1f %%; with every kernel at its limit %.0f\n", mark, r.tokens_per_s,
           ranks > 1 ? " of one GPU, without exchange" : "", 100.0 * r.mfu, r.limit_tokens_per_s);
    if (has_goal(c, cluster, act, ranks)) {
        double goal_ms = r.tokens / KERNELS_GOAL * 1e3, left = t->seconds * 1e3 - goal_ms;
        printf("%-12s this project's goal of %d tokens/s is %.1f ms a step: %.1f ms %s\n", mark, KERNELS_GOAL, goal_ms, left < 0 ? -left : left,
               left > 0 ? "to go" : "below it");
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
        cJSON_AddStringToObject(one, "family", kernel_family_name(k->rate->family));
        cJSON_AddNumberToObject(one, "calls", (double)k->entry->count);
        cJSON_AddNumberToObject(one, "launches", (double)k->launches);
        cJSON_AddItemToObject(one, "ms", number_json(k->seconds * 1e3));
        cJSON_AddItemToObject(one, "limit_ms", number_json(k->limit_s * 1e3));
        cJSON_AddBoolToObject(one, "measured", k->rate->is_measured);
        cJSON_AddStringToObject(one, "source", kernel_rate_source(k->rate, k->entry));
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

void kernels_plan(const Config *c, int ranks, KernelsAsked asked) {
    if (strcmp(device_backend(), "cpu") == 0)
        fail(EXIT_CONFIG, "plan: kernels=true counts the kernels of a GPU, and this build has those of the CPU: make BACKEND=emu "
             "(no GPU is needed) or BACKEND=cuda, and build/emu/train_gpt plan ...");
    Cluster     on = cluster_of_gpu(asked.gpu, ranks, asked.nodes), *cluster = &on;
    DType       act = precision_resolve((Precision)c->precision, cluster->bf16 > 0).act;
    if (act == F32)
        fail(EXIT_CONFIG, "plan: kernels=true has rates of 16-bit products alone: precision=bf16 or fp16");
    KernelRates rates = kernel_rates(cluster, asked.rates);
    int64_t     micro_steps = c->batch.global_tokens / (c->batch.micro_batch * c->batch.seq_len * config_datas(c, ranks));
    Ledger      step = {.is_elsewhere = 1};
    model_dry(config_model_spec(c, act, ranks, 0, NULL), micro_steps, &step);
    StepTimes t = kernels_times(&step, &rates);
    if (asked.json) print_json(c, cluster, act, ranks, &t);
    else print_plan(c, cluster, act, ranks, &rates, &t);
    kernels_free(&t);
    ledger_free(&step);
}
