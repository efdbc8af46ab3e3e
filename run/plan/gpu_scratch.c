/* gpu_scratch.c - an upper bound of the scratch memory of a GPU: see simulate.h. Each function repeats the allocations
 * that the host code of some operations in layers/ (.cu) makes, with their constants rounded up.
 * test/emu/test_plan_bound.sh compares the sum with what that code allocates. */
#include "run/plan/simulate.h"

#include "core/format.h"
#include "model/matrices.h"
#include "model/params.h"

/* The sizes of a rank: N rows, B sequences and T positions of a micro-batch, and the number of tensor ranks. */
typedef struct {
    const ModelSpec *spec;
    ModelShape       shape;
    int64_t          N, B, T, tensor;
    int64_t          widest; /* most columns that a product of a block reads or writes */
    int64_t          act_bytes;
} Sizes;

/* Returns the bytes of the buffers for sums over the columns of a matrix, which are computed in parts of its rows. One
 * kind is for the gradient of a bias, by bias_backward, an activation, or the epilogue of a product (bias.cuh,
 * linear.cu). The other is for the weights of norms (norm.cu). */
static int64_t column_sums(Sizes z) {
    enum { PARTS = 128, ASIDE = 2, NORM_BLOCKS = 3 * 264, RMS_CHANNELS = 1 << 20 };
    return 4 * ((PARTS + ASIDE) * z.widest + larger_of(NORM_BLOCKS * z.shape.n_embd, RMS_CHANNELS));
}

/* Returns the bytes of the buffers of attention_backward.cu: log-sum-exp and delta for each padded query, and delta
 * once more without padding; sums of dq by heads, at most 40 MiB; sums of the rows of dqkv, and column sums of
 * these. */
static int64_t attention(Sizes z) {
    enum { PADDED = 128, HEADS_BYTES = 40 << 20, KEYS = 64, ROWS = 16, PARTS = 8, COLUMN_PARTS = 128 };
    int64_t heads = z.B * dim_size(DIM_Q, z.shape) / shape_head_dim(z.shape) / z.tensor, D = shape_head_dim(z.shape);
    int64_t sums = 4 * heads * round_up(z.T, KEYS) * D, columns = dim_size(DIM_QKV, z.shape) / z.tensor;
    int64_t parts = z.B * larger_of((z.T + ROWS - 1) / ROWS, PARTS);
    return 4 * heads * (2 * round_up(z.T, PADDED) + z.T) + (sums < HEADS_BYTES ? sums : HEADS_BYTES) +
           4 * (parts + COLUMN_PARTS) * columns;
}

/* Returns the bytes of the buffers that sort tokens or rows of experts by key (embedding.cu, experts.cu). They hold 256
 * counts for each 1,024 keys. */
static int64_t sorted(int64_t keys) { return 4 * (5 * keys + 256 * (keys / 1024 + 1)); }

/* Returns the bytes of the buffers of fp8.cu and linear.cu. These are 8-bit copies of the three matrices of a product,
 * plain and transposed, and a gradient and the output of a norm in bf16. */
static int64_t fp8(Sizes z, const Layout *l) {
    enum { ROWS = 16 };
    int64_t most = 0, rows = round_up(z.N * larger_of(1, z.shape.top_k), ROWS);
    if (!z.spec->fp8) return 0;
    for (int i = 0; i < l->params; i++) {
        int64_t m = l->param[i].local[0], n = l->param[i].local[1];
        if (l->param[i].group == GROUP_MATRIX) most = larger_of(most, 3 * rows * larger_of(m, n) + m * n);
    }
    return most + 2 * rows * (z.widest + z.shape.n_embd);
}

/* Returns the bytes of the buffers of the Muon optimizer. matrices.c has two buffers for matrices that ranks exchange.
 * muon.h has four matrices in the type of the activations. */
static int64_t muon(Sizes z, const Layout *l) {
    enum { DESKS = 2, FEW = 4096 };
    int64_t part = 0, whole = 0, newton = 0;
    int64_t ranks = z.spec->shards.ranks * z.tensor * larger_of(1, z.spec->shards.replicas);
    if (!z.spec->optimizer || !z.spec->optimizer->update_matrices) return 0;
    for (int i = 0; i < l->params; i++) {
        const Param *p = &l->param[i];
        if (p->group != GROUP_MATRIX) continue;
        int64_t side = p->dim[0] < p->dim[1] ? p->dim[0] : p->dim[1];
        part = larger_of(part, round_up(p->local_elems, LAYOUT_ALIGN) * z.tensor);
        whole = larger_of(whole, z.tensor > 1 ? p->elems : 0);
        newton = larger_of(newton, 2 * p->elems + 2 * side * side);
    }
    return newton * z.act_bytes + FEW + (ranks > 1 ? DESKS * MATRIX_FIELDS * 4 * (part + whole) : 0);
}

size_t gpu_scratch_bytes(const ModelSpec *spec) {
    enum { WORKSPACE = 128 << 20 }; /* given to cuBLASLt by layers/matmul.cu */
    enum { SLACK = 1 << 20 };       /* enough for rounding every buffer up to ARENA_ALIGN */
    Layout  l = model_spec_layout(spec);
    int64_t context = larger_of(1, spec->context_ranks);
    Sizes   z = {.spec = spec, .shape = spec->shards.shape, .N = spec->B * spec->T / context, .B = spec->B,
                 .T = spec->T / context, .tensor = larger_of(1, spec->shards.tensor_ranks),
                 .act_bytes = (int64_t)dtype_bytes(spec->shards.act)};
    for (int i = 0; i < l.params; i++)
        if (l.param[i].group == GROUP_MATRIX)
            z.widest = larger_of(z.widest, larger_of(l.param[i].local[0], l.param[i].local[1]));
    int64_t tokens = sorted(z.N) + sorted(z.N * z.shape.top_k) + 4 * z.shape.n_experts;
    int64_t sum = WORKSPACE + column_sums(z) + attention(z) + tokens + fp8(z, &l) + muon(z, &l) + SLACK;
    layout_destroy(&l);
    return (size_t)sum;
}
