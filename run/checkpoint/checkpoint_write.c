/* checkpoint_write.c - writes the files of a checkpoint and its manifest; see checkpoint_write.h. */
#include "run/checkpoint/checkpoint_write.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/thread.h"
#include "core/io.h"
#include "core/error.h"
#include "data/tokenizer.h"
#include "run/checkpoint/algorithms_file.h"
#include "model/hf.h"
#include "run/checkpoint/safetensors.h"
#include "run/checkpoint/weights.h"

static void note(Save *s, const char *what, const Path *path, int error) {
    if (error < 0 && !s->fault[0]) manifest_fault(s->fault, "cannot %s %s: %s", what, path->text, strerror(-error));
}

static Path file_path(const Save *s, const char *name) { return path_of("%s/%s", s->tmp.text, name); }

/* --- paths, headers, folder --------------------------------------------------------------------------------------- */

/* Sets the headers of the weights file and the optimizer file, and the sizes of both files. */
static void make_headers(Save *s) {
    const Layout        *layout = checkpoint_layout(s->state);
    const OptimizerKind *kind = s->state->optimizer->kind;
    uint64_t             elems = (uint64_t)layout->elems;
    SafeTensor          *t = xcalloc((size_t)layout->params, sizeof *t, "the header of a file of weights");
    SafeTensor           state[OPTIMIZER_MOST_STATES];
    for (int i = 0; i < layout->params; i++) {
        const Param *p = &layout->param[i];
        t[i].name = p->name, t[i].type = SAFE_F32, t[i].dims = p->dims;
        for (int d = 0; d < p->dims; d++) t[i].dim[d] = (uint64_t)p->dim[d];
    }
    for (int k = 0; k < kind->states; k++)
        state[k] = (SafeTensor){.name = kind->state[k].name, .type = SAFE_F32, .dims = 1, .dim = {elems}};
    s->header[FILE_MODEL] = safetensors_header(t, layout->params, &s->header_bytes[FILE_MODEL]);
    s->header[FILE_OPTIMIZER] = safetensors_header(state, kind->states, &s->header_bytes[FILE_OPTIMIZER]);
    s->file_bytes[FILE_MODEL] = s->header_bytes[FILE_MODEL] + 4 * elems;
    s->file_bytes[FILE_OPTIMIZER] = s->header_bytes[FILE_OPTIMIZER] + 4 * (uint64_t)kind->states * elems;
    free(t);
}

Save save_prepare(const CheckpointState *state, int64_t step, const float *host_copy, const FileExtents *extents) {
    Save s = {.state = state,
              .step = step,
              .train_state = *state->train_state,
              .position = position_after(state->train_state->start, state->config, step),
              .host_copy = host_copy,
              .extents = extents,
              .fd = {-1, -1},
              .gemm = device_is_host() ? NULL : algorithms_to_json(),
              .fp8 = state->train_state->fp8 ? fp8_history_to_json(state->train_state->fp8) : NULL,
              .config = config_to_json(state->config)};
    s.run_dir = path_of("%s", state->config->run.dir);
    s.checkpoints = path_of("%s/checkpoints", s.run_dir.text);
    folder_name(s.name, step);
    s.final = path_of("%s/%s", s.checkpoints.text, s.name);
    s.tmp = path_of("%s.tmp", s.final.text);
    file_path(&s, manifest_file_name[FILE_OPTIMIZER]); /* exit 64 if this path, the longest of the save, is too long for
                                                        * the system */
    make_headers(&s);
    return s;
}

void save_release(Save *s) {
    for (int f = 0; f < 2; f++) free(s->header[f]);
    free(s->written);
    cJSON_Delete(s->config);
    cJSON_Delete(s->gemm);
    cJSON_Delete(s->fp8);
    memset(s, 0, sizeof *s);
}

/* Returns 1 if this run has already saved this step, from the same data. After a rollback the data differ. A folder
 * that cannot be read is a fault. */
static int saved_already(Save *s) {
    Manifest    m;
    struct stat st;
    char        why[MANIFEST_FAULT_BYTES];
    if (lstat(s->final.text, &st) != 0) return 0;
    ManifestStatus status = folder_verify(NULL, s->final.text, s->step, &s->progress, &m, why);
    s->is_bad = status != MANIFEST_GOOD;
    if (status == MANIFEST_UNKNOWN) manifest_fault(s->fault, "%s is there: %.800s", s->final.text, why);
    if (status != MANIFEST_GOOD) return 0;
    int ours = strcmp(m.run_id, s->state->train_state->run_id) == 0 && m.tokens == s->position.tokens &&
               m.samples == s->position.samples;
    manifest_free(&m);
    return ours;
}

/* Returns 0 if the save has a fault. If another job has taken the run folder over, that is the fault. */
static int may_write(Save *s) {
    if (!lock_is_held(s->state->lock)) manifest_fault(s->fault, "%s is another job's now", s->run_dir.text);
    return !s->fault[0];
}

void save_make_folder(Save *s) {
    if (!may_write(s)) return;
    s->there = saved_already(s);
    if (s->there || s->fault[0]) return;
    note(s, "make the folder", &s->checkpoints, io_mkdirs(s->checkpoints.text));
    if (!s->fault[0]) note(s, "clear", &s->checkpoints, folders_sweep(s->checkpoints.text));
    /* A full disk is reported before gigabytes are written to it. If a file system does not report its free space, the
     * save is tried. */
    int64_t room = io_free_bytes(s->checkpoints.text),
            bytes = (int64_t)checkpoint_disk_bytes(checkpoint_layout(s->state), s->state->optimizer->kind);
    if (room >= 0 && room < bytes && !s->fault[0])
        manifest_fault(s->fault, "%s takes %.1f MiB and its file system has %.1f MiB free", s->tmp.text,
                       (double)bytes / 1048576.0, (double)room / 1048576.0);
    if (!s->fault[0]) note(s, "make the folder", &s->tmp, io_mkdirs(s->tmp.text));
}

/* Removes the folder of a save. If files cannot be removed, the next save removes them. */
void save_drop(Save *s) { folder_drop(s->checkpoints.text, path_of("%s.tmp", s->name).text); }

/* --- hashed extents ----------------------------------------------------------------------------------------------- */

static void add_written(Save *s, WrittenExtent extent) {
    s->written = xrealloc(s->written, sizeof *s->written * (s->written_count + 1), "the extents of a checkpoint");
    s->written[s->written_count++] = extent;
}

static void add_extent(Save *s, int file, uint64_t offset, const void *data, size_t bytes) {
    add_written(s, (WrittenExtent){(uint32_t)file, 0, {offset, bytes, manifest_hash(data, bytes)}});
}

/* Adds extents of at most MANIFEST_EXTENT_BYTES for all bytes from offset 0 of a file. */
static void add_extents(Save *s, int file, const char *data, size_t bytes) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < MANIFEST_EXTENT_BYTES ? bytes - at : MANIFEST_EXTENT_BYTES;
        add_extent(s, file, at, data + at, n);
    }
}

static void write_at(Save *s, int file, uint64_t offset, const void *bytes, size_t count) {
    Path path = file_path(s, manifest_file_name[file]);
    if (s->fault[0]) return;
    note(s, "write", &path, io_pwrite(s->fd[file], bytes, count, offset));
    if (!s->fault[0]) io_start_writeback(s->fd[file], offset, count);
}

/* Hashes the pending bytes of host_copy as one extent, and writes them. Hashes only if no file is open, as for a copy
 * in memory. */
static void flush_extent(Save *s) {
    if (s->pending == 0) return;
    const char *bytes = (const char *)s->host_copy + s->from;
    add_extent(s, s->file, s->offset, bytes, s->pending);
    if (s->fd[s->file] >= 0) write_at(s, s->file, s->offset, bytes, s->pending);
    s->from += s->pending;
    s->pending = 0;
    s->progress++;
}

/* Adds the next `bytes` of host_copy, which belong at `offset` of the file. If they follow the pending bytes in the
 * file too, both are hashed as one extent. */
static void put_extent(Save *s, uint64_t offset, size_t bytes) {
    if (s->offset + s->pending != offset) flush_extent(s);
    if (s->pending == 0) s->offset = offset;
    size_t most = (size_t)manifest_extent_bytes(s->file_bytes[s->file]);
    for (size_t n; bytes > 0; bytes -= n) {
        n = most - s->pending < bytes ? most - s->pending : bytes;
        s->pending += n;
        if (s->pending < most) continue;
        uint64_t next = s->offset + s->pending;
        flush_extent(s);
        s->offset = next;
    }
}

/* --- this rank's pieces ------------------------------------------------------------------------------------------- */

/* Hashes what this rank holds of one tensor of the state (masters, m or v), and writes it if the file is open. The
 * tensor begins at byte `base` of the file. */
static void put_tensor(Save *s, int file, uint64_t base) {
    s->file = file;
    s->offset = base;
    for (int64_t i = 0; i < s->extents->extents; i++) {
        FileExtent e = s->extents->extent[i];
        put_extent(s, base + 4 * (uint64_t)e.offset, 4 * (size_t)e.elems);
    }
    flush_extent(s);
}

/* Writes a new file with these bytes, and fsyncs it. */
static void write_file(Save *s, const char *name, const char *data, size_t bytes) {
    Path path = file_path(s, name);
    if (s->fault[0]) return;
    int fd = io_open(path.text, IO_CREATE), error = fd < 0 ? fd : io_write(fd, data, bytes);
    if (!error) error = io_fsync(fd);
    note(s, "write", &path, error);
    if (fd >= 0) note(s, "close", &path, io_close(fd));
}

static void write_small(Save *s, ManifestFileKind file, const char *text, size_t bytes) {
    s->file_bytes[file] = bytes;
    write_file(s, manifest_file_name[file], text, bytes);
    add_extents(s, (int)file, text, bytes);
}

/* Writes the files that Hugging Face transformers reads along with the weights. */
static void write_descriptions(Save *s) {
    ModelShape       shape = s->state->optimizer->shards->spec.shape;
    const Tokenizer *t = s->state->tokenizer;
    int32_t          end = tokenizer_end_of_text(t);
    int              is_bpe = t->kind == TOKENIZER_BPE;
    char             text[HF_CONFIG_BYTES], *end_text = tokenizer_special_text(t, end);
    char            *begin_text = is_bpe && t->file.start >= 0 ? tokenizer_special_text(t, t->file.start) : NULL;
    size_t           bytes;
    char            *vocabulary = tokenizer_json(t, &bytes);
    write_small(s, FILE_CONFIG, text, (size_t)hf_config_text(shape, end, "float32", text));
    write_small(s, FILE_GENERATION, text, (size_t)hf_generation_text(end, text));
    if (vocabulary) {
        int adds_start = is_bpe ? t->file.adds_start : -1;
        write_small(s, FILE_TOKENIZER_CONFIG, text,
                    (size_t)hf_tokenizer_config_text(shape.n_positions, begin_text, adds_start, end_text, text));
        write_small(s, FILE_TOKENIZER, vocabulary, bytes);
    }
    free(vocabulary);
    free(begin_text), free(end_text);
}

void save_open(Save *s) {
    for (int f = 0; f < 2 && !s->fault[0]; f++) {
        Path   path = file_path(s, manifest_file_name[f]);
        double begin = clock_ms();
        /* On a network file system the other ranks may see the new folder of rank 0 only after a delay. */
        while ((s->fd[f] = io_open(path.text, IO_SHARED)) == -ENOENT && clock_ms() - begin < 5000.0) usleep(50000);
        note(s, "open", &path, s->fd[f]);
        if (comm_rank(s->state->comm) > 0 || s->fault[0]) continue;
        /* rank 0 writes the header and sets the full size; bytes that other ranks have already written stay */
        int error = io_pwrite(s->fd[f], s->header[f], s->header_bytes[f], 0);
        if (!error) error = io_truncate(s->fd[f], s->file_bytes[f]);
        note(s, "write", &path, error);
        add_extents(s, f, s->header[f], s->header_bytes[f]);
    }
}

void save_put(Save *s, WrittenExtent at, const void *bytes) {
    add_written(s, at);
    write_at(s, (int)at.file, at.extent.offset, bytes, at.extent.bytes);
    s->progress++;
}

void save_close(Save *s) {
    for (int f = 0; f < 2; f++) {
        Path path = file_path(s, manifest_file_name[f]);
        if (s->fd[f] < 0) continue;
        note(s, "sync", &path, io_fsync(s->fd[f]));
        note(s, "close", &path, io_close(s->fd[f]));
        s->fd[f] = -1;
    }
    if (comm_rank(s->state->comm) == 0) write_descriptions(s);
}

void save_pieces(Save *s, int writes) {
    const OptimizerKind *kind = s->state->optimizer->kind;
    uint64_t             elems = (uint64_t)checkpoint_layout(s->state)->elems;
    int64_t              count = optimizer_tensors(kind) * s->extents->elems;
    s->not_finite = weights_finite(s->host_copy, count) < count; /* NaN and infinity must never reach a file */
    if (s->not_finite)
        manifest_fault(s->fault,
                       "the weights or moments after step %" PRId64
                       " are not finite: nothing is saved, older checkpoints stay",
                       s->step);
    if (writes) save_open(s);
    if (!s->fault[0]) {
        put_tensor(s, FILE_MODEL, s->header_bytes[FILE_MODEL]);
        for (int k = 0; k < kind->states; k++)
            put_tensor(s, FILE_OPTIMIZER, s->header_bytes[FILE_OPTIMIZER] + 4 * (uint64_t)k * elems);
    }
    if (writes) save_close(s);
}

/* --- the manifest and the rename ---------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b) {
    const WrittenExtent *x = (const WrittenExtent *)a, *y = (const WrittenExtent *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->extent.offset < y->extent.offset ? -1 : x->extent.offset > y->extent.offset;
}

/* Sorts the extents of all ranks into the lists of the manifest. Returns 0 with the fault in s->fault if a byte of a
 * file was not written exactly once. */
static int collect_extents(Save *s, WrittenExtent *all, size_t count, Manifest *m) {
    qsort(all, count, sizeof *all, by_place);
    for (size_t i = 0; i < count; i++) m->file[all[i].file].extents++;
    for (size_t f = 0, i = 0; f < MANIFEST_FILES; f++) {
        ManifestFile *file = &m->file[f];
        uint64_t      at = 0;
        file->bytes = s->file_bytes[f];
        file->extent = xmalloc(sizeof *file->extent * (size_t)(file->extents + 1), "the extents of a checkpoint");
        for (int64_t k = 0; k < file->extents && all[i].extent.offset == at; k++, i++) {
            file->extent[k] = all[i].extent;
            at += all[i].extent.bytes;
        }
        if (at != file->bytes)
            return manifest_fault(s->fault, "a bug: byte %" PRIu64 " of %s is written by no rank, or twice", at,
                                  manifest_file_name[f]);
    }
    return 1;
}

/* Returns the manifest without the list of files. Free it with manifest_free. */
static Manifest describe(const Save *s) {
    const CheckpointState *state = s->state;
    const Config          *config = state->config;
    const Dataset         *train = state->train;
    Manifest               m = {.step = s->step,
                                .tokens = s->position.tokens,
                                .samples = s->position.samples,
                                .missed = s->train_state.missed,
                                .seed = config->run.seed,
                                .loss_scale = s->train_state.loss_scale.scale,
                                .loss_scale_steps = s->train_state.loss_scale.steps,
                                .guard = s->train_state.guard,
                                .ranks = comm_size(state->comm),
                                .threads = state->threads,
                                .config = s->config,
                                .gemm = s->gemm,
                                .fp8 = s->fp8};
    snprintf(m.run_id, sizeof m.run_id, "%s", s->train_state.run_id);
    m.parent = s->train_state.parent;
    Mesh mesh = config_mesh(config, m.ranks);
    if (mesh_ranks(mesh) > mesh.size[AXIS_SHARD]) mesh_text(mesh, m.grid);
    snprintf(m.backend, sizeof m.backend, "%s", device_backend());
    snprintf(m.precision, sizeof m.precision, "%s", state->precision);
    if (s->rescued) {
        m = *s->rescued;
        memset(m.file, 0, sizeof m.file), memset(&m.json, 0, sizeof m.json); /* s->rescued owns the memory of these
                                                                              * lists and of the JSON */
    }
    m.data_files = train->shards;
    m.data = xmalloc(sizeof *m.data * (size_t)(train->shards + 1), "the manifest of a checkpoint");
    for (int i = 0; i < train->shards; i++) {
        const Shard *shard = &train->shard[i];
        m.data[i] = (ManifestData){shard_name(shard), shard->file_bytes, shard->header.tokens};
    }
    return m;
}

char *save_head(Save *s, size_t *bytes) {
    Manifest m = describe(s);
    char    *text = manifest_write(&m, bytes);
    manifest_free(&m);
    return text;
}

/* Writes the manifest, and reads manifest and files back like a resume. They must equal what was in memory, before
 * older checkpoints are removed. */
static void write_manifest(Save *s, WrittenExtent *all, size_t count) {
    Manifest m = describe(s);
    char     folder[PATH_MAX], why[MANIFEST_FAULT_BYTES];
    m.folder = realpath(s->run_dir.text, folder);
    if (collect_extents(s, all, count, &m)) {
        size_t bytes;
        char  *text = manifest_write(&m, &bytes);
        write_file(s, MANIFEST_NAME, text, bytes);
        free(text);
    }
    manifest_free(&m);
    if (s->fault[0]) return;
    if (folder_verify(NULL, s->tmp.text, s->step, &s->progress, &m, why) == MANIFEST_GOOD) manifest_free(&m);
    else manifest_fault(s->fault, "%s reads back wrong: %.800s", s->tmp.text, why);
}

/* Gives the complete folder its final name. An older folder of this name is renamed to NAME.passed-over if it does not
 * verify. If this run wrote it before a rollback, it is removed. */
static void put_in_place(Save *s) {
    struct stat st;
    Path        aside;
    if (!s->fault[0]) note(s, "sync", &s->tmp, io_fsync_dir(s->tmp.text));
    /* run.dir is synced, because its subfolder `checkpoints` may be new */
    if (!s->fault[0]) note(s, "sync", &s->run_dir, io_fsync_dir(s->run_dir.text));
    if (!s->fault[0] && lstat(s->final.text, &st) == 0) {
        int error = s->is_bad ? folder_set_aside(s->checkpoints.text, s->name, &aside)
                              : folder_trash(s->checkpoints.text, s->name);
        note(s, "make way for", &s->final, error);
    }
    if (!s->fault[0]) note(s, "rename to", &s->final, io_rename(s->tmp.text, s->final.text));
    if (!s->fault[0]) note(s, "sync", &s->checkpoints, io_fsync_dir(s->checkpoints.text));
}

/* Completes a save. Syncs the log first, so that no checkpoint is ahead of the log lines of its steps. */
void save_commit(Save *s, WrittenExtent *all, size_t count) {
    if (!may_write(s)) return;
    if (s->state->log) {
        Path log = path_of("%s", s->state->log);
        note(s, "sync", &log, io_fsync(s->state->log_fd));
    }
    if (!s->fault[0]) write_manifest(s, all, count);
    put_in_place(s);
}

/* --- other ranks, and the thread ---------------------------------------------------------------------------------- */

char *gather_bytes(Comm *c, const void *data, size_t bytes, size_t *total) {
    size_t *bytes_of_rank = NULL;
    char   *all = comm_gather(c, data, bytes, 0, &bytes_of_rank);
    *total = 0;
    for (int r = 0; comm_rank(c) == 0 && r < comm_size(c); r++) *total += bytes_of_rank[r];
    free(bytes_of_rank);
    return all;
}

WrittenExtent *save_gather(const Save *s, size_t *count) {
    char *all = gather_bytes(s->state->comm, s->written, sizeof *s->written * s->written_count, count);
    *count /= sizeof *s->written;
    return (WrittenExtent *)(void *)all;
}

static void *work_when_told(void *worker) {
    Worker *w = (Worker *)worker;
    omp_set_num_threads(1);
    thread_lock(&w->thread);
    for (;;) {
        while (!w->is_busy && !w->thread.stop) thread_wait(&w->thread);
        if (!w->is_busy) break;
        thread_unlock(&w->thread);
        w->work(w->ctx);
        thread_lock(&w->thread);
        w->is_busy = 0;
        thread_changed(&w->thread);
    }
    thread_unlock(&w->thread);
    return NULL;
}

void worker_start(Worker *w, void (*work)(void *ctx), void *ctx, const char *what) {
    w->work = work, w->ctx = ctx;
    thread_start(&w->thread, work_when_told, w, what);
}

void worker_begin(Worker *w) {
    thread_lock(&w->thread);
    w->is_busy = 1;
    thread_changed(&w->thread);
    thread_unlock(&w->thread);
}

int worker_is_busy(Worker *w) {
    thread_lock(&w->thread);
    int is_busy = w->is_busy;
    thread_unlock(&w->thread);
    return is_busy;
}

void worker_wait(Worker *w, double ms) {
    thread_lock(&w->thread);
    if (w->is_busy) thread_wait_for(&w->thread, ms);
    thread_unlock(&w->thread);
}
