/* gpt_sizes.c - the functions of gpt.h that compute sizes from a model's shape and ranks. */
#include "model/gpt.h"

/* the rows of a large chunk are a multiple, so that all tiles of the product are full */
enum { HEAD_TILE = 128 };
/* Bytes of logits in a classifier chunk. A chunk is so large that reading and writing dwte, fp32, costs little compared
 * with the chunk's products. A GPU's products are faster relative to its memory: at 124M parameters, 128 MiB would read
 * and write dwte 47 times in a micro-batch of 64. */
static const int64_t LOGITS_BYTES_CPU = 128 << 20, LOGITS_BYTES_GPU = 1 << 30;

static int64_t tensor_ranks(const Gpt *g) { return g->tensor ? comm_size(g->tensor) : 1; }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t gpt_head_rows(int64_t N, int64_t padded_vocab, DType act, int on_gpu) {
    int64_t bytes = N * padded_vocab * (int64_t)dtype_bytes(act);
    int64_t chunks = ceil_div(bytes, on_gpu ? LOGITS_BYTES_GPU : LOGITS_BYTES_CPU);
    if (chunks < 2 && N >= 64) chunks = 2;
    int64_t rows = ceil_div(N, chunks < 1 ? 1 : chunks);
    return rows > HEAD_TILE ? ceil_div(rows, HEAD_TILE) * HEAD_TILE : rows;
}

int64_t gpt_scored_length(const Gpt *g, int64_t tokens) {
    int64_t most = context_part(g->context).ranks * g->T, length = gpt_sample_step(g);
    while (length < tokens) length *= 2;
    return length < most ? length : most;
}
int gpt_keeps_past(const Gpt *g) { return !g->context && block_keeps_past(g->use, g->recompute); }

int64_t gpt_token_rows(const Gpt *g) { return tensor_ranks(g); }

int64_t gpt_sample_step(const Gpt *g) {
    int64_t step = SAMPLE_STEP;
    /* a rank's share of a sequence is whole tiles of attention */
    if (g->context) step = 4 * SAMPLE_STEP * comm_size(g->context);
    for (int64_t least = step; step / context_part(g->context).ranks % tensor_ranks(g);) step += least;
    return step;
}
