/* mesh.c - arithmetic on the grid of ranks (mesh.h). */
#include "core/mesh.h"

#include <stdio.h>

#include "core/error.h"

Mesh mesh_of(int ranks, MeshSizes n) {
    int others = n.tensor * n.context * n.stages * n.replicas;
    CHECK(others > 0 && ranks % others == 0, "%d ranks in a grid of %d x %d x %d x %d", ranks, n.tensor, n.context,
          n.stages, n.replicas);
    return (Mesh){{[AXIS_TENSOR] = n.tensor,
                   [AXIS_CONTEXT] = n.context,
                   [AXIS_SHARD] = ranks / others,
                   [AXIS_REPLICA] = n.replicas,
                   [AXIS_STAGE] = n.stages}};
}

const char *mesh_axis_name(Axis axis) {
    static const char *const names[AXES] = {"tensor", "context", "shard", "replica", "stage"};
    return names[axis];
}

char *mesh_text(Mesh m, char out[MESH_TEXT]) {
    int used = 0;
    for (int a = 0; a < AXES; a++)
        if (m.size[a] > 1 || a == AXIS_SHARD)
            used += snprintf(out + used, MESH_TEXT - (size_t)used, "%s%s %d", used ? " x " : "",
                             mesh_axis_name((Axis)a), m.size[a]);
    return out;
}

char *mesh_crossing(Mesh m, int host, char out[MESH_TEXT]) {
    int used = 0, stride = 1;
    snprintf(out, MESH_TEXT, "none");
    for (int a = 0; a < AXES; a++) {
        int span = stride * m.size[a];
        if (m.size[a] > 1 && (span > host || host % span) && mesh_ranks(m) > host)
            used += snprintf(out + used, (size_t)(MESH_TEXT - used), "%s%s", used ? ", " : "", mesh_axis_name((Axis)a));
        stride = span;
    }
    return out;
}

int mesh_ranks(Mesh m) {
    int ranks = 1;
    for (int a = 0; a < AXES; a++) ranks *= m.size[a];
    return ranks;
}

char *mesh_place_text(Mesh m, int rank, char out[MESH_TEXT]) {
    MeshPlace p = mesh_place(m, rank);
    int       used = 0;
    out[0] = '\0';
    for (int a = 0; a < AXES; a++)
        if (m.size[a] > 1)
            used += snprintf(out + used, MESH_TEXT - (size_t)used, "%s%s %d of %d", used ? ", " : "",
                             mesh_axis_name((Axis)a), p.at[a], m.size[a]);
    return out;
}

MeshPlace mesh_place(Mesh m, int rank) {
    MeshPlace p;
    CHECK(rank >= 0 && rank < mesh_ranks(m), "rank %d in a grid of %d", rank, mesh_ranks(m));
    for (int a = 0; a < AXES; a++) {
        p.at[a] = rank % m.size[a];
        rank /= m.size[a];
    }
    return p;
}

int mesh_rank(Mesh m, MeshPlace p) {
    int rank = 0;
    for (int a = AXES - 1; a >= 0; a--) {
        CHECK(p.at[a] >= 0 && p.at[a] < m.size[a], "place %d on axis %d of %d", p.at[a], a, m.size[a]);
        rank = rank * m.size[a] + p.at[a];
    }
    return rank;
}

/* Counts through the places on the chosen axes. A rank is a number whose digits are its places, the outermost axis
 * first, so the counting gives ascending ranks. */
int mesh_group(Mesh m, int rank, unsigned axes, int *ranks) {
    MeshPlace p = mesh_place(m, rank);
    int       count = 1;
    for (int a = 0; a < AXES; a++)
        if (axes >> a & 1) count *= m.size[a];
    for (int i = 0; i < count; i++) {
        int rest = i;
        for (int a = 0; a < AXES; a++) {
            if (!(axes >> a & 1)) continue;
            p.at[a] = rest % m.size[a];
            rest /= m.size[a];
        }
        ranks[i] = mesh_rank(m, p);
    }
    return count;
}
