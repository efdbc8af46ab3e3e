/* test_metrics.c - metrics.jsonl: exact lines, and a file that is correct again after any kill and resume. */
#include "core/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h> /* after error.h, because cmocka's macro fail() would change the declarations there */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/io.h"
#include "run/log/metrics.h"
#include "test/run/lib/child.h"
#include "test/run/lib/metrics_folder.h"

static void write_text(const char *text, size_t bytes) {
    int fd = io_open(path, IO_CREATE);
    assert_true(fd >= 0);
    assert_int_equal(io_write(fd, text, bytes), 0);
    assert_int_equal(io_close(fd), 0);
}

static char *unbroken(int64_t steps) {
    Metrics *m = metrics_open(dir, 0, about);
    metrics_eval(m, 0, 5.6);
    log_steps(m, 0, steps);
    metrics_draw(m);
    metrics_close(m);
    return read_text(path);
}

static void lines_are_exact(void **state) {
    (void)state;
    Metrics *m = metrics_open(dir, 0, about);
    metrics_eval(m, 0, 5.54517744);
    metrics_train(m, &(StepMetrics){.step = 1, .tokens = 12288, .loss = 5.5451774444795623, .lr = 4e-5, .grad_norm = 1.0 / 3,
                                    .tokens_per_s = 45123.456789, .mfu = 0.6321, .ms = 272.25, .exchange.comm_ms = 0.125, .epoch = 0.5});
    passed_s = 1800;
    metrics_train(m, &(StepMetrics){.step = 2, .tokens = 24576, .loss = NAN, .lr = 1e-05, .grad_norm = INFINITY, .tokens_per_s = -INFINITY,
                                    .mfu = 1e300, .ms = 1e-300, .mesh.size[AXIS_REPLICA] = 2, .has_sent = 1,
                                    .exchange = {.comm_ms = -0.5, .exposed_ms = 123456789012.0, .ms = {[AXIS_REPLICA] = 1.5},
                                                 .sent = {[AXIS_SHARD] = INT64_MAX, [AXIS_REPLICA] = 7}}, .epoch = 1, .memory_bytes = 6000000001,
                                    .gpu = {1u << GPU_POWER | 1u << GPU_MEMORY, {0, 312.5, 5368709121, 0}}});
    metrics_eval(m, 2, NAN);
    char *text = read_text(path); /* each line is in the file as soon as it was logged */
    assert_string_equal(text,
        "{\"kind\":\"eval\",\"step\":0,\"loss\":5.54517744,\"bpb\":2,\"time\":1700000000.250}\n"
        "{\"kind\":\"train\",\"step\":1,\"tokens\":12288,\"loss\":5.54517744,\"lr\":4e-05,\"grad_norm\":0.333333333,"
        "\"tokens_per_s\":45123.4568,\"mfu\":0.6321,\"ms\":272.25,\"comm_ms\":0.125,\"comm_exposed_ms\":0,"
        "\"time\":1700000000.250,\"hours\":0,\"epoch\":0.5}\n"
        "{\"kind\":\"train\",\"step\":2,\"tokens\":24576,\"loss\":null,\"lr\":1e-05,\"grad_norm\":null,"
        "\"tokens_per_s\":null,\"mfu\":1e+300,\"ms\":1e-300,\"comm_ms\":-0.5,\"comm_exposed_ms\":1.23456789e+11,\"replica_ms\":1.5,"
        "\"sent\":{\"tensor\":0,\"context\":0,\"shard\":9223372036854775807,\"replica\":7,\"stage\":0},"
        "\"time\":1700001800.250,\"hours\":0.5,\"epoch\":1,"
        "\"memory_bytes\":6000000001,\"gpu_power_w\":312.5,\"gpu_memory_bytes\":5368709121}\n"
        "{\"kind\":\"eval\",\"step\":2,\"loss\":null,\"bpb\":null,\"time\":1700001800.250}\n");
    free(text);
    char fault[METRICS_FAULT_BYTES];
    assert_true(metrics_catch_up(m, fault) && fsync(metrics_fd(m)) == 0 && strstr(metrics_path(m), "metrics.jsonl"));
    metrics_close(m);
}

static void a_new_run_starts_the_file_anew(void **state) {
    (void)state;
    free(unbroken(20));
    metrics_close(metrics_open(dir, 0, about));
    assert_int_equal(io_file_bytes(path), 0);
}

/* The run is killed after any byte that follows the lines of step 20. A resume at step 20 repeats the later steps, and
 * the file is then equal to that of a run that was never killed. */
static void any_kill_resumes_to_the_same_file(void **state) {
    (void)state;
    char  *whole = unbroken(30);
    size_t bytes = strlen(whole), kept = (size_t)(strstr(whole, "{\"kind\":\"train\",\"step\":21,") - whole);
    for (size_t cut = kept; cut <= bytes; cut++) {
        write_text(whole, cut);
        Metrics *m = metrics_open(dir, 20, about);
        assert_int_equal(io_file_bytes(path), kept);
        log_steps(m, 20, 30);
        metrics_close(m);
        char *text = read_text(path);
        assert_string_equal(text, whole);
        free(text);
    }
    free(whole);
}

static void a_hole_of_zero_bytes_is_cut(void **state) {
    (void)state;
    char *whole = unbroken(20);
    char  hole[300] = {0};
    hole[299] = '\n';
    int fd = io_open(path, IO_APPEND);
    assert_int_equal(io_write(fd, hole, sizeof hole), 0);
    io_close(fd);
    Metrics *m = metrics_open(dir, 25, about);
    assert_int_equal(io_file_bytes(path), strlen(whole));
    log_steps(m, 25, 26);
    metrics_close(m);
    free(whole);
}

static long peak_kib(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss;
}

/* A power failure may leave the file extended by many zero bytes, without a newline. They are not read as a line, which
 * would need much memory. */
static void a_large_hole_costs_no_memory(void **state) {
    (void)state;
    char *whole = unbroken(20);
    long  before = peak_kib();
    assert_int_equal(truncate(path, 64 << 20), 0);
    assert_int_equal(metrics_lack_eval(dir, 20, LINE_EVAL), 0);
    metrics_close(metrics_open(dir, 20, about));
    assert_in_range(peak_kib() - before, 0, 8 << 10);
    char *text = read_text(path);
    assert_string_equal(text, whole);
    free(text);
    free(whole);
}

/* A line in this program's format that is longer than any real one is cut off at a resume. */
static void a_longer_line_is_cut(void **state) {
    (void)state;
    char *whole = unbroken(20), line[2 * METRICS_LINE_BYTES];
    int   fd = io_open(path, IO_APPEND),
        n = snprintf(line, sizeof line, "{\"kind\":\"train\",\"step\":21,\"loss\":1,\"x\":\"%*s\"}\n", METRICS_LINE_BYTES, "");
    assert_int_equal(io_write(fd, line, (size_t)n), 0);
    io_close(fd);
    metrics_close(metrics_open(dir, 25, about));
    assert_int_equal(io_file_bytes(path), strlen(whole));
    free(whole);
}

static void lines_out_of_order_are_cut(void **state) {
    (void)state;
    char *whole = unbroken(20), *line = strstr(whole, "{\"kind\":\"train\",\"step\":5,");
    int   fd = io_open(path, IO_APPEND);
    assert_int_equal(io_write(fd, line, (size_t)(strchr(line, '\n') + 1 - line)), 0);
    io_close(fd);
    metrics_close(metrics_open(dir, 20, about));
    char *text = read_text(path);
    assert_string_equal(text, whole);
    free(text);
    free(whole);
}

/* Lines of other programs between the program's own lines are kept, and do not make a resume cut any lines. */
static void strange_lines_in_the_middle_stay(void **state) {
    (void)state;
    static const char *const strange[] = {"garbage\n", "\n", "{\"kind\":\"note\"}\n"};
    char                    *whole = unbroken(20), *middle = strstr(whole, "{\"kind\":\"train\",\"step\":9,"), nulls[3000] = "";
    nulls[2999] = '\n';
    for (int i = 0; i < 4; i++) {
        int fd = io_open(path, IO_CREATE);
        assert_int_equal(io_write(fd, whole, (size_t)(middle - whole)), 0);
        assert_int_equal(i < 3 ? io_write(fd, strange[i], strlen(strange[i])) : io_write(fd, nulls, sizeof nulls), 0);
        assert_int_equal(io_write(fd, middle, strlen(middle)), 0);
        io_close(fd);
        metrics_close(metrics_open(dir, 20, about));
        assert_int_equal(io_file_bytes(path), strlen(whole) + (i < 3 ? strlen(strange[i]) : sizeof nulls));
        /* resumes at step 8: removes the lines of later steps, and with them lines of other programs between them */
        metrics_close(metrics_open(dir, 8, about));
        char *text = read_text(path);
        assert_int_equal(strlen(text), middle - whole);
        assert_int_equal(strncmp(text, whole, strlen(text)), 0);
        free(text);
    }
    free(whole);
}

static void an_editor_s_line_ends_cost_nothing(void **state) {
    (void)state;
    char *whole = unbroken(20), *other = calloc(2, strlen(whole) + 1), *to = other;
    for (const char *from = whole; *from; from++) {
        if (*from == '\n') *to++ = '\r';
        *to++ = *from;
    }
    int fd = io_open(path, IO_CREATE);
    assert_int_equal(io_write(fd, other, strlen(other)), 0);
    io_close(fd);
    metrics_close(metrics_open(dir, 20, about));
    char *text = read_text(path);
    assert_string_equal(text, other);
    free(text);
    free(other);
    free(whole);
}

static void a_file_without_a_line_of_ours_is_kept(void **state) {
    (void)state;
    char found[200];
    snprintf(found, sizeof found, "%s.found", path);
    int fd = io_open(path, IO_CREATE);
    assert_int_equal(io_write(fd, "{\"kind\": \"train\"}\n", 18), 0);
    io_close(fd);
    metrics_close(metrics_open(dir, 20, about));
    assert_int_equal(io_file_bytes(path), 0);
    char *text = read_text(found);
    assert_string_equal(text, "{\"kind\": \"train\"}\n");
    free(text);
}

/* A resume that cuts repeated steps may also cut lines of another program. A copy of the whole file then keeps these
 * lines. It gets a new name if a copy exists already. */
static void foreign_lines_that_are_cut_are_kept(void **state) {
    (void)state;
    static const char LINES[] = "{\"kind\":\"train\",\"step\":1,\"tokens\":8,\"loss\":4}\nmy note\n";
    static const char *const COPIES[] = {".found", ".found-2"};
    for (int i = 0; i < 2; i++) {
        char found[200];
        snprintf(found, sizeof found, "%s%s", path, COPIES[i]);
        int fd = io_open(path, IO_CREATE);
        assert_int_equal(io_write(fd, LINES, sizeof LINES - 1), 0);
        io_close(fd);
        /* resumes at step 0, then at step 1; "my note", a line of another program, follows step 1, so it is cut both
         * times */
        metrics_close(metrics_open(dir, i, about));
        char *text = read_text(found);
        assert_string_equal(text, LINES);
        free(text);
        assert_int_equal(io_file_bytes(path), i == 0 ? 0 : (int64_t)(sizeof LINES - 1 - strlen("my note\n")));
    }
}

static void a_lost_file_starts_at_the_step(void **state) {
    (void)state;
    Metrics *m = metrics_open(dir, 500, about);
    log_steps(m, 500, 503);
    metrics_draw(m);
    metrics_close(m);
    m = metrics_open(dir, 502, about);
    log_steps(m, 502, 503);
    metrics_close(m);
    char *text = read_text(path);
    assert_int_equal(strncmp(text, "{\"kind\":\"train\",\"step\":501,", 26), 0);
    assert_non_null(strstr(text, "\"step\":503,"));
    free(text);
}

/* metrics_lack_eval returns 1 if the evaluation of a step is missing, because the run was killed during it. A resume
 * then repeats that evaluation. */
static void a_missing_evaluation_is_seen(void **state) {
    (void)state;
    assert_int_equal(metrics_lack_eval(dir, 0, LINE_EVAL), 1);
    /* 0, because there is no log: nothing shows that the run had evaluations */
    assert_int_equal(metrics_lack_eval(dir, 6, LINE_EVAL), 0);
    Metrics *m = metrics_open(dir, 0, about);
    log_steps(m, 0, 6);
    /* 0, because the log shows that the run has never evaluated */
    assert_int_equal(metrics_lack_eval(dir, 6, LINE_EVAL), 0);
    metrics_close(m);
    m = metrics_open(dir, 0, about);
    metrics_eval(m, 0, 5.5);
    log_steps(m, 0, 6);
    assert_int_equal(metrics_lack_eval(dir, 6, LINE_EVAL), 1);
    metrics_eval(m, 6, NAN); /* this line counts as the evaluation of step 6, although its loss is not a number */
    assert_int_equal(metrics_lack_eval(dir, 6, LINE_EVAL), 0);
    assert_int_equal(metrics_lack_eval(dir, 7, LINE_EVAL), 0);
    metrics_close(m);
}

/* A resumed run keeps the lines with task scores up to its step and cuts later ones, like lines of steps. Missing
 * scores are noticed. The lines are compared byte by byte. */
static void scores_of_tasks_are_lines_of_ours(void **state) {
    (void)state;
    static const TaskScores scores[] = {
        {"a \"b\"", TASK_CHOICES, 30, 0, 0.5, 0.0928476690885259, 1.0 / 3, 0.08753761, NAN, NAN},
        {"c", TASK_CONTINUATION, 1, 0, 1, NAN, NAN, NAN, 12.5, 0.25}};
    static const char lines[] =
        "{\"kind\":\"task\",\"step\":6,\"task\":\"a \\\"b\\\"\",\"n\":30,\"acc\":0.5,\"stderr\":0.0928476691,\"acc_norm\":0.333333333,"
        "\"acc_norm_stderr\":0.08753761}\n"
        "{\"kind\":\"task\",\"step\":6,\"task\":\"c\",\"n\":1,\"acc\":1,\"stderr\":null,\"perplexity\":12.5,\"centered\":0.25}\n";
    Metrics *m = metrics_open(dir, 0, about);
    metrics_tasks(m, 0, scores, 2);
    log_steps(m, 0, 6);
    metrics_eval(m, 6, 5);
    assert_int_equal(metrics_lack_eval(dir, 6, LINE_TASK), 1);
    /* 0, because the evaluation of step 6 is in the log; only its task scores are missing */
    assert_int_equal(metrics_lack_eval(dir, 6, LINE_EVAL), 0);
    metrics_tasks(m, 6, scores, 2);
    assert_int_equal(metrics_lack_eval(dir, 6, LINE_TASK), 0);
    log_steps(m, 6, 8);
    metrics_tasks(m, 8, scores, 1);
    metrics_close(m);
    char *text = read_text(path), *end;
    assert_non_null(end = strstr(text, lines));
    end += strlen(lines);
    metrics_close(metrics_open(dir, 6, about));
    char *kept = read_text(path);
    assert_int_equal(strlen(kept), end - text);
    assert_memory_equal(kept, text, strlen(kept));
    free(kept), free(text);
}

/* metrics_evals returns the last and the best loss of the evaluations so far, with which a new one is compared. A
 * resume restores them. A rollback removes those after the step to which it returns. */
static void earlier_losses_are_known(void **state) {
    (void)state;
    double   last, best;
    Metrics *m = metrics_open(dir, 0, about);
    metrics_evals(m, &last, &best);
    assert_true(isnan(last) && isnan(best));
    metrics_eval(m, 0, 5.5);
    log_steps(m, 0, 10);
    metrics_eval(m, 10, 2.5);
    log_steps(m, 10, 12);
    metrics_eval(m, 12, 3.5);
    metrics_evals(m, &last, &best);
    assert_true(last == 3.5 && best == 0.6); /* 0.6 is the loss at step 10 that log_steps logs */
    metrics_rolled_back(m, 9, 12);
    metrics_evals(m, &last, &best);
    assert_true(last == 5.5 && best == 5.5);
    metrics_close(m);
    m = metrics_open(dir, 9, about);
    metrics_evals(m, &last, &best);
    assert_true(last == 5.5 && best == 5.5);
    metrics_eval(m, 9, NAN);
    metrics_evals(m, &last, &best);
    assert_true(isnan(last) && best == 5.5);
    metrics_close(m);
}

static void the_picture_survives_a_resume(void **state) {
    (void)state;
    free(unbroken(30));
    char    *before = read_text(picture);
    Metrics *m = metrics_open(dir, 20, about);
    log_steps(m, 20, 30);
    metrics_draw(m);
    metrics_close(m);
    char *after = read_text(picture);
    assert_string_equal(before, after);
    assert_non_null(strstr(after, dir + strlen("/tmp/"))); /* the title of the loss curve is the name of the run */
    free(before);
    free(after);
}

/* The log of a server has a line for each round, and no lines of steps. A resume cuts the rounds after its checkpoint.
 * Missing steps are not reported there. */
static void rounds_are_kept(void **state) {
    (void)state;
    Metrics *m = metrics_open(dir, 0, about);
    for (int r = 1; r <= 3; r++)
        metrics_outer(m, &(OuterMetrics){.round = r, .step = 10 * r, .tokens = 640 * r, .islands = 2, .norm = 0.5, .ms = 250,
                                         .tokens_per_s = NAN, .loss = 2.25});
    metrics_outer(m, &(OuterMetrics){.round = 4, .step = 40, .tokens = 2560, .islands = 2, .norm = 0.5,
                                     .waited_ms = 12.5, .sent = 4096, .received = 4097});
    metrics_close(m);
    char *text = read_text(path);
    assert_non_null(strstr(text, "\"staleness\":0,\"waited_ms\":12.5,\"sent_bytes\":4096,"
                                 "\"received_bytes\":4097,\"norm\":0.5,"));
    assert_non_null(strstr(text, "{\"kind\":\"outer\",\"round\":1,\"step\":10,\"islands\":2,\"staleness\":0,\"norm\":0.5,\"ms\":250,"
                                 "\"tokens_per_s\":null,\"tokens\":640,\"loss\":2.25,\"time\":"));
    free(text);
    metrics_close(metrics_open(dir, 20, about));
    text = read_text(path);
    assert_non_null(strstr(text, "\"round\":2"));
    assert_null(strstr(text, "\"round\":3"));
    free(text);
}

static void open_in_no_folder(void *unused) { (void)unused, metrics_open("/proc/nowhere", 0, about); }
static void skip_a_step(void *unused) {
    (void)unused;
    Metrics *m = metrics_open(dir, 0, about);
    log_steps(m, 0, 1);
    log_steps(m, 2, 3);
}
static void fill_the_disk(void *unused) {
    (void)unused;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){500, 500});
    Metrics *m = metrics_open(dir, 0, about);
    log_steps(m, 0, 10);
    metrics_close(m);
}
/* The disk is full while steps 3 to 9 are logged, so nothing of these lines is written. Then there is space again, and
 * the lines are written. */
static void fill_the_disk_for_a_while(void *unused) {
    (void)unused;
    char fault[METRICS_FAULT_BYTES];
    signal(SIGXFSZ, SIG_IGN);
    Metrics *m = metrics_open(dir, 0, about);
    metrics_eval(m, 0, 5.6);
    log_steps(m, 0, 2);
    int64_t bytes = io_file_bytes(path);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)bytes + 50, RLIM_INFINITY});
    log_steps(m, 2, 9);
    if (io_file_bytes(path) != bytes) _exit(1);
    if (metrics_catch_up(m, fault) || !strstr(fault, path)) _exit(2);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){RLIM_INFINITY, RLIM_INFINITY});
    if (!metrics_catch_up(m, fault)) _exit(3);
    log_steps(m, 9, 30);
    metrics_close(m);
}
static void draw_without_room(void *unused) {
    (void)unused;
    Metrics *m = metrics_open(dir, 0, about);
    log_steps(m, 0, 3);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){1500, 1500});
    metrics_draw(m);
    metrics_draw(m);
    log_steps(m, 3, 4); /* the run continues, although the loss curve could not be drawn */
    metrics_close(m);
}

static void faults_end_with_a_sentence(void **state) {
    (void)state;
    Child c = child_run(open_in_no_folder, NULL);
    assert_int_equal(c.code, EXIT_IO);
    assert_int_equal(child_lines(&c), 1);
    assert_non_null(strstr(c.said, "/proc/nowhere/metrics.jsonl"));
    c = child_run(fill_the_disk, NULL);
    assert_int_equal(c.code, EXIT_IO);
    assert_int_equal(child_lines(&c), 2); /* two lines: the warning, and the fault that ended the run */
    assert_non_null(strstr(c.said, path));
    assert_non_null(strstr(c.said, strerror(EFBIG)));
    c = child_run(skip_a_step, NULL);
    assert_int_equal(c.code, EXIT_INTERNAL);
    assert_non_null(strstr(c.said, "step 3 after step 1"));
}

static void lines_wait_for_room(void **state) {
    (void)state;
    Child c = child_run(fill_the_disk_for_a_while, NULL);
    assert_int_equal(c.code, 0);
    assert_int_equal(child_lines(&c), 1); /* the warning is printed once */
    assert_non_null(strstr(c.said, path));
    char *text = read_text(path), *whole = unbroken(30);
    assert_string_equal(text, whole);
    free(text);
    free(whole);
}

static void a_picture_is_not_worth_the_run(void **state) {
    (void)state;
    Child c = child_run(draw_without_room, NULL);
    assert_int_equal(c.code, 0);
    assert_int_equal(child_lines(&c), 1); /* the warning is printed once */
    assert_non_null(strstr(c.said, picture));
    assert_int_equal(io_file_bytes(picture), -ENOENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_are_exact, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(rounds_are_kept, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_new_run_starts_the_file_anew, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(any_kill_resumes_to_the_same_file, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_hole_of_zero_bytes_is_cut, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_large_hole_costs_no_memory, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_longer_line_is_cut, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(lines_out_of_order_are_cut, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(strange_lines_in_the_middle_stay, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(an_editor_s_line_ends_cost_nothing, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_file_without_a_line_of_ours_is_kept, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(foreign_lines_that_are_cut_are_kept, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_lost_file_starts_at_the_step, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_missing_evaluation_is_seen, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(scores_of_tasks_are_lines_of_ours, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(earlier_losses_are_known, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(the_picture_survives_a_resume, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(faults_end_with_a_sentence, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(lines_wait_for_room, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_picture_is_not_worth_the_run, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("metrics", tests, NULL, NULL);
}
