/* search.c - the quickest grids of a config on a cluster: see plan_cluster.h. */
#include "run/plan/plan_cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "core/json.h"
#include "core/error.h"

/* Bytes left free for scratch memory, which is known only after a step was simulated. */
static const double SLACK = 2.0e9;

typedef struct {
    int    tensor, context, pipeline, interleave, replicas, zero_stage, recompute;
    int64_t micro_batch, number; /* number: index in the list of grids before sorting */
    double  least_s;
} Grid;

typedef struct {
    Grid *grid; /* owned [count]: the grids to try */
    int64_t count;
} Grids;

static Config config_with(const Config *config, const Grid *g) {
    Config c = *config;
    c.parallel.tensor = g->tensor, c.parallel.context = g->context, c.parallel.pipeline = g->pipeline,
    c.parallel.interleave = g->interleave;
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

/* Returns 1 if the weights, gradients and optimizer state of a rank may fit in a GPU's memory. Stages at the ends of a
 * pipeline have fewer blocks than others, so 0.7 of the mean must fit. Activations do not count. */
static int may_fit(const Config *c, Target on) {
    int64_t all;
    if (!model_parameters(c->model.shape, &all)) return 1;
    double own = (double)all / (double)(c->parallel.tensor * c->parallel.pipeline), A = (double)dtype_bytes(on.act);
    double Z = (double)on.ranks / (double)(c->parallel.tensor * c->parallel.pipeline * c->parallel.replicas);
    double state = c->memory.offload ? 0.0 : 12.0 * own / (c->parallel.zero_stage ? Z : 1.0);
    double weights = c->parallel.zero_stage < 3 ? A * own : A * own / Z;
    double bytes = state + weights + (c->parallel.zero_stage < 2 ? 4.0 * own : 4.0 * own / Z);
    return !(0.7 * bytes > on.cluster->memory_bytes);
}

/* Arguments of one search, shared by its functions. */
typedef struct {
    const Config *config;
    Target        on;
    unsigned      held;
} Job;

static void add(Grids *all, const Job *j, Grid g) {
    Config c = config_with(j->config, &g);
    if (!is_allowed(&c, j->on.ranks)) return;
    all->grid = xgrow(all->grid, all->count, sizeof g, "a search of grids");
    g.least_s = simulate_least_s(&c, j->on);
    g.number = all->count;
    all->grid[all->count++] = g;
}

/* Adds two grids to the list: with one copy of the state, and with a copy in each node if several ranks share it
 * there. */
static void add_replicas(Grids *all, const Job *j, Grid g) {
    int datas = j->on.ranks / (g.tensor * g.context * g.pipeline);
    int in_node = (int)j->on.cluster->gpus_per_node / (g.tensor * g.context);
    int most = in_node > 0 && datas % in_node == 0 && in_node * g.context > 1 ? datas / in_node : 1;
    g.zero_stage = j->held & HOLD_ZERO_STAGE ? (int)j->config->parallel.zero_stage : datas * g.context > 1;
    g.replicas = j->held & HOLD_REPLICAS ? (int)j->config->parallel.replicas : 1;
    add(all, j, g);
    g.replicas = most;
    if (most > 1 && !(j->held & HOLD_REPLICAS)) add(all, j, g);
}

/* Share of a step. If stages are idle for less than that with some interleave, larger values of interleave are not
 * tried. More parts only shorten the idle time of stages. */
static const double LITTLE_IDLE = 0.01;

/* Adds the grids with the sizes of tensor, context and pipeline that g has: one for each micro-batch and each number of
 * parts of the model (interleave). */
static void add_batches(Grids *all, const Job *j, Grid g) {
    static const int PARTS[] = {1, 2, 3, 4, 5, 6, 8, 10, 12};
    const Config    *c = j->config;
    int64_t total = c->batch.global_tokens, held = j->held & HOLD_MICRO_BATCH ? c->batch.micro_batch : 0;
    /* tokens of a micro-batch on all ranks, if it is one sequence */
    int64_t tokens = c->batch.seq_len * (j->on.ranks / (g.tensor * g.context * g.pipeline));
    size_t  parts = g.pipeline > 1 ? sizeof PARTS / sizeof *PARTS : 1;
    for (g.micro_batch = held ? held : 1; g.micro_batch <= (held ? held : 32) && total >= tokens * g.micro_batch;
         g.micro_batch *= 2) {
        if (j->held & HOLD_INTERLEAVE) {
            g.interleave = (int)c->parallel.interleave;
            add_replicas(all, j, g);
            continue;
        }
        for (size_t v = 0; v < parts; v++) {
            g.interleave = PARTS[v];
            if (v > 0 && work_idle(g.pipeline, PARTS[v - 1], total / (g.micro_batch * tokens)) < LITTLE_IDLE) break;
            if (g.interleave * g.pipeline <= c->model.shape.n_layer) add_replicas(all, j, g);
        }
    }
}

static void add_all(Grids *all, const Job *j) {
    const Config *c = j->config;
    int64_t       tensor = j->held & HOLD_TENSOR ? c->parallel.tensor : 0;
    int64_t       context = j->held & HOLD_CONTEXT ? c->parallel.context : 0;
    int64_t       pipeline = j->held & HOLD_PIPELINE ? c->parallel.pipeline : 0;
    Grid          g = {.recompute = j->held & HOLD_RECOMPUTE ? c->memory.recompute : RECOMPUTE_NONE};
    for (int64_t t = tensor ? tensor : 1; t <= (tensor ? tensor : (int64_t)j->on.cluster->gpus_per_node); t++) {
        if (j->on.ranks % t || c->model.shape.n_head % t || c->model.shape.n_embd % t) continue;
        for (int64_t x = context ? context : 1;
             x == context || (!context && (x == 1 || c->batch.seq_len / x >= 1024)); x *= 2)
            for (int64_t p = pipeline ? pipeline : 1; p <= (pipeline ? pipeline : c->model.shape.n_layer); p++) {
                g.tensor = (int)t, g.context = (int)x, g.pipeline = (int)p;
                if (j->on.ranks % (t * x * p) == 0) add_batches(all, j, g);
            }
    }
}

static int by_least(const void *a, const void *b) {
    const Grid *x = (const Grid *)a, *y = (const Grid *)b;
    int order = (x->least_s > y->least_s) - (x->least_s < y->least_s);
    return order ? order : (x->number > y->number) - (x->number < y->number);
}

/* Returns 1 if simulated grid s, tried as this number, is better than the one found at index `at`. */
static int is_before(const Found *f, const Simulated *s, int64_t number, int at) {
    return s->step_s < f->best[at].step_s || (s->step_s == f->best[at].step_s && number < f->number[at]);
}

static void keep(Found *f, const Simulated *s, int64_t number) {
    if (f->count == SEARCH_BEST && !is_before(f, s, number, SEARCH_BEST - 1)) return;
    int at = f->count < SEARCH_BEST ? f->count++ : SEARCH_BEST - 1;
    for (; at > 0 && is_before(f, s, number, at - 1); at--)
        f->best[at] = f->best[at - 1], f->number[at] = f->number[at - 1];
    f->best[at] = *s, f->number[at] = number;
}

/* Returns the step time above which a grid cannot be among the best. */
static double limit_s(const Found *f) {
    double limit;
    #pragma omp critical(found)
    limit = f->count == SEARCH_BEST ? f->best[SEARCH_BEST - 1].step_s : INFINITY;
    return limit;
}

/* Simulates the grid if it fits in memory. Returns 1 if it fits, or if it is too slow even without recompute. */
static int try_grid(Found *f, Target on, const Config *c, int64_t number) {
    double memory = on.cluster->memory_bytes;
    if (!is_allowed(c, on.ranks)) return 0;
    /* too slow; returns 1, because the same grid with more recompute would be slower still */
    if (simulate_least_s(c, on) > limit_s(f)) return 1;
    if (!may_fit(c, on) || simulate_memory(c, on).memory_bytes > memory) return 0;
    Simulated s = simulate(c, on);
    if (s.memory_bytes > memory) return 0;
    #pragma omp critical(found)
    keep(f, &s, number);
    return 1;
}

static void try_memory(Found *f, const Job *j, Grid g, int64_t number) {
    int holds_recompute = (j->held & HOLD_RECOMPUTE) != 0, first = holds_recompute ? g.recompute : RECOMPUTE_NONE,
        last = holds_recompute ? first : RECOMPUTE_BLOCK;
    int most = !g.zero_stage || (j->held & HOLD_ZERO_STAGE) ? g.zero_stage
               : g.pipeline == 1                            ? 3
               : g.interleave == 1                          ? 2
                                                            : 1,
        fits = 0;
    for (; g.zero_stage <= most && !(fits && g.recompute == first); g.zero_stage++) {
        fits = 0;
        for (g.recompute = first; g.recompute <= last; g.recompute++) {
            Config c = config_with(j->config, &g);
            if ((fits = try_grid(f, j->on, &c, 16 * number + 4 * g.zero_stage + g.recompute)) != 0) break;
        }
    }
}

/* Searches in parallel: each core takes the next grid. The result is the same in any order. */
Found search(const Config *config, Target on, unsigned held) {
    Job   j = {config, on, held};
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

/* Returns 1 if an override sets section.name, as section.name=... or in section={...}. */
static int sets(const char *override, const char *section, const char *name) {
    size_t length = strlen(section);
    if (strncmp(override, section, length) != 0) return 0;
    const char *rest = override + length;
    if (*rest == '.') return strncmp(rest + 1, name, strlen(name)) == 0 && rest[1 + strlen(name)] == '=';
    cJSON *object = *rest == '=' ? json_of_others(rest + 1, strlen(rest + 1)) : NULL;
    int    is_there = cJSON_GetObjectItemCaseSensitive(object, name) != NULL;
    cJSON_Delete(object);
    return is_there;
}

unsigned search_held(char *const *overrides, int count) {
    static const struct { const char *section, *name; unsigned held;
    } KEYS[] = {{"parallel", "tensor", HOLD_TENSOR},        {"parallel", "context", HOLD_CONTEXT},
                {"parallel", "pipeline", HOLD_PIPELINE},    {"parallel", "interleave", HOLD_INTERLEAVE},
                {"parallel", "replicas", HOLD_REPLICAS},    {"parallel", "zero_stage", HOLD_ZERO_STAGE},
                {"batch", "micro_batch", HOLD_MICRO_BATCH}, {"memory", "recompute", HOLD_RECOMPUTE}};
    unsigned held = 0;
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sizeof KEYS / sizeof *KEYS; k++)
            if (sets(overrides[i], KEYS[k].section, KEYS[k].name)) held |= KEYS[k].held;
    return held;
}

int search_fit(const Config *c, int ranks) {
    int64_t model = c->parallel.tensor * c->parallel.context * c->parallel.pipeline;
    int64_t unit = c->batch.micro_batch * c->batch.seq_len, total = c->batch.global_tokens;
    for (; ranks > 0; ranks--)
        if (ranks % model == 0 && total % (unit * (ranks / model)) == 0 && is_allowed(c, ranks)) return ranks;
    return 0;
}

/* Tries first the grids that should be quickest, those with fewer ranks for a copy of the model. */
int search_fitting(const Config *config, Target on, Simulated *room) {
    for (int64_t shared = 1; shared <= on.ranks; shared++)
        for (int t = 1; t <= on.cluster->gpus_per_node && t <= shared; t++) {
            if (shared % t || on.ranks % shared) continue;
            Grid g = {t, 1, (int)(shared / t), 1, 1, 1, RECOMPUTE_BLOCK, 1, 0, 0};
            for (g.zero_stage = on.ranks > shared; g.zero_stage <= (g.pipeline > 1 ? 2 : 3); g.zero_stage++) {
                Config c = config_with(config, &g);
                if (g.pipeline > c.model.shape.n_layer || !may_fit(&c, on) || !is_allowed(&c, on.ranks)) continue;
                *room = simulate_memory(&c, on);
                if (room->memory_bytes + SLACK <= on.cluster->memory_bytes) return 1;
            }
        }
    return 0;
}

LargestBatch search_largest_batch(const Config *config, Target on) {
    Config  c = *config;
    int64_t sequences = c.batch.global_tokens / (c.batch.seq_len * config_datas(&c, on.ranks));
    for (int64_t B = sequences; B > 0; B--) {
        c.batch.micro_batch = B;
        if (sequences % B != 0 || !is_allowed(&c, on.ranks)) continue;
        double bytes = simulate_memory(&c, on).memory_bytes;
        if (bytes <= on.cluster->memory_bytes) return (LargestBatch){B, bytes};
    }
    return (LargestBatch){0, 0.0};
}
