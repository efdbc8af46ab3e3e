/* lineage.c - see lineage.h. */
#include "run/checkpoint/lineage.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/io.h"
#include "run/checkpoint/checkpoint_folders.h"

/* Returns 1 if state.json of a step folder can be read and names that run. The files are not verified, because the
 * checkpoint is not loaded. */
static int is_of_run(const char *checkpoints, const char *name, const char *run_id) {
    Manifest m;
    char    *text = NULL, fault[MANIFEST_FAULT_BYTES];
    int64_t  bytes = io_read_file(path_of("%s/%s/" MANIFEST_NAME, checkpoints, name).text, MANIFEST_LIMIT, &text);
    int      same = bytes > 0 && manifest_parse(text, (size_t)bytes, &m, fault) == MANIFEST_GOOD;
    if (same) {
        same = strcmp(m.run_id, run_id) == 0;
        manifest_free(&m);
    }
    free(text);
    return same;
}

static int holds_run(const char *dir, const char *run_id) {
    StepFolder *list = NULL;
    Path        checkpoints = path_of("%s/checkpoints", dir);
    int         count = folders_list(checkpoints.text, &list), found = 0;
    for (int i = 0; i < count && !found; i++) found = is_of_run(checkpoints.text, list[i].name, run_id);
    free(list);
    return found;
}

int lineage_is_copy(const char *run_dir, const char *from, const char *run_id) {
    struct stat here, there;
    if (!from || !from[0] || stat(run_dir, &here) != 0 || stat(from, &there) != 0) return 0;
    if (here.st_dev == there.st_dev && here.st_ino == there.st_ino) return 0;
    return holds_run(from, run_id);
}
