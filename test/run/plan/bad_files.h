/* bad_files.h - faulty texts of files that a reader must refuse, for several tests. Each comes with words that the
 * message must contain, and the number of lines of messages. */
#ifndef TRAIN_GPT_TEST_RUN_BAD_FILES_H
#define TRAIN_GPT_TEST_RUN_BAD_FILES_H

#include "test/run/lib/child.h"

static char path[64];

static inline void write_file(const char *text) {
    snprintf(path, sizeof path, "/tmp/plan-%d.json", (int)getpid());
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

typedef struct { const char *text, *says; int lines; } BadFile;

/* Writes each faulty text to a file and runs load(path) in a child. The child must end with EXIT_CONFIG. It must print
 * as many lines as the text's `lines`, and the words `says`. */
static inline void expect_refusals(const BadFile *file, size_t files, void (*load)(void *name)) {
    for (size_t i = 0; i < files; i++) {
        write_file(file[i].text);
        Child c = child_run(load, path);
        if (c.code != EXIT_CONFIG || !strstr(c.said, file[i].says) || child_lines(&c) != file[i].lines)
            fail_msg("case %zu, exit %d, %d lines, not \"%s\":\n%s", i, c.code, child_lines(&c), file[i].says, c.said);
    }
    unlink(path);
}

#endif
