/* outer_rule.c - see outer_rule.h. */
#include "run/outer/outer_rule.h"

enum { BLOCKS = 1024 }; /* OUTER_BLOCKs of one parallel loop of outer_squares */

void outer_mean(float *mean, const float *const *delta, const double *weight, int islands, int64_t elems) {
    double all = 0.0;
    for (int k = 0; k < islands; k++) all += weight[k];
    #pragma omp parallel for
    for (int64_t i = 0; i < elems; i++) {
        double sum = 0.0;
        for (int k = 0; k < islands; k++) sum += weight[k] * delta[k][i];
        mean[i] = (float)(sum / all);
    }
}

void outer_step(OuterRule rule, float *x, float *v, const float *d, int64_t elems) {
    double eta = rule.learning_rate, mu = rule.momentum;
    #pragma omp parallel for
    for (int64_t i = 0; i < elems; i++) {
        double moved = mu * v[i] + d[i];
        v[i] = (float)moved;
        x[i] = (float)(x[i] - eta * (d[i] + mu * moved));
    }
}

void outer_rest(float *x, const float *d, double share, int64_t elems) {
    #pragma omp parallel for
    for (int64_t i = 0; i < elems; i++) x[i] = (float)(x[i] - share * d[i]);
}

void outer_arrival(OuterRule rule, float *x, float *waiting, const float *d, double share, int64_t elems) {
    double eta = rule.learning_rate;
    #pragma omp parallel for
    for (int64_t i = 0; i < elems; i++) {
        double part = share * d[i];
        waiting[i] = (float)(waiting[i] + part);
        x[i] = (float)(x[i] - eta * part);
    }
}

void outer_momentum(OuterRule rule, float *x, float *v, float *waiting, int64_t elems) {
    double eta = rule.learning_rate, mu = rule.momentum;
    #pragma omp parallel for
    for (int64_t i = 0; i < elems; i++) {
        double moved = mu * v[i] + waiting[i];
        v[i] = (float)moved;
        x[i] = (float)(x[i] - eta * mu * moved);
        waiting[i] = 0.0f;
    }
}

/* Any thread may sum a block; the blocks are added in order. */
void outer_squares(const float *d, int64_t elems, Exact *all) {
    for (int64_t at = 0; at < elems; at += (int64_t)OUTER_BLOCK * BLOCKS) {
        double  sum[BLOCKS] = {0};
        int64_t left = elems - at;
        #pragma omp parallel for
        for (int b = 0; b < BLOCKS; b++)
            for (int64_t i = (int64_t)b * OUTER_BLOCK; i < (int64_t)(b + 1) * OUTER_BLOCK && i < left; i++)
                sum[b] += (double)d[at + i] * d[at + i];
        for (int b = 0; b < BLOCKS; b++) exact_add(all, sum[b]);
    }
}

int64_t outer_part_begin(int64_t elems, int part, int parts) {
    int64_t blocks = (elems + OUTER_BLOCK - 1) / OUTER_BLOCK;
    return part == parts ? elems : blocks * part / parts * OUTER_BLOCK;
}
