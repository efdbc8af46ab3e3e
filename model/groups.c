/* groups.c - see groups.h. */
#include "model/groups.h"

static int ranks_with(Mesh m, unsigned axes) {
    int ranks = 1;
    for (int a = 0; a < AXES; a++)
        if (axes >> a & 1) ranks *= m.size[a];
    return ranks;
}

/* A group of all ranks is the job itself. */
static Comm *group_or_job(Comm *job, Mesh mesh, unsigned axes, const char *name) {
    return ranks_with(mesh, axes) < mesh_ranks(mesh) ? comm_group(job, mesh, axes, name) : job;
}
static Comm *group_or_none(Comm *job, Mesh mesh, unsigned axes, const char *name) {
    return ranks_with(mesh, axes) > 1 ? comm_group(job, mesh, axes, name) : NULL;
}

/* In the order of the axes: all ranks make the same groups in it. */
Groups groups_create(Comm *job, Mesh mesh) {
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
    return g;
}

enum { MOST = 6 };
/* Each once; returns how many. axis: whose times and bytes they count for. */
static int list(const Groups *g, Comm *all[MOST], Axis axis[MOST]) {
    Comm *each[MOST] = {g->job, g->tensor, g->context, g->state, g->replicas, g->weights};
    Axis  of[MOST] = {AXIS_SHARD, AXIS_TENSOR, AXIS_CONTEXT, AXIS_SHARD, AXIS_REPLICA, AXIS_SHARD};
    int   count = 0;
    for (int i = 0; i < MOST; i++) {
        int is_new = each[i] != NULL;
        for (int k = 0; k < count; k++) is_new &= all[k] != each[i];
        if (is_new) all[count] = each[i], axis[count++] = of[i];
    }
    return count;
}

void groups_free(Groups *g) {
    Comm *all[MOST];
    Axis  axis[MOST];
    for (int i = list(g, all, axis); i-- > 1;) comm_free(all[i]);
    *g = (Groups){0};
}

/* The group of weights compares hashes: small calls, which are MPI's. */
void groups_set_kind(const Groups *g, CommKind kind) {
    Comm *all[MOST];
    Axis  axis[MOST];
    for (int i = 0, count = list(g, all, axis); i < count; i++)
        if (all[i] != g->weights || all[i] == g->state || all[i] == g->job) comm_set_kind(all[i], kind);
}

static size_t sum_of_groups(Mesh mesh, CommKind kind, size_t (*bytes)(CommKind kind, int ranks)) {
    int    all = mesh_ranks(mesh), state = ranks_with(mesh, WITH_STATE);
    size_t sum = bytes(kind, all) + bytes(kind, ranks_with(mesh, WITH_TENSOR)) + bytes(kind, ranks_with(mesh, WITH_CONTEXT)) + bytes(kind, ranks_with(mesh, WITH_REPLICA));
    return sum + (state < all ? bytes(kind, state) : 0);
}
size_t groups_buffer_bytes(Mesh mesh, CommKind kind) { return sum_of_groups(mesh, kind, comm_buffer_bytes); }
size_t groups_library_bytes(Mesh mesh, CommKind kind) { return sum_of_groups(mesh, kind, comm_library_bytes); }

GroupTimes groups_times(const Groups *g) {
    GroupTimes t = {0};
    Comm      *all[MOST];
    Axis       axis[MOST];
    for (int i = 0, count = list(g, all, axis); i < count; i++) {
        CommTimes one = comm_times(all[i]);
        t.comm_ms += one.comm_ms, t.exposed_ms += one.exposed_ms;
        t.ms[axis[i]] += one.comm_ms, t.sent[axis[i]] += one.sent;
    }
    return t;
}

void groups_forget_times(const Groups *g) {
    Comm *all[MOST];
    Axis  axis[MOST];
    for (int i = 0, count = list(g, all, axis); i < count; i++) comm_forget_times(all[i]);
}
