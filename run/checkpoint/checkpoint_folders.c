/* checkpoint_folders.c - lists, verifies and removes the folders under run.dir/checkpoints; see checkpoint_folders.h.
 * Also defines the checks of disk space of checkpoint.h. */
#include "run/checkpoint/checkpoint_folders.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/io.h"
#include "run/checkpoint/checkpoint.h"

#define TRASH ".trash-"
#define ASIDE ".passed-over"

void folder_name(char out[32], int64_t step) { snprintf(out, 32, "step_%08" PRId64, step); }

/* Returns the step in a folder name that is exactly as folder_name writes it, or -1 for another name. */
static int64_t step_of(const char *name) {
    char    again[32];
    int64_t step = strncmp(name, "step_", 5) == 0 ? strtoll(name + 5, NULL, 10) : -1;
    folder_name(again, step);
    return step >= 0 && strcmp(again, name) == 0 ? step : -1;
}

static int newest_first(const void *a, const void *b) {
    const StepFolder *x = (const StepFolder *)a, *y = (const StepFolder *)b;
    return x->step > y->step ? -1 : x->step < y->step;
}

int folders_list(const char *checkpoints, StepFolder **list) {
    int            count = 0;
    StepFolder    *found = NULL;
    struct dirent *entry;
    if (list) *list = NULL;
    DIR *folder = opendir(checkpoints);
    if (!folder && (errno == ENOENT || errno == ENOTDIR)) return 0;
    if (!folder) return -errno;
    while ((errno = 0, entry = readdir(folder))) {
        int64_t step = step_of(entry->d_name);
        if (step < 0) continue;
        found = xgrow(found, count, sizeof *found, "a list of checkpoints");
        found[count].step = step;
        folder_name(found[count++].name, step);
    }
    int error = errno;
    closedir(folder);
    if (count) qsort(found, (size_t)count, sizeof *found, newest_first);
    if (list && !error) *list = found;
    else free(found);
    return error ? -error : count;
}

/* --- verifying ---------------------------------------------------------------------------------------------------- */

/* Reads state.json of a folder. Returns its text, malloc'ed, with its length in *bytes, or NULL with the reason in
 * fault. */
static char *read_manifest(const char *folder, int64_t *bytes, char *fault) {
    char *text = NULL;
    Path  path = path_of("%s/" MANIFEST_NAME, folder);
    *bytes = io_read_file(path.text, MANIFEST_LIMIT, &text);
    if (*bytes == -ENOMEM) fail(EXIT_MEMORY, "no memory to read %s; free memory on this host", path.text);
    if (*bytes < 0) manifest_unread(fault, MANIFEST_NAME, (int)-*bytes);
    return text;
}

static ManifestStatus status_of(const char *fault) {
    int is_unreadable = strncmp(fault, MANIFEST_UNREADABLE, strlen(MANIFEST_UNREADABLE)) == 0;
    return is_unreadable ? MANIFEST_UNKNOWN : MANIFEST_BROKEN;
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

/* Ends the program because a checkpoint cannot be read from the disk. An older checkpoint is not used instead, because
 * that would lose steps and later delete this one. The fault may be repaired before the next start. */
void folder_fail_unknown(const char *folder, const char *fault) {
    fail(EXIT_IO,
         "%s: %s; no file was changed. Remove this fault and start the same command again, or use an older checkpoint: "
         "mv %s %s.unreadable",
         folder, fault, folder, folder);
}

ManifestStatus folder_manifest(const char *folder, Manifest *m, char *fault) {
    int64_t bytes;
    char   *text = read_manifest(folder, &bytes, fault);
    if (!text) return status_of(fault);
    ManifestStatus status = manifest_parse(text, (size_t)bytes, m, fault);
    free(text);
    return status;
}

ManifestStatus folder_verify(Comm *c, const char *folder, int64_t step, _Atomic int64_t *moved, Manifest *m,
                             char *fault) {
    int64_t     bytes = 0;
    char       *text = NULL;
    struct stat st;
    fault[0] = 0;
    if (!c || comm_rank(c) == 0) { /* the folder and its manifest must not be links */
        Path path = path_of("%s/" MANIFEST_NAME, folder);
        if (lstat(folder, &st) == 0 && !S_ISDIR(st.st_mode)) manifest_fault(fault, "it is not a folder");
        else if (lstat(path.text, &st) < 0) manifest_unread(fault, MANIFEST_NAME, errno);
        else if (S_ISREG(st.st_mode)) text = read_manifest(folder, &bytes, fault);
        else manifest_fault(fault, MANIFEST_NAME " %s", io_error_text(io_kind(st.st_mode)));
    }
    if (comm_any_fault(c, fault)) return status_of(fault);
    if (c) comm_broadcast(c, &bytes, sizeof bytes, 0);
    if (!text) text = xmalloc((size_t)bytes + 1, "the manifest of a checkpoint");
    if (c) comm_broadcast(c, text, (size_t)bytes, 0);
    /* the status is equal on all ranks, because they parse equal bytes */
    ManifestStatus status = manifest_parse(text, (size_t)bytes, m, fault);
    free(text);
    if (status == MANIFEST_GOOD && step >= 0 && m->step != step) {
        manifest_fault(fault, MANIFEST_NAME " is that of step %" PRId64, m->step);
        manifest_free(m);
        status = MANIFEST_BROKEN;
    }
    if (status != MANIFEST_GOOD) return status;
    manifest_verify(m, folder, c, moved, fault);
    if (!comm_any_fault(c, fault)) return MANIFEST_GOOD;
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

int folder_set_aside(const char *folder, const char *name, Path *to) {
    struct stat st;
    Path        from = path_of("%s/%s", folder, name);
    *to = path_of("%s" ASIDE, from.text);
    for (int i = 2; lstat(to->text, &st) == 0; i++) *to = path_of("%s" ASIDE "-%d", from.text, i);
    int error = io_rename(from.text, to->text);
    return error ? error : io_fsync_dir(folder);
}

int folder_is_own_file(const char *name) {
    for (int f = 0; f <= MANIFEST_FILES; f++) {
        const char *ours = f < MANIFEST_FILES ? manifest_file_name[f] : MANIFEST_NAME;
        size_t      n = strlen(ours);
        if (strncmp(name, ours, n) == 0 && (name[n] == 0 || strcmp(name + n, ".tmp") == 0)) return 1;
    }
    return 0;
}

/* Removes the files of a save from its folder, then the folder. Returns -ENOTEMPTY if the folder holds other files,
 * which stay. */
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
        int is_own = folder_is_own_file(entry->d_name) && lstat(file.text, &st) == 0 && !S_ISDIR(st.st_mode);
        if (is_own) error = io_unlink(file.text);
        else        others++;
    }
    closedir(folder);
    return error ? error : others ? -ENOTEMPTY : io_remove_tree(path);
}

int folder_drop(const char *checkpoints, const char *name) {
    Path to, path = path_of("%s/%s", checkpoints, name);
    int  error = remove_own(path.text);
    if (error != -ENOTEMPTY) return error;
    error = folder_set_aside(checkpoints, name, &to);
    if (!error) warn("%s holds files that are not part of a checkpoint: they are moved to %s", path.text, to.text);
    return error;
}

/* Returns 1 for names of unfinished saves and removals, such as "step_00000050.tmp" and ".trash-step_00000050". */
static int is_leftover(const char *name) {
    char stem[40];
    if (strncmp(name, TRASH, strlen(TRASH)) == 0) return step_of(name + strlen(TRASH)) >= 0;
    if (!has_ending(name, ".tmp") || strlen(name) >= sizeof stem) return 0;
    snprintf(stem, sizeof stem, "%.*s", (int)strlen(name) - 4, name);
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

static void set_aside(const char *checkpoints, const char *name) {
    Path to;
    int  error = folder_set_aside(checkpoints, name, &to);
    if (error) warn("cannot rename %s/%s to %s: %s", checkpoints, name, to.text, strerror(-error));
}

void folders_prune(const char *checkpoints, int64_t step, FoldersKept wanted, _Atomic int64_t *moved) {
    StepFolder *list = NULL;
    Manifest    m;
    char        fault[MANIFEST_FAULT_BYTES];
    int64_t     keep = wanted.newest, kept = 1, older = 0, warned = 0, count = folders_list(checkpoints, &list);
    if (keep < FOLDERS_LEAST) keep = FOLDERS_LEAST;
    if (count < 0) warn("old checkpoints are not removed, because the folder %s cannot be read: %s", checkpoints,
                        strerror((int)-count));
    for (int64_t i = 0; i < count; i++) older += list[i].step < step;
    for (int64_t i = 0; i < count; i++) {
        StepFolder at = list[i];
        if (at.step == step || (at.step < step && older < keep)) continue;
        if (at.step > step) {
            set_aside(checkpoints, at.name);
            continue;
        }
        Path folder = path_of("%s/%s", checkpoints, at.name);
        int  is_spare = kept >= keep;
        int  is_milestone = wanted.every > 0 && at.step > 0 && at.step % wanted.every == 0;
        if (is_spare && (at.step == wanted.best || is_milestone)) continue; /* both stay for good */
        if (is_spare) {
            int error = folder_trash(checkpoints, at.name);
            if (error) warn("cannot remove the old checkpoint %s: %s", folder.text, strerror(-error));
            continue;
        }
        ManifestStatus status = kept == 1 ? folder_verify(NULL, folder.text, at.step, moved, &m, fault) : MANIFEST_GOOD;
        if (status != MANIFEST_GOOD) {
            folder_warn(&warned, "%s does not count as a checkpoint to fall back to, an older one stays: %s",
                        folder.text, fault);
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
    Manifest       found;
    ManifestStatus status = folder_verify(NULL, folder, step, NULL, &found, fault);
    if (status == MANIFEST_UNKNOWN) folder_fail_unknown(folder, fault);
    if (status != MANIFEST_GOOD) folder_warn(warned, "%s is not used: %s", folder, fault);
    else if (m) *m = found;
    else manifest_free(&found);
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

/* --- room for the checkpoints of a run, before the first step, while a refusal loses nothing ---------------------- */

/* Estimated bytes: of config.json and all headers together; of the line in state.json for one extent (a range of file
 * bytes); of a token in tokenizer.json. */
enum { SMALL_FILES_BYTES = 64 << 10, EXTENT_TEXT_BYTES = 64, TOKEN_TEXT_BYTES = 96 };

/* Adds up the bytes of weights, optimizer states, and a manifest with a line for each extent. An extent is a range of
 * at most 1 MiB of a file. It also ends at the end of a parameter or of a rank's shard. */
size_t checkpoint_disk_bytes(const Layout *layout, const OptimizerKind *optimizer) {
    size_t tensors = (size_t)optimizer_tensors(optimizer), state = tensors * sizeof(float) * (size_t)layout->elems;
    size_t extents = state / (size_t)manifest_extent_bytes(state) + tensors * (size_t)(layout->params + layout->ranks);
    /* a small tokenizer is included in SMALL_FILES_BYTES */
    size_t tokenizer = TOKEN_TEXT_BYTES * (size_t)layout->param[0].dim[0];
    return state + SMALL_FILES_BYTES + EXTENT_TEXT_BYTES * extents + (tokenizer > SMALL_FILES_BYTES ? tokenizer : 0);
}

int64_t folder_bytes(const char *checkpoints, const char *name) {
    int64_t sum = 0;
    for (int f = 0; f < MANIFEST_FILES; f++) {
        int64_t bytes = io_file_bytes(path_of("%s/%s/%s", checkpoints, name, manifest_file_name[f]).text);
        if (bytes > 0) sum += bytes;
    }
    return sum;
}

int64_t checkpoint_most(const Config *c) {
    int64_t newest = c->checkpoint.keep < FOLDERS_LEAST ? FOLDERS_LEAST : c->checkpoint.keep;
    int64_t milestones = c->checkpoint.keep_every > 0 ? c->run.steps / c->checkpoint.keep_every : 0;
    return newest + milestones + (c->checkpoint.keep_best != 0) + 1;
}

/* Returns the bytes that this run may need on the disk beyond those that its checkpoints up to the step of the start
 * use now. Sets *count to the most checkpoints that are there at a time. These are the checkpoints that are kept and
 * the one being written, or fewer if the run saves fewer. A save is written before an older checkpoint is removed. So
 * if a save is to come, the result is at least the bytes of one checkpoint. */
static double need_of(const CheckpointState *state, const char *checkpoints, int64_t *count) {
    const Config *c = state->config;
    StepFolder   *list = NULL;
    int64_t       begin = state->train_state->start.step, every = c->checkpoint.every, steps = c->run.steps;
    int64_t       there = folders_list(checkpoints, &list), most = checkpoint_most(c);
    int64_t       to_come = every > 0 ? steps / every - begin / every + (steps % every != 0) : 1;
    *count = to_come + (there > 0 ? there : 0);
    if (*count > most) *count = most;
    double one = (double)checkpoint_disk_bytes(checkpoint_layout(state), state->optimizer->kind);
    double bytes = (double)*count * one;
    for (int64_t i = 0; i < there; i++) /* only checkpoints up to `begin` can be removed: newer ones failed to verify
                                         * and are kept for the user */
        if (list[i].step <= begin) bytes -= (double)folder_bytes(checkpoints, list[i].name);
    free(list);
    return to_come > 0 && bytes < one ? one : bytes;
}

/* Makes the folder for checkpoints, which may be a link to another folder, and removes leftovers from it. */
static void make_folder(const char *checkpoints) {
    int error = io_mkdirs(checkpoints);
    if (error == -ENOTDIR)
        fail(EXIT_IO, "%s is not a folder but a file, or a link to nothing: move it away, or set run.dir to another "
             "folder",
             checkpoints);
    if (error)
        fail(EXIT_IO, "%s: cannot make the folder: %s; set run.dir to a folder that this job may write", checkpoints,
             strerror(-error));
    error = folders_sweep(checkpoints);
    if (error)
        fail(EXIT_IO,
             "%s: cannot remove what a save that was cut off has left there: %s; remove step_*.tmp and .trash-* by "
             "hand",
             checkpoints, strerror(-error));
}

void checkpoint_make_room(const CheckpointState *state) {
    static const char block[64 << 10];
    const Config     *c = state->config;
    struct rlimit     limit;
    if (comm_rank(state->comm) != 0) return;
    Path checkpoints = path_of("%s/checkpoints", c->run.dir);
    make_folder(checkpoints.text);
    /* writes a file to find faults that statvfs does not report: a read-only or full disk, a quota */
    Path probe = path_of("%s/.probe", checkpoints.text);
    int  fd = io_open(probe.text, IO_CREATE), error = fd < 0 ? fd : io_write(fd, block, sizeof block);
    if (!error) error = io_fsync(fd);
    if (fd >= 0) {
        int closed = io_close(fd);
        if (!error) error = closed;
        io_unlink(probe.text);
    }
    if (error)
        fail(EXIT_IO, "%s: cannot write: %s; set run.dir to a folder with room that this job may write", probe.text,
             strerror(-error));
    /* a limit of the shell must let the largest file of a checkpoint be written */
    double states = state->optimizer->kind->states;
    double largest = 4.0 * states * (double)checkpoint_layout(state)->elems + SMALL_FILES_BYTES;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && (double)limit.rlim_cur < largest)
        fail(EXIT_IO,
             "files may not grow past %.1f MiB here (ulimit -f), and a checkpoint's optimizer.safetensors takes %.1f "
             "MiB: raise the limit",
             (double)limit.rlim_cur / 1048576.0, largest / 1048576.0);
    int64_t count, room = io_free_bytes(checkpoints.text);
    double  need = need_of(state, checkpoints.text, &count);
    if (room < 0 || (double)room >= need) return;
    fail(EXIT_IO,
         "%s: its file system has %.1f MiB free, and this run needs %.1f MiB more for %lld checkpoints of %.1f MiB "
         "(checkpoint.keep = %lld%s, and one being written): make room, %stake another run.dir",
         checkpoints.text, (double)room / 1048576.0, need / 1048576.0, (long long)count,
         (double)checkpoint_disk_bytes(checkpoint_layout(state), state->optimizer->kind) / 1048576.0,
         (long long)c->checkpoint.keep, c->checkpoint.keep_every > 0 ? ", and the milestones of keep_every" : "",
         c->checkpoint.keep > FOLDERS_LEAST || c->checkpoint.keep_every > 0 ? "keep fewer, or " : "or ");
}
