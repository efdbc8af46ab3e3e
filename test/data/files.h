/* files.h - shared by the tests of data/: a temporary folder, files in it, and functions that end the process, run in a
 * child. */
#ifndef TRAIN_GPT_TEST_DATA_FILES_H
#define TRAIN_GPT_TEST_DATA_FILES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/io.h"

#include <cmocka.h>

enum { PATH_CHARS = 256 };

/* Makes a folder for the test and enters it. Sets *state to its path. */
static inline int enter_folder(void **state) {
    char path[PATH_CHARS];
    snprintf(path, sizeof path, "%s/train_gpt_test_XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(path) || chdir(path) < 0) return -1;
    *state = strdup(path);
    return 0;
}

static inline int leave_folder(void **state) {
    int rc = chdir("/") < 0 ? -1 : io_remove_tree(*state);
    free(*state);
    return rc;
}

static inline void write_file(const char *path, const void *data, size_t bytes) {
    int fd = io_open(path, IO_CREATE);
    assert_true(fd >= 0);
    assert_int_equal(io_write(fd, data, bytes), 0);
    assert_int_equal(io_close(fd), 0);
}

/* Writes the header of an llm.c data file, 1024 bytes, to out. */
static inline void put_header(uint8_t out[1024], int32_t magic, int32_t version, int32_t tokens) {
    const int32_t start[3] = {magic, version, tokens};
    memset(out, 0, 1024);
    memcpy(out, start, sizeof start);
}

/* Writes a data file of version 1 with `count` tokens: first, first+1, ... modulo 50000. */
static inline void write_counting_shard(const char *path, int64_t count, int64_t first) {
    uint8_t *file = malloc((size_t)(1024 + 2 * count));
    put_header(file, 20240520, 1, (int32_t)count);
    for (int64_t i = 0; i < count; i++) {
        uint16_t token = (uint16_t)((first + i) % 50000);
        memcpy(file + 1024 + 2 * i, &token, 2);
    }
    write_file(path, file, (size_t)(1024 + 2 * count));
    free(file);
}

/* Runs body(arg) in a child. It must end with exit_code after one line on stderr (none for code 0) that contains each
 * of the following phrases. NULL ends their list. */
static inline void assert_ends(int exit_code, void (*body)(const void *), const void *arg, ...) {
    int  end[2], status;
    char said[8192];
    fflush(NULL);
    assert_int_equal(pipe(end), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(end[1], 2);
        body(arg);
        _exit(0);
    }
    close(end[1]);
    size_t  have = 0;
    ssize_t n;
    while (have + 1 < sizeof said && (n = read(end[0], said + have, sizeof said - 1 - have)) > 0) have += (size_t)n;
    said[have] = 0;
    close(end[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != exit_code)
        fail_msg("status %#x, exit code %d due; said: %s", status, exit_code, said);
    char *newline = strchr(said, '\n');
    if (exit_code == 0 ? said[0] != 0 : !newline || newline[1]) fail_msg("one line is due, none for 0, not: %s", said);
    va_list phrases;
    va_start(phrases, arg);
    for (const char *phrase; (phrase = va_arg(phrases, const char *));)
        if (!strstr(said, phrase)) fail_msg("\"%s\" is missing in: %s", phrase, said);
    va_end(phrases);
}

#endif
