/* run_folder.c - see run_folder.h. */
#include "run/log/run_folder.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/error.h"
#include "core/io.h"
#include "core/terminal.h"
#include "run/checkpoint/checkpoint_folders.h"

static int is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static Path path_in_run(const Config *c, const char *name) { return path_of("%s/%s", c->run.dir, name); }

/* The config that was given may lie in run.dir. It is never written: not as this run's config.json, and not as one of
 * its logs. */
void run_folder_check(const Config *c) {
    static const char *const logs[] = {"metrics.jsonl", "loss.svg", "log.txt"};
    for (size_t i = 0; i < sizeof logs / sizeof *logs; i++)
        if (is_same_file(path_in_run(c, logs[i]).text, c->path))
            fail(EXIT_CONFIG,
                 "run.dir: the config %s lies where this run writes its %s: give the config another name, or take another run.dir",
                 c->path, logs[i]);
}

/* What is printed is kept in the run folder, too. */
void run_folder_keep_log(const Config *c) {
    Path   path = path_in_run(c, "log.txt");
    char   heading[64];
    time_t now = time(NULL);
    int    fd = io_open(path.text, IO_APPEND);
    strftime(heading, sizeof heading, "== started %Y-%m-%d %H:%M:%S %z", localtime(&now));
    if (fd >= 0) say_keep_log(fd, path.text, heading);
    else         warn("cannot open %s: %s; the run goes on without it", path.text, strerror(-fd));
}

void run_folder_keep_config(const Config *c) {
    Path   path = path_in_run(c, "config.json");
    if (is_same_file(path.text, c->path)) return;
    cJSON *json = config_to_json(c);
    char  *text = cJSON_Print(json);
    int error = text ? io_replace_file(path.text, text, strlen(text)) : -ENOMEM;
    if (error) fail(EXIT_IO, "%s: cannot write: %s", path.text, strerror(-error));
    cJSON_free(text);
    cJSON_Delete(json);
}
