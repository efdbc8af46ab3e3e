/* groups.c - see groups.h. */
#include "model/groups.h"

static int ranks_with(Mesh m, unsigned axes) {
    int ranks = 1;
    for (int a = 0; a < AXES; a++)
        if (axes >> a & 1) ranks *= m.size[a];
    return ranks;
}

Groups groups_create(Comm *job, Mesh mesh) {
    Groups g = {.mesh = mesh, .job = job, .state = job};
    if (ranks_with(mesh, WITH_STATE) < mesh_ranks(mesh)) g.state = comm_group(job, mesh, WITH_STATE, "shard");
    if (ranks_with(mesh, WITH_REPLICA) > 1) g.replicas = comm_group(job, mesh, WITH_REPLICA, "replica");
    return g;
}

void groups_free(Groups *g) {
    comm_free(g->replicas);
    if (g->state != g->job) comm_free(g->state);
    *g = (Groups){0};
}

void groups_set_kind(const Groups *g, CommKind kind) {
    comm_set_kind(g->job, kind);
    if (g->state != g->job) comm_set_kind(g->state, kind);
    if (g->replicas) comm_set_kind(g->replicas, kind);
}

static size_t sum_of_groups(Mesh mesh, CommKind kind, size_t (*bytes)(CommKind kind, int ranks)) {
    int    all = mesh_ranks(mesh), state = ranks_with(mesh, WITH_STATE), replicas = ranks_with(mesh, WITH_REPLICA);
    size_t sum = bytes(kind, all);
    if (state < all) sum += bytes(kind, state);
    return sum + bytes(kind, replicas);
}
size_t groups_buffer_bytes(Mesh mesh, CommKind kind) { return sum_of_groups(mesh, kind, comm_buffer_bytes); }
size_t groups_library_bytes(Mesh mesh, CommKind kind) { return sum_of_groups(mesh, kind, comm_library_bytes); }

GroupTimes groups_times(const Groups *g) {
    CommTimes  job = comm_times(g->job), state = g->state == g->job ? (CommTimes){0} : comm_times(g->state);
    CommTimes  replicas = g->replicas ? comm_times(g->replicas) : (CommTimes){0};
    GroupTimes t = {.comm_ms = job.comm_ms + state.comm_ms + replicas.comm_ms,
                    .exposed_ms = job.exposed_ms + state.exposed_ms + replicas.exposed_ms, .replica_ms = replicas.comm_ms};
    t.sent[AXIS_SHARD] = job.sent + state.sent, t.sent[AXIS_REPLICA] = replicas.sent;
    return t;
}

void groups_forget_times(const Groups *g) {
    comm_forget_times(g->job);
    if (g->state != g->job) comm_forget_times(g->state);
    if (g->replicas) comm_forget_times(g->replicas);
}
