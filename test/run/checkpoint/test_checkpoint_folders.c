/* test_checkpoint_folders.c - entries of run.dir/checkpoints: names that look like checkpoints, other kinds of files,
 * folders that cannot be read, paths that are too long. */
#include "test/run/lib/child.h"

#include <errno.h>

#include "test/run/lib/own_folder.h"

static const char *in_dir(const char *name) {
    static Path path;
    return (path = path_of("%s/%s", dir, name)).text;
}

static void save_one(int64_t step) {
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    fixture_fill(&f, step);
    checkpoint_save(&f.state, step);
    fixture_destroy(&f);
}

/* Only a name exactly as folder_name() makes it, such as step_00000001, is a checkpoint. Only such a name with one of
 * the program's endings is a leftover of a save. */
static void test_names_of_strangers(void **state) {
    (void)state;
    static const char *const names[] = {
        "step_", "step_1", "step_0000001", "step_000000001", "step_0000000x", "step_-0000001", "step_ 0000001", "Step_00000001",
        "step_9223372036854775808", "step_9999999999999999999", "step_99999999999999999999", "step_00000000000000000000000000000000001",
        "step_00000001.tm", ".tmp", "x.tmp", "step_1.tmp", "step_00000000000000000000000000000000000000000001.tmp", ".trash-", ".trash-step_1", ".trash-best",
    };
    static const char *const ours[] = {"step_00000000", "step_9223372036854775807", "step_100000000"};
    StepFolder *list;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_int_equal(io_mkdirs(in_dir(names[i])), 0);
    assert_int_equal(folders_list(dir, &list), 0);
    assert_int_equal(folders_sweep(dir), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (access(in_dir(names[i]), F_OK) != 0) fail_msg("%s is gone", names[i]);
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) assert_int_equal(io_mkdirs(in_dir(ours[i])), 0);
    assert_int_equal(folders_list(dir, &list), 3);
    assert_true(list[0].step == INT64_MAX && list[1].step == 100000000 && list[2].step == 0);
    assert_string_equal(list[0].name, "step_9223372036854775807");
    free(list);
}

static void find_piece(void *argument) {
    Path out;
    _exit(folder_find((const char *)argument, &out, NULL) ? 100 : 0);
}

static void resume_piece(void *argument) {
    (void)argument;
    Fixture f;
    fixture_create(&f, comm, dir, F32, 1, "");
    _exit(100 + (int)checkpoint_resume(&f.state).step);
}

static void expect_end(Child c, int code, const char *word) {
    if (c.code != code || !strstr(c.said, word))
        fail_msg("exit %d, %d due: \"%s\" does not say \"%s\"", c.code, code, c.said, word);
}

/* Without the folder run.dir/checkpoints there is no checkpoint yet. If it exists but cannot be read, the start is
 * refused, because it may hold checkpoints of this run. */
static void test_checkpoints_is_something_else(void **state) {
    (void)state;
    StepFolder *list;
    assert_int_equal(folders_list(in_dir("checkpoints"), &list), 0);
    assert_int_equal(folders_sweep(in_dir("checkpoints")), -ENOENT);
    fclose(fopen(in_dir("checkpoints"), "w"));
    assert_int_equal(folders_list(in_dir("checkpoints"), &list), 0);
    assert_int_equal(folders_sweep(in_dir("checkpoints")), -ENOTDIR);
    assert_int_equal(folder_trash(in_dir("checkpoints"), "step_00000001"), -ENOTDIR);
    expect_end(child_run(resume_piece, NULL), 100, "");
    expect_end(child_run(find_piece, dir), 0, "");
    assert_int_equal(unlink(in_dir("checkpoints")), 0);
    assert_int_equal(symlink("checkpoints", in_dir("checkpoints")), 0);
    assert_int_equal(folders_list(in_dir("checkpoints"), &list), -ELOOP);
    expect_end(child_run(find_piece, dir), EXIT_IO, "checkpoints: Too many levels of symbolic links");
    expect_end(child_run(resume_piece, NULL), EXIT_IO, "cannot read the folder ");
}

static void expect_broken(const char *folder, const char *word) {
    Manifest m;
    char     fault[MANIFEST_FAULT_BYTES] = "";
    assert_int_equal(folder_verify(NULL, folder, -1, NULL, &m, fault), MANIFEST_BROKEN);
    if (!strstr(fault, word)) fail_msg("\"%s\" does not say \"%s\"", fault, word);
}

/* A checkpoint that is a file, or whose manifest is too long or a folder, is skipped with a warning, and the older
 * checkpoint is used. */
static void test_a_checkpoint_is_something_else(void **state) {
    (void)state;
    save_one(1);
    expect_broken(in_dir("nothing"), "state.json is missing");
    fclose(fopen(in_dir("checkpoints/step_00000009"), "w"));
    expect_broken(in_dir("checkpoints/step_00000009"), "it is not a folder");
    expect_end(child_run(resume_piece, NULL), 101, "step_00000009 is passed over: it is not a folder");
    assert_int_equal(unlink(in_dir("checkpoints/step_00000009")), 0);

    assert_int_equal(io_mkdirs(in_dir("checkpoints/step_00000008")), 0);
    int fd = io_open(in_dir("checkpoints/step_00000008/state.json"), IO_CREATE);
    assert_int_equal(io_truncate(fd, MANIFEST_LIMIT + 1), 0);
    io_close(fd);
    expect_end(child_run(resume_piece, NULL), 101, "step_00000008 is passed over: state.json is too long");
    assert_int_equal(unlink(in_dir("checkpoints/step_00000008/state.json")), 0);
    assert_int_equal(io_mkdirs(in_dir("checkpoints/step_00000008/state.json")), 0);
    expect_end(child_run(resume_piece, NULL), 101, "step_00000008 is passed over: state.json is a directory, not a file");
    expect_end(child_run(find_piece, dir), 100, "step_00000008 is not used: state.json is a directory, not a file");
}

static void test_paths_are_too_long(void **state) {
    (void)state;
    char name[5000] = "";
    memset(name, 'd', sizeof name - 1);
    expect_end(child_run(find_piece, name), EXIT_CONFIG, "are allowed: choose shorter names");
    save_one(1);
    expect_end(child_run(find_piece, dir), 100, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(test_names_of_strangers), CASE(test_checkpoints_is_something_else), CASE(test_a_checkpoint_is_something_else),
        CASE(test_paths_are_too_long),
    };
    return RUN_ALONE(tests);
}
