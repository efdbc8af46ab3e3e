/* weights.c - opens, reads, compares and checks the weights of a model in safetensors files; see weights.h. */
#include "run/checkpoint/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "core/io.h"
#include "core/json.h"
#include "core/format.h"
#include "core/tensor.h"
#include "core/error.h"
#include "data/bpe_file.h"
#include "model/block.h"
#include "model/hf.h"
#include "model/params.h"

#define FILE_NAME "the name of a file of weights" /* words for the message that memory is missing */

/* --- one file ----------------------------------------------------------------------------------------------------- */

/* Reads the length and the header of the file. Allocates no more than the bytes of the file, whatever length it
 * claims. */
static uint8_t *read_head(const WeightsFile *w, uint64_t file_bytes, size_t *bytes) {
    uint8_t  length[8];
    uint64_t n;
    *bytes = 0;
    if (file_bytes < sizeof length) return xcalloc(1, 1, "the header of a file of weights");
    int error = io_pread(w->fd, length, sizeof length, 0);
    if (error) fail(EXIT_IO, "%s cannot be read: %s", w->path, io_error_text(error));
    n = little_endian(length, sizeof length);
    /* the parser refuses a header by its first 8 bytes if they claim such a length, so the rest is not read */
    if (n > SAFETENSORS_HEADER_LIMIT || n > file_bytes - 8) n = 0;
    *bytes = (size_t)(8 + n);
    uint8_t *head = xmalloc(*bytes, "the header of a file of weights");
    error = io_pread(w->fd, head, *bytes, 0);
    if (error) fail(EXIT_IO, "%s cannot be read: %s", w->path, io_error_text(error));
    return head;
}

/* Ends the program because a parser found a fault. fault: a phrase, which may name the file as FILE. */
NORETURN static void refuse_file(const char *path, const char *fault) {
    char sentence[SAFETENSORS_FAULT_BYTES + sizeof(ShellWord)];
    snprintf(sentence, sizeof sentence, "%s", fault);
    shell_name_file(sentence, sizeof sentence, path);
    fail(EXIT_DATA, "%s %s", path, sentence);
}

WeightsFile weights_open(const char *path) {
    WeightsFile w = {.path = xstrdup(path, FILE_NAME)};
    struct stat st;
    size_t      bytes;
    char        fault[SAFETENSORS_FAULT_BYTES];
    if (stat(path, &st) < 0 && errno == ENOENT) fail(EXIT_DATA, "%s does not exist", path);
    if (stat(path, &st) < 0) fail(EXIT_IO, "%s cannot be opened: %s", path, io_error_text(errno));
    if (!S_ISREG(st.st_mode)) fail(EXIT_DATA, "%s %s", path, io_error_text(io_kind(st.st_mode)));
    w.fd = io_open(path, IO_READ);
    if (w.fd < 0) fail(EXIT_IO, "%s cannot be opened: %s", path, io_error_text(w.fd));
    uint8_t *head = read_head(&w, (uint64_t)st.st_size, &bytes);
    if (!safetensors_parse(head, bytes, (uint64_t)st.st_size, &w.header, fault)) refuse_file(path, fault);
    free(head);
    return w;
}

void weights_close(WeightsFile *w) {
    io_close(w->fd);
    free(w->path);
    safetensors_free(&w->header);
}

int weights_has_values(const SafeTensor *t) {
    return t->type == SAFE_F64 || t->type == SAFE_F32 || t->type == SAFE_F16 || t->type == SAFE_BF16;
}

int64_t weights_elems(const SafeTensor *t) { return (int64_t)((t->end - t->begin) / safetensors_type_bytes(t->type)); }

/* Returns a value of type F64, F16 or BF16, rounded to the nearest fp32. */
static float value_of(SafeType type, const char *bytes) {
    double   wide;
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    if (type != SAFE_F64) return type == SAFE_F16 ? f16_to_f32(half) : bf16_to_f32(half);
    memcpy(&wide, bytes, sizeof wide);
    return (float)wide;
}

/* Reads elements of a tensor as fp32. Returns 0 or -errno. */
static int read_block(const WeightsFile *w, const SafeTensor *t, int64_t first, int64_t elems, float *out) {
    size_t   each = safetensors_type_bytes(t->type);
    uint64_t at = w->header.data_offset + t->begin + (uint64_t)first * each;
    char     bytes[64 << 10];
    int      error = 0;
    if (t->type == SAFE_F32) return io_pread(w->fd, out, (size_t)elems * each, at);
    for (int64_t i = 0, n; !error && i < elems; i += n, at += (uint64_t)n * each) {
        n = smaller_of(elems - i, (int64_t)(sizeof bytes / each));
        error = io_pread(w->fd, bytes, (size_t)n * each, at);
        for (int64_t k = 0; !error && k < n; k++) out[i + k] = value_of(t->type, bytes + (size_t)k * each);
    }
    return error;
}

void weights_read(const WeightsFile *w, const SafeTensor *t, int64_t first, int64_t elems, float *out) {
    enum { BLOCK = 1 << 18 };
    int     failed = 0;
    int64_t blocks = (elems + BLOCK - 1) / BLOCK;
    CHECK(elems <= WEIGHTS_BLOCK, "%" PRId64 " elements at once", elems);
    #pragma omp parallel for schedule(static) reduction(min : failed) if (blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t at = i * BLOCK, n = elems - at < BLOCK ? elems - at : BLOCK;
        int     error = read_block(w, t, first + at, n, out + at);
        if (error < failed) failed = error;
    }
    if (failed) fail(EXIT_IO, "%s: tensor %s cannot be read: %s", w->path, t->name, io_error_text(failed));
}

/* Returns 1 if all n values are finite: no value has all bits of its exponent set. The loop has no branch, so that it
 * is vectorized. */
static int all_finite(const float *value, int64_t n) {
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, value + i, sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !found;
}

int64_t weights_finite(const float *value, int64_t n) {
    enum { BLOCK = 1 << 14 };
    int64_t first = n, blocks = (n + BLOCK - 1) / BLOCK;
    #pragma omp parallel for schedule(static) reduction(min : first) if (blocks > 8)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t at = b * BLOCK, end = n - at < BLOCK ? n : at + BLOCK;
        if (all_finite(value + at, end - at)) continue;
        while (isfinite(value[at])) at++;
        if (at < first) first = at;
    }
    return first;
}

void weights_refuse_element(const WeightsFile *w, const SafeTensor *t, int64_t element) {
    double value = 0.0;
    if (t->type == SAFE_F64) /* the value may be finite in the file, as F64, though not in fp32 */
        (void)!io_pread(w->fd, &value, sizeof value, w->header.data_offset + t->begin + 8 * (uint64_t)element);
    if (t->type == SAFE_F64 && isfinite(value))
        fail(EXIT_DATA, "%s: tensor %s holds %g at element %" PRId64 ", which fp32 cannot hold: take other weights",
             w->path, t->name, value, element);
    fail(EXIT_DATA,
         "%s: tensor %s holds a value that is not finite at element %" PRId64 ": take other weights, or an older "
         "checkpoint of them", w->path, t->name, element);
}

int64_t weights_read_span(const WeightsFile *w, const SafeTensor *t, int64_t begin, const Layout *layout,
                          const Span *span, int64_t at, float *values) {
    float     *rows = values + WEIGHTS_BLOCK;
    FileExtent first = layout_extent(layout, span, at), e = first;
    int64_t n = e.elems < WEIGHTS_BLOCK ? e.elems : WEIGHTS_BLOCK, end = first.offset + n;
    if (n == WEIGHTS_BLOCK || at + n == span->elems) {
        weights_read(w, t, first.offset - begin, n, values);
        return n;
    }
    while (at + n < span->elems) {
        e = layout_extent(layout, span, at + n);
        if (e.offset + e.elems - first.offset > WEIGHTS_BLOCK) break;
        end = e.offset + e.elems, n += e.elems;
    }
    weights_read(w, t, first.offset - begin, end - first.offset, rows);
    for (int64_t k = 0; k < n; k += e.elems) {
        e = layout_extent(layout, span, at + k);
        memcpy(values + k, rows + (e.offset - first.offset), (size_t)e.elems * sizeof *values);
    }
    return n;
}

/* --- statistics --------------------------------------------------------------------------------------------------- */

/* Threads read chunks of a block, and the statistics of chunks are added in order. */
enum { CHUNK = 1 << 16, CHUNKS = WEIGHTS_BLOCK / CHUNK };

double weights_norm(const WeightsStats *s) { return sqrt(s->squares); }

void weights_stats_add(WeightsStats *a, const WeightsStats *b) {
    a->elems += b->elems, a->nans += b->nans, a->infs += b->infs, a->squares += b->squares;
    if (isnan(a->least) || b->least < a->least) a->least = b->least;
    if (isnan(a->most) || b->most > a->most) a->most = b->most;
}

static WeightsStats stats_of(const float *x, int64_t n) {
    WeightsStats s = weights_stats_none();
    float        least = INFINITY, most = -INFINITY;
    s.elems = n;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i])) s.nans++;
        else if (isinf(x[i])) s.infs++;
        else {
            s.squares += (double)x[i] * x[i];
            least = x[i] < least ? x[i] : least, most = x[i] > most ? x[i] : most;
        }
    }
    if (least <= most) s.least = least, s.most = most;
    return s;
}

WeightsStats weights_stats(const WeightsFile *w, const SafeTensor *t) {
    WeightsStats all = weights_stats_none(), chunk[CHUNKS];
    int64_t      elems = weights_elems(t);
    float       *values = xmalloc(WEIGHTS_BLOCK * sizeof *values, "a block of weights");
    for (int64_t at = 0; at < elems; at += WEIGHTS_BLOCK) {
        int64_t n = smaller_of(elems - at, WEIGHTS_BLOCK), chunks = (n + CHUNK - 1) / CHUNK;
        weights_read(w, t, at, n, values);
        #pragma omp parallel for schedule(static)
        for (int64_t p = 0; p < chunks; p++) chunk[p] = stats_of(values + p * CHUNK, smaller_of(n - p * CHUNK, CHUNK));
        for (int64_t p = 0; p < chunks; p++) weights_stats_add(&all, &chunk[p]);
    }
    free(values);
    return all;
}

static WeightsDiff diff_of(const float *a, const float *b, int64_t n) {
    WeightsDiff d = {.elems = n};
    for (int64_t i = 0; i < n; i++) {
        double apart = fabs((double)a[i] - (double)b[i]);
        d.of += isfinite(a[i]) ? (double)a[i] * a[i] : 0.0;
        if (memcmp(a + i, b + i, sizeof *a) == 0) continue;
        d.differ++;
        if (isnan(apart)) d.nans++;
        else d.squares += apart * apart, d.most = apart > d.most ? apart : d.most;
    }
    return d;
}

WeightsDiff weights_diff(const WeightsFile *wa, const SafeTensor *a, const WeightsFile *wb, const SafeTensor *b) {
    WeightsDiff all = {0}, chunk[CHUNKS];
    int64_t     elems = weights_elems(a);
    float      *x = xmalloc(WEIGHTS_BLOCK * sizeof *x, "a block of weights"),
               *y = xmalloc(WEIGHTS_BLOCK * sizeof *y, "a block of weights");
    for (int64_t at = 0; at < elems; at += WEIGHTS_BLOCK) {
        int64_t n = smaller_of(elems - at, WEIGHTS_BLOCK), chunks = (n + CHUNK - 1) / CHUNK;
        weights_read(wa, a, at, n, x);
        weights_read(wb, b, at, n, y);
        #pragma omp parallel for schedule(static)
        for (int64_t p = 0; p < chunks; p++)
            chunk[p] = diff_of(x + p * CHUNK, y + p * CHUNK, smaller_of(n - p * CHUNK, CHUNK));
        for (int64_t p = 0; p < chunks; p++) {
            const WeightsDiff *d = &chunk[p];
            all.elems += d->elems, all.differ += d->differ, all.nans += d->nans;
            all.squares += d->squares, all.of += d->of, all.most = d->most > all.most ? d->most : all.most;
        }
    }
    free(x), free(y);
    return all;
}

double weights_diff_relative(const WeightsDiff *d) {
    return d->of > 0 ? sqrt(d->squares / d->of) : d->squares > 0 ? INFINITY : 0.0;
}

/* --- where the weights of a model are ----------------------------------------------------------------------------- */

static int exists(Path path) {
    struct stat st;
    return stat(path.text, &st) == 0;
}

static int has_file(const char *folder, const char *name) { return exists(path_of("%s/%s", folder, name)); }

/* Returns 1 for NAME or ORGANISATION/NAME in letters that the Hugging Face hub allows. A path into an existing folder
 * is no such name. */
static int is_hub_name(const char *name) {
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    size_t first = strspn(name, letters), second = name[first] == '/' ? strspn(name + first + 1, letters) : 0;
    if (first == 0 || name[0] == '.' || strstr(name, ".safetensors") || strstr(name, ".json")) return 0;
    if (name[first] == 0) return 1;
    return second > 0 && name[first + 1 + second] == 0 && !exists(path_of("%.*s", (int)first, name));
}

NORETURN static void refuse_missing(const char *path) {
    /* Models that people know by their name without the organisation, and the organisation to put before it. */
    static const char *const known[][2] = {{"gpt2", "openai-community/"},       {"gpt2-medium", "openai-community/"},
                                           {"gpt2-large", "openai-community/"}, {"gpt2-xl", "openai-community/"},
                                           {"distilgpt2", "distilbert/"}};
    const char *name = basename(path), *organisation = "";
    if (!is_hub_name(path)) fail(EXIT_DATA, "%s does not exist", path);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i][0], path) == 0) organisation = known[i][1];
    fail(EXIT_DATA,
         "%s does not exist here. If it is a model on the Hugging Face hub, type: hf download %s%s --local-dir "
         "datasets/%s, and name datasets/%s instead",
         path, organisation, path, name, name);
}

/* Returns 1 for a name such as NAME-00002-of-00005.safetensors. *number is then 2, *of is 5, and *stem is the number of
 * bytes before "-00002". */
static int is_part(const char *name, int *number, int *of, int *stem) {
    const char *end = strstr(name, "-of-"), *dot = strstr(name, ".safetensors");
    if (!end || !dot || dot[12] || end - name < 6) return 0;
    *stem = (int)(end - name) - 6;
    return sscanf(name + *stem, "-%5d-of-%5d.safetensors", number, of) == 2 && *number >= 1 && *of >= *number &&
           dot == end + 9;
}

/* Lists the files of a folder whose names end with `end`, sorted by name. Hidden files are left out. Free the list with
 * io_paths_free. */
static IoPaths list_ending(const char *folder, const char *end) {
    IoPaths list = {NULL, 0};
    io_match(path_of("%s/*%s", folder, end).text, &list);
    return list;
}

/* Returns 1 if the .safetensors files of a folder are exactly NAME-00001-of-0000N to NAME-0000N-of-0000N. If one of
 * these is missing, returns 0 with its name in missing. */
static int is_whole_parts(const IoPaths *list, char missing[300]) {
    int number, of = 0, first = 0, stem, first_stem = 0, count = (int)list->count;
    *missing = 0;
    for (int i = 0; i < count; i++) {
        const char *name = basename(list->path[i]);
        if (!is_part(name, &number, &of, &stem)) return 0;
        if (i == 0) first = of, first_stem = stem;
        if (of != first || stem != first_stem || strncmp(basename(list->path[0]), name, (size_t)stem) != 0) return 0;
        if (number != i + 1 && !*missing)
            snprintf(missing, 300, "%.*s-%05d-of-%05d.safetensors", stem, name, i + 1, of);
    }
    if (count > 0 && count < of && !*missing)
        snprintf(missing, 300, "%.*s-%05d-of-%05d.safetensors", stem, basename(list->path[0]), count + 1, of);
    return count > 0 && !*missing && count == of;
}

static int has_parts(const char *folder) {
    char    missing[300];
    IoPaths list = list_ending(folder, ".safetensors");
    int     whole = is_whole_parts(&list, missing);
    io_paths_free(&list);
    return whole;
}

/* Ends the program because a folder holds an adapter instead of a model. sign: the file or tensor that shows it. PEFT
 * finds an adapter by the names of its two files. */
NORETURN static void refuse_adapter(const char *folder, const char *sign) {
    int has_config = has_file(folder, "adapter_config.json"),
        has_weights = has_file(folder, "adapter_model.safetensors") || has_file(folder, "adapter_model.bin");
    fail(EXIT_DATA,
         "%s holds an adapter (%s), which is no whole model. PEFT merges it into its model; type: python3 -c 'from "
         "peft import AutoPeftModelForCausalLM as M; M.from_pretrained(\"%s\").merge_and_unload().save_pretrained("
         "\"%s-merged\")', and name %s-merged instead%s%s%s",
         folder, sign, folder, folder, folder, has_config && has_weights ? "" : ". PEFT needs there: ",
         has_config ? "" : "adapter_config.json",
         has_weights ? "" : has_config ? "adapter_model.safetensors" : " and adapter_model.safetensors");
}

/* Returns 1 if a file holds the embedding of any kind of model, with or without the prefix of its family. If it is no
 * safetensors file, ends the program with a message that names it. */
static int holds_model(const char *path) {
    WeightsFile w = weights_open(path);
    char        plain[HF_NAME_BYTES], wanted[HF_NAME_BYTES];
    int         found = 0;
    for (int i = 0; i < w.header.tensors; i++)
        for (int arch = 0; arch < ARCH_COUNT && !found; arch++) {
            const BlockKind *kind = block_kind((ModelShape){.arch = arch});
            Path             name = path_of("%s%s", kind->prefix, kind->embedding.row[0].name);
            found = strcmp(hf_plain_name(w.header.tensor[i].name, plain), hf_plain_name(name.text, wanted)) == 0;
        }
    weights_close(&w);
    return found;
}

/* Refuses a folder whose model is in another format. The message has the command that writes the model as
 * safetensors. */
static void refuse_other_format(const char *folder) {
    static const char *const others[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    if (has_file(folder, "adapter_config.json")) refuse_adapter(folder, "adapter_config.json");
    for (int i = 0; i < 2; i++)
        if (has_file(folder, others[i]))
            fail(EXIT_DATA,
                 "%s holds %s and no " WEIGHTS_SINGLE ": only safetensors are read. Download the model's safetensors, "
                 "or have transformers write them: "
                 "AutoModelForCausalLM.from_pretrained(\"%s\").save_pretrained(\"%s\")",
                 folder, others[i], folder, folder);
    IoPaths gguf = list_ending(folder, ".gguf");
    if (gguf.count > 0)
        fail(EXIT_DATA,
             "%s holds %s, a model of llama.cpp, and no " WEIGHTS_SINGLE ": only safetensors are read. Download the "
             "model's safetensors, or have transformers write them: AutoModelForCausalLM.from_pretrained(\"%s\", "
             "gguf_file=\"%s\").save_pretrained(\"%s\")",
             folder, basename(gguf.path[0]), folder, basename(gguf.path[0]), folder);
    io_paths_free(&gguf);
}

NORETURN static void refuse_folder(const char *folder) {
    char    missing[300];
    IoPaths list = list_ending(folder, ".safetensors"), packed = list_ending(folder, ".safetensors.gz");
    int     count = (int)list.count, model = 0;
    if (count > 0 && !is_whole_parts(&list, missing) && *missing)
        fail(EXIT_DATA, "%s/%s is missing, and %d other file%s of these weights %s there: is the download complete?",
             folder, missing, count, count == 1 ? "" : "s", count == 1 ? "is" : "are");
    refuse_other_format(folder);
    while (count > 1 && model < count && !holds_model(list.path[model])) model++;
    if (count > 1 && model == count)
        fail(EXIT_DATA,
             "%s holds %d .safetensors files, and none of them has the embedding of a model: name the folder of the "
             "whole model", folder, count);
    if (count > 1)
        fail(EXIT_DATA,
             "%s holds %d .safetensors files, no " WEIGHTS_SINGLE " and no " WEIGHTS_INDEX
             " that says which of them are the model: rename the one that is the model to " WEIGHTS_SINGLE
             ", as in mv %s %s",
             folder, count, shell_word(list.path[model]).text,
             shell_word(path_of("%s/" WEIGHTS_SINGLE, folder).text).text);
    if (packed.count > 0)
        fail(EXIT_DATA, "%s/" WEIGHTS_SINGLE " does not exist, and %s does: unpack it, gzip -d %s", folder,
             basename(packed.path[0]), shell_word(packed.path[0]).text);
    fail(EXIT_DATA,
         "%s/" WEIGHTS_SINGLE " does not exist, nor does " WEIGHTS_INDEX
         " there: give the folder that holds one of them",
         folder);
}

/* Returns 1, with its path in *file, if the folder has exactly one .safetensors file, which is no numbered part, and
 * no adapter_config.json. To be called only if there is no model.safetensors. The caller opens the file as weights;
 * if it fits the model, weights_set_check_values() then ends the program with the command that renames it. */
static int has_misnamed(const char *folder, Path *file) {
    int     number, of, stem;
    IoPaths list = list_ending(folder, ".safetensors");
    int     is_one = list.count == 1 && !is_part(basename(list.path[0]), &number, &of, &stem);
    if (is_one) *file = path_of("%s", list.path[0]);
    io_paths_free(&list);
    return is_one && !has_file(folder, "adapter_config.json");
}

/* Returns the path to open for a model: a file, an index, or a folder whose files are all parts of the weights. */
static Path path_in(const char *path) {
    struct stat st;
    Path        newest;
    if (stat(path, &st) < 0 && (errno == ENOENT || errno == ENOTDIR)) refuse_missing(path);
    if (!io_is_folder(path)) return path_of("%s", path);
    if (has_file(path, WEIGHTS_SINGLE)) return path_of("%s/" WEIGHTS_SINGLE, path);
    if (has_file(path, WEIGHTS_INDEX)) return path_of("%s/" WEIGHTS_INDEX, path);
    if (has_parts(path)) return path_of("%s", path);
    if (folder_find(path, &newest, NULL)) return path_of("%s/" WEIGHTS_SINGLE, newest.text);
    if (has_misnamed(path, &newest)) return newest;
    refuse_folder(path);
}

Path weights_set_folder(const char *path) {
    Path folder = path_of("%s", path), file;
    if (!exists(folder) && !is_hub_name(path))
        fail(EXIT_DATA, "%s is neither a checkpoint nor a run folder: it does not exist", path);
    if (!exists(folder)) refuse_missing(path);
    if (folder_find(path, &file, NULL)) return file;
    int is_ours = has_file(path, MANIFEST_NAME) || has_file(path, "checkpoints");
    int has_config = has_file(path, "config.json");
    int has_weights = has_file(path, WEIGHTS_SINGLE) || has_file(path, WEIGHTS_INDEX);
    int is_theirs = !is_ours && has_config && (has_weights || has_parts(path) || has_misnamed(path, &file));
    if (!is_ours && !is_theirs) {
        refuse_other_format(path);
        if (has_config) refuse_folder(path);
        if (has_weights)
            fail(EXIT_DATA,
                 "%s/config.json, which holds the sizes of the model, does not exist: download it to that folder",
                 path);
    }
    if (!is_theirs) /* neither a model's folder nor a run folder whose checkpoint verifies */
        fail(EXIT_DATA,
             "%s is neither a checkpoint nor a run folder that holds a complete one, nor a folder of Hugging Face with "
             "config.json and " WEIGHTS_SINGLE ": give one of these", path);
    return folder;
}

void weights_set_check_json(const char *path) {
    static const struct { const char *name; size_t limit; int keeps_numbers, is_used; } files[] = {
        {"config.json", JSON_LIMIT, 0, 1},
        {"generation_config.json", JSON_LIMIT, 0, 1},
        {"tokenizer_config.json", BPE_CONFIG_LIMIT, 1, 1},
        {"special_tokens_map.json", BPE_CONFIG_LIMIT, 1, 1},
        {WEIGHTS_INDEX, WEIGHTS_INDEX_LIMIT, 0, 0}, /* the index is not parsed at this point, because it is ignored if
                                                     * model.safetensors exists */
    };
    int in_folder = io_is_folder(path);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char fault[JSON_FILE_FAULT_CHARS];
        Json json;
        if (in_folder ? !files[i].is_used : strcmp(basename(path), files[i].name) != 0) continue;
        Path file = in_folder ? path_of("%s/%s", path, files[i].name) : path_of("%s", path);
        int  exit_code = json_read_file(file.text, files[i].limit, files[i].keeps_numbers, &json, fault);
        if (exit_code == -ENOENT) continue;
        if (exit_code) fail(exit_code, "%s", fault);
        /* the readers of the other files refuse this themselves, and name what they need */
        if (i == 1 && !cJSON_IsObject(json.root))
            fail(EXIT_DATA, "%s is not a JSON object, as the settings of a model are: repair the file, or move it away",
                 file.text);
        json_free(&json);
    }
}

static void add_file(WeightsSet *set, const char *path) {
    set->file = xrealloc(set->file, sizeof *set->file * (size_t)(set->files + 1), "a list of files of weights");
    set->file[set->files++] = weights_open(path);
}

/* Reads the index, and opens the files that it lists, which are in its folder. */
static void open_indexed(WeightsSet *set) {
    char   *text, fault[SAFETENSORS_FAULT_BYTES];
    int64_t bytes = io_read_file(set->path, WEIGHTS_INDEX_LIMIT, &text);
    if (bytes == -ENOMEM) fail(EXIT_MEMORY, "no memory to read %s; free memory on this host", set->path);
    if (bytes == -EFBIG)
        fail(EXIT_DATA, "%s has over %d bytes, which is too large for an index of the files of a model: download the "
             "file again", set->path, WEIGHTS_INDEX_LIMIT);
    if (bytes < 0) fail(EXIT_IO, "%s cannot be read: %s", set->path, io_error_text((int)bytes));
    if (!weights_index_parse(text, (size_t)bytes, &set->index, fault)) refuse_file(set->path, fault);
    free(text);
    for (int i = 0; i < set->index.files; i++) {
        Path part = path_of("%s/%s", set->folder, set->index.file[i]);
        if (!exists(part))
            fail(EXIT_DATA, "%s does not exist, and %s names it: is the download complete?", part.text, set->path);
        add_file(set, part.text);
    }
}

WeightsSet weights_set_open(const char *path) {
    WeightsSet  set = {.path = xstrdup(path_in(path).text, FILE_NAME)};
    const char *slash = strrchr(set.path, '/'), *name = basename(set.path);
    int         is_weights = has_ending(name, ".safetensors"), is_index = has_ending(name, ".index.json");
    if (io_is_folder(set.path)) {
        if (is_weights && !has_parts(set.path)) fail(EXIT_DATA, "%s %s", set.path, io_error_text(EISDIR));
        IoPaths list = list_ending(set.path, ".safetensors"); /* the parts NAME-00001-of-0000N to NAME-0000N-of-0000N */
        set.folder = xstrdup(set.path, FILE_NAME);
        for (size_t i = 0; i < list.count; i++) add_file(&set, list.path[i]);
        io_paths_free(&list);
        return set;
    }
    if (is_index || strcmp(name, WEIGHTS_SINGLE) == 0 || (is_weights && io_is_folder(path)))
        set.folder = !slash ? xstrdup(".", FILE_NAME)
                            : xstrndup(set.path, slash == set.path ? 1 : (size_t)(slash - set.path), FILE_NAME);
    if (is_index) open_indexed(&set);
    else add_file(&set, set.path);
    return set;
}

void weights_set_close(WeightsSet *set) {
    for (int i = 0; i < set->files; i++) weights_close(&set->file[i]);
    weights_index_free(&set->index);
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
            if (error) fail(EXIT_IO, "%s cannot be read: %s", w->path, io_error_text(error));
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

/* Writes the names that set the shape of a parameter to out, and returns out. They are config keys, such as
 * "model.vocab_size x model.n_embd", or the corresponding members of config.json. */
static char *sizes_text(const Param *p, WeightsSizes sizes, char out[200]) {
    char text[160];
    snprintf(text, sizeof text, p->dims == 2 ? "%s x %s" : "%s", dim_option((Dim)p->symbol[0]),
             dim_option((Dim)p->symbol[1]));
    if (sizes.config) hf_members_translate(sizes.arch, text, out, 200);
    else snprintf(out, 200, "%s", text);
    return out;
}

static void check_tensor(const WeightsFile *w, const SafeTensor *t, const Param *p, WeightsSizes sizes) {
    char expected[64], found[200], keys[200];
    int  same = t->dims == p->dims;
    for (int d = 0; same && d < p->dims; d++) same = t->dim[d] == (uint64_t)p->dim[d];
    expected_shape(expected, sizeof expected, p);
    safetensors_shape(found, sizeof found, t);
    if (!same && sizes.config)
        fail(EXIT_DATA,
             "%s: tensor %s has shape %s, expected %s by %s (%s): correct it there, or use the config.json of these "
             "weights",
             w->path, t->name, found, expected, sizes.config, sizes_text(p, sizes, keys));
    if (!same)
        fail(EXIT_DATA,
             "%s: tensor %s has shape %s, expected %s by %s: set model.* to the sizes of these weights, or name other "
             "weights",
             w->path, t->name, found, expected, sizes_text(p, sizes, keys));
    if (!weights_has_values(t))
        fail(EXIT_DATA,
             "%s: tensor %s has type %s, expected F64, F32, F16 or BF16: use the unquantized weights of the model",
             w->path, t->name, safetensors_type_name(t->type));
}

/* The plain name of a parameter (without the prefix of its model family), and its index in the layout. Arrays of these
 * are sorted by name. */
typedef struct { char plain[64]; int param; } RowName;

static int by_plain(const void *a, const void *b) {
    return strcmp(((const RowName *)a)->plain, ((const RowName *)b)->plain);
}

/* Returns the index in the layout of the parameter with this plain name (its name without the prefix of its model
 * family), or -1. */
static int find_row(const RowName *names, int count, const char *plain) {
    RowName key = {.param = -1};
    if (strlen(plain) >= sizeof key.plain) return -1;
    strcpy(key.plain, plain);
    const RowName *found = (const RowName *)bsearch(&key, names, (size_t)count, sizeof key, by_plain);
    return found ? found->param : -1;
}

WeightsTensor weights_set_find(const WeightsSet *set, const char *name) {
    for (int f = 0; f < set->files; f++) {
        const SafeTensor *t = safetensors_find(&set->file[f].header, name);
        if (t) return (WeightsTensor){&set->file[f], t};
    }
    return (WeightsTensor){NULL, NULL};
}

WeightsTensor weights_set_find_plain(const WeightsSet *set, const char *wanted) {
    char plain[HF_NAME_BYTES];
    for (int f = 0; f < set->files; f++)
        for (int i = 0; i < set->file[f].header.tensors; i++)
            if (strcmp(hf_plain_name(set->file[f].header.tensor[i].name, plain), wanted) == 0)
                return (WeightsTensor){&set->file[f], &set->file[f].header.tensor[i]};
    return (WeightsTensor){NULL, NULL};
}

/* Returns 1 + the index of the transformer block that a tensor belongs to, or 0 if it belongs to none. */
static int64_t block_of(const char *name) {
    char        plain[HF_NAME_BYTES];
    const char *number = hf_plain_name(name, plain);
    number += strncmp(number, "h.", 2) == 0 ? 2 : strncmp(number, "layers.", 7) == 0 ? 7 : 0;
    size_t digits = strspn(number, "0123456789");
    return number > plain && digits > 0 && digits < 10 && number[digits] == '.' ? atoll(number) + 1 : 0;
}

int64_t weights_set_blocks(const WeightsSet *set) {
    int64_t most = 0;
    for (int f = 0; f < set->files; f++)
        for (int i = 0; i < set->file[f].header.tensors; i++) {
            int64_t block = block_of(set->file[f].header.tensor[i].name);
            if (block > most) most = block;
        }
    return most;
}

WeightsTensor weights_set_head(const WeightsSet *set, const Layout *layout) {
    char          plain[HF_NAME_BYTES];
    WeightsTensor head = weights_set_find_plain(set, "lm_head.weight");
    for (int i = 0; i < layout->params && head.tensor; i++)
        if (hf_extra(hf_plain_name(layout->param[i].name, plain)) == HF_HEAD) head = (WeightsTensor){NULL, NULL};
    if (head.tensor && !weights_set_find_plain(set, hf_plain_name(layout->param[0].name, plain)).tensor)
        head = (WeightsTensor){NULL, NULL};
    return head;
}

/* Decides which of two tensors gives a parameter. If both have one name, in two files, the index names the file to use;
 * otherwise exit 65. Returns 1 if the second is used. */
static int second_counts(const WeightsSet *set, WeightsTensor first, WeightsTensor second) {
    int at = weights_index_find(&set->index, second.tensor->name),
        same = strcmp(first.tensor->name, second.tensor->name) == 0;
    const char *named = at >= 0 ? set->file[set->index.tensor[at].file].path : "";
    if (same && at >= 0 && strcmp(second.file->path, named) == 0) return 1;
    if (same && at >= 0 && strcmp(first.file->path, named) == 0) return 0;
    if (!same)
        fail(EXIT_DATA, "%s: tensor %s is there twice, also as %s: write the file again with one of the two",
             second.file->path, second.tensor->name, first.tensor->name);
    fail(EXIT_DATA, "%s: tensor %s is there twice, also in %s: remove the file that is not of this model",
         second.file->path, second.tensor->name, first.file->path);
}

/* Refuses a tensor that no parameter needs. It belongs to a block that the model does not have, or to another kind of
 * model. */
NORETURN static void refuse_extra(const WeightsSet *set, const WeightsFile *w, const SafeTensor *t, int64_t blocks,
                                  WeightsSizes sizes) {
    char    shape[200];
    int64_t stored = weights_set_blocks(set);
    Path    folder = path_of("%s", w->path);
    safetensors_shape(shape, sizeof shape, t);
    *(strrchr(folder.text, '/') ? strrchr(folder.text, '/') : folder.text) = 0;
    /* the library PEFT gives the tensors of a LoRA adapter such names */
    if (strstr(t->name, ".lora_A") || strstr(t->name, ".lora_B") || strstr(t->name, ".lora_embedding_") ||
        strstr(t->name, ".lora_magnitude_"))
        refuse_adapter(*folder.text ? folder.text : ".", t->name);
    if (stored > blocks)
        fail(EXIT_DATA,
             "%s: tensor %s of shape %s is not part of this model: the weights have %lld layers, but %s is %lld: set "
             "it to the number of layers of the weights",
             w->path, t->name, shape, (long long)stored,
             sizes.config ? hf_member_of(sizes.arch, "model.n_layer") : "model.n_layer", (long long)blocks);
    fail(EXIT_DATA, "%s: tensor %s of shape %s is not part of this model: correct the kind of the model in %s, or use "
         "other weights", w->path, t->name,
         shape, sizes.config ? sizes.config : "model.arch");
}

/* Warns, in one line, if the index of the weights lists other files than those that hold the tensors. */
static void warn_of_index(const WeightsSet *set, const WeightsTensor *tensor_of, int params) {
    const WeightsTensor *first = NULL;
    int                  wrong = 0;
    for (int p = 0; p < params; p++) {
        int at = weights_index_find(&set->index, tensor_of[p].tensor->name);
        if (at >= 0 && &set->file[set->index.tensor[at].file] == tensor_of[p].file) continue;
        if (!wrong++) first = &tensor_of[p];
    }
    if (wrong)
        warn("%s: %d tensor%s in other files than this index says, and read from there: %s is in %s", set->path, wrong,
             wrong == 1 ? " is" : "s are", first->tensor->name, first->file->path);
}

/* Returns the number of transformer blocks of a layout, counted by the names of its parameters. */
static int64_t blocks_of(const Layout *layout) {
    int64_t most = 0;
    for (int i = 0; i < layout->params; i++)
        if (block_of(layout->param[i].name) > most) most = block_of(layout->param[i].name);
    return most;
}

NORETURN static void refuse_absent(const WeightsSet *set, const Layout *layout, const Param *p, WeightsSizes sizes) {
    char    shape[200], plain[HF_NAME_BYTES];
    int64_t stored = weights_set_blocks(set), blocks = blocks_of(layout);
    expected_shape(shape, sizeof shape, p);
    if (hf_extra(hf_plain_name(p->name, plain)) == HF_HEAD)
        fail(EXIT_DATA,
             "%s: tensor %s is missing, expected with shape %s. If the head of this model is its embedding, set %s%s "
             "to true",
             set->path, p->name, shape, sizes.config ? "tie_word_embeddings in " : "model.tie_embeddings",
             sizes.config ? sizes.config : "");
    if (stored < blocks)
        fail(EXIT_DATA,
             "%s: tensor %s is missing, expected with shape %s: the weights have %lld layers, but %s%s%s is %lld",
             set->path, p->name, shape, (long long)stored,
             sizes.config ? hf_member_of(sizes.arch, "model.n_layer") : "model.n_layer", sizes.config ? " in " : "",
             sizes.config ? sizes.config : "", (long long)blocks);
    fail(EXIT_DATA, "%s: tensor %s is missing, expected with shape %s: the file is incomplete; copy or download it "
         "again",
         set->path, p->name, shape);
}

WeightsTensor *weights_set_match(const WeightsSet *set, const Layout *layout, WeightsSizes sizes) {
    RowName       *names = xcalloc((size_t)layout->params, sizeof *names, "the names of tensors");
    WeightsTensor *tensor_of = xcalloc((size_t)layout->params, sizeof *tensor_of, "a table of tensors");
    WeightsTensor  head = {NULL, NULL};
    int64_t        blocks = blocks_of(layout);
    char           plain[HF_NAME_BYTES];
    for (int p = 0; p < layout->params; p++) {
        snprintf(names[p].plain, sizeof names[p].plain, "%.63s", hf_plain_name(layout->param[p].name, plain));
        names[p].param = p;
    }
    qsort(names, (size_t)layout->params, sizeof *names, by_plain);
    for (int f = 0; f < set->files; f++)
        for (int i = 0; i < set->file[f].header.tensors; i++) {
            WeightsTensor t = {&set->file[f], &set->file[f].header.tensor[i]};
            HfExtra       kind = hf_extra(hf_plain_name(t.tensor->name, plain));
            int           p = find_row(names, layout->params, plain);
            if (kind == HF_HEAD && p < 0) {
                check_tensor(t.file, t.tensor, &layout->param[0], sizes); /* the embedding is the first parameter */
                if (!head.tensor || second_counts(set, head, t)) head = t;
                continue;
            }
            if (kind == HF_NOTHING) continue;
            if (p < 0) refuse_extra(set, t.file, t.tensor, blocks, sizes);
            if (tensor_of[p].tensor && !second_counts(set, tensor_of[p], t)) continue;
            check_tensor(t.file, t.tensor, &layout->param[p], sizes);
            tensor_of[p] = t;
        }
    if (!tensor_of[0].tensor) tensor_of[0] = head;
    for (int p = 0; p < layout->params; p++)
        if (!tensor_of[p].tensor) refuse_absent(set, layout, &layout->param[p], sizes);
    if (sizes.warns && set->index.tensors > 0) warn_of_index(set, tensor_of, layout->params);
    free(names);
    return tensor_of;
}

/* Returns 1 if a tensor holds nothing but zeros. For most tensors it reads only the first few values. */
static int is_zero(WeightsTensor t) {
    enum { FIRST = 256, MOST = 1 << 16 };
    float  *value = xmalloc(MOST * sizeof *value, "reading weights");
    int64_t elems = weights_elems(t.tensor), k = 0, n = 0;
    for (int64_t at = 0; k == n && at < elems; at += n) {
        n = at == 0 ? FIRST : MOST;
        if (n > elems - at) n = elems - at;
        weights_read(t.file, t.tensor, at, n, value);
        for (k = 0; k < n && value[k] == 0.0f; k++) {}
    }
    free(value);
    return k == n;
}

void weights_set_check_values(const WeightsSet *set, const Layout *layout, const WeightsTensor *tensor_of) {
    int zeros = 0, matrices = 0, first = layout->params;
    #pragma omp parallel for schedule(dynamic) reduction(+ : zeros, matrices) reduction(min : first)
    for (int p = 0; p < layout->params; p++) {
        if (layout->param[p].dims != 2) continue;
        matrices++;
        if (!is_zero(tensor_of[p])) continue;
        zeros++;
        if (p < first) first = p;
    }
    if (first == 0)
        fail(EXIT_DATA, "%s: tensor %s, the embedding, holds nothing but zeros: the file is damaged or incomplete; "
             "download it again",
             tensor_of[0].file->path, tensor_of[0].tensor->name);
    if (zeros)
        warn("%s: %d of %d matrices hold nothing but zeros, the first is %s in %s: the download may be incomplete; "
             "compare the files with their source",
             set->path, zeros, matrices, tensor_of[first].tensor->name, tensor_of[first].file->path);
    if (set->folder && has_file(set->folder, "adapter_config.json"))
        warn("%s/adapter_config.json: this adapter is not used: the weights beside it are read as they are",
             set->folder);
    /* Refuses the only file of a folder, which fits the model, if it is not called model.safetensors. Other programs
     * would not find it either. If the folder has numbered files, set->path is the folder. */
    const char *name = basename(set->path);
    if (!set->folder || set->index.tensors > 0 || !has_ending(name, ".safetensors")) return;
    if (strcmp(name, WEIGHTS_SINGLE) == 0 || strcmp(set->folder, set->path) == 0) return;
    fail(EXIT_DATA, "%s/" WEIGHTS_SINGLE " does not exist, and %s does: give it that name, mv %s %s", set->folder, name,
         shell_word(set->path).text, shell_word(path_of("%s/" WEIGHTS_SINGLE, set->folder).text).text);
}
