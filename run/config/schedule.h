/* schedule.h - computes learning rate and weight decay of a step, and the clipping factor for a gradient norm. */
#ifndef TRAIN_GPT_RUN_CONFIG_SCHEDULE_H
#define TRAIN_GPT_RUN_CONFIG_SCHEDULE_H

#include "run/config/config.h"

/* Returns the learning rate of 0-based step s. lr = optimizer.learning_rate, w = schedule.warmup_steps, N = run.steps,
 * f = schedule.final_lr_fraction, p = (s-w)/(N-w). For s < w: lr (s+1)/w. Then
 *   cosine lr (f + (1-f)(1+cos(pi p))/2)    linear lr (1 - (1-f) p)    constant lr
 *   wsd    lr until s0 = N - ceil(decay_fraction N), then with q = (s-s0)/(N-s0), by schedule.decay,
 *          sqrt lr (f + (1-f)(1 - sqrt(q)))   (Hägele et al., arXiv:2405.18392)    linear lr (f + (1-f)(1 - q)) */
double schedule_lr(const Config *config, int64_t s);

/* Returns the weight decay of 0-based step s, by optimizer.weight_decay_schedule. d = optimizer.weight_decay:
 *   constant d    lr d schedule_lr(s) / optimizer.learning_rate    linear d (1 - s / run.steps)
 * Updates multiply it with the learning rate, so that even a constant one falls with the rate. */
double schedule_weight_decay(const Config *config, int64_t s);

/* Returns the step after which a process of this run stops: run.stop_step if it is set and below run.steps, else
 * run.steps. */
int64_t schedule_last_step(const Config *config);

/* Returns min(1, grad_clip/norm) without an epsilon, or 1 if grad_clip is 0. */
double clip_scale(double norm, double grad_clip);

#endif
