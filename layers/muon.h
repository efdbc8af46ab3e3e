/* muon.h - the ops newton_schulz and normuon of layers.h. muon.c and muon.cu include them, once in each build, and
 * define the passes over memory: those between the products of newton_schulz, and the three of normuon.
 */
#ifndef TRAIN_GPT_LAYERS_MUON_H
#define TRAIN_GPT_LAYERS_MUON_H

#include "layers/contracts.h"
#include "layers/layers.h"
#include "layers/matmul.h"

/* --- newton_schulz ------------------------------------------------------------------------------------------------ */

enum { NEWTON_ROUNDS = 5 };
static const double NEWTON_LEAST = 1e-7;

/* Polynomials a x + b x^3 + c x^5 of the iterations. Jordan's takes singular values from 0.002 on to between 0.68 and
 * 1.2. Polar Express has the best polynomial of degree 5 for the bounds that the iteration before leaves, from 0.001 on
 * (the list of arXiv:2505.16932). It is taken at x / 1.01 so that rounding does not exceed the bounds, and leads to
 * between 0.83 and 1.13. */
typedef struct { double a, b, c; } NewtonStep;
typedef struct { double margin; NewtonStep step[NEWTON_ROUNDS]; } NewtonMap;
static inline NewtonMap newton_map(NewtonKind kind) {
    static const NewtonStep jordan = {3.4445, -4.7750, 2.0315};
    static const NewtonStep polar[NEWTON_ROUNDS] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                                    {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                                    {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                                    {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                                    {2.300652019954817, -1.6689039845747493, 0.4188073119525673}};
    static const double cushion = 1.01;
    NewtonMap map = {kind == NEWTON_POLAR_EXPRESS ? 1.02 : 1.0, {jordan, jordan, jordan, jordan, jordan}};
    for (int i = 0; i < NEWTON_ROUNDS && kind == NEWTON_POLAR_EXPRESS; i++) {
        map.step[i].a = polar[i].a / cushion;
        map.step[i].b = polar[i].b / (cushion * cushion * cushion);
        map.step[i].c = polar[i].c / (cushion * cushion * cushion * cushion * cushion);
    }
    return map;
}

/* Functions that muon.c and muon.cu define, each for itself. On a dry stream, which only counts costs, they only take
 * scratch memory.
 *   newton_narrow   X = columns [part M, part M + M) of x, divided by max(margin times their norm, NEWTON_LEAST), in
 *                   X's type
 *   newton_widen    writes X to those columns of x
 *   newton_mix      x = outer (y + inner x), of one type and size */
static void newton_narrow(Stream *s, Tensor X, Tensor x, int64_t part, double margin);
static void newton_widen(Stream *s, Tensor x, Tensor X, int64_t part);
static void newton_mix(Stream *s, Tensor x, float inner, Tensor y, float outer);

/* c = a b, for matrices of one type. */
static inline void newton_product(Stream *s, Tensor c, Tensor a, MatrixOrder a_order, Tensor b, MatrixOrder b_order) {
    int64_t inner = a_order == PLAIN ? a.dim[1] : a.dim[0];
    Matmul  p = {matrix_of(c, PLAIN), matrix_of(a, a_order), matrix_of(b, b_order), c.dim[0], c.dim[1], inner,
                 MATMUL_SET, NULL};
    matmul(s, p);
}

/* Computes one iteration of Newton-Schulz on X, with the coefficients a, b and c of `step`. P, of the size of X, and A
 * and AA [k,k] are scratch; k is the smaller side of X. */
static inline void newton_round(Stream *s, Tensor X, Tensor P, Tensor A, Tensor AA, NewtonStep step) {
    int is_wide = X.dim[0] <= X.dim[1];
    newton_product(s, A, X, is_wide ? PLAIN : TRANSPOSED, X, is_wide ? TRANSPOSED : PLAIN);
    newton_product(s, AA, A, PLAIN, A, PLAIN);
    newton_mix(s, A, (float)(step.b / step.c), AA, (float)step.c);
    if (is_wide) newton_product(s, P, A, PLAIN, X, PLAIN);
    else newton_product(s, P, X, PLAIN, A, PLAIN);
    newton_mix(s, X, (float)step.a, P, 1.0f);
}

void newton_schulz(Stream *s, Tensor x, int64_t parts, DType type, NewtonKind kind) {
    newton_schulz_contract(s, x, parts, type);
    NewtonMap map = newton_map(kind);
    int64_t   R = x.dim[0], M = x.dim[1] / parts, k = R < M ? R : M;
    size_t    mark = arena_mark(&s->scratch);
    Tensor    X = arena_tensor(&s->scratch, type, 2, R, M, 1), P = arena_tensor(&s->scratch, type, 2, R, M, 1);
    Tensor    A = arena_tensor(&s->scratch, type, 2, k, k, 1), AA = arena_tensor(&s->scratch, type, 2, k, k, 1);
    for (int64_t part = 0; part < parts; part++) {
        newton_narrow(s, X, x, part, map.margin);
        for (int i = 0; i < NEWTON_ROUNDS; i++) newton_round(s, X, P, A, AA, map.step[i]);
        newton_widen(s, x, X, part);
    }
    arena_release(&s->scratch, mark);
}

/* --- normuon --------------------------------------------------------------------------------------------------------
 *
 * The neurons of a matrix are its rows or its columns. The norm of the scaled matrix is known before it is scaled: it
 * is the sum over neurons of factor^2 |x|^2.
 */

static const double NORMUON_LEAST = 1e-10; /* added to sqrt(v) before dividing by it, as in the code of NorMuon's
                                            * authors */

/* One matrix of those side by side in x. x and v point to its first element; rows are `width` elements apart; its size
 * is R x M. Its neurons are rows or columns. */
typedef struct {
    float  *x, *v;
    int64_t R, M, width;
    int64_t neurons, each;  /* number of neurons; elements of each */
    int     are_rows;
} NeuronPart;
typedef struct {
    double *squares;        /* [neurons] sum of squares of each neuron */
    float  *factor, *fresh; /* [neurons] factor by which a neuron of x is multiplied; new value of v of a neuron */
} NeuronNumbers;

/* The three passes of normuon. neuron_squares writes n.squares, the sums of squares of each neuron. neuron_factors
 * computes n.factor and n.fresh, which depend on a sum over all neurons. neuron_scale writes x and v. */
static void neuron_squares(Stream *s, NeuronPart p, NeuronNumbers n);
static void neuron_factors(Stream *s, NeuronPart p, NeuronNumbers n, double beta2);
static void neuron_scale(Stream *s, NeuronPart p, NeuronNumbers n);

void normuon(Stream *s, Tensor x, Tensor v, int64_t parts, NeuronSide side, double beta2) {
    normuon_contract(s, x, v, parts);
    int64_t       R = x.dim[0], M = x.dim[1] / parts, rows = side == NEURON_ROWS;
    int64_t       neurons = rows ? R : M;
    size_t        mark = arena_mark(&s->scratch);
    NeuronNumbers n = {(double *)arena_take(&s->scratch, sizeof(double) * (size_t)neurons),
                       (float *)arena_take(&s->scratch, sizeof(float) * (size_t)neurons),
                       (float *)arena_take(&s->scratch, sizeof(float) * (size_t)neurons)};
    for (int64_t part = 0; part < parts && !s->ledger; part++) {
        NeuronPart p =
            {(float *)x.data + part * M, (float *)v.data + part * M, R, M, x.dim[1], neurons, rows ? M : R, (int)rows};
        neuron_squares(s, p, n);
        neuron_factors(s, p, n, beta2);
        neuron_scale(s, p, n);
    }
    arena_release(&s->scratch, mark);
}

#endif
