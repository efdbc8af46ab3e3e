/* test_io.c - io.c with its failpoints compiled in: the state of the disk after each call, and after each call that
 * failed half-way. */
#include "core/failpoints.h"
#include "core/io.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static int enter_folder(void **state) {
    char path[] = "/tmp/train_gpt_io_XXXXXX";
    if (!mkdtemp(path) || chdir(path) < 0) return -1;
    *state = strdup(path);
    return 0;
}

static int leave_folder(void **state) {
    unsetenv("TRAIN_GPT_FAIL");
    int rc = chdir("/") < 0 ? -1 : io_remove_tree(*state);
    free(*state);
    return rc;
}

/* Sets a rule that makes calls fail; calls are counted from now on. */
static void fail_at(const char *spec) {
    failpoints_reset();
    setenv("TRAIN_GPT_FAIL", spec, 1);
}

static void assert_holds(const char *path, const char *text) {
    char *data;
    assert_int_equal(io_read_file(path, 1 << 20, &data), strlen(text));
    assert_string_equal(data, text);
    free(data);
}

static void open_creates_appends_updates(void **state) {
    (void)state;
    int fd = io_open("a", IO_CREATE);
    assert_int_equal(io_write(fd, "hello", 5), 0);
    assert_int_equal(io_close(fd), 0);
    fd = io_open("a", IO_APPEND);
    assert_int_equal(io_write(fd, " world", 6), 0);
    io_close(fd);
    fd = io_open("a", IO_SHARED);
    char word[5];
    assert_int_equal(io_pread(fd, word, 5, 6), 0);
    assert_memory_equal(word, "world", 5);
    assert_int_equal(io_pread(fd, word, 5, 7), -ENODATA);
    assert_int_equal(io_pwrite(fd, "W", 1, 6), 0);
    assert_int_equal(io_fsync(fd), 0);
    io_close(fd);
    assert_holds("a", "hello World");
    fd = io_open("a", IO_SHARED);
    assert_int_equal(io_truncate(fd, 5), 0);
    io_close(fd);
    assert_holds("a", "hello");
    fd = io_open("a", IO_CREATE);
    io_close(fd);
    assert_holds("a", "");
    assert_int_equal(io_open("missing/file", IO_SHARED), -ENOENT);
    assert_int_equal(io_open("missing", IO_READ), -ENOENT);
    assert_int_equal(io_open("missing/a", IO_CREATE), -ENOENT);
}

/* is_removed_meanwhile: 1 simulates another process that removes a path just before its lstat; removed: number of such
 * removals */
static int is_removed_meanwhile, removed;

int __real_lstat(const char *path, struct stat *st);
int __wrap_lstat(const char *path, struct stat *st);
int __wrap_lstat(const char *path, struct stat *st) {
    if (is_removed_meanwhile) removed += unlink(path) == 0 || rmdir(path) == 0;
    return __real_lstat(path, st);
}

static void writes_do_not_follow_links(void **state) {
    (void)state;
    assert_int_equal(io_replace_file("real", "old", 3), 0);
    assert_int_equal(symlink("real", "link"), 0);
    assert_int_equal(io_open("link", IO_CREATE), -ELOOP);
    assert_int_equal(io_open("link", IO_APPEND), -ELOOP);
    assert_int_equal(io_open("link", IO_SHARED), -ELOOP);
    assert_holds("real", "old");
    assert_holds("link", "old"); /* reading a file through a symbolic link is allowed */
}

static void short_and_interrupted_calls_continue(void **state) {
    (void)state;
    static const char *const faults[] = {"io.write@1:short", "io.write@1:EINTR", "io.write@2:EINTR",
                                         "io.pwrite@1:short", "io.pwrite@1:EINTR", "io.fsync@1:EINTR",
                                         "io.ftruncate@1:EINTR", "io.open@1:EINTR", "io.close@1:EINTR"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        fail_at(faults[i]);
        int fd = io_open("a", IO_CREATE);
        assert_true(fd >= 0);
        assert_int_equal(io_write(fd, "0123456789", 10), 0);
        assert_int_equal(io_pwrite(fd, "abcdefg", 7, 2), 0);
        assert_int_equal(io_truncate(fd, 9), 0);
        assert_int_equal(io_fsync(fd), 0);
        assert_int_equal(io_close(fd), 0);
        assert_holds("a", "01abcdefg");
    }
    static const char *const reads[] = {"io.read@1:short", "io.read@1:EINTR", "io.read@2:EINTR"};
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        fail_at(reads[i]);
        assert_holds("a", "01abcdefg");
    }
    /* the first call of write() writes only half of the bytes, and the call for the rest fails */
    fail_at("io.write@1:short;io.write@2:ENOSPC");
    int fd = io_open("a", IO_CREATE);
    assert_int_equal(io_write(fd, "0123456789", 10), -ENOSPC);
    io_close(fd);
    assert_holds("a", "01234");
}

/* Whichever call of io_replace_file fails, the file has its whole old or its whole new content, and no .tmp file
 * stays. */
static void replace_is_all_or_nothing(void **state) {
    (void)state;
    static const char *const faults[] = {"io.open@1:ENOSPC", "io.write@1:ENOSPC", "io.fsync@1:EIO", "io.close@1:EDQUOT",
                                         "io.rename@1:EACCES"};
    static const int due[] = {-ENOSPC, -ENOSPC, -EIO, -EDQUOT, -EACCES};
    assert_int_equal(io_replace_file("f", "old", 3), 0);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        fail_at(faults[i]);
        assert_int_equal(io_replace_file("f", "new text", 8), due[i]);
        unsetenv("TRAIN_GPT_FAIL");
        assert_holds("f", "old");
        assert_int_equal(io_file_bytes("f.tmp"), -ENOENT);
    }
    assert_int_equal(io_replace_file("f", "new text", 8), 0);
    assert_holds("f", "new text");
    assert_int_equal(io_file_bytes("f"), 8);
    assert_int_equal(io_replace_file("missing/f", "x", 1), -ENOENT);
}

static void kinds_are_named(void **state) {
    (void)state;
    char *text;
    assert_int_equal(mkfifo("fifo", 0600), 0);
    /* the open fails at once instead of waiting for a process that writes into the pipe */
    assert_int_equal(io_open("fifo", IO_READ), -IO_IS_FIFO);
    assert_int_equal(io_read_file("fifo", 10, &text), -IO_IS_FIFO);
    assert_int_equal(io_read_start("/dev/zero", 10, &text), -IO_IS_CHARACTER_DEVICE);
    assert_int_equal(io_open("/dev", IO_READ), -EISDIR);
    assert_int_equal(symlink("fifo", "to-fifo"), 0);
    errno = 0;
    assert_null(io_open_stream("to-fifo", IO_READ));
    assert_int_equal(errno, IO_IS_FIFO);
    assert_int_equal(io_read_input("/dev/null", 10, &text), 0);
    free(text);
    assert_string_equal(io_error_text(-IO_IS_FIFO), "is a FIFO, not a file");
    assert_string_equal(io_error_text(IO_IS_SOCKET), "is a socket, not a file");
    assert_string_equal(io_error_text(ENOENT), strerror(ENOENT));
    assert_int_equal(unlink("to-fifo"), 0);
    assert_int_equal(unlink("fifo"), 0);
}

/* Two processes replace one file again and again. A reader always finds the whole text of one of them, and no .tmp file
 * stays. */
static void two_writers_take_turns(void **state) {
    (void)state;
    enum { BYTES = 300000, ROUNDS = 40 };
    char *text = malloc(BYTES + 1), *read = NULL;
    pid_t other = fork();
    memset(text, other ? 'a' : 'b', BYTES);
    int rc = 0;
    for (int i = 0; i < ROUNDS && rc == 0; i++) {
        rc = io_replace_file("both", text, BYTES - i);
        if (io_read_file("both", BYTES, &read) < BYTES - ROUNDS || strspn(read, "a") + strspn(read, "b") != strlen(read)) rc = -1;
        free(read);
    }
    free(text);
    if (!other) _exit(rc != 0);
    int status;
    assert_int_equal(waitpid(other, &status, 0), other);
    assert_int_equal(rc, 0);
    assert_int_equal(status, 0);
    assert_int_equal(io_file_bytes("both.tmp"), -ENOENT);
    /* a killed writer may leave a .tmp file, longer than the new text, which must be replaced */
    int fd = open("both.tmp", O_CREAT | O_WRONLY, 0600);
    assert_int_equal(ftruncate(fd, 100), 0);
    close(fd);
    assert_int_equal(io_replace_file("both", "new", 3), 0);
    assert_holds("both", "new");
}

/* io_replace_file must fsync the content before the rename, as these faults show: after a failed fsync the file does
 * not exist. */
static void replace_syncs_before_it_renames(void **state) {
    (void)state;
    fail_at("io.fsync@1:EIO");
    assert_int_equal(io_replace_file("f", "x", 1), -EIO);
    assert_int_equal(failpoint_calls("io.fsync"), 1);
    assert_int_equal(io_file_bytes("f"), -ENOENT);
    fail_at("io.rename@1:EIO");
    assert_int_equal(io_replace_file("f", "x", 1), -EIO);
    assert_int_equal(failpoint_calls("io.rename"), 1);
}

static void full_disks_are_reported(void **state) {
    (void)state;
    fail_at("io.write@2:ENOSPC");
    int fd = io_open("a", IO_CREATE);
    assert_int_equal(io_write(fd, "first", 5), 0);
    assert_int_equal(io_write(fd, "second", 6), -ENOSPC);
    io_close(fd);
    unsetenv("TRAIN_GPT_FAIL");
    assert_holds("a", "first");
    fd = open("/dev/full", O_WRONLY);
    if (fd >= 0) {
        assert_int_equal(io_write(fd, "x", 1), -ENOSPC);
        close(fd);
    }
}

/* Opening a named pipe for writing is refused at once, with or without a reader. A pipe at the name of the .tmp file is
 * removed. */
static void only_plain_files_are_written(void **state) {
    (void)state;
    const IoOpen how[] = {IO_CREATE, IO_APPEND, IO_SHARED};
    assert_int_equal(mkfifo("pipe", 0600), 0);
    for (int reader = -1, i = 0; i < 6; i++) {
        if (i == 3) reader = open("pipe", O_RDONLY | O_NONBLOCK);
        assert_int_equal(io_open("pipe", how[i % 3]), -ENXIO);
        if (i == 5) close(reader);
    }
    assert_int_equal(io_open("/dev/null", IO_APPEND), -ENXIO);
    assert_int_equal(mkfifo("f.tmp", 0600), 0);
    assert_int_equal(io_replace_file("f", "text", 4), 0);
    assert_holds("f", "text");
    assert_int_equal(mkfifo("f.tmp", 0600), 0);
    fail_at("io.unlink@1:EACCES"); /* if the pipe at f.tmp cannot be removed, nothing is written into it */
    assert_int_equal(io_replace_file("f", "other", 5), -ENXIO);
    unsetenv("TRAIN_GPT_FAIL");
    assert_holds("f", "text");
    assert_int_equal(io_mkdirs("folder/below"), 0);
    assert_int_equal(io_rmdir("folder"), -ENOTEMPTY);
    assert_int_equal(io_rmdir("folder/below"), 0);
}

static void folders_are_made_and_removed(void **state) {
    (void)state;
    assert_int_equal(io_mkdirs("x/y//z/"), 0);
    assert_int_equal(io_mkdirs("x/y/z"), 0);
    assert_int_equal(io_mkdirs("."), 0);
    assert_int_equal(io_mkdirs("/"), 0);
    assert_int_equal(io_file_bytes("x/y/z"), -EISDIR);
    assert_int_equal(io_file_bytes("x/y"), -EISDIR);
    assert_int_equal(io_replace_file("x/file", "1", 1), 0);
    assert_int_equal(io_mkdirs("x/file"), -ENOTDIR);
    assert_int_equal(io_mkdirs("x/file/below"), -ENOTDIR);
    assert_int_equal(io_mkdirs(""), -ENOENT);
    fail_at("io.mkdir@2:EROFS");
    assert_int_equal(io_mkdirs("p/q/r"), -EROFS);
    unsetenv("TRAIN_GPT_FAIL");
    assert_int_equal(io_fsync_dir("x"), 0);
    assert_int_equal(io_fsync_dir("missing"), -ENOENT);
    fail_at("io.fsync@1:EINVAL;io.fsync@2:EIO");
    assert_int_equal(io_fsync_dir("x"), 0); /* returns 0 on a file system that cannot sync folders */
    assert_int_equal(io_fsync_dir("x"), -EIO);
    unsetenv("TRAIN_GPT_FAIL");
    assert_true(io_free_bytes("x") > 0);
    assert_int_equal(io_free_bytes("missing"), -ENOENT);

    /* refused: a folder that contains another folder was not made by the program */
    assert_int_equal(io_remove_tree("x"), -ENOTEMPTY);
    assert_int_equal(io_file_bytes("x/y/z"), -EISDIR);
    assert_int_equal(rmdir("x/y/z"), 0);
    assert_int_equal(io_replace_file("outside", "stays", 5), 0);
    assert_int_equal(io_mkdirs("kept"), 0);
    assert_int_equal(io_replace_file("kept/file", "stays", 5), 0);
    assert_int_equal(io_mkdirs("x/y"), 0);
    assert_int_equal(symlink("../outside", "x/link"), 0);
    assert_int_equal(symlink("../../kept", "x/y/link"), 0);
    assert_int_equal(io_remove_tree("x"), 0);
    assert_int_equal(io_file_bytes("x"), -ENOENT);
    assert_holds("outside", "stays");
    assert_holds("kept/file", "stays");
    assert_int_equal(io_remove_tree("x"), 0);
    assert_int_equal(symlink("kept", "folderlink"), 0);
    assert_true(io_remove_tree("folderlink") < 0);
    assert_holds("kept/file", "stays");
    fail_at("io.unlink@1:EACCES");
    assert_int_equal(io_remove_tree("kept"), -EACCES);
}

/* io_remove_tree removes a folder while another process removes it, too. A file that is already gone is no error. */
static void what_another_removes_is_gone(void **state) {
    (void)state;
    assert_int_equal(io_mkdirs("x/below"), 0);
    assert_int_equal(io_replace_file("x/file", "1", 1), 0);
    is_removed_meanwhile = 1;
    assert_int_equal(io_remove_tree("x"), 0);
    is_removed_meanwhile = 0;
    assert_int_equal(removed, 2);
    assert_int_equal(io_file_bytes("x"), -ENOENT);
    assert_int_equal(io_mkdirs("x"), 0);
    fail_at("io.rmdir@1:ENOENT");
    assert_int_equal(io_remove_tree("x"), 0);
    fail_at("io.rmdir@1:EACCES");
    assert_int_equal(io_remove_tree("x"), -EACCES);
}

static void whole_files_are_read_up_to_a_limit(void **state) {
    (void)state;
    char *data, text[10000];
    memset(text, 'x', sizeof text);
    assert_int_equal(io_replace_file("f", text, sizeof text), 0);
    assert_int_equal(io_read_file("f", sizeof text, &data), sizeof text);
    assert_int_equal(data[sizeof text], 0);
    assert_memory_equal(data, text, sizeof text);
    free(data);
    assert_int_equal(io_read_file("f", sizeof text - 1, &data), -EFBIG);
    assert_null(data);
    assert_int_equal(io_read_file("missing", 100, &data), -ENOENT);
    assert_int_equal(io_read_file(".", 100, &data), -EISDIR);
    assert_int_equal(io_read_input("/dev/zero", 100000, &data), -EFBIG);
    assert_int_equal(io_replace_file("empty", "", 0), 0);
    assert_int_equal(io_read_file("empty", 0, &data), 0);
    assert_string_equal(data, "");
    free(data);
    assert_int_equal(mkfifo("pipe", 0600), 0); /* the size of a pipe is unknown, and its bytes arrive in parts */
    pid_t child = fork();
    if (child == 0) {
        int fd = open("pipe", O_WRONLY);
        for (int i = 0; i < 100; i++)
            if (write(fd, text, 100) != 100) _exit(1);
        _exit(0);
    }
    assert_int_equal(io_read_input("pipe", sizeof text, &data), sizeof text);
    assert_memory_equal(data, text, sizeof text);
    free(data);
    waitpid(child, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
#define IN_FOLDER(f) cmocka_unit_test_setup_teardown(f, enter_folder, leave_folder)
        IN_FOLDER(open_creates_appends_updates), IN_FOLDER(writes_do_not_follow_links),
        IN_FOLDER(only_plain_files_are_written), IN_FOLDER(short_and_interrupted_calls_continue),
        IN_FOLDER(replace_is_all_or_nothing), IN_FOLDER(replace_syncs_before_it_renames),
        IN_FOLDER(full_disks_are_reported), IN_FOLDER(folders_are_made_and_removed),
        IN_FOLDER(what_another_removes_is_gone), IN_FOLDER(kinds_are_named),
        IN_FOLDER(two_writers_take_turns), IN_FOLDER(whole_files_are_read_up_to_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
