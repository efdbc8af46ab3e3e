/* checkpoint_space.c - makes the folder for the checkpoints of a run and checks its free space before the first step,
 * while a refusal loses nothing; see checkpoint.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/io.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"

/* Estimated bytes: config.json and headers; an extent in state.json; a token in tokenizer.json. */
enum { SMALL_FILES_BYTES = 64 << 10, EXTENT_TEXT_BYTES = 64, TOKEN_TEXT_BYTES = 96 };

/* The bytes of weights, states of the optimizer, and a manifest with their extents. These are ranges of 1 MiB, and the
 * shares of ranks in each row. */
size_t checkpoint_disk_bytes(const Layout *layout, const OptimizerKind *optimizer) {
    size_t tensors = (size_t)optimizer_tensors(optimizer), state = tensors * sizeof(float) * (size_t)layout->elems;
    size_t runs = state / (size_t)manifest_extent_bytes(state) + tensors * (size_t)(layout->params + layout->ranks);
    size_t tokenizer = TOKEN_TEXT_BYTES * (size_t)layout->param[0].dim[0]; /* counted with SMALL_FILES_BYTES if small */
    return state + SMALL_FILES_BYTES + EXTENT_TEXT_BYTES * runs + (tokenizer > SMALL_FILES_BYTES ? tokenizer : 0);
}

int64_t folder_bytes(const char *checkpoints, const char *name) {
    int64_t sum = 0;
    for (int f = 0; f < MANIFEST_FILES; f++) {
        int64_t bytes = io_file_bytes(path_of("%s/%s/%s", checkpoints, name, manifest_file_name[f]).text);
        if (bytes > 0) sum += bytes;
    }
    return sum;
}

static int64_t saves_to_come(const Config *c, int64_t step) {
    int64_t every = c->checkpoint.every;
    return every > 0 ? c->run.steps / every - step / every + (c->run.steps % every != 0) : 1;
}

typedef struct { int64_t checkpoints; double bytes; } Need;

int64_t checkpoint_most(const Config *c) {
    int64_t newest = c->checkpoint.keep < FOLDERS_LEAST ? FOLDERS_LEAST : c->checkpoint.keep;
    int64_t milestones = c->checkpoint.keep_every > 0 ? c->run.steps / c->checkpoint.keep_every : 0;
    return newest + milestones + (c->checkpoint.keep_best != 0) + 1;
}

/* Returns the most bytes that this run needs beyond those in use: for the checkpoints that stay and the one being
 * written, or for fewer if the run saves fewer. The next checkpoint is written before any is removed, so one is always
 * counted. */
static Need need_of(const CheckpointState *state, const char *checkpoints) {
    const Config *c = state->config;
    StepFolder   *list = NULL;
    int64_t       there = folders_list(checkpoints, &list), most = checkpoint_most(c);
    int64_t       to_come = saves_to_come(c, state->train_state->start.step), count = to_come + (there > 0 ? there : 0);
    if (count >= most) count = most;
    double one = (double)checkpoint_disk_bytes(checkpoint_layout(state), state->optimizer->kind), bytes = (double)count * one;
    for (int64_t i = 0; i < there; i++) /* a later checkpoint is passed over, and stays */
        if (list[i].step <= state->train_state->start.step) bytes -= (double)folder_bytes(checkpoints, list[i].name);
    free(list);
    if (to_come > 0 && bytes < one) bytes = one;
    return (Need){count, bytes};
}

/* Makes the folder. It may be a link to another folder. */
static void make_folder(const char *checkpoints) {
    int error = io_mkdirs(checkpoints);
    if (error == -ENOTDIR)
        fail(EXIT_IO, "%s is no folder (a file, or a link to nothing): move it away, or set run.dir to another folder",
             checkpoints);
    if (error)
        fail(EXIT_IO, "%s: cannot make the folder: %s; set run.dir to a folder that this job may write", checkpoints,
             strerror(-error));
}

static void clear(const char *checkpoints) {
    int error = folders_sweep(checkpoints);
    if (!error) return;
    fail(EXIT_IO,
         "%s: cannot remove what a save that was cut off has left there: %s; remove step_*.tmp and .trash-* by hand",
         checkpoints, strerror(-error));
}

/* Writes a file, to find faults that statvfs does not report: a read-only or full disk, a quota. */
static void try_to_write(const char *checkpoints) {
    static const char block[64 << 10];
    Path probe = path_of("%s/.probe", checkpoints);
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
}

static void check_file_limit(const CheckpointState *state) {
    struct rlimit limit;
    double        largest = 4.0 * state->optimizer->kind->states * (double)checkpoint_layout(state)->elems + SMALL_FILES_BYTES;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || (double)limit.rlim_cur >= largest) return;
    fail(EXIT_IO,
         "files may not grow past %.1f MiB here (ulimit -f), and a checkpoint's optimizer.safetensors takes %.1f MiB: raise the limit",
         (double)limit.rlim_cur / 1048576.0, largest / 1048576.0);
}

void checkpoint_make_room(const CheckpointState *state) {
    const Config *c = state->config;
    if (comm_rank(state->comm) != 0) return;
    Path checkpoints = path_of("%s/checkpoints", c->run.dir);
    make_folder(checkpoints.text);
    clear(checkpoints.text);
    try_to_write(checkpoints.text);
    check_file_limit(state);
    Need    need = need_of(state, checkpoints.text);
    int64_t room = io_free_bytes(checkpoints.text);
    if (room < 0 || (double)room >= need.bytes) return;
    fail(EXIT_IO,
         "%s: its file system has %.1f MiB free, and this run needs %.1f MiB more for %lld checkpoints of %.1f MiB (checkpoint.keep = "
         "%lld%s, and one being written): make room, %stake another run.dir",
         checkpoints.text, (double)room / 1048576.0, need.bytes / 1048576.0, (long long)need.checkpoints,
         (double)checkpoint_disk_bytes(checkpoint_layout(state), state->optimizer->kind) / 1048576.0,
         (long long)c->checkpoint.keep, c->checkpoint.keep_every > 0 ? ", and the milestones of keep_every" : "",
         c->checkpoint.keep > FOLDERS_LEAST || c->checkpoint.keep_every > 0 ? "keep fewer, or " : "or ");
}
