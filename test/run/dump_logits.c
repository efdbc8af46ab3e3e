/* dump_logits.c - the logits of a checkpoint folder for given tokens, in fp32, for comparison with other readers of the
 * same files:
 *
 *   dump_logits FOLDER TOKEN...     prints a line for each token: vocab_size numbers
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/io.h"
#include "core/json.h"
#include "model/hf.h"
#include "model/model.h"
#include "run/checkpoint/checkpoint.h"

static ModelShape read_shape(const char *folder) {
    char     *path, *text;
    Json      json;
    JsonFault fault;
    CHECK(asprintf(&path, "%s/config.json", folder) > 0, "no memory");
    int64_t bytes = io_read_file(path, JSON_LIMIT, &text);
    if (bytes < 0) fail(EXIT_DATA, "%s: %s", path, strerror((int)-bytes));
    if (!json_parse(text, (size_t)bytes, JSON_LIMIT, &json, &fault)) fail(EXIT_DATA, "%s: %s", path, fault.text);
    ModelShape shape = hf_config_shape(json.root, path);
    json_free(&json);
    free(text);
    free(path);
    return shape;
}

int main(int argc, char **argv) {
    if (argc < 3) fail(EXIT_CONFIG, "dump_logits FOLDER TOKEN...");
    int64_t  T = argc - 2;
    ModelShape shape = read_shape(argv[1]);
    device_open(0, omp_get_num_procs());
    Model *m = model_create((ModelSpec){.shards = {.shape = shape, .ranks = 1, .act = F32, .use = GPT_INFERENCE}, .B = 1, .T = T});
    checkpoint_read_weights(argv[1], &m->shards->layout, m->shards->params, &m->stream, 0);

    int32_t *tokens = malloc(sizeof *tokens * (size_t)T);
    float   *logits = malloc(sizeof *logits * (size_t)shape.vocab_size);
    CHECK(tokens && logits, "no memory");
    for (int64_t t = 0; t < T; t++) tokens[t] = atoi(argv[2 + t]);
    Arena  arena = arena_create("tokens", (size_t)T * sizeof *tokens);
    Tensor inputs = arena_tensor(&arena, I32, 2, 1, T, 1);
    device_from_host(&m->stream, inputs, tokens);
    Batch batch = {inputs, inputs, tensor_none()};
    gpt_forward(&m->gpt, &m->stream, batch);
    for (int64_t t = 0; t < T; t++) {
        gpt_logits(&m->gpt, &m->stream, batch, t, logits);
        for (int64_t v = 0; v < shape.vocab_size; v++) printf("%.9g%c", logits[v], v == shape.vocab_size - 1 ? '\n' : ' ');
    }
    arena_destroy(&arena);
    free(tokens);
    free(logits);
    model_destroy(m);
    return fflush(stdout) == 0 ? 0 : EXIT_IO;
}
