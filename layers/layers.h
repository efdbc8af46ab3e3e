/* layers.h - every compute op of the program, one contract for all backends: layers/X.c is the CPU's side, layers/X.cu
 * CUDA's.
 *
 * Symbols  B batch, T positions, N = B*T rows, C channels, V vocabulary, H heads, D = C/H head size.
 * Layout   row-major, contiguous, shapes in [ ].   act = the tensors' common F32, BF16 or F16;  f32 = always F32.
 * Writes   forward sets outputs; backward sets activation gradients (=) and accumulates weight gradients (+=).
 *          A product adds to the gradient of a matrix: out(+=). If the gradient is_fresh (core/tensor.h) the product
 *          sets it: out(=), and does not read the old values.
 * Memory   the caller owns every buffer; an op allocates nothing after the first step and never waits for the device.
 *          It takes its own memory from s->scratch and gives it back on return. On a dry stream it takes as much and
 *          runs nothing.
 * Numbers  sums, statistics and products accumulate in f32 or better whatever act is. The same inputs and number of
 *          threads give the same bits.
 * Errors   a broken contract is a bug: EXPECTn ends the job.
 */
#ifndef TRAIN_GPT_LAYERS_LAYERS_H
#define TRAIN_GPT_LAYERS_LAYERS_H

#include "core/batch.h"
#include "core/device.h"
#include "core/exact.h"
#include "core/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- documents: a sequence may hold several, one after another. starts [B,T] i32 has, for each token, the position in
 * its sequence of the first token of its document. It never falls along a row. tensor_none(): each sequence is one
 * document. */

/* --- embedding: y[b,t,:] = wte[token[b,t],:] + wpe[position of t - starts[b,t],:] ------------------------------------
 * The token V' stands for a row of wte that another rank has, and adds nothing. wpe and dwpe may be none: they add
 * nothing.
 *   y [N,C] act out   tokens [B,T] i32 in   wte [V',C] act in, V' >= V   wpe [P,C] act in, P > every position */
void embedding_forward(Stream *s, Tensor y, Tensor tokens, Tensor wte, Tensor wpe, Tensor starts, ContextPart context);
/* Adds to the gradients of wte and wpe.
 *   dwte [V',C] f32 out(+=)   dwpe [P,C] f32 out(+=)   dy [N,C] act in
 * Rows of equal tokens are added in a fixed order. */
void embedding_backward(Stream *s, Tensor dwte, Tensor dwpe, Tensor dy, Tensor tokens, Tensor starts,
                        ContextPart context);
/* Translates tokens for a rank that has rows [first, first + rows) of wte: own = token - first, or `rows` if another
 * rank has the token's row.
 *   own, tokens [n] i32 */
void tokens_own(Stream *s, Tensor own, Tensor tokens, int64_t first, int64_t rows);

/* --- layernorm: y = (x - mean) * rstd * w + b, rstd = 1/sqrt(mean((x-mean)^2) + eps); Ba et al., arXiv:1607.06450 ----
 * If mean and b are none, these ops compute rmsnorm (below). With an update, the residual addition comes first: sum = x
 * + update; y = layernorm(sum) as stored. Without one, sum is not written.
 *   y [N,C] act out   mean, rstd [N] f32 out, kept for backward   x [N,C] act in   w, b [C] act in
 *   sum [N,C] act out, may be x itself, or none   update [N,C] act in, or none */
void layernorm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update, Tensor w,
                       Tensor b, float eps);
/* Computes sum = x + update alone, with the bits of the sum in norms that have an update.   sum, x, update [N,C] act */
void residual_forward(Stream *s, Tensor sum, Tensor x, Tensor update);
/* Computes the gradients of layernorm. dx = dresidual + the norm's gradient: here the branch's gradient joins that of
 * the residual stream.
 *   dbias [C] f32 out(+=) column sums of dx as stored, the gradient of the bias of the preceding branch, or none
 *   dx [N,C] act out, may be dresidual   dw, db [C] f32 out(+=)   dresidual [N,C] act in, or data NULL for none
 *   dy, x [N,C] act in */
void layernorm_backward(Stream *s, Tensor dx, Tensor dbias, Tensor dw, Tensor db, Tensor dresidual, Tensor dy, Tensor x,
                        Tensor w, Tensor mean, Tensor rstd);

/* --- rmsnorm: y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps); Zhang & Sennrich, arXiv:1910.07467 -------------------
 * The product is f32 and rounded once; Hugging Face's LlamaRMSNorm rounds x * rstd to act before it takes w.
 * With an update, the residual addition comes first: sum = x + update, with the bits of residual_forward; y =
 * rmsnorm(sum) as stored. Without one, sum is not written.
 *   y [N,C] act out   rstd [N] f32 out, kept for backward   x [N,C] act in   w [C] act in
 *   sum [N,C] act out, may be x itself, or none   update [N,C] act in, or none */
static inline void rmsnorm_forward(Stream *s, Tensor sum, Tensor y, Tensor rstd, Tensor x, Tensor update, Tensor w,
                                   float eps) {
    layernorm_forward(s, sum, y, tensor_none(), rstd, x, update, w, tensor_none(), eps);
}
/* Computes the gradients of rmsnorm. dx = dresidual + the norm's gradient.
 *   dx [N,C] act out, may be dresidual   dw [C] f32 out(+=)   dresidual [N,C] act in, or data NULL for none
 *   dy, x [N,C] act in */
static inline void rmsnorm_backward(Stream *s, Tensor dx, Tensor dw, Tensor dresidual, Tensor dy, Tensor x, Tensor w,
                                    Tensor rstd) {
    layernorm_backward(s, dx, tensor_none(), dw, tensor_none(), dresidual, dy, x, w, tensor_none(), rstd);
}

/* --- head_norm: rmsnorm of each head of q or k, as in Qwen3 (arXiv:2505.09388). Head h is columns first + [hD,
 * (h+1)D). All heads share w. Other columns are neither read nor written. The tensors may have different widths.
 *   y [N,any] act out, may be x   rstd [N,heads] f32 out, kept for backward   x [N,any] act in   w [D] act in */
void head_norm_forward(Stream *s, Tensor y, Tensor rstd, Tensor x, int64_t first, int64_t heads, Tensor w, float eps);
/* Computes the gradients of head_norm.
 *   dx [N,any] act out, may be dy   dw [D] f32 out(+=)   dy [N,any] act in
 *   x [N,any] act in, as it was before the norm */
void head_norm_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, int64_t first, int64_t heads, Tensor w,
                        Tensor rstd);

/* --- activation: y = f(x), the function of an MLP; activation.h has the formulas and derivatives ---------------------
 *   gelu_new  y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))   Hendrycks & Gimpel, arXiv:1606.08415, by tanh
 *   relu2     y = max(x,0)^2      y' = 2 max(x,0)                   So et al., arXiv:2109.08668
 *   silu      y = x / (1 + exp(-x))                                 Elfwing et al., arXiv:1702.03118
 *   gelu      y = x/2 (1 + erf(x / sqrt(2)))                        arXiv:1606.08415, exact
 * The words of the config, and of Hugging Face, are in the order of the enum. */
typedef enum { ACTIVATION_GELU_NEW, ACTIVATION_RELU2, ACTIVATION_SILU, ACTIVATION_GELU, ACTIVATION_COUNT } Activation;
static const char *const ACTIVATION_NAMES[ACTIVATION_COUNT + 1] = {"gelu_new", "relu2", "silu", "gelu", NULL};
/* Computes y = f(x), f the activation `kind`. y, x [N,M] act */
void activation_forward(Stream *s, Activation kind, Tensor y, Tensor x);
/* Computes the gradient of activation.
 *   dx = dy * f'(x); dx may be dy   dbias [M] f32 out(+=) column sums of dx as stored, or none */
void activation_backward(Stream *s, Activation kind, Tensor dx, Tensor dbias, Tensor dy, Tensor x);

/* --- linear: y = x w + b, w [K,M] as Hugging Face's Conv1D stores it, or y = x w^T, w [M,K] as its Linear does -------
 * `order` says how w and dw are stored: PLAIN is [K,M], TRANSPOSED is [M,K], which has no bias. */
typedef enum { PLAIN, TRANSPOSED } MatrixOrder;
/* Computes y = x w + b, or y = x w^T if order is TRANSPOSED.
 *   y [N,M] act out   x [N,K] act in   w [K,M] or [M,K] act in   b [M] act in, or none
 * The model's head is a linear layer too, logits = x wte^T. Rows V..V'-1 of its wte [V',C] are padding, V' = V rounded
 * up. They are zero and stay zero, and so do the padding columns of the logits and of their gradients. */
void linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b, MatrixOrder order);
/* Computes linear and activation: pre = x w + b, kept for backward; y = f(pre), of pre as stored.
 *   pre, y [N,M] act out */
void linear_activation_forward(Stream *s, Activation kind, Tensor y, Tensor pre, Tensor x, Tensor w, Tensor b);
/* Computes the last product of a branch, which joins the residual stream. Where that is faster than adding in the next
 * norm, it sets sum = stream + (x w + b), with residual_forward's bits, and returns 1. Otherwise it sets y = x w + b
 * and returns 0. The other output is not written.
 *   sum [N,M] act out   y [N,M] act out   stream [N,M] act in, which must not share memory with sum */
int linear_residual_forward(Stream *s, Tensor sum, Tensor y, Tensor stream, Tensor x, Tensor w, Tensor b,
                            MatrixOrder order);
/* Computes the gradients of linear.
 *   dx [N,K] act out = dy w^T, or dy w   dw f32 out(+=, =) [K,M] x^T dy, or [M,K] dy^T x
 *   db [M] f32 out(+=) column sums of dy, or none   dy [N,M] act in */
void linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, MatrixOrder order);
/* Does linear_backward, with w [K,M], where x is the output of attention and dx its gradient. Also sets delta [H,N] f32
 * out, as attention_delta computes it from dx as stored. */
void linear_delta_backward(Stream *s, Tensor dx, Tensor delta, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w);
/* Does linear_backward, with w [K,M], where x = f(pre). Sets the gradient of pre instead of dx:
 *   dpre = (dy w^T) * f'(pre)
 *   dbias [K] f32 out(+=) column sums of dpre as stored, the gradient of the bias in pre, or none */
void linear_activation_backward(Stream *s, Activation kind, Tensor dpre, Tensor dbias, Tensor dw, Tensor db, Tensor dy,
                                Tensor x, Tensor pre, Tensor w);

/* --- linear in fp8: products of x, w and dy as 8-bit numbers (core/tensor.h), x and w as e4m3, dy as e5m2 ------------
 * A tensor t counts as fp8(s t) / s; the sums are f32. K and M are multiples of 16, as cuBLASLt requires. Fields of
 * Fp8, each for x, w and dy:
 *   scale [3,FP8_SCALES] f32 in: 1/s at FP8_INVERSE, s at FP8_SCALE, powers of two; nothing reads the other two.
 *     cuBLASLt since 12.9 requires each 1/s at a multiple of 16 bytes
 *   amax [3] i32 in/out: bits of the largest |t| as f32, over earlier calls and this one
 *   counts [3,2] i64 in/out(+=), or none: elements above the largest value; elements that became zero
 * uses_own: scale is not read; each tensor's s follows from its own amax, which is found before the product. Forward
 * updates amax and counts of x and w, backward those of dy. */
enum { FP8_X, FP8_W, FP8_DY, FP8_TENSORS };
enum { FP8_INVERSE, FP8_SCALE, FP8_SCALES = 4 };
typedef struct { Tensor scale, amax, counts; int uses_own; } Fp8;
/* Computes linear in fp8. x may be codes of type E4M3, and in backward dy codes of type E5M2, that another fp8 op has
 * written. Pass that op the same f as this one. Then only that op updates amax and counts of x, or those of dy.
 *   y [N,M] bf16 out   x [N,K] bf16 in   w [K,M] or [M,K] bf16 in   b [M] bf16 in, or none */
void fp8_linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, Tensor b, MatrixOrder order, Fp8 f);
/* Computes the gradients of linear in fp8.
 *   dx [N,K] bf16 out   dw f32 out(+=, =) as in linear_backward   dy [N,M] bf16 in
 *   db [M] f32 out(+=) column sums of dy itself, or none; must be none if dy is codes */
void fp8_linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor db, Tensor dy, Tensor x, Tensor w, MatrixOrder order,
                         Fp8 f);

/* --- outputs in fp8: bf16 ops whose output is written as codes, an operand of the product that f belongs to ----------
 * Codes are a tensor [N,K] of E4M3 for f's x, or of E5M2 for its dy. N and K are multiples of 16. The scale is known
 * before the op: uses_own is 0. Codes have the memory of N K bf16 numbers. A GPU writes fp8(s t) in row-major order and
 * then transposed, [K,N]; the CPU writes fp8(s t) / s in bf16. t is rounded to bf16 first, so the bits are those of the
 * bf16 op followed by the product's own cast. The op updates f's amax and counts. */
void fp8_activation_forward(Stream *s, Activation kind, Tensor y, Tensor x, Fp8 f);
/* Does activation_backward with dx written as 8-bit codes.
 *   dx e5m2 out, in memory apart from dy and x   dbias: column sums of dx rounded to bf16 */
void fp8_activation_backward(Stream *s, Activation kind, Tensor dx, Tensor dbias, Tensor dy, Tensor x, Fp8 f);
void fp8_swiglu_forward(Stream *s, Tensor y, Tensor gate_up, Fp8 f);
/* Does swiglu_backward with dgate_up written as 8-bit codes.
 *   dgate_up e5m2 out, in memory apart from dy and gate_up */
void fp8_swiglu_backward(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up, Fp8 f);
/* Does layernorm_forward with y written as 8-bit codes. */
void fp8_layernorm_forward(Stream *s, Tensor sum, Tensor y, Tensor mean, Tensor rstd, Tensor x, Tensor update, Tensor w,
                           Tensor b, float eps, Fp8 f);
/* Does rmsnorm_forward with y written as 8-bit codes. */
static inline void fp8_rmsnorm_forward(Stream *s, Tensor sum, Tensor y, Tensor rstd, Tensor x, Tensor update, Tensor w,
                                       float eps, Fp8 f) {
    fp8_layernorm_forward(s, sum, y, tensor_none(), rstd, x, update, w, tensor_none(), eps, f);
}

/* --- swiglu: y = silu(gate) * up, silu(x) = x / (1 + exp(-x)); Shazeer, arXiv:2002.05202 -----------------------------
 *   y [N,F] act out   gate_up [N,2F] act in: gate is columns [0,F), up is [F,2F) */
void swiglu_forward(Stream *s, Tensor y, Tensor gate_up);
/* Computes the gradient of swiglu.
 *   dgate_up [N,2F] act out, may be gate_up   dy [N,F] act in */
void swiglu_backward(Stream *s, Tensor dgate_up, Tensor dy, Tensor gate_up);

/* --- experts: each of N tokens is given to k of E MLPs; Shazeer et al., arXiv:1701.06538 -----------------------------
 * R = N k rows, one for each expert of each token: assignment n k + j is token n's j-th. After sorting, the rows of one
 * expert are neighbours.
 * router: p = softmax(logits). A token's experts are the k with the largest p + bias, largest
 * first; the lower number wins a tie, and NaN comes last. The weights are their p, with WEIGHTS_NORMED divided by the
 * sum of the k. bias has no gradient (arXiv:2408.15664).
 *   probability [N,E] f32 out   expert [N,k] i32 out   weight [N,k] f32 out   logits [N,E] act in
 *   bias [E] act in, or none */
typedef enum { WEIGHTS_PLAIN, WEIGHTS_NORMED } RouterWeights;
void router_forward(Stream *s, Tensor probability, Tensor expert, Tensor weight, Tensor logits, Tensor bias,
                    RouterWeights kind);
/* Counts how many assignments of each sequence go to each expert, and adds the counts of all sequences to `total`.
 *   counts [B,E] i32 out(=)   total [E] i64 out(+=), or none   expert [N,k] i32 in, N/B tokens to a sequence */
void router_count(Stream *s, Tensor counts, Tensor total, Tensor expert);
/* Computes dlogits from dweight. With counts it adds *balance times the gradient of the balance loss. That loss is, in
 * each sequence of T tokens, E sum_e f_e P_e: f_e = counts_e / (k T) is the share of assignments of expert e, P_e the
 * mean p of the tokens (Fedus et al., arXiv:2101.03961, with f and P of a sequence, as in arXiv:2412.19437), summed
 * over the tokens. So dp_ne += *balance E/(k T) counts_e. f has no gradient.
 *   dlogits [N,E] act out   dweight [N,k] f32 in   balance [1] f32 in, counts [B,E] i32 in: or none */
void router_backward(Stream *s, Tensor dlogits, Tensor dweight, Tensor probability, Tensor expert, Tensor weight,
                     RouterWeights kind, Tensor counts, Tensor balance);
/* Sorts the assignments by expert. order: the assignment of each row, rows of expert 0 first, rows of one expert in the
 * order of their assignments. place: the inverse, the row of each assignment. Expert e has rows [first[e], first[e+1]).
 *   order, place [R] i32 out   first [E+1] i32 out   expert [N,k] i32 in */
void experts_sort(Stream *s, Tensor order, Tensor place, Tensor first, Tensor expert);
/* Copies to each row the vector of its token: y[r] = x[order[r] / k].
 *   y [R,C] act out   x [N,C] act in   order [R] i32 in; k = R/N */
void rows_dispatch(Stream *s, Tensor y, Tensor x, Tensor order);
/* y[n] = sum_j x[place[n k + j]] in the order of j: the sum of a token's rows, and the gradient of rows_dispatch.
 *   y [N,C] act out   x [R,C] act in */
void rows_combine(Stream *s, Tensor y, Tensor x, Tensor place);
/* y[r] = weight[order[r]] silu(gate) up; if order is none, weight[r]. Because the weight is applied here, a token's
 * output is a plain sum of rows, and the weight's gradient needs no output of an expert.
 *   y [R,F] act out   gate_up [R,2F] act in   weight [N,k] f32 in   order [R] i32 in */
void expert_swiglu_forward(Stream *s, Tensor y, Tensor gate_up, Tensor weight, Tensor order);
/* Computes the gradients of expert_swiglu.
 *   dgate_up [R,2F] act out, may be gate_up   dweight [N,k] f32 out   dy [R,F] act in */
void expert_swiglu_backward(Stream *s, Tensor dgate_up, Tensor dweight, Tensor dy, Tensor gate_up, Tensor weight,
                            Tensor order);
/* Multiplies the rows of each expert by the expert's own matrix: y[r] = x[r] w_e^T for the rows of expert e. w_e begins
 * e * stride elements after w.
 *   y [R,M] act out   x [R,K] act in   w [M,K] act in: expert 0's   first [E+1] i32 in */
void expert_linear_forward(Stream *s, Tensor y, Tensor x, Tensor w, int64_t stride, Tensor first);
/* Computes the gradients of expert_linear.
 *   dx [R,K] act out = dy w_e   dw [M,K] f32 out(+=, =), with w's stride: dw_e += dy^T x over the expert's rows
 *   dy [R,M] act in */
void expert_linear_backward(Stream *s, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, int64_t stride,
                            Tensor first);

/* --- heads: the columns of qkv are those of q, then k, then v; heads follow one another ------------------------------
 * Grouped keys: query heads [gG, (g+1)G), G = query/key, share the keys and values of head g; Ainslie et al.,
 * arXiv:2305.13245. */
typedef struct { int64_t query, key, size; } HeadShape; /* query: number of query heads, a multiple of key; key: number
                                                         * of heads of keys; size: channels of a head */
static inline int64_t heads_columns(HeadShape h) { return (h.query + 2 * h.key) * h.size; }

/* --- rope, rotary positions: rotates the channels i and i + D/2 of each head of q and k in place by the angle
 * position * frequencies[i]. D is the size of a head; Su et al., arXiv:2104.09864, pairs as in Hugging Face. v is
 * unchanged. Row n has the position `first` + the position of n % T. Full rotations are removed exactly, so position
 * 10^5 is as exact as 1.
 *   qkv [N,heads_columns] act in/out   frequencies [D/2] f32 in, radians a position */
typedef enum { ROPE_FORWARD = 1, ROPE_BACKWARD = -1 } RopeDirection; /* ROPE_BACKWARD rotates by the negative angles, as
                                                                      * gradients need */
void rope(Stream *s, Tensor qkv, Tensor frequencies, HeadShape h, int64_t T, int64_t first, ContextPart context,
          RopeDirection direction);
/* Sets frequencies[i] = theta^(-2i/D), i < D/2, on the host; D is even. With Llama 3's scaling a pair that makes fewer
 * than low_freq_factor rotations in original_max_position tokens gets 1/factor of its frequency. A pair with more than
 * high_freq_factor rotations keeps all of it. A pair between them gets a mean of both, linear in its rotations
 * (Grattafiori et al., arXiv:2407.21783; constants as in Hugging Face's files). factor 0 means no scaling. */
typedef struct { double factor, low_freq_factor, high_freq_factor; int64_t original_max_position; } RopeScaling;
void rope_frequencies(float *frequencies, int64_t D, double theta, RopeScaling scaling);

/* --- causal self-attention over heads; C = query heads x D, C' = key heads x D, in qkv C + 2 C' columns --------------
 * y_i = sum_j softmax_j(q_i.k_j / sqrt(D)) v_j over start_i <= j <= i, the keys of i's document so far. It is computed
 * tile by tile with a running maximum; T x T scores are never stored. Dao et al., arXiv:2205.14135, arXiv:2307.08691.
 *   y [B*T,C] act out   qkv [B*T,C+2C'] act in
 *   lse [B*H,T] f32 out: log of the softmax denominator, kept for backward; H query heads
 * Context ranks may share the sequences. Then this rank has T tokens of each, a multiple of 128, and queries in qkv see
 * the keys and values of all ranks' tokens at earlier positions. Sums have the same order as on one rank.
 *   keys [ranks*B*T,2C'] act in: columns C.. of each rank's qkv, in order of rank; none with WHOLE_SEQUENCE */
void attention_context_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor keys, Tensor starts,
                               ContextPart context, HeadShape h);
static inline void attention_forward(Stream *s, Tensor y, Tensor lse, Tensor qkv, Tensor starts, HeadShape h) {
    attention_context_forward(s, y, lse, qkv, tensor_none(), starts, WHOLE_SEQUENCE, h);
}
/* Computes dqkv. The gradient of a shared key or value is the sum over its query heads, in their order.
 *   dqkv [B*T,C+2C'] act out   dy, y [B*T,C] act in
 *   delta [H,B*T] f32 in, of dy and y; if it is none, it is computed first
 *   dbias [C+2C'] f32 out(+=) column sums of dqkv as stored, or none. Only some kernels add them. Returns 1 if they
 *     were added
 * With context ranks only the columns of q of dqkv are set, and dbias is none.
 *   dkeys [ranks*B*T,2C'] act out: what this rank's queries add to the gradients of the keys; otherwise none */
int attention_context_backward(Stream *s, Tensor dqkv, Tensor dbias, Tensor dkeys, Tensor dy, Tensor y, Tensor lse,
                               Tensor delta, Tensor qkv, Tensor keys, Tensor starts, ContextPart context, HeadShape h);
static inline int attention_backward(Stream *s, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse,
                                     Tensor delta, Tensor qkv, Tensor starts, HeadShape h) {
    return attention_context_backward(s, dqkv, dbias, tensor_none(), dy, y, lse, delta, qkv, tensor_none(), starts,
                                      WHOLE_SEQUENCE, h);
}
/* Does attention_backward with dqkv written as 8-bit codes, the operand dy of the product that f belongs to. dbias is
 * summed from dqkv rounded to bf16. Returns 0 without writing anything if no kernel can. Only a GPU's kernels with a
 * block a head can: Hopper, heads of 64 channels, T a multiple of 16. */
int fp8_attention_backward(Stream *s, Tensor dqkv, Tensor dbias, Tensor dy, Tensor y, Tensor lse, Tensor delta,
                           Tensor qkv, Tensor starts, HeadShape h, Fp8 f);
/* Computes delta[h,i] = sum of dy[i,c] y[i,c] over the columns c of head h. The softmax' gradient subtracts it from the
 * gradient of each probability.
 *   delta [H,N] f32 out   dy, y [N,C] act in */
void attention_delta(Stream *s, Tensor delta, Tensor dy, Tensor y);
/* Computes attention's outputs y_i for the last n of the T tokens of one sequence. qkv keeps the queries, keys and
 * values so far. The sums have another order than in attention_forward, so rounding may differ.
 *   y [n,C] act out   qkv [T,C+2C'] act in */
void attention_last_forward(Stream *s, Tensor y, Tensor qkv, HeadShape h);

/* --- classifier: loss[i] = lse[i] - y[i,target[i]], lse[i] = log(sum_v exp(y[i,v])), v < V; y = logits ---------------
 * softcap c > 0: y = c tanh(logits / c), Gemma Team, arXiv:2408.00118. z: the gradients are those of loss[i] + z
 * lse[i]^2, the z-loss of Chowdhery et al., arXiv:2204.02311; the loss itself does not include it. */
typedef struct { float softcap, z; } LossTerms;
static const LossTerms PLAIN_LOSS = {0.0f, 0.0f};
/* Computes the cross-entropy loss of each row. y are the logits after the softcap c, lse[i] = log(sum_v exp(y[i,v])),
 * and z is the factor of the z-loss. If scale is not 0, logits become their gradients, 0 for v >= V:
 *   logits[i,v] = scale * ((1 + 2 z lse[i]) softmax(y[i])[v] - (v == target[i])) * (1 - (y[i,v] / c)^2)
 * The last factor exists only with a softcap.
 *   loss [n] f32 out   logits [n,V'] act in, or in/out; columns V..V'-1 are not read   targets [n] i32 in */
void classifier_loss(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, LossTerms terms, float scale);

/* Loss and gradients of rows whose columns are divided over several ranks. Each rank has V of them, perhaps none. y are
 * the logits after the softcap. Between the ops the ranks reduce two numbers a row:
 *   1. most [n] f32 out: the largest of this rank's y, -infinity if V = 0; then replaced by the maximum over the ranks
 *   2. sums [2,n] f32 out: sum_v exp(y[i,v] - most[i]); the target's y, 0 if another rank has it (target[i] = V'); then
 *      added over the ranks
 *   3. loss [n] f32 out = log(sums[0,i]) + most[i] - sums[1,i]. If scale is not 0, logits become their gradients, as in
 *      classifier_loss */
void classifier_part_most(Stream *s, Tensor most, Tensor logits, int64_t V, LossTerms terms);
void classifier_part_sums(Stream *s, Tensor sums, Tensor logits, Tensor targets, int64_t V, Tensor most,
                          LossTerms terms);
void classifier_part_loss(Stream *s, Tensor loss, Tensor logits, Tensor targets, int64_t V, Tensor most, Tensor sums,
                          LossTerms terms, float scale);

/* --- optimizer ---------------------------------------------------------------------------------------------------- */

typedef struct {
    double  learning_rate, beta1, beta2, eps, weight_decay; /* settings of the step; 1 - beta1 and 1 - beta2 are
                                                             * computed in f64, and then rounded to f32 */
    int64_t step;                                           /* number of the step, from 1, for the bias corrections 1 -
                                                             * beta^step */
} OptimizerStep;

/* One range of parameters p that an optimizer updates, each element on its own. lr is multiplied by `rate` and decay
 * divided by it; rate 0 counts as 1. decay = weight_decay if `decays`, otherwise 0. g = grad_scale * grad.
 *   master [n] f32 in/out: p   m, v [n] f32 in/out: states of the optimizer; none if it has fewer   grad [n] f32 in
 *   working [n] act out: p rounded; if it is F32 it is the master itself
 * A list of spans is updated in one pass. Each has any n; all have one act type. */
typedef struct { Tensor master, m, v, working, grad; int decays; float rate; } OptimizerSpan;

/* AdamW, Loshchilov & Hutter, arXiv:1711.05101:
 *   m = beta1 m + (1-beta1) g      v = beta2 v + (1-beta2) g^2
 *   p = p - lr ( (m/(1-beta1^t)) / (sqrt(v/(1-beta2^t)) + eps) + decay p ) t: number of the step */
void adamw_update(Stream *s, const OptimizerSpan *span, int spans, OptimizerStep h, float grad_scale);
/* Updates one span (range of parameters) whose tensors are in host memory, on the cores of this process, before it
 * returns. The bits are those of the CPU build. If working is F32 but not the master itself, it is not written. */
void adamw_update_host(OptimizerSpan span, OptimizerStep h, float grad_scale);

/* Muon: Jordan et al., kellerjordan.github.io/posts/muon, with the step of Liu et al., arXiv:2502.16982. Its ops in
 * their order begin with Nesterov's momentum: g = grad_scale * grad; m = m + (1-beta) (g - m); grad = g + beta (m - g)
 *   grad, m [n] f32 in/out */
void muon_momentum(Stream *s, Tensor grad, Tensor m, double beta, float grad_scale);
/* Step 2 of Muon. Each of the `parts` matrices X [R,M] that are side by side in x becomes nearly orthogonal, with
 * singular values about 1, by Newton-Schulz:
 *   X = X / max(|X|, 1e-7);   five times: A = X X^T, X = a X + (b A + c A A) X,   a, b, c = 3.4445, -4.7750, 2.0315
 * If R > M, A = X^T X and X = a X + X (b A + c A A). X, A and the products' results are stored in `type`; the norm uses
 * float64 sums. Polar Express (Amsel et al., arXiv:2505.16932) has other a, b, c in each iteration, and X = X /
 * max(1.02 |X|, 1e-7).
 *   x [R,parts*M] f32 in/out   type: F32, BF16 or F16 (the CPU: F32, BF16) */
typedef enum { NEWTON_QUINTIC, NEWTON_POLAR_EXPRESS } NewtonKind;
void newton_schulz(Stream *s, Tensor x, int64_t parts, DType type, NewtonKind kind);
/* NorMuon, between steps 2 and 3 of Muon (Li et al., arXiv:2510.05491). It makes the neurons of each matrix, its rows
 * or columns, move by about the same distance.
 *   v = v + (1-beta2) (mean of the neuron's x^2 - v);   y = x / (sqrt(v) + 1e-10);   x = y sqrt(min(R,M)) / |y|
 * Each element of v holds the value of its neuron. An x of zeros stays zero.
 *   x, v [R,parts*M] f32 in/out */
typedef enum { NEURON_ROWS, NEURON_COLUMNS } NeuronSide;
void normuon(Stream *s, Tensor x, Tensor v, int64_t parts, NeuronSide side, double beta2);
/* Step 3 of Muon updates weights p by u, the result of steps 1 and 2: p = p - decay p; p = p - rate u. The caller's
 * rate is the learning rate times 0.2 sqrt(max(R,M)) for a matrix [R,M], so that Muon and AdamW use one learning rate.
 *   p [n] f32 in/out   u [n] f32 in */
void muon_update(Stream *s, Tensor p, Tensor u, double rate, double decay);

/* Sets the tensors of a list to zero.   x[count], each [n] f32 out, of any n */
void zero_tensors(Stream *s, const Tensor *x, int count);
/* Adds the sum of squares of the tensors of a list to `sum`. Squares of 64 elements are added in float64 in a fixed
 * order, these sums exactly. So every cut of a tensor at multiples of 64, and every order of the slices, gives the same
 * sum.
 *   sum: an Exact of core/exact.h, [EXACT_WORDS] i64 out(+=)   x[count], each [n] f32 in, of any n */
void norm_squared(Stream *s, Tensor sum, const Tensor *x, int count);
/* Adds the sum of x to `sum`, exactly.   sum [EXACT_WORDS] i64 out(+=)   x [n] f32 in */
void sum_forward(Stream *s, Tensor sum, Tensor x);
/* y = y + x. Adds the gradients of micro-batches where the order is fixed (the tree of comm/comm.h).
 *   y [n] f32 in/out   x [n] f32 in */
void add_forward(Stream *s, Tensor y, Tensor x);
/* Copies columns [from_first, from_first + columns) of `from` to columns [to_first, to_first + columns) of `to`.
 *   to, from [N,any] of one type */
void copy_columns(Stream *s, Tensor to, int64_t to_first, Tensor from, int64_t from_first, int64_t columns);
/* y = x, rounded to y's type.   y, x [n] any of F32, BF16, F16 (the CPU: F32, BF16) */
void cast_forward(Stream *s, Tensor y, Tensor x);

/* Adds to `hash`, modulo 2^64 and in any order, mix(word, index i of the word) over the 64-bit words of x's memory:
 *   z = word + i STEP;   z = (z ^ z>>32) FACTOR;   mix = z ^ z>>29
 * Each step is invertible for a given i, so a change within one word always changes the sum. FACTOR and STEP are odd,
 * with random bits.
 *   hash [1] i64 out(+=), its 64 bits   x [n] of any type, aligned to 8 bytes; a last word that x does not fill is
 *     padded with zeros */
#define HASH_STEP   0x9e3779b97f4a7c15u
#define HASH_FACTOR 0xd6e8feb86659fd93u
void hash_words(Stream *s, Tensor hash, Tensor x);

/* Returns the rate of this machine's matrix products in act type at M = N = K = n, in FLOP/s: the median over at most
 * budget_ms. Allocates and frees its own memory. For the program's start and for benches. */
double  matmul_rate(DType act, MathMode math, int64_t n, double budget_ms);
int64_t matmul_rate_size(void); /* n at which products are about as fast as they get: 1024 on the CPU, 4096 on a GPU */

#ifdef CUDA_EMU /* The emulator compares the bytes that a contract promises with those that the kernels access
                 * (test/emu/count.cpp). */
#define stream_note(s, op, a, b, c, d, flops, bytes) \
    (emu::note_op((s)->ledger ? NULL : op, bytes), stream_note(s, op, a, b, c, d, flops, bytes))
#endif

#ifdef __cplusplus
}
#endif
#endif
