/* ranks_experts.c - a model whose experts are divided among ranks (parallel.expert), compared with PyTorch's float64
 * records. Compared are the first step's gradients by row of the parameter table, the losses, the norms and the last
 * weights. Memory is enough for all rows of the experts at once, or so small that they are exchanged in rounds.
 *
 * Runs on 2 4 ranks.
 */
#include "model/optimizer.h"
#include "test/model/moe_shape.h"
#include "test/model/ranks_fixture.h"

enum { FEW_STEPS = 3, SEQUENCES = 4 };
static const ModelShape SHAPES[] = {MOE_SHAPE(BALANCE_SWITCH, 0.05), MOE_SHAPE(BALANCE_BIAS, 0.01)};
static const char *const RECORDS[] = {"test/ref/data/qwen3_moe_switch.rec", "test/ref/data/qwen3_moe_bias.rec"};
/* Allowed relative differences from PyTorch's float64 records: in fp32 for the losses, the norms, the first
 * gradients and the last weights; in bf16 for the losses alone. */
static const double LOSS_ALLOWED = 2e-6, NORM_ALLOWED = 1.2e-5, GRADIENT_ALLOWED = 2e-6, WEIGHT_ALLOWED = 1e-5, BF16_ALLOWED = 4e-3;

typedef struct {
    int    ranks, expert, stages, copies, zero;
    double capacity;
    Recompute recompute;
    int    B, balance;  /* B: sequences of a micro-batch; balance: index into SHAPES and RECORDS */
    DType  act;
    int    steps;
    /* least number of rounds in which the rows of some block's experts must be exchanged; more than 1 if memory is
     * small */
    int    rounds;
    const OptimizerKind *optimizer;
} Grid;

static const Grid GRIDS[] = {
    {2, 2, 1, 1, 1, 2.0, RECOMPUTE_NONE, 2, 0, F32, STEPS, 1, &OPTIMIZER_ADAMW},
    {2, 2, 1, 1, 1, 0.3, RECOMPUTE_LIGHT, 1, 1, F32, STEPS, 3, &OPTIMIZER_ADAMW},
    {2, 2, 1, 1, 3, 0.3, RECOMPUTE_BLOCK, 1, 0, F32, FEW_STEPS, 3, &OPTIMIZER_ADAMW},
    {2, 2, 1, 1, 1, 1.0, RECOMPUTE_NONE, 1, 0, BF16, FEW_STEPS, 1, &OPTIMIZER_ADAMW},
    {4, 2, 1, 1, 2, 2.0, RECOMPUTE_BLOCK, 1, 1, F32, STEPS, 1, &OPTIMIZER_ADAMW},
    {4, 2, 1, 2, 3, 0.4, RECOMPUTE_NONE, 1, 0, F32, FEW_STEPS, 2, &OPTIMIZER_ADAMW},
    {4, 2, 2, 1, 2, 1.0, RECOMPUTE_LIGHT, 1, 0, F32, FEW_STEPS, 1, &OPTIMIZER_ADAMW},
};

/* --- a model on a grid -------------------------------------------------------------------------------------------- */

typedef struct {
    Ranked      at;
    const Grid *grid;
} Job;

static int64_t micro_batches(const Job *j) { return SEQUENCES / (j->grid->B * j->at.groups.datas); }

static void create(Job *j, const Grid *g) {
    Mesh mesh = mesh_of(comm_size(world), (MeshSizes){1, 1, g->stages, g->copies});
    *j = (Job){.grid = g, .at.groups = groups_create(world, mesh, 0)};
    groups_add_experts(&j->at.groups, g->expert);
    if (g->optimizer->update_matrices) groups_add_matrices(&j->at.groups);
    groups_set_kind(&j->at.groups, COMM_RING);
    ModelSpec spec = {.shards = {.shape = SHAPES[g->balance],
                                 .ranks = mesh.size[AXIS_SHARD],
                                 .replicas = g->copies,
                                 .expert_ranks = g->expert,
                                 .zero_stage = g->zero,
                                 .act = g->act,
                                 .use = GPT_TRAINING},
                      .capacity = g->capacity,
                      .optimizer = g->optimizer,
                      .optimizer_settings = OPTIMIZER_MUON.settings,
                      .B = g->B,
                      .T = T,
                      .pipeline = {.stages = g->stages, .parts = 1, .micro_batches = micro_batches(j)},
                      .recompute = g->recompute};
    ranked_create(&j->at, spec, SEQUENCES * T);
}

/* Returns this rank's next micro-batch of B sequences. Micro-batch k of a step has sequences k B to k B + B - 1 of
 * the SEQUENCES of the step. Each data rank takes several consecutive micro-batches. */
static Batch next_batch(void *job) {
    Job    *j = (Job *)job;
    int64_t B = j->grid->B, first = (j->at.groups.data * micro_batches(j) + j->at.micro++) * B;
    Arena  *room = &j->at.tokens;
    Batch   batch = {arena_tensor(room, I32, 2, B, T, 1), arena_tensor(room, I32, 2, B, T, 1), tensor_none()};
    int32_t inputs[2 * T], targets[2 * T];
    const int32_t *tokens = (const int32_t *)record_find(&records, "tokens")->data + (j->at.step * SEQUENCES + first) * (T + 1);
    for (int64_t i = 0; i < B * T; i++) inputs[i] = tokens[i / T * (T + 1) + i % T], targets[i] = tokens[i / T * (T + 1) + i % T + 1];
    device_from_host(&j->at.model->stream, batch.inputs, inputs);
    device_from_host(&j->at.model->stream, batch.targets, targets);
    return batch;
}

/* Changes the bias of each expert, which balances the load, after an update: by the number of tokens that it got on all
 * ranks. */
static void balance(Model *m) {
    int64_t *counts = malloc(tensor_bytes(m->sums.experts));
    CHECK(counts, "no memory");
    device_to_host(&m->stream, counts, m->sums.experts);
    comm_all_reduce_i64(world, counts, (int)tensor_elems(m->sums.experts), COMM_SUM);
    experts_balance(&m->optimizer, &m->stream, counts);
    shards_publish(m->shards, &m->stream);
    free(counts);
}

/* loss, norm, gradient, weight: largest relative errors of a run; last: loss of its last step; rounds: the most rounds
 * in which a block exchanged rows */
typedef struct { double loss, norm, gradient, weight, last; int64_t rounds; } Errors;

static Errors train(const Grid *g) {
    Job    j;
    Errors e = {0};
    records = record_load(RECORDS[g->balance]);
    create(&j, g);
    for (int64_t step = 0; step < g->steps; step++) {
        Numbers n = gradients(&j.at, step, SEQUENCES * T, next_batch, &j);
        double  loss = record_value(record_find(&records, "loss"), step), norm = record_value(record_find(&records, "grad_norm"), step);
        e.loss = fmax(e.loss, fabs(n.loss - loss) / loss);
        e.norm = fmax(e.norm, fabs(n.norm - norm) / norm);
        if (step == 0 && g->act == F32) e.gradient = worst_row(&j.at, "grad", g->copies, grad_of);
        update(&j.at, step, n.norm);
        balance(j.at.model);
        e.last = n.loss;
    }
    if (g->act == F32 && g->steps == STEPS) e.weight = worst_row(&j.at, "final", g->copies, master_of);
    e.rounds = g->expert > 1 ? j.at.model->gpt.experts->rounds : 1;
    comm_all_reduce_i64(world, &e.rounds, 1, COMM_MAX);
    ranked_drop(&j.at);
    record_unload(&records);
    return e;
}

static int is_right(const Grid *g, Errors e) {
    if (e.rounds < g->rounds) return 0;
    if (g->act != F32) return e.loss <= BF16_ALLOWED && isfinite(e.norm);
    return e.loss <= LOSS_ALLOWED && e.norm <= NORM_ALLOWED && e.gradient <= GRADIENT_ALLOWED && e.weight <= WEIGHT_ALLOWED;
}

static void divided_experts_compute_pytorch_s_steps(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof GRIDS / sizeof *GRIDS; i++) {
        const Grid *g = &GRIDS[i];
        if (g->ranks != comm_size(world)) continue;
        Errors e = train(g);
        if (comm_rank(world) == 0)
            print_message("expert %d, pipeline %d, replicas %d, capacity %.1f, zero_stage %d, %s: loss %.2e, norm %.2e, gradient %.2e, "
                          "weight %.2e, %lld rounds\n",
                          g->expert, g->stages, g->copies, g->capacity, g->zero, dtype_name(g->act), e.loss, e.norm, e.gradient, e.weight,
                          (long long)e.rounds);
        wrong += !is_right(g, e);
    }
    EXPECT_ON_ALL(wrong == 0);
}

static void the_same_grid_gives_the_same_bits(void **state) {
    (void)state;
    Grid   g = GRIDS[comm_size(world) == 2 ? 2 : 5];
    Errors once = train(&g), again = train(&g);
    EXPECT_ON_ALL(memcmp(&once.last, &again.last, sizeof once.last) == 0);
}

/* Each of two ranks has half of the experts. Large biases send all tokens to the experts of the first rank. Those of
 * the other rank get no rows, so their gradients must be zero. */
static void experts_without_rows_have_zeros(void **state) {
    (void)state;
    Job    j;
    Grid   g = {0, 2, 1, 1, 1, 2.0, RECOMPUTE_NONE, 1, 1, F32, 1, 1, &OPTIMIZER_ADAMW};
    size_t field = block_kind(SHAPES[1])->experts_bias;
    records = record_load(RECORDS[1]);
    create(&j, &g);
    for (int b = 1; b <= SHAPES[1].n_layer; b++) {
        const char *weights = (const char *)shards_need(j.at.model->shards, &j.at.model->stream, b);
        Tensor      bias = *(const Tensor *)(const void *)(weights + field);
        float      *values = calloc((size_t)bias.dim[0], sizeof *values);
        for (int64_t e = 0; e < SHAPES[1].n_experts / 2; e++) values[e] = 9.0f;
        device_from_host(&j.at.model->stream, bias, values);
        free(values);
    }
    Numbers n = gradients(&j.at, 0, SEQUENCES * T, next_batch, &j);
    int     wrong = !isfinite(n.norm);
    for (int i = 0; i < j.at.model->shards->spans; i++) {
        Span   span = j.at.model->shards->span[i];
        int    is_idle = j.at.model->shards->layout.param[span.param].expert > SHAPES[1].n_experts / 2;
        float *grad = malloc(sizeof *grad * (size_t)span.elems);
        device_to_host(&j.at.model->stream, grad, shards_grad(j.at.model->shards, span));
        for (int64_t k = 0; is_idle && k < span.elems; k++) wrong += grad[k] != 0.0f;
        free(grad);
    }
    EXPECT_ON_ALL(wrong == 0);
    ranked_drop(&j.at);
    record_unload(&records);
}

/* Muon needs whole matrices. When ranks divide the experts, the matrices of an expert are on fewer ranks. The losses
 * must be those without division. */
static void muon_takes_the_same_steps(void **state) {
    (void)state;
    static const OptimizerKind *const kinds[] = {&OPTIMIZER_MUON, &OPTIMIZER_NORMUON};
    for (int k = 0; k < 2; k++) {
        Grid   whole = {0, 1, 1, 1, 1, 2.0, RECOMPUTE_NONE, 1, 0, F32, FEW_STEPS, 1, kinds[k]}, divided = whole;
        divided.expert = 2;
        Errors a = train(&whole), b = train(&divided);
        if (comm_rank(world) == 0) print_message("%s %d: losses differ by %.2e\n", kinds[k]->name, k, fabs(a.last / b.last - 1.0));
        /* the last losses are equal, and the losses differ from the recorded ones, which were trained with AdamW */
        EXPECT_ON_ALL(fabs(a.last / b.last - 1.0) <= LOSS_ALLOWED && a.loss > 1e-4);
    }
}

int main(void) {
    const struct CMUnitTest cases[] = {cmocka_unit_test(divided_experts_compute_pytorch_s_steps),
                                       cmocka_unit_test(the_same_grid_gives_the_same_bits),
                                       cmocka_unit_test(experts_without_rows_have_zeros), cmocka_unit_test(muon_takes_the_same_steps)};
    return RUN_ON_RANKS(cases);
}
