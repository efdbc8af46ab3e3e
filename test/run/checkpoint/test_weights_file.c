/* test_weights_file.c - weights from files of other programs: names, types, refusals. Tests checkpoint_init_from and
 * checkpoint_read_weights. */
#include "test/run/lib/child.h"

#include <float.h>
#include <math.h>

#include "run/checkpoint/safetensors.h"
#include "run/checkpoint/weights.h"

#include "test/run/lib/own_folder.h"

/* Returns the value of weight g, which F32, F16 and BF16 hold exactly. */
static float value_of(int64_t g) { return (float)((g * 37 + g / 7) % 255 - 127) * 0.015625f; }

static uint16_t f16_from_value(float f) {
    if (f == 0) return 0;
    int   exponent;
    /* frexpf returns 0.5 <= fraction < 1, so fraction * 2 - 1 is the fraction field of a float */
    float fraction = frexpf(fabsf(f), &exponent);
    return (uint16_t)((f < 0 ? 0x8000 : 0) | (exponent - 1 + 15) << 10 | (int)((fraction * 2 - 1) * 1024));
}

/* Describes a file with the tensors of checkpoint_fixture.h, as another program may write it. The tensors may be in
 * reverse order, and one more tensor may be added. */
typedef struct {
    const char *prefix;
    SafeType    type;
    int         reverse;
    /* name of one more tensor [1,1]; NULL: none. If the name ends in "head.weight", it has the shape of wte. If it is
     * lm_head.weight, it also has the values of wte. */
    const char *extra;
    int         without;     /* number of the tensor that is left out; -1: none */
    int64_t     wte_rows;    /* number of rows of the embedding wte; 0: the model's vocabulary */
    float       poison;      /* replaces the last value of the file, such as NaN; 0: no change */
    const char *word;        /* text that the refusal contains; NULL: the file must be read */
} Case;

static void write_weights(const Case *c) {
    Param       rows[FIXTURE_ROWS];
    SafeTensor  t[FIXTURE_ROWS + 1] = {0};
    char        name[FIXTURE_ROWS][80];
    int64_t     first[FIXTURE_ROWS + 1], g = 0, of_row[FIXTURE_ROWS];
    int         tensors = 0;
    size_t      bytes;
    fixture_rows(rows);
    for (int i = 0; i < FIXTURE_ROWS; g += rows[i].dim[0] * (rows[i].dims == 2 ? rows[i].dim[1] : 1), i++) of_row[i] = g;
    for (int k = 0; k < FIXTURE_ROWS; k++) {
        int i = c->reverse ? FIXTURE_ROWS - 1 - k : k;
        if (i == c->without) continue;
        snprintf(name[i], sizeof name[i], "%s%s", c->prefix, strchr(rows[i].name, '.') + 1);
        t[tensors] = (SafeTensor){.name = name[i],
                                  .type = c->type,
                                  .dims = rows[i].dims,
                                  .dim = {(uint64_t)(i == 0 && c->wte_rows ? c->wte_rows : rows[i].dim[0]),
                                          (uint64_t)rows[i].dim[1]}};
        first[tensors++] = of_row[i];
    }
    int is_head = c->extra && strstr(c->extra, "lm_head");
    if (is_head) {
        t[tensors] = (SafeTensor){.name = c->extra,
                                  .type = c->type,
                                  .dims = 2,
                                  .dim = {(uint64_t)rows[0].dim[0], (uint64_t)rows[0].dim[1]}};
        first[tensors++] = strcmp(c->extra, "lm_head.weight") != 0;
    } else if (c->extra)
        t[tensors] = (SafeTensor){.name = c->extra, .type = SAFE_U8, .dims = 2, .dim = {1, 1}}, first[tensors++] = 0;
    char *header = safetensors_header(t, tensors, &bytes);
    FILE *out = fopen(path_of("%s/model.safetensors", dir).text, "w");
    fwrite(header, 1, bytes, out);
    for (int i = 0; i < tensors; i++) {
        size_t each = safetensors_type_bytes(t[i].type);
        for (uint64_t k = 0; k < (t[i].end - t[i].begin) / each; k++) {
            float    value = c->poison != 0 && first[i] + (int64_t)k == g - 1 ? c->poison : value_of(first[i] + (int64_t)k);
            uint16_t half = t[i].type == SAFE_F16 ? f16_from_value(value) : bf16_from_f32(value);
            double   wide = value;
            fwrite(t[i].type == SAFE_F32 ? (void *)&value : each == 2 ? (void *)&half : (void *)&wide, each, 1, out);
        }
    }
    fclose(out);
    free(header);
}

static int64_t wrong_masters(const Fixture *f) {
    int64_t wrong = 0;
    for (int i = 0; i < f->shards->spans; i++) {
        Span span = f->shards->span[i];
        for (int64_t k = 0; k < span.elems; k++) {
            wrong += tensor_get(optimizer_master(&f->optimizer, span), k) !=
                     value_of(f->shards->layout.param[span.param].offset + span.first + k);
            /* the values that are read are exact in bf16, so they are compared with == */
            wrong += tensor_get(f->shards->params, span.memory + k) != value_of(f->shards->layout.param[span.param].offset + span.first + k);
            wrong += tensor_get(optimizer_tensor(&f->optimizer, 1, span), k) != 0;
        }
    }
    return wrong;
}

static int64_t wrong_params(const Fixture *f) {
    int64_t wrong = 0;
    for (int i = 0; i < f->shards->layout.params; i++) {
        const Param *p = &f->shards->layout.param[i];
        int64_t      room = p->local[0] * p->local[1];
        for (int64_t k = 0; k < p->elems; k++) wrong += tensor_get(f->shards->params, p->memory + k) != value_of(p->offset + k);
        /* the padding behind each parameter stays zero */
        for (int64_t k = p->elems; k < room; k++) wrong += tensor_get(f->shards->params, p->memory + k) != 0;
    }
    return wrong;
}

static const char *read_from;
static void read_piece(void *argument) {
    Fixture f;
    DType   act = *(DType *)argument;
    fixture_create(&f, comm, dir, act, 1, "");
    checkpoint_init_from(read_from, &f.state);
    if (wrong_masters(&f)) _exit(1);
    fixture_destroy(&f);
    fixture_create(&f, comm, dir, act, 1, "");
    checkpoint_read_weights(read_from, &f.shards->layout, f.shards->params, &f.stream, 0);
    if (wrong_params(&f)) _exit(2);
    fixture_destroy(&f);
}

static Child read_as(DType act, const char *path) {
    read_from = path;
    return child_run(read_piece, &act);
}

static void test_files_of_others(void **state) {
    (void)state;
    static const Case cases[] = {
        {"transformer.", SAFE_F32, 0, NULL, -1, 0, 0, NULL},
        {"", SAFE_F32, 0, NULL, -1, 0, 0, NULL},
        {"", SAFE_F16, 1, NULL, -1, 0, 0, NULL},
        {"transformer.", SAFE_BF16, 1, NULL, -1, 0, 0, NULL},
        {"", SAFE_F32, 0, "h.0.attn.bias", -1, 0, 0, NULL},
        {"transformer.", SAFE_F32, 0, "transformer.h.11.attn.masked_bias", -1, 0, 0, NULL},
        {"transformer.", SAFE_F32, 0, "lm_head.weight", -1, 0, 0, NULL},
        {"", SAFE_BF16, 1, "lm_head.weight", -1, 0, 0, NULL},
        {"transformer.", SAFE_F32, 0, "transformer.lm_head.weight", -1, 0, 0, "lm_head.weight is not the embedding"},
        {"model.", SAFE_F32, 0, NULL, -1, 0, 0, NULL},
        {"module.transformer.", SAFE_F32, 0, NULL, -1, 0, 0, NULL},
        {"_orig_mod.transformer.", SAFE_F16, 1, NULL, -1, 0, 0, NULL},
        {"transformer._orig_mod.", SAFE_BF16, 1, NULL, -1, 0, 0, NULL},
        {"language_model.model.", SAFE_F32, 0, "language_model.model.h.1.attn.bias", -1, 0, 0, NULL},
        {"modules.", SAFE_F32, 0, NULL, -1, 0, 0,
         "tensor modules.wte.weight of shape [389,14] is not part of this model"},
        {"", SAFE_F64, 0, NULL, -1, 0, 0, NULL},
        {"", SAFE_F8_E4M3, 0, NULL, -1, 0, 0, "tensor wte.weight has type F8_E4M3, expected F64, F32, F16 or BF16"},
        {"", SAFE_F32, 0, "h.0.attn.biases", -1, 0, 0,
         "tensor h.0.attn.biases of shape [1,1] is not part of this model"},
        {"", SAFE_F32, 0, "h.x.attn.bias", -1, 0, 0, "h.x.attn.bias"},
        {"", SAFE_F32, 0, "transformer.wpe.weight", -1, 0, 0,
         "tensor transformer.wpe.weight is there twice, also as wpe.weight"},
        {"", SAFE_F32, 1, "transformer.transformer.wpe.weight", -1, 0, 0, "is there twice, also as wpe.weight"},
        {"", SAFE_F32, 1, "transformer.transformer.wpes.weight", -1, 0, 0, "not part of this model"},
        {"", SAFE_F32, 0, NULL, 4, 0, 0,
         "tensor transformer.h.0.mlp.c_fc.weight is missing, expected with shape [700,401]"},
        {"", SAFE_F32, 0, NULL, 7, 0, 0, "tensor transformer.ln_f.bias is missing, expected with shape [14]"},
        {"", SAFE_F32, 0, NULL, -1, 390, 0, "tensor wte.weight has shape [390,14], expected [389,14]"},
        {"transformer.", SAFE_F32, 0, NULL, -1, 0, NAN,
         "tensor transformer.ln_f.bias holds a value that is not finite at element 13"},
        {"transformer.", SAFE_F32, 0, NULL, -1, 0, INFINITY, "not finite"},
    };
    char file[128];
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_weights(&cases[i]);
        for (int as_folder = 0; as_folder < 2; as_folder++) {
            Child c = read_as(i % 2 ? BF16 : F32, as_folder ? dir : file);
            if (cases[i].word == NULL && c.code != 0) fail_msg("case %zu: exit %d: %s", i, c.code, c.said);
            if (cases[i].word == NULL) continue;
            if (c.code != EXIT_DATA || child_lines(&c) != 1 || !strstr(c.said, cases[i].word) || !strstr(c.said, file))
                fail_msg("case %zu: exit %d: %s", i, c.code, c.said);
        }
    }
}

static void read_alone(void *argument) {
    Fixture f;
    fixture_create(&f, comm, dir, *(DType *)argument, 1, "");
    checkpoint_read_weights(dir, &f.shards->layout, f.shards->params, &f.stream, 0);
    fixture_destroy(&f);
}

/* Tests weights_finite, which checks the weights that sample and eval read. It finds a value that is not finite at any
 * position. */
static void test_values_are_finite(void **state) {
    (void)state;
    static const float odd[] = {NAN, -NAN, INFINITY, -INFINITY};
    enum { N = (1 << 18) + 77 };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        write_weights(&(Case){"transformer.", i % 2 ? SAFE_BF16 : SAFE_F64, 0, NULL, -1, 0, odd[i], NULL});
        Child c = child_run(read_alone, &(DType){F32});
        if (c.code != EXIT_DATA || !strstr(c.said, "tensor transformer.ln_f.bias holds a value that is not finite at element 13"))
            fail_msg("%g: exit %d: %s", (double)odd[i], c.code, c.said);
    }
    float *value = malloc(N * sizeof *value);
    for (int64_t i = 0; i < N; i++) value[i] = i % 3 ? FLT_MAX : -FLT_MIN / 2;
    assert_int_equal(weights_finite(value, N), N);
    static const int64_t places[] = {N - 1, (1 << 18) + 1, 1 << 18, (1 << 14) + 1, 1 << 14, (1 << 14) - 1, 1, 0};
    /* weights_finite returns the position of the first value that is not finite */
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        value[places[i]] = odd[i % 4];
        assert_int_equal(weights_finite(value, N), places[i]);
        assert_int_equal(weights_finite(value, places[i]), places[i]);
    }
    free(value);
}

/* Refuses, with a clear message: a path that does not exist, a folder without weights, a header cut at every byte,
 * bytes without meaning. */
static void test_no_files_of_weights(void **state) {
    (void)state;
    static const Case good = {"", SAFE_F32, 0, NULL, -1, 0, 0, NULL};
    char  file[128];
    char *data;
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    Child c = read_as(F32, dir);
    assert_int_equal(c.code, EXIT_DATA);
    assert_non_null(strstr(c.said, "model.safetensors does not exist"));
    assert_int_equal(read_as(F32, "/nonexistent/weights.safetensors").code, EXIT_DATA);
    assert_int_equal(symlink(file, file), 0);
    c = read_as(F32, file);
    assert_int_equal(c.code, EXIT_IO);
    assert_non_null(strstr(c.said, "cannot be opened: Too many levels of symbolic links"));
    assert_int_equal(unlink(file), 0);
    assert_int_equal(mkfifo(file, 0600), 0); /* a pipe is refused without waiting for its other end */
    c = read_as(F32, file);
    assert_int_equal(c.code, EXIT_DATA);
    assert_non_null(strstr(c.said, "model.safetensors is a FIFO, not a file"));
    assert_int_equal(unlink(file), 0);
    for (int above = 0; above < 2; above++) { /* the header is longer than allowed, or longer than the file */
        const uint64_t claimed[4] = {above ? SAFETENSORS_HEADER_LIMIT + 1 : 100};
        assert_int_equal(io_replace_file(file, claimed, sizeof claimed), 0);
        c = read_as(F32, file);
        assert_int_equal(c.code, EXIT_DATA);
        assert_non_null(strstr(c.said, above ? "claims a header of 100000001 bytes" : "ends inside its header of 100 bytes"));
    }
    write_weights(&good);
    int64_t bytes = io_read_file(file, 64 << 20, &data);
    for (int64_t keep = bytes - 1; keep >= 0; keep = keep > 1200 ? 1200 : keep - 7) {
        assert_int_equal(truncate(file, keep), 0);
        c = read_as(F32, file);
        if (c.code != EXIT_DATA || child_lines(&c) != 1)
            fail_msg("cut to %lld bytes: exit %d: %s", (long long)keep, c.code, c.said);
    }
    free(data);
}

/* Widens all 65536 bit patterns of 16 bits in place, with an odd count. */
static void test_sixteen_bits_are_widened(void **state) {
    (void)state;
    static const struct { uint16_t bits; float value; } known[] = {
        {0x0000, 0.0f}, {0x3c00, 1.0f}, {0xc000, -2.0f}, {0x7bff, 65504.0f}, {0x0400, 6.103515625e-05f}, {0x0001, 5.9604644775390625e-08f},
        {0x03ff, 6.0975551605224609e-05f}, {0x7c00, INFINITY}, {0xfc00, -INFINITY}, {0x3555, 0.333251953125f},
    };
    enum { N = 65536 };
    SafeTensor t = {.name = "x", .type = SAFE_F16, .dims = 1, .dim = {N}};
    size_t     bytes;
    char      *header = safetensors_header(&t, 1, &bytes);
    Path       path = path_of("%s/x.safetensors", dir);
    FILE      *out = fopen(path.text, "w");
    float     *value = malloc(N * sizeof *value);
    fwrite(header, 1, bytes, out);
    for (uint32_t i = 0; i < N; i++) fwrite(&(uint16_t){(uint16_t)i}, 2, 1, out);
    fclose(out);
    WeightsFile w = weights_open(path.text);
    weights_read(&w, &w.header.tensor[0], 0, N, value);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) assert_true(value[known[i].bits] == known[i].value);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(isnan(value[i]) != 0, (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0);
    for (uint32_t i = 1; i < 0x7c00; i++) assert_true(value[i] > value[i - 1]);
    weights_read(&w, &w.header.tensor[0], 0x3c00, 3, value);
    assert_true(value[0] == 1.0f && value[1] == 1.0009765625f && value[2] == 1.001953125f);
    weights_close(&w);
    free(value);
    free(header);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(test_files_of_others), CASE(test_no_files_of_weights), CASE(test_sixteen_bits_are_widened),
        CASE(test_values_are_finite),
    };
    return RUN_ALONE(tests);
}
