/* groups.c - see groups.h. */
#include "model/groups.h"

#include <stdlib.h>
#include <string.h>

static int ranks_with(Mesh m, unsigned axes) {
    int ranks = 1;
    for (int a = 0; a < AXES; a++)
        if (axes >> a & 1) ranks *= m.size[a];
    return ranks;
}

/* Returns the group of ranks that differ from this rank only along the axes. Returns the whole job if that group has
 * all ranks. */
static Comm *group_or_job(Comm *job, Mesh mesh, unsigned axes, const char *name) {
    return ranks_with(mesh, axes) < mesh_ranks(mesh) ? comm_group(job, mesh, axes, name) : job;
}
static Comm *group_or_none(Comm *job, Mesh mesh, unsigned axes, const char *name) {
    return ranks_with(mesh, axes) > 1 ? comm_group(job, mesh, axes, name) : NULL;
}

/* Makes the pair of ranks for messages from stage `from` to stage `to`, if this rank is one of the two. Stores it in
 * *out on the sender, in *in on the receiver. */
static void make_pair(Groups *g, int from, int to, Comm **out, Comm **in) {
    Comm *pair = comm_pair(g->stages, from, to, "stage");
    if (!pair) return;
    g->pair[g->pairs++] = pair;
    *(comm_rank(pair) == 0 ? out : in) = pair;
}

/* Makes the groups in the order of the axes, which is the same on all ranks. */
Groups groups_create(Comm *job, Mesh mesh, int is_ring) {
    MeshPlace place = mesh_place(mesh, comm_rank(job));
    Groups    g = {.mesh = mesh, .job = job};
    g.data = place.at[AXIS_REPLICA] * mesh.size[AXIS_SHARD] + place.at[AXIS_SHARD];
    g.datas = ranks_with(mesh, WITH_DATA);
    g.tensor = group_or_none(job, mesh, WITH_TENSOR, "tensor");
    g.context = group_or_none(job, mesh, WITH_CONTEXT, "context");
    g.state = group_or_job(job, mesh, WITH_STATE, "shard");
    g.replicas = group_or_none(job, mesh, WITH_REPLICA, "replica");
    if (g.tensor) comm_set_inline(g.tensor);
    if (g.context) comm_set_inline(g.context);
    g.weights = ranks_with(mesh, WITH_REPLICA) > 1 ? group_or_job(job, mesh, WITH_WEIGHTS, "weights") : g.state;
    g.stages = group_or_none(job, mesh, WITH_STAGE, "stages");
    if (!g.stages) return g;
    int stages = comm_size(g.stages), borders = is_ring ? stages : stages - 1;
    for (int p = 0; p < borders; p++) {
        make_pair(&g, p, (p + 1) % stages, &g.forward_out, &g.forward_in);
        make_pair(&g, (p + 1) % stages, p, &g.backward_out, &g.backward_in);
    }
    make_pair(&g, stages - 1, 0, &g.twin_up, &g.twin_up);
    make_pair(&g, 0, stages - 1, &g.twin_down, &g.twin_down);
    return g;
}

/* Sets g->matrices to a group of all ranks of this pipeline stage. Uses an existing group if one has exactly those
 * ranks. */
void groups_add_matrices(Groups *g) {
    int stage_ranks = ranks_with(g->mesh, WITH_TENSOR | WITH_WEIGHTS);
    if (stage_ranks == mesh_ranks(g->mesh)) g->matrices = g->job;
    else if (stage_ranks == ranks_with(g->mesh, WITH_STATE)) g->matrices = g->state;
    else g->matrices = comm_group(g->job, g->mesh, WITH_TENSOR | WITH_WEIGHTS, "matrices");
    comm_set_exchanges(g->matrices);
}

void groups_add_experts(Groups *g, int ranks) {
    int of = comm_size(g->state), rank = comm_rank(g->state);
    if (ranks <= 1) return;
    g->experts = comm_every(g->state, rank - rank % ranks, 1, ranks, GROUP_OF_EXPERTS);
    g->expert_state = comm_every(g->state, rank % ranks, ranks, of / ranks, GROUP_OF_EXPERT_STATE);
    comm_set_inline(g->experts);
    comm_set_exchanges(g->experts);
}

void groups_add_tree(Groups *g) { comm_set_exchanges(g->state); }

/* A group of ranks, and the axis of the grid to which its times and bytes are added. */
typedef struct { Comm *comm; Axis axis; } Counted;

enum { MOST = 10 + MOST_PAIRS };
/* Lists each group of ranks once and returns the number of groups. */
static int list(const Groups *g, Counted all[MOST]) {
    const Counted each[MOST] = {
        {g->job, AXIS_SHARD},          {g->tensor, AXIS_TENSOR},    {g->context, AXIS_CONTEXT},
        {g->state, AXIS_SHARD},        {g->replicas, AXIS_REPLICA}, {g->weights, AXIS_SHARD},
        {g->stages, AXIS_STAGE},       {g->pair[0], AXIS_STAGE},    {g->pair[1], AXIS_STAGE},
        {g->pair[2], AXIS_STAGE},      {g->pair[3], AXIS_STAGE},    {g->pair[4], AXIS_STAGE},
        {g->pair[5], AXIS_STAGE},      {g->matrices, AXIS_SHARD},   {g->experts, AXIS_SHARD},
        {g->expert_state, AXIS_SHARD},
    };
    int count = 0;
    for (int i = 0; i < MOST; i++) {
        int is_new = each[i].comm != NULL;
        for (int k = 0; k < i; k++) is_new &= each[k].comm != each[i].comm;
        if (is_new) all[count++] = each[i];
    }
    return count;
}

/* Frees the groups, the newest first. Pairs end in the same order on all ranks, so no rank waits for another pair. */
void groups_free(Groups *g) {
    Counted all[MOST];
    for (int i = list(g, all); i-- > 1;) comm_free(all[i].comm);
    *g = (Groups){0};
}

/* Sets whether each group communicates by NCCL or another way (CommKind). The groups of weights and of stages are left
 * out, because they make only small calls, which always use MPI. TRAIN_GPT_PAIRS=host sends the messages of pairs
 * through host memory, to find a fault, or if ranks share a GPU. */
void groups_set_kind(const Groups *g, CommKind kind) {
    Counted     all[MOST];
    const char *pairs = getenv("TRAIN_GPT_PAIRS");
    for (int i = 0, count = list(g, all); i < count; i++) {
        Comm *c = all[i].comm;
        int   is_small = (c == g->weights || c == g->stages) && c != g->state && c != g->job;
        int   by_host = all[i].axis == AXIS_STAGE && pairs && strcmp(pairs, "host") == 0;
        if (!is_small) comm_set_kind(c, by_host ? COMM_RING : kind);
    }
    /* Reserves the multiprocessors that NCCL's kernels occupy while the device computes. Of the groups that share a
     * stream only one communicates at a time. The receive of each pair of stages is posted in advance and occupies
     * multiprocessors while it waits. */
    int receives = 0, is_shared = comm_size(g->state) > 1 || g->replicas || (g->matrices && comm_size(g->matrices) > 1);
    for (int i = 0; i < g->pairs; i++) receives += comm_rank(g->pair[i]) == 1;
    device_leave_multiprocessors((is_shared ? comm_library_blocks(kind, COMM_FOR_BUCKETS) : 0) +
                                 receives * comm_library_blocks(kind, COMM_FOR_PAIR));
}

size_t groups_buffer_bytes(Mesh mesh, CommKind kind, int experts) {
    int    all = mesh_ranks(mesh), state = ranks_with(mesh, WITH_STATE);
    size_t sum = comm_buffer_bytes(kind, all) + comm_buffer_bytes(kind, ranks_with(mesh, WITH_TENSOR)) +
                 comm_buffer_bytes(kind, ranks_with(mesh, WITH_CONTEXT)) +
                 comm_buffer_bytes(kind, ranks_with(mesh, WITH_REPLICA));
    if (state < all) sum += comm_buffer_bytes(kind, state);
    if (mesh.size[AXIS_STAGE] > 1) sum += 4 * comm_buffer_bytes(kind, 2);
    /* expert ranks need no buffers, because they send rows as messages */
    return sum + (experts > 1 ? comm_buffer_bytes(kind, state / experts) : 0);
}

/* Returns the GPU memory that the communication library takes for the groups that groups_create and the groups_add_
 * functions make. */
size_t groups_library_bytes(Mesh mesh, CommKind kind, GroupsUse use) {
    int all = mesh_ranks(mesh), state = ranks_with(mesh, WITH_STATE),
        stage = ranks_with(mesh, WITH_TENSOR | WITH_WEIGHTS), of_matrices = 0;
    CommUse of_all = COMM_FOR_BUCKETS, of_state = use.has_tree ? COMM_FOR_MESSAGES : COMM_FOR_BUCKETS;
    if (use.has_matrices && stage == all) of_all = COMM_FOR_MESSAGES;
    else if (use.has_matrices && stage == state) of_state = COMM_FOR_MESSAGES;
    else if (use.has_matrices) of_matrices = stage;
    if (state == all && of_state == COMM_FOR_MESSAGES) of_all = COMM_FOR_MESSAGES;
    size_t sum = comm_library_bytes(kind, all, of_all) +
                 comm_library_bytes(kind, ranks_with(mesh, WITH_TENSOR), COMM_FOR_INLINE) +
                 comm_library_bytes(kind, ranks_with(mesh, WITH_CONTEXT), COMM_FOR_INLINE) +
                 comm_library_bytes(kind, ranks_with(mesh, WITH_REPLICA), COMM_FOR_BUCKETS) +
                 comm_library_bytes(kind, of_matrices, COMM_FOR_MESSAGES);
    if (state < all) sum += comm_library_bytes(kind, state, of_state);
    if (mesh.size[AXIS_STAGE] > 1) sum += MOST_PAIRS * comm_library_bytes(kind, 2, COMM_FOR_PAIR);
    if (use.experts <= 1) return sum;
    return sum + comm_library_bytes(kind, use.experts, COMM_FOR_MESSAGES) +
           comm_library_bytes(kind, state / use.experts, COMM_FOR_BUCKETS);
}

GroupTimes groups_times(const Groups *g) {
    GroupTimes t = {0};
    Counted    all[MOST];
    for (int i = 0, count = list(g, all); i < count; i++) {
        CommTimes one = comm_times(all[i].comm);
        Axis      axis = all[i].axis;
        t.comm_ms += one.comm_ms, t.exposed_ms += one.exposed_ms;
        t.ms[axis] += one.comm_ms, t.waited_ms[axis] += one.exposed_ms, t.sent[axis] += one.sent;
    }
    return t;
}

void groups_forget_times(const Groups *g) {
    Counted all[MOST];
    for (int i = 0, count = list(g, all); i < count; i++) comm_forget_times(all[i].comm);
}
