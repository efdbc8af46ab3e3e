/* export.c - `train_gpt export RUN_OR_CHECKPOINT out=FOLDER [key=value ...]`: writes the weights of a checkpoint to a
 * folder that Hugging Face transformers can load. The folder gets config.json, and one .safetensors file or several
 * with an index. It gets the files of the tokenizer if the checkpoint has them, and README.md with loss.svg of the run.
 *
 * Everything is written into FOLDER.tmp-PID, synced, and renamed, so FOLDER is whole or missing. First the checkpoint
 * is verified by its manifest, like in a resume. Memory does not grow with the model. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/io.h"
#include "core/json.h"
#include "core/tensor.h"
#include "core/terminal.h"
#include "core/version.h"
#include "model/hf.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/manifest.h"
#include "run/checkpoint/safetensors.h"
#include "run/checkpoint/weights.h"
#include "run/config/config.h"
#include "run/guard/lock.h"
#include "run/guard/requests.h"
#include "run/log/run_log.h"
#include "run/verbs/verbs.h"

enum { SMALL_FILE = 64 << 20 }; /* most bytes of a small file; tokenizers of 250,000 entries have 20 MiB */

typedef struct { const char *word, *name; SafeType type; } StoredType;
static const StoredType TYPES[] = {
    {"fp32", "float32", SAFE_F32}, {"bf16", "bfloat16", SAFE_BF16}, {"fp16", "float16", SAFE_F16}};
static const char *const TYPE_WORDS[] = {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16", NULL};

static struct {
    const char *out;
    int         dtype;       /* type of the stored weights, as an index in TYPE_WORDS */
    int64_t     shard_bytes; /* most bytes of tensors in one file, unless a single tensor has more */
} asked;
static const VerbKey EXPORT_KEYS[] = {
    {"out", "models/mine", NULL, "the folder; it is not there yet, or empty", .text = &asked.out},
    {"dtype", "bf16", "fp32", "the type of the weights: fp32, bf16 or fp16", .choice = &asked.dtype,
     .words = TYPE_WORDS},
    {"shard_bytes", "1000000000", "5000000000", "above so many bytes the weights go into several files",
     .bytes = &asked.shard_bytes, .least = 1},
    {.name = NULL},
};

typedef struct {
    const char *from;               /* path as the user typed it */
    Path        out, tmp;
    const StoredType *stored;
    Path        checkpoint, run;    /* run is "" if the checkpoint is not in the folder of a run */
    Manifest    manifest;           /* owned */
    WeightsFile weights;            /* owned: weights of the checkpoint                     */
    SafeTensor *tensor;             /* owned: tensors to store, in the order of the weights */
    IndexedTensor *place;           /* owned: file of each tensor                           */
    const char **name;              /* owned [files]: names of the .safetensors files       */
    int         files;
    uint64_t    bytes;              /* bytes of all tensors                             */
    int64_t     parameters;         /* elements of all tensors                          */
    char       *model_type;         /* owned: model_type in config.json, such as "gpt2" */
    int         has_tokenizer, has_picture;
} Export;

/* --- the folder and the checkpoint -------------------------------------------------------------------------------- */

/* Refuses the folder of out= if it is not empty. Refuses anything else of that name that exists. */
static void refuse_full_folder(const Export *e) {
    struct stat st;
    int         entries = 0;
    if (lstat(e->out.text, &st) < 0) return;
    DIR *folder = S_ISDIR(st.st_mode) ? opendir(e->out.text) : NULL;
    if (!folder)
        fail(EXIT_CONFIG, "export: %s exists, and is not a folder that can be read: choose another out=", e->out.text);
    while (readdir(folder)) entries++;
    closedir(folder);
    if (entries > 2) /* the folder has entries besides "." and ".." */
        fail(EXIT_CONFIG, "export: %s is not empty: choose another out=, or remove it", e->out.text);
}

static int64_t newest_step(const char *run) {
    StepFolder *list;
    int         count = folders_list(path_of("%s/checkpoints", run).text, &list);
    int64_t     step = count > 0 ? list[0].step : -1;
    if (count >= 0) free(list);
    return step;
}

/* Finds the checkpoint to export. Another process may save and prune meanwhile, so it tries again as long as newer
 * steps appear. */
static void find_checkpoint(Export *e) {
    int     found, stays;
    int64_t step;
    do {
        step = newest_step(e->from);
        found = folder_find(e->from, &e->checkpoint, &e->manifest);
        stays = found && access(path_of("%s/" WEIGHTS_SINGLE, e->checkpoint.text).text, R_OK) == 0 &&
                access(path_of("%s/config.json", e->checkpoint.text).text, R_OK) == 0;
        if (found && !stays) manifest_free(&e->manifest);
    } while (!stays && newest_step(e->from) != step);
    if (!stays)
        fail(EXIT_DATA,
             "export: %s is neither a checkpoint nor a run folder that holds a complete one: give a run.dir, or one of "
             "its checkpoints/step_...",
             e->from);
    weights_set_check_json(e->checkpoint.text);
    /* an open file stays readable if the checkpoint is pruned meanwhile */
    e->weights = weights_open(path_of("%s/" WEIGHTS_SINGLE, e->checkpoint.text).text);
    /* the run of the checkpoint is RUN, if the real path of the checkpoint is in RUN/checkpoints */
    static const char between[] = "/checkpoints";
    char       *path = realpath(e->checkpoint.text, NULL), *name = path ? strrchr(path, '/') : NULL;
    size_t      tail = sizeof between - 1, bytes = name ? (size_t)(name - path) : 0;
    int         is_inside = bytes > tail && strncmp(path + bytes - tail, between, tail) == 0;
    e->run = path_of("%.*s", is_inside ? (int)(bytes - tail) : 0, path ? path : "");
    free(path);
}

/* --- the new files ------------------------------------------------------------------------------------------------ */

/* Assigns the tensors to .safetensors files in order. A new file begins when the next tensor does not fit. */
static void plan_files(Export *e) {
    const Safetensors *h = &e->weights.header;
    uint64_t           in_file = 0;
    e->tensor = xmalloc((size_t)h->tensors * sizeof *e->tensor, "a table of tensors");
    e->place = xmalloc((size_t)h->tensors * sizeof *e->place, "a table of tensors");
    e->name = xmalloc((size_t)h->tensors * sizeof *e->name, "a table of tensors");
    for (int i = 0; i < h->tensors; i++) {
        e->tensor[i] = h->tensor[i];
        e->tensor[i].type = e->stored->type;
        int64_t  elems = weights_elems(&h->tensor[i]);
        uint64_t bytes = (uint64_t)elems * safetensors_type_bytes(e->stored->type);
        if (e->files == 0 || in_file + bytes > (uint64_t)asked.shard_bytes) e->files++, in_file = 0;
        in_file += bytes, e->bytes += bytes, e->parameters += elems;
        e->place[i] = (IndexedTensor){h->tensor[i].name, e->files - 1};
    }
    for (int f = 0; f < e->files; f++)
        e->name[f] = e->files == 1 ? xstrdup(WEIGHTS_SINGLE, "names of files")
                                   : xformat("names of files", "model-%05d-of-%05d.safetensors", f + 1, e->files);
}

static void check_write(const Export *e, const char *name, int error) {
    if (error < 0) fail(EXIT_IO, "export: cannot write %s/%s: %s", e->out.text, name, io_error_text(error));
    if (signals_stop()) fail(EXIT_STOPPED, "export: stopped on request, %s is not written", e->out.text);
}

static void write_small(const Export *e, const char *name, const char *text, size_t bytes) {
    check_write(e, name, io_replace_file(path_of("%s/%s", e->tmp.text, name).text, text, bytes));
}

/* Copies a small file of this name into the new folder. Returns 0 if it does not exist. */
static int copy_small(const Export *e, const char *folder, const char *name) {
    char   *text;
    Path    from = path_of("%s/%s", folder, name);
    int64_t bytes = io_read_file(from.text, SMALL_FILE, &text);
    if (bytes == -ENOENT) return 0;
    if (bytes < 0)
        fail(bytes == -ENOMEM ? EXIT_MEMORY : EXIT_IO, "export: %s cannot be read: %s", from.text,
             io_error_text((int)bytes));
    write_small(e, name, text, (size_t)bytes);
    free(text);
    return 1;
}

/* --- README.md: the model, its training, data and losses, and how to load it, for the Hugging Face hub ------------ */

/* Writes the losses up to the step of the checkpoint, from metrics.jsonl of its run. Writes nothing without any. */
static void put_losses(FILE *out, const Export *e) {
    enum { TRAIN, VAL, BEST, LOSSES };
    static const char *const NAMES[] = {"training, last", "validation, last", "validation, best"};
    MetricsLine line, at[LOSSES] = {{.step = -1}, {.step = -1}, {.step = -1}};
    Path        path = path_of("%s/metrics.jsonl", e->run.text);
    FILE       *in = e->run.text[0] ? io_open_stream(path.text, IO_READ) : NULL;
    if (e->run.text[0] && !in) io_expect_file(path.text, -errno);
    while (in && metrics_line_next(in, &line) != LINE_OTHER) {
        if (line.step > e->manifest.step || !isfinite(line.loss)) continue;
        if (line.kind == LINE_TRAIN) at[TRAIN] = line;
        if (line.kind != LINE_EVAL) continue;
        at[VAL] = line;
        if (at[BEST].step < 0 || line.loss < at[BEST].loss) at[BEST] = line;
    }
    if (in) fclose(in);
    if (at[TRAIN].step < 0 && at[VAL].step < 0) return;
    fprintf(out, "\n## Losses\n\nIn nats per token.\n\n| | step | loss |\n|---|---|---|\n");
    for (int i = 0; i < LOSSES; i++)
        if (at[i].step >= 0) fprintf(out, "| %s | %" PRId64 " | %.4f |\n", NAMES[i], at[i].step, at[i].loss);
    if (e->has_picture) fprintf(out, "\n![losses by step](loss.svg)\n");
}

/* Writes a file name or a config value into a cell of a table. Escapes Markdown, and replaces control characters. */
static void put_text(FILE *out, const char *text) {
    for (int length; *text; text += length ? length : 1) {
        length = utf8_bytes(text, strnlen(text, 4));
        if (length == 0 || (unsigned char)*text < ' ' || *text == 0x7f) fputc('?', out);
        else if (strchr("\\`*{}[]<>#|!~$", *text)) fprintf(out, "\\%c", *text);
        else fprintf(out, "%.*s", length, text);
    }
}

static int64_t size_in(const Manifest *m, const char *key) {
    const cJSON *value = config_value(m->config, key);
    return cJSON_IsNumber(value) ? (int64_t)value->valuedouble : 0;
}

static void put_model(FILE *out, const Export *e) {
    const Manifest *m = &e->manifest;
    const cJSON    *dir = config_value(m->config, "run.dir");
    const char     *title = cJSON_IsString(dir) ? basename(dir->valuestring) : "";
    fprintf(out, "---\nlibrary_name: transformers\npipeline_tag: text-generation\n");
    fprintf(out, "tags:\n- %s\n- text-generation\n- train_gpt\n---\n\n# ", e->model_type);
    put_text(out, title[0] ? title : "GPT");
    fprintf(out,
            "\n\nA language model of type %s with %" PRId64 " parameters, trained with train_gpt: %" PRId64
            " layers, %" PRId64 " heads, width %" PRId64 ", %" PRId64 " positions, vocabulary %" PRId64 ".\n\n",
            e->model_type, e->parameters, size_in(m, "model.n_layer"), size_in(m, "model.n_head"),
            size_in(m, "model.n_embd"), size_in(m, "model.n_positions"), size_in(m, "model.vocab_size"));
    fprintf(out, "The weights are those after step %" PRId64 " of %" PRId64, m->step, size_in(m, "run.steps"));
    if (e->stored->type == SAFE_F32) fprintf(out, ", in float32, as the optimizer has them.\n");
    else fprintf(out, ", rounded from float32 to %s, to nearest, ties to even.\n", e->stored->name);
}

static void put_loading(FILE *out, const Export *e) {
    char name[1024];
    json_quote(name, sizeof name, basename(e->out.text));
    fprintf(out, "\n## Load it\n\n```python\nfrom transformers import AutoModelForCausalLM%s\n",
            e->has_tokenizer ? ", AutoTokenizer" : "");
    fprintf(out, "model = AutoModelForCausalLM.from_pretrained(%s)\n", name);
    if (e->has_tokenizer) fprintf(out, "tokenizer = AutoTokenizer.from_pretrained(%s)\n", name);
    fprintf(out, "```\n");
    if (!e->has_tokenizer) fprintf(out, "\nThis folder has no tokenizer: the model takes token ids.\n");
}

static void put_training(FILE *out, const Manifest *m) {
    static const char *const sections[] = {"model", "batch", "optimizer", "schedule"};
    char shown[SHOWN_BYTES];
    fprintf(out, "\n## Training\n\n| | |\n|---|---|\n| steps | %" PRId64 " of %" PRId64 " |\n", m->step,
            size_in(m, "run.steps"));
    fprintf(out, "| tokens | %" PRId64 " |\n", m->tokens);
    fprintf(out, "| precision | %s |\n| ranks | %d |\n", m->precision, m->ranks);
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        const cJSON *value, *section = json_member(m->config, sections[i]);
        cJSON_ArrayForEach(value, section) {
            int is_text = cJSON_IsString(value) && value->valuestring[0];
            if (!is_text && !cJSON_IsNumber(value) && !cJSON_IsBool(value)) continue;
            fprintf(out, "| %s.", sections[i]);
            put_text(out, value->string);
            fprintf(out, " | ");
            if (is_text) put_text(out, value->valuestring);
            else if (cJSON_IsNumber(value)) fputs(number_text(number_value(value), shown), out);
            else fputs(cJSON_IsTrue(value) ? "true" : "false", out);
            fprintf(out, " |\n");
        }
    }
}

static void put_data(FILE *out, const Manifest *m) {
    enum { SHOWN = 50 };
    int64_t tokens = 0;
    fprintf(out, "\n## Data\n\n| file | tokens |\n|---|---|\n");
    for (int i = 0; i < m->data_files; i++) {
        tokens += m->data[i].tokens;
        if (i >= SHOWN) continue;
        fprintf(out, "| ");
        put_text(out, m->data[i].name);
        fprintf(out, " | %" PRId64 " |\n", m->data[i].tokens);
    }
    fprintf(out, "| all %d | %" PRId64 " |\n", m->data_files, tokens);
}

/* Writes README.md of the new folder. Uses only the manifest of the checkpoint and metrics.jsonl of the run. */
static void write_card(const Export *e) {
    char  *text = NULL;
    size_t bytes;
    FILE  *out = memory_file_open(&text, &bytes);
    put_model(out, e);
    put_loading(out, e);
    put_losses(out, e);
    put_training(out, &e->manifest);
    put_data(out, &e->manifest);
    fprintf(out, "\nExported by train_gpt %s.\n", program_version());
    fclose(out);
    write_small(e, "README.md", text, bytes);
    free(text);
}

/* --- the small files ---------------------------------------------------------------------------------------------- */

/* Writes config.json of the checkpoint into the new folder, with the type of the weights that are stored. */
static void write_config(Export *e) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    char   fault[JSON_FILE_FAULT_CHARS];
    Json   json;
    Path   path = path_of("%s/config.json", e->checkpoint.text);
    int    exit_code = json_read_file(path.text, JSON_LIMIT, 0, &json, fault);
    if (exit_code) fail(exit_code == -ENOENT ? EXIT_IO : exit_code, "export: %s", fault);
    double cap = hf_softcap_of(json.root, path.text);
    if (cap != 0.0)
        fail(EXIT_DATA,
             "export: %s: model.logit_softcap = %.9g: the class of Hugging Face transformers for this model cannot cap "
             "logits, so the export would compute other numbers; use the verbs sample and eval on the checkpoint",
             e->checkpoint.text, cap);
    for (int i = 0; i < 2; i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(json.root, keys[i]);
        cJSON_AddStringToObject(json.root, keys[i], e->stored->name);
    }
    const cJSON *type = json_member(json.root, "model_type");
    e->model_type = xstrdup(cJSON_IsString(type) ? type->valuestring : "gpt2", "config.json");
    char        *printed = cJSON_Print(json.root);
    write_small(e, "config.json", printed, strlen(printed));
    free(printed);
    json_free(&json);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* Rounds fp32 values to 16 bits, to nearest, ties to even. Returns the index of the first element that becomes
 * infinite, or n. */
static int64_t narrow(SafeType type, const float *value, int64_t n, uint16_t *out) {
    uint16_t infinite = type == SAFE_F16 ? 0x7c00 : 0x7f80;
    int64_t  first = n;
    #pragma omp parallel for schedule(static) reduction(min : first)
    for (int64_t i = 0; i < n; i++) {
        out[i] = type == SAFE_F16 ? f16_from_f32(value[i]) : bf16_from_f32(value[i]);
        if (i < first && (out[i] & infinite) == infinite) first = i;
    }
    return first;
}

/* Writes a tensor to a file. block: scratch memory for WEIGHTS_BLOCK floats and as many 16-bit values. */
static void write_tensor(const Export *e, int i, const char *name, int fd, float *block) {
    const SafeTensor *from = &e->weights.header.tensor[i];
    uint16_t         *half = (uint16_t *)(void *)(block + WEIGHTS_BLOCK);
    int64_t           elems = weights_elems(from);
    SafeType          type = e->stored->type;
    for (int64_t at = 0, n; at < elems; at += n) {
        n = elems - at < WEIGHTS_BLOCK ? elems - at : WEIGHTS_BLOCK;
        weights_read(&e->weights, from, at, n, block);
        int64_t odd = weights_finite(block, n);
        if (odd < n) weights_refuse_element(&e->weights, from, at + odd);
        int64_t bad = type == SAFE_F32 ? n : narrow(type, block, n, half);
        if (bad < n)
            fail(EXIT_CONFIG, "export: dtype=%s cannot hold element %" PRId64 " of tensor %s, %g: choose dtype=%s",
                 e->stored->word, at + bad, from->name, (double)block[bad],
                 type == SAFE_F16 ? "bf16 or fp32" : "fp32");
        const void *data = type == SAFE_F32 ? (const void *)block : half;
        check_write(e, name, io_write(fd, data, (size_t)n * safetensors_type_bytes(type)));
    }
}

static void write_weights(Export *e) {
    float *block = xmalloc(WEIGHTS_BLOCK * (sizeof(float) + sizeof(uint16_t)), "reading weights");
    for (int f = 0, i = 0, end = 0; f < e->files; f++) {
        while (end < e->weights.header.tensors && e->place[end].file == f) end++;
        size_t bytes;
        char  *header = safetensors_header(&e->tensor[i], end - i, &bytes);
        int    fd = io_open(path_of("%s/%s", e->tmp.text, e->name[f]).text, IO_CREATE);
        check_write(e, e->name[f], fd);
        check_write(e, e->name[f], io_write(fd, header, bytes));
        free(header);
        for (; i < end; i++) {
            say_part("writing the weights", i, e->weights.header.tensors);
            write_tensor(e, i, e->name[f], fd, block);
        }
        check_write(e, e->name[f], io_fsync(fd));
        check_write(e, e->name[f], io_close(fd));
    }
    if (e->files > 1) {
        char *index = weights_index_text(e->place, e->weights.header.tensors, e->name, e->bytes);
        write_small(e, WEIGHTS_INDEX, index, strlen(index));
        free(index);
    }
    say_no_more();
    free(block);
}

/* --- the new folder ----------------------------------------------------------------------------------------------- */

static void make_folder(const Export *e, RunLock *lock) {
    struct stat st;
    if (lstat(e->tmp.text, &st) == 0)
        fail(EXIT_IO, "export: %s is there, left by an export that was killed: remove that folder", e->tmp.text);
    int     error = io_mkdirs(e->tmp.text);
    if (error < 0) fail(EXIT_IO, "export: cannot make the folder %s: %s", e->tmp.text, io_error_text(error));
    lock_unfinished(lock, e->tmp.text);
    int64_t room = io_free_bytes(e->tmp.text);
    if (room >= 0 && (uint64_t)room < e->bytes)
        fail(EXIT_IO,
             "export: %s takes %s and its file system has %s free: free space, or choose another out=", e->out.text,
             bytes_text((double)e->bytes).text, bytes_text((double)room).text);
}

static int verb_export(int words, char **path) {
    Export e = {0};
    (void)words;
    int    length = (int)strlen(asked.out);
    while (length > 1 && asked.out[length - 1] == '/') length--;
    e.from = path[0];
    e.out = path_of("%.*s", length, asked.out);
    e.tmp = path_of("%s.tmp-%d", e.out.text, (int)getpid());
    e.stored = &TYPES[asked.dtype % 3];
    signals_install();
    RunLock *lock = lock_output("export", "out", e.out.text, LOCK_WITH_PARENTS);
    refuse_full_folder(&e);
    find_checkpoint(&e);
    plan_files(&e);
    make_folder(&e, lock);
    /* the small files are written first, while the checkpoint surely exists */
    write_config(&e);
    e.has_tokenizer = copy_small(&e, e.checkpoint.text, "tokenizer.json");
    copy_small(&e, e.checkpoint.text, "tokenizer_config.json");
    copy_small(&e, e.checkpoint.text, "generation_config.json");
    e.has_picture = e.run.text[0] && copy_small(&e, e.run.text, "loss.svg");
    write_card(&e);
    write_weights(&e);
    lock_keep(lock);
    int error = io_fsync_dir(e.tmp.text);
    if (!error) error = io_rename(e.tmp.text, e.out.text); /* also replaces an empty folder of that name */
    if (error == -ENOTEMPTY || error == -EEXIST)
        fail(EXIT_CONFIG, "export: %s is not empty any more: choose another out=", e.out.text);
    if (error) fail(EXIT_IO, "export: cannot write %s: %s", e.out.text, io_error_text(error));
    error = io_fsync_parent(e.out.text);
    if (error)
        warn("%s is written, but a power failure in the next seconds may lose it: %s", e.out.text,
             io_error_text(error));
    lock_release(lock);
    print_plain(stdout, "exported  step %" PRId64 " of %s as %s\n", e.manifest.step, e.from, e.stored->word);
    print_plain(stdout, "written   %s: %s of weights in %d file%s, config.json, %s%sREADME.md\n", e.out.text,
                bytes_text((double)e.bytes).text, e.files, plural(e.files),
                e.has_tokenizer ? "tokenizer.json, " : "", e.has_picture ? "loss.svg, " : "");
    if (!e.has_tokenizer) printf("          without a tokenizer: the checkpoint has none\n");
    weights_close(&e.weights);
    manifest_free(&e.manifest);
    free(e.tensor);
    free(e.place);
    for (int f = 0; f < e.files; f++) free((char *)e.name[f]);
    free(e.name);
    free(e.model_type);
    return EXIT_DONE;
}

const Verb EXPORT_VERB = {
    "export", "RUN_OR_CHECKPOINT out=FOLDER [key=value ...]", "a folder that Hugging Face transformers loads",
    "Writes a checkpoint's weights with config, tokenizer and a model card, as transformers loads them.", EXPORT_KEYS,
    "./train_gpt export runs/demo out=models/demo dtype=bf16", verb_export,
    {1, 1, "a run folder or a checkpoint"},
};
