/* ranks_grid.c - the model on grids of ranks, compared with PyTorch's float64 record of twenty AdamW steps
 * (test/ref/generate.py). Compared are the first step's gradients by row of the parameter table, the losses, the norms,
 * and the last weights.
 *
 * Runs on 1 2 3 4 8 ranks.
 *
 * One launch tests many grids. All launches together, the larger ones first, contain every pair of values of two axes
 * that any grid has. Each launch adds some grids of its own. Its first two grids run all twenty steps, the others the
 * first five. ALL_GRIDS=N tests instead eight of all grids, from number N on, in all steps.
 * Long: tries many grids.
 */
#include "test/model/ranks_fixture.h"

enum { FEW_STEPS = 5, SEQUENCES = 8, T = 256 };
static const ModelShape SHAPE = GPT2_SHAPE(4, 4, 32, T, 389);
static const double LOSS_ALLOWED = 2e-6, NORM_ALLOWED = 5e-6, GRADIENT_ALLOWED = 2e-6, WEIGHT_ALLOWED = 2e-5, BF16_ALLOWED = 4e-3;

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

/* Lists all grids of `ranks` ranks in a fixed order, in `grid` unless it is NULL. Returns their number. */
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

/* covered[a][v][b][w]: 1 if a grid chosen so far has value v on axis a and value w on axis b. new_pairs returns how
 * many such pairs of g are not yet covered. If `marks` is 1, it marks them as covered. */
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

/* Chooses grids until every pair of values of two axes is in a chosen grid. Each time it takes the grid with the
 * most new pairs. Then adds other grids until LEAST_GRIDS are chosen. Returns how many are chosen. */
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
        /* if no grid has a new pair of values of two axes, takes one from evenly spaced places of the list */
        if (most == 0) best = n * count / LEAST_GRIDS;
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

/* Returns the grids chosen for `ranks` ranks. They need not cover pairs of values that grids of more ranks cover
 * already. Writes their number to count, and that of all possible grids to all. The caller frees them. */
static Grid *grids_of(int ranks, int *count, int *all) {
    static const int RANKS[] = {8, 4, 3, 2, 1};
    memset(covered, 0, sizeof covered);
    for (int i = 0;; i++) {
        CHECK(i < 5, "%d ranks", ranks);
        *all = list_grids(RANKS[i], NULL);
        Grid *grid = malloc(sizeof *grid * (size_t)*all),
             *chosen = malloc(sizeof *grid * (size_t)(*all + LEAST_GRIDS));
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
    Ranked at;
    Grid   grid;
    int    ranks;
} Job;

static void create(Job *j, Grid g, int ranks) {
    Mesh mesh = mesh_of(ranks, (MeshSizes){g.of[TENSOR], g.of[CONTEXT], g.of[STAGES], g.of[COPIES]});
    *j = (Job){.grid = g, .ranks = ranks, .at.groups = groups_create(world, mesh, g.of[PARTS] > 1)};
    groups_set_kind(&j->at.groups, COMM_RING);
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
    ranked_create(&j->at, spec, SEQUENCES * T);
}

/* Returns this rank's next micro-batch of B sequences. Micro-batch k of a step has sequences k B to k B + B - 1 of
 * the SEQUENCES of the step. Each data rank takes several consecutive micro-batches. */
static Batch next_batch(void *job) {
    Job        *j = (Job *)job;
    int64_t     B = j->grid.of[SEQUENCES_AT_ONCE], own = T / j->grid.of[CONTEXT],
            first = (j->at.groups.data * micro_batches(j->grid, j->ranks) + j->at.micro++) * B;
    ContextPart part = context_part(j->at.groups.context);
    Arena      *room = &j->at.tokens;
    Batch       batch = {arena_tensor(room, I32, 2, B, own, 1), arena_tensor(room, I32, 2, B, own, 1), tensor_none()};
    int32_t     inputs[2 * T], targets[2 * T];
    for (int64_t b = 0; b < B; b++) {
        const int32_t *sequence =
            (const int32_t *)record_find(&records, "tokens")->data + (j->at.step * SEQUENCES + first + b) * (T + 1);
        context_take(inputs + b * own, sequence, part, own);
        context_take(targets + b * own, sequence + 1, part, own);
    }
    device_from_host(&j->at.model->stream, batch.inputs, inputs);
    device_from_host(&j->at.model->stream, batch.targets, targets);
    return batch;
}

typedef struct { double loss, norm, gradient, weight; uint64_t bits; } Errors;

/* Trains on grid g of ranks and returns the largest relative errors. The last weights are compared only if steps is
 * STEPS, because PyTorch's weights were recorded after STEPS steps. */
static Errors train(Grid g, int ranks, int steps) {
    Job    j;
    Errors e = {0};
    create(&j, g, ranks);
    const Record *losses = record_find(&records, "loss"), *norms = record_find(&records, "grad_norm");
    for (int64_t step = 0; step < steps; step++) {
        Numbers n = gradients(&j.at, step, SEQUENCES * T, next_batch, &j);
        double  loss = record_value(losses, step), norm = record_value(norms, step);
        e.loss = fmax(e.loss, fabs(n.loss - loss) / loss);
        e.norm = fmax(e.norm, fabs(n.norm - norm) / norm);
        if (step == 0 && !g.of[PRECISION]) e.gradient = worst_row(&j.at, "grad", 0, grad_of);
        update(&j.at, step, n.norm);
        shards_publish(j.at.model->shards, &j.at.model->stream);
        memcpy(&e.bits, &n.loss, sizeof e.bits);
    }
    if (!g.of[PRECISION] && steps == STEPS) e.weight = worst_row(&j.at, "final", 0, master_of);
    ranked_drop(&j.at);
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
    EXPECT_ON_ALL(once.bits == again.bits); /* a second training on this grid ends with equal bits of the loss */
    free(grid);
}

int main(void) {
    records = record_load("test/ref/data/grid.rec");
    const struct CMUnitTest cases[] = {cmocka_unit_test(every_pair_of_axes_computes_pytorch_s_steps)};
    int status = RUN_ON_RANKS(cases);
    record_unload(&records);
    return status;
}
