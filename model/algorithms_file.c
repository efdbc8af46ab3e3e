/* algorithms_file.c - see algorithms_file.h. */
#include "model/algorithms_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"
#include "core/rng.h"
#include "layers/algorithms.h"

/* --- the table as JSON -------------------------------------------------------------------------------------------- */

enum { NUMBERS = 1 + ALGORITHM_WORDS };

/* The GPU, capability and library that the records were chosen on. */
enum { MAKERS = 3 };
typedef struct { const char *key, *what, *here; } Maker;

static void makers(Maker out[MAKERS]) {
    out[0] = (Maker){"gpu", "GPU", device_name()};
    out[1] = (Maker){"isa", "compute capability", device_isa()};
    out[2] = (Maker){"library", "library", matmul_library()};
}

cJSON *algorithms_to_json(void) {
    Maker  made[MAKERS];
    cJSON *table = cJSON_CreateObject();
    makers(made);
    for (int i = 0; i < MAKERS; i++) cJSON_AddStringToObject(table, made[i].key, made[i].here);
    cJSON *list = cJSON_AddArrayToObject(table, "products");
    for (int i = 0; i < matmul_algorithms_count(); i++) {
        MatmulAlgorithm a = matmul_algorithms_get(i);
        double          values[NUMBERS] = {a.id};
        for (int k = 0; k < ALGORITHM_WORDS; k++) values[1 + k] = a.state[k];
        cJSON *record = cJSON_CreateObject();
        cJSON_AddItemToArray(list, record);
        cJSON_AddStringToObject(record, "product", a.key);
        cJSON_AddItemToObject(record, "algorithm", cJSON_CreateDoubleArray(values, NUMBERS));
    }
    return table;
}

static int read_record(const cJSON *record, MatmulAlgorithm *a) {
    const cJSON *product = json_member(record, "product"), *values = json_member(record, "algorithm");
    memset(a, 0, sizeof *a);
    if (!cJSON_IsString(product) || strlen(product->valuestring) >= sizeof a->key) return 0;
    if (!cJSON_IsArray(values) || cJSON_GetArraySize(values) != NUMBERS) return 0;
    strcpy(a->key, product->valuestring);
    const cJSON *value = values->child;
    for (int k = 0; k < NUMBERS; k++, value = value->next) {
        if (!cJSON_IsNumber(value) ||
            !(value->valuedouble >= (k ? 0 : ALGORITHM_OWN) && value->valuedouble <= (k ? UINT32_MAX : INT32_MAX)))
            return 0;
        if (k) a->state[k - 1] = (uint32_t)value->valuedouble;
        else   a->id = (int32_t)value->valuedouble;
    }
    return 1;
}

static int refuse_table(const char *where) {
    return warn("%s holds no table of algorithms for matrix products: they are chosen anew", where), 0;
}

/* Another machine's table may name algorithms for the same sizes that run here, but are slow. */
static int is_from_here(const cJSON *json, const char *where) {
    Maker made[MAKERS];
    makers(made);
    for (int i = 0; i < MAKERS; i++) {
        const cJSON *there = json_member(json, made[i].key);
        if (!cJSON_IsString(there)) return refuse_table(where);
        if (strcmp(there->valuestring, made[i].here) == 0) continue;
        warn("%s: the algorithms of its matrix products were chosen on %s %s, and this is %s: they are chosen anew, and the bits of this run differ "
             "from there on",
             where, made[i].what, there->valuestring, made[i].here);
        return 0;
    }
    return 1;
}

int algorithms_from_json(const cJSON *json, const char *where) {
    const cJSON *list = json_member(json, "products"), *record;
    MatmulAlgorithm a;
    if (!cJSON_IsArray(list)) return refuse_table(where);
    if (!is_from_here(json, where)) return 0;
    cJSON_ArrayForEach(record, list)
        if (!read_record(record, &a)) return refuse_table(where);
    matmul_algorithms_clear();
    cJSON_ArrayForEach(record, list) {
        read_record(record, &a);
        matmul_algorithms_set(a);
    }
    return 1;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Returns 1 if the table is now the file's. Warns of a file without a table, or with another machine's: it is
 * replaced. */
static int read_file(const char *path) {
    char     *text = NULL;
    Json      json;
    JsonFault fault;
    int64_t   bytes = io_read_file(path, JSON_LIMIT, &text);
    int       taken = 0;
    if (bytes < 0) return 0; /* none yet */
    if (!json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault)) {
        warn("%s:%d:%d: %s; the algorithms of matrix products are chosen anew", path, fault.at.line, fault.at.column, fault.text);
    } else {
        taken = algorithms_from_json(json.root, path);
        json_free(&json);
    }
    free(text);
    return taken;
}

static void write_file(const char *path) {
    cJSON *table = algorithms_to_json();
    char  *text = cJSON_Print(table);
    int    error = text ? io_replace_file(path, text, strlen(text)) : 0;
    if (error) fail(EXIT_IO, "%s: cannot write: %s", path, strerror(-error));
    cJSON_free(text);
    cJSON_Delete(table);
}

/* --- all ranks ---------------------------------------------------------------------------------------------------- */

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

/* Rank 0 broadcasts after each part of its timing, so that no watchdog of the ranks that wait takes it for a hang. */
static void go_on(Comm *comm, int64_t goes_on) { comm_broadcast(comm, &goes_on, sizeof goes_on, 0); }
static void await_end(Comm *comm) {
    for (int64_t goes_on = 1; goes_on; world_moved(comm_world(comm))) comm_broadcast(comm, &goes_on, sizeof goes_on, 0);
}

/* Tokens of all the vocabulary: zeros, or one token alone, would take less power than training does, and so another
 * clock. */
static void fill_with_tokens(Tensor tokens, Stream *s, int64_t vocabulary, uint64_t seed) {
    int64_t  n = tensor_elems(tokens);
    int32_t *ids = (int32_t *)malloc((size_t)n * sizeof *ids);
    if (!ids) fail(EXIT_MEMORY, "no memory for %lld tokens", (long long)n);
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)((double)vocabulary * rng_uniform(seed, RNG_TIMING, (uint64_t)i));
    device_from_host(s, tokens, ids);
    device_sync(s);
    free(ids);
}

/* A step's first micro-batch sets gradients that others add to. */
static void time_products(Comm *comm, Gpt *g, Stream *s, Batch batch, int64_t micro_batches) {
    fill_with_tokens(batch.inputs, s, g->shape.vocab_size, 1);
    fill_with_tokens(batch.targets, s, g->shape.vocab_size, 2);
    gpt_set_offline(g, 1);
    for (int part = 0; part < g->parts; part++) gpt_part_forward(g, s, part, 0, batch);
    device_sync(s);
    for (int64_t i = 0; i < 2 && i < micro_batches; i++) {
        go_on(comm, 1);
        for (int part = g->parts; part-- > 0;) gpt_part_backward(g, s, part, 0, batch, 1.0f, MICRO_EARLIER);
        device_sync(s);
    }
    gpt_set_offline(g, 0);
    go_on(comm, 0);
}

void algorithms_settle(const char *dir, Comm *comm, Gpt *g, Stream *s, Batch batch, int64_t micro_batches) {
    if (device_is_host()) return;
    if (comm_rank(comm) == 0) {
        char path[4200];
        snprintf(path, sizeof path, "%s/" ALGORITHMS_NAME, dir);
        int stored = read_file(path), known = matmul_algorithms_count();
        time_products(comm, g, s, batch, micro_batches);
        if (!stored || matmul_algorithms_count() != known) write_file(path);
    } else await_end(comm);
    share(comm);
    matmul_algorithms_freeze();
}
