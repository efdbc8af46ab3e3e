/* algorithms_file.c - reads, writes and completes the table of matrix-product algorithms of a run (gemm.json); see
 * algorithms_file.h. */
#include "run/checkpoint/algorithms_file.h"

#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"
#include "core/rng.h"
#include "core/error.h"
#include "layers/algorithms.h"

/* --- the table as JSON -------------------------------------------------------------------------------------------- */

enum { NUMBERS = 1 + ALGORITHM_WORDS };

/* Properties of the machine that a table of matrix-product algorithms depends on. key: member of the JSON. what: words
 * for messages. here: returns the value on this machine. */
static const struct { const char *key, *what, *(*here)(void); } MAKERS[] = {
    {"gpu", "GPU", device_name}, {"isa", "compute capability", device_isa}, {"library", "library", matmul_library}};
enum { MAKER_COUNT = sizeof MAKERS / sizeof *MAKERS };

cJSON *algorithms_to_json(void) {
    cJSON *table = cJSON_CreateObject();
    for (int i = 0; i < MAKER_COUNT; i++) cJSON_AddStringToObject(table, MAKERS[i].key, MAKERS[i].here());
    cJSON *list = cJSON_AddArrayToObject(table, "products");
    for (int i = 0; i < matmul_algorithms.count; i++) {
        MatmulAlgorithm a = matmul_algorithms.record[i];
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

int algorithms_from_json(const cJSON *json, const char *where) {
    const cJSON *list = json_member(json, "products"), *record;
    MatmulAlgorithm a;
    if (!cJSON_IsArray(list)) return refuse_table(where);
    /* a table from another GPU or library is not used, because its algorithms may run slowly here */
    for (int i = 0; i < MAKER_COUNT; i++) {
        const cJSON *there = json_member(json, MAKERS[i].key);
        if (!cJSON_IsString(there)) return refuse_table(where);
        if (strcmp(there->valuestring, MAKERS[i].here()) == 0) continue;
        warn("%s: the algorithms of its matrix products were chosen on %s %s, and this is %s: they are chosen anew, "
             "and the bits of this run differ from there on",
             where, MAKERS[i].what, there->valuestring, MAKERS[i].here());
        return 0;
    }
    cJSON_ArrayForEach(record, list)
        if (!read_record(record, &a)) return refuse_table(where);
    matmul_algorithms_clear();
    cJSON_ArrayForEach(record, list) {
        read_record(record, &a);
        matmul_algorithms_set(a);
    }
    return 1;
}

/* --- all ranks ---------------------------------------------------------------------------------------------------- */

/* Sends the table of matrix-product algorithms of rank 0 to all ranks. */
static void share(Comm *comm) {
    int64_t count = matmul_algorithms.count;
    comm_broadcast(comm, &count, sizeof count, 0);
    if (comm_rank(comm) != 0) matmul_algorithms_clear();
    for (int i = 0; i < count; i++) {
        MatmulAlgorithm a;
        memset(&a, 0, sizeof a);
        if (comm_rank(comm) == 0) a = matmul_algorithms.record[i];
        comm_broadcast(comm, &a, sizeof a, 0);
        if (comm_rank(comm) != 0) matmul_algorithms_set(a);
    }
}

/* Lets all ranks wait for each other after each phase of the timing. Otherwise the watchdog of a waiting rank would
 * report a hang. */
static void go_on(Comm *comm) {
    comm_barrier(comm);
    world_moved(comm_world(comm));
}

/* Fills `tokens` with random tokens of the whole vocabulary. Zeros, or a single token, would use less power than
 * training, so the GPU would run at another clock. */
static void fill_with_tokens(Tensor tokens, Stream *s, int64_t vocabulary, uint64_t seed) {
    int64_t  n = tensor_elems(tokens);
    int32_t *ids = xmalloc((size_t)n * sizeof *ids, "tokens to time a model with");
    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)((double)vocabulary * rng_uniform(seed, RNG_TIMING, (uint64_t)i));
    device_from_host(s, tokens, ids);
    device_sync(s);
    free(ids);
}

/* Fills x with random numbers from -scale to scale. They replace values that another pipeline stage would send. */
static void fill_with_numbers(Tensor x, Stream *s, double scale, uint64_t seed) {
    int64_t n = tensor_elems(x);
    Tensor  host = x;
    host.data = xmalloc((size_t)n * dtype_bytes(x.type), "numbers to time a model with");
    for (int64_t i = 0; i < n; i++)
        tensor_set(host, i, (float)(scale * (2.0 * rng_uniform(seed, RNG_TIMING, (uint64_t)i) - 1.0)));
    device_from_host(s, x, host.data);
    device_sync(s);
    free(host.data);
}

/* Times the matrix products of a training step. The backward pass of the first micro-batch writes gradients, and those
 * of the others add to them. So a second backward pass is timed, too. */
static void time_products(Comm *comm, int times, Gpt *g, Stream *s, Batch batch, int64_t micro_batches) {
    enum { TOKENS = 1, TARGETS, ACTIVATIONS, GRADIENTS };
    if (times) {
        fill_with_tokens(batch.inputs, s, g->shape.vocab_size, TOKENS);
        fill_with_tokens(batch.targets, s, g->shape.vocab_size, TARGETS);
        if (!tensor_is_none(g->forward_in)) fill_with_numbers(g->forward_in, s, 1.0, ACTIVATIONS);
        if (!tensor_is_none(g->backward_in)) fill_with_numbers(g->backward_in, s, 1e-3, GRADIENTS);
        gpt_set_offline(g, 1);
        for (int part = 0; part < g->parts; part++) {
            gpt_take_forward(g, s, part, 0, batch);
            gpt_part_forward(g, s, part, 0, batch);
        }
        device_sync(s);
    }
    for (int64_t i = 0; i < 2 && i < micro_batches; i++) {
        go_on(comm);
        for (int part = times ? g->parts : 0; part-- > 0;) {
            if (!g->part[part].classifies) gpt_take_backward(g, s, batch);
            gpt_part_backward(g, s, part, 0, batch, 1.0f, MICRO_EARLIER);
        }
        if (times) device_sync(s);
    }
    if (times) gpt_set_offline(g, 0);
    go_on(comm);
}

void algorithms_settle(const char *dir, Comm *comm, int times, Gpt *g, Stream *s, Batch batch, int64_t micro_batches) {
    char            fault[JSON_FILE_FAULT_CHARS];
    Json            json;
    MatmulAlgorithm a;
    size_t          bytes;
    int             stored = 0, known = 0;
    if (device_is_host()) return;
    Path path = path_of("%s/" ALGORITHMS_NAME, dir);
    if (comm_rank(comm) == 0) { /* a file without a table, or with that of another machine, is replaced below */
        int exit_code = json_read_file(path.text, JSON_LIMIT, 0, &json, fault);
        if (exit_code > 0) warn("%s; the program measures again which algorithms of matrix products are fast", fault);
        stored = exit_code == 0 && algorithms_from_json(json.root, path.text);
        if (exit_code == 0) json_free(&json);
        known = matmul_algorithms.count;
    }
    share(comm);
    time_products(comm, times, g, s, batch, micro_batches);
    /* rank 0 adds the algorithms that other ranks have chosen, in the order of ranks */
    char *all = comm_gather_bytes(comm, matmul_algorithms.record, sizeof a * (size_t)matmul_algorithms.count, &bytes);
    for (size_t at = 0; at < bytes; at += sizeof a) {
        memcpy(&a, all + at, sizeof a);
        if (matmul_algorithms_find(a.key) < 0) matmul_algorithms_set(a);
    }
    free(all);
    if (comm_rank(comm) == 0 && (!stored || matmul_algorithms.count != known)) {
        cJSON *table = algorithms_to_json();
        char  *text = cJSON_Print(table);
        int    error = io_replace_file(path.text, text, strlen(text));
        if (error) fail(EXIT_IO, "%s: cannot write: %s", path.text, strerror(-error));
        free(text);
        cJSON_Delete(table);
    }
    share(comm);
    matmul_algorithms.frozen = 1;
}
