/* normuon.h - the text of normuon in layers.h, for its host and CUDA sides: each has the three passes.
 *
 * The neurons of a matrix are its rows or its columns. The norm of the scaled matrix is known before it is scaled: it
 * is the sum over neurons of factor^2 |x|^2.
 */
#ifndef TRAIN_GPT_LAYERS_NORMUON_H
#define TRAIN_GPT_LAYERS_NORMUON_H

#include "layers/contracts.h"
#include "layers/layers.h"

static const double NORMUON_LEAST = 1e-10; /* least value beside sqrt(v), as in the authors' code */

/* One matrix of x: its first element in x and v, whose rows are `width` apart, and its neurons. */
typedef struct {
    float  *x, *v;
    int64_t R, M, width;
    int64_t neurons, each;  /* number of neurons; elements of each */
    int     are_rows;
} NeuronPart;
typedef struct {
    double *squares;        /* [neurons] sum of squares of each neuron */
    float  *factor, *fresh; /* [neurons] factor by which x is multiplied; new value of v */
} NeuronNumbers;

/* The three passes. neuron_squares sets squares. neuron_factors sets factor and fresh, which depend on a sum over all
 * neurons. neuron_scale writes x and v. */
static void neuron_squares(Stream *s, NeuronPart p, NeuronNumbers n);
static void neuron_factors(Stream *s, NeuronPart p, NeuronNumbers n, double beta2);
static void neuron_scale(Stream *s, NeuronPart p, NeuronNumbers n);

static inline void normuon_by_parts(Stream *s, Tensor x, Tensor v, int64_t parts, NeuronSide side, double beta2) {
    int64_t       R = x.dim[0], M = x.dim[1] / parts, rows = side == NEURON_ROWS;
    int64_t       neurons = rows ? R : M;
    size_t        mark = arena_mark(&s->scratch);
    NeuronNumbers n = {(double *)arena_take(&s->scratch, sizeof(double) * (size_t)neurons),
                       (float *)arena_take(&s->scratch, sizeof(float) * (size_t)neurons),
                       (float *)arena_take(&s->scratch, sizeof(float) * (size_t)neurons)};
    for (int64_t part = 0; part < parts && !s->ledger; part++) {
        NeuronPart p = {(float *)x.data + part * M, (float *)v.data + part * M, R, M, x.dim[1], neurons, rows ? M : R, (int)rows};
        neuron_squares(s, p, n);
        neuron_factors(s, p, n, beta2);
        neuron_scale(s, p, n);
    }
    arena_release(&s->scratch, mark);
}

#endif
