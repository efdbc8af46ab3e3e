/* outer_rule.h - how a server changes its weights x by the deltas of islands: arithmetic on arrays, nothing else.
 *
 * d is a delta: the x that an island began a round with, minus its masters at the end. All rules work element by
 * element in double. A sum over islands has one order, so the bits do not depend on threads. In these formulas eta is
 * the learning rate, mu the momentum, and v the momentum's state.
 *   wait = all   d = sum w_k d_k / sum w_k in the order of islands, w_k the tokens; v = mu v + d; x -= eta (d + mu v)
 *                (DiLoCo, arXiv 2311.08105; with mu = 0, eta = 1 x becomes the mean of the islands' masters)
 *   wait = none  each d / N as it arrives, with weight w = 1 / (1 + staleness): x -= eta w d / N. The N-th arrival adds
 *                momentum, once for all: v = mu v + the sum of the last N w d / N; x -= eta mu v (delayed Nesterov,
 *                arXiv 2401.09135). N deltas of one x change it as those of one round do.
 */
#ifndef TRAIN_GPT_RUN_OUTER_OUTER_RULE_H
#define TRAIN_GPT_RUN_OUTER_OUTER_RULE_H

#include "core/exact.h"

typedef struct { double learning_rate, momentum; } OuterRule;

/* Computes the weighted mean of the deltas. mean [elems] may be one of them. */
void outer_mean(float *mean, const float *const *delta, const double *weight, int islands, int64_t elems);

void outer_step(OuterRule rule, float *x, float *v, const float *d, int64_t elems);

/* outer.stream: applies steps that no fragment has sent: x -= share d, share = 1 / N. They do not change momentum. */
void outer_rest(float *x, const float *d, double share, int64_t elems);

/* Applies one arrival. share: 1 / ((1 + staleness) N). waiting: sum of the arrivals since momentum was last applied,
 * zero at first. */
void outer_arrival(OuterRule rule, float *x, float *waiting, const float *d, double share, int64_t elems);
/* Applies momentum after the N-th arrival: changes v and x, and sets waiting to zero. */
void outer_momentum(OuterRule rule, float *x, float *v, float *waiting, int64_t elems);

/* Adds the squares of d to *sum: each OUTER_BLOCK elements in one order, those block sums exactly. So any cut of a
 * delta at multiples of OUTER_BLOCK gives the same sum. The sum is not finite if an element is not. */
enum { OUTER_BLOCK = 1024 };
void outer_squares(const float *d, int64_t elems, Exact *sum);

/* Returns the first element of the model that server `part` of `parts` has: a multiple of OUTER_BLOCK, or elems for
 * part = parts. */
int64_t outer_part_begin(int64_t elems, int part, int parts);

#endif
