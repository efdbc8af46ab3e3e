/* server_weights.h - a server's x and momentum, as runs of elements in the model's flat order (core/layout.h). They lie
 * in the masters and states of an optimizer of one rank in host memory, as a checkpoint has them: x the masters, m the
 * outer momentum, v zeros, or between two arrivals of wait=none what waits for momentum. With send=gradients m and v are
 * AdamW's.
 */
#ifndef TRAIN_GPT_RUN_OUTER_SERVER_WEIGHTS_H
#define TRAIN_GPT_RUN_OUTER_SERVER_WEIGHTS_H

#include "model/optimizer.h"
#include "run/outer/fragments.h"
#include "run/outer/outer_rule.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { WEIGHTS_X, WEIGHTS_MOMENTUM, WEIGHTS_WAITING } ServerTensor; /* as optimizer_tensor counts */

/* Elements [offset, offset + elems) to `to`. */
void served_read(const Optimizer *o, ServerTensor which, int64_t offset, int64_t elems, float *to);

/* The rules of outer_rule.h: of a fragment's elements, d[0] being its first, or of all; d: in flat order. */
void served_step(const Optimizer *o, OuterRule rule, Fragment f, const float *d);
void served_rest(const Optimizer *o, const float *d, double share);
void served_arrival(const Optimizer *o, OuterRule rule, const float *d, double share);
/* Returns the norm of what had waited. */
double served_momentum(const Optimizer *o, OuterRule rule);

/* A step of AdamW with the gradient d, times grad_scale. */
void served_adamw(const Optimizer *o, AdamW h, double grad_scale, float *d);

#ifdef __cplusplus
}
#endif
#endif
