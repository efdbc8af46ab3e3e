/* weights_file.c - see weights_file.h. */
#include "run/checkpoint/weights_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/error.h"
#include "core/io.h"
#include "core/format.h"
#include "core/tensor.h"

/* --- opening ------------------------------------------------------------------------------------------------------ */

/* Reads the length and the header of the file. Allocates no more than the bytes of the file, whatever length it
 * claims. */
static uint8_t *read_head(const WeightsFile *w, uint64_t file_bytes, size_t *bytes) {
    uint8_t  length[8];
    uint64_t n = 0;
    *bytes = 0;
    if (file_bytes < sizeof length) return xcalloc(1, 1, "the header of a file of weights");
    int error = io_pread(w->fd, length, sizeof length, 0);
    if (error) fail(EXIT_IO, "%s cannot be read: %s", w->path, io_error_text(error));
    for (int i = 0; i < 8; i++) n |= (uint64_t)length[i] << (8 * i);
    if (n > SAFETENSORS_HEADER_LIMIT || n > file_bytes - 8) n = 0; /* the parser refuses it by the length alone */
    *bytes = (size_t)(8 + n);
    uint8_t *head = xmalloc(*bytes, "the header of a file of weights");
    error = io_pread(w->fd, head, *bytes, 0);
    if (error) fail(EXIT_IO, "%s cannot be read: %s", w->path, io_error_text(error));
    return head;
}

WeightsFile weights_open(const char *path) {
    WeightsFile w = {.path = xstrdup(path, "the name of a file of weights")};
    struct stat st;
    size_t      bytes;
    char        fault[SAFETENSORS_FAULT_BYTES];
    if (stat(path, &st) < 0 && errno == ENOENT) fail(EXIT_DATA, "%s does not exist", path);
    if (stat(path, &st) < 0) fail(EXIT_IO, "%s cannot be opened: %s", path, io_error_text(errno));
    if (!S_ISREG(st.st_mode)) fail(EXIT_DATA, "%s %s", path, io_error_text(io_kind(st.st_mode)));
    w.fd = io_open(path, IO_READ);
    if (w.fd < 0) fail(EXIT_IO, "%s cannot be opened: %s", path, io_error_text(w.fd));
    uint8_t *head = read_head(&w, (uint64_t)st.st_size, &bytes);
    if (!safetensors_parse(head, bytes, (uint64_t)st.st_size, &w.header, fault)) {
        char sentence[SAFETENSORS_FAULT_BYTES + sizeof(ShellWord)];
        snprintf(sentence, sizeof sentence, "%s", fault);
        shell_name_file(sentence, sizeof sentence, path);
        fail(strcmp(fault, SAFETENSORS_NO_MEMORY) == 0 ? EXIT_MEMORY : EXIT_DATA, "%s %s", path, sentence);
    }
    free(head);
    return w;
}

void weights_close(WeightsFile *w) {
    io_close(w->fd);
    free(w->path);
    safetensors_free(&w->header);
}

/* --- values ------------------------------------------------------------------------------------------------------- */

/* Reads values of 8 bytes, rounded to nearest. Returns 0 or -errno. */
static int read_doubles(const WeightsFile *w, const SafeTensor *t, int64_t first, int64_t elems, float *out) {
    enum { AT_ONCE = 4096 };
    double values[AT_ONCE];
    int    error = 0;
    for (int64_t at = 0, n; !error && at < elems; at += n) {
        n = elems - at < AT_ONCE ? elems - at : AT_ONCE;
        error = io_pread(w->fd, values, (size_t)n * sizeof *values,
                         w->header.data_offset + t->begin + (uint64_t)(first + at) * sizeof *values);
        for (int64_t i = 0; !error && i < n; i++) out[at + i] = (float)values[i];
    }
    return error;
}

/* Returns 0 or -errno. */
static int read_block(const WeightsFile *w, const SafeTensor *t, int64_t first, int64_t elems, float *out) {
    size_t each = safetensors_type_bytes(t->type);
    if (t->type == SAFE_F64) return read_doubles(w, t, first, elems, out);
    uint16_t *half = (uint16_t *)(void *)out + elems; /* 16-bit values go to the upper half of out and are widened from its front */
    int       error = io_pread(w->fd, each == 4 ? (void *)out : (void *)half, (size_t)elems * each,
                               w->header.data_offset + t->begin + (uint64_t)first * each);
    for (int64_t i = 0; !error && each == 2 && i < elems; i++) {
        uint16_t h;
        memcpy(&h, half + i, sizeof h);
        float value = t->type == SAFE_F16 ? f16_to_f32(h) : bf16_to_f32(h);
        memcpy(out + i, &value, sizeof value); /* never ahead of the values still to be read */
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

/* Returns 1 if no value has all bits of its exponent set. The loop has no branch, so that it is vectorized. */
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
    if (t->type == SAFE_F64) /* it may be finite in the file */
        (void)!io_pread(w->fd, &value, sizeof value, w->header.data_offset + t->begin + 8 * (uint64_t)element);
    if (t->type == SAFE_F64 && isfinite(value))
        fail(EXIT_DATA, "%s: tensor %s holds %g at element %" PRId64 ", which fp32 cannot hold: take other weights",
             w->path, t->name, value, element);
    fail(EXIT_DATA, "%s: tensor %s holds a value that is not finite at element %" PRId64 ": take other weights, or an older checkpoint of them",
         w->path, t->name, element);
}

int64_t weights_read_span(const WeightsFile *w, const SafeTensor *t, int64_t begin, const Layout *layout,
                          const Span *span, int64_t at, float *values, float *block) {
    FileRun first = layout_run(layout, span, at), run = first;
    int64_t n = run.elems < WEIGHTS_BLOCK ? run.elems : WEIGHTS_BLOCK, end = first.offset + n;
    if (n == WEIGHTS_BLOCK || at + n == span->elems) {
        weights_read(w, t, first.offset - begin, n, values);
        return n;
    }
    while (at + n < span->elems) {
        run = layout_run(layout, span, at + n);
        if (run.offset + run.elems - first.offset > WEIGHTS_BLOCK) break;
        end = run.offset + run.elems, n += run.elems;
    }
    weights_read(w, t, first.offset - begin, end - first.offset, block);
    for (int64_t k = 0; k < n; k += run.elems) {
        run = layout_run(layout, span, at + k);
        memcpy(values + k, block + (run.offset - first.offset), (size_t)run.elems * sizeof *values);
    }
    return n;
}
