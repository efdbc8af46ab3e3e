/* checkpoint_save.c - writing a step folder; see checkpoint.h.
 *
 * Rank 0 makes step_N.tmp and files of their full size; every rank writes its own pieces at their global offsets, hashing each run of at
 * most 1 MiB in memory before the write; rank 0 gathers the runs, writes the manifest last and renames. All ranks agree after each part
 * whether all could do theirs: a fault on any of them removes the .tmp, leaves the older checkpoints alone and ends the job, exit 74.
 * A step that exists already and verifies stays as it is (this run saved it); one that is broken gives way when the new one is complete.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "core/io.h"
#include "run/checkpoint.h"
#include "run/checkpoint_folders.h"
#include "run/safetensors.h"

typedef struct {
    uint32_t    file; /* ManifestFileKind */
    uint32_t    pad;
    ManifestRun run;
} WrittenRun;

typedef struct {
    const CheckpointState *state;
    int64_t     step;
    Path        run_dir, checkpoints, tmp, final;
    char        name[32];
    char       *header[2];                  /* owned: of FILE_MODEL and FILE_OPTIMIZER, the same on every rank */
    size_t      header_bytes[2];
    uint64_t    file_bytes[MANIFEST_FILES];
    int         fd[2];                      /* of the two, -1 = closed */
    char       *staging;                    /* owned [MANIFEST_RUN_BYTES]: `pending` bytes that belong at `offset` of `file` */
    int         file;
    uint64_t    offset;
    size_t      pending;
    WrittenRun *written;                    /* owned: what this rank wrote */
    size_t      written_count, written_room;
    char        fault[MANIFEST_FAULT_BYTES];
} Save;

static void note(Save *s, const char *what, const Path *path, int error) {
    if (error < 0 && !s->fault[0]) manifest_fault(s->fault, "cannot %s %s: %s", what, path->text, strerror(-error));
}

static Path file_path(const Save *s, const char *name) { return path_of("%s/%s", s->tmp.text, name); }

/* --- what every rank knows ------------------------------------------------------------------------------------------------------------ */

static char *model_header(const Layout *layout, size_t *bytes) {
    SafeTensor *t = (SafeTensor *)calloc((size_t)layout->params, sizeof *t);
    if (!t) fail(EXIT_MEMORY, "no memory for the header of %d tensors", layout->params);
    for (int i = 0; i < layout->params; i++) {
        const Param *p = &layout->param[i];
        t[i].name = p->name, t[i].type = SAFE_F32, t[i].dims = p->dims;
        for (int d = 0; d < p->dims; d++) t[i].dim[d] = (uint64_t)p->dim[d];
    }
    char *text = safetensors_header(t, layout->params, bytes);
    free(t);
    return text;
}

static char *optimizer_header(const Layout *layout, size_t *bytes) {
    SafeTensor t[2] = {{.name = "m", .type = SAFE_F32, .dims = 1, .dim = {(uint64_t)layout->elems}},
                       {.name = "v", .type = SAFE_F32, .dims = 1, .dim = {(uint64_t)layout->elems}}};
    return safetensors_header(t, 2, bytes);
}

static void prepare(Save *s) {
    const Layout *layout = s->state->layout;
    s->run_dir = path_of("%s", s->state->config->run.dir);
    s->checkpoints = path_of("%s/checkpoints", s->run_dir.text);
    folder_name(s->name, s->step);
    s->final = path_of("%s/%s", s->checkpoints.text, s->name);
    s->tmp = path_of("%s.tmp", s->final.text);
    s->header[FILE_MODEL] = model_header(layout, &s->header_bytes[FILE_MODEL]);
    s->header[FILE_OPTIMIZER] = optimizer_header(layout, &s->header_bytes[FILE_OPTIMIZER]);
    s->file_bytes[FILE_MODEL] = s->header_bytes[FILE_MODEL] + 4 * (uint64_t)layout->elems;
    s->file_bytes[FILE_OPTIMIZER] = s->header_bytes[FILE_OPTIMIZER] + 8 * (uint64_t)layout->elems;
    s->fd[FILE_MODEL] = s->fd[FILE_OPTIMIZER] = -1;
    s->staging = (char *)malloc(MANIFEST_RUN_BYTES);
    if (!s->staging) fail(EXIT_MEMORY, "no memory to stage a checkpoint");
}

static void release(Save *s) {
    for (int f = 0; f < 2; f++) {
        free(s->header[f]);
        if (s->fd[f] >= 0) io_close(s->fd[f]);
    }
    free(s->staging);
    free(s->written);
}

/* --- writing in hashed runs ------------------------------------------------------------------------------------------------------------ */

static void add_run(Save *s, int file, uint64_t offset, const void *data, size_t bytes) {
    if (s->written_count == s->written_room) {
        s->written_room = s->written_room ? 2 * s->written_room : 256;
        s->written = (WrittenRun *)realloc(s->written, sizeof *s->written * s->written_room);
        if (!s->written) fail(EXIT_MEMORY, "no memory for the hashes of a checkpoint");
    }
    s->written[s->written_count++] = (WrittenRun){(uint32_t)file, 0, {offset, bytes, manifest_hash(data, bytes)}};
}

static void flush_run(Save *s) {
    if (s->pending == 0) return;
    add_run(s, s->file, s->offset, s->staging, s->pending);
    if (!s->fault[0]) {
        Path path = file_path(s, manifest_file_name[s->file]);
        note(s, "write", &path, io_pwrite(s->fd[s->file], s->staging, s->pending, s->offset));
    }
    s->pending = 0;
}

/* Appends a span's values; spans of a piece follow each other in the file, so that small ones share a run. */
static void put_span(Save *s, int file, uint64_t offset, Tensor values) {
    if (s->file != file || s->offset + s->pending != offset) flush_run(s);
    for (int64_t at = 0, n, elems = tensor_elems(values); at < elems; at += n) {
        if (s->pending == MANIFEST_RUN_BYTES) flush_run(s);
        if (s->pending == 0) s->file = file, s->offset = offset + 4 * (uint64_t)at;
        n = (int64_t)((MANIFEST_RUN_BYTES - s->pending) / 4);
        if (n > elems - at) n = elems - at;
        device_to_host(s->state->stream, s->staging + s->pending, tensor_slice(values, at, n));
        s->pending += 4 * (size_t)n;
    }
}

/* One of masters, m, v: the rank's own pieces, from byte `base` of the file on. */
static void write_pieces(Save *s, int file, uint64_t base, Tensor (*view)(const Optimizer *, Span)) {
    const Layout *layout = s->state->layout;
    Span         *spans = (Span *)malloc(sizeof *spans * (size_t)layout->params);
    if (!spans) fail(EXIT_MEMORY, "no memory for the spans of a checkpoint");
    for (int b = 0; b < layout->buckets; b++) {
        int count = layout_spans(layout, b, comm_rank(s->state->comm), spans);
        for (int i = 0; i < count; i++) put_span(s, file, base + 4 * (uint64_t)spans[i].offset, view(s->state->optimizer, spans[i]));
    }
    flush_run(s);
    free(spans);
}

static void open_file(Save *s, int file) {
    Path path = file_path(s, manifest_file_name[file]);
    if (s->fault[0]) return;
    s->fd[file] = io_open(path.text, IO_UPDATE);
    note(s, "open", &path, s->fd[file]);
}

static void close_file(Save *s, int file) {
    Path path = file_path(s, manifest_file_name[file]);
    if (s->fd[file] < 0) return;
    note(s, "sync", &path, io_fsync(s->fd[file]));
    note(s, "close", &path, io_close(s->fd[file]));
    s->fd[file] = -1;
}

static void write_state(Save *s) {
    open_file(s, FILE_MODEL);
    open_file(s, FILE_OPTIMIZER);
    uint64_t moments = s->header_bytes[FILE_OPTIMIZER];
    write_pieces(s, FILE_MODEL, s->header_bytes[FILE_MODEL], optimizer_master);
    write_pieces(s, FILE_OPTIMIZER, moments, optimizer_m);
    write_pieces(s, FILE_OPTIMIZER, moments + 4 * (uint64_t)s->state->layout->elems, optimizer_v);
    close_file(s, FILE_MODEL);
    close_file(s, FILE_OPTIMIZER);
}

/* --- what rank 0 alone writes ----------------------------------------------------------------------------------------------------------- */

/* A new file with these bytes, on the disk when it returns. */
static void write_file(Save *s, const char *name, const char *data, size_t bytes, uint64_t file_bytes) {
    Path path = file_path(s, name);
    if (s->fault[0]) return;
    int fd = io_open(path.text, IO_CREATE), error = fd < 0 ? fd : io_write(fd, data, bytes);
    if (!error && file_bytes > bytes) error = io_truncate(fd, file_bytes);
    if (!error) error = io_fsync(fd);
    note(s, "write", &path, error);
    if (fd >= 0) note(s, "close", &path, io_close(fd));
}

static void write_with_runs(Save *s, int file, const char *data, size_t bytes) {
    write_file(s, manifest_file_name[file], data, bytes, s->file_bytes[file]);
    for (size_t at = 0; at < bytes; at += MANIFEST_RUN_BYTES)
        add_run(s, file, at, data + at, bytes - at < MANIFEST_RUN_BYTES ? bytes - at : MANIFEST_RUN_BYTES);
}

/* config.json as transformers reads it. GPT-2's own vocabulary has its end-of-text token; bytes and other ids have none. */
static void write_model_config(Save *s) {
    GptShape    g = s->state->shape;
    char        text[2048];
    const char *ends = g.vocab_size == 50257 ? "  \"bos_token_id\": 50256,\n  \"eos_token_id\": 50256,\n" : "";
    int         bytes = snprintf(text, sizeof text,
        "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n  \"vocab_size\": %" PRId64 ",\n  \"n_positions\": %" PRId64
        ",\n  \"n_ctx\": %" PRId64 ",\n  \"n_embd\": %" PRId64 ",\n  \"n_layer\": %" PRId64 ",\n  \"n_head\": %" PRId64
        ",\n  \"n_inner\": null,\n  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n  \"attn_pdrop\": 0.0,\n"
        "  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n  \"summary_first_dropout\": 0.0,\n  \"initializer_range\": 0.02,\n%s"
        "  \"tie_word_embeddings\": true,\n  \"torch_dtype\": \"float32\"\n}\n",
        g.vocab_size, g.n_positions, g.n_positions, g.n_embd, g.n_layer, g.n_head, ends);
    s->file_bytes[FILE_CONFIG] = (uint64_t)bytes;
    write_with_runs(s, FILE_CONFIG, text, (size_t)bytes);
}

static void make_folder(Save *s) {
    note(s, "make the folder", &s->checkpoints, io_mkdirs(s->checkpoints.text));
    if (!s->fault[0]) note(s, "sync", &s->run_dir, io_fsync_dir(s->run_dir.text));
    if (!s->fault[0]) note(s, "clear", &s->checkpoints, folders_sweep(s->checkpoints.text));
    if (!s->fault[0]) note(s, "make the folder", &s->tmp, io_mkdirs(s->tmp.text));
    write_with_runs(s, FILE_MODEL, s->header[FILE_MODEL], s->header_bytes[FILE_MODEL]);
    write_with_runs(s, FILE_OPTIMIZER, s->header[FILE_OPTIMIZER], s->header_bytes[FILE_OPTIMIZER]);
    write_model_config(s);
}

/* --- the manifest and the rename --------------------------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b) {
    const WrittenRun *x = (const WrittenRun *)a, *y = (const WrittenRun *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return x->run.offset < y->run.offset ? -1 : x->run.offset > y->run.offset;
}

/* The runs of all ranks, in order, as the manifest's lists; every byte of every file must have been written exactly once. */
static void collect_runs(const Save *s, WrittenRun *all, size_t count, Manifest *m) {
    qsort(all, count, sizeof *all, by_place);
    for (size_t i = 0; i < count; i++) m->file[all[i].file].runs++;
    for (size_t f = 0, i = 0; f < MANIFEST_FILES; f++) {
        ManifestFile *file = &m->file[f];
        uint64_t      at = 0;
        file->bytes = s->file_bytes[f];
        file->run = (ManifestRun *)malloc(sizeof *file->run * (size_t)(file->runs + 1));
        if (!file->run) fail(EXIT_MEMORY, "no memory for the manifest of a checkpoint");
        for (int64_t k = 0; k < file->runs; k++, i++) {
            file->run[k] = all[i].run;
            CHECK(all[i].run.offset == at, "%s: byte %" PRIu64 " is written %s", manifest_file_name[f], at,
                  all[i].run.offset > at ? "by no rank" : "twice");
            at += all[i].run.bytes;
        }
        CHECK(at == file->bytes, "%s: %" PRIu64 " of %" PRIu64 " bytes are written", manifest_file_name[f], at, file->bytes);
    }
}

static void describe_data(const Dataset *train, Manifest *m) {
    m->data_files = train->shards;
    m->data = (ManifestData *)malloc(sizeof *m->data * (size_t)(train->shards + 1));
    if (!m->data) fail(EXIT_MEMORY, "no memory for the manifest of a checkpoint");
    for (int i = 0; i < train->shards; i++) {
        const char *slash = strrchr(train->shard[i].path, '/');
        m->data[i] = (ManifestData){slash ? slash + 1 : train->shard[i].path, train->shard[i].file_bytes, train->shard[i].header.tokens};
    }
}

static void write_manifest(Save *s, WrittenRun *all, size_t count) {
    const CheckpointState *state = s->state;
    const Config          *config = state->config;
    cJSON                 *json = config_to_json(config);
    int64_t                own = s->step - state->before.step, step_tokens = config->batch.global_tokens;
    Manifest               m = {.step = s->step, .tokens = state->before.tokens + own * step_tokens, .seed = config->run.seed,
                                .samples = state->before.samples + own * (step_tokens / config->batch.seq_len), .loss_scale = state->loss_scale->scale,
                                .loss_scale_steps = state->loss_scale->steps,
                                .ranks = comm_size(state->comm), .threads = state->threads, .config = json};
    size_t                 bytes;
    snprintf(m.run_id, sizeof m.run_id, "%s", state->run_id);
    snprintf(m.backend, sizeof m.backend, "%s", device_backend());
    snprintf(m.precision, sizeof m.precision, "%s", state->precision);
    describe_data(state->train, &m);
    collect_runs(s, all, count, &m);
    char *text = manifest_write(&m, &bytes);
    write_file(s, MANIFEST_NAME, text, bytes, bytes);
    free(text);
    manifest_free(&m);
    cJSON_Delete(json);
}

/* A broken folder of this very step makes room now that its better is complete. */
static void put_in_place(Save *s) {
    struct stat st;
    if (!s->fault[0]) note(s, "sync", &s->tmp, io_fsync_dir(s->tmp.text));
    if (!s->fault[0] && lstat(s->final.text, &st) == 0) note(s, "remove the broken", &s->final, folder_trash(s->checkpoints.text, s->name));
    if (!s->fault[0]) note(s, "rename to", &s->final, io_rename(s->tmp.text, s->final.text));
    if (!s->fault[0]) note(s, "sync", &s->checkpoints, io_fsync_dir(s->checkpoints.text));
}

static void commit(Save *s) {
    size_t *bytes_of_rank = NULL, bytes = 0;
    char   *all = comm_gather(s->state->comm, s->written, s->written_count * sizeof *s->written, 0, &bytes_of_rank);
    if (comm_rank(s->state->comm) != 0) return;
    for (int r = 0; r < comm_size(s->state->comm); r++) bytes += bytes_of_rank[r];
    write_manifest(s, (WrittenRun *)(void *)all, bytes / sizeof(WrittenRun));
    put_in_place(s);
    free(all);
    free(bytes_of_rank);
}

/* --- the whole --------------------------------------------------------------------------------------------------------------------------- */

/* Ends the job when any rank has met a fault, after the last write of all of them. */
static void agree(Save *s) {
    if (!any_fault(s->state->comm, s->fault)) return;
    for (int f = 0; f < 2; f++)
        if (s->fd[f] >= 0) io_close(s->fd[f]);
    comm_barrier(s->state->comm);
    if (comm_rank(s->state->comm) == 0) io_remove_tree(s->tmp.text);
    comm_barrier(s->state->comm);
    fail(EXIT_IO, "checkpoint %s: %s", s->name, s->fault);
}

static int saved_already(const Save *s) {
    Manifest m;
    struct stat st;
    char     fault[MANIFEST_FAULT_BYTES];
    int64_t  exists = comm_rank(s->state->comm) == 0 && lstat(s->final.text, &st) == 0;
    comm_broadcast(s->state->comm, &exists, sizeof exists, 0);
    if (!exists || folder_verify(s->state->comm, s->final.text, s->step, &m, fault) != MANIFEST_GOOD) return 0;
    int ours = strcmp(m.run_id, s->state->run_id) == 0;
    manifest_free(&m);
    return ours;
}

double checkpoint_save(CheckpointState *state, int64_t step) {
    double begin = clock_ms();
    Save   s = {.state = state, .step = step};
    CHECK(step > 0, "step %" PRId64, step);
    prepare(&s);
    if (!saved_already(&s)) {
        if (comm_rank(state->comm) == 0) make_folder(&s);
        agree(&s);
        write_state(&s);
        agree(&s);
        commit(&s);
        agree(&s);
        folders_prune(state->comm, s.checkpoints.text, step, state->config->checkpoint.keep);
    }
    release(&s);
    return clock_ms() - begin;
}
