/* test_weights_set.c - weights in several files with an index: values, refusals, and the places where the files are
 * searched. */
#include "test/run/lib/child.h"

#include "run/checkpoint/weights.h"

#include "test/run/lib/own_folder.h"

static float value_of(int64_t g) { return (float)(g % 251 - 125) * 0.25f; }

/* Writes a file `name` with tensors [first, end) of the table in checkpoint_fixture.h. If extra is not NULL, adds a
 * tensor of that name with one element. */
static void write_part(const char *name, int first, int end, const char *extra) {
    Param      rows[FIXTURE_ROWS];
    SafeTensor t[FIXTURE_ROWS + 1] = {0};
    size_t     bytes;
    int64_t    g = 0;
    int        tensors = 0;
    fixture_rows(rows);
    for (int i = 0; i < end; i++) {
        int64_t elems = rows[i].dim[0] * (rows[i].dims == 2 ? rows[i].dim[1] : 1);
        if (i < first) g += elems;
        else t[tensors++] = (SafeTensor){.name = rows[i].name, .dims = rows[i].dims, .dim = {(uint64_t)rows[i].dim[0], (uint64_t)rows[i].dim[1]}};
    }
    if (extra) t[tensors++] = (SafeTensor){.name = extra, .dims = 1, .dim = {1}};
    char *header = safetensors_header(t, tensors, &bytes);
    FILE *out = fopen(path_of("%s/%s", dir, name).text, "w");
    fwrite(header, 1, bytes, out);
    for (uint64_t k = 0; k < t[tensors - 1].end / sizeof(float); k++) fwrite(&(float){value_of(g + (int64_t)k)}, sizeof(float), 1, out);
    fclose(out);
    free(header);
}

/* Writes an index that lists the first `first` tensors in one.safetensors and the rest in two.safetensors. It leaves
 * out tensor number `without`, and lists one more name, `more`, in two.safetensors. */
static void write_index(int first, int without, const char *more) {
    Param rows[FIXTURE_ROWS];
    FILE *out = fopen(path_of("%s/" WEIGHTS_INDEX, dir).text, "w");
    fixture_rows(rows);
    fprintf(out, "{\"weight_map\": {");
    for (int i = 0, n = 0; i < FIXTURE_ROWS; i++)
        if (i != without) fprintf(out, "%s\"%s\": \"%s.safetensors\"", n++ ? ", " : "", rows[i].name, i < first ? "one" : "two");
    if (more) fprintf(out, ", \"%s\": \"two.safetensors\"", more);
    fprintf(out, "}}\n");
    fclose(out);
}

static const char *read_from;
static void read_piece(void *argument) {
    (void)argument;
    Fixture f;
    int64_t wrong = 0;
    fixture_create(&f, comm, dir, F32, 1, "");
    WeightsSet     set = weights_set_open(read_from);
    WeightsTensor *tensor_of = weights_set_match(&set, &f.shards->layout, (WeightsSizes){NULL, 0, 0});
    weights_set_check_values(&set, &f.shards->layout, tensor_of);
    free(tensor_of);
    weights_set_close(&set);
    checkpoint_init_from(read_from, &f.state);
    for (int i = 0; i < f.shards->spans; i++) {
        Span span = f.shards->span[i];
        for (int64_t k = 0; k < span.elems; k++)
            wrong += tensor_get(optimizer_master(&f.optimizer, span), k) !=
                     value_of(f.shards->layout.param[span.param].offset + span.first + k);
    }
    checkpoint_read_weights(read_from, &f.shards->layout, f.shards->params, &f.stream, 0);
    for (int i = 0; i < f.shards->layout.params; i++) {
        const Param *p = &f.shards->layout.param[i];
        for (int64_t k = 0; k < p->elems; k++) wrong += tensor_get(f.shards->params, p->memory + k) != value_of(p->offset + k);
    }
    fixture_destroy(&f);
    if (wrong) _exit(1);
}

static Child read_now(const char *path) {
    read_from = path;
    return child_run(read_piece, NULL);
}

static void refused(const char *path, const char *word) {
    Child c = read_now(path);
    if (c.code != EXIT_DATA || child_lines(&c) != 1 || !strstr(c.said, word)) fail_msg("wanted \"%s\": exit %d: %s", word, c.code, c.said);
}

static void test_two_files_are_one_model(void **state) {
    (void)state;
    for (int first = 1; first < FIXTURE_ROWS; first += 3) {
        write_part("one.safetensors", 0, first, NULL);
        write_part("two.safetensors", first, FIXTURE_ROWS, NULL);
        write_index(first, -1, NULL);
        Child folder = read_now(dir), index = read_now(path_of("%s/" WEIGHTS_INDEX, dir).text);
        if (folder.code || index.code) fail_msg("first %d: exit %d and %d: %s%s", first, folder.code, index.code, folder.said, index.said);
    }
    write_part(WEIGHTS_SINGLE, 0, FIXTURE_ROWS, NULL); /* a single model.safetensors takes precedence over an index */
    assert_int_equal(unlink(path_of("%s/two.safetensors", dir).text), 0);
    assert_int_equal(read_now(dir).code, 0);
}

/* Asserts that the folder is read, and that the output contains `word`. As in transformers, the index says which files
 * are read, and their headers say where each tensor is. */
static void taken(const char *word) {
    Child c = read_now(dir);
    if (c.code || !strstr(c.said, word)) fail_msg("wanted \"%s\": exit %d: %s", word, c.code, c.said);
}

static void test_files_and_index_need_not_agree(void **state) {
    (void)state;
    write_part("one.safetensors", 0, 4, NULL);
    write_part("two.safetensors", 4, FIXTURE_ROWS, NULL);
    write_index(5, -1, NULL);
    taken("1 tensor is in other files than this index says, and read from there: transformer.h.0.mlp.c_fc.weight is in ");
    write_index(2, -1, NULL);
    taken("2 tensors are in other files than this index says");
    write_index(4, 7, NULL);
    taken("transformer.ln_f.bias is in ");
    write_index(4, -1, "transformer.h.1.ln_1.bias"); /* the index lists a name that no model has, and that is in no
                                                      * file */
    taken("");
    /* tensor 4 of the model is now in both files; the index decides which copy is read */
    write_part("one.safetensors", 0, 5, NULL);
    write_index(5, -1, NULL);
    taken("");
    write_index(4, -1, NULL);
    taken("");
    write_index(4, 4, NULL);
    refused(dir, "tensor transformer.h.0.mlp.c_fc.weight is there twice, also in ");
}

/* Without an index, files named NAME-...-of-N are read only if all N are there and there are no others. */
static void test_numbered_files_without_index(void **state) {
    (void)state;
    write_part("model-00001-of-00002.safetensors", 0, 3, NULL);
    refused(dir, "model-00002-of-00002.safetensors is missing, and 1 other file of these weights is there");
    write_part("model-00002-of-00002.safetensors", 3, FIXTURE_ROWS, NULL);
    taken("");
    write_part("other.safetensors", 0, FIXTURE_ROWS, NULL);
    refused(dir, "holds 3 .safetensors files, no model.safetensors");
    assert_int_equal(unlink(path_of("%s/model-00001-of-00002.safetensors", dir).text), 0);
    assert_int_equal(unlink(path_of("%s/model-00002-of-00002.safetensors", dir).text), 0);
    refused(dir, "other.safetensors does: give it that name, mv ");
    write_part("other.safetensors", 0, 7, NULL); /* other.safetensors lacks a tensor, so the message must not advise to
                                                  * rename it */
    refused(dir, "other.safetensors: tensor transformer.ln_f.bias is missing");
    write_part("other.safetensors", 0, FIXTURE_ROWS, NULL);
    assert_int_equal(rename(path_of("%s/other.safetensors", dir).text, path_of("%s/" WEIGHTS_SINGLE, dir).text), 0);
    taken("");
}

static void write_text(const char *name, const char *text) {
    assert_int_equal(io_replace_file(path_of("%s/%s", dir, name).text, text, strlen(text)), 0);
}

/* A PEFT adapter is not a model, wherever it is found. The message has the Python line that merges it, and what that
 * requires. */
static void test_an_adapter_is_no_model(void **state) {
    (void)state;
    static const char merge[] = ").merge_and_unload().save_pretrained(\"";
    Path              config = path_of("%s/adapter_config.json", dir), weights = path_of("%s/adapter_model.safetensors", dir);
    write_text("adapter_config.json", "{}");
    write_part("adapter_model.safetensors", 0, 0, "base_model.model.h.0.attn.c_attn.lora_A.weight");
    refused(dir, "holds an adapter (adapter_config.json)");
    refused(dir, merge);
    refused(weights.text, "c_attn.lora_A.weight), which is no whole model");
    /* renames the adapter to the name of a model, which earlier versions of the program advised */
    assert_int_equal(rename(weights.text, path_of("%s/" WEIGHTS_SINGLE, dir).text), 0);
    refused(dir, "instead. PEFT needs there: adapter_model.safetensors\n");
    assert_int_equal(unlink(config.text), 0);
    refused(dir, "instead. PEFT needs there: adapter_config.json and adapter_model.safetensors\n");
    write_part(WEIGHTS_SINGLE, 0, FIXTURE_ROWS, NULL); /* next to a complete model the adapter is ignored */
    write_text("adapter_config.json", "{}");
    taken("adapter_config.json: this adapter is not used");
}

/* If only one of several files has an embedding, the message names that file as the model. */
static void test_the_file_to_rename_is_a_model(void **state) {
    (void)state;
    write_part("a.safetensors", 1, 3, NULL);
    write_part("b.safetensors", 3, 5, NULL);
    refused(dir, "holds 2 .safetensors files, and none of them has the embedding of a model");
    write_part("c.safetensors", 0, FIXTURE_ROWS, NULL);
    refused(dir, "as in mv ");
    refused(dir, "/c.safetensors ");
}

static void test_other_formats(void **state) {
    (void)state;
    write_text("small.gguf", "GGUF\3\1\1\1\1\1\1");
    refused(dir, "holds small.gguf, a model of llama.cpp, and no model.safetensors");
    refused(dir, "gguf_file=\"small.gguf\").save_pretrained(");
    refused(path_of("%s/small.gguf", dir).text, "small.gguf is a model of llama.cpp, and only safetensors are read");
    assert_int_equal(unlink(path_of("%s/small.gguf", dir).text), 0);
    write_text(WEIGHTS_SINGLE ".gz", "\x1f\x8b\10\1\1\1\1\1");
    refused(dir, "does not exist, and model.safetensors.gz does: unpack it, gzip -d ");
    write_text(WEIGHTS_SINGLE, "\x1f\x8b\10\1\1\1\1\1");
    refused(dir, path_of("unpack it by gzip -dc < %s/" WEIGHTS_SINGLE " > %s/" WEIGHTS_SINGLE ".new && mv", dir, dir).text);
    write_text(WEIGHTS_SINGLE, "<!DOCTYPE html>");
    refused(dir, "is a web page: the download failed");
    assert_int_equal(unlink(path_of("%s/" WEIGHTS_SINGLE, dir).text), 0);
    write_text(WEIGHTS_INDEX, "\xef\xbb\xbf{}");
    refused(dir, path_of("tail -c +4 %s/" WEIGHTS_INDEX " > ", dir).text);
}

/* Sets the tensors of this name to zero, as in a file that was never filled. Zeros in a vector are common. A matrix of
 * zeros is reported, an embedding of zeros refused. */
static void put_zeros(const char *name) {
    WeightsSet        set = weights_set_open(dir);
    const SafeTensor *t = safetensors_find(&set.file[0].header, name);
    FILE             *f = fopen(set.file[0].path, "r+");
    fseek(f, (long)(set.file[0].header.data_offset + t->begin), SEEK_SET);
    for (uint64_t k = t->begin; k < t->end; k++) fputc(0, f);
    fclose(f);
    weights_set_close(&set);
}

static void check_zeros(void *argument) {
    Fixture f;
    (void)argument;
    fixture_create(&f, comm, dir, F32, 1, "");
    WeightsSet     set = weights_set_open(dir);
    WeightsTensor *tensor_of = weights_set_match(&set, &f.shards->layout, (WeightsSizes){NULL, 0, 0});
    weights_set_check_values(&set, &f.shards->layout, tensor_of);
    free(tensor_of);
    weights_set_close(&set);
    fixture_destroy(&f);
}

static void test_zeros_are_seen(void **state) {
    (void)state;
    write_part(WEIGHTS_SINGLE, 0, FIXTURE_ROWS, NULL);
    put_zeros("transformer.ln_f.bias");
    Child c = child_run(check_zeros, NULL);
    if (c.code || *c.said) fail_msg("a bias: exit %d: %s", c.code, c.said);
    put_zeros("transformer.h.0.mlp.c_fc.weight");
    c = child_run(check_zeros, NULL);
    if (c.code || child_lines(&c) != 1 || !strstr(c.said, "matrices hold nothing but zeros, the first is transformer.h.0.mlp.c_fc.weight in "))
        fail_msg("a matrix: exit %d: %s", c.code, c.said);
    put_zeros("transformer.wte.weight");
    c = child_run(check_zeros, NULL);
    if (c.code != EXIT_DATA || !strstr(c.said, "tensor transformer.wte.weight, the embedding, holds nothing but zeros"))
        fail_msg("the embedding: exit %d: %s", c.code, c.said);
}

static void test_files_and_index_must_be_whole(void **state) {
    (void)state;
    write_part("one.safetensors", 0, 4, NULL);
    /* Two names of one tensor are refused: wpe.weight in two.safetensors, and transformer.wpe.weight in
     * one.safetensors. */
    write_part("two.safetensors", 4, FIXTURE_ROWS, "wpe.weight");
    write_index(4, -1, "wpe.weight");
    refused(dir, "tensor wpe.weight is there twice, also as transformer.wpe.weight");
    write_part("two.safetensors", 4, 7, NULL);
    write_index(4, 7, NULL);
    refused(dir, "tensor transformer.ln_f.bias is missing, expected with shape [14]");
    assert_int_equal(truncate(path_of("%s/two.safetensors", dir).text, 100), 0);
    refused(dir, "two.safetensors ends inside its header");
    assert_int_equal(unlink(path_of("%s/two.safetensors", dir).text), 0);
    refused(dir, "two.safetensors does not exist, and ");
    assert_int_equal(io_replace_file(path_of("%s/" WEIGHTS_INDEX, dir).text, "{}", 2), 0);
    refused(dir, WEIGHTS_INDEX " has no weight_map");
}

/* A change in any file of a model changes the fingerprint of the model's weights. */
static void test_the_fingerprint_covers_all_files(void **state) {
    (void)state;
    write_part("one.safetensors", 0, 4, NULL);
    write_part("two.safetensors", 4, FIXTURE_ROWS, NULL);
    write_index(4, -1, NULL);
    uint64_t seen[4];
    for (int i = 0; i < 4; i++) {
        if (i) { /* flips a bit in one file, then one in the other, then the first one back */
            Path  path = path_of("%s/%s.safetensors", dir, i == 2 ? "two" : "one");
            FILE *f = fopen(path.text, "r+");
            fseek(f, i == 2 ? 1000 : -1000, i == 2 ? SEEK_SET : SEEK_END);
            int c = fgetc(f);
            fseek(f, -1, SEEK_CUR);
            fputc(c ^ 1, f);
            fclose(f);
        }
        WeightsSet set = weights_set_open(dir);
        seen[i] = weights_set_fingerprint(&set);
        assert_int_equal(set.files, 2);
        assert_string_equal(set.folder, dir);
        weights_set_close(&set);
        for (int k = 0; k < i; k++) assert_true(seen[k] != seen[i]);
    }
}

static void test_what_is_no_model(void **state) {
    (void)state;
    Path bin = path_of("%s/pytorch_model.bin", dir);
    refused(dir, WEIGHTS_SINGLE " does not exist, nor does " WEIGHTS_INDEX " there");
    assert_int_equal(io_replace_file(bin.text, "PK", 2), 0);
    refused(dir, "holds pytorch_model.bin and no model.safetensors: only safetensors are read");
    static const char *const hub[][2] = {
        {"gpt2", "hf download openai-community/gpt2 --local-dir datasets/gpt2,"},
        {"gpt2-xl", "hf download openai-community/gpt2-xl --local-dir datasets/gpt2-xl,"},
        {"distilgpt2", "hf download distilbert/distilgpt2 --local-dir datasets/distilgpt2,"},
        {"openai-community/gpt2-medium", "hf download openai-community/gpt2-medium --local-dir datasets/gpt2-medium,"},
        {"someone/their_model-1.5", "hf download someone/their_model-1.5 --local-dir datasets/their_model-1.5,"},
    };
    for (size_t i = 0; i < sizeof hub / sizeof *hub; i++) refused(hub[i][0], hub[i][1]);
    static const char *const paths[] = {"./gpt2", "/nowhere", "a/b/c", "test/nothing", "model.safetensors", "gpt2/", "two words", "~/gpt2"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        Child c = read_now(paths[i]);
        if (c.code != EXIT_DATA || !strstr(c.said, "does not exist") || strstr(c.said, "hf download")) fail_msg("%s: exit %d: %s", paths[i], c.code, c.said);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(test_two_files_are_one_model),          CASE(test_files_and_index_need_not_agree),
        CASE(test_numbered_files_without_index),     CASE(test_files_and_index_must_be_whole),
        CASE(test_the_fingerprint_covers_all_files), CASE(test_what_is_no_model),
        CASE(test_an_adapter_is_no_model),           CASE(test_the_file_to_rename_is_a_model),
        CASE(test_other_formats),                    CASE(test_zeros_are_seen),
    };
    return RUN_ALONE(tests);
}
