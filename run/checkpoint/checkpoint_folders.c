/* checkpoint_folders.c - see checkpoint_folders.h; also checkpoint_find() of checkpoint.h. */
#include "run/checkpoint/checkpoint_folders.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/io.h"
#include "core/terminal.h"
#include "run/checkpoint/checkpoint.h"

#define TRASH ".trash-"
#define ASIDE ".passed-over"

Path path_of(const char *fmt, ...) {
    Path    path;
    va_list args;
    va_start(args, fmt);
    int bytes = vsnprintf(path.text, sizeof path.text, fmt, args);
    va_end(args);
    if ((size_t)bytes >= sizeof path.text) fail(EXIT_CONFIG, "the path %.200s... is too long", path.text);
    return path;
}

void folder_name(char out[32], int64_t step) { snprintf(out, 32, "step_%08" PRId64, step); }

/* Returns the step of a name that is exactly as folder_name writes it, else -1. */
static int64_t step_of(const char *name) {
    char    again[32];
    int64_t step = 0;
    if (strncmp(name, "step_", 5) != 0 || strlen(name) > 24) return -1;
    for (const char *c = name + 5; *c; c++) {
        if (*c < '0' || *c > '9' || __builtin_mul_overflow(step, (int64_t)10, &step) ||
            __builtin_add_overflow(step, (int64_t)(*c - '0'), &step)) return -1;
    }
    folder_name(again, step);
    return strcmp(again, name) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b) {
    const StepFolder *x = (const StepFolder *)a, *y = (const StepFolder *)b;
    return x->step > y->step ? -1 : x->step < y->step;
}

int folders_list(const char *checkpoints, StepFolder **list) {
    int            count = 0;
    struct dirent *entry;
    *list = NULL;
    DIR *folder = opendir(checkpoints);
    if (!folder && (errno == ENOENT || errno == ENOTDIR)) return 0;
    if (!folder) return -errno;
    while ((errno = 0, entry = readdir(folder))) {
        int64_t     step = step_of(entry->d_name);
        StepFolder *longer = step < 0 ? *list : realloc(*list, sizeof **list * (size_t)(count + 1));
        if (step < 0) continue;
        if (!longer) break;
        *list = longer;
        (*list)[count].step = step;
        folder_name((*list)[count++].name, step);
    }
    int error = entry ? ENOMEM : errno;
    closedir(folder);
    if (error) {
        free(*list);
        *list = NULL;
        return -error;
    }
    if (count) qsort(*list, (size_t)count, sizeof **list, newest_first);
    return count;
}

/* --- verifying ---------------------------------------------------------------------------------------------------- */

static int  is_alone(Comm *c) { return !c || comm_size(c) == 1; }
static int  is_first(Comm *c) { return !c || comm_rank(c) == 0; }
static void share(Comm *c, void *data, size_t bytes) { if (!is_alone(c)) comm_broadcast(c, data, bytes, 0); }

int any_fault(Comm *c, char *fault) {
    if (is_alone(c)) return fault[0] != 0;
    int64_t who = fault[0] ? comm_rank(c) : comm_size(c);
    comm_all_reduce_i64(c, &who, 1, COMM_MIN);
    if (who == comm_size(c)) return 0;
    comm_broadcast(c, fault, MANIFEST_FAULT_BYTES, (int)who);
    return 1;
}

/* Returns the text of the manifest, malloc'ed, or NULL with a fault. */
static char *read_manifest(const char *folder, int64_t *bytes, char *fault) {
    struct stat st;
    char       *text = NULL;
    Path        path = path_of("%s/" MANIFEST_NAME, folder);
    if (lstat(folder, &st) == 0 && !S_ISDIR(st.st_mode)) manifest_fault(fault, "it is not a folder");
    else if (lstat(path.text, &st) < 0) manifest_unread(fault, MANIFEST_NAME, errno);
    else if (!S_ISREG(st.st_mode)) manifest_fault(fault, MANIFEST_NAME " %s", io_error_text(io_kind(st.st_mode)));
    else if ((*bytes = io_read_file(path.text, MANIFEST_LIMIT, &text)) < 0) manifest_unread(fault, MANIFEST_NAME, (int)-*bytes);
    return text;
}

static int is_unreadable(const char *fault) { return strncmp(fault, MANIFEST_UNREADABLE, strlen(MANIFEST_UNREADABLE)) == 0; }

static ManifestStatus status_of(const char *fault) {
    return is_unreadable(fault) || strcmp(fault, MANIFEST_NO_MEMORY) == 0 ? MANIFEST_UNKNOWN : MANIFEST_BROKEN;
}

void folder_warn(int64_t *warned, const char *fmt, ...) {
    char    text[4096];
    va_list args;
    if ((*warned)++ >= FOLDER_WARNINGS) return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    warn("%s", text);
}

void folder_warn_rest(int64_t warned, const char *what_happened) {
    int64_t more = warned - FOLDER_WARNINGS;
    if (more > 0) warn("%" PRId64 " more folder%s %s", more, more > 1 ? "s" : "", what_happened);
}

/* An older checkpoint is not used instead: that would lose steps, and later delete this one, for a fault that may be
 * repaired before the next start. */
void folder_fail_unknown(const char *folder, const char *fault) {
    if (!is_unreadable(fault)) fail(EXIT_MEMORY, "%s: %s", folder, fault);
    fail(EXIT_IO, "%s: %s; nothing is changed: mend that and start again, or move this folder away to use an older one",
         folder, fault);
}

static ManifestStatus parse_manifest(const char *text, int64_t bytes, int64_t step, Manifest *m, char *fault) {
    ManifestStatus status = manifest_parse(text, (size_t)bytes, m, fault);
    if (status != MANIFEST_GOOD || step < 0 || m->step == step) return status;
    manifest_fault(fault, MANIFEST_NAME " is that of step %" PRId64, m->step);
    manifest_free(m);
    return MANIFEST_BROKEN;
}

/* Communicator and counter that get the progress while a folder is read. */
typedef struct { Comm *comm; _Atomic int64_t *moved; } Waiting;

static void tell_progress(void *waiting) {
    Waiting *w = (Waiting *)waiting;
    if (w->comm) world_moved(comm_world(w->comm));
    if (w->comm && comm_rank(w->comm) == 0) say_part("checking the checkpoint", 0, 0);
    if (w->moved) ++*w->moved;
}

ManifestStatus folder_verify(Comm *c, const char *folder, int64_t step, _Atomic int64_t *moved, Manifest *m, char *fault) {
    int64_t bytes = 0;
    char   *text = NULL;
    fault[0] = 0;
    if (is_first(c)) text = read_manifest(folder, &bytes, fault);
    if (any_fault(c, fault)) return status_of(fault);
    share(c, &bytes, sizeof bytes);
    if (!text) text = xmalloc((size_t)bytes + 1, "the manifest of a checkpoint");
    share(c, text, (size_t)bytes);
    ManifestStatus status = parse_manifest(text, bytes, step, m, fault); /* equal on all ranks, because the bytes are */
    free(text);
    if (any_fault(c, fault)) {
        if (status == MANIFEST_GOOD) manifest_free(m); /* another rank had no memory for it */
        return status == MANIFEST_FOREIGN ? status : status_of(fault);
    }
    Waiting waiting = {c, moved};
    manifest_verify(m, folder, c ? comm_rank(c) : 0, c ? comm_size(c) : 1, tell_progress, &waiting, fault);
    if (!any_fault(c, fault)) return MANIFEST_GOOD;
    manifest_free(m);
    return status_of(fault);
}

/* --- removing ----------------------------------------------------------------------------------------------------- */

static int remove_any(const char *path) {
    struct stat st;
    if (lstat(path, &st) < 0) return errno == ENOENT ? 0 : -errno;
    return S_ISDIR(st.st_mode) ? io_remove_tree(path) : io_unlink(path);
}

int folder_trash(const char *checkpoints, const char *name) {
    Path from = path_of("%s/%s", checkpoints, name), to = path_of("%s/" TRASH "%s", checkpoints, name);
    int  error = remove_any(to.text);
    if (!error) error = io_rename(from.text, to.text);
    if (!error) error = io_fsync_dir(checkpoints);
    return error ? error : remove_any(to.text);
}

int folder_set_aside(const char *checkpoints, const char *name, Path *to) {
    struct stat st;
    Path        from = path_of("%s/%s", checkpoints, name);
    *to = path_of("%s" ASIDE, from.text);
    for (int i = 2; lstat(to->text, &st) == 0; i++) *to = path_of("%s" ASIDE "-%d", from.text, i);
    int error = io_rename(from.text, to->text);
    return error ? error : io_fsync_dir(checkpoints);
}

int folder_is_own_file(const char *name) {
    size_t length = strlen(name);
    for (int f = 0; f <= MANIFEST_FILES; f++) {
        const char *ours = f < MANIFEST_FILES ? manifest_file_name[f] : MANIFEST_NAME;
        size_t      n = strlen(ours);
        if (strncmp(name, ours, n) == 0 && (length == n || strcmp(name + n, ".tmp") == 0)) return 1;
    }
    return 0;
}

/* Removes the files of a save from its folder, then the folder. Returns -ENOTEMPTY if the folder holds something else,
 * which stays. */
static int remove_own(const char *path) {
    struct stat st;
    if (lstat(path, &st) < 0) return errno == ENOENT ? 0 : -errno;
    if (!S_ISDIR(st.st_mode)) return -ENOTEMPTY;
    DIR *folder = opendir(path);
    if (!folder) return -errno;
    int            error = 0, others = 0;
    struct dirent *entry;
    while (!error && (entry = readdir(folder))) {
        Path file = path_of("%s/%s", path, entry->d_name);
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (folder_is_own_file(entry->d_name) && lstat(file.text, &st) == 0 && !S_ISDIR(st.st_mode)) error = io_unlink(file.text);
        else others++;
    }
    closedir(folder);
    return error ? error : others ? -ENOTEMPTY : io_remove_tree(path);
}

int folder_drop(const char *checkpoints, const char *name) {
    Path to, path = path_of("%s/%s", checkpoints, name);
    int  error = remove_own(path.text);
    if (error != -ENOTEMPTY) return error;
    error = folder_set_aside(checkpoints, name, &to);
    if (!error) warn("%s holds files that no checkpoint has: they are kept in %s", path.text, to.text);
    return error;
}

/* Returns 1 for names such as "step_00000050.tmp" and ".trash-step_00000050", and for no other. */
static int is_leftover(const char *name) {
    char   stem[40];
    size_t bytes = strlen(name);
    if (strncmp(name, TRASH, strlen(TRASH)) == 0) return step_of(name + strlen(TRASH)) >= 0;
    if (bytes < 5 || bytes >= sizeof stem || strcmp(name + bytes - 4, ".tmp") != 0) return 0;
    memcpy(stem, name, bytes - 4);
    stem[bytes - 4] = 0;
    return step_of(stem) >= 0;
}

int folders_sweep(const char *checkpoints) {
    int            error = 0;
    struct dirent *entry;
    DIR           *folder = opendir(checkpoints);
    if (!folder) return -errno;
    while (!error && (entry = readdir(folder)))
        if (is_leftover(entry->d_name)) error = folder_drop(checkpoints, entry->d_name);
    closedir(folder);
    return error;
}

static void remove_folder(const char *checkpoints, const char *name) {
    int error = folder_trash(checkpoints, name);
    if (error) warn("cannot remove the old checkpoint %s/%s: %s", checkpoints, name, strerror(-error));
}

static void set_aside(const char *checkpoints, const char *name) {
    Path to;
    int  error = folder_set_aside(checkpoints, name, &to);
    if (error) warn("cannot rename %s/%s to %s: %s", checkpoints, name, to.text, strerror(-error));
}

static int stays(FoldersKept kept, int64_t step) {
    return step == kept.best || (kept.every > 0 && step > 0 && step % kept.every == 0);
}

void folders_prune(const char *checkpoints, int64_t step, FoldersKept wanted, _Atomic int64_t *moved) {
    StepFolder *list = NULL;
    Manifest    m;
    char        fault[MANIFEST_FAULT_BYTES];
    int64_t     keep = wanted.newest, kept = 1, older = 0, warned = 0, count = folders_list(checkpoints, &list);
    if (keep < FOLDERS_LEAST) keep = FOLDERS_LEAST;
    if (count < 0) warn("old checkpoints stay: cannot read the folder %s: %s", checkpoints, strerror((int)-count));
    for (int64_t i = 0; i < count; i++) older += list[i].step < step;
    for (int64_t i = 0; i < count; i++) {
        StepFolder at = list[i];
        if (at.step == step || (at.step < step && older < keep)) continue;
        if (at.step > step) {
            set_aside(checkpoints, at.name);
            continue;
        }
        int is_spare = kept >= keep;
        if (is_spare && stays(wanted, at.step)) continue;
        if (is_spare) {
            remove_folder(checkpoints, at.name);
            continue;
        }
        Path folder = path_of("%s/%s", checkpoints, at.name);
        ManifestStatus status = kept == 1 ? folder_verify(NULL, folder.text, at.step, moved, &m, fault) : MANIFEST_GOOD;
        if (status != MANIFEST_GOOD) {
            folder_warn(&warned, "%s does not count as a checkpoint to fall back to, an older one stays: %s", folder.text, fault);
            if (status == MANIFEST_BROKEN) set_aside(checkpoints, at.name);
            continue;
        }
        if (kept == 1) manifest_free(&m);
        kept++;
    }
    folder_warn_rest(warned, "do not count either");
    free(list);
}

/* --- finding, without ranks --------------------------------------------------------------------------------------- */

static int is_good(const char *folder, int64_t step, Manifest *m, int64_t *warned) {
    char           fault[MANIFEST_FAULT_BYTES];
    ManifestStatus status = folder_verify(NULL, folder, step, NULL, m, fault);
    if (status == MANIFEST_UNKNOWN) folder_fail_unknown(folder, fault);
    if (status != MANIFEST_GOOD) folder_warn(warned, "%s is not used: %s", folder, fault);
    return status == MANIFEST_GOOD;
}

int folder_find(const char *run_or_checkpoint, Path *out, Manifest *m) {
    struct stat st;
    StepFolder *list = NULL;
    int         found = 0;
    int64_t     warned = 0;
    Path        checkpoints = path_of("%s/checkpoints", run_or_checkpoint);
    *out = path_of("%s", run_or_checkpoint);
    if (lstat(path_of("%s/" MANIFEST_NAME, run_or_checkpoint).text, &st) == 0) {
        found = is_good(out->text, -1, m, &warned);
    } else {
        int count = folders_list(checkpoints.text, &list);
        if (count < 0) fail(EXIT_IO, "cannot read the folder %s: %s", checkpoints.text, strerror(-count));
        for (int i = 0; i < count && !found; i++) {
            *out = path_of("%s/%s", checkpoints.text, list[i].name);
            found = is_good(out->text, list[i].step, m, &warned);
        }
        free(list);
    }
    folder_warn_rest(warned, "are not used either");
    return found;
}

int checkpoint_find(const char *run_or_checkpoint, char *out, size_t capacity) {
    Path     path;
    Manifest m;
    if (!folder_find(run_or_checkpoint, &path, &m)) return 0;
    manifest_free(&m);
    if (strlen(path.text) >= capacity) fail(EXIT_CONFIG, "the path %s is too long", path.text);
    strcpy(out, path.text);
    return 1;
}
