/* test_metrics_events.c - lines of metrics.jsonl besides steps: events; hours over resumes; bits per byte. */
#include "core/error.h"

#include <math.h>

#include "test/run/lib/metrics_folder.h"

/* A resumed run continues to count hours of training from the last line of the log. Hours of steps that were rolled
 * back count too. */
static void hours_go_on(void **state) {
    (void)state;
    Metrics *m = metrics_open(dir, 0, about);
    passed_s = 3600;
    log_steps(m, 0, 3);
    metrics_close(m);
    passed_s = 9000;
    m = metrics_open(dir, 2, about);
    passed_s += 1800;
    log_steps(m, 2, 4);
    metrics_rolled_back(m, 3, 4);
    passed_s += 1800;
    log_steps(m, 3, 4);
    metrics_close(m);
    char *text = read_text(path), *last = strstr(text, "\"step\":4,");
    assert_non_null(strstr(text, ",\"hours\":1.5,"));
    assert_non_null(strstr(last, ",\"hours\":2,"));
    free(text);
}

static void bits_per_byte_need_the_tokenizer(void **state) {
    (void)state;
    Metrics *m = metrics_open(dir, 0, (MetricsAbout){.bytes_per_token = NAN, .commit = ""});
    metrics_eval(m, 0, 5.5);
    metrics_close(m);
    char *text = read_text(path);
    assert_string_equal(text, "{\"kind\":\"eval\",\"step\":0,\"loss\":5.5,\"time\":1700000000.250}\n");
    free(text);
}

/* Events such as a save or a rollback have their own lines in metrics.jsonl, with the step at which they happened. A
 * resume cuts the events after its checkpoint, as it cuts steps. */
static void events_are_lines_of_their_own(void **state) {
    (void)state;
    Metrics *m = metrics_open(dir, 0, about);
    log_steps(m, 0, 2);
    metrics_skipped(m, 3, "step 3 skipped: \"nan\"");
    log_steps(m, 2, 4);
    metrics_event(m, "save", 3, &(Metric){"ms", 12.5}, 1);
    metrics_skipped(m, 5, "x");
    log_steps(m, 4, 5);
    metrics_rolled_back(m, 4, 6);
    metrics_close(m);
    char *text = read_text(path);
    assert_non_null(strstr(text, "{\"kind\":\"event\",\"event\":\"skip\",\"step\":3,\"time\":1700000000.250,"
                                 "\"why\":\"step 3 skipped: \\\"nan\\\"\"}\n{\"kind\":\"train\",\"step\":3,"));
    assert_non_null(strstr(text, "{\"kind\":\"event\",\"event\":\"save\",\"step\":3,\"time\":1700000000.250,\"ms\":12.5}\n"
                                 "{\"kind\":\"event\",\"event\":\"rollback\",\"step\":4,\"time\":1700000000.250,\"from\":6}\n"));
    assert_null(strstr(text, "\"step\":5,"));
    size_t bytes = strlen(text);
    free(text);
    m = metrics_open(dir, 4, about);
    assert_int_equal(io_file_bytes(path), bytes);
    metrics_event(m, "resume", 4, &(Metric){"ranks", 2}, 1);
    metrics_close(m);
    text = read_text(path);
    assert_string_equal(text + bytes, "{\"kind\":\"event\",\"event\":\"resume\",\"step\":4,\"time\":1700000000.250,\"ranks\":2}\n");
    free(text);
    metrics_close(metrics_open(dir, 3, about));
    text = read_text(path);
    assert_null(strstr(text, "rollback"));
    assert_non_null(strstr(text, "\"event\":\"skip\",\"step\":3,"));
    free(text);
}

/* An island (a training job of a server) that joins late: its log jumps to the step at which it joined, and a resume
 * cuts nothing. */
static void an_island_goes_on_later(void **state) {
    (void)state;
    Metrics *m = metrics_open(dir, 0, about);
    log_steps(m, 0, 2);
    metrics_joined(m, 7, 2);
    log_steps(m, 7, 9);
    metrics_close(m);
    char *text = read_text(path);
    assert_non_null(strstr(text, "{\"kind\":\"event\",\"event\":\"join\",\"step\":7,\"time\":1700000000.250,\"from\":2}\n"
                                 "{\"kind\":\"train\",\"step\":8,"));
    size_t bytes = strlen(text);
    free(text);
    m = metrics_open(dir, 9, about);
    assert_int_equal(io_file_bytes(path), bytes);
    log_steps(m, 9, 10);
    metrics_close(m);
}

static void a_long_reason_is_left_out(void **state) {
    (void)state;
    char why[3000];
    memset(why, '"', sizeof why - 1), why[sizeof why - 1] = 0;
    Metrics *m = metrics_open(dir, 0, about);
    metrics_skipped(m, 1, why);
    log_steps(m, 0, 1);
    metrics_close(m);
    char *text = read_text(path);
    assert_ptr_equal(strstr(text, "{\"kind\":\"event\",\"event\":\"skip\",\"step\":1,\"time\":1700000000.250}\n{"), text);
    free(text);
}

/* A line with the largest number of data sources and the longest numbers still fits in the reader's buffer. */
static void the_longest_line_is_read_back(void **state) {
    (void)state;
    StepMetrics s = {.step = 1, .tokens = INT64_MAX / 2, .loss = -1.23456789e-300, .lr = -1.23456789e-300, .grad_norm = -1.23456789e-300,
                     .tokens_per_s = -1.23456789e-300, .mfu = -1.23456789e-300, .ms = -1.23456789e-300,
                     .exchange.comm_ms = -1.23456789e-300, .exchange.exposed_ms = -1.23456789e-300, .has_sent = 1, .epoch = -1.23456789e-300,
                     .memory_bytes = INT64_MAX, .sources = BLEND_SOURCES};
    for (int a = 0; a < AXES; a++) s.mesh.size[a] = 2, s.exchange.ms[a] = s.exchange.waited_ms[a] = -1.23456789e-300, s.exchange.sent[a] = INT64_MAX;
    for (int i = 0; i < BLEND_SOURCES; i++) s.source_tokens[i] = INT64_MAX / 2;
    s.gpu.has = ~0u;
    for (int i = 0; i < GPU_READINGS; i++) s.gpu.value[i] = 1.23456789e300;
    s.gpu.value[GPU_MEMORY] = 9e18;
    Metrics *m = metrics_open(dir, 0, about);
    metrics_train(m, &s);
    metrics_close(m);
    char       *text = read_text(path), *sources = strstr(text, "\"source_tokens\":[4611686018427387903,");
    MetricsLine l;
    assert_non_null(sources);
    assert_int_equal(metrics_line_parse(text, strlen(text), &l), LINE_TRAIN);
    assert_in_range(strlen(text), 1000, METRICS_LINE_BYTES - 1);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hours_go_on, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(bits_per_byte_need_the_tokenizer, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(events_are_lines_of_their_own, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(an_island_goes_on_later, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_long_reason_is_left_out, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_longest_line_is_read_back, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("metrics_events", tests, NULL, NULL);
}
