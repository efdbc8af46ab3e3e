/* export.c - `train_gpt export RUN_OR_CHECKPOINT out=FOLDER [key=value ...]`: writes the weights of a checkpoint to a
 * folder that Hugging Face transformers can load: config.json, one .safetensors file or several with an index, the
 * files of the tokenizer if the checkpoint has them, and README.md with loss.svg of the run.
 *
 * Everything is written into FOLDER.tmp-PID, synced, and renamed, so FOLDER is whole or missing. A checkpoint is first
 * verified by its manifest, like in a resume. Memory does not grow with the model. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/io.h"
#include "core/json_file.h"
#include "core/terminal.h"
#include "core/tensor.h"
#include "core/xalloc.h"
#include "model/hf_softcap.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/weights.h"
#include "run/checkpoint/safetensors.h"
#include "run/guard/lock.h"
#include "run/guard/signals.h"
#include "run/verbs/model_card.h"
#include "run/plan/plan.h"
#include "run/verbs/arguments.h"
#include "run/verbs/verbs.h"

enum { OUT, DTYPE, SHARD_BYTES };
const VerbKey EXPORT_KEYS[] = {
    [OUT] = {"out", "models/mine", NULL, "the folder; it is not there yet, or empty"},
    [DTYPE] = {"dtype", "bf16", "fp32", "the type of the weights: fp32, bf16 or fp16"},
    [SHARD_BYTES] = {"shard_bytes", "1000000000", "5000000000", "above so many bytes the weights go into several files"},
    {.name = NULL},
};

enum { SMALL_FILE = 64 << 20 }; /* bytes; tokenizers of 250,000 entries have 20 MiB */

typedef struct { const char *word, *name; SafeType type; } StoredType;
static const StoredType TYPES[] = {
    {"fp32", "float32", SAFE_F32}, {"bf16", "bfloat16", SAFE_BF16}, {"fp16", "float16", SAFE_F16}};

typedef struct {
    const char *from;               /* path as the user typed it */
    Path        out, tmp;
    const StoredType *stored;
    uint64_t    shard_bytes;        /* most bytes of tensors in a file, unless one tensor has more */
    Path        checkpoint, run;    /* run "": the checkpoint is not in the folder of a run       */
    Manifest    manifest;           /* owned */
    WeightsFile weights;            /* owned: weights of the checkpoint                           */
    SafeTensor *tensor;             /* owned: tensors to store, in the order of the weights       */
    IndexedTensor *place;           /* owned: file of each tensor                                 */
    char      (*name)[48];          /* owned: names of the files                                  */
    int         files;
    uint64_t    bytes;              /* bytes of all tensors                                       */
    int         has_tokenizer, has_picture;
} Export;

/* Removes unfinished files and ends the verb. */
NORETURN static void give_up(const Export *e, int exit_code, const char *fmt, ...) PRINTF_LIKE(3, 4);
NORETURN static void give_up(const Export *e, int exit_code, const char *fmt, ...) {
    char    text[3 * sizeof e->out.text];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    io_remove_tree(e->tmp.text);
    fail(exit_code, "export: %s", text);
}

/* --- arguments ---------------------------------------------------------------------------------------------------- */

static void take_folder(Export *e, const char *text) {
    size_t bytes = strlen(text);
    while (bytes > 1 && text[bytes - 1] == '/') bytes--;
    if (bytes == 0) fail(EXIT_CONFIG, "export: out= takes the name of a folder");
    e->out = path_of("%.*s", (int)bytes, text);
    e->tmp = path_of("%s.tmp-%d", e->out.text, (int)getpid());
}

static void take_argument(Export *e, const char *word) {
    static const char *const WORDS[] = {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16", NULL};
    VerbArgument a = verb_key_only("export", word);
    switch (a.row) {
        case OUT: take_folder(e, verb_text(&a)); break;
        case DTYPE: e->stored = &TYPES[verb_choice(&a, WORDS) % 3]; break;
        default: e->shard_bytes = (uint64_t)verb_size(&a, 1);
    }
}

/* Refuses out= if it names a folder that is not empty, or something else that exists. */
static void refuse_full_folder(const Export *e) {
    struct stat st;
    int         entries = 0;
    if (lstat(e->out.text, &st) < 0) return;
    DIR *folder = S_ISDIR(st.st_mode) ? opendir(e->out.text) : NULL;
    if (!folder)
        fail(EXIT_CONFIG, "export: %s is there and no folder that can be read: choose another out=", e->out.text);
    while (readdir(folder)) entries++;
    closedir(folder);
    if (entries > 2) /* more than . and .. */
        fail(EXIT_CONFIG, "export: %s is not empty: choose another out=, or remove it", e->out.text);
}

/* --- the checkpoint ----------------------------------------------------------------------------------------------- */

static int64_t newest_step(const char *run) {
    StepFolder *list;
    int         count = folders_list(path_of("%s/checkpoints", run).text, &list);
    int64_t     step = count > 0 ? list[0].step : -1;
    if (count >= 0) free(list);
    return step;
}

static int is_there(const Export *e) {
    return access(path_of("%s/" WEIGHTS_SINGLE, e->checkpoint.text).text, R_OK) == 0 &&
           access(path_of("%s/config.json", e->checkpoint.text).text, R_OK) == 0;
}

/* Finds the checkpoint. Another process may save and prune meanwhile, so it tries again as long as newer steps
 * appear. */
static void find_checkpoint(Export *e) {
    int     found, stays;
    int64_t step;
    do {
        step = newest_step(e->from);
        found = folder_find(e->from, &e->checkpoint, &e->manifest);
        stays = found && is_there(e);
        if (found && !stays) manifest_free(&e->manifest);
    } while (!stays && newest_step(e->from) != step);
    if (!stays) fail(EXIT_DATA, "export: %s is neither a checkpoint nor a run folder that holds a complete one", e->from);
    weights_set_check_json(e->checkpoint.text);
    e->weights = weights_open(path_of("%s/" WEIGHTS_SINGLE, e->checkpoint.text).text); /* it survives pruning */
}

/* Finds the folder of the run: RUN, if the real path of the checkpoint is in RUN/checkpoints. */
static void find_run(Export *e) {
    static const char between[] = "/checkpoints";
    char       *path = realpath(e->checkpoint.text, NULL), *name = path ? strrchr(path, '/') : NULL;
    size_t      tail = sizeof between - 1, bytes = name ? (size_t)(name - path) : 0;
    int         is_inside = bytes > tail && strncmp(path + bytes - tail, between, tail) == 0;
    e->run = path_of("%.*s", is_inside ? (int)(bytes - tail) : 0, path ? path : "");
    free(path);
}

/* --- the new files ------------------------------------------------------------------------------------------------ */

static uint64_t tensor_elems_of(const SafeTensor *t) {
    uint64_t elems = 1;
    for (int d = 0; d < t->dims; d++) elems *= t->dim[d];
    return elems;
}

/* Assigns the tensors to files in order. A new file begins when the next tensor does not fit. */
static void plan_files(Export *e) {
    const Safetensors *h = &e->weights.header;
    uint64_t           in_file = 0;
    e->tensor = xmalloc((size_t)h->tensors * sizeof *e->tensor, "a table of tensors");
    e->place = xmalloc((size_t)h->tensors * sizeof *e->place, "a table of tensors");
    e->name = xmalloc((size_t)h->tensors * sizeof *e->name, "a table of tensors");
    for (int i = 0; i < h->tensors; i++) {
        e->tensor[i] = h->tensor[i];
        e->tensor[i].type = e->stored->type;
        uint64_t bytes = tensor_elems_of(&h->tensor[i]) * safetensors_type_bytes(e->stored->type);
        if (e->files == 0 || in_file + bytes > e->shard_bytes) e->files++, in_file = 0;
        in_file += bytes, e->bytes += bytes;
        e->place[i] = (IndexedTensor){h->tensor[i].name, e->files - 1};
    }
    for (int f = 0; f < e->files; f++)
        if (e->files == 1) strcpy(e->name[f], WEIGHTS_SINGLE);
        else snprintf(e->name[f], sizeof e->name[f], "model-%05d-of-%05d.safetensors", f + 1, e->files);
}

static void check_write(const Export *e, const char *name, int error) {
    if (error < 0) give_up(e, EXIT_IO, "cannot write %s/%s: %s", e->out.text, name, io_error_text(error));
    if (signals_stop()) give_up(e, EXIT_STOPPED, "stopped on request, %s is not written", e->out.text);
}

static int create(const Export *e, const char *name) {
    int fd = io_open(path_of("%s/%s", e->tmp.text, name).text, IO_CREATE);
    check_write(e, name, fd);
    return fd;
}

static void finish(const Export *e, const char *name, int fd) {
    check_write(e, name, io_fsync(fd));
    check_write(e, name, io_close(fd));
}

static void write_small(const Export *e, const char *name, const char *text, size_t bytes) {
    int fd = create(e, name);
    check_write(e, name, io_write(fd, text, bytes));
    finish(e, name, fd);
}

/* Copies a file of this name into the new folder. Returns 0 if it does not exist. */
static int copy_small(const Export *e, const char *folder, const char *name) {
    char   *text;
    Path    from = path_of("%s/%s", folder, name);
    int64_t bytes = io_read_file(from.text, SMALL_FILE, &text);
    if (bytes == -ENOENT) return 0;
    if (bytes < 0)
        give_up(e, bytes == -ENOMEM ? EXIT_MEMORY : EXIT_IO, "%s cannot be read: %s", from.text, io_error_text((int)bytes));
    write_small(e, name, text, (size_t)bytes);
    free(text);
    return 1;
}

/* Writes config.json of the checkpoint with the type of the stored weights. Returns its model_type, malloc'ed. */
static char *write_config(const Export *e) {
    static const char *const keys[] = {"dtype", "torch_dtype"};
    char   fault[JSON_FILE_FAULT_CHARS];
    Json   json;
    Path   path = path_of("%s/config.json", e->checkpoint.text);
    int    exit_code = json_read_file(path.text, JSON_LIMIT, 0, &json, fault);
    if (exit_code) give_up(e, exit_code == -ENOENT ? EXIT_IO : exit_code, "%s", fault);
    double cap = hf_softcap_of(json.root, path.text);
    if (cap != 0.0)
        give_up(e, EXIT_DATA, "%s: model.logit_softcap = %.9g: no class of transformers for this model caps its logits; sample and "
                "eval do, from the checkpoint", e->checkpoint.text, cap);
    for (int i = 0; i < 2; i++) {
        cJSON_DeleteItemFromObjectCaseSensitive(json.root, keys[i]);
        cJSON_AddStringToObject(json.root, keys[i], e->stored->name);
    }
    const cJSON *type = json_member(json.root, "model_type");
    char        *model_type = strdup(cJSON_IsString(type) ? type->valuestring : "gpt2");
    char        *printed = cJSON_Print(json.root);
    if (!printed || !model_type) give_up(e, EXIT_MEMORY, "no memory for config.json");
    write_small(e, "config.json", printed, strlen(printed));
    cJSON_free(printed);
    json_free(&json);
    return model_type;
}

/* Writes the small files beside the weights. They are read early, while the checkpoint surely exists. */
static void write_small_files(Export *e) {
    static const char *const copied[] = {"tokenizer.json", "tokenizer_config.json", "generation_config.json"};
    const char *name = strrchr(e->out.text, '/');
    size_t      bytes;
    char       *model_type = write_config(e);
    uint64_t    parameters = 0;
    for (int i = 0; i < 3; i++) {
        int is_copied = copy_small(e, e->checkpoint.text, copied[i]);
        if (i == 0) e->has_tokenizer = is_copied;
    }
    e->has_picture = e->run.text[0] && copy_small(e, e->run.text, "loss.svg");
    for (int i = 0; i < e->weights.header.tensors; i++) parameters += tensor_elems_of(&e->tensor[i]);
    ModelCard card = {.manifest = &e->manifest,
                      .run = e->run.text[0] ? e->run.text : NULL,
                      .name = name ? name + 1 : e->out.text,
                      .model_type = model_type,
                      .dtype = e->stored->name,
                      .parameters = (int64_t)parameters,
                      .has_tokenizer = e->has_tokenizer,
                      .has_picture = e->has_picture};
    char *text = model_card_text(&card, &bytes);
    write_small(e, "README.md", text, bytes);
    free(text);
    free(model_type);
}

/* --- weights ------------------------------------------------------------------------------------------------------ */

/* Rounds to 16 bits, to nearest, ties to even. Returns the first element that becomes infinite, or n. */
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

/* Writes a tensor. block: scratch for WEIGHTS_BLOCK floats and as many 16-bit values. */
static void write_tensor(const Export *e, int i, const char *name, int fd, float *block) {
    const SafeTensor *from = &e->weights.header.tensor[i];
    uint16_t         *half = (uint16_t *)(void *)(block + WEIGHTS_BLOCK);
    int64_t           elems = (int64_t)tensor_elems_of(from);
    SafeType          type = e->stored->type;
    for (int64_t at = 0, n; at < elems; at += n) {
        n = elems - at < WEIGHTS_BLOCK ? elems - at : WEIGHTS_BLOCK;
        weights_read(&e->weights, from, at, n, block);
        int64_t odd = weights_finite(block, n);
        if (odd < n) {
            io_remove_tree(e->tmp.text);
            weights_refuse_element(&e->weights, from, at + odd);
        }
        int64_t bad = type == SAFE_F32 ? n : narrow(type, block, n, half);
        if (bad < n)
            give_up(e, EXIT_CONFIG, "dtype=%s cannot hold element %" PRId64 " of tensor %s, %g: choose dtype=%s",
                    e->stored->word, at + bad, from->name, (double)block[bad],
                    type == SAFE_F16 ? "bf16 or fp32" : "fp32");
        const void *data = type == SAFE_F32 ? (const void *)block : half;
        check_write(e, name, io_write(fd, data, (size_t)n * safetensors_type_bytes(type)));
    }
}

static void write_weights(Export *e) {
    const char **files = malloc((size_t)e->files * sizeof *files);
    float       *block = malloc(WEIGHTS_BLOCK * (sizeof(float) + sizeof(uint16_t)));
    if (!files || !block) give_up(e, EXIT_MEMORY, "no memory to write %s", e->out.text);
    for (int f = 0, i = 0, end = 0; f < e->files; f++) {
        while (end < e->weights.header.tensors && e->place[end].file == f) end++;
        size_t bytes;
        char  *header = safetensors_header(&e->tensor[i], end - i, &bytes);
        int    fd = create(e, files[f] = e->name[f]);
        check_write(e, files[f], io_write(fd, header, bytes));
        free(header);
        for (; i < end; i++) {
            say_part("writing the weights", i, e->weights.header.tensors);
            write_tensor(e, i, files[f], fd, block);
        }
        finish(e, files[f], fd);
    }
    if (e->files > 1) {
        char *index = weights_index_text(e->place, e->weights.header.tensors, files, e->bytes);
        write_small(e, WEIGHTS_INDEX, index, strlen(index));
        free(index);
    }
    say_no_more();
    free(block);
    free(files);
}

/* --- the folder --------------------------------------------------------------------------------------------------- */

static void make_folder(const Export *e) {
    struct stat st;
    if (lstat(e->tmp.text, &st) == 0)
        fail(EXIT_IO, "export: %s is there, left by another export: remove it", e->tmp.text);
    int     error = io_mkdirs(e->tmp.text);
    if (error < 0) fail(EXIT_IO, "export: cannot make the folder %s: %s", e->tmp.text, io_error_text(error));
    int64_t room = io_free_bytes(e->tmp.text);
    if (room >= 0 && (uint64_t)room < e->bytes)
        give_up(e, EXIT_IO, "%s takes %s and its file system has %s free", e->out.text,
                plan_bytes_text((double)e->bytes).text, plan_bytes_text((double)room).text);
}

/* Returns the parent folder of a path, which may be the working directory. */
static Path parent_of(Path path) {
    char *slash = strrchr(path.text, '/');
    if (!slash) return path_of(".");
    slash[slash == path.text] = 0;
    return path;
}

static void put_in_place(const Export *e) {
    int error = io_fsync_dir(e->tmp.text);
    if (!error) error = io_rename(e->tmp.text, e->out.text); /* replaces an empty folder of that name */
    if (error == -ENOTEMPTY || error == -EEXIST)
        give_up(e, EXIT_CONFIG, "%s is not empty any more: choose another out=", e->out.text);
    if (error) give_up(e, EXIT_IO, "cannot write %s: %s", e->out.text, io_error_text(error));
    error = io_fsync_dir(parent_of(e->out).text);
    if (error) warn("%s is there, but its name may be lost with the power: %s", e->out.text, io_error_text(error));
}

static void print_summary(const Export *e) {
    print_plain(stdout, "exported  step %" PRId64 " of %s as %s\n", e->manifest.step, e->from, e->stored->word);
    print_plain(stdout, "written   %s: %s of weights in %d file%s, config.json, %s%sREADME.md\n", e->out.text,
           plan_bytes_text((double)e->bytes).text, e->files, e->files == 1 ? "" : "s",
           e->has_tokenizer ? "tokenizer.json, " : "", e->has_picture ? "loss.svg, " : "");
    if (!e->has_tokenizer) printf("          without a tokenizer: the checkpoint has none\n");
}

int verb_export(int argc, char **argv) {
    Export e = {.stored = &TYPES[0], .shard_bytes = 5000000000};
    if (argc < 2 || verb_argument("export", argv[1]).row != VERB_PATH) verb_misused("export", "it needs a run folder or a checkpoint");
    e.from = argv[1];
    for (int i = 2; i < argc; i++) take_argument(&e, argv[i]);
    if (!e.out.text[0]) verb_misused("export", "out=FOLDER is missing");
    signals_install();
    RunLock *lock = lock_output("export", "out", e.out.text, LOCK_WITH_PARENTS);
    refuse_full_folder(&e);
    find_checkpoint(&e);
    find_run(&e);
    plan_files(&e);
    make_folder(&e);
    write_small_files(&e);
    write_weights(&e);
    lock_keep(lock);
    put_in_place(&e);
    lock_release(lock);
    print_summary(&e);
    weights_close(&e.weights);
    manifest_free(&e.manifest);
    free(e.tensor);
    free(e.place);
    free(e.name);
    return EXIT_DONE;
}
