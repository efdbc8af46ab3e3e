/* search.c - see search.h. */
#include "run/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int    tensor, context, pipeline, interleave, replicas, zero_stage, recompute;
    int64_t micro_batch, number; /* as listed */
    double  least_s;
} Grid;

typedef struct {
    Grid *grid; /* owned */
    int64_t count, room;
} Grids;

static Config config_with(const Config *config, const Grid *g) {
    Config c = *config;
    c.parallel.tensor = g->tensor, c.parallel.context = g->context, c.parallel.pipeline = g->pipeline, c.parallel.interleave = g->interleave;
    c.parallel.replicas = g->replicas, c.parallel.zero_stage = g->zero_stage;
    c.memory.recompute = g->recompute;
    c.batch.micro_batch = g->micro_batch;
    return c;
}

Config search_config(const Config *config, const Simulated *s) {
    Grid g = {s->mesh.size[AXIS_TENSOR], s->mesh.size[AXIS_CONTEXT], s->mesh.size[AXIS_STAGE], s->parts,
              s->mesh.size[AXIS_REPLICA], s->zero_stage, s->recompute,
              s->micro_batch, 0, 0};
    return config_with(config, &g);
}

static int is_allowed(const Config *c, int ranks) {
    char *fault = config_check_changed(c, ranks);
    free(fault);
    return !fault;
}

/* What a rank holds of weights, gradients and state alone, in bytes; activations come on top. */
static double least_bytes(const Config *c, DType act, int ranks) {
    int64_t all;
    if (!model_parameters(c->model.shape, &all)) return 0.0;
    double own = (double)all / (double)(c->parallel.tensor * c->parallel.pipeline), A = (double)dtype_bytes(act);
    double Z = (double)ranks / (double)(c->parallel.tensor * c->parallel.pipeline * c->parallel.replicas);
    double state = c->memory.offload ? 0.0 : 12.0 * own / (c->parallel.zero_stage ? Z : 1.0);
    return state + (c->parallel.zero_stage < 3 ? A * own : A * own / Z) + (c->parallel.zero_stage < 2 ? 4.0 * own : 4.0 * own / Z);
}

/* What stays the same during a search. */
typedef struct {
    const Config  *config;
    DType          act;
    int            ranks;
    const Cluster *cluster;
    unsigned       held;
    int            zero_bubble;
} Job;

static void add(Grids *all, const Job *j, Grid g) {
    Config c = config_with(j->config, &g);
    if (!is_allowed(&c, j->ranks)) return;
    if (all->count == all->room) {
        all->room = all->room ? 2 * all->room : 1024;
        all->grid = (Grid *)realloc(all->grid, sizeof g * (size_t)all->room);
        if (!all->grid) fail(EXIT_MEMORY, "no memory for a search of %lld grids", (long long)all->room);
    }
    g.least_s = simulate_least_s(&c, j->act, j->ranks, j->cluster);
    g.number = all->count;
    all->grid[all->count++] = g;
}

static int is_held(const Job *j, unsigned what, int64_t value, int64_t of_config) { return (j->held & what) && value != of_config; }

/* Copies of the state: one; and one in each node, where several ranks share it there. */
static void add_replicas(Grids *all, const Job *j, Grid g) {
    int datas = j->ranks / (g.tensor * g.context * g.pipeline), in_node = (int)j->cluster->gpus_per_node / (g.tensor * g.context);
    int most = in_node > 0 && datas % in_node == 0 && in_node * g.context > 1 ? datas / in_node : 1;
    g.zero_stage = j->held & HOLD_ZERO_STAGE ? (int)j->config->parallel.zero_stage : datas * g.context > 1;
    g.replicas = j->held & HOLD_REPLICAS ? (int)j->config->parallel.replicas : 1;
    add(all, j, g);
    g.replicas = most;
    if (most > 1 && !(j->held & HOLD_REPLICAS)) add(all, j, g);
}

static void add_parts(Grids *all, const Job *j, Grid g) {
    static const int PARTS[] = {1, 2, 3, 4, 5, 6, 8, 10, 12};
    if (j->held & HOLD_INTERLEAVE) {
        g.interleave = (int)j->config->parallel.interleave;
        add_replicas(all, j, g);
        return;
    }
    for (size_t v = 0; v < (g.pipeline > 1 ? sizeof PARTS / sizeof *PARTS : 1); v++) {
        g.interleave = PARTS[v];
        if (g.interleave * g.pipeline <= j->config->model.shape.n_layer) add_replicas(all, j, g);
    }
}

static void add_micro_batches(Grids *all, const Job *j, Grid g) {
    int64_t T = j->config->batch.seq_len, total = j->config->batch.global_tokens;
    int64_t tokens = T * (j->ranks / (g.tensor * g.context * g.pipeline)); /* of a micro-batch of one sequence, on all ranks */
    int64_t held = j->held & HOLD_MICRO_BATCH ? j->config->batch.micro_batch : 0;
    for (g.micro_batch = held ? held : 1; g.micro_batch <= (held ? held : 32) && total >= tokens * g.micro_batch; g.micro_batch *= 2) add_parts(all, j, g);
}

static void add_all(Grids *all, const Job *j) {
    const Config *c = j->config;
    Grid          g = {.recompute = c->memory.recompute};
    for (g.tensor = 1; g.tensor <= j->cluster->gpus_per_node; g.tensor++) {
        if (j->ranks % g.tensor || is_held(j, HOLD_TENSOR, g.tensor, c->parallel.tensor)) continue;
        for (g.context = 1; g.context == 1 || c->batch.seq_len / g.context >= 1024; g.context *= 2) {
            if (j->ranks % (g.tensor * g.context) || is_held(j, HOLD_CONTEXT, g.context, c->parallel.context)) continue;
            for (g.pipeline = 1; g.pipeline <= c->model.shape.n_layer; g.pipeline++) {
                if (j->ranks % (g.tensor * g.context * g.pipeline) || is_held(j, HOLD_PIPELINE, g.pipeline, c->parallel.pipeline)) continue;
                add_micro_batches(all, j, g);
            }
        }
    }
}

static int by_least(const void *a, const void *b) {
    const Grid *x = (const Grid *)a, *y = (const Grid *)b;
    int order = (x->least_s > y->least_s) - (x->least_s < y->least_s);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

/* Whether the grid of this number comes before the one at `at`. */
static int is_before(const Found *f, const Simulated *s, int64_t number, int at) {
    return s->step_s < f->best[at].step_s || (s->step_s == f->best[at].step_s && number < f->number[at]);
}

static void keep(Found *f, const Simulated *s, int64_t number) {
    if (f->count == SEARCH_BEST && !is_before(f, s, number, SEARCH_BEST - 1)) return;
    int at = f->count < SEARCH_BEST ? f->count++ : SEARCH_BEST - 1;
    for (; at > 0 && is_before(f, s, number, at - 1); at--) f->best[at] = f->best[at - 1], f->number[at] = f->number[at - 1];
    f->best[at] = *s, f->number[at] = number;
}

/* The most that a tenth grid may take. */
static double limit_s(const Found *f) {
    double limit;
    #pragma omp critical(found)
    limit = f->count == SEARCH_BEST ? f->best[SEARCH_BEST - 1].step_s : INFINITY;
    return limit;
}

/* Simulates the grid if its memory is there; returns whether it is, or whether the grid is too slow anyway. */
static int try_grid(Found *f, const Job *j, const Config *c, int64_t number) {
    double memory = j->cluster->memory_bytes;
    if (simulate_least_s(c, j->act, j->ranks, j->cluster) > limit_s(f)) return 1; /* nor can what takes longer be among them */
    if (0.7 * least_bytes(c, j->act, j->ranks) > memory) return 0; /* 0.7: the ends of a pipeline have fewer blocks */
    if (simulate_memory(c, j->act, j->ranks, j->cluster).memory_bytes > memory) return 0;
    Simulated s = simulate(c, j->act, j->ranks, j->cluster, j->zero_bubble);
    if (s.memory_bytes > memory) return 0;
    #pragma omp critical(found)
    keep(f, &s, number);
    return 1;
}

static void try_memory(Found *f, const Job *j, Grid g, int64_t number) {
    int holds_recompute = (j->held & HOLD_RECOMPUTE) != 0, first = holds_recompute ? g.recompute : RECOMPUTE_NONE, last = holds_recompute ? first : RECOMPUTE_BLOCK;
    int most = !g.zero_stage || (j->held & HOLD_ZERO_STAGE) ? g.zero_stage : 3, fits = 0;
    for (; g.zero_stage <= most && !(fits && g.recompute == first); g.zero_stage++) {
        fits = 0;
        for (g.recompute = first; g.recompute <= last; g.recompute++) {
            Config c = config_with(j->config, &g);
            if ((fits = try_grid(f, j, &c, 16 * number + 4 * g.zero_stage + g.recompute)) != 0) break;
        }
    }
}

/* Each core takes the next grid; what is found is the same in any order. */
Found search(const Config *config, DType act, int ranks, const Cluster *cluster, unsigned held, int zero_bubble) {
    Job   j = {config, act, ranks, cluster, held, zero_bubble};
    Grids all = {0};
    Found f = {.count = 0};
    add_all(&all, &j);
    f.allowed = all.count;
    if (all.count) qsort(all.grid, (size_t)all.count, sizeof *all.grid, by_least);
    #pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < all.count; i++)
        if (all.grid[i].least_s <= limit_s(&f)) try_memory(&f, &j, all.grid[i], i);
    free(all.grid);
    return f;
}

unsigned search_held(char *const *overrides, int count) {
    static const struct { const char *key; unsigned held; } KEYS[] = {
        {"parallel.tensor=", HOLD_TENSOR}, {"parallel.context=", HOLD_CONTEXT}, {"parallel.pipeline=", HOLD_PIPELINE},
        {"parallel.interleave=", HOLD_INTERLEAVE}, {"parallel.replicas=", HOLD_REPLICAS}, {"parallel.zero_stage=", HOLD_ZERO_STAGE},
        {"batch.micro_batch=", HOLD_MICRO_BATCH}, {"memory.recompute=", HOLD_RECOMPUTE}};
    unsigned held = 0;
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof KEYS / sizeof *KEYS; k++)
            if (strncmp(overrides[i], KEYS[k].key, strlen(KEYS[k].key)) == 0) held |= KEYS[k].held;
    return held;
}

int search_fit(const Config *config, int ranks) {
    while (ranks > 0 && !is_allowed(config, ranks)) ranks--;
    return ranks;
}
