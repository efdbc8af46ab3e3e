/* test_checkpoint_space.c - a start checks run.dir/checkpoints, and refuses before the first step if a save could fail.
 * Cases: leftovers, other kinds of files, links, and a file system of a known size. */
#include "core/io.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "test/run/lib/child.h"

#include "test/run/lib/own_folder.h"

static size_t one;      /* bytes on disk of one checkpoint */
static int    is_silent; /* 1: the simulated statvfs() fails */
/* simulated capacity of the file system of run.dir/checkpoints, in checkpoints; other file systems are full */
static double capacity;

static int enter_roomy(void **state) {
    capacity = 100.0, is_silent = 0;
    return enter(state);
}

static const char *in_checkpoints(const char *name) {
    static Path path;
    return (path = path_of("%s/checkpoints%s%s", dir, *name ? "/" : "", name)).text;
}

/* Replaces statvfs(): only the file system of run.dir/checkpoints has free space, `capacity` checkpoints minus the
 * files in it. */
int __wrap_statvfs(const char *path, struct statvfs *fs);
int __wrap_statvfs(const char *path, struct statvfs *fs) {
    double used = 0.0;
    if (is_silent) return errno = ENOSYS, -1;
    *fs = (struct statvfs){.f_frsize = 1};
    if (strcmp(path, in_checkpoints("")) != 0) return 0;
    FILE *sizes = popen(path_of("find '%s/' -type f -printf '%%s\n'", path).text, "r");
    for (double bytes; fscanf(sizes, "%lf", &bytes) == 1;) used += bytes;
    pclose(sizes);
    double left = capacity * (double)one - used;
    fs->f_bavail = left > 0.0 ? (fsblkcnt_t)left : 0;
    return 0;
}

typedef struct { int64_t keep, step; } Start;

static void create(Fixture *f, int64_t keep) {
    char extra[64];
    snprintf(extra, sizeof extra, "},\"checkpoint\":{\"every\":10,\"keep\":%lld", (long long)keep);
    fixture_create(f, comm, dir, F32, 1, extra);
    one = checkpoint_disk_bytes(&f->shards->layout, &OPTIMIZER_ADAMW);
}

static void start_piece(void *argument) {
    const Start *s = argument;
    Fixture      f;
    create(&f, s->keep);
    f.train_state.start.step = s->step;
    checkpoint_make_room(&f.state);
}
static void start_with_milestones(void *unused) {
    (void)unused;
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "},\"checkpoint\":{\"every\":10,\"keep\":2,\"keep_every\":20");
    one = checkpoint_disk_bytes(&f.shards->layout, &OPTIMIZER_ADAMW);
    checkpoint_make_room(&f.state);
}

static Child start(int64_t keep, int64_t step) { return child_run(start_piece, &(Start){keep, step}); }

static void expect_refusal(Child c, const char *word) {
    assert_int_equal(c.code, EXIT_IO);
    assert_int_equal(child_lines(&c), 1);
    if (!strstr(c.said, dir) || !strstr(c.said, word)) fail_msg("\"%s\" does not say \"%s\"", c.said, word);
}

static void save_steps(int64_t keep, int64_t last) {
    Fixture f;
    create(&f, keep);
    for (int64_t step = 10; step <= last; step += 10) fixture_fill(&f, step), checkpoint_save(&f.state, step);
    fixture_destroy(&f);
}

static void put_file(const char *name, size_t bytes) {
    int fd = io_open(in_checkpoints(name), IO_CREATE);
    assert_true(fd >= 0);
    assert_int_equal(io_truncate(fd, bytes), 0);
    io_close(fd);
}

/* The leftovers of an interrupted save are deleted before the free space is measured. */
static void test_leftovers_go_before_the_room_is_measured(void **state) {
    (void)state;
    save_steps(2, 10);
    const char *const left[] = {"step_00000020.tmp", ".trash-step_00000000"};
    for (int i = 0; i < 2; i++) {
        mkdir(in_checkpoints(left[i]), 0777);
        put_file(path_of("%s/model.safetensors", left[i]).text, one);
        capacity = 3.1;
        assert_int_equal(start(2, 10).code, 0);
        assert_int_not_equal(access(in_checkpoints(left[i]), F_OK), 0);
        capacity = 2.9;
        expect_refusal(start(2, 10), "MiB more for 3 checkpoints");
    }
}

/* A leftover folder with files that no save writes is renamed and kept. */
static void test_other_leftovers_are_kept(void **state) {
    (void)state;
    save_steps(2, 10);
    assert_int_equal(io_mkdirs(in_checkpoints("step_00000020.tmp/a/b")), 0);
    capacity = 100.0;
    Child c = start(2, 10);
    assert_int_equal(c.code, 0);
    if (!strstr(c.said, "step_00000020.tmp holds files that are not part of a checkpoint: they are moved to ")) fail_msg("%s", c.said);
    assert_int_equal(access(in_checkpoints("step_00000020.tmp.passed-over/a/b"), F_OK), 0);
}

/* A start continues if statvfs() fails. It needs no free space if it is past its last save, and a checkpoint folder
 * without files uses no space. */
static void test_room_that_is_not_needed_or_not_known(void **state) {
    (void)state;
    capacity = 0.5;
    expect_refusal(start(2, 0), "MiB more for 3 checkpoints");
    expect_refusal(start(5, 0), "keep fewer, or take another run.dir");
    is_silent = 1;
    assert_int_equal(start(2, 0).code, 0);
    is_silent = 0;
    assert_int_equal(start(2, 100).code, 0);
    assert_int_equal(io_mkdirs(in_checkpoints("step_00000010")), 0);
    capacity = 2.9;
    expect_refusal(start(2, 10), "MiB more for 3 checkpoints");
    capacity = 3.1;
    assert_int_equal(start(2, 10).code, 0);
}

static void limited_piece(void *argument) {
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){*(const rlim_t *)argument, RLIM_INFINITY});
    start_piece(&(Start){2, 0});
}

static void test_limits_on_files(void **state) {
    (void)state;
    rlim_t small = 10 << 10, medium = 100 << 10, large = (rlim_t)1 << 40;
    expect_refusal(child_run(limited_piece, &small), "checkpoints/.probe: cannot write: File too large");
    Child c = child_run(limited_piece, &medium);
    assert_int_equal(c.code, EXIT_IO);
    assert_non_null(strstr(c.said, "files may not grow past 0.1 MiB here (ulimit -f)"));
    assert_int_equal(child_run(limited_piece, &large).code, 0);
}

/* Runs in a child: starts with a run.dir in which no folder can be made, or whose path is too long. */
static void elsewhere_piece(void *run_dir) {
    Fixture f;
    create(&f, 2);
    f.config.run.dir = (const char *)run_dir;
    checkpoint_make_room(&f.state);
}

static void test_no_place_for_folders(void **state) {
    (void)state;
    char  name[5000] = "";
    Child c = child_run(elsewhere_piece, "/proc/nowhere");
    assert_int_equal(c.code, EXIT_IO);
    assert_non_null(strstr(c.said, "/proc/nowhere/checkpoints: cannot make the folder: No such file or directory; set run.dir"));
    memset(name, 'd', sizeof name - 1);
    c = child_run(elsewhere_piece, name);
    assert_int_equal(c.code, EXIT_CONFIG);
    assert_non_null(strstr(c.said, "bytes, at most"));
}

static void save_piece(void *argument) {
    (void)argument;
    Fixture f;
    create(&f, 2);
    checkpoint_save(&f.state, 10);
}

/* A save to a disk without enough space is refused before anything is written. */
static void test_a_save_without_room(void **state) {
    (void)state;
    capacity = 0.9;
    expect_refusal(child_run(save_piece, NULL), "step_00000010.tmp needs ");
    assert_int_not_equal(access(in_checkpoints("step_00000010.tmp"), F_OK), 0);
    is_silent = 1;
    assert_int_equal(child_run(save_piece, NULL).code, 0);
}

/* The new checkpoint is written before an old one is deleted, so there must be space for one more than are kept. */
static void test_more_than_are_kept_need_room_for_one(void **state) {
    (void)state;
    save_steps(5, 50);
    capacity = 5.9;
    expect_refusal(start(2, 50), "MiB more for 3 checkpoints");
    capacity = 6.1;
    assert_int_equal(start(2, 50).code, 0);
}

/* In a run of 100 steps, milestones at 20, 40, 60, 80 and 100 need space, in addition to the two newest checkpoints and
 * the one being written. */
static void test_milestones_need_room(void **state) {
    (void)state;
    capacity = 7.9;
    expect_refusal(child_run(start_with_milestones, NULL), "8 checkpoints of");
    capacity = 8.2;
    assert_int_equal(child_run(start_with_milestones, NULL).code, 0);
}

static void test_room_is_that_of_the_folder_itself(void **state) {
    (void)state;
    struct stat st;
    capacity = 2.9;
    expect_refusal(start(2, 0), "checkpoints: its file system has");
    capacity = 3.1;
    /* succeeds, although the simulated file system of run.dir itself is full */
    assert_int_equal(start(2, 0).code, 0);
    assert_true(stat(in_checkpoints(""), &st) == 0 && S_ISDIR(st.st_mode));
    assert_int_equal(rmdir(in_checkpoints("")), 0); /* succeeds only if the check left nothing in the folder */
}

static void test_no_folder_of_ours(void **state) {
    (void)state;
    /* Targets of a link named checkpoints: none of them can hold a checkpoint. Nobody may create files in
     * /proc/self/fd. */
    static const char *const points_to[] = {"/nonexistent", "/dev/null", "/proc/self/fd"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(symlink(points_to[i], in_checkpoints("")), 0);
        expect_refusal(start(2, 0), i < 2 ? "checkpoints is not a folder but a file, or a link to nothing: move it away"
                                          : "checkpoints/.probe: cannot write");
        assert_int_equal(unlink(in_checkpoints("")), 0);
    }
    fclose(fopen(in_checkpoints(""), "w"));
    expect_refusal(start(2, 0), "checkpoints is not a folder");
    assert_int_equal(unlink(in_checkpoints("")), 0);
    mkdir(path_of("%s/elsewhere", dir).text, 0777);
    assert_int_equal(symlink("elsewhere", in_checkpoints("")), 0);
    assert_int_equal(start(2, 0).code, 0);
}

int main(void) {
#define ROOMY(name) cmocka_unit_test_setup_teardown(name, enter_roomy, leave)
    const struct CMUnitTest tests[] = {
        ROOMY(test_leftovers_go_before_the_room_is_measured), ROOMY(test_more_than_are_kept_need_room_for_one), ROOMY(test_milestones_need_room),
        ROOMY(test_room_is_that_of_the_folder_itself), ROOMY(test_no_folder_of_ours),
        ROOMY(test_other_leftovers_are_kept), ROOMY(test_room_that_is_not_needed_or_not_known), ROOMY(test_limits_on_files),
        ROOMY(test_no_place_for_folders), ROOMY(test_a_save_without_room),
    };
    return RUN_ALONE(tests);
}
