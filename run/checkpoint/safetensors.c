/* safetensors.c - parses and writes headers and index files of safetensors; see safetensors.h. Format:
 * github.com/huggingface/safetensors, README.md and safetensors/src/tensor.rs. */
#include "run/checkpoint/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"
#include "core/format.h"

/* Most structural characters ({ [ , and so on) in a header. A tensor needs about six. More than a million would cost
 * more memory than the JSON tree of any known model. */
enum { STRUCTURE_LIMIT = 1 << 20 };
/* Most values in an index file: three times the tensors of the largest models with experts. */
enum { INDEX_LIMIT = 1 << 17 };

static const struct { const char *name; size_t bytes; } type_table[SAFE_TYPES] = {
    [SAFE_F32] = {"F32", 4},         [SAFE_F16] = {"F16", 2},         [SAFE_BF16] = {"BF16", 2},
    [SAFE_F64] = {"F64", 8},         [SAFE_I64] = {"I64", 8},         [SAFE_U64] = {"U64", 8},
    [SAFE_I32] = {"I32", 4},         [SAFE_U32] = {"U32", 4},         [SAFE_I16] = {"I16", 2},
    [SAFE_U16] = {"U16", 2},         [SAFE_I8] = {"I8", 1},           [SAFE_U8] = {"U8", 1},
    [SAFE_BOOL] = {"BOOL", 1},       [SAFE_F8_E4M3] = {"F8_E4M3", 1}, [SAFE_F8_E5M2] = {"F8_E5M2", 1},
    [SAFE_F8_E8M0] = {"F8_E8M0", 1},
};

const char *safetensors_type_name(SafeType type) { return type_table[type].name; }
size_t      safetensors_type_bytes(SafeType type) { return type_table[type].bytes; }

#define fault_is(fault, ...) fault_text(fault, SAFETENSORS_FAULT_BYTES, 0, __VA_ARGS__)
#define DAMAGED ": the file is damaged; copy or download it again"

/* Returns an upper bound of the number of values in a JSON text. One of the counted characters comes before each
 * value. */
static size_t count_values(const char *text, size_t bytes) {
    size_t values = 0;
    for (size_t i = 0; i < bytes; i++) values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return values;
}

/* Reads a whole number from 0 to 2^53. The strict JSON pass has already refused numbers that a double cannot hold. */
static int whole(const cJSON *value, uint64_t *out) {
    if (!cJSON_IsNumber(value) || !(value->valuedouble >= 0) || value->valuedouble > 9007199254740992.0) return 0;
    *out = (uint64_t)value->valuedouble;
    return (double)*out == value->valuedouble;
}

static int read_shape(const cJSON *value, SafeTensor *t) {
    if (!cJSON_IsArray(value)) return 0;
    for (const cJSON *dim = value->child; dim; dim = dim->next) {
        if (t->dims == SAFETENSORS_DIMS || !whole(dim, &t->dim[t->dims])) return 0;
        t->dims++;
    }
    return 1;
}

static int read_tensor(const cJSON *entry, SafeTensor *t, char *fault) {
    t->name = entry->string;
    if (!cJSON_IsObject(entry))
        return fault_is(fault, "describes tensor \"%.100s\" by something that is no object" DAMAGED, t->name);
    for (const cJSON *member = entry->child; member; member = member->next)
        if (strcmp(member->string, "dtype") != 0 && strcmp(member->string, "shape") != 0 &&
            strcmp(member->string, "data_offsets") != 0)
            return fault_is(fault, "gives tensor \"%.100s\" the unknown member \"%.60s\", but only dtype, shape and "
                            "data_offsets are known: save the file again with the library safetensors",
                            t->name, member->string);
    const cJSON *type = json_member(entry, "dtype"), *offsets = json_member(entry, "data_offsets");
    const cJSON *begin = cJSON_IsArray(offsets) ? offsets->child : NULL, *end = begin ? begin->next : NULL;
    for (t->type = 0; t->type < SAFE_TYPES; t->type++)
        if (cJSON_IsString(type) && strcmp(type->valuestring, type_table[t->type].name) == 0) break;
    if (t->type == SAFE_TYPES)
        return fault_is(fault, "gives tensor \"%.100s\" no dtype that this program knows: save the file again as F32, "
                        "F16 or BF16", t->name);
    if (!read_shape(json_member(entry, "shape"), t))
        return fault_is(fault, "gives tensor \"%.100s\" no shape, which is a list of at most %d whole numbers" DAMAGED,
                        t->name, SAFETENSORS_DIMS);
    if (!end || end->next || !whole(begin, &t->begin) || !whole(end, &t->end) || t->begin > t->end)
        return fault_is(fault, "gives tensor \"%.100s\" no data_offsets [begin,end]" DAMAGED, t->name);
    uint64_t need = type_table[t->type].bytes;
    for (int i = 0; i < t->dims; i++)
        if (__builtin_mul_overflow(need, t->dim[i], &need))
            return fault_is(fault, "gives tensor \"%.100s\" a shape of 2^64 bytes or more" DAMAGED, t->name);
    if (need != t->end - t->begin)
        return fault_is(fault, "gives tensor \"%.100s\" %" PRIu64 " bytes where its shape needs %" PRIu64 DAMAGED,
                        t->name, t->end - t->begin, need);
    return 1;
}

static int by_place(const void *a, const void *b) {
    const SafeTensor *x = (const SafeTensor *)a, *y = (const SafeTensor *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static int read_tree(Safetensors *s, uint64_t data_bytes, char *fault) {
    int count = cJSON_GetArraySize(s->json.root);
    s->tensor = xcalloc((size_t)count + 1, sizeof *s->tensor, "the tensors of a header");
    for (const cJSON *entry = s->json.root->child; entry; entry = entry->next) {
        if (strcmp(entry->string, "__metadata__") != 0) {
            if (!read_tensor(entry, &s->tensor[s->tensors++], fault)) return 0;
            continue;
        }
        int is_good = cJSON_IsObject(entry);
        for (const cJSON *member = is_good ? entry->child : NULL; member; member = member->next)
            is_good = is_good && cJSON_IsString(member);
        if (!is_good)
            return fault_is(fault, "has a __metadata__ that is not an object of strings: save the file again with the "
                            "library safetensors");
    }
    /* every byte after the header must belong to exactly one tensor */
    uint64_t at = 0;
    qsort(s->tensor, (size_t)s->tensors, sizeof *s->tensor, by_place);
    for (int i = 0; i < s->tensors; i++) {
        const SafeTensor *t = &s->tensor[i];
        if (t->begin != at)
            return fault_is(fault, "has %s tensor \"%.100s\"" DAMAGED,
                            t->begin > at ? "a hole in the data before" : "an overlap of two tensors at the start of",
                            t->name);
        at = t->end;
    }
    if (at == data_bytes) return 1;
    return fault_is(fault, "holds %" PRIu64 " bytes of tensors where its header describes %" PRIu64 DAMAGED, data_bytes,
                    at);
}

#define SAVE_IT "only safetensors are read, so save the model by save_pretrained(FOLDER)"
/* First bytes of files that are often mistaken for safetensors, and what to tell the user. FILE stands for the path. */
static const struct { const char *start; size_t bytes; const char *what; } OTHER_FORMS[] = {
    {"version ", 8, "is a pointer of Git LFS, not the weights: `git lfs pull` in its folder fetches them"},
    {"\x1f\x8b", 2, "is packed by gzip: unpack it by gzip -dc < FILE > FILE.new && mv FILE.new FILE"},
    {"\x28\xb5\x2f\xfd", 4, "is packed by zstd: unpack it by zstd -dc < FILE > FILE.new && mv FILE.new FILE"},
    {"\xfd" "7zXZ", 5, "is packed by xz: unpack it by xz -dc < FILE > FILE.new && mv FILE.new FILE"},
    {"BZh", 3, "is packed by bzip2: unpack it by bzip2 -dc < FILE > FILE.new && mv FILE.new FILE"},
    {"GGUF", 4, "is a model of llama.cpp, and only safetensors are read: download the model's safetensors"},
    {"PK\3\4", 4, "is a zip archive, as PyTorch's .bin and .pt are: " SAVE_IT},
    {"\x80\2", 2, "is a Python pickle, as PyTorch's .bin and .pt are: " SAVE_IT},
    {"<!", 2, "is a web page: the download failed, download it again"},
    {"<html", 5, "is a web page: the download failed, download it again"},
};

static int parse_header(const uint8_t *data, size_t bytes, uint64_t file_bytes, Safetensors *s, char *fault) {
    if (bytes < 8 || file_bytes < 8) return fault_is(fault, "is too short to be a safetensors file" DAMAGED);
    uint64_t n = little_endian(data, 8);
    for (size_t i = 0; i < sizeof OTHER_FORMS / sizeof *OTHER_FORMS; i++)
        if ((bytes == 8 || data[8] != '{') && memcmp(data, OTHER_FORMS[i].start, OTHER_FORMS[i].bytes) == 0)
            return fault_is(fault, "%s", OTHER_FORMS[i].what);
    if (n > SAFETENSORS_HEADER_LIMIT)
        return fault_is(fault, "claims a header of %" PRIu64 " bytes, so the file is damaged, or is not a safetensors "
                        "file: name another file, or download it again", n);
    if (n > file_bytes - 8 || n > bytes - 8)
        return fault_is(fault, "ends inside its header of %" PRIu64 " bytes" DAMAGED, n);
    const char *text = (const char *)data + 8;
    if (n == 0 || text[0] != '{')
        return fault_is(fault, "has a header that does not start with '{', so the file is damaged, or is not a "
                        "safetensors file: name another file, or download it again");
    if (count_values(text, (size_t)n) > STRUCTURE_LIMIT)
        return fault_is(fault, "has a header of more than %d values, the most that is read: save the tensors as "
                        "several files", STRUCTURE_LIMIT);
    JsonFault wrong;
    if (!json_parse(text, (size_t)n, SAFETENSORS_HEADER_LIMIT, &s->json, &wrong))
        return fault_is(fault, "has a damaged header (line %d column %d: %s); copy or download the file again",
                        wrong.at.line, wrong.at.column, wrong.text);
    s->data_offset = 8 + n;
    return read_tree(s, file_bytes - s->data_offset, fault);
}

int safetensors_parse(const uint8_t *data, size_t bytes, uint64_t file_bytes, Safetensors *out, char *fault) {
    memset(out, 0, sizeof *out);
    if (parse_header(data, bytes, file_bytes, out, fault)) return 1;
    safetensors_free(out);
    return 0;
}

void safetensors_free(Safetensors *s) {
    free(s->tensor);
    if (s->json.root) json_free(&s->json);
    memset(s, 0, sizeof *s);
}

const SafeTensor *safetensors_find(const Safetensors *s, const char *name) {
    for (int i = 0; i < s->tensors; i++)
        if (strcmp(s->tensor[i].name, name) == 0) return &s->tensor[i];
    return NULL;
}

void safetensors_shape(char *out, size_t capacity, const SafeTensor *t) {
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < t->dims && at < capacity; i++)
        at += (size_t)snprintf(out + at, capacity - at, "%c%" PRIu64, i ? ',' : '[', t->dim[i]);
    if (at < capacity) snprintf(out + at, capacity - at, t->dims ? "]" : "[]");
}

char *safetensors_header(SafeTensor *tensor, int tensors, size_t *bytes) {
    char    *text = NULL, shape[200], name[400];
    FILE    *out = memory_file_open(&text, bytes);
    uint64_t at = 0;
    fprintf(out, "........{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < tensors; i++) {
        SafeTensor *t = &tensor[i];
        uint64_t    need = type_table[t->type].bytes;
        for (int d = 0; d < t->dims; d++) need *= t->dim[d];
        t->begin = at, t->end = at += need;
        safetensors_shape(shape, sizeof shape, t);
        json_quote(name, sizeof name, t->name);
        fprintf(out, ",%s:{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", name,
                type_table[t->type].name, shape, t->begin, t->end);
    }
    fputc('}', out);
    fprintf(out, "%*s", (int)(-*bytes & 7), "");
    fclose(out);
    little_endian_put(text, (uint64_t)(*bytes - 8), 8);
    return text;
}

/* --- the index ---------------------------------------------------------------------------------------------------- */

/* Returns 1 if name is visible ASCII, names a .safetensors file, and has no folder. */
static int is_file_name(const char *name) {
    for (const char *c = name; *c; c++)
        if (*c <= ' ' || *c > '~' || *c == '/' || *c == '\\') return 0;
    return has_ending(name, ".safetensors") && strlen(name) > strlen(".safetensors");
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const IndexedTensor *)a)->name, ((const IndexedTensor *)b)->name);
}

static int parse_index(const char *text, size_t bytes, WeightsIndex *index, char *fault) {
    JsonFault wrong;
    if (count_values(text, bytes) > INDEX_LIMIT)
        return fault_is(fault, "has more than %d values, the most that an index of weights may have: download the "
                        "file again", INDEX_LIMIT);
    if (!json_parse(text, bytes, WEIGHTS_INDEX_LIMIT, &index->json, &wrong))
        return fault_is(fault, "is damaged (line %d column %d: %s); copy or download the file again", wrong.at.line,
                        wrong.at.column, wrong.text);
    const cJSON *map = json_member(index->json.root, "weight_map");
    size_t       count = 0, listed = 0, files = 0;
    if (!cJSON_IsObject(map))
        return fault_is(fault, "has no weight_map, so this file is not an index of weights: download it again");
    for (const cJSON *entry = map->child; entry; entry = entry->next, count++)
        if (!cJSON_IsString(entry) || !is_file_name(entry->valuestring))
            return fault_is(fault, "names for tensor \"%.100s\" no .safetensors file in the same folder: correct the "
                            "name there, or download the file again", entry->string);
    if (count == 0) return fault_is(fault, "has an empty weight_map: download the file again");
    index->tensor = xmalloc(count * sizeof *index->tensor, "an index of tensors");
    index->file = xmalloc(count * sizeof *index->file, "an index of tensors");
    for (const cJSON *entry = map->child; entry; entry = entry->next) index->file[listed++] = entry->valuestring;
    qsort(index->file, count, sizeof *index->file, ascending_texts);
    for (size_t i = 0; i < count; i++) /* each name once */
        if (i == 0 || strcmp(index->file[i], index->file[files - 1]) != 0) index->file[files++] = index->file[i];
    index->files = (int)files;
    for (const cJSON *entry = map->child; entry; entry = entry->next) {
        const char *const *at = bsearch(&entry->valuestring, index->file, files, sizeof *index->file, ascending_texts);
        index->tensor[index->tensors++] = (IndexedTensor){entry->string, (int)(at - index->file)};
    }
    qsort(index->tensor, count, sizeof *index->tensor, by_name);
    return 1;
}

int weights_index_parse(const char *text, size_t bytes, WeightsIndex *out, char *fault) {
    memset(out, 0, sizeof *out);
    if (parse_index(text, bytes, out, fault)) return 1;
    weights_index_free(out);
    return 0;
}

void weights_index_free(WeightsIndex *index) {
    free(index->tensor);
    free(index->file);
    if (index->json.root) json_free(&index->json);
    memset(index, 0, sizeof *index);
}

int weights_index_find(const WeightsIndex *index, const char *name) {
    IndexedTensor        key = {name, 0};
    const IndexedTensor *at = NULL; /* bsearch must not get the NULL list of an index without tensors */
    if (index->tensors > 0) at = bsearch(&key, index->tensor, (size_t)index->tensors, sizeof key, by_name);
    return at ? (int)(at - index->tensor) : -1;
}

char *weights_index_text(const IndexedTensor *tensor, int tensors, const char *const *file, uint64_t total_bytes) {
    char  *text = NULL, name[400];
    size_t bytes;
    FILE  *out = memory_file_open(&text, &bytes);
    fprintf(out, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {\n", total_bytes);
    for (int i = 0; i < tensors; i++) {
        json_quote(name, sizeof name, tensor[i].name);
        fprintf(out, "    %s: \"%s\"%s\n", name, file[tensor[i].file], i + 1 < tensors ? "," : "");
    }
    fprintf(out, "  }\n}\n");
    fclose(out);
    return text;
}
