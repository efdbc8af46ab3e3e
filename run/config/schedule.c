/* schedule.c - the learning rate and weight decay of a step, and the clipping factor for a gradient norm. */
#include "run/config/config.h"

#include <math.h>

#include "core/format.h"
#include "core/terminal.h"

double schedule_lr(const Config *config, int64_t s) {
    const double  pi = 3.14159265358979323846;
    double        lr = config->optimizer.learning_rate, f = config->schedule.final_lr_fraction;
    int64_t       w = config->schedule.warmup_steps, N = config->run.steps;
    if (s < w) return lr * (double)(s + 1) / (double)w;
    double p = N > w ? (double)(s - w) / (double)(N - w) : 1.0;
    switch ((ScheduleKind)config->schedule.name) {
        case SCHEDULE_COSINE: return lr * (f + (1.0 - f) * (1.0 + cos(pi * p)) / 2.0);
        case SCHEDULE_LINEAR: return lr * (1.0 - (1.0 - f) * p);
        case SCHEDULE_CONSTANT: return lr;
        case SCHEDULE_WSD: break;
    }
    int64_t s0 = N - (int64_t)ceil(config->schedule.decay_fraction * (double)N);
    if (s < s0) return lr;
    double q = (double)(s - s0) / (double)(N - s0);
    return lr * (f + (1.0 - f) * (1.0 - (config->schedule.decay == DECAY_LINEAR ? q : sqrt(q))));
}

double schedule_weight_decay(const Config *config, int64_t s) {
    double decay = config->optimizer.weight_decay, peak = config->optimizer.learning_rate;
    switch ((WeightDecaySchedule)config->optimizer.weight_decay_schedule) {
        case WEIGHT_DECAY_LR: return peak > 0.0 ? decay * (schedule_lr(config, s) / peak) : decay;
        case WEIGHT_DECAY_LINEAR: return decay * (1.0 - (double)s / (double)config->run.steps);
        case WEIGHT_DECAY_CONSTANT: break;
    }
    return decay;
}

int64_t schedule_last_step(const Config *config) {
    int64_t stop = config->run.stop_step;
    return stop > 0 && stop < config->run.steps ? stop : config->run.steps;
}

void schedule_say_no_warmup(const Config *config, int columns) {
    char rate[SHOWN_BYTES];
    if (config->schedule.warmup_given || config->run.steps < 200) return;
    say_labelled(columns, "warmup",
                 "none: step 1 has the full learning rate %s; schedule.warmup_steps=%lld would raise it over the first "
                 "steps",
                 number_text(config->optimizer.learning_rate, rate),
                 (long long)smaller_of(config->run.steps / 10, 1000));
}

double clip_scale(double norm, double grad_clip) {
    return grad_clip > 0.0 && norm > grad_clip ? grad_clip / norm : 1.0;
}
