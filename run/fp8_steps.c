/* fp8_steps.c - see fp8_steps.h. */
#include "run/fp8_steps.h"

#include <stdlib.h>
#include <string.h>

#include "core/error.h"

Fp8Steps fp8_steps_create(int64_t n_layer) {
    Fp8Steps f = {.history = fp8_history_create(n_layer)};
    f.amax = xcalloc((size_t)f.history.cells, sizeof *f.amax, "the maxima of tensors");
    f.counts = xcalloc((size_t)(2 * f.history.cells), sizeof *f.counts, "the maxima of tensors");
    return f;
}

void fp8_steps_destroy(Fp8Steps *f) {
    fp8_history_destroy(&f->history);
    free(f->amax);
    free(f->counts);
    *f = (Fp8Steps){.amax = NULL};
}

/* The maxima have 32 bits on the device and are widened to 64 here. */
void fp8_steps_take(Fp8Steps *f, Model *m, Comm *all) {
    int64_t cells = f->history.cells;
    if (!f->amax) return;
    device_to_host(&m->stream, f->amax, m->sums.fp8_amax);
    for (int64_t c = cells; c-- > 0;) {
        int32_t bits;
        memcpy(&bits, (const char *)f->amax + (size_t)c * sizeof bits, sizeof bits);
        f->amax[c] = bits;
    }
    device_to_host(&m->stream, f->counts, m->sums.fp8_counts);
    comm_all_reduce_i64(all, f->amax, (int)cells, COMM_MAX);
    comm_all_reduce_i64(all, f->counts, (int)(2 * cells), COMM_SUM);
    f->saturated = f->vanished = 0;
    for (int64_t c = 0; c < cells; c++) f->saturated += f->counts[2 * c], f->vanished += f->counts[2 * c + 1];
}

void fp8_steps_accept(Fp8Steps *f, Model *m) {
    if (!f->amax) return;
    fp8_history_add(&f->history, f->amax);
    fp8_scales_set(&m->gpt.fp8, &m->stream, &f->history);
}
