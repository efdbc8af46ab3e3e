/* weights_set.c - see weights_set.h. */
#include "run/checkpoint/weights_set.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "core/error.h"
#include "core/io.h"
#include "model/hf_gpt2.h"
#include "run/checkpoint/checkpoint.h"
#include "run/checkpoint/checkpoint_folders.h"
#include "run/checkpoint/weights_index.h"

/* --- where they are ----------------------------------------------------------------------------------------------- */

static int exists(Path path) {
    struct stat st;
    return stat(path.text, &st) == 0;
}

/* NAME or ORGANISATION/NAME in the hub's letters. A path into a folder that is there is none. */
static int is_hub_name(const char *name) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t first = strspn(name, letters), second = name[first] == '/' ? strspn(name + first + 1, letters) : 0;
    if (first == 0 || name[0] == '.' || strstr(name, ".safetensors") || strstr(name, ".json")) return 0;
    if (name[first] == 0) return 1;
    return second > 0 && name[first + 1 + second] == 0 && !exists(path_of("%.*s", (int)first, name));
}

/* The organisation of models that people know by a name alone. */
static const char *organisation_of(const char *name) {
    static const char *const known[][2] = {{"gpt2", "openai-community/"},       {"gpt2-medium", "openai-community/"},
                                           {"gpt2-large", "openai-community/"}, {"gpt2-xl", "openai-community/"},
                                           {"distilgpt2", "distilbert/"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i][0], name) == 0) return known[i][1];
    return "";
}

NORETURN static void refuse_missing(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!is_hub_name(path)) fail(EXIT_DATA, "%s does not exist", path);
    fail(EXIT_DATA,
         "%s does not exist here. A model of that name on the Hugging Face hub comes by: hf download %s%s --local-dir datasets/%s, and is "
         "then datasets/%s",
         path, organisation_of(path), path, name, name);
}

NORETURN static void refuse_folder(const char *folder) {
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (int i = 0; i < 2; i++)
        if (exists(path_of("%s/%s", folder, others[i])))
            fail(EXIT_DATA,
                 "%s holds %s and no " WEIGHTS_SINGLE ": only safetensors are read. Download the model's safetensors, or have transformers write "
                 "them: AutoModelForCausalLM.from_pretrained(\"%s\").save_pretrained(\"%s\")",
                 folder, others[i], folder, folder);
    fail(EXIT_DATA, "%s/" WEIGHTS_SINGLE " does not exist, nor does " WEIGHTS_INDEX " there", folder);
}

static Path path_in(const char *path) {
    static const char *const names[] = {WEIGHTS_SINGLE, WEIGHTS_INDEX};
    struct stat st;
    Path        newest;
    if (stat(path, &st) < 0 && (errno == ENOENT || errno == ENOTDIR)) refuse_missing(path);
    if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode)) return path_of("%s", path);
    for (int i = 0; i < 2; i++) {
        Path inside = path_of("%s/%s", path, names[i]);
        if (exists(inside)) return inside;
    }
    if (!checkpoint_find(path, newest.text, sizeof newest.text)) refuse_folder(path);
    return path_of("%s/" WEIGHTS_SINGLE, newest.text);
}

static int is_model(const char *folder) {
    return exists(path_of("%s/config.json", folder)) &&
           (exists(path_of("%s/" WEIGHTS_SINGLE, folder)) || exists(path_of("%s/" WEIGHTS_INDEX, folder)));
}

void weights_set_folder(const char *path, char *out, size_t capacity) {
    Path folder = path_of("%s", path);
    if (!exists(folder) && !is_hub_name(path))
        fail(EXIT_DATA, "%s is neither a checkpoint nor a run folder: it does not exist", path);
    if (!exists(folder)) refuse_missing(path);
    if (checkpoint_find(path, out, capacity)) return;
    if (exists(path_of("%s/" MANIFEST_NAME, path)) || !is_model(path)) /* a checkpoint that does not verify is none */
        fail(EXIT_DATA, "%s is neither a checkpoint nor a run folder that holds a complete one, nor a model's folder of Hugging Face", path);
    if (strlen(folder.text) >= capacity) fail(EXIT_CONFIG, "the path %s is too long", path);
    strcpy(out, folder.text);
}

/* --- opening ------------------------------------------------------------------------------------------------------ */

static int ends_with(const char *text, const char *end) {
    size_t bytes = strlen(text), tail = strlen(end);
    return bytes >= tail && strcmp(text + bytes - tail, end) == 0;
}

static char *copy_of(const char *text) {
    char *copy = strdup(text);
    if (!copy) fail(EXIT_MEMORY, "no memory to open %s", text);
    return copy;
}

static WeightsIndex read_index(const char *path) {
    char         *text, fault[WEIGHTS_INDEX_FAULT_BYTES];
    WeightsIndex  index;
    int64_t       bytes = io_read_file(path, WEIGHTS_INDEX_LIMIT, &text);
    if (bytes == -ENOMEM) fail(EXIT_MEMORY, "no memory to read %s", path);
    if (bytes == -EFBIG) fail(EXIT_DATA, "%s has over %d bytes: no index of a model's files", path, WEIGHTS_INDEX_LIMIT);
    if (bytes < 0) fail(EXIT_IO, "%s cannot be read: %s", path, strerror((int)-bytes));
    if (!weights_index_parse(text, (size_t)bytes, &index, fault)) fail(EXIT_DATA, "%s %s", path, fault);
    free(text);
    return index;
}

/* Marks the tensors of file f that the index names, and refuses others. seen [index->tensors]: 1 + the file that has
 * it. */
static void check_file(const WeightsSet *set, const WeightsIndex *index, int f, int *seen) {
    const WeightsFile *w = &set->file[f];
    for (int i = 0; i < w->header.tensors; i++) {
        const char *name = w->header.tensor[i].name;
        int         at = weights_index_find(index, name);
        if (at < 0)
            fail(EXIT_DATA, "%s: tensor %s is in none of the index's files, and stands in %s", set->path, name, w->path);
        if (seen[at])
            fail(EXIT_DATA, "%s: tensor %s is there twice, in %s and in %s", set->path, name, set->file[seen[at] - 1].path,
                 w->path);
        seen[at] = 1 + f;
    }
}

static void check_index(const WeightsSet *set, const WeightsIndex *index) {
    int *seen = (int *)calloc((size_t)index->tensors, sizeof *seen);
    if (!seen) fail(EXIT_MEMORY, "no memory to check the tensors of %s", set->path);
    for (int f = 0; f < set->files; f++) check_file(set, index, f, seen);
    for (int i = 0; i < index->tensors; i++) {
        const IndexedTensor *t = &index->tensor[i];
        const char          *said = set->file[t->file].path;
        if (!seen[i]) fail(EXIT_DATA, "%s: tensor %s is missing, the index says it is in %s", set->path, t->name, said);
        if (seen[i] != 1 + t->file)
            fail(EXIT_DATA, "%s: tensor %s is in %s, the index says it is in %s", set->path, t->name,
                 set->file[seen[i] - 1].path, said);
    }
    free(seen);
}

static void open_indexed(WeightsSet *set) {
    WeightsIndex index = read_index(set->path);
    if (!(set->file = (WeightsFile *)malloc((size_t)index.files * sizeof *set->file)))
        fail(EXIT_MEMORY, "no memory for the %d files of %s", index.files, set->path);
    for (int i = 0; i < index.files; i++) {
        Path part = path_of("%s/%s", set->folder, index.file[i]);
        if (!exists(part))
            fail(EXIT_DATA, "%s does not exist, and %s names it: is the download complete?", part.text, set->path);
        set->file[set->files++] = weights_open(part.text);
    }
    check_index(set, &index);
    weights_index_free(&index);
}

WeightsSet weights_set_open(const char *path) {
    WeightsSet  set = {.path = copy_of(path_in(path).text)};
    const char *slash = strrchr(set.path, '/'), *name = slash ? slash + 1 : set.path;
    int         is_index = ends_with(name, ".index.json");
    if (is_index || strcmp(name, WEIGHTS_SINGLE) == 0)
        set.folder = copy_of(slash == set.path ? "/" : slash ? path_of("%.*s", (int)(slash - set.path), set.path).text : ".");
    if (is_index) {
        open_indexed(&set);
        return set;
    }
    if (!(set.file = (WeightsFile *)malloc(sizeof *set.file))) fail(EXIT_MEMORY, "no memory to open %s", path);
    set.file[set.files++] = weights_open(set.path);
    return set;
}

void weights_set_close(WeightsSet *set) {
    for (int i = 0; i < set->files; i++) weights_close(&set->file[i]);
    free(set->file);
    free(set->folder);
    free(set->path);
}

uint64_t weights_set_fingerprint(const WeightsSet *set) {
    enum { LOOKS = 256, BYTES = 4096 };
    char     piece[BYTES];
    uint64_t hash = 0;
    for (int f = 0; f < set->files; f++) {
        const WeightsFile *w = &set->file[f];
        const Safetensors *h = &w->header;
        uint64_t           bytes = h->data_offset + (h->tensors ? h->tensor[h->tensors - 1].end : 0);
        hash = XXH3_64bits_withSeed(&bytes, sizeof bytes, hash);
        for (uint64_t i = 0; i < LOOKS; i++) {
            uint64_t at = bytes / LOOKS * i, n = bytes - at < BYTES ? bytes - at : BYTES;
            int      error = io_pread(w->fd, piece, n, at);
            if (error) fail(EXIT_IO, "%s cannot be read: %s", w->path, strerror(-error));
            hash = XXH3_64bits_withSeed(piece, n, hash);
        }
    }
    return hash;
}

/* --- matching names and shapes ------------------------------------------------------------------------------------ */

static void expected_shape(char *out, size_t capacity, const Param *p) {
    SafeTensor t = {.dims = p->dims, .dim = {(uint64_t)p->dim[0], (uint64_t)p->dim[1]}};
    safetensors_shape(out, capacity, &t);
}

static void check_tensor(const WeightsFile *w, const SafeTensor *t, const Param *p) {
    char expected[64], found[200];
    int  same = t->dims == p->dims;
    for (int d = 0; same && d < p->dims; d++) same = t->dim[d] == (uint64_t)p->dim[d];
    expected_shape(expected, sizeof expected, p);
    safetensors_shape(found, sizeof found, t);
    if (!same) fail(EXIT_DATA, "%s: tensor %s has shape %s, expected %s: give model.* the sizes of these weights, or name others",
                    w->path, t->name, found, expected);
    if (t->type != SAFE_F32 && t->type != SAFE_F16 && t->type != SAFE_BF16)
        fail(EXIT_DATA, "%s: tensor %s has type %s, expected F32, F16 or BF16", w->path, t->name, safetensors_type_name(t->type));
}

static int param_of(const Layout *layout, const char *name) {
    for (int i = 0; i < layout->params; i++)
        if (strcmp(hf_plain_name(layout->param[i].name), hf_plain_name(name)) == 0) return i;
    return -1;
}

WeightsTensor weights_set_find(const WeightsSet *set, const char *name) {
    for (int f = 0; f < set->files; f++) {
        const SafeTensor *t = safetensors_find(&set->file[f].header, name);
        if (t) return (WeightsTensor){&set->file[f], t};
    }
    return (WeightsTensor){NULL, NULL};
}

/* The stored head, where the layout has no row for it: its values are those of the embedding then. */
static int is_tied_head(const Layout *layout, const char *name) { return hf_extra(name) == HF_HEAD && param_of(layout, name) < 0; }

WeightsTensor weights_set_head(const WeightsSet *set, const Layout *layout) {
    for (int f = 0; f < set->files; f++)
        for (int i = 0; i < set->file[f].header.tensors; i++)
            if (is_tied_head(layout, set->file[f].header.tensor[i].name))
                return (WeightsTensor){&set->file[f], &set->file[f].header.tensor[i]};
    return (WeightsTensor){NULL, NULL};
}

static void match_file(const WeightsFile *w, const Layout *layout, WeightsTensor *tensor_of) {
    char shape[200];
    for (int i = 0; i < w->header.tensors; i++) {
        const SafeTensor *t = &w->header.tensor[i];
        if (is_tied_head(layout, t->name)) {
            check_tensor(w, t, &layout->param[0]); /* wte is the first row */
            continue;
        }
        if (hf_extra(t->name) == HF_NOTHING) continue;
        int p = param_of(layout, t->name);
        safetensors_shape(shape, sizeof shape, t);
        if (p < 0) fail(EXIT_DATA, "%s: tensor %s of shape %s is not one of this model's", w->path, t->name, shape);
        if (tensor_of[p].tensor)
            fail(EXIT_DATA, "%s: tensor %s is there twice, also as %s", w->path, t->name, tensor_of[p].tensor->name);
        check_tensor(w, t, &layout->param[p]);
        tensor_of[p] = (WeightsTensor){w, t};
    }
}

WeightsTensor *weights_set_match(const WeightsSet *set, const Layout *layout) {
    WeightsTensor *tensor_of = (WeightsTensor *)calloc((size_t)layout->params, sizeof *tensor_of);
    char           shape[200];
    if (!tensor_of) fail(EXIT_MEMORY, "no memory to match the tensors of %s", set->path);
    for (int f = 0; f < set->files; f++) match_file(&set->file[f], layout, tensor_of);
    for (int p = 0; p < layout->params; p++) {
        if (tensor_of[p].tensor) continue;
        expected_shape(shape, sizeof shape, &layout->param[p]);
        fail(EXIT_DATA, "%s: tensor %s is missing, expected with shape %s", set->path, layout->param[p].name, shape);
    }
    return tensor_of;
}
