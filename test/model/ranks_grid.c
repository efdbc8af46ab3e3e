/* ranks_grid.c - the model on grids of ranks against PyTorch's float64 record of twenty AdamW steps (test/ref/generate.py):
 * the first step's gradients by row of the parameter table, losses, norms, and the last weights.
 *
 * Runs on 1 2 3 4 8 ranks.
 *
 * One launch walks through many grids. All launches together have every pair of values of two axes that any grid has, the
 * larger ones first, and each some of its own: the first two of a launch take all twenty steps, the others the first
 * five. ALL_GRIDS=N: instead eight grids of all, from number N on, all steps.
 */
#include "core/exact.h"
#include "model/groups.h"
#include "model/model.h"
#include "test/comm/ranks.h"
#include "test/ref/record.h"

#include <math.h>

enum { STEPS = 20, FEW_STEPS = 5, WARMUP = 5, SEQUENCES = 8, T = 256, PARAMS = 52 };
static const ModelShape SHAPE = GPT2_SHAPE(4, 4, 32, T, 389);
static const double LEARNING_RATE = 1e-3, FINAL_FRACTION = 0.1, GRAD_CLIP = 1.0;
static const double LOSS_ALLOWED = 2e-6, NORM_ALLOWED = 5e-6, GRADIENT_ALLOWED = 2e-6, WEIGHT_ALLOWED = 2e-5, BF16_ALLOWED = 4e-3;

static RecordFile records;

/* --- grids -------------------------------------------------------------------------------------------------------- */

enum {
    TENSOR,
    CONTEXT,
    STAGES,
    PARTS,
    COPIES,
    ZERO,
    RECOMPUTE,
    SEQUENCES_AT_ONCE,
    PRECISION,
    OPTIMIZER_MEMORY,
    FACTORS,
    VALUES = 9
};
typedef struct { int of[FACTORS]; } Grid;

static int datas_of(Grid g, int ranks) { return ranks / (g.of[TENSOR] * g.of[CONTEXT] * g.of[STAGES]); }
static int64_t micro_batches(Grid g, int ranks) { return SEQUENCES / (g.of[SEQUENCES_AT_ONCE] * datas_of(g, ranks)); }

static int is_possible(Grid g, int ranks) {
    int shared = g.of[TENSOR] * g.of[CONTEXT] * g.of[STAGES];
    if (ranks % (shared * g.of[COPIES]) || SEQUENCES % (datas_of(g, ranks) * g.of[SEQUENCES_AT_ONCE])) return 0;
    if (g.of[PARTS] > 1 &&
        (g.of[STAGES] == 1 || g.of[PARTS] * g.of[STAGES] > SHAPE.n_layer || micro_batches(g, ranks) % g.of[STAGES]))
        return 0;
    return g.of[CONTEXT] <= 2 && g.of[STAGES] <= SHAPE.n_layer;
}

/* All grids of so many ranks, in a fixed order; returns how many. */
static int list_grids(int ranks, Grid *grid) {
    static const int MOST[FACTORS] = {8, 2, 4, 2, 2, 3, RECOMPUTE_BLOCK, 2, 1, 1}, LEAST[FACTORS] = {1, 1, 1, 1, 1, 0, 0, 1, 0, 0};
    int  count = 0, at = 0;
    Grid g;
    memcpy(g.of, LEAST, sizeof g.of);
    while (at < FACTORS) {
        int divides = (g.of[TENSOR] & (g.of[TENSOR] - 1)) == 0 && g.of[TENSOR] <= 4;
        if (divides && is_possible(g, ranks)) {
            if (grid) grid[count] = g;
            count++;
        }
        for (at = 0; at < FACTORS && ++g.of[at] > MOST[at]; at++) g.of[at] = LEAST[at];
    }
    return count;
}

/* Pairs of values that no chosen grid has yet. */
static char covered[FACTORS][VALUES][FACTORS][VALUES];
static int new_pairs(Grid g, int marks) {
    int news = 0;
    for (int a = 0; a < FACTORS; a++)
        for (int b = a + 1; b < FACTORS; b++) {
            char *pair = &covered[a][g.of[a]][b][g.of[b]];
            news += !*pair;
            if (marks) *pair = 1;
        }
    return news;
}

/* Greedily the grid with the most new pairs, until there are none, and at least so many. */
enum { LEAST_GRIDS = 4 };
static int choose(const Grid *grid, int count, Grid *chosen) {
    int n = 0;
    for (;;) {
        int best = -1, most = n < LEAST_GRIDS ? -1 : 0;
        for (int i = 0; i < count; i++) {
            int news = new_pairs(grid[i], 0);
            if (news > most) most = news, best = i;
        }
        if (best < 0 || (most == 0 && n > 0 && count <= LEAST_GRIDS)) return n;
        if (most == 0) best = n * count / LEAST_GRIDS; /* any */
        new_pairs(grid[best], 1);
        chosen[n++] = grid[best];
    }
}

static int some_of(const Grid *grid, int all, Grid *chosen) {
    int first = atoi(getenv("ALL_GRIDS")), count = 0;
    for (; count < 8 && first + count < all; count++) chosen[count] = grid[first + count];
    CHECK(count > 0, "grid %d of %d", first, all);
    return count;
}

/* Of so many ranks, after those of more; malloc'ed. */
static Grid *grids_of(int ranks, int *count, int *all) {
    static const int RANKS[] = {8, 4, 3, 2, 1};
    memset(covered, 0, sizeof covered);
    for (int i = 0;; i++) {
        CHECK(i < 5, "%d ranks", ranks);
        *all = list_grids(RANKS[i], NULL);
        Grid *grid = (Grid *)malloc(sizeof *grid * (size_t)*all),
             *chosen = (Grid *)malloc(sizeof *grid * (size_t)(*all + LEAST_GRIDS));
        CHECK(grid && chosen, "no memory");
        list_grids(RANKS[i], grid);
        *count = choose(grid, *all, chosen);
        if (RANKS[i] == ranks && getenv("ALL_GRIDS")) *count = some_of(grid, *all, chosen);
        free(grid);
        if (RANKS[i] == ranks) return chosen;
        free(chosen);
    }
}

static const char *text_of(Grid g, char out[160]) {
    static const char *const RECOMPUTES[] = {"none", "light", "block"};
    snprintf(out, 160,
             "tensor %d, context %d, pipeline %d, interleave %d, replicas %d, zero_stage %d, recompute %s, micro_batch %d, %s%s",
             g.of[TENSOR], g.of[CONTEXT], g.of[STAGES], g.of[PARTS], g.of[COPIES], g.of[ZERO],
             RECOMPUTES[g.of[RECOMPUTE]], g.of[SEQUENCES_AT_ONCE], g.of[PRECISION] ? "bf16" : "fp32",
             g.of[OPTIMIZER_MEMORY] ? ", optimizer in host memory" : "");
    return out;
}

/* --- a model on a grid -------------------------------------------------------------------------------------------- */

typedef struct {
    Grid    grid;
    int     ranks;
    Groups  groups;
    Model  *model;
    Arena   tokens;
    int64_t step, micro;  /* the next micro-batch of this rank's, in this step */
} Job;

static const Record *record_of(const char *prefix, const Param *p) {
    char name[80];
    snprintf(name, sizeof name, "%s.%s", prefix, p->name);
    return record_find(&records, name);
}

static void load_initial(Model *m) {
    float *values = (float *)malloc(sizeof *values * (size_t)m->shards->layout.elems);
    CHECK(values, "no memory");
    for (int i = 0; i < m->shards->spans; i++) {
        Span          span = m->shards->span[i];
        const Param  *p = &m->shards->layout.param[span.param];
        const Record *r = record_of("init", p);
        for (int64_t k = 0; k < span.elems;) {
            FileRun run = layout_run(&m->shards->layout, &span, k);
            for (int64_t j = 0; j < run.elems && k < span.elems; j++)
                values[k++] = (float)record_value(r, run.offset - p->offset + j);
        }
        optimizer_put(&m->optimizer, &m->stream, optimizer_master(&m->optimizer, span), values);
    }
    free(values);
    optimizer_publish(&m->optimizer, &m->stream);
    shards_publish(m->shards, &m->stream);
}

static void create(Job *j, Grid g, int ranks) {
    Mesh mesh = mesh_of(ranks, (MeshSizes){g.of[TENSOR], g.of[CONTEXT], g.of[STAGES], g.of[COPIES]});
    *j = (Job){.grid = g, .ranks = ranks, .groups = groups_create(world, mesh, g.of[PARTS] > 1)};
    groups_set_kind(&j->groups, COMM_RING);
    ModelSpec spec = {.shards = {.shape = SHAPE,
                                 .ranks = mesh.size[AXIS_CONTEXT] * mesh.size[AXIS_SHARD],
                                 .replicas = mesh.size[AXIS_REPLICA],
                                 .tensor_ranks = mesh.size[AXIS_TENSOR],
                                 .zero_stage = g.of[ZERO],
                                 .act = g.of[PRECISION] ? BF16 : F32,
                                 .use = GPT_TRAINING},
                      .context_ranks = mesh.size[AXIS_CONTEXT],
                      .optimizer = &OPTIMIZER_ADAMW,
                      .B = g.of[SEQUENCES_AT_ONCE],
                      .T = T,
                      .pipeline = {.stages = mesh.size[AXIS_STAGE],
                                   .parts = g.of[PARTS],
                                   .micro_batches = micro_batches(g, ranks)},
                      .recompute = (Recompute)g.of[RECOMPUTE],
                      .offload = g.of[OPTIMIZER_MEMORY] ? MEMORY_HOST : MEMORY_DEVICE};
    model_take_groups(&spec, &j->groups);
    j->model = model_create(spec);
    j->tokens = arena_create("tokens", (size_t)(4 * SEQUENCES * T) * sizeof(int32_t));
    load_initial(j->model);
}

static void drop(Job *j) {
    shards_need_all(j->model->shards);
    model_destroy(j->model);
    world_follow(comm_world(world), &stream);
    groups_free(&j->groups);
    arena_destroy(&j->tokens);
}

/* Micro-batch k of a step is sequences k B to k B + B; a data index has micro_batches of them, one after another. */
static Batch next_batch(void *job) {
    Job        *j = (Job *)job;
    int64_t     B = j->grid.of[SEQUENCES_AT_ONCE], own = T / j->grid.of[CONTEXT],
            first = (j->groups.data * micro_batches(j->grid, j->ranks) + j->micro++) * B;
    ContextPart part = context_part(j->groups.context);
    Batch       batch = {arena_tensor(&j->tokens, I32, 2, B, own, 1), arena_tensor(&j->tokens, I32, 2, B, own, 1), tensor_none()};
    int32_t     inputs[2 * T], targets[2 * T];
    for (int64_t b = 0; b < B; b++) {
        const int32_t *sequence =
            (const int32_t *)record_find(&records, "tokens")->data + (j->step * SEQUENCES + first + b) * (T + 1);
        context_take(inputs + b * own, sequence, part, own);
        context_take(targets + b * own, sequence + 1, part, own);
    }
    device_from_host(&j->model->stream, batch.inputs, inputs);
    device_from_host(&j->model->stream, batch.targets, targets);
    return batch;
}

typedef struct { double loss, norm; } Numbers;

static Numbers gradients(Job *j, int64_t step) {
    Model *m = j->model;
    j->step = step, j->micro = 0, j->tokens.used_bytes = 0;
    step_sums_zero(&m->sums, &m->stream);
    shards_begin(m->shards, &m->stream);
    pipeline_step(&m->pipeline, &m->stream, 1.0f / (SEQUENCES * T), next_batch, j);
    shards_finish(m->shards, &m->stream);
    optimizer_numbers(&m->optimizer, &m->stream, 0);
    StepValues v = step_sums_fetch(&m->sums, &m->stream);
    comm_all_reduce_i64(world, v.sum[0].word, sizeof v.sum / (sizeof(int64_t)), COMM_SUM);
    return (Numbers){exact_value(&v.sum[SUM_LOSS]) / (SEQUENCES * T), sqrt(exact_value(&v.sum[SUM_GRAD_SQUARES]))};
}

static double learning_rate(int64_t s) {
    if (s < WARMUP) return LEARNING_RATE * (double)(s + 1) / WARMUP;
    double progress = (double)(s - WARMUP) / (STEPS - WARMUP);
    return LEARNING_RATE * (FINAL_FRACTION + (1.0 - FINAL_FRACTION) * (1.0 + cos(acos(-1.0) * progress)) / 2.0);
}

/* Worst ||got - want|| / ||want|| over the rows of the parameter table, of all ranks' spans. */
static double worst_row(Job *j, const char *prefix, Tensor (*of)(const Job *j, Span span)) {
    Model *m = j->model;
    double sums[2 * PARAMS] = {0}, worst = 0.0;
    CHECK(m->shards->layout.params == PARAMS, "%d rows", m->shards->layout.params);
    for (int i = 0; i < m->shards->spans; i++) {
        Span          span = m->shards->span[i];
        const Param  *p = &m->shards->layout.param[span.param];
        const Record *r = record_of(prefix, p);
        Tensor        got = of(j, span);
        for (int64_t k = 0; k < span.elems;) {
            FileRun run = layout_run(&m->shards->layout, &span, k);
            for (int64_t e = 0; e < run.elems && k < span.elems; e++, k++) {
                double want = record_value(r, run.offset - p->offset + e), off = (double)((const float *)got.data)[k] - want;
                sums[2 * span.param] += off * off, sums[2 * span.param + 1] += want * want;
            }
        }
    }
    comm_all_reduce_f64(world, sums, 2 * PARAMS, COMM_SUM);
    for (int i = 0; i < PARAMS; i++) worst = fmax(worst, sums[2 * i + 1] > 0 ? sqrt(sums[2 * i] / sums[2 * i + 1]) : INFINITY); /* each row is on some rank */
    return worst;
}
static Tensor grad_of(const Job *j, Span span) { return shards_grad(j->model->shards, span); }
static Tensor master_of(const Job *j, Span span) { return optimizer_master(&j->model->optimizer, span); }

typedef struct { double loss, norm, gradient, weight; uint64_t bits; } Errors;

/* The last weights are those of STEPS. */
static Errors train(Grid g, int ranks, int steps) {
    Job    j;
    Errors e = {0};
    create(&j, g, ranks);
    const Record *losses = record_find(&records, "loss"), *norms = record_find(&records, "grad_norm");
    for (int64_t step = 0; step < steps; step++) {
        Numbers n = gradients(&j, step);
        double  loss = record_value(losses, step), norm = record_value(norms, step);
        e.loss = fmax(e.loss, fabs(n.loss - loss) / loss);
        e.norm = fmax(e.norm, fabs(n.norm - norm) / norm);
        if (step == 0 && !g.of[PRECISION]) e.gradient = worst_row(&j, "grad", grad_of);
        AdamW h = {(float)learning_rate(step), 0.9f, 0.95f, 1e-8f, 0.1f, step + 1};
        optimizer_update(&j.model->optimizer, &j.model->stream, h, n.norm > GRAD_CLIP ? (float)(GRAD_CLIP / n.norm) : 1.0f);
        shards_publish(j.model->shards, &j.model->stream);
        memcpy(&e.bits, &n.loss, sizeof e.bits);
    }
    if (!g.of[PRECISION] && steps == STEPS) e.weight = worst_row(&j, "final", master_of);
    drop(&j);
    return e;
}

static int is_right(Grid g, Errors e) {
    if (g.of[PRECISION]) return e.loss <= BF16_ALLOWED && isfinite(e.norm);
    return e.loss <= LOSS_ALLOWED && e.norm <= NORM_ALLOWED && e.gradient <= GRADIENT_ALLOWED && e.weight <= WEIGHT_ALLOWED;
}

static void every_pair_of_axes_computes_pytorch_s_steps(void **state) {
    (void)state;
    int   ranks = comm_size(world), count, all, wrong = 0;
    Grid *grid = grids_of(ranks, &count, &all);
    for (int i = 0; i < count; i++) {
        Grid   g = grid[i];
        Errors e = train(g, ranks, i < 2 || getenv("ALL_GRIDS") ? STEPS : FEW_STEPS);
        char   text[160];
        if (!is_right(g, e)) {
            wrong++;
            if (comm_rank(world) == 0)
                print_error("%s: loss %.2e, norm %.2e, gradient %.2e, weight %.2e\n", text_of(g, text), e.loss, e.norm,
                            e.gradient, e.weight);
        } else if (comm_rank(world) == 0 && getenv("SHOW_GRIDS")) {
            print_message("%s: loss %.2e, norm %.2e, gradient %.2e, weight %.2e\n", text_of(g, text), e.loss, e.norm,
                          e.gradient, e.weight);
        }
    }
    if (comm_rank(world) == 0) print_message("%d of %d grids of %d ranks\n", count, all, ranks);
    EXPECT_ON_ALL(wrong == 0);
    Errors once = train(grid[count - 1], ranks, FEW_STEPS), again = train(grid[count - 1], ranks, FEW_STEPS);
    EXPECT_ON_ALL(once.bits == again.bits); /* the same grid, the same bits */
    free(grid);
}

int main(void) {
    records = record_load("test/ref/data/grid.rec");
    const struct CMUnitTest cases[] = {cmocka_unit_test(every_pair_of_axes_computes_pytorch_s_steps)};
    int status = RUN_ON_RANKS(cases);
    record_unload(&records);
    return status;
}
