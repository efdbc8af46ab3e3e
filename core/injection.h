/* injection.h - wrong numbers that a test puts into a training step (core/failpoints.h). In the program itself each of
 * these does nothing.
 *
 *   guard.gradient@n:nan|inf    the n-th time gradients are computed, sets an element of this rank's gradient of wpe;
 *                               with the word "lone" it sets an element of the gradient of ln_f's bias, which affects
 *                               no other gradient
 *   guard.loss@n:rise           makes the n-th loss that this rank adds to the step's reduction some 6 nats too high
 *   guard.own@n:flip            the n-th time gradients are computed, flips a bit of this rank's shard of their sum
 *                               over the ranks
 *   guard.sum@n:flip            the n-th time the ranks agree on a step, flips a bit of the sum
 *   guard.weight@n:flip         the n-th time the ranks agree on a step, flips a bit of this rank's working weights
 *   guard.m@n:flip guard.v@n:flip   the same times, flips a bit of this rank's moments
 */
#ifndef TRAIN_GPT_CORE_INJECTION_H
#define TRAIN_GPT_CORE_INJECTION_H

#include "core/device.h"

/* Sets an element of a zeroed gradient to NaN or infinity, if a rule of TRAIN_GPT_FAIL for guard.gradient says so. The
 * gradient is that of the position embeddings (wpe) or of the last norm's bias. */
void   inject_gradient(Stream *s, Tensor wpe, Tensor ln_f_bias);
/* Returns the number to add to a sum of losses over `tokens` tokens: 6 nats a token if a rule of TRAIN_GPT_FAIL for
 * guard.loss says "rise", otherwise 0. */
double inject_loss(double tokens);
/* Flips one bit of x if a rule of TRAIN_GPT_FAIL for the failpoint `name` says "flip". */
void   inject_flip(Stream *s, const char *name, Tensor x);

#endif
