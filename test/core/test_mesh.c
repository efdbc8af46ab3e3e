/* test_mesh.c - coordinates of ranks in a grid, and the groups of ranks along its axes. */
#include "core/mesh.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 512, ALL_AXES = (1 << AXES) - 1 };

static const Mesh GRIDS[] = {
    {{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 1}}, {{1, 1, 1, 1, 3}}, {{2, 1, 4, 1, 2}}, {{3, 2, 1, 5, 2}}, {{2, 3, 5, 2, 3}}, {{7, 1, 3, 1, 5}}, {{1, 4, 1, 3, 1}},
};
enum { MESHES = sizeof GRIDS / sizeof *GRIDS };

static void places_and_ranks_go_round(void **state) {
    (void)state;
    for (int g = 0; g < MESHES; g++) {
        Mesh m = GRIDS[g];
        for (int rank = 0; rank < mesh_ranks(m); rank++) {
            MeshPlace p = mesh_place(m, rank);
            for (int a = 0; a < AXES; a++) assert_in_range(p.at[a], 0, m.size[a] - 1);
            assert_int_equal(mesh_rank(m, p), rank);
        }
    }
}

static int same_outside(MeshPlace p, MeshPlace q, unsigned axes) {
    for (int a = 0; a < AXES; a++)
        if (!(axes >> a & 1) && p.at[a] != q.at[a]) return 0;
    return 1;
}

/* For every set of axes: each rank is in one group, all members list the same group in ascending order, and they differ
 * only in those axes. */
static void groups_divide_the_ranks(void **state) {
    (void)state;
    for (int g = 0; g < MESHES; g++)
        for (unsigned axes = 0; axes <= ALL_AXES; axes++) {
            Mesh m = GRIDS[g];
            int  group[MOST], again[MOST], seen[MOST] = {0}, size = 1;
            for (int a = 0; a < AXES; a++) size *= axes >> a & 1 ? m.size[a] : 1;
            for (int rank = 0; rank < mesh_ranks(m); rank++) {
                int has_rank = 0;
                assert_int_equal(mesh_group(m, rank, axes, group), size);
                for (int i = 0; i < size; i++) {
                    assert_true(i == 0 || group[i] > group[i - 1]);
                    assert_true(same_outside(mesh_place(m, group[i]), mesh_place(m, rank), axes));
                    has_rank += group[i] == rank;
                }
                assert_int_equal(has_rank, 1);
                if (group[0] != rank) continue;
                for (int i = 0; i < size; i++) {
                    assert_int_equal(seen[group[i]]++, 0);
                    assert_int_equal(mesh_group(m, group[i], axes, again), size);
                    assert_memory_equal(group, again, sizeof *group * (size_t)size);
                }
            }
            for (int rank = 0; rank < mesh_ranks(m); rank++) assert_int_equal(seen[rank], 1);
        }
}

static void expect_group(Mesh m, int rank, unsigned axes, int count, const int *ranks) {
    int group[MOST];
    assert_int_equal(mesh_group(m, rank, axes, group), count);
    assert_memory_equal(group, ranks, sizeof *group * (size_t)count);
}

/* A grid of 16 ranks: 2 tensor ranks x 4 shards of the state x 2 pipeline stages. The expected groups were written down
 * by hand. */
static void a_grid_written_down(void **state) {
    (void)state;
    Mesh      m = {{[AXIS_TENSOR] = 2, [AXIS_CONTEXT] = 1, [AXIS_SHARD] = 4, [AXIS_REPLICA] = 1, [AXIS_STAGE] = 2}};
    MeshPlace p = mesh_place(m, 13);
    char      text[MESH_TEXT];
    assert_int_equal(mesh_ranks(m), 16);
    assert_string_equal(mesh_place_text(m, 13, text), "tensor 1 of 2, shard 2 of 4, stage 1 of 2");
    assert_true(p.at[AXIS_TENSOR] == 1 && p.at[AXIS_SHARD] == 2 && p.at[AXIS_STAGE] == 1 && p.at[AXIS_CONTEXT] == 0 &&
                p.at[AXIS_REPLICA] == 0);
    expect_group(m, 13, 0, 1, (int[]){13});
    expect_group(m, 13, WITH_TENSOR, 2, (int[]){12, 13});
    expect_group(m, 13, WITH_STATE, 4, (int[]){9, 11, 13, 15});
    expect_group(m, 13, WITH_STAGE, 2, (int[]){5, 13});
    expect_group(m, 4, WITH_TENSOR | WITH_STAGE, 4, (int[]){4, 5, 12, 13});
    expect_group(m, 0, WITH_CONTEXT | WITH_REPLICA, 1, (int[]){0});

    m = (Mesh){{[AXIS_TENSOR] = 1, [AXIS_CONTEXT] = 2, [AXIS_SHARD] = 2, [AXIS_REPLICA] = 2, [AXIS_STAGE] = 1}};
    expect_group(m, 5, WITH_CONTEXT, 2, (int[]){4, 5});
    expect_group(m, 5, WITH_STATE, 4, (int[]){4, 5, 6, 7});
    expect_group(m, 5, WITH_REPLICA, 2, (int[]){1, 5});
    expect_group(m, 5, WITH_DATA, 4, (int[]){1, 3, 5, 7});
    expect_group(m, 5, WITH_WEIGHTS, 8, (int[]){0, 1, 2, 3, 4, 5, 6, 7});
}

static void data_alone(void **state) {
    (void)state;
    Mesh m = mesh_of(3, (MeshSizes){1, 1, 1, 1});
    assert_int_equal(mesh_ranks(m), 3);
    expect_group(m, 1, WITH_STATE, 3, (int[]){0, 1, 2});
    expect_group(m, 1, WITH_TENSOR | WITH_CONTEXT | WITH_REPLICA | WITH_STAGE, 1, (int[]){1});
    for (int rank = 0; rank < 3; rank++) assert_int_equal(mesh_place(m, rank).at[AXIS_SHARD], rank);
}

int main(void) {
    const struct CMUnitTest mesh[] = {
        cmocka_unit_test(places_and_ranks_go_round),
        cmocka_unit_test(groups_divide_the_ranks),
        cmocka_unit_test(a_grid_written_down),
        cmocka_unit_test(data_alone),
    };
    return cmocka_run_group_tests(mesh, NULL, NULL);
}
