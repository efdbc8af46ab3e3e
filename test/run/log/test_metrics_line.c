/* test_metrics_line.c - reading lines of metrics.jsonl: every field is read, and nothing is taken from a line that is
 * cut. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "run/log/run_log.h"

static LineKind parse(const char *line, MetricsLine *l) { return metrics_line_parse(line, strlen(line), l); }

static const char TRAIN[] =
    "{\"kind\":\"train\",\"step\":12,\"tokens\":4096,\"loss\":2.5,\"lr\":1e-05,\"grad_norm\":null,\"tokens_per_s\":45123,\"mfu\":0.5,"
    "\"ms\":22,\"comm_ms\":1,\"comm_exposed_ms\":0,\"sent\":{\"tensor\":0,\"loss\":[9,{\"a\":\"}\\\"\"}]},\"time\":1700000000.250,"
    "\"hours\":1.5,\"epoch\":0.25}\n";

static void every_field_is_read(void **state) {
    (void)state;
    MetricsLine l;
    assert_int_equal(parse(TRAIN, &l), LINE_TRAIN);
    assert_int_equal(l.step, 12);
    assert_int_equal(l.tokens, 4096);
    assert_true(l.loss == 2.5 && l.lr == 1e-5 && isnan(l.grad_norm) && l.tokens_per_s == 45123 && l.mfu == 0.5 &&
                l.ms == 22);
    assert_true(l.time == 1700000000.25 && l.hours == 1.5 && l.epoch == 0.25 && isnan(l.bpb));
    assert_int_equal(parse("{\"kind\":\"eval\",\"step\":0,\"loss\":5.5,\"bpb\":2}\r\n", &l), LINE_EVAL);
    assert_true(l.step == 0 && l.loss == 5.5 && l.bpb == 2 && isnan(l.time) && l.tokens == -1);
    assert_int_equal(parse("{\"kind\":\"event\",\"event\":\"skip\",\"step\":7,\"why\":\"a, \\\"b\\\": }\"}\n", &l),
                     LINE_EVENT);
    assert_true(l.step == 7 && strcmp(l.event, "skip") == 0);
    assert_int_equal(parse("{\"kind\":\"outer\",\"round\":3,\"step\":30,\"islands\":2,\"staleness\":0,\"norm\":0.5,\"ms\":70,"
                           "\"tokens_per_s\":900,\"tokens\":640,\"loss\":2.25,\"time\":5,\"hours\":1}\n", &l), LINE_OUTER);
    assert_true(l.round == 3 && l.step == 30 && l.tokens == 640 && l.loss == 2.25 && l.ms == 70 && l.tokens_per_s == 900);
}

static void other_lines_are_none(void **state) {
    (void)state;
    static const char *const OTHERS[] = {"\n",
                                         "garbage\n",
                                         "{}\n",
                                         "{\"kind\": \"train\"}\n",
                                         "{\"kind\":\"note\",\"step\":1,\"loss\":1}\n",
                                         "{\"step\":1,\"kind\":\"train\",\"loss\":1}\n",
                                         "{\"kind\":\"train\",\"step\":1}\n",
                                         "{\"kind\":\"train\",\"loss\":1}\n",
                                         "{\"kind\":\"train\",\"step\":-1,\"loss\":1}\n",
                                         "{\"kind\":\"train\",\"step\":1.5,\"loss\":1}\n",
                                         "{\"kind\":\"train\",\"step\":1,\"loss\":}\n",
                                         "{\"kind\":\"train\",\"step\":1,\"loss\":1} 2\n",
                                         "{ \"kind\":\"train\",\"step\":1,\"loss\":1}\n",
                                         "{\"kind\":\"train\",\"step\":1e30,\"loss\":1}\n",
                                         "{\"kind\":\"train\",\"step\":1,\"loss\":\"1\"}\n",
                                         "{\"kind\":\"train\",\"step\":1,\"loss\":1}",
                                         "{\"kind\":\"train\",\"step\":1,\"loss\":1}}\n",
                                         "{\"kind\":\"event\",\"step\":1}\n",
                                         "{\"kind\":\"event\",\"event\":\"a word far too long\",\"step\":1}\n"};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) {
        MetricsLine l;
        assert_int_equal(parse(OTHERS[i], &l), LINE_OTHER);
    }
}

/* A line that is cut anywhere, or in which any byte is zero, does not count as one of the program's lines. */
static void torn_lines_are_none(void **state) {
    (void)state;
    char        cut[sizeof TRAIN];
    MetricsLine l;
    for (size_t bytes = 0; bytes < sizeof TRAIN - 1; bytes++) {
        memcpy(cut, TRAIN, bytes);
        assert_int_equal(metrics_line_parse(cut, bytes, &l), LINE_OTHER);
        cut[bytes] = '\n';
        assert_int_equal(metrics_line_parse(cut, bytes + 1, &l), bytes == sizeof TRAIN - 2 ? LINE_TRAIN : LINE_OTHER);
        memcpy(cut, TRAIN, sizeof TRAIN);
        cut[bytes] = 0;
        assert_int_equal(metrics_line_parse(cut, sizeof TRAIN - 1, &l), LINE_OTHER);
    }
}

/* Reads a file of lines. Lines of another format, lines that are too long and a last line that is cut are skipped. */
static void a_file_is_read(void **state) {
    (void)state;
    static char long_line[20000];
    memset(long_line, 'x', sizeof long_line - 1);
    FILE *f = tmpfile();
    assert_non_null(f);
    fprintf(f, "{\"kind\":\"train\",\"step\":1,\"loss\":5.5}\n{\"kind\":\"event\",\"event\":\"save\",\"step\":1}\nnonsense\n\n%s\n", long_line);
    fprintf(f, "{\"kind\":\"eval\",\"step\":1,\"loss\":4.25}\n%s{\"kind\":\"train\",\"step\":3,\"loss\":1}\n", long_line);
    fprintf(f, "{\"kind\":\"train\",\"step\":4,\"loss\":4.5}\n{\"kind\":\"train\",\"step\":5,\"lo");
    rewind(f);
    static const LineKind KINDS[] = {LINE_TRAIN, LINE_EVENT, LINE_EVAL, LINE_TRAIN, LINE_OTHER};
    static const int      STEPS[] = {1, 1, 1, 4};
    MetricsLine l;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(metrics_line_next(f, &l), KINDS[i]);
        if (i < 4) assert_int_equal(l.step, STEPS[i]);
    }
    rewind(f);
    assert_true(metrics_line_find(f, LINE_TRAIN, &l) && l.step == 1);
    assert_true(metrics_line_find(f, LINE_TRAIN, &l) && l.step == 4);
    assert_false(metrics_line_find(f, LINE_TRAIN, &l));
    fclose(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_is_read),
        cmocka_unit_test(other_lines_are_none),
        cmocka_unit_test(torn_lines_are_none),
        cmocka_unit_test(a_file_is_read),
    };
    return cmocka_run_group_tests_name("metrics_line", tests, NULL, NULL);
}
