/* weights_index.c - see weights_index.h. */
#include "run/checkpoint/weights_index.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "core/io.h"

enum { TENSOR_LIMIT = 1 << 17 }; /* most tensors: three times those of the largest models with experts */

PRINTF_LIKE(2, 3) static int fault_is(char *fault, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    vsnprintf(fault, WEIGHTS_INDEX_FAULT_BYTES, fmt, args);
    va_end(args);
    return 0;
}

/* Returns 1 if name is visible ASCII, names a .safetensors file, and has no folder. */
static int is_file_name(const char *name) {
    static const char end[] = ".safetensors";
    size_t bytes = strlen(name), tail = sizeof end - 1;
    for (const char *c = name; *c; c++)
        if (*c <= ' ' || *c > '~' || *c == '/' || *c == '\\') return 0;
    return bytes > tail && strcmp(name + bytes - tail, end) == 0;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static int by_name(const void *a, const void *b) {
    return strcmp(((const IndexedTensor *)a)->name, ((const IndexedTensor *)b)->name);
}

/* Lists the names of the files in index->file, each once. */
static void list_files(WeightsIndex *index, const cJSON *map) {
    int count = 0;
    for (const cJSON *entry = map->child; entry; entry = entry->next) index->file[count++] = entry->valuestring;
    qsort(index->file, (size_t)count, sizeof *index->file, by_text);
    for (int i = 0; i < count; i++) {
        if (i > 0 && strcmp(index->file[i], index->file[index->files - 1]) == 0) continue;
        index->file[index->files++] = index->file[i];
    }
}

static void list_tensors(WeightsIndex *index, const cJSON *map) {
    for (const cJSON *entry = map->child; entry; entry = entry->next) {
        const char *const *at = (const char *const *)bsearch(&entry->valuestring, index->file, (size_t)index->files,
                                                             sizeof *index->file, by_text);
        index->tensor[index->tensors++] = (IndexedTensor){entry->string, (int)(at - index->file)};
    }
    qsort(index->tensor, (size_t)index->tensors, sizeof *index->tensor, by_name);
}

static int read_map(WeightsIndex *index, const cJSON *map, char *fault) {
    size_t count = 0;
    if (!cJSON_IsObject(map)) return fault_is(fault, "has no weight_map");
    for (const cJSON *entry = map->child; entry; entry = entry->next, count++)
        if (!cJSON_IsString(entry) || !is_file_name(entry->valuestring))
            return fault_is(fault, "says of tensor \"%.100s\" no name of a .safetensors file beside it", entry->string);
    if (count == 0) return fault_is(fault, "has an empty weight_map");
    index->tensor = xmalloc(count * sizeof *index->tensor, "an index of tensors");
    index->file = xmalloc(count * sizeof *index->file, "an index of tensors");
    list_files(index, map);
    list_tensors(index, map);
    return 1;
}

static int parse(const char *text, size_t bytes, WeightsIndex *index, char *fault) {
    JsonFault wrong;
    size_t    values = 0;
    for (size_t i = 0; i < bytes; i++) values += text[i] == ',' || text[i] == '[' || text[i] == '{';
    if (values > TENSOR_LIMIT) return fault_is(fault, "has more than %d values", TENSOR_LIMIT);
    if (!json_parse(text, bytes, WEIGHTS_INDEX_LIMIT, &index->json, &wrong))
        return fault_is(fault, "is broken, line %d column %d: %s", wrong.at.line, wrong.at.column, wrong.text);
    return read_map(index, json_member(index->json.root, "weight_map"), fault);
}

int weights_index_parse(const char *text, size_t bytes, WeightsIndex *out, char *fault) {
    memset(out, 0, sizeof *out);
    if (parse(text, bytes, out, fault)) return 1;
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
    const IndexedTensor *at = NULL; /* without tensors there is no list, which bsearch would need */
    if (index->tensors > 0) at = bsearch(&key, index->tensor, (size_t)index->tensors, sizeof key, by_name);
    return at ? (int)(at - index->tensor) : -1;
}

char *weights_index_text(const IndexedTensor *tensor, int tensors, const char *const *file, uint64_t total_bytes) {
    char  *text = NULL, name[400];
    size_t bytes;
    FILE  *out = memory_file_open(&text, &bytes);
    if (!out) fail(EXIT_MEMORY, "no memory for an index of %d tensors", tensors);
    fprintf(out, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {\n", total_bytes);
    for (int i = 0; i < tensors; i++) {
        json_quote(name, sizeof name, tensor[i].name);
        fprintf(out, "    %s: \"%s\"%s\n", name, file[tensor[i].file], i + 1 < tensors ? "," : "");
    }
    fprintf(out, "  }\n}\n");
    if (fclose(out) != 0) fail(EXIT_MEMORY, "no memory for an index of %d tensors", tensors);
    return text;
}
