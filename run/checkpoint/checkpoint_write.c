/* checkpoint_write.c - writes the files of a checkpoint and its manifest; see checkpoint_write.h. */
#include "run/checkpoint/checkpoint_write.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
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

static void note(Save *s, const char *what, const char *path, int error) {
    if (error < 0 && !s->fault[0]) manifest_fault(s->fault, "cannot %s %s: %s", what, path, strerror(-error));
}

static Path file_path(const Save *s, const char *name) { return path_of("%s/%s", s->tmp.text, name); }

/* --- paths, headers, folder --------------------------------------------------------------------------------------- */

/* Adds a JSON tree to m->json.root, which owns it from then on. Returns the tree. value may be NULL. */
static cJSON *keep(Manifest *m, const char *key, cJSON *value) {
    if (value) cJSON_AddItemToObject(m->json.root, key, value);
    return value;
}

/* Returns the manifest of the run at a step, without its list of files. */
static Manifest describe(const CheckpointState *state, int64_t step) {
    const Config     *config = state->config;
    const Dataset    *train = state->train;
    const TrainState *t = state->train_state;
    Position          position = position_after(t->start, config, step);
    Manifest          m = {.step = step,
                           .tokens = position.tokens,
                           .samples = position.samples,
                           .missed = t->missed,
                           .seed = config->run.seed,
                           .loss_scale = t->loss_scale.scale,
                           .loss_scale_steps = t->loss_scale.steps,
                           .guard = t->guard,
                           .parent = t->parent,
                           .ranks = comm_size(state->comm),
                           .threads = state->threads,
                           .data_files = train->shards,
                           .json = {.root = cJSON_CreateObject()}};
    m.config = keep(&m, "config", config_to_json(config));
    m.gemm = keep(&m, "gemm", device_is_host() ? NULL : algorithms_to_json());
    m.fp8 = keep(&m, "fp8", t->fp8 ? fp8_history_to_json(t->fp8) : NULL);
    Mesh mesh = config_mesh(config, m.ranks);
    if (mesh_ranks(mesh) > mesh.size[AXIS_SHARD]) mesh_text(mesh, m.grid);
    snprintf(m.run_id, sizeof m.run_id, "%s", t->run_id);
    snprintf(m.backend, sizeof m.backend, "%s", device_backend());
    snprintf(m.precision, sizeof m.precision, "%s", state->precision);
    m.data = xmalloc(sizeof *m.data * (size_t)train->shards, "the manifest of a checkpoint");
    for (int i = 0; i < train->shards; i++) {
        const Shard *shard = &train->shard[i];
        m.data[i] = (ManifestData){shard_name(shard), shard->file_bytes, shard->header.tokens, shard->ends};
    }
    return m;
}

Save save_prepare(const CheckpointState *state, int64_t step) {
    Save s = {.state = state, .manifest = describe(state, step), .fd = {-1, -1}};
    s.checkpoints = path_of("%s/checkpoints", state->config->run.dir);
    folder_name(s.name, step);
    s.final = path_of("%s/%s", s.checkpoints.text, s.name);
    s.tmp = path_of("%s.tmp", s.final.text);
    file_path(&s, manifest_file_name[FILE_OPTIMIZER]); /* exit 64 if this path, the longest of the save, is too long for
                                                        * the system */
    const Layout        *layout = checkpoint_layout(state);
    const OptimizerKind *kind = state->optimizer->kind;
    uint64_t             elems = (uint64_t)layout->elems;
    SafeTensor          *t = xcalloc((size_t)layout->params, sizeof *t, "the header of a file of weights");
    SafeTensor           moments[OPTIMIZER_MOST_STATES];
    for (int i = 0; i < layout->params; i++) {
        const Param *p = &layout->param[i];
        t[i].name = p->name, t[i].type = SAFE_F32, t[i].dims = p->dims;
        for (int d = 0; d < p->dims; d++) t[i].dim[d] = (uint64_t)p->dim[d];
    }
    for (int k = 0; k < kind->states; k++)
        moments[k] = (SafeTensor){.name = kind->state[k].name, .type = SAFE_F32, .dims = 1, .dim = {elems}};
    s.header[FILE_MODEL] = safetensors_header(t, layout->params, &s.header_bytes[FILE_MODEL]);
    s.header[FILE_OPTIMIZER] = safetensors_header(moments, kind->states, &s.header_bytes[FILE_OPTIMIZER]);
    s.manifest.file[FILE_MODEL].bytes = s.header_bytes[FILE_MODEL] + 4 * elems;
    s.manifest.file[FILE_OPTIMIZER].bytes = s.header_bytes[FILE_OPTIMIZER] + 4 * (uint64_t)kind->states * elems;
    free(t);
    return s;
}

void save_describe_as(Save *s, Manifest *m) {
    for (int f = 0; f < MANIFEST_FILES; f++) {
        free(m->file[f].extent);
        m->file[f] = (ManifestFile){.bytes = s->manifest.file[f].bytes};
    }
    manifest_free(&s->manifest);
    s->manifest = *m;
    s->manifest.session = 0;
    memset(m, 0, sizeof *m);
}

void save_release(Save *s) {
    for (int f = 0; f < 2; f++) free(s->header[f]);
    manifest_free(&s->manifest);
    memset(s, 0, sizeof *s);
}

/* Returns 1 if this run has already saved this step, from the same data. After a rollback the data differ. A folder
 * that cannot be read is a fault. */
static int saved_already(Save *s) {
    Manifest    m;
    struct stat st;
    char        why[MANIFEST_FAULT_BYTES];
    if (lstat(s->final.text, &st) != 0) return 0;
    ManifestStatus status = folder_verify(NULL, s->final.text, s->manifest.step, &s->progress, &m, why);
    s->is_bad = status != MANIFEST_GOOD;
    if (status == MANIFEST_UNKNOWN)
        manifest_fault(s->fault, "%s exists and cannot be checked: %.800s", s->final.text, why);
    if (status != MANIFEST_GOOD) return 0;
    int ours = strcmp(m.run_id, s->manifest.run_id) == 0 && m.tokens == s->manifest.tokens &&
               m.samples == s->manifest.samples;
    manifest_free(&m);
    return ours;
}

/* Returns 0 if the save has a fault. If another job has taken the run folder over, that is the fault. */
static int may_write(Save *s) {
    if (!lock_is_held(s->state->lock))
        manifest_fault(s->fault, "another job has taken %s over", s->state->config->run.dir);
    return !s->fault[0];
}

void save_make_folder(Save *s) {
    if (!may_write(s)) return;
    s->is_saved = saved_already(s);
    if (s->is_saved || s->fault[0]) return;
    note(s, "make the folder", s->checkpoints.text, io_mkdirs(s->checkpoints.text));
    if (!s->fault[0]) note(s, "clear", s->checkpoints.text, folders_sweep(s->checkpoints.text));
    /* A full disk is reported before gigabytes are written to it. If a file system does not report its free space, the
     * save is tried. */
    int64_t room = io_free_bytes(s->checkpoints.text),
            bytes = (int64_t)checkpoint_disk_bytes(checkpoint_layout(s->state), s->state->optimizer->kind);
    if (room >= 0 && room < bytes && !s->fault[0])
        manifest_fault(s->fault, "%s needs %.1f MiB, and its file system has %.1f MiB free", s->tmp.text,
                       (double)bytes / 1048576.0, (double)room / 1048576.0);
    if (!s->fault[0]) note(s, "make the folder", s->tmp.text, io_mkdirs(s->tmp.text));
}

/* Removes the folder of a save. If files cannot be removed, the next save removes them. */
void save_drop(Save *s) { folder_drop(s->checkpoints.text, path_of("%s.tmp", s->name).text); }

/* --- hashed extents ----------------------------------------------------------------------------------------------- */

static void add_extent(Save *s, int file, ManifestExtent e) {
    ManifestFile *f = &s->manifest.file[file];
    f->extent = xgrow(f->extent, f->extents, sizeof *f->extent, "the extents of a checkpoint");
    f->extent[f->extents++] = e;
}

static void hash_extent(Save *s, int file, uint64_t offset, const void *data, size_t bytes) {
    add_extent(s, file, (ManifestExtent){offset, bytes, manifest_hash(data, bytes)});
}

/* Hashes the first `bytes` bytes of a file, in extents (ranges) of at most MANIFEST_EXTENT_BYTES. */
static void hash_extents(Save *s, int file, const char *data, size_t bytes) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < MANIFEST_EXTENT_BYTES ? bytes - at : MANIFEST_EXTENT_BYTES;
        hash_extent(s, file, at, data + at, n);
    }
}

static void write_at(Save *s, int file, uint64_t offset, const void *bytes, size_t count) {
    Path path = file_path(s, manifest_file_name[file]);
    if (s->fault[0]) return;
    note(s, "write", path.text, io_pwrite(s->fd[file], bytes, count, offset));
    if (!s->fault[0]) io_start_writeback(s->fd[file], offset, count);
}

/* --- this rank's pieces ------------------------------------------------------------------------------------------- */

/* Hashes the elements that this rank holds of one tensor of the state: the masters (fp32 weights), or moments m or v.
 * Writes them if the file is open, which it is not for a copy in memory. base: first byte of the tensor in the file.
 * from: the elements. Returns the end of these elements. */
static const char *put_tensor(Save *s, int file, uint64_t base, const FileExtents *extents, const char *from) {
    size_t most = (size_t)manifest_extent_bytes(s->manifest.file[file].bytes);
    for (int64_t i = 0; i < extents->extents; i++) {
        FileExtent e = extents->extent[i];
        uint64_t   offset = base + 4 * (uint64_t)e.offset;
        size_t     left = 4 * (size_t)e.elems;
        for (size_t n; left > 0; left -= n, offset += n, from += n) {
            n = left < most ? left : most;
            hash_extent(s, file, offset, from, n);
            if (s->fd[file] >= 0) write_at(s, file, offset, from, n);
            s->progress++;
        }
    }
    return from;
}

/* Writes a new file with these bytes, and fsyncs it. */
static void write_file(Save *s, const char *name, const char *data, size_t bytes) {
    Path path = file_path(s, name);
    if (s->fault[0]) return;
    int fd = io_open(path.text, IO_CREATE), error = fd < 0 ? fd : io_write(fd, data, bytes);
    if (!error) error = io_fsync(fd);
    note(s, "write", path.text, error);
    if (fd >= 0) note(s, "close", path.text, io_close(fd));
}

static void write_small(Save *s, ManifestFileKind file, const char *text, size_t bytes) {
    s->manifest.file[file].bytes = bytes;
    write_file(s, manifest_file_name[file], text, bytes);
    hash_extents(s, (int)file, text, bytes);
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
        note(s, "open", path.text, s->fd[f]);
        if (comm_rank(s->state->comm) > 0 || s->fault[0]) continue;
        /* rank 0 writes the header and sets the full size; bytes that other ranks have already written stay */
        int error = io_pwrite(s->fd[f], s->header[f], s->header_bytes[f], 0);
        if (!error) error = io_truncate(s->fd[f], s->manifest.file[f].bytes);
        note(s, "write", path.text, error);
        hash_extents(s, f, s->header[f], s->header_bytes[f]);
    }
}

void save_put(Save *s, int file, ManifestExtent e, const void *bytes) {
    add_extent(s, file, e);
    write_at(s, file, e.offset, bytes, e.bytes);
    s->progress++;
}

void save_close(Save *s) {
    for (int f = 0; f < 2; f++) {
        Path path = file_path(s, manifest_file_name[f]);
        if (s->fd[f] < 0) continue;
        note(s, "sync", path.text, io_fsync(s->fd[f]));
        note(s, "close", path.text, io_close(s->fd[f]));
        s->fd[f] = -1;
    }
    if (comm_rank(s->state->comm) == 0) write_descriptions(s);
}

void save_pieces(Save *s, const float *values, const FileExtents *extents, int writes) {
    const OptimizerKind *kind = s->state->optimizer->kind;
    uint64_t             elems = (uint64_t)checkpoint_layout(s->state)->elems;
    int64_t              count = optimizer_tensors(kind) * extents->elems;
    s->not_finite = weights_finite(values, count) < count; /* NaN and infinity must never reach a file */
    if (s->not_finite)
        manifest_fault(s->fault,
                       "the weights or moments after step %" PRId64
                       " are not finite: nothing is saved, older checkpoints stay",
                       s->manifest.step);
    if (writes) save_open(s);
    if (!s->fault[0]) {
        const char *from = put_tensor(s, FILE_MODEL, s->header_bytes[FILE_MODEL], extents, (const char *)values);
        for (int k = 0; k < kind->states; k++)
            from = put_tensor(s, FILE_OPTIMIZER, s->header_bytes[FILE_OPTIMIZER] + 4 * (uint64_t)k * elems, extents,
                              from);
    }
    if (writes) save_close(s);
}

/* --- the manifest and the rename ---------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b) {
    const ManifestExtent *x = (const ManifestExtent *)a, *y = (const ManifestExtent *)b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Writes the manifest, and reads manifest and files back like a resume. They must equal what was in memory, before
 * older checkpoints are removed. */
static void write_manifest(Save *s) {
    Manifest read;
    char     folder[PATH_MAX], why[MANIFEST_FAULT_BYTES];
    size_t   bytes;
    for (int f = 0; f < MANIFEST_FILES; f++) { /* the extents of all ranks must cover each file exactly once */
        ManifestFile *file = &s->manifest.file[f];
        uint64_t      at = 0;
        int64_t       i = 0;
        if (file->extents > 0) qsort(file->extent, (size_t)file->extents, sizeof *file->extent, by_offset);
        while (i < file->extents && file->extent[i].offset == at) at += file->extent[i++].bytes;
        if (i == file->extents && at == file->bytes) continue;
        manifest_fault(s->fault, "a bug: byte %" PRIu64 " of %s is written by no rank, or twice", at,
                       manifest_file_name[f]);
        return;
    }
    s->manifest.folder = realpath(s->state->config->run.dir, folder);
    char *text = manifest_write(&s->manifest, &bytes);
    s->manifest.folder = NULL;
    write_file(s, MANIFEST_NAME, text, bytes);
    free(text);
    if (s->fault[0]) return;
    if (folder_verify(NULL, s->tmp.text, s->manifest.step, &s->progress, &read, why) == MANIFEST_GOOD)
        manifest_free(&read);
    else
        manifest_fault(s->fault, "%s reads back wrong: %.800s", s->tmp.text, why);
}

/* Completes a save. Syncs the log first, so that no checkpoint is ahead of the log lines of its steps. */
void save_commit(Save *s) {
    struct stat st;
    Path        aside;
    const char *run_dir = s->state->config->run.dir;
    if (!may_write(s)) return;
    if (s->state->log) note(s, "sync", s->state->log, io_fsync(s->state->log_fd));
    if (!s->fault[0]) write_manifest(s);
    if (!s->fault[0]) note(s, "sync", s->tmp.text, io_fsync_dir(s->tmp.text));
    /* run.dir is synced, because its subfolder `checkpoints` may be new */
    if (!s->fault[0]) note(s, "sync", run_dir, io_fsync_dir(run_dir));
    /* An older folder of the final name is renamed to NAME.passed-over if it does not verify. If this run wrote it
     * before a rollback, it is removed. */
    if (!s->fault[0] && lstat(s->final.text, &st) == 0) {
        int error = s->is_bad ? folder_set_aside(s->checkpoints.text, s->name, &aside)
                              : folder_trash(s->checkpoints.text, s->name);
        note(s, "move away", s->final.text, error);
    }
    if (!s->fault[0]) note(s, "rename to", s->final.text, io_rename(s->tmp.text, s->final.text));
    if (!s->fault[0]) note(s, "sync", s->checkpoints.text, io_fsync_dir(s->checkpoints.text));
}

/* --- other ranks -------------------------------------------------------------------------------------------------- */

void save_gather(Save *s) {
    for (int f = FILE_MODEL; f <= FILE_OPTIMIZER; f++) { /* rank 0 alone writes the other files */
        ManifestFile *file = &s->manifest.file[f];
        size_t        bytes, each = sizeof *file->extent;
        void         *all = comm_gather_bytes(s->state->comm, file->extent, each * (size_t)file->extents, &bytes);
        free(file->extent);
        file->extent = all, file->extents = (int64_t)(bytes / each);
    }
}
