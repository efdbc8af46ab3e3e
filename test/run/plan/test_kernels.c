/* test_kernels.c - the time of a training step computed kernel by kernel. The lower bounds of the step of GPT-2 124M on
 * an H100 equal those computed by hand. Measured rates replace estimates. Faulty files of rates are refused with the
 * line and column of the fault. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "run/plan/kernels.h"
#include "test/run/plan/bad_files.h"

enum { B = 64, T = 1024, H = 12, D = 64, N = B * T, C = H * D, V = 50304, L = 12 };
static const double U = 2.0 * N * C; /* bytes of activations [N, C] in 16 bits */

static void product(Ledger *l, const char *op, int64_t m, int64_t n, int64_t k, int64_t count) {
    ledger_note(l, (LedgerEntry){.op = op, .dim = {m, n, k}, .flops = 2.0 * (double)m * (double)n * (double)k, .count = count});
}
static void pass(Ledger *l, const char *op, double bytes, int64_t count) {
    ledger_note(l, (LedgerEntry){.op = op, .dim = {N, C}, .bytes = bytes, .count = count});
}
static void attention(Ledger *l, const char *op, double products) {
    ledger_note(l, (LedgerEntry){.op = op, .dim = {B, T, H, D}, .flops = products * N * C * (T + 1.0), .count = L});
}

/* Lists the operations of one training step with one micro-batch, with the output head in one chunk. */
static Ledger gpt2_step(void) {
    Ledger l = {0};
    static const int64_t widths[4][2] = {{C, 3 * C}, {C, C}, {C, 4 * C}, {4 * C, C}};
    for (int i = 0; i < 4; i++) {
        /* the forward product, then the product for the gradient of the input, with n and k exchanged */
        product(&l, "matmul", N, widths[i][1], widths[i][0], L);
        product(&l, "matmul", N, widths[i][0], widths[i][1], L);
        product(&l, "matmul, added", widths[i][0], widths[i][1], N, L);
    }
    product(&l, "matmul", N, V, C, 1);
    product(&l, "matmul", N, C, V, 1);
    product(&l, "matmul, added", V, C, N, 1);
    attention(&l, "attention_forward", 2);
    attention(&l, "attention_backward", 5);
    pass(&l, "attention_delta", 2 * U, L);
    pass(&l, "residual_layernorm_forward", 4 * U, 2 * L);
    pass(&l, "layernorm_forward", 2 * U, 1);
    pass(&l, "layernorm_backward", 4 * U, 2 * L);
    pass(&l, "layernorm_backward", 3 * U, 1);
    pass(&l, "activation_forward", 8 * U, L);
    pass(&l, "bias_backward", 9 * U, L);
    pass(&l, "classifier_forward_backward", 2.0 * 2 * N * V, 1);
    return l;
}

static double limit_ms(const StepTimes *t, const char *op, int64_t least_width, int64_t most_width) {
    double s = 0.0;
    for (int i = 0; i < t->kernels; i++) {
        const LedgerEntry *e = t->kernel[i].entry;
        int64_t            widest = 0; /* largest dimension of the product except N, the number of tokens */
        for (int d = 0; d < 3; d++)
            if (e->dim[d] > widest && e->dim[d] != N) widest = e->dim[d];
        if (strcmp(e->op, op) == 0 && widest >= least_width && widest < most_width) s += t->kernel[i].limit_s;
    }
    return s * 1e3;
}

/* Checks the shortest possible times of kernels on an H100, in ms, against those computed by hand from FLOPs, bytes and
 * published rates. */
static void limits_are_those_worked_out(void **state) {
    (void)state;
    Cluster     h100 = cluster_load("dgx-h100");
    KernelRates rates = kernel_rates(&h100, NULL);
    Ledger      step = gpt2_step();
    StepTimes   t = kernels_times(&step, &rates);
    const struct { const char *op; int64_t least, most; double ms; } rows[] = {
        {"matmul", 0, V, 29.8},        {"matmul, added", 0, V, 15.1},
        {"matmul", V, V + 1, 13.3},    {"matmul, added", V, V + 1, 6.8},
        {"attention_forward", 0, V, 3.1}, {"attention_backward", 0, V, 9.4},
        {"attention_delta", 0, V, 0.8},
        {"residual_layernorm_forward", 0, V, 3.3 * 96 / 98}, {"layernorm_backward", 0, V, 3.3},
        {"activation_forward", 0, V, 3.2}, {"bias_backward", 0, V, 3.6},
        {"classifier_forward_backward", 0, V, 4.4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double ms = limit_ms(&t, rows[i].op, rows[i].least, rows[i].most);
        if (fabs(ms - rows[i].ms) > 0.03 * rows[i].ms) fail_msg("%s: a limit of %.3f ms, not of %.1f", rows[i].op, ms, rows[i].ms);
    }
    for (int i = 0; i < t.kernels; i++) {
        assert_true(t.kernel[i].seconds >= t.kernel[i].limit_s && t.kernel[i].limit_s > 0);
        assert_true(i == 0 || t.kernel[i].seconds <= t.kernel[i - 1].seconds);
    }
    kernels_free(&t);
    ledger_free(&step);
}

static int is_near(double a, double b) { return fabs(a - b) <= 1e-12 * fabs(b); }

/* A kernel's time is that of its FLOPs or of its bytes, whichever is longer. Bytes use the memory rate of the card. An
 * operation without a measured rate is timed by its bytes. */
static void times_follow_flops_bytes_and_launches(void **state) {
    (void)state;
    Cluster     h100 = cluster_load("dgx-h100"), h200 = cluster_load("dgx-h200");
    KernelRates rates = kernel_rates(&h100, NULL), wide = kernel_rates(&h200, NULL);
    Ledger      l = {0};
    ledger_note(&l, (LedgerEntry){.op = "matmul", .dim = {8, 8, 8}, .flops = 643e12, .bytes = 1.0});
    ledger_note(&l, (LedgerEntry){.op = "matmul", .dim = {8, 8, 9}, .flops = 1.0, .bytes = 6e12});
    ledger_note(&l, (LedgerEntry){.op = "attention_backward", .dim = {10, 10, 10, 100}, .flops = 330e12, .count = 2});
    LedgerEntry wide_heads = {.op = "attention_backward", .dim = {1, 1, 1, 128}},
                odd_heads = {.op = "attention_backward", .dim = {1, 1, 1, 96}};
    const KernelRate *backward = kernel_rate_of(&rates, "attention_backward");
    assert_true(kernel_rate_for(*backward, &odd_heads).rate == 165e12 && kernel_rate_for(*backward, &wide_heads).rate >= 165e12);
    ledger_note(&l, (LedgerEntry){.op = "of tomorrow", .dim = {1}, .bytes = 4.8e12});
    ledger_note(&l, (LedgerEntry){.op = "all-gather", .group = "shard", .bytes = 1e15});
    StepTimes t = kernels_times(&l, &rates), w = kernels_times(&l, &wide);
    assert_int_equal(t.kernels, 4);
    double sum = 1.0 + 6.0 / 3.0 + 2.0 * 2.0 + 2.0;
    assert_true(is_near(t.kernel[0].seconds, 4.0));
    assert_int_equal(t.launches, 1 + 1 + 2 * 3 + 1);
    assert_true(is_near(t.gaps_s, 9 * 1.2e-6 + 1e-4) && is_near(t.seconds, sum + t.gaps_s));
    double more = 4.8 / 3.35; /* ratio of the memory rates of H200 and H100, in TB/s */
    assert_true(is_near(w.seconds, 1.0 + 2.0 / more + 4.0 + 2.0 / more + w.gaps_s));
    kernels_free(&t), kernels_free(&w);
    ledger_free(&l);
}

/* The backward pass of attention has a higher rate for sizes at which layers/attention_hopper_heads.cu computes five
 * matrix products per tile instead of seven. */
static void five_products_have_a_rate_of_their_own(void **state) {
    (void)state;
    static const struct { int64_t heads, T, D; int is_five; } cases[] = {{768, 1024, 64, 1}, {264, 576, 128, 1}, {264, 577, 128, 0},
                                                                         {100, 700, 128, 1}, {98, 512, 128, 0},  {160, 512, 64, 0}};
    Cluster           h100 = cluster_load("dgx-h100");
    KernelRates       rates = kernel_rates(&h100, NULL);
    const KernelRate *backward = kernel_rate_of(&rates, "attention_backward");
    LedgerEntry       shared = {.dim = {1, 576, 264, 128}, .bytes = 4.0 * 2 * 576 * 264 * 128};
    double            slower = kernel_rate_for(*backward, &shared).rate;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        LedgerEntry e = {.dim = {1, cases[i].T, cases[i].heads, cases[i].D}};
        e.bytes = 8.0 * 2 * (double)(cases[i].heads * cases[i].T * cases[i].D);
        assert_int_equal(kernel_rate_for(*backward, &e).rate > slower, cases[i].is_five);
    }
}

/* --- files -------------------------------------------------------------------------------------------------------- */

static void measured_rates_take_the_place(void **state) {
    (void)state;
    /* Files of rates from before the key model.activation existed call activation_forward gelu_forward. */
    write_file("{\"source\": \"H100 80GB, 3f2a\", \"launch_s\": 2e-6, \"host_s\": 0, "
               "\"kernels\": {\"matmul, added\": 7e14, \"gelu_forward\": 1.5e12}}");
    Cluster           h100 = cluster_load("dgx-h100");
    KernelRates       rates = kernel_rates(&h100, path);
    const KernelRate *added = kernel_rate_of(&rates, "matmul, added"), *gelu = kernel_rate_of(&rates, "activation_forward"),
                     *plain = kernel_rate_of(&rates, "matmul");
    assert_true(added->rate == 7e14 && added->is_measured && gelu->rate == 1.5e12 && gelu->is_measured && !plain->is_measured);
    assert_true(rates.launch_s == 2e-6 && rates.host_s == 0.0);
    assert_string_equal(rates.source, "H100 80GB, 3f2a");
    /* finds the row of rates whose name is the longest prefix of the operation's name */
    assert_ptr_equal(kernel_rate_of(&rates, "matmul, added to a bias"), added);
    assert_ptr_equal(kernel_rate_of(&rates, "matmul, gelu"), plain);
    assert_null(kernel_rate_of(&rates, "mat")->op);
    unlink(path);
}

static void load(void *name) {
    dup2(STDERR_FILENO, STDOUT_FILENO);
    Cluster h100 = cluster_load("dgx-h100");
    kernel_rates(&h100, (const char *)name);
}
static void load_a100(void *unused) {
    (void)unused;
    dup2(STDERR_FILENO, STDOUT_FILENO);
    Cluster a100 = cluster_load("dgx-a100");
    kernel_rates(&a100, NULL);
}

static void faults_are_told(void **state) {
    (void)state;
    static const BadFile cases[] = {
        {"{", "1:2", 1},
        {"[1]", "object", 1},
        {"{}", "source must say", 1},
        {"{\"source\": \"x\", \"launch_s\": -1}", "launch_s = -1: a number from 0 to 0.001", 1},
        {"{\"source\": \"x\", \"launches\": 1}", "launches is no key of a file of rates", 1},
        {"{\"source\": \"x\", \"kernels\": []}", "kernels must be an object", 1},
        {"{\"source\": \"x\", \"kernels\": {\"activation_foward\": 1e12}}", "the nearest is activation_forward", 1},
        {"{\"source\": \"x\", \"kernels\": {\"matmul\": 5, \"gelu_forward\": \"fast\"}}", "kernels.gelu_forward = ", 2}};
    expect_refusals(cases, sizeof cases / sizeof *cases, load);
    Child gone = child_run(load, (void *)"/tmp/there-are-no-rates.json"), other = child_run(load_a100, NULL);
    assert_true(gone.code == EXIT_CONFIG && strstr(gone.said, "cannot be read"));
    assert_true(other.code == EXIT_CONFIG && strstr(other.said, "gpu=h100"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_are_those_worked_out),
        cmocka_unit_test(times_follow_flops_bytes_and_launches), cmocka_unit_test(five_products_have_a_rate_of_their_own), cmocka_unit_test(measured_rates_take_the_place),
        cmocka_unit_test(faults_are_told),
    };
    return cmocka_run_group_tests_name("kernels", tests, NULL, NULL);
}
