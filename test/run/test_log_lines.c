/* test_log_lines.c - lines of metrics.jsonl: fields in any order; lines of other kinds, torn and foreign ones. */
#include "run/log_lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_lines(void **state) {
    (void)state;
    static char long_line[20000];
    memset(long_line, 'x', sizeof long_line - 1);
    FILE *f = tmpfile();
    assert_non_null(f);
    fprintf(f, "{\"kind\":\"train\",\"step\":1,\"tokens\":480,\"loss\":5.5,\"lr\":1e-3}\n");
    fprintf(f, "{\"kind\":\"resume\",\"step\":1,\"time\":1}\nnonsense\n\n%s\n", long_line);
    fprintf(f, "{\"time\":17,\"kind\":\"train\",\"val_loss\":9,\"loss\":null,\"step\":2}\n");
    fprintf(f, "{\"kind\":\"eval\",\"step\":2,\"loss\":4.25,\"bpb\":1.5}\n");
    fprintf(f, "%s{\"kind\":\"train\",\"step\":3,\"loss\":1}\n", long_line);
    fprintf(f, "{\"kind\":\"train\",\"step\":4,\"loss\":4.5}\n{\"kind\":\"train\",\"step\":5,\"lo");
    rewind(f);
    LogLine line;
    assert_int_equal(log_line_next(f, &line), 1);
    assert_true(line.kind == LOG_TRAIN && line.step == 1 && line.loss == 5.5);
    assert_int_equal(log_line_next(f, &line), 1);
    assert_true(line.kind == LOG_TRAIN && line.step == 2 && isnan(line.loss));
    assert_int_equal(log_line_next(f, &line), 1);
    assert_true(line.kind == LOG_EVAL && line.step == 2 && line.loss == 4.25);
    assert_int_equal(log_line_next(f, &line), 1);
    assert_true(line.kind == LOG_TRAIN && line.step == 4 && line.loss == 4.5);
    assert_int_equal(log_line_next(f, &line), 0);
    rewind(f);
    int64_t steps[3] = {1, 2, 4};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(log_step_next(f, &line), 1);
        assert_true(line.step == steps[i]);
    }
    assert_int_equal(log_step_next(f, &line), 0);
    fclose(f);
}

int main(void) {
    const struct CMUnitTest all[] = {cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests_name("log_lines", all, NULL, NULL);
}
