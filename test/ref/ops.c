/* ops.c - the ops of layers.h in float64 (ops.h). */
#include "test/ref/ops.h"

#include <math.h>
#include <stdlib.h>

#include "core/error.h"

static double *doubles(int64_t n) {
    double *x = calloc((size_t)n, sizeof(double));
    CHECK(x, "no memory");
    return x;
}

static int64_t start_of(const int32_t *starts, int64_t row) { return starts ? starts[row] : 0; }

void ref_embedding_forward(double *y, const int32_t *tokens, const double *wte, const double *wpe, const int32_t *starts,
                           int64_t B, int64_t T, int64_t C) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++) y[(b * T + t) * C + c] = wte[tokens[b * T + t] * C + c] + wpe[(t - start_of(starts, b * T + t)) * C + c];
}

void ref_embedding_backward(double *dwte, double *dwpe, const double *dy, const int32_t *tokens, const int32_t *starts,
                            int64_t B, int64_t T, int64_t C) {
    for (int64_t b = 0; b < B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t c = 0; c < C; c++) {
                dwte[tokens[b * T + t] * C + c] += dy[(b * T + t) * C + c];
                dwpe[(t - start_of(starts, b * T + t)) * C + c] += dy[(b * T + t) * C + c];
            }
}

static void row_statistics(double *mean, double *rstd, const double *x, int64_t C, double eps) {
    double sum = 0.0, square = 0.0;
    for (int64_t c = 0; c < C; c++) sum += x[c];
    for (int64_t c = 0; c < C; c++) square += (x[c] - sum / (double)C) * (x[c] - sum / (double)C);
    *mean = sum / (double)C;
    *rstd = 1.0 / sqrt(square / (double)C + eps);
}

void ref_layernorm_forward(double *y, double *mean, double *rstd, const double *x, const double *w, const double *b,
                           int64_t N, int64_t C, double eps) {
    for (int64_t n = 0; n < N; n++) {
        row_statistics(&mean[n], &rstd[n], x + n * C, C, eps);
        for (int64_t c = 0; c < C; c++) y[n * C + c] = (x[n * C + c] - mean[n]) * rstd[n] * w[c] + b[c];
    }
}

void ref_column_sums(double *sums, const double *x, int64_t N, int64_t C) {
    for (int64_t i = 0; i < N * C; i++) sums[i % C] += x[i];
}

/* With z = (x - mean) rstd and g = dy w, the gradient is dx_c = rstd (g_c - mean(g) - z_c mean(g z)). */
void ref_layernorm_backward(double *dx, double *dw, double *db, const double *dresidual, const double *dy,
                            const double *x, const double *w, int64_t N, int64_t C, double eps) {
    for (int64_t n = 0; n < N; n++) {
        const double *xn = x + n * C, *dyn = dy + n * C;
        double mean, rstd, g_mean = 0.0, gz_mean = 0.0;
        row_statistics(&mean, &rstd, xn, C, eps);
        for (int64_t c = 0; c < C; c++) {
            double z = (xn[c] - mean) * rstd;
            g_mean += dyn[c] * w[c] / (double)C;
            gz_mean += dyn[c] * w[c] * z / (double)C;
            dw[c] += dyn[c] * z;
            db[c] += dyn[c];
        }
        for (int64_t c = 0; c < C; c++) {
            double z = (xn[c] - mean) * rstd;
            dx[n * C + c] = (dresidual ? dresidual[n * C + c] : 0.0) + rstd * (dyn[c] * w[c] - g_mean - z * gz_mean);
        }
    }
}

void ref_rmsnorm_forward(double *y, double *rstd, const double *x, const double *w, int64_t N, int64_t C, double eps) {
    for (int64_t n = 0; n < N; n++) {
        double square = 0.0;
        for (int64_t c = 0; c < C; c++) square += x[n * C + c] * x[n * C + c];
        rstd[n] = 1.0 / sqrt(square / (double)C + eps);
        for (int64_t c = 0; c < C; c++) y[n * C + c] = x[n * C + c] * rstd[n] * w[c];
    }
}

/* With r = 1/sqrt(mean(x^2) + eps), y_j = x_j r w_j and dr/dx_c = -r^3 x_c / C. So dx_c = r dy_c w_c - r^3 x_c / C
 * sum_j dy_j w_j x_j. */
void ref_rmsnorm_backward(double *dx, double *dw, const double *dresidual, const double *dy, const double *x,
                          const double *w, int64_t N, int64_t C, double eps) {
    for (int64_t n = 0; n < N; n++) {
        const double *xn = x + n * C, *dyn = dy + n * C;
        double square = 0.0, dot_x = 0.0, r;
        for (int64_t c = 0; c < C; c++) square += xn[c] * xn[c], dot_x += dyn[c] * w[c] * xn[c];
        r = 1.0 / sqrt(square / (double)C + eps);
        for (int64_t c = 0; c < C; c++) {
            dw[c] += dyn[c] * xn[c] * r;
            dx[n * C + c] = (dresidual ? dresidual[n * C + c] : 0.0) + r * dyn[c] * w[c] - r * r * r * xn[c] / (double)C * dot_x;
        }
    }
}

void ref_linear_forward(double *y, const double *x, const double *w, const double *b, int64_t N, int64_t K, int64_t M) {
    for (int64_t n = 0; n < N; n++) {
        for (int64_t m = 0; m < M; m++) y[n * M + m] = b[m];
        for (int64_t k = 0; k < K; k++)
            for (int64_t m = 0; m < M; m++) y[n * M + m] += x[n * K + k] * w[k * M + m];
    }
}

void ref_linear_backward(double *dx, double *dw, double *db, const double *dy, const double *x, const double *w,
                         int64_t N, int64_t K, int64_t M) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t k = 0; k < K; k++) {
            double sum = 0.0;
            for (int64_t m = 0; m < M; m++) sum += dy[n * M + m] * w[k * M + m];
            dx[n * K + k] = sum;
            for (int64_t m = 0; m < M; m++) dw[k * M + m] += x[n * K + k] * dy[n * M + m];
        }
    for (int64_t n = 0; n < N; n++)
        for (int64_t m = 0; m < M; m++) db[m] += dy[n * M + m];
}

static double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }

/* Returns f(x), and f'(x) in *slope. */
static double activation(Activation kind, double x, double *slope) {
    static const double gelu_slope = 0.79788456080286535588; /* sqrt(2/pi) */
    double t = tanh(gelu_slope * (x + 0.044715 * x * x * x)), p = sigmoid(x),
           phi = 0.5 * erfc(-x * 0.70710678118654752440); /* normal distribution function */
    switch (kind) {
        case ACTIVATION_GELU_NEW:
            *slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * gelu_slope * (1.0 + 3.0 * 0.044715 * x * x);
            return 0.5 * x * (1.0 + t);
        case ACTIVATION_RELU2:
            *slope = x > 0.0 ? 2.0 * x : 0.0;
            return x > 0.0 ? x * x : 0.0;
        case ACTIVATION_SILU:
            *slope = p + x * p * (1.0 - p);
            return x * p;
        case ACTIVATION_GELU:
            *slope = phi + x * exp(-0.5 * x * x) * 0.39894228040143267794; /* 1/sqrt(2 pi) */
            return x * phi;
        case ACTIVATION_COUNT: break;
    }
    return *slope = NAN;
}

void ref_activation_forward(Activation kind, double *y, const double *x, int64_t n) {
    double slope;
    for (int64_t i = 0; i < n; i++) y[i] = activation(kind, x[i], &slope);
}

void ref_activation_backward(Activation kind, double *dx, const double *dy, const double *x, int64_t n) {
    double slope;
    for (int64_t i = 0; i < n; i++) {
        activation(kind, x[i], &slope);
        dx[i] = dy[i] * slope;
    }
}

void ref_swiglu_forward(double *y, const double *gate_up, int64_t N, int64_t F) {
    for (int64_t i = 0; i < N * F; i++) {
        const double *at = gate_up + i / F * 2 * F + i % F;
        y[i] = at[0] / (1.0 + exp(-at[0])) * at[F];
    }
}

void ref_swiglu_backward(double *dgate_up, const double *dy, const double *gate_up, int64_t N, int64_t F) {
    for (int64_t i = 0; i < N * F; i++) {
        int64_t at = i / F * 2 * F + i % F;
        double  gate = gate_up[at], p = 1.0 / (1.0 + exp(-gate));
        dgate_up[at] = dy[i] * gate_up[at + F] * p * (1.0 + gate * (1.0 - p));
        dgate_up[at + F] = dy[i] * gate * p;
    }
}

static void turn(double *x, double angle, int64_t half) {
    double low = x[0], high = x[half];
    x[0] = low * cos(angle) - high * sin(angle);
    x[half] = low * sin(angle) + high * cos(angle);
}

void ref_rope_forward(double *x, const double *frequency, const int64_t *position, int64_t N, int64_t columns, int64_t heads, int64_t D) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < heads * D; c++)
            if (c % D < D / 2) turn(x + n * columns + c, (double)position[n] * frequency[c % D], D / 2);
}

void ref_rope_backward(double *dx, const double *frequency, const int64_t *position, int64_t N, int64_t columns, int64_t heads, int64_t D) {
    for (int64_t n = 0; n < N; n++)
        for (int64_t c = 0; c < heads * D; c++)
            if (c % D < D / 2) turn(dx + n * columns + c, -(double)position[n] * frequency[c % D], D / 2);
}

/* One head of one sequence. q, k, v, and their gradients dq, dk, dv, point to the columns of the head in the first row
 * of the sequence. Rows are `columns` elements apart. */
typedef struct { const double *q, *k, *v; double *dq, *dk, *dv; int64_t columns, D; } Head;

static Head head_of(const double *qkv, double *dqkv, int64_t b, int64_t h, int64_t T, int64_t H, int64_t KH, int64_t D) {
    int64_t columns = (H + 2 * KH) * D, row = b * T * columns, own = h / (H / KH);
    int64_t q = row + h * D, k = row + (H + own) * D, v = k + KH * D;
    Head    head = {qkv + q, qkv + k, qkv + v, NULL, NULL, NULL, columns, D};
    if (dqkv) head.dq = dqkv + q, head.dk = dqkv + k, head.dv = dqkv + v;
    return head;
}

static double score(const double *q, const double *k, int64_t D) {
    double sum = 0.0;
    for (int64_t d = 0; d < D; d++) sum += q[d] * k[d];
    return sum / sqrt((double)D);
}

/* Sets p[first..i] to the softmax of the scores of query i with keys first to i, and p[0..first) to zero. Returns the
 * log of the sum of exponentials of the scores. */
static double attention_row(double *p, Head h, int64_t first, int64_t i) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < first; j++) p[j] = 0.0;
    for (int64_t j = first; j <= i; j++) {
        p[j] = score(h.q + i * h.columns, h.k + j * h.columns, h.D);
        max = fmax(max, p[j]);
    }
    for (int64_t j = first; j <= i; j++) sum += exp(p[j] - max);
    for (int64_t j = first; j <= i; j++) p[j] = exp(p[j] - max) / sum;
    return max + log(sum);
}

void ref_attention_forward(double *y, double *lse, const double *qkv, const int32_t *starts, int64_t B, int64_t T, int64_t H,
                            int64_t KH, int64_t D) {
    double *p = doubles(T);
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < T; i++) {
                Head    head = head_of(qkv, NULL, b, h, T, H, KH, D);
                double *out = y + ((b * T + i) * H + h) * D;
                lse[(b * H + h) * T + i] = attention_row(p, head, start_of(starts, b * T + i), i);
                for (int64_t d = 0; d < D; d++) {
                    out[d] = 0.0;
                    for (int64_t j = 0; j <= i; j++) out[d] += p[j] * head.v[j * head.columns + d];
                }
            }
    free(p);
}

/* Adds the gradients of row (query) i of attention, with output gradient dy. With s = q.k/sqrt(D), p = softmax(s) and
 * dp_j = dy.v_j, the gradient of the scores is ds_j = p_j (dp_j - sum_l p_l dp_l). */
static void attention_row_backward(Head h, const double *dy, const double *p, int64_t i) {
    double  mean = 0.0;
    double *dp = doubles(i + 1);
    for (int64_t j = 0; j <= i; j++) {
        for (int64_t d = 0; d < h.D; d++) dp[j] += dy[d] * h.v[j * h.columns + d];
        mean += p[j] * dp[j];
    }
    for (int64_t j = 0; j <= i; j++) {
        double ds = p[j] * (dp[j] - mean) / sqrt((double)h.D);
        for (int64_t d = 0; d < h.D; d++) {
            h.dq[i * h.columns + d] += ds * h.k[j * h.columns + d];
            h.dk[j * h.columns + d] += ds * h.q[i * h.columns + d];
            h.dv[j * h.columns + d] += p[j] * dy[d];
        }
    }
    free(dp);
}

void ref_attention_delta(double *delta, const double *dy, const double *y, int64_t N, int64_t H, int64_t D) {
    for (int64_t h = 0; h < H; h++)
        for (int64_t i = 0; i < N; i++) {
            delta[h * N + i] = 0.0;
            for (int64_t d = 0; d < D; d++) delta[h * N + i] += dy[(i * H + h) * D + d] * y[(i * H + h) * D + d];
        }
}

void ref_attention_backward(double *dqkv, const double *dy, const double *qkv, const int32_t *starts, int64_t B, int64_t T, int64_t H,
                            int64_t KH, int64_t D) {
    double *p = doubles(T);
    for (int64_t i = 0; i < B * T * (H + 2 * KH) * D; i++) dqkv[i] = 0.0;
    for (int64_t b = 0; b < B; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t i = 0; i < T; i++) {
                Head head = head_of(qkv, dqkv, b, h, T, H, KH, D);
                attention_row(p, head, start_of(starts, b * T + i), i);
                attention_row_backward(head, dy + ((b * T + i) * H + h) * D, p, i);
            }
    free(p);
}

void ref_head_forward(double *logits, const double *x, const double *wte, int64_t n, int64_t C, int64_t V, int64_t stride) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t v = 0; v < V; v++) {
            logits[i * stride + v] = 0.0;
            for (int64_t c = 0; c < C; c++) logits[i * stride + v] += x[i * C + c] * wte[v * C + c];
        }
}

void ref_head_backward(double *dx, double *dwte, const double *dlogits, const double *x, const double *wte, int64_t n,
                       int64_t C, int64_t V, int64_t stride) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t c = 0; c < C; c++) {
            dx[i * C + c] = 0.0;
            for (int64_t v = 0; v < V; v++) {
                dx[i * C + c] += dlogits[i * stride + v] * wte[v * C + c];
                dwte[v * C + c] += dlogits[i * stride + v] * x[i * C + c];
            }
        }
}

static double log_sum_exp(const double *x, int64_t V) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t v = 0; v < V; v++) max = fmax(max, x[v]);
    for (int64_t v = 0; v < V; v++) sum += exp(x[v] - max);
    return max + log(sum);
}

/* Returns the capped logits of a row: c tanh(logit / c), or the logits if there is no cap. malloc'ed. */
static double *capped(const double *logits, int64_t V, double softcap) {
    double *y = malloc(sizeof *y * (size_t)V);
    for (int64_t v = 0; v < V; v++) y[v] = softcap == 0.0 ? logits[v] : softcap * tanh(logits[v] / softcap);
    return y;
}

void ref_classifier_forward(double *loss, const double *logits, const int32_t *targets, int64_t n, int64_t V, int64_t stride,
                            double softcap) {
    for (int64_t i = 0; i < n; i++) {
        double *y = capped(logits + i * stride, V, softcap);
        loss[i] = log_sum_exp(y, V) - y[targets[i]];
        free(y);
    }
}

void ref_classifier_backward(double *dlogits, const double *logits, const int32_t *targets, int64_t n, int64_t V, int64_t stride,
                             double softcap, double z, double scale) {
    for (int64_t i = 0; i < n; i++) {
        double *y = capped(logits + i * stride, V, softcap), lse = log_sum_exp(y, V);
        for (int64_t v = 0; v < stride; v++) {
            double *d = &dlogits[i * stride + v];
            *d = v < V ? scale * ((1.0 + 2.0 * z * lse) * exp(y[v] - lse) - (v == targets[i] ? 1.0 : 0.0)) : 0.0;
            /* the derivative of tanh is 1 / cosh^2 */
            if (v < V && softcap != 0.0) *d /= pow(cosh(logits[i * stride + v] / softcap), 2.0);
        }
        free(y);
    }
}

void ref_adamw(double *p, double *m, double *v, const double *grad, int64_t n, double learning_rate, double beta1,
               double beta2, double eps, double decay, int64_t step, double grad_scale) {
    for (int64_t i = 0; i < n; i++) {
        double g = grad_scale * grad[i];
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        double m_hat = m[i] / (1.0 - pow(beta1, (double)step)), v_hat = v[i] / (1.0 - pow(beta2, (double)step));
        p[i] -= learning_rate * (m_hat / (sqrt(v_hat) + eps) + decay * p[i]);
    }
}

void ref_muon_momentum(double *grad, double *m, int64_t n, double beta, double grad_scale) {
    for (int64_t i = 0; i < n; i++) {
        double g = grad_scale * grad[i];
        m[i] = beta * m[i] + (1.0 - beta) * g;
        grad[i] = beta * m[i] + (1.0 - beta) * g;
    }
}

/* Uses A = X X^T [R,R]. With X^T X, which is smaller if M < R, the result would be the same: (X X^T) X = X (X^T X). */
void ref_newton_schulz(double *x, int64_t R, int64_t M, int64_t stride, int is_polar) {
    static const double polar[5][3] = {{8.28721201814563, -23.595886519098837, 17.300387312530933},
                                       {4.107059111542203, -2.9478499167379106, 0.5448431082926601},
                                       {3.9486908534822946, -2.908902115962949, 0.5518191394370137},
                                       {3.3184196573706015, -2.488488024314874, 0.51004894012372},
                                       {2.300652019954817, -1.6689039845747493, 0.4188073119525673}};
    double *A = doubles(R * R), *AA = doubles(R * R), *next = doubles(R * M), sum = 0.0;
    for (int64_t i = 0; i < R * M; i++) sum += x[i / M * stride + i % M] * x[i / M * stride + i % M];
    for (int64_t i = 0; i < R * M; i++) x[i / M * stride + i % M] /= fmax(sqrt(sum) * (is_polar ? 1.02 : 1.0), 1e-7);
    for (int round = 0; round < 5; round++) {
        double a = is_polar ? polar[round][0] / 1.01 : 3.4445, b = is_polar ? polar[round][1] / pow(1.01, 3.0) : -4.7750,
               q = is_polar ? polar[round][2] / pow(1.01, 5.0) : 2.0315;
        for (int64_t i = 0; i < R * R; i++) {
            A[i] = 0.0;
            for (int64_t c = 0; c < M; c++) A[i] += x[i / R * stride + c] * x[i % R * stride + c];
        }
        for (int64_t i = 0; i < R * R; i++) {
            AA[i] = 0.0;
            for (int64_t c = 0; c < R; c++) AA[i] += A[i / R * R + c] * A[c * R + i % R];
        }
        for (int64_t i = 0; i < R * M; i++) {
            next[i] = a * x[i / M * stride + i % M];
            for (int64_t c = 0; c < R; c++)
                next[i] += (b * A[i / M * R + c] + q * AA[i / M * R + c]) * x[c * stride + i % M];
        }
        for (int64_t i = 0; i < R * M; i++) x[i / M * stride + i % M] = next[i];
    }
    free(A), free(AA), free(next);
}

void ref_normuon(double *x, double *v, int64_t R, int64_t M, int64_t stride, int are_rows, double beta2) {
    double sum = 0.0;
    for (int64_t n = 0; n < (are_rows ? R : M); n++) {
        double  squares = 0.0;
        int64_t each = are_rows ? M : R, step = are_rows ? 1 : stride, first = are_rows ? n * stride : n;
        for (int64_t i = 0; i < each; i++) squares += x[first + i * step] * x[first + i * step];
        for (int64_t i = 0; i < each; i++) v[first + i * step] = beta2 * v[first + i * step] + (1.0 - beta2) * squares / (double)each;
        for (int64_t i = 0; i < each; i++) x[first + i * step] /= sqrt(v[first + i * step]) + 1e-10;
        sum += squares / ((sqrt(v[first]) + 1e-10) * (sqrt(v[first]) + 1e-10));
    }
    for (int64_t i = 0; i < R * M; i++) x[i / M * stride + i % M] *= sum > 0.0 ? sqrt((double)(R < M ? R : M) / sum) : 0.0;
}

void ref_muon_update(double *p, const double *u, int64_t n, double rate, double decay) {
    for (int64_t i = 0; i < n; i++) p[i] += -decay * p[i] - rate * u[i];
}
