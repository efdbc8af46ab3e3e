/* gemm.c - see gemm.h. */
#include "run/gemm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"
#include "layers/algorithms.h"

/* --- the table as JSON: {"product": key, "algorithm": [id, tile, stages, splitk, reduction, swizzle, custom, inner_shape, cluster]} --------------- */

enum { FIELDS = 9 };

static void fields_of(MatmulAlgorithm *a, int32_t *field[FIELDS]) {
    int32_t *all[FIELDS] = {&a->id, &a->tile, &a->stages, &a->splitk, &a->reduction, &a->swizzle, &a->custom, &a->inner_shape, &a->cluster};
    memcpy(field, all, sizeof all);
}

cJSON *gemm_to_json(void) {
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < matmul_algorithms_count(); i++) {
        MatmulAlgorithm a = matmul_algorithms_get(i);
        int32_t        *field[FIELDS], values[FIELDS];
        fields_of(&a, field);
        for (int k = 0; k < FIELDS; k++) values[k] = *field[k];
        cJSON *record = cJSON_CreateObject();
        cJSON_AddItemToArray(list, record);
        cJSON_AddStringToObject(record, "product", a.key);
        cJSON_AddItemToObject(record, "algorithm", cJSON_CreateIntArray(values, FIELDS));
    }
    return list;
}

static int read_record(const cJSON *record, MatmulAlgorithm *a) {
    const cJSON *product = json_member(record, "product"), *values = json_member(record, "algorithm");
    int32_t     *field[FIELDS];
    memset(a, 0, sizeof *a);
    fields_of(a, field);
    if (!cJSON_IsString(product) || strlen(product->valuestring) >= sizeof a->key) return 0;
    if (!cJSON_IsArray(values) || cJSON_GetArraySize(values) != FIELDS) return 0;
    strcpy(a->key, product->valuestring);
    const cJSON *value = values->child;
    for (int k = 0; k < FIELDS; k++, value = value->next) {
        if (!cJSON_IsNumber(value) || !(value->valuedouble >= ALGORITHM_NONE && value->valuedouble <= 1e9)) return 0;
        *field[k] = (int32_t)value->valuedouble;
    }
    return 1;
}

int gemm_from_json(const cJSON *list) {
    matmul_algorithms_clear();
    if (list && !cJSON_IsArray(list)) return 0;
    const cJSON *record;
    cJSON_ArrayForEach(record, list) {
        MatmulAlgorithm a;
        if (!read_record(record, &a)) {
            matmul_algorithms_clear();
            return 0;
        }
        matmul_algorithms_set(a);
    }
    return 1;
}

/* --- the file ---------------------------------------------------------------------------------------------------------------------------- */

/* A file that is there, but is no table, is told of and replaced. */
static void read_file(const char *path) {
    char     *text = NULL;
    Json      json;
    JsonFault fault;
    int64_t   bytes = io_read_file(path, JSON_LIMIT, &text);
    if (bytes < 0) return; /* none yet */
    if (!json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault)) {
        warn("%s:%d:%d: %s; the algorithms of matrix products are chosen anew", path, fault.at.line, fault.at.column, fault.text);
    } else {
        if (!gemm_from_json(json.root)) warn("%s is no table of algorithms: they are chosen anew", path);
        json_free(&json);
    }
    free(text);
}

static void write_file(const char *path) {
    cJSON *list = gemm_to_json();
    char  *text = cJSON_Print(list);
    int    error = text ? io_replace_file(path, text, strlen(text)) : 0;
    if (error) fail(EXIT_IO, "%s: cannot write: %s", path, strerror(-error));
    cJSON_free(text);
    cJSON_Delete(list);
}

/* --- all ranks ---------------------------------------------------------------------------------------------------------------------------- */

static void share(Comm *comm) {
    int64_t count = matmul_algorithms_count();
    comm_broadcast(comm, &count, sizeof count, 0);
    if (comm_rank(comm) != 0) matmul_algorithms_clear();
    for (int i = 0; i < count; i++) {
        MatmulAlgorithm a;
        memset(&a, 0, sizeof a);
        if (comm_rank(comm) == 0) a = matmul_algorithms_get(i);
        comm_broadcast(comm, &a, sizeof a, 0);
        if (comm_rank(comm) != 0) matmul_algorithms_set(a);
    }
}

void gemm_settle(const char *dir, Comm *comm, Gpt *g, Stream *s, Batch batch) {
    if (device_is_host()) return;
    char path[4200];
    snprintf(path, sizeof path, "%s/" GEMM_NAME, dir);
    if (comm_rank(comm) == 0) {
        GptHooks none = {NULL, NULL, NULL};
        read_file(path);
        int known = matmul_algorithms_count();
        gpt_forward(g, s, batch);
        gpt_backward(g, s, batch, 0.0f, none);
        device_sync(s);
        if (matmul_algorithms_count() != known || known == 0) write_file(path);
    }
    share(comm);
    matmul_algorithms_freeze();
}
