/* run_folder.c - checks the files of a run folder, and keeps config and output in it: see run_folder.h. */
#include "run/log/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "core/error.h"
#include "core/format.h"
#include "core/io.h"
#include "core/json.h"
#include "core/terminal.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/log/picture.h"

static int is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static Path path_in_run(const Config *c, const char *name) { return path_of("%s/%s", c->run.dir, name); }

/* --- files of other programs -------------------------------------------------------------------------------------- */

/* `text` has the first `bytes` of a file of `whole` bytes */
typedef struct { const char *text; size_t bytes, whole; } Start;

static int begins(Start s, const char *with) {
    return s.bytes >= strlen(with) && memcmp(s.text, with, strlen(with)) == 0;
}

enum { CONFIG, METRICS, LOG, PICTURE, LOCK, ALGORITHMS, LEASES, RUN_ID, NONCE, FILES };
static const char *const NAMES[FILES] = {"config.json", "metrics.jsonl", "log.txt", "loss.svg", "lock",
                                         "gemm.json",   "leases.jsonl",  "run_id",  ".nonce"};

/* Returns 1 if this program may have written a file that begins like s. file: index of its name in NAMES. */
static int is_ours(int file, Start s) {
    static const char METRICS_START[] = "{\"kind\":\"";
    switch (file) {
        case CONFIG: return config_is_saved(s.text, s.bytes);
        case METRICS:
            return begins(s, METRICS_START) ||
                   (s.whole < strlen(METRICS_START) && memcmp(s.text, METRICS_START, s.bytes) == 0);
        case LOG: return begins(s, "== started ") || begins(s, "\n== started ");
        case PICTURE: return svg_is_ours(s.text);
        case LOCK: return begins(s, "host ");
        case ALGORITHMS: return strstr(s.text, "\"products\"") && begins(s, "{");
        case LEASES: return begins(s, "{\"lease\":");
        case RUN_ID: return s.whole <= 40 && strspn(s.text, "0123456789abcdef\n") == s.bytes;
        default: return s.whole <= sizeof(uint64_t);
    }
}

/* Refuses a file or folder of another program. The message proposes a run.dir that does not exist yet. */
NORETURN static void refuse_foreign(const Config *c, const char *path, const char *what) {
    const char *dir = c->run.dir;
    size_t      length = strlen(dir);
    char        other[4200];
    struct stat st;
    while (length > 1 && dir[length - 1] == '/') length--;
    for (int i = 2; i < 10000; i++) {
        snprintf(other, sizeof other, "%.*s-%d", (int)(length < 4100 ? length : 4100), dir, i);
        if (lstat(other, &st) != 0) break;
    }
    fail(EXIT_CONFIG, "run.dir: %s %s, and a run would write over it: take another folder, run.dir=%s", path, what,
         shell_word(other).text);
}

static void check_file(const Config *c, int i) {
    enum { START_BYTES = JSON_LIMIT }; /* the first bytes that are read of a file: all of a config.json */
    Path        path = path_in_run(c, NAMES[i]);
    struct stat st;
    char       *text = NULL;
    if (lstat(path.text, &st) != 0 || is_same_file(path.text, c->path)) return;
    if (S_ISDIR(st.st_mode)) refuse_foreign(c, path.text, "is a folder");
    /* lock.c refuses links, pipes and devices for the files that are appended to, and for gemm.json */
    if (!S_ISREG(st.st_mode) && (i == METRICS || i == LOG || i == LOCK || i == ALGORITHMS)) return;
    if (!S_ISREG(st.st_mode)) refuse_foreign(c, path.text, io_error_text(io_kind(st.st_mode)));
    int64_t bytes = io_read_start(path.text, START_BYTES, &text);
    if (bytes < 0)
        fail(bytes == -ENOMEM ? EXIT_MEMORY : EXIT_IO, "%s: cannot read: %s", path.text, io_error_text((int)bytes));
    int64_t zeros = 0; /* a crash of the machine may leave an empty file or one of zero bytes */
    while (zeros < bytes && !text[zeros]) zeros++;
    int ours = zeros == bytes || is_ours(i, (Start){text, (size_t)bytes, (size_t)st.st_size});
    free(text);
    if (!ours)
        refuse_foreign(c, path.text,
                       i == CONFIG ? "is not the config of a run as this program writes it"
                                   : "was not written by this program");
}

static int is_event_file(const char *name) { return strncmp(name, "events.out.tfevents.", 20) == 0; }

/* Refuses a file in place of a folder. A link to a folder is a folder. A link that leads to none may lead to a disk
 * that is not mounted now, where the run has its checkpoints. */
static void check_folder(const Config *c, const char *path) {
    struct stat st;
    if (lstat(path, &st) != 0 || io_is_folder(path)) return;
    if (S_ISLNK(st.st_mode))
        fail(EXIT_CONFIG, "run.dir: %s is a link to no folder: mount the disk that it leads to, or remove the link",
             path);
    refuse_foreign(c, path, "is not a folder");
}

/* Refuses a folder with an entry whose name is_own() does not accept. */
static void check_names(const Config *c, const char *path, int (*is_own)(const char *)) {
    struct dirent *entry;
    check_folder(c, path);
    DIR *folder = opendir(path);
    if (!folder) return; /* the folder cannot be read: that is reported when it is used */
    while ((entry = readdir(folder))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 || is_own(entry->d_name)) continue;
        Path foreign = path_of("%s/%s", path, entry->d_name);
        closedir(folder);
        refuse_foreign(c, foreign.text, "was not written by this program");
    }
    closedir(folder);
}

void run_folder_check(const Config *c) {
    StepFolder *list = NULL;
    for (int i = METRICS; i < FILES; i++)
        if (is_same_file(path_in_run(c, NAMES[i]).text, c->path))
            fail(EXIT_CONFIG,
                 "run.dir: the config %s lies where this run writes its %s: give the config another name, or take "
                 "another run.dir",
                 c->path, NAMES[i]);
    for (int i = 0; i < FILES; i++) check_file(c, i);
    check_names(c, path_in_run(c, "tb").text, is_event_file);
    Path checkpoints = path_in_run(c, "checkpoints");
    check_folder(c, checkpoints.text);
    int  count = folders_list(checkpoints.text, &list);
    for (int i = 0; i < count; i++)
        check_names(c, path_of("%s/%s", checkpoints.text, list[i].name).text, folder_is_own_file);
    free(list);
}

/* --- files of the folder ------------------------------------------------------------------------------------------ */

/* Copies all later output to log.txt in the run folder. */
void run_folder_keep_log(const Config *c) {
    Path   path = path_in_run(c, "log.txt");
    char   heading[64];
    time_t now = time(NULL);
    int    fd = io_open(path.text, IO_APPEND);
    strftime(heading, sizeof heading, "== started %Y-%m-%d %H:%M:%S %z", localtime(&now));
    if (fd >= 0) say_keep_log(fd, path.text, heading);
    else         warn("cannot open %s: %s; the run goes on without it", path.text, io_error_text(fd));
}

void run_folder_keep_config(const Config *c) {
    Path   path = path_in_run(c, "config.json");
    if (is_same_file(path.text, c->path)) return;
    cJSON *json = config_to_json(c);
    char  *text = cJSON_Print(json);
    int    error = io_replace_file(path.text, text, strlen(text));
    if (error) fail(EXIT_IO, "%s: cannot write: %s", path.text, io_error_text(error));
    free(text);
    cJSON_Delete(json);
}
