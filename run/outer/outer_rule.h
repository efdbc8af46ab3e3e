/* outer_rule.h - how a server changes its weights x by what islands send: arithmetic on runs of elements, no more.
 *
 * d is a delta: the x that an island began a round with, less its masters at the end. All rules work element by element
 * in double, and a sum over islands has one order, so the bits do not depend on threads.
 *   wait = all   d = sum w_k d_k / sum w_k in the order of islands, w_k the tokens; v = mu v + d; x -= eta (d + mu v)
 *                (DiLoCo, arXiv 2311.08105; with mu = 0, eta = 1 x becomes the mean of the islands' masters)
 *   wait = none  each d / N as it comes, with weight 1 / (1 + staleness): x -= eta w d / N. The N-th arrival adds
 *                momentum, once for all: v = mu v + the sum of the last N w d / N; x -= eta (w d / N + mu v) (delayed
 *                Nesterov, arXiv 2401.09135). N deltas of one x change it as those of one round do.
 */
#ifndef TRAIN_GPT_RUN_OUTER_OUTER_RULE_H
#define TRAIN_GPT_RUN_OUTER_OUTER_RULE_H

#include "core/exact.h"

typedef struct { double learning_rate, momentum; } OuterRule;

/* mean [elems] may be one of the deltas. */
void outer_mean(float *mean, const float *const *delta, const double *weight, int islands, int64_t elems);

void outer_step(OuterRule rule, float *x, float *v, const float *d, int64_t elems);

/* outer.stream: steps that came in no turn: x -= share d, share: 1 / N. Momentum is none of theirs. */
void outer_rest(float *x, const float *d, double share, int64_t elems);

/* share: 1 / ((1 + staleness) N). waiting: the sum of the arrivals since momentum was applied last, zero at first. */
void outer_arrival(OuterRule rule, float *x, float *waiting, const float *d, double share, int64_t elems);
/* After the N-th arrival: v, and its part of x; waiting is zero again. */
void outer_momentum(OuterRule rule, float *x, float *v, float *waiting, int64_t elems);

/* *sum += the squares: of each OUTER_BLOCK elements in one order, of those sums exactly. So any cut of a delta at
 * multiples of OUTER_BLOCK gives the same sum. Not finite where an element is not. */
enum { OUTER_BLOCK = 1024 };
void outer_squares(const float *d, int64_t elems, Exact *sum);

/* The first of a model's elements that server `part` of `parts` has: a multiple of OUTER_BLOCK; elems for part = parts. */
int64_t outer_part_begin(int64_t elems, int part, int parts);

#endif
